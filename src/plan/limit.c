#include "plan/limit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "plan/timeline.h"

const char *limit_binds_name(enum limit_binds binds) {
    static const char *const names[N_LIMITS] = {"vram", "gpu", "dram", "link"};
    return (unsigned)binds < N_LIMITS ? names[binds] : "?";
}

void limit_popularity(double exponent, int n_experts, int n_used, double *p) {
    double left = n_used, before = 0;
    for (int e = 0; e < n_experts; e++) {
        double so_far = pow((double)(e + 1) / n_experts, exponent);
        p[e] = fmin(1, n_used * (so_far - before));
        before = so_far;
        left -= p[e];
    }
    for (int e = 0; e < n_experts && left > 0; e++) { /* what those at 1 cannot take */
        double more = fmin(1 - p[e], left);
        p[e] += more;
        left -= more;
    }
}

/* ---- the problem ---- */

/* Arithmetic of an item. */
static double flop_s(const struct items *items, const struct item *item, enum side side,
                     double n_tokens, double depth) {
    if (item->span > 0) depth = fmin(depth, item->span);
    return profile_flop_time(items->profile, &item->key, side, n_tokens, depth);
}

static void add_part(struct limit_problem *out, int block, double bytes, double use, bool cache) {
    if (bytes <= 0) return;
    out->parts[out->n_parts++] = (struct limit_part){block, bytes, fmin(use, 1), cache};
}

/* Share of a cache that is read. */
static double filling(const struct item *item, double n_tokens, double depth) {
    const struct profile_key *key = &item->key;
    if (item->kv_bytes == 0 || key->n_types < 2) return 0;
    int64_t width = key->dims[1] * key->dims[2], k_bytes, v_bytes;
    bool fits = dtype_row_size(key->types[0], width, &k_bytes) &&
                dtype_row_size(key->types[1], width, &v_bytes);
    double seen = depth + n_tokens;
    if (item->span > 0) seen = fmin(seen, item->span);
    return fits ? fmin(1, seen * (double)(k_bytes + v_bytes) / (double)item->kv_bytes) : 1;
}

static void add_item(const struct items *items, const struct item *item, double n_tokens,
                     double depth, struct limit_problem *out) {
    double weight_bytes = (double)item->weight_bytes, lines = item->rows ? 1 : n_tokens;
    struct limit_block *b = &out->blocks[item->block];
    b->gpu_flop_s += flop_s(items, item, SIDE_GPU, lines, depth);
    b->cpu_flop_s += flop_s(items, item, SIDE_CPU, lines, depth);
    b->gpu_start_s += item->n_starts * items->profile->op_s[SIDE_GPU];
    b->cpu_start_s += item->n_starts * items->profile->op_s[SIDE_CPU];
    add_part(out, item->block, (double)item->kv_bytes, filling(item, n_tokens, depth), true);
    if (item->n_experts == 0) add_part(out, item->block, weight_bytes, 1, false);
    for (int e = 0; e < item->n_experts; e++)
        add_part(out, item->block, weight_bytes / item->n_experts, items_use(item, e, n_tokens),
                 false);
}

void limit_problem_of(struct arena *arena, const struct items *items, double n_tokens, double depth,
                      struct limit_problem *out) {
    const struct profile *p = items->profile;
    int n_parts = 0;
    for (int i = 0; i < items->n_items; i++)
        n_parts += 2 + items->items[i].n_experts;
    *out = (struct limit_problem){.parts = ARENA_ARRAY(arena, struct limit_part, n_parts),
                                  .blocks = ARENA_ARRAY(arena, struct limit_block, items->n_blocks),
                                  .n_blocks = items->n_blocks,
                                  .vram_bytes = p->vram_bytes,
                                  .dram_bytes = p->dram_bytes,
                                  .up_bytes = p->link.up_pinned};
    for (int i = 0; i < items->n_items; i++)
        add_item(items, &items->items[i], n_tokens, depth, out);
    for (int b = 0; b < items->n_blocks; b++) {
        double width = items->blocks[b].entry_width;
        out->blocks[b].up_s = items_up_time(items, n_tokens, width);
        out->blocks[b].down_s = items_down_time(items, n_tokens, width);
        out->blocks[b].exchange_s = items_exchange_time(items, n_tokens, width);
    }
    out->end_s = items_down_time(items, 1, items->blocks[items->n_blocks - 1].exit_width);
}

/* ---- bounds ---- */

