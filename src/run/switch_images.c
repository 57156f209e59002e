#include "run/switch_images.h"

#include <stdlib.h>
#include <string.h>
#include "base/file.h"

/* Of an operator: so many units (pages, slots) in use, each with all heads or columns. A page is K
 * of all heads, then V; a state has `n_rows` lines of all elements (of a delta rule: one). */
struct image {
    int op;
    int *ids; /* (n) of pages or slots */
    int n;
    size_t unit_bytes;
    uint8_t *memory; /* (n, unit_bytes) */
    size_t bytes;
};
struct images {
    struct arena arena;
    const struct graph *g;
    struct image *kvs, *states;
    int n_kvs, n_states;
    void *piece; /* one page or slot of a range */
    size_t piece_bytes;
};

/* ---- which move ---- */

static bool has_kv(const struct program *p, const struct program_kv *kv) {
    for (int i = 0; i < p->n_kvs; i++)
        if (same_kv(&p->kvs[i], kv)) return true;
    return false;
}

static bool has_state(const struct program *p, const struct program_state *s) {
    for (int i = 0; i < p->n_states; i++)
        if (same_state(&p->states[i], s)) return true;
    return false;
}

static bool is_listed(const struct image *images, int n, int op) {
    for (int i = 0; i < n; i++)
        if (images[i].op == op) return true;
    return false;
}

static void find_moving(struct images *m, const struct program *from, const struct program *to) {
    for (int i = 0; i < to->n_kvs; i++)
        if (!has_kv(from, &to->kvs[i]) && !is_listed(m->kvs, m->n_kvs, to->kvs[i].op))
            m->kvs[m->n_kvs++].op = to->kvs[i].op;
    for (int i = 0; i < to->n_states; i++)
        if (!has_state(from, &to->states[i]) &&
            !is_listed(m->states, m->n_states, to->states[i].op))
            m->states[m->n_states++].op = to->states[i].op;
}

/* ---- memory ---- */

static ats_status open_memory(struct image *image) {
    void *memory;
    image->bytes = (size_t)image->n * image->unit_bytes;
    if (image->bytes == 0) return ATS_OK;
    TRY(pages_alloc(image->bytes, &memory));
    image->memory = memory;
    return ATS_OK;
}

static size_t kv_head_bytes(enum kv_type type, const struct graph_op *op) {
    return kv_row_bytes(type, op->p.attention.head_dim) << KV_PAGE_TOKENS_LOG2;
}

static ats_status open_kv(struct images *m, const struct executor_options *o,
                          const struct switch_use *use, struct image *image) {
    const struct graph_op *op = &m->g->ops[image->op];
    int kv_class = op->p.attention.kv_class, n = o->n_pages[kv_class];
    image->ids = ARENA_ARRAY(&m->arena, int, n);
    for (int page = 0; page < n; page++)
        if (use->page(use->user, kv_class, page)) image->ids[image->n++] = page;
    image->unit_bytes = (size_t)op_axis_length(m->g, op, AXIS_HEADS) *
                        (kv_head_bytes(o->type_k, op) + kv_head_bytes(o->type_v, op));
    m->piece_bytes = max_size(m->piece_bytes, image->unit_bytes);
    return open_memory(image);
}

static enum axis state_axis(const struct graph_op *op) {
    return op_has_axis(op, AXIS_HEADS) ? AXIS_HEADS : AXIS_ROWS;
}

static ats_status open_state(struct images *m, const struct executor_options *o,
                             const struct switch_use *use, struct image *image) {
    const struct graph_op *op = &m->g->ops[image->op];
    image->ids = ARENA_ARRAY(&m->arena, int, o->n_states);
    for (int slot = 0; slot < o->n_states; slot++)
        if (use->state(use->user, slot)) image->ids[image->n++] = slot;
    image->unit_bytes =
        4 * (size_t)op_state_floats(op, 0, op_axis_length(m->g, op, state_axis(op)));
    m->piece_bytes = max_size(m->piece_bytes, image->unit_bytes);
    return open_memory(image);
}

ats_status images_open(const struct executor *from, const struct executor *to,
                       const struct switch_use *use, struct images **out) {
    struct images *m = xcalloc(1, sizeof *m);
    ats_status status = ATS_OK;
    m->g = from->model->graph;
    m->kvs = ARENA_ARRAY(&m->arena, struct image, m->g->n_ops);
    m->states = ARENA_ARRAY(&m->arena, struct image, m->g->n_ops);
    find_moving(m, from->programs.at[0], to->programs.at[0]);
    for (int i = 0; i < m->n_kvs && status == ATS_OK; i++)
        status = open_kv(m, &to->o, use, &m->kvs[i]);
    for (int i = 0; i < m->n_states && status == ATS_OK; i++)
        status = open_state(m, &to->o, use, &m->states[i]);
    if (status == ATS_OK && m->piece_bytes) status = pages_alloc(m->piece_bytes, &m->piece);
    *out = status == ATS_OK ? m : NULL;
    if (status != ATS_OK) images_close(m);
    return status;
}

