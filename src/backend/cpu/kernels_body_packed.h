/*
 * Products over the packed layout (backend/packed.h), classes q8 and f32. A packed group is what
 * kernels_body_unpack.h makes of raw blocks by transposing them, so here a block is unpacked by
 * loads and shifts alone. Included by a kernels_ISA.c after kernels_body_f32.h.
 *
 * Results are bit-equal to those of the raw blocks: the same integers, and the same chain of f32
 * operations in the order that kernels_body_q8.h and kernels_body_f32.h state. An output's chain
 * may pause: its accumulator is then kept as the f32 that it is.
 */
#pragma once

#include "backend/packed.h"

/* Some rows (LANES of a group) of one block of 32 columns. */
struct packed_at {
    const uint8_t *codes;  /* of the block */
    const uint8_t *scales; /* of its unit */
    int row;               /* first of the rows within the group */
    int block;             /* within the unit */
};
typedef void packed_unpack_fn(struct packed_at p, struct wblock *out);

ALWAYS_INLINE vi packed_codes(struct packed_at p, int vector) {
    return vi_load(p.codes + 64 * vector + 4 * p.row);
}
/* 16 halves from `at` on. */
ALWAYS_INLINE vf packed_halves(struct packed_at p, int at) {
    return vf_load_f16((const uint16_t *)(const void *)(p.scales + at) + p.row);
}
ALWAYS_INLINE vf packed_s8(struct packed_at p, int at) {
    return vf_load_s8((const int8_t *)(p.scales + at) + p.row);
}
ALWAYS_INLINE vi packed_u8(struct packed_at p, int at) {
    return vi_load_u8(p.scales + at + p.row);
}

/* a with its bits moved up by n, or down by -n. */
ALWAYS_INLINE vi vi_move(vi a, int n) {
    return n >= 0 ? vi_shl(a, (unsigned)n) : vi_shr(a, (unsigned)-n);
}

ALWAYS_INLINE void packed_nibbles(struct packed_at p, vi w[8]) {
    for (int s = 0; s < 4; s++) {
        vi v = packed_codes(p, s);
        w[s] = low_nibbles(v);
        w[4 + s] = high_nibbles(v);
    }
}
/* The 1-bit plane in `vector` becomes bit `to` of each byte. */
ALWAYS_INLINE void packed_add_bits(struct packed_at p, int vector, int to, vi w[8]) {
    vi v = packed_codes(p, vector);
    for (int s = 0; s < 8; s++)
        w[s] = vi_or(w[s], vi_and(vi_move(v, to - s), vi_set1(0x01010101 << to)));
}
/* The granule's bits of the 2-bit plane that begins at `vector`, as bits `to` and `to` + 1. */
ALWAYS_INLINE vi packed_two_bits(struct packed_at p, int vector, int to, int s) {
    vi v = packed_codes(p, vector + s % 2);
    return vi_and(vi_move(v, to - s / 2 * 2), vi_set1(0x03030303 << to));
}
ALWAYS_INLINE void packed_lookup(struct packed_at p, const int8_t table[16], vi w[8]) {
    packed_nibbles(p, w);
    lookup_all(table, w);
}
ALWAYS_INLINE void packed_signed(vi w[8]) {
    for (int s = 0; s < 8; s++)
        w[s] = signed_bytes(w[s]);
}

ALWAYS_INLINE void packed_q8_0(struct packed_at p, struct wblock *out) {
    for (int s = 0; s < 8; s++)
        out->w[s] = packed_codes(p, s);
    packed_signed(out->w);
    out->scale[0] = packed_halves(p, 0);
}

ALWAYS_INLINE void packed_q4_0(struct packed_at p, struct wblock *out) {
    packed_nibbles(p, out->w);
    out->scale[0] = packed_halves(p, 0);
}

ALWAYS_INLINE void packed_q4_1(struct packed_at p, struct wblock *out) {
    packed_nibbles(p, out->w);
    out->scale[0] = packed_halves(p, 0);
    out->min[0] = packed_halves(p, 32);
}

ALWAYS_INLINE void packed_q5_0(struct packed_at p, struct wblock *out) {
    packed_q4_0(p, out);
    packed_add_bits(p, 4, 4, out->w);
}

ALWAYS_INLINE void packed_q5_1(struct packed_at p, struct wblock *out) {
    packed_q4_1(p, out);
    packed_add_bits(p, 4, 4, out->w);
}

