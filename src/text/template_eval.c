#include "text/template_impl.h"

#include <string.h>

/* Expressions. The frames of eval and what it calls are kept small: they nest. */

static ats_status find_name(struct render *r, const struct node *n, struct value *out) {
    for (const struct scope *s = r->scope; s; s = s->parent) {
        TRY(charge(r, s->n));
        for (size_t i = 0; i < s->n; i++)
            if (s->bindings[i].sym == n->op) {
                *out = s->bindings[i].v;
                return ATS_OK;
            }
    }
    *out = r->root[n->op];
    if (is_absent(*out)) {
        *out = n->value;
        out->kind = V_UNDEFINED;
        out->tag = WHY_NAME;
    }
    return ATS_OK;
}

static ats_status eval_list(struct render *r, const struct node *n, struct value *out) {
    struct list *list;
    struct value item;
    TRY(list_new(r, (size_t)n->n, &list));
    for (int i = 0; i < n->n; i++) {
        TRY(eval(r, n->items[i], &item));
        TRY(list_add(r, list, item));
    }
    *out = n->kind == N_LIST ? value_list(list) : value_tuple(list);
    return ATS_OK;
}

static ats_status eval_dict(struct render *r, const struct node *n, struct value *out) {
    struct dict *dict;
    struct value key, v;
    TRY(dict_new(r, (size_t)n->n / 2, &dict));
    for (int i = 0; i + 1 < n->n; i += 2) {
        TRY(eval(r, n->items[i], &key));
        TRY(eval(r, n->items[i + 1], &v));
        TRY(dict_set(r, dict, key, v));
    }
    *out = value_dict(dict);
    return ATS_OK;
}

static ats_status eval_sign(struct render *r, const struct node *n, struct value *out) {
    TRY(eval(r, n->a, out));
    if (n->kind == N_NEG && out->kind == V_BIG) { /* only a literal gets here */
        struct buf *b = scratch_begin(r);
        if (out->s[0] != '-') TRY(put_char(r, b, '-'));
        TRY(put(r, b, out->s + (out->s[0] == '-'), out->n - (out->s[0] == '-')));
        TRY(scratch_end(r, b, out));
        out->kind = V_BIG;
        return ATS_OK;
    }
    if (n->kind == N_NEG) return negate(*out, out);
    if (out->kind == V_UNDEFINED) return fail_undefined(*out);
    if (!is_number(*out) && out->kind != V_BIG)
        return fail(ATS_BAD_INPUT, "bad operand for +: '%s'", type_name(*out));
    if (out->kind == V_BOOL) *out = value_int(out->b);
    return ATS_OK;
}

static ats_status eval_binary(struct render *r, const struct node *n, struct value *out) {
    struct value a;
    TRY(eval(r, n->a, &a));
    TRY(eval(r, n->b, out));
    r->line = n->line;
    return binary(r, n->op, a, *out, out);
}

static ats_status eval_concat(struct render *r, const struct node *n, struct value *out) {
    struct list *parts;
    struct value item;
    TRY(list_new(r, (size_t)n->n, &parts));
    for (int i = 0; i < n->n; i++) {
        TRY(eval(r, n->items[i], &item));
        TRY(list_add(r, parts, item));
    }
    struct buf *b = scratch_begin(r);
    for (size_t i = 0; i < parts->n; i++)
        TRY(put_str(r, b, parts->items[i]));
    return scratch_end(r, b, out);
}

static ats_status compare(struct render *r, enum compare_op op, struct value a, struct value b,
                          bool *out) {
    int sign;
    switch (op) {
    case CMP_EQ:
    case CMP_NE:
        TRY(equal(r, a, b, out));
        break;
    case CMP_IN:
    case CMP_NOT_IN:
        TRY(contains(r, b, a, out));
        break;
    default:
        TRY(order(r, a, b, &sign));
        *out = sign != 2 && (op == CMP_LT   ? sign < 0
                             : op == CMP_LE ? sign <= 0
                             : op == CMP_GT ? sign > 0
                                            : sign >= 0);
        break;
    }
    if (op == CMP_NE || op == CMP_NOT_IN) *out = !*out;
    return ATS_OK;
}

static ats_status eval_compare(struct render *r, const struct node *n, struct value *out) {
    struct value left, right;
    bool yes = true;
    TRY(eval(r, n->a, &left));
    for (int i = 0; i < n->n && yes; i++) {
        TRY(eval(r, n->items[i], &right));
        r->line = n->line;
        TRY(compare(r, (enum compare_op)n->ops[i], left, right, &yes));
        left = right;
    }
    *out = value_bool(yes);
    return ATS_OK;
}

