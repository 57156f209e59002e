/* Text to token ids, and back. */
#include "app/cmd.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

/* Arguments joined by blanks, else -f, else standard input. */
MUST_CHECK static ats_status read_text(struct app *app, struct buf *out) {
    const struct flags *f = &app->flags;
    const char *path = flag_text(f, FLAG_TOK_FILE);
    if (f->n_positionals && path)
        return fail(ATS_BAD_ARGUMENT, "the text is given twice: as an argument and with -f");
    for (size_t i = 0; i < f->n_positionals; i++) {
        if (i) buf_add_char(out, ' ');
        buf_add_str(out, f->positionals[i]);
    }
    if (f->n_positionals) return ATS_OK;
    char *text;
    size_t n;
    TRY(app_read_input(path ? path : "-", &text, &n));
    buf_add(out, text, n);
    free(text);
    return ATS_OK;
}

/* A piece on one line: control characters as escapes, bytes that are not UTF-8 as \xNN. */
static void add_piece(struct buf *out, const char *s, size_t n) {
    while (n > 0) {
        uint32_t cp;
        int len = utf8_decode(s, n, &cp);
        if (len == 0) {
            len = 1;
            buf_printf(out, "\\x%02x", (unsigned)(unsigned char)*s);
        } else if (cp == '\n') {
            buf_add_str(out, "\\n");
        } else if (cp == '\t') {
            buf_add_str(out, "\\t");
        } else if (cp == '\\') {
            buf_add_str(out, "\\\\");
        } else if (cp < 0x20 || (cp >= 0x7f && cp < 0xa0)) {
            buf_printf(out, "\\x%02x", (unsigned)cp);
        } else {
            buf_add(out, s, (size_t)len);
        }
        s += len;
        n -= (size_t)len;
    }
}

static int tell_interrupt(struct app *app) {
    return app_fail(app, fail(ATS_CANCELLED, "interrupted"));
}

static int print_tokens_json(struct app *app, const ats_engine *engine, const int32_t *ids,
                             size_t n_ids) {
    json_t *o = app_json(app), *list = json_array(), *pieces = json_array();
    for (size_t i = 0; i < n_ids && !interrupt_pending(); i++) {
        size_t n = 0;
        const char *piece = ats_token_text(engine, ids[i], &n);
        json_array_append_new(list, json_integer(ids[i]));
        json_array_append_new(pieces, json_string_replaced(piece ? piece : "", n));
    }
    json_object_set_new(o, "n_tokens", json_integer((json_int_t)n_ids));
    json_object_set_new(o, "tokens", list);
    json_object_set_new(o, "pieces", pieces);
    if (!interrupt_pending()) return app_print_json(app, o);
    json_decref(o);
    return tell_interrupt(app);
}

static int print_tokens(struct app *app, const ats_engine *engine, const int32_t *ids,
                        size_t n_ids) {
    const struct flags *f = &app->flags;
    if (app->json) return print_tokens_json(app, engine, ids, n_ids);
    bool table = flag_on(f, FLAG_TOK_PIECES) || (app->term.out_tty && !flag_on(f, FLAG_TOK_IDS));
    struct buf out = {0};
    for (size_t i = 0; i < n_ids && !interrupt_pending(); i++) {
        if (!table) {
            buf_printf(&out, "%s%d", i ? " " : "", ids[i]);
            continue;
        }
        size_t n = 0;
        const char *piece = ats_token_text(engine, ids[i], &n);
        buf_printf(&out, "%7d  ", ids[i]);
        add_piece(&out, piece ? piece : "", n);
        buf_add_char(&out, '\n');
    }
    if (!table) buf_add_char(&out, '\n');
    int code = interrupt_pending() ? tell_interrupt(app) : app_print(app, buf_str(&out), out.len);
    buf_free(&out);
    if (table && code == EXIT_OK) app_note(app, "%zu tokens", n_ids);
    return code;
}

static int encode(struct app *app, const ats_engine *engine, const struct buf *text) {
    const struct flags *f = &app->flags;
    unsigned flags = 0;
    if (!flag_on(f, FLAG_TOK_NO_SPECIAL)) flags |= ATS_TOKENIZE_SPECIAL;
    if (flag_on(f, FLAG_TOK_PARSE_SPECIAL)) flags |= ATS_TOKENIZE_PARSE_SPECIAL;
    int32_t *ids = NULL;
    size_t n_ids = 0;
    ats_status status = ats_tokenize(engine, buf_str(text), text->len, flags, &ids, &n_ids);
    int code = status == ATS_OK ? print_tokens(app, engine, ids, n_ids) : app_fail(app, status);
    ats_free(ids);
    return code;
}

static int decode(struct app *app, const ats_engine *engine, const struct buf *text) {
    ats_info info;
    int32_t *ids = NULL;
    size_t n_ids = 0, n = 0;
    char *decoded = NULL;
    ats_engine_info(engine, &info);
    ats_status status =
        app_parse_ids("--decode", buf_str(text), text->len, info.n_vocab, &ids, &n_ids);
    if (status == ATS_OK)
        status = ats_detokenize(engine, ids, n_ids, flag_on(&app->flags, FLAG_TOK_SPECIAL),
                                &decoded, &n);
    int code;
    if (status != ATS_OK) {
        code = app_fail(app, status);
    } else if (app->json) {
        json_t *o = app_json(app);
        json_object_set_new(o, "n_tokens", json_integer((json_int_t)n_ids));
        json_object_set_new(o, "text", json_string_replaced(decoded, n));
        code = app_print_json(app, o);
    } else {
        struct buf out = {0};
        if (app->term.out_tty) {
            term_add_safe(&out, decoded, n);
            buf_add_char(&out, '\n');
        } else {
            buf_add(&out, decoded, n);
        }
        code = app_print(app, buf_str(&out), out.len);
        buf_free(&out);
    }
    ats_free(decoded);
    free(ids);
    return code;
}

MUST_CHECK static ats_status check_flags(const struct flags *f) {
    if (flag_on(f, FLAG_TOK_SPECIAL) && flag_on(f, FLAG_TOK_NO_SPECIAL))
        return fail(ATS_BAD_ARGUMENT, "--special and --no-special exclude each other");
    if (flag_on(f, FLAG_TOK_IDS) && flag_on(f, FLAG_TOK_PIECES))
        return fail(ATS_BAD_ARGUMENT, "--ids and --pieces exclude each other");
    return ATS_OK;
}

int cmd_tokenize(struct app *app) {
    struct buf text = {0};
    ats_engine *engine = NULL;
    ats_status status = check_flags(&app->flags);
    if (status == ATS_OK) status = app_find_model(app);
    if (status == ATS_OK) status = read_text(app, &text);
    if (status == ATS_OK) status = app_vocabulary_open(app, &engine);
    int code = status != ATS_OK                        ? app_fail(app, status)
               : flag_on(&app->flags, FLAG_TOK_DECODE) ? decode(app, engine, &text)
                                                       : encode(app, engine, &text);
    ats_engine_close(engine);
    buf_free(&text);
    return code;
}
