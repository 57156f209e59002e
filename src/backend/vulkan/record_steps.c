/* Each kind of step as dispatches. */
#include "backend/vulkan/record.h"

#include "backend/fold.h"

static ats_status add_embed(struct vk_builder *b, const struct step *s) {
    const struct backend_weight *w = s->weight;
    int lanes = b->v->lanes;
    for (int begin = 0, end; begin < w->s.n_rows; begin = end) {
        struct vk_dispatch *d = vk_start(b);
        struct vk_view view;
        TRY(vk_weight_window(b->v, w, 0, begin, &view, &end));
        vk_bind(d, 1, view, false);
        vk_push_int(d, b->first);
        vk_push_int(d, begin);
        vk_push_int(d, end);
        vk_push_int(d, w->s.n_cols);
        vk_push_int(d, (int64_t)(w->unit_bytes / 4));
        TRY(vk_bind_span(b, d, 2, &s->out, s->rows, true));
        vk_push_float(d, s->op->p.embed.scale);
        const int32_t constants[VK_MAX_CONSTANTS] = {lanes, (int32_t)w->s.dtype};
        TRY(vk_finish(b, d, w->packed ? SHADER_EMBED : SHADER_EMBED_RAW, constants,
                      vk_groups_of(vk_groups_of(w->s.n_cols, 4), lanes), false, 1));
    }
    vk_note_exchange(b, &s->out, s->begin, s->end, s->rows, true);
    return ATS_OK;
}

/* Where a step's result, which stands in binding `made`, goes in 8 bits besides, if it is rounded.
 */
static ats_status bind_bytes(const struct vk_builder *b, struct vk_dispatch *d, int binding,
                             int made) {
    if (b->rounds) return vk_bind_rounded(b, d, binding, b->rounds, true, false);
    vk_bind(d, binding, d->views[made], true); /* as the layer has it, what is named is written */
    vk_push_int(d, 0);
    vk_push_int(d, 0);
    return ATS_OK;
}

/* ---- attention ---- */

/* Behind all else that is pushed. */
void vk_push_address(struct vk_dispatch *d, const struct vk_block *block) {
    if (!block->address) return;
    vk_push_int(d, (int32_t)(uint32_t)block->address);
    vk_push_int(d, (int32_t)(uint32_t)(block->address >> 32));
}

/* What caches are seen as: whole. */
static ats_status bind_cache(const struct vk_builder *b, struct vk_dispatch *d,
                             const struct backend_kv *kv, int binding_k, int binding_v,
                             bool write) {
    const size_t n_pages = (size_t)kv->layout.n_pages;
    struct vk_view view;
    TRY(vk_view_open(b->v, &kv->k, 0, n_pages * kv->k_page, "a KV cache", &view));
    vk_bind(d, binding_k, view, write);
    TRY(vk_view_open(b->v, &kv->v, 0, n_pages * kv->v_page, "a KV cache", &view));
    vk_bind(d, binding_v, view, write);
    return ATS_OK;
}

static ats_status add_store(struct vk_builder *b, const struct step *s) {
    struct vk_dispatch *d = vk_start(b);
    const struct backend_kv *kv = s->kv;
    const int heads = s->head_end - s->head_begin, dim = s->op->p.attention.head_dim;
    for (int i = 0; i < 2; i++) {
        TRY(vk_bind_span(b, d, 1 + i, &s->in[1 + i], false, false));
        d->push[2 * i] += s->head_begin * dim;
    }
    vk_push_int(d, heads);
    vk_push_int(d, dim);
    vk_push_int(d, b->first);
    vk_push_int(d, s->op->p.attention.kv_class);
    TRY(bind_cache(b, d, kv, 3, 4, true));
    vk_push_address(d, &kv->k);
    vk_push_address(d, &kv->v);
    const int32_t constants[VK_MAX_CONSTANTS] = {b->v->lanes, (int32_t)kv->layout.type_k,
                                                 (int32_t)kv->layout.type_v};
    return vk_finish(b, d, kv->k.address ? SHADER_KV_STORE_ADDRESS : SHADER_KV_STORE, constants,
                     vk_groups_of(2 * heads * vk_groups_of(dim, 32), b->v->lanes), false, 1);
}

