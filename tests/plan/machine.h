/* A machine for tests of plan/: a profile of rates, and one with measured items. */
#pragma once

#include "plan/profile.h"

/* A laptop: CPU 40 GB/s and 400 GFLOP/s, GPU 300 GB/s and 20 TFLOP/s, link 24 GB/s, switches of 30
 * and 40 us, 6 GiB. Everything in the arena. */
struct profile *machine_laptop(struct arena *arena);
/* Its JSON text, with one measured item: a Q4_K matrix of 4096 x 2048. */
extern const char machine_measured[];
