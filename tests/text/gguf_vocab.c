#include "gguf_vocab.h"

#include "run/gguf_text.h"
#include "support.h"

void gguf_vocab_open(const char *path, bool nfc, struct tokenizer **t) {
    struct gguf *g;
    TEST_OK(gguf_open(path, &g));
    TEST_OK(gguf_tokenizer_open(g, 0, false, nfc, t));
    gguf_close(g);
}
