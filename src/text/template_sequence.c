#include "text/template_impl.h"

#include <string.h>

/* Filters over sequences. Those that are generators in Jinja come out as V_ITER. */

static ats_status no_args(const struct args *args) {
    if (args->n == 0 && args->n_keywords == 0) return ATS_OK;
    return fail(ATS_BAD_INPUT, "takes no arguments");
}

/* ---- attribute paths: "a.b.0" ---- */

static bool is_digits(const char *s, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (s[i] < '0' || s[i] > '9') return false;
    return n > 0;
}

static ats_status follow_part(struct render *r, struct value v, const char *part, size_t n,
                              struct value fallback, struct value *out) {
    int64_t index;
    bool digits = is_digits(part, n) && parse_integer(part, n, 10, &index);
    TRY(get_item(r, v, digits ? value_int(index) : value_string(part, n), out));
    if (out->kind == V_UNDEFINED && !is_absent(fallback) && fallback.kind != V_NONE)
        *out = fallback;
    return ATS_OK;
}

/* fallback: for what is undefined; V_ABSENT: none. */
static ats_status follow(struct render *r, struct value v, struct value path, struct value fallback,
                         struct value *out) {
    *out = v;
    if (is_integral(path)) {
        TRY(get_item(r, v, path, out));
        if (out->kind == V_UNDEFINED && !is_absent(fallback) && fallback.kind != V_NONE)
            *out = fallback;
        return ATS_OK;
    }
    if (is_absent(path) || path.kind == V_NONE) return ATS_OK;
    if (!is_string(path))
        return fail(ATS_BAD_INPUT, "attribute must be a string, not '%s'", type_name(path));
    TRY(charge(r, path.n));
    for (size_t i = 0; i <= path.n;) {
        const char *dot = memchr(path.s + i, '.', path.n - i);
        size_t n = dot ? (size_t)(dot - path.s) - i : path.n - i;
        TRY(charge(r, 0));
        TRY(follow_part(r, *out, path.s + i, n, fallback, out));
        i += n + 1;
    }
    return ATS_OK;
}

/* What to compare by: the attribute, strings in lower case unless case counts. */
static ats_status key_of(struct render *r, struct value v, struct value path, struct value fallback,
                         bool case_sensitive, struct value *out) {
    TRY(follow(r, v, path, fallback, out));
    return is_string(*out) && !case_sensitive ? text_lower(r, *out, out) : ATS_OK;
}

/* ---- sorting ---- */

struct keyed {
    struct value key, value;
};

static ats_status merge_runs(struct render *r, const struct keyed *from, struct keyed *to,
                             size_t start, size_t middle, size_t end, bool reverse) {
    size_t a = start, b = middle;
    for (size_t i = start; i < end; i++) {
        bool take_b = a >= middle;
        if (!take_b && b < end) {
            int sign;
            TRY(charge(r, 0));
            TRY(order(r, from[b].key, from[a].key, &sign));
            take_b = reverse ? sign == 1 : sign == -1; /* stable both ways, as Python's */
        }
        to[i] = take_b ? from[b++] : from[a++];
    }
    return ATS_OK;
}

static ats_status sort_keyed(struct render *r, struct keyed *items, size_t n, bool reverse) {
    char *p;
    TRY(make_bytes(r, n * sizeof *items, &p));
    struct keyed *from = items, *to = (struct keyed *)(void *)p;
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t start = 0; start < n; start += 2 * width)
            TRY(merge_runs(r, from, to, start, min_size(start + width, n),
                           min_size(start + 2 * width, n), reverse));
        struct keyed *swap = from;
        from = to;
        to = swap;
    }
    if (from != items && n > 0) memcpy(items, from, n * sizeof *items);
    return ATS_OK;
}

static ats_status keyed_new(struct render *r, size_t n, struct keyed **out) {
    char *p;
    TRY(make_bytes(r, n * sizeof(struct keyed), &p));
    *out = (struct keyed *)(void *)p;
    return ATS_OK;
}

static ats_status values_of(struct render *r, const struct keyed *items, size_t n,
                            struct value *out) {
    struct list *list;
    TRY(list_new(r, n, &list));
    for (size_t i = 0; i < n; i++)
        TRY(list_add(r, list, items[i].value));
    *out = value_list(list);
    return ATS_OK;
}