static ats_status eval_condition(struct render *r, const struct node *n, struct value *out) {
    TRY(eval(r, n->a, out));
    if (truth(*out)) return eval(r, n->b, out);
    if (n->c) return eval(r, n->c, out);
    *out = value_undefined_text("the condition was false and there is no else");
    return ATS_OK;
}

static ats_status eval_item(struct render *r, const struct node *n, struct value *out) {
    struct value object;
    TRY(eval(r, n->a, &object));
    TRY(eval(r, n->b, out));
    r->line = n->line;
    return get_item(r, object, *out, out);
}

static ats_status eval_slice(struct render *r, const struct node *n, struct value *out) {
    struct value bounds[3];
    TRY(eval(r, n->a, out));
    for (int i = 0; i < 3; i++) {
        bounds[i] = value_none();
        if (n->items[i]) TRY(eval(r, n->items[i], &bounds[i]));
    }
    r->line = n->line;
    return get_slice(r, *out, bounds[0], bounds[1], bounds[2], out);
}

/* ---- calls ---- */

static ats_status add_star(struct render *r, const struct node *star, struct list *list) {
    struct value v;
    struct list *more;
    TRY(eval(r, star, &v));
    TRY(to_list(r, v, &more));
    for (size_t i = 0; i < more->n; i++)
        TRY(list_add(r, list, more->items[i]));
    return ATS_OK;
}

static ats_status add_star_star(const struct dict *dict, struct named_value *to, int *n) {
    for (size_t i = 0; i < dict->n; i++) {
        struct value key = dict->pairs[i].key;
        if (!is_string(key)) return fail(ATS_BAD_INPUT, "keywords must be strings");
        to[(*n)++] = (struct named_value){key.s, key.n, dict->pairs[i].value};
    }
    return ATS_OK;
}

static ats_status eval_keywords(struct render *r, const struct arguments *a, struct args *out) {
    struct value more = value_none();
    if (a->star_star) TRY(eval(r, a->star_star, &more));
    if (a->star_star && more.kind != V_DICT)
        return fail(ATS_BAD_INPUT, "the argument after ** must be a dict, not '%s'",
                    type_name(more));
    size_t n = (size_t)a->n_keywords + (a->star_star ? more.dict->n : 0);
    char *p;
    if (n == 0) return ATS_OK;
    TRY(make_bytes(r, n * sizeof(struct named_value), &p));
    struct named_value *keywords = (struct named_value *)(void *)p;
    for (int i = 0; i < a->n_keywords; i++) {
        const struct keyword *k = &a->keywords[i];
        keywords[i].name = k->name;
        keywords[i].n = k->n;
        TRY(eval(r, k->value, &keywords[i].v));
    }
    out->n_keywords = a->n_keywords;
    out->keywords = keywords;
    return a->star_star ? add_star_star(more.dict, keywords, &out->n_keywords) : ATS_OK;
}

/* a may be NULL: no arguments. */
ats_status eval_args(struct render *r, const struct arguments *a, struct args *out) {
    *out = (struct args){0};
    if (!a) return ATS_OK;
    if (a->n_items > 0 || a->star) {
        struct list *list;
        struct value v;
        TRY(list_new(r, (size_t)a->n_items, &list));
        for (int i = 0; i < a->n_items; i++) {
            TRY(eval(r, a->items[i], &v));
            TRY(list_add(r, list, v));
        }
        if (a->star) TRY(add_star(r, a->star, list));
        if (list->n > INT32_MAX) return fail(ATS_BAD_INPUT, "too many arguments");
        out->items = list->items;
        out->n = (int)list->n;
    }
    return eval_keywords(r, a, out);
}

static ats_status call_method(struct render *r, const struct method *m, const struct args *args,
                              struct value *out) {
    ats_status status = is_string(m->self) ? call_string_method(r, m, args, out)
                                           : call_container_method(r, m, args, out);
    if (status == ATS_OK) return ATS_OK;
    return fail_in(status, "%s method '%.*s'", type_name(m->self), (int)min_size(m->n, 60),
                   m->name);
}

static ats_status call_joiner(struct value v, const struct args *args, struct value *out) {
    if (args->n > 0 || args->n_keywords > 0)
        return fail(ATS_BAD_INPUT, "joiner takes no arguments");
    struct joiner *j = v.joiner;
    *out = j->used ? j->sep : value_string("", 0);
    j->used = true;
    return ATS_OK;
}

