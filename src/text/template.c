#include "text/template_impl.h"

#include <stdlib.h>
#include <string.h>

/* The public functions, and the state of a render: limits, scratch buffers, scopes. */

enum {
    DEFAULT_STEPS = 10 * 1000 * 1000,
    DEFAULT_OUTPUT_BYTES = 16 << 20,
    DEFAULT_MEMORY_BYTES = 256 << 20,
    STEPS_A_QUESTION = 1 << 14, /* some milliseconds */
    CHARGE_UNIT = 16,           /* items or bytes of a long value that count as one step */
};

/* ---- symbols ---- */

static uint32_t hash_bytes(const char *s, size_t n) { /* FNV-1a */
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)s[i]) * 16777619u;
    return h;
}

/* Slot of the name in t->hash: its symbol + 1, or 0. */
static int32_t *symbol_slot(const struct template *t, const char *name, size_t n) {
    for (size_t i = hash_bytes(name, n);; i++) {
        int32_t *slot = &t->hash[i & (t->hash_size - 1)];
        if (*slot == 0) return slot;
        const struct symbol *s = &t->symbols[*slot - 1];
        if (s->n == n && memcmp(s->name, name, n) == 0) return slot;
    }
}

static void symbols_grow(struct template *t) {
    t->hash_size = t->hash_size ? t->hash_size * 2 : 64;
    free(t->hash);
    t->hash = xcalloc(t->hash_size, sizeof *t->hash);
    for (size_t i = 0; i < t->n_symbols; i++)
        *symbol_slot(t, t->symbols[i].name, t->symbols[i].n) = (int32_t)i + 1;
}

ats_status template_symbol(struct template *t, const struct token *name, int *out) {
    if (t->n_symbols * 2 >= t->hash_size) symbols_grow(t);
    int32_t *slot = symbol_slot(t, name->s, name->n);
    if (*slot == 0) {
        if (t->n_symbols == TEMPLATE_MAX_NAMES)
            return fail(ATS_BAD_INPUT, "line %d: more than %d different names", name->line,
                        TEMPLATE_MAX_NAMES);
        GROW(t->symbols, t->n_symbols, t->symbols_cap, 1);
        t->symbols[t->n_symbols++] = (struct symbol){name->s, (uint32_t)name->n};
        *slot = (int32_t)t->n_symbols;
    }
    *out = *slot - 1;
    return ATS_OK;
}

int template_find(const struct template *t, const char *name) {
    return t->hash_size > 0 ? *symbol_slot(t, name, strlen(name)) - 1 : -1;
}

/* ---- open, close ---- */

ats_status template_open(const char *text, size_t n, struct template **out) {
    struct template *t = xcalloc(1, sizeof *t);
    struct parser p = {.t = t};
    ats_status status = lexer_init(&p.lx, &t->arena, text, n);
    if (status == ATS_OK) status = parse_template(&p);
    if (status != ATS_OK) {
        template_close(t);
        return fail_in(status, "template");
    }
    *out = t;
    return ATS_OK;
}

void template_close(struct template *t) {
    if (!t) return;
    arena_free(&t->arena);
    free(t->symbols);
    free(t->hash);
    free(t);
}

/* ---- limits ---- */

static void ask_later(struct render *r) {
    r->ask_at = r->steps_left > STEPS_A_QUESTION ? r->steps_left - STEPS_A_QUESTION : 0;
}

ats_status charge(struct render *r, size_t n) {
    uint64_t steps = 1 + n / CHARGE_UNIT;
    if (steps > r->steps_left) return fail(ATS_BAD_INPUT, "limit reached: too many steps");
    r->steps_left -= steps;
    if (LIKELY(r->steps_left > r->ask_at)) return ATS_OK;
    ask_later(r);
    bool stop = r->cancel && r->cancel(r->cancel_user);
    return stop ? fail(ATS_CANCELLED, "cancelled") : ATS_OK;
}

ats_status enter(struct render *r) {
    if (++r->depth > TEMPLATE_MAX_DEPTH)
        return fail(ATS_BAD_INPUT, "limit reached: more than %d levels deep", TEMPLATE_MAX_DEPTH);
    return ATS_OK;
}

ats_status put(struct render *r, struct buf *b, const char *s, size_t n) {
    if (n == 0) return ATS_OK;
    if (b->len > r->max_output_bytes || n > r->max_output_bytes - b->len)
        return fail(ATS_BAD_INPUT, "limit reached: a text of more than %zu bytes",
                    r->max_output_bytes);
    r->scratch_bytes += n;
    if (r->scratch_bytes + r->arena.used_bytes > r->max_memory_bytes)
        return fail(ATS_BAD_INPUT, "limit reached: more than %zu bytes of memory",
                    r->max_memory_bytes);
    TRY(charge_copy(r, n));
    buf_add(b, s, n);
    return ATS_OK;
}

