/* kernels_amxbf16.c with tiles emulated in plain C. */
#include "backend/cpu/kernels_vec_avx512.h"

#include "tile_emulated.h"

#include "backend/packed.h"

#pragma GCC diagnostic ignored "-Wunused-function" /* of the bodies, what is not taken */

#include "backend/cpu/kernels_body_unpack.h"

#include "backend/cpu/kernels_body_tiles.h"

#include "backend/cpu/kernels_body_pairs.h"

#include "backend/cpu/kernels_body_amx_bf16.h"

void kernels_amxbf16_fill(struct kernels *k) {
    amx_bf16_fill(k);
}
