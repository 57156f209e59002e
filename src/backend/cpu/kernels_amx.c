/* AVX-512 with AMX int8: products of many tokens over packed weights only, the rest stays
 * AVX-512's. */
#include "backend/cpu/kernels_vec_avx512.h"

#include "backend/cpu/kernels_tile_amx.h"

#pragma GCC diagnostic ignored "-Wunused-function" /* of the bodies, what is not taken */

#include "backend/cpu/kernels_body_unpack.h"

#include "backend/cpu/kernels_body_q8.h"

#include "backend/cpu/kernels_body_f32.h"

#include "backend/cpu/kernels_body_packed.h"

#include "backend/cpu/kernels_body_tiles.h"

#include "backend/cpu/kernels_body_amx.h"

void kernels_amx_fill(struct kernels *k) {
    amx_fill(k);
}
