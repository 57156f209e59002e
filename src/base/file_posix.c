#include "base/file.h"

#include "base/arena.h"
#include "base/buf.h"
#include "base/cgroup.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

MUST_CHECK static ats_status fail_os(const char *what, const char *path) {
    return fail(ATS_IO, "cannot %s %s: %s", what, path, strerror(errno));
}

/* flags: more of open()'s. st->st_size is 0 for pipes and devices, whose length nobody knows. */
MUST_CHECK static ats_status open_for_reading(const char *path, int flags, int *fd,
                                              struct stat *st) {
    *fd = open(path, O_RDONLY | O_CLOEXEC | flags);
    if (*fd < 0) return fail_os("open", path);
    if (fstat(*fd, st) == 0 && !S_ISDIR(st->st_mode)) return ATS_OK;
    int is_dir = S_ISDIR(st->st_mode);
    close(*fd);
    *fd = -1;
    return is_dir ? fail(ATS_IO, "%s is a directory", path) : fail_os("read", path);
}

ats_status file_map_open(const char *path, struct file_map *out) {
    *out = (struct file_map){.fd = -1};
    struct stat st = {0};
    int fd;
    TRY(open_for_reading(path, O_NONBLOCK, &fd, &st)); /* does not wait for a pipe's other end */
    if (!S_ISREG(st.st_mode)) {
        close(fd);
        return fail(ATS_IO, "%s is not a regular file", path);
    }
    void *data = NULL;
    if (st.st_size > 0) {
        data = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
        if (data == MAP_FAILED) {
            ats_status status = fail_os("map", path);
            close(fd);
            return status;
        }
    }
    *out = (struct file_map){data, (uint64_t)st.st_size, fd, xstrdup(path)};
    return ATS_OK;
}

void file_map_close(struct file_map *map) {
    if (!map->path) return;
    if (map->data) munmap((void *)(uintptr_t)map->data, (size_t)map->size_bytes);
    close(map->fd);
    free(map->path);
    *map = (struct file_map){.fd = -1};
}

ats_status file_map_check(const struct file_map *map) {
    struct stat st;
    if (fstat(map->fd, &st) != 0) return fail_os("check", map->path);
    if ((uint64_t)st.st_size < map->size_bytes)
        return fail(ATS_IO, "%s became shorter while it was open", map->path);
    return ATS_OK;
}

/* Whole pages only. */
void file_map_dontneed(const struct file_map *map, uint64_t offset, uint64_t bytes) {
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), end;
    if (!map->data || !add_u64(offset, bytes, &end)) return;
    uint64_t begin = (offset + page - 1) / page * page;
    end = end < map->size_bytes ? end / page * page : map->size_bytes;
    if (begin < end)
        madvise((void *)(uintptr_t)(map->data + begin), (size_t)(end - begin), MADV_DONTNEED);
}

/* To the end of fd; size_hint saves copies. Takes no ownership of fd. */
MUST_CHECK static ats_status read_all(int fd, const char *name, size_t size_hint, size_t max_bytes,
                                      char **data, size_t *n_bytes) {
    char *text = NULL;
    size_t n = 0, cap = 0;
    GROW(text, 0, cap, size_hint + 2);
    for (;;) {
        ssize_t got = read(fd, text + n, cap - n - 1);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) {
            ats_status status = fail_os("read", name);
            free(text);
            return status;
        }
        if (got == 0) break;
        n += (size_t)got;
        if (n > max_bytes) {
            free(text);
            return fail(ATS_BAD_FILE, "%s is longer than %zu bytes", name, max_bytes);
        }
        if (n + 1 == cap) GROW(text, n, cap, 4096);
    }
    text[n] = 0;
    *data = text;
    *n_bytes = n;
    return ATS_OK;
}

ats_status file_read(const char *path, size_t max_bytes, char **data, size_t *n_bytes) {
    *data = NULL;
    *n_bytes = 0;
    struct stat st = {0};
    int fd;
    TRY(open_for_reading(path, 0, &fd, &st));
    ats_status status;
    if (S_ISREG(st.st_mode) && (uint64_t)st.st_size > max_bytes)
        status = fail(ATS_BAD_FILE, "%s is longer than %zu bytes", path, max_bytes);
    else
        status = read_all(fd, path, S_ISREG(st.st_mode) ? (size_t)st.st_size : 0, max_bytes, data,
                          n_bytes);
    close(fd);
    return status;
}

ats_status file_read_stdin(size_t max_bytes, char **data, size_t *n_bytes) {
    *data = NULL;
    *n_bytes = 0;
    return read_all(STDIN_FILENO, "standard input", 0, max_bytes, data, n_bytes);
}

/* Writes, syncs if it is a file on a disk, and closes fd. */
MUST_CHECK static ats_status write_and_close(int fd, const char *path, const char *data,
                                             size_t n_bytes, bool sync) {
    ats_status status = ATS_OK;
    for (size_t at = 0; at < n_bytes && status == ATS_OK;) {
        ssize_t n = write(fd, data + at, n_bytes - at);
        if (n >= 0)
            at += (size_t)n;
        else if (errno != EINTR)
            status = fail_os("write", path);
    }
    if (status == ATS_OK && sync && fsync(fd) != 0) status = fail_os("write", path);
    if (close(fd) != 0 && status == ATS_OK) status = fail_os("write", path);
    return status;
}