static int by_use(const void *a, const void *b) {
    const struct limit_part *p = *(const struct limit_part *const *)a;
    const struct limit_part *q = *(const struct limit_part *const *)b;
    if (p->use < q->use || p->use > q->use) return p->use > q->use ? -1 : 1;
    return p < q ? -1 : p > q;
}

/* Owned (free). */
static const struct limit_part **sorted(const struct limit_problem *p) {
    const struct limit_part **order = xcalloc((size_t)p->n_parts + 1, sizeof *order);
    for (int i = 0; i < p->n_parts; i++)
        order[i] = &p->parts[i];
    qsort(order, (size_t)p->n_parts, sizeof *order, by_use);
    return order;
}

static void worst(struct limit *l, enum limit_binds binds, double s) {
    if (s <= l->round_s) return;
    l->round_s = s;
    l->binds = binds;
}

static double read_bytes(const struct limit_problem *p) {
    double sum = 0;
    for (int i = 0; i < p->n_parts; i++)
        sum += p->parts[i].bytes * p->parts[i].use;
    return sum;
}

/* Bytes read of a block, from either memory. */
struct shares {
    double vram, dram;
};

/* More of a block (as_one: of the model) becomes resident, if `balanced` until both memories take
 * equally long: densest first over all blocks, which is exact, since in each the gain of a byte
 * only falls. */
static void fill(const struct limit_problem *p, double budget_bytes, bool as_one, bool balanced,
                 struct shares *shares, struct limit *out) {
    const struct limit_part **order = sorted(p);
    for (int i = 0; i < p->n_parts && out->resident_bytes < budget_bytes; i++) {
        struct shares *s = &shares[as_one ? 0 : order[i]->block];
        if (order[i]->use <= 0) break;
        double balance = (s->dram * p->vram_bytes - s->vram * p->dram_bytes) /
                         (p->vram_bytes + p->dram_bytes); /* bytes read, to be moved */
        double bytes = fmin(order[i]->bytes, budget_bytes - out->resident_bytes);
        if (balanced) bytes = fmin(bytes, fmax(0, balance) / order[i]->use);
        out->resident_bytes += bytes;
        s->vram += bytes * order[i]->use;
        s->dram -= bytes * order[i]->use;
    }
    free(order);
}

struct limit limit_round(const struct limit_problem *p, double budget_bytes) {
    struct limit out = {0};
    struct shares all = {.dram = read_bytes(p)};
    double read = all.dram, flop = 0;
    fill(p, budget_bytes, true, true, &all, &out);
    for (int b = 0; b < p->n_blocks; b++)
        flop += p->blocks[b].gpu_flop_s;
    worst(&out, LIMIT_VRAM, all.vram / p->vram_bytes);
    worst(&out, LIMIT_GPU, flop);
    worst(&out, LIMIT_DRAM, all.dram / p->dram_bytes);
    out.hit = read > 0 ? all.vram / read : 1;
    return out;
}

/* What one block takes by itself. */
static struct limit block_limit(const struct limit_problem *p, int block, const struct shares *s) {
    struct limit out = {0};
    const struct limit_block *b = &p->blocks[block];
    double gpu_start_s = p->with_starts && s->vram > 0 ? b->gpu_start_s : 0;
    double cpu_start_s = p->with_starts && s->dram > 0 ? b->cpu_start_s : 0;
    worst(&out, LIMIT_VRAM, s->vram / p->vram_bytes + gpu_start_s);
    worst(&out, LIMIT_GPU, b->gpu_flop_s);
    worst(&out, LIMIT_DRAM, s->dram / p->dram_bytes + cpu_start_s);
    return out;
}

/* Which memories a block is read from. */
static enum timeline_place where_is(const struct shares *s) {
    if (s->dram <= 1e-6 * s->vram) return TIMELINE_GPU;
    return s->vram > 0 ? TIMELINE_BOTH : TIMELINE_CPU;
}

static double change_s(const struct limit_block *b, enum timeline_place from,
                       enum timeline_place to) {
    const struct timeline_item item = {
        .place = to, .up_s = b->up_s, .down_s = b->down_s, .exchange_s = b->exchange_s};
    return timeline_switch_s(&item, from);
}

