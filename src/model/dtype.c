#include "model/dtype.h"

#include <string.h>
#include <strings.h>

static const struct dtype_info infos[N_DTYPES] = {
#define INFO(name, id, elements, bytes, quantised, weight)                                         \
    [DTYPE_##name] = {#name, id, elements, bytes, quantised, weight},
#define INFO_WEIGHT(name, id, elements, bytes, quantised)                                          \
    INFO(name, id, elements, bytes, quantised, true)
#define INFO_OTHER(name, id, elements, bytes, quantised)                                           \
    INFO(name, id, elements, bytes, quantised, false)
    DTYPE_WEIGHT_MAP(INFO_WEIGHT) DTYPE_OTHER_MAP(INFO_OTHER)
#undef INFO_OTHER
#undef INFO_WEIGHT
#undef INFO
};

/* Ids that GGUF files once used: their layouts are gone. */
static const struct {
    uint32_t id;
    const char *name;
} retired[] = {
    {4, "Q4_2"},      {5, "Q4_3"},        {31, "Q4_0_4_4"},   {32, "Q4_0_4_8"},
    {33, "Q4_0_8_8"}, {36, "IQ4_NL_4_4"}, {37, "IQ4_NL_4_8"}, {38, "IQ4_NL_8_8"},
};

const int8_t iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                               1,    13,   25,  38,  53,  69,  89,  113};
const int8_t mxfp4_values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

const struct dtype_info *dtype_info(enum dtype type) {
    REQUIRE((unsigned)type < N_DTYPES);
    return &infos[type];
}

const char *dtype_name(enum dtype type) {
    return dtype_info(type)->name;
}

ats_status dtype_from_ggml(uint32_t ggml_id, enum dtype *out) {
    for (int i = 0; i < N_DTYPES; i++) {
        if (infos[i].ggml_id != ggml_id) continue;
        *out = (enum dtype)i;
        return ATS_OK;
    }
    for (size_t i = 0; i < COUNT_OF(retired); i++) {
        if (retired[i].id != ggml_id) continue;
        return fail(ATS_UNSUPPORTED, "tensor type %s (id %u) was retired from GGUF",
                    retired[i].name, ggml_id);
    }
    return fail(ATS_UNSUPPORTED, "unknown tensor type id %u", ggml_id);
}

bool dtype_from_name(const char *name, enum dtype *out) {
    for (int i = 0; i < N_DTYPES; i++) {
        if (strcasecmp(infos[i].name, name) != 0) continue;
        *out = (enum dtype)i;
        return true;
    }
    return false;
}

bool dtype_row_size(enum dtype type, int64_t n, int64_t *bytes) {
    const struct dtype_info *info = dtype_info(type);
    if (n < 0 || n % info->block_elements != 0) return false;
    return !__builtin_mul_overflow(n / info->block_elements, (int64_t)info->block_bytes, bytes);
}

int64_t dtype_row_bytes(enum dtype type, int64_t n) {
    int64_t bytes = 0;
    bool ok = dtype_row_size(type, n, &bytes);
    REQUIRE(ok);
    return bytes;
}
