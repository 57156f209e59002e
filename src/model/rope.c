/* Frequencies of the rotary embedding from a file's keys and factor tensors. */
#include "model/bind.h"

#include <math.h>

#define N_SECTIONS 4

/* Keys of one file. Sources: ecosystem.md 4.2; YaRN: arXiv 2309.00071, section 3. */
struct rope_keys {
    struct gguf_str type; /* "", "none", "linear", "yarn", "longrope" */
    float freq_base, factor, attn_factor;
    uint32_t original_ctx;
    float beta_fast, beta_slow, ext_factor;
};

static ats_status read_keys(struct binding *b, const struct rope_options *o, struct rope_keys *k) {
    *k = (struct rope_keys){.type = {"", 0},
                            .freq_base = o->freq_base > 0 ? o->freq_base : b->hp.rope_freq_base,
                            .factor = 1,
                            .attn_factor = 1,
                            .original_ctx = (uint32_t)b->hp.n_ctx_train,
                            .beta_fast = 32,
                            .beta_slow = 1,
                            .ext_factor = 1};
    if (o->unscaled) return ATS_OK;
    TRY(gguf_opt_str(b->file, ".rope.scaling.type", &k->type));
    TRY(gguf_opt_f32(b->file, ".rope.scale_linear", &k->factor)); /* of older files */
    TRY(gguf_opt_f32(b->file, ".rope.scaling.factor", &k->factor));
    TRY(gguf_opt_f32(b->file, ".rope.scaling.attn_factor", &k->attn_factor));
    TRY(gguf_opt_u32(b->file, ".rope.scaling.original_context_length", &k->original_ctx));
    TRY(gguf_opt_f32(b->file, ".rope.scaling.yarn_beta_fast", &k->beta_fast));
    TRY(gguf_opt_f32(b->file, ".rope.scaling.yarn_beta_slow", &k->beta_slow));
    TRY(gguf_opt_f32(b->file, ".rope.scaling.yarn_ext_factor", &k->ext_factor));
    if (!(k->factor > 0) || !(k->attn_factor > 0) || k->original_ctx == 0)
        return fail(ATS_BAD_FILE, "the keys rope.scaling.* hold values that are not positive");
    if (k->ext_factor < 0) k->ext_factor = 1; /* how some writers say that it is not set */
    return ATS_OK;
}

ats_status rope_read_base_swa(const struct binding *b, float *base) {
    TRY(gguf_opt_f32(b->file, ".rope.freq_base_swa", base));
    if (gguf_find(b->file, ".rope.freq_base_swa") && !(*base > 1))
        return fail(ATS_BAD_FILE, "key %s.rope.freq_base_swa is %g, out of range", b->file->arch,
                    (double)*base);
    return ATS_OK;
}

ats_status rope_read_sections(const struct binding *b, bool *sectioned) {
    static const char key[] = ".rope.dimension_sections";
    const int half = b->hp.n_rot / 2;
    const struct gguf_array *sections = NULL;
    int64_t sum = 0;
    TRY(gguf_opt_ints(b->file, key, &sections));
    bool fits = !sections || sections->n == N_SECTIONS;
    for (size_t i = 0; sections && fits && i < N_SECTIONS; i++) {
        const int64_t n = gguf_array_int(sections, i);
        fits = n >= 0 && n <= half;
        sum += n;
    }
    *sectioned = sum > 0;
    if (fits && (sum == 0 || sum == half)) return ATS_OK;
    return fail(ATS_UNSUPPORTED, "key %s%s is not a list of %d numbers that make %d, half of %d",
                b->file->arch, key, N_SECTIONS, half, b->hp.n_rot);
}

/* Index of the pair that turns n_turns times within the original context (YaRN's correction). */
static double yarn_pair(const struct binding *b, const struct rope_keys *k, double n_turns) {
    const double tau = 6.283185307179586;
    return b->hp.n_rot * log(k->original_ctx / (n_turns * tau)) / (2 * log((double)k->freq_base));
}

