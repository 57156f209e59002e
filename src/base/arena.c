#include "base/arena.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Chunks grow from 4 KiB, doubling with what the arena holds, so that few calls reach malloc. */
enum { CHUNK_MIN_BYTES = 4096, CHUNK_MAX_BYTES = 1 << 20, ALIGN_BIG = 64, ALIGN_SMALL = 16 };

struct arena_chunk {
    struct arena_chunk *next;
    size_t used, size; /* of the bytes that follow, from `data` */
    char *data;        /* aligned to ALIGN_BIG */
};

NORETURN static void out_of_memory(size_t bytes) {
    fprintf(stderr, "atsinfer: no memory for %zu bytes\n", bytes);
    abort();
}

void arena_free(struct arena *a) {
    while (a->chunks) {
        struct arena_chunk *chunk = a->chunks;
        a->chunks = chunk->next;
        free(chunk);
    }
    a->used_bytes = 0;
}

static struct arena_chunk *chunk_new(size_t size) {
    size_t total;
    if (__builtin_add_overflow(size, sizeof(struct arena_chunk) + ALIGN_BIG, &total))
        out_of_memory(size);
    struct arena_chunk *chunk = calloc(1, total); /* fresh pages are zero already: cheap */
    if (!chunk) out_of_memory(total);
    uintptr_t data = (uintptr_t)(chunk + 1);
    chunk->data = (char *)(chunk + 1) + (round_up(data, ALIGN_BIG) - data);
    chunk->size = size;
    return chunk;
}

void *arena_alloc(struct arena *a, size_t bytes) {
    size_t align = bytes >= ALIGN_BIG ? ALIGN_BIG : ALIGN_SMALL;
    if (bytes > SIZE_MAX / 2) out_of_memory(bytes);
    size_t need = round_up(max_size(bytes, 1), ALIGN_SMALL);
    struct arena_chunk *chunk = a->chunks;
    size_t at = chunk ? round_up(chunk->used, align) : 0;
    if (!chunk || at > chunk->size || need > chunk->size - at) {
        size_t size = min_size(max_size(a->used_bytes, CHUNK_MIN_BYTES), CHUNK_MAX_BYTES);
        bool big = need > size / 4;
        chunk = chunk_new(big ? need : size);
        if (big && a->chunks) { /* a chunk of its own: the newest one keeps its free space */
            chunk->next = a->chunks->next;
            a->chunks->next = chunk;
        } else {
            chunk->next = a->chunks;
            a->chunks = chunk;
        }
        at = 0;
    }
    chunk->used = at + need;
    a->used_bytes += need;
    return chunk->data + at;
}

char *arena_strndup(struct arena *a, const char *s, size_t n) {
    char *copy = arena_alloc(a, n + 1);
    if (n > 0) memcpy(copy, s, n);
    return copy;
}

void *arena_adopt(struct arena *a, void *items, size_t n_bytes) {
    void *copy = arena_alloc(a, n_bytes);
    if (n_bytes) memcpy(copy, items, n_bytes);
    free(items);
    return copy;
}

char *arena_strdup(struct arena *a, const char *s) {
    return arena_strndup(a, s, strlen(s));
}

char *arena_printf(struct arena *a, const char *format, ...) {
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    REQUIRE(n >= 0);
    char *text = arena_alloc(a, (size_t)n + 1);
    vsnprintf(text, (size_t)n + 1, format, again);
    va_end(again);
    return text;
}

void *xmalloc(size_t bytes) {
    void *p = malloc(max_size(bytes, 1));
    if (!p) out_of_memory(bytes);
    return p;
}

void *xcalloc(size_t n, size_t bytes) {
    void *p = calloc(max_size(n, 1), max_size(bytes, 1));
    if (!p) out_of_memory(bytes);
    return p;
}

void *xrealloc(void *p, size_t bytes) {
    p = realloc(p, max_size(bytes, 1));
    if (!p) out_of_memory(bytes);
    return p;
}

char *xstrndup(const char *s, size_t n) {
    char *copy = xmalloc(n + 1);
    if (n > 0) memcpy(copy, s, n);
    copy[n] = 0;
    return copy;
}

char *xstrdup(const char *s) {
    return xstrndup(s, strlen(s));
}

void *grow_array(void *items, size_t n, size_t *cap, size_t n_more, size_t item_bytes) {
    size_t want, bytes;
    if (__builtin_add_overflow(n, n_more, &want)) out_of_memory(SIZE_MAX);
    if (want <= *cap) return items;
    size_t new_cap = max_size(want, max_size(8, *cap + *cap / 2));
    if (__builtin_mul_overflow(new_cap, item_bytes, &bytes)) out_of_memory(SIZE_MAX);
    items = xrealloc(items, bytes);
    *cap = new_cap;
    return items;
}
