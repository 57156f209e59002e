/* The order of steps, and what follows from it. */
#include "run/lower_internal.h"

#include <stdlib.h>

/* The last step before `before` that writes the buffer; there is one. */
static int last_writer(const struct lowering *l, int buffer, int before) {
    int i = before - 1;
    while (i > 0 && l->steps[i].out != buffer)
        i--;
    return i;
}

/* Each step, and behind it the early copies of what it makes, goes to `to`; new_index: (n_steps).
 */
static void arrange(const struct lowering *l, struct lower_step *to, int *new_index) {
    const int n_steps = (int)l->n_steps;
    int *first = xcalloc(l->n_steps + 1, sizeof *first); /* its first early copy, + 1; 0: none */
    int *next = xcalloc(l->n_steps + 1, sizeof *next), n = 0;
    for (int i = n_steps - 1; i >= 0; i--) {
        if (!l->steps[i].early) continue;
        int writer = last_writer(l, l->steps[i].in[0], i);
        next[i] = first[writer];
        first[writer] = i + 1;
    }
    for (int i = 0; i < n_steps; i++) {
        if (l->steps[i].early) continue;
        to[new_index[i] = n++] = l->steps[i];
        for (int copy = first[i]; copy; copy = next[copy - 1])
            to[new_index[copy - 1] = n++] = l->steps[copy - 1];
    }
    REQUIRE(n == n_steps);
    free(first), free(next);
}

static void bring_forward(struct lowering *l) {
    struct lower_step *steps = xcalloc(l->n_steps + 1, sizeof *steps);
    int *new_index = xcalloc(l->n_steps + 1, sizeof *new_index);
    arrange(l, steps, new_index);
    for (int i = 0; i < l->program->n_transfers; i++) {
        struct program_transfer *t = &l->program->transfers[i];
        t->first_step = new_index[t->first_step];
        t->last_step = new_index[t->last_step];
    }
    free(new_index);
    free(l->steps);
    l->steps = steps;
}

/* Notes that step i waits for step j of another device. */
static void wait_for(struct lowering *l, int i, int j) {
    int device = l->steps[j].s.device;
    if (device == l->steps[i].s.device) return;
    l->steps[i].wait[device] = max_int(l->steps[i].wait[device], j);
}

/* Its inputs' and output's lifetimes grow to the step. */
static void note_uses(struct lowering *l, int index) {
    struct lower_step *s = &l->steps[index];
    s->wait = ARENA_ARRAY(l->arena, int, l->n_devices);
    for (int d = 0; d < l->n_devices; d++)
        s->wait[d] = -1;
    for (int i = 0; i < s->s.step.n_in; i++) {
        struct buffer *b = &l->buffers[s->in[i]];
        b->last_use = index;
        b->n_readers++;
        b->readers[s->s.device] = index;
        if (b->device < 0) wait_for(l, index, b->writer);
    }
    struct buffer *o = &l->buffers[s->out];
    if (o->writer < 0) o->writer = index;
    o->last_use = index;
}

void lower_order(struct lowering *l) {
    bring_forward(l);
    for (size_t i = 0; i < l->n_buffers; i++) {
        struct buffer *b = &l->buffers[i];
        b->writer = b->last_use = -1;
        b->readers = ARENA_ARRAY(l->arena, int, l->n_devices);
        for (int d = 0; d < l->n_devices; d++)
            b->readers[d] = -1;
    }
    for (int i = 0; i < (int)l->n_steps; i++)
        note_uses(l, i);
}
