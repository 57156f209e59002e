/* check_kernels runs what the processor has, and nothing else. */
#include "check.h"

unsigned check_emulated(const struct cpu_features *features) {
    (void)features;
    return 0;
}
