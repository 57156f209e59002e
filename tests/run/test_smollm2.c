/* The one real model, SmolLM2-135M-Instruct Q4_1: against Hugging Face in float, against a peer's
 * answers and perplexity (tests/fixtures) in the default arithmetic. */
#include "agree.h"

#include <math.h>
#include "base/file.h"

enum { N_WINDOWS = 29 };

static ats_options model_options(const char *path, ats_math math) {
    ats_options o = agree_options(path);
    o.n_ctx = 512;
    o.math = math;
    if (math == ATS_MATH_DEFAULT) o.kv_k = o.kv_v = ATS_KV_F16;
    return o;
}

static void float_arithmetic_equals_hugging_face(void **state) {
    (void)state;
    char model[512], path[512];
    if (!test_model_path(model, sizeof model)) skip();
    if (!test_shared_path(path, sizeof path, "models/smollm2/ref.json")) skip();
    json_t *ref = test_json_read(path);
    struct test_npy last;
    test_shared_path(path, sizeof path, "models/smollm2/logits_last.npy");
    test_npy_read(path, &last);
    size_t n, n_greedy;
    int32_t *prompt = test_json_ids(test_json_get(ref, "prompt"), &n), got[48];
    int32_t *greedy = test_json_ids(test_json_get(ref, "greedy"), &n_greedy);
    assert_int_equal(n_greedy, 48);

    ats_options options = model_options(model, ATS_MATH_F32);
    ats_engine *e = agree_open(&options);
    float *logits = agree_logits(e, prompt, n, 0);
    double d = test_max_abs_diff(logits + (n - 1) * last.n, last.data, last.n);
    print_message("float, last position: max %.2g\n", d);
    assert_true(d <= 5e-3);
    agree_greedy(e, prompt, n, got, n_greedy);
    assert_memory_equal(got, greedy, sizeof got);

    free(logits), free(prompt), free(greedy);
    test_npy_free(&last);
    json_decref(ref);
    ats_engine_close(e);
}

static void default_arithmetic_follows_the_peer(void **state) {
    (void)state;
    char model[512];
    if (!test_model_path(model, sizeof model)) skip();
    ats_options options = model_options(model, ATS_MATH_DEFAULT);
    ats_engine *e = agree_open(&options);
    agree_with_peer(e, "smollm2_peer.json", 5, 0);
    ats_engine_close(e);
}

/* Sum of the NLL of the second half of a window's tokens. */
static double window_nll(ats_engine *e, const int32_t *ids, int n, int first) {
    int width = agree_vocab(e);
    float *logits = agree_logits(e, ids, (size_t)n, 0);
    double sum = 0;
    for (int i = first; i < n; i++)
        sum += agree_nll(logits + (size_t)(i - 1) * (size_t)width, width, ids[i]);
    free(logits);
    return sum;
}

static void perplexity_equals_the_peers(void **state) {
    (void)state;
    char model[512], path[512], *text;
    size_t n_bytes, n_ids;
    int32_t *ids;
    if (!test_model_path(model, sizeof model)) skip();
    json_t *peer = test_fixture("smollm2_perplexity.json");
    test_source_path(path, sizeof path, "tests/fixtures/text.txt");
    TEST_OK(file_read(path, 1 << 20, &text, &n_bytes));
    ats_options options = model_options(model, ATS_MATH_DEFAULT);
    ats_engine *e = agree_open(&options);
    TEST_OK(ats_tokenize(e, text, n_bytes, ATS_TOKENIZE_SPECIAL, &ids, &n_ids));
    int size = (int)json_integer_value(test_json_get(peer, "window_tokens"));
    int first = (int)json_integer_value(test_json_get(peer, "first_scored"));
    assert_int_equal(n_ids, json_integer_value(test_json_get(peer, "n_tokens")));
    double sum = 0;
    for (int i = 0; i < N_WINDOWS; i++)
        sum += window_nll(e, ids + i * size, size, first);
    double ours = exp(sum / N_WINDOWS / (size - first));
    double theirs =
        json_number_value(json_array_get(test_json_get(peer, "running_perplexity"), N_WINDOWS - 1));
    print_message("perplexity over %d windows: %.4f, the peer's %.4f\n", N_WINDOWS, ours, theirs);
    assert_true(fabs(ours / theirs - 1) <= 0.005);
    ats_free(ids);
    free(text);
    json_decref(peer);
    ats_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(float_arithmetic_equals_hugging_face),
        cmocka_unit_test(default_arithmetic_follows_the_peer),
        cmocka_unit_test(perplexity_equals_the_peers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
