/*
 * Every kernel of every instruction set against its judges, or (--bench) timed:
 *   check_kernels [--kernel=GLOB] [--isa=NAME] [--seed=N] [--bench] [--list]
 * --isa checks that set alone (the sets below it stay unless they replace nothing).
 */
#include "check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool parse_args(int argc, char **argv, struct check_options *options, const char **isa) {
    for (int i = 1; i < argc; i++) {
        const char *arg = argv[i];
        if (strncmp(arg, "--kernel=", 9) == 0)
            options->kernel = arg + 9;
        else if (strncmp(arg, "--isa=", 6) == 0)
            *isa = arg + 6;
        else if (strncmp(arg, "--seed=", 7) == 0)
            options->seed = strtoull(arg + 7, NULL, 10);
        else if (strcmp(arg, "--bench") == 0)
            options->bench = true;
        else if (strcmp(arg, "--list") == 0)
            options->list = true;
        else {
            fprintf(stderr, "check_kernels: unknown argument %s\n", arg);
            return false;
        }
    }
    unsigned mask;
    if (*isa && (strcmp(*isa, "native") == 0 || !cpu_isa_mask_parse(*isa, &mask))) {
        fprintf(stderr, "check_kernels: unknown instruction set %s\n", *isa);
        return false;
    }
    return true;
}

static void check_isa(struct check *c) {
    if (c->options->bench) {
        bench_all(c);
        return;
    }
    check_convert(c);
    check_vector(c);
    check_attention(c);
    check_recurrent(c);
    check_matmul_q8(c);
    check_matmul_f32(c);
    check_packed(c);
    check_bf16(c);
}

int main(int argc, char **argv) {
    struct check_options options = {.seed = 1};
    const char *only = NULL;
    if (!parse_args(argc, argv, &options, &only)) return 2;
    struct cpu_features features;
    cpu_features_read(&features);
    printf("%s: %s; seed %llu\n", features.model, features.text, (unsigned long long)options.seed);

    struct kernels ref, tables[ISA_COUNT];
    const unsigned have = features.isa | check_emulated(&features);
    kernels_fill(&ref, 1u << ISA_REF);
    struct check c = {.options = &options, .ref = &ref};
    check_install_crash_handler(&c);
    const struct kernels *below = NULL;
    for (int isa = 0; isa < ISA_COUNT; isa++) {
        const char *name = cpu_isa_name((enum cpu_isa)isa);
        bool selected = !only || strcmp(only, name) == 0;
        kernels_fill(&tables[isa], have & ((2u << isa) - 1));
        if (strcmp(tables[isa].name, name) != 0) { /* the mask allows it, so it is not there */
            if (selected) printf("skipped: %s (not on this processor or not built)\n", name);
            continue;
        }
        c.isa = &tables[isa];
        c.isa_name = name;
        c.below = below;
        if (selected) check_isa(&c);
        below = &tables[isa];
    }
    printf("%d passed, %d failed\n", c.passed, c.failed);
    return c.failed ? 1 : 0;
}
