#include "app/flags.h"
#include "support.h"

#include <stdio.h>

/* Flags of a command from arguments that end with NULL. */
static ats_status parse(struct flags *f, enum command_id command, const char *const *args) {
    char *argv[32];
    int argc = 0;
    for (; *args; args++)
        argv[argc++] = (char *)(uintptr_t)*args;
    flags_init(f, command);
    return flags_parse(f, argc, argv);
}
#define PARSE(f, command, ...) parse((f), (command), (const char *const[]){__VA_ARGS__, NULL})

static void expect_error(enum command_id command, const char *a, const char *b, const char *part) {
    struct flags f;
    TEST_STATUS(PARSE(&f, command, a, b), ATS_BAD_ARGUMENT);
    TEST_ERROR_HAS(part);
    flags_free(&f);
}

static void the_table_is_complete_and_without_clashes(void **state) {
    (void)state;
    for (int c = 0; c < N_COMMANDS; c++) {
        assert_non_null(commands[c].name);
        assert_non_null(commands[c].summary);
        assert_non_null(commands[c].examples);
        for (int i = 0; i < N_FLAGS; i++) {
            const struct flag *flag = &flag_table[i];
            assert_non_null(flag->names[0]);
            assert_non_null(flag->help);
            assert_true(flag->commands != 0);
            assert_true(flag->only_here || !strncmp(flag_long_name(flag), "--", 2));
            assert_true((flag->value == NULL) == (flag->kind == FLAG_SWITCH));
            if (!(flag->commands & CMD_BIT(c))) continue;
            for (int k = 0; k < 4 && flag->names[k]; k++)
                assert_int_equal(
                    flag_find((enum command_id)c, flag->names[k], strlen(flag->names[k])), i);
        }
    }
}

static void default_values_are_valid_for_their_flags(void **state) {
    (void)state;
    struct flags f;
    flags_init(&f, CMD_RUN);
    flags_set_defaults(&f); /* asserts that each parses */
    assert_int_equal(flag_int(&f, FLAG_BATCH_SIZE), 0);
    assert_int_equal(flag_int(&f, FLAG_PREDICT), -1);
    assert_false(flag_given(&f, FLAG_BATCH_SIZE));
    flags_free(&f);
}

static void values_of_every_kind_are_read(void **state) {
    (void)state;
    struct flags f;
    TEST_OK(PARSE(&f, CMD_RUN, "-m", "a.gguf", "-c", "4096", "--temp=0.5", "-ctk", "q8_0", "-q",
                  "--stop", "x", "-r", "y", "-s", "18446744073709551615", "--ignore-eos=off"));
    assert_string_equal(flag_text(&f, FLAG_MODEL), "a.gguf");
    assert_int_equal(flag_int(&f, FLAG_CTX_SIZE), 4096);
    assert_true(f.values[FLAG_TEMP].real == 0.5);
    assert_int_equal(flag_int(&f, FLAG_CACHE_TYPE_K), ATS_KV_Q8_0);
    assert_true(flag_on(&f, FLAG_QUIET));
    assert_int_equal(f.values[FLAG_REVERSE_PROMPT].n, 2);
    assert_string_equal(f.values[FLAG_REVERSE_PROMPT].texts[1], "y");
    assert_true((uint64_t)f.values[FLAG_SEED_VALUE].integer == UINT64_MAX);
    assert_false(flag_on(&f, FLAG_IGNORE_EOS));
    assert_true(flag_given(&f, FLAG_IGNORE_EOS));
    flags_free(&f);
    TEST_OK(PARSE(&f, CMD_BENCH, "-p", "1,2", "-p", "3", "-ctv", "f32,q8_0", "x.gguf"));
    assert_int_equal(f.values[FLAG_BENCH_PROMPT].n, 3);
    assert_int_equal(f.values[FLAG_BENCH_PROMPT].integers[2], 3);
    assert_int_equal(f.values[FLAG_BENCH_TYPE_V].integers[0], ATS_KV_F32);
    assert_string_equal(f.positionals[0], "x.gguf");
    flags_free(&f);
}

