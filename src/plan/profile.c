#include "plan/profile.h"

#include <math.h>
#include <string.h>

const int profile_tokens[13] = {1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 128, 512, 2048};
const double profile_shares[6] = {0.03125, 0.125, 0.25, 0.5, 0.75, 1};
const int profile_depths[4] = {0, 2048, 8192, 32768};

enum { LINEAR_TOKENS = 8 }; /* up to here every T is measured, and there are cliffs */

bool profile_key_equal(const struct profile_key *a, const struct profile_key *b) {
    if (strcmp(a->op, b->op) != 0 || a->n_types != b->n_types || a->n_dims != b->n_dims ||
        a->math != b->math || a->axis != b->axis)
        return false;
    for (int i = 0; i < a->n_types; i++)
        if (a->types[i] != b->types[i]) return false;
    for (int i = 0; i < a->n_dims; i++)
        if (a->dims[i] != b->dims[i]) return false;
    return true;
}

const struct profile_item *profile_find(const struct profile *p, const struct profile_key *key) {
    for (int i = 0; i < p->n_items; i++)
        if (profile_key_equal(&p->items[i].key, key)) return &p->items[i];
    return NULL;
}

bool profile_knows(const struct profile *p, const struct profile_key *key) {
    return p->has_rates || profile_find(p, key) != NULL;
}

/* ---- from tables ---- */

/* A row of times over the profile's tokens, at T. */
static double at_tokens(const struct profile *p, const double *row, double T) {
    int last = p->n_tokens - 1, i = 0;
    if (T <= 1) return row[0];
    if (T >= p->tokens[last]) return row[last] * T / p->tokens[last];
    while (T >= p->tokens[i + 1])
        i++;
    double t0 = p->tokens[i], t1 = p->tokens[i + 1], a = row[i], b = row[i + 1];
    if (t1 <= LINEAR_TOKENS || a <= 0 || b <= 0) return a + (b - a) * (T - t0) / (t1 - t0);
    return a * pow(b / a, log(T / t0) / log(t1 / t0));
}

static double work_time(const struct profile *p, const struct profile_times *t, double T,
                        double share) {
    int last = p->n_shares - 1, i = 0;
    if (last == 0) return at_tokens(p, t->work_s[0], T) * share;
    while (i < last - 1 && share > p->shares[i + 1])
        i++;
    if (share > 1) /* all experts of a share of many: the slope of the upper half, less noise */
        while (i > 0 && p->shares[i] > 0.5)
            i--;
    int j = share > 1 ? last : i + 1;
    double a = at_tokens(p, t->work_s[i], T), b = at_tokens(p, t->work_s[j], T);
    double s = b + (b - a) * (share - p->shares[j]) / (p->shares[j] - p->shares[i]);
    /* below the smallest share what is fixed remains, but no less than in proportion */
    return share < p->shares[0] ? fmax(s, a * share / p->shares[0]) : s;
}

static double kv_time(const struct profile *p, const struct profile_times *t, double T,
                      double depth) {
    int last = p->n_depths - 1, i = 0;
    if (last == 0 || depth <= 0) return 0;
    while (i < last - 1 && depth > p->depths[i + 1])
        i++;
    double a = at_tokens(p, t->kv_s[i], T), b = at_tokens(p, t->kv_s[i + 1], T);
    double s = a + (b - a) * (depth - p->depths[i]) / (p->depths[i + 1] - p->depths[i]);
    return s > 0 ? s : 0;
}

/* ---- from rates ---- */

static double dtype_bytes(enum dtype type, double n) {
    return n * dtype_info(type)->block_bytes / dtype_info(type)->block_elements;
}

/* A product reads its weights once and is limited by that or by its arithmetic. */
static double product(const struct profile_rates *r, enum dtype type, double elements, double T) {
    return fmax(dtype_bytes(type, elements) / r->bytes[type], 2 * T * elements / r->flop[type]);
}

/* Scores and sums of T queries over depth + T / 2 keys each. */
static double attention_flop(const struct profile_key *key, double T, double depth) {
    return 4 * T * (depth + (T + 1) / 2) * (double)key->dims[0] * (double)key->dims[2];
}

/* The cache is read once. */
static double attention(const struct profile_rates *r, const struct profile_key *key, double T,
                        double depth) {
    double kv_heads = (double)key->dims[1], head_dim = (double)key->dims[2];
    double row = dtype_bytes(key->types[0], head_dim) + dtype_bytes(key->types[1], head_dim);
    return fmax((depth + T) * kv_heads * row / r->kv_bytes,
                attention_flop(key, T, depth) / r->kv_flop);
}

static double experts(const struct profile_rates *r, const struct profile_key *key, double T,
                      double share) {
    double elements = (double)key->dims[2] * (double)key->dims[3], sum = 0;
    for (int i = 0; i < key->n_types; i++)
        sum += product(r, key->types[i], elements, T);
    return sum * share * (double)key->dims[1];
}

/* Read and written once; about eight operations a token for each element of 4 bytes (decayed, read
 * twice, changed). */
static double state(const struct profile_rates *r, const struct profile_key *key, double T) {
    double bytes = key->n_dims > 1 ? (double)key->dims[1] : 0;
    return fmax(2 * bytes / r->kv_bytes, 2 * T * bytes / r->kv_flop);
}

static double rates_time(const struct profile *p, const struct profile_key *key, enum side side,
                         double T, double depth, double share) {
    const struct profile_rates *r = &p->rates[side];
    double s = p->op_s[side];
    if (strcmp(key->op, op_kind_name(OP_MATMUL)) == 0)
        s += product(r, key->types[0], (double)key->dims[0] * (double)key->dims[1], T) * share;
    else if (strcmp(key->op, op_kind_name(OP_ATTENTION)) == 0)
        s += attention(r, key, T, depth) * share;
    else if (strcmp(key->op, op_kind_name(OP_EXPERTS)) == 0)
        s += experts(r, key, T, share);
    else
        s += state(r, key, T) * share;
    return s;
}

double profile_flop_time(const struct profile *p, const struct profile_key *key, enum side side,
                         double n_tokens, double depth) {
    const struct profile_rates *r = &p->rates[side];
    const int64_t *d = key->dims;
    if (!p->has_rates) return 0;
    if (strcmp(key->op, op_kind_name(OP_MATMUL)) == 0)
        return 2 * (double)d[0] * (double)d[1] * n_tokens / r->flop[key->types[0]];
    if (strcmp(key->op, op_kind_name(OP_ATTENTION)) == 0)
        return attention_flop(key, n_tokens, depth) / r->kv_flop;
    if (strcmp(key->op, op_kind_name(OP_EXPERTS)) == 0) {
        double s = 0;
        for (int i = 0; i < key->n_types; i++)
            s += 2 * (double)d[2] * (double)d[3] * n_tokens / r->flop[key->types[i]];
        return s * (double)d[1];
    }
    return 2 * n_tokens * (key->n_dims > 1 ? (double)d[1] : 0) / r->kv_flop;
}

double profile_time(const struct profile *p, const struct profile_item *item,
                    const struct profile_key *key, enum side side, double n_tokens, double depth,
                    double share) {
    if (share <= 0 || n_tokens <= 0) return 0;
    if (!item) {
        REQUIRE(p->has_rates);
        return rates_time(p, key, side, n_tokens, depth, share);
    }
    const struct profile_times *t = &item->sides[side];
    double s = work_time(p, t, n_tokens, share);
    if (item->has_kv) s += kv_time(p, t, n_tokens, depth) * share;
    return s;
}
