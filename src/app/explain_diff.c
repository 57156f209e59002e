/* `plan --diff`: another plan of the same model on the same machine, beside the one that is told.
 */
#include "app/explain.h"

#include <stdlib.h>
#include <string.h>

#include "app/common.h"

static double real_of(const json_t *o, const char *key) {
    return json_number_value(json_object_get(o, key));
}

static void add_size(struct buf *out, double bytes) {
    char text[32];
    buf_printf(out, "%11s", format_bytes(text, sizeof text, (uint64_t)bytes));
}

static void add_share(struct buf *out, double share) {
    if (share <= 0)
        buf_add_str(out, "cpu");
    else if (share >= 1)
        buf_add_str(out, "gpu");
    else
        buf_printf(out, "gpu %.0f%%", 100 * share);
}

/* A change, told without its layer. */
struct line {
    struct buf kind, homes;
};

static struct line line_of(const json_t *item) {
    struct line line = {0};
    explain_add_kind(&line.kind, item);
    add_share(&line.homes, real_of(item, "gpu_share"));
    buf_add_str(&line.homes, " -> ");
    add_share(&line.homes, real_of(item, "other_gpu_share"));
    return line;
}

static void free_line(struct line *line) {
    buf_free(&line->kind);
    buf_free(&line->homes);
}

static bool same(const struct line *a, const struct line *b) {
    return strcmp(buf_str(&a->kind), buf_str(&b->kind)) == 0 &&
           strcmp(buf_str(&a->homes), buf_str(&b->homes)) == 0;
}

/* "3-7,9"; layers ascend. */
struct layers {
    struct buf text;
    int first, last; /* the range that is open; -1: none */
};

static void close_range(struct layers *l) {
    if (l->first < 0) return;
    buf_printf(&l->text, "%s%d", l->text.len ? "," : "", l->first);
    if (l->last > l->first) buf_printf(&l->text, "-%d", l->last);
}

static void add_layer(struct layers *l, int layer) {
    if (layer < 0 || (l->first >= 0 && layer == l->last)) return;
    if (l->first < 0 || layer != l->last + 1) {
        close_range(l);
        l->first = layer;
    }
    l->last = layer;
}

/* Row i, and all later ones that are the same in other layers. */
static void add_rows(struct buf *out, const json_t *rows, struct line *lines, bool *done,
                     size_t i) {
    struct layers layers = {.first = -1, .last = -1};
    double up = 0, down = 0;
    for (size_t k = i; k < json_array_size(rows); k++) {
        const json_t *row = json_array_get(rows, k);
        if (done[k] || !same(&lines[i], &lines[k])) continue;
        done[k] = true;
        add_layer(&layers, (int)real_of(row, "layer"));
        up += real_of(row, "to_gpu_bytes");
        down += real_of(row, "to_host_bytes");
    }
    close_range(&layers);
    buf_printf(out, "%-28s %-20s ", buf_str(&lines[i].kind), buf_str(&lines[i].homes));
    add_size(out, up);
    buf_add_char(out, ' ');
    add_size(out, down);
    buf_printf(out, "%s%s\n", layers.text.len ? "  " : "", buf_str(&layers.text));
    buf_free(&layers.text);
}

static void add_table(struct buf *out, const json_t *rows) {
    size_t n = json_array_size(rows);
    struct line *lines = xcalloc(n + 1, sizeof *lines);
    bool *done = xcalloc(n + 1, sizeof *done);
    for (size_t i = 0; i < n; i++)
        lines[i] = line_of(json_array_get(rows, i));
    buf_printf(out, "%-28s %-20s %11s %11s  layers\n", "part", "home", "to the GPU", "to the host");
    for (size_t i = 0; i < n; i++)
        if (!done[i]) add_rows(out, rows, lines, done, i);
    for (size_t i = 0; i < n; i++)
        free_line(&lines[i]);
    free(lines);
    free(done);
}

void explain_add_diff(struct buf *out, const json_t *answer) {
    const json_t *diff = json_object_get(answer, "diff"), *rows = json_object_get(diff, "items");
    const char *with = json_string_value(json_object_get(diff, "with"));
    char up[32], down[32];
    if (!with) return;
    buf_add_str(out, "\nagainst ");
    term_add_safe(out, with, strlen(with));
    buf_printf(out,
               ": decode %.2f tok/s here, %.2f there; prefill %.1f, %.1f; on the GPU %s, %s%s\n",
               real_of(answer, "decode_tok_s"), real_of(diff, "decode_tok_s"),
               real_of(answer, "prefill_tok_s"), real_of(diff, "prefill_tok_s"),
               format_bytes(up, sizeof up, (uint64_t)real_of(diff, "gpu_bytes")),
               format_bytes(down, sizeof down, (uint64_t)real_of(diff, "other_gpu_bytes")),
               json_is_false(json_object_get(diff, "fits")) ? ", more than there is room for" : "");
    if (json_array_size(rows) == 0) {
        buf_add_str(out, "both have everything in the same place\n");
        return;
    }
    add_table(out, rows);
    buf_printf(out, "%zu items differ; to become the other plan, %s come to the GPU, %s leave it\n",
               json_array_size(rows),
               format_bytes(up, sizeof up, (uint64_t)real_of(diff, "to_gpu_bytes")),
               format_bytes(down, sizeof down, (uint64_t)real_of(diff, "to_host_bytes")));
}