static void rules_of_a_plan_are_read(void **state) {
    (void)state;
    struct flags f;
    TEST_OK(PARSE(&f, CMD_PLAN, "-ngl", "all", "-ot", "a,b=cpu", "--override-tensor", "c=gpu",
                  "--cpu-moe", "--vram", "300", "--plan=p.json", "--save-plan", "q.json"));
    assert_string_equal(flag_text(&f, FLAG_GPU_LAYERS), "all");
    assert_int_equal(f.values[FLAG_OVERRIDE_TENSOR].n, 2);
    assert_string_equal(f.values[FLAG_OVERRIDE_TENSOR].texts[0], "a,b=cpu"); /* not a list */
    assert_true(flag_on(&f, FLAG_CPU_MOE));
    assert_int_equal(flag_int(&f, FLAG_VRAM), 300);
    assert_string_equal(flag_text(&f, FLAG_SAVE_PLAN), "q.json");
    flags_free(&f);
    flags_init(&f, CMD_RUN);
    TEST_OK(flags_read_ini(&f, "c",
                           "gpu-layers = 12\noverride-tensor = ffn=cpu\n"
                           "n-cpu-moe = 3\nplan = p.json\n"));
    assert_string_equal(flag_text(&f, FLAG_GPU_LAYERS), "12");
    assert_string_equal(f.values[FLAG_OVERRIDE_TENSOR].texts[0], "ffn=cpu");
    assert_int_equal(flag_int(&f, FLAG_N_CPU_MOE), 3);
    assert_string_equal(flag_text(&f, FLAG_PLAN), "p.json");
    TEST_STATUS(flags_read_ini(&f, "c", "save-plan = q.json\n"), ATS_BAD_ARGUMENT);
    flags_free(&f);
    expect_error(CMD_RUN, "--vram", "0", "a whole number from 1");
    expect_error(CMD_BENCH, "-ncmoe", "-1", "a whole number from 0");
}

static void types_of_the_cache_stand_in_the_order_of_the_library(void **state) {
    (void)state;
    static const struct {
        const char *name;
        ats_kv_type type;
    } types[] = {{"f16", ATS_KV_F16}, {"f32", ATS_KV_F32}, {"q8_0", ATS_KV_Q8_0}};
    for (size_t i = 0; i < COUNT_OF(types); i++) {
        size_t n;
        const char *name = choice_at(flag_table[FLAG_CACHE_TYPE_K].choices, types[i].type, &n);
        assert_int_equal(n, strlen(types[i].name));
        assert_memory_equal(name, types[i].name, n);
    }
}

static void numbers_with_anything_wrong_are_refused(void **state) {
    (void)state;
    static const char *const bad[] = {
        "abc", "",  " 4", "4 ", "4x", "0x10", "4.0", "1e3", "-1", "513", "99999999999999999999999",
        "+",   "-", "--5"};
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        expect_error(CMD_RUN, "-t", bad[i], "-t: ");
        TEST_ERROR_HAS("a whole number from 0 to 512");
    }
    static const char *const bad_reals[] = {"nan", "inf",   "1e999", "0x1p3", "",  " 1",
                                            "1 ",  "1.5.2", "-0.1",  "100.1", "e", "."};
    for (size_t i = 0; i < COUNT_OF(bad_reals); i++) {
        expect_error(CMD_RUN, "--temp", bad_reals[i], "--temp: ");
        TEST_ERROR_HAS("a number from 0 to 100");
    }
    static const char *const bad_lists[] = {"1,,2", ",", "1,", ",1", "1;2", "-1", "1,x"};
    for (size_t i = 0; i < COUNT_OF(bad_lists); i++)
        expect_error(CMD_BENCH, "-p", bad_lists[i], "whole numbers from 0");
    expect_error(CMD_RUN, "-s", "18446744073709551616", "-s: ");
    expect_error(CMD_RUN, "-s", "-2", "-s: ");
    expect_error(CMD_RUN, "-ctk", "q4_0", "one of f16, f32, q8_0");
    expect_error(CMD_RUN, "--quiet=maybe", NULL, "on or off");
}