ats_status call_value(struct render *r, struct value callee, const struct args *args,
                      struct value *out) {
    switch ((enum value_kind)callee.kind) {
    case V_MACRO:
        return call_macro(r, callee.macro, args, out);
    case V_FUNCTION:
        return call_global(r, callee, args, out);
    case V_METHOD:
        return call_method(r, callee.method, args, out);
    case V_JOINER:
        return call_joiner(callee, args, out);
    case V_LOOP:
        if (args->n == 1 && args->n_keywords == 0)
            return call_loop(r, callee.loop, args->items[0], out);
        return fail(ATS_BAD_INPUT, "loop() takes one argument");
    case V_UNDEFINED:
        return fail_undefined(callee);
    default:
        return fail(ATS_BAD_INPUT, "'%s' object is not callable", type_name(callee));
    }
}

static ats_status eval_call(struct render *r, const struct node *n, struct value *out) {
    struct args args;
    TRY(eval(r, n->a, out));
    if (out->kind == V_UNDEFINED) return fail_undefined(*out);
    TRY(eval_args(r, n->args, &args));
    r->line = n->line;
    return call_value(r, *out, &args, out);
}

/* ---- filters, tests ---- */

static ats_status apply_filter(struct render *r, const struct node *n, struct value in,
                               struct value *out) {
    struct args args;
    TRY(eval_args(r, n->args, &args));
    r->line = n->line;
    ats_status status = n->filter->fn(r, in, &args, out);
    return status == ATS_OK ? ATS_OK : fail_in(status, "filter '%s'", n->filter->name);
}

static ats_status eval_filter(struct render *r, const struct node *n, struct value *out) {
    TRY(eval(r, n->a, out));
    return apply_filter(r, n, *out, out);
}

ats_status eval_filters(struct render *r, const struct node *n, struct value input,
                        struct value *out) {
    TRY(enter(r));
    if (n->a) TRY(eval_filters(r, n->a, input, &input));
    TRY(apply_filter(r, n, input, out));
    leave(r);
    return ATS_OK;
}

static ats_status eval_test(struct render *r, const struct node *n, struct value *out) {
    struct args args;
    bool yes;
    TRY(eval(r, n->a, out));
    TRY(eval_args(r, n->args, &args));
    r->line = n->line;
    ats_status status = n->test->fn(r, *out, &args, &yes);
    if (status != ATS_OK) return fail_in(status, "test '%s'", n->test->name);
    *out = value_bool(yes);
    return ATS_OK;
}

static ats_status eval_logic(struct render *r, const struct node *n, struct value *out) {
    TRY(eval(r, n->a, out));
    if (truth(*out) == (n->kind == N_OR)) return ATS_OK;
    return eval(r, n->b, out);
}

static ats_status eval_not(struct render *r, const struct node *n, struct value *out) {
    TRY(eval(r, n->a, out));
    *out = value_bool(!truth(*out));
    return ATS_OK;
}

static ats_status eval_attribute(struct render *r, const struct node *n, struct value *out) {
    TRY(eval(r, n->a, out));
    return get_attribute(r, *out, n->value.s, n->value.n, out);
}

/* Called through a table, so that no compiler folds all their frames into that of eval(). */
typedef ats_status eval_fn(struct render *r, const struct node *n, struct value *out);
static eval_fn *const nested[] = {
    [N_LIST] = eval_list,      [N_TUPLE] = eval_list,      [N_DICT] = eval_dict,
    [N_NEG] = eval_sign,       [N_POS] = eval_sign,        [N_NOT] = eval_not,
    [N_AND] = eval_logic,      [N_OR] = eval_logic,        [N_BINARY] = eval_binary,
    [N_CONCAT] = eval_concat,  [N_COMPARE] = eval_compare, [N_COND] = eval_condition,
    [N_ATTR] = eval_attribute, [N_ITEM] = eval_item,       [N_SLICE] = eval_slice,
    [N_CALL] = eval_call,      [N_FILTER] = eval_filter,   [N_TEST] = eval_test,
};

ats_status eval(struct render *r, const struct node *n, struct value *out) {
    TRY(charge(r, 0));
    r->line = n->line;
    if (n->kind == N_CONST) {
        *out = n->value;
        return ATS_OK;
    }
    if (n->kind == N_NAME) return find_name(r, n, out);
    REQUIRE(n->kind < COUNT_OF(nested) && nested[n->kind]);
    TRY(enter(r));
    TRY(nested[n->kind](r, n, out));
    leave(r);
    return ATS_OK;
}
