/* Operators with a state: short convolutions and gated delta rules. What a sequence remembers is
 * read and written by the shader alone, in the slots that the round's runs name; one dispatch does
 * all tokens of all runs, or those of a window of lines. */
#include "backend/vulkan/record.h"

/* The tokens of the dispatch, as round_lines counts them. */
static void push_window(const struct vk_builder *b, struct vk_dispatch *d) {
    vk_push_int(d, b->first);
    vk_push_int(d, b->most ? (int64_t)b->first + b->most : INT32_MAX);
}

/* Binding 1, or an address behind all else that is pushed. */
static ats_status bind_state(const struct vk_builder *b, struct vk_dispatch *d,
                             const struct backend_state *state) {
    struct vk_view view;
    TRY(vk_view_open(b->v, &state->block, 0, state->block.bytes, "a recurrent state", &view));
    vk_bind(d, 1, view, true);
    vk_push_address(d, &state->block);
    return ATS_OK;
}

static ats_status bind_vector(const struct vk_builder *b, struct vk_dispatch *d, int binding,
                              const struct backend_weight *w) {
    struct vk_view view;
    TRY(vk_vector_view(b->v, w, &view));
    vk_bind(d, binding, view, false);
    vk_push_int(d, view.word);
    return ATS_OK;
}

ats_status vk_add_conv(struct vk_builder *b, const struct step *s) {
    const struct conv_params *p = &s->op->p.conv;
    const int lanes = b->v->lanes, n_columns = s->end - s->begin;
    struct vk_dispatch *d = vk_start(b);
    push_window(b, d);
    vk_push_int(d, s->begin);
    vk_push_int(d, n_columns);
    vk_push_int(d, s->state->layout.n_floats);
    TRY(vk_bind_span(b, d, 2, &s->in[0], false, false));
    TRY(vk_bind_span(b, d, 3, &s->out, false, true));
    TRY(bind_vector(b, d, 4, s->weight));
    TRY(bind_state(b, d, s->state));
    vk_note_exchange(b, &s->in[0], s->begin, s->end, false, false);
    vk_note_exchange(b, &s->out, s->begin, s->end, false, true);
    const int32_t constants[VK_MAX_CONSTANTS] = {lanes, p->n_taps, p->silu};
    struct vk_grid grid = {.x = vk_groups_of(n_columns, lanes), .lines = LINES_RUNS, .tile = 1};
    return vk_finish_grid(b, d, s->state->block.address ? SHADER_CONV_ADDRESS : SHADER_CONV,
                          constants, grid);
}

static void note_delta(struct vk_builder *b, const struct step *s) {
    const struct delta_params *p = &s->op->p.delta;
    int first, last;
    delta_key_heads(p, s->head_begin, s->head_end, &first, &last);
    for (int i = 0; i < 2; i++)
        vk_note_exchange(b, &s->in[i], first * p->dim_k, last * p->dim_k, false, false);
    vk_note_exchange(b, &s->in[2], s->begin, s->end, false, false);
    for (int i = 3; i < 5; i++)
        vk_note_exchange(b, &s->in[i], s->head_begin, s->head_end, false, false);
    vk_note_exchange(b, &s->out, s->begin, s->end, false, true);
}

ats_status vk_add_delta(struct vk_builder *b, const struct step *s) {
    const struct delta_params *p = &s->op->p.delta;
    if (!vk_has_wide_layout(b->v) || p->dim_k > VK_MAX_HEAD_DIM)
        return fail(ATS_UNSUPPORTED, "%s: delta rules of %d rows", b->v->name, p->dim_k);
    struct vk_dispatch *d = vk_start(b);
    push_window(b, d);
    vk_push_int(d, s->head_begin);
    vk_push_int(d, p->tiled);
    vk_push_int(d, p->tiled ? p->n_key_heads : p->n_heads / p->n_key_heads);
    vk_push_int(d, s->state->layout.n_floats);
    for (int i = 0; i < 5; i++)
        TRY(vk_bind_span(b, d, 2 + i, &s->in[i], false, false));
    TRY(vk_bind_span(b, d, 7, &s->out, false, true));
    TRY(bind_vector(b, d, 8, s->weight));
    TRY(bind_vector(b, d, 9, s->bias));
    TRY(bind_state(b, d, s->state));
    note_delta(b, s);
    const int32_t constants[VK_MAX_CONSTANTS] = {DELTA_BLOCK * b->v->split, p->dim_k, p->dim_v,
                                                 b->v->split};
    const int per_head = p->dim_v / DELTA_BLOCK;
    struct vk_grid grid = {
        .x = (s->head_end - s->head_begin) * per_head, .lines = LINES_RUNS, .tile = 1};
    return vk_finish_grid(b, d, s->state->block.address ? SHADER_DELTA_ADDRESS : SHADER_DELTA,
                          constants, grid);
}
