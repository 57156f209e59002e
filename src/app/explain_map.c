/* The map of a plan: a row for each kind of tensor, a column for each layer. */
#include "app/explain.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"

/* A cell holds what an item of this kind and layer is; most layers lack some kinds. */
enum cell { CELL_NONE, CELL_HOST, CELL_GPU, CELL_BOTH, N_CELLS };

static const char letters[N_CELLS + 1] = ".cg+";
static const char *const colours[N_CELLS] = {"", "\033[43m", "\033[42m", "\033[46m"};

struct map {
    const json_t *items;
    struct buf *kinds; /* (n_kinds), as they come */
    size_t n_kinds, cap;
    uint8_t *cells; /* (n_kinds, n_layers) */
    size_t n_layers;
};

static size_t find_kind(struct map *m, const char *name) {
    for (size_t k = 0; k < m->n_kinds; k++)
        if (strcmp(buf_str(&m->kinds[k]), name) == 0) return k;
    GROW(m->kinds, m->n_kinds, m->cap, 1);
    m->kinds[m->n_kinds] = (struct buf){0};
    buf_add_str(&m->kinds[m->n_kinds], name);
    return m->n_kinds++;
}

static enum cell cell_of(const json_t *item) {
    double share = json_number_value(json_object_get(item, "gpu_share"));
    return share <= 0 ? CELL_HOST : share >= 1 ? CELL_GPU : CELL_BOTH;
}

/* The kind of item i; its layer, at most the last column, in *layer. */
static size_t place(struct map *m, size_t i, size_t *layer) {
    const json_t *item = json_array_get(m->items, i);
    struct buf kind = {0};
    explain_add_kind(&kind, item);
    size_t k = find_kind(m, buf_str(&kind));
    buf_free(&kind);
    *layer = (size_t)json_integer_value(json_object_get(item, "layer"));
    return k;
}

static bool in_layer(const json_t *item) {
    json_int_t layer = json_integer_value(json_object_get(item, "layer"));
    return layer >= 0 && layer < 1 << 16;
}

static void fill(struct map *m) {
    size_t n = json_array_size(m->items), layer;
    for (size_t i = 0; i < n; i++) {
        if (!in_layer(json_array_get(m->items, i))) continue;
        place(m, i, &layer);
        m->n_layers = max_size(m->n_layers, layer + 1);
    }
    m->cells = xcalloc(m->n_kinds * m->n_layers + 1, 1);
    for (size_t i = 0; i < n; i++) {
        if (!in_layer(json_array_get(m->items, i))) continue;
        size_t k = place(m, i, &layer);
        uint8_t *cell = &m->cells[k * m->n_layers + layer];
        enum cell here = cell_of(json_array_get(m->items, i));
        *cell = (uint8_t)(*cell != CELL_NONE && *cell != here ? CELL_BOTH : here);
    }
}

static void add_cells(struct buf *out, const uint8_t *cells, size_t n, bool colour) {
    for (size_t i = 0; i < n; i++) {
        bool painted = colour && cells[i] != CELL_NONE;
        if (painted && (i == 0 || cells[i] != cells[i - 1])) buf_add_str(out, colours[cells[i]]);
        buf_add_char(out, painted ? ' ' : letters[cells[i]]);
        if (painted && (i + 1 == n || cells[i] != cells[i + 1])) buf_add_str(out, "\033[0m");
    }
}

/* The numbers of every tenth layer, where they have room. */
static void add_ruler(struct buf *out, size_t from, size_t n) {
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        char number[24];
        int len = snprintf(number, sizeof number, "%zu", from + i);
        if ((from + i) % 10 != 0 || i < at || i + (size_t)len > n) continue;
        buf_printf(out, "%*s%s", (int)(i - at), "", number);
        at = i + (size_t)len;
    }
    buf_add_char(out, '\n');
}

enum { LABEL = 20, LABEL_LEAST = 8 };

static void add_label(struct buf *out, const char *text, int width) {
    buf_printf(out, "%-*.*s ", width, width, text);
}

static void add_legend(struct buf *out, bool colour) {
    static const char *const texts[N_CELLS] = {"", "host", "GPU", "both"};
    buf_add_str(out, "\n");
    for (uint8_t c = CELL_HOST; c < N_CELLS; c++) {
        add_cells(out, &c, 1, colour);
        buf_printf(out, " %s%s", texts[c], c + 1 < N_CELLS ? ", " : "\n");
    }
}

/* Items outside of layers: a line each. */
static void add_others(struct buf *out, const struct map *m, int label, bool colour) {
    for (size_t i = 0; i < json_array_size(m->items); i++) {
        const json_t *item = json_array_get(m->items, i);
        struct buf name = {0};
        if (in_layer(item)) continue;
        explain_add_kind(&name, item);
        uint8_t cell = (uint8_t)cell_of(item);
        add_label(out, buf_str(&name), label);
        add_cells(out, &cell, 1, colour);
        buf_add_char(out, '\n');
        buf_free(&name);
    }
}

void explain_add_map(struct buf *out, const json_t *items, int width, bool colour) {
    struct map m = {.items = items};
    int label = max_int(LABEL_LEAST, min_int(LABEL, width / 3));
    size_t columns = (size_t)max_int(1, width - label - 1);
    if (json_array_size(items) == 0) return;
    fill(&m);
    add_legend(out, colour);
    for (size_t from = 0; from < m.n_layers; from += columns) {
        size_t n = m.n_layers - from < columns ? m.n_layers - from : columns;
        add_label(out, "layer", label);
        add_ruler(out, from, n);
        for (size_t k = 0; k < m.n_kinds; k++) {
            add_label(out, buf_str(&m.kinds[k]), label);
            add_cells(out, &m.cells[k * m.n_layers + from], n, colour);
            buf_add_char(out, '\n');
        }
    }
    add_others(out, &m, label, colour);
    for (size_t k = 0; k < m.n_kinds; k++)
        buf_free(&m.kinds[k]);
    free(m.kinds);
    free(m.cells);
}
