/* The other commands as a user or script sees them: what they print, and as JSON. */
#include "fake_engine.h"
#include "spawn.h"

#include <fcntl.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

static struct spawned s; /* of the last program */

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
    json_t *o = spawned_answer(&s, "bench");
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
    json_t *o = spawned_answer(&s, "bench");
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
    json_t *o = spawned_answer(&s, "perplexity");
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
    json_t *o = spawned_answer(&s, "tokenize");
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
    assert_string_equal(buf_str(&s.out), "{% for m %}\x1b[2J\n"); /* to a pipe: as it is */
    SPAWN(&s, NULL, "inspect", "m.gguf", "--json");
    json_t *o = spawned_answer(&s, "inspect");
    assert_int_equal(int_at(o, "n_params"), 1500000);
    json_decref(o);
    SPAWN(&s, NULL, "inspect", "m.gguf", "--json", "--kv", "fake.list");
    o = spawned_answer(&s, "inspect");
    assert_int_equal(int_at(o, "n"), 300);
    json_decref(o);
}

static void simulate_tells_speeds_and_limits(void **state) {
    (void)state;
    SPAWN(&s, NULL, "simulate", "m.gguf");
    assert_int_equal(s.code, 2);
    assert_has(&s.err, "--machine");
    SPAWN(&s, NULL, "simulate", "profiled.gguf"); /* on this one, by the kept times */
    assert_int_equal(s.code, 0);
    SPAWN(&s, NULL, "simulate", "m.gguf", "--machine", "m.json", "--vram", "512");
    assert_has(&s.out, "decode     12.50 tok/s at depth 512\n");
    assert_has(&s.out, "prefill    300.0 tok/s of 1024 tokens\n");
    assert_has(&s.out, "limit S6b  20.0 tok/s, bound by dram, hit 40%");
    assert_has(&s.out, "512.0 MiB on the GPU, 3 of 5 items whole, 1 of 2 blocks divided");
    assert_lacks(&s.out, "\x1b");
    char trace[600];
    tmp_file(trace, sizeof trace, "trace", "{}");
    struct stat before;
    int fd = open(trace, O_RDONLY);
    SPAWN(&s, NULL, "simulate", "m.gguf", "--machine", "m.json", "--json", "--trace", trace);
    assert_int_equal(fstat(fd, &before), 0);
    assert_int_equal(before.st_nlink, 0); /* replaced when it was whole */
    close(fd);
    json_t *o = spawned_answer(&s, "simulate"), *written = test_json_read(trace);
    assert_null(json_object_get(o, "trace"));
    assert_int_equal(json_array_size(test_json_get(written, "traceEvents")), 1);
    json_decref(o), json_decref(written);
    SPAWN(&s, NULL, "simulate", "m.gguf", "--machine", "m.json", "--trace", "/no/such/dir/t");
    assert_has(&s.err, "cannot create /no/such/dir/t");
    tmp_file(trace, sizeof trace, "model", "GGUF");
    SPAWN(&s, NULL, "simulate", "m.gguf", "--machine", "m.json", "--trace", trace);
    assert_int_equal(s.code, 2);
    assert_has(&s.err, "is something else: it is not replaced");
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
    assert_has(&s.out, "limit of its blocks  20.0 tok/s, bound by dram\n");
    assert_has(&s.out, "decode tok/s  prefill tok/s   with streaming: decode, prefill\n");
    assert_has(&s.out, "as it is                  12.50          300.0                    20.00");
    assert_has(&s.out, "half the bus              11.00          150.0                    15.00"
                       "    350.0\n");
    assert_has(&s.out, "left to others     1.0 KiB\nthe host has only 512 B: what does not fit");
    assert_lacks(&s.out, "limit of a prefill"); /* which nothing bounds */
    assert_lacks(&s.out, "1 GiB more");
    assert_has(&s.out, "blk.7.attn_kv");
    assert_has(&s.out, "both (GPU 75%): by tensor\n");
    assert_lacks(&s.out, "\x1b");
    SPAWN(&s, NULL, "plan", "m.gguf", "--machine", "m.json", "--json");
    json_t *o = spawned_answer(&s, "plan");
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
    json_t *o = spawned_answer(&s, "plan");
    assert_int_equal(int_at(test_json_get(o, "diff"), "other_gpu_bytes"), 4096);
    json_decref(o);
    SPAWN(&s, NULL, "plan", "m.gguf", "--diff", "layer");
    assert_has(&s.err, "--diff needs times: of a described machine (--machine), or of this one");
    SPAWN(&s, NULL, "plan", "profiled.gguf", "--diff", "layer", "--profile", "off");
    assert_has(&s.err, "--diff needs times");
    SPAWN(&s, NULL, "plan", "m.gguf", "--expert-hit", "0.5");
    assert_has(&s.err, "--expert-hit needs times");
    SPAWN(&s, NULL, "plan", "m.gguf", "--diff", "layer", "--profile", "mine.json");
    assert_has(&s.out, "against layer: "); /* by the times of that file */
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
    json_t *o = spawned_answer(&s, "plan");
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
    json_t *o = spawned_answer(&s, "profile");
    assert_string_equal(json_string_value(test_json_get(o, "gpu")), "quick");
    json_decref(o);
    SPAWN(&s, NULL, "profile", "alien.gguf");
    assert_int_equal(s.code, 4);
    SPAWN(&s, NULL, "plan", "profiled.gguf"); /* as the engine explains it */
    assert_has(&s.out, "plan: by hand\n");
    assert_has(&s.out, "limit of its blocks  20.0 tok/s, bound by dram\n");
    assert_lacks(&s.err, "no times of this machine");
    SPAWN(&s, NULL, "plan", "profiled.gguf", "--json");
    o = spawned_answer(&s, "plan");
    test_json_get(test_json_get(o, "explanation"), "limits");
    json_decref(o);
    SPAWN(&s, NULL, "plan", "other.gguf");
    assert_lacks(&s.out, "limit of its blocks");
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
    json_t *o = spawned_answer(&s, "doctor");
    assert_int_equal(int_at(test_json_get(o, "cpu"), "cores_usable"), 4);
    assert_true(json_is_null(test_json_get(o, "default_model")));
    json_decref(o);
}

int main(void) {
    const struct CMUnitTest tests[] = {
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
