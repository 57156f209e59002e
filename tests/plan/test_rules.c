/* Plans by rules: what stands on the GPU, and what is refused. */
#include "plan/names.h"
#include "plan/rules.h"
#include "support.h"
#include "tiny_graph.h"

static const struct tiny_shape dense = {3,     4,     2, 4, 12, 10,    9,     DTYPE_F32, DTYPE_F32,
                                        false, false, 1, 0, 0,  false, false, 0,         false};
static const struct tiny_shape moe = {4,     4,     2, 16, 64, 32,    33,    DTYPE_F32, DTYPE_F32,
                                      false, false, 1, 6,  2,  false, false, 0,         false};

enum { CPU, GPU };

/* The home of the operator of this name. */
static int home_of(const struct graph *g, const struct plan *p, const char *name) {
    struct arena scratch = {0};
    const char **names = plan_names(&scratch, g);
    int home = -1;
    for (int i = 0; i < g->n_ops; i++) {
        if (!names[i] || strcmp(names[i], name) != 0) continue;
        assert_int_equal(p->first[i + 1] - p->first[i], 1);
        home = p->parts[p->first[i]].device;
    }
    arena_free(&scratch);
    return home;
}

/* Parses overrides (NULL: none), makes the plan, checks it. */
static struct plan *make(struct arena *arena, const struct graph *g, struct plan_rules rules,
                         const char *overrides, int *n_lacking) {
    static const char *const names[] = {"cpu", "gpu", "vulkan0"};
    static const int devices[] = {CPU, GPU, GPU};
    struct plan_override *list = NULL;
    rules.cpu = CPU, rules.gpu = GPU;
    if (overrides)
        TEST_OK(plan_overrides_parse(overrides, names, devices, 3, &list, &rules.n_overrides));
    rules.overrides = list;
    TEST_OK(plan_rules_check(g, &rules));
    struct plan *p = plan_by_rules(arena, g, 2, &rules, n_lacking);
    TEST_OK(plan_check(g, p, 1, 0));
    plan_overrides_free(list, rules.n_overrides);
    return p;
}

static int count_gpu(const struct plan *p) {
    int n = 0;
    for (int i = 0; i < p->n_parts; i++)
        n += p->parts[i].device == GPU;
    return n;
}

/* Without a number of layers rules speak of what they name only. */
static void rules_leave_open_what_they_do_not_name(void **state) {
    (void)state;
    struct arena arena = {0};
    struct graph *g = tiny_graph(&arena, &moe);
    static const char *const names[] = {"cpu", "gpu"};
    static const int devices[] = {CPU, GPU};
    struct plan_rules r = {CPU, GPU, PLAN_LAYERS_AUTO, 2, NULL, 0, NULL};
    struct plan_override *list = NULL;
    int *home = ARENA_ARRAY(&arena, int, g->n_ops), n_cpu = 0, n_gpu = 0, n_open = 0;
    TEST_OK(plan_overrides_parse("blk.3.*=gpu", names, devices, 2, &list, &r.n_overrides));
    r.overrides = list;
    plan_rules_homes(g, &r, home);
    for (int i = 0; i < g->n_ops; i++) {
        const struct graph_op *op = &g->ops[i];
        bool placed = op_is_placed(op);
        int expected = !placed                                   ? PLAN_HOME_FREE
                       : op->layer == 3                          ? GPU
                       : op->kind == OP_EXPERTS && op->layer < 2 ? CPU
                                                                 : PLAN_HOME_FREE;
        assert_int_equal(home[i], expected);
        n_cpu += home[i] == CPU, n_gpu += home[i] == GPU;
        n_open += placed && home[i] == PLAN_HOME_FREE;
    }
    assert_int_equal(n_cpu, 2);
    assert_true(n_gpu > 4 && n_open > 12);
    plan_overrides_free(list, r.n_overrides);
    arena_free(&arena);
}

