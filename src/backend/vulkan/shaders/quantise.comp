/* Lines to 8 bits per 32 inputs (kernels.h: struct q8_rows): a lane a block. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "types.glsl"
layout(local_size_x_id = 0) in;
layout(constant_id = 1) const bool WIDE = false; /* all lines begin on four words */

layout(push_constant) uniform Push {
    int n_blocks;
    int in_off, in_stride, out_off, out_stride;
} p;
layout(std430, set = 0, binding = 1) readonly buffer In {
    float x[];
};
layout(std430, set = 0, binding = 1) readonly buffer InFours {
    vec4 x4[];
};
layout(std430, set = 0, binding = 2) writeonly buffer Out {
    uint q[];
};
layout(std430, set = 0, binding = 2) writeonly buffer OutFours {
    uvec4 q4[];
};

void main() {
    int b = int(gl_GlobalInvocationID.x), line = int(gl_WorkGroupID.y);
    if (b >= p.n_blocks) return;
    int from = p.in_off + line * p.in_stride + 32 * b, to = p.out_off + line * p.out_stride;
    vec4 y[8], largest = vec4(0);
    for (int g = 0; g < 8; g++) {
        int at = from + 4 * g;
        y[g] = WIDE ? x4[at >> 2] : vec4(x[at], x[at + 1], x[at + 2], x[at + 3]);
        largest = max(largest, abs(y[g]));
    }
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
    q[to + 8 * p.n_blocks + b] = floatBitsToUint(zero ? 0.0 : divide(most, 127.0));
    q[to + 9 * p.n_blocks + b] = uint(sum.x & 0xffff) | uint(sum.y) << 16;
}