/* High frequencies stay, low ones are interpolated, a ramp between; the correction range is
 * floored and ceiled (models/README: what GGUF files mean). Returns the factor on cos and sin. */
static float apply_yarn(const struct binding *b, const struct rope_keys *k, float *inv_freq) {
    int half = b->hp.n_rot / 2;
    double low = fmax(0, floor(yarn_pair(b, k, (double)k->beta_fast)));
    double high = fmin(b->hp.n_rot - 1, ceil(yarn_pair(b, k, (double)k->beta_slow)));
    double span = fmax(high - low, 0.001);
    for (int i = 0; i < half; i++) {
        double ramp = 1 - fmin(1, fmax(0, (i - low) / span));
        double keep = ramp * (double)k->ext_factor;
        double base = (double)inv_freq[i];
        inv_freq[i] = (float)(base / (double)k->factor * (1 - keep) + base * keep);
    }
    return k->ext_factor > 0 ? k->attn_factor * (1 + 0.1F * logf(k->factor)) : k->attn_factor;
}

/* Per-pair divisors: Llama 3's rope_freqs, or LongRoPE's long or short ones. Keys already cached
 * cannot change, so LongRoPE goes by the configured context, not by the length reached. */
static ats_status read_factors(struct binding *b, const struct rope_keys *k,
                               const float **factors) {
    const float *freqs, *longs, *shorts;
    int half = b->hp.n_rot / 2;
    TRY(bind_constants(b, half, "rope_freqs.weight", &freqs));
    TRY(bind_constants(b, half, "rope_factors_long.weight", &longs));
    TRY(bind_constants(b, half, "rope_factors_short.weight", &shorts));
    if ((longs == NULL) != (shorts == NULL))
        return fail(ATS_UNSUPPORTED, "tensor rope_factors_%s.weight is missing",
                    longs ? "short" : "long");
    int n_ctx = b->options->n_ctx > 0 ? b->options->n_ctx : b->hp.n_ctx_train;
    *factors = freqs;
    if (longs) *factors = n_ctx > (int64_t)k->original_ctx ? longs : shorts;
    for (int i = 0; *factors && i < half; i++)
        if (!((*factors)[i] > 0) || !isfinite((*factors)[i]))
            return fail(ATS_BAD_FILE, "rope factor %d is not a positive number", i);
    return ATS_OK;
}

ats_status rope_read(struct binding *b, const struct rope_options *options,
                     struct rope_params *out) {
    struct rope_keys k;
    const float *factors = NULL;
    TRY(read_keys(b, options, &k));
    if (!options->unscaled) TRY(read_factors(b, &k, &factors));
    /* older files have a factor without a type */
    bool linear = !k.type.n || gguf_str_is(k.type, "linear"), yarn = gguf_str_is(k.type, "yarn");
    bool other = gguf_str_is(k.type, "none") || gguf_str_is(k.type, "longrope");
    if (!linear && !yarn && !other)
        return fail(ATS_UNSUPPORTED, "rope scaling type \"%.*s\" is not supported",
                    (int)min_size(k.type.n, 40), k.type.data);

    int half = b->hp.n_rot / 2;
    float *inv_freq = ARENA_ARRAY(b->arena, float, half);
    for (int i = 0; i < half; i++) {
        double f = pow((double)k.freq_base, -2.0 * i / b->hp.n_rot);
        if (factors) f /= (double)factors[i];
        if (linear) f /= (double)k.factor;
        inv_freq[i] = (float)f;
    }
    *out = (struct rope_params){.head_dim = b->hp.head_dim,
                                .n_rot = b->hp.n_rot,
                                .halves = options->halves,
                                .inv_freq = inv_freq,
                                .magnitude = k.attn_factor};
    if (yarn) out->magnitude = apply_yarn(b, &k, inv_freq);
    return ATS_OK;
}
