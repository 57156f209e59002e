#include "run/granularity.h"

#include <string.h>

static const char *const granularities[] = {"layer", "expert", "tensor", "shard"};
static const char *const transfers[] = {"none", "paper", "ours"};

static ats_status find(const char *what, const char *name, const char *const *names, int n,
                       int *out) {
    for (int i = 0; i < n; i++)
        if (strcmp(name, names[i]) == 0) {
            *out = i;
            return ATS_OK;
        }
    return fail(ATS_BAD_ARGUMENT, "there is no %s \"%.40s\"", what, name);
}

const char *granularity_name(enum granularity granularity) {
    return granularities[granularity];
}

ats_status granularity_read(const char *name, enum granularity *out) {
    int found = GRANULARITY_SHARD;
    if (name) TRY(find("granularity", name, granularities, COUNT_OF(granularities), &found));
    *out = (enum granularity)found;
    return ATS_OK;
}

ats_status transfer_read(const char *name, enum transfer_rule *out) {
    static const enum transfer_rule rules[] = {TRANSFER_NONE, TRANSFER_PAPER, TRANSFER_LABELS};
    int found = COUNT_OF(rules) - 1;
    if (name) TRY(find("transfer", name, transfers, COUNT_OF(transfers), &found));
    *out = rules[found];
    return ATS_OK;
}
