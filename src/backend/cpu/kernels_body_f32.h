/*
 * Products of class f32: rows of any type become floats in a panel of columns, which tiles of float
 * tokens run over (kernels_body_keys.h takes them for attention scores). Included by a
 * kernels_ISA.c after kernels_body_unpack.h.
 *
 * Order of one output: for each 32 columns ascending a chain of fma from 0; the 32-sums are added
 * up in order.
 *
 * Rows go in groups of PACK_ROWS, as in the packed layout: a panel of one group is (n_cols,
 * PACK_ROWS) floats, which is what a packed group of F32 weights is.
 */
#pragma once

#include "backend/packed.h"

#define FLOAT_STEP    (PACK_ROWS / LANES)         /* vectors of a column of a group */
#define FLOAT_VECTORS (FLOAT_GROUPS * FLOAT_STEP) /* of a column of a tile */
#define FLOAT_ROWS    (FLOAT_GROUPS * PACK_ROWS)
/* Columns that are floats at a time: a whole unit of every type. Columns of one pass over the rows,
 * so that the activations of a chunk of tokens stay in the second-level cache. */
#define FLOAT_UNROLL 2 /* columns */
#define FLOAT_COLS   256
#define FLOAT_PASS   1024
#define FLOAT_CHUNK  (FLOAT_TOKENS * (512 / FLOAT_TOKENS))
#define FLOAT_PANEL  ((size_t)FLOAT_ROWS * FLOAT_COLS) /* floats */

/* 32 columns (or more, for super-blocks) that begin `at` bytes into each row, PACK_ROWS floats from
 * one to the next. */
typedef void unpack_float_fn(const uint8_t *const row[LANES], size_t at, float *out);

ALWAYS_INLINE void unpack_float_f32(const uint8_t *const row[LANES], size_t at, float *out) {
    for (unsigned i = 0; i < 8; i++) {
        vi v[4];
        rows_load4(row, at + 16 * i, v);
        for (unsigned j = 0; j < 4; j++)
            vf_store(out + PACK_ROWS * (4 * i + j), vi_as_float(v[j]));
    }
}

ALWAYS_INLINE void unpack_float_f16(const uint8_t *const row[LANES], size_t at, float *out) {
    for (unsigned i = 0; i < 4; i++) {
        vi v[4];
        rows_load4(row, at + 16 * i, v);
        for (unsigned j = 0; j < 4; j++) {
            vf low, high;
            vf_from_halves(v[j], &low, &high);
            vf_store(out + PACK_ROWS * (8 * i + 2 * j), low);
            vf_store(out + PACK_ROWS * (8 * i + 2 * j + 1), high);
        }
    }
}

/* The low and the high half of each lane. */
ALWAYS_INLINE vf bf16_low(vi v) {
    return vi_as_float(vi_shl(v, 16));
}
ALWAYS_INLINE vf bf16_high(vi v) {
    return vi_as_float(vi_and(v, vi_set1((int)0xffff0000)));
}

