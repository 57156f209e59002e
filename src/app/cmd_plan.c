/*
 * Where a model's weights and caches go, from the JSON of ats_engine_describe(). Fields read here:
 *   "n_layers", "host": {"needed_bytes", "limit_bytes"},
 *   "devices": [{"name", "kind": "cpu" | "gpu", "host_memory", "weight_bytes", "mapped_bytes",
 *                "kv_bytes", "work_bytes", "slot_bytes", "pinned_bytes", "own_bytes",
 *                "limit_bytes"}],
 *   "plan": {"how", "prompts_from", "tensors": [{"name", "layer",
 *            "parts": [{"device", "axis", "begin", "end", "bytes", "streamed",
 *                       "in_prompts": {"device", "streamed"}}]}]}
 */
#include "app/cmd.h"
#include "app/explain.h"

#include <stdlib.h>
#include <string.h>

static uint64_t bytes_of(const json_t *o, const char *key) {
    return (uint64_t)json_integer_value(json_object_get(o, key));
}

static void add_text(struct buf *out, const json_t *value) {
    const char *s = json_string_value(value);
    if (s) term_add_safe(out, s, strlen(s));
}

static void add_size(struct buf *out, uint64_t bytes) {
    char text[32];
    buf_printf(out, " %11s", format_bytes(text, sizeof text, bytes));
}

/* ---- devices ---- */

static void add_devices(struct buf *out, const json_t *o) {
    static const char *const columns[][2] = {
        {"weight_bytes", "weights"},  {"kv_bytes", "KV"},          {"work_bytes", "work"},
        {"slot_bytes", "slots"},      {"own_bytes", "in all"},     {"limit_bytes", "of usable"},
        {"pinned_bytes", "exchange"}, {"mapped_bytes", "in file"},
    };
    const json_t *devices = json_object_get(o, "devices");
    buf_printf(out, "%-12s", "device");
    for (size_t k = 0; k < COUNT_OF(columns); k++)
        buf_printf(out, " %11s", columns[k][1]);
    buf_add_char(out, '\n');
    for (size_t i = 0; i < json_array_size(devices); i++) {
        const json_t *d = json_array_get(devices, i);
        struct buf name = {0};
        add_text(&name, json_object_get(d, "name"));
        buf_printf(out, "%-12s", buf_str(&name));
        buf_free(&name);
        for (size_t k = 0; k < COUNT_OF(columns); k++)
            add_size(out, bytes_of(d, columns[k][0]));
        buf_add_char(out, '\n');
    }
    const json_t *host = json_object_get(o, "host");
    char needed[32], limit[32];
    buf_printf(out, "host memory: %s of %s\n",
               format_bytes(needed, sizeof needed, bytes_of(host, "needed_bytes")),
               format_bytes(limit, sizeof limit, bytes_of(host, "limit_bytes")));
}

/* ---- tensors ---- */

/* "cpu", or "cpu rows 0-96 (prompts: vulkan0 streamed), vulkan0 rows 96-256". */
static void add_home(struct buf *out, const json_t *tensor) {
    const json_t *parts = json_object_get(tensor, "parts");
    size_t n = json_array_size(parts);
    for (size_t i = 0; i < n; i++) {
        const json_t *p = json_array_get(parts, i);
        buf_add_str(out, i ? ", " : "");
        add_text(out, json_object_get(p, "device"));
        if (n > 1) {
            buf_add_char(out, ' ');
            add_text(out, json_object_get(p, "axis"));
            buf_printf(out, " %llu-%llu", (unsigned long long)bytes_of(p, "begin"),
                       (unsigned long long)bytes_of(p, "end"));
        }
        if (json_is_true(json_object_get(p, "streamed"))) buf_add_str(out, " streamed");
        const json_t *in_prompts = json_object_get(p, "in_prompts");
        if (!in_prompts) continue;
        buf_add_str(out, " (prompts: ");
        add_text(out, json_object_get(in_prompts, "device"));
        if (json_is_true(json_object_get(in_prompts, "streamed"))) buf_add_str(out, " streamed");
        buf_add_char(out, ')');
    }
}

static uint64_t tensor_bytes(const json_t *tensor) {
    const json_t *parts = json_object_get(tensor, "parts");
    uint64_t sum = 0;
    for (size_t i = 0; i < json_array_size(parts); i++)
        sum += bytes_of(json_array_get(parts, i), "bytes");
    return sum;
}

