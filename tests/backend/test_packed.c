/* The packed layout: nothing is lost, bytes stand where packed.h says, ranges make the whole. */
#include "backend/packed.h"
#include "base/rng.h"
#include "support.h"

/* Where the halves of a block stand (-1: none), so that random blocks get finite scales. */
static const struct {
    enum dtype type;
    int half[2];
} types[] = {
    {DTYPE_Q8_0, {0, -1}},   {DTYPE_Q4_0, {0, -1}},   {DTYPE_Q4_1, {0, 2}},
    {DTYPE_Q5_0, {0, -1}},   {DTYPE_Q5_1, {0, 2}},    {DTYPE_Q2_K, {80, 82}},
    {DTYPE_Q3_K, {108, -1}}, {DTYPE_Q4_K, {0, 2}},    {DTYPE_Q5_K, {0, 2}},
    {DTYPE_Q6_K, {208, -1}}, {DTYPE_IQ4_NL, {0, -1}}, {DTYPE_IQ4_XS, {0, -1}},
    {DTYPE_MXFP4, {-1, -1}}, {DTYPE_F32, {-1, -1}},   {DTYPE_F16, {-1, -1}},
    {DTYPE_BF16, {-1, -1}},
};

struct matrix {
    enum dtype type;
    int n_rows, n_cols;
    size_t row_bytes, packed_bytes;
    uint8_t *rows, *packed;
};

static struct matrix matrix_new(size_t type_index, int n_rows, int n_cols, size_t row_padding) {
    struct matrix m = {.type = types[type_index].type, .n_rows = n_rows, .n_cols = n_cols};
    const size_t block = (size_t)dtype_info(m.type)->block_bytes;
    size_t tight = (size_t)dtype_row_bytes(m.type, n_cols);
    m.row_bytes = tight + row_padding;
    size_t bytes = (size_t)(n_rows - 1) * m.row_bytes + tight; /* to the byte, for ASan */
    m.rows = malloc(bytes);
    assert_non_null(m.rows);
    struct rng rng;
    rng_seed(&rng, (uint64_t)(n_rows * 1000 + n_cols) + type_index);
    for (size_t i = 0; i < bytes; i++)
        m.rows[i] = (uint8_t)rng_next(&rng);
    for (int r = 0; r < n_rows; r++) {
        for (size_t at = 0; at < tight; at += block) {
            uint8_t *to = m.rows + (size_t)r * m.row_bytes + at;
            for (int i = 0; i < 2; i++) /* an exponent below the largest */
                if (types[type_index].half[i] >= 0) to[types[type_index].half[i] + 1] &= 0xbf;
        }
    }
    m.packed_bytes = pack_bytes(m.type, n_rows, n_cols);
    m.packed = malloc(m.packed_bytes);
    assert_non_null(m.packed);
    memset(m.packed, 0xa5, m.packed_bytes);
    return m;
}

static void matrix_free(struct matrix *m) {
    free(m->rows);
    free(m->packed);
}

static void check_rows(const struct matrix *m) {
    float *want = malloc((size_t)m->n_cols * sizeof *want);
    float *got = malloc((size_t)m->n_cols * sizeof *got);
    for (int r = 0; r < m->n_rows; r++) {
        dtype_to_float(m->type, m->rows + (size_t)r * m->row_bytes, want, m->n_cols);
        pack_to_float(m->type, m->packed, m->n_cols, r, got);
        for (int c = 0; c < m->n_cols; c++) {
            if (float_bits(got[c]) != float_bits(want[c]))
                fail_msg("%s %d x %d: row %d column %d is %a, not %a", dtype_name(m->type),
                         m->n_rows, m->n_cols, r, c, (double)got[c], (double)want[c]);
        }
    }
    free(want);
    free(got);
}

/* A number of columns that the type can have; of plain types one that is no block. */
static int unit_of(enum dtype type) {
    return dtype_info(type)->quantised ? dtype_info(type)->block_elements : 33;
}

