/*
 * The one host layout of weights (house.md 3): what GGUF blocks become when a shard is
 * loaded, and what CPU kernels and shaders both read. This file is the layout, the way in, and a
 * plain way out; it holds no product kernel and no device. docs/kernels.md says why it is so.
 *
 * A packed matrix of n_rows x n_cols is groups of PACK_ROWS rows, one after the other; a group
 * starts on PACK_ALIGN bytes (relative to the matrix, which a device places likewise) and is
 *     for each run of PACK_RUN columns ascending, of which the last may be shorter:
 *         scales: for each unit of unit_cols columns ascending, scale_bytes
 *         codes:  for each block of 32 columns ascending, code_bytes
 *     zeros up to a multiple of PACK_ALIGN.
 * So a product goes through memory in its order, with no jump of more than a few lines.
 * Rows past n_rows are those of zero blocks. A shard is a matrix of its own, so that a unit-major
 * order (units of columns) is one packed matrix for each unit.
 *
 * Codes. A granule is 4 neighbouring columns: granule s of a block (0..7) is its columns
 * 4s..4s+3. A plane of n bits (8, 4, 2 or 1) is n vectors of 64 bytes, in which row r of the group
 * has bytes 4r..4r+3, one for each column of a granule. The plane's n bits of column 4s + i of row
 * r are bits n * (s / n) upwards of byte 64 * (s % n) + 4 * r + i. The code of a column is its
 * bits of the first plane, and above them those of the second:
 *     Q8_0                               8        a signed byte
 *     Q4_0 Q4_1 Q4_K IQ4_NL IQ4_XS MXFP4 4
 *     Q5_0 Q5_1 Q5_K                     4 1
 *     Q6_K                               4 2
 *     Q2_K                               2
 *     Q3_K                               2 1
 * Weight = scale * value (+ min); value is the code, less 8 (Q4_0), 16 (Q5_0), 32 (Q6_K) or 4
 * (Q3_K), or the code looked up in iq4_values or mxfp4_values.
 *
 * F32, F16 and BF16 have no scales; their codes are the file's elements in words of 4 bytes: word i
 * of a block (0..31 of F32, else 0..15) is column i, or columns 2i and 2i + 1 from the low half up,
 * and row r of the group has word i at bytes 64 * i + 4 * r. Columns past n_cols are zero.
 *
 * Scales of one unit, always row r of 16 beside row r + 1; h: a half of a block, 16 columns:
 *     Q8_0 Q4_0 Q5_0 IQ4_NL  16 halves d                                  scale d
 *     Q4_1 Q5_1              16 halves d, 16 halves m                     scale d, min m
 *     MXFP4                  16 bytes e                                   scale e8m0_half(e)
 *     Q4_K Q5_K              16 halves d, 16 halves dmin, then for each of the 8 blocks
 *                            16 bytes s, 16 bytes m (0..63)       scale d * s, min -(dmin * m)
 *     Q2_K                   16 halves d, 16 halves dmin, then for each block for h = 0, 1
 *                            16 bytes s + 16 m                    scale d * s, min -(dmin * m)
 *     Q3_K Q6_K              16 halves d, then for each block for h = 0, 1
 *                            16 signed bytes s (offset taken off)         scale d * s
 *     IQ4_XS                 16 halves d, then for each block
 *                            16 signed bytes s (offset taken off)         scale d * s
 *
 * Bytes are those of the file but where packed 6-bit scales are opened to bytes: Q3_K +3.6%, Q4_K
 * +2.8%, Q5_K +2.3%, IQ4_XS +1.5%; and what rounding up rows and groups adds. Nothing is lost:
 * every weight is bit-equal to dtype_to_float.
 */
#pragma once

#include "model/dtype.h"

#define PACK_ROWS  16
#define PACK_ALIGN 256
#define PACK_RUN   256

