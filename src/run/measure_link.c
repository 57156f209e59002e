/*
 * What two devices are to each other: the rates of the link, what a change of device costs, what
 * they lose while the other works. Both are open at once and share an exchange, as in a round.
 */
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "run/ledger.h"
#include "run/measure_internal.h"

enum {
    TOKENS = 512, /* lines that are copied; a few as well, for what is fixed */
    FEW = 32,
    WIDTH = 8192, /* floats of a line: 16 MiB in all */
    PAIRS = 8,    /* of a chain over both devices */
    ROWS = 2048,  /* of a product, and its columns */
    MAX_PRODUCTS = 128,
    REPEATS = 7,
    MAX_COPIES = 32,
    ATTEMPTS = 3, /* at what cannot be */
};
static const int64_t slot_bytes = 32 << 20;
static const double most_rate = 1e12;      /* no link is faster: what seems so costs nothing */
static const double products_s = 0.01;     /* of a run of products beside something else */
static const uint64_t settle_ns = 1000000; /* that the something else has begun before */

struct pair {
    struct measure *m;
    struct measure_rig rigs[N_SIDES];
    struct graph_op op; /* a product */
    struct backend_segment *products[N_SIDES];
    struct step steps[N_SIDES][MAX_PRODUCTS];
    struct backend_segment *chain[N_SIDES][PAIRS];
    struct step touch;                       /* a number in the exchange */
    struct backend_copy *copies[MAX_COPIES]; /* of one weight: each is under way once at a time */
    int n_copies;
    uint64_t copied;   /* timeline of copies */
    uint64_t begin_ns; /* of the last that were submitted */
    double copy_s;     /* alone */
};

/* ---- opening ---- */

static ats_status open_pair(struct pair *p) {
    const struct measure_options *o = p->m->o;
    int64_t values = 4 * (int64_t)TOKENS * WIDTH, exchange = 4096 + values;
    struct backend_limits l = {.n_tokens = TOKENS,
                               .n_rows = 1,
                               .n_ctx = TOKENS,
                               .n_kv_classes = 1,
                               .local_bytes = 256 * (TOKENS + 2) + values,
                               .max_cols = ROWS};
    TRY(rig_open(p->m, &p->rigs[SIDE_CPU], o->cpu, &l, exchange, NULL));
    struct backend_options probe = {
        .n_threads = 1, .n_threads_batch = 1, .cpu_isa_mask = ~0U, .peer = p->rigs[SIDE_CPU].b};
    struct backend *gpu;
    TRY(backend_open(o->gpu, &probe, &gpu));
    if (gpu->streams) l.n_slots = 1, l.slot_bytes = slot_bytes;
    backend_close(gpu);
    TRY(rig_open(p->m, &p->rigs[SIDE_GPU], o->gpu, &l, exchange, &p->rigs[SIDE_CPU]));
    for (int s = 0; s < N_SIDES; s++) {
        TRY(rig_calibrate(&p->rigs[s]));
        p->m->p->op_s[s] = p->rigs[s].op_s;
    }
    return ATS_OK;
}

static void close_pair(struct pair *p) {
    for (int s = 0; s < N_SIDES; s++) {
        struct backend *b = p->rigs[s].b;
        for (int i = 0; i < PAIRS; i++)
            if (p->chain[s][i]) b->fn->segment_free(b, p->chain[s][i]);
        if (p->products[s]) b->fn->segment_free(b, p->products[s]);
        for (int i = 0; s == SIDE_GPU && i < p->n_copies; i++)
            b->fn->copy_free(b, p->copies[i]);
    }
    rig_close(&p->rigs[SIDE_GPU]);
    rig_close(&p->rigs[SIDE_CPU]);
}

/* ---- the link ---- */

static double rate(double bytes, double seconds) {
    return seconds > 0 ? fmin(bytes / seconds, most_rate) : most_rate;
}

/* A kernel of the GPU moves lines between the exchange and its memory. More that takes less than
 * few is timed again, and in the end costs nothing. */
