/*
 * The dynamic program of S1 and S2: over stages, bytes and where the activations are. A cell m
 * holds the least time of a chain so far that takes at most m quanta, so one table answers for all
 * budgets. Times are floats here: what is chosen is timed again in double.
 */
#include "plan/placement_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TILE = 2048 }; /* cells whose costs stay in the nearest cache while choices pass over them */
enum { NO_CHOICE = UINT16_MAX };

struct dp_row {
    /* Cells low..width: with more bytes nothing changes, with fewer no budget that is asked for is
     * used up, whatever the stages to come take. */
    int low, width;
    uint16_t *which[N_STATES]; /* (width + 1 - low) the choice that leaves in this state */
    /* (width + 1 - low of the row before) for each entry, 2 bits: the state before */
    uint8_t *from;
};
struct dp_table {
    const struct dp_stage *stages;
    int n_stages, least, width;
    struct dp_row *rows;
    float *cost[N_STATES]; /* after the last stage */
    double end_s;
};

struct dp_work {
    int cells;
    float *cost[N_STATES], *in[N_STATES], *next[N_STATES];
    int32_t which[TILE];
};

static int max_quanta(const struct dp_stage *s) {
    int most = 0;
    for (int i = 0; i < s->n_choices; i++)
        most = max_int(most, s->choices[i].quanta);
    return most;
}

/* The least cost of being at an entry, with the activations brought there, over n cells; where they
 * were before is added to `from`, shifted. No branches: this is what the compiler makes vectors of.
 */
static void enter_tile(const float move[N_STATES], const float *restrict c, const float *restrict g,
                       const float *restrict b, int shift, float *restrict in,
                       int32_t *restrict from, int n) {
    float from_c = move[STATE_C], from_g = move[STATE_G], from_b = move[STATE_B];
    int32_t is_g = STATE_G << shift, is_b = STATE_B << shift;
    for (int m = 0; m < n; m++) {
        float best = c[m] + from_c, at_g = g[m] + from_g, at_b = b[m] + from_b;
        int32_t p = at_g < best ? is_g : 0;
        best = at_g < best ? at_g : best;
        p = at_b < best ? is_b : p;
        best = at_b < best ? at_b : best;
        in[m] = best;
        from[m] |= p;
    }
}

/* Cells low..width; from: (width + 1 - low). */
static void enter(const struct dp_stage *s, struct dp_work *w, int low, int width, uint8_t *from) {
    for (int begin = low; begin <= width; begin += TILE) {
        int n = min_int(TILE, width + 1 - begin);
        memset(w->which, 0, sizeof *w->which * (size_t)n);
        for (int e = 0; e < N_STATES; e++) {
            float move[N_STATES];
            for (int p = 0; p < N_STATES; p++)
                move[p] = (float)dp_transition(s, p, e);
            enter_tile(move, w->cost[STATE_C] + begin, w->cost[STATE_G] + begin,
                       w->cost[STATE_B] + begin, 2 * e, w->in[e] + begin, w->which, n);
        }
        for (int m = 0; m < n; m++)
            from[begin - low + m] = (uint8_t)w->which[m];
    }
}

static void relax(const float *restrict in, float time, int32_t choice, float *restrict best,
                  int32_t *restrict which, int n) {
    for (int m = 0; m < n; m++) {
        float v = in[m] + time, b = best[m];
        int32_t w = which[m];
        w = v < b ? choice : w;
        b = v < b ? v : b;
        which[m] = w;
        best[m] = b;
    }
}

/* All choices that leave in a state, over cells [begin, end): which (end - begin). */
static void choose_tile(const struct dp_stage *s, struct dp_work *w, int state, int begin, int end,
                        uint16_t *which) {
    float *best = w->next[state];
    for (int m = begin; m < end; m++)
        best[m] = INFINITY, w->which[m - begin] = NO_CHOICE;
    for (int i = 0; i < s->n_choices; i++) {
        const struct dp_choice *c = &s->choices[i];
        int from = max_int(begin, c->quanta);
        if (c->exit != state || from >= end) continue;
        relax(w->in[c->entry] + (from - c->quanta), (float)c->time_s, i, best + from,
              w->which + (from - begin), end - from);
    }
    for (int m = begin; m < end; m++)
        which[m - begin] = (uint16_t)w->which[m - begin];
}

