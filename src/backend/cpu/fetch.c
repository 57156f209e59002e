/* Weights asked for ahead of their use: into the second-level cache, while a thread waits for
 * others or works on the matrix before. A hint only: nothing depends on it. */
#include "backend/cpu/cpu_internal.h"
#include "backend/packed.h"

#define FETCH_STEP  4096                /* bytes at a time */
#define FETCH_NORM  8192                /* of a norm's weights */
#define FETCH_LIMIT ((size_t)192 << 10) /* well below a second-level cache */

void cpu_fetch_memory(struct fetch *f, const struct cpu *c, const void *memory, size_t bytes) {
    *f = (struct fetch){.next = memory, .left = min_size(bytes, FETCH_LIMIT)};
    if (c->options.no_fusion) f->left = 0;
}

void cpu_fetch_begin(struct fetch *f, const struct cpu *c, const struct backend_weight *w,
                     int matrix, int begin, int end) {
    *f = (struct fetch){0};
    if (!w->packed || begin >= end) return;
    const size_t group_bytes = pack_group_bytes(w->s.dtype, w->s.n_cols);
    const int group = begin / PACK_ROWS;
    cpu_fetch_memory(
        f, c, w->packed + (size_t)matrix * cpu_packed_bytes(&w->s) + (size_t)group * group_bytes,
        (size_t)(pack_n_groups(end) - group) * group_bytes);
}

static void fetch_lines(const uint8_t *p, size_t bytes) {
    for (size_t at = 0; at < bytes; at += 64)
        __builtin_prefetch(p + at, 0, 2);
}

bool cpu_fetch_step(void *arg) {
    struct fetch *f = arg;
    if (f->left == 0) return false;
    const size_t bytes = min_size(FETCH_STEP, f->left);
    fetch_lines(f->next, bytes);
    f->next += bytes;
    f->left -= bytes;
    return f->left > 0;
}

const uint8_t *cpu_fetch_then(const struct cpu *c, const struct matrix_rows *now,
                              const struct matrix_rows *then, int n_lines) {
    struct fetch f;
    if (n_lines > SMALL_LINES || !then->weight) return NULL;
    cpu_fetch_begin(&f, c, then->weight, then->matrix, then->begin, then->end);
    if (f.left == 0) return NULL;
    const struct weight_source *a = &now->weight->s, *b = &then->weight->s;
    if (now->weight->packed && a->dtype == b->dtype && a->n_cols == b->n_cols) return f.next;
    cpu_fetch_step(&f);
    return NULL;
}

static void fetch_step(const struct step *s) {
    if (!s) return;
    fetch_lines((const uint8_t *)s, sizeof *s);
    if (s->op) fetch_lines((const uint8_t *)s->op, sizeof *s->op);
    if (s->weight) fetch_lines((const uint8_t *)s->weight, sizeof *s->weight);
}

void cpu_fetch_phase(const struct cpu *c, const struct phase *p) {
    const struct products *products = &p->products;
    const struct step *norm = products->norm ? products->norm : p->step;
    if (c->options.no_fusion) return;
    fetch_lines((const uint8_t *)(p + 1), sizeof *p); /* which may not be there: a hint */
    fetch_step(norm);
    for (int i = 0; i < products->n; i++)
        fetch_step(products->items[i]);
    fetch_step(products->gated);
    fetch_step(products->sum);
    if (norm && norm->kind == STEP_OP && norm->op->kind == OP_NORM && norm->weight)
        fetch_lines(norm->weight->s.data,
                    min_size(FETCH_NORM, (size_t)norm->weight->s.n_cols * sizeof(float)));
}
