#include "common/data/unicode.h"

#include <utf8proc.h>

struct range {
    uint32_t from, to;
};

#include "common/data/unicode_tables.inc"

static bool is_in(const struct range *table, size_t n, uint32_t c)
{
    size_t low = 0;
    while (low < n) {
        size_t mid = low + (n - low) / 2;
        if (c < table[mid].from)
            n = mid;
        else if (c > table[mid].to)
            low = mid + 1;
        else
            return true;
    }
    return false;
}

size_t unicode_mark(const char *text, size_t len)
{
    return len >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
}

uint32_t unicode_decode(const uint8_t *p, size_t len, size_t *ret_len)
{
    size_t need = p[0] < 0x80 ? 1 : p[0] < 0xc2 ? 0 : p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;
    uint32_t c = need == 1 ? p[0] : p[0] & (0x7fu >> need);
    *ret_len = 1;
    if (need == 0 || need > len || p[0] > 0xf4)
        return UNICODE_NONE;
    for (size_t i = 1; i < need; i++) {
        if ((p[i] & 0xc0) != 0x80)
            return UNICODE_NONE;
        c = c << 6 | (p[i] & 0x3f);
    }
    if ((need == 3 && c < 0x800) || (need == 4 && c < 0x10000) || c > 0x10ffff)
        return UNICODE_NONE;
    *ret_len = need;
    return c;
}

bool unicode_is_letter(uint32_t c)
{
    if (c < 0x80)
        return (c | 0x20) >= 'a' && (c | 0x20) <= 'z';
    return is_in(letters, sizeof(letters) / sizeof(letters[0]), c);
}

bool unicode_is_number(uint32_t c)
{
    if (c < 0x80)
        return c >= '0' && c <= '9';
    return is_in(numbers, sizeof(numbers) / sizeof(numbers[0]), c);
}

bool unicode_is_space(uint32_t c)
{
    return (c >= 0x09 && c <= 0x0d) || c == ' ' || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
           c == 0x205f || c == 0x3000;
}

bool unicode_is_word(uint32_t c)
{
    if (c == UNICODE_NONE)
        return false;
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    return unicode_is_letter(c) || category == UTF8PROC_CATEGORY_ND ||
           category == UTF8PROC_CATEGORY_NL || category == UTF8PROC_CATEGORY_PC ||
           (category >= UTF8PROC_CATEGORY_MN && category <= UTF8PROC_CATEGORY_ME) ||
           (c >= 0x24b6 && c <= 0x24e9) || c == 0x200c || c == 0x200d;
}

