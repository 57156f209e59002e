#include "text/template_impl.h"

#include <string.h>

/* Arguments of built-in filters, tests, methods and functions. */

/* Position of the name in "a b c", -1 if it is not there. */
static int name_position(const char *names, const char *name, size_t n) {
    for (int i = 0; *names; i++) {
        size_t len = strcspn(names, " ");
        if (len == n && memcmp(names, name, n) == 0) return i;
        names += len;
        names += strspn(names, " ");
    }
    return -1;
}

ats_status take_args(const struct args *args, const char *names, int n, struct value *slots) {
    if (args->n > n)
        return fail(ATS_BAD_INPUT, "takes not more than %d arguments, got %d", n, args->n);
    for (int i = 0; i < n; i++)
        slots[i] = i < args->n ? args->items[i] : value_of(V_ABSENT);
    for (int i = 0; i < args->n_keywords; i++) {
        const struct named_value *k = &args->keywords[i];
        int at = name_position(names, k->name, k->n);
        if (at < 0 || at >= n)
            return fail(ATS_BAD_INPUT, "unknown argument '%.*s'", (int)min_size(k->n, 60), k->name);
        if (!is_absent(slots[at]))
            return fail(ATS_BAD_INPUT, "argument '%.*s' given twice", (int)k->n, k->name);
        slots[at] = k->v;
    }
    return ATS_OK;
}

ats_status arg_string(struct value slot, const char *what, struct value *out) {
    if (is_absent(slot) || slot.kind == V_NONE) return ATS_OK;
    if (slot.kind == V_UNDEFINED) return fail_undefined(slot);
    if (!is_string(slot))
        return fail(ATS_BAD_INPUT, "%s must be a string, not '%s'", what, type_name(slot));
    *out = slot;
    return ATS_OK;
}

ats_status arg_int(struct value slot, const char *what, int64_t *out) {
    if (is_absent(slot) || slot.kind == V_NONE) return ATS_OK;
    if (slot.kind == V_UNDEFINED) return fail_undefined(slot);
    if (!is_integral(slot))
        return fail(ATS_BAD_INPUT, "%s must be an integer, not '%s'", what, type_name(slot));
    *out = integral(slot);
    return ATS_OK;
}

void arg_bool(struct value slot, bool *out) {
    if (!is_absent(slot)) *out = truth(slot);
}
