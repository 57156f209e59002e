/*
 * Writes GGUF files, whole or split, that gguf.h reads: metadata and tensors are declared first,
 * then the tensors' data is streamed in the order of declaration. Used by tests and tools; what it
 * is given is the program's own, so keys and shapes are REQUIREd to be right. Files appear under
 * their name only when complete.
 *
 *     struct gguf_writer *w = gguf_writer_open();
 *     gguf_put_str(w, "general.architecture", "llama");
 *     gguf_put_tensor(w, "output.weight", DTYPE_Q8_0, 2, (int64_t[]){256, 1000});
 *     TRY(gguf_writer_begin(w, path));
 *     TRY(gguf_writer_data(w, rows, n_bytes)); // once or in pieces
 *     TRY(gguf_writer_end(w));
 *     gguf_writer_close(w);
 */
#pragma once

#include "base/buf.h"
#include "model/gguf.h"

struct gguf_writer;

struct gguf_writer *gguf_writer_open(void);    /* version 3, alignment 32 */
void gguf_writer_close(struct gguf_writer *w); /* accepts NULL; drops a file that has no end */
void gguf_writer_version(struct gguf_writer *w, uint32_t version);     /* 2 or 3 */
void gguf_writer_alignment(struct gguf_writer *w, uint32_t alignment); /* writes the key, too */
/* Split so that no part has more than max_tensors tensors (>= 1). The path given to begin is then
 * a stem: STEM-00001-of-0000N.gguf; metadata is in the first part. */
void gguf_writer_split(struct gguf_writer *w, int max_tensors);

/* Metadata; everything is copied. */
void gguf_put_u8(struct gguf_writer *w, const char *key, uint8_t v);
void gguf_put_i8(struct gguf_writer *w, const char *key, int8_t v);
void gguf_put_u16(struct gguf_writer *w, const char *key, uint16_t v);
void gguf_put_i16(struct gguf_writer *w, const char *key, int16_t v);
void gguf_put_u32(struct gguf_writer *w, const char *key, uint32_t v);
void gguf_put_i32(struct gguf_writer *w, const char *key, int32_t v);
void gguf_put_u64(struct gguf_writer *w, const char *key, uint64_t v);
void gguf_put_i64(struct gguf_writer *w, const char *key, int64_t v);
void gguf_put_f32(struct gguf_writer *w, const char *key, float v);
void gguf_put_f64(struct gguf_writer *w, const char *key, double v);
void gguf_put_bool(struct gguf_writer *w, const char *key, bool v);
void gguf_put_str(struct gguf_writer *w, const char *key, const char *v);
void gguf_put_str_n(struct gguf_writer *w, const char *key, const char *v, size_t n);
/* n elements of a type of fixed size, as they lie in memory. */
void gguf_put_array(struct gguf_writer *w, const char *key, enum gguf_type type, const void *v,
                    size_t n);
void gguf_put_strs(struct gguf_writer *w, const char *key, const struct gguf_str *v, size_t n);
/* A value of any type in the file's own encoding (arrays: element type, count, elements). */
void gguf_put_encoded(struct gguf_writer *w, const char *key, enum gguf_type type,
                      const void *bytes, size_t n_bytes);
/* A key copied from a file that was read. */
void gguf_put_kv(struct gguf_writer *w, const struct gguf_kv *kv);

/* dims (n_dims, 1..4) from the fastest; dims[0] a multiple of the type's block. */
void gguf_put_tensor(struct gguf_writer *w, const char *name, enum dtype type, int n_dims,
                     const int64_t *dims);

/* Ends the declarations. ATS_BAD_ARGUMENT if a key or name was given twice. */
MUST_CHECK ats_status gguf_writer_begin(struct gguf_writer *w, const char *path);
/* The same into memory, appended to out (borrowed until end); no split. */
MUST_CHECK ats_status gguf_writer_begin_memory(struct gguf_writer *w, struct buf *out);
/* The next bytes of the tensors; may cross from one tensor to the next. bytes NULL: zeros, as a
 * hole of the file where the system has such. */
MUST_CHECK ats_status gguf_writer_data(struct gguf_writer *w, const void *bytes, size_t n);
/* ATS_BAD_ARGUMENT if data is missing. */
MUST_CHECK ats_status gguf_writer_end(struct gguf_writer *w);
