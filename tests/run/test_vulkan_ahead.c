/*
 * Work that is submitted before what it waits for: not a bit changes against submitting it after,
 * and a round costs few calls and little of the host's time, however often the device changes.
 * Without the validation layer, which does not follow it (vulkan.c).
 */
#include "agree.h"

enum { N_PROMPT = 9, N_DECODE = 16, N_IDS = N_PROMPT + N_DECODE };

/* Far above what it takes (tens of microseconds), and the least of many rounds: a machine that
 * does other things as well passes, one thread too many waking at each change does not. */
#define HOST_NS 2000000

static int n_changes; /* of all plans: a round's changes of device */

struct seen {
    float *logits; /* (N_DECODE + 1, n_vocab) */
    ats_metrics metrics[2];
    uint64_t least_host_ns;
};

static void run(const char *path, uint64_t seed, const char *off, struct seen *out) {
    *out = (struct seen){.least_host_ns = UINT64_MAX};
    setenv("ATSINFER_VK_DISABLE", off, 1);
    ats_options options = agree_options(path);
    options.devices = "cpu,vulkan";
    options.plan_seed = seed;
    options.n_threads = options.n_threads_batch = 1 + seed % 2;
    ats_engine *e = agree_open(&options);
    size_t width = (size_t)agree_vocab(e);
    out->logits = calloc((N_DECODE + 1) * width, sizeof *out->logits);
    ats_engine_measure(e, true);
    ats_session *s;
    TEST_OK(ats_session_open(e, &s));
    int32_t ids[N_IDS];
    for (int i = 0; i < N_IDS; i++)
        ids[i] = (int32_t)((size_t)(i * 89 + 5) % width);
    uint64_t before = 0;
    for (int i = 0; i <= N_DECODE; i++) {
        ats_run part = {s, i ? ids + N_PROMPT + i - 1 : ids, i ? 1 : N_PROMPT, ATS_WANT_LAST, NULL};
        TEST_OK(ats_eval(e, &part, 1));
        memcpy(out->logits + (size_t)i * width, ats_session_logits(s), width * sizeof(float));
        ats_engine_metrics(e, true, &out->metrics[1]);
        uint64_t host = out->metrics[1].host_ns - before;
        if (i && host < out->least_host_ns) out->least_host_ns = host;
        before += host;
    }
    ats_engine_metrics(e, false, &out->metrics[0]);
    ats_session_close(s);
    ats_engine_close(e);
}

/* A call for what waits for nothing, one for all that waits, and those of copies. */
static void check_calls(const struct seen *s) {
    const ats_metrics *m = &s->metrics[1];
    assert_int_equal(m->n_rounds, N_DECODE);
    assert_true(m->n_submissions > 0);
    assert_true(m->n_submissions <= m->n_splits + 2 * m->n_copies + m->n_rounds);
    assert_true(m->n_submissions <= 3 * m->n_rounds + 2 * m->n_copies);
    assert_true(s->least_host_ns < HOST_NS);
    n_changes += (int)(m->n_splits / m->n_rounds);
}

static void nothing_changes_but_the_calls(void **state) {
    (void)state;
    static const char *const models[] = {"llama/llama-f16.gguf", "quants/Q4_K.gguf",
                                         "qwen3moe/qwen3moe-f32.gguf"};
    for (size_t m = 0; m < COUNT_OF(models); m++) {
        char name[128], path[512];
        snprintf(name, sizeof name, "models/%s", models[m]);
        if (!test_shared_path(path, sizeof path, name)) skip();
        for (uint64_t seed = 1; seed <= 4; seed++) {
            struct seen ahead, after;
            const char *other = seed % 2 ? "" : ",xfer,idot";
            char off[32];
            snprintf(off, sizeof off, "ahead,two-rows%s", other);
            run(path, seed, other, &ahead);
            run(path, seed, off, &after);
            check_calls(&ahead);
            assert_true(after.metrics[1].n_submissions >= ahead.metrics[1].n_submissions);
            assert_int_equal(after.metrics[1].n_splits, ahead.metrics[1].n_splits);
            assert_memory_equal(ahead.logits, after.logits,
                                (N_DECODE + 1) * 640 * sizeof *ahead.logits);
            free(ahead.logits), free(after.logits);
        }
    }
    print_message("%d changes of device a round, of 12 plans\n", n_changes);
    assert_true(n_changes >= 60);
}

int main(void) {
    if (!agree_has_vulkan()) return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_changes_but_the_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
