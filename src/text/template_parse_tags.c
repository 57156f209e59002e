#include "text/template_impl.h"

#include <stdlib.h>
#include <string.h>

/* Statements: {% for %}, {% if %}, {% set %}... An unknown tag is an error here, not at run time.
 */

/* Statements until a tag named in ends (space separated; NULL: the end of the template). The name
 * of that tag is then the current token. */
static ats_status parse_body(struct parser *p, const char *ends, int line, struct node **out);

static bool in_words(const struct token *t, const char *words) {
    for (const char *w = words; *w;) {
        size_t n = strcspn(w, " ");
        if (t->kind == T_NAME && t->n == n && memcmp(t->s, w, n) == 0) return true;
        w += n;
        w += strspn(w, " ");
    }
    return false;
}

static ats_status expect_tag_end(struct parser *p) {
    if (p->tok.kind != T_TAG_END) return parse_unexpected(p, "'%}'");
    return parse_advance(p);
}

/* Body and its end tag, whose name is taken. */
static ats_status parse_body_to(struct parser *p, const char *end, int line, struct node **out) {
    TRY(expect_tag_end(p));
    TRY(parse_body(p, end, line, out));
    return parse_advance(p);
}

/* ---- targets ---- */

static ats_status parse_target_one(struct parser *p, struct node **out) {
    if (token_is_op(&p->tok, '(')) {
        TRY(parse_nest(p));
        TRY(parse_advance(p));
        TRY(parse_target(p, out));
        p->nesting--;
        return parse_expect_op(p, ')', "')'");
    }
    struct token name = {0};
    TRY(parse_expect_name(p, &name));
    if (in_words(&name, "true false none True False None"))
        return fail(ATS_BAD_INPUT, "line %d: cannot assign to '%.*s'", name.line, (int)name.n,
                    name.s);
    *out = node_new(p, N_NAME, name.line);
    TRY(template_symbol(p->t, &name, &(*out)->op));
    if (token_is_op(&p->tok, '.')) {
        struct token attribute;
        TRY(parse_advance(p));
        TRY(parse_expect_name(p, &attribute));
        (*out)->kind = N_NSREF;
        name = attribute;
    }
    (*out)->value = value_string(name.s, name.n);
    return ATS_OK;
}

ats_status parse_target(struct parser *p, struct node **out) {
    int line = p->tok.line;
    TRY(parse_target_one(p, out));
    if (!token_is_op(&p->tok, ',')) return ATS_OK;
    struct node *tuple = node_new(p, N_TUPLE, line);
    struct nodes v = {0};
    ats_status status = ATS_OK;
    nodes_add(&v, *out);
    while (status == ATS_OK && token_is_op(&p->tok, ',')) {
        status = parse_advance(p);
        if (status != ATS_OK || token_is_op(&p->tok, ')') || token_is_op(&p->tok, '=') ||
            token_is_name(&p->tok, "in"))
            break;
        status = parse_target_one(p, out);
        if (status == ATS_OK) nodes_add(&v, *out);
    }
    if (status == ATS_OK) status = nodes_give(p, &v, tuple);
    free(v.items);
    *out = tuple;
    return status;
}

/* ---- tags ---- */

static ats_status parse_for(struct parser *p, int line, struct node **out) {
    struct node *n = *out = node_new(p, N_FOR, line);
    TRY(parse_target(p, &n->a));
    if (!token_is_name(&p->tok, "in")) return parse_unexpected(p, "'in'");
    TRY(parse_advance(p));
    TRY(parse_tuple(p, false, &n->b));
    if (token_is_name(&p->tok, "if")) {
        TRY(parse_advance(p));
        TRY(parse_expression(p, &n->c));
    }
    if (token_is_name(&p->tok, "recursive")) {
        n->flag = 1;
        TRY(parse_advance(p));
    }
    TRY(expect_tag_end(p));
    p->loops++;
    TRY(parse_body(p, "endfor else", line, &n->body));
    p->loops--;
    bool has_else = token_is_name(&p->tok, "else");
    TRY(parse_advance(p));
    if (has_else) TRY(parse_body_to(p, "endfor", line, &n->other));
    TRY(node_adopt(n, n->b));
    TRY(node_adopt(n, n->c));
    TRY(node_adopt(n, n->body));
    return node_adopt(n, n->other);
}

