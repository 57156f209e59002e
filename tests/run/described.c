#include "described.h"

#include <stdio.h>

ats_simulation described(const char *shape, const char *machine) {
    static char paths[2][512];
    char relative[96];
    ats_simulation s;
    ats_simulation_default(&s);
    snprintf(relative, sizeof relative, "shapes/%s.json", shape);
    test_source_path(paths[0], sizeof paths[0], relative);
    snprintf(relative, sizeof relative, "machines/%s.json", machine);
    test_source_path(paths[1], sizeof paths[1], relative);
    s.model = paths[0], s.machine = paths[1];
    s.n_batch = 512, s.n_ctx = 4096;
    return s;
}

static json_t *parsed(char *text) {
    json_t *json;
    TEST_OK(json_parse(text, strlen(text), &json));
    ats_free(text);
    return json;
}

json_t *simulated(const ats_simulation *s) {
    char *text;
    TEST_OK(ats_simulate(s, &text));
    return parsed(text);
}

json_t *explained(const ats_simulation *s) {
    char *text;
    TEST_OK(ats_explain(s, &text));
    return parsed(text);
}

double number(const json_t *json, const char *key) {
    const json_t *v = test_json_get(json, key);
    assert_true(json_is_number(v));
    return json_number_value(v);
}
