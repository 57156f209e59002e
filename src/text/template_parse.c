#include "text/template_impl.h"

#include <stdlib.h>
#include <string.h>

/*
 * Expressions, by precedence climbing: few frames per level of nesting, so that the depth limit
 * fits a small stack. Precedences as in Jinja, where "~" binds closer than "+" and a sign closer
 * than "**".
 */
enum precedence {
    PREC_OR,
    PREC_AND,
    PREC_NOT,
    PREC_COMPARE,
    PREC_ADD,
    PREC_CONCAT,
    PREC_MULTIPLY,
    PREC_POWER,
};

static ats_status parse_binary(struct parser *p, enum precedence least, struct node **out);
static ats_status parse_unary(struct parser *p, bool with_filters, struct node **out);

/* ---- tokens ---- */

ats_status parse_advance(struct parser *p) {
    if (p->has_ahead) {
        p->tok = p->ahead;
        p->has_ahead = false;
        return ATS_OK;
    }
    return lexer_next(&p->lx, &p->tok);
}

/* Only inside a tag, where looking ahead changes no lexer mode that matters. */
ats_status parse_look(struct parser *p, struct token *out) {
    if (!p->has_ahead) {
        TRY(lexer_next(&p->lx, &p->ahead));
        p->has_ahead = true;
    }
    *out = p->ahead;
    return ATS_OK;
}

bool token_is_op(const struct token *t, int op) {
    return t->kind == T_OPERATOR && t->op == op;
}

bool token_is_name(const struct token *t, const char *name) {
    return t->kind == T_NAME && t->n == strlen(name) && memcmp(t->s, name, t->n) == 0;
}

ats_status parse_unexpected(const struct parser *p, const char *wanted) {
    const struct token *t = &p->tok;
    const char *prefix = wanted ? ", expected " : "";
    if (!wanted) wanted = "";
    switch (t->kind) {
    case T_END:
        return fail(ATS_BAD_INPUT, "line %d: unexpected end of the template%s%s", t->line, prefix,
                    wanted);
    case T_PRINT_END:
    case T_TAG_END:
        return fail(ATS_BAD_INPUT, "line %d: unexpected '%s'%s%s", t->line,
                    t->kind == T_TAG_END ? "%}" : "}}", prefix, wanted);
    case T_STRING:
        return fail(ATS_BAD_INPUT, "line %d: unexpected string%s%s", t->line, prefix, wanted);
    default:
        return fail(ATS_BAD_INPUT, "line %d: unexpected '%.*s'%s%s", t->line,
                    (int)min_size(t->n, 60), t->s ? t->s : "", prefix, wanted);
    }
}

ats_status parse_expect_op(struct parser *p, int op, const char *what) {
    if (!token_is_op(&p->tok, op)) return parse_unexpected(p, what);
    return parse_advance(p);
}

ats_status parse_expect_name(struct parser *p, struct token *out) {
    if (p->tok.kind != T_NAME) return parse_unexpected(p, "a name");
    *out = p->tok;
    return parse_advance(p);
}

ats_status parse_nest(struct parser *p) {
    if (++p->nesting > TEMPLATE_MAX_NESTING)
        return fail(ATS_BAD_INPUT, "line %d: nested more than %d deep", p->tok.line,
                    TEMPLATE_MAX_NESTING);
    return ATS_OK;
}

/* ---- nodes ---- */

struct node *node_new(struct parser *p, enum node_kind kind, int line) {
    struct node *n = ARENA_NEW(&p->t->arena, struct node);
    n->kind = (uint8_t)kind;
    n->line = line;
    n->height = 1;
    return n;
}

ats_status node_adopt(struct node *node, const struct node *child) {
    if (!child || child->height < node->height) return ATS_OK;
    node->height = (uint16_t)(child->height + 1);
    if (node->height > TEMPLATE_MAX_HEIGHT)
        return fail(ATS_BAD_INPUT, "line %d: a chain or nesting of more than %d parts", node->line,
                    TEMPLATE_MAX_HEIGHT);
    return ATS_OK;
}

