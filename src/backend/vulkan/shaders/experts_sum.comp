/* The outputs of a line's experts of this device, by their weights, in the order of the choice. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
layout(local_size_x_id = 0) in;
layout(constant_id = 1) const int WEIGHED = 1; /* else the inputs were scaled */

layout(push_constant) uniform Push {
    int n_cols, n_used;
    int expert_begin, expert_end; /* of the device */
    int route_off, route_stride, in_off, in_stride, out_off, out_stride;
} p;
layout(std430, set = 0, binding = 1) readonly buffer Route {
    float route[];
};
layout(std430, set = 0, binding = 2) readonly buffer In {
    float x[]; /* a line a pair */
};
layout(std430, set = 0, binding = 3) writeonly buffer Out {
    float out_[];
};

void main() {
    int c = int(gl_GlobalInvocationID.x), line = int(gl_WorkGroupID.y);
    if (c >= p.n_cols) return;
    float sum = 0.0;
    for (int j = 0; j < p.n_used; j++) {
        int at = p.route_off + line * p.route_stride + j;
        float y = x[p.in_off + (line * p.n_used + j) * p.in_stride + c];
        if (route[at] >= float(p.expert_begin) && route[at] < float(p.expert_end))
            sum = fma(WEIGHED != 0 ? route[at + p.n_used] : 1.0, y, sum);
    }
    out_[p.out_off + line * p.out_stride + c] = sum;
}
