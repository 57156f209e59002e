/* Four neighbouring weights of a row of a plain type; rows start on 16 bytes and end in zeros. */
layout(std430, set = 0, binding = 1) readonly buffer Weights {
    uint w[];
};

/* at: word of the row; c: column, a multiple of 4. */
vec4 raw_weights(int at, int c) {
    if (TYPE == F32) {
        int i = at + c;
        return vec4(uintBitsToFloat(w[i]), uintBitsToFloat(w[i + 1]), uintBitsToFloat(w[i + 2]),
                    uintBitsToFloat(w[i + 3]));
    }
    uint a = w[at + c / 2], b = w[at + c / 2 + 1];
    if (TYPE == BF16)
        return vec4(uintBitsToFloat(a << 16), uintBitsToFloat(a & 0xffff0000u), uintBitsToFloat(b << 16),
                    uintBitsToFloat(b & 0xffff0000u));
    return vec4(half_to_float(a & 0xffffu), half_to_float(a >> 16), half_to_float(b & 0xffffu), half_to_float(b >> 16));
}
