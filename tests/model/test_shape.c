/* Shapes: those that are shipped are the models that they name, a shape of a file's header is that
 * header, and what is wrong is refused by name. */
#include "model/shape.h"
#include "base/buf.h"
#include "model/model.h"
#include "support.h"

#include <stdio.h>

static const struct shipped {
    const char *file;
    double params; /* published, in units of 1e9 */
    double gib;    /* of the usual file */
    int n_layers;
    uint64_t kv_bytes; /* a position, F16, of layers that attend */
} shipped[] = {
    {"glm-z1-9b", 9.40, 17.5, 40, 40960},          {"qwen3-14b", 14.77, 8.38, 40, 163840},
    {"qwen3-30b-a3b", 30.53, 17.3, 48, 98304},     {"gpt-oss-20b", 20.91, 11.3, 24, 49152},
    {"llama-3.1-70b", 70.55, 39.6, 80, 327680},    {"qwen3-next-80b-a3b", 79.67, 45.2, 48, 24576},
    {"qwen3.5-122b-a10b", 122.1, 69.1, 48, 24576}, {"gpt-oss-120b", 116.8, 59.0, 36, 73728},
};

static void open_shipped(const char *name, struct gguf **g) {
    char relative[64], path[512];
    snprintf(relative, sizeof relative, "shapes/%s.json", name);
    test_source_path(path, sizeof path, relative);
    assert_true(shape_is_path(path));
    TEST_OK(shape_open(path, g));
}

static void near(double value, double expected, double part) {
    assert_true(value >= expected * (1 - part) && value <= expected * (1 + part));
}

static const struct model_options planning = {.planning = true, .row_group = 16};

static void check_graph(const struct shipped *s, const struct gguf *g) {
    struct model *m;
    TEST_OK(model_open(g, &planning, &m));
    assert_int_equal(m->hp.n_layers, s->n_layers);
    uint64_t kv_bytes = 0;
    for (int i = 0; i < m->graph->n_ops; i++) {
        const struct graph_op *op = &m->graph->ops[i];
        if (op->kind == OP_ATTENTION)
            kv_bytes += 4 * (uint64_t)(op->p.attention.n_kv_heads * op->p.attention.head_dim);
    }
    assert_int_equal(kv_bytes, s->kv_bytes);
    near((double)m->n_params / 1e9, s->params, 0.002);
    model_close(m);
    TEST_STATUS(model_open(g, &(struct model_options){.row_group = 16}, &m), ATS_UNSUPPORTED);
    TEST_ERROR_HAS("no weights");
}

static void shipped_shapes_are_the_models_they_name(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT_OF(shipped); i++) {
        struct gguf *g;
        open_shipped(shipped[i].file, &g);
        double params = 0, bytes = 0;
        for (int t = 0; t < g->n_tensors; t++) {
            params += (double)g->tensors[t].n_elements;
            bytes += (double)g->tensors[t].n_bytes;
            assert_null(g->tensors[t].data);
        }
        assert_true(g->no_data);
        near(params / 1e9, shipped[i].params, 0.002);
        near(bytes / 1073741824, shipped[i].gib, 0.005);
        check_graph(&shipped[i], g);
        gguf_close(g);
    }
}

/* ---- a file's header, as a shape ---- */

static void add_value(struct buf *out, const struct gguf_kv *kv) {
    if (kv->type == GGUF_STR) {
        struct gguf_str s = gguf_kv_str(kv);
        json_t *text = json_stringn(s.data, s.n);
        char *quoted = json_print(text, false);
        buf_add_str(out, quoted);
        free(quoted);
        json_decref(text);
    } else if (kv->type == GGUF_F32) {
        buf_printf(out, "%.9e", gguf_kv_float(kv));
    } else if (kv->type == GGUF_BOOL) {
        buf_add_str(out, gguf_kv_int(kv) ? "true" : "false");
    } else {
        buf_printf(out, "%lld", (long long)gguf_kv_int(kv));
    }
}

static void header_text(const struct gguf *g, struct buf *out) {
    buf_add_str(out, "{\"atsinfer\": \"shape\", \"version\": 1, \"metadata\": {");
    bool first = true;
    for (int i = 0; i < g->n_kvs; i++) {
        if (g->kvs[i].type == GGUF_ARRAY) continue;
        buf_printf(out, "%s\"%s\": ", first ? "" : ", ", g->kvs[i].key);
        add_value(out, &g->kvs[i]);
        first = false;
    }
    buf_add_str(out, "}, \"tensors\": [");
    for (int i = 0; i < g->n_tensors; i++) {
        const struct gguf_tensor *t = &g->tensors[i];
        buf_printf(out, "%s[\"%s\", \"%s\", [", i ? ", " : "", t->name, dtype_name(t->dtype));
        for (int d = 0; d < t->n_dims; d++)
            buf_printf(out, "%s%lld", d ? ", " : "", (long long)t->dims[d]);
        buf_add_str(out, "]]");
    }
    buf_add_str(out, "]}");
}

