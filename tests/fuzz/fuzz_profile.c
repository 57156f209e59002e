/* Whatever profile is accepted tells finite times and is the same after it was written. */
#include "plan/profile.h"

#include <math.h>
#include <string.h>

#include "base/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static void check_times(const struct profile *p) {
    const double tokens[] = {1, 1.5, 7, 100, 5000}, shares[] = {0.01, 0.3, 1, 3};
    for (int i = 0; i < p->n_items; i++)
        for (int side = 0; side < N_SIDES; side++)
            for (size_t t = 0; t < COUNT_OF(tokens); t++)
                for (size_t s = 0; s < COUNT_OF(shares); s++) {
                    const struct profile_item *item = &p->items[i];
                    double time_s = profile_time(p, item, &item->key, (enum side)side, tokens[t],
                                                 3000, shares[s]);
                    REQUIRE(isfinite(time_s) && time_s > 0);
                }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    struct arena arena = {0};
    struct profile *p, *again;
    json_t *json, *written;
    if (json_parse((const char *)data, n_bytes, &json) != ATS_OK) return 0;
    ats_status status = profile_from_json(&arena, json, "fuzz", &p);
    if (status == ATS_OK) {
        check_times(p);
        written = profile_to_json(p);
        REQUIRE(profile_from_json(&arena, written, "again", &again) == ATS_OK);
        json_t *twice = profile_to_json(again);
        REQUIRE(json_equal(written, twice));
        json_decref(written), json_decref(twice);
    } else {
        REQUIRE(p == NULL && status == ATS_BAD_FILE);
        REQUIRE(error_text()[0] != '\0' && utf8_valid(error_text(), strlen(error_text())));
    }
    json_decref(json);
    arena_free(&arena);
    return 0;
}
