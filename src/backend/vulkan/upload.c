/* Weights, KV pages and states in device memory. A weight goes from the file to its home once,
 * packed on the way: straight where the host reaches the device's memory, else through a staging
 * block. */
#include "backend/vulkan/vulkan_internal.h"

#include <stdlib.h>
#include <string.h>
#include "backend/packed.h"

#define ROW_ALIGN 16 /* of rows of plain types */

static struct backend_weight weight_shape(const struct weight_source *s) {
    struct backend_weight w = {.s = *s, .packed = dtype_info(s->dtype)->quantised};
    w.s.data = NULL;
    w.s.matrices = NULL;
    if (w.packed) {
        w.unit_bytes = pack_group_bytes(s->dtype, s->n_cols);
        w.matrix_bytes = pack_bytes(s->dtype, s->n_rows, s->n_cols);
    } else {
        w.unit_bytes = round_up((size_t)dtype_row_bytes(s->dtype, s->n_cols), ROW_ALIGN);
        w.matrix_bytes = w.unit_bytes * (size_t)s->n_rows;
    }
    w.matrix_bytes = round_up(w.matrix_bytes, PACK_ALIGN);
    w.bytes = w.part_bytes = w.matrix_bytes * (size_t)weight_matrices(s);
    return w;
}

/* So many bytes that one allocation takes them, if experts or groups of rows do. */
static size_t choose_part(const struct vulkan *v, const struct backend_weight *w) {
    size_t most = (size_t)v->gpu.max_part, step = w->unit_bytes * (w->packed ? 1 : PACK_ROWS);
    if (weight_matrices(&w->s) > 1) step = w->matrix_bytes;
    return w->bytes <= most || step > most ? w->bytes : most / step * step;
}

size_t vk_weight_at(const struct backend_weight *w, size_t at, struct vk_part *out) {
    size_t part = at / w->part_bytes, begin = part * w->part_bytes;
    *out = part ? w->rest[part - 1] : (struct vk_part){w->block, w->offset};
    out->offset += at - begin;
    return min_size(w->bytes, begin + w->part_bytes) - at;
}

int64_t vk_weight_bytes(struct backend *b, const struct weight_source *source) {
    (void)b;
    return (int64_t)weight_shape(source).bytes;
}

/* Large weights have a block of their own: nothing of it is left over. Small ones share, and fill
 * what others left. */
static ats_status place(struct vulkan *v, struct vk_block **list, enum vk_place where,
                        const char *name, size_t bytes, struct vk_part *out) {
    struct vk_block *block = *list;
    while (block && !ranges_take(&block->ranges, bytes, &out->offset))
        block = block->next;
    if (!block) {
        block = xcalloc(1, sizeof *block);
        size_t shared = min_size(VK_BLOCK_BYTES, (size_t)v->gpu.max_allocation);
        size_t whole = bytes < VK_BLOCK_BYTES / 8 ? shared : bytes;
        ats_status status = where == PLACE_HOST ? vk_home_block_open(v, whole, name, block)
                                                : vk_block_open(v, whole, where, name, block);
        if (status != ATS_OK) {
            free(block);
            return status;
        }
        block->next = *list;
        *list = block;
        ranges_open(&block->ranges, block->bytes);
        bool fits = ranges_take(&block->ranges, bytes, &out->offset);
        REQUIRE(fits);
    }
    out->block = block;
    return ATS_OK;
}

/* A block without weights goes back to the driver. */
static void give_back(struct vulkan *v, struct vk_block **list, const struct vk_block *block,
                      size_t offset, size_t bytes) {
    struct vk_block **at = list;
    while (*at != block)
        at = &(*at)->next;
    struct vk_block *own = *at;
    ranges_give(&own->ranges, offset, bytes);
    if (!ranges_all_free(&own->ranges)) return;
    *at = own->next;
    ranges_close(&own->ranges);
    vk_idle(v);
    vk_block_close(v, own);
    free(own);
}

static size_t count_parts(const struct backend_weight *w) {
    return (w->bytes + w->part_bytes - 1) / w->part_bytes;
}

/* Bytes that part i takes of a block: the next weight starts on PACK_ALIGN. */
static size_t part_room(const struct backend_weight *w, size_t i) {
    return round_up(min_size(w->part_bytes, w->bytes - i * w->part_bytes), PACK_ALIGN);
}

/* The first n parts of a weight in the device's memory. */
static void give_parts_back(struct vulkan *v, struct backend_weight *w, size_t n) {
    for (size_t i = 0; i < n; i++) {
        struct vk_part part;
        vk_weight_at(w, i * w->part_bytes, &part);
        give_back(v, &v->weights, part.block, part.offset, part_room(w, i));
    }
    free(w->rest);
    w->rest = NULL;
}

