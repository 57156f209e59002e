/* A second real model, Gemma 3 270M Q4_K_M (a base model: SentencePiece of 262144 tokens, windows
 * of 512, Q5_0, Q4_K, Q6_K and Q8_0 in one file), along a peer's greedy text; its terms do not let
 * us keep it. Argument: the file (`./check --long` fetches it). */
#include "agree.h"

static const char *model;

static void passages_are_tokenised_as_by_the_peer(void **state) {
    (void)state;
    ats_options o = agree_options(model);
    o.metadata_only = true;
    ats_engine *e = agree_open(&o);
    json_t *peer = test_fixture("gemma3_peer.json");
    const json_t *prompts = test_json_get(peer, "prompts");
    for (size_t i = 0; i < json_array_size(prompts); i++) {
        const json_t *prompt = json_array_get(prompts, i), *text = test_json_get(prompt, "text");
        size_t n, n_want;
        int32_t *ids, *want = test_json_ids(test_json_get(prompt, "prompt_ids"), &n_want);
        TEST_OK(ats_tokenize(e, json_string_value(text), json_string_length(text),
                             ATS_TOKENIZE_SPECIAL, &ids, &n));
        assert_int_equal(n, n_want);
        assert_memory_equal(ids, want, n * sizeof *ids);
        ats_free(ids);
        free(want);
    }
    json_decref(peer);
    ats_engine_close(e);
}

static void follows_the_peer(ats_math math, ats_kv_type kv) {
    ats_options o = agree_options(model);
    o.n_ctx = 1024;
    o.math = math;
    o.kv_k = o.kv_v = kv;
    ats_engine *e = agree_open(&o);
    agree_with_peer(e, "gemma3_peer.json", 3, 0.1);
    ats_engine_close(e);
}

static void default_arithmetic_follows_the_peer(void **state) {
    (void)state;
    follows_the_peer(ATS_MATH_DEFAULT, ATS_KV_F16);
}

static void float_arithmetic_follows_the_peer(void **state) {
    (void)state;
    follows_the_peer(ATS_MATH_F32, ATS_KV_F32);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(passages_are_tokenised_as_by_the_peer),
        cmocka_unit_test(default_arithmetic_follows_the_peer),
        cmocka_unit_test(float_arithmetic_follows_the_peer),
    };
    if (argc != 2) return 2;
    model = argv[1];
    return cmocka_run_group_tests_name("gemma3", tests, NULL, NULL);
}