static ats_status time_activations(struct pair *p, bool up, double *out) {
    struct measure_rig *r = &p->rigs[SIDE_GPU];
    struct step s = {.kind = STEP_COPY, .n_in = 1, .end = WIDTH, .n_readers = 1};
    struct span exchange = {SPACE_EXCHANGE, 4096, WIDTH, 0};
    struct span local = {SPACE_LOCAL, 256 * (TOKENS + 2), WIDTH, 0};
    struct backend_segment *segment;
    double few = 0, many = 0;
    s.in[0] = up ? exchange : local;
    s.out = up ? local : exchange;
    TRY(r->b->fn->segment_build(r->b, &s, 1, &segment));
    ats_status status = ATS_OK;
    for (int k = 0; k < ATTEMPTS && status == ATS_OK && many <= few; k++) {
        rig_round(r, TOKENS, 0);
        status = rig_time(r, segment, 1, "a copy of activations", &many);
        rig_round(r, FEW, 0);
        if (status == ATS_OK) status = rig_time(r, segment, 1, "a copy of activations", &few);
    }
    r->b->fn->segment_free(r->b, segment);
    *out = rate(4.0 * (TOKENS - FEW) * WIDTH, many - few);
    return status;
}

/* n copies, and behind them a step that waits for the last. */
static ats_status submit_copies(struct pair *p, int n) {
    struct measure_rig *r = &p->rigs[SIDE_GPU];
    p->begin_ns = r->b->fn->now(r->b);
    for (int i = 0; i < n; i++)
        TRY(r->b->fn->submit_copy(r->b, p->copies[i], NULL, 0, ++p->copied));
    struct backend_wait wait = {r->b, p->copied, BACKEND_COPY};
    rig_round(r, 1, 0);
    return r->b->fn->submit(r->b, p->chain[SIDE_GPU][0], &r->round, &wait, 1, ++r->value);
}

/* Seconds of a copy: the last, or, where they are not timed, of n until the step behind them. */
static ats_status wait_copies(struct pair *p, int n, double *out) {
    struct measure_rig *r = &p->rigs[SIDE_GPU];
    struct backend_times t;
    TRY(r->b->fn->wait(r->b, r->value));
    if (r->b->fn->copy_times(r->b, p->copies[n - 1], p->copied, &t))
        *out = (double)(t.end_ns - t.begin_ns) * 1e-9;
    else if (r->b->fn->segment_times(r->b, p->chain[SIDE_GPU][0], &t) && t.begin_ns > p->begin_ns)
        *out = (double)(t.begin_ns - p->begin_ns) * 1e-9 / n;
    else
        *out = (double)(r->b->fn->now(r->b) - p->begin_ns) * 1e-9 / n;
    return ATS_OK;
}

static ats_status time_copy(struct pair *p, double *out) {
    double v[REPEATS];
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        for (int i = 0; i <= REPEATS; i++) { /* the first one for nothing */
            TRY(submit_copies(p, 1));
            TRY(wait_copies(p, 1, &v[i ? i - 1 : 0]));
        }
        *out = measure_median(v, REPEATS);
        if (measure_possible(*out)) return ATS_OK;
    }
    return fail(ATS_DEVICE,
                "device \"%s\" says that a copy of %lld MiB takes %g s, again and again",
                p->rigs[SIDE_GPU].b->name, (long long)(slot_bytes >> 20), *out);
}

static ats_status time_pinned(struct pair *p, double *out) {
    struct backend *b = p->rigs[SIDE_GPU].b;
    struct backend_weight *weight;
    struct weight_source s = {.name = "a made-up weight",
                              .dtype = DTYPE_F32,
                              .n_rows = (int)(slot_bytes / (4 * ROWS)),
                              .n_cols = ROWS,
                              .data = p->m->pool,
                              .streamed = true};
    TRY(b->fn->home_open(b, &s, &p->rigs[SIDE_GPU].home));
    s.home = p->rigs[SIDE_GPU].home;
    TRY(b->fn->weight_load(b, &s, &weight));
    p->rigs[SIDE_GPU].loaded[p->rigs[SIDE_GPU].n_loaded++] = weight;
    TRY(b->fn->weights_ready(b));
    int64_t bytes = b->fn->weight_bytes(b, &s);
    for (; p->n_copies < MAX_COPIES; p->n_copies++)
        TRY(b->fn->copy_build(b, &weight, 1, &p->copies[p->n_copies]));
    TRY(time_copy(p, &p->copy_s));
    *out = rate((double)bytes, p->copy_s);
    return ATS_OK;
}

/* The way of a weight that is loaded: through a staging block. Where that takes no time, as on a
 * simulated device, it is as fast as the other way. */
