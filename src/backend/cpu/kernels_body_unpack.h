/*
 * Weights of LANES rows at once, from GGUF blocks to bytes and scales in lanes: lane r is row r.
 * Included by a kernels_ISA.c after its kernels_vec_ISA.h; only static inline functions.
 *
 * The bytes of a row stay in words of 4 neighbours, so everything inside a block (nibbles, bit
 * planes, packed scales) is the same lane-wise shift and mask as in the formats' definitions.
 */
#pragma once

/* 32 columns of LANES rows: w[s] holds columns 4s..4s+3 of each row, weight = scale * (w - offset)
 * + min. [0] of scale and min is for all columns, or for the first 16 if the format is sub16. */
struct wblock {
    vi w[8];
    vf scale[2];
    vf min[2];
};

struct q8_format {
    enum weight_kind kind;
    int offset; /* taken from every w */
    bool sub16; /* scales for 16 columns */
    bool has_min;
    int n_blocks; /* wblocks of one block of the format: 1 or 8 */
};

/* The block that begins `at` bytes into each row, to n_blocks wblocks. */
typedef void unpack_fn(const uint8_t *const row[LANES], size_t at, struct wblock *out);

ALWAYS_INLINE vi low_nibbles(vi v) {
    return vi_and(v, vi_set1(0x0f0f0f0f));
}
ALWAYS_INLINE vi high_nibbles(vi v) {
    return vi_and(vi_shr(v, 4), vi_set1(0x0f0f0f0f));
}
ALWAYS_INLINE vi byte_of(vi v, int k) {
    return vi_and(vi_shr(v, (unsigned)(8 * k)), vi_set1(255));
}
/* As signed bytes are kept for dot_step. */
ALWAYS_INLINE vi signed_bytes(vi v) {
    return S8_OFFSET ? vi_xor(v, vi_set1((int)0x80808080)) : v;
}

ALWAYS_INLINE void rows_load8(const uint8_t *const row[LANES], size_t at, vi out[8]) {
    rows_load4(row, at, out);
    rows_load4(row, at + 16, out + 4);
}

/* 16 bytes whose low nibbles are columns 0..15 and high ones 16..31. */
ALWAYS_INLINE void unpack_nibbles(const uint8_t *const row[LANES], size_t at, vi w[8]) {
    vi v[4];
    rows_load4(row, at, v);
    for (int s = 0; s < 4; s++) {
        w[s] = low_nibbles(v[s]);
        w[4 + s] = high_nibbles(v[s]);
    }
}

ALWAYS_INLINE void lookup_all(vi table, vi w[8]) {
    for (int s = 0; s < 8; s++)
        w[s] = vb_lookup(table, w[s]);
}
ALWAYS_INLINE void lookup_iq4(vi w[8]) {
    lookup_all(signed_bytes(vb_table(iq4_values)), w);
}

ALWAYS_INLINE void unpack_q8_0(const uint8_t *const row[LANES], size_t at, struct wblock *out) {
    out->scale[0] = vf_from_low_half(rows_load1(row, at));
    rows_load8(row, at + 2, out->w);
    for (int s = 0; s < 8; s++)
        out->w[s] = signed_bytes(out->w[s]);
}

ALWAYS_INLINE void unpack_q4_0(const uint8_t *const row[LANES], size_t at, struct wblock *out) {
    out->scale[0] = vf_from_low_half(rows_load1(row, at));
    unpack_nibbles(row, at + 2, out->w);
}

ALWAYS_INLINE void unpack_q4_1(const uint8_t *const row[LANES], size_t at, struct wblock *out) {
    vf_from_halves(rows_load1(row, at), &out->scale[0], &out->min[0]);
    unpack_nibbles(row, at + 4, out->w);
}

ALWAYS_INLINE void add_fifth_bits(vi bits, vi w[8]) {
    for (unsigned s = 0; s < 8; s++)
        w[s] = vi_or(w[s], vb_fifth_bits(bits, s));
}

ALWAYS_INLINE void unpack_q5_0(const uint8_t *const row[LANES], size_t at, struct wblock *out) {
    out->scale[0] = vf_from_low_half(rows_load1(row, at));
    unpack_nibbles(row, at + 6, out->w);
    add_fifth_bits(rows_load1(row, at + 2), out->w);
}

