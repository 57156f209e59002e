/* What `bench` measured, and how it is printed. Names of fields and columns are llama-bench's. */
#pragma once

#include "app/common.h"

enum bench_format {
    BENCH_MD,
    BENCH_CSV,
    BENCH_JSON,
    BENCH_JSONL
}; /* order of the flag's choices */

struct bench_test {
    int n_prompt, n_gen, n_depth;
};

struct bench_config {
    int n_batch, n_threads, type_k, type_v;
};

struct bench_result {
    struct bench_test test;
    ats_info info; /* borrowed strings: of an open engine */
    int type_k, type_v;
    bool from_text;     /* token stream */
    char test_time[24]; /* UTC */
    double *samples_ns; /* (n_samples) */
    int n_samples;
    bool has_metrics;
    ats_metrics metrics;       /* of one more repetition */
    double host_ns, driver_ns; /* medians of its decode rounds */
};

struct bench_printer {
    struct app *app;
    enum bench_format format;
    bool one_object;                           /* --json: everything in one object */
    bool show_batch, show_type_k, show_type_v; /* columns of the table */
    bool show_metrics;                         /* as the first result has them */
    json_t *results;                           /* array, for the forms that print at the end */
    char *cpu;                                 /* owned: the processor's name */
    bool begun;
};

void bench_printer_open(struct bench_printer *p, struct app *app);
void bench_printer_close(struct bench_printer *p);
/* Prints a result, or keeps it for the end. */
MUST_CHECK ats_status bench_print(struct bench_printer *p, const struct bench_result *r);
MUST_CHECK ats_status bench_print_end(struct bench_printer *p);
/* "pp512", "tg128 @ d1024", "pp512+tg128" */
void bench_test_name(struct buf *out, const struct bench_test *t);
/* bench_metrics.c: the metrics as keys of a result, and as cells of the table. */
void bench_metrics_sum(ats_metrics *sum, const ats_metrics *m);
void bench_metrics_json(json_t *o, const struct bench_result *r);
enum { N_METRIC_COLUMNS = 7 };
extern const struct bench_metric_column {
    const char *title;
    int width;
} bench_metric_columns[N_METRIC_COLUMNS];
/* Each cell owned by the arena. */
void bench_metrics_cells(struct arena *a, const struct bench_result *r, const char *cells[]);
/* Owned. */
json_t *bench_result_json(const struct bench_printer *p, const struct bench_result *r);
