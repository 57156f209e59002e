/* Gated delta rule (OP_DELTA of model/graph.h): a work-group has 16 columns of a head's state in
 * registers while all tokens of a run pass. SPLIT lanes share a column's rows, which they take in
 * turn. State in a slot: for each head and 16 of its columns (DIM_K, 16). */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
layout(local_size_x_id = 0) in; /* LANES */
layout(constant_id = 1) const int DIM_K = 128;
layout(constant_id = 2) const int DIM_V = 128;
layout(constant_id = 3) const int SPLIT = 1;
const int COLUMNS = 16; /* DELTA_BLOCK */
const int LANES = COLUMNS * SPLIT, ROWS = DIM_K / SPLIT;

layout(push_constant) uniform Push {
    int first, last;
    int head_begin;
    int tiled, keys; /* head j has key head j % keys; or j / keys */
    int n_floats;    /* of a slot */
    int q_off, q_stride, k_off, k_stride, v_off, v_stride, a_off, a_stride, b_off, b_stride;
    int out_off, out_stride;
    int decay_off, dt_off;
#ifdef BY_ADDRESS
    uint low, high;
#endif
} p;
#include "state.glsl"
layout(std430, set = 0, binding = 2) readonly buffer Queries {
    float q[];
};
layout(std430, set = 0, binding = 3) readonly buffer Keys {
    float k[];
};
layout(std430, set = 0, binding = 4) readonly buffer Values {
    float v[];
};
layout(std430, set = 0, binding = 5) readonly buffer A {
    float a[];
};
layout(std430, set = 0, binding = 6) readonly buffer B {
    float b[];
};
layout(std430, set = 0, binding = 7) writeonly buffer Out {
    float out_[];
};
layout(std430, set = 0, binding = 8) readonly buffer Decay {
    float decay[];
};
layout(std430, set = 0, binding = 9) readonly buffer Dt {
    float dt[];
};
shared float forgets[LANES], takes[LANES]; /* of as many tokens */
shared float parts[2 * LANES];

/* log(1 + e^x) to about one unit: the built-in logarithm is too coarse near 1 for what a state
 * forgets over thousands of tokens. log(1 + y) = 2 atanh(y / (2 + y)). */
float softplus(float x) {
    float y = exp_f32(-abs(x)), z = divide(y, 2.0 + y), s = z * z;
    float sum = 1.0 / 15.0;
    sum = fma(sum, s, 1.0 / 13.0);
    sum = fma(sum, s, 1.0 / 11.0);
    sum = fma(sum, s, 1.0 / 9.0);
    sum = fma(sum, s, 1.0 / 7.0);
    sum = fma(sum, s, 1.0 / 5.0);
    sum = fma(sum, s, 1.0 / 3.0);
    sum = fma(sum, s, 1.0);
    return max(x, 0.0) + 2.0 * z * sum;
}

/* What the lanes of this one's column have together. Places take turns, so that nobody writes where
 * others still read. */
float column_sum(float mine, int lane, int place) {
    if (SPLIT == 1) return mine;
    parts[place + lane] = mine;
    barrier();
    float sum = 0.0;
    for (int i = 0; i < SPLIT; i++)
        sum += parts[place + i * COLUMNS + lane % COLUMNS];
    return sum;
}

void main() {
    int lane = int(gl_LocalInvocationID.x), row = lane / COLUMNS;
    int block = int(gl_WorkGroupID.x), head = block / (DIM_V / COLUMNS); /* of this range */
    int whole = p.head_begin + head, key = (p.tiled != 0 ? whole % p.keys : whole / p.keys) * DIM_K + row;
    int column = p.head_begin * DIM_V + block * COLUMNS + lane % COLUMNS;
    walk w = walk_run(int(gl_WorkGroupID.y), p.first, p.last);
    if (w.begin >= w.end) return; /* all of the work-group */
    float state[ROWS];
    int at = block * COLUMNS * DIM_K + lane;
    for (int i = 0; i < ROWS; i++)
        state[i] = w.from < 0 ? 0.0 : STATES[w.from * p.n_floats + at + i * LANES];
    for (int begin = w.begin; begin < w.end; begin += LANES) {
        int end = min(begin + LANES, w.end), mine = begin + lane - p.first;
        barrier();
        if (begin + lane < end) {
            float rate = softplus(a[p.a_off + mine * p.a_stride + whole] + dt[p.dt_off + head]);
            forgets[lane] = exp_f32(decay[p.decay_off + head] * rate);
            takes[lane] = divide(1.0, 1.0 + exp_f32(-b[p.b_off + mine * p.b_stride + whole]));
        }
        barrier();
        for (int t = begin; t < end; t++) {
            int line = t - p.first;
            int k_at = p.k_off + line * p.k_stride + key, q_at = p.q_off + line * p.q_stride + key;
            float keep = forgets[t - begin], old = 0.0, sum = 0.0;
            for (int i = 0; i < ROWS; i++)
                old = fma(k[k_at + i * SPLIT], state[i], old);
            old = column_sum(old, lane, 0);
            float delta = takes[t - begin] * (v[p.v_off + line * p.v_stride + column] - keep * old);
            for (int i = 0; i < ROWS; i++) {
                state[i] = fma(k[k_at + i * SPLIT], delta, keep * state[i]);
                sum = fma(q[q_at + i * SPLIT], state[i], sum);
            }
            sum = column_sum(sum, lane, LANES);
            if (row == 0) out_[p.out_off + line * p.out_stride + column] = sum;
        }
    }
    for (int i = 0; i < ROWS; i++)
        STATES[w.to * p.n_floats + at + i * LANES] = state[i];
}
