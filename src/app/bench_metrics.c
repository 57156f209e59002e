/* What a bench shows of ats_metrics: shares, and means of a round. */
#include "app/bench.h"

void bench_metrics_sum(ats_metrics *sum, const ats_metrics *m) {
    sum->n_rounds += m->n_rounds;
    sum->n_tokens += m->n_tokens;
    sum->round_ns += m->round_ns;
    sum->cpu_busy_ns += m->cpu_busy_ns;
    sum->gpu_busy_ns += m->gpu_busy_ns;
    sum->link_busy_ns += m->link_busy_ns;
    sum->exposed_ns += m->exposed_ns;
    sum->weight_bytes += m->weight_bytes;
    sum->activation_bytes += m->activation_bytes;
    sum->n_splits += m->n_splits;
    sum->n_submissions += m->n_submissions;
    sum->n_copies += m->n_copies;
    sum->wait_ns += m->wait_ns;
    sum->host_ns += m->host_ns;
    sum->driver_ns += m->driver_ns;
    sum->n_untimed += m->n_untimed;
}

static double ratio(uint64_t a, uint64_t b) {
    return b ? (double)a / (double)b : 0;
}

static double overlap(const ats_metrics *m) {
    return ratio(m->cpu_busy_ns + m->gpu_busy_ns + m->link_busy_ns, 3 * m->round_ns);
}

/* Of a round of the prompt the mean, of one of decode the median. */
static double host_us(const struct bench_result *r) {
    if (r->test.n_gen) return r->host_ns / 1e3;
    return ratio(r->metrics.host_ns, r->metrics.n_rounds) / 1e3;
}

static double driver_us(const struct bench_result *r) {
    if (r->test.n_gen) return r->driver_ns / 1e3;
    return ratio(r->metrics.driver_ns, r->metrics.n_rounds) / 1e3;
}

void bench_metrics_json(json_t *o, const struct bench_result *r) {
    const ats_metrics *m = &r->metrics;
    const struct {
        const char *key;
        double value;
    } all[] = {
        {"cpu_busy", ratio(m->cpu_busy_ns, m->round_ns)},
        {"gpu_busy", ratio(m->gpu_busy_ns, m->round_ns)},
        {"link_busy", ratio(m->link_busy_ns, m->round_ns)},
        {"overlap_efficiency", overlap(m)},
        {"link_bytes_per_s", ratio(m->weight_bytes + m->activation_bytes, m->round_ns) * 1e9},
        {"round_weight_bytes", ratio(m->weight_bytes, m->n_rounds)},
        {"round_activation_bytes", ratio(m->activation_bytes, m->n_rounds)},
        {"round_exposed_us", ratio(m->exposed_ns, m->n_rounds) / 1e3},
        {"round_splits", ratio(m->n_splits, m->n_rounds)},
        {"round_copies", ratio(m->n_copies, m->n_rounds)},
        {"round_submissions", ratio(m->n_submissions, m->n_rounds)},
        {"round_wait_us", ratio(m->wait_ns, m->n_rounds) / 1e3},
        {"round_driver_us", driver_us(r)},
        {"round_host_us", host_us(r)},
        {"round_untimed", ratio(m->n_untimed, m->n_rounds)},
    };
    for (size_t i = 0; i < COUNT_OF(all); i++)
        json_object_set_new(o, all[i].key, json_real(all[i].value));
}

const struct bench_metric_column bench_metric_columns[N_METRIC_COLUMNS] = {
    {"cpu busy", 8}, {"gpu busy", 8}, {"link MB/s", 9}, {"exposed us", 10},
    {"splits", 6},   {"submits", 7},  {"host us", 8},
};

void bench_metrics_cells(struct arena *a, const struct bench_result *r, const char *cells[]) {
    const ats_metrics *m = &r->metrics;
    uint64_t bytes = m->weight_bytes + m->activation_bytes, n = m->n_rounds;
    cells[0] = arena_printf(a, "%.0f %%", ratio(m->cpu_busy_ns, m->round_ns) * 100);
    cells[1] = arena_printf(a, "%.0f %%", ratio(m->gpu_busy_ns, m->round_ns) * 100);
    cells[2] = arena_printf(a, "%.1f", ratio(bytes, m->round_ns) * 1e3);
    cells[3] = arena_printf(a, "%.1f", ratio(m->exposed_ns, n) / 1e3);
    cells[4] = arena_printf(a, "%.0f", ratio(m->n_splits, n));
    cells[5] = arena_printf(a, "%.0f", ratio(m->n_submissions, n));
    cells[6] = arena_printf(a, "%.1f", host_us(r));
}
