/* Steps become dispatches, dispatches recorded commands. */
#include "backend/vulkan/vulkan_internal.h"

#include <stdlib.h>
#include <string.h>
#include "backend/packed.h"

/* A submission ends after so many dispatches or so many bytes of weights, that no watchdog may
 * bite: those of larger rounds do more work each. */
static const struct {
    int dispatches;
    size_t bytes;
} cuts[N_VARIANTS] = {{128, (size_t)128 << 20}, {48, (size_t)16 << 20}};

struct touch {
    VkBuffer buffer;
    VkDeviceSize begin, end;
    bool write;
};
struct dispatch {
    VkPipeline pipeline;
    struct vk_view views[VK_MAX_BINDINGS];
    bool bound[VK_MAX_BINDINGS], written[VK_MAX_BINDINGS];
    int32_t push[VK_MAX_PUSH];
    int n_push, grid;
    bool barrier; /* before it */
    size_t bytes; /* of weights */
};
struct builder {
    struct vulkan *v;
    struct backend_segment *segment;
    int variant;
    struct dispatch *items;
    size_t n, cap;
    struct touch *touched; /* since the last barrier */
    size_t n_touched, cap_touched;
    const struct step *rounded; /* whose input stands in the work block in 8 bits, or NULL */
};

/* ---- one dispatch ---- */

static struct dispatch *start(struct builder *b) {
    GROW(b->items, b->n, b->cap, 1);
    struct dispatch *d = &b->items[b->n];
    memset(d, 0, sizeof *d);
    return d;
}

static void push_int(struct dispatch *d, int64_t value) {
    REQUIRE(d->n_push < VK_MAX_PUSH && value >= INT32_MIN && value <= INT32_MAX);
    d->push[d->n_push++] = (int32_t)value;
}

static void push_float(struct dispatch *d, float value) {
    int32_t bits;
    memcpy(&bits, &value, sizeof bits);
    push_int(d, bits);
}

static void bind(struct dispatch *d, int binding, struct vk_view view, bool write) {
    d->views[binding] = view;
    d->bound[binding] = true;
    d->written[binding] = write;
}

/* A span's lines as floats; pushes where column 0 of line 0 would stand, and the stride. */
static ats_status bind_span(struct builder *b, struct dispatch *d, int binding,
                            const struct span *s, bool rows, bool write) {
    struct vulkan *v = b->v;
    size_t lines = (size_t)(rows ? v->limits.n_rows : v->limits.n_tokens);
    const struct vk_block *block = s->space == SPACE_LOCAL ? &v->local : &v->exchange;
    struct vk_view view;
    TRY(vk_view_open(v, block, (size_t)s->offset_bytes, lines * (size_t)s->stride * 4,
                     "the memory of a value", &view));
    bind(d, binding, view, write);
    push_int(d, view.word - s->first);
    push_int(d, s->stride);
    return ATS_OK;
}

/* Where the executor's exchange is a copy: the columns of a span that a step reads or writes. */
static void note_exchange(struct builder *b, const struct span *s, int begin, int end, bool rows,
                          bool write) {
    struct backend_segment *g = b->segment;
    if (!b->v->mirrored || b->variant || s->space != SPACE_EXCHANGE) return;
    GROW(g->mirrors, g->n_mirrors, g->cap_mirrors, 1);
    g->mirrors[g->n_mirrors++] = (struct vk_mirror){*s, begin, end, rows, write};
}

static bool conflict(const struct builder *b, const struct dispatch *d) {
    for (size_t i = 0; i < b->n_touched; i++) {
        const struct touch *t = &b->touched[i];
        for (int j = 0; j < VK_MAX_BINDINGS; j++) {
            const struct vk_view *view = &d->views[j];
            if (d->bound[j] && view->buffer == t->buffer && (d->written[j] || t->write) &&
                view->offset < t->end && t->begin < view->offset + view->range)
                return true;
        }
    }
    return false;
}

