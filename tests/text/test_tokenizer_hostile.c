/* Vocabularies of our own making: broken ones are refused, odd ones keep the rules. */
#include "vocab_maker.h"

#include "base/arena.h"
#include "base/buf.h"
#include "base/log.h"
#include "base/rng.h"
#include "base/utf8.h"
#include "text/tokenizer.h"

#include <math.h>
#include <pthread.h>

static void refused(const struct maker *m, ats_status status, const char *part) {
    struct tokenizer *t;
    TEST_STATUS(tokenizer_open(&m->spec, &t), status);
    assert_null(t);
    TEST_ERROR_HAS(part);
}

static void an_unknown_pre_tokenizer_is_refused_unless_forced(void **state) {
    (void)state; /* R44 */
    struct maker m;
    make_bpe(&m, "brand-new");
    refused(&m, ATS_UNSUPPORTED, "brand-new");
    m.spec.force = true;
    struct tokenizer *t = open_it(&m);
    assert_string_equal(tokenizer_pre_name(t), "default");
    tokenizer_close(t);
    m.spec.pre = "glm4";
    t = open_it(&m);
    assert_string_equal(tokenizer_pre_name(t), "glm4");
    tokenizer_close(t);
    maker_free(&m);
}

static int n_warnings;
static char last_warning[256];
static void count_warning(void *user, enum log_level level, const char *text) {
    (void)user;
    n_warnings += level == LOG_WARN;
    snprintf(last_warning, sizeof last_warning, "%s", text);
}

static void a_missing_pre_tokenizer_means_default_and_a_warning(void **state) {
    (void)state; /* R44 */
    struct maker m;
    make_bpe(&m, NULL);
    n_warnings = 0;
    log_set(count_warning, NULL, LOG_WARN);
    struct tokenizer *t = open_it(&m);
    log_set(NULL, NULL, LOG_WARN);
    assert_int_equal(n_warnings, 1);
    assert_string_equal(tokenizer_pre_name(t), "default");
    tokenizer_close(t);
    maker_free(&m);
    make_spm(&m); /* SPM has none to miss */
    t = open_it(&m);
    assert_string_equal(tokenizer_pre_name(t), "spm");
    tokenizer_close(t);
    maker_free(&m);
}

static void arrays_of_the_wrong_length_are_refused(void **state) {
    (void)state; /* R36 */
    struct maker m;
    make_spm(&m);
    m.spec.n_scores--;
    refused(&m, ATS_BAD_FILE, "256 token scores for 257 tokens");
    m.spec.n_scores = 0;
    refused(&m, ATS_BAD_FILE, "0 token scores");
    m.spec.n_scores = 257;
    m.spec.n_types = 0;
    refused(&m, ATS_BAD_FILE, "0 token types");
    m.spec.n_types = 257;
    m.spec.scores = NULL;
    refused(&m, ATS_BAD_FILE, "no scores");
    m.spec.n_tokens = 0;
    refused(&m, ATS_BAD_FILE, "no tokens");
    m.spec.n_tokens = SIZE_MAX;
    refused(&m, ATS_BAD_FILE, "too many");
    maker_free(&m);
    make_bpe(&m, "gpt-2");
    m.spec.merges = NULL;
    refused(&m, ATS_BAD_FILE, "no merges");
    maker_free(&m);
}

static void bad_scores_types_and_merges_are_refused(void **state) {
    (void)state;
    struct maker m;
    make_spm(&m);
    m.scores[7] = NAN;
    refused(&m, ATS_BAD_FILE, "score of token 7");
    m.scores[7] = INFINITY;
    tokenizer_close(open_it(&m));
    m.types[9] = 7;
    refused(&m, ATS_BAD_FILE, "token 9");
    m.types[9] = -1;
    refused(&m, ATS_BAD_FILE, "token 9");
    m.types[9] = 0; /* "undefined": some converters' normal */
    struct tokenizer *t = open_it(&m);
    assert_int_equal(tokenizer_type(t, 9), TOKEN_NORMAL);
    tokenizer_close(t);
    maker_free(&m);
    static const char *const merges[] = {"", "a", " ", "ab", "a ", " a"};
    for (size_t i = 0; i < COUNT_OF(merges); i++) {
        make_bpe(&m, "gpt-2");
        add_merge(&m, merges[i]);
        refused(&m, ATS_BAD_FILE, "merge 0");
        maker_free(&m);
    }
}

