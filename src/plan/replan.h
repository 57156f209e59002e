/*
 * When to plan again (S5): from how long work took against how long it takes alone, the factors by
 * which each resource is slower, and whether another plan is worth its price. Pure: no clock, no
 * device, no solver; fed with times and told what a new plan would gain. Driven by simulations
 * (run/simulate_load.c) and by the engine (run/adapt.c), between rounds, by one thread.
 *
 *   replan_observe()          every measured round
 *   replan_probes()           what to measure by a small job of its own -> replan_probed()
 *   replan_due()              -> replan_ask(): solve for these factors
 *   replan_accept()           the gain test -> the caller switches -> replan_switched(), or
 *                             keeps the plan -> replan_declined()
 *
 * Load is kept for each resource, not for each item, so what the plan hardly uses is probed: else
 * streaming would never come back once the link is free. An estimate that is passed by more than
 * 10% to one side three times running snaps to their median; else it follows slowly, and one that
 * is far off counts as 10%.
 *
 * What comes to nothing must cost next to nothing: probes take a small share of the time; nothing
 * is solved near factors for which the plan in force was made, or solved for in vain; nor because
 * something is slower that the plan does not use; and what was in vain is followed by a rest.
 */
#pragma once

#include "plan/load.h"

struct replan_options {
    double threshold;             /* of a factor, against the one that was planned for: 0.15 */
    double interval_rounds;       /* between two plans: 5 */
    double min_gain;              /* of a round, for another plan: 0.03 */
    double horizon_rounds;        /* in which a switch must have paid: 200 */
    double probe_rounds, probe_s; /* unused for the shorter of both: probed. 32, 1; what was free
                                     when it was last seen, 8 times as rarely */
    double probe_share;           /* of the time, for probes: 0.005 */
    int n_calibrate; /* observations of a resource at first that say what "alone" is: 0, it is what
                        the profile says */
};
struct replan_options replan_options_default(void);

/* A round, or a probe of one resource. Seconds of each resource: of its work alone, by the profile,
 * and as measured, with what devices of this engine do to each other taken out. */
struct replan_observation {
    double round_s;
    double alone_s[N_LOAD_RESOURCES], busy_s[N_LOAD_RESOURCES];
};
/* Busy seconds less what was lost while another resource, busy for `together_s` of them, left only
 * `speed` (interference of the profile). */
double replan_undisturbed_s(double busy_s, double together_s, double speed);

/* Another plan, solved for what replan_ask() said. */
struct replan_offer {
    double old_s, new_s; /* a round of the plan in force, and of the new one, by these factors */
    double cost_s;       /* of the switch: what has to move, recording */
    bool base;           /* it is the plan that was made without load */
    bool reverses;       /* it is the one before that in force */
};

enum { REPLAN_PENDING = 3, REPLAN_CALIBRATE = 16, REPLAN_VAIN = 8 };
struct replan_estimate {
    double slow; /* against `base` */
    double base; /* of the machine against its profile */
    double pending[REPLAN_PENDING], first[REPLAN_CALIBRATE];
    int n_pending, n_first;
    double idle_rounds, idle_s; /* since it was seen */
};
/* Read freely. */
struct replan {
    struct replan_options options;
    struct replan_estimate resources[N_LOAD_RESOURCES];
    struct load_factors planned;    /* of the plan in force */
    struct load_factors considered; /* that were last asked for */
    double now_s, round_s;
    double asked_s, switched_s; /* the last of each; below 0: never */
    double interval_scale;      /* doubles with reversals */
    struct load_factors
        vain[REPLAN_VAIN]; /* solved for since the last switch: nothing was gained */
    int n_vain, next_vain;
    double vain_s, rest_s; /* when the last was in vain, and how long nothing is asked then */
    double probe_debt_s, probe_s; /* of probes, less their share of the time; of the last one */
    int n_waiting;                /* rounds for which a plan was due, but estimates were moving */
    bool due;
};

void replan_begin(struct replan *r, const struct replan_options *options);
/* At now_s >= 0, which never goes back. A resource that had less than 2% of the round is not
 * judged by it. */
void replan_observe(struct replan *r, double now_s, const struct replan_observation *o);
/* Resources to probe now, as bits. */
unsigned replan_probes(const struct replan *r);
/* cost_s: that rounds waited for it. */
void replan_probed(struct replan *r, enum load_resource resource, double alone_s, double busy_s,
                   double cost_s);
/* Nothing has changed lately, and all is known: a round now and then will do. */
bool replan_is_calm(const struct replan *r);

/* A plan for other factors is to be made. */
bool replan_due(const struct replan *r);
/* The factors to solve for; they are considered from now on. */
struct load_factors replan_ask(struct replan *r);
/* True: the offer is worth its price. The plan made without load comes back as soon as it is no
 * slower than min_gain, since it is better for prompts; any other has to gain more than that, and
 * its cost within the horizon. */
bool replan_accept(const struct replan *r, const struct replan_offer *o);
/* It is in force, for the factors of the last replan_ask. */
void replan_switched(struct replan *r, const struct replan_offer *o);
/* The plan stays as it is after the last replan_ask; cost_s: of a core, for solving. */
void replan_declined(struct replan *r, double cost_s);
/* Another plan is in force, made for no load. */
void replan_forget(struct replan *r);

/* "cpu 2.50 times as slow, link as at first", what differs from what the plan in force was made
 * for; text: (n). Before replan_switched. */
void replan_reason(const struct replan *r, char *text, size_t n);
