#include "text/template_impl.h"

#include <string.h>

/* Statements, macros and loops. */

/* ---- assignment ---- */

static ats_status assign(struct render *r, struct scope *scope, const struct node *target,
                         struct value v);

static ats_status assign_tuple(struct render *r, struct scope *scope, const struct node *target,
                               struct value v) {
    struct list *items;
    if (v.kind == V_LIST || v.kind == V_TUPLE)
        items = v.list;
    else
        TRY(to_list(r, v, &items));
    if (items->n != (size_t)target->n)
        return fail(ATS_BAD_INPUT, "cannot unpack %zu values into %d names", items->n, target->n);
    TRY(enter(r));
    for (int i = 0; i < target->n; i++)
        TRY(assign(r, scope, target->items[i], items->items[i]));
    leave(r);
    return ATS_OK;
}

static ats_status assign_attribute(struct render *r, const struct node *target, struct value v) {
    struct node name = {.kind = N_NAME, .op = target->op, .line = target->line};
    struct value object;
    name.value = value_string(r->t->symbols[target->op].name, r->t->symbols[target->op].n);
    TRY(eval(r, &name, &object));
    if (object.kind == V_UNDEFINED) return fail_undefined(object);
    if (object.kind != V_NAMESPACE)
        return fail(ATS_BAD_INPUT,
                    "set: cannot assign attribute '%.*s' of a '%s', only of a "
                    "namespace",
                    (int)min_size(target->value.n, 60), target->value.s, type_name(object));
    return dict_set(r, object.dict, target->value, v);
}

static ats_status assign(struct render *r, struct scope *scope, const struct node *target,
                         struct value v) {
    if (target->kind == N_TUPLE) return assign_tuple(r, scope, target, v);
    if (target->kind == N_NSREF) return assign_attribute(r, target, v);
    return scope_bind(r, scope, target->op, v);
}

/* ---- capture ---- */

/* Runs body in a new scope under parent, its output into *out. */
static ats_status capture(struct render *r, const struct node *body, struct scope *scope,
                          struct value *out) {
    struct scope *outer = r->scope;
    struct buf *outer_out = r->out, *b = scratch_begin(r);
    r->scope = scope;
    r->out = b;
    TRY(exec(r, body));
    r->scope = outer;
    r->out = outer_out;
    return scratch_end(r, b, out);
}

static ats_status capture_inner(struct render *r, const struct node *body, struct value *out) {
    struct scope *scope;
    TRY(scope_new(r, r->scope, &scope));
    return capture(r, body, scope, out);
}

static ats_status exec_set(struct render *r, const struct node *n) {
    struct value v;
    if (n->kind == N_SET) {
        TRY(eval(r, n->b, &v));
    } else {
        TRY(capture_inner(r, n->body, &v));
        if (r->signal != SIGNAL_NONE) return ATS_OK;
        if (n->b) TRY(eval_filters(r, n->b, v, &v));
    }
    return assign(r, r->scope, n->a, v);
}

static ats_status exec_filter_block(struct render *r, const struct node *n) {
    struct value v;
    TRY(capture_inner(r, n->body, &v));
    if (r->signal != SIGNAL_NONE) return ATS_OK;
    TRY(eval_filters(r, n->a, v, &v));
    return put_str(r, r->out, v);
}

/* ---- macros ---- */

static ats_status macro_new(struct render *r, const struct node *n, struct value *out) {
    char *p;
    TRY(make_bytes(r, sizeof(struct macro), &p));
    struct macro *m = (struct macro *)(void *)p;
    *m = (struct macro){.def = n, .scope = r->scope, .name = n->value.s, .n = n->value.n};
    *out = (struct value){.kind = V_MACRO, .macro = m};
    return ATS_OK;
}

static bool keyword_is(const struct named_value *k, const struct symbol *s) {
    return k->n == s->n && memcmp(k->name, s->name, k->n) == 0;
}

/* The keyword of this name, or NULL; an argument given twice is an error of the caller. */
static const struct named_value *find_keyword(const struct args *args, const struct symbol *s) {
    for (int i = 0; i < args->n_keywords; i++)
        if (keyword_is(&args->keywords[i], s)) return &args->keywords[i];
    return NULL;
}

/* Binds the parameters; the defaults see those before them. */
static ats_status bind_params(struct render *r, const struct params *params,
                              const struct args *args, struct scope *scope, int *n_used) {
    *n_used = 0;
    for (int i = 0; i < params->n; i++) {
        const struct symbol *s = &r->t->symbols[params->syms[i]];
        TRY(charge(r, (size_t)args->n_keywords));
        const struct named_value *k = find_keyword(args, s);
        int i_default = i - (params->n - params->n_defaults);
        struct value v;
        if (i < args->n) {
            if (k) return fail(ATS_BAD_INPUT, "argument '%.*s' given twice", (int)s->n, s->name);
            v = args->items[i];
        } else if (k) {
            v = k->v;
            ++*n_used;
        } else if (i_default >= 0) {
            struct scope *outer = r->scope;
            r->scope = scope;
            TRY(eval(r, params->defaults[i_default], &v));
            r->scope = outer;
        } else {
            v = value_string(s->name, s->n);
            v.kind = V_UNDEFINED;
            v.tag = WHY_NAME;
        }
        TRY(scope_bind(r, scope, params->syms[i], v));
    }
    return ATS_OK;
}