ALWAYS_INLINE void packed_iq4_nl(struct packed_at p, struct wblock *out) {
    packed_lookup(p, iq4_values, out->w);
    packed_signed(out->w);
    out->scale[0] = packed_halves(p, 0);
}

ALWAYS_INLINE void packed_mxfp4(struct packed_at p, struct wblock *out) {
    packed_lookup(p, mxfp4_unsigned, out->w);
    out->scale[0] = mxfp4_scale(packed_u8(p, 0));
}

ALWAYS_INLINE void packed_q2_k(struct packed_at p, struct wblock *out) {
    for (int s = 0; s < 8; s++)
        out->w[s] = packed_two_bits(p, 0, 0, s);
    vf d = packed_halves(p, 0), dmin = packed_halves(p, 32);
    for (int half = 0; half < 2; half++) {
        vi both = packed_u8(p, 64 + 32 * p.block + 16 * half);
        out->scale[half] = vf_mul(d, vi_float(vi_and(both, vi_set1(15))));
        out->min[half] = vf_sub(vf_zero(), vf_mul(dmin, vi_float(vi_shr(both, 4))));
    }
}

ALWAYS_INLINE void packed_scales_16(struct packed_at p, struct wblock *out) {
    vf d = packed_halves(p, 0);
    for (int half = 0; half < 2; half++)
        out->scale[half] = vf_mul(d, packed_s8(p, 32 + 32 * p.block + 16 * half));
}

ALWAYS_INLINE void packed_q3_k(struct packed_at p, struct wblock *out) {
    for (int s = 0; s < 8; s++)
        out->w[s] = packed_two_bits(p, 0, 0, s);
    packed_add_bits(p, 2, 2, out->w);
    packed_scales_16(p, out);
}

ALWAYS_INLINE void packed_q4_k(struct packed_at p, struct wblock *out) {
    packed_nibbles(p, out->w);
    const int at = 64 + 32 * p.block;
    out->scale[0] = vf_mul(packed_halves(p, 0), packed_s8(p, at));
    out->min[0] = vf_sub(vf_zero(), vf_mul(packed_halves(p, 32), packed_s8(p, at + 16)));
}

ALWAYS_INLINE void packed_q5_k(struct packed_at p, struct wblock *out) {
    packed_q4_k(p, out);
    packed_add_bits(p, 4, 4, out->w);
}

ALWAYS_INLINE void packed_q6_k(struct packed_at p, struct wblock *out) {
    packed_nibbles(p, out->w);
    for (int s = 0; s < 8; s++)
        out->w[s] = vi_or(out->w[s], packed_two_bits(p, 4, 4, s));
    packed_scales_16(p, out);
}

ALWAYS_INLINE void packed_iq4_xs(struct packed_at p, struct wblock *out) {
    packed_lookup(p, iq4_values, out->w);
    packed_signed(out->w);
    out->scale[0] = vf_mul(packed_halves(p, 0), packed_s8(p, 32 + 16 * p.block));
}

/* ---- Class q8 ---- */

/* Tokens that share the unpacking of a panel, columns of them that are worked on at a time (so
 * that the activations stay in the second-level cache while row groups go by), and the blocks of a
 * panel (which stays in the first-level cache). */
#define PACKED_TOKENS       128
#define PACKED_COLS         2048
#define PACKED_PANEL_BLOCKS 16

/* Some tokens and some of their blocks. aux, for each 32 (sub16: 16) columns, a row of aux_stride
 * per token: with an offset, int32 -offset * sum of q, what an integer sum begins with; with a
 * minimum, float scale * sum of q. No format has both. */
struct packed_view {
    const int8_t *q;
    const float *scale;
    union {
        const int32_t *start;
        const float *sums;
    } aux;
    int64_t q_stride, scale_stride, aux_stride;
};

ALWAYS_INLINE struct packed_view packed_view_at(struct packed_view x, bool sub16, int token,
                                                int block) {
    x.q += token * x.q_stride + 32 * block;
    x.scale += token * x.scale_stride + block;
    x.aux.start += token * x.aux_stride + (sub16 ? 2 : 1) * block;
    return x;
}

