/* The same in class q8: inputs are the 8-bit lines of quantise.comp, sums over 16 are integers. */
#version 450
#extension GL_GOOGLE_include_directive : require
#ifdef IDOT
#extension GL_EXT_spirv_intrinsics : require
spirv_instruction(extensions = ["SPV_KHR_integer_dot_product"], capabilities = [6018, 6019], id = 4450)
int packed_dot(uint a, uint b, spirv_literal int format);
#define dot4(a, b) packed_dot(a, b, 0)
#else
int dot4(uint a, uint b) {
    int sum = 0;
    for (int i = 0; i < 32; i += 8)
        sum += bitfieldExtract(int(a), i, 8) * bitfieldExtract(int(b), i, 8);
    return sum;
}
#endif
#include "common.glsl"
#include "types.glsl"
layout(local_size_x_id = 0) in; /* 16 * SPLIT */
layout(constant_id = 1) const int TYPE = Q8_0;
layout(constant_id = 2) const int TILE = 1;
layout(constant_id = 3) const int SPLIT = 1;
layout(constant_id = 4) const bool BIAS = false;
#include "packed.glsl"
#include "lines.glsl"
#include "product.glsl"

layout(std430, set = 0, binding = 2) readonly buffer In {
    uint x[]; /* a line: codes, then a float a block, then two 16-bit sums a block */
};

void main() {
    int lane = int(gl_LocalInvocationID.x), r = lane & 15, n_blocks = p.n_cols / 32;
    int n, matrix, bias_at, line[TILE], to[TILE];
    if (!begin(n, line, to, matrix, bias_at)) return;
    int group = matrix + int(gl_WorkGroupID.x) * p.unit_words, scale_at = group + n_blocks * CODE_WORDS;
    float acc[TILE];
    for (int t = 0; t < TILE; t++)
        acc[t] = 0.0;
    for (int b = lane >> 4; b < n_blocks; b += SPLIT) {
        vec2 scale, least;
        ivec2 sum[TILE];
        scales(scale_at, b, r, scale, least);
        for (int t = 0; t < TILE; t++)
            sum[t] = ivec2(0);
        for (int g = 0; g < 4; g++) {
            uint low = codes(group + b * CODE_WORDS + r, g), high = codes(group + b * CODE_WORDS + r, g + 4);
            for (int t = 0; t < TILE; t++) {
                sum[t].x += dot4(low, x[line[t] + 8 * b + g]);
                sum[t].y += dot4(high, x[line[t] + 8 * b + g + 4]);
            }
        }
        for (int t = 0; t < TILE; t++) {
            int at = line[t] + 8 * n_blocks + b;
            float block = scale.x * float(sum[t].x);
            if (HAS_MIN) block = fma(least.x, float(bitfieldExtract(int(x[at + n_blocks]), 0, 16)), block);
            block = fma(scale.y, float(sum[t].y), block);
            if (HAS_MIN) block = fma(least.y, float(bitfieldExtract(int(x[at + n_blocks]), 16, 16)), block);
            acc[t] = fma(block, uintBitsToFloat(x[at]), acc[t]);
        }
    }
    finish(acc, lane, n, to, bias_at);
}
