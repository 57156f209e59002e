/* out = act(gate) * up; enum activation of model/graph.h. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "types.glsl"
layout(local_size_x_id = 0) in;
layout(constant_id = 1) const int ACT = ACT_SILU;
layout(constant_id = 2) const bool ONE_GATE = false; /* for all columns */

layout(push_constant) uniform Push {
    int begin, end;
    int gate_off, gate_stride, up_off, up_stride, out_off, out_stride;
} p;
layout(std430, set = 0, binding = 1) readonly buffer Gate {
    float gate[];
};
layout(std430, set = 0, binding = 2) readonly buffer Up {
    float up[];
};
layout(std430, set = 0, binding = 3) writeonly buffer Out {
    float out_[];
};

float sigmoid_times(float x, float arg) { return divide(x, 1.0 + exp_f32(-arg)); }

float act(float g, float u) {
    if (ACT == ACT_GELU) return sigmoid_times(g, 2.0 * 0.7978845608 * (g + 0.044715 * g * g * g)) * u;
    if (ACT == ACT_SILU) return sigmoid_times(g, g) * u;
    if (ACT == ACT_SIGMOID) return sigmoid_times(u, g);
    g = min(g, ACT_CLAMPED_LIMIT);
    return sigmoid_times(g, ACT_CLAMPED_SLOPE * g) * (clamp(u, -ACT_CLAMPED_LIMIT, ACT_CLAMPED_LIMIT) + 1.0);
}

void main() {
    int column = p.begin + int(gl_GlobalInvocationID.x), line = int(gl_WorkGroupID.y);
    if (column >= p.end) return;
    float g = gate[p.gate_off + line * p.gate_stride + (ONE_GATE ? 0 : column)];
    float u = up[p.up_off + line * p.up_stride + column];
    out_[p.out_off + line * p.out_stride + column] = act(g, u);
}