/* acc[t] += block b of n tokens: q8_block with the offset's part read instead of computed. */
ALWAYS_INLINE void packed_block(struct q8_format f, const struct wblock *w,
                                const struct packed_view *x, int b, int n, vf *acc) {
    const int n_halves = f.sub16 ? 2 : 1, n_steps = f.sub16 ? 4 : 8;
    vf part[TILE_TOKENS];
    struct dot dot[TILE_TOKENS];
    for (int half = 0; half < n_halves; half++) {
        for (int t = 0; t < n; t++) {
            int64_t at = t * x->aux_stride + n_halves * b + half;
            dot_start(&dot[t], f.has_min ? vi_set1(0) : vi_set1(x->aux.start[at]));
        }
        for (int s = 0; s < n_steps; s++) {
            const int8_t *q = x->q + 32 * b + 16 * half + 4 * s;
            for (int t = 0; t < n; t++)
                dot_step(f.kind, s, n_steps, &dot[t], w->w[4 * half + s],
                         vi_load1(q + t * x->q_stride));
        }
        for (int t = 0; t < n; t++) {
            vf sum = vi_float(dot_end(&dot[t]));
            part[t] = half == 0 ? vf_mul(sum, w->scale[0]) : vf_fma(sum, w->scale[1], part[t]);
        }
    }
    for (int t = 0; t < n; t++) {
        acc[t] = vf_fma(part[t], vf_set1(x->scale[t * x->scale_stride + b]), acc[t]);
        for (int half = 0; f.has_min && half < n_halves; half++) {
            float sum = x->aux.sums[t * x->aux_stride + n_halves * b + half];
            acc[t] = vf_fma(w->min[half], vf_set1(sum), acc[t]);
        }
    }
}

/* n_blocks of a panel against n tokens (a constant), on top of acc. */
ALWAYS_INLINE void packed_tile(struct q8_format f, const struct wblock *panel, int n_blocks,
                               struct packed_view x, int n, vf *acc) {
    vf a[TILE_TOKENS];
    for (int t = 0; t < n; t++)
        a[t] = acc[t];
    for (int b = 0; b < n_blocks; b++)
        packed_block(f, panel + b, &x, b, n, a);
    for (int t = 0; t < n; t++)
        acc[t] = a[t];
}

typedef void packed_tiles_fn(const struct wblock *panel, int n_blocks, struct packed_view x, int n,
                             vf *acc);

/* Formats whose tiles are the same code share it: name, kind, sub16, has_min. */
#define PACKED_CLASSES(X)                                                                          \
    X(u4, WEIGHT_U4, false, false)                                                                 \
    X(u5, WEIGHT_U5, false, false)                                                                 \
    X(s8, WEIGHT_S8, false, false)                                                                 \
    X(u4_min, WEIGHT_U4, false, true)                                                              \
    X(u5_min, WEIGHT_U5, false, true)                                                              \
    X(u4_sub, WEIGHT_U4, true, false)                                                              \
    X(u6_sub, WEIGHT_U6, true, false)                                                              \
    X(u4_sub_min, WEIGHT_U4, true, true)

/* n of 1 to TILE_TOKENS tokens. */
#define PACKED_TILES(name, kind, sub16, has_min)                                                   \
    static __attribute__((noinline)) void packed_tiles_##name(                                     \
        const struct wblock *panel, int n_blocks, struct packed_view x, int n, vf *acc) {          \
        const struct q8_format f = {kind, 0, sub16, has_min, 1};                                   \
        switch (n) {                                                                               \
        case 1:                                                                                    \
            packed_tile(f, panel, n_blocks, x, 1, acc);                                            \
            break;                                                                                 \
        case 2:                                                                                    \
            packed_tile(f, panel, n_blocks, x, 2, acc);                                            \
            break;                                                                                 \
        case 3:                                                                                    \
            packed_tile(f, panel, n_blocks, x, 3, acc);                                            \
            break;                                                                                 \
        case 4:                                                                                    \
            packed_tile(f, panel, n_blocks, x, 4, acc);                                            \
            break;                                                                                 \
        case 5:                                                                                    \
            packed_tile(f, panel, n_blocks, x, min_int(5, TILE_TOKENS), acc);                      \
            break;                                                                                 \
        case 6:                                                                                    \
            packed_tile(f, panel, n_blocks, x, min_int(6, TILE_TOKENS), acc);                      \
            break;                                                                                 \
        case 7:                                                                                    \
            packed_tile(f, panel, n_blocks, x, min_int(7, TILE_TOKENS), acc);                      \
            break;                                                                                 \
        default:                                                                                   \
            packed_tile(f, panel, n_blocks, x, TILE_TOKENS, acc);                                  \
            break;                                                                                 \
        }                                                                                          \
    }
