/* Rewrites texts before they are cut, like the normalizers of Hugging Face's tokenizers. */
#include "common/base/base.h"
#include "common/data/tokenizer_impl.h"
#include "common/data/unicode.h"

#define META "\xe2\x96\x81" /* U+2581 */

static int spaces(const uint8_t *text, size_t len, struct buf *out)
{
    bool in_run = false;
    int rc = 0;
    for (size_t n; rc == 0 && len > 0; text += n, len -= n) {
        bool space = unicode_is_space(unicode_decode(text, len, &n));
        if (!space)
            rc = buf_append(out, text, n);
        else if (!in_run)
            rc = buf_append_byte(out, ' ');
        in_run = space;
    }
    return rc;
}

static int runs(const uint8_t *text, size_t len, struct buf *out)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < len; i++)
        if (i == 0 || text[i] != ' ' || text[i - 1] != ' ')
            rc = buf_append_byte(out, text[i]);
    return rc;
}

int tokenizer_meta(const uint8_t *text, size_t len, struct buf *out)
{
    int rc = 0;
    for (size_t n; rc == 0 && len > 0; text += n, len -= n) {
        n = len >= 3 && memcmp(text, META, 3) == 0 ? 3 : 1;
        rc = buf_append_byte(out, n == 3 ? ' ' : *text);
    }
    return rc;
}

static int prepend(const uint8_t *text, size_t len, struct buf *out)
{
    int rc = len ? buf_append_byte(out, ' ') : 0;
    return rc < 0 ? rc : buf_append(out, text, len);
}

static int strip_left(const uint8_t *text, size_t len, struct buf *out)
{
    for (size_t n; len > 0 && unicode_is_space(unicode_decode(text, len, &n)); len -= n)
        text += n;
    return buf_append(out, text, len);
}

static int strip_right(const uint8_t *text, size_t len, struct buf *out)
{
    size_t end = 0;
    for (size_t at = 0, n; at < len; at += n)
        if (!unicode_is_space(unicode_decode(text + at, len - at, &n)))
            end = at + n;
    return buf_append(out, text, end);
}

/* What the charsmap has for the shortest beginning of the text that it knows; NULL: nothing.
 * Each unit of its double array (Darts) holds the offset of its children, its label, and whether
 * its first child is a value. */
static const char *mapped(const struct tokenizer *t, const uint8_t *text, size_t len)
{
    uint32_t at = 0, unit = t->trie[0];
    at ^= unit >> 10 << ((unit & 1u << 9) >> 6);
    for (size_t i = 0; i < len && text[i]; i++) {
        at ^= text[i];
        if (at >= t->n_trie || (t->trie[at] & (1u << 31 | 0xff)) != text[i])
            return NULL;
        unit = t->trie[at];
        at ^= unit >> 10 << ((unit & 1u << 9) >> 6);
        if (at >= t->n_trie)
            return NULL;
        if (unit >> 8 & 1) {
            uint32_t value = t->trie[at] & ~(1u << 31);
            return value < t->charsmap.len ? (const char *)t->charsmap.data + value : NULL;
        }
    }
    return NULL;
}

/* A grapheme cluster of fewer than 6 bytes is replaced as a whole by the entry for its
 * beginning, else each character by itself: the models were trained with this. */
static int charsmap(const struct tokenizer *t, const uint8_t *text, size_t len, struct buf *out)
{
    int rc = 0;
    for (size_t n; rc == 0 && len > 0; text += n, len -= n) {
        n = unicode_grapheme(text, len);
        const char *to = n < 6 ? mapped(t, text, n) : NULL;
        if (to) {
            rc = buf_append_str(out, to);
            continue;
        }
        for (size_t at = 0, one; rc == 0 && at < n; at += one) {
            (void)unicode_decode(text + at, len - at, &one);
            to = mapped(t, text + at, one);
            rc = to ? buf_append_str(out, to) : buf_append(out, text + at, one);
        }
    }
    return rc;
}

static int rewrite(const struct tokenizer *t, enum rewrite how, const uint8_t *text, size_t len,
                   struct buf *out)
{
    switch (how) {
    case REWRITE_NFC:
        return unicode_nfc(text, len, out);
    case REWRITE_LOWER:
        return unicode_lower(text, len, out);
    case REWRITE_SPACES:
        return spaces(text, len, out);
    case REWRITE_RUNS:
        return runs(text, len, out);
    case REWRITE_META:
        return tokenizer_meta(text, len, out);
    case REWRITE_PREPEND:
        return prepend(text, len, out);
    case REWRITE_STRIP_LEFT:
        return strip_left(text, len, out);
    case REWRITE_STRIP_RIGHT:
        return strip_right(text, len, out);
    case REWRITE_CHARSMAP:
        return charsmap(t, text, len, out);
    }
    return -EINVAL;
}

int tokenizer_rewrite(const struct tokenizer *t, const uint8_t *text, size_t len, struct buf *out,
                      struct buf *spare)
{
    buf_clear(out);
    int rc = t->n_rewrites ? 0 : buf_append(out, text, len);
    for (size_t i = 0; rc == 0 && i < t->n_rewrites; i++) {
        if (i > 0) { /* the last result is the next text */
            struct buf last = *out;
            *out = *spare;
            *spare = last;
            text = spare->data;
            len = spare->len;
            buf_clear(out);
        }
        rc = rewrite(t, t->rewrites[i], text, len, out);
    }
    return rc;
}
