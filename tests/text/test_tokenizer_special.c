/* Tokens that are looked for in the text as they stand: which ones, where, and in linear time. */
#include "vocab_maker.h"

#include "base/log.h"
#include "base/rng.h"

#include <stdlib.h>

static int n_warnings;
static void count_warning(void *user, enum log_level level, const char *text) {
    (void)user, (void)text;
    n_warnings += level == LOG_WARN;
}

static void special_tokens_beyond_reason_are_not_looked_for(void **state) {
    (void)state;
    struct maker m;
    char text[258];
    make_bpe(&m, "gpt-2");
    memset(text, '<', sizeof text);
    text[256] = 0;
    int32_t id = add_token(&m, text, TOKEN_CONTROL, 0);
    text[256] = '<', text[257] = 0;
    add_token(&m, text, TOKEN_CONTROL, 0);
    n_warnings = 0;
    log_set(count_warning, NULL, LOG_WARN);
    struct tokenizer *t = open_it(&m);
    log_set(NULL, NULL, LOG_WARN);
    assert_int_equal(n_warnings, 1);
    struct token_list got = {0};
    TEST_OK(tokenizer_encode(t, text, 257, ENCODE_PARSE_SPECIAL, &got));
    assert_int_equal(got.n, 2); /* the shorter one, and a '<' */
    assert_int_equal(got.ids[0], id);
    token_list_free(&got);
    tokenizer_close(t);
    maker_free(&m);
}

/* All different from the end on, so that the automaton is as large as it may be. */
static void of_too_many_special_tokens_the_first_are_looked_for(void **state) {
    (void)state;
    enum { N = 20000, N_BYTES = 250, N_KEPT = (4 << 20) / N_BYTES };
    struct tokenizer_spec spec;
    tokenizer_spec_init(&spec);
    char *names = malloc((size_t)N * (N_BYTES + 1));
    struct text_span *tokens = malloc(N * sizeof *tokens);
    int32_t *types = malloc(N * sizeof *types);
    for (int i = 0; i < N; i++) {
        char *name = names + (size_t)i * (N_BYTES + 1);
        snprintf(name, N_BYTES + 1, "%0*d", N_BYTES, i);
        tokens[i] = (struct text_span){name, N_BYTES};
        types[i] = TOKEN_CONTROL;
    }
    spec.pre = "gpt-2";
    spec.tokens = spec.merges = tokens;
    spec.types = types;
    spec.n_tokens = spec.n_types = N;
    struct tokenizer *t;
    n_warnings = 0;
    log_set(count_warning, NULL, LOG_WARN);
    TEST_OK(tokenizer_open(&spec, &t));
    log_set(NULL, NULL, LOG_WARN);
    assert_int_equal(n_warnings, 1);
    assert_string_equal(ids_of(t, tokens[0].data, ENCODE_PARSE_SPECIAL), "0");
    char last[16];
    snprintf(last, sizeof last, "%d", N_KEPT - 1);
    assert_string_equal(ids_of(t, tokens[N_KEPT - 1].data, ENCODE_PARSE_SPECIAL), last);
    assert_string_equal(ids_of(t, tokens[N_KEPT].data, ENCODE_PARSE_SPECIAL), "");
    tokenizer_close(t);
    free(names);
    free(tokens);
    free(types);
}

static void control_tokens_never_come_from_plain_text(void **state) {
    (void)state;
    struct maker m;
    make_bpe(&m, "llama-bpe"); /* ignore_merges: a word that is a token */
    int32_t id = add_token(&m, "STOP", TOKEN_CONTROL, 0);
    add_token(&m, "ST", TOKEN_NORMAL, 0);
    add_token(&m, "OP", TOKEN_NORMAL, 0);
    add_merge(&m, "S T");
    add_merge(&m, "O P");
    add_merge(&m, "ST OP");
    struct tokenizer *t = open_it(&m);
    assert_string_equal(ids_of(t, "STOP", 0), "257 258");
    assert_string_equal(ids_of(t, "STOP", ENCODE_PARSE_SPECIAL), "256");
    assert_true(tokenizer_is_control(t, id));
    tokenizer_close(t);
    maker_free(&m);
    make_spm(&m);
    add_token(&m, "S", TOKEN_NORMAL, -1);
    add_token(&m, "T", TOKEN_NORMAL, -1);
    add_token(&m, "ST", TOKEN_CONTROL, 0);
    t = open_it(&m);
    assert_string_equal(ids_of(t, "ST", 0), "257 258");
    assert_string_equal(ids_of(t, "<unk>", 0), "61 118 111 108 63"); /* byte by byte */
    assert_string_equal(ids_of(t, "<0x41>", ENCODE_PARSE_SPECIAL), "61 49 121 53 50 63");
    assert_string_equal(ids_of(t, "<unk>", ENCODE_PARSE_SPECIAL), "0");
    tokenizer_close(t);
    maker_free(&m);
}

