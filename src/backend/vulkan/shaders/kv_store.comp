/* Keys or values of a round into their pages (backend/kv_layout.h): a lane up to 32 elements of a
 * head of a token. */
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
layout(local_size_x_id = 0) in;
layout(constant_id = 1) const int TYPE = KV_F16;
layout(constant_id = 2) const bool KEYS = false; /* in groups of 16 positions */

layout(push_constant) uniform Push {
    int in_off, in_stride;
    int n_heads, head_dim;
    int first; /* token */
    int kv_class;
#ifdef BY_ADDRESS
    uint low, high;
#endif
} p;
layout(std430, set = 0, binding = 1) readonly buffer In {
    float x[];
};
#ifdef BY_ADDRESS
#define words  FLOATS_AT(uvec2(p.low, p.high))
#define halves HALVES_AT(uvec2(p.low, p.high))
#else
layout(std430, set = 0, binding = 2) writeonly buffer Words {
    float words[];
};
layout(std430, set = 0, binding = 2) writeonly buffer Halves {
    uint16_t halves[];
};
#endif

void store_q8(int row, int c, int from) {
    int pair = row * (p.head_dim / 32 * 17) + c / 32 * 17, scale = pair++;
    if (KEYS) { /* in halves: 2 of a word of 4 columns, 16 words; the scales behind all words */
        int group = (row >> 4) * (p.head_dim / 32 * 272), lane = row & 15;
        pair = group + c * 8 + lane * 2;
        scale = group + p.head_dim * 8 + c / 2 + lane;
    }
    float most = 0.0;
    for (int i = 0; i < 32; i++)
        most = max(most, abs(x[from + i]));
    bool zero = most < Q8_MIN_MAX;
    float inverse = zero ? 0.0 : divide(127.0, most);
    halves[scale] = uint16_t(half_from_float(zero ? 0.0 : divide(most, 127.0)));
    for (int i = 0; i < 16; i++) {
        int low = int(roundEven(x[from + 2 * i] * inverse)), high = int(roundEven(x[from + 2 * i + 1] * inverse));
        halves[KEYS ? pair + i / 2 * 32 + i % 2 : pair + i] = uint16_t(uint(low & 255) | uint(high & 255) << 8);
    }
}

void main() {
    int chunks = (p.head_dim + 31) / 32, item = int(gl_GlobalInvocationID.x), t = int(gl_WorkGroupID.y);
    int head = item / chunks, c = item % chunks * 32;
    if (head >= p.n_heads) return;
    int position = round_position(p.first + t);
    int row = ((round_page(p.kv_class, p.first + t, position) * p.n_heads + head) << 6) + (position & 63);
    int from = p.in_off + t * p.in_stride + head * p.head_dim + c;
    if (TYPE == KV_Q8_0) {
        store_q8(row, c, from);
        return;
    }
    int to = row * p.head_dim + c, step = 1;
    if (KEYS) {
        to = (row & ~15) * p.head_dim + c * 16 + (row & 15);
        step = 16;
    }
    for (int i = 0; i < min(32, p.head_dim - c); i++, to += step) {
        if (TYPE == KV_F32)
            words[to] = x[from + i];
        else
            halves[to] = uint16_t(half_from_float(x[from + i]));
    }
}
