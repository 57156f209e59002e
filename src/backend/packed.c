/* Sizes, repacking, and reading back. */
#include "backend/packed.h"

#include <string.h>

static const struct pack_layout layouts[N_DTYPES] = {
#define LAYOUT(name, unit_cols, code_bytes, scale_bytes)                                           \
    [DTYPE_##name] = {unit_cols, code_bytes, scale_bytes},
    PACK_MAP(LAYOUT)
#undef LAYOUT
};

struct pack_layout pack_layout(enum dtype type) {
    REQUIRE((unsigned)type < N_DTYPES);
    return layouts[type];
}

bool pack_can(enum dtype type) {
    return pack_layout(type).unit_cols != 0;
}

/* Of one group, without what fills it up to PACK_ALIGN. */
static size_t group_bytes_tight(struct pack_layout l, int n_cols) {
    REQUIRE(l.unit_cols && n_cols >= 0 && (n_cols % l.unit_cols == 0 || l.scale_bytes == 0));
    return pack_run_bytes(l, n_cols);
}

size_t pack_group_bytes(enum dtype type, int n_cols) {
    return round_up(group_bytes_tight(pack_layout(type), n_cols), PACK_ALIGN);
}

size_t pack_bytes(enum dtype type, int n_rows, int n_cols) {
    return (size_t)pack_n_groups(n_rows) * pack_group_bytes(type, n_cols);
}

/* ---- In: a unit of columns of 16 rows ---- */

/* Vectors of 16 bytes, which every processor with vectors at all has: the compilers' own (both know
 * these two words), so that this file is the same for all of them. */
typedef uint32_t words4 __attribute__((vector_size(16)));
typedef uint16_t halves8 __attribute__((vector_size(16)));
typedef uint8_t bytes16 __attribute__((vector_size(16)));
#define PICK(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#define EACH_QUAD       for (int q = 0; q < PACK_ROWS / 4; q++)

/* Words of 4 bytes of 16 rows: everything inside a block is the same for each. */
struct lanes {
    words4 quad[PACK_ROWS / 4]; /* rows 4q..4q+3 */
};
/* row[r]: the block of row r; codes and scales: where the unit's go. */
typedef void pack_unit_fn(const uint8_t *const row[PACK_ROWS], uint8_t *restrict codes,
                          uint8_t *restrict scales);

#define NIBBLES             0x0f0f0f0fu
#define TWO_BITS            0x03030303u
#define ONE_BIT             0x01010101u
#define FIELD(name, member) offsetof(struct block_##name, member)

ALWAYS_INLINE words4 words_at(const uint8_t *p) {
    words4 out;
    memcpy(&out, p, sizeof out);
    return out;
}

/* 16 bytes of each row, from `at` on, as four words. */
ALWAYS_INLINE void load_4(const uint8_t *const row[PACK_ROWS], size_t at, struct lanes out[4]) {
    EACH_QUAD {
        words4 a = words_at(row[4 * q] + at), b = words_at(row[4 * q + 1] + at);
        words4 c = words_at(row[4 * q + 2] + at), d = words_at(row[4 * q + 3] + at);
        words4 ab_low = PICK(a, b, 0, 4, 1, 5), ab_high = PICK(a, b, 2, 6, 3, 7);
        words4 cd_low = PICK(c, d, 0, 4, 1, 5), cd_high = PICK(c, d, 2, 6, 3, 7);
        out[0].quad[q] = PICK(ab_low, cd_low, 0, 1, 4, 5);
        out[1].quad[q] = PICK(ab_low, cd_low, 2, 3, 6, 7);
        out[2].quad[q] = PICK(ab_high, cd_high, 0, 1, 4, 5);
        out[3].quad[q] = PICK(ab_high, cd_high, 2, 3, 6, 7);
    }
}
ALWAYS_INLINE void load_8(const uint8_t *const row[PACK_ROWS], size_t at, struct lanes out[8]) {
    load_4(row, at, out);
    load_4(row, at + 16, out + 4);
}
ALWAYS_INLINE struct lanes load_1(const uint8_t *const row[PACK_ROWS], size_t at) {
    struct lanes out;
    EACH_QUAD {
        uint32_t w[4];
        for (int i = 0; i < 4; i++)
            memcpy(&w[i], row[4 * q + i] + at, sizeof w[i]);
        out.quad[q] = (words4){w[0], w[1], w[2], w[3]};
    }
    return out;
}

ALWAYS_INLINE void lanes_store(uint8_t *to, struct lanes a) {
    memcpy(to, a.quad, sizeof a.quad);
}

ALWAYS_INLINE struct lanes field(struct lanes a, unsigned shift, uint32_t mask) {
    EACH_QUAD a.quad[q] = a.quad[q] >> shift & mask;
    return a;
}

/* a | b << shift */
ALWAYS_INLINE struct lanes above(struct lanes a, struct lanes b, unsigned shift) {
    EACH_QUAD a.quad[q] |= b.quad[q] << shift;
    return a;
}

/* The two halves of every word, 16 side by side each. Every pass interleaves two vectors, which
 * turns the places of the elements by one bit. */
ALWAYS_INLINE void halves_store(uint8_t *low, uint8_t *high, struct lanes a) {
    halves8 v[4], w[4];
    memcpy(v, a.quad, sizeof v);
    for (int pass = 0; pass < 4; pass++) {
        const int near = pass % 2 ? 1 : 2; /* which two go together: 0 2, 1 3 or 0 1, 2 3 */
        for (int i = 0; i < 2; i++) {
            const int at = near == 2 ? i : 2 * i;
            w[at] = PICK(v[at], v[at + near], 0, 8, 1, 9, 2, 10, 3, 11);
            w[at + near] = PICK(v[at], v[at + near], 4, 12, 5, 13, 6, 14, 7, 15);
        }
        memcpy(v, w, sizeof v);
    }
    memcpy(low, v, 32);
    if (high) memcpy(high, v + 2, 32);
}

/* The four bytes of every word, 16 side by side each, `stride` bytes apart. */
ALWAYS_INLINE void bytes_store(uint8_t *to, size_t stride, struct lanes a) {
    bytes16 v[4], w[4];
    memcpy(v, a.quad, sizeof v);
    for (int pass = 0; pass < 4; pass++) {
        const int near = pass % 2 ? 1 : 2;
        for (int i = 0; i < 2; i++) {
            const int at = near == 2 ? i : 2 * i;
            w[at] =
                PICK(v[at], v[at + near], 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
            w[at + near] = PICK(v[at], v[at + near], 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29,
                                14, 30, 15, 31);
        }
        memcpy(v, w, sizeof v);
    }
    for (int k = 0; k < 4; k++)
        memcpy(to + (size_t)k * stride, &v[k], 16);
}

/* The half at `at` of each row. */
ALWAYS_INLINE void half_store(const uint8_t *const row[PACK_ROWS], size_t at, uint8_t *to) {
    for (int r = 0; r < PACK_ROWS; r++)
        memcpy(to + 2 * r, row[r] + at, 2);
}

/* The file's nibbles of 32 columns (i in the low, i + 16 in the high one of byte i) are the
 * plane's. */
ALWAYS_INLINE void nibbles_32(const uint8_t *const row[PACK_ROWS], size_t at, uint8_t *to) {
    struct lanes word[4];
    load_4(row, at, word);
    for (int s = 0; s < 4; s++)
        lanes_store(to + 64 * s, word[s]);
}

/* A plane of n = 1, 2 or 4 bits from bits [shift, shift + n) of the bytes of 8 words. */
ALWAYS_INLINE void plane(const struct lanes word[8], unsigned n, unsigned shift, uint8_t *to) {
    const uint32_t mask = n == 4 ? NIBBLES : n == 2 ? TWO_BITS : ONE_BIT;
    for (unsigned v = 0; v < n; v++) {
        struct lanes out = field(word[v], shift, mask);
        for (unsigned s = v + n; s < 8; s += n)
            out = above(out, field(word[s], shift, mask), s / n * n);
        lanes_store(to + 64 * v, out);
    }
}

/* Exchanges bits i and i + distance of every word for the i in mask. */
ALWAYS_INLINE struct lanes swap_bits(struct lanes a, uint32_t mask, unsigned distance) {
    EACH_QUAD {
        words4 differ = (a.quad[q] >> distance ^ a.quad[q]) & mask;
        a.quad[q] ^= differ ^ differ << distance;
    }
    return a;
}

/* Bit 4s + i of each word becomes bit 8i + s. The 5 bits of a bit's index turn by two places, each
 * by four exchanges of neighbouring ones: index bits (0 1), (1 2), (2 3), (3 4). */
ALWAYS_INLINE struct lanes fifth_bits(struct lanes a) {
    for (int turn = 0; turn < 2; turn++) {
        a = swap_bits(a, 0x22222222, 1);
        a = swap_bits(a, 0x0c0c0c0c, 2);
        a = swap_bits(a, 0x00f000f0, 4);
        a = swap_bits(a, 0x0000ff00, 8);
    }
    return a;
}

static void pack_q8_0(const uint8_t *const row[PACK_ROWS], uint8_t *restrict codes,
                      uint8_t *restrict scales) {
    struct lanes word[8];
    load_8(row, FIELD(q8_0, qs), word);
    for (int s = 0; s < 8; s++)
        lanes_store(codes + 64 * s, word[s]);
    half_store(row, FIELD(q8_0, d), scales);
}

/* Q4_0 and IQ4_NL. */
static void pack_q4_0(const uint8_t *const row[PACK_ROWS], uint8_t *restrict codes,
                      uint8_t *restrict scales) {
    nibbles_32(row, FIELD(q4_0, qs), codes);
    half_store(row, FIELD(q4_0, d), scales);
}

static void pack_q4_1(const uint8_t *const row[PACK_ROWS], uint8_t *restrict codes,
                      uint8_t *restrict scales) {
    nibbles_32(row, FIELD(q4_1, qs), codes);
    halves_store(scales, scales + 32, load_1(row, FIELD(q4_1, d)));
}

static void pack_q5_0(const uint8_t *const row[PACK_ROWS], uint8_t *restrict codes,
                      uint8_t *restrict scales) {
    nibbles_32(row, FIELD(q5_0, qs), codes);
    lanes_store(codes + 256, fifth_bits(load_1(row, FIELD(q5_0, qh))));
    half_store(row, FIELD(q5_0, d), scales);
}

static void pack_q5_1(const uint8_t *const row[PACK_ROWS], uint8_t *restrict codes,
                      uint8_t *restrict scales) {
    nibbles_32(row, FIELD(q5_1, qs), codes);
    lanes_store(codes + 256, fifth_bits(load_1(row, FIELD(q5_1, qh))));
    halves_store(scales, scales + 32, load_1(row, FIELD(q5_1, d)));
}

static void pack_mxfp4(const uint8_t *const row[PACK_ROWS], uint8_t *restrict codes,
                       uint8_t *restrict scales) {
    nibbles_32(row, FIELD(mxfp4, qs), codes);
    for (int r = 0; r < PACK_ROWS; r++)
        scales[r] = row[r][FIELD(mxfp4, e)];
}

static void pack_q2_k(const uint8_t *const row[PACK_ROWS], uint8_t *restrict codes,
                      uint8_t *restrict scales) {
    for (unsigned half = 0; half < 2; half++) {
        struct lanes q[8];
        load_8(row, FIELD(q2_k, qs) + 32 * half, q);
        for (unsigned j = 0; j < 4; j++)
            plane(q, 2, 2 * j, codes + 128 * (4 * half + j));
    }
    struct lanes four[4];
    load_4(row, FIELD(q2_k, scales), four);
    halves_store(scales, scales + 32, load_1(row, FIELD(q2_k, d)));
    for (int i = 0; i < 4; i++)
        bytes_store(scales + 64 + 64 * i, 16, four[i]);
}

/* Every byte, which is below 64, less 32: the top bit is lent so that none borrows of the next. */
ALWAYS_INLINE struct lanes less_32(struct lanes a) {
    EACH_QUAD a.quad[q] = ((a.quad[q] | 0x80808080u) - 0x20202020u) ^ 0x80808080u;
    return a;
}

static void pack_q3_k(const uint8_t *const row[PACK_ROWS], uint8_t *restrict codes,
                      uint8_t *restrict scales) {
    struct lanes bits[8];
    load_8(row, FIELD(q3_k, hmask), bits);
    for (unsigned half = 0; half < 2; half++) {
        struct lanes q[8];
        load_8(row, FIELD(q3_k, qs) + 32 * half, q);
        for (unsigned j = 0; j < 4; j++) {
            unsigned b = 4 * half + j;
            plane(q, 2, 2 * j, codes + 192 * b);
            plane(bits, 1, b, codes + 192 * b + 128);
        }
    }
    half_store(row, FIELD(q3_k, d), scales);
    struct lanes low[2] = {load_1(row, FIELD(q3_k, scales)), load_1(row, FIELD(q3_k, scales) + 4)};
    struct lanes high = load_1(row, FIELD(q3_k, scales) + 8);
    for (unsigned i = 0; i < 4; i++) { /* scales 4i..4i+3 are the bytes of a word */
        struct lanes scale = field(low[i % 2], i < 2 ? 0 : 4, NIBBLES);
        scale = above(scale, field(high, 2 * i, TWO_BITS), 4);
        bytes_store(scales + 32 + 64 * i, 16, less_32(scale));
    }
}

/* d, dmin and the packed scales and mins of Q4_K and Q5_K, which begin both. */
ALWAYS_INLINE void scales_k(const uint8_t *const row[PACK_ROWS], uint8_t *scales) {
    struct lanes v[4];
    load_4(row, 0, v);
    halves_store(scales, scales + 32, v[0]);
    scales += 64;
    /* scales and mins of blocks 0..3, then 4..7, are the bytes of a word */
    bytes_store(scales, 32, field(v[1], 0, 0x3f3f3f3f));
    bytes_store(scales + 16, 32, field(v[2], 0, 0x3f3f3f3f));
    bytes_store(scales + 128, 32, above(field(v[3], 0, NIBBLES), field(v[1], 6, TWO_BITS), 4));
    bytes_store(scales + 144, 32, above(field(v[3], 4, NIBBLES), field(v[2], 6, TWO_BITS), 4));
}

static void pack_q4_k(const uint8_t *const row[PACK_ROWS], uint8_t *restrict codes,
                      uint8_t *restrict scales) {
    scales_k(row, scales);
    for (unsigned j = 0; j < 4; j++) {
        struct lanes q[8];
        load_8(row, FIELD(q4_k, qs) + 32 * j, q);
        plane(q, 4, 0, codes + 512 * j);
        plane(q, 4, 4, codes + 512 * j + 256);
    }
}

static void pack_q5_k(const uint8_t *const row[PACK_ROWS], uint8_t *restrict codes,
                      uint8_t *restrict scales) {
    struct lanes bits[8];
    scales_k(row, scales);
    load_8(row, FIELD(q5_k, qh), bits);
    for (unsigned j = 0; j < 4; j++) {
        struct lanes q[8];
        load_8(row, FIELD(q5_k, qs) + 32 * j, q);
        uint8_t *to = codes + 640 * j;
        plane(q, 4, 0, to);
        plane(bits, 1, 2 * j, to + 256);
        plane(q, 4, 4, to + 320);
        plane(bits, 1, 2 * j + 1, to + 320 + 256);
    }
}

static void pack_q6_k(const uint8_t *const row[PACK_ROWS], uint8_t *restrict codes,
                      uint8_t *restrict scales) {
    for (unsigned half = 0; half < 2; half++) {
        struct lanes a[8], b[8], high[8];
        load_8(row, FIELD(q6_k, ql) + 64 * half, a);
        load_8(row, FIELD(q6_k, ql) + 64 * half + 32, b);
        load_8(row, FIELD(q6_k, qh) + 32 * half, high);
        uint8_t *to = codes + 1536 * half;
        for (unsigned j = 0; j < 4; j++) {
            plane(j % 2 ? b : a, 4, 4 * (j / 2), to + 384 * j);
            plane(high, 2, 2 * j, to + 384 * j + 256);
        }
    }
    struct lanes four[4];
    load_4(row, FIELD(q6_k, scales), four);
    half_store(row, FIELD(q6_k, d), scales);
    for (int i = 0; i < 4; i++)
        bytes_store(scales + 32 + 64 * i, 16, four[i]);
}

static void pack_iq4_xs(const uint8_t *const row[PACK_ROWS], uint8_t *restrict codes,
                        uint8_t *restrict scales) {
    for (unsigned b = 0; b < 8; b++)
        nibbles_32(row, FIELD(iq4_xs, qs) + 16 * b, codes + 256 * b);
    half_store(row, FIELD(iq4_xs, d), scales);
    struct lanes head = load_1(row, FIELD(iq4_xs, d)); /* scales_h above d */
    struct lanes low = load_1(row, FIELD(iq4_xs, scales_l));
    for (unsigned i = 0; i < 2; i++) { /* scales 4i..4i+3 become the bytes of a word */
        struct lanes scale = {0};
        for (unsigned k = 0; k < 4; k++) {
            unsigned b = 4 * i + k;
            scale = above(scale, field(low, 4 * b, 15), 8 * k);
            scale = above(scale, field(head, 16 + 2 * b, 3), 8 * k + 4);
        }
        bytes_store(scales + 32 + 64 * i, 16, less_32(scale));
    }
}

/* The words of 32 columns as they are: n of 16 bytes a row. */
ALWAYS_INLINE void pack_words(const uint8_t *const row[PACK_ROWS], unsigned n,
                              uint8_t *restrict codes) {
    for (unsigned i = 0; i < n; i++) {
        struct lanes word[4];
        load_4(row, 16 * i, word);
        for (int j = 0; j < 4; j++)
            lanes_store(codes + 256 * i + 64 * j, word[j]);
    }
}

static void pack_4_bytes(const uint8_t *const row[PACK_ROWS], uint8_t *restrict codes,
                         uint8_t *restrict scales) {
    (void)scales;
    pack_words(row, 8, codes);
}

static void pack_2_bytes(const uint8_t *const row[PACK_ROWS], uint8_t *restrict codes,
                         uint8_t *restrict scales) {
    (void)scales;
    pack_words(row, 4, codes);
}

static pack_unit_fn *const pack_unit[N_DTYPES] = {
    [DTYPE_Q8_0] = pack_q8_0,    [DTYPE_Q4_0] = pack_q4_0,   [DTYPE_Q4_1] = pack_q4_1,
    [DTYPE_Q5_0] = pack_q5_0,    [DTYPE_Q5_1] = pack_q5_1,   [DTYPE_Q2_K] = pack_q2_k,
    [DTYPE_Q3_K] = pack_q3_k,    [DTYPE_Q4_K] = pack_q4_k,   [DTYPE_Q5_K] = pack_q5_k,
    [DTYPE_Q6_K] = pack_q6_k,    [DTYPE_IQ4_NL] = pack_q4_0, [DTYPE_IQ4_XS] = pack_iq4_xs,
    [DTYPE_MXFP4] = pack_mxfp4,  [DTYPE_F32] = pack_4_bytes, [DTYPE_F16] = pack_2_bytes,
    [DTYPE_BF16] = pack_2_bytes,
};

/* The group's n rows (1..PACK_ROWS), the first at `first`; the rest is zero blocks. */
static void pack_group(enum dtype type, const uint8_t *first, size_t row_bytes, int n, int n_cols,
                       uint8_t *out) {
    static const uint8_t zero_block[256];
    const struct pack_layout l = layouts[type];
    const size_t block_bytes = (size_t)dtype_row_bytes(type, l.unit_cols);
    const size_t tight = group_bytes_tight(l, n_cols);
    const int n_units = n_cols / l.unit_cols, unit_blocks = l.unit_cols / 32;
    const uint8_t *row[PACK_ROWS];
    size_t step[PACK_ROWS];
    for (int r = 0; r < PACK_ROWS; r++) {
        row[r] = r < n ? first + (size_t)r * row_bytes : zero_block;
        step[r] = r < n ? block_bytes : 0;
    }
    for (int u = 0; u < n_units; u++) {
        /* the next group, in memory's own order: rows are more streams than prefetchers follow */
        const uint8_t *next = first + PACK_ROWS * row_bytes + (size_t)u * PACK_ROWS * block_bytes;
        for (size_t at = 0; at < PACK_ROWS * block_bytes; at += 64)
            __builtin_prefetch(next + at, 0, 2);
        const struct pack_place p = pack_place(l, n_cols, u * unit_blocks);
        pack_unit[type](row, out + p.codes, out + p.scales);
        for (int r = 0; r < PACK_ROWS; r++)
            row[r] += step[r];
    }
    if (n_cols % l.unit_cols) { /* plain types */
        uint8_t stage[PACK_ROWS][128] = {{0}};
        const size_t rest = (size_t)dtype_row_bytes(type, n_cols % l.unit_cols);
        for (int r = 0; r < PACK_ROWS; r++) {
            memcpy(stage[r], row[r], rest);
            row[r] = stage[r];
        }
        pack_unit[type](row, out + pack_place(l, n_cols, n_cols / 32).codes, NULL);
    }
    memset(out + tight, 0, round_up(tight, PACK_ALIGN) - tight);
}

void pack_rows(enum dtype type, const uint8_t *rows, size_t row_bytes, int n_rows, int n_cols,
               uint8_t *out, int group_begin, int group_end) {
    REQUIRE(group_begin >= 0 && group_end <= pack_n_groups(n_rows));
    const size_t group_bytes = pack_group_bytes(type, n_cols);
    for (int g = group_begin; g < group_end; g++) {
        const int row = g * PACK_ROWS;
        pack_group(type, rows + (size_t)row * row_bytes, row_bytes,
                   min_int(PACK_ROWS, n_rows - row), n_cols, out + (size_t)g * group_bytes);
    }
}

/* ---- Out: in the order of the formulas ---- */

/* Where a block of a row stands. */
struct place {
    const uint8_t *codes;  /* of the block */
    const uint8_t *scales; /* of its unit */
    int row;               /* within the group */
    int block;             /* within the unit */
};

/* n bits of column c, from a plane. */
static unsigned plane_bits(const uint8_t *plane, int n, int row, int c) {
    int s = c / 4;
    return plane[64 * (s % n) + 4 * row + c % 4] >> (s / n * n) & ((1u << n) - 1);
}

static unsigned code_at(enum dtype type, struct place p, int c) {
    switch (type) {
    case DTYPE_Q8_0:
        return plane_bits(p.codes, 8, p.row, c);
    case DTYPE_Q5_0:
    case DTYPE_Q5_1:
    case DTYPE_Q5_K:
        return plane_bits(p.codes, 4, p.row, c) | plane_bits(p.codes + 256, 1, p.row, c) << 4;
    case DTYPE_Q6_K:
        return plane_bits(p.codes, 4, p.row, c) | plane_bits(p.codes + 256, 2, p.row, c) << 4;
    case DTYPE_Q2_K:
        return plane_bits(p.codes, 2, p.row, c);
    case DTYPE_Q3_K:
        return plane_bits(p.codes, 2, p.row, c) | plane_bits(p.codes + 128, 1, p.row, c) << 2;
    default:
        return plane_bits(p.codes, 4, p.row, c);
    }
}

static int value_of(enum dtype type, unsigned code) {
    switch (type) {
    case DTYPE_Q8_0:
        return (int8_t)code;
    case DTYPE_Q4_0:
        return (int)code - 8;
    case DTYPE_Q5_0:
        return (int)code - 16;
    case DTYPE_Q6_K:
        return (int)code - 32;
    case DTYPE_Q3_K:
        return (int)code - 4;
    case DTYPE_IQ4_NL:
    case DTYPE_IQ4_XS:
        return iq4_values[code];
    case DTYPE_MXFP4:
        return mxfp4_values[code];
    default:
        return (int)code;
    }
}

/* Number `index` of 16 halves. */
static float half_at(const uint8_t *halves, int index) {
    uint16_t half;
    memcpy(&half, halves + 2 * index, sizeof half);
    return half_to_float(half);
}

static void scales_of(enum dtype type, struct place p, struct pack_block *out) {
    const int r = p.row;
    const uint8_t *byte = p.scales + r; /* where the first vector of bytes would begin */
    float d = type == DTYPE_MXFP4 ? e8m0_half(*byte) : half_at(p.scales, r);
    for (int h = 0; h < 2; h++) {
        out->scale[h] = d;
        out->min[h] = 0;
        if (type == DTYPE_Q4_1 || type == DTYPE_Q5_1) {
            out->min[h] = half_at(p.scales + 32, r);
        } else if (type == DTYPE_Q4_K || type == DTYPE_Q5_K) {
            out->scale[h] = d * byte[64 + 32 * p.block];
            out->min[h] = -(half_at(p.scales + 32, r) * byte[64 + 32 * p.block + 16]);
        } else if (type == DTYPE_Q2_K) {
            uint8_t both = byte[64 + 32 * p.block + 16 * h];
            out->scale[h] = d * (float)(both & 15);
            out->min[h] = -(half_at(p.scales + 32, r) * (float)(both >> 4));
        } else if (type == DTYPE_Q3_K || type == DTYPE_Q6_K) {
            out->scale[h] = d * (float)(int8_t)byte[32 + 32 * p.block + 16 * h];
        } else if (type == DTYPE_IQ4_XS) {
            out->scale[h] = d * (float)(int8_t)byte[32 + 16 * p.block];
        }
    }
    out->has_min = type == DTYPE_Q4_1 || type == DTYPE_Q5_1 || type == DTYPE_Q4_K ||
                   type == DTYPE_Q5_K || type == DTYPE_Q2_K;
}

void pack_block_read(enum dtype type, const uint8_t *packed, int n_cols, int row, int block,
                     struct pack_block *out) {
    const struct pack_layout l = pack_layout(type);
    const uint8_t *group = packed + (size_t)(row / PACK_ROWS) * pack_group_bytes(type, n_cols);
    const struct pack_place at = pack_place(l, n_cols, block);
    struct place p = {
        .codes = group + at.codes,
        .scales = group + at.scales,
        .row = row % PACK_ROWS,
        .block = block % (l.unit_cols / 32),
    };
    for (int c = 0; c < 32; c++)
        out->q[c] = (int8_t)value_of(type, code_at(type, p, c));
    scales_of(type, p, out);
}

/* The elements of a plain type are in words of 4 bytes. */
static void plain_to_float(enum dtype type, const uint8_t *packed, int n_cols, int row,
                           float *out) {
    const int bytes = dtype_info(type)->block_bytes;
    const uint8_t *group = packed + (size_t)(row / PACK_ROWS) * pack_group_bytes(type, n_cols);
    for (int c = 0; c < n_cols; c++) {
        const size_t at = (size_t)c * (size_t)bytes;
        dtype_to_float(type, group + at / 4 * 64 + 4 * (row % PACK_ROWS) + at % 4, out + c, 1);
    }
}

void pack_to_float(enum dtype type, const uint8_t *packed, int n_cols, int row, float *out) {
    if (!dtype_info(type)->quantised) {
        plain_to_float(type, packed, n_cols, row, out);
        return;
    }
    for (int b = 0; b < n_cols / 32; b++) {
        struct pack_block block;
        pack_block_read(type, packed, n_cols, row, b, &block);
        for (int c = 0; c < 32; c++, out++) {
            float value = block.scale[c / 16] * block.q[c];
            *out = block.has_min ? value + block.min[c / 16] : value;
        }
    }
}
