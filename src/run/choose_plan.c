#include "run/choose_plan.h"

#include <stdlib.h>
#include <string.h>
#include "base/buf.h"
#include "base/file.h"
#include "base/log.h"
#include "plan/names.h"
#include "run/choose_internal.h"

#define PLAN_FILE_BYTES ((size_t)64 << 20)

void choice_free(struct plan_choice *c) {
    plan_file_close(c->file);
    c->file = NULL;
}

/* ---- devices ---- */

static bool has_rules(const ats_options *o) {
    return o->gpu_layers || o->n_overrides || o->n_cpu_moe || o->vram_mib;
}

/* "-ngl 0" is how one asks for the CPU. */
static bool wants_none(const ats_options *o) {
    return o->gpu_layers && strcmp(o->gpu_layers, "0") == 0 && !o->n_overrides;
}

ats_status choice_check(const char *plan, const char *gpu_layers, int n_overrides, int n_cpu_moe) {
    int n_layers;
    if (gpu_layers) TRY(plan_layers_parse(gpu_layers, &n_layers));
    if (!plan || !(gpu_layers || n_overrides || n_cpu_moe)) return ATS_OK;
    return fail(ATS_BAD_ARGUMENT, "a plan's file says where everything is: it excludes rules "
                                  "of layers, tensors or experts");
}

static ats_status check_plan_options(const ats_options *o) {
    TRY(choice_check(o->plan, o->gpu_layers, o->n_overrides, o->n_cpu_moe));
    if (o->plan_seed && (o->plan || has_rules(o)))
        return fail(ATS_BAD_ARGUMENT, "a random plan excludes another one");
    return ATS_OK;
}

ats_status choice_read_file(const char *path, struct plan_file **out) {
    char *text;
    size_t n_bytes;
    TRY(file_read(path, PLAN_FILE_BYTES, &text, &n_bytes));
    ats_status status = plan_file_open(text, n_bytes, out);
    free(text);
    return status == ATS_OK ? ATS_OK : fail_in(status, "%s", path);
}

/* "cpu#2", in a plan's file the second of that name, is opened as "cpu". */
static char *file_device_list(ats_engine *e) {
    struct buf list = {0};
    int n;
    const char *const *names = plan_file_devices(e->choice.file, &n);
    for (int i = 0; i < n; i++) {
        if (i) buf_add_char(&list, ',');
        buf_add(&list, names[i], strcspn(names[i], "#"));
    }
    char *copy = arena_strdup(&e->arena, buf_str(&list));
    buf_free(&list);
    return copy;
}

bool choose_has_gpu(void) {
    struct backend_device_info found[16];
    bool real = false;
    if (!backend_may_have_gpu()) return false;
    int n = backend_list_devices(found, COUNT_OF(found));
    for (int i = 0; i < n; i++)
        real |= found[i].usable && !found[i].software;
    error_clear();
    return real;
}

/* In a list of devices; in the sense of backend.gpu, before they are opened. */
static bool has_processor(const char *list) {
    for (const char *name = list; name; name = strchr(name, ',')) {
        name += *name == ',';
        if (strncmp(name, "cpu", 3) == 0) return true;
        if (strncmp(name, "sim", 3) == 0 && strncmp(name, "sim:gpu", 7) != 0) return true;
    }
    return false;
}

static char *device_list(ats_engine *e) {
    const ats_options *o = &e->options;
    bool leaves_rest = has_rules(o) && !(o->gpu_layers && strcmp(o->gpu_layers, "all") == 0 &&
                                         !o->n_overrides && !o->n_cpu_moe);
    if (o->devices && (!leaves_rest || has_processor(o->devices)))
        return arena_strdup(&e->arena, o->devices);
    if (o->devices)
        return arena_printf(&e->arena, "%s,%s",
                            strncmp(o->devices, "sim", 3) == 0 ? "sim:cpu" : "cpu", o->devices);
    if (e->choice.file) return file_device_list(e);
    return arena_strdup(&e->arena, !wants_none(o) && choose_has_gpu() ? "cpu,vulkan" : "cpu");
}

