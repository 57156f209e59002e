#include "plan/schedule.h"

#include <math.h>
#include <string.h>

#include "plan/placement_internal.h"

/* Parts into which experts that a round chose, or a block, may be streamed at most. */
#define MAX_UNITS 32
/* What is larger passes through a slot in pieces. */
#define MAX_SLOT_BYTES 268435456.0
/* Values of the widest kind that live at once. */
#define LIVE_VALUES 4
/* Shares of a block's items that differ by less are one. */
#define SAME_SHARE 1e-9

/* From here on a round may be so much work that whole blocks hide badly behind each other. */
#define MANY_TOKENS 32

struct chain {
    struct arena *arena;
    const struct items *items;
    const struct placement *p;
    const struct schedule_options *o;
    struct term term;
    struct transfer_item *out;
    struct schedule_entry *entries;
    int n;
};

static double lines_of(const struct chain *c, int i) {
    return term_lines(c->items, i, &c->term);
}

static double time_of(const struct chain *c, int i, enum side side, double share) {
    return items_time(c->items, i, side, lines_of(c, i), c->o->depth, share);
}

/* ---- what a streamed item copies ---- */

/* The filled part of a cache goes up, and what the round adds comes down again. */
static double kv_bytes(const struct chain *c, int i, double *down) {
    const struct item *item = &c->items->items[i];
    int64_t k = 0, v = 0, width = item->key.n_dims > 2 ? item->key.dims[1] * item->key.dims[2] : 0;
    *down = 0;
    if (item->kv_bytes == 0) return 0;
    if (width == 0 || item->key.n_types < 2 || !dtype_row_size(item->key.types[0], width, &k) ||
        !dtype_row_size(item->key.types[1], width, &v))
        return (double)item->kv_bytes;
    double seen = item->span > 0 ? fmin(c->o->depth, item->span) : c->o->depth;
    *down = lines_of(c, i) * (double)(k + v);
    return seen * (double)(k + v);
}

static bool shared(const struct chain *c) {
    return c->items->profile->shared;
}

/* Is what is copied of it known only once the round has chosen? */
static bool chosen_late(const struct chain *c, int i) {
    const struct item *item = &c->items->items[i];
    if (item->n_experts == 0 || c->o->whole_experts || c->o->given) return false;
    return items_in_use(item, lines_of(c, i)) < ITEMS_MOST_EXPERTS * item->n_experts;
}

/* Adds item i's share to the entry and its seconds of the copy engine. */
static void add_copy(const struct chain *c, int i, double share, struct schedule_entry *entry,
                     struct transfer_item *t) {
    const struct profile_link *l = &c->items->profile->link;
    const struct item *item = &c->items->items[i];
    double down, up = kv_bytes(c, i, &down);
    up += chosen_late(c, i) ? items_active_bytes(c->items, i, lines_of(c, i))
                            : (double)item->weight_bytes;
    entry->slot_bytes += share * ((double)item->weight_bytes + (double)item->kv_bytes);
    if (shared(c)) return;
    entry->copy_bytes += share * (up + down);
    t->copy_s += share * (up / l->up_pinned + down / l->down_pinned);
}

/* Nothing of the block, or of item i alone, is bound to the host. */
static bool can_stream(const struct chain *c, int first, int n) {
    if (c->o->given) return c->o->given[first].share > 0;
    for (int i = first; i < first + n; i++) {
        const struct item *item = &c->items->items[i];
        if (item->kv_bytes > 0 && !c->o->stream_caches) return false;
        if (c->o->fixed && c->o->fixed[i] != PLACEMENT_FREE) return false;
        if (c->o->keep_experts && item->n_experts > 0) return false;
    }
    return true;
}

/* ---- entries ---- */

/* What changes of device before item i cost, if so many floats a line go up, down (0: none), and
 * both ways between devices that both run it and what is before it. */
