/* Whatever GGUF is accepted can be read to its last byte, and is the same file after the writer. */
#include "model/gguf.h"
#include "model/gguf_read.h"
#include "model/gguf_write.h"

#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static volatile uint64_t sink; /* so that reads are not optimised away */

/* Every getter on every key: either a value or a text. */
static void read_kv(const struct gguf *g, const struct gguf_kv *kv) {
    int64_t i64 = 0;
    uint32_t u32 = 0;
    float f32 = 0;
    bool b = false;
    struct gguf_str s = {NULL, 0};
    const struct gguf_array *a = NULL;
    int n_ok = 0;
    REQUIRE(gguf_find(g, kv->key) == kv);
    n_ok += gguf_get_i64(g, kv->key, &i64) == ATS_OK;
    n_ok += gguf_get_f32(g, kv->key, &f32) == ATS_OK;
    n_ok += gguf_get_bool(g, kv->key, &b) == ATS_OK;
    n_ok += gguf_get_str(g, kv->key, &s) == ATS_OK;
    n_ok += gguf_get_strs(g, kv->key, &a) == ATS_OK;
    n_ok += gguf_get_ints(g, kv->key, &a) == ATS_OK;
    n_ok += gguf_get_floats(g, kv->key, &a) == ATS_OK;
    REQUIRE(n_ok <= 1);
    if (gguf_opt_u32(g, kv->key, &u32) == ATS_OK) REQUIRE(i64 == (int64_t)u32);
    if (kv->type == GGUF_ARRAY) sink += read_array(&kv->array);
    for (uint64_t k = 0; k < kv->n_bytes; k++)
        sink += kv->data[k];
}

static void read_tensor(const struct gguf *g, const struct gguf_tensor *t) {
    REQUIRE(gguf_tensor_find(g, t->name) == t);
    if (!dtype_info(t->dtype)->weight) return;
    float *row = malloc((size_t)t->dims[0] * sizeof *row);
    REQUIRE(row != NULL);
    for (int64_t i = 0; i < t->n_elements / t->dims[0]; i++) {
        dtype_to_float(t->dtype, t->data + i * t->row_bytes, row, t->dims[0]);
        sink += float_bits(row[0]);
    }
    free(row);
}

static void write_all(const struct gguf *g, struct buf *out) {
    struct gguf_writer *w = gguf_writer_open();
    gguf_writer_version(w, g->version);
    gguf_writer_alignment(w, g->alignment);
    for (int i = 0; i < g->n_kvs; i++) {
        /* the writer puts this one itself */
        if (strcmp(g->kvs[i].key, "general.alignment") != 0) gguf_put_kv(w, &g->kvs[i]);
    }
    for (int i = 0; i < g->n_tensors; i++) {
        const struct gguf_tensor *t = &g->tensors[i];
        gguf_put_tensor(w, t->name, t->dtype, t->n_dims, t->dims);
    }
    REQUIRE(gguf_writer_begin_memory(w, out) == ATS_OK);
    for (int i = 0; i < g->n_tensors; i++) {
        const struct gguf_tensor *t = &g->tensors[i];
        REQUIRE(gguf_writer_data(w, t->data, (size_t)t->n_bytes) == ATS_OK);
    }
    REQUIRE(gguf_writer_end(w) == ATS_OK);
    gguf_writer_close(w);
}

static void check_same(const struct gguf *a, const struct gguf *b) {
    REQUIRE(a->n_tensors == b->n_tensors);
    for (int i = 0; i < a->n_tensors; i++) {
        const struct gguf_tensor *x = &a->tensors[i], *y = &b->tensors[i];
        REQUIRE(strcmp(x->name, y->name) == 0 && x->dtype == y->dtype && x->n_bytes == y->n_bytes);
        REQUIRE(memcmp(x->data, y->data, (size_t)x->n_bytes) == 0);
    }
    for (int i = 0; i < a->n_kvs; i++) {
        const struct gguf_kv *x = &a->kvs[i], *y = gguf_find(b, x->key);
        if (strcmp(x->key, "general.alignment") == 0) continue;
        REQUIRE(y != NULL && x->type == y->type && x->n_bytes == y->n_bytes);
        REQUIRE(memcmp(x->data, y->data, x->n_bytes) == 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    /* a copy: aligned, and of exactly this size */
    void *copy = malloc(n_bytes > 0 ? n_bytes : 1);
    REQUIRE(copy != NULL);
    if (n_bytes > 0) memcpy(copy, data, n_bytes);
    struct gguf *g, *again;
    ats_status status = gguf_open_memory(copy, n_bytes, &g);
    if (status == ATS_OK) {
        for (int i = 0; i < g->n_kvs; i++)
            read_kv(g, &g->kvs[i]);
        for (int i = 0; i < g->n_tensors; i++)
            read_tensor(g, &g->tensors[i]);
        struct buf written = {0};
        write_all(g, &written);
        REQUIRE(gguf_open_memory(written.data, written.len, &again) == ATS_OK);
        check_same(g, again);
        gguf_close(again);
        buf_free(&written);
    } else {
        REQUIRE(g == NULL && (status == ATS_BAD_FILE || status == ATS_UNSUPPORTED));
        REQUIRE(error_text()[0] != '\0' && utf8_valid(error_text(), strlen(error_text())));
    }
    gguf_close(g);
    free(copy);
    return 0;
}