ALWAYS_INLINE void unpack_float_bf16(const uint8_t *const row[LANES], size_t at, float *out) {
    for (unsigned i = 0; i < 4; i++) {
        vi v[4];
        rows_load4(row, at + 16 * i, v);
        for (unsigned j = 0; j < 4; j++) {
            vf_store(out + PACK_ROWS * (8 * i + 2 * j), bf16_low(v[j]));
            vf_store(out + PACK_ROWS * (8 * i + 2 * j + 1), bf16_high(v[j]));
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
                                 const uint8_t *const row[LANES], size_t at, float *out) {
    struct wblock unit[8];
    unpack(row, at, unit);
    for (int b = 0; b < f.n_blocks; b++) {
        for (int s = 0; s < 8; s++) {
            for (int k = 0; k < 4; k++)
                vf_store(out + PACK_ROWS * (32 * b + 4 * s + k), weight_float(f, unit + b, s, k));
        }
    }
}

#define UNPACK_FLOATS(lower, upper)                                                                \
    static void unpack_float_##lower(const uint8_t *const row[LANES], size_t at, float *out) {     \
        unpack_floats(format_##lower, unpack_call_##lower, row, at, out);                          \
    }
Q8_WEIGHT_MAP(UNPACK_FLOATS)
#undef UNPACK_FLOATS

/* Some columns of some tokens. */
struct f32_view {
    const float *x;
    int64_t stride;
};

/* Some tokens' rows and some groups' panels. The compiler shall not see how the pointers hang
 * together: it would trade them for chains of additions. */
struct f32_rows {
    const float *x[FLOAT_TOKENS];
    const float *w[FLOAT_GROUPS];
};
#define KEEP_IN_REGISTER(p) __asm__("" : "+r"(p))

/* part (n tokens, n_groups * FLOAT_STEP) += column c; n and n_groups are constants. */
ALWAYS_INLINE void f32_column(const struct f32_rows *rows, int n_groups, int n, int64_t c,
                              vf *part) {
    const int n_vectors = n_groups * FLOAT_STEP;
    vf column[FLOAT_VECTORS];
    for (int v = 0; v < n_vectors; v++)
        column[v] = vf_load(rows->w[v / FLOAT_STEP] + c * PACK_ROWS + v % FLOAT_STEP * LANES);
    for (int t = 0; t < n; t++) {
        vf one = vf_set1(rows->x[t][c]);
        for (int v = 0; v < n_vectors; v++)
            part[t * n_vectors + v] = vf_fma(column[v], one, part[t * n_vectors + v]);
    }
}

/* acc (n tokens, n_groups * FLOAT_STEP) += n_cols columns of n tokens; w: the first group's panel,
 * the next ones group_stride floats on. */
ALWAYS_INLINE void f32_tile(const float *w, int64_t group_stride, int n_groups, int n_cols,
                            struct f32_view x, int n, vf *acc) {
    const int n_sums = n * n_groups * FLOAT_STEP;
    struct f32_rows rows;
    for (int t = 0; t < n; t++)
        rows.x[t] = x.x + t * x.stride;
    for (int g = 0; g < n_groups; g++)
        rows.w[g] = w + g * group_stride;
    for (int c = 0; c < n_cols; c += 32) {
        vf part[FLOAT_TOKENS * FLOAT_VECTORS];
        for (int k = 0; k < n_sums; k++)
            part[k] = vf_zero();
        const int end = min_int(c + 32, n_cols);
        int64_t i = c;
        for (; i + FLOAT_UNROLL <= end; i += FLOAT_UNROLL) {
            for (int t = 0; t < n; t++)
                KEEP_IN_REGISTER(rows.x[t]);
            for (int g = 0; g < n_groups; g++)
                KEEP_IN_REGISTER(rows.w[g]);
            for (int j = 0; j < FLOAT_UNROLL; j++)
                f32_column(&rows, n_groups, n, i + j, part);
        }
        for (; i < end; i++)
            f32_column(&rows, n_groups, n, i, part);
        for (int k = 0; k < n_sums; k++)
            acc[k] = vf_add(acc[k], part[k]);
        FORGET_MEMORY(); /* acc stays there */
    }
}

_Static_assert(FLOAT_TOKENS >= 4 && FLOAT_TOKENS <= 8 && FLOAT_GROUPS <= 2, "cases below");
#define F32_CASE(n)                                                                                \
    case n:                                                                                        \
        f32_tile(w, group_stride, n_groups, n_cols, x, min_int(n, FLOAT_TOKENS), acc);             \
        break;
ALWAYS_INLINE void f32_tiles(const float *w, int64_t group_stride, int n_groups, int n_cols,
                             struct f32_view x, int n, vf *acc) {
    switch (n) {
        F32_CASE(1)
        F32_CASE(2)
        F32_CASE(3)
        F32_CASE(4)
        F32_CASE(5)
        F32_CASE(6)
        F32_CASE(7)
    default:
        f32_tile(w, group_stride, n_groups, n_cols, x, FLOAT_TOKENS, acc);
        break;
    }
}
#undef F32_CASE

/* n of 1 to FLOAT_TOKENS tokens, one group or several. Not inlined: every type shares them. */
static __attribute__((noinline)) void f32_tiles_one(const float *w, int n_cols, struct f32_view x,
                                                    int n, vf *acc) {
    f32_tiles(w, 0, 1, n_cols, x, n, acc);
}
static __attribute__((noinline)) void f32_tiles_all(const float *w, int64_t group_stride,
                                                    int n_cols, struct f32_view x, int n, vf *acc) {
    f32_tiles(w, group_stride, FLOAT_GROUPS, n_cols, x, n, acc);
}

/* What one product is, besides its tokens. */
struct f32_weights;
/* Columns [begin, end) of the group of rows that begins with `row` to its panel; begin is a
 * multiple of panel_cols, end - begin at most that. */
typedef void f32_fill_fn(const struct f32_weights *w, int row, int begin, int end, float *panel);
struct f32_weights {
    f32_fill_fn *fill;    /* NULL: `first` is groups of floats as they are wanted */
    const uint8_t *first; /* row 0 or group 0 */
    size_t bytes;         /* from row to row or from group to group */
    int n_rows, n_cols;
    int panel_cols; /* of a panel: whole units, FLOAT_COLS at most */
    float factor;   /* multiplies every output if scaled */
    bool scaled;
    bool fetch;           /* groups are asked for while those before them are worked on, */
    const uint8_t *after; /* and this when there are no more; or NULL */
};

/* The same columns of several groups; where the panels are. */
ALWAYS_INLINE const float *f32_panels(const struct f32_weights *w, int row, int n_groups, int begin,
                                      int end, float *panels, int64_t *group_stride) {
    if (!w->fill) {
        *group_stride = (int64_t)(w->bytes / sizeof(float));
        return (const float *)(const void *)(w->first + (size_t)(row / PACK_ROWS) * w->bytes) +
               (size_t)begin * PACK_ROWS;
    }
    *group_stride = FLOAT_COLS * PACK_ROWS;
    for (int g = 0; g < n_groups; g++)
        w->fill(w, row + g * PACK_ROWS, begin, end, panels + g * FLOAT_COLS * PACK_ROWS);
    return panels;
}

/* FLOAT_STEP vectors of a group's rows, of which n_rows >= 1 are there, to or from the outputs. */
ALWAYS_INLINE void f32_group_load(const float *out, int n_rows, vf *acc) {
    for (int v = 0; v < FLOAT_STEP; v++) {
        const int n = n_rows - v * LANES;
        acc[v] = n <= 0       ? vf_zero()
                 : n >= LANES ? vf_load(out + v * LANES)
                              : vf_load_part(out + v * LANES, n);
    }
}
ALWAYS_INLINE void f32_group_store(float *out, int n_rows, const vf *acc) {
    for (int v = 0; v < FLOAT_STEP && v * LANES < n_rows; v++)
        store_rows(out + v * LANES, acc[v], n_rows - v * LANES);
}

/* What is asked for while n_groups groups from `row` on are worked on, as much as they are; or
 * NULL.
 */
ALWAYS_INLINE const uint8_t *f32_ahead(const struct f32_weights *w, int row, int n_groups) {
    const int next = row + n_groups * PACK_ROWS;
    if (!w->fetch) return NULL;
    return next < w->n_rows ? w->first + (size_t)(next / PACK_ROWS) * w->bytes : w->after;
}

/* Columns [begin, end) of n_groups groups from `row` on, for up to FLOAT_CHUNK tokens; acc:
 * (n_tokens, n_groups * FLOAT_STEP). Sums of earlier columns stand in out. */
ALWAYS_INLINE void f32_pass(const struct f32_weights *w, int row, int n_groups, int begin, int end,
                            struct f32_view x, int n_tokens, float *panels, vf *acc, float *out,
                            int64_t out_stride) {
    const int n_vectors = n_groups * FLOAT_STEP;
    for (int k = 0; k < n_tokens * n_groups; k++) {
        const int t = k / n_groups, first = row + k % n_groups * PACK_ROWS;
        if (begin > 0)
            f32_group_load(out + t * out_stride + first, w->n_rows - first, acc + k * FLOAT_STEP);
        for (int v = 0; begin == 0 && v < FLOAT_STEP; v++)
            acc[k * FLOAT_STEP + v] = vf_zero();
    }
    const uint8_t *ahead = f32_ahead(w, row, n_groups);
    const int n_tiles = (n_tokens + FLOAT_TOKENS - 1) / FLOAT_TOKENS;
    const int n_calls = (w->n_cols + w->panel_cols - 1) / w->panel_cols * n_tiles;
    const size_t bytes = (size_t)n_groups * w->bytes, share = bytes / (size_t)n_calls + 64;
    size_t asked = (size_t)(begin / w->panel_cols * n_tiles) * share;
    for (int c = begin; c < end; c += w->panel_cols) {
        const int n_cols = min_int(w->panel_cols, end - c);
        int64_t group_stride;
        const float *at = f32_panels(w, row, n_groups, c, c + n_cols, panels, &group_stride);
        for (int t = 0; t < n_tokens; t += FLOAT_TOKENS) {
            struct f32_view tile = {x.x + t * x.stride + c, x.stride};
            const int n = min_int(FLOAT_TOKENS, n_tokens - t);
            for (size_t to = asked + share; ahead && asked < to && asked < bytes; asked += 64)
                __builtin_prefetch(ahead + asked, 0, 2);
            if (n_groups == 1)
                f32_tiles_one(at, n_cols, tile, n, acc + t * n_vectors);
            else
                f32_tiles_all(at, group_stride, n_cols, tile, n, acc + t * n_vectors);
        }
    }
    for (int k = 0; k < n_tokens * n_groups; k++) {
        const int t = k / n_groups, first = row + k % n_groups * PACK_ROWS;
        for (int v = 0; w->scaled && end == w->n_cols && v < FLOAT_STEP; v++)
            acc[k * FLOAT_STEP + v] = vf_mul(acc[k * FLOAT_STEP + v], vf_set1(w->factor));
        f32_group_store(out + t * out_stride + first, w->n_rows - first, acc + k * FLOAT_STEP);
    }
}

/* The same for the FLOAT_ROWS rows from `row` on, or the one group that is there. */
ALWAYS_INLINE void f32_rows_pass(const struct f32_weights *w, int row, int begin, int end,
                                 struct f32_view x, int n_tokens, float *panels, vf *acc,
                                 float *out, int64_t out_stride) {
    if (FLOAT_GROUPS > 1 && w->n_rows - row <= PACK_ROWS)
        f32_pass(w, row, 1, begin, end, x, n_tokens, panels, acc, out, out_stride);
    else
        f32_pass(w, row, FLOAT_GROUPS, begin, end, x, n_tokens, panels, acc, out, out_stride);
}

/* Floats of scratch for a product of up to `chunk` tokens at a time. */
#define FLOAT_SCRATCH(chunk) (FLOAT_PANEL + (size_t)(chunk)*FLOAT_ROWS)

/* Not inlined: every type shares it. scratch: FLOAT_SCRATCH(chunk), aligned for vectors. */
static __attribute__((noinline)) void f32_product(const struct f32_weights *w, struct f32_view x,
                                                  int n_tokens, int chunk, float *out,
                                                  int64_t out_stride, float *scratch) {
    float *panels = scratch;
    vf *acc = (vf *)(void *)(scratch + FLOAT_PANEL);
    for (int t = 0; t < n_tokens; t += chunk) {
        const int n = min_int(chunk, n_tokens - t);
        for (int c = 0; c < w->n_cols; c += FLOAT_PASS) {
            const int end = min_int(c + FLOAT_PASS, w->n_cols);
            struct f32_view here = {x.x + t * x.stride, x.stride};
            for (int r = 0; r < w->n_rows; r += FLOAT_ROWS) {
                f32_rows_pass(w, r, c, end, here, n, panels, acc, out + t * out_stride, out_stride);
            }
        }
    }
}

/* Columns [begin, end) of the LANES rows to a panel. The last may be part of a unit (plain types).
 */
ALWAYS_INLINE void f32_unpack(unpack_float_fn *unpack, int unit_cols, size_t unit_bytes,
                              const uint8_t *const row[LANES], int begin, int end, float *panel) {
    for (int c = begin; c < end; c += unit_cols, panel += unit_cols * PACK_ROWS) {
        size_t at = (size_t)(c / unit_cols) * unit_bytes;
        if (c + unit_cols <= end) {
            unpack(row, at, panel);
            continue;
        }
        uint8_t stage[LANES][128] = {{0}};
        const uint8_t *staged[LANES];
        size_t bytes = unit_bytes / 32 * (size_t)(end - c);
        for (int r = 0; r < LANES; r++) {
            __builtin_memcpy(stage[r], row[r] + at, bytes);
            staged[r] = stage[r];
        }
        unpack(staged, 0, panel);
    }
}

/* Fills from raw blocks: rows past the last repeat it. */
#define F32_FILL(lower, cols, unit_bytes)                                                          \
    static void f32_fill_##lower(const struct f32_weights *w, int row, int begin, int end,         \
                                 float *panel) {                                                   \
        for (int r = row; r < row + PACK_ROWS; r += LANES) {                                       \
            const uint8_t *rows[LANES];                                                            \
            const int from = min_int(r, w->n_rows - 1);                                            \
            group_rows(rows, w->first + (size_t)from * w->bytes, w->bytes, w->n_rows - from);      \
            f32_unpack(unpack_float_##lower, cols, unit_bytes, rows, begin, end,                   \
                       panel + (r - row));                                                         \
        }                                                                                          \
    }

/* Plain types come in units of 32 columns. */
F32_FILL(f32, 32, 128)
F32_FILL(f16, 32, 64)
F32_FILL(bf16, 32, 64)
#define FILL_QUANTISED(lower, upper)                                                               \
    F32_FILL(lower, 32 * format_##lower.n_blocks, sizeof(struct block_##lower))
Q8_WEIGHT_MAP(FILL_QUANTISED)
#undef FILL_QUANTISED
#undef F32_FILL

_Static_assert(FLOAT_SCRATCH(FLOAT_CHUNK) * sizeof(float) <= PACKED_SCRATCH_BYTES, "scratch");
#define MATMUL_F32(lower, upper)                                                                   \
    static void matmul_f32_##lower(const void *w, size_t row_bytes, int n_rows, int n_cols,        \
                                   const float *x, int64_t x_stride, int n_tokens, float *out,     \
                                   int64_t out_stride, void *scratch) {                            \
        const struct f32_weights weights = {.fill = f32_fill_##lower,                              \
                                            .first = w,                                            \
                                            .bytes = row_bytes,                                    \
                                            .n_rows = n_rows,                                      \
                                            .n_cols = n_cols,                                      \
                                            .panel_cols = FLOAT_COLS};                             \
        f32_product(&weights, (struct f32_view){x, x_stride}, n_tokens, FLOAT_CHUNK, out,          \
                    out_stride, scratch);                                                          \
    }
FLOAT_WEIGHT_MAP(MATMUL_F32)
Q8_WEIGHT_MAP(MATMUL_F32)
#undef MATMUL_F32
