/*
 * Attention scores: queries against the keys of a page, which stand in groups of 16 positions
 * (backend/kv_layout.h). A lane is a key, so a score is one lane's chain. Included by a
 * kernels_ISA.c after kernels_body_float.h. The order of operations is that of kernels_body_f32.h
 * with the key as the weight, for few queries and many.
 *
 * Few queries use keys as they are loaded, several groups side by side; many share a panel.
 */
#pragma once

#include "backend/kv_layout.h"

_Static_assert(KV_KEY_GROUP == PACK_ROWS, "a group of keys is a group of rows");

/* Sums of a tile of few queries; the most groups side by side. */
#define KEY_SUMS   (FEW_REGISTERS ? 8 : 16)
#define KEY_GROUPS 4

/* Some groups and queries, and the scales of the 32 columns that are worked on (Q8_0). */
struct key_rows {
    const uint8_t *group[KEY_GROUPS], *next[KEY_GROUPS];
    const float *q[FLOAT_TOKENS];
    vf scale[KEY_GROUPS * FLOAT_STEP];
};

/* Byte k of each lane, signed. */
ALWAYS_INLINE vi signed_byte(vi word, int k) {
    return vi_sar(k == 3 ? word : vi_shl(word, (unsigned)(24 - 8 * k)), 24);
}

/* Scales of LANES keys of a group, from key `lane` on, for the 32 columns from c on. */
ALWAYS_INLINE vf key_scales(const uint8_t *group, int head_dim, int lane, int c) {
    return vf_load_f16(
        (const uint16_t *)(const void *)(group + kv_key_scale_at(head_dim, lane, c)));
}

/* Elements of column c of LANES keys; Q8_0: word holds the 4 columns that c is one of. */
ALWAYS_INLINE vf key_column(enum kv_type type, const uint8_t *group, int lane, int c, vi word,
                            vf scale) {
    const int at = c * KV_KEY_GROUP + lane;
    if (type == KV_Q8_0) return vf_mul(vi_float(signed_byte(word, c % 4)), scale);
    if (type == KV_F16) return vf_load_f16((const uint16_t *)(const void *)group + at);
    return vf_load((const float *)(const void *)group + at);
}
ALWAYS_INLINE vi key_word(const uint8_t *group, int lane, int c) {
    return vi_load(group + c / 4 * (4 * KV_KEY_GROUP) + 4 * lane);
}

/* part (n_q, n_groups * FLOAT_STEP) += n columns (1, or 4 and then c is a multiple of 4; Q8_0: 4).
 * n_groups, n_q and n are constants. */
ALWAYS_INLINE void key_step(enum kv_type type, const struct key_rows *rows, int n_groups, int n_q,
                            int c, int n, vf *part) {
    const int n_vectors = n_groups * FLOAT_STEP;
    vi word[KEY_GROUPS * FLOAT_STEP];
    for (int v = 0; v < n_vectors; v++)
        word[v] = type == KV_Q8_0 ? key_word(rows->group[v / FLOAT_STEP], v % FLOAT_STEP * LANES, c)
                                  : vi_set1(0);
    for (int k = 0; k < n; k++) {
        vf key[KEY_GROUPS * FLOAT_STEP];
        for (int v = 0; v < n_vectors; v++)
            key[v] = key_column(type, rows->group[v / FLOAT_STEP], v % FLOAT_STEP * LANES, c + k,
                                word[v], rows->scale[v]);
        for (int j = 0; j < n_q; j++) {
            const vf one = vf_set1(rows->q[j][c + k]);
            for (int v = 0; v < n_vectors; v++)
                part[j * n_vectors + v] = vf_fma(key[v], one, part[j * n_vectors + v]);
        }
    }
}

/* Asks for 4 columns, from c on, of a group that comes later. */
ALWAYS_INLINE void key_fetch(enum kv_type type, const uint8_t *group, int c) {
    const int bytes = type == KV_F32 ? 4 : type == KV_F16 ? 2 : 1;
    for (int at = 0; at < 4 * KV_KEY_GROUP * bytes; at += 64)
        __builtin_prefetch(group + c * KV_KEY_GROUP * bytes + at, 0, 3);
}

