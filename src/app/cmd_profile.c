/* This machine measured for a model, from the JSON of ats_profile() (atsinfer.h). */
#include "app/cmd.h"

#include <stdio.h>
#include <string.h>

static double real_of(const json_t *o, const char *key) {
    return json_number_value(json_object_get(o, key));
}

static void add_text(struct buf *out, const json_t *value) {
    const char *s = json_string_value(value);
    if (s) term_add_safe(out, s, strlen(s));
}

static void add_head(struct buf *out, const json_t *o) {
    const json_t *path = json_object_get(o, "path");
    buf_add_str(out, "machine: ");
    add_text(out, json_object_get(json_object_get(o, "profile"), "name"));
    buf_add_char(out, '\n');
    if (json_is_true(json_object_get(o, "measured"))) {
        buf_printf(out, "measured in %.1f s, ", real_of(o, "seconds"));
        buf_add_str(out, json_is_string(path) ? "kept: " : "not kept");
    } else {
        buf_add_str(out, "kept before: ");
    }
    add_text(out, path);
    buf_add_char(out, '\n');
}

static void add_link(struct buf *out, const json_t *profile) {
    static const struct {
        const char *key, *name, *unit;
        double scale;
    } lines[] = {
        {"up_pinned", "weights up, pinned", "GB/s", 1e-9},
        {"up_staged", "weights up, staged", "GB/s", 1e-9},
        {"activation_up", "activations up", "GB/s", 1e-9},
        {"activation_down", "activations down", "GB/s", 1e-9},
        {"kappa_up", "CPU to GPU", "us", 1e6},
        {"kappa_down", "GPU to CPU", "us", 1e6},
        {"kappa_x", "both ways", "us", 1e6},
        {"cut", "GPU to itself", "us", 1e6},
    };
    static const char *const speeds[][2] = {
        {"cpu_speed_copying", "CPU while copying"},
        {"copy_speed_cpu", "copies beside the CPU"},
        {"cpu_speed_gpu", "CPU beside the GPU"},
        {"gpu_speed_cpu", "GPU beside the CPU"},
    };
    const json_t *link = json_object_get(profile, "link");
    const json_t *speed = json_object_get(profile, "interference");
    buf_add_char(out, '\n');
    for (size_t i = 0; i < COUNT_OF(lines); i++)
        buf_printf(out, "%-22s %7.1f %s\n", lines[i].name,
                   lines[i].scale * real_of(link, lines[i].key), lines[i].unit);
    for (size_t i = 0; i < COUNT_OF(speeds); i++)
        buf_printf(out, "%-22s %7.0f %%\n", speeds[i][1], 100 * real_of(speed, speeds[i][0]));
}

/* "matmul Q4_K 4096 x 2048"; "..., cols": divided along those. */
static void add_operator(struct buf *out, const json_t *item) {
    const json_t *types = json_object_get(item, "types"), *dims = json_object_get(item, "dims");
    struct buf name = {0};
    add_text(&name, json_object_get(item, "op"));
    for (size_t i = 0; i < json_array_size(types); i++) {
        buf_add_str(&name, i ? "/" : " ");
        add_text(&name, json_array_get(types, i));
    }
    for (size_t i = 0; i < json_array_size(dims); i++)
        buf_printf(&name, "%s%.0f", i ? " x " : " ", json_number_value(json_array_get(dims, i)));
    const char *axis = json_string_value(json_object_get(item, "axis"));
    if (axis && strcmp(axis, "cols") == 0) buf_add_str(&name, ", cols");
    buf_printf(out, "%-32s", buf_str(&name));
    buf_free(&name);
}

/* Of a whole operator: the last row, which is of share 1. */
static double time_of(const json_t *item, const char *side, size_t token) {
    const json_t *work = json_object_get(json_object_get(item, side), "work");
    size_t n = json_array_size(work);
    return n ? json_number_value(json_array_get(json_array_get(work, n - 1), token)) : 0;
}

static void add_items(struct buf *out, const json_t *profile) {
    const json_t *items = json_object_get(profile, "items");
    const json_t *tokens = json_object_get(profile, "tokens");
    size_t last = json_array_size(tokens);
    if (last == 0) return;
    char many[32];
    last--;
    snprintf(many, sizeof many, "of %lld",
             (long long)json_integer_value(json_array_get(tokens, last)));
    buf_printf(out, "\n%-32s %21s %21s\n", "", "of 1 token", many);
    buf_printf(out, "%-32s %10s %10s %10s %10s\n", "microseconds", "CPU", "GPU", "CPU", "GPU");
    for (size_t i = 0; i < json_array_size(items); i++) {
        const json_t *item = json_array_get(items, i);
        add_operator(out, item);
        buf_printf(out, " %10.1f %10.1f %10.1f %10.1f\n", 1e6 * time_of(item, "cpu", 0),
                   1e6 * time_of(item, "gpu", 0), 1e6 * time_of(item, "cpu", last),
                   1e6 * time_of(item, "gpu", last));
    }
}

static int print(struct app *app, json_t *o) {
    if (app->json) return app_print_told(app, o);
    struct buf out = {0};
    const json_t *profile = json_object_get(o, "profile");
    add_head(&out, o);
    add_link(&out, profile);
    add_items(&out, profile);
    int code = app_print(app, out.data, out.len);
    buf_free(&out);
    return code;
}

static bool on_progress(void *user, const char *what, uint64_t done, uint64_t total) {
    struct app *app = user;
    term_bar(&app->term, what, done, total, "");
    return !interrupt_pending();
}

int cmd_profile(struct app *app) {
    const struct flags *f = &app->flags;
    ats_profiling p;
    char *text = NULL;
    json_t *o = NULL;
    ats_profiling_default(&p);
    ats_status status = app_find_model(app);
    if (status == ATS_OK) {
        interrupt_install();
        p.model = app->model;
        p.devices = flag_text(f, FLAG_DEVICE);
        p.n_threads = flag_int(f, FLAG_THREADS);
        app_types(app, &p.kv_k, &p.kv_v, &p.math);
        p.quick = flag_on(f, FLAG_PROFILE_QUICK);
        p.force = flag_on(f, FLAG_PROFILE_FORCE);
        p.progress = on_progress;
        p.progress_user = app;
        status = ats_profile(&p, &text);
        term_bar_clear(&app->term);
    }
    if (status == ATS_OK) status = json_parse(text, strlen(text), &o);
    int code = status == ATS_OK ? print(app, o) : app_fail(app, status);
    json_decref(o);
    ats_free(text);
    return code;
}