struct buf *scratch_begin(struct render *r) {
    if (r->n_scratch == r->n_made) {
        GROW(r->scratch, r->n_made, r->scratch_cap, 1);
        r->scratch[r->n_made++] = xcalloc(1, sizeof(struct buf));
    }
    return r->scratch[r->n_scratch++];
}

ats_status scratch_end(struct render *r, struct buf *b, struct value *out) {
    REQUIRE(r->n_scratch > 0 && r->scratch[r->n_scratch - 1] == b);
    r->scratch_bytes -= b->len;
    if (out) TRY(make_string(r, buf_str(b), b->len, out));
    r->n_scratch--;
    if (b->cap > 1 << 16) buf_free(b);
    buf_clear(b);
    return ATS_OK;
}

/* ---- scopes ---- */

ats_status scope_new(struct render *r, struct scope *parent, struct scope **out) {
    char *p;
    TRY(make_bytes(r, sizeof(struct scope), &p));
    *out = (struct scope *)(void *)p;
    (*out)->parent = parent;
    return ATS_OK;
}

ats_status scope_bind(struct render *r, struct scope *scope, int sym, struct value v) {
    if (!scope) {
        r->root[sym] = v;
        return ATS_OK;
    }
    TRY(charge(r, scope->n));
    for (size_t i = 0; i < scope->n; i++) {
        if (scope->bindings[i].sym != sym) continue;
        scope->bindings[i].v = v;
        return ATS_OK;
    }
    if (scope->n == scope->cap) {
        size_t cap = scope->cap ? scope->cap * 2 : 4;
        char *p;
        TRY(make_bytes(r, cap * sizeof(struct binding), &p));
        struct binding *grown = (struct binding *)(void *)p;
        if (scope->n > 0) memcpy(grown, scope->bindings, scope->n * sizeof *grown);
        scope->bindings = grown;
        scope->cap = cap;
    }
    scope->bindings[scope->n++] = (struct binding){sym, v};
    return ATS_OK;
}

/* ---- render ---- */

/* Variables of the context, then the globals; only names that the template has. */
static ats_status bind_root(struct render *r, const json_t *context) {
    const struct template *t = r->t;
    char *p;
    TRY(make_bytes(r, t->n_symbols * sizeof(struct value), &p));
    r->root = (struct value *)(void *)p;
    for (size_t i = 0; i < t->n_symbols; i++) {
        const struct symbol *s = &t->symbols[i];
        const json_t *v = json_object_getn(context, s->name, s->n);
        r->root[i] = global_find(r, s->name, s->n);
        if (v) TRY(value_from_json(r, v, false, &r->root[i]));
    }
    return ATS_OK;
}

static ats_status render_all(struct render *r, const json_t *context) {
    ats_status status = bind_root(r, context);
    if (status != ATS_OK) return fail_in(status, "template context");
    status = exec(r, r->t->root);
    return status == ATS_OK ? ATS_OK : fail_in(status, "template line %d", r->line);
}

ats_status template_render(const struct template *t, const json_t *context,
                           const struct template_options *options, struct buf *out) {
    static const struct template_options none;
    if (!options) options = &none;
    if (!json_is_object(context)) return fail(ATS_BAD_INPUT, "template context is not an object");
    size_t output = options->max_output_bytes ? options->max_output_bytes : DEFAULT_OUTPUT_BYTES;
    size_t memory = options->max_memory_bytes ? options->max_memory_bytes : DEFAULT_MEMORY_BYTES;
    struct buf text = {0};
    struct render r = {
        .t = t,
        .now = options->now,
        .immutable = options->immutable,
        .cancel = options->cancel,
        .cancel_user = options->cancel_user,
        .steps_left = options->max_steps ? options->max_steps : DEFAULT_STEPS,
        /* lengths of strings are kept in 32 bits */
        .max_output_bytes = min_size(output, 1u << 30),
        .max_memory_bytes = min_size(memory, 1u << 31),
        .out = &text,
    };
    ask_later(&r);
    ats_status status = render_all(&r, context);
    if (status == ATS_OK) buf_add(out, buf_str(&text), text.len);
    buf_free(&text);
    for (size_t i = 0; i < r.n_made; i++) {
        buf_free(r.scratch[i]);
        free(r.scratch[i]);
    }
    free(r.scratch);
    arena_free(&r.arena);
    return status;
}
