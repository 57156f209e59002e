/*
 * AVX-512 BF16: products of class bf16 by vdpbf16ps, which adds the pair's high product to its sum,
 * then the low one, each with one rounding, and takes what is below 2^-126 for 0. The rest stays
 * AVX-512's. A vector of a packed group is the instruction's operand as it stands.
 */
#include "backend/cpu/kernels_vec_avx512.h"

#include "backend/packed.h"

#pragma GCC diagnostic ignored "-Wunused-function" /* of the bodies, what is not taken */

#include "backend/cpu/kernels_body_unpack.h"

#include "backend/cpu/kernels_body_pairs.h"

#define PAIR_TOKENS 8
#define SINGLE      4 /* groups side by side for one token */
#define AHEAD_BYTES 4096

ALWAYS_INLINE vf dot_pairs(vf sum, vi w, vi x) {
    return _mm512_dpbf16_ps(sum, (__m512bh)w, (__m512bh)x);
}

/* acc (n, n_groups) += n_blocks of 32 columns, for n tokens and n_groups groups (constants), the
 * groups group_stride bytes apart. */
ALWAYS_INLINE void pair_tile(const uint8_t *w, size_t group_stride, int n_groups, int n_blocks,
                             struct pairs p, int n, vf *acc) {
    const uint16_t *x[PAIR_TOKENS];
    const uint8_t *at[SINGLE];
    for (int t = 0; t < n; t++)
        x[t] = p.x + t * p.stride;
    for (int g = 0; g < n_groups; g++)
        at[g] = w + (size_t)g * group_stride;
    for (int64_t b = 0; b < n_blocks; b++) {
        vf part[PAIR_TOKENS * TILE_GROUPS];
        for (int k = 0; k < n * n_groups; k++)
            part[k] = vf_zero();
        for (int g = 0; p.ahead && g < n_groups; g++) {
            for (size_t i = 0; i < BLOCK_BYTES; i += 256)
                __builtin_prefetch(at[g] + (size_t)b * BLOCK_BYTES + p.ahead + i, 0, 2);
        }
        for (int64_t i = 16 * b; i < 16 * b + 16; i += 2) {
            for (int t = 0; t < n; t++)
                __asm__("" : "+r"(x[t])); /* one kept pointer a token: see kernels_body_f32.h */
            for (int j = 0; j < 2; j++) {
                vi column[SINGLE];
                for (int g = 0; g < n_groups; g++)
                    column[g] = vi_load(at[g] + 64 * (i + j));
                for (int t = 0; t < n; t++) {
                    vi one = vi_load1(x[t] + 2 * (i + j));
                    for (int g = 0; g < n_groups; g++)
                        part[t * n_groups + g] = dot_pairs(part[t * n_groups + g], column[g], one);
                }
            }
        }
        for (int k = 0; k < n * n_groups; k++)
            acc[k] = vf_add(acc[k], part[k]);
        if (n > 1) FORGET_MEMORY(); /* acc stays there */
    }
}

#define PAIR_CASE(n)                                                                               \
    case n:                                                                                        \
        pair_tile(w, group_stride, TILE_GROUPS, n_blocks, p, n, acc);                              \
        break;
static __attribute__((noinline)) void pair_tiles(const uint8_t *w, size_t group_stride,
                                                 int n_blocks, struct pairs p, int n, vf *acc) {
    switch (n) {
        PAIR_CASE(1)
        PAIR_CASE(2)
        PAIR_CASE(3)
        PAIR_CASE(4)
        PAIR_CASE(5)
        PAIR_CASE(6)
        PAIR_CASE(7)
    default:
        pair_tile(w, group_stride, TILE_GROUPS, n_blocks, p, PAIR_TOKENS, acc);
        break;
    }
}

/* pair_tiles_fn */
static void pair_many(const uint8_t *w, size_t group_stride, int n_blocks, struct pairs p,
                      int n_tokens, vf *acc) {
    for (int t = 0; t < n_tokens; t += PAIR_TOKENS) {
        const struct pairs here = {p.x + t * p.stride, p.stride, 0};
        pair_tiles(w, group_stride, n_blocks, here, min_int(PAIR_TOKENS, n_tokens - t),
                   acc + t * TILE_GROUPS);
    }
}

/* One token over packed groups, as many streams as memory likes. */
static int pair_single(const struct pair_weights *w, const uint16_t *x, float *out) {
    const int n_blocks = (w->n_cols + 31) / 32;
    int r = 0;
    for (; r + (SINGLE - 1) * PACK_ROWS < w->n_rows; r += SINGLE * PACK_ROWS) {
        const uint8_t *first = w->first + (size_t)(r / PACK_ROWS) * w->bytes;
        /* the last part fetches the first of the next groups */
        const int near = max_int(0, n_blocks - (int)(AHEAD_BYTES / BLOCK_BYTES));
        vf acc[SINGLE];
        for (int g = 0; g < SINGLE; g++)
            acc[g] = vf_zero();
        pair_tile(first, w->bytes, SINGLE, near, (struct pairs){x, 0, AHEAD_BYTES}, 1, acc);
        pair_tile(first + (size_t)near * BLOCK_BYTES, w->bytes, SINGLE, n_blocks - near,
                  (struct pairs){x + 32 * near, 0, AHEAD_BYTES + (SINGLE - 1) * w->bytes}, 1, acc);
        for (int g = 0; g < SINGLE; g++)
            store_rows(out + r + g * PACK_ROWS, acc[g], w->n_rows - r - g * PACK_ROWS);
    }
    return r;
}

void kernels_avx512bf16_matmul(const void *w, size_t row_bytes, int n_rows, int n_cols,
                               const uint16_t *x, int64_t x_stride, int n_tokens, float *out,
                               int64_t out_stride, void *scratch) {
    const struct pair_weights weights = pair_weights_raw(w, row_bytes, n_rows, n_cols);
    pair_product(pair_many, &weights, 0, x, x_stride, n_tokens, out, out_stride, scratch);
}

void kernels_avx512bf16_packed(const uint8_t *packed, int group_begin, int group_end, int n_rows,
                               int n_cols, const uint16_t *x, int64_t x_stride, int n_tokens,
                               float *out, int64_t out_stride, void *scratch) {
    const struct pair_weights w =
        pair_weights_packed(packed, group_begin, group_end, n_rows, n_cols);
    const int begin = n_tokens == 1 ? pair_single(&w, x, out) : 0;
    pair_product(pair_many, &w, begin, x, x_stride, n_tokens, out, out_stride, scratch);
}

void kernels_avx512bf16_fill(struct kernels *k) {
    k->matmul_bf16 = kernels_avx512bf16_matmul;
    k->matmul_packed_bf16 = kernels_avx512bf16_packed;
}