static void same_graph(const struct graph *a, const struct graph *b) {
    assert_int_equal(a->n_ops, b->n_ops);
    assert_int_equal(a->n_weights, b->n_weights);
    assert_int_equal(a->n_blocks, b->n_blocks);
    for (int i = 0; i < a->n_weights; i++) {
        assert_string_equal(a->weights[i].name, b->weights[i].name);
        assert_int_equal(a->weights[i].n_rows, b->weights[i].n_rows);
        assert_int_equal(a->weights[i].dtype, b->weights[i].dtype);
    }
    for (int i = 0; i < a->n_ops; i++) {
        assert_int_equal(a->ops[i].kind, b->ops[i].kind);
        assert_int_equal(a->ops[i].out, b->ops[i].out);
        assert_int_equal(a->ops[i].unit_elements, b->ops[i].unit_elements);
    }
}

static void a_shape_of_a_header_is_that_header(void **state) {
    (void)state;
    static const char *const files[] = {"models/qwen3moe/qwen3moe-f32.gguf",
                                        "models/gptoss/gptoss-f16.gguf",
                                        "models/glm4/glm4-f32.gguf"};
    for (size_t i = 0; i < COUNT_OF(files); i++) {
        char path[512];
        if (!test_shared_path(path, sizeof path, files[i])) skip();
        struct gguf *file, *shape;
        struct model *of_file, *of_shape;
        struct buf text = {0};
        TEST_OK(gguf_open(path, &file));
        header_text(file, &text);
        TEST_OK(shape_parse(text.data, text.len, "header", &shape));
        assert_int_equal(shape->n_tensors, file->n_tensors);
        assert_string_equal(shape->arch, file->arch);
        TEST_OK(model_open(file, &planning, &of_file));
        TEST_OK(model_open(shape, &planning, &of_shape));
        same_graph(of_file->graph, of_shape->graph);
        assert_int_equal(of_file->weight_bytes, of_shape->weight_bytes);
        model_close(of_file), model_close(of_shape);
        gguf_close(file), gguf_close(shape);
        buf_free(&text);
    }
}

/* ---- what is refused ---- */

static void refused(const char *metadata, const char *tensors, const char *part) {
    struct buf text = {0};
    struct gguf *g;
    buf_printf(&text, "{\"atsinfer\":\"shape\",\"version\":1,\"metadata\":%s,\"tensors\":%s}",
               metadata, tensors);
    TEST_STATUS(shape_parse(text.data, text.len, "x.json", &g), ATS_BAD_FILE);
    assert_null(g);
    TEST_ERROR_HAS("x.json");
    TEST_ERROR_HAS(part);
    buf_free(&text);
}

static void what_is_wrong_is_named(void **state) {
    (void)state;
    struct gguf *g;
    TEST_STATUS(shape_parse("{", 1, "x.json", &g), ATS_BAD_FILE);
    TEST_STATUS(shape_parse("[]", 2, "x.json", &g), ATS_BAD_FILE);
    TEST_STATUS(shape_parse("{\"atsinfer\":\"profile\"}", 22, "x.json", &g), ATS_BAD_FILE);
    TEST_STATUS(shape_open("no/such/shape.json", &g), ATS_IO);
    refused("[]", "[]", "metadata");
    refused("{}", "{}", "tensors");
    refused("{\"a\":{}}", "[]", "metadata a");
    refused("{\"a\":[]}", "[]", "metadata a");
    refused("{\"a\":[1,true]}", "[]", "several types");
    refused("{\"\":1}", "[]", "empty");
    refused("{\".a\":1}", "[]", "dot");
    refused("{\"general.architecture\":7}", "[]", "general.architecture");
    refused("{}", "[[\"t\",\"F32\"]]", "tensor 0");
    refused("{}", "[[\"\",\"F32\",[1]]]", "tensor 0");
    refused("{}", "[7]", "tensor 0");
    refused("{}", "[[\"t\",\"F31\",[1]]]", "F31");
    refused("{}", "[[\"t\",\"F32\",[]]]", "tensor t");
    refused("{}", "[[\"t\",\"F32\",[1,1,1,1,1]]]", "tensor t");
    refused("{}", "[[\"t\",\"F32\",[1,0]]]", "dimension 1");
    refused("{}", "[[\"t\",\"F32\",[1.5]]]", "dimension 0");
    refused("{}", "[[\"t\",\"Q4_K\",[255]]]", "dimension 0");
    refused("{}", "[[\"t\",\"F32\",[4611686018427387904,4]]]", "tensor t");
    refused("{}", "[[\"t\",\"F32\",[1048576,1048576,1048576]]]", "tensor t");
    refused("{}", "[[\"t\",\"F32\",[1]],[\"t\",\"F32\",[1]]]", "twice");
    refused("{}", "[{\"layers\":[0,1024],\"tensors\":[]}]", "layers");
    refused("{}", "[{\"layers\":[3,1],\"tensors\":[]}]", "layers");
    refused("{}", "[{\"layers\":[[0,1],\"x\"],\"tensors\":[]}]", "layers");
    refused("{}", "[{\"layers\":[0,1],\"step\":0,\"tensors\":[]}]", "step");
    refused("{}", "[{\"layers\":[0,1]}]", "tensors");
    refused("{}", "[{\"layers\":[[0,2],1],\"tensors\":[[\"t\",\"F32\",[1]]]}]", "blk.1.t");
}