ats_status choose_devices(ats_engine *e) {
    TRY(check_plan_options(&e->options));
    e->names_given = e->options.devices != NULL || e->options.plan != NULL;
    if (e->options.plan) TRY(choice_read_file(e->options.plan, &e->choice.file));
    char *rest = device_list(e);
    for (char *name = strsep(&rest, ","); name; name = strsep(&rest, ",")) {
        if (!name[0]) return fail(ATS_BAD_ARGUMENT, "the list of devices has an empty name");
        if (e->n_devices == EXECUTOR_MAX_DEVICES)
            return fail(ATS_BAD_ARGUMENT, "more than %d devices", EXECUTOR_MAX_DEVICES);
        e->device_names[e->n_devices++] = name;
    }
    return ATS_OK;
}

/* From now on devices are called what their backends call them, each differently. */
static void name_devices(ats_engine *e) {
    for (int d = 0; d < e->n_devices; d++)
        if (strncmp(e->device_names[d], "sim", 3) != 0)
            e->device_names[d] = arena_strdup(&e->arena, e->devices[d]->name);
    names_number(&e->arena, e->device_names, e->n_devices);
}

/* ---- what fits ---- */

void choosing_count(const struct choosing *c, const struct plan *plan, struct ledger *out) {
    struct arena scratch = {0};
    struct programs programs;
    programs_lower(&scratch, c->g, plan, c->e->devices, c->o->n_tokens, c->o->n_rows, &programs);
    ledger_count(&scratch, c->e->model, &programs, c->e->devices, c->o, out);
    ledger_forget(out); /* arrays that lay in scratch */
    arena_free(&scratch);
}

static bool layers_fit(struct choosing *c, int n_layers, int64_t budget) {
    struct arena scratch = {0};
    struct ledger ledger;
    c->rules.n_gpu_layers = n_layers;
    choosing_count(c, plan_by_rules(&scratch, c->g, c->e->n_devices, &c->rules, NULL), &ledger);
    arena_free(&scratch);
    return ledger_own_bytes(&ledger.devices[c->rules.gpu]) <= budget;
}

/* The most layers that fit: what they need grows with their number. */
static int most_layers(struct choosing *c, int64_t budget) {
    int fits = 0, too_many = graph_n_layers(c->g) + 2;
    while (fits + 1 < too_many) {
        int n = fits + (too_many - fits) / 2;
        if (layers_fit(c, n, budget))
            fits = n;
        else
            too_many = n;
    }
    return fits;
}

/* What may be promised of a GPU's memory: --vram, clamped to what there is. */
static int64_t gpu_budget(struct choosing *c, struct backend *gpu) {
    struct backend_memory m;
    gpu->fn->memory(gpu, &m);
    int64_t most = ledger_limit_bytes(&m), wanted = (int64_t)c->e->options.vram_mib << 20;
    if (!wanted) return m.measured ? most : m.free_bytes;
    if (wanted <= most) return wanted;
    log_msg(LOG_WARN, "%s: %d MiB are wanted, %.0f are free: these are used", gpu->name,
            c->e->options.vram_mib, ledger_mib(most));
    return most;
}

/* ---- rules ---- */

/* Operators that no plan places are computed where their result is
 * needed or where their inputs are: then what comes after and before them must not be there. */
static const char *const *find_lacking(struct arena *arena, const struct graph *g,
                                       struct backend *gpu) {
    const char **lacking = ARENA_ARRAY(arena, const char *, g->n_ops);
    for (int i = 0; i < g->n_ops; i++) {
        const struct graph_op *op = &g->ops[i];
        lacking[i] = gpu->fn->lacks(gpu, g, op);
        for (int j = 0; j < op->n_in && !lacking[i]; j++) {
            int before = g->values[op->in[j]].producer;
            if (!op_is_placed(&g->ops[before])) lacking[i] = lacking[before];
        }
    }
    for (int i = g->n_ops - 1; i >= 0; i--) {
        const struct graph_op *op = &g->ops[i];
        for (int j = 0; lacking[i] && !op_is_placed(op) && j < op->n_in; j++)
            lacking[g->values[op->in[j]].producer] = lacking[i];
    }
    return lacking;
}

static ats_status read_overrides(struct choosing *c) {
    const ats_options *o = &c->e->options;
    const char *names[EXECUTOR_MAX_DEVICES + 2];
    int devices[EXECUTOR_MAX_DEVICES + 2], n = 0;
    if (c->n_cpus) names[n] = "cpu", devices[n++] = c->rules.cpu;
    if (c->n_gpus) names[n] = "gpu", devices[n++] = c->rules.gpu;
    for (int d = 0; d < c->e->n_devices; d++)
        if (strcmp(c->e->device_names[d], "cpu") != 0)
            names[n] = c->e->device_names[d], devices[n++] = d;
    for (int i = 0; i < o->n_overrides; i++)
        TRY(plan_overrides_parse(o->overrides[i], names, devices, n, &c->overrides,
                                 &c->n_overrides));
    c->rules.overrides = c->overrides;
    c->rules.n_overrides = c->n_overrides;
    return ATS_OK;
}

