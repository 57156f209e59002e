/* Reads the host layout of backend/packed.h: groups of 16 rows. TYPE is a constant of the pipeline,
 * so that all branches on it are gone when it runs. */
layout(std430, set = 0, binding = 1) readonly buffer Weights {
    uint w[];
};

const bool FIVE_BITS = TYPE == Q5_0 || TYPE == Q5_1 || TYPE == Q5_K;
const bool TWO_BITS = TYPE == Q2_K || TYPE == Q3_K;
const bool HAS_MIN = TYPE == Q4_1 || TYPE == Q5_1 || TYPE == Q2_K || TYPE == Q4_K || TYPE == Q5_K;
/* Words of a block's codes, of 16 rows. */
const int CODE_WORDS = TYPE == Q8_0 ? 128 : FIVE_BITS ? 80 : TYPE == Q2_K ? 32 : TYPE == Q3_K ? 48 : TYPE == Q6_K ? 96 : 64;
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

/* Four signed bytes: columns 4g..4g+3 of a block of one row. at: word of the row in its codes. */
uint codes(int at, int g) {
    if (TYPE == Q8_0) return w[at + 16 * g];
    uint c;
    if (TWO_BITS)
        c = (w[at + 16 * (g & 1)] >> (2 * (g >> 1))) & 0x03030303u;
    else
        c = (w[at + 16 * (g & 3)] >> (4 * (g >> 2))) & 0x0f0f0f0fu;
    if (FIVE_BITS) c |= ((w[at + 64] >> g) & 0x01010101u) << 4;
    if (TYPE == Q3_K) c |= ((w[at + 32] >> g) & 0x01010101u) << 2;
    if (TYPE == Q6_K) c |= ((w[at + 64 + 16 * (g & 1)] >> (2 * (g >> 1))) & 0x03030303u) << 4;
    if (TYPE == IQ4_NL || TYPE == IQ4_XS || TYPE == MXFP4)
        return value_of(c & 15u) | value_of((c >> 8) & 15u) << 8 | value_of((c >> 16) & 15u) << 16 |
               value_of(c >> 24) << 24;
    if (OFFSET != 0) c = ((c | 0x80808080u) - uint(OFFSET) * 0x01010101u) ^ 0x80808080u;
    return c;
}

vec4 signed_bytes(uint c) {
    return vec4(bitfieldExtract(int(c), 0, 8), bitfieldExtract(int(c), 8, 8), bitfieldExtract(int(c), 16, 8),
                bitfieldExtract(int(c), 24, 8));
}

float half_at(int at, int r) { return half_to_float((w[at + (r >> 1)] >> (16 * (r & 1))) & 0xffffu); }
uint byte_at(int at, int r) { return (w[at + (r >> 2)] >> (8 * (r & 3))) & 0xffu; }
float signed_at(int at, int r) { return float(bitfieldExtract(int(w[at + (r >> 2)]), 8 * (r & 3), 8)); }
float e8m0_half(uint e) { return uintBitsToFloat(e < 2u ? 0x00200000u << e : (e - 1u) << 23); }

/* Scale and min of both halves of block b of row r. at: word where the group's scales begin. */
void scales(int at, int b, int r, out vec2 scale, out vec2 least) {
    least = vec2(0);
    if (TYPE == MXFP4) {
        scale = vec2(e8m0_half(byte_at(at + 4 * b, r)));
    } else if (TYPE == Q4_1 || TYPE == Q5_1) {
        scale = vec2(half_at(at + 16 * b, r));
        least = vec2(half_at(at + 16 * b + 8, r));
    } else if (TYPE == Q4_K || TYPE == Q5_K || TYPE == Q2_K) {
        int unit = at + 80 * (b >> 3), block = unit + 16 + 8 * (b & 7);
        float d = half_at(unit, r), d_min = half_at(unit + 8, r);
        if (TYPE == Q2_K) {
            uint low = byte_at(block, r), high = byte_at(block + 4, r);
            scale = d * vec2(low & 15u, high & 15u);
            least = -(d_min * vec2(low >> 4, high >> 4));
        } else {
            scale = vec2(d * float(byte_at(block, r)));
            least = vec2(-(d_min * float(byte_at(block + 4, r))));
        }
    } else if (TYPE == Q3_K || TYPE == Q6_K) {
        int unit = at + 72 * (b >> 3), block = unit + 8 + 8 * (b & 7);
        scale = half_at(unit, r) * vec2(signed_at(block, r), signed_at(block + 4, r));
    } else if (TYPE == IQ4_XS) {
        int unit = at + 40 * (b >> 3);
        scale = vec2(half_at(unit, r) * signed_at(unit + 8 + 4 * (b & 7), r));
    } else {
        scale = vec2(half_at(at + 8 * b, r));
    }
}

/* Weights of columns 4g..4g+3 from their codes. */
vec4 weights(uint c, int g, vec2 scale, vec2 least) {
    vec4 q = signed_bytes(c) * scale[g >> 2];
    return HAS_MIN ? q + least[g >> 2] : q;
}
