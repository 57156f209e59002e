/* Blocks that predict further tokens (multi-token prediction): they stand in the file after the
 * model's layers. */
#include "model/bind.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NEAR_LAYERS 16 /* the last ones: among these is every kind of layer that a model has */

/* What follows "blk.N." in the name of a tensor of such a block; NULL: of none. */
static const char *suffix_of(const struct hparams *hp, const char *name) {
    char *end;
    if (hp->n_nextn == 0 || strncmp(name, "blk.", 4) != 0) return NULL;
    long layer = strtol(name + 4, &end, 10);
    bool idle = layer >= hp->n_layers && layer < hp->n_layers + hp->n_nextn;
    return idle && *end == '.' ? end + 1 : NULL;
}

bool nextn_has(const struct hparams *hp, const char *name) {
    return suffix_of(hp, name) != NULL;
}

static ats_status check_dims(const struct gguf_tensor *t, const int64_t *dims) {
    if (memcmp(t->dims, dims, sizeof t->dims) == 0) return ATS_OK;
    return fail(ATS_BAD_FILE, "tensor %s is %lld x %lld x %lld, expected %lld x %lld x %lld",
                t->name, (long long)t->dims[2], (long long)t->dims[1], (long long)t->dims[0],
                (long long)dims[2], (long long)dims[1], (long long)dims[0]);
}

/* Of a layer: as a layer of the model has it. What no layer has is not known. */
static ats_status check_as_layer(const struct binding *b, const struct gguf_tensor *t,
                                 const char *suffix) {
    for (int i = b->hp.n_layers - 1; i >= max_int(0, b->hp.n_layers - NEAR_LAYERS); i--) {
        char name[128];
        snprintf(name, sizeof name, "blk.%d.%s", i, suffix);
        const struct gguf_tensor *own = gguf_tensor_find(b->file, name);
        if (own) return check_dims(t, own->dims);
    }
    return ATS_OK;
}

static ats_status check(const struct binding *b, const struct gguf_tensor *t, const char *suffix) {
    const int64_t n_embd = b->hp.n_embd, n_vocab = b->hp.n_vocab;
    const struct {
        const char *suffix;
        int64_t dims[GGUF_MAX_DIMS];
    } joints[] = {
        {"nextn.eh_proj.weight", {2 * n_embd, n_embd, 1, 1}},
        {"nextn.enorm.weight", {n_embd, 1, 1, 1}},
        {"nextn.hnorm.weight", {n_embd, 1, 1, 1}},
        {"nextn.embed_tokens.weight", {n_embd, n_vocab, 1, 1}},
        {"nextn.shared_head_head.weight", {n_embd, n_vocab, 1, 1}},
        {"nextn.shared_head_norm.weight", {n_embd, 1, 1, 1}},
    };
    for (size_t i = 0; i < COUNT_OF(joints); i++)
        if (strcmp(suffix, joints[i].suffix) == 0) return check_dims(t, joints[i].dims);
    return check_as_layer(b, t, suffix);
}

ats_status nextn_check(const struct binding *b, int *n_tensors, uint64_t *n_bytes) {
    *n_tensors = 0;
    *n_bytes = 0;
    for (int i = 0; i < b->file->n_tensors; i++) {
        const struct gguf_tensor *t = &b->file->tensors[i];
        const char *suffix = suffix_of(&b->hp, t->name);
        if (!suffix) continue;
        TRY(check(b, t, suffix));
        ++*n_tensors;
        *n_bytes += (uint64_t)t->n_bytes;
    }
    return ATS_OK;
}