/* A link keeps pointing where it did: the file behind it is the one to replace. */
MUST_CHECK static ats_status replace_file(const char *path, mode_t mode, const void *data,
                                          size_t n_bytes) {
    struct buf temporary = {0};
    int fd = -1;
    for (int i = 0; i < 100 && fd < 0; i++) {
        buf_clear(&temporary);
        buf_printf(&temporary, "%s.tmp%ld-%d", path, (long)getpid(), i);
        fd = open(temporary.data, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
        if (fd < 0 && errno != EEXIST) break;
    }
    ats_status status;
    if (fd < 0) {
        status = fail_os("create", path);
    } else {
        status = write_and_close(fd, path, data, n_bytes, true);
        if (status == ATS_OK && rename(temporary.data, path) != 0) status = fail_os("write", path);
        if (status != ATS_OK) unlink(temporary.data);
    }
    buf_free(&temporary);
    return status;
}

ats_status file_write(const char *path, const void *data, size_t n_bytes) {
    struct stat st;
    if (stat(path, &st) != 0) return replace_file(path, 0666, data, n_bytes);
    if (S_ISDIR(st.st_mode)) return fail(ATS_IO, "%s is a directory", path);
    if (!S_ISREG(st.st_mode)) { /* a device or pipe is written to, not replaced */
        int fd = open(path, O_WRONLY | O_CLOEXEC);
        if (fd < 0) return fail_os("open", path);
        return write_and_close(fd, path, data, n_bytes, false);
    }
    char *real = realpath(path, NULL);
    ats_status status = replace_file(real ? real : path, st.st_mode & 0777, data, n_bytes);
    free(real);
    return status;
}

ats_status file_pieces_open(const char *path, struct file_pieces *out) {
    *out = (struct file_pieces){
        .fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK, 0666)};
    if (out->fd < 0) return fail_os("create", path);
    out->path = xstrdup(path);
    if (lseek(out->fd, 0, SEEK_SET) == 0) return ATS_OK;
    ats_status status = fail_os("write at any place of", path);
    file_pieces_close(out);
    return status;
}

ats_status file_pieces_add(struct file_pieces *f, const void *data, size_t n_bytes, size_t n_end) {
    REQUIRE(n_end <= n_bytes);
    for (size_t done = 0; done < n_bytes;) {
        ssize_t n = pwrite(f->fd, (const char *)data + done, n_bytes - done,
                           (off_t)(f->at + (uint64_t)done));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return fail_os("write", f->path);
        done += (size_t)n;
    }
    f->at += n_bytes - n_end;
    return ATS_OK;
}

void file_pieces_close(struct file_pieces *f) {
    if (f->fd >= 0) close(f->fd);
    free(f->path);
    *f = (struct file_pieces){.fd = -1};
}

bool file_exists(const char *path) {
    return access(path, F_OK) == 0;
}

ats_status file_check_output(const char *path, const char *start) {
    char found[16];
    struct stat st;
    size_t n = strlen(start);
    REQUIRE(n < sizeof found);
    if (stat(path, &st) != 0 || !S_ISREG(st.st_mode)) return ATS_OK; /* writing tells more */
    if (!small_file_read(path, found, n + 1) || strncmp(found, start, n) == 0) return ATS_OK;
    return fail(ATS_BAD_ARGUMENT, "%s is there already and is something else: it is not replaced",
                path);
}

/* mkdir -p; new directories are private, as XDG asks. */
MUST_CHECK static ats_status make_dirs(char *path) {
    for (char *p = path + 1;; p++) {
        if (*p != '/' && *p != 0) continue;
        char end = *p;
        *p = 0;
        bool made = mkdir(path, 0700) == 0 || errno == EEXIST;
        ats_status status = made ? ATS_OK : fail_os("create", path);
        *p = end;
        if (status != ATS_OK || end == 0) return status;
    }
}

ats_status dir_path(enum dir_kind kind, bool create, char **path) {
    static const struct {
        const char *variable, *below_home;
    } kinds[] = {
        [DIR_CONFIG] = {"XDG_CONFIG_HOME", ".config"},
        [DIR_DATA] = {"XDG_DATA_HOME", ".local/share"},
        [DIR_CACHE] = {"XDG_CACHE_HOME", ".cache"},
        [DIR_STATE] = {"XDG_STATE_HOME", ".local/state"},
    };
    *path = NULL;
    struct buf b = {0};
    const char *base = getenv(kinds[kind].variable), *home = getenv("HOME");
    if (base && base[0] == '/') /* the XDG text says to ignore relative ones */
        buf_printf(&b, "%s/atsinfer", base);
    else if (home && home[0] == '/')
        buf_printf(&b, "%s/%s/atsinfer", home, kinds[kind].below_home);
    else
        return fail(ATS_FAILED, "neither %s nor HOME names a directory", kinds[kind].variable);
    ats_status status = create ? make_dirs(b.data) : ATS_OK;
    if (status != ATS_OK) {
        buf_free(&b);
        return status;
    }
    *path = buf_take(&b);
    return ATS_OK;
}
