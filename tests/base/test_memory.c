#include "support.h"

#include "base/file.h"

static void pages_are_zeroed_and_writable(void **state) {
    (void)state;
    const size_t sizes[] = {0, 1, 4096, 5000, (4 << 20) - 1, 4 << 20, (9 << 20) + 123};
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        void *p;
        TEST_OK(pages_alloc(sizes[i], &p));
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 4096, 0);
        if (sizes[i] >= 4 << 20) assert_int_equal((uintptr_t)p % (2 << 20), 0);
        unsigned char *bytes = p;
        for (size_t j = 0; j < sizes[i]; j += 1021)
            assert_int_equal(bytes[j], 0);
        memset(p, 0xAB, sizes[i]);
        pages_free(p, sizes[i]);
    }
    pages_free(NULL, 100);
}

static void freed_pages_are_given_back(void **state) {
    (void)state;
    for (int i = 0; i < 200; i++) { /* 200 x 256 MiB of address space, a page of each touched */
        void *p;
        TEST_OK(pages_alloc((size_t)256 << 20, &p));
        *(char *)p = 1;
        pages_free(p, (size_t)256 << 20);
    }
}

static void too_much_is_a_status(void **state) {
    (void)state;
    void *p = (void *)1;
    const size_t sizes[] = {SIZE_MAX, SIZE_MAX - 5000, SIZE_MAX / 2, (size_t)1 << 60};
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        TEST_STATUS(pages_alloc(sizes[i], &p), ATS_NO_MEMORY);
        TEST_ERROR_HAS("no memory for");
        assert_null(p);
    }
}

static void the_machine_tells_its_memory(void **state) {
    (void)state;
    struct memory_info info;
    memory_info_read(&info);
    assert_true(info.total_bytes > 0 && info.available_bytes <= info.total_bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_are_zeroed_and_writable),
        cmocka_unit_test(freed_pages_are_given_back),
        cmocka_unit_test(too_much_is_a_status),
        cmocka_unit_test(the_machine_tells_its_memory),
    };
    return cmocka_run_group_tests_name("base/memory", tests, NULL, NULL);
}
