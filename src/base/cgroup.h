/*
 * Limits that a container puts on this process (Linux control groups, versions 1 and 2). Base's
 * own: cpus.c and memory_posix.c use it. `root` is "" on a real machine; tests give a directory
 * that holds proc/ and sys/.
 */
#pragma once

#include "base/arena.h"

struct cgroup_dirs {
    char **paths; /* from the group itself up to the root of the hierarchy; in the arena */
    int n;
};

/* Directories of this process for a controller ("cpu", "memory"); version 1 or 2; n = 0 if none. */
void cgroup_find(struct arena *a, const char *root, const char *controller, int version,
                 struct cgroup_dirs *out);

/* A small system file as text, at most n - 1 bytes; false if it cannot be read. */
bool small_file_read(const char *path, char *text, size_t n);

/* CPUs that the quota allows (rounded down, at least 1); 0: no quota. */
int cpu_quota_read(const char *root);
/* Fast cores among the CPUs of mask[0..n_mask) (true: usable); >= 1. See cpu_count_fast(). */
int cpu_fast_read(const char *root, const bool *mask, int n_mask);
/* cpu_order() of the CPUs of mask[0..n_mask). */
int cpu_order_read(const char *root, const bool *mask, int n_mask, int *order);
/* memory_info_read() on a given root. */
struct memory_info;
void memory_info_read_at(const char *root, struct memory_info *out);
