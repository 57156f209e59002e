/* Names of simulated devices, their rates, and what a segment costs. */
#include <math.h>
#include <string.h>
#include "backend/fold.h"
#include "backend/sim/sim_internal.h"

/* Round figures of a desktop: dual-channel memory, a mid-range card. */
static const struct sim_kind {
    const char *name;
    struct sim_rates rates;
    bool chaos, gpu;
    int memory_mib; /* of a GPU */
} kinds[] = {
    {"cpu", {.bytes_per_ns = 50, .launch_ns = 1000, .step_ns = 1000}, false, false, 0},
    {"gpu",
     {.bytes_per_ns = 300, .launch_ns = 5000, .step_ns = 2000, .copy_bytes_per_ns = 25},
     false,
     true,
     8192},
    {"chaos",
     {.bytes_per_ns = 50, .launch_ns = 1000, .step_ns = 1000, .copy_bytes_per_ns = 25},
     true,
     false,
     0},
};

bool sim_is_name(const char *name) {
    return strncmp(name, "sim", 3) == 0 && (name[3] == 0 || name[3] == ':');
}

static ats_status parse_number(const char *text, const char *what, uint64_t *out) {
    uint64_t value = 0;
    bool ok = *text != 0;
    for (const char *c = text; ok && *c; c++)
        ok = *c >= '0' && *c <= '9' && mul_u64(value, 10, &value) &&
             add_u64(value, (uint64_t)(*c - '0'), &value);
    *out = value;
    if (ok) return ATS_OK;
    return fail(ATS_BAD_ARGUMENT, "\"%.40s\" is not a %s; expected sim:KIND:NUMBER", text, what);
}

static ats_status parse_memory(const char *text, int64_t *bytes) {
    uint64_t mib;
    TRY(parse_number(text, "size in MiB", &mib));
    if (mib < 1 || mib > 1 << 24)
        return fail(ATS_BAD_ARGUMENT, "a simulated GPU has 1 to %d MiB", 1 << 24);
    *bytes = (int64_t)mib << 20;
    return ATS_OK;
}

ats_status sim_options_parse(const char *name, struct sim_options *out) {
    const char *kind = name[3] ? name + 4 : "cpu";
    size_t n = strcspn(kind, ":");
    for (size_t i = 0; i < COUNT_OF(kinds); i++) {
        const struct sim_kind *k = &kinds[i];
        if (strlen(k->name) != n || memcmp(kind, k->name, n) != 0) continue;
        *out = (struct sim_options){.rates = k->rates,
                                    .chaos = k->chaos,
                                    .seed = 1,
                                    .gpu = k->gpu,
                                    .memory_bytes = (int64_t)k->memory_mib << 20};
        if (kind[n] == 0) return ATS_OK;
        if (k->chaos) return parse_number(kind + n + 1, "seed", &out->seed);
        if (k->memory_mib) return parse_memory(kind + n + 1, &out->memory_bytes);
    }
    return fail(ATS_UNSUPPORTED,
                "there is no device \"%.40s\"; simulated are: sim:cpu, sim:gpu[:MIB], "
                "sim:chaos[:SEED]",
                name);
}

/* Chaos: durations over seven orders of magnitude for a queue's round, and over two and a half from
 * one job to the next. A queue may thus overtake another by all that waits allow, or by a little;
 * every order that they allow can come. */
enum { SLOWNESS_ROUND = 24, SLOWNESS_SEGMENT = 8 };

static uint64_t chaos_ns(struct sim *s, enum backend_queue queue) {
    int bits = s->queues[queue].slowness + (int)rng_below(&s->rng, SLOWNESS_SEGMENT);
    return 1 + (rng_next(&s->rng) & ((UINT64_C(1) << bits) - 1));
}

void sim_draw_slowness(struct sim *s) {
    s->queues[BACKEND_COMPUTE].slowness = (int)rng_below(&s->rng, SLOWNESS_ROUND);
    if (s->limits.n_slots)
        s->queues[BACKEND_COPY].slowness = (int)rng_below(&s->rng, SLOWNESS_ROUND);
}

/* ---- by rates ---- */

static double segment_ns(const struct sim *s, const struct backend_segment *segment,
                         const struct round *round) {
    int64_t positions = 0;
    for (int i = 0; i < round->n_runs; i++)
        positions += round->runs[i].position + round->runs[i].n_tokens;
    const struct sim_rates *r = &s->o.rates;
    int64_t bytes =
        segment->weight_bytes + segment->kv_bytes_per_position * positions +
        segment->state_bytes * round->n_runs +
        min_i64(segment->expert_bytes, segment->expert_bytes_per_token * round->n_tokens);
    return (double)(r->launch_ns + (int64_t)segment->n_steps * r->step_ns +
                    bytes / r->bytes_per_ns);
}