/* Ranges of keys that a head may have, in the block of partial results. */
static int range_room(const struct vulkan *v) {
    return v->limits.n_ctx / VK_ATTN_RANGE + 1;
}

/* Rounds of one token have few heads to share out: there each range of keys is a work-group, and
 * this puts them together. */
static ats_status add_merge(struct vk_builder *b, const struct step *s, int n_heads,
                            struct vk_view partial) {
    const struct attention_params *a = &s->op->p.attention;
    struct vk_dispatch *d = vk_start(b);
    struct vk_view sinks = {.word = 0};
    vk_bind(d, 1, partial, false);
    TRY(vk_bind_span(b, d, 2, &s->out, false, true));
    d->push[0] += s->begin;
    vk_push_int(d, range_room(b->v));
    vk_push_int(d, a->window);
    vk_push_int(d, a->chunk);
    if (s->weight) {
        TRY(vk_vector_view(b->v, s->weight, &sinks));
        vk_bind(d, 3, sinks, false);
    }
    vk_push_int(d, sinks.word);
    TRY(bind_bytes(b, d, 4, 2));
    d->push[d->n_push - 1] = n_heads * a->head_dim / 32; /* blocks of the one line */
    const int32_t constants[VK_MAX_CONSTANTS] = {
        b->v->lanes,       b->v->lanes,
        a->head_dim,       s->weight != NULL,
        b->rounds != NULL, b->rounds && vk_in_fours(d, d->n_push - 2, d->n_push - 1)};
    return vk_finish(b, d, SHADER_ATTENTION_MERGE, constants, n_heads, false, 1);
}

/* Where attention puts its result: the step's output, or a place for each range. */
static ats_status bind_result(struct vk_builder *b, struct vk_dispatch *d, const struct step *s,
                              int n_heads, struct vk_view *partial) {
    struct vulkan *v = b->v;
    if (b->variant != VARIANT_ONE) {
        TRY(vk_bind_span(b, d, 4, &s->out, false, true));
        d->push[2] += s->begin;
        return ATS_OK;
    }
    size_t bytes =
        (size_t)(n_heads * range_room(v)) * (size_t)(s->op->p.attention.head_dim + 2) * 4;
    TRY(vk_view_open(v, &v->partial, 0, bytes, "ranges of keys", partial));
    vk_bind(d, 4, *partial, true);
    vk_push_int(d, 0);
    vk_push_int(d, range_room(v));
    return ATS_OK;
}

static ats_status add_ranges(struct vk_builder *b, const struct step *s) {
    const struct attention_params *a = &s->op->p.attention;
    const struct backend_kv *kv = s->kv;
    bool one = b->variant == VARIANT_ONE;
    int dim = a->head_dim, n_heads = (s->end - s->begin) / dim;
    struct vk_dispatch *d = vk_start(b);
    struct vk_view partial = {.word = 0}, sinks = {.word = 0};
    TRY(vk_bind_span(b, d, 1, &s->in[0], false, false));
    d->push[0] += s->begin; /* query heads stand as the output does */
    TRY(bind_result(b, d, s, n_heads, &partial));
    TRY(bind_cache(b, d, kv, 2, 3, false));
    vk_push_int(d, a->n_heads / a->n_kv_heads);
    vk_push_int(d, s->head_end - s->head_begin);
    vk_push_int(d, a->window);
    vk_push_int(d, a->chunk);
    vk_push_float(d, a->scale);
    vk_push_int(d, a->temp_length);
    vk_push_float(d, a->temp_scale);
    vk_push_float(d, a->soft_cap);
    if (s->weight) {
        TRY(vk_vector_view(b->v, s->weight, &sinks));
        vk_bind(d, 5, sinks, false);
    }
    vk_push_int(d, sinks.word);
    vk_push_int(d, b->first);
    vk_push_int(d, a->kv_class);
    if (kv->k.address) vk_push_int(d, kv->layout.n_pages);
    vk_push_address(d, &kv->k);
    vk_push_address(d, &kv->v);
    const int32_t constants[VK_MAX_CONSTANTS] = {
        b->v->lanes,       b->v->lanes, dim, (int32_t)kv->layout.type_k, (int32_t)kv->layout.type_v,
        s->weight && !one, one};
    struct vk_grid grid = {.x = n_heads, .lines = LINES_TOKENS, .tile = 1, .ranges = one};
    TRY(vk_finish_grid(b, d, kv->k.address ? SHADER_ATTENTION_ADDRESS : SHADER_ATTENTION, constants,
                       grid));
    return one ? add_merge(b, s, n_heads, partial) : ATS_OK;
}

