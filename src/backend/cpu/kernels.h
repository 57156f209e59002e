/*
 * The CPU's arithmetic: one table of functions, filled with the plain-C reference and then
 * overridden by each instruction set that the processor has (and the mask allows), lowest to
 * highest. Kernels see rows, ranges and pointers; they know nothing of graphs, threads or models.
 * Called by the CPU backend's phases and by tests/kernels.
 *
 * Determinism (house.md 9): for one table, the value of an output depends only on its weight row
 * and its activation row: the same sequence of f32 operations whatever n_rows, n_tokens or the
 * position of the row in a call. So any cut into threads, chunks or sequences is bit-equal.
 */
#pragma once

#include "backend/kv_type.h"
#include "base/base.h"
#include "model/dtype.h"
#include "model/graph.h" /* enum activation */

/* Activations rounded to 8 bits, class q8 (house.md 8): per 32 inputs scale = max|x|/127 and
 * q = round-to-nearest-even(x * (127 / max|x|)); both 0 if max|x| is below 2^-119 (whose inverse
 * is no finite float). Inputs are finite. Row-major (n_tokens, n_cols); n_cols is a multiple of 32.
 */
struct q8_rows {
    int8_t *q;    /* (n_tokens, n_cols), each row starts on 64 bytes if n_cols % 64 == 0 */
    float *scale; /* (n_tokens, n_cols / 32) */
    int16_t
        *sum16; /* (n_tokens, n_cols / 16): sums of q over 16 inputs, for types with a minimum */
    int n_cols;
};

/* Bytes of one token's q, scale and sum16 together, each part rounded up to 64. */
size_t q8_rows_bytes(int n_cols, int n_tokens);
/* Lays the three arrays out in memory (64-aligned, q8_rows_bytes long). */
struct q8_rows q8_rows_at(void *memory, int n_cols, int n_tokens);

typedef void dequant_fn(const void *blocks, float *out, int64_t n);
typedef void quantise_q8_fn(const float *x, int64_t x_stride, int token_begin, int token_end,
                            struct q8_rows *out);

/* out[t * out_stride + r] = sum over c of W[r][c] * x[t][c] for r in [0, n_rows), t in
 * [0, n_tokens). W: n_rows rows of n_cols elements of the table's type, row_bytes apart, starting
 * on a block border; x: as said above. `scratch`: matmul_scratch_bytes(n_cols), 64-aligned, of
 * this thread. n_rows, n_tokens >= 0. out does not alias anything. */
typedef void matmul_q8_fn(const void *w, size_t row_bytes, int n_rows, int n_cols,
                          const struct q8_rows *x, int n_tokens, float *out, int64_t out_stride,
                          void *scratch);
/* The same with float activations x (n_tokens rows of n_cols, x_stride floats apart): class f32. */
typedef void matmul_f32_fn(const void *w, size_t row_bytes, int n_rows, int n_cols, const float *x,
                           int64_t x_stride, int n_tokens, float *out, int64_t out_stride,
                           void *scratch);
/* n_cols for F32, F16 and BF16 weights is any number from 1 up. */
size_t matmul_scratch_bytes(int n_cols);

/* The same two products from the packed layout (backend/packed.h): rows of groups [group_begin,
 * group_end) of a matrix of n_rows x n_cols at `packed`; `out` is where the first of these rows
 * goes: out[t * out_stride + r - group_begin * PACK_ROWS], for r below n_rows. Bit-equal to the
 * products of the raw blocks by the same table.
 * then: a group of another matrix of this type and n_cols that will be read afterwards, or NULL:
 * with few tokens it and those behind it are asked for when these rows come to their end. */
typedef void matmul_packed_q8_fn(const uint8_t *packed, int group_begin, int group_end, int n_rows,
                                 int n_cols, const struct q8_rows *x, int n_tokens, float *out,
                                 int64_t out_stride, const uint8_t *then, void *scratch);
typedef void matmul_packed_f32_fn(const uint8_t *packed, int group_begin, int group_end, int n_rows,
                                  int n_cols, const float *x, int64_t x_stride, int n_tokens,
                                  float *out, int64_t out_stride, void *scratch);