/* Ends a dispatch: its pipeline, its size, the barrier before it. */
static ats_status finish_grid(struct builder *b, struct dispatch *d, enum vk_shader shader,
                              const int32_t constants[VK_MAX_CONSTANTS], struct vk_grid grid) {
    struct vulkan *v = b->v;
    TRY(vk_pipeline_get(v, shader, constants, &d->pipeline));
    if (grid.x < 1 || grid.x > (int)v->gpu.properties.limits.maxComputeWorkGroupCount[0])
        return fail(ATS_UNSUPPORTED, "%s: a step of %d work-groups", v->name, grid.x);
    d->grid = vk_grid_index(v, grid);
    if (d->grid < 0) return fail(ATS_UNSUPPORTED, "%s: too many sizes of steps", v->name);
    struct vk_view round;
    TRY(vk_view_open(v, &v->round_block, 0, v->cap_words * 4, "the round", &round));
    bind(d, 0, round, false);
    d->barrier = conflict(b, d);
    if (d->barrier) b->n_touched = 0;
    for (int j = 1; j < VK_MAX_BINDINGS; j++) {
        if (!d->bound[j]) continue;
        const struct vk_view *view = &d->views[j];
        GROW(b->touched, b->n_touched, b->cap_touched, 1);
        b->touched[b->n_touched++] =
            (struct touch){view->buffer, view->offset, view->offset + view->range, d->written[j]};
    }
    b->n++;
    return ATS_OK;
}

static ats_status finish(struct builder *b, struct dispatch *d, enum vk_shader shader,
                         const int32_t constants[VK_MAX_CONSTANTS], int x, bool rows, int tile) {
    struct vk_grid grid = {.x = x, .lines = rows ? LINES_ROWS : LINES_TOKENS, .tile = tile};
    return finish_grid(b, d, shader, constants, grid);
}

static int groups_of(int n, int size) {
    return (n + size - 1) / size;
}

/* A dispatch of a lane a column; `constant` is the shader's own, if it has one. */
static ats_status finish_columns(struct builder *b, struct dispatch *d, enum vk_shader shader,
                                 int n_columns, bool rows, int constant) {
    const int32_t constants[VK_MAX_CONSTANTS] = {b->v->lanes, constant};
    return finish(b, d, shader, constants, groups_of(n_columns, b->v->lanes), rows, 1);
}

/* ---- weights by windows of rows ---- */

/* Rows [begin, end) of a weight as one binding; begin stands on a group. */
static ats_status weight_window(const struct vulkan *v, const struct backend_weight *w, int begin,
                                struct vk_view *view, int *end) {
    size_t unit_rows = w->packed ? PACK_ROWS : 1;
    size_t units = (size_t)v->gpu.max_range / w->unit_bytes;
    if (!w->packed) units = units / PACK_ROWS * PACK_ROWS; /* so that it starts on 256 bytes */
    if (units == 0)
        return fail(ATS_UNSUPPORTED, "%s: rows of %s are larger than a shader sees (%llu bytes)",
                    v->name, w->s.name, (unsigned long long)v->gpu.max_range);
    *end = (int)min_size((size_t)w->s.n_rows, (size_t)begin + units * unit_rows);
    size_t from = (size_t)begin / unit_rows * w->unit_bytes;
    size_t to = ((size_t)*end + unit_rows - 1) / unit_rows * w->unit_bytes;
    return vk_view_open(v, w->block, w->offset + from, to - from, w->s.name, view);
}

static ats_status vector_view(const struct vulkan *v, const struct backend_weight *w,
                              struct vk_view *view) {
    REQUIRE(w->s.dtype == DTYPE_F32 && w->s.n_rows == 1);
    return vk_view_open(v, w->block, w->offset, w->unit_bytes, w->s.name, view);
}

