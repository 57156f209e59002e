/* Plans as files: what is written is read again as it was; what is wrong is named. */
#include "plan/file.h"
#include "support.h"
#include "tiny_graph.h"

static const struct tiny_shape shapes[] = {
    {1, 4, 2, 4, 12, 10, 9, DTYPE_F32, DTYPE_F32, true, true, 1, 0, 0, false, false, 0, false},
    {2, 9, 3, 64, 576, 1536, 640, DTYPE_Q4_1, DTYPE_Q6_K, false, false, 16, 0, 0, false, false, 0,
     false},
    {2, 4, 2, 16, 64, 32, 33, DTYPE_F32, DTYPE_F32, false, false, 1, 6, 2, false, false, 0, false},
};
static const char *const devices[] = {"cpu", "cpu#2", "gpu"};
enum { N_DEVICES = 3, STREAMING = 1 << 2 };

static int row_group(const struct tiny_shape *s) {
    return s->row_group ? s->row_group : 1;
}

static ats_status read_plan(struct arena *arena, const struct graph *g, int group, const char *text,
                            const int *device_of, struct plan **out) {
    struct plan_file *f;
    TRY(plan_file_open(text, strlen(text), &f));
    ats_status status =
        plan_file_apply(f, arena, g, "llama", device_of, N_DEVICES, group, STREAMING, out);
    plan_file_close(f);
    return status;
}

static void expect_equal(const struct graph *g, const struct plan *a, const struct plan *b) {
    assert_int_equal(a->n_devices, b->n_devices);
    assert_int_equal(a->n_parts, b->n_parts);
    for (int i = 0; i < a->n_parts; i++) {
        const struct plan_part *p = &a->parts[i], *q = &b->parts[i];
        assert_true(p->op == q->op && p->device == q->device && p->axis == q->axis &&
                    p->begin == q->begin && p->end == q->end && p->streamed == q->streamed &&
                    p->lot == q->lot);
    }
    assert_memory_equal(a->first, b->first, sizeof *a->first * (size_t)(g->n_ops + 1));
    assert_memory_equal(a->n_slots, b->n_slots, sizeof *a->n_slots * N_DEVICES);
}

static int count_streamed(const struct plan *p) {
    int n = 0;
    for (int k = 0; k < p->n_parts; k++)
        n += p->parts[k].streamed;
    return n;
}

/* Every second one has a partner for prompts. */
static void any_plan_is_read_as_it_was_written(void **state) {
    (void)state;
    int n_streamed = 0, n_parts = 0, n_in_prompts = 0;
    for (size_t i = 0; i < COUNT_OF(shapes); i++)
        for (uint64_t seed = 1; seed <= 60; seed++) {
            struct arena arena = {0};
            struct rng rng;
            rng_seed(&rng, seed);
            const struct graph *g = tiny_graph(&arena, &shapes[i]);
            struct plan *p =
                plan_random(&arena, g, N_DEVICES, row_group(&shapes[i]), STREAMING, &rng);
            for (int k = 0; k < p->n_parts; k++)
                if (p->parts[k].streamed) p->parts[k].lot = k % 7;
            if (seed % 2) {
                p->prompts_from = (int)seed + 1;
                p->prompts = plan_random_prompts(&arena, g, p, STREAMING, 3, &rng);
                n_in_prompts += count_streamed(p->prompts);
            }
            char *text = plan_file_print(g, p, "llama", devices);
            struct plan *again;
            TEST_OK(read_plan(&arena, g, row_group(&shapes[i]), text, (int[]){0, 1, 2}, &again));
            expect_equal(g, p, again);
            assert_int_equal(p->prompts_from, again->prompts_from);
            assert_int_equal(p->prompts != NULL, again->prompts != NULL);
            if (p->prompts) expect_equal(g, p->prompts, again->prompts);
            char *text_again = plan_file_print(g, again, "llama", devices);
            assert_string_equal(text, text_again);
            n_streamed += count_streamed(p);
            n_parts += p->n_parts;
            free(text), free(text_again);
            arena_free(&arena);
        }
    assert_true(n_streamed > 100 && n_parts > n_streamed && n_in_prompts > n_streamed / 2);
}

