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
/* Not inlined: for panels, where results go to memory anyway. A packed_at in registers, since what
 * compilers put on the stack for a struct they copy in other pieces, which stalls each call. */
#define PACKED_AT_ARGUMENTS const uint8_t *codes, const uint8_t *scales, int row, int block
typedef void packed_unpack_call_fn(PACKED_AT_ARGUMENTS, struct wblock *out);

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
/* Bits `to` and `to` + 1 of granule s, from the two vectors of a 2-bit plane. */
ALWAYS_INLINE vi packed_two_bits(const vi plane[2], int to, int s) {
    return vi_and(vi_move(plane[s % 2], to - s / 2 * 2), vi_set1(0x03030303 << to));
}

ALWAYS_INLINE void packed_q8_0(struct packed_at p, struct wblock *out) {
    for (int s = 0; s < 8; s++)
        out->w[s] = signed_bytes(packed_codes(p, s));
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
    packed_nibbles(p, out->w);
    lookup_iq4(out->w);
    out->scale[0] = packed_halves(p, 0);
}

ALWAYS_INLINE void packed_mxfp4(struct packed_at p, struct wblock *out) {
    packed_nibbles(p, out->w);
    lookup_all(vb_table(mxfp4_unsigned), out->w);
    out->scale[0] = mxfp4_scale(packed_u8(p, 0));
}

ALWAYS_INLINE void packed_q2_k(struct packed_at p, struct wblock *out) {
    const vi plane[2] = {packed_codes(p, 0), packed_codes(p, 1)};
    for (int s = 0; s < 8; s++)
        out->w[s] = packed_two_bits(plane, 0, s);
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
    /* Pairs of granules first, in nibbles: of each plane one mask for two of them. */
    const vi twos = vi_set1(0x33333333), ones = vi_set1(0x44444444);
    const vi plane[2] = {packed_codes(p, 0), packed_codes(p, 1)}, bits = packed_codes(p, 2);
    for (int i = 0; i < 4; i++) {
        const vi two = vi_and(vi_move(plane[i % 2], i / 2 * -2), twos);
        const vi pair = vi_or(two, vi_and(vi_move(bits, 2 - i), ones));
        out->w[i] = low_nibbles(pair);
        out->w[4 + i] = high_nibbles(pair);
    }
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
    const vi plane[2] = {packed_codes(p, 4), packed_codes(p, 5)};
    for (int s = 0; s < 8; s++)
        out->w[s] = vi_or(out->w[s], packed_two_bits(plane, 4, s));
    packed_scales_16(p, out);
}

ALWAYS_INLINE void packed_iq4_xs(struct packed_at p, struct wblock *out) {
    packed_nibbles(p, out->w);
    lookup_iq4(out->w);
    out->scale[0] = vf_mul(packed_halves(p, 0), packed_s8(p, 32 + 16 * p.block));
}

#define PACKED_CALL(lower, upper)                                                                  \
    static __attribute__((noinline)) void packed_call_##lower(PACKED_AT_ARGUMENTS,                 \
                                                              struct wblock *out) {                \
        packed_##lower((struct packed_at){codes, scales, row, block}, out);                        \
    }
Q8_WEIGHT_MAP(PACKED_CALL)
#undef PACKED_CALL

/* ---- Class q8 ---- */

/* Up to this many tokens weights are used as they are unpacked; from there on they are unpacked to
 * a panel, over which tiles of tokens run. */
ALWAYS_INLINE int packed_few_tokens(struct q8_format f) {
    if (LANES < 16) return LANES < 8 ? 8 : 12;
    return f.sub16 ? 20 : 32;
}
/* Groups side by side for 2 to TILE_FEW tokens, which share a block as it is unpacked. */
#define FEW_GROUPS (2 * LANES >= PACK_ROWS ? 2 * LANES / PACK_ROWS : 1)
#define TILE_FEW   4

/* A tile: SETS times LANES rows, SET_TOKENS tokens (kernels_vec_ISA.h). Tokens that share a
 * panel, columns of them that are worked on at a time (so that the activations stay in the
 * second-level cache while row groups go by), and the blocks of a panel. */
#define PACKED_TOKENS       132
#define PACKED_COLS         2048
#define PACKED_PANEL_BLOCKS 32

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

