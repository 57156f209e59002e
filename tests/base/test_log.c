#include "support.h"

#include "base/log.h"
#include "base/threads.h"

struct sink {
    atomic_int n;
    enum log_level level;
    char text[64];
};

static void take(void *user, enum log_level level, const char *text) {
    struct sink *s = user;
    if (atomic_fetch_add(&s->n, 1) > 0) return; /* keeps the first, so that threads do not race */
    s->level = level;
    snprintf(s->text, sizeof s->text, "%s", text);
}

static void messages_up_to_the_level_reach_the_sink(void **state) {
    (void)state;
    struct sink s = {0};
    log_msg(LOG_ERROR, "before: nobody hears");
    assert_false(log_wanted(LOG_ERROR));
    log_set(take, &s, LOG_WARN);
    assert_true(log_wanted(LOG_ERROR) && log_wanted(LOG_WARN) && !log_wanted(LOG_INFO));
    log_msg(LOG_INFO, "not wanted");
    assert_int_equal(s.n, 0);
    log_msg(LOG_WARN, "value %d", 5);
    assert_int_equal(s.n, 1);
    assert_int_equal(s.level, LOG_WARN);
    assert_string_equal(s.text, "value 5");
    log_set(NULL, NULL, LOG_DEBUG);
    log_msg(LOG_ERROR, "after");
    assert_int_equal(s.n, 1);
}

static void log_some(void *arg, int thread_index, int n_threads) {
    (void)arg;
    for (int i = 0; i < 100; i++)
        log_msg(LOG_INFO, "%d of %d", thread_index, n_threads);
}

static void any_thread_may_log(void **state) {
    (void)state;
    struct sink s = {0};
    struct thread_pool *pool;
    TEST_OK(thread_pool_open(3, &pool));
    log_set(take, &s, LOG_INFO);
    thread_pool_run(pool, 3, log_some, NULL);
    thread_pool_close(pool);
    log_set(NULL, NULL, LOG_ERROR);
    assert_int_equal(s.n, 300);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_up_to_the_level_reach_the_sink),
        cmocka_unit_test(any_thread_may_log),
    };
    return cmocka_run_group_tests_name("base/log", tests, NULL, NULL);
}
