/*
 * The GGUF reader on files that are wrong: each is refused with a message that names what is wrong
 * (classes R34-R41 of the reports), and no damage of a good file does worse than that.
 */
#include "base/rng.h"
#include "base/utf8.h"
#include "gguf_sample.h"
#include "model/gguf_read.h"
#include "support.h"

/* b must be refused with `status` and a text that has `part`; frees b. */
static void refuse(struct buf *b, ats_status status, const char *part) {
    void *copy;
    struct gguf *g = NULL;
    TEST_STATUS(sample_open(b, &copy, &g), status);
    assert_null(g);
    TEST_ERROR_HAS(part);
    free(copy);
    buf_free(b);
}

static void accept(struct buf *b) {
    void *copy;
    struct gguf *g = NULL;
    TEST_OK(sample_open(b, &copy, &g));
    gguf_close(g);
    free(copy);
    buf_free(b);
}

/* ---- The header ---- */

static void other_files_and_versions_are_refused(void **state) {
    (void)state;
    struct buf b = {0};
    refuse(&b, ATS_BAD_FILE, "not a GGUF file");
    buf_add_str(&b, "GGU");
    refuse(&b, ATS_BAD_FILE, "not a GGUF file");
    buf_add_str(&b, "PK\3\4 this is a zip file and not a model");
    refuse(&b, ATS_BAD_FILE, "not a GGUF file");
    static const uint32_t versions[] = {0, 1, 4, 1000, UINT32_MAX};
    for (size_t i = 0; i < COUNT_OF(versions); i++) {
        raw_begin(&b, versions[i], 0, 0);
        refuse(&b, ATS_UNSUPPORTED, "version");
    }
    for (uint32_t version = 2; version <= 3; version++) {
        raw_begin(&b, __builtin_bswap32(version), 0, 0);
        refuse(&b, ATS_UNSUPPORTED, "big-endian");
        raw_begin(&b, version, 0, 0);
        accept(&b);
    }
}

static void counts_beyond_the_file_are_refused(void **state) {
    (void)state;
    static const uint64_t counts[] = {3, 1 << 20, UINT32_MAX, INT64_MAX, UINT64_MAX};
    struct buf b = {0};
    for (size_t i = 0; i < COUNT_OF(counts); i++) {
        raw_begin(&b, 3, 0, counts[i]);
        raw_kv_u32(&b, "k", 1);
        refuse(&b, ATS_BAD_FILE, "keys");
        raw_begin(&b, 3, counts[i], 0);
        raw_tensor(&b, "t", 1, (uint64_t[]){1}, 0, 0);
        refuse(&b, ATS_BAD_FILE, "tensors");
    }
}

/* ---- Keys ---- */

/* R34 */
static void an_empty_key_is_refused_with_every_type(void **state) {
    (void)state;
    for (uint32_t type = 0; type <= N_GGUF_TYPES; type++) {
        struct buf b = {0};
        raw_begin(&b, 3, 0, 1);
        raw_key(&b, "", type);
        for (int i = 0; i < 16; i++)
            buf_add_char(&b, '\0');
        refuse(&b, ATS_BAD_FILE, "key name at byte 24 is empty");
    }
}

static void odd_keys_are_refused_by_their_place(void **state) {
    (void)state;
    static const struct {
        const char *key;
        size_t n;
    } keys[] = {{"a\0b", 3}, {"a\n", 2}, {"\x1b[2J", 4}, {"\xff", 1}, {"\xc3", 1}, {"\x7f", 1}};
    for (size_t i = 0; i < COUNT_OF(keys); i++) {
        struct buf b = {0};
        raw_begin(&b, 3, 0, 1);
        raw_str_n(&b, keys[i].key, keys[i].n);
        raw_u32(&b, GGUF_U32);
        raw_u32(&b, 1);
        refuse(&b, ATS_BAD_FILE, "key name at byte 24 is not printable UTF-8");
    }
}

