/* The program and `run` as a user or script sees them: output, errors, exit codes. */
#include "fake_engine.h"
#include "spawn.h"

#include <sys/stat.h>
#include <unistd.h>

static struct spawned s; /* of the last program */

/* -------------------------------------------------------------------------------------- program */

static void without_arguments_there_is_short_help(void **state) {
    (void)state;
    spawn(&s, NULL, (const char *const[]){NULL});
    assert_int_equal(s.code, 0);
    assert_has(&s.out, "Usage: atsinfer COMMAND");
    SPAWN(&s, NULL, "help");
    assert_has(&s.out, "Exit codes:");
    SPAWN(&s, NULL, "help", "bench");
    assert_has(&s.out, "--n-depth");
    SPAWN(&s, NULL, "--version");
    assert_has(&s.out, "atsinfer ");
}

static void every_command_has_help_even_with_a_broken_environment(void **state) {
    (void)state;
    static const char *const names[] = {"run",     "chat",       "bench",    "perplexity", "plan",
                                        "inspect", "tokenize",   "simulate", "profile",    "logits",
                                        "doctor",  "completion", "man",      "version",    "help"};
    spawn_env("ATSINFER_THREADS=broken");
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        SPAWN(&s, NULL, names[i], "--help");
        assert_int_equal(s.code, 0);
        assert_has(&s.out, "Usage: atsinfer");
        assert_int_equal(s.err.len, 0);
    }
    spawn_env("ATSINFER_THREADS");
}

static void exit_codes_say_what_went_wrong(void **state) {
    (void)state;
    static const struct {
        const char *model;
        int code;
        const char *text;
    } cases[] = {
        {"missing.gguf", 1, "atsinfer: error: cannot open missing.gguf"},
        {"broken.gguf", 1, "lies outside"},
        {"huge.gguf", 3, "needs 900 GiB"},
        {"alien.gguf", 4, "architecture \"alien\""},
    };
    static const char *const commands[] = {"run",        "bench",   "logits",  "plan",
                                           "perplexity", "inspect", "tokenize"};
    char ids[600];
    tmp_file(ids, sizeof ids, "ids", "1 2 3");
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        for (size_t c = 0; c < COUNT_OF(commands); c++) {
            const char *args[8] = {commands[c], "-m", cases[i].model};
            if (!strcmp(commands[c], "run")) args[3] = "-p", args[4] = "x";
            if (!strcmp(commands[c], "perplexity")) args[3] = "-f", args[4] = ids;
            if (!strcmp(commands[c], "logits"))
                args[3] = "--ids", args[4] = ids, args[5] = "-o", args[6] = "/dev/null";
            spawn(&s, "text", args);
            assert_int_equal(s.code, cases[i].code);
            assert_has(&s.err, cases[i].text);
            assert_lacks(&s.err, "\x1b");
            assert_int_equal(s.out.len, 0);
        }
    }
}

/* Layers in a row with equal homes are one line. */
static void plan_prints_devices_and_homes(void **state) {
    (void)state;
    SPAWN(&s, NULL, "plan", "-m", "x.gguf");
    assert_int_equal(s.code, 0);
    assert_has(&s.out, "plan: by hand\n");
    assert_has(&s.out, "cpu              1.0 KiB         0 B         0 B         0 B     1.5 KiB");
    assert_has(&s.out, "host memory: 2.0 KiB of 4.0 KiB");
    assert_has(&s.out, "embd                       512 B  cpu\n");
    assert_has(&s.out, "layer 0                  1.0 KiB  cpu\n");
    assert_has(&s.out, "layers 1-2               2.0 KiB  gpu\n");
    assert_has(
        &s.out,
        "layer 3                  1.0 KiB  a: gpu; b: cpu rows 0-5, gpu rows 5-9 streamed\n");
    assert_lacks(&s.out, "\x1b");
    SPAWN(&s, NULL, "plan", "-m", "x.gguf", "--tensors");
    assert_has(&s.out, "blk.3.a                                  1.0 KiB  gpu\n");
    SPAWN(&s, NULL, "plan", "-m", "x.gguf", "--json");
    json_t *o = spawned_answer(&s, "plan");
    assert_int_equal(int_at(o, "n_layers"), 4);
    json_decref(o);
}

