#include "common/data/tokenizer.h"

#include "common/data/tokenizer_impl.h"

#define NONE TOKENIZER_NONE

struct tokenizer *tokenizer_bytes(void)
{
    struct tokenizer *t = mem_alloc(sizeof(*t));
    t->vocab = TOKENIZER_BYTES_VOCAB;
    t->tokens = mem_alloc_array(t->vocab, sizeof(*t->tokens));
    buf_init(&t->pool, 256);
    for (uint32_t i = 0; i < 256; i++) {
        (void)buf_append_byte(&t->pool, (uint8_t)i); /* there is room */
        t->tokens[i] = (struct token){.at = i, .len = 1, .used = true};
        t->byte_ids[i] = i;
    }
    t->tokens[TOKENIZER_BYTES_END] = (struct token){.used = true, .special = true};
    t->bos = t->eos = TOKENIZER_BYTES_END;
    t->put_first = t->put_last = t->unk = -1;
    return t;
}

void tokenizer_free(struct tokenizer *t)
{
    if (!t)
        return;
    buf_release(&t->pool);
    buf_release(&t->charsmap);
    mem_free(t->trie);
    mem_free(t->scores);
    mem_free(t->sorted);
    mem_free(t->tokens);
    mem_free(t->merges);
    mem_free(t->by_text);
    mem_free(t->added);
    mem_free(t);
}

bool tokenizer_is_sentencepiece(const struct tokenizer *t)
{
    return t->sentencepiece;
}

uint32_t tokenizer_vocab(const struct tokenizer *t)
{
    return t->vocab;
}

int32_t tokenizer_bos(const struct tokenizer *t)
{
    return t->bos;
}

int32_t tokenizer_eos(const struct tokenizer *t)
{
    return t->eos;
}

const uint8_t *tokenizer_piece(const struct tokenizer *t, uint32_t id, size_t *ret_len)
{
    *ret_len = id < t->vocab ? t->tokens[id].len : 0;
    return *ret_len ? t->pool.data + t->tokens[id].at : (const uint8_t *)"";
}

bool tokenizer_is_special(const struct tokenizer *t, uint32_t id)
{
    return id < t->vocab && t->tokens[id].special;
}

size_t tokenizer_token_bytes(const struct tokenizer *t, uint32_t id)
{
    size_t len = 0;
    (void)tokenizer_piece(t, id, &len);
    return tokenizer_is_special(t, id) ? 0 : len;
}

void tokens_release(struct tokens *t)
{
    mem_free(t->ids);
    *t = (struct tokens){0};
}

int tokens_room(struct tokens *t, size_t n, struct err *err)
{
    if (t->cap - t->n >= n)
        return 0;
    size_t cap = t->cap ? t->cap * 2 : 256;
    if (cap < t->n + n)
        cap = t->n + n;
    uint32_t *more = mem_try_realloc_array(t->ids, cap, sizeof(*more));
    if (!more)
        return err_set(err, -ENOMEM, "out of memory for %zu tokens", cap);
    t->ids = more;
    t->cap = cap;
    return 0;
}

int tokens_add(struct tokens *t, uint32_t id, struct err *err)
{
    int rc = tokens_room(t, 1, err);
    if (rc == 0)
        t->ids[t->n++] = id;
    return rc;
}

/* ---- tables ---- */

uint32_t tokenizer_hash(const void *text, size_t len)
{
    const uint8_t *p = text;
    uint32_t h = 2166136261u; /* FNV-1a */
    for (size_t i = 0; i < len; i++)
        h = (h ^ p[i]) * 16777619u;
    return h ^ h >> 15;
}

int64_t tokenizer_find(const struct tokenizer *t, const void *text, size_t len)
{
    if (!t->by_text)
        return -1;
    for (uint32_t i = tokenizer_hash(text, len);; i++) {
        uint32_t id = t->by_text[i & t->text_mask];
        if (id == NONE)
            return -1;
        const struct token *k = &t->tokens[id];
        if (k->len == len && memcmp(t->pool.data + k->at, text, len) == 0)
            return id;
    }
}

