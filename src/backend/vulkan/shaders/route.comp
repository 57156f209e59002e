/* Chooses experts for a line and weighs them (model/graph.h: struct route_params): a work-group a
 * line. An expert's place is how many come before it, so no two lanes dispute one. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "types.glsl"
layout(local_size_x_id = 0) in; /* LANES */
layout(constant_id = 1) const int LANES = 8;
layout(constant_id = 2) const int N_EXPERTS = 8;
layout(constant_id = 3) const int N_USED = 2;
layout(constant_id = 4) const int GATING = GATING_SOFTMAX;
layout(constant_id = 5) const bool BIAS = false;

layout(push_constant) uniform Push {
    int in_off, in_stride, out_off, out_stride;
    int bias_off;
    int normalise;
    float scale;
} p;
layout(std430, set = 0, binding = 1) readonly buffer Scores {
    float scores[];
};
layout(std430, set = 0, binding = 2) readonly buffer Bias {
    float bias[];
};
layout(std430, set = 0, binding = 3) writeonly buffer Out {
    float out_[];
};
shared float key[N_EXPERTS];
shared int chosen[N_USED];
shared float part[LANES];

float sigmoid(float x) { return divide(1.0, 1.0 + exp_f32(-x)); }
bool is_number(float x) { return (floatBitsToUint(x) & 0x7fffffffu) <= 0x7f800000u; }

void main() {
    int lane = int(gl_LocalInvocationID.x), line = int(gl_WorkGroupID.y);
    int from = p.in_off + line * p.in_stride, to = p.out_off + line * p.out_stride;
    for (int e = lane; e < N_EXPERTS; e += LANES) {
        float k = scores[from + e];
        if (GATING == GATING_SIGMOID) k = sigmoid(k);
        if (BIAS) k += bias[p.bias_off + e];
        key[e] = is_number(k) ? k : -3.4028234e38;
    }
    barrier();
    for (int e = lane; e < N_EXPERTS; e += LANES) {
        int place = 0;
        float mine = key[e];
        for (int i = 0; i < N_EXPERTS; i++)
            if (key[i] > mine || (key[i] == mine && i < e)) place++;
        if (place < N_USED) chosen[place] = e;
    }
    barrier();
    float top = scores[from + chosen[0]], sum = 0.0;
    bool over_all = GATING == GATING_SOFTMAX && p.normalise == 0;
    if (over_all) {
        for (int e = lane; e < N_EXPERTS; e += LANES)
            sum += exp_f32(scores[from + e] - top);
        part[lane] = sum;
        barrier();
    }
    if (lane != 0) return;
    float weight[N_USED];
    sum = 0.0;
    for (int j = 0; j < N_USED; j++) {
        float score = scores[from + chosen[j]];
        weight[j] = GATING == GATING_SIGMOID ? sigmoid(score) : exp_f32(score - top);
        sum += weight[j];
    }
    if (over_all) {
        sum = 0.0;
        for (int i = 0; i < LANES; i++)
            sum += part[i];
    }
    if (GATING == GATING_SIGMOID && p.normalise == 0) sum = 1.0;
    for (int j = 0; j < N_USED; j++) {
        out_[to + j] = float(chosen[j]);
        out_[to + N_USED + j] = divide(weight[j], sum) * p.scale;
    }
}
