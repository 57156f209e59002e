/*
 * Products of class bf16 where the processor has no instruction for them: those of class f32 over
 * activations that go back to floats. The order of one output (kernels.h) is that of class f32 with
 * the two columns of every pair exchanged, and so stand they in the panels and the activations
 * here. Included by a kernels_ISA.c after kernels_body_float.h.
 */
#pragma once

#define BF16_CHUNK 64 /* tokens, columns that are floats at a time */
#define BF16_COLS  FLOAT_COLS
_Static_assert((FLOAT_SCRATCH(BF16_CHUNK) + BF16_CHUNK * BF16_COLS) * sizeof(float) <=
                   PACKED_SCRATCH_BYTES,
               "scratch");

ALWAYS_INLINE void bf16_store_pair(vi pair, float *panel) {
    vf_store(panel, bf16_high(pair));
    vf_store(panel + PACK_ROWS, bf16_low(pair));
}

static void unpack_pairs(const uint8_t *const row[LANES], size_t at, float *out) {
    for (unsigned i = 0; i < 4; i++) {
        vi v[4];
        rows_load4(row, at + 16 * i, v);
        for (unsigned j = 0; j < 4; j++)
            bf16_store_pair(v[j], out + PACK_ROWS * (8 * i + 2 * j));
    }
}

/* Both fills give whole blocks of 32 columns, zeros behind the last. */
static void bf16_fill_raw(const struct f32_weights *w, int row, int begin, int end, float *panel) {
    for (int r = row; r < row + PACK_ROWS; r += LANES) {
        const uint8_t *rows[LANES];
        const int from = min_int(r, w->n_rows - 1);
        group_rows(rows, w->first + (size_t)from * w->bytes, w->bytes, w->n_rows - from);
        f32_unpack(unpack_pairs, 32, 64, rows, begin, min_int(end, w->n_cols), panel + (r - row));
    }
}
static void bf16_fill_packed(const struct f32_weights *w, int row, int begin, int end,
                             float *panel) {
    const uint8_t *at = w->first + (size_t)(row / PACK_ROWS) * w->bytes + (size_t)begin * 32;
    for (int c = begin; c < end; c += 2, at += 4 * PACK_ROWS, panel += 2 * PACK_ROWS) {
        for (int r = 0; r < PACK_ROWS; r += LANES)
            bf16_store_pair(vi_load(at + 4 * r), panel + r);
    }
}

static void bf16_product(const struct f32_weights *w, const uint16_t *x, int64_t x_stride,
                         int n_tokens, float *out, int64_t out_stride, float *scratch) {
    float *stage = scratch + FLOAT_SCRATCH(BF16_CHUNK);
    vf *acc = (vf *)(void *)(scratch + FLOAT_PANEL);
    const int n_cols = (int)round_up((size_t)w->n_cols, 32);
    for (int t = 0; t < n_tokens; t += BF16_CHUNK) {
        const int n = min_int(BF16_CHUNK, n_tokens - t);
        for (int c = 0; c < n_cols; c += BF16_COLS) {
            const int end = min_int(c + BF16_COLS, n_cols);
            for (int i = 0; i < n; i++) {
                const uint16_t *from = x + (t + i) * x_stride + c;
                for (int k = 0; k < end - c; k += 2) {
                    stage[i * BF16_COLS + k] = bf16_to_float(from[k + 1]);
                    stage[i * BF16_COLS + k + 1] = bf16_to_float(from[k]);
                }
            }
            struct f32_view here = {stage - c, BF16_COLS};
            for (int r = 0; r < w->n_rows; r += FLOAT_ROWS)
                f32_rows_pass(w, r, c, end, here, n, scratch, acc, out + t * out_stride,
                              out_stride);
        }
    }
}

static void matmul_bf16(const void *w, size_t row_bytes, int n_rows, int n_cols, const uint16_t *x,
                        int64_t x_stride, int n_tokens, float *out, int64_t out_stride,
                        void *scratch) {
    const struct f32_weights weights = {.fill = bf16_fill_raw,
                                        .first = w,
                                        .bytes = row_bytes,
                                        .n_rows = n_rows,
                                        .n_cols = n_cols,
                                        .panel_cols = BF16_COLS};
    bf16_product(&weights, x, x_stride, n_tokens, out, out_stride, scratch);
}

static void matmul_packed_bf16(const uint8_t *packed, int group_begin, int group_end, int n_rows,
                               int n_cols, const uint16_t *x, int64_t x_stride, int n_tokens,
                               float *out, int64_t out_stride, void *scratch) {
    const struct f32_weights w =
        packed_weights(bf16_fill_packed, packed, float_group_bytes(FLOAT_BF16, n_cols), group_begin,
                       group_end, n_rows, n_cols);
    bf16_product(&w, x, x_stride, n_tokens, out, out_stride, scratch);
}

/* A simple loop, which compilers vectorise. */
static void round_bf16(const float *restrict x, int n_cols, uint16_t *restrict out) {
    for (int c = 0; c < n_cols; c++)
        out[c] = bf16_from_float(x[c]);
    for (int c = n_cols; c % 32; c++)
        out[c] = 0;
}
