/* The commands as a user or script sees them: output, errors, exit codes. */
#include "fake_engine.h"
#include "spawn.h"

#include <fcntl.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

static struct spawned s; /* of the last program */

/* The one object on standard output; owned by the caller. */
static json_t *answer(const char *command) {
    json_t *o;
    TEST_OK(json_parse(buf_str(&s.out), s.out.len, &o));
    assert_int_equal(json_integer_value(test_json_get(o, "schema")), 1);
    assert_string_equal(json_string_value(test_json_get(o, "command")), command);
    return o;
}

static json_int_t int_at(const json_t *o, const char *key) {
    return json_integer_value(test_json_get(o, key));
}

static const char *text_at(const json_t *o, const char *key) {
    return json_string_value(test_json_get(o, key));
}

static void tmp_file(char *path, size_t n, const char *name, const char *text) {
    test_tmp_path(path, n, name);
    TEST_OK(file_write(path, text, strlen(text)));
}

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
    json_t *o = answer("plan");
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
    json_t *o = answer("run"), *error = test_json_get(o, "error");
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
        json_t *o = answer("run");
        assert_int_equal(int_at(test_json_get(o, "tokens"), "prompt"), FRAME + cases[i].n);
        json_decref(o);
    }
}

static void json_tells_text_tokens_stop_and_times(void **state) {
    (void)state;
    SPAWN(&s, NULL, "run", "m", "-p", "hi", "--json", "-s", "18446744073709551615");
    json_t *o = answer("run"), *timings = test_json_get(o, "timings");
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
    json_t *o = answer("run");
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
    json_t *o = answer("run");
    assert_string_equal(text_at(o, "text"), "one ");
    assert_string_equal(text_at(o, "stop"), "stop_string");
    json_decref(o);
    SPAWN(&s, NULL, "run", "m", "-p", "hi", "-q", "-r", "\\n");
    assert_string_equal(buf_str(&s.out), "one two\n");
    SPAWN(&s, NULL, "run", "m", "-p", "hi", "--json", "-n", "3");
    o = answer("run");
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
    json_t *o = answer("run");
    assert_string_equal(text_at(o, "text"), getenv("FAKE_ANSWER"));
    json_decref(o);
    spawn_env("FAKE_ANSWER");
}

static void bytes_that_are_not_utf8_do_not_break_json(void **state) {
    (void)state;
    spawn_env("FAKE_ANSWER=a\xff"
              "b");
    SPAWN(&s, "p\xfe", "run", "m", "--json");
    json_t *o = answer("run");
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
    json_t *o = answer("run"); /* BOS, and the name as plain text */
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

/* ---------------------------------------------------------------------------------------- bench */

static void bench_prints_the_fields_of_llama_bench(void **state) {
    (void)state;
    static const char *const keys[] = {
        "cpu_info",  "model_filename", "model_type", "model_size", "model_n_params", "n_batch",
        "n_threads", "type_k",         "type_v",     "n_prompt",   "n_gen",          "n_depth",
        "test_time", "avg_ns",         "stddev_ns",  "avg_ts",     "stddev_ts"};
    SPAWN(&s, NULL, "bench", "m", "-p", "8,16", "-n", "4", "-pg", "8,2", "-d", "0,32", "-r", "3",
          "-o", "json");
    assert_int_equal(s.code, 0);
    json_t *list;
    TEST_OK(json_parse(buf_str(&s.out), s.out.len, &list));
    assert_int_equal(json_array_size(list), 8); /* 4 tests at 2 depths */
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *r = json_array_get(list, i), *ns = test_json_get(r, "samples_ns");
        for (size_t k = 0; k < COUNT_OF(keys); k++)
            test_json_get(r, keys[k]);
        assert_int_equal(json_array_size(ns), 3);
        double sum = 0, n = (double)(int_at(r, "n_prompt") + int_at(r, "n_gen"));
        for (size_t k = 0; k < 3; k++)
            sum += n * 1e9 / (double)json_integer_value(json_array_get(ns, k));
        double got = json_real_value(test_json_get(r, "avg_ts"));
        assert_true(fabs(got - sum / 3) < 1e-6 * got);
    }
    const json_t *last = json_array_get(list, 7);
    assert_int_equal(int_at(last, "n_prompt"), 8);
    assert_int_equal(int_at(last, "n_gen"), 2);
    assert_int_equal(int_at(last, "n_depth"), 32);
    json_decref(list);
}