/* acc (n_q, n_groups * FLOAT_STEP): sums over all columns; n_groups and n_q are constants. */
ALWAYS_INLINE void key_sums(enum kv_type type, struct key_rows *rows, int n_groups, int n_q,
                            int head_dim, bool fetch, vf *acc) {
    const int n_vectors = n_groups * FLOAT_STEP, n_sums = n_q * n_vectors;
    for (int k = 0; k < n_sums; k++)
        acc[k] = vf_zero();
    for (int c = 0; c < head_dim; c += 32) {
        vf part[FLOAT_TOKENS * KEY_GROUPS * FLOAT_STEP];
        for (int k = 0; k < n_sums; k++)
            part[k] = vf_zero();
        for (int v = 0; type == KV_Q8_0 && v < n_vectors; v++)
            rows->scale[v] =
                key_scales(rows->group[v / FLOAT_STEP], head_dim, v % FLOAT_STEP * LANES, c);
        const int end = min_int(c + 32, head_dim);
        int i = c;
        for (; i + 4 <= end; i += 4) {
            for (int j = 0; j < n_q; j++)
                KEEP_IN_REGISTER(rows->q[j]);
            for (int g = 0; g < n_groups; g++) {
                KEEP_IN_REGISTER(rows->group[g]);
                if (fetch) key_fetch(type, rows->next[g], i);
            }
            key_step(type, rows, n_groups, n_q, i, 4, part);
        }
        for (; i < end; i++)
            key_step(type, rows, n_groups, n_q, i, 1, part);
        for (int k = 0; k < n_sums; k++)
            acc[k] = vf_add(acc[k], part[k]);
    }
}

/* What one call computes. */
struct key_scores {
    const uint8_t *keys;
    size_t group_bytes;
    int n_keys, head_dim;
    float factor;
    float *out;
    int64_t out_stride;
    const uint8_t *next; /* what will be read afterwards, or NULL */
};

/* n_q queries (a constant, at most FLOAT_TOKENS). A group that is not there repeats the last. */
ALWAYS_INLINE void keys_direct(enum kv_type type, const struct key_scores *s, struct f32_view q,
                               int n_q) {
    const int fit = KEY_SUMS / (n_q * FLOAT_STEP);
    const int n_groups = fit >= 4 ? 4 : fit >= 2 ? 2 : 1, n_vectors = n_groups * FLOAT_STEP;
    const int last = (s->n_keys - 1) / KV_KEY_GROUP;
    for (int first = 0; first <= last; first += n_groups) {
        struct key_rows rows;
        vf acc[FLOAT_TOKENS * KEY_GROUPS * FLOAT_STEP];
        for (int g = 0; g < n_groups; g++)
            rows.group[g] = s->keys + (size_t)min_int(first + g, last) * s->group_bytes;
        for (int g = 0; s->next && g < n_groups; g++)
            rows.next[g] = s->next + (rows.group[g] - s->keys);
        for (int j = 0; j < n_q; j++)
            rows.q[j] = q.x + j * q.stride;
        key_sums(type, &rows, n_groups, n_q, s->head_dim, s->next != NULL, acc);
        for (int j = 0; j < n_q; j++) {
            for (int v = 0; v < n_vectors; v++)
                acc[j * n_vectors + v] = vf_mul(acc[j * n_vectors + v], vf_set1(s->factor));
            for (int g = 0; g < n_groups && first + g <= last; g++) {
                const int key = (first + g) * KV_KEY_GROUP;
                f32_group_store(s->out + j * s->out_stride + key, s->n_keys - key,
                                acc + j * n_vectors + g * FLOAT_STEP);
            }
        }
    }
}

#define KEYS_CASE(n)                                                                               \
    case n:                                                                                        \
        keys_direct(type, s, q, min_int(n, FLOAT_TOKENS));                                         \
        break;