static ats_status add_embed(struct builder *b, const struct step *s) {
    const struct backend_weight *w = s->weight;
    int lanes = b->v->lanes;
    for (int begin = 0, end; begin < w->s.n_rows; begin = end) {
        struct dispatch *d = start(b);
        struct vk_view view;
        TRY(weight_window(b->v, w, begin, &view, &end));
        bind(d, 1, view, false);
        push_int(d, begin);
        push_int(d, end);
        push_int(d, w->s.n_cols);
        push_int(d, (int64_t)(w->unit_bytes / 4));
        TRY(bind_span(b, d, 2, &s->out, s->rows, true));
        push_float(d, s->op->p.embed.scale);
        const int32_t constants[VK_MAX_CONSTANTS] = {lanes, (int32_t)w->s.dtype};
        TRY(finish(b, d, w->packed ? SHADER_EMBED : SHADER_EMBED_RAW, constants,
                   groups_of(groups_of(w->s.n_cols, 4), lanes), false, 1));
    }
    note_exchange(b, &s->out, s->begin, s->end, s->rows, true);
    return ATS_OK;
}

/* ---- products ---- */

size_t vk_q8_line_words(int n_cols) {
    return (size_t)n_cols / 32 * 10;
}

static bool same_input(const struct step *a, const struct step *b) {
    const struct span *x = &a->in[0], *y = &b->in[0];
    return x->space == y->space && x->offset_bytes == y->offset_bytes && x->stride == y->stride &&
           x->first == y->first && a->in_begin == b->in_begin && a->in_end == b->in_end &&
           a->in_rows == b->in_rows;
}

static ats_status work_view(const struct builder *b, const struct step *s, struct vk_view *out) {
    const struct vulkan *v = b->v;
    size_t lines = (size_t)(s->in_rows ? v->limits.n_rows : v->limits.n_tokens);
    return vk_view_open(v, &v->work, 0, lines * vk_q8_line_words(s->in_end - s->in_begin) * 4,
                        "an input in 8 bits", out);
}

static ats_status add_quantise(struct builder *b, const struct step *s) {
    struct dispatch *d = start(b);
    struct vk_view out;
    int n_blocks = (s->in_end - s->in_begin) / 32;
    push_int(d, s->in_rows);
    push_int(d, n_blocks);
    TRY(bind_span(b, d, 1, &s->in[0], s->in_rows, false));
    d->push[2] += s->in_begin;
    TRY(work_view(b, s, &out));
    bind(d, 2, out, true);
    push_int(d, 0);
    push_int(d, 10 * (int64_t)n_blocks);
    b->rounded = s;
    return finish_columns(b, d, SHADER_QUANTISE, n_blocks, s->in_rows, 0);
}

/* The shader of a product and its constants; returns rows of a work-group. */
static int product_shader(const struct builder *b, const struct step *s, enum vk_shader *shader,
                          int32_t constants[VK_MAX_CONSTANTS]) {
    const struct vulkan *v = b->v;
    const struct backend_weight *w = s->weight;
    int tile = b->variant == VARIANT_ONE ? 1 : VK_TILE;
    int32_t packed[VK_MAX_CONSTANTS] = {PACK_ROWS * v->split, (int32_t)w->s.dtype, tile, v->split,
                                        s->bias != NULL};
    int lanes = min_int(v->lanes, 16), rows = v->lanes / lanes;
    int32_t raw[VK_MAX_CONSTANTS] = {v->lanes, (int32_t)w->s.dtype, tile,
                                     lanes,    s->bias != NULL,     rows};
    memcpy(constants, w->packed ? packed : raw, sizeof packed);
    bool idot = v->gpu.idot && (v->gpu.idot_fast || v->gpu.kind == GPU_SOFTWARE);
    *shader = SHADER_PRODUCT_RAW;
    if (w->packed) *shader = SHADER_PRODUCT;
    if (w->packed && s->op->p.matmul.math == MATH_Q8)
        *shader = idot ? SHADER_PRODUCT_Q8_IDOT : SHADER_PRODUCT_Q8;
    return w->packed ? PACK_ROWS : rows;
}

