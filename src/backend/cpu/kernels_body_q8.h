/*
 * Products of class q8: LANES rows at a time against one token (decode) or, from a panel of
 * unpacked weights, tiles of tokens. Included by a kernels_ISA.c after kernels_body_unpack.h.
 *
 * Order of one output, the same in every path: for each 32 columns ascending,
 * acc = fma(scale * sum of integers, x scale, acc), then acc = fma(min, x scale * sum of x, acc).
 */
#pragma once

/* Tokens whose block sums are laid out at a time. */
#define SUM_TOKENS 128

/* Some tokens of the activations. */
struct q8_view {
    const int8_t *q;
    const float *scale;
    const int16_t *sum16;
    const float
        *sums; /* scale * sum of q over 32 (sub16: 16) columns, for formats with a minimum */
    int n_cols;
};

ALWAYS_INLINE struct q8_view view_at(struct q8_format f, const struct q8_view *x, int token) {
    int64_t at = (int64_t)token * x->n_cols;
    return (struct q8_view){x->q + at, x->scale + at / 32, x->sum16 + at / 16,
                            f.has_min ? x->sums + at / (f.sub16 ? 16 : 32) : NULL, x->n_cols};
}

/* What an integer sum begins with so that the offset of the weights is taken off. */
ALWAYS_INLINE vi offset_start(struct q8_format f, const int16_t *sum16, int half) {
    if (f.offset == 0) return vi_set1(0);
    if (!f.sub16) return vi_pair(sum16, -f.offset, -f.offset);
    return half == 0 ? vi_pair(sum16, -f.offset, 0) : vi_pair(sum16, 0, -f.offset);
}

/* acc[t] += block b of n tokens. */
ALWAYS_INLINE void q8_block(struct q8_format f, const struct wblock *w, const struct q8_view *x,
                            int b, int n, vf *acc) {
    const int n_halves = f.sub16 ? 2 : 1, n_steps = f.sub16 ? 4 : 8;
    vf part[TILE_TOKENS];
    struct dot dot[TILE_TOKENS];
    for (int half = 0; half < n_halves; half++) {
        for (int t = 0; t < n; t++)
            dot_start(&dot[t], offset_start(f, x->sum16 + t * (x->n_cols / 16) + 2 * b, half));
        for (int s = 0; s < n_steps; s++) {
            const int8_t *q = x->q + 32 * b + 16 * half + 4 * s;
            for (int t = 0; t < n; t++)
                dot_step(f.kind, s, n_steps, &dot[t], w->w[4 * half + s],
                         vi_load1(q + (int64_t)t * x->n_cols));
        }
        for (int t = 0; t < n; t++) {
            vf sum = vi_float(dot_end(&dot[t]));
            part[t] = half == 0 ? vf_mul(sum, w->scale[0]) : vf_fma(sum, w->scale[1], part[t]);
        }
    }
    for (int t = 0; t < n; t++) {
        acc[t] = vf_fma(part[t], vf_set1(x->scale[t * (x->n_cols / 32) + b]), acc[t]);
        for (int half = 0; f.has_min && half < n_halves; half++) {
            float sum = x->sums[t * (x->n_cols / 32 * n_halves) + n_halves * b + half];
            acc[t] = vf_fma(w->min[half], vf_set1(sum), acc[t]);
        }
    }
}

/* One row group against n tokens (a constant). */
ALWAYS_INLINE void q8_tile(struct q8_format f, const struct wblock *panel, struct q8_view x, int n,
                           int n_rows, float *out, int64_t out_stride) {
    vf acc[TILE_TOKENS];
    for (int t = 0; t < n; t++)
        acc[t] = vf_zero();
    for (int b = 0; b < x.n_cols / 32; b++)
        q8_block(f, panel + b, &x, b, n, acc);
    for (int t = 0; t < n; t++)
        store_rows(out + t * out_stride, acc[t], n_rows);
}

ALWAYS_INLINE void q8_panel(struct q8_format f, const struct wblock *panel, const struct q8_view *x,
                            int n_tokens, int n_rows, float *out, int64_t out_stride) {
    int t = 0;
    for (; t + TILE_TOKENS <= n_tokens; t += TILE_TOKENS)
        q8_tile(f, panel, view_at(f, x, t), TILE_TOKENS, n_rows, out + t * out_stride, out_stride);
    if (TILE_TOKENS > 4 && t + 4 <= n_tokens) {
        q8_tile(f, panel, view_at(f, x, t), 4, n_rows, out + t * out_stride, out_stride);
        t += 4;
    }
    if (t + 2 <= n_tokens) {
        q8_tile(f, panel, view_at(f, x, t), 2, n_rows, out + t * out_stride, out_stride);
        t += 2;
    }
    if (t < n_tokens)
        q8_tile(f, panel, view_at(f, x, t), 1, n_rows, out + t * out_stride, out_stride);
}

/* scale * sum for each 32 or 16 columns of some tokens. */
ALWAYS_INLINE void q8_sums(struct q8_format f, const struct q8_view *x, int n_tokens, float *sums) {
    int64_t n = (int64_t)n_tokens * (x->n_cols / 32);
    for (int64_t i = 0; i < n; i++) {
        int first = x->sum16[2 * i], second = x->sum16[2 * i + 1];
        if (f.sub16) {
            sums[2 * i] = x->scale[i] * (float)first;
            sums[2 * i + 1] = x->scale[i] * (float)second;
        } else {
            sums[i] = x->scale[i] * (float)(first + second);
        }
    }
}

