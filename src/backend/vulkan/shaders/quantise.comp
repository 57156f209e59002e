/* Lines to 8 bits per 32 inputs (kernels.h: struct q8_rows): a lane a block. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "types.glsl"
layout(local_size_x_id = 0) in;

layout(push_constant) uniform Push {
    int n_blocks;
    int in_off, in_stride, out_off, out_stride;
} p;
layout(std430, set = 0, binding = 1) readonly buffer In {
    float x[];
};
layout(std430, set = 0, binding = 2) writeonly buffer Out {
    uint q[];
};

void main() {
    int b = int(gl_GlobalInvocationID.x), line = int(gl_WorkGroupID.y);
    if (b >= p.n_blocks) return;
    int from = p.in_off + line * p.in_stride + 32 * b, to = p.out_off + line * p.out_stride;
    float most = 0.0;
    for (int i = 0; i < 32; i++)
        most = max(most, abs(x[from + i]));
    bool zero = most < Q8_MIN_MAX;
    float inverse = zero ? 0.0 : divide(127.0, most);
    ivec2 sum = ivec2(0);
    for (int g = 0; g < 8; g++) {
        uint word = 0u;
        for (int i = 0; i < 4; i++) {
            int code = int(roundEven(x[from + 4 * g + i] * inverse));
            word |= uint(code & 255) << (8 * i);
            sum[g >> 2] += code;
        }
        q[to + 8 * b + g] = word;
    }
    q[to + 8 * p.n_blocks + b] = floatBitsToUint(zero ? 0.0 : divide(most, 127.0));
    q[to + 9 * p.n_blocks + b] = uint(sum.x & 0xffff) | uint(sum.y) << 16;
}