static void devices_are_found_by_name(void **state) {
    (void)state;
    struct arena arena = {0};
    const struct graph *g = tiny_graph(&arena, &shapes[0]);
    char *text = plan_file_print(g, plan_whole(&arena, g, N_DEVICES, 2), "llama", devices);
    struct plan_file *f;
    TEST_OK(plan_file_open(text, strlen(text), &f));
    int n;
    const char *const *names = plan_file_devices(f, &n);
    assert_int_equal(n, N_DEVICES);
    assert_string_equal(names[1], "cpu#2");
    struct plan *p;
    TEST_OK(plan_file_apply(f, &arena, g, "llama", (const int[]){1, 2, 0}, N_DEVICES, 1, 0, &p));
    for (int i = 0; i < p->n_parts; i++)
        assert_int_equal(p->parts[i].device, 0);
    TEST_STATUS(plan_file_apply(f, &arena, g, "qwen3", (const int[]){0, 1, 2}, N_DEVICES, 1, 0, &p),
                ATS_BAD_FILE);
    TEST_ERROR_HAS("another model: llama, this one is qwen3");
    plan_file_close(f);
    free(text);
    arena_free(&arena);
}

/* The text of a plan on the first device with `old`, which it has, replaced. */
static char *edited(struct arena *arena, const struct graph *g, const char *old, const char *new) {
    char *text = plan_file_print(g, plan_whole(arena, g, N_DEVICES, 0), "llama", devices);
    char *at = strstr(text, old);
    if (!at) fail_msg("no %s in %s", old, text);
    char *out = arena_printf(arena, "%.*s%s%s", (int)(at - text), text, new, at + strlen(old));
    free(text);
    return out;
}