PACKED_CLASSES(PACKED_TILES)
#undef PACKED_TILES

ALWAYS_INLINE packed_tiles_fn *packed_tiles_of(struct q8_format f) {
#define CHOOSE(name, kind_, sub16_, has_min_)                                                      \
    if (f.kind == kind_ && f.sub16 == sub16_ && f.has_min == has_min_) return packed_tiles_##name;
    PACKED_CLASSES(CHOOSE)
#undef CHOOSE
    return NULL;
}

/* Fills aux (see packed_view) for n_blocks of n_tokens. */
ALWAYS_INLINE void packed_aux(struct q8_format f, const int16_t *sum16, const float *scale,
                              int64_t scale_stride, int n_tokens, int n_blocks, void *aux) {
    int32_t *start = aux;
    float *sums = aux;
    for (int t = 0; t < n_tokens; t++) {
        for (int b = 0; b < n_blocks; b++) {
            const int16_t *pair = sum16 + 2 * (t * scale_stride + b);
            float factor = scale[t * scale_stride + b];
            if (f.sub16) {
                for (int half = 0; half < 2; half++, start++, sums++) {
                    if (f.has_min)
                        *sums = factor * (float)pair[half];
                    else
                        *start = -f.offset * pair[half];
                }
            } else {
                if (f.has_min)
                    *sums = factor * (float)(pair[0] + pair[1]);
                else
                    *start = -f.offset * (pair[0] + pair[1]);
                start++, sums++;
            }
        }
    }
}

/* What a type's product is made of, all constants. */
struct packed_type {
    struct q8_format format;
    packed_unpack_fn *unpack;
    struct pack_layout layout;
};

ALWAYS_INLINE size_t packed_group_bytes(struct pack_layout l, int n_cols) {
    return round_up((size_t)(n_cols / 32) * (size_t)l.code_bytes +
                        (size_t)(n_cols / l.unit_cols) * (size_t)l.scale_bytes,
                    PACK_ALIGN);
}

/* Block b of the rows from `row` on of a group. */
ALWAYS_INLINE struct packed_at packed_place(struct packed_type type, const uint8_t *group,
                                            int n_cols, int row, int b) {
    const struct pack_layout l = type.layout;
    const int unit_blocks = l.unit_cols / 32;
    return (struct packed_at){
        .codes = group + (size_t)b * (size_t)l.code_bytes,
        .scales = group + (size_t)(n_cols / 32) * (size_t)l.code_bytes +
                  (size_t)(b / unit_blocks) * (size_t)l.scale_bytes,
        .row = row,
        .block = b % unit_blocks,
    };
}

/* One token, one group: each block is used as soon as it is unpacked. */
ALWAYS_INLINE void packed_single(struct packed_type type, const uint8_t *group, int n_cols,
                                 int n_rows, const struct q8_view *x, float *out) {
    const int unit_blocks = type.layout.unit_cols / 32, n_parts = PACK_ROWS / LANES;
    vf acc[PACK_ROWS / LANES];
    for (int i = 0; i < n_parts; i++)
        acc[i] = vf_zero();
    struct packed_at p = packed_place(type, group, n_cols, 0, 0);
    for (int b = 0; b < n_cols / 32; b += unit_blocks, p.scales += type.layout.scale_bytes) {
        for (p.block = 0; p.block < unit_blocks; p.block++, p.codes += type.layout.code_bytes) {
            for (int i = 0; i < n_parts; i++) {
                struct wblock w;
                p.row = i * LANES;
                type.unpack(p, &w);
                q8_block(type.format, &w, x, b + p.block, 1, &acc[i]);
            }
        }
    }
    for (int i = 0; i < n_parts && i * LANES < n_rows; i++)
        store_rows(out + i * LANES, acc[i], n_rows - i * LANES);
}

/* Of several tokens: the columns of one pass, their aux, and where unpacked weights go. */
struct packed_pass {
    struct packed_view x; /* first token, first column of the pass */
    int n_tokens;
    int first_block, n_blocks;
    struct wblock *panel;
    vf *acc; /* (n_tokens) */
};