static ats_status parse_if_arms(struct parser *p, int line, struct node *n, struct nodes *v) {
    for (bool more = true; more;) {
        struct node *test, *body;
        TRY(parse_tuple(p, true, &test));
        TRY(expect_tag_end(p));
        TRY(parse_body(p, "elif else endif", line, &body));
        nodes_add(v, test);
        nodes_add(v, body);
        more = token_is_name(&p->tok, "elif");
        bool has_else = token_is_name(&p->tok, "else");
        TRY(parse_advance(p));
        if (has_else) TRY(parse_body_to(p, "endif", line, &n->a));
    }
    return ATS_OK;
}

static ats_status parse_if(struct parser *p, int line, struct node **out) {
    *out = node_new(p, N_IF, line);
    struct nodes v = {0};
    ats_status status = parse_if_arms(p, line, *out, &v);
    if (status == ATS_OK) status = nodes_give(p, &v, *out);
    free(v.items);
    TRY(status);
    return node_adopt(*out, (*out)->a);
}

static ats_status parse_set(struct parser *p, int line, struct node **out) {
    struct node *n = *out = node_new(p, N_SET, line);
    TRY(parse_target(p, &n->a));
    if (token_is_op(&p->tok, '=')) {
        TRY(parse_advance(p));
        TRY(parse_tuple(p, true, &n->b));
        return node_adopt(n, n->b);
    }
    n->kind = N_SET_BLOCK;
    if (token_is_op(&p->tok, '|')) TRY(parse_filters(p, false, NULL, &n->b));
    TRY(parse_body_to(p, "endset", line, &n->body));
    TRY(node_adopt(n, n->b));
    return node_adopt(n, n->body);
}

/* "(a, b=1)" at the current token. */
static ats_status parse_params(struct parser *p, struct node *n, struct nodes *names,
                               struct nodes *defaults) {
    TRY(parse_expect_op(p, '(', "'('"));
    while (!token_is_op(&p->tok, ')')) {
        if (names->n > 0) TRY(parse_expect_op(p, ',', "',' or ')'"));
        struct node *name, *value;
        TRY(parse_target_one(p, &name));
        if (name->kind != N_NAME) return parse_unexpected(p, "a parameter");
        nodes_add(names, name);
        if (token_is_op(&p->tok, '=')) {
            TRY(parse_advance(p));
            TRY(parse_expression(p, &value));
            nodes_add(defaults, value);
            TRY(node_adopt(n, value));
        } else if (defaults->n > 0) {
            return parse_unexpected(p, "a default value");
        }
    }
    return parse_advance(p);
}

static ats_status parse_signature(struct parser *p, struct node *n) {
    struct nodes names = {0}, defaults = {0};
    ats_status status = parse_params(p, n, &names, &defaults);
    n->params->n = (int)names.n;
    n->params->n_defaults = (int)defaults.n;
    n->params->syms = ARENA_ARRAY(&p->t->arena, int, names.n);
    n->params->defaults = ARENA_ARRAY(&p->t->arena, struct node *, defaults.n);
    for (size_t i = 0; i < names.n; i++)
        n->params->syms[i] = names.items[i]->op;
    for (size_t i = 0; i < defaults.n; i++)
        n->params->defaults[i] = defaults.items[i];
    free(names.items);
    free(defaults.items);
    return status;
}

