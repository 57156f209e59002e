/*
 * Products of class q8 of many tokens over the packed layout by 2 x 2 integer matrices (Armv8.6
 * I8MM): the same passes, panels and chain as kernels_body_packed.h, whose integers come from
 * `smmla` here. Included by kernels_neon_i8mm.c after NEON's words and the bodies.
 *
 * One instruction multiplies 2 rows by 2 tokens over 8 columns. So a panel has the 4 rows of 8
 * columns as two vectors of 2 rows, and a sum holds 2 rows of 2 tokens: two sums are sorted into
 * the 4 rows of each token before they are scaled. Outputs are bit-equal to NEON's. Weights have
 * their offset taken off in the panel.
 */
#pragma once

_Static_assert(LANES == 4, "two sums of two rows");

/* Tokens of a tile. 8 rows by 4 tokens are 8 sums and 8 accumulators of the 32 registers. */
#define I8MM_TOKENS 4

/* acc[t * SETS + i] += block b of n tokens, for SETS wblocks. */
ALWAYS_INLINE void i8mm_block(struct q8_format f, const struct wblock *w,
                              const struct packed_view *x, int b, int n, vf *acc) {
    const int n_halves = f.sub16 ? 2 : 1, n_steps = f.sub16 ? 2 : 4, n_pairs = (n + 1) / 2;
    vf part[I8MM_TOKENS * SETS];
    for (int half = 0; half < n_halves; half++) {
        int32x4_t sum[I8MM_TOKENS / 2 * SETS][2];
        for (int k = 0; k < n_pairs * SETS; k++)
            sum[k][0] = sum[k][1] = vdupq_n_s32(0);
        for (int s = 0; s < n_steps; s++) {
            const int8_t *q = x->q + 32 * b + 16 * half + 8 * s;
            const int at = 2 * (n_steps * half + s);
            for (int p = 0; p < n_pairs; p++) { /* a token without another is taken twice */
                int8x16_t two = vcombine_s8(vld1_s8(q + 2 * p * x->q_stride),
                                            vld1_s8(q + min_int(2 * p + 1, n - 1) * x->q_stride));
                for (int i = 0; i < SETS; i++) {
                    int32x4_t *to = sum[p * SETS + i];
                    to[0] = vmmlaq_s32(to[0], vreinterpretq_s8_s32(w[i].w[at]), two);
                    to[1] = vmmlaq_s32(to[1], vreinterpretq_s8_s32(w[i].w[at + 1]), two);
                }
            }
        }
        for (int k = 0; k < n * SETS; k++) {
            const int32x4_t *of = sum[k / SETS / 2 * SETS + k % SETS];
            const vf scale = w[k % SETS].scale[half];
            const bool first = k / SETS % 2 == 0; /* of its pair */
            const vi rows = first ? vuzp1q_s32(of[0], of[1]) : vuzp2q_s32(of[0], of[1]);
            const vf sum4 = vi_float(rows);
            part[k] = half == 0 ? vf_mul(sum4, scale) : vf_fma(sum4, scale, part[k]);
        }
    }
    for (int k = 0; k < n * SETS; k++) {
        const int t = k / SETS;
        acc[k] = vf_fma(part[k], vf_set1(x->scale[t * x->scale_stride + b]), acc[k]);
        for (int half = 0; f.has_min && half < n_halves; half++) {
            float sum = x->aux.sums[t * x->aux_stride + n_halves * b + half];
            acc[k] = vf_fma(w[k % SETS].min[half], vf_set1(sum), acc[k]);
        }
    }
}

/* n (a constant) tokens of a packed_tiles_fn. */
ALWAYS_INLINE void i8mm_tile(struct q8_format f, const struct wblock *panel, int n_blocks,
                             const struct packed_view *x, int n, vf *acc) {
    vf a[I8MM_TOKENS * SETS];
    for (int k = 0; k < n * SETS; k++)
        a[k] = acc[k];
    for (int b = 0; b < n_blocks; b++)
        i8mm_block(f, panel + b * SETS, x, b, n, a);
    for (int k = 0; k < n * SETS; k++)
        acc[k] = a[k];
}

