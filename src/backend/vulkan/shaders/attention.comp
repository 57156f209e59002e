/* One query head of one token over its sequence's pages, with a streaming softmax: fixed ranges of
 * 256 keys, merged in order. Lanes share the keys of a range for scores, the columns for values, so
 * that neighbours read neighbours (backend/kv_layout.h). */
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_shader_16bit_storage : require
#include "common.glsl"
#include "types.glsl"
#ifdef BY_ADDRESS
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require
#include "cache.glsl"
#endif
layout(local_size_x_id = 0) in; /* LANES, a power of two */
layout(constant_id = 1) const int LANES = 8;
layout(constant_id = 2) const int DIM = 64;
layout(constant_id = 3) const int TYPE_K = KV_F16;
layout(constant_id = 4) const int TYPE_V = KV_F16;
layout(constant_id = 5) const bool SINKS = false;
layout(constant_id = 6) const bool PARTIAL = false; /* a range each, for attention_merge.comp */
const int RANGE = 256;
const int MINE = (DIM + LANES - 1) / LANES; /* columns of a lane */

layout(push_constant) uniform Push {
    int q_off, q_stride, out_off, out_stride; /* PARTIAL: out_stride is the room for ranges */
    int group;     /* query heads of a KV head */
    int n_kv_heads; /* of the pages */
    int window;    /* keys seen; 0: all */
    int chunk;     /* keys of the same chunk are seen; 0: no chunks */
    float scale;
    int temp_length; /* queries grow with their position; 0: not */
    float temp_scale;
    float soft_cap; /* of scores; 0: none */
    int sinks_off;
    int first; /* token */
    int kv_class;
#ifdef BY_ADDRESS
    int n_pages;
    uint k_low, k_high, v_low, v_high;
#endif
} p;
layout(std430, set = 0, binding = 1) readonly buffer Query {
    float query[];
};
#ifdef BY_ADDRESS
#define k_words  FLOATS_AT(uvec2(p.k_low, p.k_high))
#define k_codes  INTS_AT(uvec2(p.k_low, p.k_high))
#define k_halves HALVES_AT(uvec2(p.k_low, p.k_high))
#define v_words  FLOATS_AT(uvec2(p.v_low, p.v_high))
#define v_halves HALVES_AT(uvec2(p.v_low, p.v_high))
#else
layout(std430, set = 0, binding = 2) readonly buffer KeyWords {
    float k_words[];
};
layout(std430, set = 0, binding = 2) readonly buffer KeyHalves {
    uint16_t k_halves[];
};
layout(std430, set = 0, binding = 2) readonly buffer KeyCodes {
    int k_codes[];
};
layout(std430, set = 0, binding = 3) readonly buffer ValueWords {
    float v_words[];
};
layout(std430, set = 0, binding = 3) readonly buffer ValueHalves {
    uint16_t v_halves[];
};
#endif
layout(std430, set = 0, binding = 4) writeonly buffer Out {
    float out_[];
};
layout(std430, set = 0, binding = 5) readonly buffer Sinks {
    float sinks[];
};

/* Page that holds key k of token t's sequence. Memory by address has no borders, and Mesa's software
 * device reads for lanes that are switched off: theirs are any numbers. */
int page_of(int t, int k) {
#ifdef BY_ADDRESS
    return clamp(round_page(p.kv_class, p.first + t, k), 0, p.n_pages - 1);
#else
    return round_page(p.kv_class, p.first + t, k);
#endif
}

shared float q[DIM];
shared float score[RANGE];
shared float part[LANES];

float byte_of(uint pair, int c) { return float(bitfieldExtract(int(pair), 8 * (c & 1), 8)); }

/* <q, k> of the key that is `row` positions behind the pool's begin. */
float score_of(int row) {
    int lane = row & 15;
    float sum = 0.0;
    if (TYPE_K == KV_Q8_0) {
        int group = (row >> 4) * (DIM / 32 * 136), scales = 2 * group + DIM * 8 + lane; /* words; halves */
        float scale = 0.0;
        for (int c = 0; c < DIM; c += 4) {
            if (c % 32 == 0) scale = half_to_float(uint(k_halves[scales + c / 2]));
            int word = k_codes[group + c * 4 + lane];
            for (int i = 0; i < 4; i++)
                sum = fma(q[c + i], scale * float(bitfieldExtract(word, 8 * i, 8)), sum);
        }
        return sum;
    }
    int at = (row & ~15) * DIM + lane;
    for (int c = 0; c < DIM; c++, at += 16)
        sum = fma(q[c], TYPE_K == KV_F32 ? k_words[at] : half_to_float(uint(k_halves[at])), sum);
    return sum;
}
float value(int row, int c) {
    if (TYPE_V == KV_F32) return v_words[row * DIM + c];
    if (TYPE_V == KV_F16) return half_to_float(uint(v_halves[row * DIM + c]));
    int at = row * (DIM / 32 * 17) + c / 32 * 17;
    return half_to_float(uint(v_halves[at])) * byte_of(uint(v_halves[at + 1 + (c & 31) / 2]), c);
}

