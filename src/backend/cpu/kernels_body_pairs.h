/*
 * Products of class bf16 by instructions that take pairs of columns: two groups of 16 rows at a
 * time, in panels of columns, over many tokens. A packed group is these instructions' operand as it
 * stands; raw rows become such groups in the scratch. Included by kernels_avx512bf16.c and
 * kernels_amxbf16.c, which bring what multiplies a panel, after kernels_body_unpack.h.
 */
#pragma once

#define TILE_GROUPS  2
#define BLOCK_BYTES  ((size_t)1024) /* 32 columns of a group */
#define PANEL_BLOCKS 16
#define CHUNK        512 /* tokens that share a panel */
_Static_assert(PACK_ROWS == LANES, "a vector is a group's");
_Static_assert(TILE_GROUPS *(PANEL_BLOCKS *BLOCK_BYTES + CHUNK * sizeof(vf)) <=
                   PACKED_SCRATCH_BYTES,
               "scratch");

/* Some tokens, and how far the next block is fetched ahead of its use (0: not). */
struct pairs {
    const uint16_t *x;
    int64_t stride;
    size_t ahead;
};

/* acc (n_tokens, TILE_GROUPS) += n_blocks of 32 columns, the groups group_stride bytes apart. */
typedef void pair_tiles_fn(const uint8_t *w, size_t group_stride, int n_blocks, struct pairs p,
                           int n_tokens, vf *acc);

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
ALWAYS_INLINE void pair_rows(pair_tiles_fn *tiles, const struct pair_weights *w, int row,
                             const uint16_t *x, int64_t x_stride, int n_tokens, float *out,
                             int64_t out_stride, uint8_t *panel) {
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
        tiles(at, stride, n, (struct pairs){x + 32 * b, x_stride, 0}, n_tokens, acc);
    }
    for (int k = 0; k < n_tokens * TILE_GROUPS; k++) {
        const int r = row + k % TILE_GROUPS * PACK_ROWS;
        if (r < w->n_rows)
            store_rows(out + k / TILE_GROUPS * out_stride + r, acc[k], w->n_rows - r);
    }
}

/* Rows from `begin` on. */
ALWAYS_INLINE void pair_product(pair_tiles_fn *tiles, const struct pair_weights *w, int begin,
                                const uint16_t *x, int64_t x_stride, int n_tokens, float *out,
                                int64_t out_stride, void *scratch) {
    for (int t = 0; t < n_tokens; t += CHUNK) {
        for (int r = begin; r < w->n_rows; r += TILE_GROUPS * PACK_ROWS)
            pair_rows(tiles, w, r, x + t * x_stride, x_stride, min_int(CHUNK, n_tokens - t),
                      out + t * out_stride, out_stride, scratch);
    }
}

ALWAYS_INLINE struct pair_weights pair_weights_raw(const void *w, size_t row_bytes, int n_rows,
                                                   int n_cols) {
    return (struct pair_weights){false, w, row_bytes, n_rows, n_cols};
}
ALWAYS_INLINE struct pair_weights pair_weights_packed(const uint8_t *packed, int group_begin,
                                                      int group_end, int n_rows, int n_cols) {
    const size_t group_bytes = (size_t)((n_cols + 31) / 32) * BLOCK_BYTES;
    return (struct pair_weights){true, packed + (size_t)group_begin * group_bytes, group_bytes,
                                 min_int(n_rows, group_end * PACK_ROWS) - group_begin * PACK_ROWS,
                                 n_cols};
}
