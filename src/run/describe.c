/* Files and machines as JSON texts: what `inspect` and `doctor` print. */
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

static json_t *device_json(const char *name, const char *kind, bool usable, const char *note,
                           const struct backend_memory *m) {
    json_t *device = json_pack("{s:s, s:s, s:b, s:s}", "name", name, "kind", kind, "usable",
                               (int)usable, "note", note);
    if (m->total_bytes > 0) {
        json_object_set_new(device, "memory_bytes", json_integer(m->total_bytes));
        json_object_set_new(device, "free_bytes", json_integer(m->free_bytes));
        json_object_set_new(device, "free_measured", json_boolean(m->measured));
        json_object_set_new(device, "host_memory", json_boolean(m->host));
    }
    return device;
}

/* The CPU, then what else there is, or why there is nothing. */
static json_t *devices_json(const struct memory_info *host) {
    struct backend_device_info found[16];
    const struct backend_memory own = {.total_bytes = (int64_t)host->total_bytes,
                                       .free_bytes = (int64_t)host->available_bytes,
                                       .measured = true,
                                       .host = true},
                                none = {0};
    json_t *devices = json_array();
    json_array_append_new(
        devices, device_json("cpu", "processor", true, "every operator, weights in place", &own));
    json_array_append_new(
        devices, device_json("sim", "simulated", true,
                             "for tests: sim:cpu, sim:gpu[:MIB], sim:chaos[:SEED]", &none));
    error_clear();
    int n = backend_list_devices(found, COUNT_OF(found));
    for (int i = 0; i < n; i++)
        json_array_append_new(devices, device_json(found[i].name, found[i].kind, found[i].usable,
                                                   found[i].note, &found[i].memory));
    if (n == 0)
        json_array_append_new(devices, device_json("vulkan", "GPU", false, error_text(), &none));
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
    json_object_set_new(root, "devices", devices_json(&memory));
    json_object_set_new(root, "advice", advice_json(&cpu, &memory));
    return print_and_free(root);
}
