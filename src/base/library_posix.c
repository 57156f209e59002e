#include "base/library.h"

#include <dlfcn.h>
#include <string.h>

/* The system's own handle stands for the structure. */

ats_status library_open(const char *name, struct library **out) {
    *out = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (*out) return ATS_OK;
    const char *reason = dlerror();
    return fail(ATS_UNSUPPORTED, "%s", reason ? reason : name);
}

library_fn *library_function(struct library *l, const char *name) {
    void *p = dlsym(l, name);
    library_fn *fn;
    _Static_assert(sizeof fn == sizeof p, "functions and data have pointers of one size");
    memcpy(&fn, &p, sizeof fn);
    return fn;
}