static ats_status time_staged(struct pair *p, double pinned, double *out) {
    struct measure_rig *r = &p->rigs[SIDE_GPU];
    double best_s = 0;
    for (int i = 0; i < 3; i++) {
        struct backend_weight *weight;
        uint64_t begin = r->b->fn->now(r->b);
        TRY(rig_weight(r, DTYPE_F32, (int)(slot_bytes / (4 * ROWS)), ROWS, 1, 0, &weight));
        TRY(r->b->fn->weights_ready(r->b));
        double s = (double)(r->b->fn->now(r->b) - begin) * 1e-9;
        best_s = i ? fmin(best_s, s) : s;
    }
    *out = best_s > 0 ? rate((double)slot_bytes, best_s) : pinned;
    return ATS_OK;
}

/* The interface has no way down for weights: what is read of a GPU is read by its kernels. */
static ats_status time_link(struct pair *p) {
    struct profile_link *l = &p->m->p->link;
    TRY(time_activations(p, true, &l->activation_up));
    TRY(time_activations(p, false, &l->activation_down));
    l->up_pinned = l->activation_up;
    if (p->rigs[SIDE_GPU].b->streams) TRY(time_pinned(p, &l->up_pinned));
    l->down_pinned = l->down_staged = l->activation_down;
    return time_staged(p, l->up_pinned, &l->up_staged);
}

/* ---- changes of device ---- */

static ats_status build_chain(struct pair *p) {
    p->touch = (struct step){.kind = STEP_COPY, .n_in = 1, .end = 1, .n_readers = 1};
    p->touch.in[0] = (struct span){SPACE_EXCHANGE, 0, 64, 0};
    p->touch.out = (struct span){SPACE_LOCAL, 0, 64, 0};
    for (int s = 0; s < N_SIDES; s++)
        for (int i = 0; i < PAIRS; i++) {
            struct backend *b = p->rigs[s].b;
            TRY(b->fn->segment_build(b, &p->touch, 1, &p->chain[s][i]));
        }
    return ATS_OK;
}

/* Segment i of a side. By turns: CPU, GPU, CPU, ... Both at once: each waits for the other's last.
 */
static ats_status submit_link(struct pair *p, enum side side, int i, bool by_turns,
                              const uint64_t base[N_SIDES]) {
    struct measure_rig *r = &p->rigs[side];
    enum side other = side == SIDE_CPU ? SIDE_GPU : SIDE_CPU;
    int waits_for = by_turns && side == SIDE_GPU ? i + 1 : i; /* how many of the other's */
    struct backend_wait wait = {p->rigs[other].b, base[other] + (uint64_t)waits_for,
                                BACKEND_COMPUTE};
    r->value = base[side] + (uint64_t)i + 1;
    return r->b->fn->submit(r->b, p->chain[side][i], &r->round, &wait, waits_for > 0, r->value);
}

static void tell_gpu(const struct pair *p, uint64_t value) {
    struct backend *gpu = p->rigs[SIDE_GPU].b;
    gpu->fn->reached(gpu, p->rigs[SIDE_CPU].b, value);
}

/* What does not run in this thread is submitted first, as in a round. */
static ats_status run_chain(struct pair *p, bool by_turns, double *seconds) {
    struct measure_rig *cpu = &p->rigs[SIDE_CPU], *gpu = &p->rigs[SIDE_GPU];
    const uint64_t base[N_SIDES] = {cpu->value, gpu->value};
    rig_round(cpu, 1, 0);
    rig_round(gpu, 1, 0);
    uint64_t begin = cpu->b->fn->now(cpu->b);
    for (int i = 0; i < PAIRS; i++)
        TRY(submit_link(p, SIDE_GPU, i, by_turns, base));
    tell_gpu(p, cpu->value);
    for (int i = 0; i < PAIRS; i++) {
        TRY(submit_link(p, SIDE_CPU, i, by_turns, base));
        tell_gpu(p, cpu->value);
    }
    TRY(cpu->b->fn->wait(cpu->b, cpu->value));
    TRY(gpu->b->fn->wait(gpu->b, gpu->value));
    *seconds = (double)(cpu->b->fn->now(cpu->b) - begin) * 1e-9;
    return ATS_OK;
}

/* n segments of the GPU by itself, submitted as in a round: behind a value of the CPU that is
 * there. Seconds until the last has ended. */
static ats_status run_alone(struct pair *p, int n, double *seconds) {
    struct backend *cpu = p->rigs[SIDE_CPU].b;
    struct measure_rig *r = &p->rigs[SIDE_GPU];
    struct backend_wait wait = {cpu, p->rigs[SIDE_CPU].value, BACKEND_COMPUTE};
    rig_round(r, 1, 0);
    uint64_t begin = cpu->fn->now(cpu);
    for (int i = 0; i < n; i++)
        TRY(r->b->fn->submit(r->b, p->chain[SIDE_GPU][i], &r->round, &wait, 1, ++r->value));
    tell_gpu(p, wait.value);
    TRY(r->b->fn->wait(r->b, r->value));
    *seconds = (double)(cpu->fn->now(cpu) - begin) * 1e-9;
    return ATS_OK;
}

