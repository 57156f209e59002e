/*
 * Routed experts as dispatches: the choice, and the products of the experts over what chose them.
 *
 * Lines are taken in passes whose intermediate results fit the experts' block. A pair is a line and
 * one of its choices; it has a place in that block whether its expert is this device's or not. In
 * rounds of one token each pair of this device is a tile of a product; in larger ones the pairs are
 * sorted by expert first, so that a weight is read once for a whole tile of them. The operations on
 * a pair are the same in both, and a line's outputs are added in the order of its choices: the bits
 * do not depend on the round.
 */
#include "backend/vulkan/record.h"

#include <string.h>

#define ROOM_BYTES  ((size_t)64 << 20) /* of the widest intermediate result */
#define LIST_HEADER 2                  /* words; see experts_sort.comp */

/* ---- memory ---- */

static size_t carve(size_t *bytes, size_t floats) {
    size_t at = *bytes;
    *bytes += round_up(floats * 4, 256);
    return at;
}

static size_t max_tiles(size_t pairs, int n_experts, int tile) {
    return pairs / (size_t)tile + min_size((size_t)n_experts, pairs);
}

struct vk_expert_room vk_expert_room(const struct vulkan *v, const struct backend_limits *l) {
    struct vk_expert_room r = {0};
    if (l->max_experts == 0) return r;
    size_t used = (size_t)l->max_experts_used, ff = (size_t)l->max_expert_ff;
    size_t cols = (size_t)l->max_expert_cols, most = min_size(ROOM_BYTES, v->gpu.max_range);
    size_t lines = most / (used * max_size(ff, cols) * 4);
    lines = min_size(lines, v->gpu.properties.limits.maxComputeWorkGroupCount[1] / (2 * used));
    lines = min_size(max_size(lines, 1), (size_t)max_int(l->n_tokens, l->n_rows));
    size_t pairs = lines * used;
    r.lines = (int)lines;
    r.list = carve(&r.bytes, LIST_HEADER + 3 * max_tiles(pairs, l->max_experts, VK_TILE) + pairs);
    r.x = carve(&r.bytes, l->expert_floats ? pairs * cols : 0);
    r.x8 = carve(&r.bytes, pairs * vk_q8_line_words((int)cols));
    r.gate = carve(&r.bytes, pairs * ff);
    r.up = carve(&r.bytes, pairs * ff);
    r.h8 = carve(&r.bytes, pairs * vk_q8_line_words((int)ff));
    r.down = carve(&r.bytes, pairs * cols);
    return r;
}

/* ---- one pass ---- */

/* The builder's lines of a step, if the round has them. */
struct pass {
    struct vk_builder *b;
    const struct step *s;
    const struct experts_params *p;
    int most;
    bool listed; /* else one line, whose choices are the tiles */
    int tile;    /* pairs of a tile, if listed */
};

/* Where a product's inputs are. */
struct source {
    const struct span *span; /* the step's lines; or NULL: */
    struct vk_view view;     /* lines `stride` words apart */
    int stride, per_line;    /* pairs that share a line */
};

static struct vk_grid pass_grid(const struct pass *q, int x) {
    return (struct vk_grid){.x = x,
                            .lines = q->s->rows ? LINES_ROWS : LINES_TOKENS,
                            .tile = 1,
                            .first = q->b->first,
                            .most = q->most};
}

/* A work-group for a range of columns of each pair, or of each line. */
static ats_status finish_lanes(const struct pass *q, struct vk_dispatch *d, enum vk_shader shader,
                               int n_columns, int constant, bool pairs) {
    int lanes = q->b->v->lanes;
    const int32_t constants[VK_MAX_CONSTANTS] = {lanes, constant};
    struct vk_grid grid = pass_grid(q, vk_groups_of(n_columns, lanes));
    if (pairs) grid.per_line = q->p->n_used;
    return vk_finish_grid(q->b, d, shader, constants, grid);
}

/* `lines` lines of `words` words in the experts' block. */
static ats_status room_view(const struct pass *q, size_t offset, size_t lines, size_t words,
                            struct vk_view *out) {
    return vk_view_open(q->b->v, &q->b->v->experts, offset, max_size(lines * words, 1) * 4,
                        "what experts compute", out);
}

static ats_status pairs_view(const struct pass *q, size_t offset, size_t words,
                             struct vk_view *out) {
    return room_view(q, offset, (size_t)q->most * (size_t)q->p->n_used, words, out);
}

static ats_status bind_lines(const struct pass *q, struct vk_dispatch *d, int binding,
                             const struct span *span, bool write) {
    return vk_bind_span(q->b, d, binding, span, q->s->rows, write);
}

static void bind_room(struct vk_dispatch *d, int binding, struct vk_view view, int stride,
                      bool write) {
    vk_bind(d, binding, view, write);
    vk_push_int(d, view.word);
    vk_push_int(d, stride);
}