static void bench_runs_every_combination_of_its_lists(void **state) {
    (void)state;
    SPAWN(&s, NULL, "bench", "m", "-p", "4", "-n", "0", "-r", "1", "-b", "8,16", "-ctk", "f16,q8_0",
          "-t", "1,2", "-o", "csv");
    int n_lines = 0;
    for (const char *p = buf_str(&s.out); *p; p++)
        n_lines += *p == '\n';
    assert_int_equal(n_lines, 1 + 8);
    assert_has(&s.out, "n_prompt,n_gen,n_depth");
    SPAWN(&s, NULL, "bench", "m", "-p", "4", "-n", "2", "-r", "1", "-o", "jsonl");
    n_lines = 0;
    for (const char *p = buf_str(&s.out); *p; p++)
        n_lines += *p == '\n';
    assert_int_equal(n_lines, 2);
    SPAWN(&s, NULL, "bench", "m", "-p", "4", "-n", "2", "-r", "1", "--json");
    json_t *o = answer("bench");
    assert_int_equal(json_array_size(test_json_get(o, "results")), 2);
    json_decref(o);
}

static void bench_prints_a_table(void **state) {
    (void)state;
    SPAWN(&s, NULL, "bench", "m", "-p", "16", "-n", "8", "-d", "4", "-r", "2", "-t", "2");
    assert_has(&s.out, "| model ");
    assert_has(&s.out, "| ------");
    assert_has(&s.out, "| fake 1.50 M Q4_1 ");
    assert_has(&s.out, " pp16 @ d4 |");
    assert_has(&s.out, " tg8 @ d4 |");
    assert_has(&s.out, " ± ");
    assert_lacks(&s.out, "type_k");
    assert_has(&s.err, "fixed stream");
}

/* The stand-in says of decode: 2 rounds of 2 ms, the processor busy for 3 ms, the GPU for 1. */
static void bench_measures_what_rounds_are_made_of(void **state) {
    (void)state;
    SPAWN(&s, NULL, "bench", "m", "-p", "0", "-n", "2", "-r", "1", "--metrics", "--json");
    json_t *o = answer("bench");
    const json_t *r = json_array_get(test_json_get(o, "results"), 0);
    const struct {
        const char *key;
        double value;
    } wanted[] = {{"cpu_busy", 0.75},
                  {"gpu_busy", 0.25},
                  {"overlap_efficiency", 1.0 / 3},
                  {"link_bytes_per_s", 2e6},
                  {"round_activation_bytes", 4000},
                  {"round_splits", 3},
                  {"round_submissions", 2}};
    for (size_t i = 0; i < COUNT_OF(wanted); i++) {
        double got = json_number_value(test_json_get(r, wanted[i].key));
        if (got < wanted[i].value * 0.999 || got > wanted[i].value * 1.001)
            fail_msg("%s is %g, expected %g", wanted[i].key, got, wanted[i].value);
    }
    json_decref(o);
    SPAWN(&s, NULL, "bench", "m", "-p", "0", "-n", "2", "-r", "1", "--metrics");
    assert_has(&s.out,
               "| cpu busy | gpu busy | link MB/s | exposed us | splits | submits |  host us |");
    assert_has(&s.out, "|     75 % |     25 % |       2.0 |        0.0 |      3 |       2 |");
    SPAWN(&s, NULL, "bench", "m", "-p", "0", "-n", "2", "-r", "1");
    assert_lacks(&s.out, "gpu busy"); /* one device, and not asked for */
    SPAWN(&s, NULL, "bench", "m", "-t", "1,2", "--trace", "t.json");
    assert_int_equal(s.code, 2);
    assert_has(&s.err, "--trace");
}

static void bench_takes_its_tokens_from_a_text(void **state) {
    (void)state;
    char path[600];
    tmp_file(path, sizeof path, "text", "some text");
    SPAWN(&s, NULL, "bench", "m", "-p", "16", "-n", "0", "-r", "1", "-f", path, "--json");
    assert_has(&s.out, "\"token_stream\": \"text\"");
}

/* ----------------------------------------------------------------------------------- perplexity */

/* The alphabet of bytes in order: each byte but the first of a window follows its predecessor, and
 * the stand-in gives it FAKE_LOGIT. Every counted token costs the same. */
