#include "text/template_impl.h"

#include <math.h>
#include <string.h>

/* Arithmetic as Python does it, on 64-bit integers: what does not fit is an error. */

static ats_status fail_types(const char *op, struct value a, struct value b) {
    if (a.kind == V_UNDEFINED) return fail_undefined(a);
    if (b.kind == V_UNDEFINED) return fail_undefined(b);
    if (op[0] == '+' && is_string(a))
        return fail(ATS_BAD_INPUT, "can only concatenate str (not \"%s\") to str", type_name(b));
    return fail(ATS_BAD_INPUT, "unsupported operand types for %s: '%s' and '%s'", op, type_name(a),
                type_name(b));
}

static ats_status fail_overflow(const char *op) {
    return fail(ATS_BAD_INPUT, "integer overflow in %s", op);
}

static ats_status concat(struct render *r, struct value a, struct value b, struct value *out) {
    char *s;
    bool markup = a.tag || b.tag;
    if (markup && !a.tag) TRY(text_escape(r, a, &a));
    if (markup && !b.tag) TRY(text_escape(r, b, &b));
    size_t n = (size_t)a.n + b.n;
    TRY(charge_copy(r, n));
    TRY(make_bytes(r, n, &s));
    if (a.n) memcpy(s, a.s, a.n);
    if (b.n) memcpy(s + a.n, b.s, b.n);
    *out = value_string(s, n);
    out->tag = markup;
    return ATS_OK;
}

static ats_status append_all(struct render *r, struct list *to, const struct list *from) {
    for (size_t i = 0; i < from->n; i++)
        TRY(list_add(r, to, from->items[i]));
    return charge(r, from->n);
}

static ats_status concat_lists(struct render *r, struct value a, struct value b,
                               struct value *out) {
    struct list *list;
    TRY(list_new(r, a.list->n + b.list->n, &list));
    TRY(append_all(r, list, a.list));
    TRY(append_all(r, list, b.list));
    *out = (struct value){.kind = a.kind, .list = list};
    return ATS_OK;
}

static ats_status add(struct render *r, struct value a, struct value b, struct value *out) {
    if (is_string(a) && is_string(b)) return concat(r, a, b, out);
    if (a.kind == b.kind && (a.kind == V_LIST || a.kind == V_TUPLE))
        return concat_lists(r, a, b, out);
    if (!is_number(a) || !is_number(b)) return fail_types("+", a, b);
    if (!is_integral(a) || !is_integral(b)) {
        *out = value_float(number(a) + number(b));
        return ATS_OK;
    }
    *out = value_int(0);
    return __builtin_add_overflow(integral(a), integral(b), &out->i) ? fail_overflow("+") : ATS_OK;
}

static ats_status subtract(struct value a, struct value b, struct value *out) {
    if (!is_number(a) || !is_number(b)) return fail_types("-", a, b);
    if (!is_integral(a) || !is_integral(b)) {
        *out = value_float(number(a) - number(b));
        return ATS_OK;
    }
    *out = value_int(0);
    return __builtin_sub_overflow(integral(a), integral(b), &out->i) ? fail_overflow("-") : ATS_OK;
}

static ats_status repeat(struct render *r, struct value v, int64_t count, struct value *out) {
    size_t n = is_string(v) ? v.n : v.list->n, total;
    if (count < 0) count = 0;
    if (__builtin_mul_overflow(n, (size_t)count, &total) || total > r->max_memory_bytes)
        return fail(ATS_BAD_INPUT, "limit reached: a value of %zu items times %lld", n,
                    (long long)count);
    TRY(is_string(v) ? charge_copy(r, total) : charge(r, total));
    if (!is_string(v)) {
        struct list *list;
        TRY(list_new(r, total, &list));
        for (size_t i = 0; i < total; i++)
            list->items[i] = v.list->items[i % n];
        list->n = total;
        *out = (struct value){.kind = v.kind, .list = list};
        return ATS_OK;
    }
    char *s;
    TRY(make_bytes(r, total, &s));
    for (size_t i = 0; n > 0 && i < total; i += n)
        memcpy(s + i, v.s, n);
    *out = value_string(s, total);
    out->tag = v.tag;
    return ATS_OK;
}

static bool is_repeatable(struct value v) {
    return is_string(v) || v.kind == V_LIST || v.kind == V_TUPLE;
}