/* Such a key would be mistaken for one under the architecture. */
static void a_key_that_begins_with_a_dot_is_refused(void **state) {
    (void)state;
    struct buf b = {0};
    raw_begin(&b, 3, 0, 1);
    raw_kv_u32(&b, ".block_count", 1);
    refuse(&b, ATS_BAD_FILE, "key .block_count begins with a dot");
}

static void key_lengths_are_bounded(void **state) {
    (void)state;
    static const uint64_t lengths[] = {65536, UINT32_MAX, INT64_MAX, UINT64_MAX - 7, UINT64_MAX};
    struct buf b = {0};
    for (size_t i = 0; i < COUNT_OF(lengths); i++) {
        raw_begin(&b, 3, 0, 1);
        raw_u64(&b, lengths[i]);
        buf_add_str(&b, "abcdefgh");
        refuse(&b, ATS_BAD_FILE, "bytes long");
    }
    raw_begin(&b, 3, 0, 1);
    raw_u64(&b, 65535);
    buf_add_str(&b, "abcdefgh");
    refuse(&b, ATS_BAD_FILE, "65527 bytes are missing");
    char *key = malloc(65536);
    assert_non_null(key);
    memset(key, 'k', 65535);
    key[65535] = '\0';
    raw_begin(&b, 3, 0, 1);
    raw_kv_u32(&b, key, 1);
    accept(&b);
    free(key);
}

static void a_key_that_appears_twice_is_refused(void **state) {
    (void)state;
    struct buf b = {0};
    raw_begin(&b, 3, 0, 3);
    raw_kv_u32(&b, "some.key", 1);
    raw_kv_u32(&b, "other.key", 1);
    raw_kv_u32(&b, "some.key", 1);
    refuse(&b, ATS_BAD_FILE, "key some.key appears twice");
}

/* ---- Values ---- */

static void unknown_value_types_are_refused(void **state) {
    (void)state;
    static const uint32_t types[] = {13, 100, UINT32_MAX};
    for (size_t i = 0; i < COUNT_OF(types); i++) {
        struct buf b = {0};
        raw_begin(&b, 3, 0, 1);
        raw_key(&b, "some.key", types[i]);
        raw_u64(&b, 0);
        refuse(&b, ATS_BAD_FILE, "key some.key has a value of unknown type");
        raw_begin(&b, 3, 0, 1);
        raw_array(&b, "some.key", types[i], 0);
        refuse(&b, ATS_BAD_FILE, "key some.key has a value of unknown type");
    }
}

static void values_beyond_the_file_are_refused(void **state) {
    (void)state;
    static const uint64_t lengths[] = {5, UINT32_MAX, INT64_MAX, UINT64_MAX / 8, UINT64_MAX};
    for (size_t i = 0; i < COUNT_OF(lengths); i++) {
        struct buf b = {0};
        raw_begin(&b, 3, 0, 1);
        raw_key(&b, "some.key", GGUF_STR);
        raw_u64(&b, lengths[i]);
        buf_add_str(&b, "text");
        refuse(&b, ATS_BAD_FILE, "some.key");
        for (uint32_t type = 0; type < N_GGUF_TYPES; type++) {
            raw_begin(&b, 3, 0, 1);
            raw_array(&b, "some.key", type, lengths[i]);
            raw_u32(&b, 0);
            refuse(&b, ATS_BAD_FILE, "some.key");
        }
    }
}

/* depth arrays in each other; the innermost is empty. */
static void deep_arrays(struct buf *b, int depth) {
    raw_begin(b, 3, 0, 1);
    raw_key(b, "some.key", GGUF_ARRAY);
    for (int i = 1; i < depth; i++) {
        raw_u32(b, GGUF_ARRAY);
        raw_u64(b, 1);
    }
    raw_u32(b, GGUF_U8);
    raw_u64(b, 0);
}

static void deep_arrays_are_refused(void **state) {
    (void)state;
    struct buf b = {0};
    deep_arrays(&b, GGUF_MAX_DEPTH);
    accept(&b);
    deep_arrays(&b, GGUF_MAX_DEPTH + 1);
    refuse(&b, ATS_BAD_FILE, "key some.key holds arrays nested more than");
    deep_arrays(&b, 100000);
    refuse(&b, ATS_BAD_FILE, "key some.key holds arrays nested more than");
}

