/*
 * Which devices, and what each of them holds: by the user's rules, by a plan's file, or as many
 * layers on the GPU as fit its memory. Part of the engine (engine.c calls it while it opens).
 */
#pragma once

#include "atsinfer.h"
#include "plan/decide.h"
#include "plan/file.h"
#include "plan/rules.h"
#include "run/ledger.h"

struct plan_choice {
    bool automatic;       /* the engine says how much the GPU holds, so it may say less */
    bool planned;         /* by a profile: planner.h has the way */
    int n_gpu_layers;     /* that the plan has; -1: it was not made of layers */
    int64_t budget_bytes; /* of the GPU's memory; 0: there was none to keep to */
    int64_t less_bytes;   /* an earlier attempt did not fit: no more than this; 0: none */
    const char *how;      /* one line, for people */
    struct plan_file *file;
};

/* A plan's file (NULL: none) and rules for layers, tensors or experts exclude each other. */
MUST_CHECK ats_status choice_check(const char *plan, const char *gpu_layers, int n_overrides,
                                   int n_cpu_moe);
/* Reads a plan's file; messages begin with its path. Owned (plan_file_close). */
MUST_CHECK ats_status choice_read_file(const char *path, struct plan_file **out);

/* There is a GPU that is no software. */
bool choose_has_gpu(void);
/* Before the devices are opened: the options of the plan are checked, device_names filled in. */
MUST_CHECK ats_status choose_devices(ats_engine *e);
/* After: e->plan, e->choice and e->ledger, which has been checked. A GPU that gets nothing is
 * closed and leaves the list. options->device_bytes is set. */
MUST_CHECK ats_status choose_plan(ats_engine *e, struct executor_options *options);
/* Is the plan, with its partner for prompts, legal on the open devices? BAD_ARGUMENT. */
MUST_CHECK ats_status choose_check_plan(const ats_engine *e, const struct plan *plan);
/* For tests: gives every second plan any partner for prompts, if there is a device that streams. */
void choose_random_prompts(const ats_engine *e, struct arena *arena, struct plan *plan,
                           struct rng *rng);
/* The engine runs (choice.automatic, one CPU and one GPU): the plan that it would make for so many
 * bytes of the GPU's memory, which may be too few for anything but buffers. Changes nothing of the
 * engine, and may run beside a round. Errors: NO_MEMORY: what the user's rules have on the GPU does
 * not fit; *out has nothing then but its arena. */
struct choice_again {
    struct arena arena; /* owned: of all below */
    int64_t bytes;
    struct decide_way way;         /* placement NULL: */
    struct decide_options options; /* of it */
    struct plan *plan;             /* then: this, */
    int n_gpu_layers;              /* of so many */
};
MUST_CHECK ats_status choose_again(ats_engine *e, int64_t bytes, struct choice_again *out);
/* After an attempt that ran out of memory: false if a smaller plan is not the engine's to choose,
 * or there is none. Says it. device_names may lose one; the devices are to be opened again. */
bool choose_smaller(ats_engine *e);
void choice_free(struct plan_choice *c);
