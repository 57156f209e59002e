/* Dispatches become recorded commands, with barriers where one touches what another wrote. */
#include "backend/vulkan/record.h"

#include <stdlib.h>
#include <string.h>

/* A submission ends after so many dispatches or so many bytes of weights, that no watchdog may
 * bite: those of larger rounds do more work each. */
static const struct {
    int dispatches;
    size_t bytes;
} cuts[N_VARIANTS] = {{128, (size_t)128 << 20}, {48, (size_t)64 << 20}, {48, (size_t)16 << 20}};

/* ---- one dispatch ---- */

struct vk_dispatch *vk_start(struct vk_builder *b) {
    GROW(b->items, b->n, b->cap, 1);
    struct vk_dispatch *d = &b->items[b->n];
    memset(d, 0, sizeof *d);
    return d;
}

void vk_push_int(struct vk_dispatch *d, int64_t value) {
    REQUIRE(d->n_push < VK_MAX_PUSH && value >= INT32_MIN && value <= INT32_MAX);
    d->push[d->n_push++] = (int32_t)value;
}

void vk_push_float(struct vk_dispatch *d, float value) {
    int32_t bits;
    memcpy(&bits, &value, sizeof bits);
    vk_push_int(d, bits);
}

bool vk_in_fours(const struct vk_dispatch *d, int begin, int end) {
    int32_t all = 0;
    for (int i = begin; i < end; i++)
        all |= d->push[i];
    return (all & 3) == 0;
}

void vk_bind(struct vk_dispatch *d, int binding, struct vk_view view, bool write) {
    d->views[binding] = view;
    d->bound[binding] = true;
    d->written[binding] = write;
}

/* ---- lines ---- */

static int all_lines(const struct vk_builder *b, bool rows) {
    return rows ? b->v->limits.n_rows : b->v->limits.n_tokens;
}

void vk_set_lines(struct vk_builder *b, int first, int most) {
    b->first = first;
    b->most = most;
    b->rounded = NULL; /* what stands in the work block is of other lines */
}

ats_status vk_span_lines(const struct vk_builder *b, const struct span *s, bool rows, int *out) {
    const size_t slack = 512; /* what rounding a view's ends may add */
    size_t most = max_size((size_t)b->v->gpu.max_range, slack) - slack;
    most /= (size_t)s->stride * 4;
    if (b->variant == VARIANT_ONE) most = max_size(most, 1); /* a line by itself is checked later */
    *out = (int)min_size(most, (size_t)max_int(all_lines(b, rows), 1));
    if (*out > 0) return ATS_OK;
    return fail(ATS_UNSUPPORTED, "%s: a line of a value has %d floats, a shader sees %llu bytes",
                b->v->name, s->stride, (unsigned long long)b->v->gpu.max_range);
}

void vk_push_from(const struct vk_builder *b, struct vk_dispatch *d, bool rows) {
    vk_push_int(d, (int64_t)b->first << 1 | rows);
}

ats_status vk_bind_span(struct vk_builder *b, struct vk_dispatch *d, int binding,
                        const struct span *s, bool rows, bool write) {
    struct vulkan *v = b->v;
    int lines = all_lines(b, rows) - b->first;
    if (b->most) lines = min_int(lines, b->most);
    const struct vk_block *block = s->space == SPACE_LOCAL ? &v->local : &v->exchange;
    size_t line = (size_t)s->stride * 4;
    struct vk_view view;
    TRY(vk_view_open(v, block, (size_t)s->offset_bytes + (size_t)b->first * line,
                     (size_t)lines * line, "the memory of a value", &view));
    vk_bind(d, binding, view, write);
    vk_push_int(d, view.word - s->first);
    vk_push_int(d, s->stride);
    return ATS_OK;
}

void vk_note_exchange(struct vk_builder *b, const struct span *s, int begin, int end, bool rows,
                      bool write) {
    struct backend_segment *g = b->segment;
    if (!b->v->mirrored || b->variant || b->first || s->space != SPACE_EXCHANGE) return;
    GROW(g->mirrors, g->n_mirrors, g->cap_mirrors, 1);
    g->mirrors[g->n_mirrors++] = (struct vk_mirror){*s, begin, end, rows, write};
}

static bool conflict(const struct vk_builder *b, const struct vk_dispatch *d) {
    for (size_t i = 0; i < b->n_touched; i++) {
        const struct vk_touch *t = &b->touched[i];
        for (int j = 0; j < VK_MAX_BINDINGS; j++) {
            const struct vk_view *view = &d->views[j];
            if (d->bound[j] && view->buffer == t->buffer && (d->written[j] || t->write) &&
                view->offset < t->end && t->begin < view->offset + view->range)
                return true;
        }
    }
    return false;
}

