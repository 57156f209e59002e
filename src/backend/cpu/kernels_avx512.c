/* AVX-512 (F BW VL DQ VNNI). */
#include "backend/cpu/kernels_vec_avx512.h"

#include "backend/cpu/kernels_body_unpack.h"

#include "backend/cpu/kernels_body_q8.h"

#include "backend/cpu/kernels_body_f32.h"

#include "backend/cpu/kernels_body_packed.h"

#include "backend/cpu/kernels_body_vector.h"

#include "backend/cpu/kernels_body_fill.h"

void kernels_avx512_fill(struct kernels *k) {
    bodies_fill(k);
}