static ats_status add_attention(struct vk_builder *b, const struct step *s) {
    const struct attention_params *a = &s->op->p.attention;
    int group = a->n_heads / a->n_kv_heads, dim = a->head_dim;
    if (dim > VK_MAX_HEAD_DIM)
        return fail(ATS_UNSUPPORTED, "%s: attention heads of %d elements", b->v->name, dim);
    REQUIRE(s->begin == s->head_begin * group * dim && s->end == s->head_end * group * dim);
    for (int i = 0; i < 3; i++) {
        int wide = i ? dim : group * dim;
        vk_note_exchange(b, &s->in[i], s->head_begin * wide, s->head_end * wide, false, false);
    }
    vk_note_exchange(b, &s->out, s->begin, s->end, false, true);
    TRY(add_store(b, s));
    return add_ranges(b, s);
}

/* ---- light steps ---- */

/* What a step reads and writes column by column. */
static void note_columns(struct vk_builder *b, const struct step *s) {
    const bool one = step_is(s, OP_GATED) && s->op->p.gated.one_gate;
    for (int i = 0; i < s->n_in; i++)
        vk_note_exchange(b, &s->in[i], one && i == 0 ? 0 : s->begin, one && i == 0 ? 1 : s->end,
                         s->in_rows, false);
    vk_note_exchange(b, &s->out, s->begin, s->end, s->rows, true);
}

/* The sum or copy before it, or the activation behind it, may be folded in: sum, gated or NULL;
 * and the rounding of what comes out. */
static ats_status add_norm(struct vk_builder *b, const struct step *s, const struct step *sum,
                           const struct step *gated) {
    const struct step *last = gated ? gated : s;
    struct vk_dispatch *d = vk_start(b);
    struct vk_view view = {.word = 0};
    int group = s->op->p.norm.group;
    vk_push_int(d, s->rows);
    vk_push_int(d, s->begin);
    vk_push_int(d, group);
    TRY(vk_bind_span(b, d, 2, sum ? &sum->in[0] : &s->in[0], s->in_rows, false));
    TRY(vk_bind_span(b, d, 3, &last->out, s->rows, true));
    if (s->weight) {
        TRY(vk_vector_view(b->v, s->weight, &view));
        vk_bind(d, 1, view, false);
    }
    vk_push_int(d, view.word);
    vk_push_float(d, s->op->p.norm.eps);
    vk_push_float(d, s->op->p.norm.scale);
    TRY(bind_bytes(b, d, sum ? 7 : 5, 3));
    if (sum) {
        TRY(vk_bind_span(b, d, 5, &sum->out, s->rows, true));
        if (sum->n_in > 1) TRY(vk_bind_span(b, d, 4, &sum->in[1], s->rows, false));
        if (sum->n_in > 2) TRY(vk_bind_span(b, d, 6, &sum->in[2], s->rows, false));
    } else if (gated) {
        TRY(vk_bind_span(b, d, 4, &gated->in[0], s->rows, false));
    }
    const int32_t constants[VK_MAX_CONSTANTS] = {b->v->lanes,
                                                 b->v->lanes,
                                                 s->weight != NULL,
                                                 s->op->p.norm.scale > 0,
                                                 gated ? (int32_t)gated->op->p.gated.act + 1 : 0,
                                                 sum ? sum->n_in : 1,
                                                 vk_in_fours(d, 1, 8) &&
                                                     vk_in_fours(d, 10, d->n_push),
                                                 b->rounds != NULL};
    return vk_finish(b, d, sum ? SHADER_NORM_SUM : SHADER_NORM, constants,
                     (s->end - s->begin) / group, s->rows, 1);
}