static void ids_beyond_the_vocabulary_are_refused(void **state) {
    (void)state; /* R35 */
    static const int64_t bad[] = {257, -2, INT64_MAX, INT64_MIN, (int64_t)1 << 32};
    struct maker m;
    for (int role = 0; role < N_TOKEN_ROLES; role++) {
        for (size_t i = 0; i < COUNT_OF(bad); i++) {
            make_spm(&m);
            m.spec.role_ids[role] = bad[i];
            refused(&m, ATS_BAD_FILE, tokenizer_role_key((enum token_role)role));
            maker_free(&m);
        }
    }
    make_spm(&m);
    m.spec.end_ids = bad;
    m.spec.n_end_ids = 1;
    refused(&m, ATS_BAD_FILE, "end token");
    maker_free(&m);
}

static void add_bos_without_an_id_is_refused(void **state) {
    (void)state; /* R35 */
    struct maker m;
    make_spm(&m);
    m.spec.add_bos = SPEC_YES;
    refused(&m, ATS_BAD_FILE, "bos_token_id");
    m.spec.add_bos = SPEC_UNSET; /* only by default: then there is none */
    struct tokenizer *t = open_it(&m);
    assert_false(tokenizer_adds_bos(t));
    tokenizer_close(t);
    m.spec.add_eos = SPEC_YES;
    refused(&m, ATS_BAD_FILE, "eos_token_id");
    m.spec.role_ids[ROLE_BOS] = 5;
    m.spec.role_ids[ROLE_EOS] = 6;
    t = open_it(&m);
    assert_string_equal(ids_of(t, "", ENCODE_ADD_SPECIAL), "5 6");
    assert_string_equal(ids_of(t, "", 0), "");
    tokenizer_close(t);
    maker_free(&m);
}

static void of_equal_tokens_the_first_id_wins_with_a_warning(void **state) {
    (void)state; /* R35 */
    struct maker m;
    make_bpe(&m, "llama-bpe");
    int32_t first = add_token(&m, "aa", TOKEN_NORMAL, 0);
    add_token(&m, "aa", TOKEN_NORMAL, 0);
    int32_t control = add_token(&m, "<x>", TOKEN_CONTROL, 0);
    add_token(&m, "<x>", TOKEN_CONTROL, 0);
    add_merge(&m, "a a");
    n_warnings = 0;
    log_set(count_warning, NULL, LOG_WARN);
    struct tokenizer *t = open_it(&m);
    log_set(NULL, NULL, LOG_WARN);
    assert_int_equal(n_warnings, 1);
    assert_non_null(strstr(last_warning, "257"));
    char want[64];
    snprintf(want, sizeof want, "%d %d", (int)first, (int)control);
    assert_string_equal(ids_of(t, "aa<x>", ENCODE_PARSE_SPECIAL), want);
    tokenizer_close(t);
    maker_free(&m);
}

static void merges_that_name_no_tokens_are_left_out(void **state) {
    (void)state;
    struct maker m;
    make_bpe(&m, "gpt-2");
    add_token(&m, "ab", TOKEN_NORMAL, 0);
    add_merge(&m, "x y");  /* no "xy" */
    add_merge(&m, "ab q"); /* no "abq" */
    add_merge(&m, "a b");
    n_warnings = 0;
    log_set(count_warning, NULL, LOG_WARN);
    struct tokenizer *t = open_it(&m);
    log_set(NULL, NULL, LOG_WARN);
    assert_int_equal(n_warnings, 1);
    assert_string_equal(ids_of(t, "abxy", 0), "256 120 121");
    tokenizer_close(t);
    maker_free(&m);
}

