/* A line for each pair: the line's numbers times the weight of the choice. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
layout(local_size_x_id = 0) in;

layout(push_constant) uniform Push {
    int n_cols, n_used;
    int route_off, route_stride, in_off, in_stride, out_off, out_stride;
} p;
layout(std430, set = 0, binding = 1) readonly buffer Route {
    float route[];
};
layout(std430, set = 0, binding = 2) readonly buffer In {
    float x[];
};
layout(std430, set = 0, binding = 3) writeonly buffer Out {
    float out_[];
};

void main() {
    int c = int(gl_GlobalInvocationID.x), pair = int(gl_WorkGroupID.y), line = pair / p.n_used;
    if (c >= p.n_cols) return;
    float weight = route[p.route_off + line * p.route_stride + p.n_used + pair % p.n_used];
    out_[p.out_off + pair * p.out_stride + c] = x[p.in_off + line * p.in_stride + c] * weight;
}
