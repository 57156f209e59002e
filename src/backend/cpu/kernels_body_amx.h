/*
 * Products of class q8 of many tokens over the packed layout by tiles (AMX): the same passes,
 * panels and chain as kernels_body_packed.h, whose integers come from tiles here. Included by
 * kernels_amx.c after AVX-512's words, the tile words and the bodies (kernels_body_tiles.h too).
 *
 * A wblock's bytes are a right-hand tile as they stand: 8 vectors of 16 rows by 4 columns; 32
 * columns of 16 tokens are a left-hand one, read where they lie. One product of the two is the
 * integer sums of a block for 16 tokens by 16 rows, which go to memory and from there through the
 * chain, so outputs are bit-equal to AVX-512's. Types with scales of 16 columns take a block in
 * two halves. Weights are signed here: the panel has their offset taken off.
 */
#pragma once

_Static_assert(LANES == 16 && SETS == 2, "two tiles of rows");

/* Integer sums of a block, or of a half: of row r and token t at [t][r]. Steps of a batch: blocks
 * (sub16: halves) whose sums are made while those of the batch before are scaled. */
typedef int32_t amx_sums[AMX_TOKENS][2 * LANES];
#define AMX_BATCH 2
#define AMX_FEW   16 /* tokens up to which the vector unit does it */

/* One step: a block (w: its two wblocks, q: of the first token), or a half of it. */
ALWAYS_INLINE void amx_multiply(const struct wblock *w, int half, const int8_t *q, int64_t q_stride,
                                int n, amx_sums sums) {
    const int64_t row_bytes = sizeof(sums[0]);
    q += 16 * half;
    tile_load(ROWS_0, w[0].w + 4 * half, 64);
    tile_load(ROWS_1, w[1].w + 4 * half, 64);
    tile_load(TOKENS_0, q, q_stride);
    tile_zero(SUM_00);
    tile_zero(SUM_01);
    tile_multiply(SUM_00, TOKENS_0, ROWS_0);
    tile_multiply(SUM_01, TOKENS_0, ROWS_1);
    if (n > AMX_ROWS) {
        tile_load(TOKENS_1, q + AMX_ROWS * q_stride, q_stride);
        tile_zero(SUM_10);
        tile_zero(SUM_11);
        tile_multiply(SUM_10, TOKENS_1, ROWS_0);
        tile_multiply(SUM_11, TOKENS_1, ROWS_1);
        tile_store(SUM_10, sums[AMX_ROWS], row_bytes);
        tile_store(SUM_11, sums[AMX_ROWS] + LANES, row_bytes);
    }
    tile_store(SUM_00, sums[0], row_bytes);
    tile_store(SUM_01, sums[0] + LANES, row_bytes);
}

/* acc += the batch of n_blocks whose sums these are, for n tokens (a constant) from `token` on;
 * panel, x: of its first block. */
ALWAYS_INLINE void amx_scale(struct q8_format f, const struct wblock *panel, int n_blocks,
                             const struct packed_view *x, int token, int n, amx_sums *sums,
                             vf *acc) {
    const int n_halves = f.sub16 ? 2 : 1;
    vf a[4 * SETS], part[4 * SETS];
    for (int k = 0; k < n * SETS; k++)
        a[k] = acc[token * SETS + k];
    for (int b = 0; b < n_blocks; b++) {
        const struct wblock *w = panel + b * SETS;
        for (int half = 0; half < n_halves; half++) {
            for (int k = 0; k < n * SETS; k++) {
                const int32_t *of = sums[n_halves * b + half][token + k / SETS] + k % SETS * LANES;
                const vf sum = vi_float(vi_load(of)), scale = w[k % SETS].scale[half];
                part[k] = half == 0 ? vf_mul(sum, scale) : vf_fma(sum, scale, part[k]);
            }
        }
        for (int k = 0; k < n * SETS; k++) {
            const int t = token + k / SETS;
            a[k] = vf_fma(part[k], vf_set1(x->scale[t * x->scale_stride + b]), a[k]);
            for (int half = 0; f.has_min && half < n_halves; half++) {
                float sum = x->aux.sums[t * x->aux_stride + n_halves * b + half];
                a[k] = vf_fma(w[k % SETS].min[half], vf_set1(sum), a[k]);
            }
        }
    }
    for (int k = 0; k < n * SETS; k++)
        acc[token * SETS + k] = a[k];
}

/* packed_tiles_fn, n of 1 to AMX_TOKENS. The tile unit makes the sums of the next batch, step by
 * step, between the shares of tokens of this one. */
