/* NEON with I8MM: products of many tokens over packed weights only, the rest stays that of the dot
 * product instructions. */
#include "backend/cpu/kernels_dot_neon_dot.h"

#pragma GCC diagnostic ignored "-Wunused-function" /* of the bodies, what is not taken */

#include "backend/cpu/kernels_body_unpack.h"

#include "backend/cpu/kernels_body_q8.h"

#include "backend/cpu/kernels_body_f32.h"

#include "backend/cpu/kernels_body_packed.h"

#include "backend/cpu/kernels_body_i8mm.h"

void kernels_neon_i8mm_fill(struct kernels *k) {
#define ENTRY(lower, upper) k->matmul_packed_q8[DTYPE_##upper] = matmul_i8mm_##lower;
    Q8_WEIGHT_MAP(ENTRY)
#undef ENTRY
}
