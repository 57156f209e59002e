/* A line in 8 bits per 32 columns (kernels.h: struct q8_rows): all codes, then a float a block, then
 * two 16-bit sums a block. Stands in the binding ROUNDED; WIDE: on four words. */
layout(std430, set = 0, binding = ROUNDED) writeonly buffer Rounded {
    uint q[];
};
layout(std430, set = 0, binding = ROUNDED) writeonly buffer RoundedFours {
    uvec4 q4[];
};

/* Block b of the line of n_blocks that begins at word `to`, from its 32 columns. */
void round_block(vec4 y[8], int to, int b, int n_blocks) {
    vec4 largest = vec4(0);
    for (int g = 0; g < 8; g++)
        largest = max(largest, abs(y[g]));
    float most = max(max(largest.x, largest.y), max(largest.z, largest.w));
    bool zero = most < Q8_MIN_MAX;
    float inverse = zero ? 0.0 : divide(127.0, most);
    ivec2 sum = ivec2(0);
    for (int h = 0; h < 2; h++) {
        uvec4 words;
        for (int g = 0; g < 4; g++) {
            ivec4 code = ivec4(roundEven(y[4 * h + g] * inverse));
            words[g] = uint(code.x & 255) | uint(code.y & 255) << 8 | uint(code.z & 255) << 16 | uint(code.w & 255) << 24;
            sum[h] += code.x + code.y + code.z + code.w;
        }
        int at = to + 8 * b + 4 * h;
        if (WIDE) q4[at >> 2] = words;
        for (int g = 0; !WIDE && g < 4; g++)
            q[at + g] = words[g];
    }
    q[to + 8 * n_blocks + b] = floatBitsToUint(zero ? 0.0 : divide(most, 127.0));
    q[to + 9 * n_blocks + b] = uint(sum.x & 0xffff) | uint(sum.y) << 16;
}
