/* The kernel table: sizes, names, and filling it lowest set to highest. */
#include "backend/cpu/kernels_isa.h"

#include <string.h>

size_t q8_rows_bytes(int n_cols, int n_tokens) {
    size_t n = (size_t)n_cols * (size_t)n_tokens;
    return round_up(n, 64) + round_up(n / 32 * sizeof(float), 64) +
           round_up(n / 16 * sizeof(int16_t), 64);
}

struct q8_rows q8_rows_at(void *memory, int n_cols, int n_tokens) {
    REQUIRE((uintptr_t)memory % 64 == 0 && n_cols % 32 == 0);
    size_t n = (size_t)n_cols * (size_t)n_tokens;
    uint8_t *q = memory;
    uint8_t *scale = q + round_up(n, 64);
    uint8_t *sum16 = scale + round_up(n / 32 * sizeof(float), 64);
    return (struct q8_rows){(int8_t *)q, (float *)(void *)scale, (int16_t *)(void *)sum16, n_cols};
}

/* The most any set asks for: 16 rows of floats, whole super-blocks; the q8 class's panel and sums
 * are smaller. What packed products take besides does not grow with the columns. */
size_t matmul_scratch_bytes(int n_cols) {
    return max_size(round_up((size_t)n_cols, QK_SUPER) * 16 * sizeof(float), PACKED_SCRATCH_BYTES);
}

static const char *const isa_names[ISA_COUNT] = {
    [ISA_REF] = "ref",
    [ISA_AVX2] = "avx2",
    [ISA_AVXVNNI] = "avxvnni",
    [ISA_AVX512] = "avx512",
    [ISA_AVX512BF16] = "avx512bf16",
    [ISA_AMX] = "amx",
    [ISA_AMXBF16] = "amxbf16",
    [ISA_NEON] = "neon",
    [ISA_NEON_DOT] = "neon_dot",
    [ISA_NEON_I8MM] = "neon_i8mm",
};

const char *cpu_isa_name(enum cpu_isa isa) {
    REQUIRE((unsigned)isa < ISA_COUNT);
    return isa_names[isa];
}

bool cpu_isa_mask_parse(const char *text, unsigned *mask) {
    if (strcmp(text, "native") == 0) {
        *mask = ~0u;
        return true;
    }
    for (unsigned i = 0; i < ISA_COUNT; i++) {
        if (strcmp(text, isa_names[i]) != 0) continue;
        *mask = (2u << i) - 1;
        return true;
    }
    return false;
}

void kernels_init(struct kernels *k, unsigned isa_mask) {
    struct cpu_features features;
    cpu_features_read(&features);
    kernels_fill(k, features.isa & isa_mask);
}

void kernels_override_by(struct kernels *k, unsigned isa, const struct kernel_set *sets,
                         size_t n_sets) {
    for (size_t i = 0; i < n_sets; i++) {
        if (!(isa & 1u << sets[i].isa)) continue;
        sets[i].fill(k);
        k->name = cpu_isa_name(sets[i].isa);
    }
}

void kernels_fill(struct kernels *k, unsigned isa) {
    *k = (struct kernels){.name = isa_names[ISA_REF]};
    kernels_ref_fill(k);
    kernels_override(k, isa);
}
