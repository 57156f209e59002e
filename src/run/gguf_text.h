/* The text side of a GGUF file: its tokenizer and its chat template, as text/ wants them. */
#pragma once

#include "model/gguf.h"
#include "text/chat.h"
#include "text/tokenizer.h"

/* Reads the keys tokenizer.ggml.* and builds the tokenizer. n_rows: rows of the embedding, which
 * no token id may reach (0: not checked). force: an unknown pre-tokenizer is replaced by the
 * default; nfc: normalise text first. *out owned. Errors: BAD_FILE, UNSUPPORTED. */
MUST_CHECK ats_status gguf_tokenizer_open(const struct gguf *g, int n_rows, bool force, bool nfc,
                                          struct tokenizer **out);

/* Compiles tokenizer.chat_template and its named variants. *out owned. A template that is wrong
 * is an error of this call; the model can still serve plain text then. */
MUST_CHECK ats_status gguf_chat_open(const struct gguf *g, const struct tokenizer *t,
                                     struct chat **out);