static void add_tensors(struct buf *out, const json_t *tensors) {
    buf_printf(out, "\n%-36s %11s  home\n", "tensor", "bytes");
    for (size_t i = 0; i < json_array_size(tensors); i++) {
        const json_t *t = json_array_get(tensors, i);
        struct buf name = {0};
        add_text(&name, json_object_get(t, "name"));
        buf_printf(out, "%-36s", buf_str(&name));
        buf_free(&name);
        add_size(out, tensor_bytes(t));
        buf_add_str(out, "  ");
        add_home(out, t);
        buf_add_char(out, '\n');
    }
}

/* Where prompts have a program of their own. */
static void add_prompts(struct buf *out, const json_t *plan) {
    const json_t *from = json_object_get(plan, "prompts_from"), *part;
    const json_t *tensors = json_object_get(plan, "tensors");
    uint64_t bytes = 0;
    size_t i, k;
    char text[32];
    if (!from) return;
    for (i = 0; i < json_array_size(tensors); i++) {
        const json_t *parts = json_object_get(json_array_get(tensors, i), "parts");
        for (k = 0; k < json_array_size(parts); k++) {
            part = json_array_get(parts, k);
            const json_t *then = json_object_get(part, "in_prompts");
            if (json_is_true(json_object_get(then ? then : part, "streamed")))
                bytes += bytes_of(part, "bytes");
        }
    }
    buf_printf(out, "prompts: rounds of %lld tokens and more stream %s\n",
               (long long)json_integer_value(from), format_bytes(text, sizeof text, bytes));
}

/* ---- layers ---- */

/* Tensors of one kind, told by what stands behind "blk.N."; whole names outside of layers. */
static const char *kind_of(const json_t *tensor) {
    const char *name = json_string_value(json_object_get(tensor, "name"));
    if (json_integer_value(json_object_get(tensor, "layer")) < 0 || strncmp(name, "blk.", 4) != 0)
        return name;
    const char *dot = strchr(name + 4, '.');
    return dot ? dot + 1 : name;
}

/* Where a layer's tensors are: one device for all of them, or each by its kind. */
static void add_layer_homes(struct buf *out, const json_t *tensors, size_t from, size_t to) {
    struct buf first = {0}, home = {0};
    bool same = true;
    add_home(&first, json_array_get(tensors, from));
    for (size_t i = from + 1; i < to && same; i++) {
        buf_clear(&home);
        add_home(&home, json_array_get(tensors, i));
        same = strcmp(buf_str(&first), buf_str(&home)) == 0;
    }
    if (same) {
        buf_add_str(out, buf_str(&first));
    } else {
        for (size_t i = from; i < to; i++) {
            const char *kind = kind_of(json_array_get(tensors, i));
            buf_add_str(out, i > from ? "; " : "");
            term_add_safe(out, kind, strlen(kind));
            buf_add_str(out, ": ");
            add_home(out, json_array_get(tensors, i));
        }
    }
    buf_free(&first);
    buf_free(&home);
}

static json_int_t layer_at(const json_t *tensors, size_t i) {
    return json_integer_value(json_object_get(json_array_get(tensors, i), "layer"));
}

/* Layers in a row that are the same are one line. */
struct layer_line {
    struct buf homes;
    json_int_t first, last; /* layers; -1: one tensor outside of layers */
    const char *name;       /* then: its name */
    uint64_t bytes;
};

static void print_line(struct buf *out, struct layer_line *line) {
    struct buf label = {0};
    if (line->first < 0)
        term_add_safe(&label, line->name, strlen(line->name));
    else if (line->first == line->last)
        buf_printf(&label, "layer %lld", (long long)line->first);
    else
        buf_printf(&label, "layers %lld-%lld", (long long)line->first, (long long)line->last);
    buf_printf(out, "%-20s", buf_str(&label));
    add_size(out, line->bytes);
    buf_printf(out, "  %s\n", buf_str(&line->homes));
    buf_free(&label);
    buf_free(&line->homes);
}

static void add_layers(struct buf *out, const json_t *tensors) {
    struct layer_line line = {0};
    size_t n = json_array_size(tensors);
    buf_printf(out, "\n%-20s %11s  home\n", "part", "bytes");
    for (size_t from = 0, to; from < n; from = to) {
        json_int_t layer = layer_at(tensors, from);
        uint64_t bytes = 0;
        struct buf homes = {0};
        for (to = from; to < n && layer_at(tensors, to) == layer && (layer >= 0 || to == from);
             to++)
            bytes += tensor_bytes(json_array_get(tensors, to));
        add_layer_homes(&homes, tensors, from, to);
        bool goes_on = from > 0 && layer >= 0 && line.first >= 0 && line.last + 1 == layer &&
                       strcmp(buf_str(&line.homes), buf_str(&homes)) == 0;
        if (goes_on) {
            line.last = layer;
            line.bytes += bytes;
            buf_free(&homes);
            continue;
        }
        if (from > 0) print_line(out, &line);
        line =
            (struct layer_line){homes, layer, layer, kind_of(json_array_get(tensors, from)), bytes};
    }
    if (n) print_line(out, &line);
}

