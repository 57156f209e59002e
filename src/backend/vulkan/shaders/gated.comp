/* out = silu(gate) * up */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
layout(local_size_x_id = 0) in;

layout(push_constant) uniform Push {
    int rows;
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

void main() {
    int column = p.begin + int(gl_GlobalInvocationID.x), line = int(gl_WorkGroupID.y);
    if (column >= p.end || line >= round_lines(p.rows)) return;
    float g = gate[p.gate_off + line * p.gate_stride + column];
    float u = up[p.up_off + line * p.up_stride + column];
    out_[p.out_off + line * p.out_stride + column] = divide(g, 1.0 + exp_f32(-g)) * u;
}
