/* The event evaluator: hand-made rounds, the closed recurrence where nobody hinders anybody, and a
 * clock of small ticks where they do. */
#include "plan/timeline.h"
#include "base/rng.h"
#include "support.h"

#include <math.h>

#define NEAR(a, b) assert_true(near_to(a, b))

static bool near_to(double a, double b) {
    return fabs(a - b) <= 1e-9 * (1 + fabs(b));
}

static struct timeline_item on_cpu(double cpu_s) {
    return (struct timeline_item){.place = TIMELINE_CPU, .cpu_s = cpu_s};
}
static struct timeline_item on_gpu(double gpu_s) {
    return (struct timeline_item){.place = TIMELINE_GPU, .gpu_s = gpu_s};
}
static struct timeline_item streamed(double gpu_s, double copy_s) {
    return (struct timeline_item){
        .place = TIMELINE_GPU, .streamed = true, .streamed_s = gpu_s, .copy_s = copy_s};
}
static void set_costs(struct timeline_item *items, int n, double up, double down, double both) {
    for (int i = 0; i < n; i++)
        items[i].up_s = up, items[i].down_s = down, items[i].exchange_s = both;
}
/* Of changes that cost 0.1 and more. */
static void set_bytes(struct timeline_item *items, int n, double pull, double push, double cut) {
    for (int i = 0; i < n; i++)
        items[i].pull_s = 0.05 * pull, items[i].push_s = 0.05 * push, items[i].cut_s = 0.1 * cut;
}

static void without_streaming_it_is_the_sum(void **state) {
    (void)state;
    struct timeline_item items[] = {on_cpu(5), on_gpu(2), on_gpu(1), on_cpu(3), on_gpu(1)};
    set_costs(items, 5, 0.25, 0.5, 0.125);
    struct timeline_machine m = timeline_machine_ideal(0);
    m.end_s = 0.75;
    struct timeline_result r;
    struct timeline_span spans[5];
    timeline_round(items, 5, &m, NULL, HUGE_VAL, &r, spans);
    /* up, -, -, down, up, end */
    NEAR(r.round_s, 5 + .25 + 2 + 1 + .5 + 3 + .25 + 1 + .75);
    NEAR(r.switch_s, .25 + .5 + .25 + .75);
    NEAR(r.cpu_busy_s, 5 + 3);
    NEAR(r.gpu_busy_s, 2 + 1 + 1);
    assert_int_equal(r.n_splits, 4);
    assert_true(r.exposed_s == 0 && r.copy_busy_s == 0);
    NEAR(spans[3].enter_s, 8.25);
    NEAR(spans[3].cpu_begin_s, 8.75);
    NEAR(spans[3].cpu_end_s, 11.75);
    assert_true(spans[3].gpu_begin_s == 0 && spans[3].gpu_end_s == 0);
}

