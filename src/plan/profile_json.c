/* Profiles from and to JSON: every number is checked, every complaint names its place. */
#include "plan/profile.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_FILE_BYTES = 64 << 20, MAX_ITEMS = 4096 };
/* Above all of these a number is a mistake, and below `least` of them: sums of products and
 * quotients stay finite. */
static const double max_rate = 1e18, max_seconds = 1e5, max_bytes = 1e15, least = 1e-18;

static const char *const maths[] = {[MATH_F32] = "f32", [MATH_Q8] = "q8", [MATH_BF16] = "bf16"};
static const char *const axes[] = {
    [AXIS_ROWS] = "rows", [AXIS_COLS] = "cols", [AXIS_HEADS] = "heads", [AXIS_EXPERTS] = "experts"};
static const char *const side_names[] = {[SIDE_CPU] = "cpu", [SIDE_GPU] = "gpu"};

/* An object being read and its place in the file. */
struct node {
    const char *where; /* the file */
    char at[64];
    const json_t *json;
};

static ats_status bad(const struct node *n, const char *key, const char *what) {
    return fail(ATS_BAD_FILE, "%s: %s%s%s%s%s", n->where, n->at, n->at[0] && key[0] ? "." : "", key,
                n->at[0] || key[0] ? " " : "", what);
}

/* The object `key` of a node, with no key but the listed ones, and a comment. */
static ats_status check_keys(const struct node *n, const char *const *keys) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)n->json, key, value) {
        const char *const *k = keys;
        while (*k && strcmp(*k, key) != 0)
            k++;
        if (!*k && strcmp(key, "comment") != 0) {
            char shown[40];
            snprintf(shown, sizeof shown, "%.32s", key);
            return bad(n, shown, "is not known");
        }
    }
    return ATS_OK;
}

static ats_status child(const struct node *n, const char *key, const char *const *keys,
                        struct node *out) {
    *out = (struct node){.where = n->where, .json = json_object_get(n->json, key)};
    snprintf(out->at, sizeof out->at, "%.40s%s%.16s", n->at, n->at[0] ? "." : "", key);
    if (!out->json) return bad(n, key, "is missing");
    if (!json_is_object(out->json)) return bad(n, key, "is not an object");
    return check_keys(out, keys);
}

/* Above 0, of a possible size, and at most max. */
static ats_status number(const struct node *n, const char *key, double max, double *out) {
    const json_t *j = json_object_get(n->json, key);
    if (!j) return bad(n, key, "is missing");
    if (!json_is_number(j)) return bad(n, key, "is not a number");
    *out = json_number_value(j);
    if (!(*out > 0)) return bad(n, key, "must be above zero");
    if (!(*out <= max)) return bad(n, key, "is impossibly large");
    if (*out < least * max) return bad(n, key, "is impossibly small");
    return ATS_OK;
}

static ats_status optional(const struct node *n, const char *key, double max, double fallback,
                           double *out) {
    *out = fallback;
    return json_object_get(n->json, key) ? number(n, key, max, out) : ATS_OK;
}

static ats_status bytes(const struct node *n, const char *key, int64_t *out) {
    double value;
    TRY(number(n, key, max_bytes, &value));
    if (value < 1) return bad(n, key, "must be above zero");
    *out = (int64_t)value;
    return ATS_OK;
}

static ats_status text(struct arena *arena, const struct node *n, const char *key,
                       const char **out) {
    const json_t *j = json_object_get(n->json, key);
    *out = "";
    if (!j) return ATS_OK;
    if (!json_is_string(j)) return bad(n, key, "is not a text");
    *out = arena_strdup(arena, json_string_value(j));
    return ATS_OK;
}

/* ---- the machine ---- */

static ats_status read_memory(const struct node *root, struct profile *p) {
    static const char *const keys[] = {"gpu_bytes", "usable_bytes", "host_bytes", "shared", NULL};
    struct node n;
    TRY(child(root, "memory", keys, &n));
    TRY(bytes(&n, "gpu_bytes", &p->gpu_bytes));
    TRY(bytes(&n, "host_bytes", &p->host_bytes));
    p->usable_bytes = p->gpu_bytes;
    if (json_object_get(n.json, "usable_bytes")) TRY(bytes(&n, "usable_bytes", &p->usable_bytes));
    if (p->usable_bytes > p->gpu_bytes) return bad(&n, "usable_bytes", "is above gpu_bytes");
    const json_t *shared = json_object_get(n.json, "shared");
    if (shared && !json_is_boolean(shared)) return bad(&n, "shared", "is not true or false");
    p->shared = json_is_true(shared);
    return ATS_OK;
}

