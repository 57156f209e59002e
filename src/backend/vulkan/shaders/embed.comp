/* The rows of a round's tokens, four columns a lane; a window holds only some of the rows. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "types.glsl"
layout(local_size_x_id = 0) in;
layout(constant_id = 1) const int TYPE = Q8_0;

layout(push_constant) uniform Push {
    int first;              /* token */
    int row_begin, row_end; /* of the window */
    int n_cols;
    int group_words; /* of a row, for plain types */
    int out_off, out_stride;
    float scale;
} p;
#ifdef RAW
#include "raw.glsl"
#else
#include "packed.glsl"
#endif
layout(std430, set = 0, binding = 2) writeonly buffer Out {
    float out_[];
};

vec4 columns(int row, int c) {
#ifdef RAW
    return raw_weights(row * p.group_words, c);
#else
    int group = (row >> 4) * p.group_words, r = row & 15, b = c / 32, g = (c & 31) / 4;
    vec2 scale[1], least[1];
    uint code[1];
    scales(group, b, r, scale, least);
    codes(codes_at(group, b, p.n_cols / 32) + r, g, code);
    return weights(code[0], g, scale[0], least[0]);
#endif
}

void main() {
    int c = 4 * int(gl_GlobalInvocationID.x), t = int(gl_WorkGroupID.y);
    if (c >= p.n_cols) return;
    int row = round_token(p.first + t);
    if (row < p.row_begin || row >= p.row_end) return;
    vec4 v = columns(row - p.row_begin, c) * p.scale;
    int at = p.out_off + t * p.out_stride + c;
    for (int i = 0; i < 4 && c + i < p.n_cols; i++)
        out_[at + i] = v[i];
}
