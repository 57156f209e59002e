#include "run/kept_profile.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/log.h"

/* A request, and the keys of its operators. */
struct keeping {
    struct arena *arena;
    const struct profile_request *r;
    const struct measure_options *o;
    struct profile *keys;
};

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

static uint64_t hash_keys(const struct keeping *p) {
    json_t *json = profile_to_json(p->keys);
    char *items = json_print(json_object_get(json, "items"), false);
    uint64_t hash = hash_text(items);
    free(items);
    json_decref(json);
    return hash;
}

/* One line of all that the times depend on. */
static char *make_key(struct keeping *p, bool quick) {
    struct backend_cpu_info cpu;
    struct buf text = {0};
    backend_cpu_info(&cpu);
    buf_printf(&text, "3%s; %s on %s, %s, %d threads", quick ? " quick" : "", p->o->cpu, cpu.model,
               cpu.isa, p->o->n_threads);
    if (p->o->gpu) buf_add_str(&text, "; "), add_gpu(&text, p->o->gpu);
    buf_printf(&text, "; context %d; %d operators %016" PRIx64, p->o->n_ctx, p->keys->n_items,
               hash_keys(p));
    char *key = arena_strdup(p->arena, buf_str(&text));
    buf_free(&text);
    return key;
}

static char *make_name(struct keeping *p) {
    struct backend_cpu_info cpu;
    backend_cpu_info(&cpu);
    if (strncmp(p->o->cpu, "sim", 3) == 0) return arena_strdup(p->arena, "simulated devices");
    if (!p->o->gpu) return arena_printf(p->arena, "%s, no GPU", cpu.model);
    return arena_printf(p->arena, "%s and %s", cpu.model, p->o->gpu);
}

/* ---- the file ---- */

/* NULL: there is no place. In the arena. */
static char *make_path(struct keeping *p, const char *key, bool create) {
    char *dir;
    if (dir_path(DIR_CACHE, create, &dir) != ATS_OK) {
        error_clear();
        return NULL;
    }
    char *path = arena_printf(p->arena, "%s/profile-%016" PRIx64 ".json", dir, hash_text(key));
    free(dir);
    return path;
}

/* What is wrong with it is said, and it counts as none. */
static struct profile *read_kept(struct keeping *p, const char *key, const char *path) {
    struct profile *kept = NULL;
    if (!path || !file_exists(path)) return NULL;
    if (profile_read(p->arena, path, &kept) != ATS_OK) {
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
static struct profile *find_kept(struct keeping *p, bool quick_too, const char **path) {
    for (int quick = 0; quick <= (int)quick_too; quick++) {
        const char *key = make_key(p, quick);
        *path = make_path(p, key, false);
        struct profile *kept = read_kept(p, key, *path);
        if (kept) return kept;
    }
    return NULL;
}

static const char *keep(struct keeping *p, const struct profile *profile) {
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

/* ---- for others ---- */

ats_status profile_depths_of(const struct gguf *file, int *n_ctx) {
    uint32_t trained = 0;
    TRY(gguf_opt_u32(file, ".context_length", &trained));
    *n_ctx = trained ? (int)min_i64(trained, 1 << 24) : 4096;
    return ATS_OK;
}

static ats_status list_keys(struct keeping *p) {
    return measure_keys(p->arena, p->r->model, p->o, &p->keys);
}

struct profile *kept_profile_find(struct arena *arena, const struct profile_request *r,
                                  bool quick_too, const char **path) {
    struct keeping p = {.arena = arena, .r = r, .o = &r->measure};
    *path = NULL;
    if (list_keys(&p) == ATS_OK) return find_kept(&p, quick_too, path);
    error_clear();
    return NULL;
}

ats_status kept_profile_measure(struct arena *arena, const struct profile_request *r,
                                struct profile **out, const char **path) {
    struct keeping p = {.arena = arena, .r = r, .o = &r->measure};
    TRY(list_keys(&p));
    log_msg(LOG_INFO, "measuring %d operators on %s%s%s", p.keys->n_items, p.o->cpu,
            p.o->gpu ? " and " : "", p.o->gpu ? p.o->gpu : "");
    TRY(measure_profile(arena, r->model, p.o, out));
    (*out)->name = make_name(&p);
    (*out)->key = make_key(&p, p.o->quick);
    *path = keep(&p, *out);
    return ATS_OK;
}

/* That it was measured quickly, or for other depths, is no difference. */
static bool same_machine(const char *a, const char *b) {
    const char *from_a = strchr(a, ';'), *from_b = strchr(b, ';');
    const char *to_a = strstr(a, "; context "), *to_b = strstr(b, "; context ");
    if (!from_a || !from_b || !to_a || !to_b) return false;
    return to_a - from_a == to_b - from_b && memcmp(from_a, from_b, (size_t)(to_a - from_a)) == 0;
}

ats_status kept_profile_check(const struct profile_request *r, const struct profile *profile) {
    struct arena scratch = {0};
    struct keeping p = {.arena = &scratch, .r = r, .o = &r->measure};
    ats_status status = list_keys(&p);
    const char *key = status == ATS_OK ? make_key(&p, false) : "";
    if (status == ATS_OK && profile->key[0] && !same_machine(profile->key, key))
        status =
            fail(ATS_BAD_ARGUMENT, "the profile is of another machine: of \"%s\"", profile->name);
    for (int i = 0; status == ATS_OK && i < p.keys->n_items; i++)
        if (!profile_knows(profile, &p.keys->items[i].key))
            status = fail(ATS_BAD_ARGUMENT,
                          "the profile of \"%s\" is of another model: it has no time of %s",
                          profile->name, p.keys->items[i].key.op);
    arena_free(&scratch);
    return status;
}
