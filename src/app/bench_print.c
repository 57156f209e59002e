#include "app/bench.h"

#include "app/stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const kv_names[] = {"f16", "f32", "q8_0"}; /* of ats_kv_type */

void bench_test_name(struct buf *out, const struct bench_test *t) {
    if (t->n_prompt) buf_printf(out, "pp%d", t->n_prompt);
    if (t->n_gen) buf_printf(out, "%stg%d", t->n_prompt ? "+" : "", t->n_gen);
    if (t->n_depth) buf_printf(out, " @ d%d", t->n_depth);
}

/* "llama 134.52 M Q4_1" */
static char *model_type(const struct bench_printer *p, const ats_info *info) {
    char count[32];
    return arena_printf(&p->app->arena, "%s %s %s", info->architecture,
                        format_count(count, sizeof count, info->n_params), info->file_type);
}

/* Mean and deviation of tokens per second over the samples. */
static void rates(const struct bench_result *r, double *mean, double *deviation) {
    double *v = xcalloc((size_t)r->n_samples, sizeof *v);
    for (int i = 0; i < r->n_samples; i++)
        v[i] = (double)(r->test.n_prompt + r->test.n_gen) * 1e9 / fmax(r->samples_ns[i], 1);
    *mean = stats_mean(v, (size_t)r->n_samples);
    *deviation = stats_deviation(v, (size_t)r->n_samples);
    free(v);
}

/* ----------------------------------------------------------------------------------------- JSON */

static void set_text(json_t *o, const char *key, const char *text) {
    json_object_set_new(o, key, json_string_replaced(text, strlen(text)));
}

static void set_int(json_t *o, const char *key, double value) {
    json_object_set_new(o, key, json_integer((json_int_t)llround(value)));
}

json_t *bench_result_json(const struct bench_printer *p, const struct bench_result *r) {
    const ats_info *info = &r->info;
    double ts, ts_deviation;
    json_t *o = json_object(), *ns = json_array(), *per_s = json_array();
    rates(r, &ts, &ts_deviation);
    set_text(o, "build_commit", "atsinfer " ATS_VERSION);
    set_text(o, "cpu_info", p->cpu);
    set_text(o, "backends", "CPU");
    set_text(o, "model_filename", p->app->model);
    set_text(o, "model_type", model_type(p, info));
    set_int(o, "model_size", (double)info->weight_bytes);
    set_int(o, "model_n_params", (double)info->n_params);
    set_int(o, "n_batch", info->n_batch);
    set_int(o, "n_ubatch", info->n_batch);
    set_int(o, "n_threads", info->n_threads);
    set_int(o, "n_threads_batch", info->n_threads_batch);
    set_text(o, "cpu_isa", info->cpu_isa);
    static const char *const maths[] = {"q8", "f32", "bf16"};
    set_text(o, "math", maths[flag_int(&p->app->flags, FLAG_MATH)]);
    set_text(o, "type_k", kv_names[r->type_k]);
    set_text(o, "type_v", kv_names[r->type_v]);
    set_int(o, "n_prompt", r->test.n_prompt);
    set_int(o, "n_gen", r->test.n_gen);
    set_int(o, "n_depth", r->test.n_depth);
    set_text(o, "token_stream", r->from_text ? "text" : "generator");
    set_text(o, "test_time", r->test_time);
    set_int(o, "avg_ns", stats_mean(r->samples_ns, (size_t)r->n_samples));
    set_int(o, "stddev_ns", stats_deviation(r->samples_ns, (size_t)r->n_samples));
    json_object_set_new(o, "avg_ts", json_real(ts));
    json_object_set_new(o, "stddev_ts", json_real(ts_deviation));
    for (int i = 0; i < r->n_samples; i++) {
        double n = r->test.n_prompt + r->test.n_gen;
        json_array_append_new(ns, json_integer((json_int_t)llround(r->samples_ns[i])));
        json_array_append_new(per_s, json_real(n * 1e9 / fmax(r->samples_ns[i], 1)));
    }
    if (r->has_metrics) bench_metrics_json(o, r);
    json_object_set_new(o, "samples_ns", ns);
    json_object_set_new(o, "samples_ts", per_s);
    return o;
}

/* ------------------------------------------------------------------------------------------ CSV */

/* Keys or values of everything but the lists of samples, quoted. */
static void add_csv(struct buf *out, json_t *o, bool keys) {
    const char *key;
    json_t *value;
    bool first = true;
    json_object_foreach(o, key, value) {
        if (json_is_array(value)) continue;
        char *text = keys                    ? xstrdup(key)
                     : json_is_string(value) ? xstrdup(json_string_value(value))
                                             : json_print(value, false);
        buf_add_str(out, first ? "" : ",");
        if (!keys) buf_add_char(out, '"');
        for (const char *s = text; *s; s++) {
            if (*s == '"') buf_add_char(out, '"');
            buf_add_char(out, *s);
        }
        if (!keys) buf_add_char(out, '"');
        first = false;
        free(text);
    }
    buf_add_char(out, '\n');
}

/* ------------------------------------------------------------------------------------- Markdown */

struct column {
    const char *title;
    int width; /* negative: left-aligned */
    bool shown;
};
enum { N_OWN_COLUMNS = 10, N_COLUMNS = N_OWN_COLUMNS + N_METRIC_COLUMNS };