static void a_flag_without_its_value_is_refused(void **state) {
    (void)state;
    expect_error(CMD_RUN, "-q", "-t", "-t needs a value");
}

static void misspelt_flags_get_a_suggestion(void **state) {
    (void)state;
    expect_error(CMD_RUN, "--thread", "1", "did you mean --threads?");
    expect_error(CMD_RUN, "--ctxsize", "1", "did you mean --ctx-size?");
    expect_error(CMD_RUN, "-temp", "1", "did you mean --temp?");
    expect_error(CMD_RUN, "--temperatrue", "1", "did you mean --temperature?");
    expect_error(CMD_RUN, "--chunks", "1", "it belongs to: perplexity");
    expect_error(CMD_RUN, "-o", "1", "it belongs to: bench, logits");
    struct flags f;
    TEST_STATUS(PARSE(&f, CMD_RUN, "--xyzzy"), ATS_BAD_ARGUMENT);
    assert_null(strstr(error_text(), "did you mean"));
    flags_free(&f);
    assert_string_equal(command_suggest("benhc"), "bench");
    assert_string_equal(command_suggest("tokenise"), "tokenize");
    assert_null(command_suggest("frobnicate"));
}

static void hidden_flags_work_and_are_not_suggested(void **state) {
    (void)state;
    struct flags f;
    TEST_OK(PARSE(&f, CMD_LOGITS, "--no-fusion", "--plan-seed", "7", "--seqs", "2"));
    assert_true(flag_on(&f, FLAG_NO_FUSION));
    flags_free(&f);
    assert_null(flag_suggest(CMD_RUN, "--no-fusio"));
}

static void arguments_are_counted_and_may_follow_two_dashes(void **state) {
    (void)state;
    struct flags f;
    expect_error(CMD_RUN, "a", "b", "one argument too many");
    expect_error(CMD_DOCTOR, "a", NULL, "takes no argument");
    TEST_OK(PARSE(&f, CMD_TOKENIZE, "a", "--", "-m", "--x"));
    assert_int_equal(f.n_positionals, 3);
    assert_string_equal(f.positionals[2], "--x");
    flags_free(&f);
}

/* ------------------------------------------------------------------------- environment and INI */

static int clean_env(void **state) {
    (void)state;
    unsetenv("ATSINFER_THREADS");
    unsetenv("LLAMA_ARG_THREADS");
    unsetenv("ATSINFER_PROMPT");
    return 0;
}

static const char *const ini = "# comment\n; comment\nthreads = 2\nctx-size=100\n"
                               "[run]\n threads = 3 \r\n--temp = 0.25\nstop = \" a \"\n"
                               "[bench]\nn-gen = 7\n[*]\nmath = f32\n";

static void read_all(struct flags *f, enum command_id command, const char *a, const char *b) {
    TEST_OK(PARSE(f, command, a, b));
    TEST_OK(flags_read_env(f));
    TEST_OK(flags_read_ini(f, "config.ini", ini));
    flags_set_defaults(f);
}

