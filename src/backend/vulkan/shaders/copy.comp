/* Columns of every line, or of the wanted rows of the input; or some of each group of columns. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
layout(local_size_x_id = 0) in;
layout(constant_id = 1) const bool SLICE = false;

layout(push_constant) uniform Push {
    int gather, first;          /* line j of out is line row(first + j) of in, */
    int token_begin, token_end; /* if it is one of these, which are bound */
    int begin, end;
    int group, first_of_group, of_group; /* SLICE: those taken are neighbours */
    int in_off, in_stride, out_off, out_stride;
} p;
layout(std430, set = 0, binding = 1) readonly buffer In {
    uint x[]; /* bits: what is copied is not looked at */
};
layout(std430, set = 0, binding = 2) writeonly buffer Out {
    uint out_[];
};

void main() {
    int column = p.begin + int(gl_GlobalInvocationID.x), line = int(gl_WorkGroupID.y);
    if (column >= p.end) return;
    int from = line;
    if (p.gather != 0) {
        int token = round_row(p.first + line);
        if (token < p.token_begin || token >= p.token_end) return;
        from = token - p.token_begin;
    }
    int source = SLICE ? column / p.of_group * p.group + p.first_of_group + column % p.of_group : column;
    out_[p.out_off + line * p.out_stride + column] = x[p.in_off + from * p.in_stride + source];
}
