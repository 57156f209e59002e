/*
 * The tile words of kernels_body_amx.h in AMX's own instructions (TILE, INT8 and BF16). Macros,
 * because the number of a tile is part of an instruction and must be written out. A header with the
 * same names in plain C is in tests/kernels, which is how these kernels run on processors without.
 */
#pragma once

#include <immintrin.h>

#include "backend/cpu/kernels_isa.h"

/* What is configured is this thread's, and kept by the system over its other work until released.
 * Tiles are zero then. gcc 12 does not know that these words read memory (of the configuration it
 * knows 8 bytes), so all of it is written before the first of them. */
#define tile_configure(config)                                                                     \
    do {                                                                                           \
        __asm__ volatile("" : : "r"(config) : "memory");                                           \
        _tile_loadconfig(config);                                                                  \
    } while (0)
#define tile_release() _tile_release()
/* The rows of a tile from memory, `stride` bytes apart, and to memory. */
#define tile_load(tile, at, stride)  _tile_loadd(tile, at, stride)
#define tile_store(tile, at, stride) _tile_stored(tile, at, stride)
#define tile_zero(tile)              _tile_zero(tile)
/* sum[m][n] += sum over k and i of a[m][4 * k + i] * b[k][4 * n + i]: signed bytes, int32. */
#define tile_multiply(sum, a, b) _tile_dpbssd(sum, a, b)
/* The same of pairs of bf16, k of 0 to 15, i of 0 and 1; sums are f32: kernels.h says in which
 * order. */
#define tile_multiply_bf16(sum, a, b) _tile_dpbf16ps(sum, a, b)