/* What the GPU loses where its work is cut in two: another segment's time beyond its step's. */
static ats_status time_cut(struct pair *p, double *out) {
    double v[REPEATS];
    for (int i = 0; i <= REPEATS; i++) { /* the first one for nothing */
        double one, all;
        TRY(run_alone(p, 1, &one));
        TRY(run_alone(p, PAIRS, &all));
        v[i ? i - 1 : 0] = (all - one) / (PAIRS - 1) - p->rigs[SIDE_GPU].op_s;
    }
    *out = fmax(measure_median(v, REPEATS), 0);
    return ATS_OK;
}

/* How much of a turn's cost is the way up: from one end to the next. */
static double share_up(struct pair *p) {
    double up = 0, down = 0;
    struct backend *cpu = p->rigs[SIDE_CPU].b, *gpu = p->rigs[SIDE_GPU].b;
    for (int i = 0; i + 1 < PAIRS; i++) {
        struct backend_times from, at, to;
        if (!cpu->fn->segment_times(cpu, p->chain[SIDE_CPU][i], &from) ||
            !gpu->fn->segment_times(gpu, p->chain[SIDE_GPU][i], &at) ||
            !cpu->fn->segment_times(cpu, p->chain[SIDE_CPU][i + 1], &to))
            return 0.5;
        up += ((double)at.end_ns - (double)from.end_ns) * 1e-9 - p->rigs[SIDE_GPU].op_s;
        down += ((double)to.end_ns - (double)at.end_ns) * 1e-9 - p->rigs[SIDE_CPU].op_s;
    }
    return up > 0 && down > 0 ? fmin(fmax(up / (up + down), 0.05), 0.95) : 0.5;
}

/* A chain over both devices against the same steps on each by itself: seconds of a change to one
 * and back, of one both ways at once, and how much of a turn is the way up. */
static ats_status time_chain(struct pair *p, double *turn, double *both_ways, double *share) {
    double turns[REPEATS], both[REPEATS], up[REPEATS], warm;
    double cpu_s = p->rigs[SIDE_CPU].op_s, gpu_s = p->rigs[SIDE_GPU].op_s;
    TRY(run_chain(p, true, &warm));
    for (int i = 0; i < REPEATS; i++) {
        TRY(run_chain(p, true, &turns[i]));
        up[i] = share_up(p);
        TRY(run_chain(p, false, &both[i]));
    }
    *turn = measure_median(turns, REPEATS) / PAIRS - cpu_s - gpu_s;
    *both_ways = measure_median(both, REPEATS) / PAIRS - fmax(cpu_s, gpu_s);
    *share = measure_median(up, REPEATS);
    return ATS_OK;
}

/* What seems to cost less than nothing is timed again, and in the end costs nothing. */
static ats_status time_switches(struct pair *p) {
    struct profile_link *l = &p->m->p->link;
    double turn = 0, both = 0, share = 0;
    for (int k = 0; k < ATTEMPTS && !(measure_possible(turn) && measure_possible(both)); k++)
        TRY(time_chain(p, &turn, &both, &share));
    turn = fmax(turn, 1e-9);
    l->kappa_up_s = turn * share;
    l->kappa_down_s = turn * (1 - share);
    l->kappa_x_s = fmax(both, 1e-9);
    TRY(time_cut(p, &l->cut_s));
    if (measure_possible(turn) && measure_possible(l->kappa_x_s)) return ATS_OK;
    return fail(ATS_DEVICE, "a change of device takes %g s, both ways %g s, again and again", turn,
                l->kappa_x_s);
}

/* ---- one beside the other ---- */

