/*
 * What is in a GGUF file, from the JSON of ats_file_describe(). Fields read here:
 *   "path", "version", "architecture", "name", "n_params", "weight_bytes",
 *   "parts":     [{"path", "bytes"}]
 *   "metadata":  {key: {"type": "u32" | ... | "array<string>", "value": the value, or the first
 *                elements of an array, "n": how many it has}}
 *   "tensors":   [{"name", "dtype", "dims": [...], "bytes", "part", "offset"}]
 *   "types":     {"Q4_1": {"n": tensors, "bytes"}}
 *   "tokenizer": {"model", "pre", "n_tokens", "bos", "eos", "add_bos", "end_tokens": [...]}
 * A field that is missing is not shown.
 */
#include "app/cmd.h"

#include <stdlib.h>
#include <string.h>

static void add_text(struct buf *out, const char *s) {
    term_add_safe(out, s ? s : "", s ? strlen(s) : 0);
}

/* A value on one line: strings without quotes, cut at `max` bytes (0: whole). */
static void add_value(struct buf *out, const json_t *value, size_t max) {
    char *printed = json_is_string(value) ? NULL : json_print(value, false);
    const char *text = printed ? printed : json_string_value(value);
    size_t n = strlen(text), cut = n;
    if (max && n > max) {
        cut = max;
        while (cut > 0 && (text[cut] & 0xc0) == 0x80)
            cut--; /* between characters */
    }
    struct buf line = {0};
    term_add_safe(&line, text, cut);
    for (size_t i = 0; max && i < line.len; i++)
        if (line.data[i] == '\n') line.data[i] = ' ';
    buf_add(out, buf_str(&line), line.len);
    if (cut < n) buf_add_str(out, " ...");
    buf_free(&line);
    free(printed);
}

static json_int_t int_of(const json_t *o, const char *key) {
    return json_integer_value(json_object_get(o, key));
}

static const char *str_of(const json_t *o, const char *key) {
    return json_string_value(json_object_get(o, key));
}

static void add_row(struct buf *out, const char *label, const char *text) {
    if (!text || !*text) return;
    buf_printf(out, "%-14s ", label);
    add_text(out, text);
    buf_add_char(out, '\n');
}

static void add_tokenizer(struct buf *out, const json_t *t) {
    if (!json_is_object(t)) return;
    const char *pre = str_of(t, "pre");
    buf_printf(out, "%-14s ", "tokenizer");
    add_text(out, str_of(t, "model"));
    if (pre && *pre) {
        buf_add_str(out, ", ");
        add_text(out, pre);
    }
    buf_printf(out, ", %lld tokens, bos %lld%s, eos %lld", (long long)int_of(t, "n_tokens"),
               (long long)int_of(t, "bos"),
               json_is_true(json_object_get(t, "add_bos")) ? " (added)" : "",
               (long long)int_of(t, "eos"));
    const json_t *ends = json_object_get(t, "end_tokens");
    for (size_t i = 0; i < json_array_size(ends); i++) {
        buf_add_str(out, i ? " " : ", ends at ");
        add_value(out, json_array_get(ends, i), 40);
    }
    buf_add_char(out, '\n');
}

static void add_types(struct buf *out, const json_t *types) {
    const char *name;
    json_t *t;
    char size[32];
    json_object_foreach((json_t *)(uintptr_t)types, name, t) {
        buf_printf(out, "  %-12s ", "");
        add_text(out, name);
        buf_printf(out, ": %lld tensors, %s\n", (long long)int_of(t, "n"),
                   format_bytes(size, sizeof size, (uint64_t)int_of(t, "bytes")));
    }
}

static void add_metadata(struct buf *out, const json_t *metadata) {
    const char *key;
    json_t *entry;
    buf_add_str(out, "\nmetadata:\n");
    json_object_foreach((json_t *)(uintptr_t)metadata, key, entry) {
        const char *type = str_of(entry, "type");
        const json_t *value = json_object_get(entry, "value");
        buf_add_str(out, "  ");
        add_text(out, key);
        buf_add_str(out, " = ");
        if (value) add_value(out, value, 72);
        if (json_is_array(value)) buf_printf(out, " (%lld in all)", (long long)int_of(entry, "n"));
        if (type) {
            buf_add_str(out, "  [");
            add_text(out, type);
            buf_add_str(out, "]");
        }
        buf_add_char(out, '\n');
    }
}

static void add_tensors(struct buf *out, const json_t *tensors) {
    buf_printf(out, "\n%-40s %-8s %-24s %12s %6s %14s\n", "tensor", "type", "shape", "bytes",
               "part", "offset");
    for (size_t i = 0; i < json_array_size(tensors); i++) {
        const json_t *t = json_array_get(tensors, i), *dims = json_object_get(t, "dims");
        struct buf name = {0}, shape = {0}, type = {0};
        add_text(&name, str_of(t, "name"));
        add_text(&type, str_of(t, "dtype"));
        for (size_t d = 0; d < json_array_size(dims); d++)
            buf_printf(&shape, "%s%lld", d ? " x " : "",
                       (long long)json_integer_value(json_array_get(dims, d)));
        buf_printf(out, "%-40s %-8s %-24s %12lld %6lld %14lld\n", buf_str(&name), buf_str(&type),
                   buf_str(&shape), (long long)int_of(t, "bytes"), (long long)int_of(t, "part"),
                   (long long)int_of(t, "offset"));
        buf_free(&name);
        buf_free(&shape);
        buf_free(&type);
    }
}