static void set_change(const struct chain *c, int i, double up, double down, double exchange,
                       struct timeline_item *t) {
    const struct items *items = c->items;
    double lines = lines_of(c, i);
    t->up_s = up > 0 ? items_up_time(items, lines, up) : 0;
    t->down_s = down > 0 ? items_down_time(items, lines, down) : 0;
    t->exchange_s = exchange > 0 ? items_exchange_time(items, lines, exchange) : 0;
    t->pull_s = items_pull_time(items, lines, up);
    t->push_s = items_push_time(items, lines, down);
    t->cut_s = items->profile->link.cut_s;
}

static struct transfer_item *add_entry(struct chain *c, int first, int n) {
    double width = c->items->blocks[c->items->items[first].block].entry_width;
    struct transfer_item *t = &c->out[c->n];
    c->entries[c->n++] = (struct schedule_entry){.first = first, .n = n};
    *t = (struct transfer_item){0};
    set_change(c, first, width, width, width, &t->base);
    return t;
}

/* Share of what a round reads of a block that the GPU holds. */
static double resident_share(const struct chain *c, int block) {
    const struct items_block *b = &c->items->blocks[block];
    const uint8_t *residents = c->p->residents[block];
    const struct item *item = &c->items->items[b->first];
    if (!residents) return (double)c->p->units[block] / b->n_units;
    double use = 0, hits = 0;
    for (int e = 0; e < item->n_experts; e++) {
        double one = items_use(item, e, lines_of(c, b->first));
        use += one;
        hits += residents[e] ? one : 0;
    }
    return use > 0 ? hits / use : 0;
}

/* Share of an item's bytes that the host has of a block of which the GPU has share x: of experts,
 * of those that are used, or of all. */
static double host_bytes_share(const struct chain *c, int i, double x) {
    int block = c->items->items[i].block;
    if (!c->p->residents[block] || chosen_late(c, i)) return 1 - x;
    return 1 - (double)c->p->units[block] / c->items->blocks[block].n_units;
}

/* What streaming the rest of an item adds to the share that the GPU has: its starts are there. */
static double rest_time(const struct chain *c, int i, double share) {
    return time_of(c, i, SIDE_GPU, 1) - time_of(c, i, SIDE_GPU, share);
}

/* A block that the plan divides; its host units may be streamed. Of experts in use on either side
 * the longer is what is expected of the longer, not the longer of what is expected. */
static void add_divided(struct chain *c, int block) {
    const struct items_block *b = &c->items->blocks[block];
    struct transfer_item *t = add_entry(c, b->first, b->n);
    double x = resident_share(c, block), no_miss;
    t->base.place = TIMELINE_BOTH;
    for (int i = b->first; i < b->first + b->n; i++) {
        t->base.gpu_s += time_of(c, i, SIDE_GPU, x);
        t->base.cpu_s += time_of(c, i, SIDE_CPU, 1 - x);
        t->streamed_s += rest_time(c, i, x);
        add_copy(c, i, host_bytes_share(c, i, x), &c->entries[c->n - 1], t);
        t->base.late = t->base.late || chosen_late(c, i);
    }
    double longer = choices_split_time(c->items, block, &c->term, c->p->units[block],
                                       c->p->residents[block], &no_miss);
    double *most = t->base.cpu_s >= t->base.gpu_s ? &t->base.cpu_s : &t->base.gpu_s;
    /* where both work in one memory the longer gets the speed that the other leaves */
    double chance_s = shared(c) ? 0 : fmax(0, longer - *most);
    *most += chance_s;
    /* the less the CPU has, the less depends on chance */
    if (most == &t->base.gpu_s) t->streamed_s = fmax(0, t->streamed_s - chance_s);
    if (can_stream(c, b->first, b->n))
        t->n_units = min_int(MAX_UNITS, b->n_units - c->p->units[block]);
}

static bool all_on(const struct chain *c, int block, enum side side) {
    const struct items_block *b = &c->items->blocks[block];
    for (int i = b->first; c->p->units[block] == 0 && i < b->first + b->n; i++)
        if (c->p->homes[i] != (uint8_t)side) return false;
    return c->p->units[block] == 0;
}