static ats_status add_rope(struct vk_builder *b, const struct step *s) {
    const struct rope_params *p = &s->op->p.rope;
    struct vk_dispatch *d = vk_start(b);
    struct vk_view table;
    int index = vk_rope_index(b->v, s->op);
    if (index < 0) return fail(ATS_UNSUPPORTED, "%s: too many rotary embeddings", b->v->name);
    vk_push_int(d, s->begin);
    vk_push_int(d, s->end);
    TRY(vk_bind_span(b, d, 2, &s->in[0], false, false));
    TRY(vk_bind_span(b, d, 3, &s->out, false, true));
    int lines =
        b->most ? min_int(b->most, b->v->limits.n_tokens - b->first) : b->v->limits.n_tokens;
    size_t line = (size_t)p->n_rot * 4;
    TRY(vk_view_open(b->v, &b->v->round_block,
                     vk_rope_offset(b->v, index) + (size_t)b->first * line, (size_t)lines * line,
                     "a rope table", &table));
    vk_bind(d, 1, table, false);
    vk_push_int(d, p->head_dim);
    vk_push_int(d, p->n_rot);
    vk_push_int(d, p->halves);
    vk_push_int(d, table.word);
    vk_note_exchange(b, &s->in[0], s->begin, s->end, false, false);
    vk_note_exchange(b, &s->out, s->begin, s->end, false, true);
    return vk_finish_columns(b, d, SHADER_ROPE, s->end - s->begin, false, 0);
}

/* in: lines of the builder, or tokens [token_begin, token_end) to gather from. */
static ats_status add_copy_of(struct vk_builder *b, const struct step *s, bool gather,
                              int token_begin, int token_end) {
    struct vk_dispatch *d = vk_start(b);
    const int first = b->first, most = b->most;
    const bool is_slice = s->kind == STEP_OP && s->op->kind == OP_SLICE;
    const struct slice_params slice = is_slice ? s->op->p.slice : (struct slice_params){0};
    vk_push_int(d, gather);
    vk_push_int(d, first);
    vk_push_int(d, token_begin);
    vk_push_int(d, token_end);
    vk_push_int(d, s->begin);
    vk_push_int(d, s->end);
    vk_push_int(d, slice.group);
    vk_push_int(d, slice.first);
    vk_push_int(d, slice.n);
    if (gather) b->first = token_begin, b->most = token_end - token_begin;
    ats_status status = vk_bind_span(b, d, 1, &s->in[0], s->in_rows, false);
    b->first = first, b->most = most;
    TRY(status);
    TRY(vk_bind_span(b, d, 2, &s->out, s->rows, true));
    return vk_finish_columns(b, d, SHADER_COPY, s->end - s->begin, s->rows, is_slice);
}

/* Columns as they are; a slice's from the first that it takes to the last. */
static ats_status add_copy(struct vk_builder *b, const struct step *s) {
    int from = s->begin, to = s->end;
    if (s->kind == STEP_OP && s->op->kind == OP_SLICE) {
        const struct slice_params *p = &s->op->p.slice;
        from = s->begin / p->n * p->group + p->first + s->begin % p->n;
        to = (s->end - 1) / p->n * p->group + p->first + (s->end - 1) % p->n + 1;
    }
    vk_note_exchange(b, &s->in[0], from, to, s->in_rows, false);
    vk_note_exchange(b, &s->out, s->begin, s->end, s->rows, true);
    return add_copy_of(b, s, false, 0, 0);
}

static ats_status add_rows(struct vk_builder *b, const struct step *s) {
    int n = b->variant == VARIANT_ONE ? 1 : b->v->limits.n_tokens, at_once;
    vk_note_exchange(b, &s->in[0], s->begin, s->end, false, false);
    vk_note_exchange(b, &s->out, s->begin, s->end, s->rows, true);
    TRY(vk_span_lines(b, &s->in[0], false, &at_once));
    for (int begin = 0; begin < n; begin += at_once)
        TRY(add_copy_of(b, s, true, begin, min_int(n, begin + at_once)));
    return ATS_OK;
}

/* Binds out = f(x, y, z) column by column; z NULL: there is none. */
static ats_status bind_columns(struct vk_builder *b, struct vk_dispatch *d, const struct step *s,
                               const struct span *const in[3], const struct span *out) {
    vk_push_int(d, s->begin);
    vk_push_int(d, s->end);
    TRY(vk_bind_span(b, d, 1, in[0], s->in_rows, false));
    TRY(vk_bind_span(b, d, 2, in[1], s->in_rows, false));
    TRY(vk_bind_span(b, d, 3, out, s->rows, true));
    if (in[2]) return vk_bind_span(b, d, 4, in[2], s->in_rows, false);
    vk_push_int(d, 0);
    vk_push_int(d, 0);
    return ATS_OK;
}

