/* Types a KV cache may have, apart from backend.h: kernels need no more of it. */
#pragma once

#include <stddef.h>

enum kv_type { KV_F32, KV_F16, KV_Q8_0, KV_TYPE_COUNT };
/* A row is one head of one position. Q8_0: head_dim is a multiple of 32. */
size_t kv_row_bytes(enum kv_type type, int head_dim);
/* For tests and their benchmarks. */
const char *kv_type_name(enum kv_type type);
