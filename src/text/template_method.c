#include "text/template_impl.h"

#include <string.h>

/* Methods of list, tuple, dict, range, loop, cycler. */

typedef ats_status method_fn(struct render *r, struct value self, const struct args *args,
                             struct value *out);

/* ---- list, tuple ---- */

static ats_status find_in_list(struct render *r, const struct list *list, struct value v,
                               int64_t *at) {
    *at = -1;
    for (size_t i = 0; i < list->n && *at < 0; i++) {
        bool same;
        TRY(charge(r, 0));
        TRY(equal(r, list->items[i], v, &same));
        if (same) *at = (int64_t)i;
    }
    return ATS_OK;
}

static ats_status list_append(struct render *r, struct value self, const struct args *args,
                              struct value *out) {
    struct value v;
    TRY(take_args(args, "", 1, &v));
    if (is_absent(v)) return fail(ATS_BAD_INPUT, "needs an argument");
    *out = value_none();
    return list_add(r, self.list, v);
}

static ats_status list_extend(struct render *r, struct value self, const struct args *args,
                              struct value *out) {
    struct value v;
    struct list *more;
    TRY(take_args(args, "", 1, &v));
    TRY(to_list(r, v, &more)); /* a copy: v may be the list itself */
    for (size_t i = 0; i < more->n; i++)
        TRY(list_add(r, self.list, more->items[i]));
    *out = value_none();
    return ATS_OK;
}

static ats_status list_insert(struct render *r, struct value self, const struct args *args,
                              struct value *out) {
    struct value slots[2];
    struct list *list = self.list;
    int64_t at = 0, n = (int64_t)list->n;
    TRY(take_args(args, "", 2, slots));
    TRY(arg_int(slots[0], "index", &at));
    if (is_absent(slots[1])) return fail(ATS_BAD_INPUT, "needs two arguments");
    if (at < 0) at = max_i64(at + n, 0);
    at = min_i64(at, n);
    TRY(charge(r, list->n));
    TRY(list_add(r, list, slots[1]));
    memmove(list->items + at + 1, list->items + at, (size_t)(n - at) * sizeof *list->items);
    list->items[at] = slots[1];
    *out = value_none();
    return ATS_OK;
}

static ats_status take_out(struct render *r, struct list *list, int64_t at) {
    TRY(charge(r, list->n - (size_t)at));
    memmove(list->items + at, list->items + at + 1,
            (list->n - 1 - (size_t)at) * sizeof *list->items);
    list->n--;
    return ATS_OK;
}

static ats_status list_pop(struct render *r, struct value self, const struct args *args,
                           struct value *out) {
    struct value slot;
    int64_t at = -1, n = (int64_t)self.list->n;
    TRY(take_args(args, "", 1, &slot));
    TRY(arg_int(slot, "index", &at));
    if (at < 0) at += n;
    if (at < 0 || at >= n) return fail(ATS_BAD_INPUT, "index out of range");
    *out = self.list->items[at];
    return take_out(r, self.list, at);
}

static ats_status list_remove(struct render *r, struct value self, const struct args *args,
                              struct value *out) {
    struct value v;
    int64_t at;
    TRY(take_args(args, "", 1, &v));
    TRY(find_in_list(r, self.list, v, &at));
    if (at < 0) return fail(ATS_BAD_INPUT, "the value is not in the list");
    *out = value_none();
    return take_out(r, self.list, at);
}

static ats_status list_clear(struct render *r, struct value self, const struct args *args,
                             struct value *out) {
    TRY(charge(r, 0));
    TRY(take_args(args, "", 0, NULL));
    self.list->n = 0;
    *out = value_none();
    return ATS_OK;
}

static ats_status list_reverse(struct render *r, struct value self, const struct args *args,
                               struct value *out) {
    struct list *list = self.list;
    TRY(charge(r, list->n));
    TRY(take_args(args, "", 0, NULL));
    for (size_t i = 0; i < list->n / 2; i++) {
        struct value v = list->items[i];
        list->items[i] = list->items[list->n - 1 - i];
        list->items[list->n - 1 - i] = v;
    }
    *out = value_none();
    return ATS_OK;
}

static ats_status list_sort(struct render *r, struct value self, const struct args *args,
                            struct value *out) {
    struct value reverse, sorted;
    TRY(take_args(args, "reverse", 1, &reverse));
    struct named_value keywords[] = {{"reverse", 7, value_bool(truth(reverse))},
                                     {"case_sensitive", 14, value_bool(true)}};
    struct args to_filter = {.keywords = keywords, .n_keywords = 2};
    TRY(filter_find("sort", 4)->fn(r, self, &to_filter, &sorted));
    if (sorted.list->n > 0)
        memcpy(self.list->items, sorted.list->items, sorted.list->n * sizeof *sorted.list->items);
    *out = value_none();
    return ATS_OK;
}