static void strings_that_are_not_utf8_are_refused_but_in_vocabularies(void **state) {
    (void)state;
    struct buf b = {0};
    raw_begin(&b, 3, 0, 1);
    raw_key(&b, "general.name", GGUF_STR);
    raw_str(&b, "caf\xe9");
    refuse(&b, ATS_BAD_FILE, "key general.name holds a string that is not UTF-8");
    static const struct {
        const char *key;
        bool ok;
    } arrays[] = {
        {"tokenizer.ggml.tokens", true}, {"tokenizer.ggml.merges", true}, {"general.tags", false}};
    for (size_t i = 0; i < COUNT_OF(arrays); i++) {
        raw_begin(&b, 3, 0, 1);
        raw_array(&b, arrays[i].key, GGUF_STR, 2);
        raw_str(&b, "plain");
        raw_str(&b, "\xe9");
        if (arrays[i].ok) {
            accept(&b);
        } else {
            refuse(&b, ATS_BAD_FILE, "key general.tags holds a string that is not UTF-8");
        }
    }
}

static void bools_are_zero_or_one(void **state) {
    (void)state;
    struct buf b = {0};
    raw_begin(&b, 3, 0, 1);
    raw_key(&b, "some.key", GGUF_BOOL);
    buf_add_char(&b, 2);
    refuse(&b, ATS_BAD_FILE, "key some.key holds a bool that is 2");
    raw_begin(&b, 3, 0, 1);
    raw_array(&b, "some.key", GGUF_BOOL, 3);
    buf_add(&b, "\1\0\xff", 3);
    refuse(&b, ATS_BAD_FILE, "key some.key holds a bool that is 255");
}

static void known_keys_have_their_type(void **state) {
    (void)state;
    struct buf b = {0};
    raw_begin(&b, 3, 0, 1);
    raw_kv_u32(&b, "general.architecture", 1);
    refuse(&b, ATS_BAD_FILE, "key general.architecture is of type u32, not a string");
    static const char *const names[] = {"", "two words", "a\nb", "caf\xc3\xa9"};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        raw_begin(&b, 3, 0, 1);
        raw_key(&b, "general.architecture", GGUF_STR);
        raw_str(&b, names[i]);
        refuse(&b, ATS_BAD_FILE, "key general.architecture");
    }
    raw_begin(&b, 3, 0, 1);
    raw_key(&b, "general.alignment", GGUF_STR);
    raw_str(&b, "32");
    refuse(&b, ATS_BAD_FILE, "key general.alignment is of type string");
    static const uint32_t alignments[] = {0, 1, 4, 24, 33, 1u << 21, UINT32_MAX};
    for (size_t i = 0; i < COUNT_OF(alignments); i++) {
        raw_begin(&b, 3, 0, 1);
        raw_kv_u32(&b, "general.alignment", alignments[i]);
        refuse(&b, ATS_BAD_FILE, "key general.alignment is");
    }
    raw_begin(&b, 3, 0, 1);
    raw_kv_u32(&b, "split.count", 2);
    refuse(&b, ATS_BAD_FILE, "key split.no is missing");
    raw_begin(&b, 3, 0, 3);
    raw_kv_u32(&b, "split.count", 2);
    raw_kv_u32(&b, "split.no", 0);
    raw_kv_u32(&b, "split.tensors.count", 0);
    refuse(&b, ATS_BAD_FILE, "part of a split file");
}

/* R35 and R36 are the tokenizer's to refuse; here: equal tokens open, and lengths are comparable.
 */
