#include "machine.h"

#include "support.h"

#define MACHINE                                                                                    \
    "{\"atsinfer\": \"profile\", \"version\": 1, \"name\": \"laptop\", \"key\": \"k1\","           \
    "\"memory\": {\"gpu_bytes\": 6442450944, \"usable_bytes\": 6000000000,"                        \
    "             \"host_bytes\": 34359738368, \"shared\": false},"                                \
    "\"bandwidth\": {\"dram\": 42e9, \"vram\": 320e9},"                                            \
    "\"link\": {\"up_pinned\": 24e9, \"up_staged\": 9e9, \"down_pinned\": 23e9,"                   \
    "  \"down_staged\": 8e9, \"activation_up\": 8e9, \"activation_down\": 7e9,"                    \
    "  \"kappa_up\": 30e-6, \"kappa_down\": 31e-6, \"kappa_x\": 40e-6},"                           \
    "\"interference\": {\"cpu_speed_copying\": 0.9, \"copy_speed_cpu\": 0.8},"                     \
    "\"op\": {\"cpu\": 2e-6, \"gpu\": 3e-6},"                                                      \
    "\"rates\": {"                                                                                 \
    "  \"cpu\": {\"bytes\": 40e9, \"flop\": 4e11, \"kv_bytes\": 30e9, \"kv_flop\": 2e11,"          \
    "            \"types\": {\"Q6_K\": {\"bytes\": 35e9}}},"                                       \
    "  \"gpu\": {\"bytes\": 300e9, \"flop\": 2e13, \"kv_bytes\": 250e9, \"kv_flop\": 5e12}}"

static const char machine_rates[] = MACHINE "}";
const char machine_measured[] =
    MACHINE ",\"tokens\": [1, 2, 128, 512], \"shares\": [0.25, 0.5, 1], \"depths\": [0, 1000],"
            "\"items\": [{\"op\": \"matmul\", \"types\": [\"Q4_K\"], \"math\": \"q8\","
            "  \"axis\": \"rows\", \"dims\": [4096, 2048],"
            "  \"cpu\": {\"work\": [[1e-4, 1.2e-4, 1e-3, 4e-3], [2.2e-4, 2.3e-4, 2e-3, 7e-3],"
            "                      [4e-4, 4.4e-4, 4e-3, 16e-3]]},"
            "  \"gpu\": {\"work\": [[3e-5, 3e-5, 1e-4, 3e-4], [2e-5, 3e-5, 2e-4, 5e-4],"
            "                      [5e-5, 6e-5, 4e-4, 9e-4]]}},"
            " {\"op\": \"attention\", \"types\": [\"F16\", \"F16\"], \"math\": \"f32\","
            "  \"axis\": \"heads\", \"dims\": [32, 8, 128],"
            "  \"cpu\": {\"work\": [[1e-5, 1e-5, 1e-4, 1e-3], [1e-5, 1e-5, 2e-4, 2e-3],"
            "                      [2e-5, 2e-5, 4e-4, 4e-3]],"
            "            \"kv\": [[0, 0, 0, 0], [1e-4, 2e-4, 1e-2, 4e-2]]},"
            "  \"gpu\": {\"work\": [[1e-5, 1e-5, 1e-4, 1e-3], [1e-5, 1e-5, 2e-4, 2e-3],"
            "                      [2e-5, 2e-5, 4e-4, 4e-3]],"
            "            \"kv\": [[0, 0, 0, 0], [1e-5, 2e-5, 1e-3, 4e-3]]}}]}";

struct profile *machine_laptop(struct arena *arena) {
    json_t *json;
    struct profile *p;
    TEST_OK(json_parse(machine_rates, strlen(machine_rates), &json));
    TEST_OK(profile_from_json(arena, json, "laptop", &p));
    json_decref(json);
    return p;
}
