/* How the sums of packed products begin and end. */
#ifdef PAIR
#include "act.glsl"
layout(constant_id = 5) const bool BYTES = false; /* what one line comes to is rounded to 8 bits too */
shared float part[2 * 16 * SPLIT * TILE * (BYTES ? 2 : 1)];
#else
#define BYTES false
shared float part[16 * SPLIT * TILE];
#endif

/* Groups of rows that a work-group has: without SPLIT, as many as give it 8 lanes; those of a block of
 * what is rounded. */
#define GROUPS (LANE_ROWS == 4 || BYTES ? 2 : 1)
#define GROUP_LANES (LANES * SPLIT)
int group_of(int lane) { return GROUPS == 1 ? int(gl_WorkGroupID.x) : GROUPS * int(gl_WorkGroupID.x) + lane / GROUP_LANES; }
/* The last one may have none. */
int group_at(int lane) { return GROUPS == 1 ? group_of(lane) : min(group_of(lane), (p.n_rows + 15) / 16 - 1); }
int first_row(int lane) { return lane % LANES * LANE_ROWS; }
int first_block(int lane) { return SPLIT == 1 ? 0 : lane % GROUP_LANES / LANES; }

/* A row's sum from those of its lanes: its line, and which of so many matrices. */
int part_at(int lane, int t, int matrix) { return ((matrix * TILE + t) * GROUPS + lane / GROUP_LANES) * GROUP_LANES; }
float part_sum(int at, int lane) {
    float sum = 0.0;
    for (int s = 0; s < SPLIT; s++)
        sum += part[at + LANES * s + lane % LANES];
    return sum;
}

#ifndef PAIR
/* acc: the lane's sums for its rows, of each line. */
void finish(float acc[TILE][LANE_ROWS], int lane, int n, int to[TILE], int bias_at) {
    int row = group_of(lane) * 16 + first_row(lane);
    if (SPLIT == 1) {
        for (int i = 0; i < LANE_ROWS && row + i < p.n_rows; i++)
            for (int t = 0; t < TILE && t < n; t++)
                out_[to[t] + row + i] = result(acc[t][i], bias_at, t, row + i);
        return;
    }
    for (int t = 0; t < TILE; t++)
        part[part_at(lane, t, 0) + lane % GROUP_LANES] = acc[t][0];
    barrier();
    if (row >= p.n_rows) return;
    for (int t = first_block(lane); t < TILE && t < n; t += SPLIT)
        out_[to[t] + row] = result(part_sum(part_at(lane, t, 0), lane), bias_at, t, row);
}
#else
#define WIDE false
#define ROUNDED 4
#include "rounded.glsl"
shared vec4 made[8];

void keep(float first, float second, int at, int row) {
    precise float y = activate(ACT, first, second);
    out_[at + row] = y;
    if (BYTES) made[(row & 31) >> 2][row & 3] = y;
}

/* The same of both matrices. */
void finish_pair(float acc[TILE][LANE_ROWS], float second[TILE][LANE_ROWS], int lane, int n, int to[TILE]) {
    int row = group_of(lane) * 16 + first_row(lane);
    if (SPLIT == 1) {
        for (int i = 0; i < LANE_ROWS && row + i < p.n_rows; i++)
            for (int t = 0; t < TILE && t < n; t++)
                keep(acc[t][i], second[t][i], to[t], row + i);
    } else {
        for (int t = 0; t < TILE; t++) {
            part[part_at(lane, t, 0) + lane % GROUP_LANES] = acc[t][0];
            part[part_at(lane, t, 1) + lane % GROUP_LANES] = second[t][0];
        }
        barrier();
        for (int t = first_block(lane); t < TILE && t < n && row < p.n_rows; t += SPLIT)
            keep(part_sum(part_at(lane, t, 0), lane), part_sum(part_at(lane, t, 1), lane), to[t], row);
    }
    if (!BYTES) return;
    barrier();
    if (lane == 0) round_block(made, p.bytes_off, int(gl_WorkGroupID.x), p.bytes_stride / 10);
}
#endif
