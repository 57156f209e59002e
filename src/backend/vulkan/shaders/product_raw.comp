/* out = W in (+ bias) for plain types: LANES lanes share a row, four columns each at a time. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "types.glsl"
layout(local_size_x_id = 0) in; /* LANES * ROWS */
layout(constant_id = 1) const int TYPE = F32;
layout(constant_id = 2) const int TILE = 1;
layout(constant_id = 3) const int LANES = 8;
layout(constant_id = 4) const bool BIAS = false;
layout(constant_id = 5) const int ROWS = 1;
#include "raw.glsl"
#include "lines.glsl"

layout(std430, set = 0, binding = 2) readonly buffer In {
    float x[];
};
#ifdef PAIR
#include "act.glsl"
const int MATRICES = 2;
#else
const int MATRICES = 1;
#endif
shared float part[MATRICES * LANES * ROWS * TILE];

/* The lane's part of the sums of a row, which begins at word `at`. */
void add_columns(int at, int column, int from[TILE], out float acc[TILE]) {
    for (int t = 0; t < TILE; t++)
        acc[t] = 0.0;
    for (int c = 4 * column; c < p.n_cols; c += 4 * LANES) {
        vec4 q = raw_weights(at, c);
        for (int t = 0; t < TILE; t++) {
            int i = from[t] + c;
            acc[t] = fma(q.x, x[i], acc[t]);
            if (c + 1 < p.n_cols) acc[t] = fma(q.y, x[i + 1], acc[t]);
            if (c + 2 < p.n_cols) acc[t] = fma(q.z, x[i + 2], acc[t]);
            if (c + 3 < p.n_cols) acc[t] = fma(q.w, x[i + 3], acc[t]);
        }
    }
}

/* A row's sum from those of its lanes, of which the first has its part at `at`. */
float part_sum(int at) {
    float sum = 0.0;
    for (int i = 0; i < LANES; i++)
        sum += part[at + i];
    return sum;
}

void main() {
    int lane = int(gl_LocalInvocationID.x), column = lane % LANES;
    int row = int(gl_WorkGroupID.x) * ROWS + lane / LANES;
    int n, matrix, bias_at, from[TILE], to[TILE];
    if (!begin(n, from, to, matrix, bias_at)) return;
    int at = matrix + min(row, p.n_rows - 1) * p.unit_words;
    const int all = LANES * ROWS;
    float acc[TILE];
    add_columns(at, column, from, acc);
    for (int t = 0; t < TILE; t++)
        part[t * all + lane] = acc[t];
#ifdef PAIR
    reads_second = true;
    add_columns(at, column, from, acc);
    for (int t = 0; t < TILE; t++)
        part[(TILE + t) * all + lane] = acc[t];
#endif
    barrier();
    if (row >= p.n_rows) return;
    for (int t = column; t < TILE && t < n; t += LANES) {
        float sum = part_sum(t * all + lane - column);
#ifdef PAIR
        precise float y = activate(ACT, sum, part_sum((TILE + t) * all + lane - column));
#else
        float y = result(sum, bias_at, t, row);
#endif
        out_[to[t] + row] = y;
    }
}
