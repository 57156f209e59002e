/*
 * Products of class f32 over packed F32, F16 and BF16 weights: a vector of a group is a column of
 * 16 rows (F32), or two. Few tokens use weights as they are loaded; many share a panel. Included by
 * a kernels_ISA.c after kernels_body_packed.h. The order of operations is that of
 * kernels_body_f32.h.
 */
#pragma once

enum float_kind { FLOAT_F32, FLOAT_F16, FLOAT_BF16 };

/* Columns in a word of a row, and bytes of 32 columns of a group. */
ALWAYS_INLINE int float_word_cols(enum float_kind kind) {
    return kind == FLOAT_F32 ? 1 : 2;
}
ALWAYS_INLINE size_t float_block_bytes(enum float_kind kind) {
    return (size_t)(kind == FLOAT_F32   ? packed_layout_F32.code_bytes
                    : kind == FLOAT_F16 ? packed_layout_F16.code_bytes
                                        : packed_layout_BF16.code_bytes);
}
ALWAYS_INLINE size_t float_group_bytes(enum float_kind kind, int n_cols) {
    return (size_t)((n_cols + 31) / 32) * float_block_bytes(kind);
}

/* The words of LANES rows as one or two columns. */
ALWAYS_INLINE void float_columns(enum float_kind kind, const uint8_t *at, vf out[2]) {
    if (kind == FLOAT_F32) {
        out[0] = vf_load((const float *)(const void *)at);
    } else if (kind == FLOAT_F16) {
        vf_from_halves(vi_load(at), &out[0], &out[1]);
    } else {
        vi pair = vi_load(at);
        out[0] = bf16_low(pair);
        out[1] = bf16_high(pair);
    }
}

/* Columns [begin, end) of a group to a panel (f32_fill_fn); of an odd number, one more. */
ALWAYS_INLINE void float_fill(enum float_kind kind, const struct f32_weights *w, int row, int begin,
                              int end, float *panel) {
    const uint8_t *at = w->first + (size_t)(row / PACK_ROWS) * w->bytes + (size_t)begin * 32;
    for (int c = begin; c < end; c += 2, at += 4 * PACK_ROWS, panel += 2 * PACK_ROWS) {
        for (int r = 0; r < PACK_ROWS; r += LANES) {
            vf pair[2];
            float_columns(kind, at + 4 * r, pair);
            vf_store(panel + r, pair[0]);
            vf_store(panel + PACK_ROWS + r, pair[1]);
        }
    }
}
static void float_fill_f16(const struct f32_weights *w, int row, int begin, int end, float *panel) {
    float_fill(FLOAT_F16, w, row, begin, end, panel);
}
static void float_fill_bf16(const struct f32_weights *w, int row, int begin, int end,
                            float *panel) {
    float_fill(FLOAT_BF16, w, row, begin, end, panel);
}

/* ---- Few tokens ---- */

/* One token takes one group at a time, in memory's own order, and asks for nothing. From 2 on, how
 * far ahead of their use words are fetched to the second-level cache: of 2 tokens every fourth
 * line, which is enough to set prefetchers off; where there is more to compute they fall behind. */
#define FLOAT_AHEAD_BYTES 4096

ALWAYS_INLINE void float_fetch(const uint8_t *p, int bytes, bool dense) {
    for (int at = 0; at < bytes; at += dense ? 64 : 256)
        __builtin_prefetch(p + at, 0, 2);
}

#define FLOAT_SUMS (FLOAT_TOKENS * FLOAT_VECTORS)

/* Where the groups' words of the next column stand, and the tokens. */
struct float_rows {
    const uint8_t *w[FLOAT_GROUPS];
    const float *x[FLOAT_TOKENS];
};

/* part (n, n_groups * FLOAT_STEP) += the first n_here columns of the word at `at`, which is column
 * c's. */
ALWAYS_INLINE void float_word(enum float_kind kind, const struct float_rows *rows, int n_groups,
                              int n, size_t at, int64_t c, int n_here, vf *part) {
    const int n_vectors = n_groups * FLOAT_STEP;
    vf w[FLOAT_SUMS][2];
    for (int v = 0; v < n_vectors; v++)
        float_columns(kind, rows->w[v / FLOAT_STEP] + at + v % FLOAT_STEP * LANES * 4, w[v]);
    for (int i = 0; i < n_here; i++) {
        for (int t = 0; t < n; t++) {
            vf one = vf_set1(rows->x[t][c + i]);
            for (int v = 0; v < n_vectors; v++)
                part[t * n_vectors + v] = vf_fma(w[v][i], one, part[t * n_vectors + v]);
        }
    }
}

/* n tokens, n_groups groups (both constants) side by side; n_rows are there: a group that is not
 * repeats the first. */
