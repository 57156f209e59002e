#include "plan/file.h"

#include <stdlib.h>
#include <string.h>
#include "base/json.h"
#include "plan/names.h"
#include "plan/rules.h"

#define FORMAT_NAME "atsinfer plan"
enum { FORMAT_VERSION = 1, MAX_FILE_DEVICES = 64, MAX_SLOTS = 1024 };

struct plan_file {
    struct arena arena;
    json_t *root;
    const json_t *homes;
    const char **devices; /* (n_devices) */
    int n_devices;
};

static const char *const axis_names[] = {
    [AXIS_ROWS] = "rows", [AXIS_COLS] = "cols", [AXIS_HEADS] = "heads", [AXIS_EXPERTS] = "experts"};

const char *axis_name(enum axis axis) {
    return axis_names[axis];
}

/* ---- reading ---- */

static ats_status check_keys(const json_t *object, const char *where, const char *const *keys,
                             size_t n_keys) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, key, value) {
        bool known = false;
        for (size_t i = 0; i < n_keys; i++)
            known |= strcmp(key, keys[i]) == 0;
        if (!known) return fail(ATS_BAD_FILE, "%s has an unknown key \"%.60s\"", where, key);
    }
    return ATS_OK;
}

static ats_status read_format(const json_t *root) {
    static const char *const keys[] = {"format", "version", "model",  "devices",
                                       "slots",  "homes",   "prompts"};
    const char *format = json_string_value(json_object_get(root, "format"));
    if (!format || strcmp(format, FORMAT_NAME) != 0)
        return fail(ATS_BAD_FILE, "it is no plan: \"format\" is not \"" FORMAT_NAME "\"");
    const json_t *version = json_object_get(root, "version");
    if (!json_is_integer(version) || json_integer_value(version) != FORMAT_VERSION)
        return fail(ATS_BAD_FILE, "only version %d of the plan's format is known", FORMAT_VERSION);
    return check_keys(root, "the plan", keys, COUNT_OF(keys));
}

static ats_status read_devices(struct plan_file *f) {
    const json_t *devices = json_object_get(f->root, "devices");
    size_t n = json_array_size(devices);
    if (n < 1 || n > MAX_FILE_DEVICES)
        return fail(ATS_BAD_FILE, "\"devices\" is not a list of 1 to %d names", MAX_FILE_DEVICES);
    f->devices = ARENA_ARRAY(&f->arena, const char *, n);
    for (size_t i = 0; i < n; i++) {
        const json_t *value = json_array_get(devices, i);
        const char *name = json_string_value(value);
        if (!name || !*name || strlen(name) != json_string_length(value) || strchr(name, ','))
            return fail(ATS_BAD_FILE, "\"devices\", number %zu: not a name", i + 1);
        for (size_t j = 0; j < i; j++)
            if (strcmp(f->devices[j], name) == 0)
                return fail(ATS_BAD_FILE, "\"devices\" has \"%.60s\" twice", name);
        f->devices[f->n_devices++] = name;
    }
    return ATS_OK;
}

ats_status plan_file_open(const char *text, size_t n_bytes, struct plan_file **out) {
    *out = NULL;
    struct plan_file *f = xcalloc(1, sizeof *f);
    ats_status status = json_parse(text, n_bytes, &f->root);
    if (status == ATS_OK && !json_is_object(f->root))
        status = fail(ATS_BAD_FILE, "it is no plan: not an object");
    if (status == ATS_OK) status = read_format(f->root);
    if (status == ATS_OK) status = read_devices(f);
    if (status == ATS_OK) {
        f->homes = json_object_get(f->root, "homes");
        if (!json_is_object(f->homes)) status = fail(ATS_BAD_FILE, "\"homes\" is not an object");
    }
    if (status == ATS_OK) {
        *out = f;
        return ATS_OK;
    }
    plan_file_close(f);
    return status == ATS_BAD_INPUT ? fail(ATS_BAD_FILE, "%s", error_text()) : status;
}

