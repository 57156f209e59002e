/* A model on a described machine, from the JSON of ats_simulate() (atsinfer.h). */
#include "app/cmd.h"
#include "base/file.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double real_of(const json_t *o, const char *key) {
    return json_number_value(json_object_get(o, key));
}

static void add_text(struct buf *out, const json_t *o, const char *key) {
    const char *s = json_string_value(json_object_get(o, key));
    if (s) term_add_safe(out, s, strlen(s));
}

/* One line of where a round's time goes. */
static void add_shares(struct buf *out, const char *name, const json_t *o) {
    char copied[32];
    buf_printf(out,
               "%-9s  GPU %3.0f%%, CPU %3.0f%%, copies %3.0f%% of %.2f ms; %.2f ms waiting for "
               "copies, %lld splits, %s copied\n",
               name, 100 * real_of(o, "gpu_busy"), 100 * real_of(o, "cpu_busy"),
               100 * real_of(o, "copy_busy"), 1e3 * real_of(o, "round_s"),
               1e3 * real_of(o, "exposed_s"),
               (long long)json_integer_value(json_object_get(o, "splits")),
               format_bytes(copied, sizeof copied, (uint64_t)real_of(o, "copied_bytes")));
}

static void add_limit(struct buf *out, const json_t *limits, const char *key, const char *name) {
    const json_t *o = json_object_get(limits, key);
    if (!json_is_number(json_object_get(o, "tok_s"))) return; /* nothing that is known binds */
    buf_printf(out, "%-9s  %.1f tok/s, bound by ", name, real_of(o, "tok_s"));
    add_text(out, o, "binds");
    buf_printf(out, ", hit %.0f%%\n", 100 * real_of(o, "hit"));
}

/* What the executor makes of it on simulated devices: of what it can run, if that is another thing.
 */
static void add_executed(struct buf *out, const json_t *o) {
    static const char *const names[] = {"decode", "prefill"};
    const json_t *executed = json_object_get(o, "executed");
    bool other = false;
    if (!executed) {
        buf_add_str(out, "executed   not: ");
        add_text(out, o, "not_executed");
        buf_add_str(out, "\n");
        return;
    }
    buf_add_str(out, "executed   ");
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        const json_t *one = json_object_get(executed, names[i]);
        double predicted_s = real_of(one, "predicted_s");
        buf_printf(out, "%s%s %.2f ms, predicted %.2f (%+.1f%%)", i ? "; " : "", names[i],
                   1e3 * real_of(one, "round_s"), 1e3 * predicted_s, 100 * real_of(one, "gap"));
        double told_s = real_of(json_object_get(o, names[i]), "round_s");
        if (i == 0) other = fabs(predicted_s - told_s) > 0.001 * told_s; /* of the same depth */
    }
    buf_add_str(out,
                other ? "\n           as far as it can: experts whole, caches in place\n" : "\n");
}

static void add_report(struct buf *out, const json_t *o) {
    char size[32], weights[32];
    const json_t *placement = json_object_get(o, "placement"),
                 *limits = json_object_get(o, "limits");
    buf_add_str(out, "model      ");
    add_text(out, o, "model");
    buf_printf(out, ", %s\nmachine    ",
               format_bytes(weights, sizeof weights, (uint64_t)real_of(o, "weight_bytes")));
    add_text(out, o, "machine");
    buf_printf(out, "\nplan       by ");
    add_text(out, o, "granularity");
    buf_printf(out, ", %s on the GPU, %.0f of %.0f items whole, %.0f of %.0f blocks divided\n",
               format_bytes(size, sizeof size, (uint64_t)real_of(placement, "gpu_bytes")),
               real_of(placement, "items_on_gpu"), real_of(placement, "items"),
               real_of(placement, "blocks_divided"), real_of(placement, "blocks"));
    buf_printf(out, "streaming  ");
    add_text(out, o, "transfer");
    buf_printf(out, ", %.0f slots of %s, chunks of %.0f tokens\n", real_of(o, "n_slots"),
               format_bytes(size, sizeof size, (uint64_t)real_of(o, "slot_bytes")),
               real_of(o, "n_batch"));
    buf_printf(out, "decode     %.2f tok/s at depth %.0f\nprefill    %.1f tok/s of %.0f tokens\n",
               real_of(o, "decode_tok_s"), real_of(o, "depth"), real_of(o, "prefill_tok_s"),
               real_of(o, "n_prompt"));
    add_shares(out, "decode", json_object_get(o, "decode"));
    add_shares(out, "prefill", json_object_get(o, "prefill"));
    add_executed(out, o);
    add_limit(out, limits, "round", "limit S6");
    add_limit(out, limits, "blocks", "limit S6b");
    add_limit(out, limits, "prefill", "prefill");
}

