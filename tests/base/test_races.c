/* Debug builds: what is a race, and what is not. */
#include "base/races.h"

#include "support.h"

static const int gpu, copies, cpu, host; /* streams and timelines are named by addresses */
static const char exchange[1], slot[1];

static struct race_access range(const void *memory, int64_t begin, int64_t bytes, bool write) {
    return (struct race_access){memory, begin, bytes, 0, 1, write, "a test", -1};
}

/* An event that waits for a value (0: for none) of another stream's timeline and sets its own. */
static void run(struct races *r, const int *stream, uint64_t value, const int *other,
                uint64_t waits_for, struct race_access a) {
    struct race_event e = {.stream = stream,
                           .name = "a stream",
                           .in_order = stream != &copies,
                           .accesses = &a,
                           .n_accesses = 1,
                           .timeline = stream,
                           .value = value};
    if (waits_for) e.waits[e.n_waits++] = (struct race_wait){other, waits_for};
    races_submit(r, &e);
}

static int found(struct races *r) {
    int n = races_found(r);
    races_close(r);
    return n;
}

static void a_reader_waits_for_the_writer(void **state) {
    (void)state;
    for (int waits = 0; waits < 2; waits++) {
        struct races *r = races_open();
        run(r, &cpu, 1, NULL, 0, range(exchange, 0, 64, true));
        run(r, &gpu, 1, &cpu, (uint64_t)waits, range(exchange, 32, 64, false));
        assert_int_equal(found(r), !waits);
    }
}

static void readers_and_other_bytes_do_not_matter(void **state) {
    (void)state;
    struct races *r = races_open();
    run(r, &cpu, 1, NULL, 0, range(exchange, 0, 64, false));
    run(r, &gpu, 1, NULL, 0, range(exchange, 0, 64, false));
    run(r, &cpu, 2, NULL, 0, range(exchange, 64, 64, true));
    run(r, &gpu, 2, NULL, 0, range(exchange, 128, 64, true));
    run(r, &copies, 1, NULL, 0, range(slot, 64, 64, true));
    assert_int_equal(found(r), 0);
}

/* Columns of the same lines. */
static void lines_are_told_apart(void **state) {
    (void)state;
    for (int64_t begin = 24; begin <= 32; begin += 8) {
        struct races *r = races_open();
        struct race_access a = {exchange, 0, 32, 64, 4, true, "columns", -1}, b = a;
        b.begin = begin;
        run(r, &cpu, 1, NULL, 0, a);
        run(r, &gpu, 1, NULL, 0, b);
        assert_int_equal(found(r), begin < 32);
    }
}

/* cpu -> copies -> gpu. */
static void what_others_knew_is_known(void **state) {
    (void)state;
    for (int waits = 0; waits < 2; waits++) {
        struct races *r = races_open();
        run(r, &cpu, 1, NULL, 0, range(exchange, 0, 8, true));
        run(r, &copies, 1, &cpu, (uint64_t)waits, range(slot, 0, 8, true));
        run(r, &gpu, 1, &copies, 1, range(exchange, 0, 8, true));
        assert_int_equal(found(r), !waits);
    }
}

/* A stream of copies is not in order, but who waits for one knows all before it. */
static void copies_are_not_in_order(void **state) {
    (void)state;
    struct races *r = races_open();
    run(r, &copies, 1, NULL, 0, range(slot, 0, 8, true));
    run(r, &copies, 2, NULL, 0, range(slot, 8, 8, true));
    run(r, &gpu, 1, &copies, 2, range(slot, 0, 16, false));
    assert_int_equal(races_found(r), 0);
    run(r, &copies, 3, NULL, 0, range(slot, 8, 8, true)); /* against the copy and its reader */
    assert_int_equal(found(r), 2);
}

/* Work may be handed over before what it waits for. */
static void events_wait_for_values_to_come(void **state) {
    (void)state;
    struct races *r = races_open();
    run(r, &gpu, 1, &cpu, 1, range(exchange, 0, 8, false));
    run(r, &cpu, 1, NULL, 0, range(exchange, 0, 8, true));
    assert_int_equal(races_found(r), 0);
    run(r, &gpu, 2, &cpu, 3, range(exchange, 0, 8, false));
    run(r, &cpu, 2, NULL, 0, range(exchange, 8, 8, true));
    run(r, &cpu, 3, &gpu, 1, range(exchange, 0, 8, true));
    assert_int_equal(found(r), 0);
}

/* Between rounds, and amid them. */
static void the_host_takes_part(void **state) {
    (void)state;
    for (int waits = 0; waits < 2; waits++) {
        struct races *r = races_open();
        struct race_access read = range(exchange, 0, 8, false), write = range(slot, 0, 8, true);
        struct race_clock knows = {{0}};
        races_begin_round(r);
        run(r, &gpu, 1, NULL, 0, range(exchange, 0, 8, true));
        run(r, &gpu, 2, NULL, 0, range(slot, 0, 8, false));
        if (waits) races_learn(r, &knows, &gpu, 2);
        races_do(r, &knows, &cpu, "a thread", &write, 1);
        assert_int_equal(races_found(r), !waits);
        if (waits) races_learn(r, NULL, &gpu, 2);
        races_do(r, NULL, &host, "the host", &read, 1);
        assert_int_equal(races_found(r), 2 * !waits);
        races_begin_round(r);
        run(r, &gpu, 3, NULL, 0, range(exchange, 0, 8, true)); /* the host has read it */
        assert_int_equal(found(r), 2 * !waits);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_reader_waits_for_the_writer),
        cmocka_unit_test(readers_and_other_bytes_do_not_matter),
        cmocka_unit_test(lines_are_told_apart),
        cmocka_unit_test(what_others_knew_is_known),
        cmocka_unit_test(copies_are_not_in_order),
        cmocka_unit_test(events_wait_for_values_to_come),
        cmocka_unit_test(the_host_takes_part),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