ats_status vk_finish_grid(struct vk_builder *b, struct vk_dispatch *d, enum vk_shader shader,
                          const int32_t constants[VK_MAX_CONSTANTS], struct vk_grid grid) {
    struct vulkan *v = b->v;
    TRY(vk_pipeline_get(v, shader, constants, &d->pipeline));
    d->layout = vk_layout_of(v, shader);
    if (grid.x < 1 || grid.x > (int)v->gpu.properties.limits.maxComputeWorkGroupCount[0])
        return fail(ATS_UNSUPPORTED, "%s: a step of %d work-groups", v->name, grid.x);
    d->grid = vk_grid_index(v, grid);
    if (d->grid < 0) return fail(ATS_UNSUPPORTED, "%s: too many sizes of steps", v->name);
    struct vk_view round;
    TRY(vk_view_open(v, &v->round_block, 0, v->cap_words * 4, "the round", &round));
    vk_bind(d, 0, round, false);
    d->barrier = conflict(b, d);
    if (d->barrier) b->n_touched = 0;
    for (int j = 1; j < VK_MAX_BINDINGS; j++) {
        if (!d->bound[j]) continue;
        const struct vk_view *view = &d->views[j];
        GROW(b->touched, b->n_touched, b->cap_touched, 1);
        b->touched[b->n_touched++] = (struct vk_touch){view->buffer, view->offset,
                                                       view->offset + view->range, d->written[j]};
    }
    b->n++;
    return ATS_OK;
}

ats_status vk_finish(struct vk_builder *b, struct vk_dispatch *d, enum vk_shader shader,
                     const int32_t constants[VK_MAX_CONSTANTS], int x, bool rows, int tile) {
    struct vk_grid grid = {.x = x,
                           .lines = rows ? LINES_ROWS : LINES_TOKENS,
                           .tile = tile,
                           .first = b->first,
                           .most = b->most};
    return vk_finish_grid(b, d, shader, constants, grid);
}

ats_status vk_finish_columns(struct vk_builder *b, struct vk_dispatch *d, enum vk_shader shader,
                             int n_columns, bool rows, int constant) {
    const int32_t constants[VK_MAX_CONSTANTS] = {b->v->lanes, constant};
    return vk_finish(b, d, shader, constants, vk_groups_of(n_columns, b->v->lanes), rows, 1);
}

/* ---- recording ---- */

static ats_status pool_open(struct vulkan *v, size_t n, size_t n_bindings, VkDescriptorPool *out) {
    VkDescriptorPoolSize size = {VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
                                 (uint32_t)max_size(n_bindings, 1)};
    VkDescriptorPoolCreateInfo info = {.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO,
                                       .maxSets = (uint32_t)max_size(n, 1),
                                       .poolSizeCount = 1,
                                       .pPoolSizes = &size};
    VK_TRY("a descriptor pool", v->f.CreateDescriptorPool(v->device, &info, NULL, out));
    return ATS_OK;
}

static ats_status describe(const struct vk_builder *b, const struct vk_dispatch *d,
                           VkDescriptorSet *out) {
    struct vulkan *v = b->v;
    VkDescriptorSetAllocateInfo info = {.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO,
                                        .descriptorPool = b->segment->pool,
                                        .descriptorSetCount = 1,
                                        .pSetLayouts = &d->layout->set};
    VK_TRY("a descriptor set", v->f.AllocateDescriptorSets(v->device, &info, out));
    VkDescriptorBufferInfo buffers[VK_MAX_BINDINGS];
    VkWriteDescriptorSet writes[VK_MAX_BINDINGS];
    for (uint32_t i = 0; i < d->layout->n_bindings; i++) {
        /* what a shader names must be there, even if its constants say that it is not read */
        bool shown = d->bound[i] && d->views[i].range <= v->gpu.max_range; /* else by address */
        const struct vk_view *view = &d->views[shown ? i : 0];
        buffers[i] = (VkDescriptorBufferInfo){view->buffer, view->offset, view->range};
        writes[i] = (VkWriteDescriptorSet){.sType = VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET,
                                           .dstSet = *out,
                                           .dstBinding = i,
                                           .descriptorCount = 1,
                                           .descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
                                           .pBufferInfo = &buffers[i]};
    }
    v->f.UpdateDescriptorSets(v->device, d->layout->n_bindings, writes, 0, NULL);
    return ATS_OK;
}

static ats_status record_dispatch(const struct vk_builder *b, const struct vk_dispatch *d,
                                  VkCommandBuffer c) {
    struct vulkan *v = b->v;
    VkDescriptorSet set;
    TRY(describe(b, d, &set));
    v->f.CmdBindPipeline(c, VK_PIPELINE_BIND_POINT_COMPUTE, d->pipeline);
    v->f.CmdBindDescriptorSets(c, VK_PIPELINE_BIND_POINT_COMPUTE, d->layout->pipeline, 0, 1, &set,
                               0, NULL);
    v->f.CmdPushConstants(c, d->layout->pipeline, VK_SHADER_STAGE_COMPUTE_BIT, 0, sizeof d->push,
                          d->push);
    v->f.CmdDispatchIndirect(c, v->round_block.buffer,
                             v->at_grids + (size_t)d->grid * sizeof(VkDispatchIndirectCommand));
    return ATS_OK;
}