/* What comes after divided experts and does not need them, as shared experts do: the GPU goes on
 * with it while the CPU computes its part. Returns the block after. */
static int add_beside(struct chain *c, int block) {
    struct schedule_entry *entry = &c->entries[c->n - 1];
    int next = block + 1;
    for (; next < c->items->n_blocks; next++) {
        const struct items_block *b = &c->items->blocks[next];
        if (!all_on(c, next, SIDE_GPU) || !items_beside(c->items, next, block)) break;
        for (int i = b->first; i < b->first + b->n; i++)
            c->out[c->n - 1].base.gpu_s += time_of(c, i, SIDE_GPU, 1);
        entry->n_beside += b->n;
    }
    return next;
}

/* What changes device before an item of a divided block, of which the host has a share: of what the
 * block's items make, that share of the units; of what enters, which the GPU has, all. */
static void change_inside(const struct chain *c, int i, double host, struct timeline_item *t) {
    const struct item *item = &c->items->items[i];
    double width = host * item->direct_width, up = item->n_sources > 0 ? width : 0;
    if (item->from_entry) width = fmax(width, c->items->blocks[item->block].entry_width);
    set_change(c, i, up, width, 0, t);
}

/* A divided block item by item, all or nothing of a host part. The devices exchange where the block
 * begins; inside it what changes device is an item's input, at most. */
static void add_divided_items(struct chain *c, int block) {
    const struct items_block *b = &c->items->blocks[block];
    double x = resident_share(c, block);
    for (int i = b->first; i < b->first + b->n; i++) {
        struct transfer_item *t = add_entry(c, i, 1);
        if (i > b->first) change_inside(c, i, 1 - x, &t->base);
        t->base.place = TIMELINE_BOTH;
        t->base.gpu_s = time_of(c, i, SIDE_GPU, x);
        t->base.cpu_s = time_of(c, i, SIDE_CPU, 1 - x);
        t->streamed_s = rest_time(c, i, x);
        t->n_units = can_stream(c, i, 1);
        add_copy(c, i, host_bytes_share(c, i, x), &c->entries[c->n - 1], t);
    }
}

/* A block on the host, as one entry whose units are streamed apart. */
static void add_host_block(struct chain *c, int block) {
    const struct items_block *b = &c->items->blocks[block];
    struct transfer_item *t = add_entry(c, b->first, b->n);
    t->base.place = TIMELINE_CPU;
    for (int i = b->first; i < b->first + b->n; i++) {
        t->base.cpu_s += time_of(c, i, SIDE_CPU, 1);
        t->streamed_s += time_of(c, i, SIDE_GPU, 1);
        add_copy(c, i, 1, &c->entries[c->n - 1], t);
        t->base.late = t->base.late || chosen_late(c, i);
    }
    t->n_units = min_int(MAX_UNITS, b->n_units);
}

/* Floats a token that an item reads of what its block makes before item `before`, if all of that
 * is made by then: the results of items, or what is made of them where they are. */
static double reads_before(const struct item *item, int before) {
    double made = 0;
    for (int k = 0; k < item->n_sources; k++) {
        if (item->sources[k].item >= before) return 0;
        made += item->sources[k].width;
    }
    return fmin(made, item->direct_width);
}

/* Floats a token that cross before item i if all that is there was made on the other side: what it
 * reads, and what those behind it read that could start as well. */
static double inner_width(const struct chain *c, int i) {
    const struct item *item = &c->items->items[i];
    const struct items_block *b = &c->items->blocks[item->block];
    double width = 0;
    for (int k = i; k < b->first + b->n; k++)
        width += reads_before(&c->items->items[k], i);
    return item->from_entry ? fmax(width, b->entry_width) : width;
}

/* Item by item. What crosses is what is not there yet (placement): at a change of device the
 * timeline charges it, else it is a part of the item's time. Where streaming makes the change, it
 * is all that is read (inner_width). */