static ats_status list_copy(struct render *r, struct value self, const struct args *args,
                            struct value *out) {
    struct list *list;
    TRY(take_args(args, "", 0, NULL));
    TRY(to_list(r, self, &list));
    *out = value_list(list);
    return ATS_OK;
}

static ats_status list_index(struct render *r, struct value self, const struct args *args,
                             struct value *out) {
    struct value v;
    int64_t at;
    TRY(take_args(args, "", 1, &v));
    TRY(find_in_list(r, self.list, v, &at));
    if (at < 0) return fail(ATS_BAD_INPUT, "the value is not in the list");
    *out = value_int(at);
    return ATS_OK;
}

static ats_status list_count(struct render *r, struct value self, const struct args *args,
                             struct value *out) {
    struct value v;
    int64_t count = 0;
    TRY(take_args(args, "", 1, &v));
    for (size_t i = 0; i < self.list->n; i++) {
        bool same;
        TRY(charge(r, 0));
        TRY(equal(r, self.list->items[i], v, &same));
        count += same;
    }
    *out = value_int(count);
    return ATS_OK;
}

/* ---- dict ---- */

static ats_status dict_view(struct value self, const struct args *args, enum view_kind kind,
                            struct value *out) {
    TRY(take_args(args, "", 0, NULL));
    *out = (struct value){.kind = V_VIEW, .tag = (uint8_t)kind, .dict = self.dict};
    return ATS_OK;
}
static ats_status dict_keys(struct render *r, struct value self, const struct args *args,
                            struct value *out) {
    (void)r;
    return dict_view(self, args, VIEW_KEYS, out);
}
static ats_status dict_values(struct render *r, struct value self, const struct args *args,
                              struct value *out) {
    (void)r;
    return dict_view(self, args, VIEW_VALUES, out);
}
static ats_status dict_items(struct render *r, struct value self, const struct args *args,
                             struct value *out) {
    (void)r;
    return dict_view(self, args, VIEW_ITEMS, out);
}

static ats_status dict_get(struct render *r, struct value self, const struct args *args,
                           struct value *out) {
    struct value slots[2], *found;
    TRY(take_args(args, "", 2, slots));
    if (is_absent(slots[0])) return fail(ATS_BAD_INPUT, "needs an argument");
    TRY(dict_find(r, self.dict, slots[0], &found));
    *out = found ? *found : is_absent(slots[1]) ? value_none() : slots[1];
    return ATS_OK;
}

static ats_status dict_remove(struct render *r, struct dict *dict, size_t at) {
    TRY(charge(r, dict->n - at));
    memmove(dict->pairs + at, dict->pairs + at + 1, (dict->n - 1 - at) * sizeof *dict->pairs);
    dict->n--;
    return ATS_OK;
}

static ats_status dict_pop(struct render *r, struct value self, const struct args *args,
                           struct value *out) {
    struct value slots[2], *found;
    TRY(take_args(args, "", 2, slots));
    if (is_absent(slots[0])) return fail(ATS_BAD_INPUT, "needs an argument");
    TRY(dict_find(r, self.dict, slots[0], &found));
    if (!found && is_absent(slots[1])) return fail(ATS_BAD_INPUT, "no such key");
    *out = found ? *found : slots[1];
    if (!found) return ATS_OK;
    struct pair *pair = CONTAINER_OF(found, struct pair, value);
    return dict_remove(r, self.dict, (size_t)(pair - self.dict->pairs));
}

static ats_status dict_popitem(struct render *r, struct value self, const struct args *args,
                               struct value *out) {
    TRY(take_args(args, "", 0, NULL));
    if (self.dict->n == 0) return fail(ATS_BAD_INPUT, "the dict is empty");
    struct pair last = self.dict->pairs[--self.dict->n];
    return tuple2(r, last.key, last.value, out);
}

static ats_status dict_setdefault(struct render *r, struct value self, const struct args *args,
                                  struct value *out) {
    struct value slots[2], *found;
    TRY(take_args(args, "", 2, slots));
    if (is_absent(slots[0])) return fail(ATS_BAD_INPUT, "needs an argument");
    TRY(dict_find(r, self.dict, slots[0], &found));
    *out = found ? *found : is_absent(slots[1]) ? value_none() : slots[1];
    return found ? ATS_OK : dict_add(r, self.dict, slots[0], *out);
}

static ats_status dict_merge(struct render *r, struct dict *to, const struct dict *from) {
    for (size_t i = 0; i < from->n; i++)
        TRY(dict_set(r, to, from->pairs[i].key, from->pairs[i].value));
    return ATS_OK;
}

static ats_status dict_update(struct render *r, struct value self, const struct args *args,
                              struct value *out) {
    if (args->n > 1) return fail(ATS_BAD_INPUT, "takes not more than 1 argument");
    if (args->n == 1 && args->items[0].kind != V_DICT)
        return fail(ATS_BAD_INPUT, "needs a dict, not '%s'", type_name(args->items[0]));
    if (args->n == 1) TRY(dict_merge(r, self.dict, args->items[0].dict));
    for (int i = 0; i < args->n_keywords; i++) {
        const struct named_value *k = &args->keywords[i];
        TRY(dict_set(r, self.dict, value_string(k->name, k->n), k->v));
    }
    *out = value_none();
    return ATS_OK;
}