static void perplexity_is_the_closed_form(void **state) {
    (void)state;
    char text[2001] = "", path[600];
    for (int i = 0; i < 2000; i++)
        text[i] = (char)(1 + i % 255);
    tmp_file(path, sizeof path, "text", text);
    SPAWN(&s, NULL, "perplexity", "m", "-f", path, "-c", "64", "--json");
    assert_int_equal(s.code, 0);
    json_t *o = answer("perplexity");
    /* 2001 tokens with BOS are 31 windows; in each, rows 32..62 count. Where 255 is followed by 1
     * and not 0, the successor's logit is wasted. */
    double e = exp((double)FAKE_LOGIT), other = FAKE_VOCAB - 1;
    double good = log(e + other) - (double)FAKE_LOGIT, bad = log(e + other), nll = 0;
    int n = 0;
    for (int w = 0; w < 31; w++) {
        for (int row = 32; row < 63; row++, n++) {
            int at = w * 64 + row - 1; /* in the text, behind BOS */
            nll += (unsigned char)text[at] == 255 ? bad : good;
        }
    }
    assert_int_equal(int_at(o, "n_chunks"), 31);
    assert_int_equal(int_at(o, "n_counted"), n);
    double got = json_real_value(test_json_get(o, "perplexity"));
    if (fabs(got - exp(nll / n)) > 1e-9) fail_msg("%.12f, not %.12f", got, exp(nll / n));
    json_decref(o);
    SPAWN(&s, NULL, "perplexity", "m", "-f", path, "-c", "64", "--chunks", "2");
    assert_has(&s.out, "(2 windows of 64 tokens, 62 counted)");
    SPAWN(&s, text, "perplexity", "m", "-f", "-", "-c", "100", "-q");
    assert_has(&s.out, "perplexity ");
    assert_int_equal(s.err.len, 0);
}

static void a_text_shorter_than_a_window_is_refused(void **state) {
    (void)state;
    SPAWN(&s, "short", "perplexity", "m", "-f", "-");
    assert_int_equal(s.code, 1);
    assert_has(&s.err, "the text has 6 tokens, fewer than one window of 512");
}

/* --------------------------------------------------------------------------------------- logits */

static void logits_are_stored_for_every_token(void **state) {
    (void)state;
    static const char *const batches[] = {"1", "2", "7", "512"};
    char ids[600], path[600];
    tmp_file(ids, sizeof ids, "ids", " 5\n6\t255 256\r\n0  9 ");
    static const int32_t expected[] = {5, 6, 255, 256, 0, 9};
    for (size_t b = 0; b < COUNT_OF(batches); b++) {
        test_tmp_path(path, sizeof path, "out.npy");
        SPAWN(&s, NULL, "logits", "-m", "m", "--ids", ids, "-o", path, "-b", batches[b], "--seqs",
              "3", "--math", "f32", "-ctk", "f32", "-q");
        assert_int_equal(s.code, 0);
        struct test_npy a;
        test_npy_read(path, &a);
        assert_int_equal(a.shape[0], 6);
        assert_int_equal(a.shape[1], FAKE_VOCAB);
        for (int i = 0; i < 6; i++) {
            float row[FAKE_VOCAB];
            fake_logits(expected[i], row);
            assert_memory_equal(a.data + i * FAKE_VOCAB, row, sizeof row);
        }
        test_npy_free(&a);
    }
}

static void wrong_ids_are_refused_by_position(void **state) {
    (void)state;
    static const struct {
        const char *ids, *text;
    } cases[] = {
        {"1 2 x", "id 2, \"x\""},
        {"1 260", "id 1, \"260\", is not a whole number from 0 to 259"},
        {"-1", "id 0, \"-1\""},
        {"1,2", "id 0, \"1,2\""},
        {"1 99999999999999999999", "id 1"},
        {"1 2.0", "id 1, \"2.0\""},
        {"  \n", "there are no ids"},
    };
    char path[600];
    test_tmp_path(path, sizeof path, "out.npy");
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        SPAWN(&s, cases[i].ids, "logits", "m", "--ids", "-", "-o", path);
        assert_int_equal(s.code, 1);
        assert_has(&s.err, cases[i].text);
        assert_false(file_exists(path));
    }
    SPAWN(&s, "1 2 3 4 5", "logits", "m", "--ids", "-", "-o", path, "-c", "4");
    assert_has(&s.err, "5 ids do not fit in a context of 4; enlarge it with -c 5");
}

/* --------------------------------------------------------------------- tokenize, inspect, doctor
 */