/* "age,name" sorts by both: the key is then a list. */
static ats_status sort_key(struct render *r, struct value v, struct value path, bool case_sensitive,
                           struct value *out) {
    if (!is_string(path) || !memchr(path.s, ',', path.n))
        return key_of(r, v, path, value_of(V_ABSENT), case_sensitive, out);
    struct list *list;
    TRY(list_new(r, 2, &list));
    for (size_t i = 0; i <= path.n;) {
        const char *comma = memchr(path.s + i, ',', path.n - i);
        size_t n = comma ? (size_t)(comma - path.s) - i : path.n - i;
        struct value key;
        TRY(key_of(r, v, value_string(path.s + i, n), value_of(V_ABSENT), case_sensitive, &key));
        TRY(list_add(r, list, key));
        i += n + 1;
    }
    *out = value_list(list);
    return ATS_OK;
}

static ats_status f_sort(struct render *r, struct value in, const struct args *args,
                         struct value *out) {
    struct value slots[3];
    struct list *list;
    struct keyed *items;
    bool reverse = false, case_sensitive = false;
    TRY(take_args(args, "reverse case_sensitive attribute", 3, slots));
    arg_bool(slots[0], &reverse);
    arg_bool(slots[1], &case_sensitive);
    TRY(to_list(r, in, &list));
    TRY(keyed_new(r, list->n, &items));
    for (size_t i = 0; i < list->n; i++) {
        items[i].value = list->items[i];
        TRY(sort_key(r, list->items[i], slots[2], case_sensitive, &items[i].key));
    }
    TRY(sort_keyed(r, items, list->n, reverse));
    return values_of(r, items, list->n, out);
}

static ats_status f_dictsort(struct render *r, struct value in, const struct args *args,
                             struct value *out) {
    struct value slots[3], by = value_string("key", 3);
    struct keyed *items;
    bool reverse = false, case_sensitive = false;
    TRY(take_args(args, "case_sensitive by reverse", 3, slots));
    arg_bool(slots[0], &case_sensitive);
    TRY(arg_string(slots[1], "by", &by));
    arg_bool(slots[2], &reverse);
    if (in.kind == V_UNDEFINED) return fail_undefined(in);
    if (in.kind != V_DICT) return fail(ATS_BAD_INPUT, "needs a dict, not '%s'", type_name(in));
    bool by_value = string_is(by, "value");
    if (!by_value && !string_is(by, "key"))
        return fail(ATS_BAD_INPUT, "can only sort by 'key' or 'value'");
    TRY(keyed_new(r, in.dict->n, &items));
    for (size_t i = 0; i < in.dict->n; i++) {
        struct pair pair = in.dict->pairs[i];
        TRY(key_of(r, by_value ? pair.value : pair.key, value_none(), value_none(), case_sensitive,
                   &items[i].key));
        TRY(tuple2(r, pair.key, pair.value, &items[i].value));
    }
    TRY(sort_keyed(r, items, in.dict->n, reverse));
    return values_of(r, items, in.dict->n, out);
}

static ats_status f_groupby(struct render *r, struct value in, const struct args *args,
                            struct value *out) {
    struct value slots[3], key;
    struct list *list, *groups, *group = NULL;
    struct keyed *items;
    bool case_sensitive = false;
    TRY(take_args(args, "attribute default case_sensitive", 3, slots));
    arg_bool(slots[2], &case_sensitive);
    TRY(to_list(r, in, &list));
    TRY(keyed_new(r, list->n, &items));
    for (size_t i = 0; i < list->n; i++) {
        items[i].value = list->items[i];
        TRY(key_of(r, list->items[i], slots[0], slots[1], case_sensitive, &items[i].key));
    }
    TRY(sort_keyed(r, items, list->n, false));
    TRY(list_new(r, 0, &groups));
    for (size_t i = 0; i < list->n; i++) {
        bool same = i > 0;
        if (same) TRY(equal(r, items[i - 1].key, items[i].key, &same));
        if (!same) {
            struct value pair;
            TRY(list_new(r, 0, &group));
            TRY(follow(r, items[i].value, slots[0], slots[1], &key));
            TRY(tuple2(r, key, value_list(group), &pair));
            pair.tag = 1;
            TRY(list_add(r, groups, pair));
        }
        TRY(list_add(r, group, items[i].value));
    }
    *out = value_list(groups);
    return ATS_OK;
}