ALWAYS_INLINE void unpack_q5_1(const uint8_t *const row[LANES], size_t at, struct wblock *out) {
    vf_from_halves(rows_load1(row, at), &out->scale[0], &out->min[0]);
    unpack_nibbles(row, at + 8, out->w);
    add_fifth_bits(rows_load1(row, at + 4), out->w);
}

ALWAYS_INLINE void unpack_iq4_nl(const uint8_t *const row[LANES], size_t at, struct wblock *out) {
    out->scale[0] = vf_from_low_half(rows_load1(row, at));
    unpack_nibbles(row, at + 2, out->w);
    lookup_iq4(out->w);
}

/* mxfp4_values + MXFP4_OFFSET: no sign, small enough for WEIGHT_U5. */
#define MXFP4_OFFSET 12
static const int8_t mxfp4_unsigned[16] = {12, 13, 14, 15, 16, 18, 20, 24,
                                          12, 11, 10, 9,  8,  6,  4,  0};

/* e8m0_half: 2^(e - 128), a subnormal for e below 2. */
ALWAYS_INLINE vf mxfp4_scale(vi e) {
    vi normal = vi_shl(vi_sub(e, vi_set1(1)), 23);
    vi subnormal = vi_add(vi_set1(0x00200000), vi_shl(vi_and(e, vi_set1(1)), 21));
    return vi_as_float(vi_max(normal, subnormal));
}

ALWAYS_INLINE void unpack_mxfp4(const uint8_t *const row[LANES], size_t at, struct wblock *out) {
    out->scale[0] = mxfp4_scale(byte_of(rows_load1(row, at), 0));
    unpack_nibbles(row, at + 1, out->w);
    lookup_all(vb_table(mxfp4_unsigned), out->w);
}

ALWAYS_INLINE void unpack_q2_k(const uint8_t *const row[LANES], size_t at, struct wblock *out) {
    vi scales[4];
    vf d, dmin;
    rows_load4(row, at + offsetof(struct block_q2_k, scales), scales);
    vf_from_halves(rows_load1(row, at + offsetof(struct block_q2_k, d)), &d, &dmin);
    for (int s = 0; s < 16; s++) {
        vi byte = byte_of(scales[s / 4], s % 4);
        out[s / 2].scale[s % 2] = vf_mul(d, vi_float(vi_and(byte, vi_set1(15))));
        out[s / 2].min[s % 2] = vf_sub(vf_zero(), vf_mul(dmin, vi_float(vi_shr(byte, 4))));
    }
    for (unsigned half = 0; half < 2; half++) {
        vi v[8];
        rows_load8(row, at + offsetof(struct block_q2_k, qs) + 32 * half, v);
        for (unsigned j = 0; j < 4; j++) {
            for (int s = 0; s < 8; s++)
                out[4 * half + j].w[s] = vi_and(vi_shr(v[s], 2 * j), vi_set1(0x03030303));
        }
    }
}

/* The 16 scales of Q3_K from its three words of packed bits. */
ALWAYS_INLINE void scales_q3_k(const uint8_t *const row[LANES], size_t at, vf d,
                               struct wblock *out) {
    vi low[2] = {rows_load1(row, at), rows_load1(row, at + 4)}, high = rows_load1(row, at + 8);
    for (int s = 0; s < 16; s++) {
        unsigned shift = (unsigned)(8 * (s % 4));
        vi bits = vi_and(vi_shr(low[s / 4 % 2], shift + (s < 8 ? 0 : 4)), vi_set1(15));
        vi upper = vi_and(vi_shr(high, shift + (unsigned)(s / 4 * 2)), vi_set1(3));
        vi scale = vi_sub(vi_or(bits, vi_shl(upper, 4)), vi_set1(32));
        out[s / 2].scale[s % 2] = vf_mul(d, vi_float(scale));
    }
}