/* before: the row of the stage before. */
static void step(const struct dp_stage *s, struct dp_work *w, const struct dp_row *before,
                 struct dp_row *row) {
    size_t n = (size_t)(row->width + 1 - row->low);
    for (int e = 0; e < N_STATES; e++)
        for (int m = before->width + 1; m <= row->width; m++)
            w->cost[e][m] = w->cost[e][before->width];
    row->from = xmalloc((size_t)(row->width + 1 - before->low));
    enter(s, w, before->low, row->width, row->from);
    for (int e = 0; e < N_STATES; e++) {
        row->which[e] = xmalloc(n * sizeof *row->which[e]);
        for (int begin = row->low; begin <= row->width; begin += TILE)
            choose_tile(s, w, e, begin, min_int(begin + TILE, row->width + 1),
                        row->which[e] + (begin - row->low));
    }
    for (int e = 0; e < N_STATES; e++) {
        float *swap = w->cost[e];
        w->cost[e] = w->next[e], w->next[e] = swap;
    }
}

/* Which cells of each row are looked at: up to what the stages so far can take, and from what those
 * to come leave of the least budget. */
static void bound_rows(struct dp_table *t, int most) {
    for (int i = 0; i < t->n_stages; i++) {
        t->width = (int)min_i64(most, (int64_t)t->width + max_quanta(&t->stages[i]));
        t->rows[i].width = t->width;
    }
    int low = min_int(t->least, t->width);
    for (int i = t->n_stages - 1; i >= 0; i--) {
        t->rows[i].low = min_int(low, t->rows[i].width);
        low = max_int(0, t->rows[i].low - max_quanta(&t->stages[i]));
    }
}

struct dp_table *dp_solve(const struct dp_stage *stages, int n_stages, int least, int most,
                          double end_s) {
    struct dp_table *t = xcalloc(1, sizeof *t);
    struct dp_work *w = xcalloc(1, sizeof *w);
    size_t n = (size_t)most + 1;
    REQUIRE(0 <= least && least <= most);
    *t = (struct dp_table){.stages = stages,
                           .n_stages = n_stages,
                           .least = least,
                           .rows = xcalloc((size_t)n_stages + 1, sizeof *t->rows),
                           .end_s = end_s};
    for (int e = 0; e < N_STATES; e++) {
        w->cost[e] = xmalloc(n * sizeof(float));
        w->in[e] = xmalloc(n * sizeof(float));
        w->next[e] = xmalloc(n * sizeof(float));
        w->cost[e][0] = e == STATE_C ? 0 : INFINITY; /* the embedding is gathered on the host */
    }
    bound_rows(t, most);
    struct dp_row first = {0};
    for (int i = 0; i < n_stages; i++) {
        REQUIRE(stages[i].n_choices <= DP_MAX_CHOICES);
        step(&stages[i], w, i > 0 ? &t->rows[i - 1] : &first, &t->rows[i]);
    }
    for (int e = 0; e < N_STATES; e++) {
        t->cost[e] = w->cost[e];
        free(w->in[e]), free(w->next[e]);
    }
    free(w);
    return t;
}

void dp_free(struct dp_table *t) {
    if (!t) return;
    for (int i = 0; i < t->n_stages; i++) {
        free(t->rows[i].from);
        for (int e = 0; e < N_STATES; e++)
            free(t->rows[i].which[e]);
    }
    for (int e = 0; e < N_STATES; e++)
        free(t->cost[e]);
    free(t->rows);
    free(t);
}

bool dp_read(const struct dp_table *t, int budget, int *choices, double *time_s) {
    int m = min_int(budget, t->width), state = STATE_C;
    REQUIRE(budget >= t->least);
    double best = (double)t->cost[STATE_C][m];
    for (int e = STATE_G; e < N_STATES; e++) {
        double v = (double)t->cost[e][m] + t->end_s;
        if (v < best) best = v, state = e;
    }
    *time_s = best;
    if (!isfinite(best)) return false;
    for (int i = t->n_stages - 1; i >= 0; i--) {
        const struct dp_row *row = &t->rows[i];
        m = min_int(m, row->width);
        int c = row->which[state][m - row->low];
        REQUIRE(c != NO_CHOICE);
        choices[i] = c;
        m -= t->stages[i].choices[c].quanta;
        int before_low = i > 0 ? t->rows[i - 1].low : 0;
        state = row->from[m - before_low] >> (2 * t->stages[i].choices[c].entry) & 3;
    }
    return true;
}
