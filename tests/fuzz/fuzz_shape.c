/* Whatever shape is accepted has sizes and no data, and is planned or refused with a text. */
#include "model/shape.h"

#include <string.h>

#include "base/utf8.h"
#include "model/model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static void check_text(void) {
    REQUIRE(error_text()[0] != '\0' && utf8_valid(error_text(), strlen(error_text())));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    const struct model_options options = {.row_group = 16, .planning = true};
    struct gguf *g;
    struct model *m;
    if (shape_parse((const char *)data, n_bytes, "fuzz", &g) != ATS_OK) {
        REQUIRE(g == NULL);
        check_text();
        return 0;
    }
    REQUIRE(g->no_data);
    for (int i = 0; i < g->n_tensors; i++)
        REQUIRE(g->tensors[i].data == NULL && g->tensors[i].n_bytes > 0);
    if (model_open(g, &options, &m) != ATS_OK) check_text();
    model_close(m);
    gguf_close(g);
    return 0;
}
