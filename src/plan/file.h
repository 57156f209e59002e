/*
 * Plans as JSON, written by `--save-plan` and read by `--plan`:
 *
 *   {"format": "atsinfer plan", "version": 1,
 *    "model": {"architecture": "llama", "n_layers": 2, "n_embd": 64, "n_vocab": 640},
 *    "devices": ["cpu", "vulkan0"],
 *    "slots": {"vulkan0": 2},
 *    "homes": {
 *      "blk.0.attn_q.weight": "vulkan0",
 *      "blk.0.ffn_up.weight": [{"device": "cpu", "axis": "rows", "begin": 0, "end": 96},
 *                              {"device": "vulkan0", "axis": "rows", "begin": 96, "end": 256,
 *                               "streamed": true}]},
 *    "prompts": {"from": 32, "slots": {"vulkan0": 2},
 *      "homes": {"blk.0.attn_q.weight": [...]}}}
 *
 * Every placed operator has an entry in "homes": a device that holds all of it, or its parts in
 * ascending order. Axes: rows, cols, heads, experts. "slots", of devices that streamed parts go to,
 * may be missing. "prompts", which may be missing too, is a partner for
 * rounds of "from" tokens and more (plan.h): the operators that are elsewhere then, in the same
 * ranges, and slots of its own. Files are hostile: everything is checked, and messages name the
 * place.
 */
#pragma once

#include "base/error.h"
#include "plan/plan.h"

struct plan_file;

/* Reads the text; devices and shape are checked here, homes when it is applied. *out owned.
 * Errors: BAD_FILE. */
MUST_CHECK ats_status plan_file_open(const char *text, size_t n_bytes, struct plan_file **out);
void plan_file_close(struct plan_file *f); /* accepts NULL */
/* Names of its devices, 1 to 64, all different; borrowed. */
const char *const *plan_file_devices(const struct plan_file *f, int *n);

/* The plan for a graph of this architecture. device_of: for each of the file's devices its number
 * below n_devices, all different. The plan lies in the arena and has passed plan_check; with its
 * partner plan_check_pair, as if all devices were processors. Errors: BAD_FILE: another model's, or
 * naming the operator and what is wrong with its parts. */
MUST_CHECK ats_status plan_file_apply(const struct plan_file *f, struct arena *arena,
                                      const struct graph *g, const char *architecture,
                                      const int *device_of, int n_devices, int row_group,
                                      plan_devices streaming, struct plan **out);

/* The text of a plan. device_names: (plan->n_devices), all different. Owned (free). */
char *plan_file_print(const struct graph *g, const struct plan *plan, const char *architecture,
                      const char *const *device_names);
const char *axis_name(enum axis axis);
