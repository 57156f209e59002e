/* Nothing is shared between engines: two models in one process, in turn and at once, give what each
 * gives alone. */
#include "agree.h"

#include <pthread.h>

enum { N_TOKENS = 60, N_VOCAB = 640 };
static const char *const models[2] = {"models/llama/llama-f16.gguf", "models/quants/Q4_K_M.gguf"};

struct side {
    char path[512];
    int which;
    ats_engine *e;
    ats_session *s;
    int32_t ids[N_TOKENS];
    float *want; /* (N_TOKENS, N_VOCAB) alone */
    float *got;
    ats_status status;
};

static void check_ok(ats_status status) {
    if (status != ATS_OK) fail_msg("%s: %s", ats_status_text(status), ats_error_text());
}

static ats_status side_open(struct side *a) {
    ats_options o;
    ats_options_default(&o);
    o.model = a->path;
    o.n_ctx = 128;
    o.n_batch = 16;
    o.n_threads = o.n_threads_batch = 2;
    if (a->which == 1) o.devices = "cpu,cpu";
    ats_status status = ats_engine_open(&o, &a->e);
    if (status == ATS_OK) status = ats_session_open(a->e, &a->s);
    return status;
}

static void side_close(struct side *a) {
    ats_session_close(a->s);
    ats_engine_close(a->e);
    a->s = NULL, a->e = NULL;
}

/* Tokens [begin, end) appended, their logits into out. */
static ats_status side_feed(struct side *a, int begin, int end, float *out) {
    ats_run run = {a->s, a->ids + begin, (size_t)(end - begin), ATS_WANT_ALL,
                   out + (size_t)begin * N_VOCAB};
    return ats_eval(a->e, &run, 1);
}

/* Both sides, each with its logits alone; false where oracles are left out. */
static bool sides_open(struct side side[2]) {
    memset(side, 0, 2 * sizeof *side);
    for (int i = 0; i < 2; i++) {
        if (!test_shared_path(side[i].path, sizeof side[i].path, models[i])) return false;
        side[i].which = i;
        side[i].want = calloc(N_TOKENS * N_VOCAB, sizeof(float));
        side[i].got = calloc(N_TOKENS * N_VOCAB, sizeof(float));
        for (int j = 0; j < N_TOKENS; j++)
            side[i].ids[j] = (j * (41 + i) + 3) % 620;
        check_ok(side_open(&side[i]));
        check_ok(side_feed(&side[i], 0, N_TOKENS, side[i].want));
        side_close(&side[i]);
    }
    return true;
}

static void sides_check(struct side side[2]) {
    for (int i = 0; i < 2; i++) {
        assert_memory_equal(side[i].got, side[i].want, N_TOKENS * N_VOCAB * sizeof(float));
        memset(side[i].got, 0, N_TOKENS * N_VOCAB * sizeof(float));
    }
}

static void sides_free(struct side side[2]) {
    for (int i = 0; i < 2; i++)
        free(side[i].want), free(side[i].got);
}

static void engines_in_turn_are_as_alone(void **state) {
    (void)state;
    struct side side[2];
    if (!sides_open(side)) skip();
    check_ok(side_open(&side[0]));
    check_ok(side_open(&side[1]));
    for (int at = 0; at < N_TOKENS; at += 5) /* pieces of 5, one of each in turn */
        for (int i = 0; i < 2; i++)
            check_ok(side_feed(&side[i], at, at + 5, side[i].got));
    sides_check(side);
    side_close(&side[0]);
    check_ok(side_open(&side[0])); /* while the other lives */
    check_ok(side_feed(&side[0], 0, N_TOKENS, side[0].got));
    assert_memory_equal(side[0].got, side[0].want, N_TOKENS * N_VOCAB * sizeof(float));
    side_close(&side[1]);
    side_close(&side[0]);
    sides_free(side);
}

/* Opens, evaluates and closes, several times; also fails, which must not reach the other thread. */
static void *live(void *arg) {
    struct side *a = arg;
    for (int turn = 0; turn < 4 && a->status == ATS_OK; turn++) {
        a->status = side_open(a);
        for (int at = 0; a->status == ATS_OK && at < N_TOKENS; at += 6)
            a->status = side_feed(a, at, at + 6, a->got);
        if (a->status == ATS_OK) {
            ats_run bad = {a->s, (int32_t[]){1000 + a->which}, 1, ATS_WANT_LAST, NULL};
            char text[16];
            snprintf(text, sizeof text, "%d", 1000 + a->which);
            if (ats_eval(a->e, &bad, 1) != ATS_BAD_ARGUMENT || !strstr(ats_error_text(), text))
                a->status = ATS_FAILED;
        }
        if (memcmp(a->got, a->want, N_TOKENS * N_VOCAB * sizeof(float)) != 0)
            a->status = ATS_FAILED;
        side_close(a);
    }
    return NULL;
}

static void engines_in_two_threads_are_as_alone(void **state) {
    (void)state;
    struct side side[2];
    pthread_t thread[2];
    if (!sides_open(side)) skip();
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, live, &side[i]), 0);
    for (int i = 0; i < 2; i++)
        pthread_join(thread[i], NULL);
    for (int i = 0; i < 2; i++)
        assert_int_equal(side[i].status, ATS_OK);
    sides_check(side);
    sides_free(side);
}

/* A vocabulary may be read by any number of threads while its engine evaluates. */
static void *read_text(void *arg) {
    struct side *a = arg;
    static const char text[] = "The quick brown fox, 12345 <|eot_id|> \xe2\x82\xac";
    for (int i = 0; i < 300 && a->status == ATS_OK; i++) {
        int32_t *ids = NULL;
        char *back = NULL;
        size_t n, n_bytes;
        a->status = ats_tokenize(a->e, text, strlen(text), 0, &ids, &n);
        if (a->status == ATS_OK) a->status = ats_detokenize(a->e, ids, n, false, &back, &n_bytes);
        if (a->status == ATS_OK && strcmp(back, text) != 0) a->status = ATS_FAILED;
        ats_free(ids);
        ats_free(back);
    }
    return NULL;
}

static void text_may_be_read_while_an_engine_works(void **state) {
    (void)state;
    struct side side[2];
    pthread_t thread[2];
    if (!sides_open(side)) skip();
    check_ok(side_open(&side[0]));
    struct side readers[2] = {side[0], side[0]};
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, read_text, &readers[i]), 0);
    check_ok(side_feed(&side[0], 0, N_TOKENS, side[0].got));
    for (int i = 0; i < 2; i++) {
        pthread_join(thread[i], NULL);
        assert_int_equal(readers[i].status, ATS_OK);
    }
    assert_memory_equal(side[0].got, side[0].want, N_TOKENS * N_VOCAB * sizeof(float));
    side_close(&side[0]);
    sides_free(side);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(engines_in_turn_are_as_alone),
        cmocka_unit_test(engines_in_two_threads_are_as_alone),
        cmocka_unit_test(text_may_be_read_while_an_engine_works),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
