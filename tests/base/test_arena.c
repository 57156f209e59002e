#include "support.h"

#include "base/arena.h"

static void allocations_are_zeroed_aligned_and_apart(void **state) {
    (void)state;
    struct arena a = {0};
    unsigned char *p[400];
    size_t n[400];
    for (size_t i = 0; i < COUNT_OF(p); i++) {
        n[i] = i * i % 3001;
        p[i] = arena_alloc(&a, n[i]);
        assert_non_null(p[i]);
        assert_int_equal((uintptr_t)p[i] % (n[i] >= 64 ? 64 : 16), 0);
        for (size_t j = 0; j < n[i]; j++)
            assert_int_equal(p[i][j], 0);
        memset(p[i], (int)(i % 255 + 1), n[i]);
    }
    for (size_t i = 0; i < COUNT_OF(p); i++)
        for (size_t j = 0; j < n[i]; j++)
            assert_int_equal(p[i][j], i % 255 + 1);
    arena_free(&a);
    assert_null(a.chunks);
    assert_int_equal(a.used_bytes, 0);
}

static void big_allocations_leave_the_small_chunk_in_use(void **state) {
    (void)state;
    struct arena a = {0};
    char *first = arena_alloc(&a, 16);
    char *big = arena_alloc(&a, 3 << 20);
    char *second = arena_alloc(&a, 16);
    memset(big, 1, 3 << 20);
    assert_ptr_equal(second, first + 16);
    arena_free(&a);
}

static void an_arena_can_be_used_again_after_free(void **state) {
    (void)state;
    struct arena a = {0};
    for (int i = 0; i < 3; i++) {
        int *numbers = ARENA_ARRAY(&a, int, 1000);
        for (int j = 0; j < 1000; j++)
            assert_int_equal(numbers[j]++, 0);
        arena_free(&a);
        arena_free(&a);
    }
}

static void strings_are_copied_whole(void **state) {
    (void)state;
    struct arena a = {0};
    assert_string_equal(arena_strdup(&a, "abc"), "abc");
    assert_string_equal(arena_strndup(&a, "abcdef", 2), "ab");
    assert_string_equal(arena_strndup(&a, NULL, 0), "");
    assert_string_equal(arena_printf(&a, "%d-%s", 7, "x"), "7-x");
    char *wide = arena_printf(&a, "%*d", 70000, 5);
    assert_int_equal(strlen(wide), 70000);
    arena_free(&a);
}

static void growing_arrays_keep_their_items(void **state) {
    (void)state;
    struct {
        int *items;
        size_t n, cap;
    } v = {0};
    for (int i = 0; i < 10000; i++) {
        GROW(v.items, v.n, v.cap, 1);
        v.items[v.n++] = i;
    }
    for (int i = 0; i < 10000; i++)
        assert_int_equal(v.items[i], i);
    assert_true(v.cap < 20000);
    free(v.items);
    char *copy = xstrndup("hello", 4);
    assert_string_equal(copy, "hell");
    free(copy);
}

static void adopted_arrays_move_into_the_arena(void **state) {
    (void)state;
    struct arena a = {0};
    int *items = xmalloc(3 * sizeof *items);
    for (int i = 0; i < 3; i++)
        items[i] = i + 5;
    int *moved = arena_adopt(&a, items, 3 * sizeof *items); /* a leak check sees items freed */
    for (int i = 0; i < 3; i++)
        assert_int_equal(moved[i], i + 5);
    assert_non_null(arena_adopt(&a, NULL, 0));
    arena_free(&a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(allocations_are_zeroed_aligned_and_apart),
        cmocka_unit_test(big_allocations_leave_the_small_chunk_in_use),
        cmocka_unit_test(an_arena_can_be_used_again_after_free),
        cmocka_unit_test(strings_are_copied_whole),
        cmocka_unit_test(growing_arrays_keep_their_items),
        cmocka_unit_test(adopted_arrays_move_into_the_arena),
    };
    return cmocka_run_group_tests_name("base/arena", tests, NULL, NULL);
}
