/*
 * Going on without a device: one that is lost in the middle of a request, or that cannot be had
 * when the engine opens and was not asked for by name. All that was on it can be had again: weights
 * from the file, keys and values from the tokens, which stay on the host.
 */
#include "run/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/log.h"

static bool is_cpu_alone(const ats_engine *e) {
    return e->n_devices == 1 && strncmp(e->device_names[0], "cpu", 3) == 0;
}

/* The CPU holds everything; no wish about a division applies any more. */
static void take_cpu_alone(ats_engine *e) {
    e->device_names[0] = "cpu";
    e->n_devices = 1;
    e->options.plan_seed = 0;
    e->options.plan = e->options.gpu_layers = NULL;
    e->options.n_overrides = e->options.n_cpu_moe = e->options.vram_mib = 0;
    choice_free(&e->choice);
    e->choice = (struct plan_choice){0};
}

/* ---- when the engine opens ---- */

/* Another device would not help: the user's word, the file, the model. */
static bool is_device_s_fault(ats_status status) {
    return status == ATS_DEVICE || status == ATS_NO_MEMORY || status == ATS_UNSUPPORTED;
}

ats_status engine_start_somehow(ats_engine *e) {
    ats_status status = engine_start(e);
    if (status == ATS_OK || e->names_given || is_cpu_alone(e) || !is_device_s_fault(status))
        return status;
    log_msg(LOG_WARN, "%s; the CPU goes on alone", error_text());
    error_clear();
    engine_stop(e);
    take_cpu_alone(e);
    return engine_start(e);
}

/* ---- in the middle of a request ---- */

static ats_status replay_sessions(ats_engine *e) {
    for (ats_session *s = e->sessions; s; s = s->next)
        session_forget(s);
    ats_status status = ATS_OK;
    for (ats_session *s = e->sessions; s; s = s->next)
        if (status == ATS_OK) status = session_replay(s);
    for (ats_session *s = e->sessions; s; s = s->next)
        session_remember(s); /* those that were not replayed: for the next attempt */
    return status;
}

ats_status engine_recover(ats_engine *e) {
    char why[200];
    snprintf(why, sizeof why, "%s", error_text());
    if (e->executor && is_cpu_alone(e)) {
        engine_stop(e); /* the next call begins anew, from the file and the tokens */
        return fail(ATS_DEVICE, "%s", why);
    }
    if (e->executor) {
        log_msg(LOG_WARN, "%s; the CPU goes on alone, from the file and the tokens", why);
        e->stats.n_lost_devices++;
        engine_stop(e);
        take_cpu_alone(e);
    }
    error_clear();
    ats_status status = engine_start(e);
    if (status == ATS_OK) status = replay_sessions(e);
    if (status == ATS_OK) return ATS_OK;
    engine_stop(e);
    return fail_in(status, "a device was lost, and the CPU cannot go on alone");
}