/* n products of a side, whose weights lie apart. */
static ats_status build_products(struct pair *p, enum side side, int n) {
    struct measure_rig *r = &p->rigs[side];
    int64_t bytes = rig_weight_bytes(r, DTYPE_Q8_0, ROWS, ROWS, 1);
    int64_t places = max_i64(1, (int64_t)p->m->pool_bytes / bytes);
    struct backend_weight *weights[8];
    int n_weights = side == SIDE_GPU ? (int)COUNT_OF(weights) : n; /* it has its own memory */
    for (int i = 0; i < n; i++) {
        struct step *s = &p->steps[side][i];
        *s = (struct step){.kind = STEP_OP, .op = &p->op, .n_in = 1, .end = ROWS, .in_end = ROWS};
        s->n_readers = 1;
        s->in[0] =
            (struct span){SPACE_LOCAL, 256 * (TOKENS + 2) + 4 * TOKENS * ROWS * (i % 2), ROWS, 0};
        s->out = s->in[0];
        s->out.offset_bytes = 256 * (TOKENS + 2) + 4 * TOKENS * ROWS * 2;
        if (i < n_weights)
            TRY(rig_weight(r, DTYPE_Q8_0, ROWS, ROWS, 1, i % places * bytes, &s->weight));
        else
            s->weight = p->steps[side][i % n_weights].weight;
    }
    TRY(r->b->fn->weights_ready(r->b));
    if (p->products[side]) r->b->fn->segment_free(r->b, p->products[side]);
    p->products[side] = NULL;
    return r->b->fn->segment_build(r->b, p->steps[side], n, &p->products[side]);
}

/* So many that they take about products_s alone. */
static ats_status prepare_products(struct pair *p, enum side side) {
    struct measure_rig *r = &p->rigs[side];
    double one = 0;
    TRY(build_products(p, side, 4));
    rig_round(r, 1, 0);
    TRY(rig_time(r, p->products[side], 4, "a product", &one));
    return build_products(p, side, (int)fmin(fmax(products_s / one, 4), MAX_PRODUCTS));
}

/* Of a side's products; 0 to 0: the device has no clock. */
static struct backend_times products_times(struct pair *p, enum side side) {
    struct backend_times t = {0};
    struct backend *b = p->rigs[side].b;
    if (!b->fn->segment_times(b, p->products[side], &t)) t = (struct backend_times){0};
    return t;
}

static double seconds_of(const struct backend_times *t) {
    return ((double)t->end_ns - (double)t->begin_ns) * 1e-9;
}

/* Of what takes alone_s alone, took whole_s, and both_s of them beside the other. */
static double speed(double alone_s, double whole_s, double both_s) {
    return both_s > 0 ? fmin(fmax((alone_s - (whole_s - both_s)) / both_s, 0.01), 1) : 1;
}

/* The GPU has begun before the CPU does: this thread sleeps meanwhile, so that the system puts what
 * works for a software device on another processor, as it has long done within a round. */
static ats_status submit_products_cpu(struct pair *p) {
    struct measure_rig *r = &p->rigs[SIDE_CPU];
    clock_sleep_ns(settle_ns);
    rig_round(r, 1, 0);
    TRY(r->b->fn->submit(r->b, p->products[SIDE_CPU], &r->round, NULL, 0, ++r->value));
    return r->b->fn->wait(r->b, r->value);
}

/* 0: the device has no clock, and nothing is told of it. */
static bool may_be(double seconds) {
    return seconds <= 0 || measure_possible(seconds);
}

/* What a run gives: speeds of the CPU (0: such times cannot be) and of the other. */
struct speeds {
    double cpu, other;
};

/* Products of both, after each by itself: memory may be shared with other machines, whose use of it
 * changes from one moment to the next. */
static ats_status products_beside(struct pair *p, struct speeds *out) {
    struct measure_rig *gpu = &p->rigs[SIDE_GPU];
    double alone[N_SIDES];
    for (int s = 0; s < N_SIDES; s++) {
        rig_round(&p->rigs[s], 1, 0);
        TRY(rig_run(&p->rigs[s], p->products[s], &alone[s]));
    }
    TRY(gpu->b->fn->submit(gpu->b, p->products[SIDE_GPU], &gpu->round, NULL, 0, ++gpu->value));
    TRY(submit_products_cpu(p));
    TRY(gpu->b->fn->wait(gpu->b, gpu->value));
    struct backend_times cpu = products_times(p, SIDE_CPU), other = products_times(p, SIDE_GPU);
    double both = (fmin((double)cpu.end_ns, (double)other.end_ns) -
                   fmax((double)cpu.begin_ns, (double)other.begin_ns)) *
                  1e-9;
    *out = (struct speeds){speed(alone[SIDE_CPU], seconds_of(&cpu), both),
                           speed(alone[SIDE_GPU], seconds_of(&other), both)};
    if (!may_be(seconds_of(&cpu)) || !may_be(seconds_of(&other))) out->cpu = 0;
    return ATS_OK;
}