static void of_equal_merges_the_first_counts(void **state) {
    (void)state;
    struct maker m;
    make_bpe(&m, "gpt-2");
    add_token(&m, "ab", TOKEN_NORMAL, 0);
    add_token(&m, "bc", TOKEN_NORMAL, 0);
    add_merge(&m, "a b");
    add_merge(&m, "b c");
    add_merge(&m, "a b");
    struct tokenizer *t = open_it(&m);
    assert_string_equal(ids_of(t, "abc", 0), "256 99");
    tokenizer_close(t);
    maker_free(&m);
}

/* Two blocks of 8 bytes of which the first differs in its highest bit, the second so as to make up
 * for it: any choice among ten such pairs has the same hash. */
static void tokens_made_to_collide_are_refused(void **state) {
    (void)state;
    struct maker m;
    make_bpe(&m, "gpt-2");
    for (unsigned i = 0; i < 540; i++) {
        char text[161];
        memset(text, 'a', 160);
        text[160] = 0;
        for (int pair = 0; pair < 10; pair++) {
            if (!(i >> pair & 1)) continue;
            text[16 * pair + 7] = (char)('a' | 0x80);
            text[16 * pair + 8 + 3] = (char)('a' | 0x80);
            text[16 * pair + 8 + 7] = (char)('a' | 0x80);
        }
        add_token(&m, text, TOKEN_NORMAL, 0);
    }
    refused(&m, ATS_BAD_FILE, "collides with 512 others");
    maker_free(&m);
}

/* The table's own function, for 1024 slots. */
static uint32_t slot_of_merge(uint32_t left, uint32_t right) {
    uint64_t key = (uint64_t)left << 32 | right;
    key = (key ^ key >> 29) * 0x9E3779B97F4A7C15u;
    return (uint32_t)(key >> 32) & 1023;
}

static void merges_made_to_collide_are_refused(void **state) {
    (void)state;
    struct maker m;
    make_bpe(&m, "gpt-2");
    for (uint32_t pair = 0; pair < 65536 && m.spec.n_merges < 540; pair++) {
        uint32_t left = pair >> 8, right = pair & 255;
        if (slot_of_merge(left, right) >= 12) continue;
        char token[16], merge[16];
        snprintf(token, sizeof token, "%s%s", m.tokens[left].data, m.tokens[right].data);
        snprintf(merge, sizeof merge, "%s %s", m.tokens[left].data, m.tokens[right].data);
        add_token(&m, token, TOKEN_NORMAL, 0);
        add_merge(&m, merge);
    }
    assert_int_equal(m.spec.n_merges, 540);
    refused(&m, ATS_BAD_FILE, "collides with 512 others");
    maker_free(&m);
}

static void a_known_end_token_is_control_whatever_the_file_says(void **state) {
    (void)state;
    struct maker m;
    make_bpe(&m, "qwen2");
    int32_t end = add_token(&m, "<|im_end|>", TOKEN_USER_DEFINED, 0);
    int32_t think = add_token(&m, "<think>", TOKEN_USER_DEFINED, 0);
    int32_t word = add_token(&m, "<|eot_id|>", TOKEN_NORMAL, 0);
    struct tokenizer *t = open_it(&m);
    assert_int_equal(tokenizer_type(t, end), TOKEN_CONTROL);
    assert_true(tokenizer_is_end(t, end));
    assert_int_equal(tokenizer_type(t, think), TOKEN_USER_DEFINED);
    assert_false(tokenizer_is_end(t, think));
    assert_int_equal(tokenizer_type(t, word), TOKEN_NORMAL); /* the file says so */
    assert_false(tokenizer_is_end(t, word));
    assert_string_equal(ids_of(t, "<think>", 0), "257");
    assert_string_equal(ids_of(t, "<|im_end|>", ENCODE_PARSE_SPECIAL), "256");
    assert_true(strlen(ids_of(t, "<|im_end|>", 0)) > 10);
    tokenizer_close(t);
    m.spec.types = NULL; /* a file without types: by name alone */
    t = open_it(&m);
    assert_true(tokenizer_is_end(t, end) && tokenizer_is_end(t, word));
    tokenizer_close(t);
    int64_t more[] = {65, 65, 3};
    m.spec.types = m.types;
    m.spec.end_ids = more;
    m.spec.n_end_ids = 3;
    t = open_it(&m);
    size_t n;
    const int32_t *ends = tokenizer_end_ids(t, &n);
    assert_int_equal(n, 3);
    assert_true(ends[0] == 3 && ends[1] == 65 && ends[2] == end);
    tokenizer_close(t);
    maker_free(&m);
}

