/* The engine goes on with another plan. */
#include "run/engine.h"
#include "run/switch.h"

#include "base/log.h"

static bool page_is_used(const void *user, int kv_class, int page) {
    const ats_engine *e = user;
    return kv_page_refs(e->kv, kv_class, page) > 0;
}

static bool state_is_used(const void *user, int slot) {
    const ats_engine *e = user;
    return state_slot_is_used(e->states, slot);
}

/* Nothing is left: the next request finds no executor, and starts anew (recover.c). */
static ats_status give_up(ats_engine *e, ats_status status) {
    log_msg(LOG_ERROR, "%s; the next request starts from the file and the tokens", error_text());
    char why[300];
    snprintf(why, sizeof why, "%s", error_text());
    engine_stop(e);
    return fail(status, "%s", why);
}

ats_status engine_switch(ats_engine *e, struct arena *arena, struct plan *plan,
                         struct switch_report *report) {
    const struct switch_use use = {page_is_used, state_is_used, e};
    REQUIRE(e->executor);
    session_copy_pages(e);
    session_keep_logits(e);
    ats_status status = executor_switch(&e->executor, plan, &e->executor_options, &use, report);
    if (!e->executor) return give_up(e, status);
    if (status != ATS_OK) return status;
    arena_free(&e->plan_arena);
    e->plan_arena = *arena;
    *arena = (struct arena){0};
    e->plan = plan;
    executor_totals(e->executor, &e->ledger);
    engine_count_stats(e);
    return observe_open(e);
}
