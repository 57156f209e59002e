#include "text/template_impl.h"

#include <string.h>

/* Tests: {{ x is NAME }}. */

static ats_status nothing(const struct args *args) {
    if (args->n == 0 && args->n_keywords == 0) return ATS_OK;
    return fail(ATS_BAD_INPUT, "takes no arguments");
}

#define KIND_TEST(name, condition)                                                                 \
    static ats_status t_##name(struct render *r, struct value v, const struct args *args,          \
                               bool *out) {                                                        \
        (void)r;                                                                                   \
        TRY(nothing(args));                                                                        \
        *out = (condition);                                                                        \
        return ATS_OK;                                                                             \
    }

static bool is_iterable(struct value v) {
    switch ((enum value_kind)v.kind) {
    case V_UNDEFINED:
    case V_STRING:
    case V_LIST:
    case V_TUPLE:
    case V_DICT:
    case V_VIEW:
    case V_RANGE:
    case V_ITER:
    case V_LOOP:
        return true;
    default:
        return false;
    }
}

/* Has a length and items by key. */
static bool is_sequence(struct value v) {
    return is_iterable(v) && v.kind != V_VIEW && v.kind != V_ITER && v.kind != V_LOOP;
}

static bool is_callable(struct value v) {
    return v.kind == V_MACRO || v.kind == V_FUNCTION || v.kind == V_METHOD || v.kind == V_JOINER ||
           v.kind == V_LOOP || v.kind == V_UNDEFINED;
}

KIND_TEST(defined, v.kind != V_UNDEFINED)
KIND_TEST(undefined, v.kind == V_UNDEFINED)
KIND_TEST(none, v.kind == V_NONE)
KIND_TEST(string, v.kind == V_STRING)
KIND_TEST(mapping, v.kind == V_DICT)
KIND_TEST(iterable, is_iterable(v))
KIND_TEST(sequence, is_sequence(v))
KIND_TEST(number, is_number(v) || v.kind == V_BIG)
KIND_TEST(integer, v.kind == V_INT || v.kind == V_BIG)
KIND_TEST(float, v.kind == V_FLOAT)
KIND_TEST(boolean, v.kind == V_BOOL)
KIND_TEST(true, v.kind == V_BOOL && v.b)
KIND_TEST(false, v.kind == V_BOOL && !v.b)
KIND_TEST(callable, is_callable(v))
KIND_TEST(escaped, v.kind == V_STRING && v.tag)

static ats_status one(const struct args *args, struct value *out) {
    TRY(take_args(args, "other", 1, out));
    return is_absent(*out) ? fail(ATS_BAD_INPUT, "needs an argument") : ATS_OK;
}

static ats_status t_eq(struct render *r, struct value v, const struct args *args, bool *out) {
    struct value other;
    TRY(one(args, &other));
    return equal(r, v, other, out);
}

static ats_status t_ne(struct render *r, struct value v, const struct args *args, bool *out) {
    TRY(t_eq(r, v, args, out));
    *out = !*out;
    return ATS_OK;
}

static ats_status ordered(struct render *r, struct value v, const struct args *args, int *sign) {
    struct value other;
    TRY(one(args, &other));
    return order(r, v, other, sign);
}
static ats_status t_lt(struct render *r, struct value v, const struct args *args, bool *out) {
    int sign;
    TRY(ordered(r, v, args, &sign));
    *out = sign == -1;
    return ATS_OK;
}
static ats_status t_le(struct render *r, struct value v, const struct args *args, bool *out) {
    int sign;
    TRY(ordered(r, v, args, &sign));
    *out = sign <= 0;
    return ATS_OK;
}
static ats_status t_gt(struct render *r, struct value v, const struct args *args, bool *out) {
    int sign;
    TRY(ordered(r, v, args, &sign));
    *out = sign == 1;
    return ATS_OK;
}
static ats_status t_ge(struct render *r, struct value v, const struct args *args, bool *out) {
    int sign;
    TRY(ordered(r, v, args, &sign));
    *out = sign == 0 || sign == 1;
    return ATS_OK;
}

static ats_status t_in(struct render *r, struct value v, const struct args *args, bool *out) {
    struct value other;
    TRY(one(args, &other));
    return contains(r, other, v, out);
}

