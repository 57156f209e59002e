/* Ids against the reference libraries (shared/tokenizers), and time on endless words. */
#include "support.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/file.h"
#include "gguf_vocab.h"
#include "text/detok.h"
#include "text/tokenizer.h"

/* An oracle and the file that holds its vocabulary: in the shared folder, or (extra) in the folder
 * that ATS_EXTRA_VOCABS names: make_tokenizers.py builds those, they are too large to keep. */
struct oracle {
    const char *name, *file;
    bool extra;
};
static const struct oracle ORACLES[] = {
    {"smollm2", "tokenizers/smollm2.vocab.gguf", false},
    {"mistral-v1", "tokenizers/mistral-v1.vocab.gguf", false},
    {"mistral-v3", "tokenizers/mistral-v3.vocab.gguf", false},
    {"tiny-llama-bpe", "models/llama/llama-f16.gguf", false},
    {"tiny-qwen2", "models/qwen2/qwen2-f32.gguf", false},
    {"tiny-qwen35", "models/qwen35/qwen35-f16.gguf", false},
    {"tiny-gpt4o", "models/gptoss/gptoss-f16.gguf", false},
    {"tiny-glm4", "models/glm4/glm4-f32.gguf", false},
    {"tiny-llama4", "models/llama4/llama4-f32.gguf", false},
    {"tiny-smollm3", "models/smollm3/smollm3-f32.gguf", false},
    {"tiny-mistral-spm", "models/mistral/mistral-f32.gguf", false},
    {"tiny-gemma-spm", "models/gemma3/gemma3-f16.gguf", false},
    {"tiny-phi-spm", "models/phi3/phi3-f32.gguf", false},
    {"llama3", "llama3.vocab.gguf", true},
    {"llama4", "llama4.vocab.gguf", true},
    {"qwen", "qwen.vocab.gguf", true},
    {"tekken", "tekken.vocab.gguf", true},
};

static bool vocab_path(char *out, size_t n, const struct oracle *o) {
    if (!o->extra) return test_shared_path(out, n, o->file);
    const char *dir = getenv("ATS_EXTRA_VOCABS");
    if (!dir) return false;
    snprintf(out, n, "%s/%s", dir, o->file);
    if (!file_exists(out)) fail_msg("%s is not there (ATS_EXTRA_VOCABS)", out);
    return true;
}

static void same_ids(const struct oracle *o, const char *what, size_t index, json_t *want,
                     const struct token_list *got) {
    size_t n;
    int32_t *ids = test_json_ids(want, &n);
    for (size_t i = 0; i < max_size(n, got->n); i++) {
        if (i < n && i < got->n && ids[i] == got->ids[i]) continue;
        fail_msg("%s: %s %zu: token %zu is %d, must be %d (%zu tokens, must be %zu)", o->name, what,
                 index, i, i < got->n ? (int)got->ids[i] : -1, i < n ? (int)ids[i] : -1, got->n, n);
    }
    free(ids);
}

static json_t *at_index(json_t *object, size_t index) {
    char key[24];
    snprintf(key, sizeof key, "%zu", index);
    return json_object_get(object, key);
}

static void check_encode(const struct oracle *o, const struct tokenizer *t, const char *what,
                         size_t index, const char *text, size_t len, unsigned flags, json_t *want) {
    struct token_list got = {0};
    TEST_OK(tokenizer_encode(t, text, len, flags, &got));
    same_ids(o, what, index, want, &got);
    token_list_free(&got);
}

/* Decoding gives the bytes back, or what the library decodes to. */
static void check_decode(const struct oracle *o, const struct tokenizer *t, size_t index,
                         json_t *ids_json, json_t *want) {
    size_t n;
    int32_t *ids = test_json_ids(ids_json, &n);
    struct buf out = {0};
    detok_all(t, ids, n, DETOK_TEXT_START, &out);
    if (out.len != json_string_length(want) ||
        memcmp(buf_str(&out), json_string_value(want), out.len) != 0) {
        fail_msg("%s: text %zu decodes to \"%s\", must be \"%s\"", o->name, index, buf_str(&out),
                 json_string_value(want));
    }
    buf_free(&out);
    free(ids);
}

