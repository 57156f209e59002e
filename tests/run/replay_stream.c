/* Slots and the copies that fill them: their form, and who may touch them when. */
#include "replay.h"

#include "support.h"

enum { MAX_DEVICES = 8, MAX_TIMELINES = 2 * MAX_DEVICES, N_ROUNDS = 2 };

/* ---- form ---- */

static int part_transfer(const struct replay_case *c, const struct program_step *s) {
    assert_int_equal(s->transfer >= 0, replay_part(c, s)->streamed);
    return s->transfer;
}

/* A step's matrices come with its transfer, and nobody else's do; vectors stay. */
static void check_step(const struct replay_case *c, int step, int *n_shards) {
    const struct program *p = c->program;
    const struct program_step *s = &p->steps[step];
    if (s->step.kind != STEP_OP || !op_can_stream(s->step.op)) {
        assert_int_equal(s->transfer, -1);
        return;
    }
    int transfer = part_transfer(c, s);
    if (s->bias >= 0) assert_int_equal(p->shards[s->bias].transfer, -1);
    if (s->shard >= 0) assert_int_equal(p->shards[s->shard].transfer, transfer);
    for (int i = 0; i < N_EXPERT_WEIGHTS && s->experts[i] >= 0; i++) {
        assert_int_equal(p->shards[s->experts[i]].transfer, transfer);
        if (s->expert_biases[i] >= 0) assert_int_equal(p->shards[s->expert_biases[i]].transfer, -1);
    }
    if (transfer < 0) return;
    assert_in_range(step, p->transfers[transfer].first_step, p->transfers[transfer].last_step);
    *n_shards += s->step.op->kind == OP_EXPERTS ? N_EXPERT_WEIGHTS : 1;
}

/* Slots in turn; parts together only while they are not larger than the largest, or of a lot. */
static void check_transfers(const struct replay_case *c, int device) {
    const struct program *p = c->program;
    int n = 0, last_step = -1, last_lot = 0;
    int64_t largest = 0, together = 0;
    for (int i = 0; i < c->plan->n_parts; i++)
        if (c->plan->parts[i].device == device && c->plan->parts[i].streamed)
            largest = max_i64(largest, plan_part_bytes(c->g, &c->plan->parts[i]));
    for (int i = 0; i < p->n_transfers; i++) {
        const struct program_transfer *t = &p->transfers[i];
        int lot = -1;
        if (t->device != device) continue;
        int64_t bytes = 0;
        for (int j = t->first_step; j <= t->last_step; j++) {
            if (p->steps[j].transfer != i) continue;
            const struct plan_part *part = replay_part(c, &p->steps[j]);
            bytes += plan_part_bytes(c->g, part);
            assert_true(lot < 0 || part->lot == lot);
            lot = part->lot;
        }
        assert_true(bytes >= 1 && (lot || bytes <= largest));
        if (lot && n) assert_int_not_equal(lot, last_lot);
        if (n && !lot && !last_lot)
            assert_true(together + bytes > largest || t->first_step > last_step);
        together = bytes;
        last_lot = lot;
        assert_int_equal(t->slot, n % p->n_slots[device]);
        assert_int_equal(t->ordinal, ++n);
        assert_int_equal(t->ahead, t->ordinal <= p->n_slots[device]);
        assert_true(t->first_step > last_step && t->wait >= 1);
        last_step = t->last_step;
    }
    assert_int_equal(p->n_slots[device], min_int(n, c->plan->n_slots[device]));
}

void replay_check_streams(const struct replay_case *c) {
    const struct program *p = c->program;
    int n_streamed = 0, n_shards = 0;
    for (int i = 0; i < p->n_steps; i++)
        check_step(c, i, &n_shards);
    for (int i = 0; i < p->n_shards; i++)
        n_streamed += p->shards[i].transfer >= 0;
    assert_int_equal(n_streamed, n_shards); /* each is read by one step */
    for (int d = 0; d < p->n_devices; d++)
        check_transfers(c, d);
}

/* ---- races ---- */

/* What is done when an event begins, by timeline: segments of each device, then copies of each. */
struct clock {
    int done[MAX_TIMELINES];
};
struct slot {
    int written;  /* value of the copy that stands there */
    int read;     /* of the last segment that read it */
    int transfer; /* that stands there */
};
struct timelines {
    const struct program *p;
    int n_segments[MAX_DEVICES], n_copies[MAX_DEVICES]; /* of a round */
    struct clock *events[MAX_TIMELINES];                /* by value, from 1: when each was done */
    int n[MAX_TIMELINES];
    struct clock host; /* what it waited for between rounds */
    struct slot slots[MAX_DEVICES][8];
    int segment, transfer; /* whose wait is left out */
    bool race;
};

