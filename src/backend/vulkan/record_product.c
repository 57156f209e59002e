/* Products with a matrix: windows of their weights, inputs in 8 bits, which shader, its dispatches.
 */
#include "backend/vulkan/record.h"

#include "backend/fold.h"
#include "backend/packed.h"

/* ---- weights by windows of rows ---- */

ats_status vk_weight_window(const struct vulkan *v, const struct backend_weight *w, int matrix,
                            int begin, struct vk_view *view, int *end) {
    size_t unit_rows = w->packed ? PACK_ROWS : 1;
    size_t units = (size_t)v->gpu.max_range / w->unit_bytes;
    if (!w->packed) units = units / PACK_ROWS * PACK_ROWS; /* so that it starts on 256 bytes */
    if (units == 0)
        return fail(ATS_UNSUPPORTED, "%s: rows of %s are larger than a shader sees (%llu bytes)",
                    v->name, w->s.name, (unsigned long long)v->gpu.max_range);
    struct vk_part part;
    size_t from = (size_t)begin / unit_rows * w->unit_bytes;
    size_t left = vk_weight_at(w, (size_t)matrix * w->matrix_bytes + from, &part);
    units = min_size(units, left / w->unit_bytes);
    *end = (int)min_size((size_t)w->s.n_rows, (size_t)begin + units * unit_rows);
    size_t to = ((size_t)*end + unit_rows - 1) / unit_rows * w->unit_bytes;
    return vk_view_open(v, part.block, part.offset, to - from, w->s.name, view);
}

ats_status vk_vector_view(const struct vulkan *v, const struct backend_weight *w,
                          struct vk_view *view) {
    REQUIRE(w->s.dtype == DTYPE_F32 && w->s.n_rows == 1);
    return vk_view_open(v, w->block, w->offset, w->unit_bytes, w->s.name, view);
}

/* ---- products ---- */

size_t vk_q8_line_words(int n_cols) {
    return (size_t)n_cols / 32 * 10;
}

bool vk_takes_bytes(const struct step *s) {
    return step_is(s, OP_MATMUL) && s->op->p.matmul.math == MATH_Q8 && s->weight->packed;
}

size_t vk_rounded_apart(const struct backend_limits *l) {
    return (size_t)max_int(l->n_tokens, l->n_rows) * vk_q8_line_words(l->max_cols + 31) * 4;
}

ats_status vk_bind_rounded(const struct vk_builder *b, struct vk_dispatch *d, int binding,
                           const struct step *product, bool write, bool apart) {
    const struct vulkan *v = b->v;
    int all = product->in_rows ? v->limits.n_rows : v->limits.n_tokens;
    size_t lines = apart ? 1 : (size_t)(b->most ? min_int(b->most, all) : all);
    size_t line = vk_q8_line_words(product->in_end - product->in_begin);
    struct vk_view view;
    TRY(vk_view_open(v, &v->work, apart ? vk_rounded_apart(&v->limits) : 0, lines * line * 4,
                     "an input in 8 bits", &view));
    vk_bind(d, binding, view, write);
    vk_push_int(d, view.word);
    vk_push_int(d, (int64_t)line);
    return ATS_OK;
}

static ats_status add_quantise(struct vk_builder *b, const struct step *s) {
    struct vk_dispatch *d = vk_start(b);
    int n_blocks = (s->in_end - s->in_begin) / 32;
    vk_push_int(d, n_blocks);
    TRY(vk_bind_span(b, d, 1, &s->in[0], s->in_rows, false));
    d->push[1] += s->in_begin;
    TRY(vk_bind_rounded(b, d, 2, s, true, false));
    b->rounded = s;
    b->rounded_apart = false;
    return vk_finish_columns(b, d, SHADER_QUANTISE, n_blocks, s->in_rows,
                             vk_in_fours(d, 1, d->n_push));
}

