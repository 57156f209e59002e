/* Plan files: whatever is accepted covers the graph, and is written and read again as it is. */
#include "plan/file.h"
#include "tiny_graph.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* One layer, dense or of experts. */
static const struct tiny_shape shapes[] = {
    {1, 4, 2, 4, 12, 10, 9, DTYPE_F32, DTYPE_F32, true, false, 1, 0, 0, false, false, 0, false},
    {1, 4, 2, 16, 64, 32, 33, DTYPE_F32, DTYPE_F32, false, false, 1, 6, 2, false, false, 0, false},
};

static void try_graph(const struct plan_file *f, const struct tiny_shape *shape) {
    struct arena arena = {0};
    const struct graph *g = tiny_graph(&arena, shape);
    int device_of[64], n;
    const char *const *names = plan_file_devices(f, &n);
    struct plan *plan, *again;
    struct plan_file *file;
    for (int i = 0; i < n; i++)
        device_of[i] = i;
    if (plan_file_apply(f, &arena, g, "llama", device_of, n, 1, 2, &plan) == ATS_OK) {
        REQUIRE(plan_check(g, plan, 1, 2) == ATS_OK);
        char *text = plan_file_print(g, plan, "llama", names);
        REQUIRE(plan_file_open(text, strlen(text), &file) == ATS_OK);
        REQUIRE(plan_file_apply(file, &arena, g, "llama", device_of, n, 1, 2, &again) == ATS_OK);
        REQUIRE(again->n_parts == plan->n_parts);
        plan_file_close(file);
        free(text);
    }
    arena_free(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    struct plan_file *f;
    if (plan_file_open((const char *)data, n, &f) == ATS_OK)
        for (size_t i = 0; i < COUNT_OF(shapes); i++)
            try_graph(f, &shapes[i]);
    plan_file_close(f);
    return 0;
}