static void every_weight_comes_back_bit_equal(void **state) {
    (void)state;
    static const int n_rows[] = {1, 2, 15, 16, 17, 33, 48};
    for (size_t i = 0; i < COUNT_OF(types); i++) {
        int unit = unit_of(types[i].type);
        for (size_t r = 0; r < COUNT_OF(n_rows); r++) {
            for (int n_units = 1; n_units < 5; n_units++) {
                struct matrix m = matrix_new(i, n_rows[r], n_units * unit, n_units % 2 ? 0 : 6);
                pack_rows(m.type, m.rows, m.row_bytes, m.n_rows, m.n_cols, m.packed, 0,
                          pack_n_groups(m.n_rows));
                check_rows(&m);
                matrix_free(&m);
            }
        }
    }
}

static void ranges_of_groups_make_the_whole(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT_OF(types); i++) {
        struct matrix m = matrix_new(i, 16 * 6 + 5, 512, 0);
        uint8_t *whole = malloc(m.packed_bytes);
        pack_rows(m.type, m.rows, m.row_bytes, m.n_rows, m.n_cols, whole, 0, 7);
        static const int cuts[] = {3, 7, 0, 1, 1, 3}; /* pairs, in no order */
        for (size_t c = 0; c < COUNT_OF(cuts); c += 2)
            pack_rows(m.type, m.rows, m.row_bytes, m.n_rows, m.n_cols, m.packed, cuts[c],
                      cuts[c + 1]);
        assert_memory_equal(m.packed, whole, m.packed_bytes);
        /* nothing outside the range is written */
        memset(m.packed, 0xa5, m.packed_bytes);
        pack_rows(m.type, m.rows, m.row_bytes, m.n_rows, m.n_cols, m.packed, 2, 3);
        size_t group = pack_group_bytes(m.type, m.n_cols);
        for (size_t at = 0; at < m.packed_bytes; at++)
            assert_int_equal(m.packed[at], at / group == 2 ? whole[at] : 0xa5);
        free(whole);
        matrix_free(&m);
    }
}

static void sizes_are_those_of_the_file_or_as_documented(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT_OF(types); i++) {
        enum dtype type = types[i].type;
        double file = 64.0 * (double)dtype_row_bytes(type, 4096);
        double ratio = (double)pack_bytes(type, 64, 4096) / file, limit = 1;
        if (type == DTYPE_Q3_K) limit = 1.0364;
        if (type == DTYPE_Q4_K) limit = 1.0278;
        if (type == DTYPE_Q5_K) limit = 1.0228;
        if (type == DTYPE_IQ4_XS) limit = 1.0148;
        if (ratio > limit || ratio < 1) fail_msg("%s: ratio %.5f", dtype_name(type), ratio);
        assert_int_equal(pack_group_bytes(type, 768) % PACK_ALIGN, 0);
        assert_int_equal(pack_bytes(type, 17, 768), 2 * pack_group_bytes(type, 768));
        assert_int_equal(pack_bytes(type, 0, 768), 0);
    }
    assert_int_equal(pack_n_groups(INT32_MAX), 1 << 27);
}

static void every_weight_type_is_packed(void **state) {
    (void)state;
    int n = 0;
    for (int type = 0; type < N_DTYPES; type++) {
        n += pack_can((enum dtype)type);
        assert_int_equal(pack_can((enum dtype)type), type < N_DTYPES_WEIGHT);
    }
    assert_int_equal(n, COUNT_OF(types));
}

static void rows_and_bytes_past_the_end_are_zero(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT_OF(types); i++) {
        int unit = unit_of(types[i].type);
        struct matrix m = matrix_new(i, 3, 3 * unit, 0);
        pack_rows(m.type, m.rows, m.row_bytes, m.n_rows, m.n_cols, m.packed, 0, 1);
        float out[3 * 256];
        for (int r = 3; r < PACK_ROWS; r++) {
            pack_to_float(m.type, m.packed, m.n_cols, r, out);
            for (int c = 0; c < m.n_cols; c++)
                assert_true(out[c] == 0);
        }
        struct pack_layout l = pack_layout(m.type);
        size_t tight = (size_t)((m.n_cols + 31) / 32 * l.code_bytes + 3 * l.scale_bytes);
        for (size_t at = tight; at < m.packed_bytes; at++)
            assert_int_equal(m.packed[at], 0);
        matrix_free(&m);
    }
}