static void add_items(struct chain *c, int block, enum timeline_place from) {
    const struct items_block *b = &c->items->blocks[block];
    uint32_t mask = 0, crossed = 0;
    for (int i = 0; i < b->n; i++)
        if (c->p->homes[b->first + i] == SIDE_GPU) mask |= 1U << min_int(i, 31);
    int entry = from == TIMELINE_GPU ? STATE_G : STATE_C;
    if (from == TIMELINE_BOTH) entry = mask & 1 ? STATE_G : STATE_C;
    for (int k = 0; k < b->n; k++) {
        int i = b->first + k;
        enum side side = mask >> min_int(k, 31) & 1 ? SIDE_GPU : SIDE_CPU;
        enum timeline_place place = side == SIDE_GPU ? TIMELINE_GPU : TIMELINE_CPU;
        struct transfer_item *t = add_entry(c, i, 1);
        double width = choices_crossing_width(c->items, b, k, mask, entry, &crossed), cost = 0;
        double *work = side == SIDE_GPU ? &t->base.gpu_s : &t->base.cpu_s;
        if (width > 0)
            cost = side == SIDE_GPU ? items_up_time(c->items, lines_of(c, i), width)
                                    : items_down_time(c->items, lines_of(c, i), width);
        bool changes = k > 0 && place != from;
        if (k > 0) {
            double inner = inner_width(c, i), up = changes && side == SIDE_GPU ? width : inner;
            set_change(c, i, up, changes && side == SIDE_CPU ? width : inner, b->entry_width,
                       &t->base);
        }
        *work = time_of(c, i, side, 1) + (changes || k == 0 ? 0 : cost);
        t->base.place = place;
        if (side == SIDE_CPU) {
            t->n_units = can_stream(c, i, 1);
            t->streamed_s = time_of(c, i, SIDE_GPU, 1);
            add_copy(c, i, 1, &c->entries[c->n - 1], t);
            t->base.late = chosen_late(c, i);
        }
        from = place;
    }
}

/* Is what may be streamed of a block an entry? A given plan's is, where all of its items are
 * streamed alike: in units, or together. */
static bool is_entry(const struct chain *c, int block, bool pieces) {
    const struct items_block *b = &c->items->blocks[block];
    const struct schedule_given *g = c->o->given;
    if (b->n == 1) return true;
    if (!g) return !pieces;
    bool alike = true, together = g[b->first].lot > 0;
    for (int i = b->first + 1; i < b->first + b->n; i++) {
        alike = alike && fabs(g[i].share - g[b->first].share) < SAME_SHARE;
        together = together && g[i].lot == g[b->first].lot;
    }
    return alike && (together || c->p->units[block] > 0 || g[b->first].share < 1);
}

/* Pieces that the host parts come in. */
static void set_pieces(struct chain *c) {
    double slot = c->o->slot_bytes;
    for (int i = 0; i < c->n; i++)
        c->out[i].n_pieces =
            slot > 0 ? (int)fmin(SCHEDULE_PIECES, ceil(c->entries[i].copy_bytes / slot)) : 1;
}

static void build(struct arena *arena, const struct items *items, const struct placement *p,
                  const struct schedule_options *o, bool pieces, struct chain *c) {
    *c = (struct chain){
        .arena = arena,
        .items = items,
        .p = p,
        .o = o,
        .term = {.weight = 1, .n_tokens = o->n_tokens, .n_rows = o->n_rows, .depth = o->depth},
        .out = ARENA_ARRAY(arena, struct transfer_item, items->n_items),
        .entries = ARENA_ARRAY(arena, struct schedule_entry, items->n_items)};
    for (int b = 0; b < items->n_blocks; b++) {
        enum timeline_place from = c->n > 0 ? c->out[c->n - 1].base.place : TIMELINE_CPU;
        bool entry = is_entry(c, b, pieces);
        if (p->units[b] > 0 && entry) {
            add_divided(c, b);
            if (p->residents[b]) b = add_beside(c, b) - 1;
        } else if (p->units[b] > 0)
            add_divided_items(c, b);
        else if ((o->by_units || o->given) && entry && items->blocks[b].n_units > 1 &&
                 all_on(c, b, SIDE_CPU) &&
                 can_stream(c, items->blocks[b].first, items->blocks[b].n))
            add_host_block(c, b);
        else
            add_items(c, b, from);
    }
    set_pieces(c);
}

