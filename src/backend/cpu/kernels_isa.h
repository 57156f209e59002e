/*
 * What the files of the kernel table share: each instruction set's fill function, which overrides
 * the entries it has. For kernels*.c only; everyone else includes kernels.h.
 */
#pragma once

#include "backend/cpu/kernels.h"

#include "base/half.h"

/* The type-by-name lists: X(lower, UPPER). */
#define Q8_WEIGHT_MAP(X)                                                                           \
    X(q8_0, Q8_0)                                                                                  \
    X(q4_0, Q4_0)                                                                                  \
    X(q4_1, Q4_1)                                                                                  \
    X(q5_0, Q5_0)                                                                                  \
    X(q5_1, Q5_1)                                                                                  \
    X(q2_k, Q2_K)                                                                                  \
    X(q3_k, Q3_K)                                                                                  \
    X(q4_k, Q4_K)                                                                                  \
    X(q5_k, Q5_K)                                                                                  \
    X(q6_k, Q6_K)                                                                                  \
    X(iq4_nl, IQ4_NL)                                                                              \
    X(iq4_xs, IQ4_XS)                                                                              \
    X(mxfp4, MXFP4)
#define FLOAT_WEIGHT_MAP(X)                                                                        \
    X(f32, F32)                                                                                    \
    X(f16, F16)                                                                                    \
    X(bf16, BF16)

void kernels_ref_fill(struct kernels *k);
void kernels_ref_q8_fill(struct kernels *k);
void kernels_ref_bf16_fill(struct kernels *k);
void kernels_ref_packed_fill(struct kernels *k);
void kernels_ref_recurrent_fill(struct kernels *k);
float kernels_ref_dot(const float *a, const float *b, int n);
void kernels_avx2_fill(struct kernels *k);
void kernels_avxvnni_fill(struct kernels *k);
void kernels_avx512_fill(struct kernels *k);
void kernels_avx512bf16_fill(struct kernels *k);
void kernels_amx_fill(struct kernels *k);
void kernels_amxbf16_fill(struct kernels *k);
void kernels_neon_fill(struct kernels *k);
void kernels_neon_dot_fill(struct kernels *k);
void kernels_neon_i8mm_fill(struct kernels *k);

/* Overrides k with what this architecture has among `isa` (bits per enum cpu_isa), lowest to
 * highest; k->name becomes the highest's. One of kernels_{x86,arm,other}.c defines it. */
void kernels_override(struct kernels *k, unsigned isa);
struct kernel_set {
    enum cpu_isa isa;
    void (*fill)(struct kernels *k);
};
void kernels_override_by(struct kernels *k, unsigned isa, const struct kernel_set *sets,
                         size_t n_sets);

/* The most that a product over the packed layout takes of its scratch (kernels_body_packed.h). */
#define PACKED_SCRATCH_BYTES ((size_t)160 << 10)

/* Products over packed weights to which AMX and I8MM leave few tokens. */
extern matmul_packed_q8_fn *const kernels_avx512_packed_q8[N_DTYPES_WEIGHT];
extern matmul_packed_q8_fn *const kernels_neon_dot_packed_q8[N_DTYPES_WEIGHT];
/* And those of class bf16, raw and packed, to which AMX leaves up to BF16_FEW tokens. */
matmul_bf16_fn kernels_avx512bf16_matmul;
matmul_packed_bf16_fn kernels_avx512bf16_packed;

/* The shapes of tiles as LDTILECFG reads them. */
struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t n_rows[16];
};
_Static_assert(sizeof(struct tile_config) == 64, "defined by the processor");

/* Inputs of a convolution's columns from c on that tap j meets at token t; none: what stands before
 * the sequence. */
ALWAYS_INLINE const float *conv_row(const struct conv_rows *r, int n_taps, int t, int j, int c,
                                    const float *none) {
    const int row = t + j - (n_taps - 1);
    if (row >= 0) return r->x + row * r->x_stride + c;
    return r->past ? r->past + (row + n_taps - 1) * r->past_stride + c : none;
}

/* Before a loop of at most n (a number) rounds that shall vanish. Told a number, clang unrolls too
 * late for arrays in the loop to become registers. */
#define UNROLL_PRAGMA(text) _Pragma(#text)
#ifdef __clang__
#define UNROLL(n) UNROLL_PRAGMA(clang loop unroll(full))
#else
#define UNROLL(n) UNROLL_PRAGMA(GCC unroll n)
#endif

/* The compiler shall not keep what it has loaded. */
#define FORGET_MEMORY() __asm__ volatile("" ::: "memory")

/* Smallest max|x| that quantise_q8 takes for more than zero. */
#define Q8_MIN_MAX 0x1p-119f
