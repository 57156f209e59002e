#include "variant.h"

#include "model/gguf_write.h"

static bool is(const char *a, const char *b) {
    return a && strcmp(a, b) == 0;
}

static void put_keys(struct gguf_writer *w, const struct gguf *g, const struct change *c) {
    for (int i = 0; i < g->n_kvs; i++) {
        const char *key = g->kvs[i].key;
        if (strncmp(key, "split.", 6) == 0 || is(c->drop_key, key) || is(c->u32_key, key) ||
            is(c->f32_key, key) || is(c->str_key, key) || is(c->list_key, key))
            continue;
        gguf_put_kv(w, &g->kvs[i]);
    }
    if (c->u32_key) gguf_put_u32(w, c->u32_key, c->u32);
    if (c->f32_key) gguf_put_f32(w, c->f32_key, c->f32);
    if (c->str_key) gguf_put_str(w, c->str_key, c->str);
    if (c->list_key) gguf_put_array(w, c->list_key, GGUF_I32, c->list, (size_t)c->n_list);
}

/* The tensor's declaration as changed. */
static struct gguf_tensor changed(const struct gguf_tensor *t, const struct change *c) {
    struct gguf_tensor n = *t;
    if (is(c->rename, t->name)) n.name = c->name;
    if (is(c->retype, t->name)) n.dtype = c->dtype;
    if (is(c->reshape, t->name)) {
        n.n_dims = 2;
        memcpy(n.dims, c->dims, sizeof c->dims);
    }
    n.n_bytes = dtype_row_bytes(n.dtype, n.dims[0]) * n.dims[1] * n.dims[2] * n.dims[3];
    return n;
}

static void put_data(struct gguf_writer *w, const struct gguf *g, const struct change *c) {
    for (int i = 0; i < g->n_tensors; i++) {
        const struct gguf_tensor *t = &g->tensors[i];
        if (is(c->drop_tensor, t->name)) continue;
        struct gguf_tensor n = changed(t, c);
        uint8_t *data = calloc(1, (size_t)n.n_bytes);
        memcpy(data, t->data, (size_t)min_i64(t->n_bytes, n.n_bytes));
        TEST_OK(gguf_writer_data(w, data, (size_t)n.n_bytes));
        free(data);
    }
    if (c->extra) TEST_OK(gguf_writer_data(w, (float[8]){0}, 32));
}

static void write_variant(const struct gguf *g, const struct change *c, struct buf *out) {
    struct gguf_writer *w = gguf_writer_open();
    put_keys(w, g, c);
    for (int i = 0; i < g->n_tensors; i++) {
        if (is(c->drop_tensor, g->tensors[i].name)) continue;
        struct gguf_tensor n = changed(&g->tensors[i], c);
        gguf_put_tensor(w, n.name, n.dtype, n.n_dims, n.dims);
    }
    if (c->extra) gguf_put_tensor(w, c->extra, DTYPE_F32, 1, (int64_t[]){8});
    TEST_OK(gguf_writer_begin_memory(w, out));
    put_data(w, g, c);
    TEST_OK(gguf_writer_end(w));
    gguf_writer_close(w);
}

const struct model_options variant_plain = {.math = MATH_F32, .row_group = 1};

bool variant_open(const char *oracle, const struct change *c, const struct model_options *options,
                  struct variant *v, ats_status *status) {
    char path[512];
    struct gguf *g;
    memset(v, 0, sizeof *v);
    if (!test_shared_path(path, sizeof path, oracle)) return false;
    TEST_OK(gguf_open(path, &g));
    write_variant(g, c, &v->bytes);
    gguf_close(g);
    TEST_OK(gguf_open_memory(v->bytes.data, v->bytes.len, &v->g));
    *status = model_open(v->g, options, &v->m);
    assert_int_equal(v->m == NULL, *status != ATS_OK);
    return true;
}

void variant_close(struct variant *v) {
    model_close(v->m);
    gguf_close(v->g);
    buf_free(&v->bytes);
}

bool variant_refused(const char *oracle, struct change c, ats_status want, const char *part) {
    struct variant v;
    ats_status status;
    if (!variant_open(oracle, &c, &variant_plain, &v, &status)) return false;
    if (status != want || !strstr(error_text(), part))
        fail_msg("expected \"%s\" about \"%s\", got \"%s\": %s", ats_status_text(want), part,
                 ats_status_text(status), status == ATS_OK ? "" : error_text());
    variant_close(&v);
    return true;
}

bool variant_accepted(const char *oracle, struct change c) {
    struct variant v;
    ats_status status;
    if (!variant_open(oracle, &c, &variant_plain, &v, &status)) return false;
    TEST_OK(status);
    variant_close(&v);
    return true;
}
