/* `plan --machine`: the plan that would be made on a described machine and why, from the JSON of
 * ats_explain() (atsinfer.h). */
#include "app/cmd.h"
#include "app/explain.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static double real_of(const json_t *o, const char *key) {
    return json_number_value(json_object_get(o, key));
}

static void add_text(struct buf *out, const json_t *o, const char *key) {
    const char *s = json_string_value(json_object_get(o, key));
    if (s) term_add_safe(out, s, strlen(s));
}

static void add_size(struct buf *out, double bytes) {
    char text[32];
    buf_printf(out, "%11s", format_bytes(text, sizeof text, (uint64_t)bytes));
}

/* A described machine may be too small for the rest of a model. */
static void add_host(struct buf *out, const json_t *host, const json_t *memory) {
    double needs = real_of(host, "weight_bytes") + real_of(host, "kv_bytes");
    char all[32];
    if (!json_object_get(memory, "host_bytes") || needs <= real_of(memory, "host_bytes")) return;
    buf_printf(out,
               "the host has only %s: what does not fit is read from the file in every round,\n"
               "which no prediction here knows of\n",
               format_bytes(all, sizeof all, (uint64_t)real_of(memory, "host_bytes")));
}

static void add_memory(struct buf *out, const json_t *o) {
    static const char *const devices[] = {"gpu", "host"};
    const json_t *memory = json_object_get(o, "memory");
    buf_add_str(out, "machine: ");
    add_text(out, o, "machine");
    buf_printf(out, "\n\n%-8s %11s %11s\n", "device", "weights", "KV");
    for (size_t i = 0; i < COUNT_OF(devices); i++) {
        const json_t *d = json_object_get(o, devices[i]);
        buf_printf(out, "%-8s ", devices[i]);
        add_size(out, real_of(d, "weight_bytes"));
        buf_add_char(out, ' ');
        add_size(out, real_of(d, "kv_bytes"));
        buf_add_char(out, '\n');
    }
    buf_add_str(out, "of the GPU ");
    add_size(out, real_of(memory, "usable_bytes"));
    buf_add_str(out, " usable: weights and KV ");
    add_size(out, real_of(memory, "budget_bytes"));
    buf_add_str(out, ", buffers ");
    add_size(out, real_of(memory, "work_bytes"));
    buf_printf(out, ", %.0f slots of ", real_of(memory, "slots"));
    add_size(out, real_of(memory, "slot_bytes"));
    buf_add_str(out, "; left to others ");
    add_size(out, real_of(memory, "left_to_others_bytes"));
    buf_add_char(out, '\n');
    add_host(out, json_object_get(o, "host"), memory);
    buf_printf(out, "%.0f device changes a round\n", real_of(o, "device_changes"));
}

/* What it costs that homes were given, against the best plan for the same memory. */
static void add_cost(struct buf *out, const json_t *o) {
    const json_t *fixed = json_object_get(o, "fixed");
    double slower = real_of(fixed, "slower");
    if (real_of(fixed, "items") < 1) return;
    buf_printf(out,
               "\n%.0f of %.0f items were told where to be: decode %.2f tok/s, %.2f if all were "
               "free;\nprefill %.1f tok/s, %.1f if free; in all %.1f%% %s\n",
               real_of(fixed, "items"), real_of(fixed, "of"), real_of(o, "decode_tok_s"),
               real_of(fixed, "decode_free_tok_s"), real_of(o, "prefill_tok_s"),
               real_of(fixed, "prefill_free_tok_s"), 100 * fabs(slower),
               slower < 0 ? "faster" : "slower");
}

#define STREAMED "   with streaming: decode, prefill"

/* The end of a line: with what comes through the slots, if anything does. */
static void add_streamed(struct buf *out, const json_t *row) {
    if (json_object_get(row, "streamed_decode_tok_s"))
        buf_printf(out, " %24.2f %8.1f", real_of(row, "streamed_decode_tok_s"),
                   real_of(row, "streamed_prefill_tok_s"));
    buf_add_char(out, '\n');
}

