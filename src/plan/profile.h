/*
 * What this machine needs for the operators of a model (section 2 of scheduling.md): measured by
 * run/measure, or computed from the rates of a machine description, or both (what is not measured
 * is computed). Arithmetic and JSON only; it measures nothing. Read by items.c, timeline.c and
 * whoever predicts.
 *
 * A profile and a machine description are the same JSON. Times are seconds, sizes bytes, rates a
 * second. Everything that is no number of a table must be finite and above zero.
 *
 *   {"atsinfer": "profile", "version": 1,
 *    "name": "RTX 3060 Laptop", "key": "...",          key: of the machine and the model; optional
 *    "memory": {"gpu_bytes": 6442450944, "usable_bytes": 5900000000,   usable: by weights, slots,
 *               "host_bytes": 34359738368, "shared": false},           KV; optional, as is shared
 *    "bandwidth": {"dram": 40e9, "vram": 285e9},       shared by all that read it
 *    "link": {"up_pinned": 24e9, "up_staged": 9e9, "down_pinned": 24e9, "down_staged": 9e9,
 *             "activation_up": 8e9, "activation_down": 8e9,
 *             "kappa_up": 30e-6, "kappa_down": 30e-6, "kappa_x": 40e-6,
 *             "cut": 5e-6},                             optional, none
 *    "interference": {"cpu_speed_copying": 0.9, "copy_speed_cpu": 0.8,   a and b: shares of the
 *                     "cpu_speed_gpu": 1, "gpu_speed_cpu": 1},           speed alone, (0, 1]
 *    "op": {"cpu": 2e-6, "gpu": 3e-6},                 an operator beside its work: its start
 *    "rates": {"cpu": {"bytes": 38e9, "flop": 4e11,    of products: weights read, FLOP
 *                      "kv_bytes": 30e9, "kv_flop": 1e11,              of attention and states
 *                      "types": {"Q4_K": {"bytes": 36e9, "flop": 5e11}}},  optional, either
 *              "gpu": {...}},
 *    "tokens": [1, 2, 4, 512], "shares": [0.25, 1], "depths": [0, 2048],
 *    "items": [{"op": "matmul", "types": ["Q4_K"], "math": "q8", "axis": "rows",
 *               "dims": [4096, 2048],                  see struct profile_key
 *               "cpu": {"work": [[...], [...]], "kv": [[...], [...]]}, "gpu": {...}}]}
 *
 * "work": one row of times over `tokens` for each of `shares`, at depth 0; "kv": one for each of
 * `depths`, what depth adds at share 1 (at depth 0: zeros), only where an operator has a cache. At
 * least one of "rates" and "items" is there. Every object may have a "comment"; other keys are an
 * error.
 */
#pragma once

#include "base/arena.h"
#include "base/json.h"
#include "model/graph.h"

enum side { SIDE_CPU, SIDE_GPU, N_SIDES };

/* The grids of scheduling.md 2; a profile may have others, of at most these lengths. */
enum { PROFILE_MAX_TOKENS = 16, PROFILE_MAX_SHARES = 8, PROFILE_MAX_DEPTHS = 8 };
enum { PROFILE_MAX_DIMS = 6, PROFILE_MAX_TYPES = 3 };
extern const int profile_tokens[13];   /* 1 to 8, 16, 32, 128, 512, 2048 */
extern const double profile_shares[6]; /* 1/32, 1/8, 1/4, 1/2, 3/4, 1 */
extern const int profile_depths[4];    /* 0, 2k, 8k, 32k */

/*
 * Operators of equal key take equal time. dims, and what T and a share mean:
 *   matmul     n_rows, n_cols; the share is of `axis`. T: tokens
 *   attention  n_heads, n_kv_heads, head_dim; types: of K, of V. The share is of KV heads. A
 *              window is not in the key: time is taken at the depth that is seen
 *   experts    n_experts, n_used, n_ff, n_embd; types: gate, up, down. Share 1 is n_used experts in
 *              use (more are possible), T the tokens that each of them gets
 *   others     width of the output, bytes of the state (what is read and written for a token)
 */
