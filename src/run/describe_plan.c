/* The plan in force and the ledger as JSON: what `plan`, `--json` and `--save-plan` write. */
#include <stdlib.h>
#include <string.h>
#include "base/json.h"
#include "plan/names.h"
#include "run/engine.h"

/* Bytes as the file has them, of a part: what its range is of the whole. */
static int64_t weight_bytes(const ats_engine *e, int weight, const struct plan_part *p) {
    struct program_shard shard = {.device = p->device,
                                  .weight = weight,
                                  .axis = p->axis,
                                  .begin = p->begin,
                                  .end = p->end,
                                  .transfer = -1};
    struct weight_source source = shard_source(e->model, &shard, false);
    return weight_source_bytes(&source);
}

static int64_t part_bytes(const ats_engine *e, const struct plan_part *p) {
    const struct graph_op *op = &e->model->graph->ops[p->op];
    int64_t bytes = 0;
    if (op->kind == OP_EXPERTS) {
        for (int w = 0; w < N_EXPERT_WEIGHTS; w++)
            bytes += weight_bytes(e, op->p.experts.weights[w], p);
    } else if (op->kind == OP_ATTENTION) {
        struct program_kv kv = {p->device, p->op, p->begin, p->end};
        struct kv_layout layout = program_kv_layout(e->model, &kv, &e->executor_options);
        bytes = (int64_t)kv_layout_bytes(&layout);
    } else if (op->weight >= 0) {
        bytes = weight_bytes(e, op->weight, p);
    }
    return bytes;
}

/* How an operator's block is divided, for who writes plans: no other division has one exchange. */
static void add_units(json_t *line, const struct graph *g, const struct graph_op *op) {
    if (op->block < 0) return;
    json_object_set_new(line, "block", json_integer(op->block));
    if (g->blocks[op->block].n_units < 2 || op->unit_elements == 0) return;
    json_object_set_new(line, "n_units", json_integer(g->blocks[op->block].n_units));
    json_object_set_new(line, "unit_axis", json_string(axis_name(op->unit_axis)));
    json_object_set_new(line, "unit_elements", json_integer(op->unit_elements));
}

/* Where a plan has a partner for prompts: who computes the part then, if it is another. */
static void add_in_prompts(json_t *part, const ats_engine *e, int index) {
    if (!e->plan->prompts) return;
    const struct plan_part *p = &e->plan->parts[index], *q = &e->plan->prompts->parts[index];
    if (p->device == q->device && p->streamed == q->streamed) return;
    json_object_set_new(part, "in_prompts",
                        json_pack("{s:s, s:b}", "device", e->device_names[q->device], "streamed",
                                  (int)q->streamed));
}

/* Of every placed operator: its name, its layer (-1: none), its parts, and how its block may be
 * divided. */
static json_t *tensors_json(const ats_engine *e) {
    struct arena scratch = {0};
    const struct graph *g = e->model->graph;
    const char **names = plan_names(&scratch, g);
    json_t *tensors = json_array();
    for (int i = 0; i < g->n_ops; i++) {
        if (!names[i]) continue;
        json_t *parts = json_array();
        for (int k = e->plan->first[i]; k < e->plan->first[i + 1]; k++) {
            const struct plan_part *p = &e->plan->parts[k];
            json_t *part =
                json_pack("{s:s, s:s, s:i, s:i, s:I}", "device", e->device_names[p->device], "axis",
                          axis_name(p->axis), "begin", p->begin, "end", p->end, "bytes",
                          (json_int_t)part_bytes(e, p));
            if (p->streamed) json_object_set_new(part, "streamed", json_true());
            add_in_prompts(part, e, k);
            json_array_append_new(parts, part);
        }
        json_t *line =
            json_pack("{s:s, s:s, s:i, s:o}", "name", names[i], "op", op_kind_name(g->ops[i].kind),
                      "layer", g->ops[i].layer, "parts", parts);
        add_units(line, g, &g->ops[i]);
        json_array_append_new(tensors, line);
    }
    arena_free(&scratch);
    return tensors;
}

/* As it was chosen, or what has followed that. */
static const char *how(const ats_engine *e, struct arena *arena, const struct decide_way *way) {
    if (!way || e->stats.n_plan_switches == 0) return e->choice.how;
    return arena_printf(arena, "planned again: %s", planner_text(e->planner, arena, way));
}