static bool is_param(const struct render *r, const struct params *params,
                     const struct named_value *k) {
    for (int i = 0; i < params->n; i++)
        if (keyword_is(k, &r->t->symbols[params->syms[i]])) return true;
    return false;
}

/* Positional arguments beyond the parameters. */
static ats_status bind_varargs(struct render *r, const struct params *params,
                               const struct args *args, struct scope *scope) {
    if (!params->takes_varargs)
        return args->n > params->n
                   ? fail(ATS_BAD_INPUT, "takes not more than %d arguments", params->n)
                   : ATS_OK;
    struct list *rest;
    TRY(list_new(r, 0, &rest));
    for (int i = params->n; i < args->n; i++)
        TRY(list_add(r, rest, args->items[i]));
    return scope_bind(r, scope, template_find(r->t, "varargs"), value_tuple(rest));
}

/* Keyword arguments that are no parameters: caller, and kwargs if the body names them. */
static ats_status bind_kwargs(struct render *r, const struct params *params,
                              const struct args *args, struct scope *scope, int n_used) {
    static const struct symbol caller = {"caller", 6};
    const struct named_value *k = find_keyword(args, &caller);
    if (k && params->takes_caller && !is_param(r, params, k)) {
        TRY(scope_bind(r, scope, template_find(r->t, "caller"), k->v));
        n_used++;
    } else {
        k = NULL;
    }
    struct dict *rest;
    if (params->takes_kwargs) TRY(dict_new(r, 0, &rest));
    if (!params->takes_kwargs && args->n_keywords <= n_used) return ATS_OK;
    for (int i = 0; i < args->n_keywords; i++) {
        const struct named_value *other = &args->keywords[i];
        TRY(charge(r, (size_t)params->n));
        if (other == k || is_param(r, params, other)) continue;
        if (!params->takes_kwargs)
            return fail(ATS_BAD_INPUT, "takes no keyword argument '%.*s'",
                        (int)min_size(other->n, 60), other->name);
        TRY(dict_set(r, rest, value_string(other->name, other->n), other->v));
    }
    if (!params->takes_kwargs) return ATS_OK;
    return scope_bind(r, scope, template_find(r->t, "kwargs"), value_dict(rest));
}

static ats_status bind_call(struct render *r, const struct macro *m, const struct args *args,
                            struct scope *scope) {
    const struct params *params = m->def->params;
    int n_used;
    TRY(bind_params(r, params, args, scope, &n_used));
    TRY(bind_varargs(r, params, args, scope));
    return bind_kwargs(r, params, args, scope, n_used);
}

ats_status call_macro(struct render *r, const struct macro *m, const struct args *args,
                      struct value *out) {
    struct scope *scope;
    TRY(enter(r));
    TRY(scope_new(r, m->scope, &scope));
    ats_status status = bind_call(r, m, args, scope);
    if (status != ATS_OK) return fail_in(status, "macro '%.*s'", (int)min_size(m->n, 60), m->name);
    TRY(capture(r, m->def->body, scope, out));
    leave(r);
    return ATS_OK;
}

static ats_status exec_call_block(struct render *r, const struct node *n) {
    struct value callee, caller;
    struct args args;
    TRY(eval(r, n->a->a, &callee));
    TRY(eval_args(r, n->a->args, &args));
    TRY(macro_new(r, n, &caller));
    char *p;
    TRY(make_bytes(r, (size_t)(args.n_keywords + 1) * sizeof(struct named_value), &p));
    struct named_value *keywords = (struct named_value *)(void *)p;
    if (args.n_keywords > 0)
        memcpy(keywords, args.keywords, (size_t)args.n_keywords * sizeof *keywords);
    keywords[args.n_keywords++] = (struct named_value){"caller", 6, caller};
    args.keywords = keywords;
    r->line = n->line;
    TRY(call_value(r, callee, &args, &caller));
    return put_str(r, r->out, caller);
}

/* ---- loops ---- */

/* Items of the loop: those of a list as they are (a body may append), else a copy; filtered. */
static ats_status loop_items(struct render *r, const struct node *n, struct value v,
                             struct scope *scope, struct list **out) {
    if (v.kind == V_LIST && !n->c) {
        *out = v.list;
        return ATS_OK;
    }
    TRY(to_list(r, v, out));
    if (!n->c) return ATS_OK;
    struct list *all = *out;
    struct scope *outer = r->scope;
    TRY(list_new(r, 0, out));
    r->scope = scope;
    for (size_t i = 0; i < all->n; i++) {
        struct value keep;
        scope->n = 0;
        TRY(assign(r, scope, n->a, all->items[i]));
        TRY(eval(r, n->c, &keep));
        if (truth(keep)) TRY(list_add(r, *out, all->items[i]));
    }
    r->scope = outer;
    return ATS_OK;
}