static void equal_tokens_open_and_short_arrays_are_told(void **state) {
    (void)state;
    struct buf b = {0};
    void *copy;
    struct gguf *g;
    raw_begin(&b, 3, 0, 3);
    raw_array(&b, "tokenizer.ggml.tokens", GGUF_STR, 3);
    for (int i = 0; i < 3; i++)
        raw_str(&b, "same");
    raw_array(&b, "tokenizer.ggml.scores", GGUF_F32, 2);
    raw_f32(&b, 0);
    raw_f32(&b, 0);
    raw_array(&b, "tokenizer.ggml.token_type", GGUF_I32, 0);
    TEST_OK(sample_open(&b, &copy, &g));
    const struct gguf_array *tokens;
    TEST_OK(gguf_get_strs(g, "tokenizer.ggml.tokens", &tokens));
    TEST_STATUS(gguf_check_length(g, "tokenizer.ggml.scores", tokens->n), ATS_BAD_FILE);
    TEST_ERROR_HAS("key tokenizer.ggml.scores has 2 elements, not 3");
    TEST_STATUS(gguf_check_length(g, "tokenizer.ggml.token_type", tokens->n), ATS_BAD_FILE);
    TEST_ERROR_HAS("key tokenizer.ggml.token_type has 0 elements, not 3");
    TEST_STATUS(gguf_check_length(g, "tokenizer.ggml.merges", tokens->n), ATS_BAD_FILE);
    TEST_ERROR_HAS("key tokenizer.ggml.merges is missing");
    gguf_close(g);
    free(copy);
    buf_free(&b);
}

/* ---- Tensors ---- */

static void one_tensor(struct buf *b, uint32_t n_dims, const uint64_t *dims, uint32_t type,
                       uint64_t offset, size_t n_data) {
    raw_begin(b, 3, 1, 0);
    raw_tensor(b, "bad.weight", n_dims, dims, type, offset);
    raw_data(b, n_data);
}

/* R37 */
static void dimension_counts_are_checked(void **state) {
    (void)state;
    static const uint32_t counts[] = {0, 5, 9, 1000, UINT32_MAX};
    uint64_t dims[1000];
    for (int i = 0; i < 1000; i++)
        dims[i] = 1;
    for (size_t i = 0; i < COUNT_OF(counts); i++) {
        struct buf b = {0};
        raw_begin(&b, 3, 1, 0);
        raw_str(&b, "bad.weight");
        raw_u32(&b, counts[i]);
        for (uint32_t k = 0; k < counts[i] && k < 1000; k++)
            raw_u64(&b, dims[k]);
        raw_u32(&b, 0);
        raw_u64(&b, 0);
        raw_data(&b, 4);
        refuse(&b, ATS_BAD_FILE, "tensor bad.weight has");
    }
}

/* R38: products of dimensions, sizes, sums, and rounding up. */
static void sizes_that_overflow_are_refused(void **state) {
    (void)state;
    static const struct {
        uint32_t n_dims;
        uint64_t dims[4];
        uint32_t type;
        uint64_t offset;
    } cases[] = {
        {2, {1ull << 42, (1ull << 42) + 1}, 0, 0},       /* product wraps to 2^42 */
        {4, {1 << 16, 1 << 16, 1 << 16, 1 << 16}, 1, 0}, /* wraps to 0 */
        {2, {1ull << 63, 2}, 0, 0},                      /* a dimension that is negative */
        {1, {UINT64_MAX}, 24, 0},                        /* the same, and -1 */
        {1, {UINT64_MAX - 31}, 8, 0},                    /* blocks of it */
        {1, {1ull << 62}, 0, 0},                         /* bytes of a row wrap to 0 */
        {2, {1ull << 31, 1ull << 31}, 0, 0},             /* bytes of all rows wrap to 0 */
        {1, {INT64_MAX}, 24, 0},                         /* fits alone, not with the data's begin */
        {1, {INT64_MAX}, 24, 1ull << 63},                /* end wraps */
        {1, {8}, 0, UINT64_MAX - 31},                    /* begin within 31 of 2^64 */
        {1, {8}, 0, UINT64_MAX - 63},
        {1, {8}, 0, 1ull << 63},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct buf b = {0};
        one_tensor(&b, cases[i].n_dims, cases[i].dims, cases[i].type, cases[i].offset, 64);
        refuse(&b, ATS_BAD_FILE, "tensor bad.weight");
    }
    /* two tensors whose sizes add up to 2^64 and some */
    struct buf b = {0};
    raw_begin(&b, 3, 2, 0);
    raw_tensor(&b, "first", 1, (uint64_t[]){INT64_MAX - 31}, 24, 0);
    raw_tensor(&b, "second", 1, (uint64_t[]){INT64_MAX - 31}, 24, 1ull << 63);
    raw_data(&b, 64);
    refuse(&b, ATS_BAD_FILE, "tensor first");
}