static void add_summary(struct buf *out, const json_t *o) {
    char size[32], count[32];
    const json_t *parts = json_object_get(o, "parts");
    uint64_t bytes = 0;
    for (size_t i = 0; i < json_array_size(parts); i++)
        bytes += (uint64_t)int_of(json_array_get(parts, i), "bytes");
    add_row(out, "file", str_of(o, "path"));
    buf_printf(out, "%-14s GGUF %lld, %zu part%s, %s\n", "form", (long long)int_of(o, "version"),
               json_array_size(parts), json_array_size(parts) == 1 ? "" : "s",
               format_bytes(size, sizeof size, bytes));
    add_row(out, "name", str_of(o, "name"));
    add_row(out, "architecture", str_of(o, "architecture"));
    buf_printf(out, "%-14s %s parameters, %s\n", "weights",
               format_count(count, sizeof count, (uint64_t)int_of(o, "n_params")),
               format_bytes(size, sizeof size, (uint64_t)int_of(o, "weight_bytes")));
    add_types(out, json_object_get(o, "types"));
    add_tokenizer(out, json_object_get(o, "tokenizer"));
}

/* As it stands in the file, for a pipe; a terminal must not obey it. */
static void add_whole(const struct app *app, struct buf *out, const char *text, size_t n) {
    if (app->term.out_tty)
        term_add_safe(out, text, n);
    else
        buf_add(out, text, n);
}

MUST_CHECK static ats_status add_kv(const struct app *app, struct buf *out, const json_t *metadata,
                                    const char *key) {
    const json_t *value = json_object_get(json_object_get(metadata, key), "value");
    if (!value) return fail(ATS_FAILED, "the file has no key %s", key);
    if (json_is_string(value))
        add_whole(app, out, json_string_value(value), json_string_length(value));
    else
        add_value(out, value, 0);
    buf_add_char(out, '\n');
    return ATS_OK;
}

MUST_CHECK static ats_status add_template(const struct app *app, struct buf *out,
                                          const json_t *metadata) {
    const char *text = str_of(json_object_get(metadata, "tokenizer.chat_template"), "value");
    if (!text) return fail(ATS_FAILED, "the file has no chat template");
    size_t n = strlen(text);
    add_whole(app, out, text, n);
    if (n && text[n - 1] != '\n') buf_add_char(out, '\n');
    return ATS_OK;
}

/* --json with --kv or --template prints that part, else the whole description. */
static int print_json(struct app *app, const json_t *o) {
    const struct flags *f = &app->flags;
    json_t *answer = app_json(app);
    const json_t *metadata = json_object_get(o, "metadata");
    const char *key = flag_on(f, FLAG_INSPECT_TEMPLATE) ? "tokenizer.chat_template"
                                                        : flag_text(f, FLAG_INSPECT_KV);
    if (!key) {
        json_object_update_missing(answer, (json_t *)(uintptr_t)o);
        return app_print_json(app, answer);
    }
    json_t *entry = json_object_get(metadata, key);
    if (!entry) {
        json_decref(answer);
        return app_fail(app, fail(ATS_FAILED, "the file has no key %s", key));
    }
    json_object_set_new(answer, "key", json_string_replaced(key, strlen(key)));
    json_object_update_missing(answer, entry);
    return app_print_json(app, answer);
}

static int print_text(struct app *app, const json_t *o) {
    const struct flags *f = &app->flags;
    const json_t *metadata = json_object_get(o, "metadata");
    struct buf out = {0};
    ats_status status = ATS_OK;
    if (flag_given(f, FLAG_INSPECT_KV)) {
        status = add_kv(app, &out, metadata, flag_text(f, FLAG_INSPECT_KV));
    } else if (flag_on(f, FLAG_INSPECT_TEMPLATE)) {
        status = add_template(app, &out, metadata);
    } else {
        add_summary(&out, o);
        if (flag_on(f, FLAG_INSPECT_TENSORS))
            add_tensors(&out, json_object_get(o, "tensors"));
        else
            add_metadata(&out, metadata);
    }
    int code = status == ATS_OK ? app_print(app, buf_str(&out), out.len) : app_fail(app, status);
    buf_free(&out);
    return code;
}

int cmd_inspect(struct app *app) {
    char *text = NULL;
    json_t *o = NULL;
    ats_status status = app_find_model(app);
    if (status == ATS_OK) status = ats_file_describe(app->model, &text);
    if (status == ATS_OK) status = json_parse(text, strlen(text), &o);
    int code = status != ATS_OK ? app_fail(app, status)
               : app->json      ? print_json(app, o)
                                : print_text(app, o);
    json_decref(o);
    ats_free(text);
    return code;
}
