#include "base/utf8.h"

#include "base/buf.h"

/*
 * Table 3-7 of Unicode 15 (well-formed byte sequences): the lead byte fixes the length and the
 * range of the second byte; later bytes are 80..BF.
 */
struct lead {
    int len; /* 0: no sequence starts so */
    uint8_t second_min, second_max;
};

static struct lead lead_of(uint8_t b) {
    if (b < 0x80) return (struct lead){1, 0, 0};
    if (b < 0xC2) return (struct lead){0, 0, 0};
    if (b < 0xE0) return (struct lead){2, 0x80, 0xBF};
    if (b < 0xF0) return (struct lead){3, b == 0xE0 ? 0xA0 : 0x80, b == 0xED ? 0x9F : 0xBF};
    if (b < 0xF5) return (struct lead){4, b == 0xF0 ? 0x90 : 0x80, b == 0xF4 ? 0x8F : 0xBF};
    return (struct lead){0, 0, 0};
}

/* How many bytes at s[0..n) agree with the sequence that s[0] starts (0 if it starts none). */
static int matching_bytes(const char *s, size_t n, struct lead lead) {
    if (lead.len < 2) return lead.len;
    int m = 1;
    while (m < lead.len && (size_t)m < n) {
        uint8_t b = (uint8_t)s[m];
        uint8_t lo = m == 1 ? lead.second_min : 0x80, hi = m == 1 ? lead.second_max : 0xBF;
        if (b < lo || b > hi) break;
        m++;
    }
    return m;
}

int utf8_decode(const char *s, size_t n, uint32_t *cp) {
    uint8_t b = (uint8_t)s[0];
    if (LIKELY(b < 0x80)) {
        *cp = b;
        return 1;
    }
    struct lead lead = lead_of(b);
    if (lead.len == 0 || matching_bytes(s, n, lead) < lead.len) return 0;
    uint32_t value = b & (0x7Fu >> lead.len);
    for (int i = 1; i < lead.len; i++)
        value = value << 6 | ((uint8_t)s[i] & 0x3Fu);
    *cp = value;
    return lead.len;
}

int utf8_encode(uint32_t cp, char out[4]) {
    REQUIRE(cp <= 0x10FFFF);
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    int len = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    for (int i = len - 1; i > 0; i--, cp >>= 6)
        out[i] = (char)(0x80 | (cp & 0x3F));
    out[0] = (char)((0xF00u >> len & 0xFFu) | cp);
    return len;
}

bool utf8_valid(const char *s, size_t n) {
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        int used = utf8_decode(s + i, n - i, &cp);
        if (used == 0) return false;
        i += (size_t)used;
    }
    return true;
}

size_t utf8_complete_prefix(const char *s, size_t n) {
    for (size_t back = 1; back <= 3 && back <= n; back++) {
        const char *p = s + n - back;
        if (((uint8_t)*p & 0xC0) == 0x80) continue; /* inside a character: look further left */
        struct lead lead = lead_of((uint8_t)*p);
        bool cut = (size_t)lead.len > back && (size_t)matching_bytes(p, back, lead) == back;
        return cut ? n - back : n;
    }
    return n;
}

size_t utf8_invalid_span(const char *s, size_t n) {
    int m = matching_bytes(s, n, lead_of((uint8_t)s[0]));
    return m > 0 ? (size_t)m : 1;
}

void utf8_add_replaced(struct buf *out, const char *s, size_t n) {
    size_t begin = 0, i = 0;
    while (i < n) {
        uint32_t cp;
        int used = utf8_decode(s + i, n - i, &cp);
        if (LIKELY(used > 0)) {
            i += (size_t)used;
            continue;
        }
        if (i > begin) buf_add(out, s + begin, i - begin);
        buf_add(out, "\xEF\xBF\xBD", 3);
        i += utf8_invalid_span(s + i, n - i);
        begin = i;
    }
    if (i > begin) buf_add(out, s + begin, i - begin);
}
