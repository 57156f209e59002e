/* The ranges of a query head that attention.comp computed side by side, in their order: the same
 * operations as there, so that a round of one token gives the bits of a larger one. BYTES: what
 * comes out is rounded to 8 bits besides. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "types.glsl"
layout(local_size_x_id = 0) in;
layout(constant_id = 1) const int LANES = 8;
layout(constant_id = 2) const int DIM = 64;
layout(constant_id = 3) const bool SINKS = false;
layout(constant_id = 4) const bool BYTES = false; /* heads are blocks of 32 */
layout(constant_id = 5) const bool WIDE = false;
const int RANGE = 256;

layout(push_constant) uniform Push {
    int out_off, out_stride;
    int n_ranges; /* room of a head */
    int window, chunk;
    int sinks_off;
    int bytes_off, n_blocks;
} p;
layout(std430, set = 0, binding = 1) readonly buffer Ranges {
    float ranges[]; /* of a range: maximum, sum, DIM sums of values */
};
layout(std430, set = 0, binding = 2) writeonly buffer Out {
    float out_[];
};
layout(std430, set = 0, binding = 3) readonly buffer Sinks {
    float sinks[];
};
#define ROUNDED 4
#include "rounded.glsl"
shared float made[DIM];

void main() {
    int lane = int(gl_LocalInvocationID.x), h = int(gl_WorkGroupID.x), position = round_position(0);
    int first = p.window > 0 ? max(0, position + 1 - p.window) : 0;
    if (p.chunk > 0) first = max(first, position / p.chunk * p.chunk);
    for (int c = lane; c < DIM; c += LANES) {
        float top = -1e38, sum = 0.0, acc = 0.0;
        for (int r = first / RANGE; r <= position / RANGE; r++) {
            int at = (h * p.n_ranges + r) * (DIM + 2);
            float most = ranges[at], both = max(top, most);
            float old = exp_f32(top - both), new_ = exp_f32(most - both);
            if (r == first / RANGE) old = 0.0;
            acc = acc * old + ranges[at + 2 + c] * new_;
            sum = sum * old + ranges[at + 1] * new_;
            top = both;
        }
        if (SINKS) {
            float sink = sinks[p.sinks_off + h], both = max(top, sink), old = exp_f32(top - both);
            sum = sum * old + exp_f32(sink - both);
            acc *= old;
        }
        precise float y = acc * divide(1.0, sum);
        out_[p.out_off + h * DIM + c] = y;
        if (BYTES) made[c] = y;
    }
    if (!BYTES) return;
    barrier();
    for (int b = lane; b < DIM / 32; b += LANES) {
        vec4 y[8];
        for (int c = 0; c < 32; c++)
            y[c / 4][c % 4] = made[32 * b + c];
        round_block(y, p.bytes_off, h * (DIM / 32) + b, p.n_blocks);
    }
}