/* Left to right, two more at a time. */
static ats_status add_sum(struct vk_builder *b, const struct step *s) {
    if (s->n_in == 1) return add_copy(b, s);
    for (int i = 1; i < s->n_in; i += 2) {
        const bool three = i + 1 < s->n_in;
        const struct span *const in[3] = {i == 1 ? &s->in[0] : &s->out, &s->in[i],
                                          three ? &s->in[i + 1] : NULL};
        struct vk_dispatch *d = vk_start(b);
        TRY(bind_columns(b, d, s, in, &s->out));
        TRY(vk_finish_columns(b, d, SHADER_ADD, s->end - s->begin, s->rows, three));
    }
    note_columns(b, s);
    return ATS_OK;
}

/* outer: another one behind it, with one gate, or NULL. What comes out may be rounded too. */
static ats_status add_gated(struct vk_builder *b, const struct step *s, const struct step *outer) {
    const struct span *const in[3] = {&s->in[0], &s->in[1], outer ? &outer->in[0] : NULL};
    struct vk_dispatch *d = vk_start(b);
    TRY(bind_columns(b, d, s, in, outer ? &outer->out : &s->out));
    TRY(bind_bytes(b, d, 5, 3));
    const bool bytes = b->rounds != NULL;
    const int lanes = b->v->lanes, n = (s->end - s->begin) / (bytes ? 32 : 1);
    const int32_t constants[VK_MAX_CONSTANTS] = {lanes,
                                                 (int32_t)s->op->p.gated.act,
                                                 s->op->p.gated.one_gate,
                                                 outer ? (int32_t)outer->op->p.gated.act + 1 : 0,
                                                 bytes,
                                                 bytes && vk_in_fours(d, 0, 8) &&
                                                     vk_in_fours(d, 10, d->n_push)};
    return vk_finish(b, d, SHADER_GATED, constants, vk_groups_of(n, lanes), s->rows, 1);
}

/* `used` steps that backend/fold.h lets be one; what stands between them is in local memory. */
static ats_status add_folded(struct vk_builder *b, const struct step *s, int used) {
    const struct step *last = s + 1;
    b->v->n_folds += used - 1;
    if (used == 3) {
        TRY(vk_add_gated_products(b, s));
    } else if (step_is(s, OP_MATMUL)) {
        note_columns(b, last);
        TRY(vk_add_product(b, s, last));
    } else {
        note_columns(b, s);
        note_columns(b, last);
        if (s->kind != STEP_OP)
            TRY(add_norm(b, last, s, NULL));
        else if (s->op->kind == OP_NORM)
            TRY(add_norm(b, s, NULL, last));
        else
            TRY(add_gated(b, s, last));
    }
    b->rounded = NULL; /* as after any other step */
    return ATS_OK;
}

static ats_status add_lines(struct vk_builder *b, const struct step *s) {
    if (s->kind == STEP_OP && s->op->kind == OP_MATMUL) return vk_add_product(b, s, NULL);
    b->rounded = NULL; /* its memory may be another value's from now on */
    if (s->kind == STEP_SUM) return add_sum(b, s);
    if (s->kind == STEP_COPY) return add_copy(b, s);
    switch (s->op->kind) {
    case OP_EMBED:
        return add_embed(b, s);
    case OP_NORM:
        note_columns(b, s);
        return add_norm(b, s, NULL, NULL);
    case OP_ROPE:
        return add_rope(b, s);
    case OP_ATTENTION:
        return add_attention(b, s);
    case OP_GATED:
        note_columns(b, s);
        return add_gated(b, s, NULL);
    case OP_ROWS:
        return add_rows(b, s);
    case OP_SLICE:
        return add_copy(b, s);
    case OP_CONV:
        return vk_add_conv(b, s);
    case OP_DELTA:
        return vk_add_delta(b, s);
    case OP_ROUTE:
        return vk_add_route(b, s);
    case OP_EXPERTS:
        return vk_add_experts(b, s);
    default:
        return fail(ATS_UNSUPPORTED, "%s cannot compute \"%s\" yet", b->v->name,
                    op_kind_name(s->op->kind));
    }
}