static int n_experts(const struct pass *q) {
    return q->s->expert_end - q->s->expert_begin;
}

static int at_pairs(const struct pass *q) {
    size_t pairs = (size_t)q->most * (size_t)q->p->n_used;
    return LIST_HEADER + 3 * (int)max_tiles(pairs, n_experts(q), q->tile);
}

static ats_status list_view(const struct pass *q, struct vk_view *out) {
    size_t words = (size_t)at_pairs(q) + (size_t)q->most * (size_t)q->p->n_used;
    return room_view(q, q->b->v->expert_room.list, 1, words, out);
}

static ats_status add_sort(const struct pass *q) {
    struct vk_dispatch *d = vk_start(q->b);
    struct vk_view list;
    int lanes = q->b->v->lanes;
    vk_push_from(q->b, d, q->s->rows);
    vk_push_int(d, q->most);
    vk_push_int(d, q->p->n_used);
    vk_push_int(d, q->s->expert_begin);
    TRY(bind_lines(q, d, 1, &q->s->in[1], false));
    TRY(list_view(q, &list));
    vk_bind(d, 2, list, true);
    vk_push_int(d, list.word);
    vk_push_int(d, at_pairs(q));
    const int32_t constants[VK_MAX_CONSTANTS] = {lanes, lanes, n_experts(q), q->tile};
    struct vk_grid grid = pass_grid(q, 1);
    grid.tile = q->most;
    return vk_finish_grid(q->b, d, SHADER_EXPERTS_SORT, constants, grid);
}

static ats_status add_scale(const struct pass *q, int n_cols, struct source *out) {
    struct vk_dispatch *d = vk_start(q->b);
    *out = (struct source){.stride = n_cols, .per_line = 1};
    TRY(pairs_view(q, q->b->v->expert_room.x, (size_t)n_cols, &out->view));
    vk_push_int(d, n_cols);
    vk_push_int(d, q->p->n_used);
    TRY(bind_lines(q, d, 1, &q->s->in[1], false));
    TRY(bind_lines(q, d, 2, &q->s->in[0], false));
    bind_room(d, 3, out->view, n_cols, true);
    return finish_lanes(q, d, SHADER_EXPERTS_SCALE, n_cols, 0, true);
}

/* Lines of `in` to 8 bits. */
static ats_status add_round(const struct pass *q, const struct source *in, int n_cols,
                            size_t offset, struct source *out) {
    struct vk_dispatch *d = vk_start(q->b);
    int words = (int)vk_q8_line_words(n_cols);
    *out = (struct source){.stride = words, .per_line = in->per_line};
    TRY(pairs_view(q, offset, (size_t)words, &out->view));
    vk_push_int(d, n_cols / 32);
    if (in->span)
        TRY(bind_lines(q, d, 1, in->span, false));
    else
        bind_room(d, 1, in->view, in->stride, false);
    bind_room(d, 2, out->view, words, true);
    return finish_lanes(q, d, SHADER_QUANTISE, n_cols / 32, vk_in_fours(d, 1, d->n_push),
                        in->per_line == 1);
}

/* ---- products ---- */

/* Which experts and rows of a matrix a binding shows. */
struct window {
    struct vk_view weights, bias;
    int begin, end;         /* experts, from the step's first on */
    int row_begin, row_end; /* all, unless one expert is more than a shader sees */
};

static ats_status bias_view(const struct vulkan *v, const struct backend_weight *bias,
                            struct window *w) {
    size_t bytes = (size_t)(w->end - w->begin - 1) * bias->matrix_bytes + bias->unit_bytes;
    struct vk_part part;
    vk_weight_at(bias, (size_t)w->begin * bias->matrix_bytes, &part);
    return vk_view_open(v, part.block, part.offset, bytes, bias->s.name, &w->bias);
}

/* Matrices from number `begin` on that a binding shows: of one part, and not too many bytes. */
static size_t most_matrices(const struct vulkan *v, const struct backend_weight *w, int begin,
                            struct vk_part *part) {
    size_t left = vk_weight_at(w, (size_t)begin * w->matrix_bytes, part);
    return min_size(left, (size_t)v->gpu.max_range) / w->matrix_bytes;
}

/* The window that begins at w's expert and row. */
static ats_status open_window(const struct pass *q, int which, struct window *w) {
    const struct vulkan *v = q->b->v;
    const struct backend_weight *m = q->s->experts[which], *bias = q->s->expert_biases[which];
    struct vk_part part, bias_part;
    size_t most = most_matrices(v, m, w->begin, &part);
    if (bias) most = min_size(most, most_matrices(v, bias, w->begin, &bias_part));
    if (w->row_begin == 0 && most > 0) {
        w->end = (int)min_size((size_t)n_experts(q), (size_t)w->begin + most);
        w->row_end = m->s.n_rows;
        TRY(vk_view_open(v, part.block, part.offset, (size_t)(w->end - w->begin) * m->matrix_bytes,
                         m->s.name, &w->weights));
    } else {
        w->end = w->begin + 1;
        TRY(vk_weight_window(v, m, w->begin, w->row_begin, &w->weights, &w->row_end));
    }
    return bias ? bias_view(v, bias, w) : ATS_OK;
}