ALWAYS_INLINE void amx_tiles(struct q8_format f, const struct wblock *panel, int n_blocks,
                             struct packed_view x, int n, vf *acc) {
    _Alignas(64) amx_sums sums[2][AMX_BATCH];
    const int n_halves = f.sub16 ? 2 : 1, n_steps = n_blocks * n_halves;
    const int share = AMX_TOKENS / AMX_BATCH;
    amx_configure(n, f.sub16 ? 16 : 32);
    for (int step = -AMX_BATCH; step < n_steps; step += AMX_BATCH) {
        const int block = step / n_halves;
        const int n_here = min_int(AMX_BATCH / n_halves, n_blocks - block);
        const struct packed_view here = step < 0 ? x : packed_view_at(x, f.sub16, 0, block);
        amx_sums *mine = sums[step / AMX_BATCH & 1], *next = sums[(step / AMX_BATCH & 1) ^ 1];
        for (int i = 0; i < AMX_BATCH; i++) {
            const int s = step + AMX_BATCH + i, b = s / n_halves;
            if (s < n_steps)
                amx_multiply(panel + b * SETS, s % n_halves, x.q + 32 * b, x.q_stride, n, next[i]);
            if (step < 0) continue;
            int t = i * share;
            const int end = min_int(n, t + share);
            for (; t + 4 <= end; t += 4)
                amx_scale(f, panel + block * SETS, n_here, &here, t, 4, mine, acc);
            for (; t < end; t++)
                amx_scale(f, panel + block * SETS, n_here, &here, t, 1, mine, acc);
        }
    }
    tile_release();
}

/* name, sub16, has_min */
#define AMX_CLASSES(X)                                                                             \
    X(plain, false, false)                                                                         \
    X(min, false, true)                                                                            \
    X(sub, true, false)                                                                            \
    X(sub_min, true, true)
#define AMX_TILES(name, sub16, has_min)                                                            \
    static __attribute__((noinline)) void amx_tiles_##name(                                        \
        const struct wblock *panel, int n_blocks, struct packed_view x, int n, vf *acc) {          \
        amx_tiles((struct q8_format){WEIGHT_S8, 0, sub16, has_min, 1}, panel, n_blocks, x, n,      \
                  acc);                                                                            \
    }
AMX_CLASSES(AMX_TILES)
#undef AMX_TILES

ALWAYS_INLINE packed_tiles_fn *amx_tiles_of(struct q8_format f) {
#define CHOOSE(name, sub16_, has_min_)                                                             \
    if (f.sub16 == sub16_ && f.has_min == has_min_) return amx_tiles_##name;
    AMX_CLASSES(CHOOSE)
#undef CHOOSE
    return NULL;
}

ALWAYS_INLINE struct q8_format amx_format(struct q8_format f) {
    return (struct q8_format){WEIGHT_S8, 0, f.sub16, f.has_min, f.n_blocks};
}

/* Few tokens leave most of a tile empty: they stay with AVX-512. */
#define MATMUL_AMX(lower, upper)                                                                   \
    static __attribute__((noinline)) void amx_unpack_##lower(PACKED_AT_ARGUMENTS,                  \
                                                             struct wblock *out) {                 \
        packed_##lower((struct packed_at){codes, scales, row, block}, out);                        \
        for (int s = 0; format_##lower.offset != 0 && s < 8; s++)                                  \
            out->w[s] = _mm512_sub_epi8(out->w[s], _mm512_set1_epi8((char)format_##lower.offset)); \
    }                                                                                              \
    static void matmul_amx_##lower(const uint8_t *packed, int group_begin, int group_end,          \
                                   int n_rows, int n_cols, const struct q8_rows *x, int n_tokens,  \
                                   float *out, int64_t out_stride, const uint8_t *then,            \
                                   void *scratch) {                                                \
        if (n_tokens <= AMX_FEW)                                                                   \
            kernels_avx512_packed_q8[DTYPE_##upper](packed, group_begin, group_end, n_rows,        \
                                                    n_cols, x, n_tokens, out, out_stride, then,    \
                                                    scratch);                                      \
        else                                                                                       \
            packed_q8_many((struct packed_type){amx_format(format_##lower), packed_##lower,        \
                                                amx_unpack_##lower, packed_layout_##upper,         \
                                                amx_tiles_of(format_##lower), AMX_TOKENS, false},  \
                           packed, group_begin, group_end, n_rows, n_cols, x, n_tokens, out,       \
                           out_stride, scratch);                                                   \
    }
Q8_WEIGHT_MAP(MATMUL_AMX)
#undef MATMUL_AMX

static void amx_fill(struct kernels *k) {
#define ENTRY(lower, upper) k->matmul_packed_q8[DTYPE_##upper] = matmul_amx_##lower;
    Q8_WEIGHT_MAP(ENTRY)
#undef ENTRY
}
