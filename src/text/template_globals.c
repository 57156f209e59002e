#include "text/template_impl.h"

#include <locale.h>
#include <stdlib.h>
#include <string.h>

/* The functions that every template sees. */

enum { MAX_RANGE = 100000, MAX_TIME_FORMAT = 4096, MAX_TIME_TEXT = 1 << 16 };

typedef ats_status global_fn(struct render *r, const struct args *args, struct value *out);

static ats_status global_raise(struct render *r, const struct args *args, struct value *out) {
    struct value message;
    TRY(take_args(args, "message", 1, &message));
    TRY(to_string(r, message, out));
    return fail(ATS_BAD_INPUT, "%.*s", (int)min_size(out->n, 500), out->s);
}

static ats_status range_count(struct range *range) {
    int64_t span;
    range->n = 0;
    if (range->step == 0) return fail(ATS_BAD_INPUT, "range() step must not be zero");
    if (range->step == INT64_MIN || __builtin_sub_overflow(range->stop, range->start, &span))
        return fail(ATS_BAD_INPUT, "range() too large");
    if ((span > 0) != (range->step > 0) || span == 0) return ATS_OK;
    int64_t by = range->step > 0 ? range->step : -range->step;
    if (span < 0 && span == INT64_MIN) return fail(ATS_BAD_INPUT, "range() too large");
    range->n = ((span > 0 ? span : -span) - 1) / by + 1;
    if (range->n > MAX_RANGE)
        return fail(ATS_BAD_INPUT, "limit reached: range() of more than %d items", MAX_RANGE);
    return ATS_OK;
}

static ats_status global_range(struct render *r, const struct args *args, struct value *out) {
    struct value slots[3];
    char *p;
    TRY(take_args(args, "", 3, slots));
    if (is_absent(slots[0])) return fail(ATS_BAD_INPUT, "needs an argument");
    for (int i = 0; i < 3; i++)
        if (slots[i].kind == V_NONE) return fail(ATS_BAD_INPUT, "needs integers, not 'NoneType'");
    TRY(make_bytes(r, sizeof(struct range), &p));
    struct range *range = (struct range *)(void *)p;
    *range = (struct range){.step = 1};
    if (is_absent(slots[1])) {
        TRY(arg_int(slots[0], "stop", &range->stop));
    } else {
        TRY(arg_int(slots[0], "start", &range->start));
        TRY(arg_int(slots[1], "stop", &range->stop));
        TRY(arg_int(slots[2], "step", &range->step));
    }
    TRY(range_count(range));
    *out = (struct value){.kind = V_RANGE, .range = range};
    return ATS_OK;
}

static ats_status add_pairs(struct render *r, struct dict *dict, struct value from) {
    if (from.kind == V_DICT) {
        for (size_t i = 0; i < from.dict->n; i++)
            TRY(dict_set(r, dict, from.dict->pairs[i].key, from.dict->pairs[i].value));
        return ATS_OK;
    }
    struct list *items, *pair;
    TRY(to_list(r, from, &items));
    for (size_t i = 0; i < items->n; i++) {
        TRY(to_list(r, items->items[i], &pair));
        if (pair->n != 2) return fail(ATS_BAD_INPUT, "needs pairs");
        TRY(dict_set(r, dict, pair->items[0], pair->items[1]));
    }
    return ATS_OK;
}

static ats_status global_dict(struct render *r, const struct args *args, struct value *out) {
    struct dict *dict;
    TRY(dict_new(r, (size_t)args->n_keywords, &dict));
    if (args->n > 1) return fail(ATS_BAD_INPUT, "takes not more than 1 argument");
    if (args->n == 1) TRY(add_pairs(r, dict, args->items[0]));
    for (int i = 0; i < args->n_keywords; i++) {
        const struct named_value *k = &args->keywords[i];
        TRY(dict_set(r, dict, value_string(k->name, k->n), k->v));
    }
    *out = value_dict(dict);
    return ATS_OK;
}

static ats_status global_namespace(struct render *r, const struct args *args, struct value *out) {
    TRY(global_dict(r, args, out));
    out->kind = V_NAMESPACE;
    return ATS_OK;
}