static ats_status read_link(const struct node *root, struct profile_link *l) {
    static const char *const keys[] = {"up_pinned",
                                       "up_staged",
                                       "down_pinned",
                                       "down_staged",
                                       "activation_up",
                                       "activation_down",
                                       "kappa_up",
                                       "kappa_down",
                                       "kappa_x",
                                       "cut",
                                       NULL};
    double *const to[] = {&l->up_pinned,   &l->up_staged,     &l->down_pinned,
                          &l->down_staged, &l->activation_up, &l->activation_down,
                          &l->kappa_up_s,  &l->kappa_down_s,  &l->kappa_x_s};
    const json_t *cut;
    struct node n;
    TRY(child(root, "link", keys, &n));
    for (size_t i = 0; i < COUNT_OF(to); i++)
        TRY(number(&n, keys[i], keys[i][0] == 'k' ? max_seconds : max_rate, to[i]));
    cut = json_object_get(n.json, "cut");
    if (!cut || (json_is_number(cut) && json_number_value(cut) == 0)) return ATS_OK;
    return number(&n, "cut", max_seconds, &l->cut_s);
}

static ats_status read_machine(const struct node *root, struct profile *p) {
    static const char *const bandwidth_keys[] = {"dram", "vram", NULL};
    static const char *const interference_keys[] = {"cpu_speed_copying", "copy_speed_cpu",
                                                    "cpu_speed_gpu", "gpu_speed_cpu", NULL};
    static const char *const op_keys[] = {"cpu", "gpu", NULL};
    struct profile_interference *f = &p->interference;
    struct node n;
    TRY(read_memory(root, p));
    TRY(child(root, "bandwidth", bandwidth_keys, &n));
    TRY(number(&n, "dram", max_rate, &p->dram_bytes));
    TRY(number(&n, "vram", max_rate, &p->vram_bytes));
    TRY(read_link(root, &p->link));
    TRY(child(root, "interference", interference_keys, &n));
    TRY(number(&n, "cpu_speed_copying", 1, &f->cpu_speed_copying));
    TRY(number(&n, "copy_speed_cpu", 1, &f->copy_speed_cpu));
    TRY(optional(&n, "cpu_speed_gpu", 1, 1, &f->cpu_speed_gpu));
    TRY(optional(&n, "gpu_speed_cpu", 1, 1, &f->gpu_speed_cpu));
    TRY(child(root, "op", op_keys, &n));
    TRY(number(&n, "cpu", max_seconds, &p->op_s[SIDE_CPU]));
    return number(&n, "gpu", max_seconds, &p->op_s[SIDE_GPU]);
}

static ats_status read_rates(const struct node *rates, const char *key, struct profile_rates *r) {
    static const char *const keys[] = {"bytes", "flop", "kv_bytes", "kv_flop", "types", NULL};
    static const char *const type_keys[] = {"bytes", "flop", NULL};
    struct node n, types, t;
    TRY(child(rates, key, keys, &n));
    TRY(number(&n, "bytes", max_rate, &r->default_bytes));
    TRY(number(&n, "flop", max_rate, &r->default_flop));
    TRY(number(&n, "kv_bytes", max_rate, &r->kv_bytes));
    TRY(number(&n, "kv_flop", max_rate, &r->kv_flop));
    for (int i = 0; i < N_DTYPES_WEIGHT; i++)
        r->bytes[i] = r->default_bytes, r->flop[i] = r->default_flop;
    types = n;
    types.json = json_object_get(n.json, "types");
    if (!types.json) return ATS_OK;
    if (!json_is_object(types.json)) return bad(&n, "types", "is not an object");
    snprintf(types.at, sizeof types.at, "%.40s.types", n.at);
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)types.json, name, value) {
        enum dtype type;
        if (!dtype_from_name(name, &type) || !dtype_info(type)->weight) {
            char shown[40];
            snprintf(shown, sizeof shown, "%.32s", name);
            return bad(&types, shown, "is no type that weights can have");
        }
        TRY(child(&types, name, type_keys, &t));
        TRY(optional(&t, "bytes", max_rate, r->default_bytes, &r->bytes[type]));
        TRY(optional(&t, "flop", max_rate, r->default_flop, &r->flop[type]));
    }
    return ATS_OK;
}