static void spm_falls_back_to_bytes_then_to_unk(void **state) {
    (void)state;
    struct maker m;
    make_spm(&m);
    add_token(&m, "a", TOKEN_NORMAL, -1);            /* 257 */
    add_token(&m, "\xE2\x96\x81", TOKEN_NORMAL, -2); /* 258 */
    struct tokenizer *t = open_it(&m);
    assert_string_equal(ids_of(t, "a \xC3\xA9", 0), "257 258 196 170");
    tokenizer_close(t);
    m.types[1 + 0xA9] = TOKEN_UNUSED; /* no byte token A9 */
    t = open_it(&m);
    assert_string_equal(ids_of(t, "a\xC3\xA9", 0), "257 0");
    tokenizer_close(t);
    m.spec.role_ids[ROLE_UNK] = -1;
    t = open_it(&m);
    assert_string_equal(ids_of(t, "a\xC3\xA9", 0), "257");
    tokenizer_close(t);
    m.types[258] = TOKEN_CONTROL; /* no space: the bytes of U+2581, as SentencePiece does */
    t = open_it(&m);
    assert_string_equal(ids_of(t, " ", 0), "227 151 130");
    tokenizer_close(t);
    maker_free(&m);
}

static void bpe_leaves_out_bytes_without_a_token(void **state) {
    (void)state;
    struct maker m;
    make_bpe(&m, "gpt-2");
    m.types['b'] = TOKEN_CONTROL;
    m.spec.role_ids[ROLE_UNK] = 'b'; /* a control token: not to come from text */
    struct tokenizer *t = open_it(&m);
    assert_string_equal(ids_of(t, "abc", 0), "97 99");
    tokenizer_close(t);
    maker_free(&m);
}

/* Merging as the definition says: of all neighbours the best, the leftmost of equals; quadratic. */
static size_t merge_slowly(const struct maker *m, int32_t *ids, size_t n, size_t n_base) {
    for (;;) {
        size_t best_at = n;
        int32_t best = -1;
        for (size_t i = 0; i + 1 < n; i++) {
            char text[64];
            int len = snprintf(text, sizeof text, "%s%s", m->tokens[ids[i]].data,
                               m->tokens[ids[i + 1]].data);
            for (size_t id = n_base; id < m->spec.n_tokens; id++) {
                if (m->tokens[id].len != (size_t)len || strcmp(m->tokens[id].data, text) != 0) {
                    continue;
                }
                if (best < 0 || m->scores[id] > m->scores[best]) {
                    best = (int32_t)id;
                    best_at = i;
                }
                break;
            }
        }
        if (best < 0) return n;
        ids[best_at] = best;
        memmove(&ids[best_at + 1], &ids[best_at + 2], (n - best_at - 2) * sizeof *ids);
        n--;
    }
}