ALWAYS_INLINE void float_direct(enum float_kind kind, const uint8_t *group, int n_groups,
                                int n_rows, int n_cols, struct f32_view x, int n, float *out,
                                int64_t out_stride) {
    const int word_cols = float_word_cols(kind), n_sums = n * n_groups * FLOAT_STEP;
    const size_t group_bytes = float_group_bytes(kind, n_cols);
    struct float_rows rows;
    for (int g = 0; g < n_groups; g++)
        rows.w[g] = group + (g * PACK_ROWS < n_rows ? (size_t)g * group_bytes : 0);
    for (int t = 0; t < n; t++)
        rows.x[t] = x.x + t * x.stride;
    vf acc[FLOAT_SUMS], part[FLOAT_SUMS];
    for (int k = 0; k < n_sums; k++)
        acc[k] = vf_zero();
    size_t at = 0, ahead = FLOAT_AHEAD_BYTES;
    for (int c = 0; c < n_cols; c += 32) {
        if (at + ahead >= group_bytes && ahead == FLOAT_AHEAD_BYTES) /* the next groups */
            ahead += (size_t)(n_groups - 1) * group_bytes;
        for (int g = 0; n > 1 && g < n_groups; g++)
            float_fetch(rows.w[g] + at + ahead, (int)float_block_bytes(kind), n > 2);
        for (int k = 0; k < n_sums; k++)
            part[k] = vf_zero();
        const int end = min_int(c + 32, n_cols);
        int64_t i = c;
        for (; i + 4 <= end; i += 4) {
            for (int t = 0; t < n; t++)
                KEEP_IN_REGISTER(rows.x[t]);
            for (int j = 0; j < 4; j += word_cols, at += 4 * PACK_ROWS)
                float_word(kind, &rows, n_groups, n, at, i + j, word_cols, part);
        }
        for (; i < end; i += word_cols, at += 4 * PACK_ROWS) {
            if (i + word_cols <= end)
                float_word(kind, &rows, n_groups, n, at, i, word_cols, part);
            else
                float_word(kind, &rows, n_groups, n, at, i, 1, part);
        }
        for (int k = 0; k < n_sums; k++)
            acc[k] = vf_add(acc[k], part[k]);
    }
    for (int k = 0; k < n * n_groups; k++) {
        const int first = k % n_groups * PACK_ROWS;
        if (first < n_rows)
            f32_group_store(out + k / n_groups * out_stride + first, n_rows - first,
                            acc + k * FLOAT_STEP);
    }
}

ALWAYS_INLINE void float_single(enum float_kind kind, const struct f32_weights *w,
                                struct f32_view x, float *out) {
    for (int r = 0; r < w->n_rows; r += PACK_ROWS)
        float_direct(kind, w->first + (size_t)(r / PACK_ROWS) * w->bytes, 1, w->n_rows - r,
                     w->n_cols, x, 1, out + r, 0);
}

#define FLOAT_CASE(n)                                                                              \
    case n:                                                                                        \
        float_direct(kind, group, FLOAT_GROUPS, w->n_rows - r, w->n_cols, x,                       \
                     min_int(n, FLOAT_TOKENS), out + r, out_stride);                               \
        break;
ALWAYS_INLINE void float_few(enum float_kind kind, const struct f32_weights *w, struct f32_view x,
                             int n_tokens, float *out, int64_t out_stride) {
    for (int r = 0; r < w->n_rows; r += FLOAT_ROWS) {
        const uint8_t *group = w->first + (size_t)(r / PACK_ROWS) * w->bytes;
        switch (n_tokens) {
            FLOAT_CASE(2)
            FLOAT_CASE(3)
            FLOAT_CASE(4)
            FLOAT_CASE(5)
            FLOAT_CASE(6)
            FLOAT_CASE(7)
        default:
            float_direct(kind, group, FLOAT_GROUPS, w->n_rows - r, w->n_cols, x, FLOAT_TOKENS,
                         out + r, out_stride);
            break;
        }
    }
}
#undef FLOAT_CASE

ALWAYS_INLINE void float_matmul(enum float_kind kind, f32_fill_fn *fill, const uint8_t *packed,
                                int group_begin, int group_end, int n_rows, int n_cols,
                                struct f32_view x, int n_tokens, float *out, int64_t out_stride,
                                void *scratch) {
    const struct f32_weights w = packed_weights(fill, packed, float_group_bytes(kind, n_cols),
                                                group_begin, group_end, n_rows, n_cols);
    if (n_tokens == 1)
        float_single(kind, &w, x, out);
    else if (n_tokens > 1 && n_tokens <= FLOAT_TOKENS)
        float_few(kind, &w, x, n_tokens, out, out_stride);
    else
        f32_product(&w, x, n_tokens, FLOAT_CHUNK, out, out_stride, scratch);
}

#define MATMUL_PACKED(lower, kind, fill)                                                           \
    static void matmul_packed_f32_##lower(const uint8_t *packed, int group_begin, int group_end,   \
                                          int n_rows, int n_cols, const float *x,                  \
                                          int64_t x_stride, int n_tokens, float *out,              \
                                          int64_t out_stride, void *scratch) {                     \
        float_matmul(kind, fill, packed, group_begin, group_end, n_rows, n_cols,                   \
                     (struct f32_view){x, x_stride}, n_tokens, out, out_stride, scratch);          \
    }
MATMUL_PACKED(f32, FLOAT_F32, NULL)
MATMUL_PACKED(f16, FLOAT_F16, float_fill_f16)
MATMUL_PACKED(bf16, FLOAT_BF16, float_fill_bf16)
#undef MATMUL_PACKED