/* ---- of a described machine ---- */

/* What a GPU reads or writes in the exchange crosses the link; where it works in host memory, at
 * the same rates. What is folded into the step before it takes no time of its own. */
static void step_cost(const struct sim *s, const struct step *step, bool folded,
                      const struct round *round, double *left_ns) {
    const struct backend_machine *m = s->o.machine;
    if (!folded) left_ns[SIM_WORK] += 1e9 * m->step_s(m->user, s->o.gpu, step, round);
    if (!s->o.gpu) return;
    double columns = 4.0 * (step->end - step->begin);
    double in_bytes = columns * (step->in_rows ? round->n_rows : round->n_tokens);
    double out_bytes = columns * (step->rows ? round->n_rows : round->n_tokens);
    for (int i = 0; i < step->n_in; i++)
        if (step->in[i].space == SPACE_EXCHANGE)
            left_ns[SIM_IN] += 1e9 * in_bytes / m->activation_up;
    if (step->out.space == SPACE_EXCHANGE) left_ns[SIM_OUT] += 1e9 * out_bytes / m->activation_down;
}

double sim_latency_ns(const struct sim *s, const struct sim *other, bool both) {
    const struct backend_machine *m = s->o.machine;
    if (!m || s->o.gpu == other->o.gpu) return 0;
    return 1e9 * (both ? m->kappa_x_s : s->o.gpu ? m->kappa_up_s : m->kappa_down_s);
}

void sim_cost(struct sim *s, struct sim_job *job) {
    const struct backend_machine *m = s->o.machine;
    double *work_ns = &job->left_ns[SIM_WORK];
    if (s->o.chaos && !m)
        *work_ns = (double)chaos_ns(s, job->copy ? BACKEND_COPY : BACKEND_COMPUTE);
    else if (job->copy)
        *work_ns =
            m ? 1e9 * (double)job->copy->bytes / m->copy_bytes
              : (double)(s->o.rates.launch_ns + job->copy->bytes / s->o.rates.copy_bytes_per_ns);
    else if (!m)
        *work_ns = segment_ns(s, job->segment, job->round);
    const int n_steps = m && !job->copy ? job->segment->n_steps : 0;
    for (int i = 0, n; i < n_steps; i += n) {
        const struct step *steps = &job->segment->steps[i];
        const bool pair = steps_fold_gated(&s->limits, steps, n_steps - i);
        n = pair ? 3 : steps_fold(&s->limits, steps, n_steps - i) ? 2 : 1;
        for (int j = 0; j < n; j++) /* the second product has its time, without a start */
            step_cost(s, &steps[j], j >= (pair ? 2 : 1), job->round, job->left_ns);
    }
}

/* ---- who hinders whom ---- */

static const struct backend_machine *machine_of(const struct sim_world *w) {
    return w->devices ? w->devices->o.machine : NULL;
}

struct sim_rush sim_rush(const struct sim_world *w) {
    struct sim_rush rush = {.speeds = {1, 1, 1}, .until_ns = HUGE_VAL};
    const struct backend_machine *m = machine_of(w);
    if (!m) return rush;
    for (const struct sim *s = w->devices; s; s = s->next)
        for (int q = 0; q < SIM_QUEUES; q++) {
            const struct sim_job *job = s->queues[q].first;
            if (!job || !job->started || job->phase != SIM_WORK) continue;
            *(job->copy ? &rush.copy : s->o.gpu ? &rush.gpu : &rush.cpu) = true;
        }
    for (int r = 0; m->speed && r <= MACHINE_LINK; r++) {
        double until_s = HUGE_VAL;
        rush.speeds[r] = m->speed(m->user, (enum machine_resource)r, w->now_ns / 1e9, &until_s);
        /* time passes, however near the change is */
        rush.until_ns = fmin(rush.until_ns, fmax(1e9 * until_s, w->now_ns + 1));
    }
    return rush;
}

double sim_speed(const struct sim *s, const struct sim_job *job, const struct sim_rush *rush) {
    const struct backend_machine *m = s->o.machine;
    if (!m) return 1;
    if (job->phase == SIM_IN) return rush->speeds[MACHINE_LINK];
    if (job->phase == SIM_OUT) return 1;
    if (job->copy) return rush->speeds[MACHINE_LINK] * (rush->cpu ? m->copy_speed_cpu : 1);
    if (s->o.gpu) return rush->speeds[MACHINE_GPU] * (rush->cpu ? m->gpu_speed_cpu : 1);
    return rush->speeds[MACHINE_CPU] * (rush->copy ? m->cpu_speed_copying : 1) *
           (rush->gpu ? m->cpu_speed_gpu : 1);
}