static void spm_merges_the_best_scores_first_leftmost_of_equals(void **state) {
    (void)state;
    struct rng rng;
    rng_seed(&rng, 7);
    for (int round = 0; round < 200; round++) {
        struct maker m;
        make_spm(&m);
        size_t n_base = m.spec.n_tokens;
        for (const char *c = "abc"; *c; c++) {
            add_token(&m, (char[]){*c, 0}, TOKEN_NORMAL, -100);
        }
        for (int i = 0; i < 12; i++) { /* scores of few values: ties */
            char text[8];
            uint32_t len = 2 + rng_below(&rng, 4);
            for (uint32_t k = 0; k < len; k++)
                text[k] = (char)('a' + rng_below(&rng, 3));
            text[len] = 0;
            add_token(&m, text, TOKEN_NORMAL, 2 - (float)rng_below(&rng, 4));
        }
        struct tokenizer *t = open_it(&m);
        for (int k = 0; k < 20; k++) {
            char text[40];
            int32_t ids[40];
            size_t n = 1 + rng_below(&rng, 30);
            for (size_t i = 0; i < n; i++) {
                text[i] = (char)('a' + rng_below(&rng, 3));
                ids[i] = (int32_t)n_base + text[i] - 'a';
            }
            struct token_list got = {0};
            TEST_OK(tokenizer_encode(t, text, n, 0, &got));
            size_t n_want = merge_slowly(&m, ids, n, n_base);
            assert_int_equal(got.n, n_want);
            assert_memory_equal(got.ids, ids, n_want * sizeof *ids);
            token_list_free(&got);
        }
        tokenizer_close(t);
        maker_free(&m);
    }
}

static void bytes_that_are_no_text_count_as_replacement_characters(void **state) {
    (void)state;
    struct maker m;
    struct rng rng;
    make_bpe(&m, "gpt-4o");
    struct tokenizer *t = open_it(&m);
    rng_seed(&rng, 3);
    for (int round = 0; round < 2000; round++) {
        static const char pieces[][4] = {"a",    " ",        "\xF0\x9F", "\xFF",
                                         "\x80", "\xE2\x82", "\xED\xA0"};
        char text[64] = "";
        struct buf replaced = {0};
        struct token_list a = {0}, b = {0};
        for (int i = 0; i < 12; i++)
            strcat(text, pieces[rng_below(&rng, COUNT_OF(pieces))]);
        utf8_add_replaced(&replaced, text, strlen(text));
        TEST_OK(tokenizer_encode(t, text, strlen(text), 0, &a));
        TEST_OK(tokenizer_encode(t, replaced.data, replaced.len, 0, &b));
        assert_int_equal(a.n, b.n);
        assert_memory_equal(a.ids, b.ids, a.n * sizeof *a.ids);
        token_list_free(&a);
        token_list_free(&b);
        buf_free(&replaced);
    }
    tokenizer_close(t);
    maker_free(&m);
}

static void a_text_that_is_too_long_is_refused(void **state) {
    (void)state;
    struct maker m;
    struct token_list got = {0};
    make_bpe(&m, "gpt-2");
    struct tokenizer *t = open_it(&m);
    token_list_add(&got, 7);
    TEST_STATUS(tokenizer_encode(t, "x", (size_t)64 << 20, 0, &got), ATS_BAD_INPUT);
    assert_int_equal(got.n, 1);
    assert_int_equal(got.ids[0], 7);
    token_list_free(&got);
    assert_int_equal(tokenizer_piece(t, -1).len, 0);
    assert_int_equal(tokenizer_piece(t, 256).len, 0);
    assert_int_equal(tokenizer_type(t, 256), TOKEN_UNUSED);
    assert_true(tokenizer_is_control(t, 256));
    assert_false(tokenizer_is_end(t, -1));
    tokenizer_close(t);
    tokenizer_close(NULL);
    maker_free(&m);
}

struct endless_job {
    const struct tokenizer *t;
    const char *text;
    size_t n;
    struct token_list got;
    ats_status status;
};

static void *run_endless(void *arg) {
    struct endless_job *job = arg;
    job->status = tokenizer_encode(job->t, job->text, job->n, ENCODE_PARSE_SPECIAL, &job->got);
    return NULL;
}

/* R42: each class of character, each pre-tokenizer, a thread with a stack of 256 KiB. Recursion or
 * quadratic time would show as a crash or in the harness's timeout. */
