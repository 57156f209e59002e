#include "text/template_impl.h"

#include <string.h>

/* x.name, x[key], x[a:b:c]: Jinja tries Python attributes first for the dot, items first for the
 * bracket, and answers undefined where neither is there. */

static bool name_is(const char *name, size_t n, const char *s) {
    return n == strlen(s) && memcmp(name, s, n) == 0;
}

static struct value undefined_attribute(struct value v, const char *name, size_t n,
                                        enum undefined_why why) {
    return (struct value){
        .kind = V_UNDEFINED, .tag = (uint8_t)why, .of = v.kind, .n = (uint32_t)n, .s = name};
}

static ats_status bind_method(struct render *r, struct value self, const char *name, size_t n,
                              struct value *out) {
    char *p;
    if (r->immutable && method_mutates(self, name, n)) {
        *out = undefined_attribute(self, name, n, WHY_UNSAFE);
        return ATS_OK;
    }
    TRY(make_bytes(r, sizeof(struct method), &p));
    struct method *m = (struct method *)(void *)p;
    *m = (struct method){.self = self, .name = name, .n = (uint32_t)n};
    *out = (struct value){.kind = V_METHOD, .method = m};
    return ATS_OK;
}

static struct value loop_neighbour(const struct loop *loop, bool next) {
    size_t n = loop->items->n;
    if (next)
        return loop->index + 1 < n ? loop->items->items[loop->index + 1]
                                   : value_undefined_text("there is no next item");
    return loop->index > 0 ? loop->items->items[loop->index - 1]
                           : value_undefined_text("there is no previous item");
}

/* V_ABSENT if loops have no such attribute. */
static struct value loop_attribute(const struct loop *loop, const char *name, size_t n) {
    int64_t index = (int64_t)loop->index, count = (int64_t)loop->items->n;
    const struct {
        const char *name;
        struct value v;
    } fields[] = {
        {"index", value_int(index + 1)},
        {"index0", value_int(index)},
        {"revindex", value_int(count - index)},
        {"revindex0", value_int(count - index - 1)},
        {"length", value_int(count)},
        {"first", value_bool(index == 0)},
        {"last", value_bool(index + 1 >= count)},
        {"depth", value_int(loop->depth + 1)},
        {"depth0", value_int(loop->depth)},
    };
    for (size_t i = 0; i < COUNT_OF(fields); i++)
        if (name_is(name, n, fields[i].name)) return fields[i].v;
    if (name_is(name, n, "previtem")) return loop_neighbour(loop, false);
    if (name_is(name, n, "nextitem")) return loop_neighbour(loop, true);
    return value_of(V_ABSENT);
}

/* Attributes that are values, not methods; V_ABSENT if there is none. */
static struct value plain_attribute(struct value v, const char *name, size_t n) {
    if (v.kind == V_LOOP) return loop_attribute(v.loop, name, n);
    if (v.kind == V_TUPLE && v.tag) { /* of groupby */
        if (name_is(name, n, "grouper")) return v.list->items[0];
        if (name_is(name, n, "list")) return v.list->items[1];
    } else if (v.kind == V_CYCLER) {
        if (name_is(name, n, "current"))
            return v.cycler->items->items[v.cycler->pos % v.cycler->items->n];
    } else if (v.kind == V_MACRO) {
        if (name_is(name, n, "name")) return value_string(v.macro->name, v.macro->n);
    } else if (v.kind == V_RANGE) {
        if (name_is(name, n, "start")) return value_int(v.range->start);
        if (name_is(name, n, "stop")) return value_int(v.range->stop);
        if (name_is(name, n, "step")) return value_int(v.range->step);
    }
    return value_of(V_ABSENT);
}

/* A Python attribute of v: *out V_ABSENT if there is none. */
static ats_status own_attribute(struct render *r, struct value v, const char *name, size_t n,
                                struct value *out) {
    struct value *found = NULL;
    if (v.kind == V_NAMESPACE) TRY(dict_find_name(r, v.dict, name, n, &found));
    *out = found ? *found : plain_attribute(v, name, n);
    if (!is_absent(*out)) return ATS_OK;
    if (is_string(v) ? string_method_exists(name, n) : container_method_exists(v, name, n))
        return bind_method(r, v, name, n, out);
    return ATS_OK;
}

ats_status get_attribute(struct render *r, struct value v, const char *name, size_t n,
                         struct value *out) {
    if (v.kind == V_UNDEFINED) return fail_undefined(v);
    TRY(own_attribute(r, v, name, n, out));
    if (!is_absent(*out)) return ATS_OK;
    if (v.kind == V_DICT) {
        struct value *found;
        TRY(dict_find_name(r, v.dict, name, n, &found));
        if (found) {
            *out = *found;
            return ATS_OK;
        }
    }
    bool unsafe = n > 2 && memcmp(name, "__", 2) == 0;
    *out = undefined_attribute(v, name, n, unsafe ? WHY_UNSAFE : WHY_ATTRIBUTE);
    return ATS_OK;
}

static struct value string_item(struct value v, int64_t i) {
    size_t at = text_offset(v.s, v.n, (size_t)i), end = at;
    (void)text_next(v.s, v.n, &end);
    struct value item = value_string(v.s + at, end - at);
    item.tag = v.tag;
    return item;
}

/* Item by position, negative from the end; *out V_ABSENT if there is none. */
static ats_status index_item(struct render *r, struct value v, int64_t i, struct value *out) {
    *out = value_of(V_ABSENT);
    if (!is_string(v) && v.kind != V_LIST && v.kind != V_TUPLE && v.kind != V_RANGE) return ATS_OK;
    if (is_string(v)) TRY(charge_scan(r, v.n));
    int64_t n = length(v);
    if (i < 0) i += n;
    if (i < 0 || i >= n) return ATS_OK;
    if (!is_string(v)) return item_at(r, v, i, out);
    *out = string_item(v, i);
    return ATS_OK;
}