/* What is short in the file and long in memory: 4 GiB of names, half a billion layers. */
static void a_small_file_takes_no_memory_or_time_beyond_its_size(void **state) {
    (void)state;
    struct buf name = {0}, text = {0};
    for (int i = 0; i < 255; i++)
        buf_add_char(&name, 'n');
    buf_printf(&text,
               "{\"atsinfer\":\"shape\",\"version\":1,\"metadata\":{},\"tensors\":"
               "[{\"layers\":[0,1],\"tensors\":[[\"%s\",\"F32\",[1]]]}]}",
               buf_str(&name));
    struct gguf *g;
    TEST_OK(shape_parse(text.data, text.len, "x", &g));
    assert_int_equal(g->n_tensors, 2);
    gguf_close(g);
    buf_clear(&text);
    buf_add_char(&name, 'n');
    buf_printf(&text, "[{\"layers\":[0,1023],\"tensors\":[[\"%s\",\"F32\",[1]]]}]", buf_str(&name));
    refused("{}", buf_str(&text), "the name of tensor 0 has 256 bytes");
    buf_clear(&text);
    for (int i = 0; i < 1025; i++)
        buf_add_str(&text, i ? ",[0,1023]" : "[{\"layers\":[[0,1023]");
    buf_add_str(&text, "],\"tensors\":[]}]");
    refused("{}", buf_str(&text), "layers has 1025 entries");
    buf_free(&name), buf_free(&text);
}

static void groups_are_written_out(void **state) {
    (void)state;
    const char *text =
        "{\"atsinfer\":\"shape\",\"version\":1,\"metadata\":{\"a\":-1,\"b\":[true],"
        "\"c\":[1.5,2.5],\"d\":[1,2],\"e\":5000000000},\"tensors\":[{\"layers\":[1,5],"
        "\"step\":2,\"tensors\":[[\"t\",\"F16\",[3,2]]]},{\"layers\":[[7,8],10],"
        "\"tensors\":[[\"t\",\"F16\",[3,2]]]}]}";
    struct gguf *g;
    TEST_OK(shape_parse(text, strlen(text), "x", &g));
    static const char *const names[] = {"blk.1.t", "blk.3.t", "blk.5.t",
                                        "blk.7.t", "blk.8.t", "blk.10.t"};
    assert_int_equal(g->n_tensors, COUNT_OF(names));
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        assert_string_equal(g->tensors[i].name, names[i]);
        assert_int_equal(g->tensors[i].n_bytes, 12);
    }
    int32_t a = 0;
    int64_t e = 0;
    const struct gguf_array *list = NULL;
    TEST_OK(gguf_get_i32(g, "a", &a));
    TEST_OK(gguf_get_i64(g, "e", &e));
    assert_true(a == -1 && e == 5000000000);
    TEST_OK(gguf_get_floats(g, "c", &list));
    assert_true(gguf_array_float(list, 1) >= 2.5f);
    TEST_OK(gguf_get_ints(g, "d", &list));
    assert_int_equal(gguf_array_int(list, 1), 2);
    TEST_OK(gguf_check_length(g, "b", 1));
    gguf_close(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shipped_shapes_are_the_models_they_name),
        cmocka_unit_test(a_shape_of_a_header_is_that_header),
        cmocka_unit_test(groups_are_written_out),
        cmocka_unit_test(what_is_wrong_is_named),
        cmocka_unit_test(a_small_file_takes_no_memory_or_time_beyond_its_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
