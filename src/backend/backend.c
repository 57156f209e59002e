/* The one place that names the backends. */
#include "backend/backend.h"

#include <string.h>
#include "backend/cpu/cpu.h"

ats_status backend_open(const char *name, const struct backend_options *options,
                        struct backend **out) {
    *out = NULL;
    if (strcmp(name, "cpu") == 0) return cpu_backend_open(options, out);
    return fail(ATS_UNSUPPORTED, "there is no device \"%.40s\"; this build has: cpu", name);
}

void backend_close(struct backend *b) {
    if (b) b->fn->close(b);
}