static ats_status add_product_window(struct builder *b, const struct step *s, int begin, int *end) {
    const struct backend_weight *w = s->weight;
    struct dispatch *d = start(b);
    struct vk_view view;
    enum vk_shader shader;
    int32_t constants[VK_MAX_CONSTANTS];
    int rows = product_shader(b, s, &shader, constants);
    TRY(weight_window(b->v, w, begin, &view, end));
    bind(d, 1, view, false);
    d->bytes = (size_t)view.range;
    push_int(d, s->rows);
    push_int(d, *end - begin);
    push_int(d, w->s.n_cols);
    push_int(d, (int64_t)(w->unit_bytes / 4));
    if (shader == SHADER_PRODUCT_Q8 || shader == SHADER_PRODUCT_Q8_IDOT) {
        struct vk_view in;
        TRY(work_view(b, s, &in));
        bind(d, 2, in, false);
        push_int(d, 0);
        push_int(d, w->s.n_cols / 32 * 10);
    } else {
        TRY(bind_span(b, d, 2, &s->in[0], s->in_rows, false));
        d->push[4] += s->in_begin;
    }
    TRY(bind_span(b, d, 3, &s->out, s->rows, true));
    d->push[6] += s->begin + begin;
    if (s->bias) {
        TRY(vector_view(b->v, s->bias, &view));
        bind(d, 4, view, false);
        push_int(d, view.word + begin);
    }
    return finish(b, d, shader, constants, groups_of(*end - begin, rows), s->rows, constants[2]);
}

static ats_status add_product(struct builder *b, const struct step *s) {
    bool q8 = s->op->p.matmul.math == MATH_Q8 && s->weight->packed;
    if (q8 && !(b->rounded && same_input(b->rounded, s))) TRY(add_quantise(b, s));
    for (int begin = 0, end; begin < s->weight->s.n_rows; begin = end)
        TRY(add_product_window(b, s, begin, &end));
    note_exchange(b, &s->in[0], s->in_begin, s->in_end, s->in_rows, false);
    note_exchange(b, &s->out, s->begin, s->end, s->rows, true);
    return ATS_OK;
}

/* ---- attention ---- */

static ats_status add_store(struct builder *b, const struct step *s, int in, enum kv_type type,
                            const struct vk_block *block, size_t bytes) {
    struct dispatch *d = start(b);
    struct vk_view view;
    int heads = s->head_end - s->head_begin, dim = s->op->p.attention.head_dim;
    int lanes = b->v->lanes;
    TRY(bind_span(b, d, 1, &s->in[in], false, false));
    d->push[0] += s->head_begin * dim;
    push_int(d, heads);
    push_int(d, dim);
    TRY(vk_view_open(b->v, block, 0, bytes, "a KV cache", &view));
    bind(d, 2, view, true);
    const int32_t constants[VK_MAX_CONSTANTS] = {lanes, (int32_t)type};
    return finish(b, d, SHADER_KV_STORE, constants, groups_of(heads * groups_of(dim, 32), lanes),
                  false, 1);
}

/* Ranges of keys that a head may have, in the block of partial results. */
static int range_room(const struct vulkan *v) {
    return v->limits.n_ctx / VK_ATTN_RANGE + 1;
}

/* Rounds of one token have few heads to share out: there each range of keys is a work-group, and
 * this puts them together. */
static ats_status add_merge(struct builder *b, const struct step *s, int n_heads,
                            struct vk_view partial) {
    const struct attention_params *a = &s->op->p.attention;
    struct dispatch *d = start(b);
    struct vk_view sinks = {.word = 0};
    bind(d, 1, partial, false);
    TRY(bind_span(b, d, 2, &s->out, false, true));
    d->push[0] += s->begin;
    push_int(d, range_room(b->v));
    push_int(d, a->window);
    push_int(d, a->chunk);
    if (s->weight) {
        TRY(vector_view(b->v, s->weight, &sinks));
        bind(d, 3, sinks, false);
    }
    push_int(d, sinks.word);
    const int32_t constants[VK_MAX_CONSTANTS] = {b->v->lanes, b->v->lanes, a->head_dim,
                                                 s->weight != NULL};
    return finish(b, d, SHADER_ATTENTION_MERGE, constants, n_heads, false, 1);
}