/* In the device's memory, all parts or none. */
static ats_status place_parts(struct vulkan *v, struct backend_weight *w) {
    w->part_bytes = choose_part(v, w);
    size_t n = count_parts(w);
    w->rest = n > 1 ? xcalloc(n - 1, sizeof *w->rest) : NULL;
    for (size_t i = 0; i < n; i++) {
        struct vk_part part;
        ats_status status = place(v, &v->weights, PLACE_DEVICE, w->s.name, part_room(w, i), &part);
        if (status != ATS_OK) {
            give_parts_back(v, w, i);
            return status;
        }
        if (i)
            w->rest[i - 1] = part;
        else
            w->block = part.block, w->offset = part.offset;
    }
    v->n_parts += (int)n - 1;
    return ATS_OK;
}

/* Units [begin, end) of a matrix as they are to lie, at `out`. */
static void lay_out(const struct backend_weight *w, const struct weight_source *s, int matrix,
                    int begin, int end, uint8_t *out) {
    const uint8_t *data = weight_matrix(s, matrix);
    if (w->packed) {
        int first = begin * PACK_ROWS;
        pack_rows(s->dtype, data + first * s->row_bytes, (size_t)s->row_bytes, s->n_rows - first,
                  s->n_cols, out, 0, end - begin);
        return;
    }
    size_t bytes = (size_t)dtype_row_bytes(s->dtype, s->n_cols);
    for (int row = begin; row < end; row++, out += w->unit_bytes) {
        memcpy(out, data + row * s->row_bytes, bytes);
        memset(out + bytes, 0, w->unit_bytes - bytes);
    }
}

static int count_units(const struct backend_weight *w) {
    return w->packed ? pack_n_groups(w->s.n_rows) : w->s.n_rows;
}

/* What the staging block holds goes to its place. */
static ats_status flush(struct vulkan *v, const struct backend_weight *w, size_t from, size_t to) {
    for (size_t at = from, n; at < to; at += n) {
        struct vk_part part;
        n = min_size(vk_weight_at(w, at, &part), to - at);
        VkBufferCopy region = {.srcOffset = at - from, .dstOffset = part.offset, .size = n};
        TRY(vk_copy_now(v, v->staging.buffer, part.block->buffer, &region, 1));
    }
    return ATS_OK;
}

/* Matrices one after the other through the staging block, as much at a time as it takes. */
static ats_status upload_staged(struct vulkan *v, const struct backend_weight *w,
                                const struct weight_source *s) {
    int n = count_units(w), at_once;
    size_t from = 0, to = 0; /* bytes of the weight that are staged */
    if (!v->staging.buffer)
        TRY(vk_block_open(v, VK_STAGING_BYTES, PLACE_HOST, "the staging buffer", &v->staging));
    if (w->unit_bytes > v->staging.bytes)
        return fail(ATS_UNSUPPORTED, "%s: rows of %s do not fit the staging buffer", v->name,
                    w->s.name);
    for (int m = 0; m < weight_matrices(s); m++)
        for (int begin = 0; begin < n; begin += at_once) {
            size_t at = (size_t)m * w->matrix_bytes + (size_t)begin * w->unit_bytes;
            if (at - from + w->unit_bytes > v->staging.bytes) {
                TRY(flush(v, w, from, to));
                from = at;
            }
            at_once = (int)min_size((v->staging.bytes - (at - from)) / w->unit_bytes,
                                    (size_t)(n - begin));
            lay_out(w, s, m, begin, begin + at_once, v->staging.mapped + (at - from));
            to = at + (size_t)at_once * w->unit_bytes;
        }
    return flush(v, w, from, to);
}

/* At `out`, where they stand together. */
static void lay_out_whole(const struct backend_weight *w, const struct weight_source *s,
                          uint8_t *out) {
    for (int m = 0; m < weight_matrices(s); m++)
        lay_out(w, s, m, 0, count_units(w), out + (size_t)m * w->matrix_bytes);
}

/* Through the eyes of the host, which reaches every part. */
static void lay_out_mapped(const struct backend_weight *w, const struct weight_source *s) {
    int n = count_units(w), at_once;
    for (int m = 0; m < weight_matrices(s); m++)
        for (int begin = 0; begin < n; begin += at_once) {
            size_t at = (size_t)m * w->matrix_bytes + (size_t)begin * w->unit_bytes;
            struct vk_part part;
            size_t left = vk_weight_at(w, at, &part);
            at_once = (int)min_size(left / w->unit_bytes, (size_t)(n - begin));
            lay_out(w, s, m, begin, begin + at_once, part.block->mapped + part.offset);
        }
}

