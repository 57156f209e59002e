/*
 * What simulate.c decides and simulate_json.c tells: a model on a described machine, in virtual
 * time, by the arithmetic of plan/. Behind ats_simulate; touches no device.
 */
#pragma once

#include "atsinfer.h"
#include "base/json.h"
#include "model/model.h"
#include "plan/decide.h"
#include "plan/limit.h"
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
    double hit_exponent;
    double vram_bytes;
    struct decide_way best;
    struct limit round, blocks, prompt; /* S6, S6b, and of a chunk of the prompt */
    struct ablation *ablation;          /* NULL: not asked for */
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

/* All ways tried, the best kept. s is zeroed; to be closed also after an error. */
MUST_CHECK ats_status simulation_run(struct simulation *s, const ats_simulation *given);
void simulation_close(struct simulation *s);
/* False: no granularity has this name. */
bool simulation_granularity(const char *name, enum granularity *out);

/* Items as timed by a machine, which is borrowed; what is decided with s's granularity and rules,
 * placements for chunks of n_batch. */
MUST_CHECK ats_status simulation_items(struct simulation *s, const struct profile *machine,
                                       struct items **items);
struct decide_options simulation_options(const struct simulation *s, int n_batch);
/* Behind simulation_run, on a simulation whose best way is known: s->ablation. */
MUST_CHECK ats_status ablation_run(struct simulation *s);

json_t *simulation_json(struct simulation *s); /* owned */