ALWAYS_INLINE void keys_few(enum kv_type type, const struct key_scores *s, struct f32_view q,
                            int n_q) {
    switch (n_q) {
        KEYS_CASE(1)
        KEYS_CASE(2)
        KEYS_CASE(3)
        KEYS_CASE(4)
        KEYS_CASE(5)
        KEYS_CASE(6)
        KEYS_CASE(7)
    default:
        keys_direct(type, s, q, FLOAT_TOKENS);
        break;
    }
}
#undef KEYS_CASE

/* Columns [begin, end) of a group to a panel (f32_fill_fn). */
ALWAYS_INLINE void keys_fill(enum kv_type type, const struct f32_weights *w, int key, int begin,
                             int end, float *panel) {
    const uint8_t *group = w->first + (size_t)(key / KV_KEY_GROUP) * w->bytes;
    for (int c = begin; c < end; c++, panel += KV_KEY_GROUP) {
        for (int r = 0; r < KV_KEY_GROUP; r += LANES)
            vf_store(panel + r, key_column(type, group, r, c, vi_set1(0), vf_zero()));
    }
}
static void keys_fill_f16(const struct f32_weights *w, int key, int begin, int end, float *panel) {
    keys_fill(KV_F16, w, key, begin, end, panel);
}
static void keys_fill_q8_0(const struct f32_weights *w, int key, int begin, int end, float *panel) {
    const uint8_t *group = w->first + (size_t)(key / KV_KEY_GROUP) * w->bytes;
    for (int c = begin; c < end; c += 32, panel += 32 * KV_KEY_GROUP) {
        for (int r = 0; r < KV_KEY_GROUP; r += LANES) {
            const vf scale = key_scales(group, w->n_cols, r, c);
            for (int i = 0; i < 32; i += 4) {
                const vi word = key_word(group, r, c + i);
                for (int k = 0; k < 4; k++)
                    vf_store(panel + (i + k) * KV_KEY_GROUP + r,
                             key_column(KV_Q8_0, group, r, k, word, scale));
            }
        }
    }
}

/* Columns of a panel, so that it and its queries' stay in the first-level cache. Query rows that
 * share it, whose scratch is on the stack. */
#define KEY_COLS    128
#define SCORE_CHUNK (FLOAT_TOKENS * (48 / FLOAT_TOKENS))

static __attribute__((noinline)) void keys_many(f32_fill_fn *fill, const struct key_scores *s,
                                                struct f32_view q, int n_q) {
    vf scratch[FLOAT_SCRATCH(SCORE_CHUNK) / LANES];
    const struct f32_weights keys = {.fill = fill,
                                     .first = s->keys,
                                     .bytes = s->group_bytes,
                                     .n_rows = s->n_keys,
                                     .n_cols = s->head_dim,
                                     .panel_cols = KEY_COLS,
                                     .factor = s->factor,
                                     .scaled = true,
                                     .fetch = s->next != NULL,
                                     .after = s->next};
    f32_product(&keys, q, n_q, SCORE_CHUNK, s->out, s->out_stride, (float *)(void *)scratch);
}

#define ATTN_SCORES(lower, upper, fill)                                                            \
    static void attn_scores_##lower(const float *q, int64_t q_stride, int n_q, const void *k,      \
                                    int n_keys, int head_dim, float scale, float *scores,          \
                                    int64_t score_stride, const void *next) {                      \
        const struct key_scores s = {.keys = k,                                                    \
                                     .group_bytes =                                                \
                                         KV_KEY_GROUP * kv_row_bytes(KV_##upper, head_dim),        \
                                     .n_keys = n_keys,                                             \
                                     .head_dim = head_dim,                                         \
                                     .factor = scale,                                              \
                                     .out = scores,                                                \
                                     .out_stride = score_stride,                                   \
                                     .next = next};                                                \
        const struct f32_view view = {q, q_stride};                                                \
        if (n_q <= FLOAT_TOKENS)                                                                   \
            keys_few(KV_##upper, &s, view, n_q);                                                   \
        else                                                                                       \
            keys_many(fill, &s, view, n_q);                                                        \
    }
ATTN_SCORES(f32, F32, NULL)
ATTN_SCORES(f16, F16, keys_fill_f16)
ATTN_SCORES(q8_0, Q8_0, keys_fill_q8_0)
#undef ATTN_SCORES