static json_t *plan_json(const ats_engine *e) {
    const struct decide_way *way = adapt_way(e);
    struct arena scratch = {0};
    json_t *plan = json_pack("{s:s, s:b, s:o}", "how", how(e, &scratch, way), "automatic",
                             (int)e->choice.automatic, "tensors", tensors_json(e));
    arena_free(&scratch);
    if (e->choice.n_gpu_layers >= 0)
        json_object_set_new(plan, "gpu_layers", json_integer(e->choice.n_gpu_layers));
    if (e->plan->prompts)
        json_object_set_new(plan, "prompts_from", json_integer(e->plan->prompts_from));
    if (way) json_object_set_new(plan, "prediction", planner_json(e->planner, way));
    return plan;
}

static json_t *ledger_json(const ats_engine *e) {
    json_t *devices = json_array();
    for (int d = 0; d < e->n_devices; d++) {
        const struct executor_ledger *l = &e->ledger.devices[d];
        json_t *line = json_pack(
            "{s:s, s:s, s:b, s:I, s:I, s:I, s:I, s:I, s:I}", "name", e->device_names[d], "kind",
            e->devices[d]->gpu ? "gpu" : "cpu", "host_memory", (int)l->memory.host, "weight_bytes",
            (json_int_t)l->weight_bytes, "mapped_bytes", (json_int_t)l->mapped_bytes, "kv_bytes",
            (json_int_t)l->kv_bytes, "state_bytes", (json_int_t)l->state_bytes, "work_bytes",
            (json_int_t)l->work_bytes, "pinned_bytes", (json_int_t)l->pinned_bytes);
        json_object_set_new(line, "slot_bytes", json_integer(l->slot_bytes));
        /* once it is loaded: what could not be pinned */
        int64_t unpinned = min_i64(e->devices[d]->unpinned_bytes, l->streamed_bytes);
        json_object_set_new(line, "streamed_pinned_bytes",
                            json_integer(l->streamed_bytes - unpinned));
        json_object_set_new(line, "streamed_pageable_bytes",
                            json_integer(l->pageable_bytes + unpinned));
        json_object_set_new(line, "own_bytes", json_integer(ledger_own_bytes(l)));
        json_object_set_new(
            line, "limit_bytes",
            json_integer(e->devices[d]->gpu ? l->limit_bytes : e->ledger.host_limit_bytes));
        json_object_set_new(line, "memory_bytes", json_integer(l->memory.total_bytes));
        json_object_set_new(line, "free_bytes", json_integer(l->memory.free_bytes));
        json_array_append_new(devices, line);
    }
    return devices;
}

static void add_program(json_t *to, const struct program *p) {
    json_object_set_new(to, "steps", json_integer(p->n_steps));
    json_object_set_new(to, "segments", json_integer(p->n_segments));
    json_object_set_new(to, "copies", json_integer(p->n_copies));
    json_object_set_new(to, "transfers", json_integer(p->n_transfers));
}

/* A file's name may hold any bytes, JSON may not. */
char *ats_engine_describe(const ats_engine *e) {
    json_t *root = json_pack("{s:i, s:o}", "schema", 1, "model",
                             json_string_replaced(e->options.model, strlen(e->options.model)));
    if (e->plan) {
        json_object_set_new(root, "n_layers", json_integer(e->model->hp.n_layers));
        json_object_set_new(root, "devices", ledger_json(e));
        json_object_set_new(root, "host",
                            json_pack("{s:I, s:I}", "needed_bytes",
                                      (json_int_t)e->ledger.host_bytes, "limit_bytes",
                                      (json_int_t)e->ledger.host_limit_bytes));
        json_object_set_new(root, "plan", plan_json(e));
    }
    if (e->executor) {
        const struct programs *p = executor_programs(e->executor);
        add_program(root, p->at[PROGRAM_DECODE]);
        if (p->n > 1) {
            json_t *prompts = json_object();
            add_program(prompts, p->at[PROGRAM_PROMPTS]);
            json_object_set_new(root, "prompts", prompts);
        }
    }
    char *text = json_print(root, false);
    json_decref(root);
    return text;
}

char *ats_engine_plan(const ats_engine *e) {
    if (!e->plan) return NULL;
    return plan_file_print(e->model->graph, e->plan, e->file->arch, e->device_names);
}
