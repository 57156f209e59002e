/* Writes the seeds of fuzz_gguf: `make_gguf_seeds FOLDER`. Run by hand when the format grows. */
#include "gguf_sample.h"
#include "model/gguf_write.h"

#include <stdio.h>
#include <stdlib.h>

static void save(const char *folder, const char *name, struct buf *b) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s.gguf", folder, name);
    if (file_write(path, b->data, b->len) != ATS_OK) {
        fprintf(stderr, "%s\n", error_text());
        exit(1);
    }
    buf_free(b);
}

static void put_vocabulary(struct gguf_writer *w) {
    static const struct gguf_str tokens[] = {{"<s>", 3}, {"a", 1}, {"\xff", 1}};
    gguf_put_str(w, "general.architecture", "llama");
    gguf_put_u32(w, "llama.block_count", 1);
    gguf_put_f32(w, "llama.rope.freq_base", 10000);
    gguf_put_strs(w, "tokenizer.ggml.tokens", tokens, 3);
    gguf_put_array(w, "tokenizer.ggml.scores", GGUF_F32, (float[]){0, -1, -2}, 3);
    gguf_put_array(w, "tokenizer.ggml.token_type", GGUF_I32, (int32_t[]){3, 1, 6}, 3);
}

/* A block of each type, version and alignment as given. */
static void every_type(struct buf *out, uint32_t version, uint32_t alignment) {
    static const uint8_t block[8 * 300];
    struct gguf_writer *w = gguf_writer_open();
    gguf_writer_version(w, version);
    gguf_writer_alignment(w, alignment);
    put_vocabulary(w);
    size_t n_bytes = 0;
    for (int i = 0; i < N_DTYPES; i++) {
        const struct dtype_info *info = dtype_info((enum dtype)i);
        gguf_put_tensor(w, info->name, (enum dtype)i, 2, (int64_t[]){info->block_elements, 1});
        n_bytes += (size_t)info->block_bytes;
    }
    bool ok = gguf_writer_begin_memory(w, out) == ATS_OK;
    while (ok && n_bytes > 0) {
        size_t n = min_size(n_bytes, sizeof block);
        ok = gguf_writer_data(w, block, n) == ATS_OK;
        n_bytes -= n;
    }
    REQUIRE(ok && gguf_writer_end(w) == ATS_OK);
    gguf_writer_close(w);
}

int main(int argc, char **argv) {
    struct buf b = {0};
    if (argc != 2) {
        fprintf(stderr, "usage: make_gguf_seeds FOLDER\n");
        return 2;
    }
    sample_file(&b);
    save(argv[1], "sample", &b);
    every_type(&b, 3, 32);
    save(argv[1], "types-v3", &b);
    every_type(&b, 2, 8);
    save(argv[1], "types-v2", &b);
    raw_begin(&b, 3, 0, 0);
    save(argv[1], "empty", &b);
    raw_begin(&b, 3, 1, 1);
    raw_array(&b, "deep", GGUF_ARRAY, 1);
    raw_u32(&b, GGUF_ARRAY);
    raw_u64(&b, 1);
    raw_u32(&b, GGUF_BOOL);
    raw_u64(&b, 2);
    buf_add(&b, "\1\0", 2);
    raw_tensor(&b, "t", 4, (uint64_t[]){2, 1, 3, 1}, 0, 32);
    raw_data(&b, 56);
    save(argv[1], "deep", &b);
    raw_begin(&b, 3, 0, 3);
    raw_kv_u32(&b, "split.no", 0);
    raw_kv_u32(&b, "split.count", 2);
    raw_kv_u32(&b, "split.tensors.count", 1);
    save(argv[1], "split", &b);
    return 0;
}
