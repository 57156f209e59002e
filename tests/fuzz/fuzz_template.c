/* Template text, then a NUL and the JSON of the context (without: a small chat). Whatever comes in:
 * limits hold, what is rendered is UTF-8, and rendering again gives the same. */
#include "base/json.h"
#include "base/utf8.h"
#include "text/template.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static const char default_context[] =
    "{\"messages\": [{\"role\": \"system\", \"content\": \"Be é.\"}, {\"role\": \"user\", "
    "\"content\": \"Hi <b>\\n\"}, {\"role\": \"assistant\", \"content\": null, \"tool_calls\": "
    "[{\"function\": {\"name\": \"f\", \"arguments\": {\"x\": [1, 2.5, true]}}}]}], \"tools\": "
    "[{\"name\": \"f\"}], \"bos_token\": \"<s>\", \"add_generation_prompt\": true, \"x\": 3}";

static json_t *read_context(const char *text, size_t n) {
    json_t *context;
    if (json_parse(text, n, &context) != ATS_OK) return json_object();
    if (json_is_object(context)) return context;
    json_t *object = json_object();
    json_object_set_new(object, "x", context);
    return object;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    static const struct tm now = {.tm_year = 126, .tm_mon = 2, .tm_mday = 4, .tm_hour = 15};
    const char *text = (const char *)data;
    const char *end = n_bytes ? memchr(text, 0, n_bytes) : NULL;
    size_t n_text = end ? (size_t)(end - text) : n_bytes;
    struct template *t;
    if (template_open(text, n_text, &t) != ATS_OK) {
        REQUIRE(utf8_valid(error_text(), strlen(error_text())));
        return 0;
    }
    json_t *context = end ? read_context(end + 1, n_bytes - n_text - 1)
                          : read_context(default_context, sizeof default_context - 1);
    struct template_options options = {.now = n_bytes & 1 ? &now : NULL,
                                       .max_steps = 20000,
                                       .max_output_bytes = 1 << 18,
                                       .max_memory_bytes = 4 << 20,
                                       .immutable = n_bytes & 2};
    struct buf first = {0}, second = {0};
    ats_status status = template_render(t, context, &options, &first);
    REQUIRE(status == ATS_OK || (status == ATS_BAD_INPUT && first.len == 0));
    REQUIRE(first.len <= options.max_output_bytes);
    REQUIRE(utf8_valid(buf_str(&first), first.len));
    REQUIRE(template_render(t, context, &options, &second) == status);
    REQUIRE(first.len == second.len && memcmp(buf_str(&first), buf_str(&second), first.len) == 0);
    buf_free(&first);
    buf_free(&second);
    json_decref(context);
    template_close(t);
    return 0;
}