static size_t from_hex(const char *hex, char *out) {
    size_t n = strlen(hex) / 2;
    for (size_t i = 0; i < n; i++) {
        unsigned byte;
        assert_int_equal(sscanf(hex + 2 * i, "%2x", &byte), 1);
        out[i] = (char)byte;
    }
    return n;
}

static void check_strings(const struct oracle *o, const struct tokenizer *t, json_t *doc,
                          json_t *strings, bool nfc) {
    json_t *texts = test_json_get(strings, "texts"), *plain = test_json_get(doc, "plain");
    json_t *no_nfc = json_object_get(doc, "plain_no_nfc"),
           *decoded = json_object_get(doc, "decoded");
    json_t *special = json_object_get(doc, "special");
    if (!special) special = json_object_get(doc, "special_by_llamacpp");
    assert_int_equal(json_array_size(texts), json_array_size(plain));
    for (size_t i = 0; i < json_array_size(texts); i++) {
        json_t *text = json_array_get(texts, i), *want = json_array_get(plain, i);
        const char *s = json_string_value(text);
        size_t len = json_string_length(text);
        bool changed = at_index(no_nfc, i) != NULL;
        if (!nfc && changed) want = at_index(no_nfc, i);
        check_encode(o, t, "text", i, s, len, 0, want);
        if (!(nfc && changed)) {
            check_decode(o, t, i, want, decoded ? json_array_get(decoded, i) : text);
        }
        if (!special) continue; /* tekken: its reference cannot */
        if (at_index(special, i)) want = at_index(special, i);
        check_encode(o, t, "special", i, s, len, ENCODE_PARSE_SPECIAL, want);
    }
}

static void check_oracle(const struct oracle *o, const char *path, bool nfc) {
    char oracle_path[512], name[64];
    snprintf(name, sizeof name, "tokenizers/%s.json", o->name);
    if (!test_shared_path(oracle_path, sizeof oracle_path, name)) skip();
    json_t *doc = test_json_read(oracle_path);
    test_shared_path(oracle_path, sizeof oracle_path, "tokenizers/strings.json");
    json_t *strings = test_json_read(oracle_path);
    struct tokenizer *t;
    gguf_vocab_open(path, nfc, &t);
    check_strings(o, t, doc, strings, nfc);
    json_t *invalid = test_json_get(strings, "invalid");
    json_t *replaced = test_json_get(doc, "invalid_replaced");
    for (size_t i = 0; i < json_array_size(invalid); i++) {
        char bytes[64];
        size_t n = from_hex(json_string_value(json_array_get(invalid, i)), bytes);
        check_encode(o, t, "invalid", i, bytes, n, 0, json_array_get(replaced, i));
    }
    tokenizer_close(t);
    json_decref(doc);
    json_decref(strings);
}

static void ids_and_text_equal_the_reference_libraries(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT_OF(ORACLES); i++) {
        char path[512];
        if (vocab_path(path, sizeof path, &ORACLES[i])) {
            check_oracle(&ORACLES[i], path, false);
        } else if (!ORACLES[i].extra) {
            skip();
        } else {
            print_message("NOT RUN: %s (ATS_EXTRA_VOCABS names no folder)\n", ORACLES[i].name);
        }
    }
}

/* Qwen's own library normalises first; no small vocabulary has an oracle for it. */
static void ids_equal_with_nfc_where_the_reference_normalises(void **state) {
    (void)state;
    const struct oracle *o = &ORACLES[COUNT_OF(ORACLES) - 2];
    char path[512];
    assert_string_equal(o->name, "qwen");
    assert_true(vocab_path(path, sizeof path, o));
    check_oracle(o, path, true);
}

static struct tokenizer *open_shared(const char *relative, bool nfc) {
    char path[512];
    struct tokenizer *t;
    if (!test_shared_path(path, sizeof path, relative)) skip();
    gguf_vocab_open(path, nfc, &t);
    return t;
}