ats_status get_item(struct render *r, struct value v, struct value key, struct value *out) {
    if (v.kind == V_UNDEFINED) return fail_undefined(v);
    if (v.kind == V_DICT) {
        struct value *found = NULL;
        if (key.kind != V_LIST && key.kind != V_DICT) TRY(dict_find(r, v.dict, key, &found));
        if (found) {
            *out = *found;
            return ATS_OK;
        }
    } else if (is_integral(key)) {
        struct value item;
        TRY(index_item(r, v, integral(key), &item));
        if (!is_absent(item)) {
            *out = item;
            return ATS_OK;
        }
    }
    if (is_string(key)) {
        struct value attribute;
        TRY(own_attribute(r, v, key.s, key.n, &attribute));
        *out =
            is_absent(attribute) ? undefined_attribute(v, key.s, key.n, WHY_ATTRIBUTE) : attribute;
        return ATS_OK;
    }
    *out = (struct value){.kind = V_UNDEFINED, .tag = WHY_ELEMENT, .of = v.kind};
    out->i = is_integral(key) ? integral(key) : 0;
    if (!is_integral(key)) *out = value_undefined_text("the object has no such element");
    return ATS_OK;
}

/* ---- slices ---- */

/* One bound as Python clamps it; v is an integer or none. */
static int64_t slice_bound(struct value v, int64_t n, int64_t step, int64_t missing) {
    if (v.kind == V_NONE) return missing;
    int64_t i = integral(v), least = step < 0 ? -1 : 0, most = step < 0 ? n - 1 : n;
    if (i < 0) i += n;
    return max_i64(min_i64(i, most), least);
}

static bool is_bound(struct value v) {
    return v.kind == V_NONE || is_integral(v);
}

/* Every step-th code point from start; the plain case borrows the text. */
static ats_status slice_string(struct render *r, struct value v, int64_t start, int64_t step,
                               int64_t count, struct value *out) {
    if (step == 1) {
        size_t from = text_offset(v.s, v.n, (size_t)start);
        size_t bytes = text_offset(v.s + from, v.n - from, (size_t)count);
        *out = value_string(v.s + from, bytes);
    } else {
        struct list *chars;
        TRY(to_list(r, v, &chars));
        struct buf *b = scratch_begin(r);
        for (int64_t i = 0; i < count; i++) {
            struct value c = chars->items[start + i * step];
            TRY(put(r, b, c.s, c.n));
        }
        TRY(scratch_end(r, b, out));
    }
    out->tag = v.tag;
    return ATS_OK;
}

/* A slice of a range is a range. */
static ats_status slice_range(struct render *r, const struct range *whole, int64_t from, int64_t to,
                              int64_t by, int64_t count, struct value *out) {
    char *p;
    TRY(make_bytes(r, sizeof(struct range), &p));
    struct range *range = (struct range *)(void *)p;
    *range = (struct range){.n = count, .step = whole->step};
    if (__builtin_mul_overflow(whole->step, by, &range->step) ||
        __builtin_mul_overflow(whole->step, from, &range->start) ||
        __builtin_add_overflow(whole->start, range->start, &range->start) ||
        __builtin_mul_overflow(whole->step, to, &range->stop) ||
        __builtin_add_overflow(whole->start, range->stop, &range->stop))
        return fail(ATS_BAD_INPUT, "integer overflow in the slice of a range");
    *out = (struct value){.kind = V_RANGE, .range = range};
    return ATS_OK;
}

ats_status get_slice(struct render *r, struct value v, struct value start, struct value stop,
                     struct value step, struct value *out) {
    if (v.kind == V_UNDEFINED) return fail_undefined(v);
    bool sequence = is_string(v) || v.kind == V_LIST || v.kind == V_TUPLE || v.kind == V_RANGE;
    if (!sequence) return fail(ATS_BAD_INPUT, "'%s' object cannot be sliced", type_name(v));
    if (!is_bound(start) || !is_bound(stop) || !is_bound(step))
        return fail(ATS_BAD_INPUT, "slice bounds must be integers");
    if (is_string(v)) TRY(charge_scan(r, v.n));
    int64_t n = length(v), by = step.kind == V_NONE ? 1 : integral(step);
    if (by == 0) return fail(ATS_BAD_INPUT, "slice step cannot be zero");
    by = max_i64(min_i64(by, INT32_MAX), -INT32_MAX); /* beyond any length: the same */
    int64_t from = slice_bound(start, n, by, by < 0 ? n - 1 : 0);
    int64_t to = slice_bound(stop, n, by, by < 0 ? -1 : n);
    int64_t count = by > 0 ? (to - from + by - 1) / by : (from - to - by - 1) / -by;
    if (count < 0) count = 0;
    if (is_string(v)) return slice_string(r, v, from, by, count, out);
    if (v.kind == V_RANGE) return slice_range(r, v.range, from, to, by, count, out);
    struct list *list;
    TRY(charge(r, (size_t)count));
    TRY(list_new(r, (size_t)count, &list));
    for (int64_t i = 0; i < count; i++) {
        struct value item;
        TRY(item_at(r, v, from + i * by, &item));
        TRY(list_add(r, list, item));
    }
    *out = v.kind == V_TUPLE ? value_tuple(list) : value_list(list);
    return ATS_OK;
}
