/* What one thread of this machine can do at most: reads from memory, dot products and fma of an
 * instruction set. */
#include "check.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "backend/packed.h"

#define HUGE_PAGE ((size_t)2 << 20)

/* In huge pages where the system gives them, as the engine's weights are: prefetchers stop at the
 * end of a page. */
void *bench_memory(size_t bytes) {
    const size_t align = bytes >= HUGE_PAGE ? HUGE_PAGE : PACK_ALIGN;
    const size_t size = round_up(max_size(bytes, 1), align);
    void *p = aligned_alloc(align, size);
    REQUIRE(p);
#ifdef MADV_HUGEPAGE
    if (align == HUGE_PAGE) madvise(p, size, MADV_HUGEPAGE); /* a wish */
#endif
    memset(p, 0, bytes);
    return p;
}

struct stream {
    const uint64_t *from;
    uint8_t *to;
    size_t bytes;
    uint64_t sum;
};

static void read_once(void *context, int call) {
    struct stream *s = context;
    (void)call;
    uint64_t sum[8] = {0};
    for (size_t i = 0; i < s->bytes / 8; i += 8) {
        for (int j = 0; j < 8; j++)
            sum[j] |= s->from[i + (size_t)j];
    }
    for (int j = 0; j < 8; j++)
        s->sum |= sum[j];
}

double bench_read_gbs(void) {
    static struct stream s;
    if (!s.bytes) {
        s.bytes = 4 * bench_llc_bytes();
        s.from = bench_memory(s.bytes);
    }
    return (double)s.bytes / bench_ns(read_once, &s);
}

#if defined __x86_64__
/* 12 chains of 100 rounds. */
static void peak_avx512(void *context, int call) {
    (void)context;
    (void)call;
    for (int i = 0; i < 100; i++)
        __asm__ volatile(
            "vpdpbusd %%zmm30, %%zmm31, %%zmm0\n\tvpdpbusd %%zmm30, %%zmm31, %%zmm1\n\t"
            "vpdpbusd %%zmm30, %%zmm31, %%zmm2\n\tvpdpbusd %%zmm30, %%zmm31, %%zmm3\n\t"
            "vpdpbusd %%zmm30, %%zmm31, %%zmm4\n\tvpdpbusd %%zmm30, %%zmm31, %%zmm5\n\t"
            "vpdpbusd %%zmm30, %%zmm31, %%zmm6\n\tvpdpbusd %%zmm30, %%zmm31, %%zmm7\n\t"
            "vpdpbusd %%zmm30, %%zmm31, %%zmm8\n\tvpdpbusd %%zmm30, %%zmm31, %%zmm9\n\t"
            "vpdpbusd %%zmm30, %%zmm31, %%zmm10\n\tvpdpbusd %%zmm30, %%zmm31, %%zmm11"
            :
            :
            : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",
              "xmm10", "xmm11");
}

/* The same, 32 products at a time in three instructions. Kernels may pass it: where weights have
 * few bits, sums are widened seldom. */
static void peak_avx2(void *context, int call) {
    (void)context;
    (void)call;
#define STEP(acc, spare)                                                                           \
    "vpmaddubsw %%ymm15, %%ymm14, %%ymm" #spare "\n\tvpmaddwd %%ymm13, %%ymm" #spare               \
    ", %%ymm" #spare "\n\tvpaddd %%ymm" #spare ", %%ymm" #acc ", %%ymm" #acc "\n\t"
    for (int i = 0; i < 100; i++)
        __asm__ volatile(STEP(0, 6) STEP(1, 7) STEP(2, 8) STEP(3, 9) STEP(4, 10) STEP(5, 11)
                             STEP(0, 6) STEP(1, 7) STEP(2, 8) STEP(3, 9) STEP(4, 10) STEP(5, 11)
                         :
                         :
                         : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8",
                           "xmm9", "xmm10", "xmm11");
#undef STEP
}

/* 12 chains of 100 rounds. */
static void peak_fma(void *context, int call) {
    (void)context;
    (void)call;
#define STEP(acc) "vfmadd231ps %%ymm15, %%ymm14, %%ymm" #acc "\n\t"
    for (int i = 0; i < 100; i++)
        __asm__ volatile(STEP(0) STEP(1) STEP(2) STEP(3) STEP(4) STEP(5) STEP(6) STEP(7) STEP(8)
                             STEP(9) STEP(10) STEP(11)
                         :
                         :
                         : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8",
                           "xmm9", "xmm10", "xmm11");
#undef STEP
}

static void peak_wide(const char *kind) {
#define STEP(name, acc) name " %%zmm31, %%zmm30, %%zmm" #acc "\n\t"
#define STEPS(name)                                                                                \
    STEP(name, 0)                                                                                  \
    STEP(name, 1)                                                                                  \
    STEP(name, 2)                                                                                  \
    STEP(name, 3)                                                                                  \
    STEP(name, 4)                                                                                  \
    STEP(name, 5)                                                                                  \
    STEP(name, 6) STEP(name, 7) STEP(name, 8) STEP(name, 9) STEP(name, 10) STEP(name, 11)
#define USED                                                                                       \
    "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11"
    for (int i = 0; i < 100; i++) {
        if (*kind == 'p')
            __asm__ volatile(STEPS("vdpbf16ps") : : : USED);
        else
            __asm__ volatile(STEPS("vfmadd231ps") : : : USED);
    }
#undef USED
#undef STEPS
#undef STEP
}
static void peak_fma512(void *context, int call) {
    (void)context;
    (void)call;
    peak_wide("fma");
}
static void peak_pairs(void *context, int call) {
    (void)context;
    (void)call;
    peak_wide("pairs");
}
#endif

double bench_int8_gops(const struct check *c) {
#if defined __x86_64__
    if (strcmp(c->isa_name, "avx512") == 0)
        return 2.0 * 64 * 12 * 100 / bench_ns(peak_avx512, NULL);
    if (strcmp(c->isa_name, "avx2") == 0) return 2.0 * 32 * 12 * 100 / bench_ns(peak_avx2, NULL);
#endif
    (void)c;
    return 0;
}

double bench_float_gflops(const struct check *c, bool bf16) {
#if defined __x86_64__
    if (strcmp(c->isa_name, "avx2") == 0) return 2.0 * 8 * 12 * 100 / bench_ns(peak_fma, NULL);
    if (bf16 && strcmp(c->isa_name, "avx512bf16") == 0)
        return 2.0 * 32 * 12 * 100 / bench_ns(peak_pairs, NULL);
    if (strncmp(c->isa_name, "avx512", 6) == 0)
        return 2.0 * 16 * 12 * 100 / bench_ns(peak_fma512, NULL);
#endif
    (void)c;
    (void)bf16;
    return 0;
}
