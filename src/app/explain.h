/* Parts of what `plan --machine` prints, from the JSON of ats_explain(). */
#pragma once

#include "base/buf.h"
#include "base/json.h"

/* An item as it is called: "blk.7.attention", "blk.7.ffn_up.weight". Appended, safe to print. */
void explain_add_name(struct buf *out, const json_t *item);
/* "diff": what another plan has elsewhere; equal changes of several layers are one line. */
void explain_add_diff(struct buf *out, const json_t *answer);