static void a_change_of_device_delays_who_waits(void **state) {
    (void)state;
    struct timeline_item items[] = {{.place = TIMELINE_BOTH, .cpu_s = 2, .gpu_s = 4},
                                    {.place = TIMELINE_BOTH, .cpu_s = 3, .gpu_s = 1},
                                    on_gpu(1),
                                    {.place = TIMELINE_BOTH, .cpu_s = 1, .gpu_s = 1.4},
                                    on_cpu(1),
                                    {.place = TIMELINE_BOTH, .cpu_s = 4, .gpu_s = 1}};
    set_costs(items, 6, 0.25, 0.5, 0.125);
    struct timeline_machine m = timeline_machine_ideal(0);
    m.end_s = 0.75;
    struct timeline_result r;
    struct timeline_span spans[6];
    timeline_round(items, 6, &m, NULL, HUGE_VAL, &r, spans);
    NEAR(spans[0].cpu_begin_s, 0); /* it has what it needs, the device hears later */
    NEAR(spans[0].gpu_begin_s, .25);
    NEAR(spans[0].end_s, 4.25);
    NEAR(spans[1].cpu_begin_s, 4.25 + .125); /* for the device, which was last */
    NEAR(spans[1].gpu_begin_s, 4.25);        /* what the CPU made was there long ago */
    NEAR(spans[1].end_s, 7.375);
    NEAR(spans[2].gpu_begin_s, 7.375 + .25);
    NEAR(spans[2].end_s, 8.625);
    NEAR(spans[3].gpu_begin_s, 8.625);
    NEAR(spans[3].cpu_begin_s, 8.625 + .5);
    NEAR(spans[3].cpu_end_s, 10.125);
    NEAR(spans[3].end_s, 10.125);
    NEAR(spans[4].cpu_begin_s, 10.025 + .5); /* the device ended 0.1 before */
    NEAR(spans[4].end_s, 11.525);
    NEAR(spans[5].end_s, 15.525); /* whose sums left 2.75 ago */
    NEAR(r.round_s, 15.525);
    NEAR(r.switch_s, .25 + .4); /* where nobody computed */
    NEAR(r.cpu_busy_s, 2 + 3 + 1 + 1 + 4);
    NEAR(r.gpu_busy_s, 4 + 1 + 1 + 1.4 + 1);
    assert_int_equal(r.n_splits, 7);
}

static void a_copy_hides_behind_what_comes_before(void **state) {
    (void)state;
    struct timeline_item items[] = {on_cpu(5), streamed(1, 4), on_cpu(1), streamed(1, 4)};
    struct timeline_machine m = timeline_machine_ideal(2);
    struct timeline_result r;
    struct timeline_span spans[4];
    timeline_round(items, 4, &m, NULL, HUGE_VAL, &r, spans);
    NEAR(r.round_s, 9); /* the second copy ends at 8, a second after it is asked for */
    NEAR(r.exposed_s, 1);
    NEAR(r.copy_busy_s, 9); /* and the engine goes on with the next round's first */
    assert_int_equal(r.state.n_ahead, 1);
    NEAR(r.state.left_s, 3);
    NEAR(spans[1].copy_end_s, 4);
    NEAR(spans[3].copy_begin_s, 4);
    NEAR(spans[3].copy_end_s, 8);
    m.n_slots = 1; /* the second copy waits for the slot until 6 */
    timeline_round(items, 4, &m, NULL, HUGE_VAL, &r, NULL);
    NEAR(r.round_s, 11);
    NEAR(r.exposed_s, 3);
    m.n_slots = 0;
    timeline_round(items, 4, &m, NULL, HUGE_VAL, &r, NULL);
    assert_true(isinf(r.round_s));
}

static void rounds_in_a_row_copy_ahead(void **state) {
    (void)state;
    struct timeline_item items[] = {streamed(1, 3), on_cpu(5)};
    struct timeline_machine m = timeline_machine_ideal(1);
    struct timeline_result r;
    struct timeline_span spans[2];
    timeline_round(items, 2, &m, NULL, HUGE_VAL, &r, spans);
    NEAR(r.round_s, 9);
    timeline_periodic(items, 2, &m, HUGE_VAL, &r, spans);
    NEAR(r.round_s, 6);
    NEAR(spans[0].copy_begin_s, 1 - 6);
    NEAR(spans[0].copy_end_s, 4 - 6);
    /* the engine is what binds: of each round it takes all */
    struct timeline_item all[] = {streamed(1, 3), streamed(1, 2), streamed(1, 4)};
    m.n_slots = 2;
    timeline_periodic(all, 3, &m, HUGE_VAL, &r, NULL);
    NEAR(r.round_s, 9);
    NEAR(r.copy_busy_s, 9);
}