static void zero_dimensions_and_broken_blocks_are_refused(void **state) {
    (void)state;
    struct buf b = {0};
    for (int k = 0; k < 4; k++) {
        uint64_t dims[4] = {32, 1, 1, 1};
        dims[k] = 0;
        one_tensor(&b, 4, dims, 0, 0, 128);
        refuse(&b, ATS_BAD_FILE, "tensor bad.weight has a dimension of 0");
    }
    one_tensor(&b, 2, (uint64_t[]){33, 32}, 2, 0, 1024);
    refuse(&b, ATS_BAD_FILE, "tensor bad.weight has rows of 33 elements");
    one_tensor(&b, 2, (uint64_t[]){128, 2}, 12, 0, 1024);
    refuse(&b, ATS_BAD_FILE, "tensor bad.weight has rows of 128 elements");
}

/* R41 */
static void unknown_and_retired_types_are_refused(void **state) {
    (void)state;
    static const struct {
        uint32_t type;
        const char *text;
    } types[] = {{4, "Q4_2"},        {5, "Q4_3"}, {31, "Q4_0_4_4"}, {33, "Q4_0_8_8"},
                 {38, "IQ4_NL_8_8"}, {42, "42"},  {43, "43"},       {UINT32_MAX, "4294967295"}};
    for (size_t i = 0; i < COUNT_OF(types); i++) {
        struct buf b = {0};
        one_tensor(&b, 1, (uint64_t[]){256}, types[i].type, 0, 1024);
        refuse(&b, ATS_UNSUPPORTED, types[i].text);
        one_tensor(&b, 1, (uint64_t[]){256}, types[i].type, 0, 1024);
        refuse(&b, ATS_UNSUPPORTED, "tensor bad.weight");
    }
}

/* R39 */
static void data_beyond_the_file_is_told_with_what_is_missing(void **state) {
    (void)state;
    struct buf b = {0};
    for (size_t n_data = 0; n_data < 40; n_data++) {
        char text[128];
        one_tensor(&b, 1, (uint64_t[]){10}, 0, 0, n_data);
        snprintf(text, sizeof text,
                 "tensor bad.weight ends at byte 136 of a file of %zu: %zu bytes", b.len,
                 40 - n_data);
        refuse(&b, ATS_BAD_FILE, text);
    }
    one_tensor(&b, 1, (uint64_t[]){10}, 0, 0, 40);
    accept(&b);
    one_tensor(&b, 1, (uint64_t[]){10}, 0, 32, 71);
    refuse(&b, ATS_BAD_FILE, "1 bytes are missing");
}

static void unaligned_and_overlapping_tensors_are_refused(void **state) {
    (void)state;
    struct buf b = {0};
    one_tensor(&b, 1, (uint64_t[]){8}, 0, 16, 64);
    refuse(&b, ATS_BAD_FILE, "tensor bad.weight begins at offset 16");
    static const struct {
        uint64_t first, second;
        bool ok;
    } cases[] = {{0, 0, false},  {0, 32, false},  {32, 0, true}, {0, 64, true},
                 {64, 32, true}, {64, 96, false}, {64, 0, true}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        raw_begin(&b, 3, 2, 0);
        raw_tensor(&b, "first", 1, (uint64_t[]){10}, 0, cases[i].first);  /* 40 bytes */
        raw_tensor(&b, "second", 1, (uint64_t[]){8}, 0, cases[i].second); /* 32 bytes */
        raw_data(&b, 256);
        if (cases[i].ok) {
            accept(&b);
        } else {
            refuse(&b, ATS_BAD_FILE, " overlap");
        }
    }
    /* a small one inside a large one that is not its neighbour in the list */
    raw_begin(&b, 3, 3, 0);
    raw_tensor(&b, "large", 1, (uint64_t[]){64}, 0, 0);
    raw_tensor(&b, "apart", 1, (uint64_t[]){8}, 0, 256);
    raw_tensor(&b, "inside", 1, (uint64_t[]){8}, 0, 128);
    raw_data(&b, 512);
    refuse(&b, ATS_BAD_FILE, "tensors large and inside overlap");
}

