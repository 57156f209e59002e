/* Recurrent state: whose slot is whose, and that going back in a session of a recurrent model gives
 * the bits of never having been further.
 *   test_run_recurrent [DEVICES SEED]     the sessions on these, divided at random by a seed (0:
 * not) */
#include "agree.h"

#include "backend/backend.h"
#include "run/state.h"

/* ---- slots ---- */

static bool is_remembered(const struct state_seq *seq) {
    for (int i = 0; i < seq->n_snapshots; i++)
        if (seq->snapshots[i].slot == seq->slot) return true;
    return false;
}

/* What a round begins with stays as it is where somebody may go back to it, or in_place is off. */
static void round_in(struct state_seq *seq, bool in_place) {
    bool stays = seq->slot != STATE_NONE && in_place && !is_remembered(seq);
    int32_t before = seq->slot, next = state_begin(seq);
    assert_int_equal(next == before, stays);
    state_commit(seq);
    assert_int_equal(seq->slot, next);
}

/* Exactly as many slots as there are: the most that two sequences ever hold. */
static void slots_suffice(bool in_place) {
    struct state_pool *pool = state_pool_open(state_slots_needed(2, in_place), in_place);
    int least = INT32_MAX;
    const int n_free = state_free_slots(pool);
    struct state_seq *seqs[2] = {state_seq_open(pool), state_seq_open(pool)};
    for (size_t n = 1; n <= 50; n++)
        for (int i = 0; i < 2; i++) {
            round_in(seqs[i], in_place);
            state_begin(seqs[i]);
            least = min_int(least, state_free_slots(pool));
            state_abort(seqs[i]);
            if (n % 3 == 0) state_remember(seqs[i], n);
        }
    assert_int_equal(least, in_place ? 0 : 1); /* 1: only one of them was in a round */
    assert_int_equal(seqs[0]->n_snapshots, STATE_SNAPSHOTS);
    assert_int_equal(seqs[0]->snapshots[0].n_tokens, 42);
    state_begin(seqs[0]); /* closed amid a round */
    state_seq_close(seqs[0]), state_seq_close(seqs[1]);
    assert_int_equal(state_free_slots(pool), n_free);
    state_pool_close(pool);
    assert_int_equal(state_slots_needed(INT32_MAX, in_place), 0);
}

static void slots_suffice_and_come_back(void **state) {
    (void)state;
    slots_suffice(false);
    slots_suffice(true);
}

static void a_failed_round_leaves_the_slots(void **state) {
    (void)state;
    for (int in_place = 0; in_place < 2; in_place++) {
        struct state_pool *pool = state_pool_open(state_slots_needed(1, in_place), in_place);
        struct state_seq *seq = state_seq_open(pool);
        round_in(seq, in_place);
        int32_t slot = seq->slot;
        int n_free = state_free_slots(pool);
        state_begin(seq);
        state_abort(seq);
        assert_int_equal(seq->slot, slot);
        assert_int_equal(state_free_slots(pool), n_free);
        state_seq_close(seq);
        state_pool_close(pool);
    }
}

static void rewinding(bool in_place) {
    struct state_pool *pool = state_pool_open(state_slots_needed(1, in_place), in_place);
    struct state_seq *seq = state_seq_open(pool);
    int32_t at[31] = {0};
    state_remember(seq, 0); /* the beginning needs none */
    assert_int_equal(seq->n_snapshots, 0);
    for (int n = 1; n <= 30; n++) {
        round_in(seq, in_place);
        at[n] = seq->slot;
        if (n % 10 != 0) continue;
        state_remember(seq, (size_t)n);
        state_remember(seq, (size_t)n); /* again: the same one */
    }
    assert_int_equal(seq->n_snapshots, 3);
    assert_int_equal(state_rewind(seq, 29), 20);
    assert_int_equal(seq->slot, at[20]);
    assert_int_equal(seq->n_snapshots, 2); /* that of 30 is of tokens that are gone */
    assert_int_equal(state_rewind(seq, 20), 20);
    assert_int_equal(state_rewind(seq, 9), 0);
    assert_int_equal(seq->slot, STATE_NONE);
    assert_int_equal(seq->n_snapshots, 0);
    state_seq_close(seq);
    state_pool_close(pool);
}

static void rewinding_finds_the_last_snapshot(void **state) {
    (void)state;
    rewinding(false);
    rewinding(true);
}

/* ---- sessions ---- */

enum { N = 110 };

static const char *devices; /* NULL: the CPU */
static uint64_t plan_seed;

