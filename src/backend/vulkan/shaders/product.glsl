/* What the products of packed weights share: their numbers, and how their sums end. */
layout(push_constant) uniform Push {
    int rows;           /* lines are wanted rows */
    int n_rows, n_cols; /* of the window */
    int group_words;    /* from group to group */
    int in_off, in_stride, out_off, out_stride;
    int bias_off; /* of the window's first row */
} p;
layout(std430, set = 0, binding = 3) writeonly buffer Out {
    float out_[];
};
layout(std430, set = 0, binding = 4) readonly buffer Bias {
    float bias[];
};
shared float part[16 * SPLIT * TILE];

/* acc: the lane's sums for its row, of TILE lines from `first` on. */
void finish(float acc[TILE], int lane, int first, int n) {
    int row = int(gl_WorkGroupID.x) * 16 + (lane & 15);
    if (SPLIT == 1) {
        if (row >= p.n_rows) return;
        for (int t = 0; t < TILE && first + t < n; t++)
            out_[p.out_off + (first + t) * p.out_stride + row] = BIAS ? acc[t] + bias[p.bias_off + row] : acc[t];
        return;
    }
    for (int t = 0; t < TILE; t++)
        part[t * 16 * SPLIT + lane] = acc[t];
    barrier();
    if (row >= p.n_rows) return;
    for (int t = lane >> 4; t < TILE && first + t < n; t += SPLIT) {
        float sum = 0.0;
        for (int s = 0; s < SPLIT; s++)
            sum += part[t * 16 * SPLIT + 16 * s + (lane & 15)];
        out_[p.out_off + (first + t) * p.out_stride + row] = BIAS ? sum + bias[p.bias_off + row] : sum;
    }
}