static void of_special_tokens_the_leftmost_and_longest_wins(void **state) {
    (void)state;
    struct maker m;
    make_bpe(&m, "gpt-2");
    add_token(&m, "<a", TOKEN_USER_DEFINED, 0);   /* 256 */
    add_token(&m, "<a><b>", TOKEN_CONTROL, 0);    /* 257 */
    add_token(&m, "<a>", TOKEN_CONTROL, 0);       /* 258 */
    add_token(&m, "a><b", TOKEN_USER_DEFINED, 0); /* 259 */
    add_token(&m, "<<<<<<<<", TOKEN_CONTROL, 0);  /* 260 */
    add_token(&m, "\xF0\x9F", TOKEN_CONTROL, 0);  /* 261: half a character */
    struct tokenizer *t = open_it(&m);
    unsigned parse = ENCODE_PARSE_SPECIAL;
    assert_string_equal(ids_of(t, "<a><b>", parse), "257");
    assert_string_equal(ids_of(t, "<a><b>", 0), "256 62 60 98 62");
    assert_string_equal(ids_of(t, "<a><c", parse), "258 60 99");
    assert_string_equal(ids_of(t, "xa><b<a", parse), "120 259 256");
    assert_string_equal(ids_of(t, "<a", parse), "256");
    assert_string_equal(ids_of(t, "<", parse), "60");
    assert_string_equal(ids_of(t, "<<<<<<<", parse), "60 60 60 60 60 60 60");
    assert_string_equal(ids_of(t, "<<<<<<<<<", parse), "260 60");
    assert_string_equal(ids_of(t, "", parse), "");
    assert_string_equal(ids_of(t, "\xC3\xA9", parse), "195 169");
    assert_int_equal(tokenizer_find(t, "<a><b>", 6), 257);
    assert_int_equal(tokenizer_find(t, "<a><b", 5), -1);
    assert_int_equal(tokenizer_find(t, "a", 1), 'a');
    tokenizer_close(t);
    maker_free(&m);
}

/* The longest special token at the start of text[0..n), by looking at each; -1: none. */
static int32_t longest_of_all(const struct maker *m, const char *text, size_t n, bool control) {
    int32_t best = -1;
    for (size_t id = 256; id < m->spec.n_tokens; id++) {
        size_t len = m->tokens[id].len;
        if (len > n || (best >= 0 && len <= m->tokens[best].len)) continue;
        if (!control && m->types[id] != TOKEN_USER_DEFINED) continue;
        if (memcmp(m->tokens[id].data, text, len) == 0) best = (int32_t)id;
    }
    return best;
}

static void check_by_looking_at_each(const struct maker *m, const struct tokenizer *t,
                                     const char *text, size_t n) {
    for (int control = 0; control < 2; control++) {
        struct token_list got = {0};
        size_t at = 0, i = 0;
        TEST_OK(tokenizer_encode(t, text, n, control ? ENCODE_PARSE_SPECIAL : 0, &got));
        for (; at < n && i < got.n; i++) {
            int32_t id = longest_of_all(m, text + at, n - at, control);
            assert_int_equal(got.ids[i], id >= 0 ? id : (int32_t)(unsigned char)text[at]);
            at += id >= 0 ? m->tokens[id].len : 1;
        }
        assert_true(at == n && i == got.n);
        token_list_free(&got);
    }
}

static bool is_there(const struct maker *m, const char *text) {
    for (size_t id = 256; id < m->spec.n_tokens; id++)
        if (strcmp(m->tokens[id].data, text) == 0) return true;
    return false;
}

/* Tokens of few characters, of which many begin, end or go on alike; a text longer than what is
 * looked through at once, with long tokens across its borders. */
static void random_special_tokens_are_found_as_by_looking_at_each(void **state) {
    (void)state;
    struct rng rng;
    static char text[150000];
    rng_seed(&rng, 11);
    for (int round = 0; round < (TEST_SANITIZED ? 60 : 300); round++) {
        struct maker m;
        make_bpe(&m, "gpt-2");
        uint32_t n_chars = 1 + rng_below(&rng, 3), n_tokens = 1 + rng_below(&rng, 20);
        for (uint32_t i = 0; i < n_tokens; i++) {
            uint32_t len = 1 + rng_below(&rng, round % 10 ? 6 : 256);
            for (uint32_t k = 0; k < len; k++) /* long ones of one character, but for the ends */
                text[k] = (char)('a' + (k < 3 || k + 3 >= len ? rng_below(&rng, n_chars) : 0));
            text[len] = 0;
            bool control = rng_below(&rng, 2);
            if (!is_there(&m, text)) /* the first id of equal ones wins, whatever its type */
                add_token(&m, text, control ? TOKEN_CONTROL : TOKEN_USER_DEFINED, 0);
        }
        struct tokenizer *t = open_it(&m);
        size_t n = round % 50 ? rng_below(&rng, 400) : sizeof text;
        for (size_t i = 0; i < n; i++)
            text[i] = (char)('a' + (rng_below(&rng, 40) && n > 400 ? 0 : rng_below(&rng, n_chars)));
        check_by_looking_at_each(&m, t, text, n);
        tokenizer_close(t);
        maker_free(&m);
    }
}