void plan_file_close(struct plan_file *f) {
    if (!f) return;
    json_decref(f->root);
    arena_free(&f->arena);
    free(f);
}

const char *const *plan_file_devices(const struct plan_file *f, int *n) {
    *n = f->n_devices;
    return f->devices;
}

/* ---- applying ---- */

struct applying {
    const struct plan_file *f;
    const struct graph *g;
    const int *device_of;
    plan_devices streaming;
    struct plan *plan;
    const json_t *homes, *slots; /* of the plan */
    const struct plan *decode;   /* a plan for prompts: what it does not say is as here; or NULL */
};

static ats_status check_model(const struct plan_file *f, const struct graph *g,
                              const char *architecture) {
    const struct {
        const char *name;
        int value;
    } facts[] = {{"n_layers", graph_n_layers(g)}, {"n_embd", g->n_embd}, {"n_vocab", g->n_vocab}};
    static const char *const keys[] = {"architecture", "n_layers", "n_embd", "n_vocab"};
    const json_t *model = json_object_get(f->root, "model");
    const char *name = json_string_value(json_object_get(model, "architecture"));
    if (!name) return fail(ATS_BAD_FILE, "\"model\" has no \"architecture\"");
    TRY(check_keys(model, "\"model\"", keys, COUNT_OF(keys)));
    if (strcmp(name, architecture) != 0)
        return fail(ATS_BAD_FILE, "the plan is for another model: %.40s, this one is %s", name,
                    architecture);
    for (size_t i = 0; i < COUNT_OF(facts); i++) {
        const json_t *value = json_object_get(model, facts[i].name);
        if (!json_is_integer(value))
            return fail(ATS_BAD_FILE, "\"model\" has no number \"%s\"", facts[i].name);
        if (json_integer_value(value) != facts[i].value)
            return fail(ATS_BAD_FILE,
                        "the plan is for another model: %s is %" JSON_INTEGER_FORMAT
                        ", of this one %d",
                        facts[i].name, json_integer_value(value), facts[i].value);
    }
    return ATS_OK;
}

static ats_status find_device(const struct applying *a, const char *name, const char *where,
                              int *out) {
    for (int d = 0; d < a->f->n_devices; d++)
        if (strcmp(a->f->devices[d], name) == 0) {
            *out = a->device_of[d];
            return ATS_OK;
        }
    return fail(ATS_BAD_FILE, "%s: \"%.60s\" is none of the plan's devices", where, name);
}

static ats_status read_device(const struct applying *a, const json_t *value, const char *where,
                              int *out) {
    const char *name = json_string_value(value);
    if (!name) return fail(ATS_BAD_FILE, "%s: \"device\" is not a name", where);
    return find_device(a, name, where, out);
}

static ats_status read_number(const json_t *part, const char *key, const char *where, int *out) {
    const json_t *value = json_object_get(part, key);
    json_int_t n = json_integer_value(value);
    if (!json_is_integer(value) || n < 0 || n > INT32_MAX)
        return fail(ATS_BAD_FILE, "%s: \"%s\" is not a whole number from 0", where, key);
    *out = (int)n;
    return ATS_OK;
}

static ats_status read_axis(const json_t *part, const char *where, enum axis *out) {
    const char *name = json_string_value(json_object_get(part, "axis"));
    for (size_t i = 0; name && i < COUNT_OF(axis_names); i++)
        if (strcmp(axis_names[i], name) == 0) {
            *out = (enum axis)i;
            return ATS_OK;
        }
    return fail(ATS_BAD_FILE, "%s: \"axis\" is not rows, cols, heads or experts", where);
}

/* By the names of its device; plan_check knows numbers. */
static ats_status check_streams(const struct applying *a, const struct plan_part *part,
                                const char *where) {
    const char *name = "";
    for (int d = 0; d < a->f->n_devices; d++)
        if (a->device_of[d] == part->device) name = a->f->devices[d];
    if (!(a->streaming >> part->device & 1))
        return fail(ATS_BAD_FILE, "%s: nothing can be streamed to %.60s", where, name);
    if (a->plan->n_slots[part->device] < 1)
        return fail(ATS_BAD_FILE, "%s is streamed to %.60s, which has no \"slots\"", where, name);
    return ATS_OK;
}

