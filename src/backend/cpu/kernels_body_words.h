/*
 * Products of many tokens over packed weights of signed bytes (Q8_0, IQ4) for AVX2, whose
 * instruction for bytes wants one operand without a sign. In the panel a byte is widened to 16
 * bits, and so are the activations of a tile; 32 products are then two multiplications and two
 * additions. Bytes take no fewer: abs and sign share the ports of the multiplications, and two
 * planes of nibbles leave two sums to put together. Passes and chain are those of
 * kernels_body_packed.h, after which kernels_avx2.c includes this; so are the bits.
 */
#pragma once

#define WORDS_TOKENS SET_TOKENS
#define WORDS_COLS   (32 * PACKED_PANEL_BLOCKS / 2) /* of a panel: as many bytes as others have */

/* acc[t * SETS + i] += block b of n tokens, whose activations lie in x; w: SETS pairs of wblocks,
 * of 16 columns each. */
ALWAYS_INLINE void words_block(const struct wblock *w, const int16_t *x,
                               const struct packed_view *view, int b, int n, vf *acc) {
    vi sum[WORDS_TOKENS * SETS];
    FORGET_MEMORY(); /* neither acc nor activations stay in registers */
    UNROLL(16)
    for (int s = 0; s < 16; s++) {
        for (int t = 0; t < n; t++) {
            const vi two = vi_load1(x + t * WORDS_COLS + 32 * b + 2 * s);
            for (int i = 0; i < SETS; i++) {
                vi *to = &sum[t * SETS + i];
                const vi product = vi_dot_words(w[2 * i + s / 8].w[s % 8], two);
                *to = s == 0 ? product : vi_add(*to, product);
                KEEP_ORDER(*to);
            }
        }
    }
    for (int k = 0; k < n * SETS; k++) {
        const float scale = view->scale[k / SETS * view->scale_stride + b];
        const vf part = vf_mul(vi_float(sum[k]), w[k % SETS * 2].scale[0]);
        acc[k] = vf_fma(part, vf_set1(scale), acc[k]);
    }
}

/* n_blocks of a panel against n (a constant) tokens. */
ALWAYS_INLINE void words_tile(const struct wblock *panel, int n_blocks,
                              const struct packed_view *view, int n, vf *acc) {
    int16_t x[WORDS_TOKENS * WORDS_COLS];
    for (int t = 0; t < n; t++) {
        for (int c = 0; c < 32 * n_blocks; c += 2 * LANES)
            vi_store_words(x + t * WORDS_COLS + c, view->q + t * view->q_stride + c);
    }
    for (int b = 0; b < n_blocks; b++)
        words_block(panel + 2 * SETS * b, x, view, b, n, acc);
}

/* A packed_tiles_fn. */
static __attribute__((noinline)) void words_tiles(const struct wblock *panel, int n_blocks,
                                                  struct packed_view x, int n, vf *acc) {
    if (n == 1)
        words_tile(panel, n_blocks, &x, 1, acc);
    else if (n == 2)
        words_tile(panel, n_blocks, &x, 2, acc);
    else if (n == 3)
        words_tile(panel, n_blocks, &x, 3, acc);
    else
        words_tile(panel, n_blocks, &x, 4, acc);
}
_Static_assert(WORDS_TOKENS == 4, "the cases above");

/* Few tokens use weights as they are unpacked, where to widen them would not pay. */
#define MATMUL_WORDS(lower, upper)                                                                 \
    static __attribute__((noinline)) void words_unpack_##lower(PACKED_AT_ARGUMENTS,                \
                                                               struct wblock *out) {               \
        struct wblock bytes;                                                                       \
        packed_##lower((struct packed_at){codes, scales, row, block}, &bytes);                     \
        out->scale[0] = bytes.scale[0];                                                            \
        for (int s = 0; s < 8; s++)                                                                \
            vi_widen(bytes.w[s], &out[s / 4].w[2 * s % 8]);                                        \
    }                                                                                              \
    static void matmul_words_##lower(const uint8_t *packed, int group_begin, int group_end,        \
                                     int n_rows, int n_cols, const struct q8_rows *x,              \
                                     int n_tokens, float *out, int64_t out_stride,                 \
                                     const uint8_t *then, void *scratch) {                         \
        if (n_tokens <= packed_few_tokens(format_##lower))                                         \
            matmul_packed_q8_##lower(packed, group_begin, group_end, n_rows, n_cols, x, n_tokens,  \
                                     out, out_stride, then, scratch);                              \
        else                                                                                       \
            packed_q8_many(                                                                        \
                (struct packed_type){                                                              \
                    .format = format_##lower,                                                      \
                    .unpack = packed_##lower,                                                      \
                    .unpack_call = words_unpack_##lower,                                           \
                    .layout = packed_layout_##upper,                                               \
                    .tiles = words_tiles,                                                          \
                    .n_tile = WORDS_TOKENS,                                                        \
                    .wide = true,                                                                  \
                },                                                                                 \
                packed, group_begin, group_end, n_rows, n_cols, x, n_tokens, out, out_stride,      \
                scratch);                                                                          \
    }
MATMUL_WORDS(q8_0, Q8_0)
MATMUL_WORDS(iq4_nl, IQ4_NL)
MATMUL_WORDS(iq4_xs, IQ4_XS)
#undef MATMUL_WORDS

static void words_fill(struct kernels *k) {
    k->matmul_packed_q8[DTYPE_Q8_0] = matmul_words_q8_0;
    k->matmul_packed_q8[DTYPE_IQ4_NL] = matmul_words_iq4_nl;
    k->matmul_packed_q8[DTYPE_IQ4_XS] = matmul_words_iq4_xs;
}