static void endless_words_need_no_stack(void **state) {
    (void)state;
    static const char *const pres[] = {
        "gpt-2",       "smollm",  "llama-bpe",      "qwen2",      "qwen35",   "gpt-4o", "tekken",
        "deepseek-v3", "default", "deepseek-coder", "seed-coder", "minicpm5", NULL};
    static const char *const units[] = {
        "a",  "A", " ", ".", "\n", "7", "\xCC\x81", "\xF0\x9F\x99\x82", "<", "\xE6\xBC\xA2",
        "'s", "aA"};
    const size_t n_bytes = TEST_SANITIZED ? 50000 : 200000;
    char *text = malloc(n_bytes);
    pthread_attr_t attr;
    assert_int_equal(pthread_attr_init(&attr), 0);
    assert_int_equal(pthread_attr_setstacksize(&attr, 256 * 1024), 0);
    for (size_t p = 0; p < COUNT_OF(pres); p++) {
        struct maker m;
        if (pres[p]) make_bpe(&m, pres[p]);
        if (!pres[p]) make_spm(&m);
        add_token(&m, "aa", TOKEN_NORMAL, 1);
        add_token(&m, "aaaa", TOKEN_NORMAL, 2);
        add_token(&m, "a", TOKEN_NORMAL, 0);
        add_token(&m, "\xE2\x96\x81", TOKEN_NORMAL, 0);
        add_token(&m, "<<<<<<<<<<<<<<<<<<<<<<<<<<<<<<<<<<<<<<<<<<<<<<<<<<<<<>", TOKEN_CONTROL, 0);
        add_merge(&m, "a a");
        add_merge(&m, "aa aa");
        struct tokenizer *t = open_it(&m);
        for (size_t u = 0; u < COUNT_OF(units); u++) {
            size_t unit = strlen(units[u]);
            struct endless_job job = {.t = t, .text = text, .n = n_bytes / unit * unit};
            pthread_t thread;
            for (size_t i = 0; i < job.n; i++)
                text[i] = units[u][i % unit];
            assert_int_equal(pthread_create(&thread, &attr, run_endless, &job), 0);
            assert_int_equal(pthread_join(thread, NULL), 0);
            TEST_OK(job.status);
            size_t back = 0;
            for (size_t i = 0; i < job.got.n; i++)
                back += tokenizer_piece(t, job.got.ids[i]).len;
            assert_int_equal(back, job.n);
            token_list_free(&job.got);
        }
        tokenizer_close(t);
        maker_free(&m);
    }
    pthread_attr_destroy(&attr);
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_unknown_pre_tokenizer_is_refused_unless_forced),
        cmocka_unit_test(a_missing_pre_tokenizer_means_default_and_a_warning),
        cmocka_unit_test(arrays_of_the_wrong_length_are_refused),
        cmocka_unit_test(bad_scores_types_and_merges_are_refused),
        cmocka_unit_test(ids_beyond_the_vocabulary_are_refused),
        cmocka_unit_test(add_bos_without_an_id_is_refused),
        cmocka_unit_test(of_equal_tokens_the_first_id_wins_with_a_warning),
        cmocka_unit_test(merges_that_name_no_tokens_are_left_out),
        cmocka_unit_test(of_equal_merges_the_first_counts),
        cmocka_unit_test(tokens_made_to_collide_are_refused),
        cmocka_unit_test(merges_made_to_collide_are_refused),
        cmocka_unit_test(a_known_end_token_is_control_whatever_the_file_says),
        cmocka_unit_test(spm_falls_back_to_bytes_then_to_unk),
        cmocka_unit_test(bpe_leaves_out_bytes_without_a_token),
        cmocka_unit_test(spm_merges_the_best_scores_first_leftmost_of_equals),
        cmocka_unit_test(bytes_that_are_no_text_count_as_replacement_characters),
        cmocka_unit_test(a_text_that_is_too_long_is_refused),
        cmocka_unit_test(endless_words_need_no_stack),
    };
    return cmocka_run_group_tests_name("tokenizer_hostile", tests, NULL, NULL);
}