/* ---- tables ---- */

/* An array of 1 to max numbers. */
static ats_status read_row(const struct node *n, const char *key, const json_t *row, int max,
                           double *out, int *count) {
    if (!json_is_array(row)) return bad(n, key, row ? "is not an array" : "is missing");
    if (json_array_size(row) < 1 || json_array_size(row) > (size_t)max)
        return bad(n, key, "has too few or too many numbers");
    *count = (int)json_array_size(row);
    for (int i = 0; i < *count; i++) {
        if (!json_is_number(json_array_get(row, (size_t)i)))
            return bad(n, key, "holds what is not a number");
        out[i] = json_number_value(json_array_get(row, (size_t)i));
    }
    return ATS_OK;
}

static ats_status read_grid(const struct node *root, const char *key, int max, double first,
                            double last, double *out, int *count) {
    TRY(read_row(root, key, json_object_get(root->json, key), max, out, count));
    for (int i = 0; i < *count; i++)
        if (!(out[i] <= last) || (i > 0 && !(out[i] > out[i - 1])))
            return bad(root, key, "is not an ascending row of possible numbers");
    if (first >= 0 && out[0] != first) return bad(root, key, "does not begin as it must");
    return ATS_OK;
}

static ats_status read_counts(const struct node *root, const char *key, int max, int first,
                              int last, int *out, int *count) {
    double row[PROFILE_MAX_TOKENS];
    TRY(read_grid(root, key, max, first, last, row, count));
    for (int i = 0; i < *count; i++) {
        if (row[i] != floor(row[i])) return bad(root, key, "is not a row of whole numbers");
        out[i] = (int)row[i];
    }
    return ATS_OK;
}

static ats_status read_grids(const struct node *root, struct profile *p) {
    TRY(read_counts(root, "tokens", PROFILE_MAX_TOKENS, 1, 1 << 24, p->tokens, &p->n_tokens));
    TRY(read_counts(root, "depths", PROFILE_MAX_DEPTHS, 0, 1 << 30, p->depths, &p->n_depths));
    TRY(read_grid(root, "shares", PROFILE_MAX_SHARES, -1, 1, p->shares, &p->n_shares));
    if (!(p->shares[0] > 0) || p->shares[p->n_shares - 1] != 1)
        return bad(root, "shares", "must lie above 0 and end with 1");
    return ATS_OK;
}

static ats_status read_table(const struct profile *p, const struct node *n, const char *key,
                             int n_rows, double (*out)[PROFILE_MAX_TOKENS]) {
    const json_t *table = json_object_get(n->json, key);
    if (!json_is_array(table) || json_array_size(table) != (size_t)n_rows)
        return bad(n, key, table ? "has not as many rows as the profile's grid" : "is missing");
    for (int i = 0; i < n_rows; i++) {
        char name[32];
        int count;
        snprintf(name, sizeof name, "%s[%d]", key, i);
        TRY(read_row(n, name, json_array_get(table, (size_t)i), p->n_tokens, out[i], &count));
        if (count != p->n_tokens)
            return bad(n, name, "has not as many numbers as the profile has tokens");
    }
    return ATS_OK;
}