/* Where attention puts its result: the step's output, or a place for each range. */
static ats_status bind_result(struct builder *b, struct dispatch *d, const struct step *s,
                              int n_heads, struct vk_view *partial) {
    struct vulkan *v = b->v;
    if (b->variant != VARIANT_ONE) {
        TRY(bind_span(b, d, 4, &s->out, false, true));
        d->push[2] += s->begin;
        return ATS_OK;
    }
    size_t bytes =
        (size_t)(n_heads * range_room(v)) * (size_t)(s->op->p.attention.head_dim + 2) * 4;
    TRY(vk_view_open(v, &v->partial, 0, bytes, "ranges of keys", partial));
    bind(d, 4, *partial, true);
    push_int(d, 0);
    push_int(d, range_room(v));
    return ATS_OK;
}

static ats_status add_ranges(struct builder *b, const struct step *s) {
    const struct attention_params *a = &s->op->p.attention;
    const struct backend_kv *kv = s->kv;
    bool one = b->variant == VARIANT_ONE;
    int dim = a->head_dim, n_heads = (s->end - s->begin) / dim;
    size_t n_pages = (size_t)kv->layout.n_pages;
    struct dispatch *d = start(b);
    struct vk_view k, v, partial = {.word = 0}, sinks = {.word = 0};
    TRY(bind_span(b, d, 1, &s->in[0], false, false));
    d->push[0] += s->begin; /* query heads stand as the output does */
    TRY(bind_result(b, d, s, n_heads, &partial));
    TRY(vk_view_open(b->v, &kv->k, 0, n_pages * kv->k_page, "a KV cache", &k));
    TRY(vk_view_open(b->v, &kv->v, 0, n_pages * kv->v_page, "a KV cache", &v));
    bind(d, 2, k, false);
    bind(d, 3, v, false);
    push_int(d, a->n_heads / a->n_kv_heads);
    push_int(d, s->head_end - s->head_begin);
    push_int(d, a->window);
    push_int(d, a->chunk);
    push_float(d, a->scale);
    push_int(d, a->temp_length);
    push_float(d, a->temp_scale);
    if (s->weight) {
        TRY(vector_view(b->v, s->weight, &sinks));
        bind(d, 5, sinks, false);
    }
    push_int(d, sinks.word);
    const int32_t constants[VK_MAX_CONSTANTS] = {
        b->v->lanes,       b->v->lanes, dim, (int32_t)kv->layout.type_k, (int32_t)kv->layout.type_v,
        s->weight && !one, one};
    struct vk_grid grid = {.x = n_heads, .lines = LINES_TOKENS, .tile = 1, .ranges = one};
    TRY(finish_grid(b, d, SHADER_ATTENTION, constants, grid));
    return one ? add_merge(b, s, n_heads, partial) : ATS_OK;
}

static ats_status add_attention(struct builder *b, const struct step *s) {
    const struct attention_params *a = &s->op->p.attention;
    const struct backend_kv *kv = s->kv;
    size_t n_pages = (size_t)kv->layout.n_pages;
    int group = a->n_heads / a->n_kv_heads, dim = a->head_dim;
    if (dim > VK_MAX_HEAD_DIM)
        return fail(ATS_UNSUPPORTED, "%s: attention heads of %d elements", b->v->name, dim);
    REQUIRE(s->begin == s->head_begin * group * dim && s->end == s->head_end * group * dim);
    for (int i = 0; i < 3; i++) {
        int wide = i ? dim : group * dim;
        note_exchange(b, &s->in[i], s->head_begin * wide, s->head_end * wide, false, false);
    }
    note_exchange(b, &s->out, s->begin, s->end, false, true);
    TRY(add_store(b, s, 1, kv->layout.type_k, &kv->k, n_pages * kv->k_page));
    TRY(add_store(b, s, 2, kv->layout.type_v, &kv->v, n_pages * kv->v_page));
    return add_ranges(b, s);
}

