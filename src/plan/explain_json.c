/* An explanation as JSON: what `plan --json` adds to homes and sizes. */
#include "plan/explain.h"

#include <math.h>

static json_t *rate(double tokens, double seconds) {
    return seconds > 0 && isfinite(seconds) ? json_real(tokens / seconds) : json_null();
}

static json_t *rows_json(const struct explanation *e, const char *cpu, const char *gpu) {
    json_t *out = json_array();
    for (int i = 0; i < e->items->n_items; i++) {
        const struct explain_item *row = &e->rows[i];
        const struct item *item = &e->items->items[i];
        const char *home = row->gpu_share <= 0 ? cpu : row->gpu_share >= 1 ? gpu : "both";
        json_array_append_new(out, json_pack("{s:s, s:s, s:i, s:s, s:f, s:I, s:f, s:f, s:s}",
                                             "name", items_name(e->items, i), "op", item->key.op,
                                             "layer", item->layer, "home", home, "gpu_share",
                                             row->gpu_share, "bytes", (json_int_t)row->bytes,
                                             "cpu_s", row->cpu_s, "gpu_s", row->gpu_s, "why",
                                             explain_reason_text(row->reason)));
    }
    return out;
}

static json_t *bytes_json(const struct explain_bytes *b) {
    return json_pack("{s:I, s:I}", "weight_bytes", (json_int_t)b->weights, "kv_bytes",
                     (json_int_t)b->caches);
}

static json_t *predictions_json(const struct explanation *e, int chunk, double n_tokens) {
    json_t *out = json_array();
    for (int k = 0; k < EXPLAIN_DEPTHS; k++) {
        const struct explain_prediction *p = &e->predictions[k];
        if (!p->valid) continue;
        json_array_append_new(out, json_pack("{s:i, s:o, s:o, s:f}", "depth", p->depth,
                                             "decode_tok_s", rate(n_tokens, p->decode_s),
                                             "prefill_tok_s", rate(chunk, p->prefill_s), "regret",
                                             p->decode_s / p->best_s - 1));
    }
    return out;
}

static json_t *limit_json(const struct limit *l, double n_tokens) {
    return json_pack("{s:o, s:s?, s:f}", "tok_s", rate(n_tokens, l->round_s), "binds",
                     l->round_s > 0 ? limit_binds_name(l->binds) : NULL, "resident_share_of_reads",
                     l->hit);
}

static json_t *change_json(const struct explain_change *c, int chunk, double n_tokens) {
    if (!c->valid) return json_null();
    return json_pack("{s:o, s:o, s:I}", "decode_tok_s", rate(n_tokens, c->decode_s),
                     "prefill_tok_s", rate(chunk, c->prefill_s), "gpu_bytes",
                     (json_int_t)c->gpu_bytes);
}

json_t *explain_to_json(const struct explanation *e, const char *cpu, const char *gpu) {
    int chunk = e->prefill_tokens;
    double n = e->n_tokens;
    json_t *out = json_pack(
        "{s:s, s:o, s:o, s:I, s:i, s:f, s:o, s:o, s:o}", "machine", e->items->profile->name, "gpu",
        bytes_json(&e->gpu), "host", bytes_json(&e->host), "budget_bytes",
        (json_int_t)e->budget_bytes, "device_changes", e->n_changes, "price_s_per_gib",
        e->price_s_per_gib, "decode_tok_s", rate(n, e->placement->decode_s), "decode_free_tok_s",
        rate(n, e->free_decode_s), "prefill_tok_s", rate(chunk, e->placement->prefill_s));
    json_object_set_new(out, "fixed",
                        json_pack("{s:i, s:i, s:o, s:o, s:f}", "items", e->n_fixed, "of",
                                  e->items->n_items, "decode_free_tok_s", rate(n, e->free_decode_s),
                                  "prefill_free_tok_s", rate(chunk, e->free_prefill_s), "slower",
                                  e->placement->objective_s / e->free_objective_s - 1));
    json_object_set_new(out, "predictions", predictions_json(e, chunk, n));
    json_object_set_new(out, "limits",
                        json_pack("{s:o, s:o, s:o}", "round", limit_json(&e->round, n), "blocks",
                                  limit_json(&e->blocks, n), "prefill",
                                  limit_json(&e->prefill, chunk)));
    json_object_set_new(out, "changes",
                        json_pack("{s:o, s:o, s:o, s:o, s:o}", "here",
                                  change_json(&e->here, chunk, n), "one_gib_more",
                                  change_json(&e->more_memory, chunk, n), "one_gib_less",
                                  change_json(&e->less_memory, chunk, n), "smaller_kv",
                                  change_json(&e->smaller_cache, chunk, n), "half_bus",
                                  change_json(&e->half_bus, chunk, n)));
    json_object_set_new(out, "items", rows_json(e, cpu, gpu));
    return out;
}
