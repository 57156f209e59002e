/* RMS norm of a group of columns of a line, times weight or scale: a work-group each. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
layout(local_size_x_id = 0) in; /* LANES, a power of two */
layout(constant_id = 1) const int LANES = 8;
layout(constant_id = 2) const bool WEIGHT = true;
layout(constant_id = 3) const bool SCALED = false;

layout(push_constant) uniform Push {
    int rows;
    int begin, group;
    int in_off, in_stride, out_off, out_stride;
    int weight_off;
    float eps, scale;
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
shared float part[LANES];

void main() {
    int lane = int(gl_LocalInvocationID.x), line = int(gl_WorkGroupID.y);
    int first = p.begin + int(gl_WorkGroupID.x) * p.group;
    int from = p.in_off + line * p.in_stride + first, to = p.out_off + line * p.out_stride + first;
    float sum = 0.0;
    for (int i = lane; i < p.group; i += LANES)
        sum = fma(x[from + i], x[from + i], sum);
    part[lane] = sum;
    for (int n = LANES / 2; n > 0; n /= 2) {
        barrier();
        if (lane < n) part[lane] += part[lane + n];
    }
    barrier();
    float factor = divide(SCALED ? p.scale : 1.0, sqrt(part[0] / float(p.group) + p.eps));
    for (int i = lane; i < p.group; i += LANES) {
        float y = x[from + i] * factor;
        out_[to + i] = WEIGHT ? y * w[p.weight_off + i] : y;
    }
}