/* Of entering the block and what comes after it, if it is at `here`. */
static double changes_s(const struct limit_problem *p, const struct shares *shares, int block,
                        enum timeline_place here) {
    enum timeline_place before = block > 0 ? where_is(&shares[block - 1]) : TIMELINE_CPU;
    double s = change_s(&p->blocks[block], before, here);
    if (block + 1 < p->n_blocks)
        return s + change_s(&p->blocks[block + 1], here, where_is(&shares[block + 1]));
    return s + (here == TIMELINE_CPU ? 0 : p->end_s);
}

/* A block that is divided becomes whole where the budget allows and its exchanges are worth more.
 */
static void make_whole(const struct limit_problem *p, double budget_bytes, struct shares *shares,
                       struct limit *out) {
    double *missing = xcalloc((size_t)p->n_blocks + 1, sizeof *missing); /* memory */
    for (int i = 0; i < p->n_parts; i++)
        missing[p->parts[i].block] += p->parts[i].bytes;
    for (int b = 0; b < p->n_blocks; b++) {
        struct shares whole = {.vram = shares[b].vram + shares[b].dram};
        double share = whole.vram > 0 ? shares[b].vram / whole.vram : 1;
        double bytes = missing[b] * (1 - share),
               gain = block_limit(p, b, &shares[b]).round_s - block_limit(p, b, &whole).round_s;
        gain +=
            changes_s(p, shares, b, where_is(&shares[b])) - changes_s(p, shares, b, TIMELINE_GPU);
        if (gain <= 0 || out->resident_bytes + bytes > budget_bytes) continue;
        out->resident_bytes += bytes;
        shares[b] = whole;
    }
    free(missing);
}

static struct limit blocks_limit(const struct limit_problem *p, double budget_bytes,
                                 bool balanced) {
    struct limit out = {0};
    struct shares *shares = xcalloc((size_t)p->n_blocks + 1, sizeof *shares);
    double of_s[N_LIMITS] = {0}, vram = 0, read = 0;
    enum timeline_place from = TIMELINE_CPU;
    for (int i = 0; i < p->n_parts; i++)
        shares[p->parts[i].block].dram += p->parts[i].bytes * p->parts[i].use;
    fill(p, budget_bytes, false, balanced, shares, &out);
    for (int again = 0; again < 2; again++) /* a neighbour that became whole may change the gain */
        make_whole(p, budget_bytes, shares, &out);
    for (int b = 0; b < p->n_blocks; b++) {
        struct limit one = block_limit(p, b, &shares[b]);
        enum timeline_place here = where_is(&shares[b]);
        out.n_divided += here == TIMELINE_BOTH;
        out.round_s += one.round_s + change_s(&p->blocks[b], from, here);
        of_s[one.binds] += one.round_s;
        vram += shares[b].vram;
        read += shares[b].vram + shares[b].dram;
        from = here;
    }
    if (from != TIMELINE_CPU) out.round_s += p->end_s;
    for (int k = 0; k < N_LIMITS; k++)
        if (of_s[k] > of_s[out.binds]) out.binds = (enum limit_binds)k;
    out.hit = read > 0 ? vram / read : 1;
    free(shares);
    return out;
}

/* Dividing every block costs an exchange each; filling whole blocks leaves DRAM idle. The better.
 */
struct limit limit_blocks(const struct limit_problem *p, double budget_bytes) {
    struct limit divided = blocks_limit(p, budget_bytes, true);
    struct limit whole = blocks_limit(p, budget_bytes, false);
    return divided.round_s <= whole.round_s ? divided : whole;
}

struct limit limit_prefill(const struct limit_problem *p, double budget_bytes) {
    struct limit out = {0};
    double gpu = 0, cpu = 0;
    for (int b = 0; b < p->n_blocks; b++) {
        gpu += p->blocks[b].gpu_flop_s;
        cpu += p->blocks[b].cpu_flop_s;
    }
    if (gpu > 0 && cpu > 0) worst(&out, LIMIT_GPU, 1 / (1 / gpu + 1 / cpu));
    const struct limit_part **order = sorted(p);
    double read = 0, hit = 0;
    for (int i = 0; i < p->n_parts; i++) {
        if (order[i]->cache) continue;
        double bytes = fmin(order[i]->bytes, budget_bytes - out.resident_bytes);
        out.resident_bytes += bytes;
        read += order[i]->bytes * order[i]->use;
        hit += bytes * order[i]->use;
    }
    free(order);
    worst(&out, LIMIT_LINK, (read - hit) / p->up_bytes);
    out.hit = read > 0 ? hit / read : 1;
    return out;
}
