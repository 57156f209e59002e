/* Weights and KV pages in device memory. A weight goes from the file to its home once, packed on
 * the way: straight where the host reaches the device's memory, else through a staging block. */
#include "backend/vulkan/vulkan_internal.h"

#include <stdlib.h>
#include <string.h>
#include "backend/packed.h"

#define ROW_ALIGN 16 /* of rows of plain types */

static struct backend_weight weight_shape(const struct weight_source *s) {
    struct backend_weight w = {.s = *s, .packed = dtype_info(s->dtype)->quantised};
    w.s.data = NULL;
    if (w.packed) {
        w.unit_bytes = pack_group_bytes(s->dtype, s->n_cols);
        w.bytes = pack_bytes(s->dtype, s->n_rows, s->n_cols);
    } else {
        w.unit_bytes = round_up((size_t)dtype_row_bytes(s->dtype, s->n_cols), ROW_ALIGN);
        w.bytes = w.unit_bytes * (size_t)s->n_rows;
    }
    w.bytes = round_up(w.bytes, PACK_ALIGN);
    return w;
}

int64_t vk_weight_bytes(struct backend *b, const struct weight_source *source) {
    (void)b;
    return (int64_t)weight_shape(source).bytes;
}

/* Large weights have a block of their own: nothing of it is left over. Small ones share, and fill
 * what others left. */
static ats_status place(struct vulkan *v, struct backend_weight *w) {
    struct vk_block *block = v->weights;
    while (block && block->bytes - block->used < w->bytes)
        block = block->next;
    if (!block) {
        block = xcalloc(1, sizeof *block);
        size_t shared = min_size(VK_BLOCK_BYTES, (size_t)v->gpu.max_allocation);
        size_t bytes = w->bytes < VK_BLOCK_BYTES / 8 ? shared : w->bytes;
        ats_status status = vk_block_open(v, bytes, PLACE_DEVICE, w->s.name, block);
        if (status != ATS_OK) {
            free(block);
            return status;
        }
        block->next = v->weights;
        v->weights = block;
    }
    w->block = block;
    w->offset = block->used;
    block->used += w->bytes;
    return ATS_OK;
}

/* Units [begin, end) as they are to lie, at `out`. */
static void lay_out(const struct backend_weight *w, const struct weight_source *s, int begin,
                    int end, uint8_t *out) {
    if (w->packed) {
        int first = begin * PACK_ROWS;
        pack_rows(s->dtype, s->data + first * s->row_bytes, (size_t)s->row_bytes, s->n_rows - first,
                  s->n_cols, out, 0, end - begin);
        return;
    }
    size_t bytes = (size_t)dtype_row_bytes(s->dtype, s->n_cols);
    for (int row = begin; row < end; row++, out += w->unit_bytes) {
        memcpy(out, s->data + row * s->row_bytes, bytes);
        memset(out + bytes, 0, w->unit_bytes - bytes);
    }
}

static int count_units(const struct backend_weight *w) {
    return w->packed ? pack_n_groups(w->s.n_rows) : w->s.n_rows;
}

/* The staging block is the round's or the loader's own, whoever comes first. */
static ats_status upload(struct vulkan *v, const struct backend_weight *w,
                         const struct weight_source *s) {
    int n = count_units(w);
    if (w->block->mapped) {
        lay_out(w, s, 0, n, w->block->mapped + w->offset);
        return ATS_OK;
    }
    if (!v->staging.buffer)
        TRY(vk_block_open(v, VK_STAGING_BYTES, PLACE_HOST, "the staging buffer", &v->staging));
    int at_once = (int)(v->staging.bytes / w->unit_bytes);
    if (at_once == 0)
        return fail(ATS_UNSUPPORTED, "%s: rows of %s do not fit the staging buffer", v->name,
                    w->s.name);
    for (int begin = 0; begin < n; begin += at_once) {
        int end = min_int(n, begin + at_once);
        lay_out(w, s, begin, end, v->staging.mapped);
        VkBufferCopy region = {.dstOffset = w->offset + (size_t)begin * w->unit_bytes,
                               .size = (size_t)(end - begin) * w->unit_bytes};
        TRY(vk_copy_now(v, v->staging.buffer, w->block->buffer, &region, 1));
    }
    return ATS_OK;
}

ats_status vk_weight_load(struct backend *b, const struct weight_source *source,
                          struct backend_weight **out) {
    struct vulkan *v = vulkan_of(b);
    *out = NULL;
    if (weight_matrices(source) > 1)
        return fail(ATS_UNSUPPORTED, "%s cannot compute routed experts yet", v->name);
    struct backend_weight w = weight_shape(source);
    TRY(place(v, &w));
    TRY(upload(v, &w, source));
    *out = xmalloc(sizeof w);
    **out = w;
    return ATS_OK;
}

void vk_weight_free(struct backend *b, struct backend_weight *w) {
    (void)b; /* its bytes go with the block */
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
    ats_status status = vk_block_open(v, n * kv->k_page, PLACE_DEVICE, "a KV cache", &kv->k);
    if (status == ATS_OK)
        status = vk_block_open(v, n * kv->v_page, PLACE_DEVICE, "a KV cache", &kv->v);
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
