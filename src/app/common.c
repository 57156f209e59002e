#include "app/common.h"

#include "base/file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ------------------------------------------------------------------------------------- messages */

int exit_code_of(ats_status status) {
    switch (status) {
    case ATS_OK:
        return EXIT_OK;
    case ATS_BAD_ARGUMENT:
        return EXIT_USAGE;
    case ATS_NO_MEMORY:
        return EXIT_NO_MEMORY;
    case ATS_UNSUPPORTED:
        return EXIT_UNSUPPORTED;
    case ATS_CANCELLED:
        return EXIT_INTERRUPTED;
    default:
        return EXIT_FAILED;
    }
}

/* Names of files and tensors stand in messages: nothing in them may steer the terminal. */
static void print_message(struct app *app, const char *kind, const char *colour, const char *text) {
    struct buf line = {0};
    term_bar_clear(&app->term);
    buf_printf(&line, "atsinfer: %s%s%s", app->term.colour ? colour : "", kind,
               app->term.colour && *colour ? "\033[0m" : "");
    term_add_safe(&line, text, strlen(text));
    buf_add_char(&line, '\n');
    fputs(line.data, stderr);
    fflush(stderr);
    buf_free(&line);
}

static const char *status_name(ats_status status) {
    switch (status) {
#define STATUS_NAME(name, value, text)                                                             \
    case name:                                                                                     \
        return &#name[4]; /* without ATS_ */
        ATS_STATUS_MAP(STATUS_NAME)
#undef STATUS_NAME
    }
    return "FAILED";
}

int app_fail(struct app *app, ats_status status) {
    const char *text = ats_error_text();
    if (!*text) text = ats_status_text(status);
    print_message(app, "error: ", "\033[31m", text);
    int code = exit_code_of(status);
    if (app->json && code != EXIT_USAGE) {
        json_t *object = app_json(app), *error = json_object();
        json_object_set_new(error, "status", json_string(status_name(status)));
        json_object_set_new(error, "message", json_string_replaced(text, strlen(text)));
        json_object_set_new(object, "error", error);
        char *line = json_print(object, false);
        if (app_write(line, strlen(line)) == ATS_OK && app_write("\n", 1) != ATS_OK) error_clear();
        free(line);
        json_decref(object);
    }
    if (code == EXIT_USAGE && app->flags.command == CMD_HELP)
        fputs("Try: atsinfer help\n", stderr);
    else if (code == EXIT_USAGE)
        fprintf(stderr, "Try: atsinfer %s --help\n", commands[app->flags.command].name);
    return code;
}

void app_warn(struct app *app, const char *format, ...) {
    struct buf text = {0};
    va_list args;
    va_start(args, format);
    buf_vprintf(&text, format, args);
    va_end(args);
    print_message(app, "warning: ", "\033[33m", buf_str(&text));
    buf_free(&text);
}

void app_note(struct app *app, const char *format, ...) {
    if (app->quiet) return;
    struct buf text = {0};
    va_list args;
    va_start(args, format);
    buf_vprintf(&text, format, args);
    va_end(args);
    print_message(app, "", "", buf_str(&text));
    buf_free(&text);
}

/* --------------------------------------------------------------------------------------- output */

ats_status app_write(const void *bytes, size_t n) {
    errno = 0;
    if (fwrite(bytes, 1, n, stdout) == n && fflush(stdout) == 0) return ATS_OK;
    return fail(ATS_IO, "cannot write to standard output: %s",
                errno ? strerror(errno) : "write error");
}

int app_print(struct app *app, const char *bytes, size_t n) {
    ats_status status = app_write(bytes, n);
    if (status == ATS_OK) return EXIT_OK;
    app->json = false; /* no use in writing the error where nothing can be written */
    return app_fail(app, status);
}

json_t *app_json(const struct app *app) {
    json_t *object = json_object();
    json_object_set_new(object, "schema", json_integer(1));
    json_object_set_new(object, "command", json_string(commands[app->flags.command].name));
    return object;
}

int app_print_json(struct app *app, json_t *object) {
    char *text = json_print(object, false);
    struct buf line = {0};
    buf_add_str(&line, text);
    buf_add_char(&line, '\n');
    int code = app_print(app, line.data, line.len);
    buf_free(&line);
    free(text);
    json_decref(object);
    return code;
}

int app_print_told(struct app *app, json_t *told) {
    json_t *answer = app_json(app);
    json_object_update_missing(answer, told);
    return app_print_json(app, answer);
}

/* --------------------------------------------------------------------------------------- engine */

#define DEMO_MODEL "SmolLM2-135M-Instruct.Q4_1.gguf"

