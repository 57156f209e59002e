/* Short causal convolution (OP_CONV of model/graph.h): a lane a column, one chain over the taps in
 * order. State in a slot: (TAPS - 1, n_columns), oldest first. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
layout(local_size_x_id = 0) in;
layout(constant_id = 1) const int TAPS = 4;
layout(constant_id = 2) const bool SILU = true;

layout(push_constant) uniform Push {
    int first, last;
    int begin, n_columns;
    int n_floats; /* of a slot */
    int in_off, in_stride, out_off, out_stride;
    int filters_off;
#ifdef BY_ADDRESS
    uint low, high;
#endif
} p;
#include "state.glsl"
layout(std430, set = 0, binding = 2) readonly buffer In {
    float x[];
};
layout(std430, set = 0, binding = 3) writeonly buffer Out {
    float out_[];
};
layout(std430, set = 0, binding = 4) readonly buffer Filters {
    float filters[];
};

void main() {
    int c = int(gl_GlobalInvocationID.x);
    walk w = walk_run(int(gl_WorkGroupID.y), p.first, p.last);
    if (c >= p.n_columns || w.begin >= w.end) return;
    float taps[TAPS], seen[TAPS];
    for (int j = 0; j < TAPS; j++)
        taps[j] = filters[p.filters_off + c * TAPS + j];
    for (int j = 0; j < TAPS - 1; j++)
        seen[j + 1] = w.from < 0 ? 0.0 : STATES[w.from * p.n_floats + j * p.n_columns + c];
    for (int t = w.begin; t < w.end; t++) {
        int line = t - p.first;
        for (int j = 0; j < TAPS - 1; j++)
            seen[j] = seen[j + 1];
        seen[TAPS - 1] = x[p.in_off + line * p.in_stride + p.begin + c];
        float y = 0.0;
        for (int j = 0; j < TAPS; j++)
            y = fma(taps[j], seen[j], y);
        out_[p.out_off + line * p.out_stride + p.begin + c] = SILU ? divide(y, 1.0 + exp_f32(-y)) : y;
    }
    for (int j = 0; j < TAPS - 1; j++)
        STATES[w.to * p.n_floats + j * p.n_columns + c] = seen[j + 1];
}
