/* Reads every element of an array of metadata, nested ones too, so that the sanitizers see what a
 * view reads. For the tests and the fuzz target of the GGUF reader. */
#pragma once

#include "model/gguf.h"

static inline uint64_t read_array(const struct gguf_array *a) {
    uint64_t sum = 0;
    for (size_t i = 0; i < a->n; i++) {
        if (a->type == GGUF_STR) {
            struct gguf_str s = gguf_array_str(a, i);
            for (size_t k = 0; k < s.n; k++)
                sum += (unsigned char)s.data[k];
        } else if (a->type == GGUF_ARRAY) {
            sum += read_array(&a->arrays[i]);
        } else if (a->type == GGUF_F32 || a->type == GGUF_F64) {
            sum += float_bits(gguf_array_float(a, i));
        } else {
            sum += (uint64_t)gguf_array_int(a, i);
        }
    }
    return sum;
}
