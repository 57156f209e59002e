/*
 * Products of class f32 and attention scores: LANES rows of any type become floats in a panel of
 * columns, which tiles of float tokens run over. Included by a kernels_ISA.c after
 * kernels_body_unpack.h.
 *
 * Order of one output: for each 32 columns ascending a chain of fma from 0; the 32-sums are added
 * up in order.
 */
#pragma once

/* 32 columns (or more, for super-blocks) that begin `at` bytes into each row. */
typedef void unpack_float_fn(const uint8_t *const row[LANES], size_t at, vf *out);

ALWAYS_INLINE void unpack_float_f32(const uint8_t *const row[LANES], size_t at, vf *out) {
    for (unsigned i = 0; i < 8; i++) {
        vi v[4];
        rows_load4(row, at + 16 * i, v);
        for (unsigned j = 0; j < 4; j++)
            out[4 * i + j] = vi_as_float(v[j]);
    }
}

ALWAYS_INLINE void unpack_float_f16(const uint8_t *const row[LANES], size_t at, vf *out) {
    for (unsigned i = 0; i < 4; i++) {
        vi v[4];
        rows_load4(row, at + 16 * i, v);
        for (unsigned j = 0; j < 4; j++)
            vf_from_halves(v[j], &out[8 * i + 2 * j], &out[8 * i + 2 * j + 1]);
    }
}

ALWAYS_INLINE void unpack_float_bf16(const uint8_t *const row[LANES], size_t at, vf *out) {
    for (unsigned i = 0; i < 4; i++) {
        vi v[4];
        rows_load4(row, at + 16 * i, v);
        for (unsigned j = 0; j < 4; j++) {
            out[8 * i + 2 * j] = vi_as_float(vi_shl(v[j], 16));
            out[8 * i + 2 * j + 1] = vi_as_float(vi_and(v[j], vi_set1((int)0xffff0000)));
        }
    }
}

/* Byte k of each lane as the weight it stands for, bit-equal to dtype_to_float. */
ALWAYS_INLINE vf weight_float(struct q8_format f, const struct wblock *w, int s, int k) {
    const int half = f.sub16 && s >= 4 ? 1 : 0;
    vi byte;
    if (f.kind == WEIGHT_S8 && f.offset == 0)
        byte = vi_sar(vi_shl(w->w[s], (unsigned)(24 - 8 * k)), 24);
    else
        byte = vi_sub(byte_of(w->w[s], k), vi_set1(f.offset));
    vf value = vf_mul(vi_float(byte), w->scale[half]);
    return f.has_min ? vf_add(value, w->min[half]) : value;
}

ALWAYS_INLINE void unpack_floats(struct q8_format f, unpack_fn *unpack,
                                 const uint8_t *const row[LANES], size_t at, vf *out) {
    struct wblock unit[8];
    unpack(row, at, unit);
    for (int b = 0; b < f.n_blocks; b++) {
        for (int s = 0; s < 8; s++) {
            for (int k = 0; k < 4; k++)
                out[32 * b + 4 * s + k] = weight_float(f, unit + b, s, k);
        }
    }
}

#define UNPACK_FLOATS(lower, upper)                                                                \
    static void unpack_float_##lower(const uint8_t *const row[LANES], size_t at, vf *out) {        \
        unpack_floats(format_##lower, unpack_call_##lower, row, at, out);                          \
    }
Q8_WEIGHT_MAP(UNPACK_FLOATS)
#undef UNPACK_FLOATS

/* Some columns of some tokens. */
struct f32_view {
    const float *x;
    int64_t stride;
};

/* acc[t] += n_cols columns of n tokens (n a constant). */
ALWAYS_INLINE void f32_tile(const vf *panel, int n_cols, struct f32_view x, int n, vf *acc) {
    for (int c = 0; c < n_cols; c += 32, panel += 32) {
        vf part[TILE_TOKENS];
        for (int t = 0; t < n; t++)
            part[t] = vf_zero();
        const int n_here = min_int(32, n_cols - c);
        for (int i = 0; i < n_here; i++) {
            for (int t = 0; t < n; t++)
                part[t] = vf_fma(panel[i], vf_set1(x.x[t * x.stride + c + i]), part[t]);
        }
        for (int t = 0; t < n; t++)
            acc[t] = vf_add(acc[t], part[t]);
    }
}

/* n of 1 to TILE_TOKENS tokens. Not inlined: every type shares it. */
static __attribute__((noinline)) void f32_tiles(const vf *panel, int n_cols, struct f32_view x,
                                                int n, vf *acc) {
    switch (n) {
    case 1:
        f32_tile(panel, n_cols, x, 1, acc);
        break;
    case 2:
        f32_tile(panel, n_cols, x, 2, acc);
        break;
    case 3:
        f32_tile(panel, n_cols, x, 3, acc);
        break;
    case 4:
        f32_tile(panel, n_cols, x, 4, acc);
        break;
    case 5:
        f32_tile(panel, n_cols, x, min_int(5, TILE_TOKENS), acc);
        break;
    case 6:
        f32_tile(panel, n_cols, x, min_int(6, TILE_TOKENS), acc);
        break;
    case 7:
        f32_tile(panel, n_cols, x, min_int(7, TILE_TOKENS), acc);
        break;
    default:
        f32_tile(panel, n_cols, x, TILE_TOKENS, acc);
        break;
    }
}

/* What one product is, besides its rows. */
struct f32_product {
    unpack_float_fn *unpack;
    int unit_cols;     /* columns one unpack gives: 32 or 256 */
    size_t unit_bytes; /* and takes from each row */
    int n_cols;
    float factor; /* multiplies every output if scaled */
    bool scaled;
};