/* ---- light steps ---- */

static ats_status add_norm(struct builder *b, const struct step *s) {
    struct dispatch *d = start(b);
    struct vk_view view = {.word = 0};
    int group = s->op->p.norm.group;
    push_int(d, s->rows);
    push_int(d, s->begin);
    push_int(d, group);
    TRY(bind_span(b, d, 2, &s->in[0], s->in_rows, false));
    TRY(bind_span(b, d, 3, &s->out, s->rows, true));
    if (s->weight) {
        TRY(vector_view(b->v, s->weight, &view));
        bind(d, 1, view, false);
    }
    push_int(d, view.word);
    push_float(d, s->op->p.norm.eps);
    note_exchange(b, &s->in[0], s->begin, s->end, s->in_rows, false);
    note_exchange(b, &s->out, s->begin, s->end, s->rows, true);
    const int32_t constants[VK_MAX_CONSTANTS] = {b->v->lanes, b->v->lanes, s->weight != NULL};
    return finish(b, d, SHADER_NORM, constants, (s->end - s->begin) / group, s->rows, 1);
}

static ats_status add_rope(struct builder *b, const struct step *s) {
    const struct rope_params *p = &s->op->p.rope;
    struct dispatch *d = start(b);
    struct vk_view table;
    int index = vk_rope_index(b->v, s->op);
    if (index < 0) return fail(ATS_UNSUPPORTED, "%s: too many rotary embeddings", b->v->name);
    push_int(d, s->begin);
    push_int(d, s->end);
    TRY(bind_span(b, d, 2, &s->in[0], false, false));
    TRY(bind_span(b, d, 3, &s->out, false, true));
    TRY(vk_view_open(b->v, &b->v->round_block, vk_rope_offset(b->v, index),
                     (size_t)b->v->limits.n_tokens * (size_t)p->n_rot * 4, "a rope table", &table));
    bind(d, 1, table, false);
    push_int(d, p->head_dim);
    push_int(d, p->n_rot);
    push_int(d, p->halves);
    push_int(d, table.word);
    note_exchange(b, &s->in[0], s->begin, s->end, false, false);
    note_exchange(b, &s->out, s->begin, s->end, false, true);
    return finish_columns(b, d, SHADER_ROPE, s->end - s->begin, false, 0);
}

static ats_status add_copy(struct builder *b, const struct step *s, bool gather) {
    struct dispatch *d = start(b);
    push_int(d, s->rows);
    push_int(d, gather);
    push_int(d, s->begin);
    push_int(d, s->end);
    TRY(bind_span(b, d, 1, &s->in[0], s->in_rows, false));
    TRY(bind_span(b, d, 2, &s->out, s->rows, true));
    note_exchange(b, &s->in[0], s->begin, s->end, s->in_rows, false);
    note_exchange(b, &s->out, s->begin, s->end, s->rows, true);
    return finish_columns(b, d, SHADER_COPY, s->end - s->begin, s->rows, 0);
}

/* out = f(x, y) column by column. */
static ats_status add_pair(struct builder *b, const struct step *s, enum vk_shader shader,
                           const struct span *x, const struct span *y, int constant) {
    struct dispatch *d = start(b);
    push_int(d, s->rows);
    push_int(d, s->begin);
    push_int(d, s->end);
    TRY(bind_span(b, d, 1, x, s->in_rows, false));
    TRY(bind_span(b, d, 2, y, s->in_rows, false));
    TRY(bind_span(b, d, 3, &s->out, s->rows, true));
    return finish_columns(b, d, shader, s->end - s->begin, s->rows, constant);
}

static ats_status add_sum(struct builder *b, const struct step *s) {
    if (s->n_in == 1) return add_copy(b, s, false);
    for (int i = 1; i < s->n_in; i++)
        TRY(add_pair(b, s, SHADER_ADD, i == 1 ? &s->in[0] : &s->out, &s->in[i], 0));
    for (int i = 0; i < s->n_in; i++)
        note_exchange(b, &s->in[i], s->begin, s->end, s->in_rows, false);
    note_exchange(b, &s->out, s->begin, s->end, s->rows, true);
    return ATS_OK;
}

