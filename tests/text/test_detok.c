/* Streaming: whole characters only, broken tails once, the space prefix (R55). */
#include "support.h"

#include "base/buf.h"
#include "base/rng.h"
#include "base/utf8.h"
#include "gguf_vocab.h"
#include "text/detok.h"

static struct tokenizer *open_shared(const char *relative) {
    char path[512];
    struct tokenizer *t;
    if (!test_shared_path(path, sizeof path, relative)) skip();
    gguf_vocab_open(path, false, &t);
    return t;
}

/* The token of one byte: of BPE's alphabet, or "<0xXX>". */
static int32_t byte_token(const struct tokenizer *t, unsigned char byte) {
    for (int32_t id = 0; id < tokenizer_n_tokens(t); id++) {
        struct text_span piece = tokenizer_piece(t, id);
        bool one = piece.len == 1 && (unsigned char)piece.data[0] == byte;
        if (one && (tokenizer_kind(t) == TOKENIZER_BPE || tokenizer_type(t, id) == TOKEN_BYTE)) {
            return id;
        }
    }
    fail_msg("no token for byte %02x", byte);
    return -1;
}

static const char *const FILES[] = {"tokenizers/smollm2.vocab.gguf",
                                    "tokenizers/mistral-v1.vocab.gguf"};

static void an_emoji_of_byte_tokens_comes_out_whole(void **state) {
    (void)state;
    for (size_t f = 0; f < COUNT_OF(FILES); f++) {
        struct tokenizer *t = open_shared(FILES[f]);
        struct buf out = {0};
        struct detok d;
        detok_init(&d, t, 0);
        for (const char *c = "\xF0\x9F\x99\x82"; *c; c++) {
            assert_int_equal(out.len, 0);
            detok_push(&d, byte_token(t, (unsigned char)*c), &out);
        }
        assert_string_equal(buf_str(&out), "\xF0\x9F\x99\x82");
        detok_flush(&d, &out);
        assert_int_equal(out.len, 4);
        buf_free(&out);
        tokenizer_close(t);
    }
}

static void a_broken_tail_is_replaced_once_at_the_end(void **state) {
    (void)state;
    for (size_t f = 0; f < COUNT_OF(FILES); f++) {
        struct tokenizer *t = open_shared(FILES[f]);
        struct buf out = {0};
        struct detok d;
        detok_init(&d, t, 0);
        for (const char *c = "a\xF0\x9F\x99"; *c; c++) {
            detok_push(&d, byte_token(t, (unsigned char)*c), &out);
        }
        assert_string_equal(buf_str(&out), "a");
        detok_flush(&d, &out);
        assert_string_equal(buf_str(&out), "a\xEF\xBF\xBD");
        detok_flush(&d, &out); /* once */
        assert_string_equal(buf_str(&out), "a\xEF\xBF\xBD");
        detok_push(&d, byte_token(t, 'b'), &out);
        assert_string_equal(buf_str(&out), "a\xEF\xBF\xBD"
                                           "b");
        buf_free(&out);
        tokenizer_close(t);
    }
}

/* Whatever bytes the model says, in whatever portions: the stream is valid UTF-8 after every token
 * and equals the replaced whole. */
static void any_bytes_give_the_same_text_streamed_or_whole(void **state) {
    (void)state;
    static const unsigned char bytes[] = {'a',  0x80, 0x99, 0xC3, 0xA9, 0xE2, 0x82,
                                          0xAC, 0xED, 0xA0, 0xF0, 0x9F, 0xF4, 0xFF};
    struct rng rng;
    rng_seed(&rng, 11);
    /* FILES[0] lacks some bytes that no text has */
    static const char *const files[] = {"models/llama/llama-f16.gguf", "models/phi3/phi3-f32.gguf"};
    for (size_t f = 0; f < COUNT_OF(files); f++) {
        struct tokenizer *t = open_shared(files[f]);
        int32_t ids[COUNT_OF(bytes)];
        for (size_t i = 0; i < COUNT_OF(bytes); i++)
            ids[i] = byte_token(t, bytes[i]);
        for (int round = 0; round < 3000; round++) {
            struct buf out = {0}, raw = {0}, want = {0};
            struct detok d;
            detok_init(&d, t, 0);
            for (uint32_t i = 0, n = rng_below(&rng, 16); i < n; i++) {
                uint32_t k = rng_below(&rng, COUNT_OF(bytes));
                buf_add_char(&raw, (char)bytes[k]);
                detok_push(&d, ids[k], &out);
                assert_true(utf8_valid(buf_str(&out), out.len));
            }
            detok_flush(&d, &out);
            utf8_add_replaced(&want, buf_str(&raw), raw.len);
            assert_int_equal(out.len, want.len);
            assert_string_equal(buf_str(&out), buf_str(&want));
            buf_free(&out);
            buf_free(&raw);
            buf_free(&want);
        }
        tokenizer_close(t);
    }
}

static void control_tokens_show_only_when_asked_for(void **state) {
    (void)state;
    struct tokenizer *t = open_shared(FILES[0]);
    struct token_list ids = {0};
    struct buf out = {0};
    const char *text = "<|im_start|>user\nhi<|im_end|>";
    TEST_OK(tokenizer_encode(t, text, strlen(text), ENCODE_PARSE_SPECIAL, &ids));
    detok_all(t, ids.ids, ids.n, 0, &out);
    assert_string_equal(buf_str(&out), "user\nhi");
    buf_clear(&out);
    detok_all(t, ids.ids, ids.n, DETOK_CONTROL, &out);
    assert_string_equal(buf_str(&out), text);
    buf_clear(&out);
    detok_all(t, (int32_t[]){-1, 1 << 30}, 2, DETOK_CONTROL, &out); /* no tokens at all */
    assert_int_equal(out.len, 0);
    buf_free(&out);
    token_list_free(&ids);
    tokenizer_close(t);
}

static void the_space_prefix_goes_at_the_start_of_a_text_only(void **state) {
    (void)state;
    struct tokenizer *t = open_shared(FILES[1]);
    struct token_list ids = {0};
    struct buf out = {0};
    TEST_OK(tokenizer_encode(t, "two  words", 10, ENCODE_ADD_SPECIAL, &ids));
    assert_int_equal(ids.ids[0], tokenizer_role_id(t, ROLE_BOS));
    detok_all(t, ids.ids, ids.n, DETOK_TEXT_START, &out);
    assert_string_equal(buf_str(&out), "two  words");
    buf_clear(&out);
    detok_all(t, ids.ids, ids.n, 0, &out); /* the answer goes on from a prompt */
    assert_string_equal(buf_str(&out), " two  words");
    buf_free(&out);
    token_list_free(&ids);
    tokenizer_close(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_emoji_of_byte_tokens_comes_out_whole),
        cmocka_unit_test(a_broken_tail_is_replaced_once_at_the_end),
        cmocka_unit_test(any_bytes_give_the_same_text_streamed_or_whole),
        cmocka_unit_test(control_tokens_show_only_when_asked_for),
        cmocka_unit_test(the_space_prefix_goes_at_the_start_of_a_text_only),
    };
    return cmocka_run_group_tests_name("detok", tests, NULL, NULL);
}
