/* Keys and values of a round into their pages: a lane up to 32 elements of a head of a token, first
 * all keys, then all values. */
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
layout(constant_id = 1) const int TYPE_K = KV_F16;
layout(constant_id = 2) const int TYPE_V = KV_F16;

layout(push_constant) uniform Push {
    int k_off, k_stride, v_off, v_stride;
    int n_heads, head_dim;
    int first; /* token */
    int kv_class;
#ifdef BY_ADDRESS
    uint k_low, k_high, v_low, v_high;
#endif
} p;
layout(std430, set = 0, binding = 1) readonly buffer Keys {
    float inputs_k[];
};
layout(std430, set = 0, binding = 2) readonly buffer Values {
    float inputs_v[];
};
#ifdef BY_ADDRESS
#define words_k  FLOATS_AT(uvec2(p.k_low, p.k_high))
#define halves_k HALVES_AT(uvec2(p.k_low, p.k_high))
#define words_v  FLOATS_AT(uvec2(p.v_low, p.v_high))
#define halves_v HALVES_AT(uvec2(p.v_low, p.v_high))
#else
layout(std430, set = 0, binding = 3) writeonly buffer KeyWords {
    float words_k[];
};
layout(std430, set = 0, binding = 3) writeonly buffer KeyHalves {
    uint16_t halves_k[];
};
layout(std430, set = 0, binding = 4) writeonly buffer ValueWords {
    float words_v[];
};
layout(std430, set = 0, binding = 4) writeonly buffer ValueHalves {
    uint16_t halves_v[];
};
#endif

#define NAMED(x) x##_k
#define TYPE     TYPE_K
#define KEYS     true
#include "kv_half.glsl"
#undef NAMED
#undef TYPE
#undef KEYS
#define NAMED(x) x##_v
#define TYPE     TYPE_V
#define KEYS     false
#include "kv_half.glsl"

void main() {
    int chunks = (p.head_dim + 31) / 32, item = int(gl_GlobalInvocationID.x), t = int(gl_WorkGroupID.y);
    int head = item / chunks, c = item % chunks * 32;
    bool values = head >= p.n_heads;
    if (values) head -= p.n_heads;
    if (head >= p.n_heads) return;
    int position = round_position(p.first + t);
    int row = ((round_page(p.kv_class, p.first + t, position) * p.n_heads + head) << 6) + (position & 63);
    if (values)
        store_v(row, c, p.v_off + t * p.v_stride + head * p.head_dim + c);
    else
        store_k(row, c, p.k_off + t * p.k_stride + head * p.head_dim + c);
}