static void a_late_copy_waits_for_the_choice(void **state) {
    (void)state;
    struct timeline_item items[] = {on_gpu(5), streamed(1, 3), on_gpu(1)};
    items[1].late = true;
    items[1].gpu_s = 2; /* experts that the device holds come first */
    struct timeline_machine m = timeline_machine_ideal(4);
    struct timeline_result r;
    timeline_periodic(items, 3, &m, HUGE_VAL, &r, NULL);
    NEAR(r.round_s, 5 + 3 + 1 + 1);
    NEAR(r.exposed_s, 1);
    assert_int_equal(r.state.n_ahead, 0);
}

static void they_hinder_each_other_only_while_both_run(void **state) {
    (void)state;
    struct timeline_item items[] = {on_cpu(6), streamed(1, 4)};
    struct timeline_machine m = timeline_machine_ideal(1);
    m.cpu_speed_copying = 0.5;
    m.copy_speed_cpu = 0.8;
    struct timeline_result r;
    timeline_round(items, 2, &m, NULL, HUGE_VAL, &r, NULL);
    /* the copy takes 5, in which the CPU does 2.5; the other 3.5 alone */
    NEAR(r.round_s, 5 + 3.5 + 1);
    /* shared memory: a divided item, the GPU done after 4 / 0.5, the CPU's 6 at 0.75 until then */
    struct timeline_item both = {.place = TIMELINE_BOTH, .cpu_s = 7, .gpu_s = 4};
    m = timeline_machine_ideal(0);
    m.cpu_speed_gpu = 0.75;
    m.gpu_speed_cpu = 0.5;
    timeline_round(&both, 1, &m, NULL, HUGE_VAL, &r, NULL);
    NEAR(r.round_s, 8 + 1);
}

static void it_gives_up_beyond_the_limit(void **state) {
    (void)state;
    struct timeline_item items[] = {on_cpu(5), on_cpu(5)};
    struct timeline_machine m = timeline_machine_ideal(0);
    struct timeline_result r;
    timeline_round(items, 2, &m, NULL, 10, &r, NULL);
    NEAR(r.round_s, 10);
    timeline_round(items, 2, &m, NULL, 9.9, &r, NULL);
    assert_true(isinf(r.round_s));
}

/* ---- against others ---- */

enum { N = 9 };

static void random_items(struct rng *rng, struct timeline_item *items) {
    for (int i = 0; i < N; i++) {
        double x = 0.2 + 2 * rng_unit(rng), y = 0.1 + rng_unit(rng), w = 3 * rng_unit(rng);
        switch (rng_below(rng, 5)) {
        case 0:
            items[i] = on_cpu(x);
            break;
        case 1:
            items[i] = on_gpu(y);
            break;
        case 2:
            items[i] = (struct timeline_item){.place = TIMELINE_BOTH, .cpu_s = x, .gpu_s = y};
            break;
        case 3:
            items[i] = streamed(y, w);
            break;
        default:
            items[i] = streamed(y, w);
            items[i].place = TIMELINE_BOTH;
            items[i].cpu_s = x;
            items[i].gpu_s = rng_unit(rng);
            items[i].late = rng_below(rng, 2);
        }
    }
    set_costs(items, N, 0.1 + 0.1 * rng_unit(rng), 0.1 + 0.1 * rng_unit(rng),
              0.1 + 0.1 * rng_unit(rng));
    set_bytes(items, N, rng_unit(rng), rng_unit(rng), rng_unit(rng));
}

/* When what ended on the CPU and the device at those times lets the item begin on each. */
static void entering(const struct timeline_item *item, enum timeline_place from, double cpu_end,
                     double gpu_end, double *cpu, double *gpu) {
    bool both = item->place == TIMELINE_BOTH, exchange = from == TIMELINE_BOTH && both;
    double end = fmax(cpu_end, gpu_end), way = item->exchange_s - item->pull_s - item->push_s;
    double up = exchange ? way : item->up_s - item->pull_s;
    double down = exchange ? way : item->down_s - item->push_s;
    double written = gpu_end + item->push_s;
    *cpu = from == TIMELINE_CPU ? cpu_end : fmax(end, written + down);
    double after = (both ? written : gpu_end) + item->cut_s;
    *gpu = from == TIMELINE_CPU || (from == TIMELINE_GPU && !both) ? gpu_end : after;
    if (from != TIMELINE_GPU) *gpu = fmax(fmax(end, *gpu), cpu_end + up) + item->pull_s;
}