static void what_is_wrong_is_named(void **state) {
    (void)state;
#define SLOTS "\"slots\": {}"
#define UP    "\"blk.0.ffn_up\": \"cpu\""
#define PART  "{\"device\": \"cpu\", \"axis\": \"rows\", \"begin\": 0, \"end\": 10"
    static const char *const bad[][3] = {
        {"atsinfer plan", "other", "it is no plan"},
        {"\"version\": 1", "\"version\": 2", "only version 1"},
        {"\"version\": 1", "\"version\": 1, \"extra\": 0", "unknown key \"extra\""},
        {"\"n_layers\": 1", "\"n_layers\": 2", "another model: n_layers is 2, of this one 1"},
        {"\"n_embd\": 12", "\"n_embd\": \"x\"", "no number \"n_embd\""},
        {"\"architecture\"", "\"arch\"", "no \"architecture\""},
        {"\"cpu#2\"", "\"cpu\"", "has \"cpu\" twice"},
        {"\"cpu#2\"", "7", "number 2: not a name"},
        {"\"cpu#2\"", "\"a,b\"", "number 2: not a name"},
        {"\"slots\": {}", "\"slots\": []", "\"slots\" is not an object"},
        {"\"slots\": {}", "\"slots\": {\"x\": 1}", "\"slots\", \"x\""},
        {"\"slots\": {}", "\"slots\": {\"gpu\": -1}", "not a number from 0"},
        {"\"homes\": {", "\"homes\": [], \"x\": {", "unknown key"},
        {UP, "\"other\": \"cpu\"", "no home for blk.0.ffn_up"},
        {UP, UP ", \"other\": \"cpu\"", "the model has no \"other\""},
        {UP, UP ", " UP, "duplicate"},
        {UP, "\"blk.0.ffn_up\": \"tpu\"",
         "\"blk.0.ffn_up\": \"tpu\" is none of the plan's devices"},
        {UP, "\"blk.0.ffn_up\": 3", "\"blk.0.ffn_up\" has neither"},
        {UP, "\"blk.0.ffn_up\": []", "\"blk.0.ffn_up\" has neither"},
        {UP, "\"blk.0.ffn_up\": [1]", "part 1 is not an object"},
        {UP, "\"blk.0.ffn_up\": [" PART ", \"x\": 1}]", "part 1 has an unknown key \"x\""},
        {UP, "\"blk.0.ffn_up\": [" PART ", \"streamed\": 1}]", "part 1: \"streamed\""},
        {UP, "\"blk.0.ffn_up\": [" PART ", \"streamed\": true}]",
         "\"blk.0.ffn_up\", part 1: nothing can be streamed to cpu"},
        {UP, "\"blk.0.ffn_up\": [" PART "}, " PART "}]", "range 0 to 10 of blk.0.ffn_up"},
        {UP,
         "\"blk.0.ffn_up\": [{\"device\": \"cpu\", \"axis\": \"rows\", \"begin\": 0, \"end\": 4}]",
         "covers 4 of 10 of blk.0.ffn_up"},
        {UP,
         "\"blk.0.ffn_up\": [{\"device\": \"cpu\", \"axis\": \"rows\", \"begin\": 0.5, \"end\": "
         "4}]",
         "part 1: \"begin\""},
        {UP,
         "\"blk.0.ffn_up\": [{\"device\": \"cpu\", \"axis\": \"rows\", \"begin\": 0, \"end\": "
         "4294967306}]",
         "part 1: \"end\""},
        {UP,
         "\"blk.0.ffn_up\": [{\"device\": \"cpu\", \"axis\": \"heads\", \"begin\": 0, \"end\": 2}]",
         "an axis it does not have"},
        {UP, "\"blk.0.ffn_up\": [{\"device\": \"cpu\", \"axis\": \"x\", \"begin\": 0, \"end\": 2}]",
         "part 1: \"axis\""},
        {UP, "\"blk.0.ffn_up\": [{\"axis\": \"rows\", \"begin\": 0, \"end\": 10}]",
         "part 1: \"device\""},
        {UP, "\"blk.0.ffn_up\": \"cpu\" x", "line"},
        {SLOTS, SLOTS ", \"prompts\": 3", "\"prompts\" is not an object"},
        {SLOTS, SLOTS ", \"prompts\": {\"from\": 2, \"x\": 3}", "unknown key \"x\""},
        {SLOTS, SLOTS ", \"prompts\": {\"homes\": {}}", "\"prompts\": \"from\""},
        {SLOTS, SLOTS ", \"prompts\": {\"from\": 1, \"homes\": {}}", "number of tokens from 2"},
        {SLOTS, SLOTS ", \"prompts\": {\"from\": 2}", "\"prompts\": \"homes\""},
        {SLOTS, SLOTS ", \"prompts\": {\"from\": 2, \"homes\": {\"x\": \"cpu\"}}",
         "in \"prompts\": the model has no \"x\""},
        {SLOTS, SLOTS ", \"prompts\": {\"from\": 2, \"homes\": {\"blk.0.ffn_up\": \"gpu\"}}",
         "blk.0.ffn_up has other homes or ranges in prompts"},
        {SLOTS,
         SLOTS ", \"prompts\": {\"from\": 2, \"homes\": {\"blk.0.ffn_up\": [{\"device\": \"gpu\", "
               "\"axis\": \"rows\", \"begin\": 0, \"end\": 10, \"streamed\": true}]}}",
         "part 1 is streamed to gpu, which has no \"slots\""},
        {"\"blk.0.attn_kv\": \"cpu\"",
         "\"blk.0.attn_kv\": [{\"device\": \"cpu\", \"axis\": \"rows\", \"begin\": 0, \"end\": 2}]",
         "cuts blk.0.attn_kv along an axis"},
    };
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        struct arena arena = {0};
        const struct graph *g = tiny_graph(&arena, &shapes[0]);
        struct plan *p;
        const char *text = edited(&arena, g, bad[i][0], bad[i][1]);
        TEST_STATUS(read_plan(&arena, g, 1, text, (int[]){0, 1, 2}, &p), ATS_BAD_FILE);
        TEST_ERROR_HAS(bad[i][2]);
        arena_free(&arena);
    }
    struct plan_file *f;
    static const char *const no_plans[] = {"", "[]", "3", "{}", "{\"format\": \"atsinfer plan\"}"};
    for (size_t i = 0; i < COUNT_OF(no_plans); i++) {
        TEST_STATUS(plan_file_open(no_plans[i], strlen(no_plans[i]), &f), ATS_BAD_FILE);
        assert_null(f);
    }
    plan_file_close(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_plan_is_read_as_it_was_written),
        cmocka_unit_test(devices_are_found_by_name),
        cmocka_unit_test(what_is_wrong_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
