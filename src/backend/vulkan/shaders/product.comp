/* out = W in (+ bias), class f32, packed weights: a lane a row, 16 rows and TILE lines a
 * work-group. The blocks of a row are dealt to SPLIT lanes and added in their order. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "types.glsl"
layout(local_size_x_id = 0) in; /* 16 * SPLIT */
layout(constant_id = 1) const int TYPE = Q8_0;
layout(constant_id = 2) const int TILE = 1;
layout(constant_id = 3) const int SPLIT = 1;
layout(constant_id = 4) const bool BIAS = false;
#include "packed.glsl"
#include "lines.glsl"
#include "product.glsl"

layout(std430, set = 0, binding = 2) readonly buffer In {
    float x[];
};

/* The lane's part of the sums of its row. */
void add_blocks(int lane, int group, int line[TILE], out float acc[TILE][LANE_ROWS]) {
    int r = first_row(lane), n_blocks = p.n_cols / 32;
    for (int t = 0; t < TILE; t++)
        acc[t][0] = 0.0;
    for (int b = first_block(lane); b < n_blocks; b += SPLIT) {
        vec2 scale[1], least[1];
        int code_at = codes_at(group, b, n_blocks) + r;
        scales(group, b, r, scale, least);
        for (int g = 0; g < 8; g++) {
            uint code[1];
            codes(code_at, g, code);
            vec4 q = weights(code[0], g, scale[0], least[0]);
            for (int t = 0; t < TILE; t++) {
                int at = line[t] + 32 * b + 4 * g;
                acc[t][0] = fma(q.x, x[at], acc[t][0]);
                acc[t][0] = fma(q.y, x[at + 1], acc[t][0]);
                acc[t][0] = fma(q.z, x[at + 2], acc[t][0]);
                acc[t][0] = fma(q.w, x[at + 3], acc[t][0]);
            }
        }
    }
}

void main() {
    int lane = int(gl_LocalInvocationID.x), n, matrix, bias_at, line[TILE], to[TILE];
    if (!begin(n, line, to, matrix, bias_at)) return;
    int group = matrix + group_at(lane) * p.unit_words;
    float acc[TILE][LANE_ROWS];
    add_blocks(lane, group, line, acc);
#ifdef PAIR
    float second[TILE][LANE_ROWS];
    reads_second = true;
    add_blocks(lane, group, line, second);
    finish_pair(acc, second, lane, n, to);
#else
    finish(acc, lane, n, to, bias_at);
#endif
}