/* Where nobody hinders anybody: copy k ends at max(engine, slot, choice) + w, its item waits. */
static double recurrence(const struct timeline_item *items, int n, double end_s, int n_slots) {
    double cpu_end = 0, gpu_end = 0, engine = 0, freed[N] = {0}, cpu, gpu;
    int copies = 0;
    enum timeline_place from = TIMELINE_CPU;
    for (int i = 0; i < n; i++) {
        const struct timeline_item *x = &items[i];
        double asked = fmax(cpu_end, gpu_end), arrived = 0;
        entering(x, from, cpu_end, gpu_end, &cpu, &gpu);
        if (x->streamed) {
            double slot = copies >= n_slots ? freed[copies - n_slots] : 0;
            engine = fmax(fmax(engine, slot), x->late ? asked : 0) + x->copy_s;
            arrived = engine;
        }
        gpu += x->gpu_s;
        if (x->streamed) gpu = fmax(gpu, arrived) + x->streamed_s;
        cpu += x->cpu_s;
        if (x->streamed) freed[copies++] = gpu;
        cpu_end = x->place == TIMELINE_GPU ? gpu : cpu;
        gpu_end = x->place == TIMELINE_CPU ? cpu : gpu;
        from = x->place;
    }
    return from == TIMELINE_CPU ? cpu_end : fmax(fmax(cpu_end, gpu_end), gpu_end + end_s);
}

static void it_agrees_with_the_recurrence(void **state) {
    (void)state;
    struct rng rng;
    rng_seed(&rng, 3);
    for (int trial = 0; trial < 2000; trial++) {
        struct timeline_item items[N];
        random_items(&rng, items);
        struct timeline_machine m = timeline_machine_ideal(1 + (int)rng_below(&rng, 4));
        m.end_s = rng_unit(&rng);
        struct timeline_result r;
        timeline_round(items, N, &m, NULL, HUGE_VAL, &r, NULL);
        NEAR(r.round_s, recurrence(items, N, m.end_s, m.n_slots));
    }
}

/* All of it once more, by ticks: what runs during a tick runs at the speeds of its beginning. */
struct ticker {
    const struct timeline_item *items;
    const struct timeline_machine *m;
    int item, copy_item, begun, arrived, used;
    double now, cpu_at, gpu_at, cpu_end, gpu_end; /* the item's begin and end */
    double cpu_left, gpu_left, copy_left;
    bool entered, pending, holds; /* holds: the item its slot */
};

/* Copies of this round, then of the next. */
static void tick_copies(struct ticker *k, double dt, double speed) {
    if (k->copy_left > 0) {
        k->copy_left -= dt * speed;
        if (k->copy_left <= 0) k->arrived++, k->copy_item++;
    }
    while (k->copy_item < 2 * N && !k->items[k->copy_item % N].streamed)
        k->copy_item++;
    if (k->copy_left > 0 || k->copy_item == 2 * N || k->begun - k->used == k->m->n_slots) return;
    const struct timeline_item *x = &k->items[k->copy_item % N];
    if (x->late && k->item < k->copy_item) return;
    k->copy_left = x->copy_s;
    k->begun++;
}

