/*
 * The tile words of kernels_tile_amx.h in plain C, as the instructions are defined: what would
 * raise #UD or #GP on a processor fails here too, and memory is read and written to the byte.
 * Included by amx_emulated.c and amxbf16_emulated.c alone.
 */
#pragma once

#include <float.h>
#include <math.h>
#include <string.h>

#include "backend/cpu/kernels_isa.h"

#define N_TILES 8

static _Thread_local struct {
    bool configured;
    struct {
        int n_rows, row_bytes;
        int8_t bytes[16][64];
    } tiles[N_TILES];
} emulated;

static inline void tile_configure(const struct tile_config *c) {
    static const uint8_t zeros[sizeof c->reserved];
    REQUIRE(c->palette == 1 && memcmp(c->reserved, zeros, sizeof zeros) == 0);
    memset(&emulated, 0, sizeof emulated);
    for (size_t i = 0; i < COUNT_OF(c->n_rows); i++) {
        REQUIRE(c->n_rows[i] <= 16 && c->row_bytes[i] <= 64);
        REQUIRE((c->n_rows[i] == 0) == (c->row_bytes[i] == 0));
        REQUIRE(i < N_TILES || c->n_rows[i] == 0);
        if (i >= N_TILES) continue;
        emulated.tiles[i].n_rows = c->n_rows[i];
        emulated.tiles[i].row_bytes = c->row_bytes[i];
    }
    emulated.configured = true;
}

static inline void tile_release(void) {
    REQUIRE(emulated.configured);
    memset(&emulated, 0, sizeof emulated);
}

static inline void tile_require(int tile) {
    REQUIRE(emulated.configured && emulated.tiles[tile].n_rows > 0);
}

static inline void tile_zero(int tile) {
    tile_require(tile);
    memset(emulated.tiles[tile].bytes, 0, sizeof emulated.tiles[tile].bytes);
}

static inline void tile_load(int tile, const void *at, int64_t stride) {
    tile_zero(tile);
    for (int m = 0; m < emulated.tiles[tile].n_rows; m++)
        memcpy(emulated.tiles[tile].bytes[m], (const uint8_t *)at + m * stride,
               (size_t)emulated.tiles[tile].row_bytes);
}

static inline void tile_store(int tile, void *at, int64_t stride) {
    tile_require(tile);
    for (int m = 0; m < emulated.tiles[tile].n_rows; m++)
        memcpy((uint8_t *)at + m * stride, emulated.tiles[tile].bytes[m],
               (size_t)emulated.tiles[tile].row_bytes);
}

/* The shapes of sum += a * b fit. */
static inline void tile_require_product(int sum, int a, int b) {
    tile_require(sum);
    tile_require(a);
    tile_require(b);
    REQUIRE(sum != a && sum != b && a != b);
    REQUIRE(emulated.tiles[a].row_bytes == 4 * emulated.tiles[b].n_rows);
    REQUIRE(emulated.tiles[sum].n_rows == emulated.tiles[a].n_rows);
    REQUIRE(emulated.tiles[sum].row_bytes == emulated.tiles[b].row_bytes);
}

static inline void tile_multiply(int sum, int a, int b) {
    const int n_rows = emulated.tiles[a].n_rows, n_sums = emulated.tiles[b].row_bytes / 4;
    tile_require_product(sum, a, b);
    for (int m = 0; m < n_rows; m++) {
        int32_t sums[16];
        memcpy(sums, emulated.tiles[sum].bytes[m], sizeof sums);
        for (int k = 0; k < emulated.tiles[b].n_rows; k++) {
            for (int n = 0; n < 4 * n_sums; n++)
                sums[n / 4] +=
                    emulated.tiles[a].bytes[m][4 * k + n % 4] * emulated.tiles[b].bytes[k][n];
        }
        memcpy(emulated.tiles[sum].bytes[m], sums, sizeof sums);
    }
}

/* What is below 2^-126 counts as 0, of what goes in and of what comes out. */
static inline float tile_flush(float x) {
    return fabsf(x) < FLT_MIN ? copysignf(0, x) : x;
}

static inline float tile_bf16(int tile, int m, int i) {
    uint16_t x;
    memcpy(&x, emulated.tiles[tile].bytes[m] + 2 * i, sizeof x);
    return tile_flush(bf16_to_float(x));
}

/* First and second columns of the pairs are two chains from 0; their sum is added. */
static inline void tile_multiply_bf16(int sum, int a, int b) {
    tile_require_product(sum, a, b);
    for (int m = 0; m < emulated.tiles[a].n_rows; m++) {
        float sums[16], parts[16][2] = {{0}};
        memcpy(sums, emulated.tiles[sum].bytes[m], sizeof sums);
        for (int k = 0; k < emulated.tiles[b].n_rows; k++) {
            for (int n = 0; n < emulated.tiles[b].row_bytes / 2; n++) {
                float *part = &parts[n / 2][n % 2];
                *part = tile_flush(fmaf(tile_bf16(a, m, 2 * k + n % 2), tile_bf16(b, k, n), *part));
            }
        }
        for (int n = 0; n < emulated.tiles[b].row_bytes / 4; n++)
            sums[n] = tile_flush(tile_flush(sums[n]) + tile_flush(parts[n][0] + parts[n][1]));
        memcpy(emulated.tiles[sum].bytes[m], sums, sizeof sums);
    }
}