void nodes_add(struct nodes *v, struct node *item) {
    GROW(v->items, v->n, v->cap, 1);
    v->items[v->n++] = item;
}

ats_status nodes_give(struct parser *p, struct nodes *v, struct node *node) {
    node->n = (int)v->n;
    node->items = ARENA_ARRAY(&p->t->arena, struct node *, v->n);
    if (v->n > 0) memcpy(node->items, v->items, v->n * sizeof *v->items);
    free(v->items);
    *v = (struct nodes){0};
    for (int i = 0; i < node->n; i++)
        TRY(node_adopt(node, node->items[i]));
    return ATS_OK;
}

static ats_status node_unary(struct parser *p, enum node_kind kind, int line, struct node *a,
                             struct node **out) {
    *out = node_new(p, kind, line);
    (*out)->a = a;
    return node_adopt(*out, a);
}

static ats_status node_binary(struct parser *p, enum node_kind kind, int line, struct node *a,
                              struct node *b, struct node **out) {
    TRY(node_unary(p, kind, line, a, out));
    (*out)->b = b;
    return node_adopt(*out, b);
}

/* ---- lists, arguments ---- */

/* Items up to a closing bracket, which is taken; pairs: "key: value". */
static ats_status parse_items(struct parser *p, int close, bool pairs, struct nodes *v) {
    while (!token_is_op(&p->tok, close)) {
        if (v->n > 0) {
            TRY(parse_expect_op(p, ',', "',' or a closing bracket"));
            if (token_is_op(&p->tok, close)) break;
        }
        struct node *item;
        TRY(parse_expression(p, &item));
        nodes_add(v, item);
        if (!pairs) continue;
        TRY(parse_expect_op(p, ':', "':'"));
        TRY(parse_expression(p, &item));
        nodes_add(v, item);
    }
    return parse_advance(p);
}

static ats_status parse_collection(struct parser *p, struct node **out) {
    bool dict = p->tok.op == '{';
    *out = node_new(p, dict ? N_DICT : N_LIST, p->tok.line);
    TRY(parse_advance(p));
    struct nodes v = {0};
    ats_status status = parse_items(p, dict ? '}' : ']', dict, &v);
    if (status == ATS_OK) status = nodes_give(p, &v, *out);
    free(v.items);
    return status;
}

struct argument_lists {
    struct nodes items;
    struct keyword *keywords;
    size_t n_keywords, keywords_cap;
};

/* Whether "name =" comes; tokens are kept out of the frames that nest. */
static ats_status at_keyword(struct parser *p, bool *out) {
    struct token next;
    *out = false;
    if (p->tok.kind != T_NAME) return ATS_OK;
    TRY(parse_look(p, &next));
    *out = token_is_op(&next, '=');
    return ATS_OK;
}

static ats_status parse_keyword(struct parser *p, struct argument_lists *v) {
    GROW(v->keywords, v->n_keywords, v->keywords_cap, 1);
    struct keyword *k = &v->keywords[v->n_keywords++];
    *k = (struct keyword){p->tok.s, (uint32_t)p->tok.n, NULL};
    TRY(parse_advance(p));
    TRY(parse_advance(p));
    return parse_expression(p, &k->value);
}

static ats_status parse_argument(struct parser *p, struct arguments *a, struct argument_lists *v) {
    bool keyword;
    if (token_is_op(&p->tok, '*') || token_is_op(&p->tok, OP2('*', '*'))) {
        bool twice = p->tok.op != '*';
        if (a->star_star || (!twice && a->star)) return parse_unexpected(p, "an argument");
        TRY(parse_advance(p));
        return parse_expression(p, twice ? &a->star_star : &a->star);
    }
    if (a->star_star) return parse_unexpected(p, "no argument after **");
    TRY(at_keyword(p, &keyword));
    if (keyword) return parse_keyword(p, v);
    if (a->star || v->n_keywords > 0) return parse_unexpected(p, "a keyword argument");
    struct node *value = NULL;
    TRY(parse_expression(p, &value));
    nodes_add(&v->items, value);
    return ATS_OK;
}