/* 500 tokens that begin with the same 250 bytes, and a text that begins like them at each place:
 * to follow each beginning to where it fails takes longer than the harness waits. */
static void special_tokens_that_begin_alike_take_linear_time(void **state) {
    (void)state;
    const size_t n_same = 250, line = 2500, n = line * (TEST_SANITIZED ? 400 : 8000);
    struct maker m;
    char name[256];
    make_bpe(&m, "gpt-2");
    memset(name, 'a', n_same);
    for (int i = 0; i < 500; i++) {
        snprintf(name + n_same, sizeof name - n_same, "%d", 1000 + i);
        add_token(&m, name, TOKEN_CONTROL, 0);
    }
    int32_t end = add_token(&m, "\n", TOKEN_USER_DEFINED, 0);
    struct tokenizer *t = open_it(&m);
    char *text = malloc(n);
    for (size_t i = 0; i < n; i++)
        text[i] = i % line == line - 1 ? '\n' : 'a';
    struct token_list got = {0};
    TEST_OK(tokenizer_encode(t, text, n, ENCODE_PARSE_SPECIAL, &got));
    assert_int_equal(got.n, n);
    for (size_t i = 0; i < n; i++)
        assert_true(got.ids[i] == (i % line == line - 1 ? end : 'a'));
    token_list_free(&got);
    free(text);
    tokenizer_close(t);
    maker_free(&m);
}

/* The rest of the character after a special token that ends inside it is text all the same. */
static void a_special_token_of_half_a_character_does_no_harm(void **state) {
    (void)state;
    struct maker m;
    make_bpe(&m, "llama-bpe");
    add_token(&m, "\xF0\x9F", TOKEN_CONTROL, 0);
    struct tokenizer *t = open_it(&m);
    assert_string_equal(ids_of(t, "\xF0\x9F\x99\x82x", ENCODE_PARSE_SPECIAL),
                        "240 159 153 130 120");
    tokenizer_close(t);
    maker_free(&m);
}

static void the_space_prefix_stands_at_the_start_and_after_control_tokens(void **state) {
    (void)state; /* R43 */
    struct maker m;
    make_spm(&m);
    add_token(&m, "a", TOKEN_NORMAL, -1);            /* 257 */
    add_token(&m, "\xE2\x96\x81", TOKEN_NORMAL, -2); /* 258 */
    add_token(&m,
              "\xE2\x96\x81"
              "a",
              TOKEN_NORMAL, -1);                 /* 259 */
    add_token(&m, "<c>", TOKEN_CONTROL, 0);      /* 260 */
    add_token(&m, "<u>", TOKEN_USER_DEFINED, 0); /* 261 */
    m.spec.add_space_prefix = SPEC_UNSET;
    struct tokenizer *t = open_it(&m);
    assert_true(tokenizer_adds_space_prefix(t));
    assert_string_equal(ids_of(t, "a", 0), "259");
    assert_string_equal(ids_of(t, " a", 0), "258 259");
    assert_string_equal(ids_of(t, "<c>a<u>a", ENCODE_PARSE_SPECIAL), "260 259 261 257");
    assert_string_equal(ids_of(t, "", 0), "");
    tokenizer_close(t);
    m.spec.special_rstrip = true;
    t = open_it(&m);
    assert_string_equal(ids_of(t, "<c> \n a<c>\n", ENCODE_PARSE_SPECIAL), "260 259 260");
    assert_string_equal(ids_of(t, "<unk> a", ENCODE_PARSE_SPECIAL), "0 258 259");
    tokenizer_close(t);
    m.spec.role_ids[ROLE_BOS] = 260;
    t = open_it(&m);
    assert_string_equal(ids_of(t, "<c> a", ENCODE_PARSE_SPECIAL), "260 258 259");
    tokenizer_close(t);
    maker_free(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(special_tokens_beyond_reason_are_not_looked_for),
        cmocka_unit_test(of_too_many_special_tokens_the_first_are_looked_for),
        cmocka_unit_test(control_tokens_never_come_from_plain_text),
        cmocka_unit_test(of_special_tokens_the_leftmost_and_longest_wins),
        cmocka_unit_test(random_special_tokens_are_found_as_by_looking_at_each),
        cmocka_unit_test(special_tokens_that_begin_alike_take_linear_time),
        cmocka_unit_test(a_special_token_of_half_a_character_does_no_harm),
        cmocka_unit_test(the_space_prefix_stands_at_the_start_and_after_control_tokens),
    };
    return cmocka_run_group_tests_name("tokenizer_special", tests, NULL, NULL);
}
