/* Tokenizers of the oracles' files, through the program's own reader. */
#pragma once

#include "text/tokenizer.h"

/* Reads the vocabulary of a GGUF file; whatever is wrong fails the test. *t owned. */
void gguf_vocab_open(const char *path, bool nfc, struct tokenizer **t);
