/* Weights asked for ahead of their use: into the second-level cache, while a thread waits for
 * others or works on the matrix before. A hint only: nothing depends on it. */
#include "backend/cpu/cpu_internal.h"
#include "backend/packed.h"

#define FETCH_GROUPS 4                   /* that products of one token take side by side */
#define FETCH_STEP   1024                /* bytes of each of them at a time */
#define FETCH_FIRST  2048                /* bytes of each that cpu_fetch_then asks for */
#define FETCH_NORM   8192                /* bytes of a norm's weights */
#define FETCH_LIMIT  ((size_t)192 << 10) /* well below a second-level cache */

void cpu_fetch_begin(struct fetch *f, const struct cpu *c, const struct backend_weight *w,
                     int matrix, int begin, int end) {
    *f = (struct fetch){0};
    if (!w->packed || begin >= end || c->options.no_fusion) return;
    f->group_bytes = pack_group_bytes(w->s.dtype, w->s.n_cols);
    f->next = w->packed + (size_t)matrix * cpu_packed_bytes(&w->s) +
              (size_t)(begin / PACK_ROWS) * f->group_bytes;
    f->n_groups = pack_n_groups(end) - begin / PACK_ROWS;
    f->left = FETCH_LIMIT;
}

void cpu_fetch_memory(struct fetch *f, const struct cpu *c, const void *memory, size_t bytes) {
    *f = (struct fetch){0};
    if (bytes == 0 || c->options.no_fusion) return;
    *f = (struct fetch){.next = memory, .group_bytes = bytes, .n_groups = 1, .left = FETCH_LIMIT};
}

static void fetch_lines(const uint8_t *p, size_t bytes) {
    for (size_t at = 0; at < bytes; at += 64)
        __builtin_prefetch(p + at, 0, 2);
}

bool cpu_fetch_step(void *arg) {
    struct fetch *f = arg;
    if (!f->next) return false;
    int n = min_int(FETCH_GROUPS, f->n_groups);
    size_t bytes = min_size(FETCH_STEP, f->group_bytes - f->at);
    for (int g = 0; g < n; g++)
        fetch_lines(f->next + (size_t)g * f->group_bytes + f->at, bytes);
    f->at += bytes;
    f->left -= min_size(f->left, (size_t)n * bytes);
    if (f->at == f->group_bytes) { /* the next ones side by side */
        f->next += (size_t)n * f->group_bytes;
        f->n_groups -= n;
        f->at = 0;
    }
    if (f->n_groups == 0 || f->left == 0) f->next = NULL;
    return f->next != NULL;
}

const uint8_t *cpu_fetch_then(const struct cpu *c, const struct matrix_rows *now,
                              const struct matrix_rows *then, int n_lines) {
    struct fetch f;
    if (n_lines > SMALL_LINES || !then->weight) return NULL;
    cpu_fetch_begin(&f, c, then->weight, then->matrix, then->begin, then->end);
    const struct weight_source *a = &now->weight->s, *b = &then->weight->s;
    if (now->weight->packed && a->dtype == b->dtype && a->n_cols == b->n_cols) return f.next;
    for (size_t done = 0; done < FETCH_FIRST && cpu_fetch_step(&f); done += FETCH_STEP)
        ;
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