static ats_status add_gated(struct builder *b, const struct step *s) {
    for (int i = 0; i < 2; i++)
        note_exchange(b, &s->in[i], s->begin, s->end, s->in_rows, false);
    note_exchange(b, &s->out, s->begin, s->end, s->rows, true);
    return add_pair(b, s, SHADER_GATED, &s->in[0], &s->in[1], (int)s->op->p.gated.act);
}

static ats_status add_step(struct builder *b, const struct step *s) {
    if (s->kind == STEP_OP && s->op->kind == OP_MATMUL) return add_product(b, s);
    b->rounded = NULL; /* its memory may be another value's from now on */
    if (s->kind == STEP_SUM) return add_sum(b, s);
    if (s->kind == STEP_COPY) return add_copy(b, s, false);
    switch (s->op->kind) {
    case OP_EMBED:
        return add_embed(b, s);
    case OP_NORM:
        return add_norm(b, s);
    case OP_ROPE:
        return add_rope(b, s);
    case OP_ATTENTION:
        return add_attention(b, s);
    case OP_GATED:
        return add_gated(b, s);
    case OP_ROWS:
        return add_copy(b, s, true);
    default:
        return fail(ATS_UNSUPPORTED, "%s cannot compute \"%s\" yet", b->v->name,
                    op_kind_name(s->op->kind));
    }
}

/* ---- recording ---- */

static ats_status pool_open(struct vulkan *v, size_t n, VkDescriptorPool *out) {
    VkDescriptorPoolSize size = {VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
                                 (uint32_t)(max_size(n, 1) * VK_MAX_BINDINGS)};
    VkDescriptorPoolCreateInfo info = {.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO,
                                       .maxSets = (uint32_t)max_size(n, 1),
                                       .poolSizeCount = 1,
                                       .pPoolSizes = &size};
    VK_TRY("a descriptor pool", v->f.CreateDescriptorPool(v->device, &info, NULL, out));
    return ATS_OK;
}

static ats_status describe(const struct builder *b, const struct dispatch *d,
                           VkDescriptorSet *out) {
    struct vulkan *v = b->v;
    VkDescriptorSetAllocateInfo info = {.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO,
                                        .descriptorPool = b->segment->pool,
                                        .descriptorSetCount = 1,
                                        .pSetLayouts = &v->set_layout};
    VK_TRY("a descriptor set", v->f.AllocateDescriptorSets(v->device, &info, out));
    VkDescriptorBufferInfo buffers[VK_MAX_BINDINGS];
    VkWriteDescriptorSet writes[VK_MAX_BINDINGS];
    for (uint32_t i = 0; i < VK_MAX_BINDINGS; i++) {
        /* what a shader names must be there, even if its constants say that it is not read */
        const struct vk_view *view = &d->views[d->bound[i] ? i : 0];
        buffers[i] = (VkDescriptorBufferInfo){view->buffer, view->offset, view->range};
        writes[i] = (VkWriteDescriptorSet){.sType = VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET,
                                           .dstSet = *out,
                                           .dstBinding = i,
                                           .descriptorCount = 1,
                                           .descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
                                           .pBufferInfo = &buffers[i]};
    }
    v->f.UpdateDescriptorSets(v->device, VK_MAX_BINDINGS, writes, 0, NULL);
    return ATS_OK;
}

