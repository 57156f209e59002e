/* AVX2 with AVX-VNNI: integer products only, the rest stays AVX2's. */
#include "backend/cpu/kernels_dot_avxvnni.h"

#pragma GCC diagnostic ignored "-Wunused-function" /* of the bodies, what is not taken */

#include "backend/cpu/kernels_body_unpack.h"

#include "backend/cpu/kernels_body_q8.h"

#include "backend/cpu/kernels_body_f32.h"

#include "backend/cpu/kernels_body_packed.h"

void kernels_avxvnni_fill(struct kernels *k) {
#define ENTRY(lower, upper)                                                                        \
    k->matmul_q8[DTYPE_##upper] = matmul_q8_##lower;                                               \
    k->matmul_packed_q8[DTYPE_##upper] = matmul_packed_q8_##lower;
    Q8_WEIGHT_MAP(ENTRY)
#undef ENTRY
}
