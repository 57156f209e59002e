/* Constants of the stand-in engine that tests compute with. */
#pragma once

#include "atsinfer.h"

enum { FAKE_BOS = 256, FAKE_END = 257, FAKE_VOCAB = 260 };
#define FAKE_LOGIT 3.0f

/* The logits (FAKE_VOCAB) after a token. */
void fake_logits(int32_t token, float *logits);
