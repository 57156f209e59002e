/*
 * A model without its weights: a JSON file that says what the header of a GGUF file says, so that a
 * model can be planned and simulated by who does not have it. It becomes a struct gguf with
 * no_data set; everything that reads headers reads it. The files are in shapes/, written by
 * scripts/make-shapes.
 *
 *   {"atsinfer": "shape", "version": 1, "comment": "...",
 *    "metadata": {"general.architecture": "qwen3", "qwen3.block_count": 40, ...},
 *    "tensors": [["token_embd.weight", "Q4_K", [5120, 151936]],
 *                {"layers": [0, 39], "step": 1,             blk.0. to blk.39.; step is optional
 *                 "tensors": [["attn_q.weight", "Q4_K", [5120, 5120]], ...]},
 *                {"layers": [[0, 4], 7], "tensors": [...]}]}
 *
 * "layers": two numbers are the first and the last; a list that holds a list is single numbers and
 * such pairs, 1024 at most. A tensor's name has at most 255 bytes here. Dimensions begin with the
 * row length, as in a GGUF file. Metadata: strings, booleans, numbers, and lists of one of these.
 * "atsinfer.expert_hit_exponent" (not a key of any GGUF file): the most used share s of a layer's
 * experts receives s^x of the choices.
 */
#pragma once

#include "model/gguf.h"

/* True if the path ends in ".json". */
bool shape_is_path(const char *path);
/* *out owned (gguf_close). Errors: BAD_FILE naming the file and what in it is wrong. */
MUST_CHECK ats_status shape_open(const char *path, struct gguf **out);
/* For tests: the same from a text; `where` names it in messages. */
MUST_CHECK ats_status shape_parse(const char *text, size_t n, const char *where, struct gguf **out);