static ats_status read_part(struct applying *a, int op, const json_t *json, const char *where) {
    static const char *const keys[] = {"device", "axis", "begin", "end", "streamed", "lot"};
    struct plan_part *part = &a->plan->parts[a->plan->n_parts];
    *part = (struct plan_part){.op = op};
    if (!json_is_object(json)) return fail(ATS_BAD_FILE, "%s is not an object", where);
    TRY(check_keys(json, where, keys, COUNT_OF(keys)));
    TRY(read_device(a, json_object_get(json, "device"), where, &part->device));
    TRY(read_axis(json, where, &part->axis));
    TRY(read_number(json, "begin", where, &part->begin));
    TRY(read_number(json, "end", where, &part->end));
    const json_t *streamed = json_object_get(json, "streamed");
    if (streamed && !json_is_boolean(streamed))
        return fail(ATS_BAD_FILE, "%s: \"streamed\" is neither true nor false", where);
    part->streamed = json_is_true(streamed);
    if (part->streamed) TRY(check_streams(a, part, where));
    if (json_object_get(json, "lot")) TRY(read_number(json, "lot", where, &part->lot));
    a->plan->n_parts++;
    return ATS_OK;
}

/* A name is the whole operator; a list its parts. */
static ats_status read_home(struct applying *a, int op, const char *name) {
    char where[128];
    const json_t *home = json_object_get(a->homes, name);
    if (!home && a->decode) {
        for (int i = a->decode->first[op]; i < a->decode->first[op + 1]; i++)
            a->plan->parts[a->plan->n_parts++] = a->decode->parts[i];
        return ATS_OK;
    }
    if (!home) return fail(ATS_BAD_FILE, "the plan has no home for %s", name);
    if (json_is_string(home)) {
        enum axis axis = plan_whole_axis(&a->g->ops[op]);
        struct plan_part *part = &a->plan->parts[a->plan->n_parts];
        snprintf(where, sizeof where, "\"%.60s\"", name);
        *part = (struct plan_part){
            .op = op, .axis = axis, .end = op_axis_length(a->g, &a->g->ops[op], axis)};
        TRY(read_device(a, home, where, &part->device));
        a->plan->n_parts++;
        return ATS_OK;
    }
    size_t n = json_array_size(home);
    if (n < 1 || n > PLAN_MAX_PARTS)
        return fail(ATS_BAD_FILE, "\"%.60s\" has neither a device nor 1 to %d parts", name,
                    PLAN_MAX_PARTS);
    for (size_t i = 0; i < n; i++) {
        snprintf(where, sizeof where, "\"%.60s\", part %zu", name, i + 1);
        TRY(read_part(a, op, json_array_get(home, i), where));
    }
    return ATS_OK;
}

/* Names of the file that the model has not: a slip of the pen must not go unnoticed. */
static ats_status check_unknown(const struct applying *a, const char *const *names) {
    json_t *known = json_object();
    const char *key;
    json_t *value;
    ats_status status = ATS_OK;
    for (int i = 0; i < a->g->n_ops; i++)
        if (names[i]) json_object_set_new_nocheck(known, names[i], json_null());
    json_object_foreach((json_t *)(uintptr_t)a->homes, key, value) {
        if (json_object_get(known, key)) continue;
        status = fail(ATS_BAD_FILE, "the model has no \"%.60s\"", key);
        break;
    }
    json_decref(known);
    return status;
}

