/* How the sums of packed products end. */
shared float part[16 * SPLIT * TILE];

/* acc: the lane's sums for its row, of each line. */
void finish(float acc[TILE], int lane, int n, int to[TILE], int bias_at) {
    int row = int(gl_WorkGroupID.x) * 16 + (lane & 15);
    if (SPLIT == 1) {
        if (row >= p.n_rows) return;
        for (int t = 0; t < TILE && t < n; t++)
            out_[to[t] + row] = result(acc[t], bias_at, t, row);
        return;
    }
    for (int t = 0; t < TILE; t++)
        part[t * 16 * SPLIT + lane] = acc[t];
    barrier();
    if (row >= p.n_rows) return;
    for (int t = lane >> 4; t < TILE && t < n; t += SPLIT) {
        float sum = 0.0;
        for (int s = 0; s < SPLIT; s++)
            sum += part[t * 16 * SPLIT + 16 * s + (lane & 15)];
        out_[to[t] + row] = result(sum, bias_at, t, row);
    }
}
