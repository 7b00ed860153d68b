#include "common/data/captions.h"

#include "common/data/unicode.h"

static bool is_control(char c)
{
    return (unsigned char)c < 0x20 || c == 0x7f;
}

static bool is_blank(char c)
{
    return c == ' ' || is_control(c);
}

/* The longest beginning of at most `most` bytes that ends between two characters. */
static size_t whole_characters(const char *text, size_t len, size_t most)
{
    if (len <= most)
        return len;
    while (most && ((unsigned char)text[most] & 0xc0) == 0x80)
        most--;
    return most;
}

static size_t trimmed(const char *text, size_t len)
{
    while (len && is_blank(text[len - 1]))
        len--;
    return len;
}

int captions_add(struct buf *out, const char *text, size_t len, bool *ret_cut)
{
    uint8_t *to;
    if (!str_is_utf8(text, len))
        return -ERR_FORMAT;
    while (len && is_blank(*text)) {
        text++;
        len--;
    }
    len = trimmed(text, len);
    if (len == 0)
        return 0;
    const size_t used = out->len + (out->len > 0);
    const size_t fits = whole_characters(text, len, used < CAPTIONS_MAX ? CAPTIONS_MAX - used : 0);
    const size_t n = trimmed(text, fits);
    const size_t more = n ? n + (used - out->len) : 0; /* with the line break before it */
    int rc = buf_reserve(out, more, &to);
    if (rc < 0)
        return rc;
    if (n < more)
        *to++ = '\n';
    for (size_t i = 0; i < n; i++)
        *to++ = is_control(text[i]) ? ' ' : (uint8_t)text[i];
    buf_commit(out, more);
    if (fits < len)
        *ret_cut = true;
    return 0;
}

int captions_add_lines(struct buf *out, const char *text, size_t len, bool *ret_cut)
{
    size_t at = unicode_mark(text, len);
    int rc = str_is_utf8(text, len) ? 0 : -ERR_FORMAT;
    while (rc == 0 && at < len) {
        const char *line = text + at, *stop = memchr(line, '\n', len - at);
        const size_t n = stop ? (size_t)(stop - line) : len - at;
        rc = captions_add(out, line, n, ret_cut);
        at += n + 1;
    }
    return rc;
}

bool captions_are_valid(const char *text, size_t len)
{
    if (len == 0 || len > CAPTIONS_MAX || text[len - 1] == '\n' || !str_is_utf8(text, len))
        return false;
    for (size_t i = 0; i < len; i++)
        if (is_control(text[i]) && (text[i] != '\n' || i == 0 || text[i - 1] == '\n'))
            return false;
    return true;
}

unsigned captions_count(const char *text, size_t len)
{
    unsigned n = len > 0;
    for (size_t i = 0; i < len; i++)
        n += text[i] == '\n';
    return n;
}

const char *captions_get(const char *text, size_t len, unsigned i, size_t *ret_len)
{
    for (size_t at = 0; at < len;) {
        const char *line = text + at, *stop = memchr(line, '\n', len - at);
        const size_t n = stop ? (size_t)(stop - line) : len - at;
        if (i-- == 0) {
            *ret_len = n;
            return line;
        }
        at += n + 1;
    }
    *ret_len = 0;
    return "";
}
