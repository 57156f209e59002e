/*
 * Sets that few processors have, checked on those with AVX-512: AVX-VNNI's source compiled to the
 * AVX-512 form of the same instruction, and AMX's with tiles in plain C. This program links these
 * objects in place of the real ones.
 */
#include "check.h"

unsigned check_emulated(const struct cpu_features *features) {
    if (!(features->isa & 1u << ISA_AVX512)) return 0;
    const bool bf16 = features->isa & 1u << ISA_AVX512BF16; /* AMX BF16 leaves few tokens to it */
    return 1u << ISA_AVXVNNI | 1u << ISA_AMX | (bf16 ? 1u << ISA_AMXBF16 : 0);
}
