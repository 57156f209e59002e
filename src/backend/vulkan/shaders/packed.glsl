/* Reads the host layout of backend/packed.h: groups of 16 rows. TYPE is a constant of the pipeline,
 * so that all branches on it are gone when it runs. */
layout(std430, set = 0, binding = 1) readonly buffer Weights {
    uint w[];
};
/* With PAIR there is a second matrix of the same type and size, which is read while reads_second. */
#ifdef PAIR
layout(std430, set = 0, binding = 5) readonly buffer Second {
    uint second_w[];
};
bool reads_second = false;
#define WEIGHTS(name, at) (reads_second ? second_##name[at] : name[at])
#else
#define WEIGHTS(name, at) name[at]
#endif

/* Rows that a lane has. Software devices load for one lane after the other, so that loads are what
 * takes time there: with TWO_ROWS it has two neighbours, whose codes come with one load of 64 bits,
 * with FOUR_ROWS four, with one of twice as many. */
#if defined(FOUR_ROWS)
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
layout(std430, set = 0, binding = 1) readonly buffer Pairs {
    uint64_t pairs[];
};
layout(std430, set = 0, binding = 1) readonly buffer Fours {
    u64vec2 fours[];
};
#ifdef PAIR
layout(std430, set = 0, binding = 5) readonly buffer SecondPairs {
    uint64_t second_pairs[];
};
layout(std430, set = 0, binding = 5) readonly buffer SecondFours {
    u64vec2 second_fours[];
};
#endif
#define LANE_ROWS 4
#elif defined(TWO_ROWS)
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
layout(std430, set = 0, binding = 1) readonly buffer Both {
    uint64_t both[];
};
#ifdef PAIR
layout(std430, set = 0, binding = 5) readonly buffer SecondBoth {
    uint64_t second_both[];
};
#endif
#define LANE_ROWS 2
#else
#define LANE_ROWS 1
#endif
#define LANES (16 / LANE_ROWS) /* of a group */

const bool FIVE_BITS = TYPE == Q5_0 || TYPE == Q5_1 || TYPE == Q5_K;
const bool TWO_BITS = TYPE == Q2_K || TYPE == Q3_K;
const bool HAS_MIN = TYPE == Q4_1 || TYPE == Q5_1 || TYPE == Q2_K || TYPE == Q4_K || TYPE == Q5_K;
/* Words of a block's codes, of 16 rows. */
const int CODE_WORDS = TYPE == Q8_0 ? 128 : FIVE_BITS ? 80 : TYPE == Q2_K ? 32 : TYPE == Q3_K ? 48 : TYPE == Q6_K ? 96 : 64;
/* Blocks of a unit, words of its scales; words of a run of 8 blocks. */
const int UNIT_BLOCKS = TYPE == Q2_K || TYPE == Q3_K || TYPE == Q4_K || TYPE == Q5_K || TYPE == Q6_K || TYPE == IQ4_XS ? 8 : 1;
const int SCALE_WORDS = TYPE == Q2_K || TYPE == Q4_K || TYPE == Q5_K ? 80 : TYPE == Q3_K || TYPE == Q6_K ? 72 : TYPE == IQ4_XS ? 40 : HAS_MIN ? 16 : TYPE == MXFP4 ? 4 : 8;
const int RUN_WORDS = 8 * CODE_WORDS + 8 / UNIT_BLOCKS * SCALE_WORDS;
const int OFFSET = TYPE == Q4_0 ? 8 : TYPE == Q5_0 ? 16 : TYPE == Q6_K ? 32 : TYPE == Q3_K ? 4 : 0;

/* Byte n (0..15) of a table of four words. */
uint pick(uint n, uint a, uint b, uint c, uint d) {
    uint word = n < 8u ? (n < 4u ? a : b) : (n < 12u ? c : d);
    return (word >> (8u * (n & 3u))) & 0xffu;
}
uint value_of(uint n) {
    if (TYPE == MXFP4) return pick(n, 0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu);
    return pick(n, 0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u);
}

/* One word of each of the lane's rows. */
void load(int at, out uint word[LANE_ROWS]) {
#if defined(FOUR_ROWS)
    u64vec2 rows = WEIGHTS(fours, at >> 2);
    uvec2 low = unpackUint2x32(rows.x), high = unpackUint2x32(rows.y);
    word[0] = low.x;
    word[1] = low.y;
    word[2] = high.x;
    word[3] = high.y;
#elif defined(TWO_ROWS)
    uvec2 rows = unpackUint2x32(WEIGHTS(both, at >> 1));
    word[0] = rows.x;
    word[1] = rows.y;
#else
    word[0] = WEIGHTS(w, at);
#endif
}

/* Words of the codes of block b, and of the scales of its unit, of a group of n_blocks. */
int codes_at(int group, int b, int n_blocks) {
    int n_units = UNIT_BLOCKS == 8 ? 1 : min(8, n_blocks - (b & ~7));
    return group + (b >> 3) * RUN_WORDS + n_units * SCALE_WORDS + (b & 7) * CODE_WORDS;
}
int scales_at(int group, int b) {
    return group + (b >> 3) * RUN_WORDS + (UNIT_BLOCKS == 8 ? 0 : (b & 7) * SCALE_WORDS);
}

/* Four signed bytes of each of the lane's rows: columns 4g..4g+3 of a block. at: word of the first
 * row in the block's codes. */