static ats_status extreme(struct render *r, struct value in, const struct args *args, bool max,
                          struct value *out) {
    struct value slots[2], best_key = value_none();
    struct list *list;
    bool case_sensitive = false;
    TRY(take_args(args, "case_sensitive attribute", 2, slots));
    arg_bool(slots[0], &case_sensitive);
    TRY(to_list(r, in, &list));
    *out = value_undefined_text("No aggregated item, sequence was empty.");
    for (size_t i = 0; i < list->n; i++) {
        struct value key;
        int sign = 0;
        TRY(key_of(r, list->items[i], slots[1], value_none(), case_sensitive, &key));
        if (i > 0) TRY(order(r, key, best_key, &sign));
        if (i > 0 && sign != (max ? 1 : -1)) continue;
        best_key = key;
        *out = list->items[i];
    }
    return ATS_OK;
}
static ats_status f_min(struct render *r, struct value in, const struct args *args,
                        struct value *out) {
    return extreme(r, in, args, false, out);
}
static ats_status f_max(struct render *r, struct value in, const struct args *args,
                        struct value *out) {
    return extreme(r, in, args, true, out);
}

/* ---- picking ---- */

static ats_status f_first(struct render *r, struct value in, const struct args *args,
                          struct value *out) {
    struct cursor c;
    bool more;
    TRY(no_args(args));
    TRY(cursor_begin(r, in, &c));
    TRY(cursor_next(r, &c, out, &more));
    if (!more) *out = value_undefined_text("No first item, sequence was empty.");
    return ATS_OK;
}

static ats_status f_last(struct render *r, struct value in, const struct args *args,
                         struct value *out) {
    struct list *list;
    TRY(no_args(args));
    if (in.kind == V_ITER)
        return fail(ATS_BAD_INPUT, "'%s' object is not reversible", type_name(in));
    TRY(to_list(r, in, &list));
    *out = list->n > 0 ? list->items[list->n - 1]
                       : value_undefined_text("No last item, sequence was empty.");
    return ATS_OK;
}

static ats_status f_list(struct render *r, struct value in, const struct args *args,
                         struct value *out) {
    struct list *list;
    TRY(no_args(args));
    TRY(to_list(r, in, &list));
    *out = value_list(list);
    return ATS_OK;
}

static ats_status f_reverse(struct render *r, struct value in, const struct args *args,
                            struct value *out) {
    struct list *list, *back;
    TRY(no_args(args));
    if (is_string(in)) return get_slice(r, in, value_none(), value_none(), value_int(-1), out);
    TRY(to_list(r, in, &list));
    TRY(list_new(r, list->n, &back));
    for (size_t i = list->n; i > 0; i--)
        TRY(list_add(r, back, list->items[i - 1]));
    return iter_new(r, back, out);
}

static ats_status f_items(struct render *r, struct value in, const struct args *args,
                          struct value *out) {
    struct list *list;
    TRY(no_args(args));
    if (in.kind == V_UNDEFINED) {
        TRY(list_new(r, 0, &list));
    } else if (in.kind == V_DICT) {
        struct value view = {.kind = V_VIEW, .tag = VIEW_ITEMS, .dict = in.dict};
        TRY(to_list(r, view, &list));
    } else {
        return fail(ATS_BAD_INPUT, "needs a mapping, not '%s'", type_name(in));
    }
    return iter_new(r, list, out);
}

static ats_status f_unique(struct render *r, struct value in, const struct args *args,
                           struct value *out) {
    struct value slots[2], key;
    struct list *list, *kept, *keys;
    bool case_sensitive = false;
    TRY(take_args(args, "case_sensitive attribute", 2, slots));
    arg_bool(slots[0], &case_sensitive);
    TRY(to_list(r, in, &list));
    TRY(list_new(r, 0, &kept));
    TRY(list_new(r, 0, &keys));
    for (size_t i = 0; i < list->n; i++) {
        bool seen;
        TRY(key_of(r, list->items[i], slots[1], value_none(), case_sensitive, &key));
        if (key.kind == V_LIST || key.kind == V_DICT)
            return fail(ATS_BAD_INPUT, "unhashable type: '%s'", type_name(key));
        TRY(contains(r, value_list(keys), key, &seen));
        if (seen) continue;
        TRY(list_add(r, keys, key));
        TRY(list_add(r, kept, list->items[i]));
    }
    return iter_new(r, kept, out);
}