ats_status app_find_model(struct app *app) {
    const struct flags *f = &app->flags;
    const struct flag_value *flag = &f->values[FLAG_MODEL];
    bool positional = f->n_positionals > 0 && f->command != CMD_TOKENIZE;
    if (positional && flag->source == SOURCE_COMMAND_LINE)
        return fail(ATS_BAD_ARGUMENT, "the model is given twice: %s and -m %s", f->positionals[0],
                    flag->text);
    app->model = positional ? f->positionals[0] : flag->text;
    if (app->model && *app->model) return ATS_OK;
    if (app->model) return fail(ATS_BAD_ARGUMENT, "the name of the model is empty");
    char *data;
    if (dir_path(DIR_DATA, false, &data) == ATS_OK) {
        app->model = arena_printf(&app->arena, "%s/models/" DEMO_MODEL, data);
        free(data);
        if (file_exists(app->model)) return ATS_OK;
    }
    app->model = NULL;
    return fail(ATS_BAD_ARGUMENT,
                "no model: give a GGUF file with -m FILE (or set ATSINFER_MODEL); ./demo fetches "
                "a small one, others are on model hubs under the word \"GGUF\"");
}

void app_types(const struct app *app, ats_kv_type *kv_k, ats_kv_type *kv_v, ats_math *math) {
    static const ats_math maths[] = {ATS_MATH_DEFAULT, ATS_MATH_F32, ATS_MATH_BF16};
    *kv_k = (ats_kv_type)flag_int(&app->flags, FLAG_CACHE_TYPE_K);
    *kv_v = (ats_kv_type)flag_int(&app->flags, FLAG_CACHE_TYPE_V);
    *math = maths[flag_int(&app->flags, FLAG_MATH)];
}

int app_batch(const struct flags *f, int n_batch, enum flag_id ubatch) {
    if (!flag_given(f, ubatch)) return n_batch;
    return n_batch ? min_int(n_batch, flag_int(f, ubatch)) : flag_int(f, ubatch);
}

void app_engine_options(struct app *app, ats_options *o) {
    const struct flags *f = &app->flags;
    ats_options_default(o);
    o->model = app->model;
    o->n_ctx = flag_int(f, FLAG_CTX_SIZE);
    o->n_batch = app_batch(f, flag_int(f, FLAG_BATCH_SIZE), FLAG_UBATCH_SIZE);
    o->n_threads = flag_int(f, FLAG_THREADS);
    o->n_threads_batch = flag_int(f, FLAG_THREADS_BATCH);
    o->pin = flag_int(f, FLAG_PIN) == 1;
    app_types(app, &o->kv_k, &o->kv_v, &o->math);
    o->devices = flag_text(f, FLAG_DEVICE);
    o->gpu_layers = flag_text(f, FLAG_GPU_LAYERS);
    o->overrides = f->values[FLAG_OVERRIDE_TENSOR].texts;
    o->n_overrides = (int)f->values[FLAG_OVERRIDE_TENSOR].n;
    o->n_cpu_moe = flag_on(f, FLAG_CPU_MOE) ? -1 : flag_int(f, FLAG_N_CPU_MOE);
    o->vram_mib = flag_int(f, FLAG_VRAM);
    o->profile = flag_text(f, FLAG_PROFILE);
    o->granularity = flag_text(f, FLAG_SIM_GRANULARITY);
    o->transfer = flag_text(f, FLAG_SIM_TRANSFER);
    o->paper_moe = strcmp(flag_text(f, FLAG_SIM_MOE_RULE), "paper") == 0;
    o->one_program = flag_on(f, FLAG_ONE_PROGRAM);
    o->plan_depth = flag_int(f, FLAG_PLAN_DEPTH);
    o->dynamic = (ats_dynamic)flag_int(f, FLAG_DYNAMIC);
    o->replan_threshold = f->values[FLAG_REPLAN_THRESHOLD].real;
    o->replan_interval = f->values[FLAG_REPLAN_INTERVAL].real;
    o->plan = flag_text(f, FLAG_PLAN);
    o->cpu_isa = flag_text(f, FLAG_CPU_ISA);
    o->plan_seed = (uint64_t)f->values[FLAG_PLAN_SEED].integer;
    o->no_repack = flag_on(f, FLAG_NO_REPACK);
    o->no_fusion = flag_on(f, FLAG_NO_FUSION);
    o->force = flag_on(f, FLAG_FORCE);
    o->trace = flag_text(f, FLAG_TRACE);
}

const char *app_find_profile(struct app *app) {
    const struct flags *f = &app->flags;
    const char *profile = flag_text(f, FLAG_PROFILE);
    ats_profiling p;
    if (profile && strcmp(profile, "off") == 0) return NULL;
    if (profile && strcmp(profile, "auto") != 0) return profile;
    ats_profiling_default(&p);
    p.model = app->model;
    p.devices = flag_text(f, FLAG_DEVICE);
    p.n_threads = flag_int(f, FLAG_THREADS);
    app_types(app, &p.kv_k, &p.kv_v, &p.math);
    char *path = ats_profile_find(&p);
    const char *found = path ? arena_strdup(&app->arena, path) : NULL;
    ats_free(path);
    return found;
}