static ats_status upload(struct vulkan *v, const struct backend_weight *w,
                         const struct weight_source *s) {
    if (!w->block->mapped) return upload_staged(v, w, s);
    lay_out_mapped(w, s);
    return ATS_OK;
}

ats_status vk_home_open(struct backend *b, const struct weight_source *source,
                        struct backend_home **out) {
    struct vulkan *v = vulkan_of(b);
    const struct backend_weight w = weight_shape(source);
    struct vk_part at;
    *out = NULL;
    TRY(place(v, &v->streamed, PLACE_HOST, w.s.name, w.bytes, &at));
    lay_out_whole(&w, source, at.block->mapped + at.offset);
    *out = xmalloc(sizeof **out);
    **out = (struct backend_home){at.block, at.offset, w.bytes};
    if (!at.block->buffer && v->base.pins) v->base.unpinned_bytes += (int64_t)w.bytes;
    return ATS_OK;
}

void vk_home_close(struct backend *b, struct backend_home *home) {
    struct vulkan *v = vulkan_of(b);
    if (!home) return;
    if (!home->block->buffer && v->base.pins) v->base.unpinned_bytes -= (int64_t)home->bytes;
    give_back(v, &v->streamed, home->block, home->offset, home->bytes);
    free(home);
}

void vk_home_source(struct backend *b, const struct backend_home *home,
                    struct weight_source *source) {
    const struct backend_weight w = weight_shape(source);
    (void)b;
    const uint8_t *at = home->block->mapped + home->offset;
    source->streamed = false;
    source->raw = !w.packed;
    if (w.packed) {
        source->packed = at;
        return;
    }
    source->data = at;
    source->matrices = NULL;
    source->row_bytes = (int64_t)w.unit_bytes;
    source->matrix_bytes = (int64_t)w.matrix_bytes;
}

/* In a slot. */
static ats_status load_streamed(struct vulkan *v, struct backend_weight *w,
                                const struct weight_source *source) {
    struct vk_slot *slot = &v->slots[source->slot];
    if (!source->home->block->buffer) TRY(vk_slot_stage(v, slot));
    w->home = source->home;
    w->block = &slot->block;
    w->offset = (size_t)source->slot_offset;
    return ATS_OK;
}

static ats_status load_resident(struct vulkan *v, struct backend_weight *w,
                                const struct weight_source *source) {
    TRY(place_parts(v, w));
    ats_status status = upload(v, w, source);
    if (status != ATS_OK) give_parts_back(v, w, count_parts(w));
    return status;
}

ats_status vk_weight_load(struct backend *b, const struct weight_source *source,
                          struct backend_weight **out) {
    struct vulkan *v = vulkan_of(b);
    *out = NULL;
    struct backend_weight w = weight_shape(source);
    TRY(source->streamed ? load_streamed(v, &w, source) : load_resident(v, &w, source));
    *out = xmalloc(sizeof w);
    **out = w;
    return ATS_OK;
}

void vk_weight_free(struct backend *b, struct backend_weight *w) {
    struct vulkan *v = vulkan_of(b);
    if (!w) return;
    if (!w->home) give_parts_back(v, w, count_parts(w));
    free(w);
}

/* ---- KV ---- */

ats_status vk_kv_open(struct backend *b, const struct kv_layout *l, struct backend_kv **out) {
    struct vulkan *v = vulkan_of(b);
    *out = NULL;
    struct backend_kv *kv = xcalloc(1, sizeof *kv);
    size_t rows = (size_t)l->n_kv_heads << KV_PAGE_TOKENS_LOG2, n = (size_t)l->n_pages;
    kv->layout = *l;
    kv->k_page = rows * kv_row_bytes(l->type_k, l->head_dim);
    kv->v_page = rows * kv_row_bytes(l->type_v, l->head_dim);
    bool fits = n * max_size(kv->k_page, kv->v_page) <= v->gpu.max_range;
    enum vk_place place = fits || !v->gpu.address ? PLACE_DEVICE : PLACE_ADDRESSED;
    ats_status status = vk_block_open(v, n * kv->k_page, place, "a KV cache", &kv->k);
    if (status == ATS_OK) status = vk_block_open(v, n * kv->v_page, place, "a KV cache", &kv->v);
    if (status == ATS_OK) {
        *out = kv;
        return ATS_OK;
    }
    vk_kv_close(b, kv);
    return status;
}