ALWAYS_INLINE void unpack_q3_k(const uint8_t *const row[LANES], size_t at, struct wblock *out) {
    vi high[8];
    /* d is the last field: read it from the word that ends there */
    vi d = vi_shr(rows_load1(row, at + offsetof(struct block_q3_k, d) - 2), 16);
    scales_q3_k(row, at + offsetof(struct block_q3_k, scales), vf_from_low_half(d), out);
    rows_load8(row, at + offsetof(struct block_q3_k, hmask), high);
    for (unsigned half = 0; half < 2; half++) {
        vi v[8];
        rows_load8(row, at + offsetof(struct block_q3_k, qs) + 32 * half, v);
        for (unsigned j = 0; j < 4; j++) {
            for (int s = 0; s < 8; s++) {
                vi bit = vi_and(vi_shr(high[s], 4 * half + j), vi_set1(0x01010101));
                vi low = vi_and(vi_shr(v[s], 2 * j), vi_set1(0x03030303));
                out[4 * half + j].w[s] = vi_or(low, vi_shl(bit, 2));
            }
        }
    }
}

/* d, dmin and the 8 scales and mins of 6 bits, 16 bytes in all, of Q4_K and Q5_K. */
ALWAYS_INLINE void scales_k(const uint8_t *const row[LANES], size_t at, struct wblock *out) {
    vi v[4];
    vf d, dmin;
    rows_load4(row, at, v);
    vf_from_halves(v[0], &d, &dmin);
    for (unsigned s = 0; s < 4; s++) {
        vi scale = vi_and(vi_shr(v[1], 8 * s), vi_set1(63));
        vi min = vi_and(vi_shr(v[2], 8 * s), vi_set1(63));
        vi scale_top = vi_and(vi_shr(v[1], 8 * s + 6), vi_set1(3));
        vi min_top = vi_and(vi_shr(v[2], 8 * s + 6), vi_set1(3));
        vi scale_low = vi_and(vi_shr(v[3], 8 * s), vi_set1(15));
        vi min_low = vi_and(vi_shr(v[3], 8 * s + 4), vi_set1(15));
        out[s].scale[0] = vf_mul(d, vi_float(scale));
        out[s].min[0] = vf_sub(vf_zero(), vf_mul(dmin, vi_float(min)));
        scale = vi_or(scale_low, vi_shl(scale_top, 4));
        min = vi_or(min_low, vi_shl(min_top, 4));
        out[4 + s].scale[0] = vf_mul(d, vi_float(scale));
        out[4 + s].min[0] = vf_sub(vf_zero(), vf_mul(dmin, vi_float(min)));
    }
}

ALWAYS_INLINE void unpack_q4_k(const uint8_t *const row[LANES], size_t at, struct wblock *out) {
    scales_k(row, at, out);
    for (unsigned j = 0; j < 4; j++) {
        vi v[8];
        rows_load8(row, at + offsetof(struct block_q4_k, qs) + 32 * j, v);
        for (int s = 0; s < 8; s++) {
            out[2 * j].w[s] = low_nibbles(v[s]);
            out[2 * j + 1].w[s] = high_nibbles(v[s]);
        }
    }
}

ALWAYS_INLINE void unpack_q5_k(const uint8_t *const row[LANES], size_t at, struct wblock *out) {
    vi high[8];
    const vi one = vi_set1(0x01010101);
    scales_k(row, at, out);
    rows_load8(row, at + offsetof(struct block_q5_k, qh), high);
    for (unsigned j = 0; j < 4; j++) {
        vi v[8];
        rows_load8(row, at + offsetof(struct block_q5_k, qs) + 32 * j, v);
        for (int s = 0; s < 8; s++) {
            vi even = vi_shl(vi_and(vi_shr(high[s], 2 * j), one), 4);
            vi odd = vi_shl(vi_and(vi_shr(high[s], 2 * j + 1), one), 4);
            out[2 * j].w[s] = vi_or(low_nibbles(v[s]), even);
            out[2 * j + 1].w[s] = vi_or(high_nibbles(v[s]), odd);
        }
    }
}

