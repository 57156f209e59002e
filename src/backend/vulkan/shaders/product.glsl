/* How the sums of packed products begin and end. */
#include "act.glsl"
shared float part[(GATE > 0 ? 2 : 1) * 16 * SPLIT * TILE];

/* Groups of rows that a work-group has: without SPLIT, as many as give it 8 lanes. */
#define GROUPS (LANE_ROWS == 4 ? 2 : 1)
int group_of(int lane) { return GROUPS == 1 ? int(gl_WorkGroupID.x) : GROUPS * int(gl_WorkGroupID.x) + lane / LANES; }
/* The last one may have none. */
int group_at(int lane) { return GROUPS == 1 ? group_of(lane) : min(group_of(lane), (p.n_rows + 15) / 16 - 1); }
int first_row(int lane) { return lane % LANES * LANE_ROWS; }
int first_block(int lane) { return SPLIT == 1 ? 0 : lane / LANES; }

/* Of a pair: act(gate) * up. */
float of_pair(float gate, float up) {
    if (GATE == 0) return gate;
    precise float y = activate(GATE - 1, gate, up);
    return y;
}
float part_sum(int at) {
    float sum = 0.0;
    for (int s = 0; s < SPLIT; s++)
        sum += part[at + 16 * s];
    return sum;
}

/* acc: the lane's sums for its rows, of each line; up: likewise, of a pair's second matrix. */
void finish(float acc[TILE][LANE_ROWS], float up[TILE][LANE_ROWS], int lane, int n, int to[TILE], int bias_at) {
    int row = group_of(lane) * 16 + first_row(lane);
    if (SPLIT == 1) {
        for (int i = 0; i < LANE_ROWS && row + i < p.n_rows; i++)
            for (int t = 0; t < TILE && t < n; t++)
                out_[to[t] + row + i] = of_pair(result(acc[t][i], bias_at, t, row + i), up[t][i]);
        return;
    }
    for (int t = 0; t < TILE; t++) {
        part[t * 16 * SPLIT + lane] = acc[t][0];
        if (GATE > 0) part[(TILE + t) * 16 * SPLIT + lane] = up[t][0];
    }
    barrier();
    if (row >= p.n_rows) return;
    for (int t = lane >> 4; t < TILE && t < n; t += SPLIT) {
        int at = t * 16 * SPLIT + (lane & 15);
        float sum = result(part_sum(at), bias_at, t, row);
        out_[to[t] + row] = of_pair(sum, GATE > 0 ? part_sum(TILE * 16 * SPLIT + at) : 0.0);
    }
}