/* acc[t * SETS + i] += block b of n tokens, for SETS wblocks: q8_block with the offset's part read
 * instead of computed. */
ALWAYS_INLINE void packed_block(struct q8_format f, const struct wblock *w,
                                const struct packed_view *x, int b, int n, vf *acc) {
    const int n_halves = f.sub16 ? 2 : 1, n_steps = f.sub16 ? 4 : 8, n_turn = DOT_TURN(f.kind);
    vf part[SET_TOKENS * SETS];
    struct dot dot[SET_TOKENS * SETS];
    UNROLL(2)
    for (int half = 0; half < n_halves; half++) {
        if (FEW_REGISTERS) FORGET_MEMORY(); /* neither acc nor activations stay */
        for (int t = 0; t < n; t++) {
            int64_t at = t * x->aux_stride + n_halves * b + half;
            for (int i = 0; i < SETS; i++)
                dot_start(&dot[t * SETS + i], f.has_min ? vi_set1(0) : vi_set1(x->aux.start[at]));
        }
        UNROLL(8)
        for (int turn = 0; turn < n_steps; turn += n_turn) {
            UNROLL(6)
            for (int t = 0; t < n; t++) {
                UNROLL(2)
                for (int s = turn; s < turn + n_turn; s++) {
                    vi four = vi_load1(x->q + t * x->q_stride + 32 * b + 16 * half + 4 * s);
                    for (int i = 0; i < SETS; i++)
                        dot_step(f.kind, s, n_steps, &dot[t * SETS + i], w[i].w[4 * half + s],
                                 four);
                }
            }
        }
        for (int k = 0; k < n * SETS; k++) {
            const struct wblock *of = &w[k % SETS];
            vf value = vi_float(dot_end(&dot[k]));
            part[k] =
                half == 0 ? vf_mul(value, of->scale[0]) : vf_fma(value, of->scale[1], part[k]);
        }
    }
    for (int k = 0; k < n * SETS; k++) { /* not by tokens: the scale would take a register */
        const int t = k / SETS;
        acc[k] = vf_fma(part[k], vf_set1(x->scale[t * x->scale_stride + b]), acc[k]);
        for (int half = 0; f.has_min && half < n_halves; half++) {
            float total = x->aux.sums[t * x->aux_stride + n_halves * b + half];
            acc[k] = vf_fma(w[k % SETS].min[half], vf_set1(total), acc[k]);
        }
    }
}