static size_t count_tokens(const struct tokenizer *t, const char *text) {
    struct token_list got = {0};
    TEST_OK(tokenizer_encode(t, text, strlen(text), 0, &got));
    size_t n = got.n;
    token_list_free(&got);
    return n;
}

static void nfc_makes_both_spellings_the_same_tokens(void **state) {
    (void)state;
    struct tokenizer *t = open_shared("models/qwen2/qwen2-f32.gguf", true);
    struct token_list a = {0}, b = {0};
    const char *composed = "caf\xC3\xA9 \xC3\x85", *apart = "cafe\xCC\x81 A\xCC\x8A";
    TEST_OK(tokenizer_encode(t, composed, strlen(composed), 0, &a));
    TEST_OK(tokenizer_encode(t, apart, strlen(apart), 0, &b));
    assert_int_equal(a.n, b.n);
    assert_memory_equal(a.ids, b.ids, a.n * sizeof *a.ids);
    token_list_free(&a);
    token_list_free(&b);
    tokenizer_close(t);
    t = open_shared("models/qwen2/qwen2-f32.gguf", false);
    assert_true(count_tokens(t, composed) != count_tokens(t, apart));
    tokenizer_close(t);
}

static void text_after_an_added_token_does_not_begin_a_word(void **state) {
    (void)state; /* R43 */
    struct tokenizer *t = open_shared("models/qwen2/qwen2-f32.gguf", false);
    struct token_list got = {0}, word = {0};
    TEST_OK(tokenizer_encode(t, "<think>the", 10, 0, &got));
    TEST_OK(tokenizer_encode(t, "the", 3, 0, &word));
    assert_int_equal(got.n, word.n + 1);
    assert_int_equal(got.ids[0], tokenizer_find(t, "<think>", 7));
    assert_memory_equal(got.ids + 1, word.ids, word.n * sizeof *word.ids);
    token_list_free(&got);
    token_list_free(&word);
    tokenizer_close(t);
}

static void bos_is_added_as_the_file_says(void **state) {
    (void)state;
    static const struct {
        const char *file;
        bool bos;
    } cases[] = {{"models/llama/llama-f16.gguf", true},
                 {"models/qwen2/qwen2-f32.gguf", false},
                 {"models/mistral/mistral-f32.gguf", true}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct tokenizer *t = open_shared(cases[i].file, false);
        struct token_list got = {0};
        TEST_OK(tokenizer_encode(t, "", 0, ENCODE_ADD_SPECIAL, &got));
        assert_int_equal(got.n, cases[i].bos);
        assert_int_equal(tokenizer_adds_bos(t), cases[i].bos);
        if (got.n) assert_int_equal(got.ids[0], tokenizer_role_id(t, ROLE_BOS));
        token_list_free(&got);
        tokenizer_close(t);
    }
}

static void check_ends(const char *file, const char *const *ends, const char *const *others) {
    struct tokenizer *t = open_shared(file, false);
    size_t n, n_ends = 0;
    tokenizer_end_ids(t, &n);
    for (; ends[n_ends]; n_ends++) {
        int32_t id = tokenizer_find(t, ends[n_ends], strlen(ends[n_ends]));
        if (!tokenizer_is_end(t, id)) fail_msg("%s: %s must end an answer", file, ends[n_ends]);
    }
    assert_int_equal(n, n_ends);
    for (; *others; others++) {
        int32_t id = tokenizer_find(t, *others, strlen(*others));
        assert_true(id >= 0);
        if (tokenizer_is_end(t, id)) fail_msg("%s: %s must not end an answer", file, *others);
    }
    tokenizer_close(t);
}