/* Columns [begin, end) of the group to the panel. The last may be part of a unit (plain types). */
ALWAYS_INLINE void f32_unpack(const struct f32_product *p, const uint8_t *const row[LANES],
                              int begin, int end, vf *panel) {
    for (int c = begin; c < end; c += p->unit_cols, panel += p->unit_cols) {
        size_t at = (size_t)(c / p->unit_cols) * p->unit_bytes;
        if (c + p->unit_cols <= end) {
            p->unpack(row, at, panel);
            continue;
        }
        uint8_t stage[LANES][128] = {{0}};
        const uint8_t *staged[LANES];
        size_t bytes = p->unit_bytes / 32 * (size_t)(end - c);
        for (int r = 0; r < LANES; r++) {
            __builtin_memcpy(stage[r], row[r] + at, bytes);
            staged[r] = stage[r];
        }
        p->unpack(staged, 0, panel);
    }
}

ALWAYS_INLINE void f32_store(const struct f32_product *p, const vf *acc, int n_tokens, int n_rows,
                             float *out, int64_t out_stride) {
    for (int t = 0; t < n_tokens; t++) {
        vf value = p->scaled ? vf_mul(acc[t], vf_set1(p->factor)) : acc[t];
        store_rows(out + t * out_stride, value, n_rows);
    }
}

/* One row group. The panel holds panel_cols columns, at least a unit: all of them if there are
 * several tiles of tokens, if it can; else each tile unpacks anew, unit by unit. */
ALWAYS_INLINE void f32_group(const struct f32_product *p, const uint8_t *const row[LANES],
                             int n_rows, struct f32_view x, int n_tokens, vf *panel, int panel_cols,
                             float *out, int64_t out_stride) {
    const bool whole = n_tokens > TILE_TOKENS && panel_cols >= p->n_cols;
    if (whole) f32_unpack(p, row, 0, p->n_cols, panel);
    for (int t = 0; t < n_tokens; t += TILE_TOKENS) {
        int n = min_int(TILE_TOKENS, n_tokens - t);
        struct f32_view tile = {x.x + t * x.stride, x.stride};
        vf acc[TILE_TOKENS];
        for (int i = 0; i < TILE_TOKENS; i++)
            acc[i] = vf_zero();
        if (whole) {
            f32_tiles(panel, p->n_cols, tile, n, acc);
        } else {
            for (int c = 0; c < p->n_cols; c += p->unit_cols) {
                int end = min_int(c + p->unit_cols, p->n_cols);
                f32_unpack(p, row, c, end, panel);
                f32_tiles(panel, end - c, (struct f32_view){tile.x + c, tile.stride}, n, acc);
            }
        }
        f32_store(p, acc, n, n_rows, out + t * out_stride, out_stride);
    }
}

ALWAYS_INLINE void f32_matmul(struct f32_product p, const void *w, size_t row_bytes, int n_rows,
                              struct f32_view x, int n_tokens, vf *panel, int panel_cols,
                              float *out, int64_t out_stride) {
    for (int r = 0; r < n_rows; r += LANES) {
        const uint8_t *row[LANES];
        group_rows(row, (const uint8_t *)w + (size_t)r * row_bytes, row_bytes, n_rows - r);
        f32_group(&p, row, n_rows - r, x, n_tokens, panel, panel_cols, out + r, out_stride);
    }
}

/* Plain types come in units of 32 columns. */
#define UNIT_f32_COLS   32
#define UNIT_f32_BYTES  128
#define UNIT_f16_COLS   32
#define UNIT_f16_BYTES  64
#define UNIT_bf16_COLS  32
#define UNIT_bf16_BYTES 64

#define MATMUL_F32(lower, cols, bytes)                                                             \
    static void matmul_f32_##lower(const void *w, size_t row_bytes, int n_rows, int n_cols,        \
                                   const float *x, int64_t x_stride, int n_tokens, float *out,     \
                                   int64_t out_stride, void *scratch) {                            \
        f32_matmul((struct f32_product){unpack_float_##lower, cols, bytes, n_cols, 1, false}, w,   \
                   row_bytes, n_rows, (struct f32_view){x, x_stride}, n_tokens, scratch, n_cols,   \
                   out, out_stride);                                                               \
    }
#define MATMUL_PLAIN(lower, upper) MATMUL_F32(lower, UNIT_##lower##_COLS, UNIT_##lower##_BYTES)
#define MATMUL_QUANTISED(lower, upper)                                                             \
    MATMUL_F32(lower, 32 * format_##lower.n_blocks, sizeof(struct block_##lower))
FLOAT_WEIGHT_MAP(MATMUL_PLAIN)
Q8_WEIGHT_MAP(MATMUL_QUANTISED)
#undef MATMUL_QUANTISED
#undef MATMUL_PLAIN
#undef MATMUL_F32

/* Heads up to this wide keep their keys unpacked for all queries. */
#define SCORE_PANEL_COLS 256

#define ATTN_SCORES(lower, bytes)                                                                  \
    static void attn_scores_##lower(const float *q, int64_t q_stride, int n_q, const void *k,      \
                                    size_t k_row_bytes, int n_keys, int head_dim, float scale,     \
                                    float *scores, int64_t score_stride) {                         \
        vf panel[SCORE_PANEL_COLS];                                                                \
        f32_matmul((struct f32_product){unpack_float_##lower, 32, bytes, head_dim, scale, true},   \
                   k, k_row_bytes, n_keys, (struct f32_view){q, q_stride}, n_q, panel,             \
                   SCORE_PANEL_COLS, scores, score_stride);                                        \
    }
ATTN_SCORES(f32, UNIT_f32_BYTES)
ATTN_SCORES(f16, UNIT_f16_BYTES)
ATTN_SCORES(q8_0, sizeof(struct block_q8_0))
#undef ATTN_SCORES