static bool uses_device(const struct plan *plan, int device) {
    for (int i = 0; i < plan->n_parts; i++)
        if (plan->parts[i].device == device) return true;
    return plan->prompts && uses_device(plan->prompts, device);
}

/* The GPU has nothing to do: it is closed, and the CPU is the only device. */
static void leave_gpu(struct choosing *c) {
    ats_engine *e = c->e;
    backend_close(e->devices[c->rules.gpu]);
    e->devices[0] = e->devices[c->rules.cpu];
    e->device_names[0] = e->device_names[c->rules.cpu];
    e->devices[1] = NULL;
    e->n_devices = 1;
    c->o->device_bytes[0] = c->o->device_bytes[1] = 0;
    e->plan = plan_whole(&e->arena, c->g, 1, 0);
}

static void describe_layers(struct choosing *c, int n_lacking) {
    ats_engine *e = c->e;
    const char *gpu = e->device_names[c->rules.gpu];
    int n_layers = graph_n_layers(c->g), n = min_int(c->rules.n_gpu_layers, n_layers + 1);
    e->choice.n_gpu_layers = n;
    e->choice.how =
        arena_printf(&e->arena, "%s %d of %d layers%s on %s, the rest on the CPU%s",
                     e->choice.automatic ? "as much as fits:" : "by rules:", min_int(n, n_layers),
                     n_layers, n > n_layers ? " and the output" : "", gpu,
                     c->n_overrides || c->rules.n_cpu_moe ? ", but for what rules say" : "");
    if (n_lacking)
        log_msg(LOG_WARN, "%d operators stay on the CPU: %s cannot compute them yet", n_lacking,
                gpu);
}

static ats_status set_rules(struct choosing *c, struct arena *arena) {
    struct plan_rules *r = &c->rules;
    int n_cpu_moe = c->e->options.n_cpu_moe;
    r->lacking = find_lacking(arena, c->g, c->e->devices[r->gpu]);
    r->n_cpu_moe = n_cpu_moe < 0 ? PLAN_LAYERS_ALL : n_cpu_moe;
    return plan_rules_check(c->g, r);
}

static ats_status make_by_rules(struct choosing *c) {
    ats_engine *e = c->e;
    const ats_options *o = &e->options;
    struct plan_rules *r = &c->rules;
    int n_layers = PLAN_LAYERS_AUTO, n_lacking;
    TRY(set_rules(c, &e->arena));
    if (o->gpu_layers) TRY(plan_layers_parse(o->gpu_layers, &n_layers));
    int64_t budget = gpu_budget(c, e->devices[r->gpu]);
    e->choice.automatic = n_layers == PLAN_LAYERS_AUTO;
    if (e->choice.automatic && e->choice.less_bytes) budget = min_i64(budget, e->choice.less_bytes);
    if (e->choice.automatic || o->vram_mib) {
        e->choice.budget_bytes = budget;
        c->o->device_bytes[r->gpu] = budget;
    }
    c->budget = budget;
    e->choice.planned = e->choice.automatic && choose_by_profile(c);
    if (e->choice.planned) {
        if (!uses_device(e->plan, r->gpu)) leave_gpu(c);
        return ATS_OK;
    }
    if (e->choice.automatic && !e->planner && o->granularity &&
        strcmp(o->granularity, "shard") != 0)
        log_msg(LOG_WARN,
                "nothing says how long anything takes: whole layers are placed, as they "
                "fit, not by %s",
                o->granularity);
    r->n_gpu_layers = e->choice.automatic ? most_layers(c, budget) : n_layers;
    e->plan = plan_by_rules(&e->arena, c->g, e->n_devices, r, &n_lacking);
    describe_layers(c, n_lacking);
    if (uses_device(e->plan, r->gpu)) {
        choose_judge(c, "the rules say");
        return ATS_OK;
    }
    if (r->n_gpu_layers == 0 && e->choice.automatic)
        log_msg(LOG_WARN, "no layer fits %s (%.0f MiB): the CPU does it alone",
                e->device_names[r->gpu], ledger_mib(budget));
    e->choice.how = "all on the CPU";
    e->choice.n_gpu_layers = 0;
    leave_gpu(c);
    return ATS_OK;
}