static ats_status parse_argument_list(struct parser *p, struct arguments *a,
                                      struct argument_lists *v) {
    TRY(parse_advance(p));
    for (bool first = true; !token_is_op(&p->tok, ')'); first = false) {
        if (!first) {
            TRY(parse_expect_op(p, ',', "',' or ')'"));
            if (token_is_op(&p->tok, ')')) break;
        }
        TRY(parse_argument(p, a, v));
    }
    return parse_advance(p);
}

/* "(...)" at the current token, as arguments of node. */
static ats_status parse_arguments(struct parser *p, struct node *node) {
    struct arguments *a = ARENA_NEW(&p->t->arena, struct arguments);
    struct argument_lists v = {0};
    ats_status status = parse_argument_list(p, a, &v);
    a->n_items = (int)v.items.n;
    a->n_keywords = (int)v.n_keywords;
    a->items = ARENA_ARRAY(&p->t->arena, struct node *, v.items.n);
    a->keywords = ARENA_ARRAY(&p->t->arena, struct keyword, v.n_keywords);
    if (v.items.n) memcpy(a->items, v.items.items, v.items.n * sizeof *a->items);
    if (v.n_keywords) memcpy(a->keywords, v.keywords, v.n_keywords * sizeof *a->keywords);
    free(v.items.items);
    free(v.keywords);
    TRY(status);
    node->args = a;
    for (int i = 0; i < a->n_items; i++)
        TRY(node_adopt(node, a->items[i]));
    for (int i = 0; i < a->n_keywords; i++)
        TRY(node_adopt(node, a->keywords[i].value));
    TRY(node_adopt(node, a->star));
    return node_adopt(node, a->star_star);
}

/* ---- primary expressions ---- */

static ats_status parse_const(struct parser *p, struct value v, struct node **out) {
    *out = node_new(p, N_CONST, p->tok.line);
    (*out)->value = v;
    return parse_advance(p);
}

/* Neighbouring string literals are one. */
static ats_status parse_strings(struct parser *p, struct node **out) {
    struct token first = p->tok;
    struct buf text = {0};
    buf_add(&text, first.s, first.n);
    ats_status status = parse_advance(p);
    while (status == ATS_OK && p->tok.kind == T_STRING) {
        buf_add(&text, p->tok.s, p->tok.n);
        status = parse_advance(p);
    }
    *out = node_new(p, N_CONST, first.line);
    (*out)->value = value_string(arena_strndup(&p->t->arena, buf_str(&text), text.len), text.len);
    buf_free(&text);
    return status;
}

static bool is_reserved(const struct token *t) {
    static const char *const words[] = {"and", "or", "not", "in", "is", "if", "else", "elif"};
    for (size_t i = 0; i < COUNT_OF(words); i++)
        if (token_is_name(t, words[i])) return true;
    return false;
}

static ats_status parse_name(struct parser *p, struct node **out) {
    const struct token *t = &p->tok;
    bool yes = token_is_name(t, "true") || token_is_name(t, "True");
    if (yes || token_is_name(t, "false") || token_is_name(t, "False"))
        return parse_const(p, value_bool(yes), out);
    if (token_is_name(t, "none") || token_is_name(t, "None"))
        return parse_const(p, value_none(), out);
    if (is_reserved(t)) return parse_unexpected(p, "an expression");
    *out = node_new(p, N_NAME, t->line);
    TRY(template_symbol(p->t, t, &(*out)->op));
    (*out)->value = value_string(t->s, t->n);
    if (p->params) {
        if (token_is_name(t, "varargs")) p->params->takes_varargs = true;
        if (token_is_name(t, "kwargs")) p->params->takes_kwargs = true;
        if (token_is_name(t, "caller")) p->params->takes_caller = true;
    }
    return parse_advance(p);
}

