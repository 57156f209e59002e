/* Lines to 8 bits: a lane a block. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "types.glsl"
#include "fours.glsl"
layout(local_size_x_id = 0) in;
layout(constant_id = 1) const bool WIDE = false;

layout(push_constant) uniform Push {
    int n_blocks;
    int in_off, in_stride, out_off, out_stride;
} p;
FLOATS(readonly, 1, x, In);
LOADER(x)
#define ROUNDED 2
#include "rounded.glsl"

void main() {
    int b = int(gl_GlobalInvocationID.x), line = int(gl_WorkGroupID.y);
    if (b >= p.n_blocks) return;
    int from = p.in_off + line * p.in_stride + 32 * b;
    vec4 y[8];
    for (int g = 0; g < 8; g++)
        y[g] = LOAD(x, from + 4 * g, 4);
    round_block(y, p.out_off + line * p.out_stride, b, p.n_blocks);
}
