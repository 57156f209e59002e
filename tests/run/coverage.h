/* What random plans have met, counted by name, so that a test can insist on it: operators by device
 * and home, axes, both sides of divided blocks, slots, borders of pages, windows, switches. Reads
 * what engines run; knows nothing of numbers. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include "atsinfer.h"

struct coverage {
    struct covered {
        char name[56];
        int n;
    } * items;
    size_t n, cap;
};
void coverage_close(struct coverage *c);

/* Counts one of what the text says. */
void cover(struct coverage *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
int covered(const struct coverage *c, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Fails the running test at the end: missing counts what the text says if it was never covered, and
 * prints it. */
void coverage_need(const struct coverage *c, int *missing, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The plan and the program of an engine. max_range: what a shader sees at most, 0: all. */
void coverage_engine(struct coverage *c, const ats_engine *e, size_t max_range);
/* A round that gave a sequence its tokens [begin, end); n_seqs: that had tokens in it. */
void coverage_round(struct coverage *c, const ats_engine *e, size_t begin, size_t end, int n_seqs);

/* What plans on these kinds of devices must have met: every operator on each with each home, all
 * axes, all sides, slots, pages. gpu: "vulkan", "sim", or NULL: only CPUs. */
void coverage_check(const struct coverage *c, const char *gpu);