static ats_status parse_primary(struct parser *p, struct node **out) {
    const struct token *t = &p->tok;
    switch (t->kind) {
    case T_NAME:
        return parse_name(p, out);
    case T_STRING:
        return parse_strings(p, out);
    case T_INT:
        return parse_const(p, value_int(t->i), out);
    case T_FLOAT:
        return parse_const(p, value_float(t->f), out);
    case T_BIG: {
        struct value big = value_string(t->s, t->n);
        big.kind = V_BIG;
        return parse_const(p, big, out);
    }
    case T_OPERATOR:
        if (t->op == '[' || t->op == '{') return parse_collection(p, out);
        if (t->op != '(') break;
        TRY(parse_advance(p));
        if (token_is_op(&p->tok, ')')) {
            *out = node_new(p, N_TUPLE, t->line);
            return parse_advance(p);
        }
        TRY(parse_tuple(p, true, out));
        return parse_expect_op(p, ')', "')'");
    default:
        break;
    }
    return parse_unexpected(p, "an expression");
}

/* ---- what follows a primary: .x [i] (args) |filter is test ---- */

static bool subscript_ends(const struct parser *p) {
    return token_is_op(&p->tok, ']') || token_is_op(&p->tok, ',');
}

/* The part of a slice after its first ':' (taken); node->items[0] is set. */
static ats_status parse_slice_rest(struct parser *p, struct node *node) {
    if (!token_is_op(&p->tok, ':') && !subscript_ends(p)) TRY(parse_expression(p, &node->items[1]));
    if (token_is_op(&p->tok, ':')) {
        TRY(parse_advance(p));
        if (!subscript_ends(p)) TRY(parse_expression(p, &node->items[2]));
    }
    for (int i = 0; i < 3; i++)
        TRY(node_adopt(node, node->items[i]));
    return ATS_OK;
}

static ats_status parse_subscript(struct parser *p, struct node *object, struct node **out) {
    int line = p->tok.line;
    TRY(parse_advance(p));
    struct node *first = NULL;
    if (!token_is_op(&p->tok, ':')) TRY(parse_tuple(p, true, &first));
    if (token_is_op(&p->tok, ':')) {
        TRY(parse_advance(p));
        TRY(node_unary(p, N_SLICE, line, object, out));
        (*out)->items = ARENA_ARRAY(&p->t->arena, struct node *, 3);
        (*out)->n = 3;
        (*out)->items[0] = first;
        TRY(parse_slice_rest(p, *out));
    } else {
        TRY(node_binary(p, N_ITEM, line, object, first, out));
    }
    return parse_expect_op(p, ']', "']'");
}

static ats_status parse_attribute(struct parser *p, struct node *object, struct node **out) {
    int line = p->tok.line;
    TRY(parse_advance(p));
    struct token t = p->tok;
    if (t.kind == T_INT) {
        struct node *index;
        TRY(parse_const(p, value_int(t.i), &index));
        return node_binary(p, N_ITEM, line, object, index, out);
    }
    TRY(parse_expect_name(p, &t));
    TRY(node_unary(p, N_ATTR, line, object, out));
    (*out)->value = value_string(t.s, t.n);
    return ATS_OK;
}

static ats_status parse_call(struct parser *p, struct node *callee, struct node **out) {
    TRY(node_unary(p, N_CALL, p->tok.line, callee, out));
    return parse_arguments(p, *out);
}