/* n_blocks of a panel against n tokens (a constant), on top of acc. */
ALWAYS_INLINE void packed_tile(struct q8_format f, const struct wblock *panel, int n_blocks,
                               struct packed_view x, int n, vf *acc) {
    if (FEW_REGISTERS) {
        for (int b = 0; b < n_blocks; b++)
            packed_block(f, panel + b * SETS, &x, b, n, acc);
        return;
    }
    vf a[SET_TOKENS * SETS];
    for (int k = 0; k < n * SETS; k++)
        a[k] = acc[k];
    for (int b = 0; b < n_blocks; b++)
        packed_block(f, panel + b * SETS, &x, b, n, a);
    for (int k = 0; k < n * SETS; k++)
        acc[k] = a[k];
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

/* Scales of 16 columns take a register more for each of the sums. */
ALWAYS_INLINE int tile_tokens(struct q8_format f) {
    return f.sub16 ? SET_TOKENS_SUB16 : SET_TOKENS;
}

_Static_assert(SET_TOKENS <= 6 && PACKED_TOKENS % SET_TOKENS == 0 &&
                   PACKED_TOKENS % SET_TOKENS_SUB16 == 0,
               "cases below, chunks");
/* n of 1 to SET_TOKENS tokens. */
#define PACKED_TILES(name, kind, sub16, has_min)                                                   \
    static __attribute__((noinline)) void packed_tiles_##name(                                     \
        const struct wblock *panel, int n_blocks, struct packed_view x, int n, vf *acc) {          \
        const struct q8_format f = {kind, 0, sub16, has_min, 1};                                   \
        const int most = tile_tokens(f);                                                           \
        switch (n) {                                                                               \
        case 1:                                                                                    \
            packed_tile(f, panel, n_blocks, x, 1, acc);                                            \
            break;                                                                                 \
        case 2:                                                                                    \
            packed_tile(f, panel, n_blocks, x, min_int(2, most), acc);                             \
            break;                                                                                 \
        case 3:                                                                                    \
            packed_tile(f, panel, n_blocks, x, min_int(3, most), acc);                             \
            break;                                                                                 \
        case 4:                                                                                    \
            packed_tile(f, panel, n_blocks, x, min_int(4, most), acc);                             \
            break;                                                                                 \
        case 5:                                                                                    \
            packed_tile(f, panel, n_blocks, x, min_int(5, most), acc);                             \
            break;                                                                                 \
        default:                                                                                   \
            packed_tile(f, panel, n_blocks, x, most, acc);                                         \
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

/* Fills aux (see packed_view) for n_blocks of n_tokens: simple loops, which compilers vectorise. */
ALWAYS_INLINE void packed_aux(struct q8_format f, const int16_t *restrict sum16,
                              const float *restrict scale, int64_t scale_stride, int n_tokens,
                              int n_blocks, void *restrict aux) {
    const int n = f.sub16 ? 2 * n_blocks : n_blocks;
    for (int t = 0; t < n_tokens; t++) {
        const int16_t *sum = sum16 + 2 * t * scale_stride;
        int32_t *start = (int32_t *)aux + (int64_t)t * n;
        float *sums = (float *)aux + (int64_t)t * n;
        if (f.has_min && f.sub16) {
            for (int i = 0; i < n; i++)
                sums[i] = scale[t * scale_stride + i / 2] * (float)sum[i];
        } else if (f.has_min) {
            for (int i = 0; i < n; i++)
                sums[i] = scale[t * scale_stride + i] * (float)(sum[2 * i] + sum[2 * i + 1]);
        } else if (f.sub16) {
            for (int i = 0; i < n; i++)
                start[i] = -f.offset * sum[i];
        } else {
            for (int i = 0; i < n; i++)
                start[i] = -f.offset * (sum[2 * i] + sum[2 * i + 1]);
        }
    }
}

/* What a type's product is made of, all constants. */
struct packed_type {
    struct q8_format format;
    packed_unpack_fn *unpack;
    packed_unpack_call_fn *unpack_call;
    struct pack_layout layout;
    packed_tiles_fn *tiles; /* over panels of unpack_call's, up to n_tile tokens a call */
    int n_tile;
    bool wide; /* unpack_call makes two wblocks, of 16 columns in words of 16 bits each */
};
ALWAYS_INLINE int panel_blocks(struct packed_type type) {
    return type.wide ? PACKED_PANEL_BLOCKS / 2 : PACKED_PANEL_BLOCKS;
}

ALWAYS_INLINE size_t packed_group_bytes(struct pack_layout l, int n_cols) {
    return round_up(pack_run_bytes(l, n_cols), PACK_ALIGN);
}

/* Block b of the rows from `row` on of a group. */
ALWAYS_INLINE struct packed_at packed_place(struct packed_type type, const uint8_t *group,
                                            int n_cols, int row, int b) {
    const struct pack_place p = pack_place(type.layout, n_cols, b);
    return (struct packed_at){group + p.codes, group + p.scales, row,
                              b % (type.layout.unit_cols / 32)};
}

/* Bytes of what follows a matrix that are asked for at its end, and how far ahead of their use
 * those of several groups side by side are. */
#define PACKED_THEN_BYTES  1024
#define PACKED_AHEAD_BYTES 4096
/* Groups of fewer columns than this are read in order whatever the tokens: all they take is in the
 * cache when the next tokens come. */
#define PACKED_SHORT_COLS 1024

/* How memory is read. In its own order: prefetchers follow a plain run of lines as fast as memory
 * gives them, but lose it at a jump of more than some lines, so that a run's scales are touched
 * before its codes. Asked for ahead: where there is more to compute than that they fall behind. */
enum packed_reading { IN_ORDER, ASK_AHEAD };

ALWAYS_INLINE void packed_ask(const uint8_t *p, int bytes) {
    for (int at = 0; at < bytes; at += 64)
        __builtin_prefetch(p + at, 0, 2);
}
ALWAYS_INLINE void packed_touch(const uint8_t *p, int bytes) {
    for (int at = 0; at < bytes; at += 64)
        __builtin_prefetch(p + at, 0, 3);
}

/* n tokens, n_groups groups side by side, read one way (all constants): each block is used as soon
 * as it is unpacked. Several groups share the loads of activations; one that is not there repeats
 * the first. then: what is read after these groups if not what follows them in memory, or NULL. */
ALWAYS_INLINE void packed_direct(struct packed_type type, const uint8_t *group, size_t group_bytes,
                                 int n_groups, enum packed_reading reading, int n_cols, int n_rows,
                                 const struct q8_view *x, int n, float *out, int64_t out_stride,
                                 const uint8_t *then) {
    const struct pack_layout l = type.layout;
    const int n_parts = PACK_ROWS / LANES, unit_blocks = l.unit_cols / 32,
              run_blocks = PACK_RUN / 32;
    const int n_blocks = n_cols / 32;
    vf acc[FEW_GROUPS * PACK_ROWS / LANES][TILE_FEW];
    for (int i = 0; i < n_groups * n_parts; i++) {
        for (int t = 0; t < n; t++)
            acc[i][t] = vf_zero();
    }
    size_t stride[FEW_GROUPS];
    for (int g = 0; g < n_groups; g++)
        stride[g] = g * PACK_ROWS < n_rows ? (size_t)g * group_bytes : 0;
    const uint8_t *at = group, *scales = group;
    int64_t ahead = PACKED_AHEAD_BYTES;
    for (int b = 0; b < n_blocks; b++, at += l.code_bytes) {
        if ((size_t)(at - group) + PACKED_AHEAD_BYTES >= group_bytes) /* of the next groups */
            ahead = PACKED_AHEAD_BYTES + (int64_t)(n_groups - 1) * (int64_t)group_bytes;
        if (b % run_blocks == 0) {
            scales = at;
            const int scale_bytes = min_int(run_blocks, n_blocks - b) / unit_blocks * l.scale_bytes;
            for (int g = 0; g < n_groups; g++) {
                if (reading == IN_ORDER)
                    packed_touch(at + stride[g], scale_bytes);
                else
                    packed_ask(at + stride[g] + ahead, scale_bytes);
            }
            at += scale_bytes;
        }
        UNROLL(4)
        for (int i = 0; i < n_groups * n_parts; i++) {
            const size_t to = stride[i / n_parts];
            struct wblock w;
            if (reading == ASK_AHEAD && i % n_parts == 0) packed_ask(at + to + ahead, l.code_bytes);
            type.unpack(
                (struct packed_at){at + to, scales + to, i % n_parts * LANES, b % unit_blocks}, &w);
            q8_block(type.format, &w, x, b, n, acc[i]);
            if (n > 2 || FEW_REGISTERS) FORGET_MEMORY(); /* else activations are kept, and spill */
        }
        if (unit_blocks == 1) scales += l.scale_bytes;
    }
    if (then) packed_ask(then, PACKED_THEN_BYTES);
    for (int i = 0; i < n_groups * n_parts && i * LANES < n_rows; i++) {
        for (int t = 0; t < n; t++)
            store_rows(out + t * out_stride + i * LANES, acc[i][t], n_rows - i * LANES);
    }
}

/* The same for all groups, and up to packed_few_tokens, a few at a time: the weights of some groups
 * are in the cache when the next tokens come. */
ALWAYS_INLINE void packed_few(struct packed_type type, const uint8_t *group, size_t group_bytes,
                              int n_rows, int n_cols, const struct q8_view *x, int n_tokens,
                              float *out, int64_t out_stride, const uint8_t *then) {
#define DIRECT(n_groups, reading, n)                                                               \
    packed_direct(type, group, group_bytes, n_groups, reading, n_cols, n_rows - r, &view, n,       \
                  out + t * out_stride + r, out_stride,                                            \
                  r + (n_groups)*PACK_ROWS < n_rows ? NULL : then)
    const bool in_order = n_tokens == 1 || n_cols < PACKED_SHORT_COLS;
    const int n_groups = in_order ? 1 : FEW_GROUPS;
    const int n_parts = (n_tokens + TILE_FEW - 1) / TILE_FEW;
    for (int r = 0; r < n_rows;
         r += n_groups * PACK_ROWS, group += (size_t)n_groups * group_bytes) {
        for (int i = 0, t = 0; i < n_parts; i++) {
            const int n = (n_tokens - t) / (n_parts - i);
            const struct q8_view view = view_at(type.format, x, t);
            if (n == 1)
                DIRECT(1, IN_ORDER, 1);
            else if (in_order && n == 2)
                DIRECT(1, IN_ORDER, 2);
            else if (in_order && n == 3)
                DIRECT(1, IN_ORDER, 3);
            else if (in_order)
                DIRECT(1, IN_ORDER, 4);
            else if (n == 2)
                DIRECT(FEW_GROUPS, ASK_AHEAD, 2);
            else if (n == 3)
                DIRECT(FEW_GROUPS, ASK_AHEAD, 3);
            else
                DIRECT(FEW_GROUPS, ASK_AHEAD, 4);
            t += n;
        }
    }
#undef DIRECT
}

/* Of several tokens: the columns of one pass, their aux, and where unpacked weights go. */
struct packed_pass {
    struct packed_view x; /* first token, first column of the pass */
    int n_tokens;
    int first_block, n_blocks;
    struct wblock *panel;
    vf *acc; /* (n_tokens) */
};

/* The packed bytes that the next panel will be made of. They are fetched while the tiles of this
 * one compute, a few lines before each tile. Panels begin where runs do. */
struct packed_next {
    const uint8_t *at;
    size_t group_bytes;
    int n_lines, n_groups, n_tokens;
};
_Static_assert(PACKED_PANEL_BLOCKS / 2 * 32 % PACK_RUN == 0 && PACKED_COLS % PACK_RUN == 0,
               "panels");

ALWAYS_INLINE struct packed_next packed_next(struct packed_type type, const uint8_t *group,
                                             size_t group_bytes, int n_cols, int row,
                                             const struct packed_pass *pass, int block) {
    if (block >= pass->n_blocks) {
        block = 0;
        group += (size_t)((row + SETS * LANES) / PACK_ROWS) * group_bytes;
    }
    const int n = min_int(panel_blocks(type), pass->n_blocks - block);
    return (struct packed_next){
        packed_place(type, group, n_cols, 0, pass->first_block + block).scales,
        group_bytes,
        (int)(pack_run_bytes(type.layout, n * 32) + 63) / 64,
        max_int(1, SETS * LANES / PACK_ROWS),
        pass->n_tokens,
    };
}

/* The share of the tile that begins with token t. */
ALWAYS_INLINE void packed_next_fetch(const struct packed_next *next, int t, int n_tile) {
    const int begin = next->n_lines * t / next->n_tokens;
    const int end = next->n_lines * min_int(t + n_tile, next->n_tokens) / next->n_tokens;
    for (int g = 0; g < next->n_groups; g++) {
        for (int i = begin; i < end; i++)
            __builtin_prefetch(next->at + (size_t)g * next->group_bytes + 64 * (size_t)i, 0, 2);
    }
}

/* SETS * LANES rows, of which n_rows >= 1 are there. of[i]: block 0 of set i; a set that is not
 * there repeats the first, and its results are dropped. */
ALWAYS_INLINE void packed_rows(struct packed_type type, const uint8_t *group, size_t group_bytes,
                               int n_cols, int row, int n_rows, const struct packed_pass *pass,
                               float *out, int64_t out_stride) {
    const int n_tile = type.n_tile;
    for (int t = 0; t < pass->n_tokens; t++) {
        for (int i = 0; i < SETS && i * LANES < n_rows; i++)
            __builtin_prefetch(out + t * out_stride + i * LANES, 1, 3);
    }
    for (int k = 0; k < pass->n_tokens * SETS; k++) {
        const float *at = out + k / SETS * out_stride + k % SETS * LANES;
        const int n = n_rows - k % SETS * LANES;
        pass->acc[k] = pass->first_block == 0 || n <= 0 ? vf_zero()
                       : n >= LANES                     ? vf_load(at)
                                                        : vf_load_part(at, n);
    }
    const int most = panel_blocks(type);
    for (int b = 0; b < pass->n_blocks; b += most) {
        const int n = min_int(most, pass->n_blocks - b);
        for (int k = 0; k < n * SETS; k++) {
            const int i = k % SETS, r = row + (i * LANES < n_rows ? i * LANES : 0);
            struct packed_at p =
                packed_place(type, group + (size_t)(r / PACK_ROWS) * group_bytes, n_cols,
                             r % PACK_ROWS, pass->first_block + b + k / SETS);
            type.unpack_call(p.codes, p.scales, p.row, p.block,
                             pass->panel + (type.wide ? 2 : 1) * k);
        }
        struct packed_next next = packed_next(type, group, group_bytes, n_cols, row, pass, b + n);
        for (int t = 0; t < pass->n_tokens; t += n_tile) {
            packed_next_fetch(&next, t, n_tile);
            type.tiles(pass->panel, n, packed_view_at(pass->x, type.format.sub16, t, b),
                       min_int(n_tile, pass->n_tokens - t), pass->acc + t * SETS);
        }
    }
    for (int k = 0; k < pass->n_tokens * SETS; k++) {
        const int n = n_rows - k % SETS * LANES;
        if (n > 0) store_rows(out + k / SETS * out_stride + k % SETS * LANES, pass->acc[k], n);
    }
}

/* Rows of groups [group_begin, group_end) of which n_rows are there in all. */
ALWAYS_INLINE int packed_n_rows(int group_begin, int group_end, int n_rows) {
    return min_int(n_rows, group_end * PACK_ROWS) - group_begin * PACK_ROWS;
}

/* Up to packed_few_tokens. */
ALWAYS_INLINE void packed_q8_few(struct packed_type type, const uint8_t *packed, int group_begin,
                                 int group_end, int n_rows, int n_cols, const struct q8_rows *x,
                                 int n_tokens, float *out, int64_t out_stride, const uint8_t *then,
                                 void *scratch) {
    const size_t group_bytes = packed_group_bytes(type.layout, n_cols);
    const struct q8_view view = {x->q, x->scale, x->sum16, scratch, n_cols};
    if (type.format.has_min) q8_sums(type.format, &view, n_tokens, scratch);
    packed_few(type, packed + (size_t)group_begin * group_bytes, group_bytes,
               packed_n_rows(group_begin, group_end, n_rows), n_cols, &view, n_tokens, out,
               out_stride, then);
}

/* Any number of tokens, through panels. */
ALWAYS_INLINE void packed_q8_many(struct packed_type type, const uint8_t *packed, int group_begin,
                                  int group_end, int n_rows, int n_cols, const struct q8_rows *x,
                                  int n_tokens, float *out, int64_t out_stride, void *scratch) {
    struct q8_format f = type.format;
    const size_t group_bytes = packed_group_bytes(type.layout, n_cols);
    n_rows = packed_n_rows(group_begin, group_end, n_rows);
    packed += (size_t)group_begin * group_bytes;
    _Static_assert(PACKED_PANEL_BLOCKS * SETS * sizeof(struct wblock) +
                           PACKED_TOKENS * SETS * sizeof(vf) +
                           PACKED_TOKENS * PACKED_COLS / 16 * sizeof(float) <=
                       PACKED_SCRATCH_BYTES,
                   "scratch");
    struct wblock *panel = scratch;
    vf *acc = (vf *)(void *)(panel + PACKED_PANEL_BLOCKS * SETS);
    void *aux = acc + PACKED_TOKENS * SETS;
    const int most = PACKED_TOKENS / type.n_tile * type.n_tile;
    const int n_chunks = (n_tokens + most - 1) / most;
    for (int chunk = 0, t = 0; chunk < n_chunks; chunk++) {
        const int even = (n_tokens - t + n_chunks - chunk - 1) / (n_chunks - chunk);
        const int n = min_int(n_tokens - t, (int)round_up((size_t)even, (size_t)type.n_tile));
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
            for (int r = 0; r < n_rows; r += SETS * LANES)
                packed_rows(type, packed + (size_t)(r / PACK_ROWS) * group_bytes, group_bytes,
                            n_cols, r % PACK_ROWS, n_rows - r, &pass, out + t * out_stride + r,
                            out_stride);
        }
        t += n;
    }
}

/* ---- Class f32 ---- */

/* Columns [begin, end) of a group to a panel (f32_fill_fn). */
ALWAYS_INLINE void packed_fill(struct packed_type type, const struct f32_weights *w, int row,
                               int begin, int end, float *panel) {
    const uint8_t *group = w->first + (size_t)(row / PACK_ROWS) * w->bytes;
    for (int b = begin / 32; b < end / 32; b++, panel += 32 * PACK_ROWS) {
        for (int r = 0; r < PACK_ROWS; r += LANES) {
            struct wblock block;
            const struct packed_at p = packed_place(type, group, w->n_cols, r, b);
            type.unpack_call(p.codes, p.scales, p.row, p.block, &block);
            for (int i = 0; i < 32; i++)
                vf_store(panel + PACK_ROWS * i + r,
                         weight_float(type.format, &block, i / 4, i % 4));
        }
    }
}

/* What a product over groups [group_begin, group_end) is. */
ALWAYS_INLINE struct f32_weights packed_weights(f32_fill_fn *fill, const uint8_t *packed,
                                                size_t group_bytes, int group_begin, int group_end,
                                                int n_rows, int n_cols) {
    return (struct f32_weights){
        .fill = fill,
        .first = packed + (size_t)group_begin * group_bytes,
        .bytes = group_bytes,
        .n_rows = min_int(n_rows, group_end * PACK_ROWS) - group_begin * PACK_ROWS,
        .n_cols = n_cols,
        .panel_cols = FLOAT_COLS,
    };
}

/* ---- Every type ---- */

#define LAYOUT(name, unit_cols, code_bytes, scale_bytes)                                           \
    static const struct pack_layout packed_layout_##name = {unit_cols, code_bytes, scale_bytes};
PACK_MAP(LAYOUT)
#undef LAYOUT

#define MATMUL_PACKED(lower, upper)                                                                \
    static void matmul_packed_q8_##lower(const uint8_t *packed, int group_begin, int group_end,    \
                                         int n_rows, int n_cols, const struct q8_rows *x,          \
                                         int n_tokens, float *out, int64_t out_stride,             \
                                         const uint8_t *then, void *scratch) {                     \
        const struct packed_type type = {format_##lower,                                           \
                                         packed_##lower,                                           \
                                         packed_call_##lower,                                      \
                                         packed_layout_##upper,                                    \
                                         packed_tiles_of(format_##lower),                          \
                                         tile_tokens(format_##lower),                              \
                                         false};                                                   \
        if (n_tokens <= packed_few_tokens(type.format))                                            \
            packed_q8_few(type, packed, group_begin, group_end, n_rows, n_cols, x, n_tokens, out,  \
                          out_stride, then, scratch);                                              \
        else                                                                                       \
            packed_q8_many(type, packed, group_begin, group_end, n_rows, n_cols, x, n_tokens, out, \
                           out_stride, scratch);                                                   \
    }                                                                                              \
    static void packed_fill_##lower(const struct f32_weights *w, int row, int begin, int end,      \
                                    float *panel) {                                                \
        packed_fill((struct packed_type){format_##lower, packed_##lower, packed_call_##lower,      \
                                         packed_layout_##upper, NULL, 0, false},                   \
                    w, row, begin, end, panel);                                                    \
    }                                                                                              \
    static void matmul_packed_f32_##lower(const uint8_t *packed, int group_begin, int group_end,   \
                                          int n_rows, int n_cols, const float *x,                  \
                                          int64_t x_stride, int n_tokens, float *out,              \
                                          int64_t out_stride, void *scratch) {                     \
        const struct f32_weights w = packed_weights(                                               \
            packed_fill_##lower, packed, packed_group_bytes(packed_layout_##upper, n_cols),        \
            group_begin, group_end, n_rows, n_cols);                                               \
        f32_product(&w, (struct f32_view){x, x_stride}, n_tokens, FLOAT_CHUNK, out, out_stride,    \
                    scratch);                                                                      \
    }
Q8_WEIGHT_MAP(MATMUL_PACKED)
#undef MATMUL_PACKED
