#include "base/ranges.h"

#include <stdlib.h>
#include <string.h>
#include "base/arena.h"

void ranges_open(struct ranges *r, size_t bytes) {
    *r = (struct ranges){.bytes = bytes};
    if (bytes) ranges_give(r, 0, bytes);
}

void ranges_close(struct ranges *r) {
    free(r->free);
    *r = (struct ranges){0};
}

static void drop(struct ranges *r, size_t i) {
    memmove(r->free + i, r->free + i + 1, (--r->n - i) * sizeof *r->free);
}

bool ranges_take(struct ranges *r, size_t bytes, size_t *begin) {
    *begin = 0;
    if (bytes == 0) return true;
    for (size_t i = 0; i < r->n; i++) {
        if (r->free[i].bytes < bytes) continue;
        *begin = r->free[i].begin;
        r->free[i].begin += bytes;
        r->free[i].bytes -= bytes;
        if (r->free[i].bytes == 0) drop(r, i);
        return true;
    }
    return false;
}

void ranges_give(struct ranges *r, size_t begin, size_t bytes) {
    size_t i = 0;
    if (bytes == 0) return;
    while (i < r->n && r->free[i].begin < begin)
        i++;
    bool after = i > 0 && r->free[i - 1].begin + r->free[i - 1].bytes == begin;
    bool before = i < r->n && begin + bytes == r->free[i].begin;
    REQUIRE(begin + bytes <= r->bytes && (i == r->n || begin + bytes <= r->free[i].begin));
    REQUIRE(i == 0 || r->free[i - 1].begin + r->free[i - 1].bytes <= begin);
    if (after && before) {
        r->free[i - 1].bytes += bytes + r->free[i].bytes;
        drop(r, i);
    } else if (after) {
        r->free[i - 1].bytes += bytes;
    } else if (before) {
        r->free[i].begin = begin;
        r->free[i].bytes += bytes;
    } else {
        GROW(r->free, r->n, r->cap, 1);
        memmove(r->free + i + 1, r->free + i, (r->n++ - i) * sizeof *r->free);
        r->free[i] = (struct range){begin, bytes};
    }
}

bool ranges_all_free(const struct ranges *r) {
    return r->bytes == 0 || (r->n == 1 && r->free[0].bytes == r->bytes);
}
