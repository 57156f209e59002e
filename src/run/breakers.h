/* The strings at which DRY stops looking back, as the sequences of tokens that spell them. */
#pragma once

#include "base/arena.h"
#include "run/dry.h"
#include "text/tokenizer.h"

/* For each string: every token whose text holds it, and every token that ends with its beginning
 * followed by the tokens of the rest. The array and what it points to live in the arena. */
MUST_CHECK ats_status dry_breakers_make(struct arena *arena, const struct tokenizer *t,
                                        const char *const *strings, int n_strings,
                                        struct dry_breaker **out, int *n_out);