static ats_status parse_postfix(struct parser *p, struct node **node) {
    for (;;) {
        if (token_is_op(&p->tok, '.')) {
            TRY(parse_attribute(p, *node, node));
        } else if (token_is_op(&p->tok, '[')) {
            TRY(parse_subscript(p, *node, node));
        } else if (token_is_op(&p->tok, '(')) {
            TRY(parse_call(p, *node, node));
        } else {
            return ATS_OK;
        }
    }
}

static ats_status parse_filter_name(struct parser *p, struct node *operand, struct node **out) {
    struct token name = {0};
    TRY(parse_expect_name(p, &name));
    TRY(node_unary(p, N_FILTER, name.line, operand, out));
    (*out)->value = value_string(name.s, name.n);
    (*out)->filter = filter_find(name.s, name.n);
    if ((*out)->filter) return ATS_OK;
    return fail(ATS_BAD_INPUT, "line %d: unknown filter '%.*s'", name.line,
                (int)min_size(name.n, 60), name.s);
}

ats_status parse_filters(struct parser *p, bool first, struct node *operand, struct node **out) {
    *out = operand;
    for (; first || token_is_op(&p->tok, '|'); first = false) {
        if (!first) TRY(parse_advance(p));
        TRY(parse_filter_name(p, *out, out));
        if (token_is_op(&p->tok, '(')) TRY(parse_arguments(p, *out));
    }
    return ATS_OK;
}

/* The argument of a test may stand without brackets: "x is divisibleby 3". */
static bool starts_test_argument(const struct token *t) {
    if (t->kind == T_NAME)
        return !token_is_name(t, "else") && !token_is_name(t, "or") && !token_is_name(t, "and") &&
               !token_is_name(t, "if") && !token_is_name(t, "is") && !token_is_name(t, "in") &&
               !token_is_name(t, "not") && !token_is_name(t, "recursive");
    return t->kind == T_STRING || t->kind == T_INT || t->kind == T_FLOAT || t->kind == T_BIG ||
           token_is_op(t, '[') || token_is_op(t, '{');
}

static ats_status parse_test_name(struct parser *p, struct node *operand, struct node **out) {
    struct token name = {0};
    TRY(parse_expect_name(p, &name));
    TRY(node_unary(p, N_TEST, name.line, operand, out));
    (*out)->value = value_string(name.s, name.n);
    (*out)->test = test_find(name.s, name.n);
    if ((*out)->test) return ATS_OK;
    return fail(ATS_BAD_INPUT, "line %d: unknown test '%.*s'", name.line, (int)min_size(name.n, 60),
                name.s);
}

static ats_status parse_test_argument(struct parser *p, struct node *test) {
    struct arguments *a = ARENA_NEW(&p->t->arena, struct arguments);
    a->items = ARENA_ARRAY(&p->t->arena, struct node *, 1);
    a->n_items = 1;
    test->args = a;
    TRY(parse_primary(p, &a->items[0]));
    TRY(parse_postfix(p, &a->items[0]));
    return node_adopt(test, a->items[0]);
}

static ats_status parse_test(struct parser *p, struct node *operand, struct node **out) {
    TRY(parse_advance(p));
    bool negated = token_is_name(&p->tok, "not");
    if (negated) TRY(parse_advance(p));
    TRY(parse_test_name(p, operand, out));
    if (token_is_op(&p->tok, '('))
        TRY(parse_arguments(p, *out));
    else if (starts_test_argument(&p->tok))
        TRY(parse_test_argument(p, *out));
    else if (token_is_name(&p->tok, "is"))
        return parse_unexpected(p, "no second test");
    return negated ? node_unary(p, N_NOT, (*out)->line, *out, out) : ATS_OK;
}

