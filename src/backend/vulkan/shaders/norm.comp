/* RMS norm of a group of columns of a line, times weight or scale: a work-group each. With SUM, of
 * the sum that comes before it, which is kept; an activation behind it may be folded in. Lanes take
 * four columns in turn, at once where everything begins on four words. */
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
layout(constant_id = 6) const bool WIDE = false;  /* offsets and strides are multiples of four */

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
#define FLOATS(access, number, name, Name)                                     \
    layout(std430, set = 0, binding = number) access buffer Name { float name[]; }; \
    layout(std430, set = 0, binding = number) access buffer Name##Fours { vec4 name##4[]; }
FLOATS(readonly, 1, w, Weight);
FLOATS(readonly, 2, x, In);
FLOATS(writeonly, 3, out_, Out);
#ifdef SUM
FLOATS(readonly, 4, b, B);
FLOATS(, 5, sum_, Sum); /* may be In */
FLOATS(readonly, 6, c, C);
#else
FLOATS(readonly, 4, gate, Gate);
#endif
shared float part[LANES];

/* Columns [i, i + n) of the group, n up to 4. */
#define LOAD(name, at, n) (WIDE ? name##4[(at) >> 2] : load_##name(at, n))
#define LOADER(name)                        \
    vec4 load_##name(int at, int n) {       \
        vec4 y = vec4(0);                   \
        for (int j = 0; j < n; j++)         \
            y[j] = name[at + j];            \
        return y;                           \
    }
#define STORE(name, at, n, y)               \
    if (WIDE) name##4[(at) >> 2] = y;       \
    for (int j = 0; !WIDE && j < n; j++)    \
        name[(at) + j] = y[j]
LOADER(w)
LOADER(x)
#ifdef SUM
LOADER(b)
LOADER(sum_)
LOADER(c)
#else
LOADER(gate)
#endif

/* The first time: the sum is made. */
vec4 first_time(int i, int n, int line, int from, int first) {
#ifdef SUM
    precise vec4 y = LOAD(x, from + i, n) + LOAD(b, p.b_off + line * p.b_stride + first + i, n);
    if (THREE) y = y + LOAD(c, p.c_off + line * p.c_stride + first + i, n);
    STORE(sum_, p.sum_off + line * p.sum_stride + first + i, n, y);
    return y;
#else
    return LOAD(x, from + i, n);
#endif
}
/* The same lane's once more. */
vec4 again(int i, int n, int line, int from, int first) {
#ifdef SUM
    return LOAD(sum_, p.sum_off + line * p.sum_stride + first + i, n);
#else
    return LOAD(x, from + i, n);
#endif
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
    for (int n = LANES / 2; n > 0; n /= 2) {
        barrier();
        if (lane < n) part[lane] += part[lane + n];
    }
    barrier();
    float factor = divide(SCALED ? p.scale : 1.0, sqrt(part[0] / float(p.group) + p.eps));
    for (int i = 4 * lane; i < p.group; i += 4 * LANES) {
        int n = min(4, p.group - i);
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
    }
}
