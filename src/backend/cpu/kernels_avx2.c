/* AVX2, FMA, F16C. */
#include "backend/cpu/kernels_isa.h"
void kernels_avx2_fill(struct kernels *k) { (void)k; }
