/* Streaming on a simulated device: the wrapped one reads its weights in slots, memory of this
 * program, and copies bring them there from a host image that has the same layout. */
#include <stdlib.h>
#include <string.h>
#include "backend/packed.h"
#include "backend/sim/sim_internal.h"
#include "base/file.h"

#define PROBE_BYTES 4e6

static size_t slots_bytes(const struct backend_limits *l) {
    return (size_t)l->n_slots * (size_t)l->slot_bytes;
}

/* All bits set is a NaN in every floating type. */
static void poison(const struct sim_place *p) {
    memset(p->slot, 0xFF, p->bytes);
}

ats_status sim_slots_open(struct sim *s) {
    void *memory;
    size_t bytes = slots_bytes(&s->limits);
    if (bytes == 0 || s->base.keeps_time_only) return ATS_OK;
    TRY(pages_alloc(bytes, &memory));
    s->slots = memory;
    if (s->o.chaos) memset(memory, 0xFF, bytes);
    return ATS_OK;
}

void sim_slots_close(struct sim *s) {
    if (s->slots) pages_free(s->slots, slots_bytes(&s->limits));
    s->slots = NULL;
}

/* ---- weights ---- */

/* As the wrapped device would have it to itself: what it copies it packs. */
static bool is_packed(struct sim *s, const struct weight_source *source) {
    struct weight_source own = *source;
    own.streamed = false;
    return s->inner->fn->weight_bytes(s->inner, &own) > 0;
}

static size_t matrix_bytes(const struct weight_source *s, bool packed) {
    if (!packed) return (size_t)(dtype_row_bytes(s->dtype, s->n_cols) * s->n_rows);
    return round_up(pack_bytes(s->dtype, s->n_rows, s->n_cols), PACK_ALIGN);
}

int64_t sim_streamed_bytes(struct sim *s, const struct weight_source *source) {
    if (s->base.keeps_time_only) return weight_source_bytes(source);
    return (int64_t)matrix_bytes(source, is_packed(s, source)) * weight_matrices(source);
}

static void lay_out(const struct weight_source *s, bool packed, uint8_t *out) {
    size_t row_bytes = (size_t)dtype_row_bytes(s->dtype, s->n_cols);
    for (int i = 0; i < weight_matrices(s); i++, out += matrix_bytes(s, packed)) {
        const uint8_t *from = weight_matrix(s, i);
        if (packed)
            pack_rows(s->dtype, from, (size_t)s->row_bytes, s->n_rows, s->n_cols, out, 0,
                      pack_n_groups(s->n_rows));
        for (int row = 0; row < s->n_rows && !packed; row++)
            memcpy(out + (size_t)row * row_bytes, from + row * s->row_bytes, row_bytes);
    }
}

ats_status sim_home_open(struct backend *b, const struct weight_source *source,
                         struct backend_home **out) {
    struct sim *s = sim_of(b);
    *out = NULL;
    TRY(sim_check_refused(s));
    if (!b->streams) return fail(ATS_UNSUPPORTED, "device \"%s\" does not stream weights", b->name);
    struct backend_home home = {.packed = !b->keeps_time_only && is_packed(s, source)};
    if (!b->keeps_time_only) {
        void *host;
        home.bytes = matrix_bytes(source, home.packed) * (size_t)weight_matrices(source);
        TRY(pages_alloc(home.bytes, &host));
        home.host = host;
        lay_out(source, home.packed, home.host);
    }
    *out = xmalloc(sizeof home);
    **out = home;
    return ATS_OK;
}

void sim_home_close(struct backend *b, struct backend_home *home) {
    (void)b;
    if (home && home->host) pages_free(home->host, home->bytes);
    free(home);
}

/* As it is laid out, at home or in a slot. */
static struct weight_source laid_out(const struct backend_home *home, const uint8_t *at,
                                     const struct weight_source *source) {
    struct weight_source out = *source;
    out.streamed = false;
    out.home = NULL;
    out.raw = !home->packed;
    if (home->packed) {
        out.packed = at;
        return out;
    }
    out.data = at;
    out.matrices = NULL;
    out.row_bytes = dtype_row_bytes(source->dtype, source->n_cols);
    out.matrix_bytes = 0;
    return out;
}

void sim_home_source(struct backend *b, const struct backend_home *home,
                     struct weight_source *source) {
    (void)b;
    *source = laid_out(home, home->host, source);
}

ats_status sim_streamed_load(struct sim *s, const struct weight_source *source,
                             struct backend_weight **out) {
    const struct backend_home *home = source->home;
    struct sim_place place = {.host = home->host, .bytes = home->bytes};
    if (home->host)
        place.slot = s->slots + source->slot * s->limits.slot_bytes + source->slot_offset;
    const struct weight_source in_slot = laid_out(home, place.slot, source);
    TRY(s->inner->fn->weight_load(s->inner, &in_slot, out));
    struct sim_known *known = sim_know(s, *out, weight_source_bytes(source));
    known->streamed = true;
    known->place = place;
    return ATS_OK;
}

void sim_streamed_note(const struct sim *s, struct backend_segment *segment, const void *weight) {
    const struct sim_known *known = sim_known(s, weight);
    if (!known || !known->place.host) return;
    GROW(segment->streamed, segment->n_streamed, segment->cap_streamed, 1);
    segment->streamed[segment->n_streamed++] = known->place;
}

void sim_streamed_read(const struct sim *s, const struct backend_segment *segment) {
    for (size_t i = 0; i < segment->n_streamed && s->o.chaos; i++)
        poison(&segment->streamed[i]);
}

/* ---- copies ---- */

ats_status sim_copy_build(struct backend *b, struct backend_weight *const *weights, int n_weights,
                          struct backend_copy **out) {
    struct sim *s = sim_of(b);
    struct backend_copy *copy = xcalloc(1, sizeof *copy + (size_t)n_weights * sizeof *copy->places);
    for (int i = 0; i < n_weights; i++) {
        const struct sim_known *known = sim_known(s, weights[i]);
        REQUIRE(known && known->streamed);
        if (known->place.host) copy->places[copy->n_places++] = known->place;
        copy->bytes += known->place.host ? (int64_t)known->place.bytes : known->bytes;
    }
    *out = copy;
    return ATS_OK;
}

ats_status sim_probe_copy(struct backend *b, double *seconds) {
    struct sim *s = sim_of(b);
    const struct backend_machine *m = s->o.machine;
    const char *slow = getenv("ATSINFER_SIM_LINK_SLOW");
    double until_s, speed = 1;
    *seconds = 0;
    if (!b->streams) return fail(ATS_UNSUPPORTED, "device \"%s\" does not stream weights", b->name);
    if (m && m->speed) speed = m->speed(m->user, MACHINE_LINK, s->world->now_ns / 1e9, &until_s);
    if (slow) speed /= strtod(slow, NULL);
    double rate = m ? m->copy_bytes : 1e9 * s->o.rates.copy_bytes_per_ns;
    *seconds = PROBE_BYTES / (rate * speed);
    return ATS_OK;
}

void sim_copy_free(struct backend *b, struct backend_copy *copy) {
    sim_world_drop(sim_of(b), copy);
    free(copy);
}

void sim_copy_begin(const struct sim *s, const struct backend_copy *copy) {
    for (int i = 0; i < copy->n_places && s->o.chaos; i++)
        poison(&copy->places[i]);
}

void sim_copy_end(const struct backend_copy *copy) {
    for (int i = 0; i < copy->n_places; i++)
        memcpy(copy->places[i].slot, copy->places[i].host, copy->places[i].bytes);
}
