/*
 * Traces of real rounds: whole JSON after each round, tracks without overlaps, every segment once a
 * round, the same sums as the metrics, arrows that go forward and name what is waited for, copies
 * that are submitted before what reads the one before them is done. On simulated devices, where
 * times are exact; with an argument on those devices, for instance `cpu,vulkan`.
 */
#include "agree.h"

#include "base/file.h"
#include "base/json.h"

static const char *real_devices; /* NULL: the simulated ones only */

/* Of two devices. */
enum { TRACK_ROUNDS = 1, TRACK_HOST, TRACK_DEVICE, TRACK_COPIES = 5, MAX_TRACKS = 7, N_ROUNDS = 6 };
enum { MAX_TRANSFERS = 256 };

struct seen {
    int64_t end[MAX_TRACKS]; /* of the last span, nanoseconds */
    int64_t busy[MAX_TRACKS];
    int n[MAX_TRACKS];                 /* spans */
    int n_arrows, n_arrivals, n_freed; /* arrows of devices, of copies, of slots */
    int n_tokens;
    int64_t arrow_from;                /* of an arrow that has not arrived */
    int64_t reader_end[MAX_TRANSFERS]; /* of a round: of the segment that a copy arrives for */
    int slot[MAX_TRANSFERS];           /* in which it does */
    int last_copy[MAX_TRACKS];         /* of a round, on this track; -1: none yet */
};

static int64_t ns_of(const json_t *event, const char *key) {
    const json_t *v = json_object_get(event, key);
    assert_true(json_is_number(v));
    return (int64_t)(json_number_value(v) * 1e3 + 0.5);
}

static int int_of(const json_t *args, const char *key) {
    const json_t *v = json_object_get(args, key);
    return json_is_integer(v) ? (int)json_integer_value(v) : -1;
}

/* A copy is on its way before what reads the one before it is done. */
static void see_copy(struct seen *s, const json_t *args, int track) {
    const int transfer = int_of(args, "transfer"), before = s->last_copy[track];
    assert_in_range(transfer, 0, MAX_TRANSFERS - 1);
    assert_int_equal(int_of(args, "slot"), s->slot[transfer]);
    if (before >= 0) assert_true(ns_of(args, "submitted") <= s->reader_end[before]);
    s->last_copy[track] = transfer;
}

static void see_arrow(struct seen *s, const json_t *event) {
    const char *name = json_string_value(json_object_get(event, "name"));
    int transfer, slot, device;
    if (sscanf(name, "wait for device %d", &device) == 1) {
        s->n_arrows++;
    } else if (sscanf(name, "slot %d is free", &slot) == 1) {
        s->n_freed++;
    } else {
        assert_int_equal(sscanf(name, "arrival %d in slot %d", &transfer, &slot), 2);
        assert_in_range(transfer, 0, MAX_TRANSFERS - 1);
        s->slot[transfer] = slot;
        s->n_arrivals++;
    }
}

static void see_span(struct seen *s, const json_t *event, int track) {
    int64_t begin = ns_of(event, "ts"), duration = ns_of(event, "dur");
    assert_true(begin >= 0 && duration >= 0);
    assert_true(strlen(json_string_value(json_object_get(event, "name"))) > 0);
    if (begin < s->end[track])
        fail_msg("track %d: a span begins at %lld, the one before ends at %lld", track,
                 (long long)begin, (long long)s->end[track]);
    s->end[track] = begin + duration;
    s->busy[track] += duration;
    s->n[track]++;
    const json_t *args = json_object_get(event, "args");
    if (track == TRACK_ROUNDS) {
        s->n_tokens += int_of(args, "tokens");
        for (int i = 0; i < MAX_TRACKS; i++)
            s->last_copy[i] = -1;
    }
    if (track >= TRACK_COPIES) see_copy(s, args, track);
    if (track < TRACK_DEVICE || track >= TRACK_COPIES) return;
    assert_true(strlen(json_string_value(json_object_get(args, "ops"))) > 0);
    if (int_of(args, "arrival") >= 0) s->reader_end[int_of(args, "arrival")] = begin + duration;
}

static void see(struct seen *s, const json_t *event) {
    const char *phase = json_string_value(json_object_get(event, "ph"));
    int track = (int)json_integer_value(json_object_get(event, "tid"));
    assert_in_range(track, 1, MAX_TRACKS - 1);
    if (*phase == 'X') see_span(s, event, track);
    if (*phase == 's') s->arrow_from = ns_of(event, "ts");
    if (*phase != 'f') return;
    /* to the accuracy of two clocks; exactly, where there is one */
    assert_true(ns_of(event, "ts") + (real_devices ? 1000000 : 1) >= s->arrow_from);
    see_arrow(s, event);
}