/* NFC of UTF-8 text without recent marks. */
static int compose(const uint8_t *text, size_t len, struct buf *out)
{
    utf8proc_uint8_t *composed = NULL;
    utf8proc_ssize_t n =
        utf8proc_map(text, (utf8proc_ssize_t)len, &composed, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    int rc = n == UTF8PROC_ERROR_NOMEM ? -ENOMEM
             : n < 0                   ? buf_append(out, text, len)
                                       : buf_append(out, composed, (size_t)n);
    free(composed);
    return rc;
}

int unicode_nfc(const uint8_t *text, size_t len, struct buf *out)
{
    size_t from = 0, at = 0, n = 0;
    bool plain = true;
    int rc = 0;
    for (; rc == 0 && at < len; at += n) {
        uint32_t c = unicode_decode(text + at, len - at, &n);
        plain = plain && c < 0x80;
        if (c != UNICODE_NONE &&
            !is_in(young_marks, sizeof(young_marks) / sizeof(young_marks[0]), c))
            continue;
        /* The mark stays in place, and nothing moves or is composed across it. */
        rc = compose(text + from, at - from, out);
        rc = rc < 0 ? rc : buf_append(out, text + at, n);
        from = at + n;
    }
    if (rc == 0 && from < len)
        rc = plain ? buf_append(out, text, len) : compose(text + from, len - from, out);
    return rc;
}

static uint32_t lower(uint32_t c)
{
    /* Capitals from after Unicode 15. */
    static const struct {
        uint32_t from, to, step, lower;
    } young[] = {
        {0x1c89, 0x1c89, 1, 0x1c8a},    {0xa7cb, 0xa7cb, 1, 0x264},     {0xa7cc, 0xa7ce, 2, 0xa7cd},
        {0xa7d2, 0xa7d4, 2, 0xa7d3},    {0xa7da, 0xa7da, 1, 0xa7db},    {0xa7dc, 0xa7dc, 1, 0x19b},
        {0x10d50, 0x10d65, 1, 0x10d70}, {0x16ea0, 0x16eb8, 1, 0x16ebb},
    };
    if (c < 0x80)
        return c >= 'A' && c <= 'Z' ? c + 0x20 : c;
    for (size_t i = 0; i < sizeof(young) / sizeof(young[0]); i++)
        if (c >= young[i].from && c <= young[i].to && (c - young[i].from) % young[i].step == 0)
            return young[i].lower + (c - young[i].from);
    return (uint32_t)utf8proc_tolower((utf8proc_int32_t)c);
}

int unicode_lower(const uint8_t *text, size_t len, struct buf *out)
{
    int rc = 0;
    for (size_t n; rc == 0 && len > 0; text += n, len -= n) {
        utf8proc_uint8_t bytes[4];
        uint32_t c = unicode_decode(text, len, &n);
        if (c == UNICODE_NONE)
            rc = buf_append(out, text, n);
        else if (c == 0x130) /* the one capital whose small letter is two characters */
            rc = buf_append(out, "i\xcc\x87", 3);
        else
            rc = buf_append(out, bytes,
                            (size_t)utf8proc_encode_char((utf8proc_int32_t)lower(c), bytes));
    }
    return rc;
}

/* What joins a cluster and came after Unicode 15, which is what utf8proc 2.8 knows; up to 17. */
static const struct range young_extenders[] = {
    {0x897, 0x897},     {0x1acf, 0x1add},   {0x1ae0, 0x1aeb},   {0x10d69, 0x10d6d},
    {0x10efa, 0x10efc}, {0x113b8, 0x113c0}, {0x113c2, 0x113c2}, {0x113c5, 0x113c5},
    {0x113c7, 0x113ca}, {0x113cc, 0x113d0}, {0x113d2, 0x113d2}, {0x113e1, 0x113e2},
    {0x11b60, 0x11b67}, {0x11f5a, 0x11f5a}, {0x1611e, 0x1612f}, {0x1e5ee, 0x1e5ef},
    {0x1e6e3, 0x1e6e3}, {0x1e6e6, 0x1e6e6}, {0x1e6ee, 0x1e6ef}, {0x1e6f5, 0x1e6f5},
};

/* Default-ignorable characters that are not assigned.  Clusters break around them as around
 * controls (UAX 29); to utf8proc they are letters. */
static const struct range unassigned_controls[] = {
    {0x2065, 0x2065},   {0xfff0, 0xfff8},   {0xe0000, 0xe0000},
    {0xe0002, 0xe001f}, {0xe0080, 0xe00ff}, {0xe01f0, 0xe0fff},
};

/* One that utf8proc knows as what c is to clusters. */
static utf8proc_int32_t in_clusters(uint32_t c)
{
    if (is_in(young_extenders, sizeof(young_extenders) / sizeof(young_extenders[0]), c))
        return 0x301;
    if (is_in(unassigned_controls, sizeof(unassigned_controls) / sizeof(unassigned_controls[0]), c))
        return 0x200b;
    return (utf8proc_int32_t)c;
}

static bool breaks(uint32_t before, uint32_t c, utf8proc_int32_t *state)
{
    if (before == UNICODE_NONE || c == UNICODE_NONE)
        return true;
    return utf8proc_grapheme_break_stateful(in_clusters(before), in_clusters(c), state);
}

size_t unicode_grapheme(const uint8_t *text, size_t len)
{
    utf8proc_int32_t state = 0;
    size_t at, n;
    uint32_t before = unicode_decode(text, len, &at);
    while (at < len) {
        uint32_t c = unicode_decode(text + at, len - at, &n);
        if (breaks(before, c, &state))
            break;
        at += n;
        before = c;
    }
    return at;
}
