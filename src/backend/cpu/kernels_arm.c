/* AArch64: the sets that this build has, lowest first. */
#include "backend/cpu/kernels_isa.h"

/* Without: what the compiler does not know (meson.build says so). */
static const struct kernel_set sets[] = {
    {ISA_NEON, kernels_neon_fill},
#ifndef NO_KERNELS_NEON_DOT
    {ISA_NEON_DOT, kernels_neon_dot_fill},
#ifndef NO_KERNELS_NEON_I8MM
    {ISA_NEON_I8MM, kernels_neon_i8mm_fill},
#endif
#endif
};

void kernels_override(struct kernels *k, unsigned isa) {
    kernels_override_by(k, isa, sets, COUNT_OF(sets));
}