/* The body of a macro or call block: a function, which no break may leave. */
static ats_status parse_function_body(struct parser *p, const char *end, struct node *n) {
    int loops = p->loops;
    struct params *outer = p->params;
    p->loops = 0;
    p->params = n->params;
    TRY(parse_body_to(p, end, n->line, &n->body));
    p->loops = loops;
    p->params = outer;
    /* what an inner call block names, the macro around it passes on */
    if (outer && n->kind == N_CALL_BLOCK) {
        outer->takes_caller |= n->params->takes_caller;
        outer->takes_varargs |= n->params->takes_varargs;
        outer->takes_kwargs |= n->params->takes_kwargs;
    }
    return node_adopt(n, n->body);
}

static ats_status parse_macro(struct parser *p, int line, struct node **out) {
    struct node *n = *out = node_new(p, N_MACRO, line);
    struct token name = {0};
    TRY(parse_expect_name(p, &name));
    n->value = value_string(name.s, name.n);
    TRY(template_symbol(p->t, &name, &n->op));
    n->params = ARENA_NEW(&p->t->arena, struct params);
    TRY(parse_signature(p, n));
    return parse_function_body(p, "endmacro", n);
}

static ats_status parse_call_block(struct parser *p, int line, struct node **out) {
    struct node *n = *out = node_new(p, N_CALL_BLOCK, line);
    n->params = ARENA_NEW(&p->t->arena, struct params);
    n->value = value_string("caller", 6);
    if (token_is_op(&p->tok, '(')) TRY(parse_signature(p, n));
    TRY(parse_expression(p, &n->a));
    if (n->a->kind != N_CALL)
        return fail(ATS_BAD_INPUT, "line %d: {%% call %%} needs the call of a macro", line);
    TRY(node_adopt(n, n->a));
    return parse_function_body(p, "endcall", n);
}

static ats_status parse_filter_block(struct parser *p, int line, struct node **out) {
    struct node *n = *out = node_new(p, N_FILTER_BLOCK, line);
    TRY(parse_filters(p, true, NULL, &n->a));
    TRY(parse_body_to(p, "endfilter", line, &n->body));
    TRY(node_adopt(n, n->a));
    return node_adopt(n, n->body);
}

static ats_status parse_with_items(struct parser *p, struct nodes *v) {
    while (p->tok.kind != T_TAG_END) {
        struct node *target, *value;
        if (v->n > 0) TRY(parse_expect_op(p, ',', "',' or '%}'"));
        TRY(parse_target_one(p, &target));
        TRY(parse_expect_op(p, '=', "'='"));
        TRY(parse_expression(p, &value));
        nodes_add(v, target);
        nodes_add(v, value);
    }
    return ATS_OK;
}

static ats_status parse_with(struct parser *p, int line, struct node **out) {
    *out = node_new(p, N_WITH, line);
    struct nodes v = {0};
    ats_status status = parse_with_items(p, &v);
    if (status == ATS_OK) status = nodes_give(p, &v, *out);
    free(v.items);
    TRY(status);
    TRY(parse_body_to(p, "endwith", line, &(*out)->body));
    return node_adopt(*out, (*out)->body);
}

/* Marks what the assistant wrote, for training: here only its scope matters. */
static ats_status parse_generation(struct parser *p, int line, struct node **out) {
    struct node *n = *out = node_new(p, N_SCOPE, line);
    TRY(parse_body_to(p, "endgeneration", line, &n->body));
    return node_adopt(n, n->body);
}

static ats_status parse_leave_loop(struct parser *p, int line, bool is_break, struct node **out) {
    *out = node_new(p, is_break ? N_BREAK : N_CONTINUE, line);
    if (p->loops > 0) return ATS_OK;
    return fail(ATS_BAD_INPUT, "line %d: {%% %s %%} outside of a loop", line,
                is_break ? "break" : "continue");
}

static ats_status parse_print_tag(struct parser *p, int line, struct node **out) {
    *out = node_new(p, N_PRINT, line);
    TRY(parse_expression(p, &(*out)->a));
    return node_adopt(*out, (*out)->a);
}

