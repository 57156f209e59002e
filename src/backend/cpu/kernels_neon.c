/* AArch64 NEON, baseline. */
#include "backend/cpu/kernels_dot_neon.h"

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

void kernels_neon_fill(struct kernels *k) {
    bodies_fill(k);
}
