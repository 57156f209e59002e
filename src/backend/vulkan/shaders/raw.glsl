/* Four neighbouring weights of a row of a plain type; rows start on 16 bytes and end in zeros. */
layout(std430, set = 0, binding = 1) readonly buffer Weights {
    uint w[];
};
/* With PAIR there is a second matrix of the same type and size, which is read while reads_second. */
#ifdef PAIR
layout(std430, set = 0, binding = 5) readonly buffer Second {
    uint second_w[];
};
bool reads_second = false;
#define WORD(at) (reads_second ? second_w[at] : w[at])
#else
#define WORD(at) w[at]
#endif

/* at: word of the row; c: column, a multiple of 4. */
vec4 raw_weights(int at, int c) {
    if (TYPE == F32) {
        int i = at + c;
        return vec4(uintBitsToFloat(WORD(i)), uintBitsToFloat(WORD(i + 1)), uintBitsToFloat(WORD(i + 2)),
                    uintBitsToFloat(WORD(i + 3)));
    }
    uint a = WORD(at + c / 2), b = WORD(at + c / 2 + 1);
    if (TYPE == BF16)
        return vec4(uintBitsToFloat(a << 16), uintBitsToFloat(a & 0xffff0000u), uintBitsToFloat(b << 16),
                    uintBitsToFloat(b & 0xffff0000u));
    return vec4(half_to_float(a & 0xffffu), half_to_float(a >> 16), half_to_float(b & 0xffffu), half_to_float(b >> 16));
}