/* The words of packed.h, once by hand for each kind of plane: what shaders rely on. */
static void bytes_stand_where_the_header_says(void **state) {
    (void)state;
    struct block_q8_0 q8[17][2] = {0}, long8[17][10] = {0};
    struct block_q5_1 q5[17][2] = {0};
    struct block_q6_k q6[17][2] = {0};
    q8[16][1].qs[4 * 3 + 2] = -77; /* second group, row 0, block 1, granule 3 */
    q8[5][1].d = 0x1234;
    long8[5][9].qs[4 * 3 + 2] = -77; /* the second block of the second run, which has two */
    long8[5][9].d = 0x1234;
    q5[5][1].qs[4 * 2 + 1] = 0xb4; /* block 1: column 9 is 4, column 25 is 11 */
    q5[5][1].qh[3] = 1 << 1;       /* and 16 more for column 25 */
    q5[5][1].m = 0x4321;
    q6[5][1].qh[32 + 4 * 5 + 3] = 2 << 4; /* element 128 + 64 + 23: block 6, granule 5 */
    q6[5][1].scales[13] = -9;
    uint16_t f16[17][35] = {{0}};
    float f32[17][35] = {{0}};
    f16[16][33] = 0x1234; /* second group, row 0, block 1, the high half of word 0 */
    f32[5][34] = 1.5f;
    uint8_t out[2 * 8 * 1024]; /* of long8 2 groups of 10 * 544 bytes, rounded up */

    pack_rows(DTYPE_F16, (const uint8_t *)f16, sizeof f16[0], 17, 35, out, 0, 2);
    assert_int_equal(pack_group_bytes(DTYPE_F16, 35), 2048);
    assert_int_equal(out[2048 + 1024 + 2], 0x34);
    assert_int_equal(out[2048 + 1024 + 3], 0x12);
    pack_rows(DTYPE_F32, (const uint8_t *)f32, sizeof f32[0], 17, 35, out, 0, 2);
    assert_memory_equal(out + 2048 + 64 * 2 + 4 * 5, &f32[5][34], sizeof(float));

    pack_rows(DTYPE_Q8_0, (const uint8_t *)q8, sizeof q8[0], 17, 64, out, 0, 2);
    size_t group = pack_group_bytes(DTYPE_Q8_0, 64);
    assert_int_equal(group, 1280); /* 2 * 512 + 2 * 32, rounded up */
    assert_int_equal((int8_t)out[group + 2 * 32 + 512 + 64 * 3 + 4 * 0 + 2], -77);
    assert_int_equal(out[32 + 2 * 5], 0x34);
    assert_int_equal(out[32 + 2 * 5 + 1], 0x12);

    pack_rows(DTYPE_Q8_0, (const uint8_t *)long8, sizeof long8[0], 17, 320, out, 0, 2);
    const size_t second = 8 * (512 + 32);
    assert_int_equal((int8_t)out[second + 2 * 32 + 512 + 64 * 3 + 4 * 5 + 2], -77);
    assert_int_equal(out[second + 32 + 2 * 5], 0x34);

    pack_rows(DTYPE_Q5_1, (const uint8_t *)q5, sizeof q5[0], 17, 64, out, 0, 2);
    assert_int_equal(out[128 + 320 + 64 * 2 + 4 * 5 + 1], 0xb4);
    assert_int_equal(out[128 + 320 + 256 + 4 * 5 + 1], 1 << 6); /* column 25: granule 6, byte 1 */
    assert_int_equal(out[64 + 32 + 2 * 5], 0x21);

    pack_rows(DTYPE_Q6_K, (const uint8_t *)q6, sizeof q6[0], 17, 512, out, 0, 2);
    /* unit 1, block 6: the 2-bit plane's vector 5 % 2, bits 2 * (5 / 2) */
    const size_t unit = 288 + 384 * 8;
    assert_int_equal(out[unit + 288 + 384 * 6 + 256 + 64 * 1 + 4 * 5 + 3], 2 << 4);
    assert_int_equal((int8_t)out[unit + 32 + 32 * 6 + 16 * 1 + 5], -9);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_weight_comes_back_bit_equal),
        cmocka_unit_test(ranges_of_groups_make_the_whole),
        cmocka_unit_test(sizes_are_those_of_the_file_or_as_documented),
        cmocka_unit_test(every_weight_type_is_packed),
        cmocka_unit_test(rows_and_bytes_past_the_end_are_zero),
        cmocka_unit_test(bytes_stand_where_the_header_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
