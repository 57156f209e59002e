#include "app/npy.h"

#include "base/arena.h"
#include "base/buf.h"
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "npy.c writes little-endian floats"
#endif

MUST_CHECK static ats_status fail_write(const struct npy_writer *w) {
    return fail(ATS_IO, "cannot write %s: %s", w->path, strerror(errno));
}

/* Version 1.0: magic, 2 bytes version, 2 bytes length, then a Python dict padded with blanks so
 * that the data begin on 64 bytes, ending in a newline. */
MUST_CHECK static ats_status write_header(struct npy_writer *w, uint64_t n_rows, uint64_t n_cols) {
    struct buf text = {0};
    buf_printf(&text, "{'descr': '<f4', 'fortran_order': False, 'shape': (%llu, %llu), }",
               (unsigned long long)n_rows, (unsigned long long)n_cols);
    while ((10 + text.len + 1) % 64)
        buf_add_char(&text, ' ');
    buf_add_char(&text, '\n');
    unsigned char start[10] = {0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0};
    start[8] = (unsigned char)(text.len & 0xff);
    start[9] = (unsigned char)(text.len >> 8);
    bool ok = fwrite(start, 1, sizeof start, w->file) == sizeof start &&
              fwrite(text.data, 1, text.len, w->file) == text.len;
    buf_free(&text);
    return ok ? ATS_OK : fail_write(w);
}

ats_status npy_open(const char *path, uint64_t n_rows, uint64_t n_cols, struct npy_writer *w) {
    *w = (struct npy_writer){0};
    TRY(file_check_output(path, "\x93NUMPY"));
    struct stat st;
    bool exists = stat(path, &st) == 0;
    if (exists && S_ISDIR(st.st_mode)) return fail(ATS_IO, "%s is a directory", path);
    char *real = exists ? realpath(path, NULL) : NULL; /* a link stays one */
    w->path = xstrdup(real ? real : path);
    free(real);
    int fd;
    if (exists && !S_ISREG(st.st_mode)) {
        fd = open(path, O_WRONLY | O_CLOEXEC);
    } else {
        struct buf part = {0};
        buf_printf(&part, "%s.part%ld", w->path, (long)getpid());
        w->part = buf_take(&part);
        fd = open(w->part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    }
    w->file = fd >= 0 ? fdopen(fd, "wb") : NULL;
    ats_status status = ATS_OK;
    if (!w->file) {
        status = fail_write(w);
        free(w->part);
        w->part = NULL;
        if (fd >= 0) close(fd);
    }
    if (status == ATS_OK) status = write_header(w, n_rows, n_cols);
    if (status != ATS_OK) npy_abandon(w);
    return status;
}

ats_status npy_write(struct npy_writer *w, const float *values, size_t n) {
    return fwrite(values, sizeof *values, n, w->file) == n ? ATS_OK : fail_write(w);
}

ats_status npy_finish(struct npy_writer *w) {
    bool ok = fflush(w->file) == 0;
    if (fclose(w->file) != 0) ok = false;
    w->file = NULL;
    if (ok && w->part && rename(w->part, w->path) != 0) ok = false;
    ats_status status = ok ? ATS_OK : fail_write(w);
    if (ok) {
        free(w->part);
        w->part = NULL;
    }
    npy_abandon(w);
    return status;
}

void npy_abandon(struct npy_writer *w) {
    if (w->file) fclose(w->file);
    if (w->part) unlink(w->part);
    free(w->part);
    free(w->path);
    *w = (struct npy_writer){0};
}
