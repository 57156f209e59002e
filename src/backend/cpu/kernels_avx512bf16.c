/*
 * AVX-512 BF16: products of class bf16 by vdpbf16ps, which adds the pair's high product to its sum,
 * then the low one, each with one rounding, and takes what is below 2^-126 for 0. The rest stays
 * AVX-512's. A vector of a packed group is the instruction's operand as it stands.
 */
#include "backend/cpu/kernels_vec_avx512.h"

#include "backend/packed.h"

#pragma GCC diagnostic ignored "-Wunused-function" /* of the bodies, what is not taken */

#include "backend/cpu/kernels_body_unpack.h"

#define TILE_GROUPS  2
#define PAIR_TOKENS  8
#define BLOCK_BYTES  ((size_t)1024) /* 32 columns of a group */
#define PANEL_BLOCKS 16
#define CHUNK        512 /* tokens that share a panel */
#define SINGLE       4   /* groups side by side for one token */
#define AHEAD_BYTES  4096
_Static_assert(PACK_ROWS == LANES, "a vector is a group's");
_Static_assert(TILE_GROUPS *(PANEL_BLOCKS *BLOCK_BYTES + CHUNK * sizeof(vf)) <=
                   PACKED_SCRATCH_BYTES,
               "scratch");

ALWAYS_INLINE vf dot_pairs(vf sum, vi w, vi x) {
    return _mm512_dpbf16_ps(sum, (__m512bh)w, (__m512bh)x);
}

/* Some tokens, and how far the next block is fetched ahead of its use (0: not). */
struct pairs {
    const uint16_t *x;
    int64_t stride;
    size_t ahead;
};

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

struct pair_weights {
    bool packed;
    const uint8_t *first; /* row 0 or group 0 */
    size_t bytes;         /* from row to row or from group to group */
    int n_rows, n_cols;
};

/* n_blocks of the rows from `row` on to a group of words; zeros behind the last column. */
static void pair_fill(const struct pair_weights *w, int row, int block, int n_blocks,
                      uint8_t *out) {
    const uint8_t *rows[LANES], *staged[LANES];
    const int from = min_int(row, w->n_rows - 1);
    group_rows(rows, w->first + (size_t)from * w->bytes, w->bytes, w->n_rows - from);
    for (int b = block; b < block + n_blocks; b++) {
        uint8_t stage[LANES][64] = {{0}};
        const size_t n = (size_t)min_int(32, w->n_cols - 32 * b) * 2;
        for (int r = 0; r < LANES; r++) {
            staged[r] = rows[r] + (size_t)b * 64;
            if (n == 64) continue;
            __builtin_memcpy(stage[r], staged[r], n);
            staged[r] = stage[r];
        }
        for (unsigned i = 0; i < 4; i++, out += 256) {
            vi v[4];
            rows_load4(staged, 16 * i, v);
            for (int j = 0; j < 4; j++)
                _mm512_storeu_si512(out + 64 * j, v[j]);
        }
    }
}

/* TILE_GROUPS groups from `row` on for up to CHUNK tokens; a group that is not there repeats the
 * first. panel: (TILE_GROUPS, PANEL_BLOCKS) blocks, then acc. */
static void pair_rows(const struct pair_weights *w, int row, const uint16_t *x, int64_t x_stride,
                      int n_tokens, float *out, int64_t out_stride, uint8_t *panel) {
    vf *acc = (vf *)(void *)(panel + TILE_GROUPS * PANEL_BLOCKS * BLOCK_BYTES);
    const int n_blocks = (w->n_cols + 31) / 32;
    const bool both = w->n_rows - row > PACK_ROWS;
    for (int k = 0; k < n_tokens * TILE_GROUPS; k++)
        acc[k] = vf_zero();
    for (int b = 0; b < n_blocks; b += PANEL_BLOCKS) {
        const int n = min_int(PANEL_BLOCKS, n_blocks - b);
        const uint8_t *at = panel;
        size_t stride = PANEL_BLOCKS * BLOCK_BYTES;
        if (w->packed) {
            at = w->first + (size_t)(row / PACK_ROWS) * w->bytes + (size_t)b * BLOCK_BYTES;
            stride = both ? w->bytes : 0;
        } else {
            for (int g = 0; g < TILE_GROUPS; g++)
                pair_fill(w, row + g * PACK_ROWS, b, n, panel + (size_t)g * stride);
        }
        for (int t = 0; t < n_tokens; t += PAIR_TOKENS) {
            struct pairs p = {x + t * x_stride + 32 * b, x_stride, 0};
            pair_tiles(at, stride, n, p, min_int(PAIR_TOKENS, n_tokens - t), acc + t * TILE_GROUPS);
        }
    }
    for (int k = 0; k < n_tokens * TILE_GROUPS; k++) {
        const int r = row + k % TILE_GROUPS * PACK_ROWS;
        if (r < w->n_rows)
            store_rows(out + k / TILE_GROUPS * out_stride + r, acc[k], w->n_rows - r);
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

static void pair_product(const struct pair_weights *w, const uint16_t *x, int64_t x_stride,
                         int n_tokens, float *out, int64_t out_stride, void *scratch) {
    const int begin = w->packed && n_tokens == 1 ? pair_single(w, x, out) : 0;
    for (int t = 0; t < n_tokens; t += CHUNK) {
        for (int r = begin; r < w->n_rows; r += TILE_GROUPS * PACK_ROWS)
            pair_rows(w, r, x + t * x_stride, x_stride, min_int(CHUNK, n_tokens - t),
                      out + t * out_stride, out_stride, scratch);
    }
}

static void matmul_bf16(const void *w, size_t row_bytes, int n_rows, int n_cols, const uint16_t *x,
                        int64_t x_stride, int n_tokens, float *out, int64_t out_stride,
                        void *scratch) {
    const struct pair_weights weights = {false, w, row_bytes, n_rows, n_cols};
    pair_product(&weights, x, x_stride, n_tokens, out, out_stride, scratch);
}

static void matmul_packed_bf16(const uint8_t *packed, int group_begin, int group_end, int n_rows,
                               int n_cols, const uint16_t *x, int64_t x_stride, int n_tokens,
                               float *out, int64_t out_stride, void *scratch) {
    const size_t group_bytes = (size_t)((n_cols + 31) / 32) * BLOCK_BYTES;
    const struct pair_weights w = {true, packed + (size_t)group_begin * group_bytes, group_bytes,
                                   min_int(n_rows, group_end * PACK_ROWS) - group_begin * PACK_ROWS,
                                   n_cols};
    pair_product(&w, x, x_stride, n_tokens, out, out_stride, scratch);
}

void kernels_avx512bf16_fill(struct kernels *k) {
    k->matmul_bf16 = matmul_bf16;
    k->matmul_packed_bf16 = matmul_packed_bf16;
}