void images_close(struct images *m) {
    if (!m) return;
    for (int i = 0; i < m->n_kvs; i++)
        if (m->kvs[i].memory) pages_free(m->kvs[i].memory, m->kvs[i].bytes);
    for (int i = 0; i < m->n_states; i++)
        if (m->states[i].memory) pages_free(m->states[i].memory, m->states[i].bytes);
    if (m->piece) pages_free(m->piece, m->piece_bytes);
    arena_free(&m->arena);
    free(m);
}

int64_t images_bytes(const struct images *m) {
    size_t bytes = m->piece_bytes;
    for (int i = 0; i < m->n_kvs; i++)
        bytes += m->kvs[i].bytes;
    for (int i = 0; i < m->n_states; i++)
        bytes += m->states[i].bytes;
    return (int64_t)bytes;
}

/* ---- a range's page or slot, and its place among all ---- */

/* n_lines lines of `width` bytes at `first` of lines of `all` bytes: gathered, or spread. */
static void copy_lines(uint8_t *whole, size_t all, size_t first, uint8_t *range, size_t width,
                       int n_lines, bool gather) {
    for (int i = 0; i < n_lines; i++) {
        uint8_t *there = whole + (size_t)i * all + first, *here = range + (size_t)i * width;
        memcpy(gather ? here : there, gather ? there : here, width);
    }
}

static void copy_page(const struct images *m, const struct executor *e, const struct program_kv *kv,
                      uint8_t *whole, bool gather) {
    const struct graph_op *op = &m->g->ops[kv->op];
    size_t heads = (size_t)op_axis_length(m->g, op, AXIS_HEADS), begin = (size_t)kv->head_begin;
    size_t n = (size_t)(kv->head_end - kv->head_begin);
    size_t k = kv_head_bytes(e->o.type_k, op), v = kv_head_bytes(e->o.type_v, op);
    uint8_t *piece = m->piece;
    copy_lines(whole, heads * k, begin * k, piece, n * k, 1, gather);
    copy_lines(whole + heads * k, heads * v, begin * v, piece + n * k, n * v, 1, gather);
}

/* A convolution's lines are the taps, each of all columns; a delta rule's heads lie one after the
 * other. */
static void copy_slot(const struct images *m, const struct program_state *s, uint8_t *whole,
                      bool gather) {
    const struct graph_op *op = &m->g->ops[s->op];
    int all = op_axis_length(m->g, op, state_axis(op));
    int n_lines = op->kind == OP_CONV ? op->p.conv.n_taps - 1 : 1;
    size_t each = n_lines > 0 ? 4 * (size_t)op_state_floats(op, 0, 1) / (size_t)n_lines : 0;
    copy_lines(whole, (size_t)all * each, (size_t)s->begin * each, m->piece,
               (size_t)(s->end - s->begin) * each, n_lines, gather);
}

static uint8_t *unit_of(const struct image *image, int i) {
    return image->memory + (size_t)i * image->unit_bytes;
}

static ats_status carry_kv(struct images *m, struct executor *e, const struct image *image, int kv,
                           bool write) {
    const struct program_kv *place = &e->programs.at[0]->kvs[kv];
    struct backend *b = e->devices[place->device];
    for (int i = 0; i < image->n; i++) {
        if (write) {
            copy_page(m, e, place, unit_of(image, i), true);
            TRY(b->fn->kv_write(b, e->kvs[kv], image->ids[i], m->piece));
        } else {
            TRY(b->fn->kv_read(b, e->kvs[kv], image->ids[i], m->piece));
            copy_page(m, e, place, unit_of(image, i), false);
        }
    }
    return ATS_OK;
}

static ats_status carry_state(struct images *m, struct executor *e, const struct image *image,
                              int state, bool write) {
    const struct program_state *place = &e->programs.at[0]->states[state];
    struct backend *b = e->devices[place->device];
    for (int i = 0; i < image->n; i++) {
        if (write) {
            copy_slot(m, place, unit_of(image, i), true);
            TRY(b->fn->state_write(b, e->states[state], image->ids[i], m->piece));
        } else {
            TRY(b->fn->state_read(b, e->states[state], image->ids[i], m->piece));
            copy_slot(m, place, unit_of(image, i), false);
        }
    }
    return ATS_OK;
}

static ats_status carry(struct images *m, struct executor *e, const bool *kvs, const bool *states,
                        bool write) {
    for (int k = 0; k < m->n_kvs; k++)
        for (int i = 0; i < e->programs.at[0]->n_kvs; i++)
            if (e->programs.at[0]->kvs[i].op == m->kvs[k].op && (!kvs || kvs[i]))
                TRY(carry_kv(m, e, &m->kvs[k], i, write));
    for (int k = 0; k < m->n_states; k++)
        for (int i = 0; i < e->programs.at[0]->n_states; i++)
            if (e->programs.at[0]->states[i].op == m->states[k].op && (!states || states[i]))
                TRY(carry_state(m, e, &m->states[k], i, write));
    return ATS_OK;
}

ats_status images_read(struct images *m, struct executor *e) {
    return carry(m, e, NULL, NULL, false);
}

ats_status images_write(struct images *m, struct executor *e, const bool *fresh_kv,
                        const bool *fresh_state) {
    return carry(m, e, fresh_kv, fresh_state, true);
}