/* "slots": {device: number}; devices not named have none. */
static ats_status read_slots(struct applying *a) {
    const json_t *slots = a->slots;
    const char *key;
    json_t *value;
    if (slots && !json_is_object(slots)) return fail(ATS_BAD_FILE, "\"slots\" is not an object");
    json_object_foreach((json_t *)(uintptr_t)slots, key, value) {
        char where[80];
        int device = 0;
        snprintf(where, sizeof where, "\"slots\", \"%.40s\"", key);
        TRY(find_device(a, key, where, &device));
        if (!json_is_integer(value) || json_integer_value(value) < 0 ||
            json_integer_value(value) > MAX_SLOTS)
            return fail(ATS_BAD_FILE, "%s: not a number from 0 to %d", where, MAX_SLOTS);
        a->plan->n_slots[device] = (int)json_integer_value(value);
    }
    return ATS_OK;
}

static ats_status apply(struct applying *a, const char *const *names) {
    TRY(read_slots(a));
    for (int i = 0; i < a->g->n_ops; i++) {
        a->plan->first[i] = a->plan->n_parts;
        if (names[i]) TRY(read_home(a, i, names[i]));
    }
    a->plan->first[a->g->n_ops] = a->plan->n_parts;
    return check_unknown(a, names);
}

/* As many as these homes have, at most. */
static int count_parts(const json_t *homes, const struct graph *g, const char *const *names) {
    size_t n = 0;
    for (int i = 0; i < g->n_ops; i++)
        n += !names[i] ? 0 : max_size(1, json_array_size(json_object_get(homes, names[i])));
    return (int)n;
}

static struct plan *open_plan(struct arena *arena, const struct graph *g, int n_devices,
                              int n_parts) {
    struct plan *plan = ARENA_NEW(arena, struct plan);
    plan->n_devices = n_devices;
    plan->n_slots = ARENA_ARRAY(arena, int, n_devices);
    plan->first = ARENA_ARRAY(arena, int, g->n_ops + 1);
    plan->parts = ARENA_ARRAY(arena, struct plan_part, n_parts);
    return plan;
}

/* "prompts": what other rounds do otherwise. */
static ats_status apply_prompts(struct applying *a, struct arena *arena, const char *const *names,
                                const json_t *prompts) {
    static const char *const keys[] = {"from", "slots", "homes"};
    struct plan *decode = a->plan;
    if (!json_is_object(prompts)) return fail(ATS_BAD_FILE, "\"prompts\" is not an object");
    TRY(check_keys(prompts, "\"prompts\"", keys, COUNT_OF(keys)));
    TRY(read_number(prompts, "from", "\"prompts\"", &decode->prompts_from));
    if (decode->prompts_from < 2)
        return fail(ATS_BAD_FILE, "\"prompts\": \"from\" is not a number of tokens from 2");
    a->decode = decode;
    a->homes = json_object_get(prompts, "homes");
    a->slots = json_object_get(prompts, "slots");
    if (!json_is_object(a->homes))
        return fail(ATS_BAD_FILE, "\"prompts\": \"homes\" is not an object");
    a->plan = open_plan(arena, a->g, decode->n_devices,
                        decode->n_parts + count_parts(a->homes, a->g, names));
    decode->prompts = a->plan;
    ats_status status = apply(a, names);
    return status == ATS_OK ? ATS_OK : fail_in(status, "in \"prompts\"");
}

/* Which devices are processors is not known here. */
static ats_status check_plan(const struct applying *a, const struct plan *plan, int row_group,
                             plan_devices streaming) {
    ats_status status = plan->prompts ? plan_check_pair(a->g, plan, plan->prompts, row_group,
                                                        streaming, ~(plan_devices)0)
                                      : plan_check(a->g, plan, row_group, streaming);
    return status == ATS_OK ? ATS_OK : fail(ATS_BAD_FILE, "%s", error_text());
}