static ats_status read_key(struct arena *arena, const struct node *n, struct profile_key *key) {
    double dims[PROFILE_MAX_DIMS];
    const char *math, *axis;
    TRY(text(arena, n, "op", &key->op));
    if (!key->op[0]) return bad(n, "op", "is missing");
    TRY(text(arena, n, "math", &math));
    TRY(text(arena, n, "axis", &axis));
    size_t m = 0, a = 0;
    while (m < COUNT_OF(maths) && strcmp(math, maths[m]) != 0)
        m++;
    while (a < COUNT_OF(axes) && strcmp(axis, axes[a]) != 0)
        a++;
    if (m == COUNT_OF(maths)) return bad(n, "math", "is not f32, q8 or bf16");
    if (a == COUNT_OF(axes)) return bad(n, "axis", "is not rows, cols, heads or experts");
    key->math = (enum math)m, key->axis = (enum axis)a;
    TRY(read_row(n, "dims", json_object_get(n->json, "dims"), PROFILE_MAX_DIMS, dims,
                 &key->n_dims));
    for (int i = 0; i < key->n_dims; i++) {
        if (!(dims[i] >= 0 && dims[i] <= max_bytes) || dims[i] != floor(dims[i]))
            return bad(n, "dims", "holds an impossible number");
        key->dims[i] = (int64_t)dims[i];
    }
    const json_t *types = json_object_get(n->json, "types");
    if (!types) return ATS_OK;
    if (!json_is_array(types) || json_array_size(types) > PROFILE_MAX_TYPES)
        return bad(n, "types", "is not a row of at most three types");
    for (size_t i = 0; i < json_array_size(types); i++) {
        const char *name = json_string_value(json_array_get(types, i));
        if (!name || !dtype_from_name(name, &key->types[i]))
            return bad(n, "types", "holds a type that is not known");
        key->n_types++;
    }
    return ATS_OK;
}

static ats_status read_item(struct arena *arena, const struct profile *p, const struct node *n,
                            struct profile_item *item) {
    static const char *const keys[] = {"op", "types", "math", "axis", "dims", "cpu", "gpu", NULL};
    static const char *const side_keys[] = {"work", "kv", NULL};
    TRY(check_keys(n, keys));
    TRY(read_key(arena, n, &item->key));
    for (int s = 0; s < N_SIDES; s++) {
        struct node side;
        TRY(child(n, side_names[s], side_keys, &side));
        TRY(read_table(p, &side, "work", p->n_shares, item->sides[s].work_s));
        bool has_kv = json_object_get(side.json, "kv") != NULL;
        if (has_kv) TRY(read_table(p, &side, "kv", p->n_depths, item->sides[s].kv_s));
        if (s > 0 && has_kv != item->has_kv) return bad(&side, "kv", "is there on one side only");
        item->has_kv = has_kv;
    }
    return ATS_OK;
}

static ats_status read_items(struct arena *arena, const struct node *root, struct profile *p) {
    const json_t *items = json_object_get(root->json, "items");
    if (!items) return ATS_OK;
    if (!json_is_array(items) || json_array_size(items) > MAX_ITEMS)
        return bad(root, "items", "is not an array of a possible length");
    TRY(read_grids(root, p));
    p->n_items = (int)json_array_size(items);
    p->items = ARENA_ARRAY(arena, struct profile_item, p->n_items);
    for (int i = 0; i < p->n_items; i++) {
        struct node n = {.where = root->where, .json = json_array_get(items, (size_t)i)};
        snprintf(n.at, sizeof n.at, "items[%d]", i);
        if (!json_is_object(n.json)) return bad(&n, "", "is not an object");
        TRY(read_item(arena, p, &n, &p->items[i]));
    }
    return ATS_OK;
}

ats_status profile_from_json(struct arena *arena, const json_t *json, const char *where,
                             struct profile **out) {
    static const char *const keys[] = {"atsinfer",  "version", "name",         "key",   "memory",
                                       "bandwidth", "link",    "interference", "op",    "rates",
                                       "tokens",    "shares",  "depths",       "items", NULL};
    static const char *const rates_keys[] = {"cpu", "gpu", NULL};
    struct profile *p = ARENA_NEW(arena, struct profile);
    struct node root = {.where = where, .json = json}, rates;
    *out = NULL;
    const char *kind = json_string_value(json_object_get(json, "atsinfer"));
    if (!json_is_object(json) || !kind || strcmp(kind, "profile") != 0)
        return fail(ATS_BAD_FILE, "%s: this is not a profile or machine description", where);
    if (json_integer_value(json_object_get(json, "version")) != 1)
        return bad(&root, "version", "is not 1");
    TRY(check_keys(&root, keys));
    TRY(text(arena, &root, "name", &p->name));
    TRY(text(arena, &root, "key", &p->key));
    TRY(read_machine(&root, p));
    p->has_rates = json_object_get(json, "rates") != NULL;
    if (p->has_rates) {
        TRY(child(&root, "rates", rates_keys, &rates));
        TRY(read_rates(&rates, "cpu", &p->rates[SIDE_CPU]));
        TRY(read_rates(&rates, "gpu", &p->rates[SIDE_GPU]));
    }
    TRY(read_items(arena, &root, p));
    if (!p->has_rates && p->n_items == 0) return bad(&root, "", "holds neither rates nor items");
    TRY(profile_finish(p, where));
    *out = p;
    return ATS_OK;
}