static void rules_of_a_plan_reach_the_library(void **state) {
    (void)state;
    char path[512], *text;
    size_t n;
    test_tmp_path(path, sizeof path, "plan.json");
    SPAWN(&s, NULL, "plan", "-m", "x.gguf", "-ngl", "all", "-ncmoe", "7", "--vram", "300", "-ot",
          "a=cpu", "-ot", "b{1,2}=gpu", "--save-plan", path);
    assert_int_equal(s.code, 0);
    TEST_OK(file_read(path, 1000, &text, &n));
    assert_string_equal(text, "all 7 300 a=cpu b{1,2}=gpu");
    free(text);
    SPAWN(&s, NULL, "plan", "-m", "x.gguf", "--save-plan", path); /* the stand-in's are no JSON */
    assert_int_equal(s.code, 2);
    assert_has(&s.err, "is something else: it is not replaced");
    unlink(path);
    SPAWN(&s, NULL, "plan", "-m", "x.gguf", "-cmoe", "--save-plan", path);
    TEST_OK(file_read(path, 1000, &text, &n));
    assert_string_equal(text, "- -1 0");
    free(text);
    SPAWN(&s, NULL, "plan", "-m", "x.gguf", "--save-plan", "no/such/folder/plan.json");
    assert_int_equal(s.code, 1);
    assert_has(&s.err, "no/such/folder");
}

static void wrong_usage_is_code_two_with_a_hint(void **state) {
    (void)state;
    static const struct {
        const char *args[6], *text;
    } cases[] = {
        {{"rnu"}, "did you mean run?"},
        {{"-m", "x"}, "a command is expected before -m"},
        {{"run", "-m", "x", "-t", "abc"}, "-t: \"abc\""},
        {{"run", "x", "-m", "y"}, "the model is given twice"},
        {{"run", "x", "y"}, "one argument too many"},
        {{"run", "-m", ""}, "is empty"},
        {{"run", "-m", "x", "--no-template"}, "standard input is empty"},
        {{"run", "-p", "hi"}, "no model: give a GGUF file with -m"},
        {{"run", "x", "-p", "y", "-l", "12"}, "--logit-bias: \"12\""},
        {{"run", "x", "-p", "y", "-l", "300+1"}, "there is no token 300"},
        {{"run", "x", "-p", "y", "--stop="}, "--stop: the text is empty"},
        {{"run", "x", "-p", "y", "--chat-template-kwargs=[1]"}, "takes a JSON object"},
        {{"bench", "x", "-p", "0", "-n", "0"}, "nothing to measure"},
        {{"bench", "x", "-pg", "5"}, "-pg: \"5\""},
        {{"bench", "x", "-pg", "0,0"}, "-pg: \"0,0\""},
        {{"bench", "x", "--json", "-o", "md"}, "exclude each other"},
        {{"perplexity", "x"}, "-f FILE"},
        {{"logits", "x", "-o", "y"}, "--ids FILE"},
        {{"tokenize", "--special", "--no-special", "x"}, "exclude each other"},
        {{"plan", "x", "-cmoe", "-ncmoe", "2"}, "exclude each other"},
        {{"plan", "x", "--machine", "y", "--save-plan", "z"}, "only told"},
        {{"plan", "x", "--machine", "y", "--device", "z"}, "--device is about this machine"},
        {{"plan", "x", "--machine", "y", "--one-program"}, "goes without --machine"},
        {{"plan", "x", "--machine", "y", "--profile", "z"}, "--profile is about this machine"},
        {{"completion", "tcsh"}, "no script for \"tcsh\""},
        {{"completion"}, "name a shell"},
        {{"help", "nix"}, "no command \"nix\""},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        spawn(&s, NULL, cases[i].args);
        if (s.code != 2) fail_msg("case %zu (%s): code %d", i, cases[i].text, s.code);
        assert_has(&s.err, cases[i].text);
        assert_has(&s.err, "Try: atsinfer ");
        assert_int_equal(s.out.len, 0);
    }
}

static void with_json_an_error_is_an_object_too(void **state) {
    (void)state;
    SPAWN(&s, NULL, "run", "huge.gguf", "-p", "x", "--json");
    json_t *o = spawned_answer(&s, "run"), *error = test_json_get(o, "error");
    assert_string_equal(text_at(error, "status"), "NO_MEMORY");
    assert_string_equal(text_at(error, "message"), "huge.gguf needs 900 GiB");
    json_decref(o);
}