/* ---- the command ---- */

static int print_plan(struct app *app, json_t *o) {
    const json_t *plan = json_object_get(o, "plan"), *tensors = json_object_get(plan, "tensors");
    const json_t *explained = json_object_get(o, "explanation");
    if (app->json) return app_print_told(app, o);
    struct buf out = {0};
    buf_add_str(&out, "plan: ");
    add_text(&out, json_object_get(plan, "how"));
    buf_add_str(&out, "\n\n");
    add_devices(&out, o);
    add_prompts(&out, plan);
    if (explained) {
        buf_add_char(&out, '\n');
        explain_add(app, &out, explained);
    } else if (flag_on(&app->flags, FLAG_INSPECT_TENSORS)) {
        add_tensors(&out, tensors);
    } else {
        add_layers(&out, tensors);
    }
    int code = app_print(app, buf_str(&out), out.len);
    buf_free(&out);
    return code;
}

/* A GPU, and nothing that says how fast it is. */
static void tell_how(struct app *app, const json_t *o) {
    const struct flags *f = &app->flags;
    const char *profile = flag_text(f, FLAG_PROFILE);
    bool off = (profile && strcmp(profile, "off") == 0) || flag_given(f, FLAG_PLAN_SEED);
    if (off || json_object_get(o, "explanation") ||
        json_array_size(json_object_get(o, "devices")) < 2)
        return;
    app_note(app, "no times of this machine are kept for this model: `atsinfer profile` measures "
                  "them, and so does the first `run`");
}

static ats_status tell_plan(struct app *app, json_t **o) {
    ats_options options;
    ats_engine *engine = NULL;
    app_engine_options(app, &options);
    options.plan_only = true;
    TRY(app_engine_open(app, &options, &engine));
    char *text = ats_engine_describe(engine), *explained = ats_engine_explain(engine);
    ats_status status = json_parse(text, strlen(text), o);
    json_t *more = NULL;
    if (status == ATS_OK && explained) status = json_parse(explained, strlen(explained), &more);
    if (status == ATS_OK && more) json_object_set_new(*o, "explanation", more);
    ats_free(text);
    ats_free(explained);
    ats_engine_close(engine);
    return status;
}

/* Flags of the machine that a plan is made on say nothing of one that is described. */
static ats_status check_described(const struct flags *f) {
    static const enum flag_id others[] = {FLAG_DEVICE,    FLAG_PROFILE, FLAG_ONE_PROGRAM,
                                          FLAG_PLAN_SEED, FLAG_CPU_ISA, FLAG_TRACE};
    for (size_t i = 0; i < COUNT_OF(others); i++)
        if (f->values[others[i]].source == SOURCE_COMMAND_LINE)
            return fail(ATS_BAD_ARGUMENT, "%s is about this machine: it goes without --machine",
                        flag_long_name(&flag_table[others[i]]));
    return ATS_OK;
}

/* What an engine does not tell is told of this machine by its times, as if it were described.
 * *machine NULL: nothing of that is asked. */
static ats_status find_machine(struct app *app, const char **machine) {
    static const enum flag_id asks[] = {FLAG_PLAN_DIFF, FLAG_SIM_HIT};
    const struct flags *f = &app->flags;
    *machine = flag_text(f, FLAG_SIM_MACHINE);
    TRY(app_find_model(app));
    if (*machine) return check_described(f);
    for (size_t i = 0; i < COUNT_OF(asks); i++) {
        if (!flag_given(f, asks[i])) continue;
        *machine = app_find_profile(app);
        if (*machine) return ATS_OK;
        return fail(ATS_BAD_ARGUMENT,
                    "%s needs times: of a described machine (--machine), or of this one with its "
                    "GPU, which `atsinfer profile` measures",
                    flag_long_name(&flag_table[asks[i]]));
    }
    return ATS_OK;
}

int cmd_plan(struct app *app) {
    const char *machine;
    json_t *o = NULL;
    ats_status status = find_machine(app, &machine);
    if (status == ATS_OK && machine) return explain_plan(app, machine);
    if (status == ATS_OK) status = tell_plan(app, &o);
    if (status == ATS_OK) tell_how(app, o);
    int code = status == ATS_OK ? print_plan(app, o) : app_fail(app, status);
    json_decref(o);
    return code;
}
