/* ats_profile: a profile of this machine for a model, kept (kept_profile.h) or measured. */
#include <stdlib.h>
#include <string.h>

#include "atsinfer.h"
#include "base/clock.h"
#include "base/threads.h"
#include "model/shape.h"
#include "run/choose_plan.h"
#include "run/kept_profile.h"

struct profiling {
    struct arena arena;
    ats_profiling o;
    const char *cpu, *gpu; /* names of devices */
    struct gguf *file;
    struct model *model;
    int n_ctx;
};

void ats_profiling_default(ats_profiling *p) {
    *p = (ats_profiling){0};
}

/* ---- what is asked ---- */

static bool is_gpu(const char *name) {
    return strncmp(name, "vulkan", 6) == 0 || strncmp(name, "sim:gpu", 7) == 0;
}

static ats_status choose_pair(struct profiling *p) {
    const char *list = p->o.devices ? p->o.devices : choose_has_gpu() ? "cpu,vulkan" : "cpu";
    char *rest = arena_strdup(&p->arena, list);
    for (char *name = strsep(&rest, ","); name; name = strsep(&rest, ",")) {
        const char **place = is_gpu(name) ? &p->gpu : &p->cpu;
        if (!name[0]) return fail(ATS_BAD_ARGUMENT, "the list of devices has an empty name");
        if (*place)
            return fail(ATS_BAD_ARGUMENT, "\"%.60s\": a profile is of one processor and one GPU",
                        list);
        *place = name;
    }
    if (!p->cpu) p->cpu = strncmp(p->gpu, "sim", 3) == 0 ? "sim:cpu" : "cpu";
    return ATS_OK;
}

/* The model as simulate.c sees it: the keys must be the same. */
static ats_status open_model(struct profiling *p) {
    if (!p->o.model || !p->o.model[0]) return fail(ATS_BAD_ARGUMENT, "no model is given");
    if (shape_is_path(p->o.model))
        TRY(shape_open(p->o.model, &p->file));
    else
        TRY(gguf_open(p->o.model, &p->file));
    TRY(profile_depths_of(p->file, &p->n_ctx));
    const struct model_options options = {.n_ctx = p->n_ctx,
                                          .math = measure_math(p->o.math),
                                          .row_group = PLAN_ROW_GROUP,
                                          .planning = true};
    return model_open(p->file, &options, &p->model);
}

static ats_status open_all(struct profiling *p, const ats_profiling *given) {
    p->o = *given;
    if (p->o.n_threads < 0 || p->o.n_threads > 512)
        return fail(ATS_BAD_ARGUMENT, "n_threads is %d, expected 0 to 512", p->o.n_threads);
    TRY(measure_check_types(p->o.kv_k, p->o.kv_v, p->o.math));
    if (!p->o.n_threads) p->o.n_threads = max_int(1, cpu_count_fast());
    TRY(choose_pair(p));
    return open_model(p);
}

static void close_all(struct profiling *p) {
    model_close(p->model);
    gguf_close(p->file);
    arena_free(&p->arena);
}

/* ---- the answer ---- */

static bool on_step(void *user, uint64_t done, uint64_t total) {
    const struct profiling *p = user;
    return !p->o.progress || p->o.progress(p->o.progress_user, "measuring", done, total);
}

static struct profile_request request_of(struct profiling *p) {
    return (struct profile_request){.model = p->model,
                                    .measure = {.cpu = p->cpu,
                                                .gpu = p->gpu,
                                                .n_threads = p->o.n_threads,
                                                .quick = p->o.quick,
                                                .n_ctx = p->n_ctx,
                                                .kv_k = p->o.kv_k,
                                                .kv_v = p->o.kv_v,
                                                .progress = on_step,
                                                .progress_user = p}};
}

static ats_status profile_now(struct profiling *p, char **json) {
    const struct profile_request request = request_of(p);
    const char *path = NULL;
    uint64_t begin = clock_ns();
    struct profile *profile =
        p->o.force ? NULL : kept_profile_find(&p->arena, &request, p->o.quick, &path);
    bool measured = !profile;
    if (measured) TRY(kept_profile_measure(&p->arena, &request, &profile, &path));
    json_t *root =
        json_pack("{s:i, s:s?, s:b, s:f, s:s, s:s?, s:o}", "schema", 1, "path", path, "measured",
                  (int)measured, "seconds", (double)(clock_ns() - begin) * 1e-9, "cpu", p->cpu,
                  "gpu", p->gpu, "profile", profile_to_json(profile));
    *json = json_print(root, false);
    json_decref(root);
    return ATS_OK;
}

ats_status ats_profile(const ats_profiling *given, char **json) {
    struct profiling p = {0};
    *json = NULL;
    ats_status status = open_all(&p, given);
    if (status == ATS_OK) status = profile_now(&p, json);
    close_all(&p);
    return status;
}

char *ats_profile_find(const ats_profiling *given) {
    struct profiling p = {0};
    const char *path = NULL;
    char *found = NULL;
    ats_status status = open_all(&p, given);
    const struct profile_request request = request_of(&p);
    if (status == ATS_OK && p.gpu && kept_profile_find(&p.arena, &request, true, &path))
        found = xstrdup(path);
    error_clear();
    close_all(&p);
    return found;
}