static void set_columns(const struct bench_printer *p, struct column *c) {
    const struct column own[N_OWN_COLUMNS] = {
        {"model", -30, true},
        {"size", 10, true},
        {"params", 10, true},
        {"backend", -7, true},
        {"threads", 7, true},
        {"n_batch", 7, p->show_batch},
        {"type_k", 6, p->show_type_k},
        {"type_v", 6, p->show_type_v},
        {"test", 15, true},
        {"t/s", 20, true},
    };
    memcpy(c, own, sizeof own);
    for (int i = 0; i < N_METRIC_COLUMNS; i++)
        c[N_OWN_COLUMNS + i] = (struct column){bench_metric_columns[i].title,
                                               bench_metric_columns[i].width, p->show_metrics};
}

static void add_md_title(struct buf *out, const struct bench_printer *p) {
    struct column columns[N_COLUMNS];
    set_columns(p, columns);
    for (int i = 0; i < N_COLUMNS; i++)
        if (columns[i].shown) buf_printf(out, "| %*s ", columns[i].width, columns[i].title);
    buf_add_str(out, "|\n");
    for (int i = 0; i < N_COLUMNS; i++) {
        if (!columns[i].shown) continue;
        buf_add_str(out, "| ");
        for (int k = 1; k < abs(columns[i].width); k++)
            buf_add_char(out, '-');
        buf_add_str(out, columns[i].width < 0 ? "- " : ": ");
    }
    buf_add_str(out, "|\n");
}

static void add_md(struct buf *out, const struct bench_printer *p, const struct bench_result *r) {
    struct column columns[N_COLUMNS];
    struct arena *a = &p->app->arena;
    struct buf test = {0};
    char size[32], params[32];
    double ts, deviation;
    set_columns(p, columns);
    rates(r, &ts, &deviation);
    bench_test_name(&test, &r->test);
    const char *cells[N_COLUMNS] = {
        model_type(p, &r->info),
        format_bytes(size, sizeof size, r->info.weight_bytes),
        format_count(params, sizeof params, r->info.n_params),
        "CPU",
        arena_printf(a, "%d", r->info.n_threads),
        arena_printf(a, "%d", r->info.n_batch),
        kv_names[r->type_k],
        kv_names[r->type_v],
        buf_str(&test),
        arena_printf(a, "%.2f ± %.2f", ts, deviation),
    };
    bench_metrics_cells(a, r, cells + N_OWN_COLUMNS);
    for (int i = 0; i < N_COLUMNS; i++) {
        /* The sign of two bytes fills one column. */
        int extra = i == N_OWN_COLUMNS - 1;
        if (columns[i].shown) buf_printf(out, "| %*s ", columns[i].width + extra, cells[i]);
    }
    buf_add_str(out, "|\n");
    buf_free(&test);
}

/* -------------------------------------------------------------------------------------- printer */

void bench_printer_open(struct bench_printer *p, struct app *app) {
    const struct flags *f = &app->flags;
    *p = (struct bench_printer){.app = app,
                                .format = (enum bench_format)flag_int(f, FLAG_BENCH_OUTPUT),
                                .one_object = app->json,
                                .show_batch = flag_given(f, FLAG_BENCH_BATCH) ||
                                              flag_given(f, FLAG_BENCH_UBATCH),
                                .show_type_k = flag_given(f, FLAG_BENCH_TYPE_K),
                                .show_type_v = flag_given(f, FLAG_BENCH_TYPE_V),
                                .results = json_array()};
    char *machine = ats_machine_describe();
    json_t *o = NULL;
    const char *name = NULL;
    if (machine && json_parse(machine, strlen(machine), &o) == ATS_OK)
        name = json_string_value(json_object_get(json_object_get(o, "cpu"), "model"));
    p->cpu = xstrdup(name ? name : "");
    json_decref(o);
    ats_free(machine);
}

void bench_printer_close(struct bench_printer *p) {
    json_decref(p->results);
    free(p->cpu);
    *p = (struct bench_printer){0};
}

ats_status bench_print(struct bench_printer *p, const struct bench_result *r) {
    struct buf out = {0};
    json_t *o = bench_result_json(p, r);
    if (!p->begun) p->show_metrics = r->has_metrics;
    if (p->one_object || p->format == BENCH_JSON) {
        json_array_append(p->results, o);
    } else if (p->format == BENCH_JSONL) {
        char *line = json_print(o, false);
        buf_printf(&out, "%s\n", line);
        free(line);
    } else if (p->format == BENCH_CSV) {
        if (!p->begun) add_csv(&out, o, true);
        add_csv(&out, o, false);
    } else {
        if (!p->begun) add_md_title(&out, p);
        add_md(&out, p, r);
    }
    p->begun = true;
    json_decref(o);
    ats_status status = out.len ? app_write(out.data, out.len) : ATS_OK;
    buf_free(&out);
    return status;
}

ats_status bench_print_end(struct bench_printer *p) {
    if (!p->one_object && p->format != BENCH_JSON) return ATS_OK;
    json_t *o = p->one_object ? app_json(p->app) : NULL;
    if (o) json_object_set(o, "results", p->results);
    char *text = json_print(o ? o : p->results, !p->one_object);
    ats_status status = app_write(text, strlen(text));
    if (status == ATS_OK) status = app_write("\n", 1);
    free(text);
    json_decref(o);
    return status;
}
