/* act(gate) * up of one element; enum activation of model/graph.h. Includes common.glsl and
 * types.glsl. */
float sigmoid_times(float x, float arg) { return divide(x, 1.0 + exp_f32(-arg)); }

float activate(int act, float g, float u) {
    if (act == ACT_GELU) return sigmoid_times(g, 2.0 * 0.7978845608 * (g + 0.044715 * g * g * g)) * u;
    if (act == ACT_SILU) return sigmoid_times(g, g) * u;
    if (act == ACT_SIGMOID) return sigmoid_times(u, g);
    g = min(g, ACT_CLAMPED_LIMIT);
    return sigmoid_times(g, ACT_CLAMPED_SLOPE * g) * (clamp(u, -ACT_CLAMPED_LIMIT, ACT_CLAMPED_LIMIT) + 1.0);
}
