/* AMX BF16: products of class bf16 of many tokens, the rest stays that of the sets below. */
#include "backend/cpu/kernels_vec_avx512.h"

#include "backend/cpu/kernels_tile_amx.h"

#include "backend/packed.h"

#pragma GCC diagnostic ignored "-Wunused-function" /* of the bodies, what is not taken */

#include "backend/cpu/kernels_body_unpack.h"

#include "backend/cpu/kernels_body_tiles.h"

#include "backend/cpu/kernels_body_pairs.h"

#include "backend/cpu/kernels_body_amx_bf16.h"

void kernels_amxbf16_fill(struct kernels *k) {
    amx_bf16_fill(k);
}
