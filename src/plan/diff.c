#include "plan/diff.h"

#include <math.h>

#include "plan/placement_internal.h"

static bool is_resident(const struct placement *p, const struct item *item, int i, int expert) {
    const uint8_t *residents = p->residents[item->block];
    return p->units[item->block] > 0 && residents ? residents[expert] != 0
                                                  : p->homes[i] == SIDE_GPU;
}

/* Each expert by itself: as many may be others. */
static void compare_experts(const struct items *items, const struct placement *from,
                            const struct placement *to, struct diff_item *row) {
    const struct item *item = &items->items[row->item];
    int64_t bytes = item->weight_bytes + item->kv_bytes;
    int n_up = 0, n_down = 0;
    for (int e = 0; e < item->n_experts; e++) {
        bool here = is_resident(from, item, row->item, e),
             there = is_resident(to, item, row->item, e);
        n_up += there && !here;
        n_down += here && !there;
    }
    row->to_gpu_bytes = bytes / item->n_experts * n_up;
    row->to_host_bytes = bytes / item->n_experts * n_down;
}

static void compare(const struct items *items, const struct placement *from,
                    const struct placement *to, struct diff_item *row) {
    const struct item *item = &items->items[row->item];
    double bytes = (double)(item->weight_bytes + item->kv_bytes);
    row->from_share = placement_gpu_share(items, from, row->item);
    row->to_share = placement_gpu_share(items, to, row->item);
    if (item->n_experts > 0) {
        compare_experts(items, from, to, row);
        return;
    }
    row->to_gpu_bytes = (int64_t)(bytes * fmax(0, row->to_share - row->from_share));
    row->to_host_bytes = (int64_t)(bytes * fmax(0, row->from_share - row->to_share));
}

struct diff *placement_diff(struct arena *arena, const struct items *items,
                            const struct placement *from, const struct placement *to) {
    struct diff *d = ARENA_NEW(arena, struct diff);
    d->rows = ARENA_ARRAY(arena, struct diff_item, items->n_items);
    for (int i = 0; i < items->n_items; i++) {
        struct diff_item *row = &d->rows[d->n_rows];
        *row = (struct diff_item){.item = i};
        compare(items, from, to, row);
        if (row->to_gpu_bytes == 0 && row->to_host_bytes == 0) continue;
        d->to_gpu_bytes += row->to_gpu_bytes;
        d->to_host_bytes += row->to_host_bytes;
        d->n_rows++;
    }
    return d;
}

json_t *diff_to_json(const struct diff *d, const struct items *items) {
    json_t *rows = json_array();
    for (int i = 0; i < d->n_rows; i++) {
        const struct diff_item *row = &d->rows[i];
        const struct item *item = &items->items[row->item];
        json_array_append_new(rows, json_pack("{s:s, s:s, s:i, s:f, s:f, s:I, s:I}", "name",
                                              items_name(items, row->item), "op", item->key.op,
                                              "layer", item->layer, "gpu_share", row->from_share,
                                              "other_gpu_share", row->to_share, "to_gpu_bytes",
                                              (json_int_t)row->to_gpu_bytes, "to_host_bytes",
                                              (json_int_t)row->to_host_bytes));
    }
    return json_pack("{s:o, s:I, s:I}", "items", rows, "to_gpu_bytes", (json_int_t)d->to_gpu_bytes,
                     "to_host_bytes", (json_int_t)d->to_host_bytes);
}
