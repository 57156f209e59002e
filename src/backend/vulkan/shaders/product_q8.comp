/* The same in class q8: inputs are the 8-bit lines of quantise.comp, sums over 16 are integers. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "dot.glsl"
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
            uint sums = HAS_MIN ? x[at + n_blocks] : 0u;
            float block = add_half(0.0, scale.x, least.x, sum[t].x, half_sum(sums, 0), true, HAS_MIN);
            block = add_half(block, scale.y, least.y, sum[t].y, half_sum(sums, 1), false, HAS_MIN);
            acc[t] = fma(block, uintBitsToFloat(x[at]), acc[t]);
        }
    }
    finish(acc, lane, n, to, bias_at);
}