/* A shader's variant for a kind of product. */
#define shader_of(name, kind)                                                                      \
    ((kind) == PRODUCT_PAIR      ? SHADER_##name##_PAIR                                            \
     : (kind) == PRODUCT_EXPERTS ? SHADER_##name##_EXPERTS                                         \
                                 : SHADER_##name)

struct vk_shape vk_product_shape(const struct vk_builder *b, const struct backend_weight *w,
                                 bool q8, bool bias, enum vk_product_kind kind, bool large) {
    const struct vulkan *v = b->v;
    const bool experts = kind == PRODUCT_EXPERTS;
    int tile = b->variant == VARIANT_ONE ? 1 : VK_TILE;
    int lanes = min_int(v->lanes, 16), rows = v->lanes / lanes;
    if (!w->packed && large)
        return (struct vk_shape){experts ? SHADER_PRODUCT_RAW_TILE_EXPERTS
                                         : SHADER_PRODUCT_RAW_TILE,
                                 {16 * lanes, (int32_t)w->s.dtype, 0, lanes, bias},
                                 VK_RAW_ROWS,
                                 VK_LARGE_TILE};
    if (!w->packed)
        return (struct vk_shape){shader_of(PRODUCT_RAW, kind),
                                 {v->lanes, (int32_t)w->s.dtype, tile, lanes, bias, rows},
                                 rows,
                                 tile};
    bool idot = v->gpu.idot && (v->gpu.idot_fast || v->gpu.kind == GPU_SOFTWARE);
    if (q8 && large) {
        enum vk_shader shader = experts ? SHADER_PRODUCT_TILE_EXPERTS : SHADER_PRODUCT_TILE;
        if (idot) shader = experts ? SHADER_PRODUCT_TILE_IDOT_EXPERTS : SHADER_PRODUCT_TILE_IDOT;
        return (struct vk_shape){shader,
                                 {VK_TILE_ROWS * v->split, (int32_t)w->s.dtype, 0, v->split, bias},
                                 VK_TILE_ROWS,
                                 VK_LARGE_TILE};
    }
    enum vk_shader shader = shader_of(PRODUCT, kind);
    if (q8) shader = shader_of(PRODUCT_Q8, kind);
    if (q8 && idot) shader = shader_of(PRODUCT_Q8_IDOT, kind);
    if (q8 && idot && v->four_rows && tile == 1)
        return (struct vk_shape){shader_of(PRODUCT_Q8_FOUR_ROWS, kind),
                                 {PACK_ROWS / 2, (int32_t)w->s.dtype, tile, 1, bias},
                                 2 * PACK_ROWS,
                                 tile};
    if (q8 && idot && v->two_rows)
        return (struct vk_shape){shader_of(PRODUCT_Q8_TWO_ROWS, kind),
                                 {PACK_ROWS / 2, (int32_t)w->s.dtype, tile, 1, bias},
                                 PACK_ROWS,
                                 tile};
    return (struct vk_shape){
        shader, {PACK_ROWS * v->split, (int32_t)w->s.dtype, tile, v->split, bias}, PACK_ROWS, tile};
}

/* What a product is computed with, or NULLs. */
struct folded {
    const struct step *sum;        /* that takes it, alone (a copy) or besides another value; */
    const struct step *up, *gated; /* or another product, and the activation of both */
};

static const struct span *product_out(const struct step *s, const struct folded *f) {
    return f->sum ? &f->sum->out : f->gated ? &f->gated->out : &s->out;
}

/* The second matrix, as much of it as of the first; what both come to may be rounded too, of whose
 * blocks a work-group then has one. */
static ats_status bind_pair(const struct vk_builder *b, struct vk_dispatch *d,
                            const struct folded *f, struct vk_shape *shape) {
    struct vk_view view;
    int end;
    TRY(vk_weight_window(b->v, f->up->weight, 0, 0, &view, &end));
    vk_bind(d, 5, view, false);
    d->bytes += (size_t)view.range;
    shape->constants[6] = (int32_t)f->gated->op->p.gated.act;
    if (!b->rounds) {
        vk_bind(d, 4, d->views[3], true); /* as in bind_bytes of record_steps.c */
        return ATS_OK;
    }
    shape->constants[5] = true;
    shape->constants[0] *= 32 / shape->rows;
    shape->rows = 32;
    return vk_bind_rounded(b, d, 4, b->rounds, true, true);
}

static ats_status add_product_window(struct vk_builder *b, const struct step *s,
                                     const struct folded *f, int begin, int *end) {
    const struct backend_weight *w = s->weight;
    struct vk_dispatch *d = vk_start(b);
    struct vk_view view;
    bool q8 = vk_takes_bytes(s);
    struct vk_shape shape =
        vk_product_shape(b, w, q8, s->bias != NULL, f->gated ? PRODUCT_PAIR : PRODUCT_PLAIN,
                         b->variant == VARIANT_MANY);
    TRY(vk_weight_window(b->v, w, 0, begin, &view, end));
    vk_bind(d, 1, view, false);
    d->bytes = (size_t)view.range;
    vk_push_from(b, d, s->rows);
    vk_push_int(d, b->most ? b->most : INT32_MAX);
    vk_push_int(d, *end - begin);
    vk_push_int(d, w->s.n_cols);
    vk_push_int(d, (int64_t)(w->unit_bytes / 4));
    if (q8) {
        TRY(vk_bind_rounded(b, d, 2, s, false, b->rounded_apart));
    } else {
        TRY(vk_bind_span(b, d, 2, &s->in[0], s->in_rows, false));
        d->push[5] += s->in_begin;
    }
    TRY(vk_bind_span(b, d, 3, product_out(s, f), s->rows, true));
    d->push[7] += s->begin + begin;
    if (s->bias) {
        TRY(vk_vector_view(b->v, s->bias, &view));
        vk_bind(d, 4, view, false);
    }
    vk_push_int(d, s->bias ? view.word + begin : 0);
    if (f->gated) TRY(bind_pair(b, d, f, &shape));
    if (f->sum && f->sum->n_in > 1) {
        const struct span *other = &f->sum->in[span_same(&f->sum->in[0], &s->out)];
        TRY(vk_bind_span(b, d, 5, other, s->rows, false));
        d->push[10] += s->begin + begin;
        shape.constants[6] = true;
    }
    return vk_finish(b, d, shape.shader, shape.constants, vk_groups_of(*end - begin, shape.rows),
                     s->rows, shape.tile);
}

static ats_status add_product(struct vk_builder *b, const struct step *s, const struct folded *f) {
    if (vk_takes_bytes(s) && !(b->rounded && steps_share_input(b->rounded, s)))
        TRY(add_quantise(b, s));
    for (int begin = 0, end; begin < s->weight->s.n_rows; begin = end)
        TRY(add_product_window(b, s, f, begin, &end));
    vk_note_exchange(b, &s->in[0], s->in_begin, s->in_end, s->in_rows, false);
    if (!f->sum) vk_note_exchange(b, product_out(s, f), s->begin, s->end, s->rows, true);
    return ATS_OK;
}

ats_status vk_add_product(struct vk_builder *b, const struct step *s, const struct step *sum) {
    return add_product(b, s, &(struct folded){.sum = sum});
}

/* Is a matrix one binding? */
static bool is_one_window(const struct vk_builder *b, const struct backend_weight *w) {
    struct vk_view view;
    int end = 0;
    const bool is_one = vk_weight_window(b->v, w, 0, 0, &view, &end) == ATS_OK;
    if (!is_one) error_clear(); /* whoever computes it says so */
    return is_one && end == w->s.n_rows;
}

bool vk_can_gate(const struct vk_builder *b, const struct step *s, int n_steps) {
    if (b->variant == VARIANT_MANY || !steps_fold_gated(&b->v->limits, s, n_steps)) return false;
    const struct step *up = s + 1;
    return !s->bias && !up->bias && s->weight->s.dtype == up->weight->s.dtype &&
           s->op->p.matmul.math == up->op->p.matmul.math && is_one_window(b, s->weight) &&
           is_one_window(b, up->weight);
}

ats_status vk_add_gated_products(struct vk_builder *b, const struct step *s) {
    return add_product(b, s, &(struct folded){.up = s + 1, .gated = s + 2});
}