static void names_are_all_different(void **state) {
    (void)state;
    struct arena arena = {0};
    const char *names[] = {"a", NULL, "b", "a", "a"};
    names_number(&arena, names, 5);
    assert_string_equal(names[0], "a");
    assert_null(names[1]);
    assert_string_equal(names[3], "a#2");
    assert_string_equal(names[4], "a#3");
    const struct graph *g = tiny_graph(&arena, &moe);
    const char **all = plan_names(&arena, g);
    for (int i = 0; i < g->n_ops; i++) {
        assert_true((all[i] != NULL) == op_is_placed(&g->ops[i]));
        for (int j = 0; all[i] && j < i; j++)
            assert_true(!all[j] || strcmp(all[i], all[j]) != 0);
    }
    assert_true(home_of(g, plan_whole(&arena, g, 2, GPU), "blk.3.attn_kv") == GPU);
    arena_free(&arena);
}

static void the_last_layers_are_on_the_gpu(void **state) {
    (void)state;
    struct arena arena = {0};
    const struct graph *g = tiny_graph(&arena, &dense);
    for (int n = 0; n <= 5; n++) {
        const struct plan *p = make(&arena, g, (struct plan_rules){.n_gpu_layers = n}, NULL, NULL);
        for (int layer = 0; layer < 3; layer++) {
            char name[40];
            snprintf(name, sizeof name, "blk.%d.ffn_up", layer);
            assert_int_equal(home_of(g, p, name), layer >= 3 - n ? GPU : CPU);
            snprintf(name, sizeof name, "blk.%d.attn_kv", layer);
            assert_int_equal(home_of(g, p, name), layer >= 3 - n ? GPU : CPU);
        }
        assert_int_equal(home_of(g, p, "token_embd"), CPU);
        assert_int_equal(home_of(g, p, "output"), n > 3 ? GPU : CPU);
    }
    arena_free(&arena);
}

static void experts_of_the_first_layers_stay(void **state) {
    (void)state;
    struct arena arena = {0};
    const struct graph *g = tiny_graph(&arena, &moe);
    for (int n = 0; n <= 4; n++) {
        const struct plan *p =
            make(&arena, g, (struct plan_rules){.n_gpu_layers = PLAN_LAYERS_ALL, .n_cpu_moe = n},
                 NULL, NULL);
        for (int layer = 0; layer < 4; layer++) {
            char name[40];
            snprintf(name, sizeof name, "blk.%d.ffn_gate_exps", layer);
            assert_int_equal(home_of(g, p, name), layer < n ? CPU : GPU);
            snprintf(name, sizeof name, "blk.%d.attn_q", layer);
            assert_int_equal(home_of(g, p, name), GPU);
        }
    }
    arena_free(&arena);
}

static void the_first_override_that_matches_counts(void **state) {
    (void)state;
    struct arena arena = {0};
    const struct graph *g = tiny_graph(&arena, &moe);
    const struct plan_rules rules = {.n_gpu_layers = 2, .n_cpu_moe = 4};
    const struct plan *p =
        make(&arena, g, rules, "blk\\.(0|3)\\.attn_(q|kv)=Vulkan0,attn_.{1,2}$=CPU", NULL);
    assert_int_equal(home_of(g, p, "blk.0.attn_q"), GPU);
    assert_int_equal(home_of(g, p, "blk.0.attn_kv"), GPU);
    assert_int_equal(home_of(g, p, "blk.0.attn_k"), CPU);
    assert_int_equal(home_of(g, p, "blk.3.attn_k"), CPU);
    assert_int_equal(home_of(g, p, "blk.3.attn_output"), GPU);
    assert_int_equal(home_of(g, p, "blk.3.ffn_gate_exps"), CPU);
    /* one operator: any of its weights stands for it */
    p = make(&arena, g, rules, "blk.1.ffn_down_exps=gpu", NULL);
    assert_int_equal(home_of(g, p, "blk.1.ffn_gate_exps"), GPU);
    assert_int_equal(home_of(g, p, "blk.3.ffn_gate_exps"), CPU);
    arena_free(&arena);
}

