#include "data.h"

#include <string.h>

const char *data_name(enum data data) {
    static const char *const names[DATA_COUNT] = {"random", "zero", "exact", "extreme"};
    return names[data];
}

static void random_bytes(struct check *c, uint8_t *out, size_t n) {
    for (size_t i = 0; i < n; i++)
        out[i] = (uint8_t)rng_next(&c->rng);
}

/* One byte value per run of 4..64 bytes, of those that make weights extreme. */
static void extreme_bytes(struct check *c, uint8_t *out, size_t n) {
    static const uint8_t values[] = {0xff, 0x00, 0x80, 0x7f, 0x0f, 0xf0, 0x88, 0x81};
    for (size_t i = 0; i < n;) {
        size_t run = min_size(n - i, 4u << rng_below(&c->rng, 5));
        memset(out + i, values[rng_below(&c->rng, COUNT_OF(values))], run);
        i += run;
    }
}

static uint16_t scale_half(struct check *c, enum data data) {
    float sign = rng_below(&c->rng, 4) == 0 ? -1.0f : 1.0f;
    if (data != DATA_RANDOM) return half_from_float(sign);
    return half_from_float(sign * (0.25f + (float)rng_unit(&c->rng)) * 0x1p-6f);
}

/* The scales inside super-blocks become 1 (and mins 1), so that extreme weights stay exact. */
static void unit_scales(enum dtype type, uint8_t *block) {
    switch (type) {
    case DTYPE_Q2_K:
        memset(((struct block_q2_k *)(void *)block)->scales, 0x11, 16);
        break;
    case DTYPE_Q3_K: {
        struct block_q3_k *b = (void *)block;
        memset(b->scales, 0x11, 8);
        memset(b->scales + 8, 0xaa, 4);
        break;
    }
    case DTYPE_Q4_K:
        memset(((struct block_q4_k *)(void *)block)->scales, 0x11, 12);
        break;
    case DTYPE_Q5_K:
        memset(((struct block_q5_k *)(void *)block)->scales, 0x11, 12);
        break;
    case DTYPE_Q6_K:
        memset(((struct block_q6_k *)(void *)block)->scales, 1, 16);
        break;
    case DTYPE_IQ4_XS: {
        struct block_iq4_xs *b = (void *)block;
        b->scales_h = 0xaaaa;
        memset(b->scales_l, 0x11, sizeof b->scales_l);
        break;
    }
    default:
        break;
    }
}

static void set_half(uint8_t *block, size_t offset, uint16_t half) {
    memcpy(block + offset, &half, sizeof half);
}

/* The scale (and minimum) of the whole block. */
static void block_scales(struct check *c, enum data data, enum dtype type, uint8_t *block) {
    switch (type) {
    case DTYPE_Q8_0:
    case DTYPE_Q4_0:
    case DTYPE_Q5_0:
    case DTYPE_IQ4_NL:
    case DTYPE_IQ4_XS:
        set_half(block, 0, scale_half(c, data));
        break;
    case DTYPE_Q4_1:
    case DTYPE_Q5_1:
    case DTYPE_Q4_K:
    case DTYPE_Q5_K:
        set_half(block, 0, scale_half(c, data));
        set_half(block, 2, scale_half(c, data));
        break;
    case DTYPE_Q2_K:
        set_half(block, offsetof(struct block_q2_k, d), scale_half(c, data));
        set_half(block, offsetof(struct block_q2_k, dmin), scale_half(c, data));
        break;
    case DTYPE_Q3_K:
        set_half(block, offsetof(struct block_q3_k, d), scale_half(c, data));
        break;
    case DTYPE_Q6_K:
        set_half(block, offsetof(struct block_q6_k, d), scale_half(c, data));
        break;
    case DTYPE_MXFP4: /* 2^(e - 128): the exponent of 1 is 128 */
        block[0] = (uint8_t)(data == DATA_RANDOM ? 118 + rng_below(&c->rng, 8) : 128);
        break;
    default:
        break;
    }
}

void data_weights(struct check *c, enum data data, enum dtype type, void *blocks, int64_t n) {
    const struct dtype_info *info = dtype_info(type);
    uint8_t *block = blocks;
    if (!info->quantised) {
        for (int64_t i = 0; i < n; i++, block += info->block_bytes) {
            float x;
            data_floats(c, data, &x, 1);
            dtype_from_float(type, &x, block, 1);
        }
        return;
    }
    for (int64_t i = 0; i < n; i += info->block_elements, block += info->block_bytes) {
        size_t bytes = (size_t)info->block_bytes;
        if (data == DATA_ZERO) {
            memset(block, 0, bytes);
            continue;
        }
        if (data == DATA_EXTREME) {
            extreme_bytes(c, block, bytes);
            unit_scales(type, block);
        } else {
            random_bytes(c, block, bytes);
        }
        block_scales(c, data, type, block);
    }
}

static int random_q(struct check *c, enum data data) {
    switch (data) {
    case DATA_RANDOM:
        return (int)rng_below(&c->rng, 255) - 127;
    case DATA_EXACT:
        return (int)rng_below(&c->rng, 15) - 7;
    case DATA_EXTREME:
        return rng_below(&c->rng, 8) == 0 ? -127 : 127;
    default:
        return 0;
    }
}

struct q8_rows data_q8_rows(struct check *c, enum data data, int n_cols, int n_tokens) {
    size_t n = (size_t)n_cols * (size_t)n_tokens;
    struct q8_rows x = {.q = check_input(c, n),
                        .scale = check_input(c, n / 32 * sizeof(float)),
                        .sum16 = check_input(c, n / 16 * sizeof(int16_t)),
                        .n_cols = n_cols};
    for (size_t g = 0; g < n / 16; g++) {
        int sum = 0, sign = rng_below(&c->rng, 2) ? 1 : -1;
        for (size_t i = 0; i < 16; i++) {
            int q = sign * random_q(c, data);
            x.q[16 * g + i] = (int8_t)q;
            sum += q;
        }
        x.sum16[g] = (int16_t)sum;
    }
    for (size_t b = 0; b < n / 32; b++)
        x.scale[b] = data == DATA_RANDOM ? (0.5f + (float)rng_unit(&c->rng)) * 0x1p-7f : 1.0f;
    return x;
}

void data_floats(struct check *c, enum data data, float *x, size_t n) {
    for (size_t i = 0; i < n; i++) {
        switch (data) {
        case DATA_RANDOM:
            x[i] = check_random(c);
            break;
        case DATA_EXACT:
            x[i] = (float)rng_below(&c->rng, 65) - 32.0f;
            break;
        case DATA_EXTREME:
            x[i] = rng_below(&c->rng, 2) ? 128.0f : -128.0f;
            break;
        default:
            x[i] = 0;
            break;
        }
    }
}