static bool tick_item(struct ticker *k, enum timeline_place *from, int *number) {
    const struct timeline_item *x = &k->items[k->item];
    if (!k->entered) {
        entering(x, *from, k->cpu_end, k->gpu_end, &k->cpu_at, &k->gpu_at);
        k->cpu_left = x->cpu_s, k->gpu_left = x->gpu_s, k->pending = k->holds = x->streamed;
        k->cpu_end = k->gpu_end = -1;
        k->entered = true;
    }
    bool cpu = x->place != TIMELINE_GPU, gpu = x->place != TIMELINE_CPU, at = k->now >= k->gpu_at;
    if (at && k->pending && k->gpu_left <= 0 && k->arrived > *number)
        k->gpu_left = x->streamed_s, k->pending = false;
    if (k->holds && at && k->gpu_left <= 0 && !k->pending) k->used++, ++*number, k->holds = false;
    if (gpu && k->gpu_end < 0 && at && k->gpu_left <= 0 && !k->pending) k->gpu_end = k->now;
    if (cpu && k->cpu_end < 0 && k->now >= k->cpu_at && k->cpu_left <= 0) k->cpu_end = k->now;
    if ((cpu && k->cpu_end < 0) || (gpu && k->gpu_end < 0)) return false;
    if (!cpu) k->cpu_end = k->gpu_end;
    if (!gpu) k->gpu_end = k->cpu_end;
    *from = x->place;
    k->item++;
    k->entered = false;
    return true;
}

static double by_ticks(const struct timeline_item *items, const struct timeline_machine *m,
                       double dt) {
    struct ticker k = {.items = items, .m = m};
    enum timeline_place from = TIMELINE_CPU;
    int number = 0;
    for (int n = 0;; n++) {
        k.now = n * dt;
        tick_copies(&k, 0, 1);
        while (k.item < N && tick_item(&k, &from, &number))
            ;
        if (k.item == N) return k.now;
        bool cpu = k.cpu_left > 0 && k.now >= k.cpu_at, gpu = k.gpu_left > 0 && k.now >= k.gpu_at;
        double cpu_speed = k.copy_left > 0 ? m->cpu_speed_copying : 1;
        if (gpu) cpu_speed *= m->cpu_speed_gpu;
        if (cpu) k.cpu_left -= dt * cpu_speed;
        if (gpu) k.gpu_left -= dt * (cpu ? m->gpu_speed_cpu : 1);
        tick_copies(&k, dt, cpu ? m->copy_speed_cpu : 1);
    }
}

static void it_agrees_with_a_ticking_clock(void **state) {
    (void)state;
    struct rng rng;
    rng_seed(&rng, 5);
    const double dt = 2e-4;
    for (int trial = 0; trial < (TEST_SANITIZED ? 30 : 200); trial++) {
        struct timeline_item items[N];
        random_items(&rng, items);
        struct timeline_machine m = {.n_slots = 1 + (int)rng_below(&rng, 4),
                                     .cpu_speed_copying = 0.3 + 0.7 * rng_unit(&rng),
                                     .copy_speed_cpu = 0.3 + 0.7 * rng_unit(&rng),
                                     .cpu_speed_gpu = 0.5 + 0.5 * rng_unit(&rng),
                                     .gpu_speed_cpu = 0.5 + 0.5 * rng_unit(&rng)};
        struct timeline_result r;
        timeline_round(items, N, &m, NULL, HUGE_VAL, &r, NULL);
        /* a tick too much for each of some 30 events */
        double ticked = by_ticks(items, &m, dt);
        assert_true(fabs(r.round_s - ticked) <= 40 * dt);
    }
}