/* The items from *at on that one submission takes. The first barrier is against what other
 * segments, and copies of pages, did before. */
static ats_status record_piece(const struct vk_builder *b, VkCommandBuffer c, size_t *at) {
    struct vulkan *v = b->v;
    size_t bytes = 0, first = *at;
    if (first == 0 && !v->no_first_barriers) vk_segment_barrier(v, c);
    for (; *at < b->n; (*at)++) {
        const struct vk_dispatch *d = &b->items[*at];
        bool full = (int)(*at - first) >= cuts[b->variant].dispatches ||
                    bytes + d->bytes > cuts[b->variant].bytes;
        if (full && *at > first) break;
        if (d->barrier && !v->no_barriers) vk_segment_barrier(v, c);
        TRY(record_dispatch(b, d, c));
        bytes += d->bytes;
    }
    if (*at == b->n) vk_host_barrier(v, c);
    VK_TRY("recording", v->f.EndCommandBuffer(c));
    return ATS_OK;
}

static ats_status record(struct vk_builder *b) {
    struct vulkan *v = b->v;
    struct vk_commands *list = &b->segment->commands[b->variant];
    size_t at = 0;
    do {
        VkCommandBuffer c;
        TRY(vk_commands_begin(v, &c));
        GROW(list->items, list->n, list->cap, 1);
        list->items[list->n++] = c;
        list->first = list->items[0];
        TRY(record_piece(b, c, &at));
    } while (at < b->n);
    return ATS_OK;
}

static ats_status build(struct vulkan *v, const struct step *steps, int n_steps,
                        struct vk_builder b[N_VARIANTS], struct backend_segment *s) {
    size_t n = 0, n_bindings = 0;
    const int n_variants = v->tiles ? N_VARIANTS : VARIANT_MANY;
    for (int i = 0; i < n_variants; i++) {
        b[i] = (struct vk_builder){.v = v, .segment = s, .variant = i};
        for (int j = 0, used; j < n_steps; j += used)
            TRY(vk_add_steps(&b[i], &steps[j], n_steps - j, &used));
        n += b[i].n;
        if (i == VARIANT_ONE) v->n_dispatches += (int)b[i].n;
        for (size_t j = 0; j < b[i].n; j++)
            n_bindings += b[i].items[j].layout->n_bindings;
    }
    TRY(pool_open(v, n, n_bindings, &s->pool));
    ats_status status = ATS_OK;
    pthread_mutex_lock(&v->queue_lock);
    for (int i = 0; i < n_variants && status == ATS_OK; i++)
        status = record(&b[i]);
    pthread_mutex_unlock(&v->queue_lock);
    return status;
}

/* Streamed weights of a step stand in one slot. */
static const struct vk_slot *slot_of(const struct vulkan *v, const struct step *s) {
    const struct backend_weight *w = s->weight && s->weight->home ? s->weight : NULL;
    for (int i = 0; i < N_EXPERT_WEIGHTS && !w; i++)
        if (s->experts[i] && s->experts[i]->home) w = s->experts[i];
    REQUIRE(w);
    return &v->slots[w->s.slot];
}

ats_status vk_segment_build(struct backend *backend, const struct step *steps, int n_steps,
                            struct backend_segment **out) {
    struct vulkan *v = vulkan_of(backend);
    REQUIRE(v->reserved);
    *out = NULL;
    struct vk_builder b[N_VARIANTS] = {0};
    struct backend_segment *s = xcalloc(1, sizeof *s);
    s->steps = steps;
    s->n_steps = n_steps;
    for (int i = 0; i < n_steps; i++) {
        REQUIRE(!steps[i].releases || !s->releases);
        if (steps[i].releases) s->releases = slot_of(v, &steps[i]);
    }
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
    if (v->hung) return; /* the device may still use it */
    pthread_mutex_lock(&v->queue_lock);
    for (int i = 0; i < N_VARIANTS; i++) {
        struct vk_commands *list = &s->commands[i];
        if (list->n) v->f.FreeCommandBuffers(v->device, v->pool, (uint32_t)list->n, list->items);
        free(list->items);
    }
    vk_stamps_close(v, &s->stamps, BACKEND_COMPUTE);
    pthread_mutex_unlock(&v->queue_lock);
    if (s->pool) v->f.DestroyDescriptorPool(v->device, s->pool, NULL);
    free(s->mirrors);
    free(s);
}