void vk_kv_close(struct backend *b, struct backend_kv *kv) {
    if (!kv) return;
    vk_idle(vulkan_of(b));
    vk_block_close(vulkan_of(b), &kv->k);
    vk_block_close(vulkan_of(b), &kv->v);
    free(kv);
}

ats_status vk_kv_copy(struct vulkan *v, struct backend_kv *kv, int src, int dst) {
    const struct {
        const struct vk_block *block;
        size_t page;
    } halves[] = {{&kv->k, kv->k_page}, {&kv->v, kv->v_page}};
    for (int i = 0; i < 2; i++) {
        VkBufferCopy region = {.srcOffset = (size_t)src * halves[i].page,
                               .dstOffset = (size_t)dst * halves[i].page,
                               .size = halves[i].page};
        TRY(vk_copy_now(v, halves[i].block->buffer, halves[i].block->buffer, &region, 1));
    }
    return ATS_OK;
}

/* Between memory of the device and of the host, through the staging buffer where the host does not
 * reach the device's. */
static ats_status move_bytes(struct vulkan *v, const struct vk_block *block, size_t offset,
                             uint8_t *host, size_t bytes, bool up) {
    vk_idle(v);
    if (block->mapped) {
        memcpy(up ? block->mapped + offset : host, up ? host : block->mapped + offset, bytes);
        return ATS_OK;
    }
    if (!v->staging.buffer)
        TRY(vk_block_open(v, VK_STAGING_BYTES, PLACE_HOST, "the staging buffer", &v->staging));
    for (size_t done = 0; done < bytes;) {
        size_t n = min_size(bytes - done, v->staging.bytes);
        VkBufferCopy region = {
            .srcOffset = up ? 0 : offset + done, .dstOffset = up ? offset + done : 0, .size = n};
        if (up) memcpy(v->staging.mapped, host + done, n);
        TRY(vk_copy_now(v, up ? v->staging.buffer : block->buffer,
                        up ? block->buffer : v->staging.buffer, &region, 1));
        if (!up) memcpy(host + done, v->staging.mapped, n);
        done += n;
    }
    return ATS_OK;
}

static ats_status move_page(struct vulkan *v, struct backend_kv *kv, int page, uint8_t *host,
                            bool up) {
    TRY(move_bytes(v, &kv->k, (size_t)page * kv->k_page, host, kv->k_page, up));
    return move_bytes(v, &kv->v, (size_t)page * kv->v_page, host + kv->k_page, kv->v_page, up);
}

ats_status vk_kv_read(struct backend *b, struct backend_kv *kv, int page, void *out) {
    return move_page(vulkan_of(b), kv, page, out, false);
}

ats_status vk_kv_write(struct backend *b, struct backend_kv *kv, int page, const void *in) {
    return move_page(vulkan_of(b), kv, page, (uint8_t *)(uintptr_t)in, true);
}

/* ---- states ---- */

ats_status vk_state_open(struct backend *b, const struct state_layout *l,
                         struct backend_state **out) {
    struct vulkan *v = vulkan_of(b);
    const size_t floats = (size_t)l->n_floats * (size_t)l->n_slots;
    *out = NULL;
    if (floats > INT32_MAX) /* shaders count in 32 bits */
        return fail(ATS_UNSUPPORTED, "%s: a recurrent state of %zu floats", v->name, floats);
    struct backend_state *s = xcalloc(1, sizeof *s);
    s->layout = *l;
    bool fits = floats * 4 <= v->gpu.max_range;
    enum vk_place place = fits || !v->gpu.address ? PLACE_DEVICE : PLACE_ADDRESSED;
    ats_status status = vk_block_open(v, floats * 4, place, "a recurrent state", &s->block);
    if (status == ATS_OK)
        *out = s;
    else
        free(s);
    return status;
}

void vk_state_close(struct backend *b, struct backend_state *s) {
    if (!s) return;
    vk_idle(vulkan_of(b));
    vk_block_close(vulkan_of(b), &s->block);
    free(s);
}

static ats_status move_slot(struct backend *b, struct backend_state *s, int slot, float *host,
                            bool up) {
    size_t bytes = (size_t)s->layout.n_floats * sizeof *host;
    return move_bytes(vulkan_of(b), &s->block, (size_t)slot * bytes, (uint8_t *)host, bytes, up);
}

ats_status vk_state_read(struct backend *b, struct backend_state *s, int slot, float *out) {
    return move_slot(b, s, slot, out, false);
}

ats_status vk_state_write(struct backend *b, struct backend_state *s, int slot, const float *in) {
    return move_slot(b, s, slot, (float *)(uintptr_t)in, true);
}
