/* What all shaders share: the round's numbers, and arithmetic that must not differ by device.
 *
 * Spans. A float of a value stands at off + line * stride + column of its binding; off may be
 * negative, since only columns from the span's first on are read. The line count is not recorded:
 * it is read from the round, so that a recorded command serves every round. Where a value is larger
 * than a shader sees, a dispatch has a window of its lines: the first that is bound is then not the
 * round's. Grids of a line each have as many as there are. */
layout(std430, set = 0, binding = 0) readonly buffer Round {
    int n_tokens, n_rows;
    int at_token, at_position, at_pages, at_row; /* where the arrays begin, in words of this */
    int cap_tokens; /* of a round: the distance of its page tables for one layer class from the next */
    int at_runs;    /* four words a run: first token, number of tokens, state_in, state_out */
    int data[];
} round_;

#define HEADER 8
int round_at(int at) { return round_.data[at - HEADER]; }
int round_token(int t) { return round_at(round_.at_token + t); }
int round_position(int t) { return round_at(round_.at_position + t); }
ivec4 round_run(int i) {
    int at = round_.at_runs + 4 * i;
    return ivec4(round_at(at), round_at(at + 1), round_at(at + 2), round_at(at + 3));
}
int round_row(int j) { return round_at(round_.at_row + j); }
/* Page that holds position p of token t's sequence, in layers of a class. */
int round_page(int class_, int t, int p) {
    return round_at(round_at(round_.at_pages + class_ * round_.cap_tokens + t) + (p >> 6));
}
/* Lines from a first one on, of the wanted rows or of the tokens: rows | first << 1. */
int round_lines(int from) { return ((from & 1) != 0 ? round_.n_rows : round_.n_tokens) - (from >> 1); }

/* Halves by integers: a device may flush small ones in its own conversions. */
float half_to_float(uint h) {
    uint mag = h & 0x7fffu;
    float f = mag < 0x400u ? float(mag) * 5.9604644775390625e-8 : uintBitsToFloat((mag << 13) + 0x38000000u);
    if (mag >= 0x7c00u) f = uintBitsToFloat(0x7f800000u | (mag & 0x3ffu) << 13);
    return (h & 0x8000u) != 0u ? -f : f;
}
uint half_from_float(float f) {
    uint u = floatBitsToUint(f), sign = (u >> 16) & 0x8000u, mag = u & 0x7fffffffu;
    if (mag > 0x7f800000u) return sign | 0x7e00u | (mag >> 13 & 0x3ffu);
    if (mag >= 0x477ff000u) return sign | 0x7c00u;
    if (mag < 0x38800000u) return sign | uint(roundEven(uintBitsToFloat(mag) * 16777216.0));
    mag += 0x0fffu + (mag >> 13 & 1u);
    return sign | (mag - 0x38000000u) >> 13;
}

/* One more step than the division that Vulkan promises (2.5 units): that of the CPU's bits. */
float divide(float a, float b) {
    float q = a / b;
    return fma(fma(-b, q, a), 1.0 / b, q);
}

/* e^x to about one unit; what the built-in one gives differs from driver to driver. Below -87 the
 * result stays near 1e-38, above 88 near 1e38. */
float exp_f32(float x) {
    float c = clamp(x, -87.0, 88.0), n = roundEven(c * 1.44269504);
    float r = fma(n, -0.693359375, c);
    r = fma(n, 2.12194440e-4, r);
    float p = fma(r, 1.9875691e-4, 1.3981999e-3);
    p = fma(p, r, 8.3334519e-3);
    p = fma(p, r, 4.1665795e-2);
    p = fma(p, r, 1.6666665e-1);
    p = fma(p, r, 5.0000001e-1);
    p = fma(p * r, r, r) + 1.0;
    return x != x ? x : p * uintBitsToFloat(uint(int(n) + 127) << 23);
}
/* To a unit of 1. */
float tanh_f32(float x) { return divide(2.0, 1.0 + exp_f32(-2.0 * x)) - 1.0; }
