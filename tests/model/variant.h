/* Variants of the oracles' files, in memory: with a key or a tensor changed or left out. */
#pragma once

#include "base/buf.h"
#include "model/model.h"
#include "support.h"

/* What is changed on the way from an oracle's file to a variant in memory. */
struct change {
    const char *drop_key, *drop_tensor;
    const char *u32_key; /* set to u32, added if it is not there */
    uint32_t u32;
    const char *f32_key;
    float f32;
    const char *str_key, *str;
    const char *list_key; /* set to the first n_list of list */
    int32_t list[8];
    int n_list;
    const char *reshape; /* a tensor whose dims become these; its data is what fits, then zeros */
    int64_t dims[2];
    const char *retype; /* a tensor of F16 or F32 whose type becomes this */
    enum dtype dtype;
    const char *rename, *name;
    const char *extra; /* another tensor: F32, of 8 */
};

struct variant {
    struct buf bytes;
    struct gguf *g;
    struct model *m;
};

extern const struct model_options variant_plain; /* f32, rows as they come */

/* Opens a variant of an oracle as a model. False only where oracles are left out. */
bool variant_open(const char *oracle, const struct change *c, const struct model_options *options,
                  struct variant *v, ats_status *status);
void variant_close(struct variant *v);

/* The variant is refused with this status and a text that contains `part`. False: no oracles. */
bool variant_refused(const char *oracle, struct change c, ats_status want, const char *part);
bool variant_accepted(const char *oracle, struct change c);

#define LLAMA    "models/llama/llama-f16.gguf"
#define QWEN2    "models/qwen2/qwen2-f32.gguf"
#define QWEN3    "models/qwen3/qwen3-f16.gguf"
#define QWEN3MOE "models/qwen3moe/qwen3moe-f32.gguf"
#define MIXTRAL  "models/mixtral/mixtral-f32.gguf"
#define PHI3     "models/phi3/phi3-f32.gguf"
#define GLM4     "models/glm4/glm4-f32.gguf"
#define GEMMA3   "models/gemma3/gemma3-f16.gguf"
#define GPTOSS   "models/gptoss/gptoss-mxfp4.gguf"
#define GLM4MOE  "models/glm4moe/glm4moe-f32.gguf"
#define LLAMA4   "models/llama4/llama4-f32.gguf"
#define QWEN35   "models/qwen35/qwen35-f16.gguf"
#define QWEN35M  "models/qwen35moe/qwen35moe-mtp-f16.gguf"
