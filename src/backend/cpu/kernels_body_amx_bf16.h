/*
 * Products of class bf16 of many tokens by tiles (AMX): 32 columns of a packed group are a
 * right-hand tile as they stand, 32 columns of 16 tokens a left-hand one, read where they lie, and
 * the sums stay in tiles for all columns of a panel. The chain is the instruction's (kernels.h), so
 * bits are not those of fewer tokens. Included by kernels_amxbf16.c after kernels_body_tiles.h and
 * kernels_body_pairs.h.
 */
#pragma once

_Static_assert(LANES == AMX_ROWS && TILE_GROUPS == 2 && BLOCK_BYTES == 16 * 64, "whole tiles");

/* As pair_tiles_fn, for the 1 to AMX_TOKENS tokens that the tiles are configured for. */
ALWAYS_INLINE void amx_pairs(const uint8_t *w, size_t group_stride, int n_blocks, struct pairs p,
                             int n, vf *acc) {
    const int64_t acc_bytes = TILE_GROUPS * sizeof *acc, x_bytes = p.stride * (int64_t)sizeof *p.x;
    const uint16_t *x = p.x, *x_second = p.x + AMX_ROWS * p.stride;
    vf *second = acc + AMX_ROWS * TILE_GROUPS;
    const bool both = n > AMX_ROWS;
    tile_load(SUM_00, acc, acc_bytes);
    tile_load(SUM_01, acc + 1, acc_bytes);
    if (both) {
        tile_load(SUM_10, second, acc_bytes);
        tile_load(SUM_11, second + 1, acc_bytes);
    }
    for (int b = 0; b < n_blocks; b++, w += BLOCK_BYTES) {
        tile_load(ROWS_0, w, 64);
        tile_load(ROWS_1, w + group_stride, 64);
        tile_load(TOKENS_0, x + 32 * b, x_bytes);
        tile_multiply_bf16(SUM_00, TOKENS_0, ROWS_0);
        tile_multiply_bf16(SUM_01, TOKENS_0, ROWS_1);
        if (both) {
            tile_load(TOKENS_1, x_second + 32 * b, x_bytes);
            tile_multiply_bf16(SUM_10, TOKENS_1, ROWS_0);
            tile_multiply_bf16(SUM_11, TOKENS_1, ROWS_1);
        }
    }
    tile_store(SUM_00, acc, acc_bytes);
    tile_store(SUM_01, acc + 1, acc_bytes);
    if (both) {
        tile_store(SUM_10, second, acc_bytes);
        tile_store(SUM_11, second + 1, acc_bytes);
    }
}

/* pair_tiles_fn */
static __attribute__((noinline)) void amx_pair_tiles(const uint8_t *w, size_t group_stride,
                                                     int n_blocks, struct pairs p, int n_tokens,
                                                     vf *acc) {
    int configured = 0;
    for (int t = 0; t < n_tokens; t += AMX_TOKENS) {
        const int n = min_int(AMX_TOKENS, n_tokens - t);
        const struct pairs here = {p.x + t * p.stride, p.stride, 0};
        if (n != configured) amx_configure(n, 64);
        configured = n;
        amx_pairs(w, group_stride, n_blocks, here, n, acc + t * TILE_GROUPS);
    }
    tile_release();
}

static void matmul_amx_bf16(const void *w, size_t row_bytes, int n_rows, int n_cols,
                            const uint16_t *x, int64_t x_stride, int n_tokens, float *out,
                            int64_t out_stride, void *scratch) {
    if (n_tokens <= BF16_FEW) {
        kernels_avx512bf16_matmul(w, row_bytes, n_rows, n_cols, x, x_stride, n_tokens, out,
                                  out_stride, scratch);
        return;
    }
    const struct pair_weights weights = pair_weights_raw(w, row_bytes, n_rows, n_cols);
    pair_product(amx_pair_tiles, &weights, 0, x, x_stride, n_tokens, out, out_stride, scratch);
}

static void matmul_amx_packed_bf16(const uint8_t *packed, int group_begin, int group_end,
                                   int n_rows, int n_cols, const uint16_t *x, int64_t x_stride,
                                   int n_tokens, float *out, int64_t out_stride, void *scratch) {
    if (n_tokens <= BF16_FEW) {
        kernels_avx512bf16_packed(packed, group_begin, group_end, n_rows, n_cols, x, x_stride,
                                  n_tokens, out, out_stride, scratch);
        return;
    }
    const struct pair_weights w =
        pair_weights_packed(packed, group_begin, group_end, n_rows, n_cols);
    pair_product(amx_pair_tiles, &w, 0, x, x_stride, n_tokens, out, out_stride, scratch);
}

static void amx_bf16_fill(struct kernels *k) {
    k->matmul_bf16 = matmul_amx_bf16;
    k->matmul_packed_bf16 = matmul_amx_packed_bf16;
}
