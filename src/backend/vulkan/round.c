/* What changes from round to round, in memory that recorded commands read. */
#include "backend/vulkan/vulkan_internal.h"

#include <math.h>
#include <string.h>

#define SECTION_ALIGN   256
#define RUN_WORDS       4                 /* a run has a token at least */
#define MAX_TABLE_WORDS ((size_t)1 << 20) /* of page tables, 4 MiB */

/* Words of the arrays, in their order; page tables come last. */
static size_t table_at(const struct backend_limits *l) {
    return VK_ROUND_HEADER + (3 + RUN_WORDS + (size_t)l->n_kv_classes) * (size_t)l->n_tokens +
           (size_t)l->n_rows;
}

size_t vk_round_layout(struct vulkan *v, const struct backend_limits *l) {
    size_t pages = ((size_t)(l->n_ctx >> KV_PAGE_TOKENS_LOG2) + 1) * (size_t)l->n_kv_classes;
    size_t table = max_size(pages, min_size(pages * (size_t)l->n_tokens, MAX_TABLE_WORDS));
    v->cap_words = table_at(l) + table;
    v->at_ropes = round_up(v->cap_words * 4, SECTION_ALIGN);
    size_t rope = round_up((size_t)l->n_tokens * (size_t)l->max_head_dim * 4, SECTION_ALIGN);
    v->at_grids = v->at_ropes + VK_MAX_ROPES * rope;
    return v->at_grids + VK_MAX_GRIDS * sizeof(VkDispatchIndirectCommand);
}

size_t vk_rope_offset(const struct vulkan *v, int index) {
    return v->at_ropes + (v->at_grids - v->at_ropes) / VK_MAX_ROPES * (size_t)index;
}

int vk_grid_index(struct vulkan *v, struct vk_grid grid) {
    for (int i = 0; i < v->n_grids; i++) {
        const struct vk_grid *g = &v->grids[i];
        bool same = g->x == grid.x && g->lines == grid.lines && g->tile == grid.tile &&
                    g->ranges == grid.ranges;
        if (same && g->first == grid.first && g->most == grid.most &&
            g->per_line == grid.per_line && g->experts == grid.experts)
            return i;
    }
    if (v->n_grids == VK_MAX_GRIDS) return -1;
    v->grids[v->n_grids] = grid;
    return v->n_grids++;
}

/* Ops come and go with their graphs; what counts is their numbers. */
static bool same_rope(const struct rope_params *a, const struct vk_rope *b) {
    return a->n_rot == b->n_rot && memcmp(&a->magnitude, &b->magnitude, sizeof a->magnitude) == 0 &&
           memcmp(a->inv_freq, b->inv_freq, (size_t)a->n_rot / 2 * sizeof *a->inv_freq) == 0;
}

int vk_rope_index(struct vulkan *v, const struct graph_op *op) {
    const struct rope_params *p = &op->p.rope;
    REQUIRE(p->n_rot <= v->limits.max_head_dim);
    for (int i = 0; i < v->n_ropes; i++)
        if (same_rope(p, &v->ropes[i])) return i;
    if (v->n_ropes == VK_MAX_ROPES || p->n_rot > VK_MAX_HEAD_DIM) return -1;
    struct vk_rope *r = &v->ropes[v->n_ropes];
    r->n_rot = p->n_rot;
    r->magnitude = p->magnitude;
    memcpy(r->inv_freq, p->inv_freq, (size_t)p->n_rot / 2 * sizeof *p->inv_freq);
    return v->n_ropes++;
}

/* ---- writing ---- */

/* *same: becomes false if something else stood there; NULL: that is not asked. */
static void put(int32_t *to, const int32_t *from, size_t n, bool *same) {
    if (same) *same = *same && memcmp(to, from, n * sizeof *to) == 0;
    memcpy(to, from, n * sizeof *to);
}

/* The integers of a round at `out`; returns how many words, 0: they do not fit. Words of tokens
 * that it does not have stay as they are, and are read by nobody. */
static size_t lay_out(const struct vulkan *v, const struct round *r, int32_t *out, bool *same) {
    const int n = v->limits.n_tokens;
    const int at_token = VK_ROUND_HEADER, at_position = at_token + n, at_angle = at_position + n;
    const int at_pages = at_angle + n; /* angles: for the host to compare */
    const int at_row = at_pages + v->limits.n_kv_classes * n;
    int at_run = at_row + v->limits.n_rows;
    const int32_t header[VK_ROUND_HEADER] = {r->n_tokens, r->n_rows, at_token, at_position,
                                             at_pages,    at_row,    n,        at_run};
    put(out, header, VK_ROUND_HEADER, same);
    put(out + at_token, r->tokens, (size_t)r->n_tokens, same);
    put(out + at_angle, r->positions, (size_t)r->n_tokens, same);
    if (r->n_rows) put(out + at_row, r->rows, (size_t)r->n_rows, same);
    size_t at = table_at(&v->limits);
    for (int i = 0; i < r->n_runs; i++) {
        const struct round_run *run = &r->runs[i];
        if (run->n_tokens == 0) continue;
        const int32_t words[RUN_WORDS] = {run->token_begin, run->n_tokens, run->state_in,
                                          run->state_out};
        put(out + at_run, words, RUN_WORDS, same);
        at_run += RUN_WORDS;
        size_t pages = (size_t)((run->position + run->n_tokens - 1) >> KV_PAGE_TOKENS_LOG2) + 1;
        for (int j = 0; j < run->n_tokens; j++)
            put(&out[at_position + run->token_begin + j], &(int32_t){run->position + j}, 1, same);
        for (int c = 0; c < v->limits.n_kv_classes; c++, at += pages) {
            if (at + pages > v->cap_words) return 0;
            for (int j = 0; j < run->n_tokens; j++)
                put(&out[at_pages + c * n + run->token_begin + j], &(int32_t){(int32_t)at}, 1,
                    same);
            put(out + at, run->pages[c], pages, same);
        }
    }
    return at;
}

