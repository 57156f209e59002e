/* Engines, files and machines as JSON texts: what `inspect`, `doctor` and `--json` print. */
#include <stdlib.h>
#include <string.h>
#include "base/file.h"
#include "base/json.h"
#include "base/threads.h"
#include "run/engine.h"

#define SHOWN_ELEMENTS 8 /* of an array of metadata */

static char *print_and_free(json_t *root) {
    char *text = json_print(root, false);
    json_decref(root);
    return text;
}

/* A file's name may hold any bytes, JSON may not. */
static json_t *path_json(const char *path) {
    return json_string_replaced(path, strlen(path));
}

/* ---- a file ---- */

static json_t *element_json(const struct gguf_array *a, size_t i) {
    switch (a->type) {
    case GGUF_STR: {
        struct gguf_str s = gguf_array_str(a, i);
        return json_string_replaced(s.data, s.n);
    }
    case GGUF_F32:
    case GGUF_F64:
        return json_real((double)gguf_array_float(a, i));
    case GGUF_BOOL:
        return json_boolean(gguf_array_int(a, i) != 0);
    case GGUF_ARRAY:
        return json_null();
    default:
        return json_integer(gguf_array_int(a, i));
    }
}

static json_t *array_json(const struct gguf_array *a) {
    json_t *items = json_array();
    for (size_t i = 0; i < a->n && i < SHOWN_ELEMENTS; i++)
        json_array_append_new(items, element_json(a, i));
    return items;
}

static json_t *value_json(const struct gguf_kv *kv) {
    switch (kv->type) {
    case GGUF_STR: {
        struct gguf_str s = gguf_kv_str(kv);
        return json_string_replaced(s.data, s.n);
    }
    case GGUF_F32:
    case GGUF_F64:
        return json_real(gguf_kv_float(kv));
    case GGUF_BOOL:
        return json_boolean(gguf_kv_int(kv) != 0);
    case GGUF_ARRAY:
        return array_json(&kv->array);
    default:
        return json_integer(gguf_kv_int(kv));
    }
}

static json_t *metadata_json(const struct gguf *g) {
    json_t *all = json_object();
    for (int i = 0; i < g->n_kvs; i++) {
        const struct gguf_kv *kv = &g->kvs[i];
        json_t *entry = json_object();
        if (kv->type == GGUF_ARRAY) {
            char type[64];
            snprintf(type, sizeof type, "array<%s>", gguf_type_name(kv->array.type));
            json_object_set_new(entry, "type", json_string(type));
            json_object_set_new(entry, "n", json_integer((json_int_t)kv->array.n));
        } else {
            json_object_set_new(entry, "type", json_string(gguf_type_name(kv->type)));
        }
        json_object_set_new(entry, "value", value_json(kv));
        json_object_set_new(all, kv->key, entry);
    }
    return all;
}

static json_t *tensors_json(const struct gguf *g) {
    json_t *all = json_array();
    for (int i = 0; i < g->n_tensors; i++) {
        const struct gguf_tensor *t = &g->tensors[i];
        json_t *dims = json_array();
        for (int d = 0; d < t->n_dims; d++)
            json_array_append_new(dims, json_integer(t->dims[d]));
        json_array_append_new(all, json_pack("{s:s, s:s, s:o, s:I, s:i, s:I}", "name", t->name,
                                             "dtype", dtype_name(t->dtype), "dims", dims, "bytes",
                                             (json_int_t)t->n_bytes, "part", t->file_index,
                                             "offset", (json_int_t)t->file_offset));
    }
    return all;
}

static json_t *types_json(const struct gguf *g) {
    json_t *all = json_object();
    for (int type = 0; type < N_DTYPES; type++) {
        json_int_t n = 0, bytes = 0;
        for (int i = 0; i < g->n_tensors; i++) {
            if ((int)g->tensors[i].dtype != type) continue;
            n++;
            bytes += g->tensors[i].n_bytes;
        }
        if (n)
            json_object_set_new(all, dtype_name(type),
                                json_pack("{s:I, s:I}", "n", n, "bytes", bytes));
    }
    return all;
}