ats_status plan_file_apply(const struct plan_file *f, struct arena *arena, const struct graph *g,
                           const char *architecture, const int *device_of, int n_devices,
                           int row_group, plan_devices streaming, struct plan **out) {
    struct arena scratch = {0};
    const json_t *prompts = json_object_get(f->root, "prompts");
    struct applying a = {.f = f,
                         .g = g,
                         .device_of = device_of,
                         .streaming = streaming,
                         .homes = f->homes,
                         .slots = json_object_get(f->root, "slots")};
    *out = NULL;
    TRY(check_model(f, g, architecture));
    const char **names = plan_names(&scratch, g);
    struct plan *plan = a.plan = open_plan(arena, g, n_devices, count_parts(f->homes, g, names));
    ats_status status = apply(&a, names);
    if (status == ATS_OK && prompts) status = apply_prompts(&a, arena, names, prompts);
    if (status == ATS_OK) status = check_plan(&a, plan, row_group, streaming);
    arena_free(&scratch);
    if (status == ATS_OK) *out = plan;
    return status;
}

/* ---- writing ---- */

static json_t *home_json(const struct graph *g, const struct plan *plan, int op,
                         const char *const *device_names) {
    int from = plan->first[op], to = plan->first[op + 1];
    if (to - from == 1 && !plan->parts[from].streamed &&
        plan->parts[from].axis == plan_whole_axis(&g->ops[op]))
        return json_string(device_names[plan->parts[from].device]);
    json_t *parts = json_array();
    for (int i = from; i < to; i++) {
        const struct plan_part *p = &plan->parts[i];
        json_t *part = json_pack("{s:s, s:s, s:i, s:i}", "device", device_names[p->device], "axis",
                                 axis_name(p->axis), "begin", p->begin, "end", p->end);
        if (p->streamed) json_object_set_new(part, "streamed", json_true());
        if (p->lot) json_object_set_new(part, "lot", json_integer(p->lot));
        json_array_append_new(parts, part);
    }
    return parts;
}

static json_t *slots_json(const struct plan *plan, const char *const *device_names) {
    json_t *slots = json_object();
    for (int d = 0; d < plan->n_devices; d++)
        if (plan->n_slots[d])
            json_object_set_new(slots, device_names[d], json_integer(plan->n_slots[d]));
    return slots;
}

/* Only operators that are elsewhere than in decode. */
static json_t *prompts_json(const struct graph *g, const struct plan *plan,
                            const char *const *names, const char *const *device_names) {
    json_t *homes = json_object();
    for (int i = 0; i < g->n_ops; i++) {
        if (!names[i]) continue;
        json_t *home = home_json(g, plan->prompts, i, device_names);
        json_t *in_decode = home_json(g, plan, i, device_names);
        if (!json_equal(home, in_decode)) json_object_set(homes, names[i], home);
        json_decref(home);
        json_decref(in_decode);
    }
    return json_pack("{s:i, s:o, s:o}", "from", plan->prompts_from, "slots",
                     slots_json(plan->prompts, device_names), "homes", homes);
}

char *plan_file_print(const struct graph *g, const struct plan *plan, const char *architecture,
                      const char *const *device_names) {
    struct arena scratch = {0};
    const char **names = plan_names(&scratch, g);
    json_t *devices = json_array(), *homes = json_object();
    for (int d = 0; d < plan->n_devices; d++)
        json_array_append_new(devices, json_string(device_names[d]));
    for (int i = 0; i < g->n_ops; i++)
        if (names[i]) json_object_set_new(homes, names[i], home_json(g, plan, i, device_names));
    json_t *root =
        json_pack("{s:s, s:i, s:{s:s, s:i, s:i, s:i}, s:o, s:o, s:o}", "format", FORMAT_NAME,
                  "version", FORMAT_VERSION, "model", "architecture", architecture, "n_layers",
                  graph_n_layers(g), "n_embd", g->n_embd, "n_vocab", g->n_vocab, "devices", devices,
                  "slots", slots_json(plan, device_names), "homes", homes);
    if (plan->prompts)
        json_object_set_new(root, "prompts", prompts_json(g, plan, names, device_names));
    char *text = json_print(root, true);
    json_decref(root);
    arena_free(&scratch);
    return text;
}