/* Type, columns of a unit, code bytes of a block of 32 columns, scale bytes of a unit. */
#define PACK_MAP(X)                                                                                \
    X(Q8_0, 32, 512, 32)                                                                           \
    X(Q4_0, 32, 256, 32)                                                                           \
    X(Q4_1, 32, 256, 64)                                                                           \
    X(Q5_0, 32, 320, 32)                                                                           \
    X(Q5_1, 32, 320, 64)                                                                           \
    X(Q2_K, 256, 128, 320)                                                                         \
    X(Q3_K, 256, 192, 288)                                                                         \
    X(Q4_K, 256, 256, 320)                                                                         \
    X(Q5_K, 256, 320, 320)                                                                         \
    X(Q6_K, 256, 384, 288)                                                                         \
    X(IQ4_NL, 32, 256, 32)                                                                         \
    X(IQ4_XS, 256, 256, 160)                                                                       \
    X(MXFP4, 32, 256, 16)                                                                          \
    X(F32, 32, 2048, 0)                                                                            \
    X(F16, 32, 1024, 0)                                                                            \
    X(BF16, 32, 1024, 0)

struct pack_layout {
    int unit_cols;
    int code_bytes;  /* of 32 columns of a group */
    int scale_bytes; /* of a unit of a group */
};
/* All zero for a type that has no packed layout. */
struct pack_layout pack_layout(enum dtype type);
bool pack_can(enum dtype type);

/* Bytes of n_cols columns of a group. */
ALWAYS_INLINE size_t pack_run_bytes(struct pack_layout l, int n_cols) {
    return (size_t)(n_cols / l.unit_cols) * (size_t)l.scale_bytes +
           (size_t)((n_cols + 31) / 32) * (size_t)l.code_bytes;
}

/* Where a block of 32 columns is in a group of n_cols: its codes, the scales of its unit. */
struct pack_place {
    size_t codes, scales; /* bytes */
};
ALWAYS_INLINE struct pack_place pack_place(struct pack_layout l, int n_cols, int block) {
    const int first = block * 32 / PACK_RUN * PACK_RUN, in_run = block % (PACK_RUN / 32);
    const size_t run = (size_t)(first / PACK_RUN) * pack_run_bytes(l, PACK_RUN);
    const int n_units = min_int(PACK_RUN, n_cols - first) / l.unit_cols;
    return (struct pack_place){
        .codes =
            run + (size_t)n_units * (size_t)l.scale_bytes + (size_t)in_run * (size_t)l.code_bytes,
        .scales = run + (size_t)(in_run * 32 / l.unit_cols) * (size_t)l.scale_bytes,
    };
}

/* In all below pack_can(type) holds and n_cols is a multiple of the type's block, which for F32,
 * F16 and BF16 is any number. */

ALWAYS_INLINE int pack_n_groups(int n_rows) {
    return n_rows / PACK_ROWS + (n_rows % PACK_ROWS != 0);
}
size_t pack_group_bytes(enum dtype type, int n_cols);
size_t pack_bytes(enum dtype type, int n_rows, int n_cols);

/* Groups [group_begin, group_end) of a matrix whose n_rows rows lie row_bytes apart at `rows`, in
 * the file's blocks; out: pack_bytes, the whole matrix. Ranges may be packed by several threads. */
void pack_rows(enum dtype type, const uint8_t *rows, size_t row_bytes, int n_rows, int n_cols,
               uint8_t *out, int group_begin, int group_end);

/* One row back to n_cols floats, bit-equal to dtype_to_float of its blocks. Plain, not fast. */
void pack_to_float(enum dtype type, const uint8_t *packed, int n_cols, int row, float *out);

/* 32 weights of a row of a quantised type: scale[i / 16] * q[i] + min[i / 16] (no min: 0). */
struct pack_block {
    int8_t q[32];
    float scale[2], min[2];
    bool has_min;
};
void pack_block_read(enum dtype type, const uint8_t *packed, int n_cols, int row, int block,
                     struct pack_block *out);
