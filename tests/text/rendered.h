/* A template that is rendered once. */
#pragma once

#include "text/template.h"

static inline ats_status render(const char *text, size_t n, const json_t *context,
                                const struct template_options *options, struct buf *out) {
    struct template *t;
    ats_status status = template_open(text, n, &t);
    if (status != ATS_OK) return status;
    status = template_render(t, context, options, out);
    template_close(t);
    return status;
}