/* An item alone on the device in pieces is as many items, each with its own slot. */
static void pieces_are_items_of_their_own(void **state) {
    (void)state;
    enum { MAX = 6 };
    struct rng rng;
    rng_seed(&rng, 11);
    for (int trial = 0; trial < 1000; trial++) {
        struct timeline_item whole[N], parts[N * MAX];
        int n_parts = 0;
        random_items(&rng, whole);
        for (int i = 0; i < N; i++) {
            int n = whole[i].streamed && !whole[i].late ? 1 + (int)rng_below(&rng, MAX) : 1;
            if (n > 1) whole[i].place = TIMELINE_GPU, whole[i].cpu_s = 0;
            whole[i].n_pieces = n;
            for (int k = 0; k < n; k++) {
                struct timeline_item *part = &parts[n_parts++];
                *part = whole[i];
                part->n_pieces = 0;
                part->copy_s /= n, part->streamed_s /= n;
                if (k > 0) part->gpu_s = 0;
            }
        }
        struct timeline_machine m = timeline_machine_ideal(1 + (int)rng_below(&rng, 4));
        m.copy_speed_cpu = 0.7, m.cpu_speed_copying = 0.6, m.gpu_speed_cpu = 0.9;
        struct timeline_result a, b;
        timeline_round(whole, N, &m, NULL, HUGE_VAL, &a, NULL);
        timeline_round(parts, n_parts, &m, NULL, HUGE_VAL, &b, NULL);
        NEAR(a.round_s, b.round_s);
        NEAR(a.copy_busy_s, b.copy_busy_s);
        assert_int_equal(a.state.n_ahead, b.state.n_ahead);
        NEAR(a.state.left_s, b.state.left_s);
        timeline_periodic(whole, N, &m, HUGE_VAL, &a, NULL);
        timeline_periodic(parts, n_parts, &m, HUGE_VAL, &b, NULL);
        assert_true(fabs(a.round_s - b.round_s) <= 1e-6 * b.round_s);
    }
}

static void shares_add_up(void **state) {
    (void)state;
    struct rng rng;
    rng_seed(&rng, 8);
    for (int trial = 0; trial < 500; trial++) {
        struct timeline_item items[N];
        random_items(&rng, items);
        struct timeline_machine m = timeline_machine_ideal(1 + (int)rng_below(&rng, 3));
        m.copy_speed_cpu = 0.7;
        m.cpu_speed_copying = 0.6;
        struct timeline_result r;
        struct timeline_span spans[N];
        timeline_periodic(items, N, &m, HUGE_VAL, &r, spans);
        double covered = r.switch_s + r.exposed_s, t = 0;
        for (int i = 0; i < N; i++) {
            const struct timeline_span *x = &spans[i];
            assert_true(x->enter_s >= t - 1e-12 && x->end_s >= x->enter_s);
            if (items[i].place != TIMELINE_GPU)
                assert_true(x->cpu_begin_s >= x->enter_s && x->cpu_end_s >= x->cpu_begin_s);
            if (items[i].place != TIMELINE_CPU)
                assert_true(x->gpu_begin_s >= x->enter_s && x->gpu_end_s >= x->gpu_begin_s);
            NEAR(fmax(x->cpu_end_s, x->gpu_end_s), x->end_s);
            if (items[i].streamed) {
                assert_true(spans[i].copy_begin_s <= spans[i].copy_end_s);
                assert_true(spans[i].copy_end_s <= spans[i].end_s - items[i].streamed_s + 1e-9);
            }
            t = spans[i].end_s;
        }
        double least = fmax(r.cpu_busy_s, r.gpu_busy_s);
        assert_true(covered + least <= r.round_s + 1e-9);
        assert_true(covered + r.cpu_busy_s + r.gpu_busy_s >= r.round_s - 1e-9);
        assert_true(r.copy_busy_s <= r.round_s + 1e-9);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_streaming_it_is_the_sum),
        cmocka_unit_test(a_change_of_device_delays_who_waits),
        cmocka_unit_test(a_copy_hides_behind_what_comes_before),
        cmocka_unit_test(rounds_in_a_row_copy_ahead),
        cmocka_unit_test(a_late_copy_waits_for_the_choice),
        cmocka_unit_test(they_hinder_each_other_only_while_both_run),
        cmocka_unit_test(it_gives_up_beyond_the_limit),
        cmocka_unit_test(it_agrees_with_the_recurrence),
        cmocka_unit_test(it_agrees_with_a_ticking_clock),
        cmocka_unit_test(pieces_are_items_of_their_own),
        cmocka_unit_test(shares_add_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