/* Class bf16, BF16 weights only: activations rounded to bf16 (to nearest even), x_stride elements
 * apart, zeros behind n_cols up to a multiple of 32. Order of one output: for each 32 columns
 * ascending a chain from 0 of fma over pairs of columns, the second of a pair first; the 32-sums
 * are added up in order. What is below 2^-126 may count as 0 on the way, so that sets agree to
 * n_cols * 2^-126 and the bits where nothing is so small.
 * AMX BF16 alone has an order of its own for calls of more than BF16_FEW tokens, the departure of
 * house.md 9: in each 32 columns the first and the second of the pairs are two chains from 0, whose
 * sum is added to that of the columns before. Both orders are within the same bound of the exact
 * sum, 4 * 2^-23 * sqrt(n_cols) * sum |w * x| in the tests; there an output depends on its two rows
 * and on whether the call has few tokens. */
#define BF16_FEW 8
typedef void matmul_bf16_fn(const void *w, size_t row_bytes, int n_rows, int n_cols,
                            const uint16_t *x, int64_t x_stride, int n_tokens, float *out,
                            int64_t out_stride, void *scratch);
typedef void matmul_packed_bf16_fn(const uint8_t *packed, int group_begin, int group_end,
                                   int n_rows, int n_cols, const uint16_t *x, int64_t x_stride,
                                   int n_tokens, float *out, int64_t out_stride, void *scratch);

/* One query group against the first n_keys keys of a page: n_q query rows that share a KV head; k:
 * the head's keys as backend/kv_layout.h says, read in whole groups.
 * scores[j * score_stride + i] = scale * <q_j, k_i>.
 * next: what will be read after these keys, as much of it as of them, or NULL: it is asked for on
 * the way, since no prefetcher knows where a page goes on. */
typedef void attn_scores_fn(const float *q, int64_t q_stride, int n_q, const void *k, int n_keys,
                            int head_dim, float scale, float *scores, int64_t score_stride,
                            const void *next);
/* acc[j * acc_stride + c] += sum over i ascending of p[j * p_stride + i] * v_i[c]. next: as above.
 */
typedef void attn_values_fn(const float *p, int64_t p_stride, int n_q, const void *v,
                            size_t v_row_bytes, int n_keys, int head_dim, float *acc,
                            int64_t acc_stride, const void *next);

/* Rotary embedding in place over n_heads heads, head_stride floats apart; the first n_rot of
 * head_dim elements turn. cos, sin: n_rot / 2. pairs: (2i, 2i+1); halves: (i, i + n_rot/2). */
typedef void rope_fn(float *x, int n_heads, int head_stride, int n_rot, const float *cos,
                     const float *sin);

/* out = act(gate) * up as enum activation says; out may be gate or up. */
typedef void gated_fn(const float *gate, const float *up, int n, float *out);

/* Short convolution of n_columns neighbouring columns (OP_CONV of graph.h). past: the n_taps - 1
 * inputs before x, oldest first; NULL: zeros. filters: (n_columns, n_taps). One chain over the taps
 * in order. out aliases nothing. */
struct conv_rows {
    const float *x, *past;
    int64_t x_stride, past_stride;
};
typedef void conv_fn(const struct conv_rows *rows, const float *filters, int n_taps, int n_columns,
                     int n_tokens, bool silu, float *out, int64_t out_stride);

/* Gated delta rule (OP_DELTA of graph.h) over n_blocks times DELTA_BLOCK neighbouring columns of a
 * head, for n_tokens tokens in order. in, state: (n_blocks, dim_k, DELTA_BLOCK) before and after
 * them; they may be equal. Each column of the state is by itself. n_tokens >= 1. */
struct delta_rows {
    const float *q, *k, *v; /* (n_tokens, dim_k), the same, (n_tokens, n_blocks * DELTA_BLOCK) */
    int64_t q_stride, k_stride, v_stride;
    const float *decay, *beta; /* (n_tokens) what is left of the state, what is taken of v */
    float *out;
    int64_t out_stride;
    int n_tokens, dim_k;
};
typedef void delta_fn(const struct delta_rows *rows, const float *in, float *state, int n_blocks);