/* Fetches the bytes of the next row group that lie where this block's lie in this one. Memory is
 * then read in its own order: LANES rows side by side are more streams than a prefetcher follows.
 * Into the second-level cache (locality 2): a group of long rows is larger than the first. */
ALWAYS_INLINE void fetch_ahead(const uint8_t *next, size_t bytes) {
    for (size_t at = 0; at < bytes; at += 64)
        __builtin_prefetch(next + at, 0, 2);
}

/* One token: each block is used as soon as it is unpacked. next: the rows of the next group. */
ALWAYS_INLINE void q8_single(struct q8_format f, unpack_fn *unpack, const uint8_t *const *row,
                             size_t block_bytes, const struct q8_view *x, const uint8_t *next,
                             int n_rows, float *out) {
    vf acc = vf_zero();
    const int n_units = x->n_cols / 32 / f.n_blocks;
    const size_t fetch_bytes = block_bytes * LANES / (size_t)f.n_blocks;
    for (int u = 0; u < n_units; u++) {
        struct wblock unit[8];
        unpack(row, (size_t)u * block_bytes, unit);
        for (int b = 0; b < f.n_blocks; b++, next += fetch_bytes) {
            fetch_ahead(next, fetch_bytes);
            q8_block(f, unit + b, x, u * f.n_blocks + b, 1, &acc);
        }
    }
    store_rows(out, acc, n_rows);
}

/* scratch: the panel of one row group, then the sums of SUM_TOKENS tokens. unpack is inlined for
 * one token if it gives a single block, so that this never leaves the registers. */
ALWAYS_INLINE void q8_matmul(struct q8_format f, unpack_fn *unpack, unpack_fn *unpack_call,
                             size_t block_bytes, const void *w, size_t row_bytes, int n_rows,
                             int n_cols, const struct q8_rows *x, int n_tokens, float *out,
                             int64_t out_stride, void *scratch) {
    struct wblock *panel = scratch;
    float *sums = (float *)(void *)(panel + n_cols / 32);
    const int chunk = f.has_min ? SUM_TOKENS : n_tokens;
    const struct q8_view all = {x->q, x->scale, x->sum16, sums, x->n_cols};
    for (int t = 0; t < n_tokens; t += chunk) {
        int n = min_int(chunk, n_tokens - t);
        struct q8_view view = view_at(f, &all, t);
        view.sums = sums;
        if (f.has_min) q8_sums(f, &view, n, sums);
        for (int r = 0; r < n_rows; r += LANES) {
            const uint8_t *row[LANES];
            const uint8_t *first = (const uint8_t *)w + (size_t)r * row_bytes;
            float *to = out + t * out_stride + r;
            group_rows(row, first, row_bytes, n_rows - r);
            if (n == 1) {
                q8_single(f, f.n_blocks == 1 ? unpack : unpack_call, row, block_bytes, &view,
                          first + LANES * row_bytes, n_rows - r, to);
                continue;
            }
            for (int u = 0; u < n_cols / 32 / f.n_blocks; u++)
                unpack_call(row, (size_t)u * block_bytes, panel + u * f.n_blocks);
            q8_panel(f, panel, &view, n, n_rows - r, to, out_stride);
        }
    }
}

#define MATMUL_Q8(lower, upper)                                                                    \
    static void matmul_q8_##lower(const void *w, size_t row_bytes, int n_rows, int n_cols,         \
                                  const struct q8_rows *x, int n_tokens, float *out,               \
                                  int64_t out_stride, void *scratch) {                             \
        q8_matmul(format_##lower, unpack_##lower, unpack_call_##lower,                             \
                  sizeof(struct block_##lower), w, row_bytes, n_rows, n_cols, x, n_tokens, out,    \
                  out_stride, scratch);                                                            \
    }
Q8_WEIGHT_MAP(MATMUL_Q8)
#undef MATMUL_Q8

/* 32 inputs to bytes; returns the scale (for the inverse see kernels.h). */
ALWAYS_INLINE float quantise_block(const float *x, int8_t *q, int16_t sum16[2]) {
    vf v[32 / LANES], top = vf_zero();
    for (int i = 0; i < 32 / LANES; i++) {
        v[i] = vf_load(x + LANES * i);
        top = vf_max(vf_abs(v[i]), top);
    }
    float max = vf_top(top);
    bool zero = max < (float)Q8_MIN_MAX;
    vf inverse = vf_set1(zero ? 0.0f : 127.0f / max);
    for (int half = 0; half < 2; half++) {
        vi sum = vi_set1(0);
        for (int i = 0; i < 16 / LANES; i++) {
            int at = 16 / LANES * half + i;
            vi rounded = vf_round(vf_mul(v[at], inverse));
            vi_store_s8(q + LANES * at, rounded);
            sum = vi_add(sum, rounded);
        }
        sum16[half] = (int16_t)vi_sum(sum);
    }
    return zero ? 0.0f : max / 127.0f;
}

static void quantise_q8(const float *x, int64_t x_stride, int token_begin, int token_end,
                        struct q8_rows *out) {
    for (int t = token_begin; t < token_end; t++) {
        int64_t at = (int64_t)t * out->n_cols;
        for (int c = 0; c < out->n_cols; c += 32, at += 32)
            out->scale[at / 32] =
                quantise_block(x + t * x_stride + c, out->q + at, out->sum16 + at / 16);
    }
}
