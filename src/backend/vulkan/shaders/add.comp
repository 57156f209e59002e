/* out = a + b (+ c) */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
layout(local_size_x_id = 0) in;
layout(constant_id = 1) const bool THREE = false;

layout(push_constant) uniform Push {
    int begin, end;
    int a_off, a_stride, b_off, b_stride, out_off, out_stride;
    int c_off, c_stride;
} p;
layout(std430, set = 0, binding = 1) readonly buffer A {
    float a[];
};
layout(std430, set = 0, binding = 2) readonly buffer B {
    float b[];
};
layout(std430, set = 0, binding = 3) writeonly buffer Out { /* may be a */
    float out_[];
};

layout(std430, set = 0, binding = 4) readonly buffer C {
    float c[];
};

void main() {
    int column = p.begin + int(gl_GlobalInvocationID.x), line = int(gl_WorkGroupID.y);
    if (column >= p.end) return;
    precise float y = a[p.a_off + line * p.a_stride + column] + b[p.b_off + line * p.b_stride + column];
    if (THREE) y = y + c[p.c_off + line * p.c_stride + column];
    out_[p.out_off + line * p.out_stride + column] = y;
}
