#include "run/switch_images.h"

#include <stdio.h>
#include <string.h>

/* ---- what stays ---- */

static bool same_holding(const struct executor *a, int i, const struct executor *b, int j) {
    const struct program_shard *p = &a->programs.holdings[i], *q = &b->programs.holdings[j];
    bool same_range = p->axis == q->axis && p->begin == q->begin && p->end == q->end;
    if (p->device != q->device) return false;
    struct weight_source x = executor_source(a, i), y = executor_source(b, j);
    return x.streamed == y.streamed && x.data == y.data && (x.data || same_range) &&
           x.dtype == y.dtype && x.n_rows == y.n_rows && x.n_cols == y.n_cols &&
           x.n_experts == y.n_experts && x.row_bytes == y.row_bytes &&
           x.matrix_bytes == y.matrix_bytes && x.raw == y.raw;
}

/* Holdings of a weight are few and stand near each other: each is looked for among those of its
 * weight. first: (n_weights), next: (n_holdings). */
static void take_holdings(struct executor *to, struct executor *from, struct arena *scratch,
                          struct switch_report *report) {
    const struct programs *p = &to->programs, *q = &from->programs;
    int n_weights = to->model->graph->n_weights;
    int *first = ARENA_ARRAY(scratch, int, n_weights),
        *next = ARENA_ARRAY(scratch, int, q->n_holdings);
    for (int w = 0; w < n_weights; w++)
        first[w] = -1;
    for (int j = q->n_holdings - 1; j >= 0; j--) {
        next[j] = first[q->holdings[j].weight];
        first[q->holdings[j].weight] = j;
    }
    for (int i = 0; i < p->n_holdings; i++) {
        struct weight_source s = executor_source(to, i);
        for (int j = first[p->holdings[i].weight]; j >= 0 && !executor_has(to, i); j = next[j])
            if (executor_has(from, j) && same_holding(to, i, from, j)) {
                to->held[i] = from->held[j];
                from->held[j] = (struct held){0};
            }
        *(executor_has(to, i) ? &report->kept_bytes : &report->loaded_bytes) +=
            weight_source_bytes(&s);
    }
}

static void take_caches(struct executor *to, struct executor *from) {
    const struct program *p = to->programs.at[0], *q = from->programs.at[0];
    for (int i = 0; i < p->n_kvs; i++)
        for (int j = 0; j < q->n_kvs && !to->kvs[i]; j++)
            if (same_kv(&p->kvs[i], &q->kvs[j])) {
                to->kvs[i] = from->kvs[j];
                from->kvs[j] = NULL;
            }
    for (int i = 0; i < p->n_states; i++)
        for (int j = 0; j < q->n_states && !to->states[i]; j++)
            if (same_state(&p->states[i], &q->states[j])) {
                to->states[i] = from->states[j];
                from->states[j] = NULL;
            }
}

/* ---- handing over ---- */

/* Values of timelines go on; copies of a round ahead may have been submitted. */
static void take_timelines(struct executor *to, const struct executor *from) {
    for (int d = 0; d < to->n_devices; d++) {
        to->value[d] = from->value[d];
        to->submitted[d] = from->submitted[d];
        to->copied[d] = from->copied[d];
        if (from->ahead[d] >= 0)
            to->copied[d] += (uint64_t)from->programs.at[from->ahead[d]]->n_slots[d];
    }
}

/* Everything that `from` has and `to` wants; the rest is given up, then what is missing comes. */
static ats_status hand_over(struct executor *from, struct executor *to, struct images *images,
                            struct switch_report *report) {
    struct arena scratch = {0};
    const struct program *p = to->programs.at[0];
    bool *kvs = ARENA_ARRAY(&scratch, bool, p->n_kvs),
         *states = ARENA_ARRAY(&scratch, bool, p->n_states);
    report->kept_bytes = report->loaded_bytes = 0;
    take_timelines(to, from);
    executor_drop_segments(from);
    take_holdings(to, from, &scratch, report);
    take_caches(to, from);
    executor_drop_homes(from);
    for (int i = 0; i < p->n_kvs; i++)
        kvs[i] = !to->kvs[i];
    for (int i = 0; i < p->n_states; i++)
        states[i] = !to->states[i];
    ats_status status = executor_reserve(to);
    if (status == ATS_OK) executor_drop_exchange(from); /* the devices have let go of it */
    if (status == ATS_OK) status = executor_open_caches(to);
    if (status == ATS_OK) status = images_write(images, to, kvs, states);
    if (status == ATS_OK) status = executor_load(to, NULL, NULL);
    arena_free(&scratch);
    return status;
}

/* What is carried lies in host memory beside the rest. */
static ats_status check_images(const struct images *m, const struct ledger *l) {
    int64_t bytes = images_bytes(m);
    if (l->host_bytes + bytes <= l->host_limit_bytes) return ATS_OK;
    return fail(ATS_NO_MEMORY, "caches and states that move need %.0f MiB of host memory",
                (double)bytes / (1 << 20));
}

static ats_status move_all(struct executor **e, struct executor *to, struct images *images,
                           struct switch_report *report) {
    struct executor *from = *e;
    struct switch_report back;
    char why[256];
    report->carried_bytes = images_bytes(images);
    ats_status status = hand_over(from, to, images, report);
    if (status == ATS_OK) {
        *e = to;
        executor_close(from);
        return ATS_OK;
    }
    snprintf(why, sizeof why, "%s", error_text());
    ats_status restored = hand_over(to, from, images, &back);
    executor_close(to);
    report->restored = restored == ATS_OK;
    if (restored == ATS_OK) return fail(status, "%s", why);
    executor_close(from);
    *e = NULL;
    return fail_in(restored, "%s; and the plan before cannot be had back", why);
}

ats_status executor_switch(struct executor **e, const struct plan *plan,
                           const struct executor_options *options, const struct switch_use *use,
                           struct switch_report *report) {
    struct executor *to;
    struct images *images = NULL;
    *report = (struct switch_report){0};
    REQUIRE(plan->n_devices == (*e)->n_devices);
    ats_status status = executor_make((*e)->model, plan, (*e)->devices, options, &to);
    if (status == ATS_OK) status = images_open(*e, to, use, &images);
    if (status == ATS_OK) status = check_images(images, &to->ledger);
    if (status == ATS_OK) status = images_read(images, *e);
    if (status == ATS_OK)
        status = move_all(e, to, images, report);
    else
        executor_close(to);
    images_close(images);
    return status;
}