static const char *const models[] = {"qwen3next/qwen3next-f16.gguf", "qwen35/qwen35-f16.gguf",
                                     "qwen35moe/qwen35moe-f16.gguf"};

struct live {
    ats_engine *e;
    ats_session *s;
    size_t width;
    int32_t ids[N];
    float *want; /* (N, width) without any going back */
};

static bool live_open(struct live *l, const char *model, int n_batch) {
    char name[128], path[512];
    snprintf(name, sizeof name, "models/%s", model);
    if (!test_shared_path(path, sizeof path, name)) return false;
    ats_options options = agree_options(path);
    options.n_seqs = 2;
    options.n_batch = n_batch;
    options.devices = devices;
    options.plan_seed = plan_seed;
    l->e = agree_open(&options);
    l->width = (size_t)agree_vocab(l->e);
    for (int i = 0; i < N; i++)
        l->ids[i] = (i * 37 + 11) % (int)l->width;
    l->want = agree_logits(l->e, l->ids, N, 0);
    TEST_OK(ats_session_open(l->e, &l->s));
    return true;
}

static void live_close(struct live *l) {
    free(l->want);
    ats_session_close(l->s);
    ats_engine_close(l->e);
}

/* Tokens [begin, end) more; their logits must be those of the whole. */
static void go_on(struct live *l, size_t begin, size_t end, size_t chunk) {
    size_t has;
    (void)ats_session_tokens(l->s, &has);
    assert_int_equal(has, begin);
    float *got = agree_feed(l->e, l->s, l->ids + begin, end - begin, chunk);
    if (memcmp(got, l->want + begin * l->width, (end - begin) * l->width * sizeof *got) != 0)
        fail_msg("tokens %zu to %zu have other logits", begin, end);
    free(got);
}

/* Back to a snapshot, to between two, to before all, to the beginning; in any order. */
static void going_back_changes_no_bit(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT_OF(models); i++) {
        struct live l;
        if (!live_open(&l, models[i], 64)) skip();
        static const size_t backs[] = {70, 60, 39, 109, 40, 1, 0, 100};
        const size_t n = devices ? 3 : COUNT_OF(backs); /* others are slow */
        for (size_t j = 0; j < n; j++) {
            size_t has;
            (void)ats_session_tokens(l.s, &has);
            if (has < 40) go_on(&l, has, 40, 7), has = 40;
            ats_session_snapshot(l.s);
            if (has < 70) go_on(&l, has, 70, 0), has = 70;
            ats_session_snapshot(l.s);
            go_on(&l, has, N, devices ? 13 : 1 + j);
            TEST_OK(ats_session_truncate(l.s, backs[j]));
            assert_null(ats_session_logits(l.s));
        }
        live_close(&l);
    }
}

/* A chat: each prompt shares a beginning with what the session holds. */
static void a_new_prompt_reuses_what_snapshots_allow(void **state) {
    (void)state;
    struct live l;
    size_t reused;
    if (!live_open(&l, models[1], 64)) skip();
    TEST_OK(ats_session_set(l.s, l.ids, 60, &reused));
    assert_int_equal(reused, 0);
    go_on(&l, 60, 80, 1); /* the answer */
    TEST_OK(ats_session_set(l.s, l.ids, 100, &reused));
    assert_int_equal(reused, 80); /* nothing to go back for */
    assert_memory_equal(ats_session_logits(l.s), l.want + 99 * l.width, l.width * sizeof(float));
    TEST_OK(ats_session_set(l.s, l.ids, 95, &reused)); /* the snapshot 16 before the end */
    assert_int_equal(reused, 84);
    assert_memory_equal(ats_session_logits(l.s), l.want + 94 * l.width, l.width * sizeof(float));
    TEST_OK(ats_session_set(l.s, l.ids, 58, &reused));
    assert_int_equal(reused, 44);
    assert_memory_equal(ats_session_logits(l.s), l.want + 57 * l.width, l.width * sizeof(float));
    TEST_OK(ats_session_set(l.s, l.ids, 58, &reused)); /* it is there */
    assert_int_equal(reused, 58);
    live_close(&l);
}

static bool cancel_at_third(void *user) {
    int *asked = user;
    return ++*asked == 3;
}