static ats_status multiply(struct render *r, struct value a, struct value b, struct value *out) {
    if (is_repeatable(a) && is_integral(b)) return repeat(r, a, integral(b), out);
    if (is_repeatable(b) && is_integral(a)) return repeat(r, b, integral(a), out);
    if (!is_number(a) || !is_number(b)) return fail_types("*", a, b);
    if (!is_integral(a) || !is_integral(b)) {
        *out = value_float(number(a) * number(b));
        return ATS_OK;
    }
    *out = value_int(0);
    return __builtin_mul_overflow(integral(a), integral(b), &out->i) ? fail_overflow("*") : ATS_OK;
}

/* Quotient rounded down and remainder with the sign of b, b != 0. */
static ats_status divide_floor(int64_t a, int64_t b, int64_t *quotient, int64_t *remainder) {
    if (a == INT64_MIN && b == -1) return fail_overflow("//");
    *quotient = a / b;
    *remainder = a % b;
    if (*remainder != 0 && (*remainder < 0) != (b < 0)) {
        --*quotient;
        *remainder += b;
    }
    return ATS_OK;
}

static double float_modulo(double a, double b) {
    double m = fmod(a, b);
    if (m != 0.0 && (m < 0.0) != (b < 0.0)) m += b;
    return m == 0.0 ? copysign(0.0, b) : m;
}

static double float_floor_divide(double a, double b) {
    double rest = fmod(a, b), quotient = (a - rest) / b;
    if (rest != 0.0 && (rest < 0.0) != (b < 0.0)) quotient -= 1.0;
    if (quotient == 0.0) return copysign(0.0, a / b);
    double whole = floor(quotient); /* the division above may have rounded down */
    return quotient - whole > 0.5 ? whole + 1.0 : whole;
}

static ats_status divide(int op, struct value a, struct value b, struct value *out) {
    const char *name = op == '/' ? "/" : op == '%' ? "%" : "//";
    if (!is_number(a) || !is_number(b)) return fail_types(name, a, b);
    if (number(b) == 0.0) return fail(ATS_BAD_INPUT, "division by zero");
    if (op == '/') {
        *out = value_float(number(a) / number(b));
    } else if (is_integral(a) && is_integral(b)) {
        int64_t quotient = 0, remainder = 0;
        TRY(divide_floor(integral(a), integral(b), &quotient, &remainder));
        *out = value_int(op == '%' ? remainder : quotient);
    } else if (op == '%') {
        *out = value_float(float_modulo(number(a), number(b)));
    } else {
        *out = value_float(float_floor_divide(number(a), number(b)));
    }
    return ATS_OK;
}

static ats_status power(struct value a, struct value b, struct value *out) {
    if (!is_number(a) || !is_number(b)) return fail_types("**", a, b);
    if (!is_integral(a) || !is_integral(b) || integral(b) < 0) {
        if (number(a) == 0.0 && number(b) < 0.0) return fail(ATS_BAD_INPUT, "division by zero");
        double f = pow(number(a), number(b));
        if (isnan(f) || (isinf(f) && isfinite(number(a))))
            return fail(ATS_BAD_INPUT, "number out of range in **");
        *out = value_float(f);
        return ATS_OK;
    }
    int64_t base = integral(a), exponent = integral(b), result = 1;
    for (; exponent > 0; exponent >>= 1) {
        if ((exponent & 1) && __builtin_mul_overflow(result, base, &result))
            return fail_overflow("**");
        if (exponent > 1 && __builtin_mul_overflow(base, base, &base)) return fail_overflow("**");
    }
    *out = value_int(result);
    return ATS_OK;
}

ats_status binary(struct render *r, int op, struct value a, struct value b, struct value *out) {
    switch (op) {
    case '+':
        return add(r, a, b, out);
    case '-':
        return subtract(a, b, out);
    case '*':
        return multiply(r, a, b, out);
    case '%':
        if (is_string(a)) return format_percent(r, a, b, out);
        return divide(op, a, b, out);
    case OP2('*', '*'):
        return power(a, b, out);
    default:
        return divide(op, a, b, out);
    }
}

ats_status negate(struct value a, struct value *out) {
    if (a.kind == V_FLOAT) {
        *out = value_float(-a.f);
        return ATS_OK;
    }
    if (a.kind == V_UNDEFINED) return fail_undefined(a);
    if (!is_integral(a)) return fail(ATS_BAD_INPUT, "bad operand for -: '%s'", type_name(a));
    *out = value_int(0);
    return __builtin_sub_overflow((int64_t)0, integral(a), &out->i) ? fail_overflow("-") : ATS_OK;
}
