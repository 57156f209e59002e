#include "plan/replan.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* An observation beyond this is news, not noise. */
#define NEWS 0.10
/* How fast an estimate follows what is no news. */
#define FOLLOW 0.05
/* Below this share of a round a resource's time says nothing. */
#define LEAST_SHARE 0.02
/* Rounds that a due plan waits for estimates that are still moving. */
#define MOST_WAITING 4
/* A reversal within so many intervals makes them longer. */
#define REVERSAL_INTERVALS 10
#define MAX_INTERVAL_SCALE 64
/* What was free when it was last seen is probed so much less often. */
#define FREE_RARELY 8
/* Probes in a row, where there were none for a while: those that an estimate takes, and the one
 * that found the news. */
#define PROBES_IN_A_ROW (REPLAN_PENDING + 1)
/* Solving in vain is followed by a rest of so many times what it cost, at most so long that the
 * next change is answered within two seconds; each time that it is in vain again, by twice the
 * rest. After so many times its rest it is forgotten. */
#define FIRST_REST   16
#define FIRST_REST_S 1.5
#define MOST_REST    1024
#define REST_FORGETS 8

struct replan_options replan_options_default(void) {
    return (struct replan_options){.threshold = 0.15,
                                   .interval_rounds = 5,
                                   .min_gain = 0.03,
                                   .horizon_rounds = 200,
                                   .probe_rounds = 32,
                                   .probe_s = 1,
                                   .probe_share = 0.005};
}

double replan_undisturbed_s(double busy_s, double together_s, double speed) {
    return busy_s - (1 - speed) * together_s;
}

void replan_begin(struct replan *r, const struct replan_options *options) {
    *r = (struct replan){.options = *options,
                         .planned = load_none(),
                         .considered = load_none(),
                         .asked_s = -1,
                         .switched_s = -1,
                         .vain_s = -1,
                         .interval_scale = 1};
    REQUIRE(options->n_calibrate >= 0 && options->n_calibrate <= REPLAN_CALIBRATE);
    for (int i = 0; i < N_LOAD_RESOURCES; i++)
        r->resources[i] = (struct replan_estimate){.slow = 1, .base = 1};
}

/* ---- estimates ---- */

static double ratio(double a, double b) {
    return a > b ? a / b : b / a;
}

