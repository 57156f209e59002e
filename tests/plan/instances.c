#include "instances.h"

#include "machine.h"
#include "support.h"
#include "tiny_graph.h"

#include <math.h>

const struct tiny_shape instance_dense = {.n_heads = 9,
                                          .n_kv_heads = 3,
                                          .head_dim = 64,
                                          .n_embd = 576,
                                          .n_ff = 1536,
                                          .n_vocab = 320,
                                          .dtype = DTYPE_Q4_1,
                                          .dtype_down = DTYPE_Q6_K,
                                          .row_group = 16};
const struct tiny_shape instance_moe = {.n_heads = 4,
                                        .n_kv_heads = 2,
                                        .head_dim = 16,
                                        .n_embd = 64,
                                        .n_ff = 32,
                                        .n_vocab = 33,
                                        .dtype = DTYPE_Q8_0,
                                        .n_experts = 8,
                                        .n_used = 2};

static double between(struct rng *rng, double low, double high) {
    return low + rng_unit(rng) * (high - low);
}

static void draw_times(struct rng *rng, struct profile_item *p, double gpu_s, double cpu_s) {
    double fixed = between(rng, 0, 0.3);
    for (int side = 0; side < N_SIDES; side++)
        for (int k = 0; k < 3; k++) {
            static const double shares[] = {0.25, 0.5, 1};
            double s = (side == SIDE_GPU ? gpu_s : cpu_s) * (fixed + (1 - fixed) * shares[k]);
            p->sides[side].work_s[k][0] = s;
            p->sides[side].work_s[k][1] = s * (side == SIDE_GPU ? 30 : 200);
        }
}

struct items *instance_random(struct arena *arena, struct rng *rng, const struct tiny_shape *shape,
                              int n_layers, double spread) {
    struct tiny_shape s = *shape;
    struct items_options o = items_options_default();
    struct profile *p = machine_laptop(arena);
    struct items *items;
    s.n_layers = n_layers;
    o.quantum_bytes = 1 << 12;
    TEST_OK(items_build(arena, tiny_graph(arena, &s), p, &o, &items));
    p->tokens[0] = 1, p->tokens[1] = 512, p->n_tokens = 2;
    p->shares[0] = 0.25, p->shares[1] = 0.5, p->shares[2] = 1, p->n_shares = 3;
    p->n_depths = 1;
    p->link.kappa_up_s = between(rng, 0, 40e-6);
    p->link.kappa_down_s = between(rng, 0, 40e-6);
    p->link.kappa_x_s = between(rng, 0, 60e-6);
    p->link.activation_up = between(rng, 1e8, 1e10);
    p->link.activation_down = between(rng, 1e8, 1e10);
    items->total_quanta = 0;
    for (int i = 0; i < items->n_items; i++) {
        struct item *item = &items->items[i];
        struct profile_item *measured = ARENA_NEW(arena, struct profile_item);
        measured->key = item->key;
        item->quanta = 1 + (int)rng_below(rng, 9);
        item->weight_bytes = item->quanta * items->quantum_bytes - rng_below(rng, 4096);
        item->kv_bytes = 0;
        items->total_quanta += item->quanta;
        double gpu_s = item->quanta * between(rng, 3e-6, 4e-6) + 5e-6;
        draw_times(rng, measured, gpu_s, item->quanta * 25e-6 * between(rng, 0.2, 0.2 * spread));
        item->measured = measured;
    }
    return items;
}

struct profile *instance_profile(const struct items *items) {
    return (struct profile *)(uintptr_t)items->profile;
}

/* ---- the oracle ---- */

double oracle_copy(const struct items *items, int to, double n_tokens, double floats) {
    const struct profile_link *l = &items->profile->link;
    double bytes = 4 * n_tokens * floats;
    return to ? l->kappa_up_s + bytes / l->activation_up
              : l->kappa_down_s + bytes / l->activation_down;
}

double oracle_block(const struct items *items, int block, uint32_t mask, int entry, double n_tokens,
                    double depth, int *exit) {
    const struct items_block *b = &items->blocks[block];
    bool has[2][32] = {{false}}; /* [device][item of the block, or b->n: the entry] */
    double s = 0;
    has[entry][b->n] = true;
    for (int i = 0; i < b->n; i++) {
        const struct item *item = &items->items[b->first + i];
        int here = mask >> i & 1, n_away = 0;
        double floats = 0;
        for (int k = 0; k < item->n_sources; k++) {
            int source = item->sources[k].item - b->first;
            if ((int)(mask >> source & 1) != here) n_away++;
            if (!has[here][source]) floats += item->sources[k].width;
            has[here][source] = true;
        }
        bool all_away = n_away == item->n_sources && !item->from_entry;
        if (all_away && floats > item->direct_width) floats = item->direct_width;
        if (item->from_entry && !has[here][b->n]) {
            floats += b->entry_width;
            has[here][b->n] = true;
        }
        if (floats > 0) s += oracle_copy(items, here, n_tokens, floats);
        s += items_time(items, b->first + i, here ? SIDE_GPU : SIDE_CPU, n_tokens, depth, 1);
        has[here][i] = true;
    }
    *exit = mask >> (b->n - 1) & 1;
    return s;
}

double oracle_move(const struct items *items, int block, int from, int to, double n_tokens) {
    double width = items->blocks[block].entry_width;
    double up = oracle_copy(items, 1, n_tokens, width),
           down = oracle_copy(items, 0, n_tokens, width);
    const struct profile_link *l = &items->profile->link;
    const double cost[3][3] = {
        {0, up, up},
        {down, 0, down},
        {down, up, l->kappa_x_s + (up - l->kappa_up_s) + (down - l->kappa_down_s)}};
    return cost[from][to];
}

double oracle_end(const struct items *items, double n_tokens) {
    return oracle_copy(items, 0, n_tokens, items->blocks[items->n_blocks - 1].exit_width);
}