/* Lines of a step that a shader sees at once. */
static ats_status step_lines(const struct vk_builder *b, const struct step *s, int *out) {
    bool rows = s->kind == STEP_OP && s->op->kind == OP_ROWS; /* it has windows of its own */
    int lines;
    TRY(vk_span_lines(b, &s->out, s->rows, out));
    for (int i = 0; !rows && i < s->n_in; i++) {
        TRY(vk_span_lines(b, &s->in[i], s->in_rows, &lines));
        *out = min_int(*out, lines);
    }
    if (s->kind != STEP_OP || s->op->kind != OP_ROPE) return ATS_OK;
    const struct span table = {.stride = s->op->p.rope.n_rot};
    TRY(vk_span_lines(b, &table, false, &lines));
    *out = min_int(*out, lines);
    return ATS_OK;
}

/* How many steps from s on are one dispatch; all of them have all their lines at once. */
static ats_status count_folded(const struct vk_builder *b, const struct step *s, int n_steps,
                               int *out) {
    const bool wide = s->kind == STEP_OP || vk_has_wide_layout(b->v);
    int n = s->rows ? b->v->limits.n_rows : b->v->limits.n_tokens, most;
    *out = 1;
    if (b->v->no_fold) return ATS_OK;
    if (vk_can_gate(b, s, n_steps))
        *out = 3;
    else if (wide && steps_fold(&b->v->limits, s, n_steps))
        *out = 2;
    for (int i = 1; i < *out; i++) {
        TRY(step_lines(b, s + i, &most));
        if (most < n) *out = 1;
    }
    return ATS_OK;
}

/* The product right behind steps[0..used), if they can round what they make for it: it takes just
 * that. Else NULL. */
static const struct step *product_rounded_for(const struct vk_builder *b, const struct step *steps,
                                              int used, int n_steps) {
    const struct step *last = steps + used - 1, *product = last + 1;
    if (b->v->no_fold || used == n_steps || !vk_takes_bytes(product)) return NULL;
    if (used == 3 && (b->variant != VARIANT_ONE || !steps->weight->packed))
        return NULL;                   /* there is room for a line, and plain types keep none */
    if (step_is(last, OP_ATTENTION)) { /* where it is merged, head by head */
        if (b->variant != VARIANT_ONE || last->op->p.attention.head_dim % 32 != 0) return NULL;
    } else if (!step_is(last, OP_NORM) && !step_is(last, OP_GATED)) {
        return NULL;
    }
    for (int i = 0; i < used; i++)
        if (step_is(&steps[i], OP_NORM) && steps[i].op->p.norm.group % 32 != 0) return NULL;
    const bool same = span_same(&product->in[0], &last->out) && product->in_begin == last->begin &&
                      product->in_end == last->end && product->in_rows == last->rows;
    return same ? product : NULL;
}

/* A step for some of its lines at a time. */
static ats_status add_windows(struct vk_builder *b, const struct step *s, int n, int most) {
    if (b->variant == VARIANT_ONE) n = most = 1;
    for (int first = 0; first < n; first += most) {
        b->v->n_windows++;
        vk_set_lines(b, first, most);
        TRY(add_lines(b, s));
    }
    vk_set_lines(b, 0, 0);
    return ATS_OK;
}

ats_status vk_add_steps(struct vk_builder *b, const struct step *s, int n_steps, int *used) {
    *used = 1;
    if (s->kind == STEP_OP && s->op->kind == OP_EXPERTS) return add_lines(b, s);
    int n = s->rows ? b->v->limits.n_rows : b->v->limits.n_tokens, most;
    TRY(step_lines(b, s, &most));
    if (most < n) return add_windows(b, s, n, most);
    TRY(count_folded(b, s, n_steps, used));
    b->rounds = product_rounded_for(b, s, *used, n_steps);
    TRY(*used > 1 ? add_folded(b, s, *used) : add_lines(b, s));
    if (b->rounds) {
        b->rounded = b->rounds;
        b->rounded_apart = *used == 3;
        b->v->n_folds++;
    }
    b->rounds = NULL;
    return ATS_OK;
}