/* What was evaluated before the request was cancelled stays, state and all. */
static void a_cancelled_prompt_can_be_continued(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT_OF(models); i++) {
        struct live l;
        int asked = 0;
        if (!live_open(&l, models[i], 20)) skip();
        ats_run run = {l.s, l.ids, N, ATS_WANT_NONE, NULL};
        ats_engine_set_cancel(l.e, cancel_at_third, &asked);
        TEST_STATUS(ats_eval(l.e, &run, 1), ATS_CANCELLED);
        ats_engine_set_cancel(l.e, NULL, NULL);
        go_on(&l, 40, 60, 3);
        TEST_OK(ats_session_truncate(l.s, 50)); /* no snapshot: from the beginning */
        go_on(&l, 50, N, 0);
        live_close(&l);
    }
}

/* ---- turns of a chat: also of models whose windows forget ---- */

static const struct {
    const char *model;
    bool recurrent; /* else with windows of 8, which give their first page back before token 72 */
} chats[] = {{"qwen3next/qwen3next-f16.gguf", true},
             {"qwen35/qwen35-f16.gguf", true},
             {"gptoss/gptoss-f16.gguf", false},
             {"gemma3/gemma3-f16.gguf", false}};

/* The prompt's last logits are those of a session that never held anything else. */
static void assert_cold(struct live *l, const int32_t *ids, size_t n) {
    float *want = agree_logits(l->e, ids, n, 0);
    assert_memory_equal(ats_session_logits(l->s), want + (n - 1) * l->width,
                        l->width * sizeof *want);
    free(want);
}

static void set_again(struct live *l, size_t n, size_t want_reused) {
    size_t reused;
    TEST_OK(ats_session_set(l->s, l->ids, n, &reused));
    assert_int_equal(reused, want_reused);
    assert_cold(l, l->ids, n);
}

/* Ten turns of 5 tokens asked and 6 answered, each leaving a snapshot where it began; then another
 * token at `at`. */
static void edit_after_ten_turns(struct live *l, size_t at, size_t want_reused) {
    int32_t edited[N];
    size_t reused;
    TEST_OK(ats_session_truncate(l->s, 0));
    for (size_t begin = 0; begin < N; begin += 11) {
        set_again(l, begin + 5, begin);
        go_on(l, begin + 5, begin + 11, 1);
    }
    memcpy(edited, l->ids, sizeof edited);
    edited[at] ^= 1;
    TEST_OK(ats_session_set(l->s, edited, N, &reused));
    assert_int_equal(reused, want_reused);
    assert_cold(l, edited, N);
}

/* R62: what is appended costs itself, an edit the way from the last snapshot before it. */
static void edits_cost_the_way_from_a_snapshot(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT_OF(chats); i++) {
        struct live l;
        const bool recurrent = chats[i].recurrent;
        if (!live_open(&l, chats[i].model, 64)) skip();
        edit_after_ten_turns(&l, 107, recurrent ? 99 : 107);
        edit_after_ten_turns(&l, 99, 99);
        edit_after_ten_turns(&l, 85, recurrent ? 77 : 85);
        edit_after_ten_turns(&l, 60,
                             0); /* before the oldest snapshot; the windows have forgotten */
        edit_after_ten_turns(&l, 0, 0);
        live_close(&l);
    }
}

/* R63: first turns about a page and a snapshot's distance, and of a few tokens. */
static void second_turns_reuse_the_first_whatever_its_length(void **state) {
    (void)state;
    static const size_t lengths[] = {1, 5, 16, 17, 63, 64, 65};
    for (size_t i = 0; i < COUNT_OF(chats); i++) {
        struct live l;
        if (!live_open(&l, chats[i].model, 64)) skip();
        for (size_t j = 0; j < COUNT_OF(lengths); j++) {
            const size_t n = lengths[j];
            TEST_OK(ats_session_truncate(l.s, 0));
            set_again(&l, n, 0);
            set_again(&l, n, n);      /* it is there */
            set_again(&l, n + 20, n); /* leaves snapshots of n, and 16 before its end */
            set_again(&l, n + 19, chats[i].recurrent ? n + 4 : n + 18);
            const bool forgotten = !chats[i].recurrent && n + 18 >= 71;
            set_again(&l, n + 1, forgotten ? 0 : n);
        }
        live_close(&l);
    }
}

static bool cancel_at(void *user) {
    int *left = user;
    return --*left == 0;
}