/* LANES rows, of which n_rows >= 1 are there, from `row` on of a group. */
ALWAYS_INLINE void packed_rows(struct packed_type type, const uint8_t *group, int n_cols, int row,
                               int n_rows, const struct packed_pass *pass, float *out,
                               int64_t out_stride) {
    packed_tiles_fn *tiles = packed_tiles_of(type.format);
    for (int t = 0; t < pass->n_tokens; t++) {
        if (pass->first_block == 0)
            pass->acc[t] = vf_zero();
        else if (n_rows >= LANES)
            pass->acc[t] = vf_load(out + t * out_stride);
        else
            pass->acc[t] = vf_load_part(out + t * out_stride, n_rows);
    }
    for (int b = 0; b < pass->n_blocks; b += PACKED_PANEL_BLOCKS) {
        const int n = min_int(PACKED_PANEL_BLOCKS, pass->n_blocks - b);
        for (int i = 0; i < n; i++)
            type.unpack(packed_place(type, group, n_cols, row, pass->first_block + b + i),
                        pass->panel + i);
        for (int t = 0; t < pass->n_tokens; t += TILE_TOKENS)
            tiles(pass->panel, n, packed_view_at(pass->x, type.format.sub16, t, b),
                  min_int(TILE_TOKENS, pass->n_tokens - t), pass->acc + t);
    }
    for (int t = 0; t < pass->n_tokens; t++)
        store_rows(out + t * out_stride, pass->acc[t], n_rows);
}

ALWAYS_INLINE void packed_q8_matmul(struct packed_type type, const uint8_t *packed, int group_begin,
                                    int group_end, int n_rows, int n_cols, const struct q8_rows *x,
                                    int n_tokens, float *out, int64_t out_stride, void *scratch) {
    const struct q8_format f = type.format;
    const size_t group_bytes = packed_group_bytes(type.layout, n_cols);
    n_rows = min_int(n_rows, group_end * PACK_ROWS) - group_begin * PACK_ROWS;
    packed += (size_t)group_begin * group_bytes;
    if (n_tokens == 1) {
        struct q8_view view = {x->q, x->scale, x->sum16, scratch, n_cols};
        if (f.has_min) q8_sums(f, &view, 1, scratch);
        for (int r = 0; r < n_rows; r += PACK_ROWS, packed += group_bytes)
            packed_single(type, packed, n_cols, n_rows - r, &view, out + r);
        return;
    }
    _Static_assert(PACKED_PANEL_BLOCKS * sizeof(struct wblock) + PACKED_TOKENS * sizeof(vf) +
                           PACKED_TOKENS * PACKED_COLS / 16 * sizeof(float) <=
                       PACKED_SCRATCH_BYTES,
                   "scratch");
    struct wblock *panel = scratch;
    vf *acc = (vf *)(void *)(panel + PACKED_PANEL_BLOCKS);
    void *aux = acc + PACKED_TOKENS;
    const int n_chunks = (n_tokens + PACKED_TOKENS - 1) / PACKED_TOKENS;
    for (int chunk = 0, t = 0; chunk < n_chunks; chunk++) {
        const int even = (n_tokens - t + n_chunks - chunk - 1) / (n_chunks - chunk);
        const int n = min_int(n_tokens - t, (int)round_up((size_t)even, TILE_TOKENS));
        const int cols = max_int(PACKED_COLS, PACKED_COLS * PACKED_TOKENS / n / 512 * 512);
        for (int c = 0; c < n_cols; c += cols) {
            const int64_t at = (int64_t)t * n_cols + c;
            struct packed_pass pass = {
                .x = {x->q + at, x->scale + at / 32, {aux}, n_cols, n_cols / 32, 0},
                .n_tokens = n,
                .first_block = c / 32,
                .n_blocks = min_int(cols, n_cols - c) / 32,
                .panel = panel,
                .acc = acc,
            };
            pass.x.aux_stride = pass.n_blocks * (f.sub16 ? 2 : 1);
            packed_aux(f, x->sum16 + at / 16, x->scale + at / 32, n_cols / 32, n, pass.n_blocks,
                       aux);
            for (int r = 0; r < n_rows; r += LANES)
                packed_rows(type, packed + (size_t)(r / PACK_ROWS) * group_bytes, n_cols,
                            r % PACK_ROWS, n_rows - r, &pass, out + t * out_stride + r, out_stride);
        }
        t += n;
    }
}

