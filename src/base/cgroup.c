#include "base/cgroup.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

bool small_file_read(const char *path, char *text, size_t n) {
    text[0] = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    size_t len = 0;
    while (len < n - 1) {
        ssize_t got = read(fd, text + len, n - 1 - len);
        if (got <= 0) break;
        len += (size_t)got;
    }
    close(fd);
    text[len] = 0;
    return len > 0;
}

/* "cpu,cpuacct" holds "cpu". */
static bool list_has(const char *list, const char *name) {
    size_t n = strlen(name);
    for (const char *p = list; *p;) {
        size_t len = strcspn(p, ",");
        if (len == n && memcmp(p, name, n) == 0) return true;
        p += len + (p[len] == ',');
    }
    return false;
}

/* The group of this process: a line "ID:CONTROLLERS:PATH" of proc/self/cgroup, where version 2 has
 * an empty list. Returns the path or NULL; *controllers is the list of the line. */
static char *group_path(char *lines, const char *controller, int version, char **controllers) {
    char *save = NULL;
    for (char *line = strtok_r(lines, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        char *list = strchr(line, ':');
        char *path = list ? strchr(list + 1, ':') : NULL;
        if (!path || path[1] != '/') continue;
        *path++ = 0;
        list++;
        if (version == 2 ? *list == 0 : list_has(list, controller)) {
            *controllers = list;
            return path;
        }
    }
    return NULL;
}

void cgroup_find(struct arena *a, const char *root, const char *controller, int version,
                 struct cgroup_dirs *out) {
    *out = (struct cgroup_dirs){0};
    char *lines = arena_alloc(a, 16384), *list = NULL;
    if (!small_file_read(arena_printf(a, "%s/proc/self/cgroup", root), lines, 16384)) return;
    char *path = group_path(lines, controller, version, &list);
    if (!path) return;
    const char *sys = arena_printf(a, "%s/sys/fs/cgroup", root), *base = sys;
    if (version == 1) {
        base = arena_printf(a, "%s/%s", sys, list);
        if (access(base, F_OK) != 0) base = arena_printf(a, "%s/%s", sys, controller);
    } else if (access(arena_printf(a, "%s/cgroup.controllers", sys), F_OK) != 0) {
        base = arena_printf(a, "%s/unified", sys); /* both versions side by side */
    }
    int n_max = 2; /* In a container the path may be that of the host: dead ones are harmless. */
    for (const char *p = path; *p; p++)
        n_max += *p == '/';
    out->paths = ARENA_ARRAY(a, char *, n_max);
    for (char *end = path + strlen(path); end > path;) {
        *end = 0;
        if (path[1]) out->paths[out->n++] = arena_printf(a, "%s%s", base, path);
        end = strrchr(path, '/');
        if (!end) break;
    }
    out->paths[out->n++] = arena_strdup(a, base);
}