/* The same object: here, equal values of the same simple type, or the same list or dict. */
static ats_status t_sameas(struct render *r, struct value v, const struct args *args, bool *out) {
    struct value other;
    TRY(one(args, &other));
    *out = false;
    if (v.kind != other.kind) return ATS_OK;
    if (v.kind == V_LIST || v.kind == V_TUPLE || v.kind == V_DICT) {
        *out = v.s == other.s;
        return ATS_OK;
    }
    return equal(r, v, other, out);
}

static ats_status remainder_of(struct render *r, struct value v, struct value by, bool *zero) {
    struct value rest;
    if (!is_number(v))
        return v.kind == V_UNDEFINED
                   ? fail_undefined(v)
                   : fail(ATS_BAD_INPUT, "needs a number, not '%s'", type_name(v));
    TRY(binary(r, '%', v, by, &rest));
    *zero = number(rest) == 0.0;
    return ATS_OK;
}

static ats_status t_divisibleby(struct render *r, struct value v, const struct args *args,
                                bool *out) {
    struct value by;
    TRY(take_args(args, "num", 1, &by));
    if (is_absent(by)) return fail(ATS_BAD_INPUT, "needs an argument");
    return remainder_of(r, v, by, out);
}
static ats_status t_even(struct render *r, struct value v, const struct args *args, bool *out) {
    TRY(nothing(args));
    return remainder_of(r, v, value_int(2), out);
}
static ats_status t_odd(struct render *r, struct value v, const struct args *args, bool *out) {
    struct value rest;
    TRY(nothing(args));
    TRY(remainder_of(r, v, value_int(2), out));
    TRY(binary(r, '%', v, value_int(2), &rest));
    *out = number(rest) == 1.0;
    return ATS_OK;
}

static ats_status t_lower(struct render *r, struct value v, const struct args *args, bool *out) {
    TRY(nothing(args));
    TRY(to_string(r, v, &v));
    *out = text_is_lower(v, false);
    return charge(r, v.n);
}
static ats_status t_upper(struct render *r, struct value v, const struct args *args, bool *out) {
    TRY(nothing(args));
    TRY(to_string(r, v, &v));
    *out = text_is_lower(v, true);
    return charge(r, v.n);
}

/* Whether a filter or test of this name exists. */
static ats_status t_filter(struct render *r, struct value v, const struct args *args, bool *out) {
    TRY(charge(r, 0));
    TRY(nothing(args));
    *out = is_string(v) && filter_find(v.s, v.n);
    return ATS_OK;
}
static ats_status t_test(struct render *r, struct value v, const struct args *args, bool *out) {
    TRY(charge(r, 0));
    TRY(nothing(args));
    *out = is_string(v) && test_find(v.s, v.n);
    return ATS_OK;
}

static const struct test tests[] = {
    {"defined", t_defined},
    {"string", t_string},
    {"none", t_none},
    {"mapping", t_mapping},
    {"iterable", t_iterable},
    {"sequence", t_sequence},
    {"boolean", t_boolean},
    {"undefined", t_undefined},
    {"true", t_true},
    {"false", t_false},
    {"number", t_number},
    {"integer", t_integer},
    {"float", t_float},
    {"callable", t_callable},
    {"sameas", t_sameas},
    {"in", t_in},
    {"eq", t_eq},
    {"equalto", t_eq},
    {"==", t_eq},
    {"ne", t_ne},
    {"!=", t_ne},
    {"lt", t_lt},
    {"lessthan", t_lt},
    {"<", t_lt},
    {"le", t_le},
    {"<=", t_le},
    {"gt", t_gt},
    {"greaterthan", t_gt},
    {">", t_gt},
    {"ge", t_ge},
    {">=", t_ge},
    {"odd", t_odd},
    {"even", t_even},
    {"divisibleby", t_divisibleby},
    {"lower", t_lower},
    {"upper", t_upper},
    {"escaped", t_escaped},
    {"filter", t_filter},
    {"test", t_test},
};

const struct test *test_find(const char *name, size_t n) {
    for (size_t i = 0; i < COUNT_OF(tests); i++)
        if (strlen(tests[i].name) == n && memcmp(tests[i].name, name, n) == 0) return &tests[i];
    return NULL;
}
