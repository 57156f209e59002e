/* AArch64 NEON with the dot product instructions. */
#include "backend/cpu/kernels_dot_neon_dot.h"

#include "backend/cpu/kernels_body_unpack.h"

#include "backend/cpu/kernels_body_q8.h"

#include "backend/cpu/kernels_body_f32.h"

#include "backend/cpu/kernels_body_packed.h"

#include "backend/cpu/kernels_body_float.h"

#include "backend/cpu/kernels_body_keys.h"

#include "backend/cpu/kernels_body_bf16.h"

#include "backend/cpu/kernels_body_vector.h"

#include "backend/cpu/kernels_body_recurrent.h"

#include "backend/cpu/kernels_body_fill.h"

matmul_packed_q8_fn *const kernels_neon_dot_packed_q8[N_DTYPES_WEIGHT] = {
#define ENTRY(lower, upper) [DTYPE_##upper] = matmul_packed_q8_##lower,
    Q8_WEIGHT_MAP(ENTRY)
#undef ENTRY
};

void kernels_neon_dot_fill(struct kernels *k) {
    bodies_fill(k);
}