/* One line of cos and sin a token; angles are exact in double. */
static void write_rope(const struct vk_rope *p, const struct round *r, float *out) {
    int half = p->n_rot / 2;
    for (int t = 0; t < r->n_tokens; t++, out += p->n_rot)
        for (int j = 0; j < half; j++) {
            double angle = (double)r->positions[t] * (double)p->inv_freq[j];
            out[j] = (float)(cos(angle) * (double)p->magnitude);
            out[half + j] = (float)(sin(angle) * (double)p->magnitude);
        }
}

static uint32_t count_runs(const struct round *r) {
    uint32_t n = 0;
    for (int i = 0; i < r->n_runs; i++)
        n += r->runs[i].n_tokens > 0;
    return n;
}

/* Work-groups over the lines of a grid. */
static uint32_t count_tiles(const struct vk_grid *g, const struct round *r) {
    if (g->lines == LINES_RUNS) return count_runs(r);
    int n = (g->lines == LINES_ROWS ? r->n_rows : r->n_tokens) - g->first;
    if (g->most) n = max_int(0, min_int(n, g->most));
    if (g->per_line) n *= g->per_line;
    if (g->experts) return (uint32_t)(n / g->tile + min_int(n, g->experts));
    return (uint32_t)((n + g->tile - 1) / g->tile);
}

static void write_grids(struct vulkan *v, const struct round *r) {
    VkDispatchIndirectCommand *out = (void *)(v->round_block.mapped + v->at_grids);
    int position = 0; /* of the only token; of some token, where that is not asked for */
    for (int i = 0; i < r->n_runs; i++)
        if (r->runs[i].n_tokens > 0) position = r->runs[i].position;
    for (int i = 0; i < v->n_grids; i++) {
        const struct vk_grid *g = &v->grids[i];
        int ranges = g->ranges ? position / VK_ATTN_RANGE + 1 : 1;
        out[i] = (VkDispatchIndirectCommand){(uint32_t)g->x, count_tiles(g, r), (uint32_t)ranges};
    }
}

/* Work that nobody has waited for still borrows the round that was written for it. */
static bool is_borrowed(const struct vulkan *v, const struct round *round) {
    return round == v->written && v->last_value > v->done && !v->no_ahead &&
           v->n_ropes == v->n_ropes_written && v->n_grids == v->n_grids_written;
}

ats_status vk_round_write(struct vulkan *v, const struct round *round) {
    if (is_borrowed(v, round)) return ATS_OK;
    v->written = NULL;
    bool same = v->n_ropes == v->n_ropes_written && v->n_grids == v->n_grids_written;
    size_t n = lay_out(v, round, v->round_words, &same);
    same = same && n == v->used_words;
    v->used_words = 0; /* until the block holds them too */
    if (n == 0) return fail(ATS_UNSUPPORTED, "%s: a round of too many pages", v->name);
    if (same) {
        v->used_words = n;
        v->written = round;
        return ATS_OK;
    }
    TRY(vk_wait_in_job(v, v->last_value));
    vk_watch_numbers(v);
    lay_out(v, round, (int32_t *)(void *)v->round_block.mapped, NULL);
    for (int i = 0; i < v->n_ropes; i++)
        write_rope(&v->ropes[i], round,
                   (float *)(void *)(v->round_block.mapped + vk_rope_offset(v, i)));
    write_grids(v, round);
    v->used_words = n;
    v->written = round;
    v->n_ropes_written = v->n_ropes;
    v->n_grids_written = v->n_grids;
    return ATS_OK;
}

/* ---- an exchange that cannot be shared ---- */

void vk_mirror_copy(struct vulkan *v, const struct backend_segment *s, const struct round *round,
                    bool write) {
    for (size_t i = 0; i < s->n_mirrors; i++) {
        const struct vk_mirror *m = &s->mirrors[i];
        int lines = m->rows ? round->n_rows : round->n_tokens;
        if (m->write != write) continue;
        for (int line = 0; line < lines; line++) {
            int64_t at = m->span.offset_bytes +
                         4 * ((int64_t)line * m->span.stride + m->begin - m->span.first);
            uint8_t *theirs = (uint8_t *)v->limits.exchange + at, *own = v->exchange.mapped + at;
            memcpy(write ? theirs : own, write ? own : theirs, (size_t)(m->end - m->begin) * 4);
        }
    }
}