static double median(const double *values, int n) {
    double sorted[REPLAN_CALIBRATE];
    for (int i = 0; i < n; i++) {
        int k = i;
        for (; k > 0 && sorted[k - 1] > values[i]; k--)
            sorted[k] = sorted[k - 1];
        sorted[k] = values[i];
    }
    return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

/* True: it has jumped. */
static bool update(struct replan_estimate *e, double slow) {
    double news = slow / e->slow;
    bool is_news = ratio(slow, e->slow) > 1 + NEWS;
    if (is_news && e->n_pending > 0 && (e->pending[0] > e->slow) != (slow > e->slow))
        e->n_pending = 0;
    if (!is_news) e->n_pending = 0;
    if (is_news) e->pending[e->n_pending++] = slow;
    if (e->n_pending == REPLAN_PENDING) {
        e->slow = median(e->pending, REPLAN_PENDING);
        e->n_pending = 0;
        return true;
    }
    news = fmin(fmax(news, 1 / (1 + NEWS)), 1 + NEWS);
    e->slow *= 1 + FOLLOW * (news - 1);
    return false;
}

/* What is not used is looked at as well: one load often takes several resources. */
static void look_everywhere(struct replan *r) {
    for (int i = 0; i < N_LOAD_RESOURCES; i++)
        if (r->resources[i].idle_rounds > 0) r->resources[i].idle_s = HUGE_VAL;
}

static void judge(struct replan *r, int resource, double alone_s, double busy_s) {
    struct replan_estimate *e = &r->resources[resource];
    double slow = busy_s / alone_s;
    if (!(isfinite(slow) && slow > 0)) return;
    e->idle_rounds = e->idle_s = 0;
    if (e->n_first < r->options.n_calibrate) {
        e->first[e->n_first++] = slow;
        e->base = median(e->first, e->n_first);
        return;
    }
    if (update(e, slow / e->base)) look_everywhere(r);
}

static bool is_idle(const struct replan *r, int resource) {
    const struct replan_estimate *e = &r->resources[resource];
    bool pending = e->n_pending > 0 || e->n_first < r->options.n_calibrate;
    double rarely = e->slow < 1 + r->options.threshold ? FREE_RARELY : 1;
    return e->idle_rounds > 0 && (pending || e->idle_rounds >= rarely * r->options.probe_rounds ||
                                  e->idle_s >= rarely * r->options.probe_s);
}

unsigned replan_probes(const struct replan *r) {
    unsigned bits = 0;
    if (r->probe_debt_s > (PROBES_IN_A_ROW - 1) * r->probe_s) return 0;
    for (int i = 0; i < N_LOAD_RESOURCES; i++)
        bits |= (unsigned)is_idle(r, i) << i;
    return bits;
}

void replan_probed(struct replan *r, enum load_resource resource, double alone_s, double busy_s,
                   double cost_s) {
    double before = r->resources[resource].idle_rounds;
    r->probe_s = cost_s;
    r->probe_debt_s += cost_s;
    judge(r, resource, alone_s, busy_s);
    if (before > 0) r->resources[resource].idle_rounds = 1; /* it is still not used */
}

/* ---- whether to plan ---- */

static double interval_s(const struct replan *r) {
    return r->options.interval_rounds * r->interval_scale * r->round_s;
}

/* What is slower and not used makes no other plan better. */
static bool deviates_from(const struct replan *r, const struct load_factors *f) {
    for (int i = 0; i < N_LOAD_RESOURCES; i++) {
        const struct replan_estimate *e = &r->resources[i];
        if (e->idle_rounds > 0 && e->slow > f->slow[i]) continue;
        if (ratio(e->slow, f->slow[i]) >= 1 + r->options.threshold) return true;
    }
    return false;
}

static bool deviates(const struct replan *r) {
    for (int i = 0; i < r->n_vain; i++)
        if (!deviates_from(r, &r->vain[i])) return false;
    return deviates_from(r, &r->planned) && deviates_from(r, &r->considered);
}

static bool rests(const struct replan *r) {
    return r->vain_s >= 0 && r->now_s - r->vain_s < r->rest_s;
}

static bool is_moving(const struct replan *r) {
    for (int i = 0; i < N_LOAD_RESOURCES; i++)
        if (r->resources[i].n_pending > 0 || isinf(r->resources[i].idle_s)) return true;
    return false;
}

bool replan_is_calm(const struct replan *r) {
    for (int i = 0; i < N_LOAD_RESOURCES; i++) {
        const struct replan_estimate *e = &r->resources[i];
        if (e->n_pending > 0) return false;
        if (e->idle_rounds <= 0 && e->n_first < r->options.n_calibrate) return false;
    }
    return !r->due;
}

void replan_observe(struct replan *r, double now_s, const struct replan_observation *o) {
    double passed_s = now_s - r->now_s;
    r->probe_debt_s = fmax(0, r->probe_debt_s - r->options.probe_share * passed_s);
    r->now_s = now_s;
    r->round_s = o->round_s;
    for (int i = 0; i < N_LOAD_RESOURCES; i++) {
        struct replan_estimate *e = &r->resources[i];
        if (o->busy_s[i] >= LEAST_SHARE * o->round_s && o->alone_s[i] > 0) {
            judge(r, i, o->alone_s[i], o->busy_s[i]);
            continue;
        }
        e->idle_rounds++;
        e->idle_s += passed_s;
    }
    bool free = r->asked_s < 0 || now_s - r->asked_s >= interval_s(r);
    r->due = free && !rests(r) && deviates(r);
    r->n_waiting = r->due ? r->n_waiting + 1 : 0;
}

bool replan_due(const struct replan *r) {
    return r->due && (!is_moving(r) || r->n_waiting > MOST_WAITING);
}

struct load_factors replan_ask(struct replan *r) {
    for (int i = 0; i < N_LOAD_RESOURCES; i++)
        r->considered.slow[i] = r->resources[i].slow;
    r->asked_s = r->now_s;
    r->due = false;
    r->n_waiting = 0;
    return r->considered;
}

bool replan_accept(const struct replan *r, const struct replan_offer *o) {
    double gain_s = o->old_s - o->new_s;
    if (!isfinite(gain_s)) return false;
    if (o->base && !load_is_felt(&r->considered, r->options.threshold))
        return gain_s > -r->options.min_gain * o->old_s;
    return gain_s > r->options.min_gain * o->old_s &&
           gain_s * r->options.horizon_rounds > o->cost_s;
}

static void forget_vain(struct replan *r) {
    r->n_vain = r->next_vain = 0;
    r->vain_s = -1;
}

void replan_switched(struct replan *r, const struct replan_offer *o) {
    bool soon = r->switched_s >= 0 && r->now_s - r->switched_s < REVERSAL_INTERVALS * interval_s(r);
    if (soon && o->reverses)
        r->interval_scale = fmin(2 * r->interval_scale, MAX_INTERVAL_SCALE);
    else if (!soon)
        r->interval_scale = 1;
    r->switched_s = r->now_s;
    r->planned = r->considered;
    forget_vain(r);
}

void replan_declined(struct replan *r, double cost_s) {
    bool again = r->vain_s >= 0 && r->now_s - r->vain_s < REST_FORGETS * r->rest_s;
    double rest_s = again ? 2 * r->rest_s : fmin(FIRST_REST * cost_s, FIRST_REST_S);
    r->rest_s = fmin(rest_s, MOST_REST * cost_s);
    r->vain_s = r->now_s;
    r->vain[r->next_vain] = r->considered;
    r->next_vain = (r->next_vain + 1) % REPLAN_VAIN;
    r->n_vain += r->n_vain < REPLAN_VAIN;
}

void replan_forget(struct replan *r) {
    r->planned = r->considered = load_none();
    forget_vain(r);
}

void replan_reason(const struct replan *r, char *text, size_t n) {
    size_t used = 0;
    if (n) text[0] = '\0';
    for (int i = 0; i < N_LOAD_RESOURCES; i++) {
        double slow = r->considered.slow[i];
        if (ratio(slow, r->planned.slow[i]) < 1 + r->options.threshold || used >= n) continue;
        const char *name = load_resource_name((enum load_resource)i), *comma = used ? ", " : "";
        int more =
            ratio(slow, 1) < 1 + r->options.threshold
                ? snprintf(text + used, n - used, "%s%s as at first", comma, name)
                : snprintf(text + used, n - used, "%s%s %.2f times as slow", comma, name, slow);
        used += more > 0 ? (size_t)more : 0;
    }
}
