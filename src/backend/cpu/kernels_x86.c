/* x86-64: AVX2, then AVX-512 over it. */
#include "backend/cpu/kernels_isa.h"

void kernels_override(struct kernels *k, unsigned isa) {
    if (isa & 1u << ISA_AVX2) {
        kernels_avx2_fill(k);
        k->name = cpu_isa_name(ISA_AVX2);
    }
    if (isa & 1u << ISA_AVX512) {
        kernels_avx512_fill(k);
        k->name = cpu_isa_name(ISA_AVX512);
    }
}