struct profile_key {
    const char *op; /* op_kind_name */
    enum dtype types[PROFILE_MAX_TYPES];
    int n_types;
    enum math math;
    enum axis axis;
    int64_t dims[PROFILE_MAX_DIMS];
    int n_dims;
};

struct profile_times {
    double work_s[PROFILE_MAX_SHARES][PROFILE_MAX_TOKENS];
    double kv_s[PROFILE_MAX_DEPTHS][PROFILE_MAX_TOKENS];
};
struct profile_item {
    struct profile_key key;
    bool has_kv;
    struct profile_times sides[N_SIDES];
};

struct profile_rates {
    double kv_bytes, kv_flop;
    double bytes[N_DTYPES_WEIGHT], flop[N_DTYPES_WEIGHT];
    double default_bytes, default_flop; /* of types that the file does not list */
};

struct profile_link {
    double up_pinned, up_staged, down_pinned, down_staged; /* B_up, B_down: weights, KV */
    double activation_up, activation_down;
    double kappa_up_s, kappa_down_s, kappa_x_s;
    double cut_s; /* that the GPU loses between two of its segments, though it waits for nobody */
};

/* Speeds while another resource is busy, as shares of the speed alone. */
struct profile_interference {
    double cpu_speed_copying, copy_speed_cpu; /* a, b */
    double cpu_speed_gpu, gpu_speed_cpu;      /* 1 but with shared memory */
};

struct profile {
    const char *name, *key; /* key: "" if there is none */
    int64_t gpu_bytes, usable_bytes, host_bytes;
    bool shared;                   /* the GPU works in host memory: nothing has to be copied */
    double dram_bytes, vram_bytes; /* a second */
    struct profile_link link;
    struct profile_interference interference;
    double op_s[N_SIDES]; /* also the time of an operator without weights beside its consumer */
    bool has_rates;
    struct profile_rates rates[N_SIDES];
    int tokens[PROFILE_MAX_TOKENS], n_tokens; /* ascending from 1 */
    double shares[PROFILE_MAX_SHARES];        /* ascending to 1 */
    int n_shares;
    int depths[PROFILE_MAX_DEPTHS], n_depths; /* ascending from 0 */
    struct profile_item *items;
    int n_items;
};

/* Everything in the arena; `where` names the file in messages. Errors: BAD_FILE naming the place
 * (`link.kappa_x`, `items[3].cpu.work[0][2]`) for what is missing, unknown, impossible, zero where
 * it must not be, or not finite. */
MUST_CHECK ats_status profile_from_json(struct arena *arena, const json_t *json, const char *where,
                                        struct profile **out);
MUST_CHECK ats_status profile_read(struct arena *arena, const char *path, struct profile **out);
/* Owned (decref). Reading it again gives the same profile. */
json_t *profile_to_json(const struct profile *p);
/* What profile_from_json does to the tables, for items that were just measured: every time is
 * checked, and made to grow with the share (least squares). Errors: BAD_FILE as above. */
MUST_CHECK ats_status profile_finish(struct profile *p, const char *where);

bool profile_key_equal(const struct profile_key *a, const struct profile_key *b);
/* NULL: not measured. */
const struct profile_item *profile_find(const struct profile *p, const struct profile_key *key);
/* True if the time of the key can be told: measured, or there are rates. */
bool profile_knows(const struct profile *p, const struct profile_key *key);

/*
 * Seconds of an operator on a side for n_tokens >= 0 tokens (a mean may be no whole number) at a
 * depth >= 0 (tokens before the round's) for a share >= 0 of its units (0: no time). Between
 * tokens: linear up to 8, log-log above, proportional past the last; between depths linear, also
 * past the last; between shares linear, past 1 (experts) with the slope from half to all. item:
 * profile_find(p, key), or NULL: from the rates. profile_knows must hold.
 */
double profile_time(const struct profile *p, const struct profile_item *item,
                    const struct profile_key *key, enum side side, double n_tokens, double depth,
                    double share);
/* Seconds of its arithmetic alone, by the rates; 0 without rates. Of experts at share 1. */
double profile_flop_time(const struct profile *p, const struct profile_key *key, enum side side,
                         double n_tokens, double depth);