static ats_status parse_unary(struct parser *p, bool with_filters, struct node **out) {
    bool minus = token_is_op(&p->tok, '-');
    if (minus || token_is_op(&p->tok, '+')) {
        int line = p->tok.line;
        TRY(parse_nest(p));
        TRY(parse_advance(p));
        TRY(parse_unary(p, false, out));
        p->nesting--;
        TRY(node_unary(p, minus ? N_NEG : N_POS, line, *out, out));
    } else {
        TRY(parse_primary(p, out));
    }
    TRY(parse_postfix(p, out));
    while (with_filters) {
        if (token_is_op(&p->tok, '|')) {
            TRY(parse_filters(p, false, *out, out));
        } else if (token_is_name(&p->tok, "is")) {
            TRY(parse_test(p, *out, out));
        } else if (token_is_op(&p->tok, '(')) {
            TRY(parse_call(p, *out, out));
        } else {
            break;
        }
    }
    return ATS_OK;
}

/* ---- operators between ---- */

/* Precedence of the current token as an operator, -1 if it is none. */
static int precedence_of(const struct token *t) {
    if (token_is_name(t, "or")) return PREC_OR;
    if (token_is_name(t, "and")) return PREC_AND;
    if (t->kind != T_OPERATOR) return -1;
    switch (t->op) {
    case '+':
    case '-':
        return PREC_ADD;
    case '~':
        return PREC_CONCAT;
    case '*':
    case '/':
    case '%':
    case OP2('/', '/'):
        return PREC_MULTIPLY;
    case OP2('*', '*'):
        return PREC_POWER;
    default:
        return -1;
    }
}

/* Takes a comparison operator; -1 if there is none. */
static ats_status take_compare(struct parser *p, int *op) {
    static const struct {
        int op;
        enum compare_op compare;
    } ops[] = {{OP2('=', '='), CMP_EQ}, {OP2('!', '='), CMP_NE}, {'<', CMP_LT},
               {OP2('<', '='), CMP_LE}, {'>', CMP_GT},           {OP2('>', '='), CMP_GE}};
    *op = -1;
    for (size_t i = 0; i < COUNT_OF(ops); i++)
        if (token_is_op(&p->tok, ops[i].op)) *op = (int)ops[i].compare;
    if (token_is_name(&p->tok, "in")) *op = CMP_IN;
    if (token_is_name(&p->tok, "not")) {
        struct token next;
        TRY(parse_look(p, &next));
        if (!token_is_name(&next, "in")) return ATS_OK;
        TRY(parse_advance(p));
        *op = CMP_NOT_IN;
    }
    return *op < 0 ? ATS_OK : parse_advance(p);
}

struct compare_list {
    struct nodes items;
    uint8_t *ops;
    size_t ops_cap;
};

static ats_status parse_compare_list(struct parser *p, struct compare_list *v) {
    for (;;) {
        int op;
        struct node *right;
        TRY(take_compare(p, &op));
        if (op < 0) return ATS_OK;
        TRY(parse_binary(p, PREC_ADD, &right));
        GROW(v->ops, v->items.n, v->ops_cap, 1);
        v->ops[v->items.n] = (uint8_t)op;
        nodes_add(&v->items, right);
    }
}

/* a < b < c is one node. */
static ats_status parse_compare(struct parser *p, struct node **out) {
    int line = p->tok.line;
    struct compare_list v = {0};
    ats_status status = parse_compare_list(p, &v);
    size_t n = v.items.n;
    if (status == ATS_OK && n > 0) {
        status = node_unary(p, N_COMPARE, line, *out, out);
        (*out)->ops = arena_alloc(&p->t->arena, n);
        memcpy((*out)->ops, v.ops, n);
        if (status == ATS_OK) status = nodes_give(p, &v.items, *out);
    }
    free(v.items.items);
    free(v.ops);
    return status;
}

/* a ~ b ~ c is one node; the first "~" is the current token. */
static ats_status parse_concat(struct parser *p, struct node **out) {
    struct node *node = node_new(p, N_CONCAT, p->tok.line);
    struct nodes v = {0};
    ats_status status = ATS_OK;
    nodes_add(&v, *out);
    while (status == ATS_OK && token_is_op(&p->tok, '~')) {
        struct node *item;
        status = parse_advance(p);
        if (status == ATS_OK) status = parse_binary(p, PREC_MULTIPLY, &item);
        if (status == ATS_OK) nodes_add(&v, item);
    }
    if (status == ATS_OK) status = nodes_give(p, &v, node);
    free(v.items);
    *out = node;
    return status;
}

