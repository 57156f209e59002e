/* RMS norm of a group of columns of a line, times weight or scale: a work-group each. With SUM, of
 * the sum that comes before it, which is kept; an activation behind it may be folded in. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "types.glsl"
#include "act.glsl"
layout(local_size_x_id = 0) in; /* LANES, a power of two */
layout(constant_id = 1) const int LANES = 8;
layout(constant_id = 2) const bool WEIGHT = true;
layout(constant_id = 3) const bool SCALED = false;
layout(constant_id = 4) const int ACT = 0;        /* 1 + the activation; 0: none */
layout(constant_id = 5) const bool THREE = false; /* summands */

layout(push_constant) uniform Push {
    int rows;
    int begin, group;
    int in_off, in_stride, out_off, out_stride;
    int weight_off;
    float eps, scale;
#ifdef SUM
    int b_off, b_stride, sum_off, sum_stride, c_off, c_stride;
#else
    int gate_off, gate_stride;
#endif
} p;
layout(std430, set = 0, binding = 1) readonly buffer Weight {
    float w[];
};
layout(std430, set = 0, binding = 2) readonly buffer In {
    float x[];
};
layout(std430, set = 0, binding = 3) writeonly buffer Out {
    float out_[];
};
#ifdef SUM
layout(std430, set = 0, binding = 4) readonly buffer B {
    float b[];
};
layout(std430, set = 0, binding = 5) buffer Sum { /* may be In */
    float sum_[];
};
layout(std430, set = 0, binding = 6) readonly buffer C {
    float c[];
};
#else
layout(std430, set = 0, binding = 4) readonly buffer Gate {
    float gate[];
};
#endif
shared float part[LANES];

/* Column i of the group, the first time: the sum is made. */
float first_time(int i, int line, int from, int first) {
#ifdef SUM
    precise float y = x[from + i] + b[p.b_off + line * p.b_stride + first + i];
    if (THREE) y = y + c[p.c_off + line * p.c_stride + first + i];
    sum_[p.sum_off + line * p.sum_stride + first + i] = y;
    return y;
#else
    return x[from + i];
#endif
}
/* The same lane's once more. */
float again(int i, int line, int from, int first) {
#ifdef SUM
    return sum_[p.sum_off + line * p.sum_stride + first + i];
#else
    return x[from + i];
#endif
}

void main() {
    int lane = int(gl_LocalInvocationID.x), line = int(gl_WorkGroupID.y);
    int first = p.begin + int(gl_WorkGroupID.x) * p.group;
    int from = p.in_off + line * p.in_stride + first, to = p.out_off + line * p.out_stride + first;
    float sum = 0.0;
    for (int i = lane; i < p.group; i += LANES) {
        float y = first_time(i, line, from, first);
        sum = fma(y, y, sum);
    }
    part[lane] = sum;
    for (int n = LANES / 2; n > 0; n /= 2) {
        barrier();
        if (lane < n) part[lane] += part[lane + n];
    }
    barrier();
    float factor = divide(SCALED ? p.scale : 1.0, sqrt(part[0] / float(p.group) + p.eps));
    for (int i = lane; i < p.group; i += LANES) {
        precise float y = again(i, line, from, first) * factor;
        if (WEIGHT) y = y * w[p.weight_off + i];
#ifndef SUM
        if (ACT > 0) y = activate(ACT - 1, gate[p.gate_off + line * p.gate_stride + first + i], y);
#endif
        out_[to + i] = y;
    }
}