static json_t *parts_json(const struct gguf *g) {
    json_t *all = json_array();
    for (int i = 0; i < g->n_files; i++)
        json_array_append_new(all, json_pack("{s:o, s:I}", "path", path_json(g->files[i].map.path),
                                             "bytes", (json_int_t)g->files[i].map.size_bytes));
    return all;
}

/* Null with a reason when the file's tokenizer is not usable: the rest can be listed still. */
static json_t *tokenizer_json(const struct gguf *g) {
    struct tokenizer *t;
    if (gguf_tokenizer_open(g, 0, false, false, &t) != ATS_OK) {
        json_t *broken = json_pack("{s:s}", "error", error_text());
        error_clear();
        return broken;
    }
    size_t n_ends;
    const int32_t *ends = tokenizer_end_ids(t, &n_ends);
    json_t *end_ids = json_array();
    for (size_t i = 0; i < n_ends; i++)
        json_array_append_new(end_ids, json_integer(ends[i]));
    json_t *out =
        json_pack("{s:s, s:s, s:i, s:i, s:i, s:b, s:o}", "model",
                  tokenizer_kind(t) == TOKENIZER_SPM ? "llama" : "gpt2", "pre",
                  tokenizer_pre_name(t), "n_tokens", (int)tokenizer_n_tokens(t), "bos",
                  (int)tokenizer_role_id(t, ROLE_BOS), "eos", (int)tokenizer_role_id(t, ROLE_EOS),
                  "add_bos", (int)tokenizer_adds_bos(t), "end_tokens", end_ids);
    tokenizer_close(t);
    return out;
}

static json_t *name_json(const struct gguf *g) {
    const struct gguf_kv *kv = gguf_find(g, "general.name");
    return kv && kv->type == GGUF_STR ? value_json(kv) : json_string("");
}

ats_status ats_file_describe(const char *path, char **json) {
    struct gguf *g;
    *json = NULL;
    TRY(gguf_open(path, &g));
    json_int_t n_params = 0, bytes = 0;
    for (int i = 0; i < g->n_tensors; i++) {
        n_params += g->tensors[i].n_elements;
        bytes += g->tensors[i].n_bytes;
    }
    json_t *root = json_pack("{s:i, s:o, s:i, s:s, s:I, s:I}", "schema", 1, "path", path_json(path),
                             "version", (int)g->version, "architecture", g->arch, "n_params",
                             n_params, "weight_bytes", bytes);
    json_object_set_new(root, "name", name_json(g));
    json_object_set_new(root, "parts", parts_json(g));
    json_object_set_new(root, "types", types_json(g));
    json_object_set_new(root, "tokenizer", tokenizer_json(g));
    json_object_set_new(root, "metadata", metadata_json(g));
    json_object_set_new(root, "tensors", tensors_json(g));
    gguf_close(g);
    *json = print_and_free(root);
    return ATS_OK;
}

/* ---- an engine ---- */

static const char *axis_name(enum axis axis) {
    static const char *const names[] = {[AXIS_ROWS] = "rows",
                                        [AXIS_COLS] = "cols",
                                        [AXIS_HEADS] = "heads",
                                        [AXIS_EXPERTS] = "experts"};
    return names[axis];
}

/* The weight that names an op, -1 if it has none. */
static int naming_weight(const struct graph_op *op) {
    return op->kind == OP_EXPERTS ? op->p.experts.weights[EXPERT_GATE] : op->weight;
}

static json_t *plan_json(const ats_engine *e) {
    const struct graph *g = e->model->graph;
    json_t *parts = json_array();
    for (int i = 0; i < e->plan->n_parts; i++) {
        const struct plan_part *p = &e->plan->parts[i];
        const struct graph_op *op = &g->ops[p->op];
        json_t *part = json_pack("{s:s, s:i, s:i, s:s, s:i, s:i}", "op", op_kind_name(op->kind),
                                 "layer", op->layer, "device", p->device, "axis",
                                 axis_name(p->axis), "begin", p->begin, "end", p->end);
        if (naming_weight(op) >= 0)
            json_object_set_new(part, "weight", json_string(g->weights[naming_weight(op)].name));
        json_array_append_new(parts, part);
    }
    return parts;
}

