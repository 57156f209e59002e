/* AVX2, FMA, F16C. */
#include "backend/cpu/kernels_dot_avx2.h"

#include "backend/cpu/kernels_body_unpack.h"

#include "backend/cpu/kernels_body_q8.h"

#include "backend/cpu/kernels_body_f32.h"

#include "backend/cpu/kernels_body_packed.h"

#include "backend/cpu/kernels_body_words.h"

#include "backend/cpu/kernels_body_float.h"

#include "backend/cpu/kernels_body_keys.h"

#include "backend/cpu/kernels_body_bf16.h"

#include "backend/cpu/kernels_body_vector.h"

#include "backend/cpu/kernels_body_recurrent.h"

#include "backend/cpu/kernels_body_fill.h"

void kernels_avx2_fill(struct kernels *k) {
    bodies_fill(k);
    words_fill(k);
}
