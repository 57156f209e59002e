/* RMS norm of a group of columns of a line, times weight or scale: a work-group each. With SUM, of
 * the sum or copy that comes before it, which is kept; an activation behind it may be folded in, and
 * the rounding to 8 bits of what comes out. Lanes take four columns in turn, at once where everything
 * begins on four words; rounding, 32. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "types.glsl"
#include "act.glsl"
#include "fours.glsl"
layout(local_size_x_id = 0) in; /* LANES, a power of two */
layout(constant_id = 1) const int LANES = 8;
layout(constant_id = 2) const bool WEIGHT = true;
layout(constant_id = 3) const bool SCALED = false;
layout(constant_id = 4) const int ACT = 0;        /* 1 + the activation; 0: none */
layout(constant_id = 5) const int SUMMANDS = 1;   /* up to three */
layout(constant_id = 6) const bool WIDE = false;  /* offsets and strides are multiples of four */
layout(constant_id = 7) const bool BYTES = false; /* the group is one of blocks of 32 */

layout(push_constant) uniform Push {
    int rows;
    int begin, group;
    int in_off, in_stride, out_off, out_stride;
    int weight_off;
    float eps, scale;
    int bytes_off, bytes_stride;
#ifdef SUM
    int sum_off, sum_stride, b_off, b_stride, c_off, c_stride;
#else
    int gate_off, gate_stride;
#endif
} p;
FLOATS(readonly, 1, w, Weight);
FLOATS(readonly, 2, x, In);
FLOATS(writeonly, 3, out_, Out);
#ifdef SUM
FLOATS(readonly, 4, b, B);
FLOATS(coherent, 5, sum_, Sum); /* may be In */
FLOATS(readonly, 6, c, C);
#define ROUNDED 7
#else
FLOATS(readonly, 4, gate, Gate);
#define ROUNDED 5
#endif
#include "rounded.glsl"
shared float part[LANES];

LOADER(w)
LOADER(x)
#ifdef SUM
LOADER(b)
LOADER(sum_)
LOADER(c)
#else
LOADER(gate)
#endif

/* Columns [i, i + n) of the group, n up to 4. The first time: the sum is made. */
vec4 first_time(int i, int n, int line, int from, int first) {
#ifdef SUM
    precise vec4 y = LOAD(x, from + i, n);
    if (SUMMANDS > 1) y = y + LOAD(b, p.b_off + line * p.b_stride + first + i, n);
    if (SUMMANDS > 2) y = y + LOAD(c, p.c_off + line * p.c_stride + first + i, n);
    STORE(sum_, p.sum_off + line * p.sum_stride + first + i, n, y);
    return y;
#else
    return LOAD(x, from + i, n);
#endif
}
/* Once more: with BYTES, what other lanes have made. */
vec4 again(int i, int n, int line, int from, int first) {
#ifdef SUM
    return LOAD(sum_, p.sum_off + line * p.sum_stride + first + i, n);
#else
    return LOAD(x, from + i, n);
#endif
}

/* The same normed, and kept. */
vec4 make(int i, int n, int line, int from, int to, int first, float factor) {
    precise vec4 y = again(i, n, line, from, first) * factor;
    if (WEIGHT) y = y * LOAD(w, p.weight_off + i, n);
#ifndef SUM
    if (ACT > 0) {
        vec4 g = LOAD(gate, p.gate_off + line * p.gate_stride + first + i, n);
        for (int j = 0; j < n; j++)
            y[j] = activate(ACT - 1, g[j], y[j]);
    }
#endif
    STORE(out_, to + i, n, y);
    return y;
}

void main() {
    int lane = int(gl_LocalInvocationID.x), line = int(gl_WorkGroupID.y);
    int first = p.begin + int(gl_WorkGroupID.x) * p.group;
    int from = p.in_off + line * p.in_stride + first, to = p.out_off + line * p.out_stride + first;
    float sum = 0.0;
    for (int i = 4 * lane; i < p.group; i += 4 * LANES) {
        vec4 y = first_time(i, min(4, p.group - i), line, from, first);
        for (int j = 0; j < 4; j++)
            sum = fma(y[j], y[j], sum);
    }
    part[lane] = sum;
#ifdef SUM
    memoryBarrierBuffer();
#endif
    for (int n = LANES / 2; n > 0; n /= 2) {
        barrier();
        if (lane < n) part[lane] += part[lane + n];
    }
    barrier();
#ifdef SUM
    memoryBarrierBuffer();
#endif
    float factor = divide(SCALED ? p.scale : 1.0, sqrt(part[0] / float(p.group) + p.eps));
    if (!BYTES) {
        for (int i = 4 * lane; i < p.group; i += 4 * LANES)
            make(i, min(4, p.group - i), line, from, to, first, factor);
        return;
    }
    for (int i = 32 * lane; i < p.group; i += 32 * LANES) {
        vec4 y[8];
        for (int g = 0; g < 8; g++)
            y[g] = make(i + 4 * g, 4, line, from, to, first, factor);
        int n_blocks = p.bytes_stride / 10;
        round_block(y, p.bytes_off + line * p.bytes_stride, (first - p.begin + i) / 32, n_blocks);
    }
}
