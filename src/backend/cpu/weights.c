/* Weights of the CPU: read in the file's map, or repacked (packed.h) into memory of our own. */
#include <stdlib.h>
#include "backend/cpu/cpu_internal.h"
#include "backend/packed.h"
#include "base/file.h"
#include "base/ranges.h"

#define REGION_BYTES ((size_t)32 << 20) /* so that huge pages serve small weights too */

/* Anonymous memory that weights are laid into, where others were or one after the other; freed with
 * the last of them. */
struct weight_region {
    struct weight_region *next;
    uint8_t *memory;
    struct ranges ranges;
};

static bool is_packed(const struct cpu *c, const struct weight_source *s) {
    return !c->options.no_repack && !s->raw && !s->packed && s->n_rows > 1 && pack_can(s->dtype);
}

size_t cpu_packed_bytes(const struct weight_source *s) {
    return round_up(pack_bytes(s->dtype, s->n_rows, s->n_cols), PACK_ALIGN);
}

static size_t packed_bytes(const struct weight_source *s) {
    return cpu_packed_bytes(s) * (size_t)weight_matrices(s);
}

int64_t cpu_weight_bytes(struct backend *b, const struct weight_source *source) {
    struct cpu *c = CONTAINER_OF(b, struct cpu, base);
    return is_packed(c, source) ? (int64_t)packed_bytes(source) : 0;
}

static ats_status region_alloc(struct cpu *c, size_t bytes, uint8_t **out) {
    struct weight_region *r = c->regions;
    size_t at = 0;
    while (r && !ranges_take(&r->ranges, bytes, &at))
        r = r->next;
    if (!r) {
        void *memory;
        size_t size = max_size(bytes, REGION_BYTES);
        TRY(pages_alloc(size, &memory));
        r = xcalloc(1, sizeof *r);
        *r = (struct weight_region){.next = c->regions, .memory = memory};
        ranges_open(&r->ranges, size);
        c->regions = r;
        bool fits = ranges_take(&r->ranges, bytes, &at);
        REQUIRE(fits);
    }
    *out = r->memory + at;
    return ATS_OK;
}

static void region_close(struct weight_region *r) {
    pages_free(r->memory, r->ranges.bytes);
    ranges_close(&r->ranges);
    free(r);
}

static void region_give(struct cpu *c, const uint8_t *memory, size_t bytes) {
    struct weight_region **at = &c->regions;
    while (memory < (*at)->memory || memory >= (*at)->memory + (*at)->ranges.bytes)
        at = &(*at)->next;
    struct weight_region *r = *at;
    ranges_give(&r->ranges, (size_t)(memory - r->memory), bytes);
    if (!ranges_all_free(&r->ranges)) return;
    *at = r->next;
    region_close(r);
}

void cpu_weights_close(struct cpu *c) {
    while (c->regions) {
        struct weight_region *r = c->regions;
        c->regions = r->next;
        region_close(r);
    }
}

#define PACK_SHARE_BYTES (256 << 10) /* that a thread takes at a time */

/* Groups of a weight that are one share. */
static int share_groups(const struct weight_source *s) {
    return max_int(1, (int)(PACK_SHARE_BYTES / pack_group_bytes(s->dtype, s->n_cols)));
}

struct packing {
    const struct cpu *cpu;
    _Atomic int next; /* share, counted through all weights */
};

static void pack_shares(void *arg, int thread, int n_threads) {
    (void)thread, (void)n_threads;
    struct packing *p = arg;
    int share = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed), first = 0;
    for (const struct backend_weight *w = p->cpu->unpacked; w; w = w->next) {
        const struct weight_source *s = &w->s;
        int n_groups = pack_n_groups(s->n_rows), size = share_groups(s);
        int per_matrix = (n_groups + size - 1) / size;
        int n_shares = per_matrix * weight_matrices(s);
        while (share < first + n_shares) {
            int matrix = (share - first) / per_matrix;
            int begin = (share - first) % per_matrix * size;
            pack_rows(s->dtype, weight_matrix(s, matrix), (size_t)s->row_bytes, s->n_rows,
                      s->n_cols, w->fill + (size_t)matrix * cpu_packed_bytes(s), begin,
                      min_int(n_groups, begin + size));
            share = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed);
        }
        first += n_shares;
    }
}

ats_status cpu_weights_ready(struct backend *b) {
    struct cpu *c = CONTAINER_OF(b, struct cpu, base);
    struct packing packing = {.cpu = c};
    if (c->unpacked) thread_pool_run(c->pool, thread_pool_size(c->pool), pack_shares, &packing);
    c->unpacked = NULL;
    return ATS_OK;
}

ats_status cpu_weight_load(struct backend *b, const struct weight_source *source,
                           struct backend_weight **out) {
    struct cpu *c = CONTAINER_OF(b, struct cpu, base);
    *out = NULL;
    uint8_t *packed = NULL;
    if (source->streamed)
        return fail(ATS_UNSUPPORTED, "device \"%s\" does not stream weights", b->name);
    if (is_packed(c, source)) TRY(region_alloc(c, packed_bytes(source), &packed));
    struct backend_weight *w = xmalloc(sizeof *w);
    *w = (struct backend_weight){
        .s = *source, .packed = source->packed ? source->packed : packed, .fill = packed};
    if (packed) {
        w->next = c->unpacked;
        c->unpacked = w;
    }
    *out = w;
    return ATS_OK;
}

ats_status cpu_home_open(struct backend *b, const struct weight_source *source,
                         struct backend_home **out) {
    (void)source;
    *out = NULL;
    return fail(ATS_UNSUPPORTED, "device \"%s\" does not stream weights", b->name);
}

void cpu_home_close(struct backend *b, struct backend_home *home) {
    (void)b, (void)home;
}

void cpu_home_source(struct backend *b, const struct backend_home *home,
                     struct weight_source *source) {
    (void)b, (void)home, (void)source;
}

void cpu_weight_free(struct backend *b, struct backend_weight *w) {
    struct cpu *c = CONTAINER_OF(b, struct cpu, base);
    if (!w) return;
    for (struct backend_weight **at = &c->unpacked; *at; at = &(*at)->next)
        if (*at == w) {
            *at = w->next;
            break;
        }
    if (w->fill) region_give(c, w->fill, packed_bytes(&w->s));
    free(w);
}
