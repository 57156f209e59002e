/* Parts of what `plan --machine` prints, from the JSON of ats_explain(). */
#pragma once

#include "base/buf.h"
#include "base/json.h"

struct app;

/* All of it. */
void explain_add(struct app *app, struct buf *out, const json_t *answer);
/* An item's name without its layer: "attn_kv", "ffn_up.weight". Appended, safe to print. */
void explain_add_kind(struct buf *out, const json_t *item);
/* "items" as a map, kinds of tensors by layers: letters, or blocks of colour. Lines have at most
 * `width` columns (from 16): a model of more layers is cut into several maps. */
void explain_add_map(struct buf *out, const json_t *items, int width, bool colour);
/* "diff": what another plan has elsewhere; equal changes of several layers are one line. */
void explain_add_diff(struct buf *out, const json_t *answer);