static void what_the_gpu_lacks_stays_on_the_cpu(void **state) {
    (void)state;
    struct arena arena = {0};
    const struct graph *g = tiny_graph(&arena, &moe);
    const char **lacking = ARENA_ARRAY(&arena, const char *, g->n_ops);
    for (int i = 0; i < g->n_ops; i++)
        if (g->ops[i].kind == OP_EXPERTS) lacking[i] = "no experts";
    int n_lacking;
    struct plan_rules rules = {.n_gpu_layers = PLAN_LAYERS_ALL, .lacking = lacking};
    const struct plan *p = make(&arena, g, rules, NULL, &n_lacking);
    assert_int_equal(n_lacking, 4);
    assert_int_equal(home_of(g, p, "blk.2.ffn_gate_exps"), CPU);
    assert_int_equal(home_of(g, p, "blk.2.ffn_gate_inp"), GPU);
    rules.n_gpu_layers = 0;
    p = make(&arena, g, rules, NULL, &n_lacking);
    assert_int_equal(n_lacking + count_gpu(p), 0);
    static const char *const names[] = {"gpu"};
    struct plan_override *list = NULL;
    rules.cpu = CPU, rules.gpu = GPU;
    TEST_OK(plan_overrides_parse("blk.1.ffn_up_exps=gpu", names, (const int[]){GPU}, 1, &list,
                                 &rules.n_overrides));
    rules.overrides = list;
    TEST_STATUS(plan_rules_check(g, &rules), ATS_UNSUPPORTED);
    TEST_ERROR_HAS("blk.1.ffn_gate_exps cannot be there, the GPU has no experts");
    plan_overrides_free(list, rules.n_overrides);
    arena_free(&arena);
}

static void wrong_rules_say_what_is_wrong(void **state) {
    (void)state;
    static const char *const names[] = {"cpu", "gpu"};
    static const int devices[] = {CPU, GPU};
    static const char *const bad[][2] = {
        {"ffn", "expected REGEX=DEVICE; devices: cpu, gpu"},
        {"ffn=tpu", "no device \"tpu\"; devices: cpu, gpu"},
        {"ffn=", "no device \"\""},
        {"=cpu", "is empty"},
        {"(=cpu", "no regular expression"},
        {"a=cpu,b", "\"b\": expected REGEX=DEVICE"},
        {"a=cpu,b=x", "no device \"x\""},
        {"a=cpu,", "expected REGEX=DEVICE"},
    };
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        struct plan_override *list = NULL;
        int n = 0;
        TEST_STATUS(plan_overrides_parse(bad[i][0], names, devices, 2, &list, &n),
                    ATS_BAD_ARGUMENT);
        TEST_ERROR_HAS(bad[i][1]);
        plan_overrides_free(list, n);
    }
    struct arena arena = {0};
    struct plan_rules rules = {.cpu = CPU, .gpu = GPU};
    struct plan_override *list = NULL;
    TEST_OK(plan_overrides_parse("ffn=cpu,nothing_of_this=gpu", names, devices, 2, &list,
                                 &rules.n_overrides));
    assert_int_equal(rules.n_overrides, 2);
    rules.overrides = list;
    TEST_STATUS(plan_rules_check(tiny_graph(&arena, &dense), &rules), ATS_BAD_ARGUMENT);
    TEST_ERROR_HAS("\"nothing_of_this\" matches no tensor");
    plan_overrides_free(list, rules.n_overrides);
    arena_free(&arena);
}

static void numbers_of_layers_are_read(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int n;
    } good[] = {{"0", 0},
                {"12", 12},
                {"all", PLAN_LAYERS_ALL},
                {"auto", PLAN_LAYERS_AUTO},
                {"99999999999999999999", PLAN_LAYERS_ALL}};
    static const char *const bad[] = {"", "-1", "1.5", "ALL", "3x", " 3"};
    int n;
    for (size_t i = 0; i < COUNT_OF(good); i++) {
        TEST_OK(plan_layers_parse(good[i].text, &n));
        assert_int_equal(n, good[i].n);
    }
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        TEST_STATUS(plan_layers_parse(bad[i], &n), ATS_BAD_ARGUMENT);
        TEST_ERROR_HAS("all or auto");
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rules_leave_open_what_they_do_not_name),
        cmocka_unit_test(names_are_all_different),
        cmocka_unit_test(the_last_layers_are_on_the_gpu),
        cmocka_unit_test(experts_of_the_first_layers_stay),
        cmocka_unit_test(the_first_override_that_matches_counts),
        cmocka_unit_test(what_the_gpu_lacks_stays_on_the_cpu),
        cmocka_unit_test(wrong_rules_say_what_is_wrong),
        cmocka_unit_test(numbers_of_layers_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
