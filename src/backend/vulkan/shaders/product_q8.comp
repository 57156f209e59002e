/* The same in class q8: inputs are the 8-bit lines of quantise.comp, sums over 16 are integers. A lane
 * may have several rows (packed.glsl), and then takes its inputs two words at a time. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "dot.glsl"
#include "common.glsl"
#include "types.glsl"
layout(local_size_x_id = 0) in; /* LANES * SPLIT */
layout(constant_id = 1) const int TYPE = Q8_0;
layout(constant_id = 2) const int TILE = 1;
layout(constant_id = 3) const int SPLIT = 1;
layout(constant_id = 4) const bool BIAS = false;
#include "packed.glsl"
#include "lines.glsl"
#include "product.glsl"

layout(std430, set = 0, binding = 2) readonly buffer In {
    uint x[]; /* a line: codes, then a float a block, then two 16-bit sums a block */
};
/* The words of a block, and of its end that of scales and sums. With FOUR_ROWS a lane loads one of
 * eight and has the others from its neighbours. */
#if defined(FOUR_ROWS)
#extension GL_KHR_shader_subgroup_shuffle : require
uint own_word(int at, int end) { return x[min(at + int(gl_SubgroupInvocationID), end - 1)]; }
uvec2 two_inputs(uint own, int at, int g) { return uvec2(subgroupShuffle(own, g), subgroupShuffle(own, g + 1)); }
#elif defined(TWO_ROWS)
layout(std430, set = 0, binding = 2) readonly buffer InPairs {
    uint64_t x_pairs[];
};
uvec2 two_inputs(uint own, int at, int g) { return unpackUint2x32(x_pairs[(at + g) >> 1]); }
#else
uvec2 two_inputs(uint own, int at, int g) { return uvec2(x[at + g], x[at + g + 1]); }
#endif

/* The lane's part of the sums of its rows. */
void add_blocks(int lane, int group, int line[TILE], out float acc[TILE][LANE_ROWS]) {
    int r = first_row(lane), n_blocks = p.n_cols / 32;
    for (int t = 0; t < TILE; t++)
        for (int i = 0; i < LANE_ROWS; i++)
            acc[t][i] = 0.0;
    uint own[TILE], own_scale[TILE], own_sums[TILE]; /* FOUR_ROWS */
    for (int b = first_block(lane); b < n_blocks; b += SPLIT) {
        vec2 scale[LANE_ROWS], least[LANE_ROWS];
        ivec2 sum[TILE][LANE_ROWS];
        int code_at = codes_at(group, b, n_blocks) + r;
        scales(group, b, r, scale, least);
#ifdef FOUR_ROWS
        for (int t = 0; t < TILE; t++) {
            int at = line[t] + 8 * n_blocks;
            own[t] = own_word(line[t] + 8 * b, at);
            if ((b & 7) != 0) continue;
            own_scale[t] = own_word(at + b, at + n_blocks);
            if (HAS_MIN) own_sums[t] = own_word(at + n_blocks + b, at + 2 * n_blocks);
        }
#endif
        for (int t = 0; t < TILE; t++)
            for (int i = 0; i < LANE_ROWS; i++)
                sum[t][i] = ivec2(0);
        for (int g = 0; g < 4; g += 2) /* and g + 4, whose codes may stand in the same words */
            for (int h = 0; h < 2; h++) {
                uint first[LANE_ROWS], second[LANE_ROWS];
                codes(code_at, g + 4 * h, first);
                codes(code_at, g + 4 * h + 1, second);
                for (int t = 0; t < TILE; t++) {
                    uvec2 in2 = two_inputs(own[t], line[t] + 8 * b, g + 4 * h);
                    for (int i = 0; i < LANE_ROWS; i++) {
                        int products = dot4(first[i], in2.x) + dot4(second[i], in2.y);
                        sum[t][i] += h == 0 ? ivec2(products, 0) : ivec2(0, products);
                    }
                }
            }
        for (int t = 0; t < TILE; t++) {
            int at = line[t] + 8 * n_blocks + b;
#ifdef FOUR_ROWS
            float in_scale = uintBitsToFloat(subgroupShuffle(own_scale[t], b & 7));
            uint sums = HAS_MIN ? subgroupShuffle(own_sums[t], b & 7) : 0u;
#else
            float in_scale = uintBitsToFloat(x[at]);
            uint sums = HAS_MIN ? x[at + n_blocks] : 0u;
#endif
            for (int i = 0; i < LANE_ROWS; i++) {
                ivec2 s = sum[t][i];
                float block = add_half(0.0, scale[i].x, least[i].x, s.x, half_sum(sums, 0), true, HAS_MIN);
                block = add_half(block, scale[i].y, least[i].y, s.y, half_sum(sums, 1), false, HAS_MIN);
                acc[t][i] = fma(block, in_scale, acc[t][i]);
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
