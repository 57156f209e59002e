#include "check.h"

#include <fnmatch.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/half.h"

#define POISON       0x7fc0deadu
#define FRAME_FLOATS 64

static size_t page_bytes(void) {
    return (size_t)sysconf(_SC_PAGESIZE);
}

bool check_kernel(struct check *c, bool overridden, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(c->kernel, sizeof c->kernel, format, args);
    va_end(args);
    if (!overridden) return false;
    if (c->options->kernel && fnmatch(c->options->kernel, c->kernel, 0) != 0) return false;
    if (c->options->list) {
        printf("%-8s %s\n", c->isa_name, c->kernel);
        return false;
    }
    uint64_t seed = c->options->seed;
    for (const char *p = c->kernel; *p; p++)
        seed = (seed ^ (uint8_t)*p) * 0x100000001b3u;
    rng_seed(&c->rng, seed);
    c->n_cases = c->n_kernel_failed = 0;
    c->worst = 0;
    return true;
}

void check_kernel_end(struct check *c) {
    printf("%-8s %-24s %5d cases, %d failed, largest error %.3f of the limit\n", c->isa_name,
           c->kernel, c->n_cases, c->n_kernel_failed, c->worst);
    fflush(stdout);
}

void check_case(struct check *c, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(c->where, sizeof c->where, format, args);
    va_end(args);
    c->case_failed = false;
    c->n_cases++;
}

void check_fail(struct check *c, const char *format, ...) {
    if (c->case_failed) return; /* one line a case is enough */
    c->case_failed = true;
    printf("FAILED   %s %s, %s: ", c->isa_name, c->kernel, c->where);
    va_list args;
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf(" (--seed=%llu)\n", (unsigned long long)c->options->seed);
}

static void frame_check(struct check *c, const struct check_fence *f) {
    const float *end = f->frame + FRAME_FLOATS + f->n_frame;
    for (int i = 0; i < FRAME_FLOATS; i++) {
        if (!check_is_poison(f->frame[i]))
            check_fail(c, "wrote %d floats before", FRAME_FLOATS - i);
        if (!check_is_poison(end[i])) check_fail(c, "wrote %d floats behind", i + 1);
    }
}

void check_case_end(struct check *c) {
    for (int i = 0; i < c->n_fences; i++) {
        if (c->fences[i].frame) frame_check(c, &c->fences[i]);
        munmap(c->fences[i].map, c->fences[i].map_bytes);
    }
    c->n_fences = 0;
    if (c->case_failed) c->n_kernel_failed++;
    c->case_failed ? c->failed++ : c->passed++;
}

static struct check_fence *fence_new(struct check *c, size_t bytes) {
    REQUIRE(c->n_fences < (int)COUNT_OF(c->fences));
    struct check_fence *f = &c->fences[c->n_fences++];
    size_t page = page_bytes();
    *f = (struct check_fence){.usable_bytes = round_up(max_size(bytes, 1), page)};
    f->map_bytes = f->usable_bytes + page;
    f->map = mmap(NULL, f->map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(f->map != MAP_FAILED);
    REQUIRE(mprotect(f->map + f->usable_bytes, page, PROT_NONE) == 0);
    return f;
}

void *check_input(struct check *c, size_t bytes) {
    struct check_fence *f = fence_new(c, bytes);
    f->n_frame = 1; /* to be sealed */
    return f->map + f->usable_bytes - bytes;
}

void check_seal(struct check *c) {
    for (int i = 0; i < c->n_fences; i++) {
        struct check_fence *f = &c->fences[i];
        if (!f->frame && f->n_frame) REQUIRE(mprotect(f->map, f->usable_bytes, PROT_READ) == 0);
    }
}

float *check_output(struct check *c, size_t n) {
    size_t n_all = n + 2 * FRAME_FLOATS;
    struct check_fence *f = fence_new(c, n_all * sizeof(float));
    f->frame = (float *)(void *)(f->map + f->usable_bytes) - n_all;
    f->n_frame = n;
    for (size_t i = 0; i < n_all; i++)
        f->frame[i] = float_from_bits(POISON);
    return f->frame + FRAME_FLOATS;
}

bool check_is_poison(float x) {
    return float_bits(x) == POISON;
}

void *check_memory(struct check *c, size_t bytes) {
    return fence_new(c, bytes)->map;
}

void check_near(struct check *c, const char *judge, const float *got, const double *want,
                const double *limit, size_t n) {
    for (size_t i = 0; i < n; i++) {
        double error = fabs((double)got[i] - want[i]);
        if (isinf(want[i]) && (double)got[i] == want[i]) error = 0;
        if (error > 0 && error / limit[i] > c->worst) c->worst = error / limit[i];
        if (!(error <= limit[i])) {
            check_fail(c, "element %zu is %.9g%s, %s says %.9g, off by %.3g, limit %.3g", i,
                       (double)got[i], check_is_poison(got[i]) ? " (unwritten)" : "", judge,
                       want[i], error, limit[i]);
        }
    }
}

void check_same(struct check *c, const char *judge, const void *got, const void *want,
                size_t bytes) {
    const uint8_t *a = got, *b = want;
    for (size_t i = 0; i < bytes; i++) {
        if (a[i] == b[i]) continue;
        check_fail(c, "differs from %s at byte %zu of %zu: %02x, not %02x", judge, i, bytes, a[i],
                   b[i]);
        return;
    }
}

float check_random(struct check *c) {
    uint64_t bits = rng_next(&c->rng);
    if ((bits & 63) == 0) return 0;
    return (float)(bits >> 40) * 0x1p-23f - 1.0f;
}

/* ---- Crashes ---- */

static struct check *crash_check;

static void crash_handler(int number) {
    char text[320];
    int n = snprintf(text, sizeof text, "FAILED   %s %s, %s: signal %d\n", crash_check->isa_name,
                     crash_check->kernel, crash_check->where, number);
    if (write(STDOUT_FILENO, text, (size_t)n) < 0) _exit(2);
    _exit(1);
}

void check_install_crash_handler(struct check *c) {
    crash_check = c;
    const int numbers[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE};
    for (size_t i = 0; i < COUNT_OF(numbers); i++)
        signal(numbers[i], crash_handler);
}
