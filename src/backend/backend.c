/* The one place that names the backends. */
#include "backend/backend.h"

#include <string.h>
#include <unistd.h>
#include "backend/cpu/cpu.h"
#include "backend/sim/sim.h"
#ifdef HAVE_VULKAN
#include "backend/vulkan/vulkan.h"
#define DEVICE_NAMES "cpu, vulkan"
#else
#define DEVICE_NAMES "cpu"
#endif

/* The world calls the device that computes: it must do the work in the caller's thread. */
static ats_status open_sim(const char *name, const struct backend_options *options,
                           struct backend **out) {
    struct sim_options sim;
    struct backend_options inner_options = *options;
    struct backend *inner;
    TRY(sim_options_parse(name, &sim));
    sim.machine = options->machine;
    inner_options.driven = true;
    if (sim.machine && sim.machine->time_only)
        inner = sim_nothing_open(sim.machine->host_bytes);
    else
        TRY(cpu_backend_open(&inner_options, &inner));
    *out = sim_backend_open(inner, &sim, options->peer);
    return ATS_OK;
}

ats_status backend_open(const char *name, const struct backend_options *options,
                        struct backend **out) {
    *out = NULL;
    if (options->peer && sim_is_device(options->peer) != sim_is_name(name))
        return fail(ATS_UNSUPPORTED,
                    "device \"%.40s\" cannot work beside \"%s\": either all "
                    "devices are simulated or none is",
                    name, options->peer->name);
    if (strcmp(name, "cpu") == 0) return cpu_backend_open(options, out);
    if (sim_is_name(name)) return open_sim(name, options, out);
#ifdef HAVE_VULKAN
    if (strncmp(name, "vulkan", 6) == 0) return vulkan_backend_open(name, options, out);
#endif
    return fail(ATS_UNSUPPORTED,
                "there is no device \"%.40s\"; this build has: " DEVICE_NAMES
                ", and for tests sim:KIND",
                name);
}

int backend_list_devices(struct backend_device_info *out, int max) {
#ifdef HAVE_VULKAN
    return vulkan_backend_list(out, max);
#else
    (void)out, (void)max;
    ats_status none = fail(ATS_UNSUPPORTED, "this build has no Vulkan");
    (void)none;
    return 0;
#endif
}

/* Mesa and AMD, NVIDIA, Windows' Linux, Qualcomm, Arm. */
static const char *const gpu_nodes[] = {"/dev/dri", "/dev/nvidiactl", "/dev/dxg", "/dev/kgsl-3d0",
                                        "/dev/mali0"};

bool backend_may_have_gpu(void) {
#if defined __linux__ && defined HAVE_VULKAN
    for (size_t i = 0; i < COUNT_OF(gpu_nodes); i++)
        if (access(gpu_nodes[i], F_OK) == 0) return true;
    return false;
#else
    (void)gpu_nodes;
    return true;
#endif
}

void backend_close(struct backend *b) {
    if (b) b->fn->close(b);
}