static void a_full_disk_or_closed_output_is_told(void **state) {
    (void)state;
    if (!file_exists("/dev/full")) skip();
    char command[1200];
    static const char *const tails[] = {
        "run m -p x",        "run m -p x --json", "doctor",          "man",
        "bench m -p 1 -n 0", "inspect m",         "tokenize -m m hi"};
    for (size_t i = 0; i < COUNT_OF(tails); i++) {
        for (int closed = 0; closed < 2; closed++) {
            snprintf(command, sizeof command, "'%s' %s 2>&1 %s </dev/null | grep -q 'cannot write'",
                     getenv("ATSINFER_FAKE"), tails[i], closed ? ">&-" : ">/dev/full");
            if (system(command) != 0) fail_msg("silent: %s", command);
        }
        snprintf(command, sizeof command, "'%s' %s >/dev/full 2>/dev/null </dev/null",
                 getenv("ATSINFER_FAKE"), tails[i]);
        assert_int_equal(WEXITSTATUS(system(command)), 1);
    }
}

static void the_model_is_found_where_it_is_said_to_be(void **state) {
    (void)state;
    char path[700], dir[600], model[800];
    spawn_env("ATSINFER_MODEL=missing-env.gguf");
    SPAWN(&s, NULL, "inspect");
    assert_has(&s.err, "missing-env.gguf");
    SPAWN(&s, NULL, "inspect", "missing-argument.gguf"); /* wins */
    assert_has(&s.err, "missing-argument.gguf");
    spawn_env("ATSINFER_MODEL");
    snprintf(dir, sizeof dir, "%s/atsinfer", getenv("XDG_CONFIG_HOME"));
    mkdir(dir, 0700);
    snprintf(path, sizeof path, "%s/config.ini", dir);
    TEST_OK(file_write(path, "model = missing-ini.gguf\n", 25));
    SPAWN(&s, NULL, "inspect");
    assert_has(&s.err, "missing-ini.gguf");
    TEST_OK(file_write(path, "modle = x\n", 10));
    SPAWN(&s, NULL, "inspect");
    assert_int_equal(s.code, 2);
    assert_has(&s.err, "did you mean model?");
    unlink(path);
    snprintf(path, sizeof path, "%s/models", dir);
    mkdir(path, 0700);
    snprintf(model, sizeof model, "%s/SmolLM2-135M-Instruct.Q4_1.gguf", path);
    TEST_OK(file_write(model, "x", 1));
    SPAWN(&s, NULL, "inspect");
    assert_int_equal(s.code, 0);
    assert_has(&s.out, "models/SmolLM2-135M-Instruct.Q4_1.gguf");
    SPAWN(&s, NULL, "doctor");
    assert_has(&s.out, "models/SmolLM2-135M-Instruct.Q4_1.gguf");
    unlink(model);
    rmdir(path);
    rmdir(dir);
}

/* ------------------------------------------------------------------------------------------ run */

static void an_answer_goes_to_standard_output_and_figures_to_standard_error(void **state) {
    (void)state;
    SPAWN(&s, NULL, "run", "-m", "m", "-p", "hi");
    assert_int_equal(s.code, 0);
    assert_string_equal(buf_str(&s.out), "An answer.\n");
    assert_has(&s.err, "load ");
    assert_has(&s.err, " s | prefill ");
    assert_has(&s.err, "| decode 10 tok ");
    assert_has(&s.err, "| first token ");
    SPAWN(&s, NULL, "chat", "-m", "m", "-p", "hi", "--quiet");
    assert_string_equal(buf_str(&s.out), "An answer.\n");
    assert_int_equal(s.err.len, 0);
}

static void the_prompt_is_put_together_from_flag_file_and_standard_input(void **state) {
    (void)state;
    /* "<|im_start|>user\n" and "<|im_end|>\n<|im_start|>assistant\n" are 18 tokens */
    enum { FRAME = 1 + 5 + 1 + 1 + 1 + 10 };
    static const struct {
        const char *p, *file, *input;
        int n;
    } cases[] = {
        {"abc", NULL, NULL, 3},    {NULL, NULL, "abcd\n", 4},    {"abc", NULL, "de\n", 6},
        {NULL, "file\n", NULL, 4}, {"abc", "file", "unused", 8}, {"ä", NULL, NULL, 2},
    };
    char path[600];
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const char *args[10] = {"run", "m", "--json"};
        int n = 3;
        if (cases[i].p) args[n++] = "-p", args[n++] = cases[i].p;
        if (cases[i].file) {
            tmp_file(path, sizeof path, "prompt", cases[i].file);
            args[n++] = "-f", args[n++] = path;
        }
        spawn(&s, cases[i].input, args);
        json_t *o = spawned_answer(&s, "run");
        assert_int_equal(int_at(test_json_get(o, "tokens"), "prompt"), FRAME + cases[i].n);
        json_decref(o);
    }
}

