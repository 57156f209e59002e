#include "plan/load.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_FILE_BYTES = 1 << 20, MAX_STEPS = 1024 };
static const double max_time_s = 1e6, max_share = 0.99;

static const char *const resource_names[] = {"cpu", "gpu", "link"};

const char *load_resource_name(enum load_resource resource) {
    return (unsigned)resource < N_LOAD_RESOURCES ? resource_names[resource] : "?";
}

/* ---- reading ---- */

static bool listed(const char *key, const char *const *keys) {
    for (; *keys; keys++)
        if (strcmp(key, *keys) == 0) return true;
    return strcmp(key, "comment") == 0;
}

static ats_status check_object(const json_t *json, const char *at, const char *const *keys) {
    const char *key;
    json_t *value;
    if (!json_is_object(json)) return fail(ATS_BAD_FILE, "%s is not an object", at);
    json_object_foreach((json_t *)(uintptr_t)json, key, value) {
        if (!listed(key, keys)) return fail(ATS_BAD_FILE, "%s has an unknown key %.32s", at, key);
    }
    return ATS_OK;
}

static ats_status read_number(const json_t *json, const char *at, const char *key, double max,
                              double *out) {
    const json_t *value = json_object_get(json, key);
    if (!json_is_number(value)) return fail(ATS_BAD_FILE, "%s.%s is no number", at, key);
    *out = json_number_value(value);
    if (*out >= 0 && *out <= max) return ATS_OK; /* not a NaN either */
    return fail(ATS_BAD_FILE, "%s.%s is %g, expected 0 to %g", at, key, *out, max);
}

static ats_status read_step(const json_t *json, const char *at, struct load_step *out) {
    static const char *const keys[] = {"resource", "start", "end", "share", NULL};
    TRY(check_object(json, at, keys));
    const char *name = json_string_value(json_object_get(json, "resource"));
    int resource = 0;
    while (name && resource < N_LOAD_RESOURCES && strcmp(name, resource_names[resource]) != 0)
        resource++;
    if (!name || resource == N_LOAD_RESOURCES)
        return fail(ATS_BAD_FILE, "%s.resource is not \"cpu\", \"gpu\" or \"link\"", at);
    *out = (struct load_step){.resource = (enum load_resource)resource};
    TRY(read_number(json, at, "start", max_time_s, &out->start_s));
    TRY(read_number(json, at, "end", max_time_s, &out->end_s));
    TRY(read_number(json, at, "share", max_share, &out->share));
    if (out->end_s > out->start_s) return ATS_OK;
    return fail(ATS_BAD_FILE, "%s ends before it starts", at);
}

static ats_status read_load(struct arena *arena, const json_t *json, struct load *out) {
    static const char *const keys[] = {"atsinfer", "version", "steps", NULL};
    TRY(check_object(json, "it", keys));
    const char *format = json_string_value(json_object_get(json, "atsinfer"));
    if (!format || strcmp(format, "load") != 0)
        return fail(ATS_BAD_FILE, "\"atsinfer\" is not \"load\": no trace of load");
    if (json_integer_value(json_object_get(json, "version")) != 1)
        return fail(ATS_BAD_FILE, "version is not 1");
    const json_t *steps = json_object_get(json, "steps");
    size_t n = json_array_size(steps);
    if (!json_is_array(steps) || n > MAX_STEPS)
        return fail(ATS_BAD_FILE, "steps is not a list of at most %d", MAX_STEPS);
    out->steps = ARENA_ARRAY(arena, struct load_step, n + 1);
    for (size_t i = 0; i < n; i++) {
        char at[24];
        snprintf(at, sizeof at, "steps[%zu]", i);
        TRY(read_step(json_array_get(steps, i), at, &out->steps[i]));
    }
    out->n_steps = (int)n;
    return ATS_OK;
}

ats_status load_from_json(struct arena *arena, const json_t *json, const char *where,
                          struct load **out) {
    struct load *load = ARENA_NEW(arena, struct load);
    *out = NULL;
    ats_status status = read_load(arena, json, load);
    if (status != ATS_OK) return fail_in(status, "%s", where);
    *out = load;
    return ATS_OK;
}

ats_status load_read(struct arena *arena, const char *path, struct load **out) {
    json_t *json;
    *out = NULL;
    TRY(json_read_file(path, MAX_FILE_BYTES, &json));
    ats_status status = load_from_json(arena, json, path, out);
    json_decref(json);
    return status;
}

/* ---- factors ---- */

struct load_factors load_none(void) {
    struct load_factors f;
    for (int r = 0; r < N_LOAD_RESOURCES; r++)
        f.slow[r] = 1;
    return f;
}

bool load_is_felt(const struct load_factors *factors, double threshold) {
    for (int r = 0; r < N_LOAD_RESOURCES; r++) {
        double slow = factors->slow[r];
        if (fmax(slow, 1 / slow) >= 1 + threshold) return true;
    }
    return false;
}

struct load_factors load_at(const struct load *load, double now_s) {
    struct load_factors f = load_none();
    for (int i = 0; i < load->n_steps; i++) {
        const struct load_step *s = &load->steps[i];
        if (now_s >= s->start_s && now_s < s->end_s) f.slow[s->resource] /= 1 - s->share;
    }
    for (int r = 0; r < N_LOAD_RESOURCES; r++)
        f.slow[r] = fmin(f.slow[r], 1e6); /* of many at once: times stay finite */
    return f;
}

double load_next_change(const struct load *load, double now_s) {
    double next = HUGE_VAL;
    for (int i = 0; i < load->n_steps; i++) {
        const double times[] = {load->steps[i].start_s, load->steps[i].end_s};
        for (size_t k = 0; k < COUNT_OF(times); k++)
            if (times[k] > now_s) next = fmin(next, times[k]);
    }
    return next;
}

struct items *load_items(struct arena *arena, const struct items *items,
                         const struct load_factors *factors) {
    struct items *loaded = ARENA_NEW(arena, struct items);
    struct profile *profile = ARENA_NEW(arena, struct profile);
    double link = factors->slow[LOAD_LINK];
    for (int r = 0; r < N_LOAD_RESOURCES; r++)
        REQUIRE(factors->slow[r] > 0);
    *profile = *items->profile;
    profile->link.up_pinned /= link;
    profile->link.up_staged /= link;
    profile->link.activation_up /= link;
    *loaded = *items;
    loaded->profile = profile;
    loaded->slow[SIDE_CPU] *= factors->slow[LOAD_CPU];
    loaded->slow[SIDE_GPU] *= factors->slow[LOAD_GPU];
    return loaded;
}
