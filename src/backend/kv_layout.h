/*
 * Where an element of a KV page stands: one arithmetic for kernels, devices and tests. Shaders
 * repeat it (kv_store.comp, attention.comp). A head's 64 positions of K or V are contiguous, of the
 * size that kv_row_bytes says.
 *
 * V: a position after the other, columns side by side; Q8_0 as blocks of the file format.
 *
 * K: groups of KV_KEY_GROUP positions, so that the scores of as many keys are vectors without any
 * transposing. F32, F16: for each column the group's positions side by side. Q8_0: for each 4
 * columns a word of 4 bytes of each position, side by side; behind all of them, for each 32
 * columns, the scales (halves) of the positions, side by side. A position that was never stored may
 * hold anything: kernels read whole groups, and use what is asked for.
 */
#pragma once

#include "backend/kv_type.h"
#include "model/dtype.h" /* QK_SMALL */

#define KV_KEY_GROUP 16

/* Byte of the element of a column of K, counted from the head's first position. */
static inline size_t kv_key_at(enum kv_type type, int head_dim, int slot, int column) {
    size_t group = (size_t)(slot / KV_KEY_GROUP) * KV_KEY_GROUP * kv_row_bytes(type, head_dim);
    size_t lane = (size_t)(slot % KV_KEY_GROUP), c = (size_t)column;
    if (type == KV_Q8_0) return group + c / 4 * (4 * KV_KEY_GROUP) + 4 * lane + c % 4;
    return group + (c * KV_KEY_GROUP + lane) * (type == KV_F32 ? 4 : 2);
}

/* Q8_0: byte of the scale of that column. */
static inline size_t kv_key_scale_at(int head_dim, int slot, int column) {
    size_t codes = (size_t)head_dim * KV_KEY_GROUP, block = (size_t)(column / QK_SMALL);
    return (size_t)(slot / KV_KEY_GROUP) * KV_KEY_GROUP * kv_row_bytes(KV_Q8_0, head_dim) + codes +
           2 * (block * KV_KEY_GROUP + (size_t)(slot % KV_KEY_GROUP));
}

/* Puts a key that stands as a position of V does to its place among a head's. */
void kv_key_put(enum kv_type type, int head_dim, const void *row, void *keys, int slot);