/* Products of the CPU and n copies, likewise. */
static ats_status copies_beside(struct pair *p, int n_copies, struct speeds *out) {
    double cpu_s, alone_s, copy_s;
    rig_round(&p->rigs[SIDE_CPU], 1, 0);
    TRY(rig_run(&p->rigs[SIDE_CPU], p->products[SIDE_CPU], &cpu_s));
    TRY(submit_copies(p, 1));
    TRY(wait_copies(p, 1, &alone_s));
    TRY(submit_copies(p, n_copies));
    TRY(submit_products_cpu(p));
    struct backend_times cpu = products_times(p, SIDE_CPU);
    TRY(wait_copies(p, n_copies, &copy_s));
    *out = (struct speeds){speed(cpu_s, seconds_of(&cpu), seconds_of(&cpu)),
                           speed(alone_s, copy_s, copy_s)};
    if (!may_be(seconds_of(&cpu)) || !may_be(copy_s)) out->cpu = 0;
    return ATS_OK;
}

/* Medians of several runs of the CPU's products beside n copies, or beside the GPU's (n 0). */
static ats_status beside(struct pair *p, int n_copies, struct speeds *out) {
    double cpu[REPEATS], other[REPEATS];
    int n = 0;
    for (int i = 0; i < ATTEMPTS * REPEATS && n < REPEATS; i++) {
        TRY(n_copies ? copies_beside(p, n_copies, out) : products_beside(p, out));
        cpu[n] = out->cpu, other[n] = out->other;
        n += out->cpu > 0;
    }
    if (n < REPEATS)
        return fail(ATS_DEVICE, "times of one device beside the other cannot be, again and again");
    *out = (struct speeds){measure_median(cpu, n), measure_median(other, n)};
    return ATS_OK;
}

static ats_status time_interference(struct pair *p) {
    struct profile_interference *f = &p->m->p->interference;
    struct speeds v;
    double cpu_s;
    *f = (struct profile_interference){1, 1, 1, 1};
    TRY(prepare_products(p, SIDE_CPU));
    TRY(prepare_products(p, SIDE_GPU));
    TRY(beside(p, 0, &v));
    f->cpu_speed_gpu = v.cpu;
    f->gpu_speed_cpu = v.other;
    if (!p->n_copies) return ATS_OK;
    /* copies past the products' end for the one, and well before it for the other */
    rig_round(&p->rigs[SIDE_CPU], 1, 0);
    TRY(rig_time(&p->rigs[SIDE_CPU], p->products[SIDE_CPU], 1, "products", &cpu_s));
    double fits = cpu_s / p->copy_s;
    TRY(beside(p, (int)fmin(ceil(1.5 * fits) + 1, MAX_COPIES), &v));
    f->cpu_speed_copying = v.cpu;
    TRY(beside(p, (int)fmin(fmax(fits / 2, 1), MAX_COPIES), &v));
    f->copy_speed_cpu = v.other;
    return ATS_OK;
}

/* ---- all of it ---- */

static ats_status read_memory(struct pair *p) {
    struct profile *out = p->m->p;
    struct backend_memory host, gpu;
    p->rigs[SIDE_CPU].b->fn->memory(p->rigs[SIDE_CPU].b, &host);
    p->rigs[SIDE_GPU].b->fn->memory(p->rigs[SIDE_GPU].b, &gpu);
    out->host_bytes = host.total_bytes;
    out->gpu_bytes = gpu.total_bytes;
    out->usable_bytes = ledger_limit_bytes(&gpu);
    out->shared = gpu.host;
    if (out->usable_bytes > 0) return ATS_OK;
    return fail(ATS_NO_MEMORY, "device \"%s\" has no memory free", p->rigs[SIDE_GPU].b->name);
}

static ats_status time_pair(struct pair *p) {
    TRY(open_pair(p));
    TRY(build_chain(p));
    TRY(time_link(p));
    TRY(measure_step(p->m));
    TRY(time_switches(p));
    TRY(measure_step(p->m));
    TRY(time_interference(p));
    TRY(measure_step(p->m));
    return read_memory(p);
}

ats_status measure_links(struct measure *m) {
    struct pair *p = ARENA_NEW(m->arena, struct pair);
    p->m = m;
    p->op = (struct graph_op){.kind = OP_MATMUL, .n_in = 1, .weight = 0, .bias = -1};
    p->op.block = p->op.layer = -1;
    p->op.p.matmul.math = MATH_Q8;
    ats_status status = time_pair(p);
    close_pair(p);
    return status;
}