static ats_status parse_unknown(const struct token *name, const char *ends) {
    if (in_words(name, "block extends include import from autoescape do trans"))
        return fail(ATS_BAD_INPUT, "line %d: tag '%.*s' is not supported", name->line, (int)name->n,
                    name->s);
    if (name->n > 3 && memcmp(name->s, "end", 3) == 0)
        return fail(ATS_BAD_INPUT, "line %d: unexpected tag '%.*s'%s%s", name->line,
                    (int)min_size(name->n, 60), name->s, ends ? ", open is one that needs: " : "",
                    ends ? ends : "");
    return fail(ATS_BAD_INPUT, "line %d: unknown tag '%.*s'", name->line,
                (int)min_size(name->n, 60), name->s);
}

/* The tag whose name is the current token; up to its last "%}", which stays. */
static ats_status parse_tag(struct parser *p, const char *ends, struct node **out) {
    struct token name = p->tok;
    if (name.kind != T_NAME) return parse_unexpected(p, "the name of a tag");
    TRY(parse_advance(p));
    int line = name.line;
    if (token_is_name(&name, "for")) return parse_for(p, line, out);
    if (token_is_name(&name, "if")) return parse_if(p, line, out);
    if (token_is_name(&name, "set")) return parse_set(p, line, out);
    if (token_is_name(&name, "macro")) return parse_macro(p, line, out);
    if (token_is_name(&name, "call")) return parse_call_block(p, line, out);
    if (token_is_name(&name, "filter")) return parse_filter_block(p, line, out);
    if (token_is_name(&name, "with")) return parse_with(p, line, out);
    if (token_is_name(&name, "generation")) return parse_generation(p, line, out);
    if (token_is_name(&name, "print")) return parse_print_tag(p, line, out);
    bool is_break = token_is_name(&name, "break");
    if (is_break || token_is_name(&name, "continue"))
        return parse_leave_loop(p, line, is_break, out);
    return parse_unknown(&name, ends);
}

static ats_status parse_print(struct parser *p, struct node **out) {
    *out = node_new(p, N_PRINT, p->tok.line);
    TRY(parse_advance(p));
    TRY(parse_tuple(p, true, &(*out)->a));
    if (p->tok.kind != T_PRINT_END) return parse_unexpected(p, "'}}'");
    TRY(node_adopt(*out, (*out)->a));
    return parse_advance(p);
}

static ats_status missing_end(const struct parser *p, const char *ends, int line) {
    const char *last = strstr(ends, "end");
    return fail(ATS_BAD_INPUT, "line %d: the tag has no {%% %.*s %%} before the end (line %d)",
                line, (int)strcspn(last, " "), last, p->tok.line);
}

static ats_status parse_statements(struct parser *p, const char *ends, int line, struct nodes *v) {
    for (;;) {
        struct node *n = NULL;
        if (p->tok.kind == T_END) return ends ? missing_end(p, ends, line) : ATS_OK;
        if (p->tok.kind == T_DATA) {
            n = node_new(p, N_TEXT, p->tok.line);
            n->value = value_string(p->tok.s, p->tok.n);
            TRY(parse_advance(p));
            if (n->value.n == 0) continue;
        } else if (p->tok.kind == T_PRINT_BEGIN) {
            TRY(parse_print(p, &n));
        } else {
            TRY(parse_advance(p));
            if (ends && in_words(&p->tok, ends)) return ATS_OK;
            TRY(parse_tag(p, ends, &n));
            TRY(expect_tag_end(p));
        }
        nodes_add(v, n);
    }
}

static ats_status parse_body(struct parser *p, const char *ends, int line, struct node **out) {
    *out = node_new(p, N_BLOCK, p->tok.line);
    TRY(parse_nest(p));
    struct nodes v = {0};
    ats_status status = parse_statements(p, ends, line, &v);
    if (status == ATS_OK) status = nodes_give(p, &v, *out);
    free(v.items);
    p->nesting--;
    return status;
}

ats_status parse_template(struct parser *p) {
    TRY(parse_advance(p));
    return parse_body(p, NULL, 1, &p->t->root);
}
