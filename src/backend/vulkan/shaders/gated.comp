/* out = act(gate) * up; of that, if it was folded in, act2(one gate) * it. A lane has a column, or
 * (BYTES) 32 of them, which it rounds to 8 bits besides. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "types.glsl"
#include "act.glsl"
#include "fours.glsl"
layout(local_size_x_id = 0) in;
layout(constant_id = 1) const int ACT = ACT_SILU;
layout(constant_id = 2) const bool ONE_GATE = false; /* for all columns */
layout(constant_id = 3) const int OUTER = 0;         /* 1 + act2; 0: none */
layout(constant_id = 4) const bool BYTES = false;
layout(constant_id = 5) const bool WIDE = false; /* with BYTES only */

layout(push_constant) uniform Push {
    int begin, end;
    int gate_off, gate_stride, up_off, up_stride, out_off, out_stride;
    int outer_off, outer_stride;
    int bytes_off, bytes_stride;
} p;
FLOATS(readonly, 1, gate, Gate);
FLOATS(readonly, 2, up, Up);
FLOATS(writeonly, 3, out_, Out);
layout(std430, set = 0, binding = 4) readonly buffer Outer {
    float outer[];
};
LOADER(gate)
LOADER(up)
#define ROUNDED 5
#include "rounded.glsl"

/* Columns [column, column + n) of a line, made and kept. */
vec4 make(int column, int n, int line) {
    int gate_at = p.gate_off + line * p.gate_stride;
    vec4 g = ONE_GATE ? vec4(gate[gate_at]) : LOAD(gate, gate_at + column, n);
    vec4 u = LOAD(up, p.up_off + line * p.up_stride + column, n);
    precise vec4 y = vec4(0);
    for (int j = 0; j < n; j++) {
        y[j] = activate(ACT, g[j], u[j]);
        if (OUTER > 0) y[j] = activate(OUTER - 1, outer[p.outer_off + line * p.outer_stride], y[j]);
    }
    STORE(out_, p.out_off + line * p.out_stride + column, n, y);
    return y;
}

void main() {
    int i = int(gl_GlobalInvocationID.x), line = int(gl_WorkGroupID.y);
    int column = p.begin + (BYTES ? 32 * i : i);
    if (column >= p.end) return;
    if (!BYTES) {
        make(column, 1, line);
        return;
    }
    vec4 y[8];
    for (int g = 0; g < 8; g++)
        y[g] = make(column + 4 * g, 4, line);
    round_block(y, p.bytes_off + line * p.bytes_stride, i, (p.end - p.begin) / 32);
}
