/* Shipped shapes on shipped machines, simulated or explained: what their tests share. Whatever goes
 * wrong fails the running test. */
#pragma once

#include "atsinfer.h"
#include "support.h"

/* In chunks of 512 tokens, with a context of 4096. The paths in it are static: the next call writes
 * over them. */
ats_simulation described(const char *shape, const char *machine);
/* Its JSON, owned. */
json_t *simulated(const ats_simulation *s);
json_t *explained(const ats_simulation *s);
double number(const json_t *json, const char *key);