ALWAYS_INLINE void unpack_q6_k(const uint8_t *const row[LANES], size_t at, struct wblock *out) {
    vi scales[4];
    vf d = vf_from_low_half(vi_shr(rows_load1(row, at + offsetof(struct block_q6_k, d) - 2), 16));
    rows_load4(row, at + offsetof(struct block_q6_k, scales), scales);
    for (int s = 0; s < 16; s++) {
        vi scale = vi_sar(vi_shl(scales[s / 4], (unsigned)(24 - 8 * (s % 4))), 24);
        out[s / 2].scale[s % 2] = vf_mul(d, vi_float(scale));
    }
    const vi two_bits = vi_set1(0x30303030);
    for (unsigned half = 0; half < 2; half++) {
        vi a[8], b[8], high[8];
        rows_load8(row, at + offsetof(struct block_q6_k, ql) + 64 * half, a);
        rows_load8(row, at + offsetof(struct block_q6_k, ql) + 64 * half + 32, b);
        rows_load8(row, at + offsetof(struct block_q6_k, qh) + 32 * half, high);
        struct wblock *to = out + 4 * half;
        for (int s = 0; s < 8; s++) {
            to[0].w[s] = vi_or(low_nibbles(a[s]), vi_and(vi_shl(high[s], 4), two_bits));
            to[1].w[s] = vi_or(low_nibbles(b[s]), vi_and(vi_shl(high[s], 2), two_bits));
            to[2].w[s] = vi_or(high_nibbles(a[s]), vi_and(high[s], two_bits));
            to[3].w[s] = vi_or(high_nibbles(b[s]), vi_and(vi_shr(high[s], 2), two_bits));
        }
    }
}

ALWAYS_INLINE void unpack_iq4_xs(const uint8_t *const row[LANES], size_t at, struct wblock *out) {
    vi head = rows_load1(row, at); /* d below scales_h */
    vi low = rows_load1(row, at + offsetof(struct block_iq4_xs, scales_l));
    vf d = vf_from_low_half(head);
    for (unsigned s = 0; s < 8; s++) {
        vi bits = vi_and(vi_shr(low, 4 * s), vi_set1(15));
        vi upper = vi_and(vi_shr(head, 16 + 2 * s), vi_set1(3));
        vi scale = vi_sub(vi_or(bits, vi_shl(upper, 4)), vi_set1(32));
        out[s].scale[0] = vf_mul(d, vi_float(scale));
        unpack_nibbles(row, at + offsetof(struct block_iq4_xs, qs) + 16 * s, out[s].w);
        lookup_iq4(out[s].w);
    }
}

/* The same as functions to be called, for where the result goes through memory anyway: inlining
 * them all would triple the code. */
#define UNPACK_CALL(lower, upper)                                                                  \
    static __attribute__((noinline)) void unpack_call_##lower(const uint8_t *const row[LANES],     \
                                                              size_t at, struct wblock *out) {     \
        unpack_##lower(row, at, out);                                                              \
    }
Q8_WEIGHT_MAP(UNPACK_CALL)
#undef UNPACK_CALL

/* kind, offset, sub16, has_min, n_blocks */
static const struct q8_format format_q8_0 = {WEIGHT_S8, S8_OFFSET, false, false, 1};
static const struct q8_format format_q4_0 = {WEIGHT_U4, 8, false, false, 1};
static const struct q8_format format_q4_1 = {WEIGHT_U4, 0, false, true, 1};
static const struct q8_format format_q5_0 = {WEIGHT_U5, 16, false, false, 1};
static const struct q8_format format_q5_1 = {WEIGHT_U5, 0, false, true, 1};
static const struct q8_format format_q2_k = {WEIGHT_U4, 0, true, true, 8};
static const struct q8_format format_q3_k = {WEIGHT_U4, 4, true, false, 8};
static const struct q8_format format_q4_k = {WEIGHT_U4, 0, false, true, 8};
static const struct q8_format format_q5_k = {WEIGHT_U5, 0, false, true, 8};
static const struct q8_format format_q6_k = {WEIGHT_U6, 32, true, false, 8};
static const struct q8_format format_iq4_nl = {WEIGHT_S8, S8_OFFSET, false, false, 1};
static const struct q8_format format_iq4_xs = {WEIGHT_S8, S8_OFFSET, false, false, 8};
static const struct q8_format format_mxfp4 = {WEIGHT_U5, MXFP4_OFFSET, false, false, 1};

/* Row pointers of a group; rows past the end repeat the last one (their results are dropped). */
ALWAYS_INLINE void group_rows(const uint8_t *row[LANES], const void *w, size_t row_bytes,
                              int n_rows) {
    for (int r = 0; r < LANES; r++)
        row[r] = (const uint8_t *)w + (size_t)min_int(r, n_rows - 1) * row_bytes;
}

/* acc (LANES rows) to the n_rows outputs of one token. */
ALWAYS_INLINE void store_rows(float *out, vf acc, int n_rows) {
    if (n_rows >= LANES)
        vf_store(out, acc);
    else
        vf_store_part(out, acc, n_rows);
}
