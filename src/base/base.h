/* Compiler extensions and the few macros everything uses. Nothing that allocates or calls. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MUST_CHECK                      __attribute__((warn_unused_result))
#define PRINTF_LIKE(f, a)               __attribute__((format(printf, f, a)))
#define NORETURN                        __attribute__((noreturn))
#define ALWAYS_INLINE                   static inline __attribute__((always_inline))
#define UNUSED                          __attribute__((unused))
#define LIKELY(x)                       __builtin_expect(!!(x), 1)
#define UNLIKELY(x)                     __builtin_expect(!!(x), 0)
#define COUNT_OF(array)                 (sizeof(array) / sizeof((array)[0]))
#define CONTAINER_OF(ptr, type, member) ((type *)(void *)((char *)(ptr)-offsetof(type, member)))

/* What the caller owes; stays on in release. Never for file or network data. */
#define REQUIRE(cond) ((cond) ? (void)0 : require_failed(#cond, __FILE__, __LINE__))
NORETURN void require_failed(const char *cond, const char *file, int line);

ALWAYS_INLINE int min_int(int a, int b) {
    return a < b ? a : b;
}
ALWAYS_INLINE int max_int(int a, int b) {
    return a > b ? a : b;
}
ALWAYS_INLINE int64_t min_i64(int64_t a, int64_t b) {
    return a < b ? a : b;
}
ALWAYS_INLINE int64_t max_i64(int64_t a, int64_t b) {
    return a > b ? a : b;
}
ALWAYS_INLINE uint64_t max_u64(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}
ALWAYS_INLINE size_t min_size(size_t a, size_t b) {
    return a < b ? a : b;
}
ALWAYS_INLINE size_t max_size(size_t a, size_t b) {
    return a > b ? a : b;
}

/* Checked arithmetic for numbers from files and requests: false on overflow, *out then undefined.
 */
ALWAYS_INLINE MUST_CHECK bool add_u64(uint64_t a, uint64_t b, uint64_t *out) {
    return !__builtin_add_overflow(a, b, out);
}
ALWAYS_INLINE MUST_CHECK bool mul_u64(uint64_t a, uint64_t b, uint64_t *out) {
    return !__builtin_mul_overflow(a, b, out);
}
/* Rounds up to a multiple of align (a power of two). */
ALWAYS_INLINE MUST_CHECK bool round_up_u64(uint64_t a, uint64_t align, uint64_t *out) {
    if (__builtin_add_overflow(a, align - 1, out)) return false;
    *out &= ~(align - 1);
    return true;
}
/* The same for sizes of our own making, which cannot overflow. */
ALWAYS_INLINE size_t round_up(size_t a, size_t align) {
    return (a + align - 1) / align * align;
}