static void command_line_wins_over_environment_over_configuration(void **state) {
    (void)state;
    struct flags f;
    read_all(&f, CMD_LOGITS, NULL, NULL);
    assert_int_equal(flag_int(&f, FLAG_THREADS), 2); /* of all commands */
    assert_int_equal(flag_int(&f, FLAG_MATH), 1);
    flags_free(&f);
    read_all(&f, CMD_RUN, NULL, NULL);
    assert_int_equal(flag_int(&f, FLAG_THREADS), 3); /* of this command */
    assert_int_equal(flag_int(&f, FLAG_CTX_SIZE), 100);
    assert_true(f.values[FLAG_TEMP].real == 0.25);
    assert_string_equal(f.values[FLAG_REVERSE_PROMPT].texts[0], " a ");
    flags_free(&f);
    setenv("LLAMA_ARG_THREADS", "4", 1);
    read_all(&f, CMD_RUN, NULL, NULL);
    assert_int_equal(flag_int(&f, FLAG_THREADS), 4);
    flags_free(&f);
    setenv("ATSINFER_THREADS", "5", 1);
    read_all(&f, CMD_RUN, NULL, NULL);
    assert_int_equal(flag_int(&f, FLAG_THREADS), 5);
    flags_free(&f);
    read_all(&f, CMD_RUN, "-t", "6");
    assert_int_equal(flag_int(&f, FLAG_THREADS), 6);
    flags_free(&f);
    read_all(&f, CMD_RUN, "-r", "x"); /* a list replaces that of the configuration */
    assert_int_equal(f.values[FLAG_REVERSE_PROMPT].n, 1);
    flags_free(&f);
    read_all(&f, CMD_BENCH, NULL, NULL);
    assert_int_equal(f.values[FLAG_BENCH_GEN].integers[0], 7);
    assert_int_equal(f.values[FLAG_BENCH_THREADS].integers[0], 5);
    flags_free(&f);
}

static void a_wrong_environment_value_names_its_variable(void **state) {
    (void)state;
    struct flags f;
    setenv("LLAMA_ARG_THREADS", "many", 1);
    flags_init(&f, CMD_RUN);
    TEST_STATUS(flags_read_env(&f), ATS_BAD_ARGUMENT);
    TEST_ERROR_HAS("LLAMA_ARG_THREADS: \"many\"");
    flags_free(&f);
}

static void what_belongs_to_one_call_is_not_taken_from_the_environment(void **state) {
    (void)state;
    struct flags f;
    setenv("ATSINFER_PROMPT", "x", 1);
    flags_init(&f, CMD_RUN);
    TEST_OK(flags_read_env(&f));
    assert_null(flag_text(&f, FLAG_PROMPT));
    TEST_STATUS(flags_read_ini(&f, "c", "prompt = x\n"), ATS_BAD_ARGUMENT);
    flags_free(&f);
}

static void wrong_configuration_names_file_line_and_key(void **state) {
    (void)state;
    static const struct {
        const char *text, *part;
    } cases[] = {
        {"\nthraeds = 1\n", "c, line 2: there is no key \"thraeds\" here; did you mean threads?"},
        {"threads = x", "c, line 1, threads: \"x\""},
        {"threads", "\"key = value\""},
        {"[run", "\"]\" is missing"},
        {"[rnu]", "no command \"rnu\"; did you mean run?"},
        {"[bench]\ntemp = 1", "line 2: there is no key \"temp\""},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct flags f;
        flags_init(&f, CMD_RUN);
        TEST_STATUS(flags_read_ini(&f, "c", cases[i].text), ATS_BAD_ARGUMENT);
        TEST_ERROR_HAS(cases[i].part);
        flags_free(&f);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_table_is_complete_and_without_clashes),
        cmocka_unit_test(default_values_are_valid_for_their_flags),
        cmocka_unit_test(values_of_every_kind_are_read),
        cmocka_unit_test(rules_of_a_plan_are_read),
        cmocka_unit_test(types_of_the_cache_stand_in_the_order_of_the_library),
        cmocka_unit_test(numbers_with_anything_wrong_are_refused),
        cmocka_unit_test(a_flag_without_its_value_is_refused),
        cmocka_unit_test(misspelt_flags_get_a_suggestion),
        cmocka_unit_test(hidden_flags_work_and_are_not_suggested),
        cmocka_unit_test(arguments_are_counted_and_may_follow_two_dashes),
        cmocka_unit_test_setup_teardown(command_line_wins_over_environment_over_configuration,
                                        clean_env, clean_env),
        cmocka_unit_test_setup_teardown(a_wrong_environment_value_names_its_variable, clean_env,
                                        clean_env),
        cmocka_unit_test_setup_teardown(what_belongs_to_one_call_is_not_taken_from_the_environment,
                                        clean_env, clean_env),
        cmocka_unit_test_setup_teardown(wrong_configuration_names_file_line_and_key, clean_env,
                                        clean_env),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
