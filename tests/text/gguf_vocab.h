/* Tokenizers of the oracles' files, for the tests of text/. The program's own reader is
 * run/vocab.c, which text/ and its tests may not see. */
#pragma once

#include "text/tokenizer.h"

/* Reads the vocabulary of a GGUF file; whatever is wrong fails the test. *t owned. */
void gguf_vocab_open(const char *path, bool nfc, struct tokenizer **t);