static ats_status record_dispatch(const struct builder *b, const struct dispatch *d,
                                  VkCommandBuffer c) {
    struct vulkan *v = b->v;
    VkDescriptorSet set;
    TRY(describe(b, d, &set));
    v->f.CmdBindPipeline(c, VK_PIPELINE_BIND_POINT_COMPUTE, d->pipeline);
    v->f.CmdBindDescriptorSets(c, VK_PIPELINE_BIND_POINT_COMPUTE, v->layout, 0, 1, &set, 0, NULL);
    v->f.CmdPushConstants(c, v->layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, sizeof d->push, d->push);
    v->f.CmdDispatchIndirect(c, v->round_block.buffer,
                             v->at_grids + (size_t)d->grid * sizeof(VkDispatchIndirectCommand));
    return ATS_OK;
}

/* The items from *at on that one submission takes. The first barrier is against what other
 * segments, and copies of pages, did before. */
static ats_status record_piece(const struct builder *b, VkCommandBuffer c, size_t *at) {
    struct vulkan *v = b->v;
    size_t bytes = 0, first = *at;
    if (first == 0 && !v->no_first_barriers) vk_barrier(v, c);
    for (; *at < b->n; (*at)++) {
        const struct dispatch *d = &b->items[*at];
        bool full = (int)(*at - first) >= cuts[b->variant].dispatches ||
                    bytes + d->bytes > cuts[b->variant].bytes;
        if (full && *at > first) break;
        if (d->barrier && !v->no_barriers) vk_barrier(v, c);
        TRY(record_dispatch(b, d, c));
        bytes += d->bytes;
    }
    if (*at == b->n) vk_host_barrier(v, c);
    VK_TRY("recording", v->f.EndCommandBuffer(c));
    return ATS_OK;
}

static ats_status record(struct builder *b) {
    struct vulkan *v = b->v;
    struct vk_commands *list = &b->segment->commands[b->variant];
    size_t at = 0;
    do {
        VkCommandBuffer c;
        TRY(vk_commands_begin(v, &c));
        GROW(list->items, list->n, list->cap, 1);
        list->items[list->n++] = c;
        TRY(record_piece(b, c, &at));
    } while (at < b->n);
    return ATS_OK;
}

static ats_status build(struct vulkan *v, const struct step *steps, int n_steps,
                        struct builder b[N_VARIANTS], struct backend_segment *s) {
    size_t n = 0;
    for (int i = 0; i < N_VARIANTS; i++) {
        b[i] = (struct builder){.v = v, .segment = s, .variant = i};
        for (int j = 0; j < n_steps; j++)
            TRY(add_step(&b[i], &steps[j]));
        n += b[i].n;
    }
    TRY(pool_open(v, n, &s->pool));
    ats_status status = ATS_OK;
    pthread_mutex_lock(&v->queue_lock);
    for (int i = 0; i < N_VARIANTS && status == ATS_OK; i++)
        status = record(&b[i]);
    pthread_mutex_unlock(&v->queue_lock);
    return status;
}

ats_status vk_segment_build(struct backend *backend, const struct step *steps, int n_steps,
                            struct backend_segment **out) {
    struct vulkan *v = vulkan_of(backend);
    REQUIRE(v->reserved);
    *out = NULL;
    struct builder b[N_VARIANTS] = {0};
    struct backend_segment *s = xcalloc(1, sizeof *s);
    ats_status status = build(v, steps, n_steps, b, s);
    for (int i = 0; i < N_VARIANTS; i++) {
        free(b[i].items);
        free(b[i].touched);
    }
    if (status == ATS_OK)
        *out = s;
    else
        vk_segment_free(backend, s);
    return status;
}

void vk_segment_free(struct backend *backend, struct backend_segment *s) {
    struct vulkan *v = vulkan_of(backend);
    if (!s) return;
    vk_idle(v);
    pthread_mutex_lock(&v->queue_lock);
    for (int i = 0; i < N_VARIANTS; i++) {
        struct vk_commands *list = &s->commands[i];
        if (list->n) v->f.FreeCommandBuffers(v->device, v->pool, (uint32_t)list->n, list->items);
        free(list->items);
    }
    pthread_mutex_unlock(&v->queue_lock);
    if (s->pool) v->f.DestroyDescriptorPool(v->device, s->pool, NULL);
    free(s->mirrors);
    free(s);
}
