/* x86-64: the sets that this build has, lowest first. */
#include "backend/cpu/kernels_isa.h"

/* Without: what the compiler does not know (meson.build says so). */
static const struct kernel_set sets[] = {
#ifndef NO_KERNELS_AVX2
    {ISA_AVX2, kernels_avx2_fill},
#endif
#ifndef NO_KERNELS_AVXVNNI
    {ISA_AVXVNNI, kernels_avxvnni_fill},
#endif
#ifndef NO_KERNELS_AVX512
    {ISA_AVX512, kernels_avx512_fill},
#ifndef NO_KERNELS_AVX512BF16
    {ISA_AVX512BF16, kernels_avx512bf16_fill},
#endif
#ifndef NO_KERNELS_AMX
    {ISA_AMX, kernels_amx_fill},
#endif
#if !defined(NO_KERNELS_AVX512BF16) && !defined(NO_KERNELS_AMXBF16)
    {ISA_AMXBF16, kernels_amxbf16_fill},
#endif
#endif
};

void kernels_override(struct kernels *k, unsigned isa) {
    kernels_override_by(k, isa, sets, COUNT_OF(sets));
}