static void tokenize_goes_both_ways(void **state) {
    (void)state;
    SPAWN(&s, NULL, "tokenize", "-m", "m", "a", "b");
    assert_string_equal(buf_str(&s.out), "256 97 32 98\n");
    SPAWN(&s, "a\n", "tokenize", "-m", "m", "--no-special");
    assert_string_equal(buf_str(&s.out), "97 10\n");
    SPAWN(&s, NULL, "tokenize", "-m", "m", "--pieces", "a\n\xc3");
    assert_string_equal(buf_str(&s.out),
                        "    256  <s>\n     97  a\n     10  \\n\n    195  \\xc3\n");
    SPAWN(&s, NULL, "tokenize", "-m", "m", "<|im_end|>", "--parse-special", "--no-special");
    assert_string_equal(buf_str(&s.out), "259\n");
    SPAWN(&s, NULL, "tokenize", "-m", "m", "--decode", "256", "104", "105");
    assert_string_equal(buf_str(&s.out), "hi");
    SPAWN(&s, "256 104", "tokenize", "-m", "m", "--decode", "--special");
    assert_string_equal(buf_str(&s.out), "<s>h");
    SPAWN(&s, NULL, "tokenize", "-m", "m", "--decode", "300");
    assert_int_equal(s.code, 1);
    SPAWN(&s, NULL, "tokenize", "-m", "m", "--json", "a");
    json_t *o = answer("tokenize");
    assert_int_equal(json_array_size(test_json_get(o, "tokens")), 2);
    assert_string_equal(json_string_value(json_array_get(test_json_get(o, "pieces"), 1)), "a");
    json_decref(o);
    SPAWN(&s, NULL, "tokenize", "-m", "m"); /* empty input */
    assert_string_equal(buf_str(&s.out), "256\n");
}

static void inspect_shows_a_file(void **state) {
    (void)state;
    SPAWN(&s, NULL, "inspect", "m.gguf");
    assert_has(&s.out, "architecture   fake\n");
    assert_has(&s.out, "1.50 M parameters, 3.0 MiB");
    assert_has(&s.out, "Q4_1: 1 tensors, 1.2 KiB");
    assert_has(&s.out, "gpt2, smollm, 260 tokens, bos 256 (added), eos 257, ends at 257 259");
    assert_has(&s.out, "fake.list = [1, 2, 3] (300 in all)  [array<u32>]");
    SPAWN(&s, NULL, "inspect", "m.gguf", "--tensors");
    assert_has(&s.out, "64 x 32");
    assert_lacks(&s.out, "\x1b");
    SPAWN(&s, NULL, "inspect", "m.gguf", "--kv", "general.name");
    assert_string_equal(buf_str(&s.out), "Fake 1M\n");
    SPAWN(&s, NULL, "inspect", "m.gguf", "--kv", "nothing");
    assert_int_equal(s.code, 1);
    SPAWN(&s, NULL, "inspect", "m.gguf", "--template");
    assert_string_equal(buf_str(&s.out), "{% for m %}\n");
    SPAWN(&s, NULL, "inspect", "m.gguf", "--json");
    json_t *o = answer("inspect");
    assert_int_equal(int_at(o, "n_params"), 1500000);
    json_decref(o);
    SPAWN(&s, NULL, "inspect", "m.gguf", "--json", "--kv", "fake.list");
    o = answer("inspect");
    assert_int_equal(int_at(o, "n"), 300);
    json_decref(o);
}

