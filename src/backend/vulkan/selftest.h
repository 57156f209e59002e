/* What the files of the test at first use share: selftest.c (products, and the verdict) and
 * selftest_ops.c (attention, experts, recurrent operators). */
#pragma once

#include "backend/vulkan/vulkan_internal.h"

enum { TRIAL_COLS = 128, TRIAL_LINES = 40, TRIAL_OUT = 1, TRIAL_BUFFERS = 6 };
struct vk_trial {
    struct backend *b;
    float *exchange; /* (TRIAL_BUFFERS, TRIAL_LINES, TRIAL_COLS) */
    uint8_t *blocks; /* of selftest.c's weight */
    float *values;   /* the same as floats */
    uint64_t value;
};
static inline float *vk_trial_line(const struct vk_trial *t, int buffer, int line) {
    return t->exchange + (buffer * TRIAL_LINES + line) * TRIAL_COLS;
}
static inline struct span vk_trial_span(int buffer) {
    return (struct span){SPACE_EXCHANGE, (int64_t)buffer * TRIAL_LINES * TRIAL_COLS * 4, TRIAL_COLS,
                         0};
}
/* A round of n_lines tokens of one sequence, the first of them at `position`, whose state stands in
 * slot 0 behind it; every output is NaN before. */
MUST_CHECK ats_status vk_trial_run(struct vk_trial *t, const struct step *s, int n_lines,
                                   int position);
/* What selftest_ops.c needs. */
void vk_trial_limits(struct backend_limits *limits);
/* Adds bits of VERDICT_OPS to *wrong. */
MUST_CHECK ats_status vk_trial_ops(struct vk_trial *t, unsigned *wrong);