static void json_tells_text_tokens_stop_and_times(void **state) {
    (void)state;
    SPAWN(&s, NULL, "run", "m", "-p", "hi", "--json", "-s", "18446744073709551615");
    json_t *o = spawned_answer(&s, "run"), *timings = test_json_get(o, "timings");
    assert_string_equal(text_at(o, "text"), "An answer.");
    assert_string_equal(text_at(o, "stop"), "end");
    assert_string_equal(text_at(o, "seed"), "18446744073709551615");
    assert_int_equal(int_at(test_json_get(o, "tokens"), "generated"), 11); /* with the end token */
    assert_int_equal(json_array_size(test_json_get(o, "token_ids")), 10);
    assert_int_equal(int_at(timings, "predicted_n"), 10);
    assert_true(json_real_value(test_json_get(timings, "prompt_per_second")) > 0);
    assert_int_equal(s.err.len, 0);
    json_decref(o);
}

static void thoughts_are_no_part_of_the_answer(void **state) {
    (void)state;
    spawn_env("FAKE_ANSWER=<think>\nso so\n</think>\n\nfour");
    SPAWN(&s, NULL, "run", "m", "-p", "hi", "--json");
    json_t *o = spawned_answer(&s, "run");
    assert_string_equal(text_at(o, "text"), "four");
    assert_string_equal(text_at(o, "reasoning_content"), "so so");
    json_decref(o);
    SPAWN(&s, NULL, "run", "m", "-p", "hi", "-q");
    assert_string_equal(buf_str(&s.out), "four\n");
    SPAWN(&s, NULL, "run", "m", "-p", "hi", "-q", "--reasoning-format", "none");
    assert_string_equal(buf_str(&s.out), "<think>\nso so\n</think>\n\nfour\n");
    SPAWN(&s, NULL, "run", "m", "-p", "hi", "-q", "--no-template");
    assert_string_equal(buf_str(&s.out), "<think>\nso so\n</think>\n\nfour\n");
    spawn_env("FAKE_ANSWER");
}

static void stop_strings_and_lengths_end_the_answer(void **state) {
    (void)state;
    spawn_env("FAKE_ANSWER=one two\nthree");
    SPAWN(&s, NULL, "run", "m", "-p", "hi", "--json", "-r", "xyz", "--stop", "two");
    json_t *o = spawned_answer(&s, "run");
    assert_string_equal(text_at(o, "text"), "one ");
    assert_string_equal(text_at(o, "stop"), "stop_string");
    json_decref(o);
    SPAWN(&s, NULL, "run", "m", "-p", "hi", "-q", "-r", "\\n");
    assert_string_equal(buf_str(&s.out), "one two\n");
    SPAWN(&s, NULL, "run", "m", "-p", "hi", "--json", "-n", "3");
    o = spawned_answer(&s, "run");
    assert_string_equal(text_at(o, "text"), "one");
    assert_string_equal(text_at(o, "stop"), "length");
    json_decref(o);
    spawn_env("FAKE_ANSWER");
}

static void streamed_text_is_that_of_the_whole_answer(void **state) {
    (void)state;
    spawn_env("FAKE_ANSWER=grüße 漢字 \xf0\x9f\x98\x80 \x1b[31m end\n");
    SPAWN(&s, NULL, "run", "m", "-p", "hi", "-q");
    assert_string_equal(buf_str(&s.out), getenv("FAKE_ANSWER")); /* to a pipe: as it is */
    SPAWN(&s, NULL, "run", "m", "-p", "hi", "--json");
    json_t *o = spawned_answer(&s, "run");
    assert_string_equal(text_at(o, "text"), getenv("FAKE_ANSWER"));
    json_decref(o);
    spawn_env("FAKE_ANSWER");
}

