/* Text to ids and back, and rendered chats. */
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "base/json.h"
#include "run/engine.h"
#include "text/detok.h"

/* Hands a list over to the caller: never NULL. */
static void give_ids(struct token_list *list, int32_t **ids, size_t *n_ids) {
    *ids = list->ids ? list->ids : xmalloc(sizeof **ids);
    *n_ids = list->n;
}

ats_status ats_tokenize(const ats_engine *e, const char *text, size_t n_bytes, unsigned flags,
                        int32_t **ids, size_t *n_ids) {
    struct token_list list = {0};
    unsigned encode = 0;
    if (flags & ATS_TOKENIZE_SPECIAL) encode |= ENCODE_ADD_SPECIAL;
    if (flags & ATS_TOKENIZE_PARSE_SPECIAL) encode |= ENCODE_PARSE_SPECIAL;
    *ids = NULL;
    *n_ids = 0;
    ats_status status = tokenizer_encode_until(e->tokenizer, text, n_bytes, encode, e->cancel,
                                               e->cancel_user, &list);
    if (status != ATS_OK) {
        token_list_free(&list);
        return status;
    }
    give_ids(&list, ids, n_ids);
    return ATS_OK;
}

const char *ats_token_text(const ats_engine *e, int32_t id, size_t *n_bytes) {
    *n_bytes = 0;
    if (id < 0 || id >= tokenizer_n_tokens(e->tokenizer)) return NULL;
    struct text_span piece = tokenizer_piece(e->tokenizer, id);
    *n_bytes = piece.len;
    return piece.data;
}

ats_status ats_detokenize(const ats_engine *e, const int32_t *ids, size_t n_ids, bool special,
                          char **text, size_t *n_bytes) {
    struct buf out = {0};
    for (size_t i = 0; i < n_ids; i++)
        if (ids[i] < 0 || ids[i] >= tokenizer_n_tokens(e->tokenizer))
            return fail(ATS_BAD_ARGUMENT, "token id %d is outside the vocabulary", ids[i]);
    unsigned flags = DETOK_TEXT_START | (special ? DETOK_CONTROL : 0U);
    detok_all(e->tokenizer, ids, n_ids, flags, &out);
    *n_bytes = out.len;
    *text = buf_take(&out);
    return ATS_OK;
}

bool ats_token_is_end(const ats_engine *e, int32_t id) {
    return tokenizer_is_end(e->tokenizer, id);
}

/* ---- chat ---- */

static ats_status render(const ats_engine *e, const json_t *messages, const json_t *extra,
                         bool add_generation_prompt, struct buf *out) {
    time_t seconds = time(NULL);
    struct tm now;
    localtime_r(&seconds, &now);
    struct chat_options options = {.add_generation_prompt = add_generation_prompt,
                                   .tools = json_object_get(extra, "tools"),
                                   .extra = extra,
                                   .now = &now,
                                   .cancel = e->cancel,
                                   .cancel_user = e->cancel_user};
    return chat_render(e->chat, messages, &options, out);
}

ats_status ats_chat_render(const ats_engine *e, const char *messages_json, const char *extra_json,
                           bool add_generation_prompt, char **text) {
    *text = NULL;
    if (!e->chat) return fail(ATS_BAD_INPUT, "the chat template cannot be used: %s", e->chat_error);
    json_t *messages = NULL, *extra = NULL;
    struct buf out = {0};
    ats_status status;
    TRY_TO(end, status, json_parse(messages_json, strlen(messages_json), &messages));
    if (extra_json) TRY_TO(end, status, json_parse(extra_json, strlen(extra_json), &extra));
    if (extra && !json_is_object(extra)) {
        status = fail(ATS_BAD_INPUT, "the template's variables must be a JSON object");
        goto end;
    }
    TRY_TO(end, status, render(e, messages, extra, add_generation_prompt, &out));
    *text = buf_take(&out);
end:
    json_decref(messages);
    json_decref(extra);
    buf_free(&out);
    return status;
}

/* The template usually prints BOS itself; the vocabulary's wish must not double it (chat.h). */
ats_status ats_tokenize_chat(const ats_engine *e, const char *text, int32_t **ids, size_t *n_ids) {
    struct token_list list = {0};
    *ids = NULL;
    *n_ids = 0;
    ats_status status = tokenizer_encode_until(
        e->tokenizer, text, strlen(text), ENCODE_PARSE_SPECIAL, e->cancel, e->cancel_user, &list);
    if (status != ATS_OK) {
        token_list_free(&list);
        return status;
    }
    int32_t bos = tokenizer_role_id(e->tokenizer, ROLE_BOS);
    if (tokenizer_adds_bos(e->tokenizer) && bos >= 0 && (list.n == 0 || list.ids[0] != bos)) {
        token_list_add(&list, 0);
        memmove(list.ids + 1, list.ids, (list.n - 1) * sizeof *list.ids);
        list.ids[0] = bos;
    }
    give_ids(&list, ids, n_ids);
    return ATS_OK;
}