static ats_status f_join(struct render *r, struct value in, const struct args *args,
                         struct value *out) {
    struct value slots[2];
    TRY(take_args(args, "d attribute", 2, slots));
    if (!is_absent(slots[1]) && slots[1].kind != V_NONE) {
        struct list *list;
        TRY(to_list(r, in, &list));
        for (size_t i = 0; i < list->n; i++)
            TRY(follow(r, list->items[i], slots[1], value_none(), &list->items[i]));
        in = value_list(list);
    }
    return text_join(r, is_absent(slots[0]) ? value_string("", 0) : slots[0], in, false, out);
}

static ats_status f_sum(struct render *r, struct value in, const struct args *args,
                        struct value *out) {
    struct value slots[2];
    struct list *list;
    TRY(take_args(args, "attribute start", 2, slots));
    TRY(to_list(r, in, &list));
    *out = is_absent(slots[1]) ? value_int(0) : slots[1];
    if (is_string(*out)) return fail(ATS_BAD_INPUT, "cannot sum strings");
    for (size_t i = 0; i < list->n; i++) {
        struct value v;
        TRY(follow(r, list->items[i], slots[0], value_none(), &v));
        TRY(binary(r, '+', *out, v, out));
    }
    return ATS_OK;
}

/* ---- cutting ---- */

static ats_status fill_up(struct render *r, struct list *list, size_t n, struct value fill) {
    if (is_absent(fill) || fill.kind == V_NONE) return ATS_OK;
    while (list->n < n) {
        TRY(charge(r, 0));
        TRY(list_add(r, list, fill));
    }
    return ATS_OK;
}

static ats_status f_batch(struct render *r, struct value in, const struct args *args,
                          struct value *out) {
    struct value slots[2];
    struct list *list, *batches, *batch = NULL;
    int64_t size = 0;
    TRY(take_args(args, "linecount fill_with", 2, slots));
    TRY(arg_int(slots[0], "linecount", &size));
    if (size <= 0) return fail(ATS_BAD_INPUT, "needs a positive number");
    TRY(to_list(r, in, &list));
    TRY(list_new(r, 0, &batches));
    for (size_t i = 0; i < list->n; i++) {
        if (i % (uint64_t)size == 0) {
            TRY(list_new(r, 0, &batch));
            TRY(list_add(r, batches, value_list(batch)));
        }
        TRY(list_add(r, batch, list->items[i]));
    }
    if (batch) TRY(fill_up(r, batch, (size_t)size, slots[1]));
    return iter_new(r, batches, out);
}

static ats_status f_slice(struct render *r, struct value in, const struct args *args,
                          struct value *out) {
    struct value slots[2];
    struct list *list, *slices, *slice;
    int64_t count = 0;
    TRY(take_args(args, "slices fill_with", 2, slots));
    TRY(arg_int(slots[0], "slices", &count));
    if (count <= 0) return fail(ATS_BAD_INPUT, "needs a positive number");
    TRY(to_list(r, in, &list));
    TRY(list_new(r, 0, &slices));
    size_t n = list->n / (size_t)count, extra = list->n % (size_t)count, at = 0;
    for (size_t i = 0; i < (size_t)count; i++) {
        TRY(charge(r, 0));
        TRY(list_new(r, 0, &slice));
        for (size_t k = n + (i < extra); k > 0; k--)
            TRY(list_add(r, slice, list->items[at++]));
        if (i >= extra) TRY(fill_up(r, slice, n + 1, slots[1]));
        TRY(list_add(r, slices, value_list(slice)));
    }
    return iter_new(r, slices, out);
}

/* ---- map, select ---- */

static ats_status map_attribute(struct render *r, const struct list *list, const struct args *args,
                                struct value *out) {
    struct value slots[2];
    struct list *made;
    TRY(take_args(args, "attribute default", 2, slots));
    TRY(list_new(r, list->n, &made));
    for (size_t i = 0; i < list->n; i++) {
        struct value v;
        TRY(follow(r, list->items[i], slots[0], slots[1], &v));
        TRY(list_add(r, made, v));
    }
    return iter_new(r, made, out);
}

/* Arguments after the first n_skip. */
static struct args rest_of(const struct args *args, int n_skip) {
    struct args rest = *args;
    rest.items = args->items ? args->items + n_skip : NULL;
    rest.n -= n_skip;
    return rest;
}