ats_status profile_read(struct arena *arena, const char *path, struct profile **out) {
    json_t *json;
    *out = NULL;
    TRY(json_read_file(path, MAX_FILE_BYTES, &json));
    ats_status status = profile_from_json(arena, json, path, out);
    json_decref(json);
    return status;
}

/* ---- checks that a measured profile passes as well ---- */

static ats_status check_times(const struct profile *p, const struct node *n, const char *key,
                              int n_rows, bool zero, const double (*rows)[PROFILE_MAX_TOKENS]) {
    for (int i = 0; i < n_rows; i++)
        for (int t = 0; t < p->n_tokens; t++) {
            double v = rows[i][t];
            if (v > 0 && v <= max_seconds) continue;
            if (zero && v == 0) continue;
            char name[48];
            snprintf(name, sizeof name, "%s[%d][%d]", key, i, t);
            return bad(n, name, zero ? "is not a time" : "is not a time above zero");
        }
    return ATS_OK;
}

/* Least squares under "never falls": neighbours that fall are replaced by their mean. */
static void make_monotone(double *v, int n) {
    double mean[PROFILE_MAX_SHARES];
    int count[PROFILE_MAX_SHARES], m = 0;
    for (int i = 0; i < n; i++) {
        mean[m] = v[i], count[m++] = 1;
        while (m > 1 && mean[m - 2] > mean[m - 1]) {
            int both = count[m - 2] + count[m - 1];
            mean[m - 2] = (mean[m - 2] * count[m - 2] + mean[m - 1] * count[m - 1]) / both;
            count[m - 2] = both;
            m--;
        }
    }
    for (int i = 0, k = 0; k < m; k++)
        for (int j = 0; j < count[k]; j++)
            v[i++] = mean[k];
}

ats_status profile_finish(struct profile *p, const char *where) {
    for (int i = 0; i < p->n_items; i++)
        for (int s = 0; s < N_SIDES; s++) {
            struct node n = {.where = where};
            struct profile_times *times = &p->items[i].sides[s];
            snprintf(n.at, sizeof n.at, "items[%d].%s", i, side_names[s]);
            TRY(check_times(p, &n, "work", p->n_shares, false,
                            (const double(*)[PROFILE_MAX_TOKENS])times->work_s));
            if (p->items[i].has_kv)
                TRY(check_times(p, &n, "kv", p->n_depths, true,
                                (const double(*)[PROFILE_MAX_TOKENS])times->kv_s));
            for (int t = 0; t < p->n_tokens; t++) {
                double column[PROFILE_MAX_SHARES];
                for (int k = 0; k < p->n_shares; k++)
                    column[k] = times->work_s[k][t];
                make_monotone(column, p->n_shares);
                for (int k = 0; k < p->n_shares; k++)
                    times->work_s[k][t] = column[k];
            }
        }
    return ATS_OK;
}

/* ---- writing ---- */

static json_t *row_json(const double *row, int n) {
    json_t *out = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(out, json_real(row[i]));
    return out;
}

static json_t *ints_json(const int *row, int n) {
    json_t *out = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(out, json_integer(row[i]));
    return out;
}

static json_t *table_json(const double (*rows)[PROFILE_MAX_TOKENS], int n_rows, int n_tokens) {
    json_t *out = json_array();
    for (int i = 0; i < n_rows; i++)
        json_array_append_new(out, row_json(rows[i], n_tokens));
    return out;
}