static void all_end_tokens_of_a_family_are_known(void **state) {
    (void)state; /* R46: not eos alone */
    check_ends("tokenizers/smollm2.vocab.gguf",
               (const char *[]){"<|endoftext|>", "<|im_end|>", "<reponame>", NULL},
               (const char *[]){"<|im_start|>", "the", NULL});
    check_ends("models/llama/llama-f16.gguf",
               (const char *[]){"<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", NULL},
               (const char *[]){"<|start_header_id|>", "<|begin_of_text|>", NULL});
    check_ends("models/gptoss/gptoss-f16.gguf",
               (const char *[]){"<|endoftext|>", "<|return|>", "<|call|>", NULL},
               (const char *[]){"<|end|>", "<|start|>", NULL});
    check_ends("models/glm4/glm4-f32.gguf", /* a tool's turn follows its call */
               (const char *[]){"<|endoftext|>", "<|user|>", "<|observation|>", NULL},
               (const char *[]){"<|assistant|>", "<sop>", NULL});
    check_ends("models/gemma3/gemma3-f16.gguf", (const char *[]){"<eos>", "<end_of_turn>", NULL},
               (const char *[]){"<start_of_turn>", "<bos>", NULL});
    check_ends("models/phi3/phi3-f32.gguf", (const char *[]){"<|endoftext|>", "<|end|>", NULL},
               (const char *[]){"</s>", "<|assistant|>", "<|user|>", NULL});
    check_ends("models/mistral/mistral-f32.gguf", (const char *[]){"</s>", NULL},
               (const char *[]){"[INST]", NULL});
}

static const char *const ENDLESS[] = {"a",
                                      "A",
                                      " ",
                                      ".",
                                      "\n",
                                      "7",
                                      "\t",
                                      "\xCC\x81",
                                      "\xF0\x9F\x99\x82",
                                      "'",
                                      "\xE6\xBC\xA2",
                                      "<",
                                      " a",
                                      "\r\n",
                                      "\xC2\xA0"};

/* R42. Quadratic work on a megabyte would take hours: the harness's timeout is the judge, and the
 * figure printed is what must stay under a second in a release build. All pre-tokenizers:
 * test_tokenizer_hostile.c. */
static void endless_words_take_no_quadratic_time(void **state) {
    (void)state;
    static const char *const files[] = {
        "tokenizers/smollm2.vocab.gguf",
        "tokenizers/mistral-v3.vocab.gguf",
        "models/gptoss/gptoss-f16.gguf",
    };
    const size_t n_bytes = TEST_SANITIZED ? 100000 : 1000000;
    char *text = malloc(n_bytes);
    for (size_t f = 0; f < COUNT_OF(files); f++) {
        struct tokenizer *t = open_shared(files[f], false);
        uint64_t worst_ns = 0;
        for (size_t k = 0; k < COUNT_OF(ENDLESS); k++) {
            struct token_list got = {0};
            struct buf back = {0};
            size_t unit = strlen(ENDLESS[k]), n = n_bytes / unit * unit;
            for (size_t i = 0; i < n; i++)
                text[i] = ENDLESS[k][i % unit];
            uint64_t start = clock_ns();
            TEST_OK(tokenizer_encode(t, text, n, 0, &got));
            worst_ns = max_i64((int64_t)worst_ns, (int64_t)(clock_ns() - start));
            detok_all(t, got.ids, got.n, DETOK_TEXT_START, &back);
            assert_int_equal(back.len, n);
            assert_memory_equal(back.data, text, n);
            token_list_free(&got);
            buf_free(&back);
        }
        print_message("%s: %zu bytes of one character: at most %.0f ms\n", files[f], n_bytes,
                      (double)worst_ns / 1e6);
        tokenizer_close(t);
    }
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_and_text_equal_the_reference_libraries),
        cmocka_unit_test(nfc_makes_both_spellings_the_same_tokens),
        cmocka_unit_test(text_after_an_added_token_does_not_begin_a_word),
        cmocka_unit_test(bos_is_added_as_the_file_says),
        cmocka_unit_test(all_end_tokens_of_a_family_are_known),
        cmocka_unit_test(endless_words_take_no_quadratic_time),
    };
    const struct CMUnitTest long_tests[] = {
        /* with ATS_EXTRA_VOCABS only: ./check --long */
        cmocka_unit_test(ids_equal_with_nfc_where_the_reference_normalises),
    };
    int n_failed = cmocka_run_group_tests_name("tokenizer", tests, NULL, NULL);
    if (getenv("ATS_EXTRA_VOCABS"))
        n_failed += cmocka_run_group_tests_name("large vocabularies", long_tests, NULL, NULL);
    return n_failed;
}