int tokenizer_unknown(const struct tokenizer *t, const uint8_t *text, size_t len,
                      struct tokens *out, struct err *err)
{
    size_t known = 0;
    int rc = 0;
    while (t->byte_fallback && known < len && t->byte_ids[text[known]] != NONE)
        known++;
    if (known < len && t->unk >= 0)
        return tokens_add(out, (uint32_t)t->unk, err);
    if (known < len)
        return err_set(err, -ERR_FORMAT,
                       "the tokenizer has no token for the byte 0x%02x, and none for unknown text: "
                       "use a tokenizer that was trained with all bytes in its alphabet",
                       text[known]);
    for (size_t i = 0; rc == 0 && i < len; i++)
        rc = tokens_add(out, t->byte_ids[text[i]], err);
    return rc;
}

/* ---- decoding ---- */

int tokenizer_decode(const struct tokenizer *t, const uint32_t *ids, size_t n, struct buf *out)
{
    bool prefix = t->prefix != PREFIX_NONE; /* the first space does not belong to the text */
    int rc = 0;
    for (size_t i = 0; i < t->n_rewrites; i++)
        prefix = prefix || t->rewrites[i] == REWRITE_PREPEND;
    for (size_t i = 0; rc == 0 && i < n; i++) {
        size_t len;
        const uint8_t *p = tokenizer_piece(t, ids[i], &len);
        if (tokenizer_is_special(t, ids[i]) || len == 0)
            continue;
        prefix = prefix && *p == ' ';
        rc = buf_append(out, p + prefix, len - prefix);
        prefix = false;
    }
    return rc;
}

/* 1: a whole UTF-8 character; 0: the beginning of one; -1: neither. */
static int utf8_state(const uint8_t *p, unsigned n)
{
    unsigned need = p[0] < 0x80                    ? 1
                    : p[0] >= 0xc2 && p[0] <= 0xdf ? 2
                    : (p[0] & 0xf0) == 0xe0        ? 3
                    : p[0] >= 0xf0 && p[0] <= 0xf4 ? 4
                                                   : 0;
    for (unsigned i = 1; i < n; i++)
        if ((p[i] & 0xc0) != 0x80)
            return -1;
    /* Overlong forms, surrogates, characters beyond U+10FFFF. */
    if (n > 1 && ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f) ||
                  (p[0] == 0xf0 && p[1] < 0x90) || (p[0] == 0xf4 && p[1] > 0x8f)))
        return -1;
    return need == 0 ? -1 : n == need ? 1 : 0;
}

static int put_replacement(struct buf *out)
{
    return buf_append(out, "\xef\xbf\xbd", 3);
}

static int push_byte(struct tokenizer_stream *s, uint8_t byte, struct buf *out)
{
    int rc = 0;
    s->held[s->n++] = byte;
    int state = utf8_state(s->held, s->n);
    if (state < 0 && s->n > 1) { /* the held bytes are broken; this byte may begin a character */
        rc = put_replacement(out);
        s->held[0] = byte;
        s->n = 1;
        state = utf8_state(s->held, 1);
    }
    if (state == 0 || rc < 0)
        return rc;
    rc = state > 0 ? buf_append(out, s->held, s->n) : put_replacement(out);
    s->n = 0;
    return rc;
}

int tokenizer_stream_push(struct tokenizer_stream *s, const struct tokenizer *t, uint32_t id,
                          struct buf *out)
{
    size_t len;
    const uint8_t *p = tokenizer_piece(t, id, &len);
    int rc = 0;
    if (tokenizer_is_special(t, id))
        return 0;
    for (size_t i = 0; rc == 0 && i < len; i++)
        rc = push_byte(s, p[i], out);
    return rc;
}

int tokenizer_stream_end(struct tokenizer_stream *s, struct buf *out)
{
    bool rest = s->n > 0;
    s->n = 0;
    return rest ? put_replacement(out) : 0;
}