static void add_predictions(struct buf *out, const json_t *o) {
    const json_t *list = json_object_get(o, "predictions");
    bool streams = json_object_get(json_array_get(list, 0), "streamed_decode_tok_s") != NULL;
    buf_printf(out, "\n%7s %14s %14s %8s%s\n", "depth", "decode tok/s", "prefill tok/s", "regret",
               streams ? STREAMED : "");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *p = json_array_get(list, i);
        buf_printf(out, "%7.0f %14.2f %14.1f %7.1f%%", real_of(p, "depth"),
                   real_of(p, "decode_tok_s"), real_of(p, "prefill_tok_s"),
                   100 * real_of(p, "regret"));
        add_streamed(out, p);
    }
}

static void add_limits(struct buf *out, const json_t *o) {
    static const struct {
        const char *key, *name;
    } kinds[] = {{"round", "a round"}, {"blocks", "its blocks"}, {"prefill", "a prefill"}};
    const json_t *limits = json_object_get(o, "limits");
    buf_add_char(out, '\n');
    for (size_t i = 0; i < COUNT_OF(kinds); i++) {
        const json_t *l = json_object_get(limits, kinds[i].key);
        if (!json_is_number(json_object_get(l, "tok_s")))
            continue; /* nothing that is known binds */
        buf_printf(out, "limit of %-11s %.1f tok/s, bound by ", kinds[i].name, real_of(l, "tok_s"));
        add_text(out, l, "binds");
        buf_add_char(out, '\n');
    }
}

static void add_changes(struct buf *out, const json_t *o) {
    static const char *const keys[][2] = {{"here", "as it is"},
                                          {"one_gib_more", "1 GiB more"},
                                          {"one_gib_less", "1 GiB less"},
                                          {"smaller_kv", "smaller KV type"},
                                          {"half_bus", "half the bus"}};
    const json_t *changes = json_object_get(o, "changes");
    bool streams = json_object_get(json_object_get(changes, "here"), "streamed_decode_tok_s");
    buf_printf(out, "\n%-16s %14s %14s%s\n", "with", "decode tok/s", "prefill tok/s",
               streams ? STREAMED : "");
    for (size_t i = 0; i < COUNT_OF(keys); i++) {
        const json_t *c = json_object_get(changes, keys[i][0]);
        if (!json_is_object(c)) continue;
        buf_printf(out, "%-16s %14.2f %14.1f", keys[i][1], real_of(c, "decode_tok_s"),
                   real_of(c, "prefill_tok_s"));
        add_streamed(out, c);
    }
}

void explain_add_kind(struct buf *out, const json_t *item) {
    struct buf name = {0};
    add_text(&name, item, "name");
    const char *text = buf_str(&name), *dot = NULL;
    if (real_of(item, "layer") >= 0 && strncmp(text, "blk.", 4) == 0) dot = strchr(text + 4, '.');
    buf_add_str(out, dot ? dot + 1 : text);
    buf_free(&name);
}

static void add_items(struct buf *out, const json_t *o) {
    const json_t *items = json_object_get(o, "items");
    buf_printf(out, "\n%-32s %11s %10s %10s  home\n", "item", "bytes", "CPU ms", "GPU ms");
    for (size_t i = 0; i < json_array_size(items); i++) {
        const json_t *row = json_array_get(items, i);
        struct buf name = {0};
        add_text(&name, row, "name");
        buf_printf(out, "%-32s ", buf_str(&name));
        buf_free(&name);
        add_size(out, real_of(row, "bytes"));
        buf_printf(out, " %10.4f %10.4f  ", 1e3 * real_of(row, "cpu_s"),
                   1e3 * real_of(row, "gpu_s"));
        add_text(out, row, "home");
        double share = real_of(row, "gpu_share");
        if (share > 0 && share < 1) buf_printf(out, " (GPU %.0f%%)", 100 * share);
        buf_add_str(out, ": ");
        add_text(out, row, "why");
        buf_add_char(out, '\n');
    }
}

