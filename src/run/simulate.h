/*
 * What simulate.c decides and simulate_json.c tells: a model on a described machine, in virtual
 * time, by the arithmetic of plan/. Behind ats_simulate; touches no device.
 */
#pragma once

#include "atsinfer.h"
#include "base/json.h"
#include "model/model.h"
#include "plan/limit.h"
#include "plan/schedule.h"
#include "run/constraints.h"

/* One way to go: slots, chunk, placement, and the schedules of a decode round and of a chunk in the
 * middle of the prompt. */
struct simulation_way {
    int n_slots, n_batch;
    double slot_bytes, work_bytes, budget_bytes; /* budget: for weights and KV */
    struct placement *placement;
    struct schedule decode, prefill;
    double prompt_s, prompt_serial_s; /* of the whole prompt */
    double request_s; /* the prompt and SIMULATION_ANSWER tokens: what is compared */
};
enum { SIMULATION_ANSWER = 256 };

struct simulation {
    struct arena arena;
    ats_simulation o; /* defaults filled in */
    enum granularity granularity;
    enum transfer_rule rule;
    struct gguf *file;
    struct model *model;
    struct profile *machine;
    struct items_options items_options; /* items were made with, placements will be */
    struct placement_options placement_options;
    struct items *items;
    struct constraints constraints;
    double hit_exponent;
    double vram_bytes;
    struct simulation_way best;
    struct limit round, blocks, prompt; /* S6, S6b, and of a chunk of the prompt */
};

/* All ways tried, the best kept. s is zeroed; to be closed also after an error. */
MUST_CHECK ats_status simulation_run(struct simulation *s, const ats_simulation *given);
void simulation_close(struct simulation *s);

json_t *simulation_json(struct simulation *s); /* owned */
