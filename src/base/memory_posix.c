#include "base/file.h"

#include "base/cgroup.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { HUGE_BYTES = 2 << 20 };

static size_t page_bytes(void) {
    return (size_t)sysconf(_SC_PAGESIZE);
}

/* From two huge pages on, the start is put on a huge page's border (else the kernel cannot use
 * them) by mapping more and giving both ends back. */
ats_status pages_alloc(size_t bytes, void **out) {
    *out = NULL;
    uint64_t size = 0, mapped = 0;
    bool huge = bytes >= 2 * (size_t)HUGE_BYTES;
    bool fits = round_up_u64(max_size(bytes, 1), page_bytes(), &size) &&
                add_u64(size, huge ? HUGE_BYTES : 0, &mapped);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
    char *base = fits ? mmap(NULL, mapped, PROT_READ | PROT_WRITE, flags, -1, 0) : MAP_FAILED;
    if (base == MAP_FAILED) return fail(ATS_NO_MEMORY, "no memory for %zu bytes", bytes);
    if (huge) {
        size_t head = round_up((uintptr_t)base, HUGE_BYTES) - (uintptr_t)base;
        if (head > 0) munmap(base, head);
        if (head < HUGE_BYTES) munmap(base + head + size, HUGE_BYTES - head);
        base += head;
        madvise(base, size, MADV_HUGEPAGE); /* a wish */
    }
    *out = base;
    return ATS_OK;
}

void pages_free(void *p, size_t bytes) {
    if (p) munmap(p, round_up(max_size(bytes, 1), page_bytes()));
}

/* The number after "key" at the start of a line of text; 0 if it is not there. */
static uint64_t number_after(const char *text, const char *key) {
    size_t n = strlen(key);
    for (const char *line = text; line; line = strchr(line, '\n')) {
        if (*line == '\n') line++;
        if (strncmp(line, key, n) == 0) return strtoull(line + n, NULL, 10);
    }
    return 0;
}

/* What a group still grants: its limit less its use, where file pages that nobody maps or has
 * touched lately count as free, as in the machine's own figure. */
static void take_group(struct arena *a, const char *dir, int version, struct memory_info *out) {
    const char *limit_name = version == 2 ? "memory.max" : "memory.limit_in_bytes";
    const char *usage_name = version == 2 ? "memory.current" : "memory.usage_in_bytes";
    char text[64], *stat = arena_alloc(a, 8192);
    if (!small_file_read(arena_printf(a, "%s/%s", dir, limit_name), text, sizeof text)) return;
    if (text[0] < '0' || text[0] > '9') return; /* "max" */
    uint64_t limit = strtoull(text, NULL, 10), usage = 0;
    if (limit >= out->total_bytes) return; /* version 1 writes "none" as a huge number */
    if (small_file_read(arena_printf(a, "%s/%s", dir, usage_name), text, sizeof text))
        usage = strtoull(text, NULL, 10);
    if (small_file_read(arena_printf(a, "%s/memory.stat", dir), stat, 8192)) {
        uint64_t idle =
            number_after(stat, version == 2 ? "inactive_file " : "total_inactive_file ");
        usage -= idle < usage ? idle : usage;
    }
    uint64_t left = usage < limit ? limit - usage : 0;
    out->total_bytes = limit;
    if (left < out->available_bytes) out->available_bytes = left;
}

void memory_info_read_at(const char *root, struct memory_info *out) {
    struct arena a = {0};
    char *text = arena_alloc(&a, 8192);
    *out = (struct memory_info){0};
    if (small_file_read(arena_printf(&a, "%s/proc/meminfo", root), text, 8192)) {
        out->total_bytes = number_after(text, "MemTotal:") * 1024;
        out->available_bytes = number_after(text, "MemAvailable:") * 1024;
    }
    if (out->total_bytes == 0) out->total_bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * page_bytes();
    if (out->available_bytes == 0)
        out->available_bytes = (uint64_t)sysconf(_SC_AVPHYS_PAGES) * page_bytes();
    for (int version = 1; version <= 2; version++) {
        struct cgroup_dirs dirs;
        cgroup_find(&a, root, "memory", version, &dirs);
        for (int i = 0; i < dirs.n; i++)
            take_group(&a, dirs.paths[i], version, out);
    }
    arena_free(&a);
}

void memory_info_read(struct memory_info *out) {
    memory_info_read_at("", out);
}