static json_t *rates_json(const struct profile_rates *r) {
    json_t *types = json_object();
    for (int i = 0; i < N_DTYPES_WEIGHT; i++)
        if (r->bytes[i] != r->default_bytes || r->flop[i] != r->default_flop)
            json_object_set_new(types, dtype_name((enum dtype)i),
                                json_pack("{s:f, s:f}", "bytes", r->bytes[i], "flop", r->flop[i]));
    return json_pack("{s:f, s:f, s:f, s:f, s:o}", "bytes", r->default_bytes, "flop",
                     r->default_flop, "kv_bytes", r->kv_bytes, "kv_flop", r->kv_flop, "types",
                     types);
}

static json_t *item_json(const struct profile *p, const struct profile_item *item) {
    json_t *types = json_array(), *dims = json_array();
    for (int i = 0; i < item->key.n_types; i++)
        json_array_append_new(types, json_string(dtype_name(item->key.types[i])));
    for (int i = 0; i < item->key.n_dims; i++)
        json_array_append_new(dims, json_integer(item->key.dims[i]));
    json_t *out = json_pack("{s:s, s:o, s:s, s:s, s:o}", "op", item->key.op, "types", types, "math",
                            maths[item->key.math], "axis", axes[item->key.axis], "dims", dims);
    for (int s = 0; s < N_SIDES; s++) {
        const struct profile_times *t = &item->sides[s];
        json_t *side = json_pack(
            "{s:o}", "work",
            table_json((const double(*)[PROFILE_MAX_TOKENS])t->work_s, p->n_shares, p->n_tokens));
        if (item->has_kv)
            json_object_set_new(
                side, "kv",
                table_json((const double(*)[PROFILE_MAX_TOKENS])t->kv_s, p->n_depths, p->n_tokens));
        json_object_set_new(out, side_names[s], side);
    }
    return out;
}

static json_t *machine_json(const struct profile *p) {
    const struct profile_link *l = &p->link;
    const struct profile_interference *f = &p->interference;
    return json_pack(
        "{s:s, s:i, s:s, s:s, s:{s:I, s:I, s:I, s:b}, s:{s:f, s:f}, s:{s:f, s:f, s:f, s:f, s:f, "
        "s:f, s:f, s:f, s:f, s:f}, s:{s:f, s:f, s:f, s:f}, s:{s:f, s:f}}",
        "atsinfer", "profile", "version", 1, "name", p->name, "key", p->key, "memory", "gpu_bytes",
        (json_int_t)p->gpu_bytes, "usable_bytes", (json_int_t)p->usable_bytes, "host_bytes",
        (json_int_t)p->host_bytes, "shared", (int)p->shared, "bandwidth", "dram", p->dram_bytes,
        "vram", p->vram_bytes, "link", "up_pinned", l->up_pinned, "up_staged", l->up_staged,
        "down_pinned", l->down_pinned, "down_staged", l->down_staged, "activation_up",
        l->activation_up, "activation_down", l->activation_down, "kappa_up", l->kappa_up_s,
        "kappa_down", l->kappa_down_s, "kappa_x", l->kappa_x_s, "cut", l->cut_s, "interference",
        "cpu_speed_copying", f->cpu_speed_copying, "copy_speed_cpu", f->copy_speed_cpu,
        "cpu_speed_gpu", f->cpu_speed_gpu, "gpu_speed_cpu", f->gpu_speed_cpu, "op", "cpu",
        p->op_s[SIDE_CPU], "gpu", p->op_s[SIDE_GPU]);
}

json_t *profile_to_json(const struct profile *p) {
    json_t *out = machine_json(p);
    if (p->has_rates)
        json_object_set_new(out, "rates",
                            json_pack("{s:o, s:o}", "cpu", rates_json(&p->rates[SIDE_CPU]), "gpu",
                                      rates_json(&p->rates[SIDE_GPU])));
    if (p->n_items == 0) return out;
    json_object_set_new(out, "tokens", ints_json(p->tokens, p->n_tokens));
    json_object_set_new(out, "shares", row_json(p->shares, p->n_shares));
    json_object_set_new(out, "depths", ints_json(p->depths, p->n_depths));
    json_t *items = json_array();
    for (int i = 0; i < p->n_items; i++)
        json_array_append_new(items, item_json(p, &p->items[i]));
    json_object_set_new(out, "items", items);
    return out;
}
