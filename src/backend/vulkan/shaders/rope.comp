/* Rotary embedding of the heads of a range: a lane a column. The table is the host's, in double:
 * a float angle at a far position would be off by its own size. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
layout(local_size_x_id = 0) in;

layout(push_constant) uniform Push {
    int begin, end;
    int in_off, in_stride, out_off, out_stride;
    int head_dim, n_rot, halves;
    int table_off; /* a line a token: n_rot / 2 cos, then n_rot / 2 sin */
} p;
layout(std430, set = 0, binding = 1) readonly buffer Table {
    float table[];
};
layout(std430, set = 0, binding = 2) readonly buffer In {
    float x[];
};
layout(std430, set = 0, binding = 3) writeonly buffer Out {
    float out_[];
};

void main() {
    int column = p.begin + int(gl_GlobalInvocationID.x), t = int(gl_WorkGroupID.y);
    if (column >= p.end) return;
    int from = p.in_off + t * p.in_stride + column, e = column % p.head_dim, half_ = p.n_rot / 2;
    float y = x[from];
    if (e < p.n_rot) {
        int pair = p.halves != 0 ? e % half_ : e / 2, apart = p.halves != 0 ? half_ : 1;
        bool second = p.halves != 0 ? e >= half_ : (e & 1) != 0;
        int at = p.table_off + t * p.n_rot + pair;
        float c = table[at], s = table[at + half_];
        y = second ? fma(x[from - apart], s, y * c) : fma(-x[from + apart], s, y * c);
    }
    out_[p.out_off + t * p.out_stride + column] = y;
}