static bool on_load_progress(void *user, const char *what, uint64_t done, uint64_t total) {
    struct app *app = user;
    char a[32], b[32], detail[80] = "";
    if (total >= 1 << 20)
        snprintf(detail, sizeof detail, "%s of %s", format_bytes(a, sizeof a, done),
                 format_bytes(b, sizeof b, total));
    term_bar(&app->term, what, done, total, detail);
    return !interrupt_pending();
}

static bool on_cancel(void *user) {
    (void)user;
    return interrupt_pending();
}

ats_status app_check_rules(const struct app *app) {
    if (!flag_on(&app->flags, FLAG_CPU_MOE) || !flag_given(&app->flags, FLAG_N_CPU_MOE))
        return ATS_OK;
    return fail(ATS_BAD_ARGUMENT, "--cpu-moe and --n-cpu-moe exclude each other");
}

ats_status app_engine_open(struct app *app, ats_options *options, ats_engine **out) {
    const char *path = flag_text(&app->flags, FLAG_SAVE_PLAN);
    interrupt_install();
    TRY(app_check_rules(app));
    if (path) TRY(file_check_output(path, "{"));
    options->progress = on_load_progress;
    options->progress_user = app;
    ats_status status = ats_engine_open(options, out);
    term_bar_clear(&app->term);
    if (status != ATS_OK) return status;
    ats_engine_set_cancel(*out, on_cancel, NULL);
    if (!path) return ATS_OK;
    char *plan = ats_engine_plan(*out);
    if (plan) status = file_write(path, plan, strlen(plan));
    ats_free(plan);
    if (status == ATS_OK) return ATS_OK;
    ats_engine_close(*out);
    *out = NULL;
    return status;
}

ats_status app_vocabulary_open(struct app *app, ats_engine **out) {
    ats_options options;
    ats_options_default(&options);
    options.model = app->model;
    options.metadata_only = true;
    options.force = flag_on(&app->flags, FLAG_FORCE);
    return app_engine_open(app, &options, out);
}

/* ---------------------------------------------------------------------------------------- input */

ats_status app_read_input(const char *path, char **text, size_t *n_bytes) {
    const size_t max_bytes = (size_t)1 << 30;
    if (!strcmp(path, "-")) return file_read_stdin(max_bytes, text, n_bytes);
    return file_read(path, max_bytes, text, n_bytes);
}

static bool is_blank(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

ats_status app_parse_ids(const char *name, const char *text, size_t n_bytes, int n_vocab,
                         int32_t **ids, size_t *n_ids) {
    int32_t *out = NULL;
    size_t n = 0, cap = 0;
    for (size_t i = 0; i < n_bytes;) {
        if (is_blank(text[i])) {
            i++;
            continue;
        }
        size_t begin = i;
        while (i < n_bytes && !is_blank(text[i]))
            i++;
        char word[24] = "";
        int64_t id = -1;
        if (i - begin < sizeof word) memcpy(word, text + begin, i - begin);
        if (strlen(word) != i - begin || !parse_i64(word, &id) || id < 0 || id >= n_vocab) {
            free(out);
            return fail(ATS_BAD_INPUT, "%s: id %zu, \"%.*s\", is not a whole number from 0 to %d",
                        name, n, (int)min_size(i - begin, 40), text + begin, n_vocab - 1);
        }
        GROW(out, n, cap, 1);
        out[n++] = (int32_t)id;
    }
    *ids = out;
    *n_ids = n;
    return ATS_OK;
}

/* -------------------------------------------------------------------------------------- numbers */

const char *format_bytes(char *out, size_t n, uint64_t bytes) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double v = (double)bytes;
    size_t u = 0;
    while (v >= 1024 && u + 1 < COUNT_OF(units))
        v /= 1024, u++;
    snprintf(out, n, u ? "%.1f %s" : "%.0f %s", v, units[u]);
    return out;
}

const char *format_count(char *out, size_t n, uint64_t count) {
    static const char *const units[] = {"", " K", " M", " B", " T"};
    double v = (double)count;
    size_t u = 0;
    while (v >= 1000 && u + 1 < COUNT_OF(units))
        v /= 1000, u++;
    snprintf(out, n, u ? "%.2f%s" : "%.0f%s", v, units[u]);
    return out;
}

double per_second(uint64_t n, uint64_t ns) {
    return ns ? (double)n * 1e9 / (double)ns : 0;
}
