/*
 * Files, maps and anonymous pages; the only place (with threads.c and clock.c) that calls the
 * operating system. One implementation per system: file_posix.c.
 */
#pragma once

#include "base/error.h"

/* A read-only map of a whole file. Not copied, pages are read on use. A file that shrinks while
 * mapped raises SIGBUS on access: file_map_check() before it is read tells. */
struct file_map {
    const uint8_t *data; /* NULL when the file is empty */
    uint64_t size_bytes;
    int fd;
    char *path; /* owned */
};

MUST_CHECK ats_status file_map_open(const char *path, struct file_map *out);
void file_map_close(struct file_map *map); /* accepts a zeroed one */
/* Fails if the file has become shorter than the map. */
MUST_CHECK ats_status file_map_check(const struct file_map *map);
/* A hint, may be ignored: it is not needed for now (drops it from this process). */
void file_map_dontneed(const struct file_map *map, uint64_t offset, uint64_t bytes);

/* Whole file into memory; refuses more than max_bytes. *data owned (free), NUL added after it. */
MUST_CHECK ats_status file_read(const char *path, size_t max_bytes, char **data, size_t *n_bytes);
/* Standard input until its end. */
MUST_CHECK ats_status file_read_stdin(size_t max_bytes, char **data, size_t *n_bytes);
/* Writes to a temporary beside path, then renames: never a half file. */
MUST_CHECK ats_status file_write(const char *path, const void *data, size_t n_bytes);
bool file_exists(const char *path);
/* BAD_ARGUMENT if there is a file at path that does not begin with `start`, as all do that may be
 * written over there: a slip in an argument must not cost a model. */
MUST_CHECK ats_status file_check_output(const char *path, const char *start);

/* A file that is written piece by piece and is whole after each: the last bytes of a piece may be
 * an end that the next piece takes the place of. */
struct file_pieces {
    int fd; /* -1: none */
    uint64_t at;
    char *path; /* owned */
};
/* Empties what is there. IO also if the file cannot be written at any place (a pipe). */
MUST_CHECK ats_status file_pieces_open(const char *path, struct file_pieces *out);
/* In one call to the system. The last n_end of n_bytes are the end. */
MUST_CHECK ats_status file_pieces_add(struct file_pieces *f, const void *data, size_t n_bytes,
                                      size_t n_end);
void file_pieces_close(struct file_pieces *f); /* accepts one with fd -1 */

/* XDG directories: "$XDG_CONFIG_HOME/atsinfer" and so on, else under HOME; created if create. */
enum dir_kind { DIR_CONFIG, DIR_DATA, DIR_CACHE, DIR_STATE };
MUST_CHECK ats_status dir_path(enum dir_kind kind, bool create, char **path); /* owned (free) */

/* Zeroed anonymous pages, huge where the system allows; for KV, weights, work buffers. */
MUST_CHECK ats_status pages_alloc(size_t bytes, void **out);
void pages_free(void *p, size_t bytes);

/* Physical memory of the machine (or the container's limit) and what is free now; bytes. */
struct memory_info {
    uint64_t total_bytes, available_bytes;
};
void memory_info_read(struct memory_info *out);
