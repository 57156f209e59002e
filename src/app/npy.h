/*
 * Writes a NumPy file (format 1.0) of float32 rows as they are made, beside its name, and puts it
 * there when complete: never a half file. Only an app's need: nothing here reads one.
 */
#pragma once

#include <stdio.h>
#include "base/error.h"

struct npy_writer {
    FILE *file;
    char *path, *part; /* owned; part NULL: written in place, as path is a device or pipe */
};

/* C order, shape (n_rows, n_cols). */
MUST_CHECK ats_status npy_open(const char *path, uint64_t n_rows, uint64_t n_cols,
                               struct npy_writer *out);
MUST_CHECK ats_status npy_write(struct npy_writer *w, const float *values, size_t n);
/* Puts the file in place. */
MUST_CHECK ats_status npy_finish(struct npy_writer *w);
/* Gives up and removes what was written; does nothing after npy_finish() or on a zeroed one. */
void npy_abandon(struct npy_writer *w);