static ats_status dict_clear(struct render *r, struct value self, const struct args *args,
                             struct value *out) {
    (void)r;
    TRY(take_args(args, "", 0, NULL));
    self.dict->n = 0;
    *out = value_none();
    return ATS_OK;
}

static ats_status dict_copy(struct render *r, struct value self, const struct args *args,
                            struct value *out) {
    struct dict *dict;
    TRY(take_args(args, "", 0, NULL));
    TRY(dict_new(r, self.dict->n, &dict));
    for (size_t i = 0; i < self.dict->n; i++)
        TRY(dict_add(r, dict, self.dict->pairs[i].key, self.dict->pairs[i].value));
    *out = value_dict(dict);
    return charge(r, self.dict->n);
}

/* ---- loop, cycler ---- */

static ats_status loop_cycle(struct render *r, struct value self, const struct args *args,
                             struct value *out) {
    (void)r;
    if (args->n == 0 || args->n_keywords > 0) return fail(ATS_BAD_INPUT, "no items for cycling");
    *out = args->items[self.loop->index % (size_t)args->n];
    return ATS_OK;
}

static ats_status loop_changed(struct render *r, struct value self, const struct args *args,
                               struct value *out) {
    struct list *list;
    bool same = false;
    TRY(list_new(r, (size_t)args->n, &list));
    for (int i = 0; i < args->n; i++)
        TRY(list_add(r, list, args->items[i]));
    struct value now = value_tuple(list);
    if (!is_absent(self.loop->changed)) TRY(equal(r, self.loop->changed, now, &same));
    self.loop->changed = now;
    *out = value_bool(!same);
    return ATS_OK;
}

static ats_status cycler_next(struct render *r, struct value self, const struct args *args,
                              struct value *out) {
    (void)r;
    TRY(take_args(args, "", 0, NULL));
    struct cycler *c = self.cycler;
    *out = c->items->items[c->pos];
    c->pos = (c->pos + 1) % c->items->n;
    return ATS_OK;
}

static ats_status cycler_reset(struct render *r, struct value self, const struct args *args,
                               struct value *out) {
    (void)r;
    TRY(take_args(args, "", 0, NULL));
    self.cycler->pos = 0;
    *out = value_none();
    return ATS_OK;
}

/* ---- the table ---- */

static const struct {
    uint8_t kind;
    bool mutates;
    const char *name;
    method_fn *fn;
} methods[] = {
    {V_DICT, false, "items", dict_items},     {V_DICT, false, "keys", dict_keys},
    {V_DICT, false, "values", dict_values},   {V_DICT, false, "get", dict_get},
    {V_DICT, false, "copy", dict_copy},       {V_DICT, true, "pop", dict_pop},
    {V_DICT, true, "popitem", dict_popitem},  {V_DICT, true, "setdefault", dict_setdefault},
    {V_DICT, true, "update", dict_update},    {V_DICT, true, "clear", dict_clear},
    {V_LIST, true, "append", list_append},    {V_LIST, true, "extend", list_extend},
    {V_LIST, true, "insert", list_insert},    {V_LIST, true, "pop", list_pop},
    {V_LIST, true, "remove", list_remove},    {V_LIST, true, "clear", list_clear},
    {V_LIST, true, "reverse", list_reverse},  {V_LIST, true, "sort", list_sort},
    {V_LIST, false, "copy", list_copy},       {V_LIST, false, "index", list_index},
    {V_LIST, false, "count", list_count},     {V_TUPLE, false, "index", list_index},
    {V_TUPLE, false, "count", list_count},    {V_LOOP, false, "cycle", loop_cycle},
    {V_LOOP, false, "changed", loop_changed}, {V_CYCLER, false, "next", cycler_next},
    {V_CYCLER, false, "reset", cycler_reset},
};

static int method_find(struct value v, const char *name, size_t n) {
    for (size_t i = 0; i < COUNT_OF(methods); i++)
        if (methods[i].kind == v.kind && strlen(methods[i].name) == n &&
            memcmp(methods[i].name, name, n) == 0)
            return (int)i;
    return -1;
}

bool container_method_exists(struct value v, const char *name, size_t n) {
    return method_find(v, name, n) >= 0;
}

bool method_mutates(struct value v, const char *name, size_t n) {
    int i = method_find(v, name, n);
    return i >= 0 && methods[i].mutates;
}

ats_status call_container_method(struct render *r, const struct method *m, const struct args *args,
                                 struct value *out) {
    return methods[method_find(m->self, m->name, m->n)].fn(r, m->self, args, out);
}