static void read_trace(const char *path, struct seen *out) {
    json_t *root, *event;
    size_t i;
    *out = (struct seen){0};
    TEST_OK(json_read_file(path, (size_t)64 << 20, &root));
    const json_t *events = json_object_get(root, "traceEvents");
    assert_true(json_is_array(events));
    json_array_foreach(events, i, event) see(out, event);
    json_decref(root);
}

static int describe_int(const ats_engine *e, const char *key) {
    char *text = ats_engine_describe(e);
    json_t *o;
    TEST_OK(json_parse(text, strlen(text), &o));
    int n = (int)json_integer_value(json_object_get(o, key));
    json_decref(o);
    ats_free(text);
    return n;
}

static void check_sums(const ats_engine *e, const struct seen *s, int n_devices) {
    ats_metrics m[2];
    int n_spans = 0;
    int64_t busy = 0;
    for (int i = 0; i < 2; i++)
        ats_engine_metrics(e, i, &m[i]);
    for (int d = 0; d < n_devices; d++) {
        n_spans += s->n[TRACK_DEVICE + d];
        busy += s->busy[TRACK_DEVICE + d];
    }
    assert_int_equal(m[0].n_untimed + m[1].n_untimed, 0);
    assert_int_equal(n_spans, N_ROUNDS * describe_int(e, "segments"));
    /* one device of each kind: the union of its spans is their sum */
    assert_int_equal(busy,
                     m[0].cpu_busy_ns + m[0].gpu_busy_ns + m[1].cpu_busy_ns + m[1].gpu_busy_ns);
    assert_int_equal(s->busy[TRACK_ROUNDS], m[0].round_ns + m[1].round_ns);
    assert_int_equal(s->busy[TRACK_HOST], m[0].wait_ns + m[1].wait_ns);
    assert_int_equal(s->n_tokens, m[0].n_tokens + m[1].n_tokens);
    assert_int_equal(s->n_arrows, m[0].n_splits + m[1].n_splits);
    int64_t copied = 0, n_copies = 0;
    for (int d = 0; d < n_devices; d++) { /* one after the other: a device copies for itself */
        copied += s->busy[TRACK_COPIES + d];
        n_copies += s->n[TRACK_COPIES + d];
    }
    assert_int_equal(n_copies, m[0].n_copies + m[1].n_copies);
    assert_int_equal(s->n_arrivals, n_copies);
    assert_true(s->n_freed <= n_copies);
    assert_int_equal(copied, m[0].link_busy_ns + m[1].link_busy_ns);
    assert_true(m[0].exposed_ns <= m[0].round_ns && m[1].exposed_ns <= m[1].round_ns);
    assert_int_equal(n_copies > 0, copied > 0);
    assert_true(s->n_arrows > 0 && m[0].activation_bytes > 0);
    assert_true(m[0].gpu_busy_ns > 0 && m[0].cpu_busy_ns > 0);
    for (int i = 0; i < 2; i++) { /* a call for each change of the device, and of a slot, at most */
        assert_true(m[i].n_submissions > 0);
        assert_true(m[i].n_submissions <= m[i].n_splits + 3 * m[i].n_copies + m[i].n_rounds);
    }
}

/* Returns how many copies waited for their slot. */
static int check_devices(const char *devices, uint64_t seed) {
    char model[512], path[600];
    if (!test_shared_path(model, sizeof model, "models/llama/llama-f16.gguf")) skip();
    test_tmp_path(path, sizeof path, "trace.json");
    ats_options options = agree_options(model);
    options.devices = devices;
    options.plan_seed = seed;
    options.n_threads = options.n_threads_batch = 1;
    options.trace = path;
    ats_engine *e = agree_open(&options);
    struct seen seen;
    read_trace(path, &seen); /* before the first round */
    assert_int_equal(seen.n[TRACK_ROUNDS], 0);
    ats_engine_measure(e, true);
    ats_session *s;
    TEST_OK(ats_session_open(e, &s));
    for (int i = 0; i < N_ROUNDS; i++) {
        static const int32_t ids[5] = {3, 1, 4, 1, 5};
        ats_run run = {s, ids, i % 2 ? 1 : 5, ATS_WANT_LAST, NULL};
        TEST_OK(ats_eval(e, &run, 1));
        read_trace(path, &seen); /* as if the program had ended here */
        assert_int_equal(seen.n[TRACK_ROUNDS], i + 1);
    }
    check_sums(e, &seen, 2);
    assert_int_equal(seen.n_arrivals, N_ROUNDS * describe_int(e, "transfers"));
    ats_engine_stats_reset(e);
    ats_metrics reset;
    ats_engine_metrics(e, true, &reset);
    assert_int_equal(reset.n_rounds, 0);
    ats_session_close(s);
    ats_engine_close(e);
    read_trace(path, &seen);
    assert_int_equal(seen.n[TRACK_ROUNDS], N_ROUNDS);
    return seen.n_freed;
}