/* ---- the other ways ---- */

static plan_devices streaming_devices(const ats_engine *e) {
    plan_devices streaming = 0;
    for (int d = 0; d < e->n_devices; d++)
        streaming |= (plan_devices)e->devices[d]->streams << d;
    return streaming;
}

/* What a plan, which is legal but for that, streams to GPUs in host memory stays there. */
static void leave_in_place(ats_engine *e, plan_devices in_place) {
    const struct plan *plan = e->plan;
    int64_t bytes[EXECUTOR_MAX_DEVICES] = {0};
    for (int i = 0; i < plan->n_parts; i++)
        if (plan->parts[i].streamed)
            bytes[plan->parts[i].device] += plan_part_bytes(e->model->graph, &plan->parts[i]);
    for (int d = 0; d < e->n_devices; d++) {
        if (!(in_place >> d & 1) || !bytes[d]) continue;
        log_msg(LOG_WARN,
                "%s works in host memory: %.1f MiB that the plan streams to it are used in place",
                e->device_names[d], ledger_mib(bytes[d]));
    }
    e->plan = plan_in_place(&e->arena, e->model->graph, plan, in_place);
    if (plan->prompts && !e->plan->prompts)
        log_msg(LOG_WARN, "with a GPU in host memory the plan's way in prompts is left out");
}

static ats_status make_from_file(struct choosing *c) {
    ats_engine *e = c->e;
    plan_devices in_place = 0;
    int device_of[EXECUTOR_MAX_DEVICES], n;
    const char *const *names = plan_file_devices(e->choice.file, &n);
    for (int i = 0; i < n; i++) {
        int found = -1;
        for (int d = 0; d < e->n_devices; d++)
            if (strcmp(e->device_names[d], names[i]) == 0) found = d;
        if (found < 0)
            return fail(ATS_BAD_ARGUMENT, "%s: its device \"%.60s\" is not among those in use",
                        e->options.plan, names[i]);
        device_of[i] = found;
    }
    for (int d = 0; d < e->n_devices; d++)
        in_place |= (plan_devices)e->devices[d]->in_place << d;
    e->choice.how = arena_printf(&e->arena, "from %s", e->options.plan);
    ats_status status = plan_file_apply(e->choice.file, &e->arena, c->g, e->file->arch, device_of,
                                        e->n_devices, 1, streaming_devices(e) | in_place, &e->plan);
    if (status == ATS_OK && in_place) leave_in_place(e, in_place);
    for (int d = 0; d < e->n_devices; d++)
        if (e->devices[d]->gpu && e->options.vram_mib)
            c->o->device_bytes[d] = e->choice.budget_bytes = gpu_budget(c, e->devices[d]);
    if (status != ATS_OK) return fail_in(status, "%s", e->options.plan);
    if (e->planner && c->n_cpus == 1 && c->n_gpus == 1) {
        c->rules.lacking = find_lacking(&e->arena, c->g, e->devices[c->rules.gpu]);
        c->budget = gpu_budget(c, e->devices[c->rules.gpu]);
        choose_judge(c, "the plan's file says");
    }
    return ATS_OK;
}

/* Those whose weights lie in host memory. */
static plan_devices processors(const ats_engine *e) {
    plan_devices hosts = 0;
    for (int d = 0; d < e->n_devices; d++)
        hosts |= (plan_devices)!e->devices[d]->gpu << d;
    return hosts;
}

ats_status choose_check_plan(const ats_engine *e, const struct plan *plan) {
    const struct graph *g = e->model->graph;
    if (!plan->prompts) return plan_check(g, plan, 1, streaming_devices(e));
    return plan_check_pair(g, plan, plan->prompts, 1, streaming_devices(e), processors(e));
}

void choose_random_prompts(const ats_engine *e, struct arena *arena, struct plan *plan,
                           struct rng *rng) {
    if (!streaming_devices(e) || rng_below(rng, 2)) return;
    plan->prompts =
        plan_random_prompts(arena, e->model->graph, plan, streaming_devices(e), processors(e), rng);
    plan->prompts_from = 2 + (int)rng_below(rng, 24);
}

