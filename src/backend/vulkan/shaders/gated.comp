/* out = act(gate) * up; of that, if it was folded in, act2(one gate) * it. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "types.glsl"
#include "act.glsl"
layout(local_size_x_id = 0) in;
layout(constant_id = 1) const int ACT = ACT_SILU;
layout(constant_id = 2) const bool ONE_GATE = false; /* for all columns */
layout(constant_id = 3) const int OUTER = 0;         /* 1 + act2; 0: none */

layout(push_constant) uniform Push {
    int begin, end;
    int gate_off, gate_stride, up_off, up_stride, out_off, out_stride;
    int outer_off, outer_stride;
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

layout(std430, set = 0, binding = 4) readonly buffer Outer {
    float outer[];
};

void main() {
    int column = p.begin + int(gl_GlobalInvocationID.x), line = int(gl_WorkGroupID.y);
    if (column >= p.end) return;
    float g = gate[p.gate_off + line * p.gate_stride + (ONE_GATE ? 0 : column)];
    float u = up[p.up_off + line * p.up_stride + column];
    precise float y = activate(ACT, g, u);
    if (OUTER > 0) y = activate(OUTER - 1, outer[p.outer_off + line * p.outer_stride], y);
    out_[p.out_off + line * p.out_stride + column] = y;
}