/* ---- the schedule ---- */

/* Every host part that may be streamed is copied, then used, nothing at once but what the devices
 * have of a divided block. */
static struct timeline_result serial(const struct chain *c, double end_s) {
    struct timeline_result r = {0};
    enum timeline_place from = TIMELINE_CPU;
    double cpu_early_s = 0, gpu_early_s = 0;
    for (int i = 0; i < c->n; i++) {
        struct timeline_item item = transfer_apply(&c->out[i], c->out[i].n_units);
        struct timeline_waits waits = timeline_enter(&item, from, cpu_early_s, gpu_early_s);
        double cpu_end_s = waits.cpu_s + item.cpu_s, gpu_end_s = waits.gpu_s + item.gpu_s;
        double copy_s = item.streamed ? item.copy_s : 0, held_s = fmax(cpu_end_s, gpu_end_s);
        double item_s = held_s + copy_s + item.streamed_s;
        if (item.streamed) gpu_end_s = item_s;
        bool both = item.place == TIMELINE_BOTH;
        r.switch_s += held_s - fmax(item.cpu_s, item.gpu_s);
        r.n_splits += (from != item.place || from == TIMELINE_BOTH) + item.streamed;
        r.copy_busy_s += copy_s;
        r.cpu_busy_s += item.cpu_s;
        r.gpu_busy_s += item.gpu_s + item.streamed_s;
        r.round_s += item_s;
        cpu_early_s = both ? item_s - cpu_end_s : 0;
        gpu_early_s = both ? item_s - gpu_end_s : 0;
        from = item.place;
    }
    double back_s = from == TIMELINE_CPU ? 0 : fmax(0, end_s - gpu_early_s);
    r.switch_s += back_s;
    r.round_s += back_s;
    r.n_splits += from != TIMELINE_CPU;
    r.exposed_s = r.copy_busy_s;
    return r;
}

/* Bytes of activations that a round moves. */
static double crossing_bytes(const struct chain *c, const int *units) {
    double bytes = 0;
    enum timeline_place from = TIMELINE_CPU;
    for (int i = 0; i < c->n; i++) {
        enum timeline_place place = transfer_apply(&c->out[i], units[i]).place;
        int first = c->entries[i].first;
        double width = c->items->blocks[c->items->items[first].block].entry_width;
        bool both = from == TIMELINE_BOTH && place == TIMELINE_BOTH;
        int ways = both ? 2 * (c->out[i].base.exchange_s > 0) : from != place;
        bytes += ways * width * lines_of(c, first) * (double)sizeof(float);
        from = place;
    }
    return bytes;
}

/* The chain and the machine, with nothing decided yet. */
static void pose(struct arena *arena, const struct items *items, const struct placement *p,
                 const struct schedule_options *o, bool pieces, struct chain *c,
                 struct schedule *out) {
    const struct profile_interference *f = &items->profile->interference;
    build(arena, items, p, o, pieces, c);
    struct timeline_machine m = {.n_slots = o->n_slots,
                                 .cpu_speed_copying = f->cpu_speed_copying,
                                 .copy_speed_cpu = f->copy_speed_cpu,
                                 .cpu_speed_gpu = f->cpu_speed_gpu,
                                 .gpu_speed_cpu = f->gpu_speed_cpu};
    m.end_s = items_down_time(items, o->n_rows, items->blocks[items->n_blocks - 1].exit_width);
    *out = (struct schedule){
        .problem = {c->out, c->n, m, o->periodic}, .entries = c->entries, .pieces = pieces};
}

/* What follows from what was decided. */
static void sum_up(const struct chain *c, struct schedule *out) {
    for (int i = 0; i < c->n; i++)
        if (out->transfer.units[i] > 0)
            out->copied_bytes +=
                c->entries[i].copy_bytes * out->transfer.units[i] / c->out[i].n_units;
    out->crossing_bytes = crossing_bytes(c, out->transfer.units);
    out->serial = serial(c, out->problem.machine.end_s);
}