static void odd_tensor_names_are_refused(void **state) {
    (void)state;
    struct buf b = {0};
    raw_begin(&b, 3, 1, 0);
    raw_tensor(&b, "", 1, (uint64_t[]){8}, 0, 0);
    raw_data(&b, 64);
    refuse(&b, ATS_BAD_FILE, "tensor name at byte 24 is empty");
    raw_begin(&b, 3, 1, 0);
    raw_tensor(&b, "\xc0\x80", 1, (uint64_t[]){8}, 0, 0);
    raw_data(&b, 64);
    refuse(&b, ATS_BAD_FILE, "tensor name at byte 24 is not printable UTF-8");
    raw_begin(&b, 3, 2, 0);
    raw_tensor(&b, "same", 1, (uint64_t[]){8}, 0, 0);
    raw_tensor(&b, "same", 1, (uint64_t[]){8}, 0, 32);
    raw_data(&b, 64);
    refuse(&b, ATS_BAD_FILE, "tensor same appears twice");
}

/* R40: which keys are required is the model's to say; each absent one is named. */
static void each_key_taken_away_is_named(void **state) {
    (void)state;
    static const char *const keys[] = {"llama.block_count", "llama.embedding_length",
                                       "llama.context_length"};
    for (size_t away = 0; away < COUNT_OF(keys); away++) {
        struct buf b = {0};
        raw_begin(&b, 3, 0, COUNT_OF(keys));
        raw_key(&b, "general.architecture", GGUF_STR);
        raw_str(&b, "llama");
        for (size_t i = 0; i < COUNT_OF(keys); i++) {
            if (i != away) raw_kv_u32(&b, keys[i], 1);
        }
        void *copy;
        struct gguf *g;
        TEST_OK(sample_open(&b, &copy, &g));
        for (size_t i = 0; i < COUNT_OF(keys); i++) {
            uint32_t v = 0;
            ats_status status = gguf_get_u32(g, keys[i] + strlen("llama"), &v);
            assert_int_equal(status, i == away ? ATS_BAD_FILE : ATS_OK);
            if (i == away) TEST_ERROR_HAS(keys[i]);
        }
        gguf_close(g);
        free(copy);
        buf_free(&b);
    }
}

/* ---- Damage of a good file ---- */

static void a_cut_at_any_byte_is_refused(void **state) {
    (void)state;
    struct buf whole = {0};
    sample_file(&whole);
    for (size_t n = 0; n < whole.len; n++) {
        struct buf b = {0};
        if (n > 0) buf_add(&b, whole.data, n);
        refuse(&b, ATS_BAD_FILE, n < 4 ? "not a GGUF file" : n < 24 ? "missing" : "bytes");
    }
    accept(&whole);
}

/* Uses everything of a file that opened: the sanitisers see what a view reads. */
static uint64_t read_all(const struct gguf *g) {
    uint64_t sum = 0;
    for (int i = 0; i < g->n_kvs; i++) {
        const struct gguf_kv *kv = &g->kvs[i];
        assert_ptr_equal(gguf_find(g, kv->key), kv);
        for (uint64_t k = 0; k < kv->n_bytes; k++)
            sum += kv->data[k];
        if (kv->type == GGUF_ARRAY) sum += read_array(&kv->array);
        uint32_t u32 = 0;
        float f32 = 0;
        if (gguf_get_u32(g, kv->key, &u32) == ATS_OK) sum += u32;
        if (gguf_get_f32(g, kv->key, &f32) == ATS_OK) sum += float_bits(f32);
    }
    for (int i = 0; i < g->n_tensors; i++) {
        const struct gguf_tensor *t = &g->tensors[i];
        assert_ptr_equal(gguf_tensor_find(g, t->name), t);
        for (int64_t k = 0; k < t->n_bytes; k++)
            sum += t->data[k];
    }
    return sum;
}