static void bytes_that_are_not_utf8_do_not_break_json(void **state) {
    (void)state;
    spawn_env("FAKE_ANSWER=a\xff"
              "b");
    SPAWN(&s, "p\xfe", "run", "m", "--json");
    json_t *o = spawned_answer(&s, "run");
    assert_string_equal(text_at(o, "text"), "a\xef\xbf\xbd"
                                            "b");
    json_decref(o);
    spawn_env("FAKE_ANSWER");
}

static void a_prompt_longer_than_the_context_says_what_to_do(void **state) {
    (void)state;
    SPAWN(&s, NULL, "run", "m", "-c", "16", "-p", "0123456789");
    assert_int_equal(s.code, 1);
    assert_has(&s.err, "the prompt has 29 tokens");
    assert_has(&s.err, "a context of 16; enlarge it with -c 512");
    SPAWN(&s, NULL, "run", "m", "-c", "32", "-p", "0123456789");
    assert_int_equal(s.code, 0);
    assert_string_equal(buf_str(&s.out), "An a\n");
    assert_has(&s.err, "the context of 32 tokens is full");
}

static void without_the_template_the_prompt_is_continued(void **state) {
    (void)state;
    SPAWN(&s, NULL, "run", "m", "-p", "<|im_start|>", "--no-template", "--json");
    json_t *o = spawned_answer(&s, "run"); /* BOS, and the name as plain text */
    assert_int_equal(int_at(test_json_get(o, "tokens"), "prompt"), 1 + 12);
    json_decref(o);
    SPAWN(&s, NULL, "run", "m", "-p", "x", "--no-template", "-sys", "y");
    assert_int_equal(s.code, 2);
}

static void warnings_of_the_library_are_shown_unless_quiet(void **state) {
    (void)state;
    SPAWN(&s, NULL, "run", "warning.gguf", "-p", "x");
    assert_has(&s.err, "atsinfer: warning: this model is only a test\n");
    SPAWN(&s, NULL, "run", "warning.gguf", "-p", "x", "-q");
    assert_int_equal(s.err.len, 0);
}

static void pinning_is_asked_for_by_flag_only(void **state) {
    (void)state;
    SPAWN(&s, NULL, "run", "m", "-p", "x", "--pin", "on");
    assert_has(&s.err, "no CPU to bind a thread to\n");
    assert_int_equal(s.code, 0);
    SPAWN(&s, NULL, "run", "m", "-p", "x");
    assert_null(strstr(s.err.data, "no CPU to bind"));
    SPAWN(&s, NULL, "run", "m", "-p", "x", "--pin", "sometimes");
    assert_int_equal(s.code, 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_arguments_there_is_short_help),
        cmocka_unit_test(every_command_has_help_even_with_a_broken_environment),
        cmocka_unit_test(exit_codes_say_what_went_wrong),
        cmocka_unit_test(plan_prints_devices_and_homes),
        cmocka_unit_test(rules_of_a_plan_reach_the_library),
        cmocka_unit_test(wrong_usage_is_code_two_with_a_hint),
        cmocka_unit_test(with_json_an_error_is_an_object_too),
        cmocka_unit_test(a_full_disk_or_closed_output_is_told),
        cmocka_unit_test(the_model_is_found_where_it_is_said_to_be),
        cmocka_unit_test(an_answer_goes_to_standard_output_and_figures_to_standard_error),
        cmocka_unit_test(the_prompt_is_put_together_from_flag_file_and_standard_input),
        cmocka_unit_test(json_tells_text_tokens_stop_and_times),
        cmocka_unit_test(thoughts_are_no_part_of_the_answer),
        cmocka_unit_test(stop_strings_and_lengths_end_the_answer),
        cmocka_unit_test(streamed_text_is_that_of_the_whole_answer),
        cmocka_unit_test(bytes_that_are_not_utf8_do_not_break_json),
        cmocka_unit_test(a_prompt_longer_than_the_context_says_what_to_do),
        cmocka_unit_test(without_the_template_the_prompt_is_continued),
        cmocka_unit_test(warnings_of_the_library_are_shown_unless_quiet),
        cmocka_unit_test(pinning_is_asked_for_by_flag_only),
    };
    int failed = cmocka_run_group_tests(tests, spawn_setup, NULL);
    spawned_free(&s);
    return failed;
}
