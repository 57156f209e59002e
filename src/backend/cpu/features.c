/* What the processor has and the operating system lets us use. */
#include "backend/cpu/kernels.h"

#include "base/threads.h"

#include <string.h>

struct flag {
    const char *name;
    bool set;
};

static void text_add(char *text, size_t size, const char *word) {
    size_t n = strlen(text);
    if (n + strlen(word) + 2 > size) return;
    if (n > 0) text[n++] = ' ';
    strcpy(text + n, word);
}

static void flags_text(const struct flag *flags, size_t n, struct cpu_features *out) {
    for (size_t i = 0; i < n; i++) {
        if (flags[i].set) text_add(out->text, sizeof out->text, flags[i].name);
    }
}

#if defined(__x86_64__)
#include <cpuid.h>

static bool bit(unsigned word, int i) {
    return word >> i & 1;
}

/* Which register states the system saves: bits of XCR0. */
static unsigned xcr0_read(void) {
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

static void model_read(char *out, size_t size) {
    unsigned words[12];
    memset(words, 0, sizeof words);
    for (unsigned i = 0; i < 3; i++) {
        unsigned *w = words + 4 * i;
        if (!__get_cpuid(0x80000002u + i, &w[0], &w[1], &w[2], &w[3])) return;
    }
    char name[sizeof words + 1] = "";
    memcpy(name, words, sizeof words);
    size_t skip = strspn(name, " "), n = strlen(name + skip);
    while (n > 0 && name[skip + n - 1] == ' ')
        n--;
    n = min_size(n, size - 1);
    memcpy(out, name + skip, n);
    out[n] = '\0';
}

void cpu_features_read(struct cpu_features *out) {
    *out = (struct cpu_features){.isa = 1u << ISA_REF, .model = "x86-64"};
    unsigned a, b, c1 = 0, d, b7 = 0, c7 = 0, d7 = 0, a71 = 0;
    if (!__get_cpuid(1, &a, &b, &c1, &d)) return;
    if (__get_cpuid_count(7, 0, &a, &b7, &c7, &d7) && a >= 1) {
        __get_cpuid_count(7, 1, &a71, &b, &a, &d);
    }
    unsigned saved = bit(c1, 27) ? xcr0_read() : 0;
    bool ymm = (saved & 0x06) == 0x06, zmm = (saved & 0xe6) == 0xe6;
    bool tiles = (saved & 0x60000) == 0x60000;
    const struct flag flags[] = {
        {"avx", ymm && bit(c1, 28)},         {"f16c", ymm && bit(c1, 29)},
        {"fma", ymm && bit(c1, 12)},         {"avx2", ymm && bit(b7, 5)},
        {"avx_vnni", ymm && bit(a71, 4)},    {"avx512f", zmm && bit(b7, 16)},
        {"avx512dq", zmm && bit(b7, 17)},    {"avx512bw", zmm && bit(b7, 30)},
        {"avx512vl", zmm && bit(b7, 31)},    {"avx512_vbmi", zmm && bit(c7, 1)},
        {"avx512_vnni", zmm && bit(c7, 11)}, {"avx512_bf16", zmm && bit(a71, 5)},
        {"avx512_fp16", zmm && bit(d7, 23)}, {"amx_tile", tiles && bit(d7, 24)},
        {"amx_int8", tiles && bit(d7, 25)},  {"amx_bf16", tiles && bit(d7, 22)},
    };
    flags_text(flags, COUNT_OF(flags), out);
    model_read(out->model, sizeof out->model);
    bool avx2 = ymm && bit(c1, 28) && bit(c1, 29) && bit(c1, 12) && bit(b7, 5);
    bool avx512 = zmm && bit(b7, 16) && bit(b7, 17) && bit(b7, 30) && bit(b7, 31) && bit(c7, 11);
    bool amx = tiles && bit(d7, 24) && bit(d7, 25) && cpu_tiles_permit();
    if (avx2) out->isa |= 1u << ISA_AVX2;
    if (avx2 && bit(a71, 4)) out->isa |= 1u << ISA_AVXVNNI;
    if (avx2 && avx512) out->isa |= 1u << ISA_AVX512;
    if (avx2 && avx512 && bit(a71, 5)) out->isa |= 1u << ISA_AVX512BF16;
    if (avx2 && avx512 && amx) out->isa |= 1u << ISA_AMX;
    if (avx2 && avx512 && amx && bit(a71, 5) && bit(d7, 22)) out->isa |= 1u << ISA_AMXBF16;
}

#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>

void cpu_features_read(struct cpu_features *out) {
    *out = (struct cpu_features){.isa = 1u << ISA_REF, .model = "AArch64"};
    unsigned long caps = getauxval(AT_HWCAP), caps2 = getauxval(AT_HWCAP2);
    const struct flag flags[] = {
        {"neon", (caps & HWCAP_ASIMD) != 0},      {"fp16", (caps & HWCAP_ASIMDHP) != 0},
        {"dotprod", (caps & HWCAP_ASIMDDP) != 0}, {"sve", (caps & HWCAP_SVE) != 0},
        {"i8mm", (caps2 & HWCAP2_I8MM) != 0},     {"bf16", (caps2 & HWCAP2_BF16) != 0},
    };
    flags_text(flags, COUNT_OF(flags), out);
    if (caps & HWCAP_ASIMD) out->isa |= 1u << ISA_NEON;
    if (caps & HWCAP_ASIMDDP) out->isa |= 1u << ISA_NEON_DOT;
    if (caps & HWCAP_ASIMDDP && caps2 & HWCAP2_I8MM) out->isa |= 1u << ISA_NEON_I8MM;
}

#else
void cpu_features_read(struct cpu_features *out) {
    *out = (struct cpu_features){.isa = 1u << ISA_REF, .model = "unknown"};
    flags_text(NULL, 0, out);
}
#endif