static void learn(struct clock *c, const struct clock *other) {
    for (int i = 0; i < MAX_TIMELINES; i++)
        c->done[i] = max_int(c->done[i], other->done[i]);
}

static int copies_of(int device) {
    return MAX_DEVICES + device;
}

/* The next event of a timeline knows what that has done, and the host. */
static struct clock begin(const struct timelines *t, int timeline) {
    struct clock c = t->host;
    if (t->n[timeline]) learn(&c, &t->events[timeline][t->n[timeline]]);
    return c;
}

static void wait_for(const struct timelines *t, struct clock *c, int timeline, int value) {
    assert_in_range(value, 1, t->n[timeline]); /* it was submitted before */
    learn(c, &t->events[timeline][value]);
}

static int end(struct timelines *t, int timeline, struct clock c) {
    c.done[timeline] = ++t->n[timeline];
    t->events[timeline][t->n[timeline]] = c;
    return t->n[timeline];
}

static void run_segment(struct timelines *t, int segment, int round) {
    const struct program_segment *s = &t->p->segments[segment];
    struct clock c = begin(t, s->device);
    for (int i = 0; i < s->n_waits; i++) {
        int other = s->waits[i].device;
        wait_for(t, &c, other, round * t->n_segments[other] + s->waits[i].ordinal);
    }
    if (s->arrival && segment != t->segment)
        wait_for(t, &c, copies_of(s->device), round * t->n_copies[s->device] + s->arrival);
    int value = end(t, s->device, c);
    for (int i = s->step_begin; i < s->step_end; i++) {
        int transfer = t->p->steps[t->p->order[i]].transfer;
        if (transfer < 0) continue;
        struct slot *slot = &t->slots[s->device][t->p->transfers[transfer].slot];
        t->race |= slot->transfer != transfer || c.done[copies_of(s->device)] < slot->written;
        slot->read = value;
    }
}

static void run_copy(struct timelines *t, int transfer, int round) {
    const struct program_transfer *x = &t->p->transfers[transfer];
    int before = round - x->ahead; /* the round whose segment reads the slot */
    struct clock c = begin(t, copies_of(x->device));
    if (x->wait && before >= 0 && transfer != t->transfer)
        wait_for(t, &c, x->device, before * t->n_segments[x->device] + x->wait);
    struct slot *slot = &t->slots[x->device][x->slot];
    t->race |= c.done[x->device] < slot->read;
    *slot = (struct slot){.written = end(t, copies_of(x->device), c), .transfer = transfer};
}

static void run_round(struct timelines *t, int round) {
    for (int i = 0; i < t->p->n_segments; i++) {
        run_segment(t, i, round);
        if (t->p->segments[i].release >= 0) run_copy(t, t->p->segments[i].release, round);
    }
    for (int i = 0; i < t->p->n_transfers; i++)
        if (t->p->transfers[i].ahead) run_copy(t, i, round + 1);
    for (int d = 0; d < t->p->n_devices; d++)
        if (t->n[d]) learn(&t->host, &t->events[d][t->n[d]]);
}

bool replay_has_slot_race(const struct replay_case *c, int segment, int transfer) {
    const struct program *p = c->program;
    struct timelines t = {.p = p, .segment = segment, .transfer = transfer};
    size_t n_events = (size_t)(N_ROUNDS + 1) * (size_t)(p->n_segments + p->n_transfers) + 1;
    for (int i = 0; i < MAX_TIMELINES; i++)
        t.events[i] = calloc(n_events, sizeof *t.events[i]);
    for (int i = 0; i < p->n_segments; i++)
        t.n_segments[p->segments[i].device]++;
    for (int i = 0; i < p->n_transfers; i++)
        t.n_copies[p->transfers[i].device]++;
    for (int i = 0; i < p->n_transfers; i++)
        if (p->transfers[i].ahead) run_copy(&t, i, 0);
    for (int round = 0; round < N_ROUNDS; round++)
        run_round(&t, round);
    for (int i = 0; i < MAX_TIMELINES; i++)
        free(t.events[i]);
    return t.race;
}