static ats_status add_window(const struct pass *q, int which, const struct source *in, bool q8,
                             struct vk_view out, const struct window *w) {
    const struct backend_weight *m = q->s->experts[which], *bias = q->s->expert_biases[which];
    struct vk_dispatch *d = vk_start(q->b);
    struct vk_shape shape =
        vk_product_shape(q->b, m, q8, bias != NULL, PRODUCT_EXPERTS, q->tile > VK_TILE);
    int n_rows = w->row_end - w->row_begin, listed = q->listed;
    shape.constants[6] = listed;
    vk_bind(d, 1, w->weights, false);
    int reading = listed ? w->end - w->begin : min_int(q->p->n_used, w->end - w->begin);
    d->bytes = min_size((size_t)w->weights.range, (size_t)reading * m->matrix_bytes);
    vk_push_from(q->b, d, q->s->rows);
    vk_push_int(d, q->most);
    vk_push_int(d, n_rows);
    vk_push_int(d, m->s.n_cols);
    vk_push_int(d, (int64_t)(m->unit_bytes / 4));
    if (in->span)
        TRY(bind_lines(q, d, 2, in->span, false));
    else
        bind_room(d, 2, in->view, in->stride, false);
    bind_room(d, 3, out, m->s.n_rows, true);
    d->push[7] += w->row_begin;
    if (bias) vk_bind(d, 4, w->bias, false);
    vk_push_int(d, bias ? w->bias.word + w->row_begin : 0);
    vk_push_int(d, (int64_t)(m->matrix_bytes / 4));
    vk_push_int(d, bias ? (int64_t)(bias->matrix_bytes / 4) : 0);
    vk_push_int(d, q->s->expert_begin + w->begin);
    vk_push_int(d, q->s->expert_begin + w->end);
    if (listed) {
        struct vk_view list;
        TRY(list_view(q, &list));
        vk_bind(d, 5, list, false);
        vk_push_int(d, list.word);
    } else {
        TRY(bind_lines(q, d, 5, &q->s->in[1], false));
        d->n_push--; /* there is but one line */
    }
    vk_push_int(d, in->per_line);
    struct vk_grid grid = pass_grid(q, vk_groups_of(n_rows, shape.rows));
    grid.per_line = q->p->n_used;
    grid.tile = shape.tile;
    grid.experts = listed ? n_experts(q) : 0;
    return vk_finish_grid(q->b, d, shape.shader, shape.constants, grid);
}

/* A line of outputs for each pair at `offset` of the experts' block. */
static ats_status add_product(const struct pass *q, int which, const struct source *floats,
                              const struct source *rounded, size_t offset, struct source *out) {
    const struct backend_weight *m = q->s->experts[which];
    bool q8 = q->p->math[which] == MATH_Q8 && m->packed;
    *out = (struct source){.stride = m->s.n_rows, .per_line = 1};
    TRY(pairs_view(q, offset, (size_t)m->s.n_rows, &out->view));
    struct window w = {.begin = 0};
    while (w.begin < n_experts(q)) {
        TRY(open_window(q, which, &w));
        TRY(add_window(q, which, q8 ? rounded : floats, q8, out->view, &w));
        bool whole = w.row_end == m->s.n_rows;
        w.begin = whole ? w.end : w.begin;
        w.row_begin = whole ? 0 : w.row_end;
    }
    return ATS_OK;
}

static bool wants_bytes(const struct pass *q, int which) {
    return q->p->math[which] == MATH_Q8 && q->s->experts[which]->packed;
}

/* gate becomes act(gate) * up. */
static ats_status add_activation(const struct pass *q, const struct source *gate,
                                 const struct source *up) {
    struct vk_dispatch *d = vk_start(q->b);
    vk_push_int(d, 0);
    vk_push_int(d, q->p->n_ff);
    bind_room(d, 1, gate->view, gate->stride, false);
    bind_room(d, 2, up->view, up->stride, false);
    bind_room(d, 3, gate->view, gate->stride, true);
    vk_bind(d, 5, gate->view, true); /* where nothing is rounded */
    return finish_lanes(q, d, SHADER_GATED, q->p->n_ff, (int)q->p->act, true);
}