static void add_row(struct buf *out, const json_t *row, const char *phase) {
    const json_t *o = json_object_get(row, phase);
    const char *name = json_string_value(json_object_get(row, "name"));
    size_t width = 15, len = name ? strlen(name) : 0;
    if (name) term_add_safe(out, name, len);
    buf_printf(
        out, "%*s%10.2f %8.0f%% %10.2f %10.2f ms %8lld\n", (int)(len < width ? width - len : 0), "",
        real_of(o, "tok_s"), 100 * real_of(o, "gpu_busy"), real_of(o, "link_rate") / 1e9,
        1e3 * real_of(o, "exposed_s"), (long long)json_integer_value(json_object_get(o, "splits")));
}

static void add_rows(struct buf *out, const json_t *rows, const char *phase) {
    for (size_t i = 0; i < json_array_size(rows); i++)
        add_row(out, json_array_get(rows, i), phase);
}

/* What each part of the system gains, then each granularity. */
static void add_ablation(struct buf *out, const json_t *o) {
    static const char *const phases[] = {"decode", "prefill"};
    char size[32];
    buf_printf(out, "\nablation   %s for weights and KV, %.0f slots, chunks of %.0f tokens\n",
               format_bytes(size, sizeof size, (uint64_t)real_of(o, "budget_bytes")),
               real_of(o, "n_slots"), real_of(o, "n_batch"));
    for (size_t i = 0; i < COUNT_OF(phases); i++) {
        buf_printf(out, "\n%-15s%10s %9s %10s %13s %8s\n", phases[i], "tok/s", "GPU busy",
                   "link GB/s", "exposed", "splits");
        add_rows(out, json_object_get(o, "steps"), phases[i]);
        buf_add_str(out, "by\n");
        add_rows(out, json_object_get(o, "granularities"), phases[i]);
    }
}

/* ---- load ---- */

static void add_slow(struct buf *out, const json_t *slow) {
    const char *key;
    json_t *value;
    int n = 0;
    json_object_foreach((json_t *)(uintptr_t)slow, key, value) {
        if (json_number_value(value) < 1.0005) continue;
        buf_printf(out, "%s%s x%.2f", n++ ? ", " : "", key, json_number_value(value));
    }
    if (!n) buf_add_str(out, "none");
}

static void add_segment(struct buf *out, const json_t *o) {
    buf_printf(
        out, "%8.1f %9.2f %10.2f %7.2f %7.2f %8.1f%% %8lld %8.2f s  ", real_of(o, "start_s"),
        1e3 * real_of(o, "static_s"), 1e3 * real_of(o, "replanned_s"), 1e3 * real_of(o, "oracle_s"),
        1e3 * real_of(o, "mean_s"), 100 * real_of(o, "reduction"),
        (long long)json_integer_value(json_object_get(o, "switches")), real_of(o, "reaction_s"));
    add_slow(out, json_object_get(o, "slow"));
    buf_add_str(out, "\n");
}

/* Each stretch of the trace, then each switch. */
static void add_load(struct buf *out, const json_t *load) {
    const json_t *segments = json_object_get(load, "segments"),
                 *switches = json_object_get(load, "switches");
    buf_printf(out, "\nload       %.0f rounds, planned %.0f times, %.0f probes; ms a token\n",
               real_of(load, "rounds"), real_of(load, "solved"), real_of(load, "probes"));
    buf_printf(out, "%8s %9s %10s %7s %7s %9s %8s %10s  %s\n", "from s", "as it is", "replanned",
               "oracle", "mean", "less", "switches", "reaction", "slower");
    for (size_t i = 0; i < json_array_size(segments); i++)
        add_segment(out, json_array_get(segments, i));
    for (size_t i = 0; i < json_array_size(switches); i++) {
        const json_t *o = json_array_get(switches, i);
        buf_printf(out, "%8.2f s  plan %lld, %s, %.2f ms -> %.2f ms a token, for %.0f ms: ",
                   real_of(o, "at_s"), (long long)json_integer_value(json_object_get(o, "plan")),
                   json_is_true(json_object_get(o, "moves")) ? "shards moved" : "streams others",
                   1e3 * real_of(o, "old_s"), 1e3 * real_of(o, "new_s"),
                   1e3 * real_of(o, "cost_s"));
        add_text(out, o, "reason");
        buf_add_str(out, "\n");
    }
}

