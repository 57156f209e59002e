/*
 * What this machine offers, from the JSON of ats_machine_describe():
 *   "cpu":     {"model", "features": "avx2 fma ...", "isa", "cores_usable", "cores_fast",
 *               "threads_default"}
 *   "memory":  {"total_bytes", "available_bytes"}
 *   "devices": [{"name", "kind", "usable", "note", "memory_bytes", "free_bytes", "free_measured",
 *               "host_memory"}], the last four of devices that have memory
 *   "advice":  [text]
 */
#include "app/cmd.h"

#include <stdlib.h>
#include <string.h>

static void add_text(struct buf *out, const json_t *value) {
    const char *s = json_string_value(value);
    if (s) term_add_safe(out, s, strlen(s));
}

static long long int_of(const json_t *o, const char *key) {
    return (long long)json_integer_value(json_object_get(o, key));
}

static void add_cpu(struct buf *out, const json_t *cpu) {
    buf_add_str(out, "processor  ");
    add_text(out, json_object_get(cpu, "model"));
    buf_add_str(out, "\nfeatures   ");
    add_text(out, json_object_get(cpu, "features"));
    buf_add_str(out, "\nkernels    ");
    add_text(out, json_object_get(cpu, "isa"));
    buf_printf(out, "\ncores      %lld usable, %lld fast, %lld threads by default\n",
               int_of(cpu, "cores_usable"), int_of(cpu, "cores_fast"),
               int_of(cpu, "threads_default"));
}

static void add_memory(struct buf *out, const json_t *d) {
    char total[32], free_now[32];
    if (!json_object_get(d, "memory_bytes")) return;
    buf_printf(out, "; %s%s, %s %s",
               format_bytes(total, sizeof total, (uint64_t)int_of(d, "memory_bytes")),
               json_is_true(json_object_get(d, "host_memory")) ? " of the host's memory" : "",
               format_bytes(free_now, sizeof free_now, (uint64_t)int_of(d, "free_bytes")),
               json_is_true(json_object_get(d, "free_measured")) ? "free" : "assumed free");
}

static void add_devices(struct buf *out, const json_t *devices) {
    for (size_t i = 0; i < json_array_size(devices); i++) {
        const json_t *d = json_array_get(devices, i);
        const char *note = json_string_value(json_object_get(d, "note"));
        buf_add_str(out, "device     ");
        add_text(out, json_object_get(d, "name"));
        buf_add_str(out, " (");
        add_text(out, json_object_get(d, "kind"));
        buf_add_str(out, json_is_true(json_object_get(d, "usable")) ? "): usable" : "): not used");
        if (note && *note) {
            buf_add_str(out, ", ");
            add_text(out, json_object_get(d, "note"));
        }
        add_memory(out, d);
        buf_add_char(out, '\n');
    }
}

static void add_report(struct buf *out, const json_t *o) {
    const json_t *memory = json_object_get(o, "memory"), *advice = json_object_get(o, "advice");
    char total[32], free_now[32];
    buf_add_str(out, "program    atsinfer " ATS_VERSION "\n");
    add_cpu(out, json_object_get(o, "cpu"));
    buf_printf(
        out, "memory     %s, %s of it free\n",
        format_bytes(total, sizeof total, (uint64_t)int_of(memory, "total_bytes")),
        format_bytes(free_now, sizeof free_now, (uint64_t)int_of(memory, "available_bytes")));
    add_devices(out, json_object_get(o, "devices"));
    for (size_t i = 0; i < json_array_size(advice); i++) {
        buf_add_str(out, "advice     ");
        add_text(out, json_array_get(advice, i));
        buf_add_char(out, '\n');
    }
}

/* Sets "model": what commands would open when none is named, or null. */
static void find_default_model(struct app *app) {
    if (app_find_model(app) != ATS_OK) app->model = NULL;
}

int cmd_doctor(struct app *app) {
    char *text = ats_machine_describe();
    json_t *o = NULL;
    ats_status status = json_parse(text, strlen(text), &o);
    ats_free(text);
    if (status != ATS_OK) return app_fail(app, status);
    find_default_model(app);
    int code;
    if (app->json) {
        json_t *answer = app_json(app);
        json_object_update_missing(answer, o);
        json_object_set_new(answer, "version", json_string(ATS_VERSION));
        json_object_set_new(answer, "default_model",
                            app->model ? json_string_replaced(app->model, strlen(app->model))
                                       : json_null());
        code = app_print_json(app, answer);
    } else {
        struct buf out = {0};
        add_report(&out, o);
        buf_add_str(&out, "model      ");
        if (app->model)
            term_add_safe(&out, app->model, strlen(app->model));
        else
            buf_add_str(&out, "none by default; ./demo fetches a small one");
        buf_add_char(&out, '\n');
        code = app_print(app, out.data, out.len);
        buf_free(&out);
    }
    json_decref(o);
    return code;
}