static json_t *ledger_json(const ats_engine *e) {
    json_t *devices = json_array();
    for (int d = 0; d < e->n_devices; d++) {
        struct executor_ledger l;
        executor_ledger(e->executor, d, &l);
        json_array_append_new(
            devices,
            json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "name", e->device_names[d],
                      "weight_bytes", (json_int_t)l.weight_bytes, "mapped_bytes",
                      (json_int_t)l.mapped_bytes, "kv_bytes", (json_int_t)l.kv_bytes, "work_bytes",
                      (json_int_t)l.work_bytes, "slot_bytes", (json_int_t)l.slot_bytes,
                      "streamed_pinned_bytes", (json_int_t)l.streamed_bytes,
                      "streamed_pageable_bytes", (json_int_t)l.pageable_bytes));
    }
    return devices;
}

char *ats_engine_describe(const ats_engine *e) {
    json_t *root = json_pack("{s:i, s:o}", "schema", 1, "model", path_json(e->options.model));
    if (e->model) {
        const struct program *p = executor_program(e->executor);
        json_object_set_new(root, "devices", ledger_json(e));
        json_object_set_new(root, "steps", json_integer(p->n_steps));
        json_object_set_new(root, "segments", json_integer(p->n_segments));
        json_object_set_new(root, "copies", json_integer(p->n_copies));
        json_object_set_new(root, "plan", plan_json(e));
    }
    return print_and_free(root);
}

/* ---- this machine ---- */

static json_t *advice_json(const struct backend_cpu_info *cpu, const struct memory_info *memory) {
    json_t *advice = json_array();
    if (strcmp(cpu->isa, "ref") == 0)
        json_array_append_new(advice, json_string("this processor has none of the instruction "
                                                  "sets that there are kernels for: expect "
                                                  "plain-C speed"));
    if (memory->available_bytes < (uint64_t)2 << 30)
        json_array_append_new(advice, json_string("less than 2 GiB of memory are free: models "
                                                  "will be read from disk again and again"));
    return advice;
}

/* The CPU, then what else there is, or why there is nothing. */
static json_t *devices_json(void) {
    struct backend_device_info found[16];
    json_t *devices = json_pack(
        "[{s:s, s:s, s:b, s:s}, {s:s, s:s, s:b, s:s}]", "name", "cpu", "kind", "processor",
        "usable", 1, "note", "all weights and the KV cache", "name", "sim", "kind", "simulated",
        "usable", 1, "note", "for tests: sim:cpu, sim:gpu[:MIB], sim:chaos[:SEED]");
    error_clear();
    int n = backend_list_devices(found, COUNT_OF(found));
    for (int i = 0; i < n; i++)
        json_array_append_new(devices, json_pack("{s:s, s:s, s:b, s:s}", "name", found[i].name,
                                                 "kind", found[i].kind, "usable",
                                                 (int)found[i].usable, "note", found[i].note));
    if (n == 0)
        json_array_append_new(devices, json_pack("{s:s, s:s, s:b, s:s}", "name", "vulkan", "kind",
                                                 "GPU", "usable", 0, "note", error_text()));
    error_clear();
    return devices;
}

char *ats_machine_describe(void) {
    struct backend_cpu_info cpu;
    struct memory_info memory;
    backend_cpu_info(&cpu);
    memory_info_read(&memory);
    json_t *root =
        json_pack("{s:i, s:{s:s, s:s, s:s, s:i, s:i, s:i}, s:{s:I, s:I}}", "schema", 1, "cpu",
                  "model", cpu.model, "features", cpu.features, "isa", cpu.isa, "cores_usable",
                  cpu_count_usable(), "cores_fast", cpu_count_fast(), "threads_default",
                  cpu_count_fast(), "memory", "total_bytes", (json_int_t)memory.total_bytes,
                  "available_bytes", (json_int_t)memory.available_bytes);
    json_object_set_new(root, "devices", devices_json());
    json_object_set_new(root, "advice", advice_json(&cpu, &memory));
    return print_and_free(root);
}
