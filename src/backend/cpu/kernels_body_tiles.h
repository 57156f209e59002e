/*
 * What AMX's products share: which tile holds what, and their shapes. Included by kernels_amx.c and
 * kernels_amxbf16.c after the tile words.
 */
#pragma once

/* Two tiles of tokens by two of rows: four products for four loads. */
#define AMX_ROWS   16
#define AMX_TOKENS (2 * AMX_ROWS)

/* Tiles by number: sums of tokens' tile i and rows' tile j, tokens, rows. */
#define SUM_00   0
#define SUM_01   1
#define SUM_10   2
#define SUM_11   3
#define TOKENS_0 4
#define TOKENS_1 5
#define ROWS_0   6
#define ROWS_1   7

ALWAYS_INLINE void amx_shape(struct tile_config *c, int tile, int n_rows, int row_bytes) {
    c->n_rows[tile] = (uint8_t)(row_bytes > 0 ? n_rows : 0);
    c->row_bytes[tile] = (uint16_t)(n_rows > 0 ? row_bytes : 0);
}

/* For n tokens exactly, of which a tile takes token_bytes of columns, so that nothing past them is
 * read. It costs a fiftieth of the tiles that follow it, and no thread keeps tile state between
 * calls: the system would save 8 KiB more at each switch. */
ALWAYS_INLINE void amx_configure(int n, int token_bytes) {
    const int first = min_int(n, AMX_ROWS), second = n - first;
    struct tile_config c = {.palette = 1};
    amx_shape(&c, SUM_00, first, 64);
    amx_shape(&c, SUM_01, first, 64);
    amx_shape(&c, SUM_10, second, 64);
    amx_shape(&c, SUM_11, second, 64);
    amx_shape(&c, TOKENS_0, first, token_bytes);
    amx_shape(&c, TOKENS_1, second, token_bytes);
    amx_shape(&c, ROWS_0, token_bytes / 4, 64);
    amx_shape(&c, ROWS_1, token_bytes / 4, 64);
    tile_configure(&c);
}
