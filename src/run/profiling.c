/* ats_profile: a profile of this machine for a model, measured once and kept in the user's cache
 * directory under a key of all that it depends on. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "atsinfer.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/threads.h"
#include "model/shape.h"
#include "run/choose_plan.h"
#include "run/measure.h"

struct profiling {
    struct arena arena;
    ats_profiling o;
    const char *cpu, *gpu; /* names of devices */
    struct gguf *file;
    struct model *model;
    int n_ctx;
    struct profile *keys;
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
    uint32_t n_ctx_train = 0;
    if (!p->o.model || !p->o.model[0]) return fail(ATS_BAD_ARGUMENT, "no model is given");
    if (shape_is_path(p->o.model))
        TRY(shape_open(p->o.model, &p->file));
    else
        TRY(gguf_open(p->o.model, &p->file));
    TRY(gguf_opt_u32(p->file, ".context_length", &n_ctx_train));
    p->n_ctx = n_ctx_train ? (int)min_i64(n_ctx_train, 1 << 24) : 4096;
    const struct model_options options = {
        .n_ctx = p->n_ctx, .math = MATH_Q8, .row_group = 16, .planning = true};
    TRY(model_open(p->file, &options, &p->model));
    return measure_keys(&p->arena, p->model, p->n_ctx, &p->keys);
}

static ats_status open_all(struct profiling *p, const ats_profiling *given) {
    p->o = *given;
    if (p->o.n_threads < 0 || p->o.n_threads > 512)
        return fail(ATS_BAD_ARGUMENT, "n_threads is %d, expected 0 to 512", p->o.n_threads);
    if (!p->o.n_threads) p->o.n_threads = max_int(1, cpu_count_fast());
    TRY(choose_pair(p));
    return open_model(p);
}

static void close_all(struct profiling *p) {
    model_close(p->model);
    gguf_close(p->file);
    arena_free(&p->arena);
}

/* ---- the key ---- */

/* FNV-1a. */
static uint64_t hash_text(const char *s) {
    uint64_t hash = 0xcbf29ce484222325ULL;
    for (; *s; s++)
        hash = (hash ^ (uint8_t)*s) * 0x100000001b3ULL;
    return hash;
}

/* "vulkan" is the best of them, whichever that is: all count. The note names the driver. */
static void add_gpu(struct buf *out, const char *gpu) {
    struct backend_device_info found[16];
    buf_add_str(out, gpu);
    if (strncmp(gpu, "vulkan", 6) != 0) return;
    int n = min_int(backend_list_devices(found, COUNT_OF(found)), COUNT_OF(found));
    for (int i = 0; i < n; i++)
        if (strcmp(gpu, "vulkan") == 0 || strcmp(gpu, found[i].name) == 0)
            buf_printf(out, " (%s %s)", found[i].name, found[i].note);
    error_clear();
}

static uint64_t hash_keys(const struct profiling *p) {
    json_t *json = profile_to_json(p->keys);
    char *items = json_print(json_object_get(json, "items"), false);
    uint64_t hash = hash_text(items);
    free(items);
    json_decref(json);
    return hash;
}

/* One line of all that the times depend on. */
static char *make_key(struct profiling *p, bool quick) {
    struct backend_cpu_info cpu;
    struct buf text = {0};
    backend_cpu_info(&cpu);
    buf_printf(&text, "1%s; %s on %s, %s, %d threads", quick ? " quick" : "", p->cpu, cpu.model,
               cpu.isa, p->o.n_threads);
    if (p->gpu) buf_add_str(&text, "; "), add_gpu(&text, p->gpu);
    buf_printf(&text, "; context %d; %d operators %016" PRIx64, p->n_ctx, p->keys->n_items,
               hash_keys(p));
    char *key = arena_strdup(&p->arena, buf_str(&text));
    buf_free(&text);
    return key;
}

