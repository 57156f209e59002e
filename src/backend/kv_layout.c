/* Sizes of KV pages: one arithmetic for ledger, kernels and devices. */
#include "backend/backend.h"

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