/* Of all lanes' x. */
float max_all(int lane, float x) {
    barrier();
    part[lane] = x;
    for (int n = LANES / 2; n > 0; n /= 2) {
        barrier();
        if (lane < n) part[lane] = max(part[lane], part[lane + n]);
    }
    barrier();
    return part[0];
}
float sum_all(int lane, float x) {
    barrier();
    part[lane] = x;
    for (int n = LANES / 2; n > 0; n /= 2) {
        barrier();
        if (lane < n) part[lane] += part[lane + n];
    }
    barrier();
    return part[0];
}

void main() {
    int lane = int(gl_LocalInvocationID.x), h = int(gl_WorkGroupID.x), t = int(gl_WorkGroupID.y);
    int position = round_position(p.first + t), head = h / p.group, from = p.q_off + t * p.q_stride + h * DIM;
    int first = p.window > 0 ? max(0, position + 1 - p.window) : 0;
    if (p.chunk > 0) first = max(first, position / p.chunk * p.chunk);
    float temp = 1.0;
    if (p.temp_length > 0)
        temp += p.temp_scale * log(1.0 + float((position + 1) / p.temp_length));
    float top = -1e38, sum = 0.0;
    float acc[MINE];
    for (int i = 0; i < MINE; i++)
        acc[i] = 0.0;
    for (int c = lane; c < DIM; c += LANES)
        q[c] = query[from + c] * temp;
    int from_range = PARTIAL ? int(gl_WorkGroupID.z) : first / RANGE;
    if (PARTIAL && (from_range < first / RANGE || from_range * RANGE > position)) return;
    for (int start = from_range * RANGE; start <= position; start += RANGE) {
        int begin = max(first, start), end = min(start + RANGE, position + 1);
        float most = -3e38, exps = 0.0;
        barrier();
        for (int k = begin + lane; k < end; k += LANES) {
            int row = ((page_of(t, k) * p.n_kv_heads + head) << 6) + (k & 63);
            float dot_ = score_of(row) * p.scale;
            if (p.soft_cap > 0.0) dot_ = p.soft_cap * tanh_f32(dot_ / p.soft_cap);
            score[k - start] = dot_;
            most = max(most, dot_);
        }
        most = max_all(lane, most);
        for (int k = begin + lane; k < end; k += LANES) {
            float e = exp_f32(score[k - start] - most);
            score[k - start] = e;
            exps += e;
        }
        exps = sum_all(lane, exps);
        float both = max(top, most), old = exp_f32(top - both), new_ = exp_f32(most - both);
        if (start == from_range * RANGE) old = 0.0;
        float mine[MINE];
        for (int i = 0; i < MINE; i++)
            mine[i] = 0.0;
        for (int k = begin; k < end; k++) {
            int row = ((page_of(t, k) * p.n_kv_heads + head) << 6) + (k & 63);
            float e = score[k - start];
            for (int i = 0; i < MINE; i++)
                if (lane + i * LANES < DIM) mine[i] = fma(e, value(row, lane + i * LANES), mine[i]);
        }
        for (int i = 0; i < MINE; i++)
            acc[i] = acc[i] * old + mine[i] * new_;
        sum = sum * old + exps * new_;
        top = both;
        if (PARTIAL) break;
    }
    if (PARTIAL) {
        int to = (h * p.out_stride + from_range) * (DIM + 2);
        if (lane == 0) {
            out_[to] = top;
            out_[to + 1] = sum;
        }
        for (int i = 0; i < MINE; i++)
            if (lane + i * LANES < DIM) out_[to + 2 + lane + i * LANES] = acc[i];
        return;
    }
    if (SINKS) { /* one more score, without a value */
        float sink = sinks[p.sinks_off + h], both = max(top, sink), old = exp_f32(top - both);
        sum = sum * old + exp_f32(sink - both);
        for (int i = 0; i < MINE; i++)
            acc[i] *= old;
    }
    float inverse = divide(1.0, sum);
    for (int i = 0; i < MINE; i++)
        if (lane + i * LANES < DIM)
            out_[p.out_off + t * p.out_stride + h * DIM + lane + i * LANES] = acc[i] * inverse;
}
