/* The entries of the table that the bodies give. Last in every kernels_ISA.c. */
#pragma once

static void bodies_fill(struct kernels *k) {
#define ENTRY(lower, upper)                                                                        \
    k->matmul_f32[DTYPE_##upper] = matmul_f32_##lower;                                             \
    k->matmul_packed_f32[DTYPE_##upper] = matmul_packed_f32_##lower;
    FLOAT_WEIGHT_MAP(ENTRY)
    Q8_WEIGHT_MAP(ENTRY)
#undef ENTRY
#define ENTRY(lower, upper)                                                                        \
    k->matmul_q8[DTYPE_##upper] = matmul_q8_##lower;                                               \
    k->matmul_packed_q8[DTYPE_##upper] = matmul_packed_q8_##lower;
    Q8_WEIGHT_MAP(ENTRY)
#undef ENTRY
#define ENTRY(lower, upper)                                                                        \
    k->attn_scores[KV_##upper] = attn_scores_##lower;                                              \
    k->attn_values[KV_##upper] = attn_values_##lower;
    ENTRY(f32, F32)
    ENTRY(f16, F16)
    ENTRY(q8_0, Q8_0)
#undef ENTRY
    k->matmul_bf16 = matmul_bf16;
    k->matmul_packed_bf16 = matmul_packed_bf16;
    k->round_bf16 = round_bf16;
    k->kv_store[KV_F16] = kv_store_f16;
    k->kv_store[KV_Q8_0] = kv_store_q8_0;
    k->quantise_q8 = quantise_q8;
    k->exp_sum = exp_sum;
    k->max = max_of;
    k->gated[ACT_SILU] = gated_silu;
    k->gated[ACT_GELU] = gated_gelu;
    k->gated[ACT_CLAMPED] = gated_clamped;
    k->gated[ACT_SIGMOID] = gated_sigmoid;
    k->rms_norm = rms_norm;
    k->rope_pairs = rope_pairs;
    k->rope_halves = rope_halves;
    k->soft_cap = soft_cap;
    k->add = add;
    k->scale = scale;
    k->add_scaled = add_scaled;
    k->conv = conv;
    k->delta = delta;
}
