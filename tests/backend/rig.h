/*
 * A device (the CPU, or another) on a bench: opened and reserved, with the exchange filled with
 * NaNs and watched, and what tests of its steps need around it: weights with their values as
 * floats, rounds, spans. Everything fails the running test by itself.
 */
#pragma once

#include "backend/backend.h"
#include "base/rng.h"
#include "support.h"

enum {
    RIG_TOKENS = 72,
    RIG_ROWS = 12,
    RIG_CTX = 1024,
    RIG_STRIDE = 320,  /* floats from line to line of every buffer */
    RIG_BUFFERS = 16,  /* of RIG_TOKENS lines, in each space */
    RIG_HEADS = 8,     /* query heads at most */
    RIG_HEAD_DIM = 64, /* at most */
    RIG_PAGES = 40,
};

struct rig {
    struct backend *b;
    struct backend_limits limits;
    float *exchange; /* (RIG_BUFFERS, RIG_TOKENS, RIG_STRIDE) */
    float *before;   /* copy, to see what a step wrote */
    struct rng rng;
    uint64_t value; /* of the timeline */
    char key[256];  /* of a device that is kept */
};

struct backend_options rig_options(int n_threads, const char *isa);
void rig_open(struct rig *r, const struct backend_options *options);
/* A device that is ready for routed experts of this size. */
void rig_open_experts(struct rig *r, const char *device, const struct backend_options *options,
                      int n_experts, int n_used, int n_embd, int n_ff);
/* The same on any device. */
void rig_open_on(struct rig *r, const char *device, const struct backend_options *options);
/* From now on a closed device waits, with its shaders, for the next rig like it, until the verdict:
 * for programs of many small cases. */
void rig_keep_devices(void);
/* Before a program's tests: false if the device is not there (its reason is printed: skip). What
 * Vulkan's validation layer says from now on is printed and counted. */
bool rig_has_device(const char *device);
/* The layer is there; how much it has said since the last call, which it may then. */
bool rig_is_validated(void);
int rig_take_messages(void);
/* After them: `failed`, or 1 if the validation layer said anything. */
int rig_verdict(int failed);
/* Several devices that share an exchange: the others take r's. */
void rig_open_beside(struct rig *other, const struct rig *r, const struct backend_options *options);
void rig_open_beside_on(struct rig *other, const char *device, const struct rig *r,
                        const struct backend_options *options);
void rig_close(struct rig *r);

/* Buffer `index` of a space; its column `first` stands at the beginning of a line. */
struct span rig_span(enum space space, int index, int first);
/* Line `line` of an exchange buffer. */
float *rig_line(const struct rig *r, int index, int line);
/* Fills lines of an exchange buffer with numbers of about 1. */
void rig_fill(struct rig *r, int index, int n_lines, int width);

/* Builds a segment, runs it to its end, frees it. */
void rig_run(struct rig *r, const struct step *steps, int n_steps, const struct round *round);
/* The same; then nothing of the exchange may have changed but columns [begin, end) of the first
 * n_lines of a buffer whose column `begin` stands first. */
void rig_run_watched(struct rig *r, const struct step *step, const struct round *round, int index,
                     int n_lines);

/* A matrix in any type: its blocks, and what they mean. */
struct rig_matrix {
    enum dtype dtype;
    int n_rows, n_cols;
    int64_t row_bytes;
    uint8_t *blocks;
    float *values; /* (n_rows, n_cols) */
};
struct rig_matrix rig_matrix(struct rng *rng, enum dtype dtype, int n_rows, int n_cols);
/* Random blocks of a quantised type, all of whose outer scales and minima are 1: every value is an
 * integer. */
struct rig_matrix rig_matrix_integers(struct rng *rng, enum dtype dtype, int n_rows, int n_cols);
void rig_matrix_free(struct rig_matrix *m);
/* A range of rows and columns on the device. */
struct backend_weight *rig_load(struct rig *r, const struct rig_matrix *m, int row_begin,
                                int row_end, int col_begin, int col_end);

/* A round of up to three sequences and the arrays it points to. */
struct rig_round {
    struct round round;
    int32_t tokens[RIG_TOKENS], positions[RIG_TOKENS], rows[RIG_ROWS];
    struct round_run runs[3];
    int32_t pages[3][RIG_CTX / 64];
};
/* lengths, first positions: (n_runs). Pages are scattered; rows: the last tokens, n_rows of them.
 */
void rig_round_open(struct rig_round *r, int n_runs, const int *lengths, const int *first,
                    int n_rows);
/* One sequence from position 0. */
void rig_round_plain(struct rig_round *r, int n_tokens, int n_rows);

/* |got - want| <= bound * scale, else the test fails with what. */
void rig_expect(const char *what, int line, int column, double got, double want, double scale,
                double bound);
