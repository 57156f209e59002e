/* Keys or values into their pages (backend/kv_layout.h). Included for each, with NAMED(x) the names
 * of its functions and buffers (inputs, words, halves), TYPE its type, KEYS whether it is keys,
 * which stand in groups of 16 positions. */
void NAMED(store_q8)(int row, int c, int from) {
    int pair = row * (p.head_dim / 32 * 17) + c / 32 * 17, scale = pair++;
    if (KEYS) { /* in halves: 2 of a word of 4 columns, 16 words; the scales behind all words */
        int group = (row >> 4) * (p.head_dim / 32 * 272), lane = row & 15;
        pair = group + c * 8 + lane * 2;
        scale = group + p.head_dim * 8 + c / 2 + lane;
    }
    float most = 0.0;
    for (int i = 0; i < 32; i++)
        most = max(most, abs(NAMED(inputs)[from + i]));
    bool zero = most < Q8_MIN_MAX;
    float inverse = zero ? 0.0 : divide(127.0, most);
    NAMED(halves)[scale] = uint16_t(half_from_float(zero ? 0.0 : divide(most, 127.0)));
    for (int i = 0; i < 16; i++) {
        int low = int(roundEven(NAMED(inputs)[from + 2 * i] * inverse));
        int high = int(roundEven(NAMED(inputs)[from + 2 * i + 1] * inverse));
        NAMED(halves)[KEYS ? pair + i / 2 * 32 + i % 2 : pair + i] = uint16_t(uint(low & 255) | uint(high & 255) << 8);
    }
}

/* Up to 32 elements of a head from column c on, which stand at `from`. */
void NAMED(store)(int row, int c, int from) {
    if (TYPE == KV_Q8_0) {
        NAMED(store_q8)(row, c, from);
        return;
    }
    int to = row * p.head_dim + c, step = 1;
    if (KEYS) {
        to = (row & ~15) * p.head_dim + c * 16 + (row & 15);
        step = 16;
    }
    for (int i = 0; i < min(32, p.head_dim - c); i++, to += step) {
        if (TYPE == KV_F32)
            NAMED(words)[to] = NAMED(inputs)[from + i];
        else
            NAMED(halves)[to] = uint16_t(half_from_float(NAMED(inputs)[from + i]));
    }
}