static char *make_name(struct profiling *p) {
    struct backend_cpu_info cpu;
    backend_cpu_info(&cpu);
    if (strncmp(p->cpu, "sim", 3) == 0) return arena_strdup(&p->arena, "simulated devices");
    if (!p->gpu) return arena_printf(&p->arena, "%s, no GPU", cpu.model);
    return arena_printf(&p->arena, "%s and %s", cpu.model, p->gpu);
}

/* ---- the file ---- */

/* NULL: there is no place. In the arena. */
static char *make_path(struct profiling *p, const char *key, bool create) {
    char *dir;
    if (dir_path(DIR_CACHE, create, &dir) != ATS_OK) {
        error_clear();
        return NULL;
    }
    char *path = arena_printf(&p->arena, "%s/profile-%016" PRIx64 ".json", dir, hash_text(key));
    free(dir);
    return path;
}

/* What is wrong with it is said, and it counts as none. */
static struct profile *read_kept(struct profiling *p, const char *key, const char *path) {
    struct profile *kept = NULL;
    if (!path || !file_exists(path)) return NULL;
    if (profile_read(&p->arena, path, &kept) != ATS_OK) {
        log_msg(LOG_WARN, "a kept profile is not used: %s", error_text());
        error_clear();
        return NULL;
    }
    bool fits = strcmp(kept->key, key) == 0;
    for (int i = 0; fits && i < p->keys->n_items; i++)
        fits = profile_find(kept, &p->keys->items[i].key) != NULL;
    if (fits) return kept;
    log_msg(LOG_WARN, "a kept profile is not used: %s is of another machine or model", path);
    return NULL;
}

/* The whole one first. *path in the arena. */
static struct profile *find_kept(struct profiling *p, bool quick_too, char **path) {
    for (int quick = 0; quick <= (int)quick_too; quick++) {
        const char *key = make_key(p, quick);
        *path = make_path(p, key, false);
        struct profile *kept = read_kept(p, key, *path);
        if (kept) return kept;
    }
    return NULL;
}

static char *keep(struct profiling *p, const struct profile *profile) {
    char *path = make_path(p, profile->key, true);
    json_t *json = profile_to_json(profile);
    char *text = json_print(json, false);
    if (path && file_write(path, text, strlen(text)) != ATS_OK) {
        log_msg(LOG_WARN, "the profile is not kept: %s", error_text());
        error_clear();
        path = NULL;
    }
    free(text);
    json_decref(json);
    return path;
}

/* ---- measuring ---- */

static bool on_step(void *user, uint64_t done, uint64_t total) {
    const struct profiling *p = user;
    return !p->o.progress || p->o.progress(p->o.progress_user, "measuring", done, total);
}

static ats_status measure(struct profiling *p, struct profile **out) {
    const struct measure_options options = {.cpu = p->cpu,
                                            .gpu = p->gpu,
                                            .n_threads = p->o.n_threads,
                                            .quick = p->o.quick,
                                            .n_ctx = p->n_ctx,
                                            .progress = on_step,
                                            .progress_user = p};
    log_msg(LOG_INFO, "measuring %d operators on %s%s%s", p->keys->n_items, p->cpu,
            p->gpu ? " and " : "", p->gpu ? p->gpu : "");
    TRY(measure_profile(&p->arena, p->model, &options, out));
    (*out)->name = make_name(p);
    (*out)->key = make_key(p, p->o.quick);
    return ATS_OK;
}

static ats_status profile_now(struct profiling *p, char **json) {
    char *path = NULL;
    uint64_t begin = clock_ns();
    struct profile *profile = p->o.force ? NULL : find_kept(p, p->o.quick, &path);
    bool measured = !profile;
    if (measured) {
        TRY(measure(p, &profile));
        path = keep(p, profile);
    }
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
    char *path = NULL, *found = NULL;
    if (open_all(&p, given) == ATS_OK && p.gpu && find_kept(&p, true, &path)) found = xstrdup(path);
    error_clear();
    close_all(&p);
    return found;
}