void codes(int at, int g, out uint code[LANE_ROWS]) {
    uint low[LANE_ROWS], high[LANE_ROWS];
    load(at + 16 * (TYPE == Q8_0 ? g : TWO_BITS ? g & 1 : g & 3), low);
    if (FIVE_BITS)
        load(at + 64, high);
    else if (TYPE == Q3_K)
        load(at + 32, high);
    else if (TYPE == Q6_K)
        load(at + 64 + 16 * (g & 1), high);
    for (int i = 0; i < LANE_ROWS; i++) {
        uint c = low[i];
        if (TWO_BITS)
            c = (c >> (2 * (g >> 1))) & 0x03030303u;
        else if (TYPE != Q8_0)
            c = (c >> (4 * (g >> 2))) & 0x0f0f0f0fu;
        if (FIVE_BITS) c |= ((high[i] >> g) & 0x01010101u) << 4;
        if (TYPE == Q3_K) c |= ((high[i] >> g) & 0x01010101u) << 2;
        if (TYPE == Q6_K) c |= ((high[i] >> (2 * (g >> 1))) & 0x03030303u) << 4;
        if (TYPE == IQ4_NL || TYPE == IQ4_XS || TYPE == MXFP4)
            c = value_of(c & 15u) | value_of((c >> 8) & 15u) << 8 | value_of((c >> 16) & 15u) << 16 |
                value_of(c >> 24) << 24;
        else if (OFFSET != 0)
            c = ((c | 0x80808080u) - uint(OFFSET) * 0x01010101u) ^ 0x80808080u;
        code[i] = c;
    }
}

vec4 signed_bytes(uint c) {
    return vec4(bitfieldExtract(int(c), 0, 8), bitfieldExtract(int(c), 8, 8), bitfieldExtract(int(c), 16, 8),
                bitfieldExtract(int(c), 24, 8));
}

/* The words in which the halves of the lane's rows stand. */
#ifdef FOUR_ROWS
uvec2 load_halves(int at) { return unpackUint2x32(WEIGHTS(pairs, at >> 1)); }
#else
uvec2 load_halves(int at) { return uvec2(WEIGHTS(w, at)); }
#endif
/* Of row r + i, the lane's i-th. */
float half_of(uvec2 words, int r, int i) {
    uint word = i < 2 ? words.x : words.y;
    return half_to_float((word >> (16 * ((r + i) & 1))) & 0xffffu);
}
uint byte_of(uint word, int r) { return (word >> (8 * (r & 3))) & 0xffu; }
float signed_of(uint word, int r) { return float(bitfieldExtract(int(word), 8 * (r & 3), 8)); }
float e8m0_half(uint e) { return uintBitsToFloat(e < 2u ? 0x00200000u << e : (e - 1u) << 23); }

/* Scale and min of both halves of block b of the lane's rows, the first being r, a multiple of their
 * number, so that they share words. group: word where it begins. */
void scales(int group, int b, int r, out vec2 scale[LANE_ROWS], out vec2 least[LANE_ROWS]) {
    int at = scales_at(group, b), h = r >> 1, q = r >> 2; /* the words of halves and bytes */
    if (TYPE == MXFP4) {
        uint e = WEIGHTS(w, at + q);
        for (int i = 0; i < LANE_ROWS; i++)
            scale[i] = vec2(e8m0_half(byte_of(e, r + i)));
    } else if (TYPE == Q4_1 || TYPE == Q5_1) {
        uvec2 d = load_halves(at + h), m = load_halves(at + 8 + h);
        for (int i = 0; i < LANE_ROWS; i++) {
            scale[i] = vec2(half_of(d, r, i));
            least[i] = vec2(half_of(m, r, i));
        }
    } else if (TYPE == Q4_K || TYPE == Q5_K || TYPE == Q2_K) {
        int block = at + 16 + 8 * (b & 7);
        uvec2 d = load_halves(at + h), m = load_halves(at + 8 + h);
        uint low = WEIGHTS(w, block + q), high = WEIGHTS(w, block + 4 + q);
        for (int i = 0; i < LANE_ROWS; i++) {
            uint one = byte_of(low, r + i), two = byte_of(high, r + i);
            float d_scale = half_of(d, r, i), d_least = half_of(m, r, i);
            if (TYPE == Q2_K) {
                scale[i] = d_scale * vec2(one & 15u, two & 15u);
                least[i] = -(d_least * vec2(one >> 4, two >> 4));
            } else {
                scale[i] = vec2(d_scale * float(one));
                least[i] = vec2(-(d_least * float(two)));
            }
        }
    } else if (TYPE == Q3_K || TYPE == Q6_K) {
        int block = at + 8 + 8 * (b & 7);
        uvec2 d = load_halves(at + h);
        uint low = WEIGHTS(w, block + q), high = WEIGHTS(w, block + 4 + q);
        for (int i = 0; i < LANE_ROWS; i++)
            scale[i] = half_of(d, r, i) * vec2(signed_of(low, r + i), signed_of(high, r + i));
    } else if (TYPE == IQ4_XS) {
        uvec2 d = load_halves(at + h);
        uint first = WEIGHTS(w, at + 8 + 4 * (b & 7) + q);
        for (int i = 0; i < LANE_ROWS; i++)
            scale[i] = vec2(half_of(d, r, i) * signed_of(first, r + i));
    } else {
        uvec2 d = load_halves(at + h);
        for (int i = 0; i < LANE_ROWS; i++)
            scale[i] = vec2(half_of(d, r, i));
    }
    for (int i = 0; !HAS_MIN && i < LANE_ROWS; i++)
        least[i] = vec2(0);
}

/* Weights of columns 4g..4g+3 from their codes. */
vec4 weights(uint c, int g, vec2 scale, vec2 least) {
    vec4 q = signed_bytes(c) * scale[g >> 2];
    return HAS_MIN ? q + least[g >> 2] : q;
}
