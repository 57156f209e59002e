/* The map of a plan: each item at its layer and kind, in letters and in colours, within a width. */
#include "app/explain.h"
#include "support.h"

static void add(json_t *items, const char *name, const char *op, int layer, double share) {
    json_array_append_new(items, json_pack("{s:s, s:s, s:i, s:f}", "name", name, "op", op, "layer",
                                           layer, "gpu_share", share));
}

/* Three layers: the second has no "b", the third one divided. */
static json_t *three_layers(void) {
    json_t *items = json_array();
    add(items, "blk.0.a", "matmul", 0, 0);
    add(items, "blk.0.attn_kv", "attention", 0, 1);
    add(items, "blk.0.b", "matmul", 0, 1);
    add(items, "blk.1.a", "matmul", 1, 0);
    add(items, "blk.1.attn_kv", "attention", 1, 0);
    add(items, "blk.2.a", "matmul", 2, 1);
    add(items, "blk.2.attn_kv", "attention", 2, 1);
    add(items, "blk.2.b", "matmul", 2, 0.25);
    add(items, "out\x1bput", "matmul", -1, 1);
    return items;
}

static void expect(const json_t *items, int width, bool colour, const char *text) {
    struct buf out = {0};
    explain_add_map(&out, items, width, colour);
    assert_string_equal(buf_str(&out), text);
    buf_free(&out);
}

static void letters_stand_at_their_layers(void **state) {
    (void)state;
    json_t *items = three_layers();
    expect(items, 60, false,
           "\nc host, g GPU, + both\n"
           "layer                0\n"
           "a                    ccg\n"
           "attn_kv              gcg\n"
           "b                    g.+\n"
           "out^[put             g\n");
    json_decref(items);
}

static void colours_are_blocks(void **state) {
    (void)state;
    json_t *items = json_array();
    add(items, "blk.0.a", "matmul", 0, 0);
    add(items, "blk.1.a", "matmul", 1, 0);
    add(items, "blk.3.a", "matmul", 3, 0.5);
    add(items, "blk.4.a", "matmul", 4, 1);
    expect(items, 60, true,
           "\n\033[43m \033[0m host, \033[42m \033[0m GPU, \033[46m \033[0m both\n"
           "layer                0\n"
           "a                    \033[43m  \033[0m.\033[46m \033[0m\033[42m \033[0m\n");
    json_decref(items);
    items = json_array();
    expect(items, 60, true, "");
    json_decref(items);
}

/* Of so many layers that they need several maps, nothing is lost, and no line is too long. */
static void lines_keep_to_the_width(void **state) {
    (void)state;
    static const int widths[] = {16, 40, 79, 200};
    for (size_t w = 0; w < COUNT_OF(widths); w++) {
        json_t *items = json_array();
        struct buf out = {0};
        size_t n_cells = 0, at = 0;
        for (int i = 0; i < 126; i++)
            add(items, "blk.0.feed_forward_of_a_long_name", "matmul", i, i % 3 == 0);
        explain_add_map(&out, items, widths[w], false);
        for (size_t i = 0; i <= out.len; i++) {
            if (i < out.len && out.data[i] != '\n') continue;
            bool legend = out.len > at + 6 && strncmp(out.data + at, "c host", 6) == 0;
            if (!legend) assert_in_range(i - at, 0, widths[w]);
            if (i > at && strncmp(out.data + at, "feed", 4) == 0)
                n_cells += i - at - (strcspn(out.data + at, " ") + 1);
            at = i + 1;
        }
        assert_int_equal(n_cells, 126);
        buf_free(&out);
        json_decref(items);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(letters_stand_at_their_layers),
        cmocka_unit_test(colours_are_blocks),
        cmocka_unit_test(lines_keep_to_the_width),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