static void simulate_tells_speeds_and_limits(void **state) {
    (void)state;
    SPAWN(&s, NULL, "simulate", "m.gguf");
    assert_int_equal(s.code, 2);
    assert_has(&s.err, "--machine");
    SPAWN(&s, NULL, "simulate", "m.gguf", "--machine", "m.json", "--vram", "512");
    assert_has(&s.out, "decode     12.50 tok/s at depth 512\n");
    assert_has(&s.out, "prefill    300.0 tok/s of 1024 tokens\n");
    assert_has(&s.out, "limit S6b  20.0 tok/s, bound by dram, hit 40%");
    assert_has(&s.out, "512.0 MiB on the GPU, 3 of 5 items whole, 1 of 2 blocks divided");
    assert_lacks(&s.out, "\x1b");
    char trace[600];
    tmp_file(trace, sizeof trace, "trace", "");
    SPAWN(&s, NULL, "simulate", "m.gguf", "--machine", "m.json", "--json", "--trace", trace);
    json_t *o = answer("simulate"), *written = test_json_read(trace);
    assert_null(json_object_get(o, "trace"));
    assert_int_equal(json_array_size(test_json_get(written, "traceEvents")), 1);
    json_decref(o), json_decref(written);
    SPAWN(&s, NULL, "simulate", "m.gguf", "--machine", "m.json", "--trace", "/no/such/dir/t");
    assert_has(&s.err, "cannot write /no/such/dir/t");
    SPAWN(&s, NULL, "simulate", "m.gguf", "--machine", "m.json", "--ablation");
    assert_has(&s.out, "slots, chunks of 512 tokens\n");
    assert_has(&s.out, "base                 8.25       50%       1.50       2.00 ms        7\n");
    SPAWN(&s, NULL, "simulate", "m.gguf", "--machine", "m.json", "--load", "load.json");
    assert_has(&s.out,
               "     2.0     40.00      30.00   20.00   35.00     25.0%        1     0.50 s  "
               "cpu x2.50\n");
    assert_has(&s.out, "2.50 s  plan 1, shards moved, 40.00 ms -> 30.00 ms a token, for 10 ms: cp");
    assert_lacks(&s.out, "\x1b");
}

static void plan_explains_a_described_machine(void **state) {
    (void)state;
    SPAWN(&s, NULL, "plan", "m.gguf", "--machine", "m.json", "--vram", "512", "--granularity",
          "tensor", "--tensors");
    assert_has(&s.out, "gpu        512.0 MiB     2.0 KiB\n");
    assert_has(&s.out, "2048          12.50          300.0    25.0%");
    assert_has(&s.out, "limit of a blocks   20.0 tok/s, bound by dram\n");
    assert_has(&s.out, "half the bus              11.00          150.0\n");
    assert_lacks(&s.out, "1 GiB more");
    assert_has(&s.out, "blk.7.attention");
    assert_has(&s.out, "both (GPU 75%): by tensor\n");
    assert_lacks(&s.out, "\x1b");
    SPAWN(&s, NULL, "plan", "m.gguf", "--machine", "m.json", "--json");
    json_t *o = answer("plan");
    assert_int_equal(int_at(o, "device_changes"), 3);
    json_decref(o);
}

static void two_plans_are_compared(void **state) {
    (void)state;
    SPAWN(&s, NULL, "plan", "m.gguf", "--machine", "m.json", "--diff", "layer");
    assert_has(&s.out,
               "against layer: decode 8.00 tok/s here, 7.00 there; prefill 200.0, 150.0; on "
               "the GPU 2.0 KiB, 4.0 KiB, more than there is room for\n");
    assert_has(&s.out, "up                           cpu -> gpu 25%           5.0 KiB         0 B  "
                       "0-2,4-5\n");
    assert_has(&s.out, "up                           gpu -> gpu 25%           1.0 KiB         0 B  "
                       "3\n");
    assert_has(&s.out,
               "he^[ad                       gpu -> cpu                   0 B     2.0 KiB\n");
    assert_has(&s.out, "7 items differ; to become the other plan, 3.0 KiB come to the GPU, 512 B "
                       "leave it\n");
    SPAWN(&s, NULL, "plan", "m.gguf", "--machine", "m.json", "--diff", "p.json", "--json");
    json_t *o = answer("plan");
    assert_int_equal(int_at(test_json_get(o, "diff"), "other_gpu_bytes"), 4096);
    json_decref(o);
    SPAWN(&s, NULL, "plan", "m.gguf", "--diff", "layer");
    assert_has(&s.err, "give it with --machine");
}

static void given_homes_reach_the_planner(void **state) {
    (void)state;
    SPAWN(&s, NULL, "plan", "m.gguf", "--machine", "m.json");
    assert_lacks(&s.out, "told where to be");
    SPAWN(&s, NULL, "plan", "m.gguf", "--machine", "m.json", "-ngl", "3", "-ot", "a=cpu", "-ot",
          "b=gpu", "-ncmoe", "4");
    assert_has(&s.out, "423 of 9 items were told where to be: decode 8.00 tok/s, 10.00 if all were "
                       "free;\nprefill 200.0 tok/s, 220.0 if free; in all 25.0% slower\n");
    SPAWN(&s, NULL, "plan", "m.gguf", "--machine", "m.json", "--plan", "p.json", "--json");
    json_t *o = answer("plan");
    assert_int_equal(int_at(test_json_get(o, "fixed"), "items"), 1000);
    json_decref(o);
    SPAWN(&s, NULL, "plan", "m.gguf", "--machine", "m.json", "-cmoe", "-ncmoe", "2");
    assert_has(&s.err, "exclude each other");
}