/* A prompt that is given up at any of its rounds, then asked for again, or another. */
static void cancelled_turns_leave_what_they_evaluated(void **state) {
    (void)state;
    enum { BATCH = 20, LENGTH = 100 };
    for (size_t i = 0; i < COUNT_OF(chats); i++) {
        struct live l;
        if (!live_open(&l, chats[i].model, BATCH)) skip();
        for (int round = 1; round <= 5; round++)
            for (int other = 0; other < 2; other++) {
                size_t has, reused;
                int left = round;
                TEST_OK(ats_session_truncate(l.s, 0));
                set_again(&l, 30, 0); /* whose snapshots must be gone */
                TEST_OK(ats_session_truncate(l.s, 0));
                ats_engine_set_cancel(l.e, cancel_at, &left);
                TEST_STATUS(ats_session_set(l.s, l.ids, LENGTH, &reused), ATS_CANCELLED);
                ats_engine_set_cancel(l.e, NULL, NULL);
                (void)ats_session_tokens(l.s, &has);
                assert_int_equal(has, (round - 1) * BATCH);
                if (!other) {
                    set_again(&l, LENGTH, has);
                    continue;
                }
                int32_t edited[N];
                memcpy(edited, l.ids, sizeof edited);
                edited[10] ^= 1; /* before all snapshots */
                TEST_OK(ats_session_set(l.s, edited, LENGTH, &reused));
                assert_int_equal(reused, chats[i].recurrent ? 0 : min_size(has, 10));
                assert_cold(&l, edited, LENGTH);
            }
        live_close(&l);
    }
}

/* One session goes back while another, in the same rounds, does not. */
static void sessions_do_not_share_their_snapshots(void **state) {
    (void)state;
    struct live l;
    if (!live_open(&l, models[2], 64)) skip();
    ats_session *other;
    TEST_OK(ats_session_open(l.e, &other));
    float *logits[2] = {calloc(N * l.width, sizeof(float)), calloc(N * l.width, sizeof(float))};
    for (int turn = 0; turn < 4; turn++) {
        ats_run runs[2] = {{l.s, l.ids, 30, ATS_WANT_ALL, logits[0]},
                           {other, l.ids + turn * 20, 20, ATS_WANT_ALL, logits[1]}};
        TEST_OK(ats_eval(l.e, runs, 2));
        assert_memory_equal(logits[0], l.want, 30 * l.width * sizeof(float));
        assert_memory_equal(logits[1], l.want + (size_t)turn * 20 * l.width,
                            20 * l.width * sizeof(float));
        ats_session_snapshot(other);
        ats_session_snapshot(l.s);
        TEST_OK(ats_session_truncate(l.s, turn % 2 ? 0 : 11));
        if (turn % 2 == 0) TEST_OK(ats_session_truncate(l.s, 0));
    }
    free(logits[0]), free(logits[1]);
    ats_session_close(other);
    live_close(&l);
}

/* Slots for two sessions, after a round (the one before it is the same) and remembered. */
static void state_is_counted(void **state) {
    (void)state;
    struct live l;
    if (!live_open(&l, models[1], 64)) skip();
    ats_stats stats;
    ats_engine_stats(l.e, &stats);
    const uint64_t layer = 4 * 128 * 128 + 3 * 1024; /* heads, convolution */
    const uint64_t state_bytes = 3 * layer * 4 * 2 * (1 + STATE_SNAPSHOTS);
    const uint64_t kv_bytes = 2 * 256 * 64 * 2 * 4; /* one layer of one head, F32 */
    assert_int_equal(stats.kv_bytes, state_bytes + kv_bytes);
    live_close(&l);
}

/* The first three layers of a model, all recurrent: nothing has a cache. */
static void put_three_layers(struct gguf_writer *w, const void *user) {
    (void)user;
    gguf_put_u32(w, "qwen3next.block_count", 3);
}
static bool without_the_fourth(const struct gguf *g, const struct gguf_tensor *t,
                               struct agree_tensor *out) {
    (void)g, (void)out;
    return strncmp(t->name, "blk.3.", 6) != 0;
}
static const struct agree_change no_attention = {
    .drop_keys = {".block_count", ".recurrent_layers"},
    .put = put_three_layers,
    .tensor = without_the_fourth,
};

/* More than a page of them. */
static void tokens_without_any_cache_have_room(void **state) {
    (void)state;
    char from[512], to[512];
    test_tmp_path(to, sizeof to, "no_attention.gguf");
    if (!test_shared_path(from, sizeof from, "models/qwen3next/qwen3next-f16.gguf")) skip();
    agree_copy(from, to, &no_attention);
    ats_options options = agree_options(to);
    struct live l = {.e = agree_open(&options)};
    l.width = (size_t)agree_vocab(l.e);
    for (int i = 0; i < N; i++)
        l.ids[i] = (i * 37 + 11) % (int)l.width;
    l.want = agree_logits(l.e, l.ids, N, 0);
    TEST_OK(ats_session_open(l.e, &l.s));
    go_on(&l, 0, N, 7);
    live_close(&l);
}