static ats_status map_filter(struct render *r, const struct list *list, const struct args *args,
                             struct value *out) {
    struct value name = args->n > 0 ? args->items[0] : value_none();
    if (!is_string(name)) return fail(ATS_BAD_INPUT, "needs an attribute or the name of a filter");
    const struct filter *f = filter_find(name.s, name.n);
    if (!f) return fail(ATS_BAD_INPUT, "unknown filter '%.*s'", (int)min_size(name.n, 60), name.s);
    struct args rest = rest_of(args, 1);
    struct list *made;
    TRY(list_new(r, list->n, &made));
    for (size_t i = 0; i < list->n; i++) {
        struct value v;
        TRY(charge(r, 0));
        TRY(f->fn(r, list->items[i], &rest, &v));
        TRY(list_add(r, made, v));
    }
    return iter_new(r, made, out);
}

static ats_status f_map(struct render *r, struct value in, const struct args *args,
                        struct value *out) {
    struct list *list;
    if (!truth(in))
        TRY(list_new(r, 0, &list)); /* also none: Jinja looks no further */
    else
        TRY(to_list(r, in, &list));
    TRY(enter(r)); /* map('map', ...) */
    bool attribute = args->n == 0 && args->n_keywords > 0;
    TRY(attribute ? map_attribute(r, list, args, out) : map_filter(r, list, args, out));
    leave(r);
    return ATS_OK;
}

/* Keeps items for which the test (its name in args, none: truth) is `keep`. */
static ats_status pick(struct render *r, struct value in, const struct args *args, bool keep,
                       bool by_attribute, struct value *out) {
    struct list *list, *kept;
    int n_own = by_attribute;
    if (args->n < n_own) return fail(ATS_BAD_INPUT, "needs the name of an attribute");
    const struct test *test = NULL;
    if (args->n > n_own) {
        struct value name = args->items[n_own];
        test = is_string(name) ? test_find(name.s, name.n) : NULL;
        if (!test)
            return fail(ATS_BAD_INPUT, "unknown test '%.*s'",
                        is_string(name) ? (int)min_size(name.n, 60) : 0, name.s);
    }
    struct args rest = rest_of(args, min_int(args->n, n_own + 1));
    if (!truth(in))
        TRY(list_new(r, 0, &list));
    else
        TRY(to_list(r, in, &list));
    TRY(list_new(r, 0, &kept));
    for (size_t i = 0; i < list->n; i++) {
        struct value v = list->items[i];
        bool yes;
        TRY(charge(r, 0));
        if (by_attribute) TRY(follow(r, v, args->items[0], value_of(V_ABSENT), &v));
        if (test)
            TRY(test->fn(r, v, &rest, &yes));
        else
            yes = truth(v);
        if (yes == keep) TRY(list_add(r, kept, list->items[i]));
    }
    return iter_new(r, kept, out);
}
static ats_status f_select(struct render *r, struct value in, const struct args *args,
                           struct value *out) {
    return pick(r, in, args, true, false, out);
}
static ats_status f_reject(struct render *r, struct value in, const struct args *args,
                           struct value *out) {
    return pick(r, in, args, false, false, out);
}
static ats_status f_selectattr(struct render *r, struct value in, const struct args *args,
                               struct value *out) {
    return pick(r, in, args, true, true, out);
}
static ats_status f_rejectattr(struct render *r, struct value in, const struct args *args,
                               struct value *out) {
    return pick(r, in, args, false, true, out);
}

static const struct filter filters[] = {
    {"join", f_join},
    {"list", f_list},
    {"items", f_items},
    {"selectattr", f_selectattr},
    {"rejectattr", f_rejectattr},
    {"select", f_select},
    {"reject", f_reject},
    {"map", f_map},
    {"dictsort", f_dictsort},
    {"first", f_first},
    {"last", f_last},
    {"min", f_min},
    {"max", f_max},
    {"sort", f_sort},
    {"unique", f_unique},
    {"reverse", f_reverse},
    {"sum", f_sum},
    {"batch", f_batch},
    {"slice", f_slice},
    {"groupby", f_groupby},
};

const struct filter *sequence_filter_find(const char *name, size_t n) {
    for (size_t i = 0; i < COUNT_OF(filters); i++)
        if (strlen(filters[i].name) == n && memcmp(filters[i].name, name, n) == 0)
            return &filters[i];
    return NULL;
}