/* name, sub16, has_min */
#define I8MM_CLASSES(X)                                                                            \
    X(plain, false, false)                                                                         \
    X(min, false, true)                                                                            \
    X(sub, true, false)                                                                            \
    X(sub_min, true, true)
#define I8MM_TILES(name, sub16, has_min)                                                           \
    static __attribute__((noinline)) void i8mm_tiles_##name(                                       \
        const struct wblock *panel, int n_blocks, struct packed_view x, int n, vf *acc) {          \
        const struct q8_format f = {WEIGHT_S8, 0, sub16, has_min, 1};                              \
        if (n == 1)                                                                                \
            i8mm_tile(f, panel, n_blocks, &x, 1, acc);                                             \
        else if (n == 2)                                                                           \
            i8mm_tile(f, panel, n_blocks, &x, 2, acc);                                             \
        else if (n == 3)                                                                           \
            i8mm_tile(f, panel, n_blocks, &x, 3, acc);                                             \
        else                                                                                       \
            i8mm_tile(f, panel, n_blocks, &x, 4, acc);                                             \
    }
I8MM_CLASSES(I8MM_TILES)
#undef I8MM_TILES
_Static_assert(I8MM_TOKENS == 4, "the cases above");

ALWAYS_INLINE packed_tiles_fn *i8mm_tiles_of(struct q8_format f) {
#define CHOOSE(name, sub16_, has_min_)                                                             \
    if (f.sub16 == sub16_ && f.has_min == has_min_) return i8mm_tiles_##name;
    I8MM_CLASSES(CHOOSE)
#undef CHOOSE
    return NULL;
}

/* Takes the offset off and sorts columns 8s..8s+7: rows 0 and 1, then rows 2 and 3. */
ALWAYS_INLINE void i8mm_sort(int offset, struct wblock *w) {
    const int8x16_t less = vdupq_n_s8((int8_t)offset);
    for (int s = 0; s < 8; s += 2) {
        vi a = vreinterpretq_s32_s8(vsubq_s8(vreinterpretq_s8_s32(w->w[s]), less));
        vi b = vreinterpretq_s32_s8(vsubq_s8(vreinterpretq_s8_s32(w->w[s + 1]), less));
        w->w[s] = vzip1q_s32(a, b);
        w->w[s + 1] = vzip2q_s32(a, b);
    }
}

ALWAYS_INLINE struct q8_format i8mm_format(struct q8_format f) {
    return (struct q8_format){WEIGHT_S8, 0, f.sub16, f.has_min, f.n_blocks};
}

/* Few tokens take weights straight from registers, where sorting them would not pay: they stay
 * with the dot products. */
#define MATMUL_I8MM(lower, upper)                                                                  \
    static __attribute__((noinline)) void i8mm_unpack_##lower(PACKED_AT_ARGUMENTS,                 \
                                                              struct wblock *out) {                \
        packed_##lower((struct packed_at){codes, scales, row, block}, out);                        \
        i8mm_sort(format_##lower.offset, out);                                                     \
    }                                                                                              \
    static void matmul_i8mm_##lower(const uint8_t *packed, int group_begin, int group_end,         \
                                    int n_rows, int n_cols, const struct q8_rows *x, int n_tokens, \
                                    float *out, int64_t out_stride, const uint8_t *then,           \
                                    void *scratch) {                                               \
        if (n_tokens <= packed_few_tokens(format_##lower))                                         \
            kernels_neon_dot_packed_q8[DTYPE_##upper](packed, group_begin, group_end, n_rows,      \
                                                      n_cols, x, n_tokens, out, out_stride, then,  \
                                                      scratch);                                    \
        else                                                                                       \
            packed_q8_many((struct packed_type){i8mm_format(format_##lower), packed_##lower,       \
                                                i8mm_unpack_##lower, packed_layout_##upper,        \
                                                i8mm_tiles_of(format_##lower), I8MM_TOKENS,        \
                                                false},                                            \
                           packed, group_begin, group_end, n_rows, n_cols, x, n_tokens, out,       \
                           out_stride, scratch);                                                   \
    }
Q8_WEIGHT_MAP(MATMUL_I8MM)
#undef MATMUL_I8MM
