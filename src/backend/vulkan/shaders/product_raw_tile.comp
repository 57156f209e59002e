/* Plain types for many lines: 32 rows and TILE lines a work-group, whose weights and inputs pass
 * through shared memory. As in product_raw.comp a row's columns are dealt, four at a time, to LANES
 * parts, here of 16 lanes each, and every output is the same chain: the bits are those of the small
 * tile. A lane has every fourth of the rows, and of the lines. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "types.glsl"
layout(local_size_x_id = 0) in; /* 16 * LANES */
layout(constant_id = 1) const int TYPE = F32;
#define TILE 32 /* VK_LARGE_TILE */
layout(constant_id = 3) const int LANES = 16;
layout(constant_id = 4) const bool BIAS = false;
#include "raw.glsl"
#include "lines.glsl"

layout(std430, set = 0, binding = 2) readonly buffer In {
    float x[];
};
#define ROWS   32 /* VK_RAW_ROWS; as many as lines */
#define STRIDE 33 /* lanes of different parts write to different banks */
/* Of each part: its four columns of each row, and of each line. */
shared vec4 w_part[LANES * STRIDE];
shared vec4 x_part[LANES * STRIDE];
shared float total[ROWS * TILE];

/* Columns c..c+3 of the line at `at`; zeros behind the last one, as rows end in. */
vec4 inputs(int at, int c) {
    int i = at + c, left = p.n_cols - c;
    return vec4(x[i], left > 1 ? x[i + 1] : 0.0, left > 2 ? x[i + 2] : 0.0, left > 3 ? x[i + 3] : 0.0);
}

/* A part's four columns added to its lane's sums: of rows r, r + 4.. and lines t0, t0 + 4.. */
void add_columns(int s, int r, int t0, int n, inout float acc[64]) {
    vec4 a[8];
    for (int i = 0; i < 8; i++)
        a[i] = w_part[s * STRIDE + r + 4 * i];
    for (int t = 0; t < 8; t++) {
        if (4 * t >= n) continue;
        vec4 b = x_part[s * STRIDE + t0 + 4 * t];
        for (int i = 0; i < 8; i++) {
            float sum = fma(a[i].x, b.x, acc[8 * t + i]);
            sum = fma(a[i].y, b.y, sum);
            sum = fma(a[i].z, b.z, sum);
            acc[8 * t + i] = fma(a[i].w, b.w, sum);
        }
    }
}

void main() {
    int lane = int(gl_LocalInvocationID.x), s = lane / 16, r = lane & 3, t0 = lane / 4 & 3;
    int row0 = int(gl_WorkGroupID.x) * ROWS, first, n, matrix, bias_at, row_at[2], line_at[2];
    if (!open_tile(first, n, matrix, bias_at)) return;
    n = min(n, TILE);
    int own = lane / LANES, column = 4 * (lane % LANES); /* what it stages: rows and lines own, own + 16 */
    for (int i = 0; i < 2; i++) {
        row_at[i] = matrix + min(row0 + own + 16 * i, p.n_rows - 1) * p.unit_words;
        line_at[i] = in_at(tile_line(first, n, own + 16 * i));
    }
    float acc[64];
    for (int i = 0; i < 64; i++)
        acc[i] = 0.0;
    for (int c = 0; c < p.n_cols; c += 4 * LANES) {
        for (int i = 0; i < 2 && c + column < p.n_cols; i++) {
            int at = column / 4 * STRIDE + own + 16 * i;
            w_part[at] = raw_weights(row_at[i], c + column);
            x_part[at] = inputs(line_at[i], c + column);
        }
        barrier();
        if (c + 4 * s < p.n_cols) add_columns(s, r, t0, n, acc);
        barrier();
    }
    for (int part = 0; part < LANES; part++) { /* in their order, one after the other */
        for (int i = 0; i < 64 && s == part; i++) {
            int at = (t0 + 4 * (i / 8)) * ROWS + r + 4 * (i % 8);
            total[at] = (part == 0 ? 0.0 : total[at]) + acc[i];
        }
        barrier();
    }
    for (int i = lane; i < ROWS * TILE; i += 16 * LANES) {
        int t = i / ROWS, row = row0 + i % ROWS;
        if (t < n && row < p.n_rows)
            out_[out_at(tile_line(first, n, t)) + row] = result(total[i], bias_at, t, row);
    }
}
