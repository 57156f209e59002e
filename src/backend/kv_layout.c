/* Sizes of KV pages, and how keys lie in them: one arithmetic for ledger, kernels and devices. */
#include "backend/kv_layout.h"
#include "backend/backend.h"

#include <string.h>

size_t kv_row_bytes(enum kv_type type, int head_dim) {
    switch (type) {
    case KV_F32:
        return (size_t)head_dim * 4;
    case KV_F16:
        return (size_t)head_dim * 2;
    case KV_Q8_0:
        return (size_t)dtype_row_bytes(DTYPE_Q8_0, head_dim);
    case KV_TYPE_COUNT:
        break;
    }
    REQUIRE(!"a KV type");
    return 0;
}

const char *kv_type_name(enum kv_type type) {
    static const char *const names[] = {"f32", "f16", "q8_0"};
    return (size_t)type < COUNT_OF(names) ? names[type] : "?";
}

size_t kv_layout_bytes(const struct kv_layout *l) {
    size_t rows = (size_t)l->n_pages * (size_t)l->n_kv_heads << KV_PAGE_TOKENS_LOG2;
    return rows * (kv_row_bytes(l->type_k, l->head_dim) + kv_row_bytes(l->type_v, l->head_dim));
}

/* Elements of `bytes` bytes, n of them, each `stride` bytes from the one before. */
static inline void spread(const uint8_t *from, int n, size_t bytes, uint8_t *to, size_t stride) {
    for (int i = 0; i < n; i++, from += bytes, to += stride)
        memcpy(to, from, bytes);
}

void kv_key_put(enum kv_type type, int head_dim, const void *row, void *keys, int slot) {
    uint8_t *to = (uint8_t *)keys + kv_key_at(type, head_dim, slot, 0);
    if (type == KV_F32) {
        spread(row, head_dim, 4, to, 4 * KV_KEY_GROUP);
    } else if (type == KV_F16) {
        spread(row, head_dim, 2, to, 2 * KV_KEY_GROUP);
    } else {
        const struct block_q8_0 *block = row;
        uint8_t *scale = (uint8_t *)keys + kv_key_scale_at(head_dim, slot, 0);
        for (int b = 0; b < head_dim / QK_SMALL; b++, block++) {
            spread((const uint8_t *)block->qs, QK_SMALL / 4, 4, to, 4 * KV_KEY_GROUP);
            to += QK_SMALL * KV_KEY_GROUP;
            memcpy(scale + (size_t)b * 2 * KV_KEY_GROUP, &block->d, 2);
        }
    }
}