/* Described, or this one by its times. */
static ats_status find_machine(struct app *app, const char **machine) {
    TRY(app_find_model(app));
    *machine = flag_text(&app->flags, FLAG_SIM_MACHINE);
    if (!*machine) *machine = app_find_profile(app);
    if (*machine) return ATS_OK;
    return fail(ATS_BAD_ARGUMENT, "no machine: give a description with --machine "
                                  "(machines/*.json), or measure this one and its GPU (atsinfer "
                                  "profile)");
}

static void fill(struct app *app, const char *machine, ats_simulation *s) {
    const struct flags *f = &app->flags;
    ats_simulation_default(s);
    s->model = app->model;
    s->machine = machine;
    s->granularity = flag_text(f, FLAG_SIM_GRANULARITY);
    s->transfer = flag_text(f, FLAG_SIM_TRANSFER);
    s->paper_moe = strcmp(flag_text(f, FLAG_SIM_MOE_RULE), "paper") == 0;
    s->vram_mib = flag_int(f, FLAG_VRAM);
    s->n_ctx = flag_int(f, FLAG_SIM_CTX);
    app_types(app, &s->kv_k, &s->kv_v, &s->math);
    s->n_prompt = flag_int(f, FLAG_SIM_PROMPT);
    s->depth = flag_int(f, FLAG_SIM_DEPTH);
    s->n_batch = flag_int(f, FLAG_SIM_BATCH);
    s->n_slots = flag_int(f, FLAG_SIM_SLOTS);
    s->stream_caches = flag_on(f, FLAG_SIM_STREAM_KV);
    s->expert_hit_exponent = f->values[FLAG_SIM_HIT].real;
    s->plan = flag_text(f, FLAG_PLAN);
    s->ablation = flag_on(f, FLAG_SIM_ABLATION);
    s->load = flag_text(f, FLAG_SIM_LOAD);
    s->replan_threshold = f->values[FLAG_REPLAN_THRESHOLD].real;
    s->replan_interval = f->values[FLAG_REPLAN_INTERVAL].real;
    s->trace = flag_given(f, FLAG_TRACE);
    s->executed_trace = s->trace ? flag_text(f, FLAG_TRACE) : NULL;
}

/* The events of the executed round, which stand in the file, as one more process of the trace. */
static void add_executed_events(const char *path, json_t *events) {
    enum { EXECUTED = 3 }; /* after those of a decode round and a chunk */
    json_t *file = json_load_file(path, 0, NULL), *event;
    size_t i;
    json_array_foreach(json_object_get(file, "traceEvents"), i, event) {
        json_object_set_new(event, "pid", json_integer(EXECUTED));
        json_array_append(events, event);
    }
    json_decref(file);
}

/* Moves "trace" of the answer into a file, beside the executed round. */
MUST_CHECK static ats_status write_trace(const char *path, json_t *o) {
    json_t *trace = json_object();
    if (json_object_get(o, "executed")) add_executed_events(path, json_object_get(o, "trace"));
    json_object_set(trace, "traceEvents", json_object_get(o, "trace"));
    json_object_del(o, "trace");
    char *text = json_print(trace, false);
    ats_status status = file_check_output(path, "{");
    if (status == ATS_OK) status = file_write(path, text, strlen(text));
    free(text);
    json_decref(trace);
    return status;
}

static int print(struct app *app, json_t *o) {
    if (app->json) return app_print_told(app, o);
    struct buf out = {0};
    add_report(&out, o);
    const json_t *ablation = json_object_get(o, "ablation");
    if (ablation) add_ablation(&out, ablation);
    const json_t *load = json_object_get(o, "load");
    if (load) add_load(&out, load);
    int code = app_print(app, out.data, out.len);
    buf_free(&out);
    return code;
}

int cmd_simulate(struct app *app) {
    ats_simulation s;
    char *text = NULL;
    json_t *o = NULL;
    const char *machine;
    ats_status status = find_machine(app, &machine);
    if (status == ATS_OK) {
        fill(app, machine, &s);
        status = ats_simulate(&s, &text);
    }
    if (status == ATS_OK) status = json_parse(text, strlen(text), &o);
    if (status == ATS_OK && s.trace) status = write_trace(flag_text(&app->flags, FLAG_TRACE), o);
    int code = status == ATS_OK ? print(app, o) : app_fail(app, status);
    json_decref(o);
    ats_free(text);
    return code;
}