/* What an engine predicts of the plan that it has made. */
static void add_prediction(struct buf *out, const json_t *o) {
    const json_t *p = json_object_get(o, "prediction");
    if (!p) return;
    buf_printf(out, "predicted: %.2f ms a token (%.1f tok/s) after %.0f, prompts %.0f tok/s; ",
               1e3 * real_of(p, "decode_s"), real_of(p, "decode_tok_s"), real_of(p, "depth"),
               real_of(p, "prefill_tok_s"));
    add_text(out, p, "binds");
    buf_printf(out, " %.0f%% of a round\n", 100 * real_of(p, "bound_share"));
    if (json_object_get(p, "cost_ms"))
        buf_printf(
            out,
            "what is given costs %+.2f ms a token, and a request takes %.1f%% longer than if "
            "all were free\n",
            real_of(p, "cost_ms"),
            100 * fmax(0, real_of(p, "request_s") / real_of(p, "free_request_s") - 1));
}

void explain_add(struct app *app, struct buf *out, const json_t *o) {
    add_memory(out, o);
    add_prediction(out, o);
    if (!json_object_get(o, "prediction")) add_cost(out, o);
    add_predictions(out, o);
    add_limits(out, o);
    add_changes(out, o);
    explain_add_map(out, json_object_get(o, "items"), term_width(STDOUT_FILENO),
                    app->term.out_tty && app->term.colour);
    explain_add_diff(out, o);
    if (flag_on(&app->flags, FLAG_INSPECT_TENSORS)) add_items(out, o);
}

static int print(struct app *app, json_t *o) {
    if (app->json) return app_print_told(app, o);
    struct buf out = {0};
    explain_add(app, &out, o);
    int code = app_print(app, buf_str(&out), out.len);
    buf_free(&out);
    return code;
}

static void fill(struct app *app, const char *machine, ats_simulation *s) {
    const struct flags *f = &app->flags;
    ats_options rules; /* as for an engine */
    app_engine_options(app, &rules);
    ats_simulation_default(s);
    s->model = app->model;
    s->machine = machine;
    s->granularity = flag_text(f, FLAG_SIM_GRANULARITY);
    s->transfer = flag_text(f, FLAG_SIM_TRANSFER);
    s->paper_moe = strcmp(flag_text(f, FLAG_SIM_MOE_RULE), "paper") == 0;
    s->expert_hit_exponent = f->values[FLAG_SIM_HIT].real;
    s->vram_mib = flag_int(f, FLAG_VRAM);
    s->n_ctx = flag_int(f, FLAG_CTX_SIZE);
    s->kv_k = rules.kv_k;
    s->kv_v = rules.kv_v;
    s->math = rules.math;
    s->n_batch = rules.n_batch;
    s->depth = rules.plan_depth;
    s->gpu_layers = rules.gpu_layers;
    s->overrides = rules.overrides;
    s->n_overrides = rules.n_overrides;
    s->n_cpu_moe = rules.n_cpu_moe;
    s->plan = rules.plan;
    s->diff = flag_text(f, FLAG_PLAN_DIFF);
}

int explain_plan(struct app *app, const char *machine) {
    ats_simulation s;
    char *text = NULL;
    json_t *o = NULL;
    ats_status status = app_check_rules(app);
    if (status == ATS_OK && flag_given(&app->flags, FLAG_SAVE_PLAN))
        status = fail(ATS_BAD_ARGUMENT, "--save-plan keeps a plan that this machine's devices are "
                                        "to run; one for a described machine is only told");
    if (status == ATS_OK) {
        fill(app, machine, &s);
        status = ats_explain(&s, &text);
    }
    if (status == ATS_OK) status = json_parse(text, strlen(text), &o);
    int code = status == ATS_OK ? print(app, o) : app_fail(app, status);
    json_decref(o);
    ats_free(text);
    return code;
}
