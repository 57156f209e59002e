/* Names of simulated devices, their rates, and what a segment costs. */
#include <string.h>
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

uint64_t sim_copy_ns(struct sim *s, const struct backend_copy *copy) {
    if (s->o.chaos) return chaos_ns(s, BACKEND_COPY);
    const struct sim_rates *r = &s->o.rates;
    return (uint64_t)(r->launch_ns + copy->bytes / r->copy_bytes_per_ns);
}

uint64_t sim_duration_ns(struct sim *s, const struct backend_segment *segment,
                         const struct round *round) {
    if (s->o.chaos) return chaos_ns(s, BACKEND_COMPUTE);
    int64_t positions = 0;
    for (int i = 0; i < round->n_runs; i++)
        positions += round->runs[i].position + round->runs[i].n_tokens;
    const struct sim_rates *r = &s->o.rates;
    int64_t bytes =
        segment->weight_bytes + segment->kv_bytes_per_position * positions +
        segment->state_bytes * round->n_runs +
        min_i64(segment->expert_bytes, segment->expert_bytes_per_token * round->n_tokens);
    return (uint64_t)(r->launch_ns + (int64_t)segment->n_steps * r->step_ns +
                      bytes / r->bytes_per_ns);
}