static void make_random(struct choosing *c) {
    struct rng rng;
    rng_seed(&rng, c->e->options.plan_seed);
    c->e->choice.how = "at random";
    ats_engine *e = c->e;
    e->plan = plan_random(&e->arena, c->g, e->n_devices, 1, streaming_devices(e), &rng);
    choose_random_prompts(e, &e->arena, e->plan, &rng);
}

/* One device, or several of a kind: what rules there are have nothing to divide. */
static ats_status make_without_rules(struct choosing *c) {
    ats_engine *e = c->e;
    if (has_rules(&e->options)) {
        if (c->n_cpus > 1 || c->n_gpus > 1)
            return fail(ATS_UNSUPPORTED, "rules divide a model between one CPU and one GPU; for "
                                         "other devices there are plan files");
        if (c->n_gpus)
            c->o->device_bytes[0] = e->choice.budget_bytes = gpu_budget(c, e->devices[0]);
        else if (!wants_none(&e->options))
            log_msg(LOG_WARN, "there is no GPU among the devices: the CPU does it alone");
    }
    e->choice.how = e->n_devices > 1 ? "divided evenly" : "all on one device";
    e->plan = e->n_devices > 1 ? plan_even(&e->arena, c->g, e->n_devices)
                               : plan_whole(&e->arena, c->g, 1, 0);
    return ATS_OK;
}

static ats_status make_plan(struct choosing *c) {
    ats_engine *e = c->e;
    e->choice.automatic = e->choice.planned = false;
    e->choice.n_gpu_layers = -1;
    if (e->planner) e->planner->way = e->planner->free_way = (struct decide_way){0};
    if (e->choice.file) return make_from_file(c);
    TRY(read_overrides(c));
    if (e->options.plan_seed)
        make_random(c);
    else if (c->n_cpus == 1 && c->n_gpus == 1)
        return make_by_rules(c);
    else
        return make_without_rules(c);
    return ATS_OK;
}

static struct choosing choosing_of(ats_engine *e, struct executor_options *options) {
    struct choosing c = {.e = e, .g = e->model->graph, .o = options};
    for (int d = e->n_devices - 1; d >= 0; d--) {
        *(e->devices[d]->gpu ? &c.rules.gpu : &c.rules.cpu) = d;
        ++*(e->devices[d]->gpu ? &c.n_gpus : &c.n_cpus);
    }
    return c;
}

ats_status choose_plan(ats_engine *e, struct executor_options *options) {
    struct choosing c = choosing_of(e, options);
    TRY(kv_types_check(c.g, options));
    name_devices(e);
    ats_status status = make_plan(&c);
    plan_overrides_free(c.overrides, c.n_overrides);
    TRY(status);
    TRY(choose_check_plan(e, e->plan));
    log_msg(LOG_INFO, "plan: %s", e->choice.how);
    choosing_count(&c, e->plan, &e->ledger);
    return ledger_check(&e->ledger, e->devices);
}

static ats_status choose_layers(struct choosing *c, struct choice_again *out) {
    TRY(set_rules(c, &out->arena));
    c->rules.n_gpu_layers = most_layers(c, out->bytes);
    out->n_gpu_layers = min_int(c->rules.n_gpu_layers, graph_n_layers(c->g) + 1);
    out->plan = plan_by_rules(&out->arena, c->g, c->e->n_devices, &c->rules, NULL);
    return ATS_OK;
}

ats_status choose_again(ats_engine *e, int64_t bytes, struct choice_again *out) {
    struct executor_options options = e->executor_options;
    struct choosing c = choosing_of(e, &options);
    *out = (struct choice_again){.bytes = bytes, .n_gpu_layers = -1};
    c.budget = options.device_bytes[c.rules.gpu] = bytes;
    if (e->choice.planned) return choose_again_by_profile(&c, out);
    ats_status status = read_overrides(&c);
    if (status == ATS_OK) status = choose_layers(&c, out);
    plan_overrides_free(c.overrides, c.n_overrides);
    return status;
}

bool choose_smaller(ats_engine *e) {
    struct plan_choice *c = &e->choice;
    if (!c->automatic || e->n_devices < 2) return false;
    if (!c->planned && c->n_gpu_layers <= 0) return false;
    int64_t taken = 0;
    for (int d = 0; d < e->n_devices; d++)
        if (e->devices[d]->gpu) taken += ledger_own_bytes(&e->ledger.devices[d]);
    c->less_bytes = max_i64(1, taken / 4 * 3);
    log_msg(LOG_WARN, "%s; trying again with less on the GPU", error_text());
    error_clear();
    return true;
}