static void traces_are_whole_and_agree_with_the_metrics(void **state) {
    (void)state;
    int n_freed = 0;
    for (uint64_t seed = 0; seed < (real_devices ? 4 : 6); seed++)
        n_freed += check_devices(real_devices ? real_devices : "sim:cpu,sim:gpu", seed);
    assert_true(n_freed > 0);
}

/* The engine works without its file; one that cannot be had at the start is an error. */
static void a_file_that_cannot_be_written_is_an_error(void **state) {
    (void)state;
    char model[512];
    if (!test_shared_path(model, sizeof model, "models/llama/llama-f16.gguf")) skip();
    static const char *const paths[] = {"/nonexistent/trace.json", "/dev/full"};
    for (size_t i = 0; i < COUNT_OF(paths); i++) {
        ats_options options = agree_options(model);
        options.trace = paths[i];
        ats_engine *e;
        assert_int_equal(ats_engine_open(&options, &e), ATS_IO);
        TEST_ERROR_HAS(paths[i]);
    }
}

/* `--trace model.gguf`, say. */
static void a_file_of_another_kind_is_not_emptied(void **state) {
    (void)state;
    char model[512], path[512];
    if (!test_shared_path(model, sizeof model, "models/llama/llama-f16.gguf")) skip();
    test_tmp_path(path, sizeof path, "other.gguf");
    TEST_OK(file_write(path, "GGUF", 4));
    ats_options options = agree_options(model);
    options.trace = path;
    ats_engine *e;
    assert_int_equal(ats_engine_open(&options, &e), ATS_BAD_ARGUMENT);
    TEST_ERROR_HAS("other.gguf is there already and is something else");
    char *data;
    size_t n;
    TEST_OK(file_read(path, 100, &data, &n));
    assert_string_equal(data, "GGUF");
    free(data);
}

/* What is not asked for is not measured. */
static void rounds_are_not_measured_unasked(void **state) {
    (void)state;
    char model[512];
    if (!test_shared_path(model, sizeof model, "models/llama/llama-f16.gguf")) skip();
    ats_options options = agree_options(model);
    ats_engine *e = agree_open(&options);
    ats_session *s;
    ats_metrics m;
    TEST_OK(ats_session_open(e, &s));
    static const int32_t id = 7;
    ats_run run = {s, &id, 1, ATS_WANT_LAST, NULL};
    for (int i = 0; i < 4; i++) { /* off, on, on, off */
        ats_engine_measure(e, i == 1 || i == 2);
        TEST_OK(ats_eval(e, &run, 1));
        ats_engine_metrics(e, true, &m);
        assert_int_equal(m.n_rounds, min_int(i, 2));
    }
    assert_true(m.cpu_busy_ns > 0 && m.cpu_busy_ns <= m.round_ns && m.gpu_busy_ns == 0);
    assert_true(m.host_ns > 0 && m.n_submissions == 0 && m.n_splits == 0);
    ats_session_close(s);
    ats_engine_close(e);
}

static int n_messages; /* of the validation layer */

static void count_messages(void *user, int level, const char *text) {
    (void)user, (void)level;
    if (!strstr(text, "vulkan validation")) return;
    n_messages++;
    print_error("%s\n", text);
}

int main(int argc, char **argv) {
    if (argc > 1) real_devices = argv[1];
    ats_log_set(count_messages, NULL, 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(traces_are_whole_and_agree_with_the_metrics),
        cmocka_unit_test(a_file_that_cannot_be_written_is_an_error),
        cmocka_unit_test(a_file_of_another_kind_is_not_emptied),
        cmocka_unit_test(rounds_are_not_measured_unasked),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    return n_messages ? 1 : failed;
}
