/* Whatever trace is accepted tells finite factors of at least 1, and its changes come to an end. */
#include "plan/load.h"

#include <math.h>
#include <string.h>

#include "base/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    struct arena arena = {0};
    struct load *load;
    json_t *json;
    if (json_parse((const char *)data, n_bytes, &json) != ATS_OK) return 0;
    ats_status status = load_from_json(&arena, json, "fuzz", &load);
    json_decref(json);
    if (status == ATS_OK) {
        int n_changes = 0;
        for (double now_s = -1; isfinite(now_s); now_s = load_next_change(load, now_s)) {
            struct load_factors f = load_at(load, now_s);
            for (int r = 0; r < N_LOAD_RESOURCES; r++)
                REQUIRE(isfinite(f.slow[r]) && f.slow[r] >= 1 - 1e-9);
            REQUIRE(++n_changes <= 2 * load->n_steps + 1);
        }
    } else {
        REQUIRE(load == NULL && status == ATS_BAD_FILE);
        REQUIRE(error_text()[0] != '\0' && utf8_valid(error_text(), strlen(error_text())));
    }
    arena_free(&arena);
    return 0;
}
