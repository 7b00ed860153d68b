/* Cuts text into words like the regular expressions of byte-level BPE, but by
 * hand: a library would have its own Unicode tables and its own slow cases.
 * Linear time. */

#include "common/base/base.h"
#include "common/data/tokenizer_impl.h"
#include "common/data/unicode.h"

enum class { END, LETTER, NUMBER, SPACE, OTHER };

/* One character. */
struct glyph {
    enum class class;
    uint32_t code;
    size_t len;
};

static enum class class_of_ascii(uint8_t c) {
    return (c | 0x20) >= 'a' && (c | 0x20) <= 'z' ? LETTER
           : c >= '0' && c <= '9'                 ? NUMBER
           : c == ' ' || (c >= 0x09 && c <= 0x0d) ? SPACE
                                                  : OTHER;
}

static inline struct glyph glyph_at(const uint8_t *text, size_t len, size_t at)
{
    struct glyph g = {.class = END};
    if (at >= len)
        return g;
    if (text[at] < 0x80) /* the most frequent case */
        return (struct glyph){class_of_ascii(text[at]), text[at], 1};
    g.code = unicode_decode(text + at, len - at, &g.len);
    g.class = unicode_is_letter(g.code)   ? LETTER
              : unicode_is_number(g.code) ? NUMBER
              : unicode_is_space(g.code)  ? SPACE
                                          : OTHER;
    return g;
}

/* The end of the run of a class from `at`, of at most `most` characters. */
static size_t run(const uint8_t *text, size_t len, size_t at, enum class class, size_t most)
{
    for (struct glyph g; most > 0 && (g = glyph_at(text, len, at)).class == class; most--)
        at += g.len;
    return at;
}

/* 's 't 're 've 'm 'll 'd: its length, or 0. */
static size_t contraction(const uint8_t *text, size_t len, bool any_case)
{
    static const char *const endings[] = {"s", "t", "re", "ve", "m", "ll", "d"};
    if (text[0] != '\'')
        return 0;
    for (size_t i = 0; i < sizeof(endings) / sizeof(endings[0]); i++) {
        size_t n = strlen(endings[i]), same = 0;
        while (same < n && 1 + same < len &&
               (text[1 + same] | (any_case && text[1 + same] < 0x60 ? 0x20 : 0)) ==
                   (uint8_t)endings[i][same])
            same++;
        if (same == n)
            return 1 + n;
    }
    /* U+017F, the long s, is an s in any case. */
    return any_case && len >= 3 && text[1] == 0xc5 && text[2] == 0xbf ? 3 : 0;
}

/* \s+(?!\S)|\s+ : the run of spaces, less its last one when a word follows. */
static size_t spaces(const uint8_t *text, size_t len)
{
    size_t at = 0, last = 0;
    for (struct glyph g; (g = glyph_at(text, len, at)).class == SPACE;) {
        last = at;
        at += g.len;
    }
    return at == len || last == 0 ? at : last;
}

static size_t gpt2_word(const uint8_t *text, size_t len)
{
    size_t n = contraction(text, len, false);
    if (n)
        return n;
    size_t space = text[0] == ' ';
    struct glyph first = glyph_at(text, len, space);
    if (first.class == END || first.class == SPACE)
        return spaces(text, len);
    return run(text, len, space, first.class, SIZE_MAX);
}

static bool is_newline(uint32_t c)
{
    return c == '\r' || c == '\n';
}

static size_t newlines(const uint8_t *text, size_t len, size_t at)
{
    while (at < len && is_newline(text[at]))
        at++;
    return at;
}

/* \s*[\r\n]+ : up to the last newline of the run of spaces; 0: there is none. */
static size_t spaces_to_newline(const uint8_t *text, size_t len)
{
    size_t at = 0, end = 0;
    for (struct glyph g; (g = glyph_at(text, len, at)).class == SPACE;) {
        at += g.len;
        if (is_newline(g.code))
            end = at;
    }
    return end;
}

static size_t cl100k_word(const uint8_t *text, size_t len, size_t digits)
{
    size_t n = contraction(text, len, true);
    if (n)
        return n;
    struct glyph first = glyph_at(text, len, 0);
    size_t lead = first.class == LETTER ? 0 : first.len; /* after [^\r\n\p{L}\p{N}]? */
    bool may_lead = first.class != NUMBER && !is_newline(first.code);
    if (may_lead && glyph_at(text, len, lead).class == LETTER)
        return run(text, len, lead, LETTER, SIZE_MAX);
    if (first.class == NUMBER)
        return run(text, len, 0, NUMBER, digits);
    size_t space = text[0] == ' ';
    n = run(text, len, space, OTHER, SIZE_MAX);
    if (n > space)
        return newlines(text, len, n);
    n = spaces_to_newline(text, len);
    return n ? n : spaces(text, len);
}

static size_t clip_word(const uint8_t *text, size_t len, bool *ret_drop)
{
    static const char *const special[] = {"<|startoftext|>", "<|endoftext|>"};
    size_t n = contraction(text, len, false);
    struct glyph first = glyph_at(text, len, 0);
    *ret_drop = first.class == SPACE;
    for (size_t i = 0; i < 2; i++)
        if (len >= strlen(special[i]) && memcmp(text, special[i], strlen(special[i])) == 0)
            return strlen(special[i]);
    return n ? n : run(text, len, 0, first.class, first.class == NUMBER ? 1 : SIZE_MAX);
}

static size_t until_space(const uint8_t *text, size_t len, bool *ret_drop)
{
    size_t at = 0;
    *ret_drop = glyph_at(text, len, 0).class == SPACE;
    for (struct glyph g; (g = glyph_at(text, len, at)).class != END;) {
        if ((g.class == SPACE) != *ret_drop)
            break;
        at += g.len;
    }
    return at;
}

/* Up to a ' ' that does not follow another, or U+2581, which may become one. */
static size_t before_space(const uint8_t *text, size_t len)
{
    size_t at = 1;
    while (at < len && (text[at] != ' ' || text[at - 1] == ' ' ||
                        (at >= 3 && memcmp(text + at - 3, "\xe2\x96\x81", 3) == 0)))
        at++;
    return at;
}

size_t tokenizer_word(enum split split, const uint8_t *text, size_t len, bool *ret_drop)
{
    *ret_drop = false;
    switch (split) {
    case SPLIT_GPT2:
        return gpt2_word(text, len);
    case SPLIT_CL100K:
        return cl100k_word(text, len, 3);
    case SPLIT_DIGIT:
        return cl100k_word(text, len, 1);
    case SPLIT_CLIP:
        return clip_word(text, len, ret_drop);
    case SPLIT_SPACES:
        return until_space(text, len, ret_drop);
    case SPLIT_BEFORE:
        return before_space(text, len);
    case SPLIT_NONE:
    case SPLIT_WHOLE:
        break;
    }
    return len;
}
