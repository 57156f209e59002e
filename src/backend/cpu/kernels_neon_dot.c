/* AArch64 NEON with the dot product instructions. */
#include "backend/cpu/kernels_dot_neon_dot.h"

#include "backend/cpu/kernels_body_unpack.h"

#include "backend/cpu/kernels_body_q8.h"

#include "backend/cpu/kernels_body_f32.h"

#include "backend/cpu/kernels_body_packed.h"

#include "backend/cpu/kernels_body_vector.h"

#include "backend/cpu/kernels_body_fill.h"

void kernels_neon_dot_fill(struct kernels *k) {
    bodies_fill(k);
}