static void solve(struct arena *arena, const struct items *items, const struct placement *p,
                  const struct schedule_options *o, bool pieces, struct schedule *out) {
    struct chain c;
    pose(arena, items, p, o, pieces, &c, out);
    transfer_solve(arena, &out->problem, o->rule, &out->transfer);
    sum_up(&c, out);
}

/* Timed as it is. */
static void take_given(struct arena *arena, const struct items *items, const struct placement *p,
                       const struct schedule_options *o, struct schedule *out) {
    struct chain c;
    pose(arena, items, p, o, false, &c, out);
    out->transfer =
        (struct transfer_schedule){.units = ARENA_ARRAY(arena, int, c.n), .from = TRANSFER_GIVEN};
    for (int k = 0; k < N_TRANSFER_RULES; k++)
        out->transfer.proposed_s[k] = HUGE_VAL;
    for (int i = 0; i < c.n; i++) {
        const struct schedule_given *given = &o->given[c.entries[i].first];
        int n = c.out[i].n_units, units = max_int(1, (int)(given->share * n + 0.5));
        if (given->share <= 0 || n == 0) continue;
        out->transfer.units[i] = units;
        if (given->n_lots > 0) c.out[i].n_pieces = given->n_lots * n / units; /* transfer_apply */
    }
    transfer_evaluate(arena, &out->problem, out->transfer.units, &out->transfer.result, NULL);
    sum_up(&c, out);
}

void schedule_retime(struct arena *arena, const struct items *items, const struct placement *p,
                     const struct schedule_options *o, const struct schedule *from,
                     struct schedule *out) {
    struct chain c;
    pose(arena, items, p, o, from->pieces, &c, out);
    REQUIRE(c.n == from->problem.n);
    out->transfer = from->transfer;
    out->transfer.units = ARENA_ARRAY(arena, int, c.n);
    if (c.n) memcpy(out->transfer.units, from->transfer.units, sizeof(int) * (size_t)c.n);
    transfer_evaluate(arena, &out->problem, out->transfer.units, &out->transfer.result, NULL);
    sum_up(&c, out);
}

void schedule_solve(struct arena *arena, const struct items *items, const struct placement *p,
                    const struct schedule_options *o, struct schedule *out) {
    if (o->given) {
        take_given(arena, items, p, o, out);
        return;
    }
    solve(arena, items, p, o, false, out);
    if (!o->by_units || o->n_slots == 0 || o->rule == TRANSFER_NONE || o->keep_blocks ||
        o->n_tokens < MANY_TOKENS)
        return;
    struct schedule pieces;
    solve(arena, items, p, o, true, &pieces);
    if (pieces.transfer.result.round_s < out->transfer.result.round_s) *out = pieces;
}

bool schedule_same(const struct schedule *a, const struct schedule *b) {
    return a->pieces == b->pieces && a->problem.n == b->problem.n &&
           memcmp(a->transfer.units, b->transfer.units, sizeof(int) * (size_t)a->problem.n) == 0;
}

void schedule_spans(struct arena *arena, const struct schedule *s, struct timeline_span *spans) {
    struct timeline_result r;
    transfer_evaluate(arena, &s->problem, s->transfer.units, &r, spans);
}

double schedule_slot_bytes(struct arena *arena, const struct items *items,
                           const struct placement *p, const struct schedule_options *o) {
    struct chain c;
    double most = 0;
    build(arena, items, p, o, false, &c);
    for (int i = 0; i < c.n; i++)
        most = fmax(most, c.entries[i].slot_bytes);
    return fmin(most, MAX_SLOT_BYTES);
}

int64_t schedule_work_bytes(const struct items *items, int n_tokens) {
    int64_t width = 0;
    for (int i = 0; i < items->n_items; i++)
        if (!items->items[i].rows) width = max_i64(width, items->items[i].out_width);
    return width * n_tokens * LIVE_VALUES * (int64_t)sizeof(float);
}
