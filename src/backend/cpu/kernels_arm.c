/* AArch64: NEON, then the dot product instructions over it. */
#include "backend/cpu/kernels_isa.h"

void kernels_override(struct kernels *k, unsigned isa) {
    if (isa & 1u << ISA_NEON) {
        kernels_neon_fill(k);
        k->name = cpu_isa_name(ISA_NEON);
    }
    if (isa & 1u << ISA_NEON_DOT) {
        kernels_neon_dot_fill(k);
        k->name = cpu_isa_name(ISA_NEON_DOT);
    }
}