/* ---- older files ---- */

/* One tensor has all inputs of a recurrent layer: for each key head its rows of q, k, v and gate.
 */
static bool fuse_inputs(const struct gguf *g, const struct gguf_tensor *t,
                        struct agree_tensor *out) {
    enum { N_KEYS = 2, DIM = 32 }; /* of the oracle */
    char name[64];
    if (strstr(t->name, ".attn_gate.")) return false;
    if (!strstr(t->name, ".attn_qkv.")) return true;
    const long layer = strtol(t->name + strlen("blk."), NULL, 10);
    snprintf(name, sizeof name, "blk.%ld.attn_gate.weight", layer);
    const struct gguf_tensor *gate = gguf_tensor_find(g, name);
    assert_non_null(gate);
    const int64_t n = gate->dims[1] / N_KEYS; /* values of a key head */
    assert_int_equal(t->dims[1], 2 * N_KEYS * DIM + gate->dims[1]);
    for (int64_t head = 0; head < N_KEYS; head++) {
        const struct {
            const struct gguf_tensor *from;
            int64_t begin, n;
        } rows[] = {{t, head * DIM, DIM},
                    {t, (N_KEYS + head) * DIM, DIM},
                    {t, 2 * N_KEYS * DIM + head * n, n},
                    {gate, head * n, n}};
        for (size_t i = 0; i < COUNT_OF(rows); i++)
            buf_add(&out->data, rows[i].from->data + rows[i].begin * t->row_bytes,
                    (size_t)(rows[i].n * t->row_bytes));
    }
    snprintf(out->name, sizeof out->name, "blk.%ld.ssm_in.weight", layer);
    out->dims[1] += gate->dims[1];
    return true;
}

static void fused_inputs_give_the_same_bits(void **state) {
    (void)state;
    char path[2][512];
    float *logits[2];
    int32_t ids[N];
    size_t bytes = 0;
    if (!test_shared_path(path[0], sizeof path[0], "models/qwen3next/qwen3next-f16.gguf")) skip();
    test_tmp_path(path[1], sizeof path[1], "fused_inputs.gguf");
    agree_copy(path[0], path[1], &(struct agree_change){.tensor = fuse_inputs});
    for (int i = 0; i < 2; i++) {
        ats_options options = agree_options(path[i]);
        ats_engine *e = agree_open(&options);
        bytes = N * (size_t)agree_vocab(e) * sizeof(float);
        for (int j = 0; j < N; j++)
            ids[j] = (j * 37 + 11) % agree_vocab(e);
        logits[i] = agree_logits(e, ids, N, 0);
        ats_engine_close(e);
    }
    assert_memory_equal(logits[0], logits[1], bytes);
    free(logits[0]), free(logits[1]);
    remove(path[1]);
}

/* 77: there is no such device, which is said. */
static int run_sessions(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(going_back_changes_no_bit),
        cmocka_unit_test(a_new_prompt_reuses_what_snapshots_allow),
        cmocka_unit_test(a_cancelled_prompt_can_be_continued),
        cmocka_unit_test(sessions_do_not_share_their_snapshots),
    };
    if (!agree_has_vulkan()) return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(int argc, char **argv) {
    if (argc > 2) {
        devices = argv[1];
        plan_seed = strtoull(argv[2], NULL, 10);
        return run_sessions();
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slots_suffice_and_come_back),
        cmocka_unit_test(a_failed_round_leaves_the_slots),
        cmocka_unit_test(rewinding_finds_the_last_snapshot),
        cmocka_unit_test(going_back_changes_no_bit),
        cmocka_unit_test(a_new_prompt_reuses_what_snapshots_allow),
        cmocka_unit_test(a_cancelled_prompt_can_be_continued),
        cmocka_unit_test(edits_cost_the_way_from_a_snapshot),
        cmocka_unit_test(second_turns_reuse_the_first_whatever_its_length),
        cmocka_unit_test(cancelled_turns_leave_what_they_evaluated),
        cmocka_unit_test(sessions_do_not_share_their_snapshots),
        cmocka_unit_test(state_is_counted),
        cmocka_unit_test(tokens_without_any_cache_have_room),
        cmocka_unit_test(fused_inputs_give_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