/* ---- Class f32 ---- */

/* Columns that are floats at a time: a whole unit of every type. */
#define PACKED_FLOAT_COLS 256

/* LANES rows, of which n_rows are there, from `row` on of a group; n_tokens at most PACKED_TOKENS.
 */
ALWAYS_INLINE void packed_rows_f32(struct packed_type type, const uint8_t *group, int n_cols,
                                   int row, int n_rows, struct f32_view x, int n_tokens, float *out,
                                   int64_t out_stride, vf *scratch) {
    vf *panel = scratch, *acc = scratch + PACKED_FLOAT_COLS;
    for (int t = 0; t < n_tokens; t++)
        acc[t] = vf_zero();
    for (int c = 0; c < n_cols; c += PACKED_FLOAT_COLS) {
        const int n = min_int(PACKED_FLOAT_COLS, n_cols - c);
        for (int b = 0; b < n / 32; b++) {
            struct wblock w;
            type.unpack(packed_place(type, group, n_cols, row, c / 32 + b), &w);
            for (int i = 0; i < 32; i++)
                panel[32 * b + i] = weight_float(type.format, &w, i / 4, i % 4);
        }
        for (int t = 0; t < n_tokens; t += TILE_TOKENS)
            f32_tiles(panel, n, (struct f32_view){x.x + t * x.stride + c, x.stride},
                      min_int(TILE_TOKENS, n_tokens - t), acc + t);
    }
    for (int t = 0; t < n_tokens; t++)
        store_rows(out + t * out_stride, acc[t], n_rows);
}

ALWAYS_INLINE void packed_f32_matmul(struct packed_type type, const uint8_t *packed,
                                     int group_begin, int group_end, int n_rows, int n_cols,
                                     struct f32_view x, int n_tokens, float *out,
                                     int64_t out_stride, void *scratch) {
    _Static_assert((PACKED_FLOAT_COLS + PACKED_TOKENS) * sizeof(vf) <= PACKED_SCRATCH_BYTES,
                   "scratch");
    const size_t group_bytes = packed_group_bytes(type.layout, n_cols);
    n_rows = min_int(n_rows, group_end * PACK_ROWS) - group_begin * PACK_ROWS;
    packed += (size_t)group_begin * group_bytes;
    for (int t = 0; t < n_tokens; t += PACKED_TOKENS) {
        for (int r = 0; r < n_rows; r += LANES)
            packed_rows_f32(type, packed + (size_t)(r / PACK_ROWS) * group_bytes, n_cols,
                            r % PACK_ROWS, n_rows - r,
                            (struct f32_view){x.x + t * x.stride, x.stride},
                            min_int(PACKED_TOKENS, n_tokens - t), out + t * out_stride + r,
                            out_stride, scratch);
    }
}

/* ---- Every type ---- */

#define LAYOUT(name, unit_cols, code_bytes, scale_bytes)                                           \
    static const struct pack_layout packed_layout_##name = {unit_cols, code_bytes, scale_bytes};
PACK_MAP(LAYOUT)
#undef LAYOUT

#define MATMUL_PACKED(lower, upper)                                                                \
    static void matmul_packed_q8_##lower(                                                          \
        const uint8_t *packed, int group_begin, int group_end, int n_rows, int n_cols,             \
        const struct q8_rows *x, int n_tokens, float *out, int64_t out_stride, void *scratch) {    \
        packed_q8_matmul(                                                                          \
            (struct packed_type){format_##lower, packed_##lower, packed_layout_##upper}, packed,   \
            group_begin, group_end, n_rows, n_cols, x, n_tokens, out, out_stride, scratch);        \
    }                                                                                              \
    static void matmul_packed_f32_##lower(const uint8_t *packed, int group_begin, int group_end,   \
                                          int n_rows, int n_cols, const float *x,                  \
                                          int64_t x_stride, int n_tokens, float *out,              \
                                          int64_t out_stride, void *scratch) {                     \
        packed_f32_matmul(                                                                         \
            (struct packed_type){format_##lower, packed_##lower, packed_layout_##upper}, packed,   \
            group_begin, group_end, n_rows, n_cols, (struct f32_view){x, x_stride}, n_tokens, out, \
            out_stride, scratch);                                                                  \
    }
Q8_WEIGHT_MAP(MATMUL_PACKED)
#undef MATMUL_PACKED