static ats_status global_cycler(struct render *r, const struct args *args, struct value *out) {
    struct list *items;
    char *p;
    if (args->n == 0) return fail(ATS_BAD_INPUT, "needs at least one item");
    if (args->n_keywords > 0) return fail(ATS_BAD_INPUT, "takes no keywords");
    TRY(list_new(r, (size_t)args->n, &items));
    for (int i = 0; i < args->n; i++)
        TRY(list_add(r, items, args->items[i]));
    TRY(make_bytes(r, sizeof(struct cycler), &p));
    struct cycler *c = (struct cycler *)(void *)p;
    *c = (struct cycler){.items = items};
    *out = (struct value){.kind = V_CYCLER, .cycler = c};
    return ATS_OK;
}

static ats_status global_joiner(struct render *r, const struct args *args, struct value *out) {
    struct value sep;
    char *p;
    TRY(take_args(args, "sep", 1, &sep));
    TRY(make_bytes(r, sizeof(struct joiner), &p));
    struct joiner *j = (struct joiner *)(void *)p;
    *j = (struct joiner){.sep = is_absent(sep) ? value_string(", ", 2) : sep};
    *out = (struct value){.kind = V_JOINER, .joiner = j};
    return ATS_OK;
}

static ats_status global_lipsum(struct render *r, const struct args *args, struct value *out) {
    (void)r, (void)args, (void)out;
    return fail(ATS_BAD_INPUT, "is not supported");
}

/* What the clock of a template does not have, as Python's naive times: microseconds and a zone. */
static char *without_zone(const char *format, size_t n) {
    struct buf b = {0};
    for (size_t i = 0; i < n && format[i]; i++) {
        char next = i + 1 < n ? format[i + 1] : 0;
        if (format[i] != '%' || next == 0) {
            if (format[i] == '%') buf_add_char(&b, '%');
            buf_add_char(&b, format[i]);
        } else {
            if (next == 'f') buf_add_str(&b, "000000");
            if (next != 'f' && next != 'z' && next != 'Z') buf_add(&b, format + i, 2);
            i++;
        }
    }
    buf_add_char(&b, '.'); /* so that the text is never empty: strftime's error value */
    return buf_take(&b);
}

static ats_status global_strftime(struct render *r, const struct args *args, struct value *out) {
    struct value format = value_none();
    TRY(take_args(args, "format", 1, &format));
    if (!is_string(format)) return fail(ATS_BAD_INPUT, "needs a format string");
    if (format.n > MAX_TIME_FORMAT) return fail(ATS_BAD_INPUT, "the format is too long");
    TRY(charge(r, (size_t)format.n * 16)); /* of two bytes it may make a whole date */
    locale_t locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!locale) return fail(ATS_FAILED, "no C locale");
    char *text = xmalloc(MAX_TIME_TEXT), *wanted = without_zone(format.s, format.n);
/* the format is the template's: that is what the function is for */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    size_t n = strftime_l(text, MAX_TIME_TEXT, wanted, r->now, locale);
#pragma GCC diagnostic pop
    freelocale(locale);
    free(wanted);
    ats_status status = n > 0 ? make_string(r, text, n - 1, out)
                              : fail(ATS_BAD_INPUT, "the time is too long a text");
    free(text);
    return status;
}

static const struct {
    const char *name;
    global_fn *fn;
} globals[] = {
    {"raise_exception", global_raise}, {"namespace", global_namespace}, {"range", global_range},
    {"strftime_now", global_strftime}, {"dict", global_dict},           {"cycler", global_cycler},
    {"joiner", global_joiner},         {"lipsum", global_lipsum},
};

struct value global_find(const struct render *r, const char *name, size_t n) {
    for (size_t i = 0; i < COUNT_OF(globals); i++) {
        if (strlen(globals[i].name) != n || memcmp(globals[i].name, name, n) != 0) continue;
        if (globals[i].fn == global_strftime && !r->now) break;
        return (struct value){.kind = V_FUNCTION, .i = (int64_t)i};
    }
    return value_of(V_ABSENT);
}

ats_status call_global(struct render *r, struct value fn, const struct args *args,
                       struct value *out) {
    ats_status status = globals[fn.i].fn(r, args, out);
    return status == ATS_OK ? ATS_OK : fail_in(status, "%s", globals[fn.i].name);
}