static void mutate(struct rng *r, struct buf *b) {
    static const uint64_t odd[] = {
        0,          1,          127,        255, 65535, UINT32_MAX,     INT64_MAX,
        1ull << 63, UINT64_MAX, 1ull << 42, 13,  9,     UINT64_MAX - 31};
    size_t at = rng_below(r, (uint32_t)b->len);
    uint64_t v = odd[rng_below(r, COUNT_OF(odd))];
    switch (rng_below(r, 5)) {
    case 0:
        b->data[at] = (char)rng_below(r, 256);
        break;
    case 1:
        b->data[at] = (char)((unsigned char)b->data[at] ^ 1u << rng_below(r, 8));
        break;
    case 2:
        memcpy(b->data + at, &v, min_size(4, b->len - at));
        break;
    case 3:
        memcpy(b->data + at, &v, min_size(8, b->len - at));
        break;
    default:
        b->len = at + 1;
        break;
    }
}

static void no_mutation_does_harm(void **state) {
    (void)state;
    struct rng r;
    rng_seed(&r, 42);
    struct buf good = {0};
    sample_file(&good);
    int n_opened = 0, n_refused = 0;
    uint64_t sum = 0;
    for (int i = 0; i < 20000; i++) {
        struct buf b = {0};
        buf_add(&b, good.data, good.len);
        for (uint32_t k = 0, n = 1 + rng_below(&r, 3); k < n; k++)
            mutate(&r, &b);
        void *copy;
        struct gguf *g;
        ats_status status = sample_open(&b, &copy, &g);
        if (status == ATS_OK) {
            sum += read_all(g);
            n_opened++;
        } else {
            assert_true(status == ATS_BAD_FILE || status == ATS_UNSUPPORTED);
            assert_true(error_text()[0] != '\0' && utf8_valid(error_text(), strlen(error_text())));
            assert_null(g);
            n_refused++;
        }
        gguf_close(g);
        free(copy);
        buf_free(&b);
    }
    print_message("%d opened, %d refused (%llx)\n", n_opened, n_refused, (unsigned long long)sum);
    assert_true(n_opened > 1000 && n_refused > 1000);
    buf_free(&good);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(other_files_and_versions_are_refused),
        cmocka_unit_test(counts_beyond_the_file_are_refused),
        cmocka_unit_test(an_empty_key_is_refused_with_every_type),
        cmocka_unit_test(odd_keys_are_refused_by_their_place),
        cmocka_unit_test(a_key_that_begins_with_a_dot_is_refused),
        cmocka_unit_test(key_lengths_are_bounded),
        cmocka_unit_test(a_key_that_appears_twice_is_refused),
        cmocka_unit_test(unknown_value_types_are_refused),
        cmocka_unit_test(values_beyond_the_file_are_refused),
        cmocka_unit_test(deep_arrays_are_refused),
        cmocka_unit_test(strings_that_are_not_utf8_are_refused_but_in_vocabularies),
        cmocka_unit_test(bools_are_zero_or_one),
        cmocka_unit_test(known_keys_have_their_type),
        cmocka_unit_test(equal_tokens_open_and_short_arrays_are_told),
        cmocka_unit_test(dimension_counts_are_checked),
        cmocka_unit_test(sizes_that_overflow_are_refused),
        cmocka_unit_test(zero_dimensions_and_broken_blocks_are_refused),
        cmocka_unit_test(unknown_and_retired_types_are_refused),
        cmocka_unit_test(data_beyond_the_file_is_told_with_what_is_missing),
        cmocka_unit_test(unaligned_and_overlapping_tensors_are_refused),
        cmocka_unit_test(odd_tensor_names_are_refused),
        cmocka_unit_test(each_key_taken_away_is_named),
        cmocka_unit_test(a_cut_at_any_byte_is_refused),
        cmocka_unit_test(no_mutation_does_harm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