static ats_status add_sum(const struct pass *q, const struct source *down) {
    const struct step *s = q->s;
    struct vk_dispatch *d = vk_start(q->b);
    vk_push_int(d, s->end);
    vk_push_int(d, q->p->n_used);
    vk_push_int(d, s->expert_begin);
    vk_push_int(d, s->expert_end);
    TRY(bind_lines(q, d, 1, &s->in[1], false));
    bind_room(d, 2, down->view, down->stride, false);
    TRY(bind_lines(q, d, 3, &s->out, true));
    return finish_lanes(q, d, SHADER_EXPERTS_SUM, s->end, !q->p->scale_input, false);
}

static ats_status add_pass(const struct pass *q) {
    const struct vk_expert_room *room = &q->b->v->expert_room;
    int n_cols = q->s->experts[EXPERT_GATE]->s.n_cols;
    struct source x = {.span = &q->s->in[0], .per_line = q->p->n_used}, x8 = {0}, h8 = {0};
    struct source gate, up, down;
    if (q->listed) TRY(add_sort(q));
    if (q->p->scale_input) TRY(add_scale(q, n_cols, &x));
    if (wants_bytes(q, EXPERT_GATE) || wants_bytes(q, EXPERT_UP))
        TRY(add_round(q, &x, n_cols, room->x8, &x8));
    TRY(add_product(q, EXPERT_GATE, &x, &x8, room->gate, &gate));
    TRY(add_product(q, EXPERT_UP, &x, &x8, room->up, &up));
    TRY(add_activation(q, &gate, &up));
    if (wants_bytes(q, EXPERT_DOWN)) TRY(add_round(q, &gate, q->p->n_ff, room->h8, &h8));
    TRY(add_product(q, EXPERT_DOWN, &gate, &h8, room->down, &down));
    return add_sum(q, &down);
}

/* Lines of a pass: what they make has room, and a shader sees them. */
static ats_status pass_lines(const struct vk_builder *b, const struct step *s, int *out) {
    const struct span *spans[] = {&s->in[0], &s->in[1], &s->out};
    *out = b->variant == VARIANT_ONE ? 1 : b->v->expert_room.lines;
    for (int i = 0; i < 3; i++) {
        int lines;
        TRY(vk_span_lines(b, spans[i], s->rows, &lines));
        *out = min_int(*out, lines);
    }
    return ATS_OK;
}

/* A list has tiles of one size, so all three products have to be able to. */
static bool all_large(const struct pass *q) {
    bool all = q->b->variant == VARIANT_MANY;
    for (int i = 0; i < N_EXPERT_WEIGHTS; i++)
        all &= wants_bytes(q, i) || !q->s->experts[i]->packed;
    return all;
}

ats_status vk_add_experts(struct vk_builder *b, const struct step *s) {
    const struct vulkan *v = b->v;
    bool one = b->variant == VARIANT_ONE;
    int n = one ? 1 : s->rows ? v->limits.n_rows : v->limits.n_tokens;
    struct pass q = {.b = b, .s = s, .p = &s->op->p.experts, .listed = !one};
    TRY(pass_lines(b, s, &q.most));
    q.tile = all_large(&q) ? VK_LARGE_TILE : VK_TILE;
    vk_note_exchange(b, &s->in[0], 0, s->experts[EXPERT_GATE]->s.n_cols, s->in_rows, false);
    vk_note_exchange(b, &s->in[1], 0, 2 * q.p->n_used, s->in_rows, false);
    vk_note_exchange(b, &s->out, 0, s->end, s->rows, true);
    for (int first = 0; first < n; first += q.most) {
        vk_set_lines(b, first, q.most);
        TRY(add_pass(&q));
    }
    vk_set_lines(b, 0, 0);
    return ATS_OK;
}

/* ---- the choice ---- */

ats_status vk_add_route(struct vk_builder *b, const struct step *s) {
    const struct route_params *p = &s->op->p.route;
    struct vk_dispatch *d = vk_start(b);
    struct vk_view bias = {.word = 0};
    int lanes = b->v->lanes;
    TRY(vk_bind_span(b, d, 1, &s->in[0], s->in_rows, false));
    TRY(vk_bind_span(b, d, 3, &s->out, s->rows, true));
    if (s->bias) {
        TRY(vk_vector_view(b->v, s->bias, &bias));
        vk_bind(d, 2, bias, false);
    }
    vk_push_int(d, bias.word);
    vk_push_int(d, p->normalise);
    vk_push_float(d, p->scale);
    vk_note_exchange(b, &s->in[0], 0, p->n_experts, s->in_rows, false);
    vk_note_exchange(b, &s->out, 0, 2 * p->n_used, s->rows, true);
    const int32_t constants[VK_MAX_CONSTANTS] = {
        lanes, lanes, p->n_experts, p->n_used, (int32_t)p->gating, s->bias != NULL};
    return vk_finish(b, d, SHADER_ROUTE, constants, 1, s->rows, 1);
}
