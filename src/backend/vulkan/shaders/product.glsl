/* How the sums of packed products begin and end. */
shared float part[16 * SPLIT * TILE];

/* Groups of rows that a work-group has: without SPLIT, as many as give it 8 lanes. */
#define GROUPS (LANE_ROWS == 4 ? 2 : 1)
int group_of(int lane) { return GROUPS == 1 ? int(gl_WorkGroupID.x) : GROUPS * int(gl_WorkGroupID.x) + lane / LANES; }
/* The last one may have none. */
int group_at(int lane) { return GROUPS == 1 ? group_of(lane) : min(group_of(lane), (p.n_rows + 15) / 16 - 1); }
int first_row(int lane) { return lane % LANES * LANE_ROWS; }
int first_block(int lane) { return SPLIT == 1 ? 0 : lane / LANES; }

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
        part[t * 16 * SPLIT + lane] = acc[t][0];
    barrier();
    if (row >= p.n_rows) return;
    for (int t = lane >> 4; t < TILE && t < n; t += SPLIT) {
        float sum = 0.0;
        for (int s = 0; s < SPLIT; s++)
            sum += part[t * 16 * SPLIT + 16 * s + (lane & 15)];
        out_[to[t] + row] = result(sum, bias_at, t, row);
    }
}