struct kernels {
    const char *name; /* of the highest set in it: see cpu_isa_name */
    dequant_fn *dequant[N_DTYPES_WEIGHT];
    quantise_q8_fn *quantise_q8;
    matmul_q8_fn *matmul_q8[N_DTYPES_WEIGHT];               /* NULL for F32, F16, BF16 */
    matmul_f32_fn *matmul_f32[N_DTYPES_WEIGHT];             /* every weight type */
    matmul_packed_q8_fn *matmul_packed_q8[N_DTYPES_WEIGHT]; /* NULL for F32, F16, BF16 */
    matmul_packed_f32_fn *matmul_packed_f32[N_DTYPES_WEIGHT];
    matmul_bf16_fn *matmul_bf16;
    matmul_packed_bf16_fn *matmul_packed_bf16;
    /* One row of activations of class bf16, the zeros behind it included. */
    void (*round_bf16)(const float *x, int n_cols, uint16_t *out);
    attn_scores_fn *attn_scores[KV_TYPE_COUNT];
    attn_values_fn *attn_values[KV_TYPE_COUNT];
    /* One position of a head as V has it (K's goes on by kv_key_put).
     * Q8_0: struct block_q8_0 with the rounding of quantise_q8 and d = half(max|x| / 127) */
    void (*kv_store[KV_TYPE_COUNT])(const float *x, void *row, int head_dim);
    /* p[i] = exp(p[i] - max), returns the sum in ascending fixed order (lanes allowed) */
    float (*exp_sum)(float *p, int n, float max);
    float (*max)(const float *x, int n);
    /* out = x / sqrt(mean(x^2) + eps) * w; w NULL means 1. out may be x. */
    void (*rms_norm)(const float *x, const float *w, int n, float eps, float *out);
    rope_fn *rope_pairs, *rope_halves;
    void (*soft_cap)(float *x, int n, float cap);                   /* x = cap * tanh(x / cap) */
    void (*add)(const float *a, const float *b, int n, float *out); /* out may be a or b */
    void (*scale)(float *x, int n, float factor);
    /* x = x + factor * a, one rounding */
    void (*add_scaled)(float *x, const float *a, int n, float factor);
    gated_fn *gated[ACT_COUNT];
    conv_fn *conv;
    delta_fn *delta;
};

/* What the processor has, as bits; and what the user allows. */
enum cpu_isa {
    ISA_REF,
    ISA_AVX2,       /* AVX2 FMA F16C */
    ISA_AVXVNNI,    /* and AVX-VNNI */
    ISA_AVX512,     /* F BW VL DQ VNNI */
    ISA_AVX512BF16, /* and dot products of bf16 */
    ISA_AMX,        /* and tiles of int8 */
    ISA_AMXBF16,    /* and of bf16 */
    ISA_NEON,       /* AArch64 baseline */
    ISA_NEON_DOT,   /* and the dot product instructions */
    ISA_NEON_I8MM,  /* and those for products of int8 matrices */
    ISA_COUNT
};
struct cpu_features {
    unsigned isa;   /* bit per cpu_isa, ISA_REF always */
    char text[256]; /* the flags found, for `doctor` */
    char model[64];
};
void cpu_features_read(struct cpu_features *out);
/* Fills the table with the best of `isa_mask` that the processor has. The table is plain data. */
void kernels_init(struct kernels *k, unsigned isa_mask);
/* The same without asking the processor: `isa` is what it has. */
void kernels_fill(struct kernels *k, unsigned isa);
/* "ref", "avx2", "avxvnni", "avx512", "avx512bf16", "amx", "amxbf16", "neon", "neon_dot",
 * "neon_i8mm" */
const char *cpu_isa_name(enum cpu_isa isa);
/* Parses one of these names (a level: it and all below) or "native"; false if unknown. */
bool cpu_isa_mask_parse(const char *text, unsigned *mask);