static void profile_measures_and_plan_uses_it(void **state) {
    (void)state;
    SPAWN(&s, NULL, "profile", "m.gguf", "--device", "cpu,vulkan");
    assert_int_equal(s.code, 0);
    assert_has(&s.out, "kept before: /c/profile.json\n");
    assert_has(&s.out, "weights up, pinned        24.0 GB/s\n");
    assert_has(&s.out, "CPU to GPU                30.0 us\n");
    assert_has(&s.out,
               "matmul Q4_K 4096 x 2048              2000.0      200.0   400000.0    40000.0");
    assert_lacks(&s.out, "\x1b");
    SPAWN(&s, NULL, "profile", "m.gguf", "--force");
    assert_has(&s.out, "measured in 1.5 s, not kept\n");
    SPAWN(&s, NULL, "profile", "m.gguf", "--quick", "--json");
    json_t *o = answer("profile");
    assert_string_equal(json_string_value(test_json_get(o, "gpu")), "quick");
    json_decref(o);
    SPAWN(&s, NULL, "profile", "alien.gguf");
    assert_int_equal(s.code, 4);
    SPAWN(&s, NULL, "plan", "profiled.gguf"); /* as the engine explains it */
    assert_has(&s.out, "plan: by hand\n");
    assert_has(&s.out, "limit of a blocks   20.0 tok/s, bound by dram\n");
    assert_lacks(&s.err, "no times of this machine");
    SPAWN(&s, NULL, "plan", "profiled.gguf", "--json");
    o = answer("plan");
    test_json_get(test_json_get(o, "explanation"), "limits");
    json_decref(o);
    SPAWN(&s, NULL, "plan", "other.gguf");
    assert_lacks(&s.out, "limit of a blocks");
    assert_has(&s.err, "no times of this machine are kept for this model");
    SPAWN(&s, NULL, "plan", "other.gguf", "--profile", "off");
    assert_lacks(&s.err, "no times of this machine");
    SPAWN(&s, NULL, "plan", "profiled.gguf", "--diff", "layer"); /* by the profile's file */
    assert_has(&s.out, "against layer: ");
}

static void doctor_shows_the_machine(void **state) {
    (void)state;
    SPAWN(&s, NULL, "doctor");
    assert_has(&s.out, "processor  Fake CPU\n");
    assert_has(&s.out, "features   avx2 fma\n");
    assert_has(&s.out, "4 usable, 3 fast, 3 threads by default");
    assert_has(&s.out, "8.0 GiB, 4.0 GiB of it free");
    assert_has(&s.out, "none by default");
    SPAWN(&s, NULL, "doctor", "--json");
    json_t *o = answer("doctor");
    assert_int_equal(int_at(test_json_get(o, "cpu"), "cores_usable"), 4);
    assert_true(json_is_null(test_json_get(o, "default_model")));
    json_decref(o);
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
        cmocka_unit_test(bench_prints_the_fields_of_llama_bench),
        cmocka_unit_test(bench_runs_every_combination_of_its_lists),
        cmocka_unit_test(bench_prints_a_table),
        cmocka_unit_test(bench_measures_what_rounds_are_made_of),
        cmocka_unit_test(bench_takes_its_tokens_from_a_text),
        cmocka_unit_test(perplexity_is_the_closed_form),
        cmocka_unit_test(a_text_shorter_than_a_window_is_refused),
        cmocka_unit_test(logits_are_stored_for_every_token),
        cmocka_unit_test(wrong_ids_are_refused_by_position),
        cmocka_unit_test(tokenize_goes_both_ways),
        cmocka_unit_test(inspect_shows_a_file),
        cmocka_unit_test(simulate_tells_speeds_and_limits),
        cmocka_unit_test(profile_measures_and_plan_uses_it),
        cmocka_unit_test(plan_explains_a_described_machine),
        cmocka_unit_test(given_homes_reach_the_planner),
        cmocka_unit_test(two_plans_are_compared),
        cmocka_unit_test(doctor_shows_the_machine),
    };
    int failed = cmocka_run_group_tests(tests, spawn_setup, NULL);
    spawned_free(&s);
    return failed;
}
