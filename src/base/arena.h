/*
 * Memory with one lifetime: allocations are never freed singly. Small host structures only:
 * weights, KV and device memory come from file.h (pages_*) or a backend and return a status.
 * An arena is used by one thread at a time. Running out of host memory here aborts.
 */
#pragma once

#include <stdarg.h>
#include "base/base.h"

struct arena_chunk;
struct arena {
    struct arena_chunk *chunks; /* newest first */
    size_t used_bytes;
};

/* A zeroed struct arena is an empty one. */
void arena_free(struct arena *a); /* everything in it; the arena is empty afterwards */
/* Zeroed, aligned to 64 bytes if bytes >= 64, else to 16. bytes == 0 gives a valid pointer. */
void *arena_alloc(struct arena *a, size_t bytes);
/* Moves n_bytes of a heap array into the arena and frees it: for arrays that grew while being
 * built. items may be NULL when n_bytes is 0. */
void *arena_adopt(struct arena *a, void *items, size_t n_bytes);
char *arena_strdup(struct arena *a, const char *s);
char *arena_strndup(struct arena *a, const char *s, size_t n); /* NUL added */
char *arena_printf(struct arena *a, const char *format, ...) PRINTF_LIKE(2, 3);

#define ARENA_NEW(a, type)      ((type *)arena_alloc((a), sizeof(type)))
#define ARENA_ARRAY(a, type, n) ((type *)arena_alloc((a), sizeof(type) * (size_t)(n)))

/* malloc family that aborts when there is none; for small host structures with odd lifetimes. */
void *xmalloc(size_t bytes);
void *xcalloc(size_t n, size_t bytes);
void *xrealloc(void *p, size_t bytes);
char *xstrdup(const char *s);
char *xstrndup(const char *s, size_t n);

/* Growing array: `GROW(v.items, v.n, v.cap, n_more)` makes room for n_more after v.n. */
void *grow_array(void *items, size_t n, size_t *cap, size_t n_more, size_t item_bytes);
#define GROW(items, n, cap, n_more)                                                                \
    ((items) = grow_array((items), (size_t)(n), &(cap), (size_t)(n_more), sizeof *(items)))
