/*
 * What to do with a model on a CPU and a GPU, all of it decided together: slots for streamed
 * weights, the chunk of a prompt, what the rest of the device's memory is for, the placement, and
 * the schedules of a decode round and of a chunk. Joins placement.h and schedule.h; arithmetic
 * only. Called when an engine opens, again when the load changes, by simulations and explanations.
 */
#pragma once

#include "plan/placement.h"
#include "plan/schedule.h"

/* Tokens of an answer, and of a chunk, where nobody says otherwise. */
enum { DECIDE_ANSWER = 256, DECIDE_CHUNK = 512 };

struct decide_options {
    struct placement_options placement;
    double device_bytes; /* for weights, caches, slots and the buffers of a round */
    int64_t fixed_bytes; /* of what `placement` fixes on the device: the least a way must leave */
    int n_batch;         /* tokens of a chunk; 0: the best of 512 to 4096 */
    int n_slots;         /* -1: the best of 0, 2, 4 and 8 */
    int n_prompt, n_answer; /* tokens of the request that ways are compared by */
    int depth;              /* tokens before its decode rounds */
    enum transfer_rule decode_rule, prefill_rule;
    bool stream_caches;
    /* What an executor can run: what is fixed on the host is not streamed either, experts come
     * whole (schedule.h), one schedule is for all chunks; the placement's experts are not to be
     * scattered. And besides what is placed well, what others do is tried: everything on the CPU,
     * the first and the last layers. */
    bool runnable;
    bool whole_experts; /* of what is not runnable: its experts come whole, as there */
    /* Of that the same is streamed in decode and in prompts: what suits decode, what suits prompts,
     * or nothing. Else the better of that and of a schedule for each (decide_pair). */
    bool one_program;
    const struct schedule_streams *given; /* of decide_time: what a plan streams; NULL */
};
/* Shards, a prompt of half the context (at most 2048) and DECIDE_ANSWER tokens, rules of labels. */
struct decide_options decide_options_default(int n_ctx, double device_bytes);

/* One way to go, and the schedules of a decode round and of a chunk in the middle of the prompt. */
struct decide_way {
    int n_slots, n_batch;
    bool by_items; /* what is streamed is whole items, also where options say shards */
    double slot_bytes, work_bytes, budget_bytes; /* budget: for weights and KV */
    struct placement *placement;
    /* That it was placed by, where options say others: whole items, prompts that weigh more. */
    enum granularity granularity;
    double prompt_tokens;
    struct schedule decode, prefill;
    double prompt_s, prompt_serial_s; /* of the whole prompt */
    double request_s;                 /* the prompt and n_answer decode rounds */
    /* Where it is runnable: rounds of so many tokens and more stream what `prefill` does, in less
     * time than what `decode` does would take. 0: every round streams that. */
    int prompts_from;
};

/* All ways tried, the one of the shortest request. By shards none whose prompt takes longer than by
 * tensor (granularity tensor, decided with the same options): if need be that one itself. *out in
 * the arena; items are borrowed. Errors: BAD_ARGUMENT if the device's memory does not hold a
 * round's buffers and what is fixed there. */
MUST_CHECK ats_status decide(struct arena *arena, const struct items *items,
                             const struct decide_options *o, struct decide_way *out);
/* A schedule for decode and one for prompts, of runnable ways of the same memory: in the placement
 * of `near` (what decide() made with one program, or what is in force), and in one that was made
 * for two programs and two slots, or four. The shortest request among these few; out->placement
 * NULL: prompts are not faster in any. Results in the arena. Errors: those of decide(). */
MUST_CHECK ats_status decide_pair(struct arena *arena, const struct items *items,
                                  const struct decide_options *o, const struct decide_way *near,
                                  struct decide_way *out);
/* Tokens of a chunk for what is runnable, before its memory is known exactly: the fewest of 512 to
 * 4096, at most the prompt, that come near the shortest request of two programs; 512 where prompts
 * have none of their own. */
int decide_chunk(const struct items *items, const struct decide_options *o);
/* One program is simpler to run: does such a pair gain enough, and are its prompts no slower? */
bool decide_pair_pays(const struct decide_way *one, const struct decide_way *pair);
/* The schedules and times of a way whose slots, chunk and placement are given. A plan's own
 * (o->given) are two where it has a partner; else, of what is runnable, one for all rounds. */
void decide_time(struct arena *arena, const struct items *items, const struct decide_options *o,
                 struct decide_way *w);
/* The same schedules in other times: of items under load, or after it. */
void decide_retime(struct arena *arena, const struct items *items, const struct decide_options *o,
                   struct decide_way *w);
/* Of one round of a way, of which slots are read: what plan/schedule.h asks for. */
struct schedule_options decide_schedule_options(const struct decide_options *o,
                                                const struct decide_way *w, double n_tokens,
                                                double depth);
/* The same of a round that streams what prompts do. */
struct schedule_options decide_prompt_options(const struct decide_options *o,
                                              const struct decide_way *w, double n_tokens,
                                              double depth);