static ats_status parse_operators(struct parser *p, enum precedence least, struct node **out) {
    for (;;) {
        int precedence = precedence_of(&p->tok), op = p->tok.op, line = p->tok.line;
        if (precedence < (int)least) {
            if (least > PREC_COMPARE) return ATS_OK;
            struct node *before = *out;
            TRY(parse_compare(p, out));
            if (*out == before) return ATS_OK;
            continue;
        }
        if (precedence == PREC_CONCAT) {
            TRY(parse_concat(p, out));
            continue;
        }
        struct node *right;
        TRY(parse_advance(p));
        TRY(parse_binary(p, (enum precedence)(precedence + 1), &right));
        enum node_kind kind = precedence == PREC_OR    ? N_OR
                              : precedence == PREC_AND ? N_AND
                                                       : N_BINARY;
        TRY(node_binary(p, kind, line, *out, right, out));
        (*out)->op = op;
    }
}

/* Operators of at least this precedence. */
static ats_status parse_binary(struct parser *p, enum precedence least, struct node **out) {
    TRY(parse_nest(p));
    int line = p->tok.line;
    if (least <= PREC_NOT && token_is_name(&p->tok, "not")) {
        TRY(parse_advance(p));
        TRY(parse_binary(p, PREC_NOT, out));
        TRY(node_unary(p, N_NOT, line, *out, out));
    } else {
        TRY(parse_unary(p, true, out));
    }
    TRY(parse_operators(p, least, out));
    p->nesting--;
    return ATS_OK;
}

ats_status parse_no_condition(struct parser *p, struct node **out) {
    return parse_binary(p, PREC_OR, out);
}

ats_status parse_expression(struct parser *p, struct node **out) {
    TRY(parse_binary(p, PREC_OR, out));
    while (token_is_name(&p->tok, "if")) {
        int line = p->tok.line;
        struct node *test, *other = NULL;
        TRY(parse_advance(p));
        TRY(parse_binary(p, PREC_OR, &test));
        if (token_is_name(&p->tok, "else")) {
            TRY(parse_nest(p));
            TRY(parse_advance(p));
            TRY(parse_expression(p, &other));
            p->nesting--;
        }
        TRY(node_binary(p, N_COND, line, test, *out, out));
        (*out)->c = other;
        TRY(node_adopt(*out, other));
    }
    return ATS_OK;
}

static bool tuple_ends(const struct parser *p) {
    const struct token *t = &p->tok;
    return t->kind == T_PRINT_END || t->kind == T_TAG_END || token_is_op(t, ')') ||
           token_is_op(t, ']') || token_is_name(t, "recursive") || token_is_name(t, "if");
}

ats_status parse_tuple(struct parser *p, bool with_condition, struct node **out) {
    int line = p->tok.line;
    TRY(with_condition ? parse_expression(p, out) : parse_no_condition(p, out));
    if (!token_is_op(&p->tok, ',')) return ATS_OK;
    struct node *tuple = node_new(p, N_TUPLE, line);
    struct nodes v = {0};
    ats_status status = ATS_OK;
    nodes_add(&v, *out);
    while (status == ATS_OK && token_is_op(&p->tok, ',')) {
        status = parse_advance(p);
        if (status != ATS_OK || tuple_ends(p)) break;
        status = with_condition ? parse_expression(p, out) : parse_no_condition(p, out);
        if (status == ATS_OK) nodes_add(&v, *out);
    }
    if (status == ATS_OK) status = nodes_give(p, &v, tuple);
    free(v.items);
    *out = tuple;
    return status;
}
