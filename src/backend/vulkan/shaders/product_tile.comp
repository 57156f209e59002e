/* Class q8 for many lines: 64 rows and TILE lines a work-group, whose weights are decoded once into
 * shared memory. As in product_q8.comp the blocks of a row are dealt to SPLIT parts, here of 64 lanes
 * each, and every output is the same chain: the bits are those of the small tile. A lane has a row of
 * each of four groups, and LINES lines. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "dot.glsl"
#include "common.glsl"
#include "types.glsl"
layout(local_size_x_id = 0) in; /* 64 * SPLIT */
layout(constant_id = 1) const int TYPE = Q8_0;
#define TILE 32 /* VK_LARGE_TILE */
layout(constant_id = 3) const int SPLIT = 1;
layout(constant_id = 4) const bool BIAS = false;
#include "packed.glsl"
#include "lines.glsl"

layout(std430, set = 0, binding = 2) readonly buffer In {
    uint x[]; /* as in product_q8.comp */
};
#define ROWS  64
#define LINES (TILE / 4)
/* Of each part's block: codes by granule, and what they are scaled with. */
shared uint w_codes[SPLIT * 8 * ROWS];
shared vec2 w_scale[SPLIT * ROWS];
shared vec2 w_least[SPLIT * ROWS];
shared uint x_codes[SPLIT * 8 * TILE];
shared float x_scale[SPLIT * TILE];
shared uint x_sums[SPLIT * TILE];
shared float total[ROWS * TILE];

/* A row of the 64 and (by words) a line of the tile, for lane i of part s: block b. */
void stage(int s, int i, int b, int n_blocks, int group, int line_at, int words) {
    int r = i & 15, code_at = codes_at(group, b, n_blocks) + r;
    vec2 scale[1], least[1];
    uint code[1];
    scales(group, b, r, scale, least);
    w_scale[s * ROWS + i] = scale[0];
    w_least[s * ROWS + i] = least[0];
    for (int g = 0; g < 8; g++) {
        codes(code_at, g, code);
        w_codes[(s * 8 + g) * ROWS + i] = code[0];
    }
    int line = i % TILE, first = i / TILE * words;
    for (int g = first; g < first + words; g++)
        x_codes[(s * 8 + g) * TILE + line] = x[line_at + 8 * b + g];
    if (i >= TILE) return;
    x_scale[s * TILE + line] = uintBitsToFloat(x[line_at + 8 * n_blocks + b]);
    x_sums[s * TILE + line] = x[line_at + 9 * n_blocks + b];
}

/* One block of a part added to its lane's sums. */
void add_block(int s, int r, int t0, inout float acc[4 * LINES]) {
    float block[4 * LINES];
    for (int h = 0; h < 2; h++) {
        int sum[4 * LINES];
        for (int i = 0; i < 4 * LINES; i++)
            sum[i] = 0;
        for (int g = 4 * h; g < 4 * h + 4; g++) {
            uint a[4];
            for (int i = 0; i < 4; i++)
                a[i] = w_codes[(s * 8 + g) * ROWS + 16 * i + r];
            for (int t = 0; t < LINES; t++) {
                uint b = x_codes[(s * 8 + g) * TILE + t0 + t];
                for (int i = 0; i < 4; i++)
                    sum[4 * t + i] += dot4(a[i], b);
            }
        }
        for (int i = 0; i < 4; i++) {
            vec2 scale = w_scale[s * ROWS + 16 * i + r], least = w_least[s * ROWS + 16 * i + r];
            for (int t = 0; t < LINES; t++)
                block[4 * t + i] = add_half(h == 0 ? 0.0 : block[4 * t + i], scale[h], least[h], sum[4 * t + i],
                                            half_sum(x_sums[s * TILE + t0 + t], h), h == 0, HAS_MIN);
        }
    }
    for (int t = 0; t < LINES; t++) {
        float scale = x_scale[s * TILE + t0 + t];
        for (int i = 0; i < 4; i++)
            acc[4 * t + i] = fma(block[4 * t + i], scale, acc[4 * t + i]);
    }
}

void main() {
    int s = int(gl_LocalInvocationID.x) / ROWS, i = int(gl_LocalInvocationID.x) % ROWS;
    int n_blocks = p.n_cols / 32, r = i & 15, t0 = i / 16 * LINES, row0 = int(gl_WorkGroupID.x) * ROWS;
    int first, n, matrix, bias_at;
    if (!open_tile(first, n, matrix, bias_at)) return;
    n = min(n, TILE);
    int last = (p.n_rows - 1) / 16, line_at = in_at(tile_line(first, n, i % TILE));
    int group = matrix + min(row0 / 16 + i / 16, last) * p.unit_words;
    float acc[4 * LINES];
    for (int j = 0; j < 4 * LINES; j++)
        acc[j] = 0.0;
    for (int b = 0; b < n_blocks; b += SPLIT) {
        bool mine = b + s < n_blocks;
        if (mine) stage(s, i, b + s, n_blocks, group, line_at, 8 * TILE / ROWS);
        barrier();
        if (mine && t0 < n) add_block(s, r, t0, acc);
        barrier();
    }
    for (int part = 0; SPLIT > 1 && part < SPLIT; part++) { /* in their order, one after the other */
        for (int j = 0; j < 4 * LINES && s == part; j++) {
            int at = (t0 + j / 4) * ROWS + 16 * (j % 4) + r;
            total[at] = (part == 0 ? 0.0 : total[at]) + acc[j];
        }
        barrier();
    }
    for (int j = s * 4 * LINES / SPLIT; j < (s + 1) * 4 * LINES / SPLIT; j++) {
        int t = t0 + j / 4, row = row0 + 16 * (j % 4) + r;
        float sum = SPLIT > 1 ? total[t * ROWS + 16 * (j % 4) + r] : acc[j];
        if (t < n && row < p.n_rows)
            out_[out_at(tile_line(first, n, t)) + row] = result(sum, bias_at, t, row);
    }
}
