/* The pairs of a pass by expert: one work-group. A pair is a line and an expert of this device that
 * it chose. The list: how many tiles there are; where the pairs begin; of each tile its expert, its
 * first pair and how many; then the pairs. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
layout(local_size_x_id = 0) in; /* LANES */
layout(constant_id = 1) const int LANES = 8;
layout(constant_id = 2) const int N_EXPERTS = 8; /* of this device */
layout(constant_id = 3) const int TILE = 8;

layout(push_constant) uniform Push {
    int from, most; /* lines of the pass */
    int n_used, expert_begin;
    int route_off, route_stride;
    int list_off;
    int at_pairs;
} p;
layout(std430, set = 0, binding = 1) readonly buffer Route {
    float route[];
};
layout(std430, set = 0, binding = 2) writeonly buffer List {
    uint list[];
};
shared int next[N_EXPERTS];  /* pairs of an expert; then where its next one goes */

/* The expert of a pair, -1: not of this device. */
int expert_of(int pair) {
    float id = route[p.route_off + pair / p.n_used * p.route_stride + pair % p.n_used] - float(p.expert_begin);
    return id >= 0.0 && id < float(N_EXPERTS) ? int(id) : -1;
}

void main() {
    int lane = int(gl_LocalInvocationID.x);
    int n_pairs = min(round_lines(p.from), p.most) * p.n_used;
    for (int e = lane; e < N_EXPERTS; e += LANES)
        next[e] = 0;
    barrier();
    for (int i = lane; i < n_pairs; i += LANES) {
        int e = expert_of(i);
        if (e >= 0) atomicAdd(next[e], 1);
    }
    barrier();
    if (lane == 0) {
        int n_tiles = 0, sum = 0;
        for (int e = 0; e < N_EXPERTS; e++) {
            int count = next[e];
            next[e] = sum;
            for (int i = 0; i < count; i += TILE, n_tiles++) {
                int at = p.list_off + 2 + 3 * n_tiles;
                list[at] = uint(e + p.expert_begin);
                list[at + 1] = uint(sum + i);
                list[at + 2] = uint(min(TILE, count - i));
            }
            sum += count;
        }
        list[p.list_off] = uint(n_tiles);
        list[p.list_off + 1] = uint(p.at_pairs);
    }
    barrier();
    for (int i = lane; i < n_pairs; i += LANES) {
        int e = expert_of(i);
        if (e >= 0) list[p.list_off + p.at_pairs + atomicAdd(next[e], 1)] = uint(i);
    }
}
