/*
 * A small harness for kernels: cases with fenced memory, limits, counts. A case compares one
 * version of a kernel with a double-precision oracle and with the reference; a crash is caught and
 * named. Not a general test framework: the one program check_kernels uses it.
 */
#pragma once

#include "backend/cpu/kernels.h"
#include "base/rng.h"
#include "sanitized.h"

struct check_options {
    const char *kernel; /* a glob over kernel names, NULL for all */
    uint64_t seed;
    bool bench, list;
};

struct check_fence {
    uint8_t *map; /* pages, then one that nobody may touch */
    size_t map_bytes, usable_bytes;
    float *frame; /* of an output: the poisoned floats; else NULL */
    size_t n_frame;
};

struct check {
    const struct check_options *options;
    const struct kernels *ref, *isa; /* the judge and the judged */
    const struct kernels *below;     /* the next lower set; NULL when the reference is judged */
    const char *isa_name;
    struct rng rng; /* seeded anew for each kernel: all versions see the same data */
    char kernel[64], where[160];
    int n_cases, n_kernel_failed, passed, failed;
    double worst; /* largest error / limit of the kernel */
    bool case_failed;
    struct check_fence fences[24];
    int n_fences;
};

/* Starts a kernel; false if it is not selected, only listed, or (overridden false) the same
 * function as the lower set's. */
bool check_kernel(struct check *c, bool overridden, const char *format, ...) PRINTF_LIKE(3, 4);
void check_kernel_end(struct check *c);

void check_case(struct check *c, const char *format, ...) PRINTF_LIKE(2, 3);
void check_case_end(struct check *c); /* frames are examined, memory is released */
void check_fail(struct check *c, const char *format, ...) PRINTF_LIKE(2, 3);

/* Memory that ends at an unreadable page, read-only from check_seal() on. */
void *check_input(struct check *c, size_t bytes);
void check_seal(struct check *c);
/* n floats, all poisoned with a NaN, between two frames. What stays poison within [0, n) and what
 * does not outside is found by check_written and check_case_end. */
float *check_output(struct check *c, size_t n);
bool check_is_poison(float x);
/* Memory of the case without fences, 64-aligned (scratch, oracles). */
void *check_memory(struct check *c, size_t bytes);

/* got[i] for i in [0, n) is within limit[i] of want[i]; NaN and poison never are. */
void check_near(struct check *c, const char *judge, const float *got, const double *want,
                const double *limit, size_t n);
/* Bit-equal. */
void check_same(struct check *c, const char *judge, const void *got, const void *want,
                size_t bytes);

void check_install_crash_handler(struct check *c);

/* Uniform in [-1, 1), now and then 0. */
float check_random(struct check *c);

/* ---- Timing ---- */

typedef void bench_fn(void *context, int call);
/* Median ns of one call: warm-up, then batches until 100 ms have passed. */
double bench_ns(bench_fn *fn, void *context);
/* Copy bandwidth of this machine, one thread, memory larger than the last-level cache: bytes read
 * plus bytes written, GB/s. Measured once. */
double bench_copy_gbs(void);
size_t bench_llc_bytes(void);
/* Zeroed memory for the caller to free, aligned as packed weights are. */
void *bench_memory(size_t bytes);
/* GB/s that one thread reads from memory. Measured anew at each call: machines change their mind.
 */
double bench_read_gbs(void);
/* GOP/s of the instruction set's integer dot products alone, and GFLOP/s of its fma or (bf16) of
 * its dot products of bf16; 0 if nobody wrote the loop. */
double bench_int8_gops(const struct check *c);
double bench_float_gflops(const struct check *c, bool bf16);

/* Instruction sets that the processor lacks and this program brings a stand-in for (bits of
 * cpu_isa): check_kernels has none, check_kernels_emulated those of emulated_x86.c. */
unsigned check_emulated(const struct cpu_features *features);

/* ---- The families, each in its file ---- */
void check_matmul_q8(struct check *c);
void check_matmul_f32(struct check *c);
void check_bf16(struct check *c);
void check_packed(struct check *c); /* both classes over the packed layout */
void check_attention(struct check *c);
void check_vector(struct check *c);    /* norm, softmax parts, gate, rope, add, scale */
void check_recurrent(struct check *c); /* short convolution, gated delta rule */
void check_convert(struct check *c);   /* quantise_q8, dequant, kv_store */
void bench_all(struct check *c);
void bench_products_q8(struct check *c); /* raw and packed */
void bench_products_float(struct check *c);
void bench_attention(struct check *c);