static ats_status run_loop(struct render *r, const struct node *n, struct loop *loop,
                           struct scope *scope) {
    int sym = template_find(r->t, "loop");
    struct value self = {.kind = V_LOOP, .loop = loop};
    for (; loop->index < loop->items->n; loop->index++) {
        scope->n = 0; /* what the last turn set is gone */
        if (sym >= 0) TRY(scope_bind(r, scope, sym, self));
        TRY(charge(r, 0));
        TRY(assign(r, scope, n->a, loop->items->items[loop->index]));
        r->scope = scope;
        TRY(exec(r, n->body));
        r->scope = loop->scope;
        bool stop = r->signal == SIGNAL_BREAK;
        r->signal = SIGNAL_NONE;
        if (stop) break;
    }
    return ATS_OK;
}

/* A for over v, its scope under `outer`. */
static ats_status for_each(struct render *r, const struct node *n, struct value v, int depth,
                           struct scope *outer) {
    struct scope *scope;
    char *p;
    TRY(scope_new(r, outer, &scope));
    TRY(make_bytes(r, sizeof(struct loop), &p));
    struct loop *loop = (struct loop *)(void *)p;
    *loop = (struct loop){.def = n, .depth = depth, .scope = outer};
    TRY(loop_items(r, n, v, scope, &loop->items));
    if (loop->items->n > 0) return run_loop(r, n, loop, scope);
    if (!n->other) return ATS_OK;
    scope->n = 0;
    r->scope = scope;
    TRY(exec(r, n->other));
    r->scope = outer;
    return ATS_OK;
}

static ats_status exec_for(struct render *r, const struct node *n) {
    struct value v;
    TRY(eval(r, n->b, &v));
    return for_each(r, n, v, 0, r->scope);
}

ats_status call_loop(struct render *r, const struct loop *loop, struct value items,
                     struct value *out) {
    if (!loop->def->flag)
        return fail(ATS_BAD_INPUT, "loop() in a for that is not marked 'recursive'");
    struct scope *outer = r->scope;
    struct buf *outer_out = r->out, *b = scratch_begin(r);
    TRY(enter(r));
    r->out = b;
    r->scope = loop->scope;
    TRY(for_each(r, loop->def, items, loop->depth + 1, loop->scope));
    r->scope = outer;
    r->out = outer_out;
    leave(r);
    return scratch_end(r, b, out);
}

/* ---- the rest ---- */

static ats_status exec_if(struct render *r, const struct node *n) {
    for (int i = 0; i + 1 < n->n; i += 2) {
        struct value v;
        TRY(eval(r, n->items[i], &v));
        if (truth(v)) return exec(r, n->items[i + 1]);
    }
    return n->a ? exec(r, n->a) : ATS_OK;
}

static ats_status exec_scope(struct render *r, const struct node *n) {
    struct scope *scope, *outer = r->scope;
    TRY(scope_new(r, outer, &scope));
    for (int i = 0; i + 1 < n->n; i += 2) { /* with: the values see the scope around it */
        struct value v;
        TRY(eval(r, n->items[i + 1], &v));
        TRY(assign(r, scope, n->items[i], v));
    }
    r->scope = scope;
    TRY(exec(r, n->body));
    r->scope = outer;
    return ATS_OK;
}

static ats_status exec_block(struct render *r, const struct node *n) {
    for (int i = 0; i < n->n && r->signal == SIGNAL_NONE; i++)
        TRY(exec(r, n->items[i]));
    return ATS_OK;
}

static ats_status exec_macro(struct render *r, const struct node *n) {
    struct value v;
    TRY(macro_new(r, n, &v));
    return scope_bind(r, r->scope, n->op, v);
}

static ats_status exec_print(struct render *r, const struct node *n) {
    struct value v;
    TRY(eval(r, n->a, &v));
    return put_str(r, r->out, v);
}

static ats_status exec_leave_loop(struct render *r, const struct node *n) {
    r->signal = n->kind == N_BREAK ? SIGNAL_BREAK : SIGNAL_CONTINUE;
    return ATS_OK;
}

/* Called through a table, so that no compiler folds all their frames into that of exec(). */
typedef ats_status exec_fn(struct render *r, const struct node *n);
static exec_fn *const nested[] = {
    [N_PRINT] = exec_print,
    [N_BLOCK] = exec_block,
    [N_IF] = exec_if,
    [N_FOR] = exec_for,
    [N_SET] = exec_set,
    [N_SET_BLOCK] = exec_set,
    [N_MACRO] = exec_macro,
    [N_CALL_BLOCK] = exec_call_block,
    [N_FILTER_BLOCK] = exec_filter_block,
    [N_WITH] = exec_scope,
    [N_SCOPE] = exec_scope,
    [N_BREAK] = exec_leave_loop,
    [N_CONTINUE] = exec_leave_loop,
};

ats_status exec(struct render *r, const struct node *n) {
    TRY(charge(r, 0));
    r->line = n->line;
    if (n->kind == N_TEXT) return put(r, r->out, n->value.s, n->value.n);
    REQUIRE(n->kind < COUNT_OF(nested) && nested[n->kind]);
    TRY(enter(r));
    TRY(nested[n->kind](r, n));
    leave(r);
    return ATS_OK;
}
