/*
 * What simulate.c decides and simulate_json.c tells: a model on a described machine, in virtual
 * time, by the arithmetic of plan/, and by the executor on simulated devices (simulate_execute.c).
 * Behind ats_simulate; touches no other device.
 */
#pragma once

#include "atsinfer.h"
#include "base/json.h"
#include "model/model.h"
#include "plan/decide.h"
#include "plan/limit.h"
#include "plan/load.h"
#include "run/constraints.h"

struct simulation {
    struct arena arena;
    ats_simulation o; /* defaults filled in */
    enum granularity granularity;
    enum transfer_rule rule, prefill_rule; /* of decode; of prompts: the same but in ablations */
    struct gguf *file;
    struct model *model;
    struct profile *machine;
    struct items_options items_options;         /* items were made with */
    struct placement_options placement_options; /* and the placement */
    struct items *items;
    struct constraints constraints;
    /* Homes are told, of a plan that this engine could run: experts come whole and are a range, and
     * what a given plan streams is left open. */
    bool explains;
    bool depth_open; /* nobody has said for which decode is planned */
    double hit_exponent;
    double vram_bytes;
    struct decide_way best;
    /* S6; S6b, and with the starts of operators; of a chunk of the prompt. All for the memory that
     * the way leaves to weights and caches. */
    struct limit round, blocks, started, prompt;
    /* Of a decode round and a chunk in the middle of the prompt, by a schedule that the executor
     * can run; NULL: it was, else why not. */
    struct simulation_executed {
        double round_s, predicted_s;
    } executed[2];
    const char *not_executed;
    struct ablation *ablation; /* NULL: not asked for */
    struct load_run *load;     /* the same */
};

/* A row of the ablation: what is done, and its times. serial: prompts are what way.prefill.serial
 * says, and way.prompt_serial_s. */
struct ablation_row {
    const char *name;
    enum granularity granularity;
    bool serial;
    struct decide_way way;
};
enum { ABLATION_STEPS = 5, SIMULATION_GRANULARITIES = GRANULARITY_SHARD + 1 };
/* With the slots, chunk and bytes of `frame` all of them. */
struct ablation {
    struct decide_way frame;
    struct ablation_row steps[ABLATION_STEPS];
    struct ablation_row granularities[SIMULATION_GRANULARITIES];
};

/* Decode under a trace of load, which is constant within a segment. Seconds of a round: with the
 * plan made without load; with the last one in force; with the best for these factors; and on
 * average, switches included. plan: the last one in force, 0: the first. */
struct load_segment {
    double start_s, end_s;
    struct load_factors factors;
    double static_s, settled_s, oracle_s, mean_s;
    int n_rounds, n_switches, plan;
    double reaction_s; /* from its start to the end of the last switch; rounds that were run */
    int reaction_rounds;
};
struct load_switch {
    double at_s, cost_s, old_s, new_s; /* old, new: of a round, as predicted */
    int plan;
    bool moves; /* shards */
    char reason[96];
};
enum { LOAD_MAX_PLANS = 32, LOAD_MAX_SWITCHES = 256 };
struct load_run {
    struct load_segment *segments;
    int n_segments;
    struct load_switch switches[LOAD_MAX_SWITCHES];
    int n_switches;
    struct decide_way plans[LOAD_MAX_PLANS];
    int n_plans, n_rounds, n_solved, n_probes;
    double end_s;
};

/* All ways tried, the best kept; a given plan is one, but for its chunk. s is zeroed but for
 * explains; to be closed also after an error. */
MUST_CHECK ats_status simulation_run(struct simulation *s, const ats_simulation *given);
void simulation_close(struct simulation *s);

/* Items as timed by a machine, which is borrowed; what is decided with s's granularity and rules,
 * placements for chunks of n_batch. */
MUST_CHECK ats_status simulation_items(struct simulation *s, const struct profile *machine,
                                       struct items **items);
struct decide_options simulation_options(const struct simulation *s, int n_batch);
/* Behind simulation_run: s->executed, or s->not_executed. Errors: IO, of the trace. */
MUST_CHECK ats_status simulation_execute(struct simulation *s);
/* Behind simulation_run, on a simulation whose best way is known: s->ablation. */
MUST_CHECK ats_status ablation_run(struct simulation *s);

/* The same of a long decode under the trace of a file: s->load. */
MUST_CHECK ats_status load_simulate(struct simulation *s, const char *path);

json_t *load_json(const struct load_run *run); /* owned */
json_t *simulation_json(struct simulation *s); /* owned */
