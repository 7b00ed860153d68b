#include "common/data/tokenizer.h"

#include "common/data/tokenizer_impl.h"

#define NONE UINT32_MAX

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
    return t;
}

void tokenizer_free(struct tokenizer *t)
{
    if (!t)
        return;
    buf_release(&t->pool);
    mem_free(t->tokens);
    mem_free(t->merges);
    mem_free(t->by_text);
    mem_free(t->added);
    mem_free(t);
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

static int tokens_room(struct tokens *t, size_t n, struct err *err)
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

uint32_t tokenizer_pair_hash(uint32_t left, uint32_t right)
{
    uint64_t h = ((uint64_t)left << 32 | right) * 0x9e3779b97f4a7c15u;
    return (uint32_t)(h >> 32);
}

static const struct merge *find_merge(const struct tokenizer *t, uint32_t left, uint32_t right)
{
    if (!t->merges)
        return NULL;
    for (uint32_t i = tokenizer_pair_hash(left, right);; i++) {
        const struct merge *m = &t->merges[i & t->merge_mask];
        if (m->id == NONE)
            return NULL;
        if (m->left == left && m->right == right)
            return m;
    }
}

/* ---- merging a word ---- */

/* A symbol of the word, in a list; id NONE: it was merged into its neighbour. */
struct symbol {
    uint32_t id;
    uint32_t before, after; /* NONE at the ends */
};

/* Two neighbours that could merge.  Stale when the symbols have changed. */
struct candidate {
    uint32_t rank, at, left, right, id;
};

struct word {
    const struct tokenizer *t;
    struct symbol *symbols;
    struct candidate *heap; /* lowest rank first, then leftmost */
    size_t cap, n_heap;
};

static bool goes_first(const struct candidate *a, const struct candidate *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static void heap_push(struct word *w, struct candidate c)
{
    size_t i = w->n_heap++;
    for (; i > 0 && goes_first(&c, &w->heap[(i - 1) / 2]); i = (i - 1) / 2)
        w->heap[i] = w->heap[(i - 1) / 2];
    w->heap[i] = c;
}

static struct candidate heap_pop(struct word *w)
{
    struct candidate top = w->heap[0], last = w->heap[--w->n_heap];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= w->n_heap)
            break;
        if (child + 1 < w->n_heap && goes_first(&w->heap[child + 1], &w->heap[child]))
            child++;
        if (!goes_first(&w->heap[child], &last))
            break;
        w->heap[i] = w->heap[child];
        i = child;
    }
    w->heap[i] = last;
    return top;
}

/* The pair that starts at symbol i, if it can merge. */
static void consider(struct word *w, uint32_t i)
{
    if (i == NONE || w->symbols[i].after == NONE)
        return;
    uint32_t left = w->symbols[i].id, right = w->symbols[w->symbols[i].after].id;
    const struct merge *m = find_merge(w->t, left, right);
    if (m)
        heap_push(w, (struct candidate){m->rank, i, left, right, m->id});
}

static int word_room(struct word *w, size_t len, struct err *err)
{
    if (len <= w->cap)
        return 0;
    size_t cap = len < 64 ? 64 : len;
    mem_free(w->symbols);
    mem_free(w->heap);
    w->cap = 0;
    w->symbols = mem_try_array(cap, sizeof(*w->symbols));
    /* One for each pair, and at most two for each of fewer than cap merges. */
    w->heap = mem_try_array(3 * cap, sizeof(*w->heap));
    if (!w->symbols || !w->heap)
        return err_set(err, -ENOMEM, "out of memory for a word of %zu bytes", len);
    w->cap = cap;
    return 0;
}

static void merge_all(struct word *w)
{
    while (w->n_heap) {
        struct candidate c = heap_pop(w);
        struct symbol *s = &w->symbols[c.at];
        if (s->id != c.left || s->after == NONE || w->symbols[s->after].id != c.right)
            continue;
        struct symbol *gone = &w->symbols[s->after];
        gone->id = NONE;
        s->id = c.id;
        s->after = gone->after;
        if (s->after != NONE)
            w->symbols[s->after].before = c.at;
        consider(w, s->before);
        consider(w, c.at);
    }
}

static int encode_word(struct word *w, const uint8_t *text, size_t len, struct tokens *out,
                       struct err *err)
{
    const struct tokenizer *t = w->t;
    int64_t whole = t->whole_words ? tokenizer_find(t, text, len) : -1;
    if (whole >= 0)
        return tokens_add(out, (uint32_t)whole, err);
    int rc = word_room(w, len, err);
    if (rc == 0)
        rc = tokens_room(out, len, err);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < len; i++) {
        uint32_t id = t->byte_ids[text[i]], at = (uint32_t)i;
        if (id == NONE)
            return err_set(err, -ERR_FORMAT, "the tokenizer has no token for the byte 0x%02x",
                           text[i]);
        w->symbols[i] = (struct symbol){id, i ? at - 1 : NONE, i + 1 < len ? at + 1 : NONE};
    }
    w->n_heap = 0;
    for (size_t i = 0; i + 1 < len; i++)
        consider(w, (uint32_t)i);
    merge_all(w);
    for (uint32_t i = 0; i != NONE; i = w->symbols[i].after)
        out->ids[out->n++] = w->symbols[i].id;
    return 0;
}

/* ---- encoding ---- */

/* An added token at the start of the text; NULL: none. */
static const struct token *added_at(const struct tokenizer *t, const uint8_t *text, size_t len,
                                    unsigned flags, uint32_t *ret_id)
{
    for (size_t i = 0; i < t->n_added; i++) {
        const struct token *k = &t->tokens[t->added[i].id];
        if ((!t->added[i].special || flags & TOKENIZER_SPECIAL) && k->len <= len &&
            memcmp(t->pool.data + k->at, text, k->len) == 0) {
            *ret_id = t->added[i].id;
            return k;
        }
    }
    return NULL;
}

/* Bytes before the next added token, or all. */
static size_t until_added(const struct tokenizer *t, const uint8_t *text, size_t len,
                          unsigned flags)
{
    bool starts[256] = {false};
    bool any = false;
    uint32_t id;
    for (size_t i = 0; i < t->n_added; i++) {
        if (t->added[i].special && !(flags & TOKENIZER_SPECIAL))
            continue;
        starts[t->pool.data[t->tokens[t->added[i].id].at]] = any = true;
    }
    for (size_t at = 0; any && at < len; at++)
        if (starts[text[at]] && added_at(t, text + at, len - at, flags, &id))
            return at;
    return len;
}

static int encode_bytes(const struct tokenizer *t, const uint8_t *text, size_t len,
                        struct tokens *out, struct err *err)
{
    int rc = tokens_room(out, len, err);
    for (size_t i = 0; rc == 0 && i < len; i++)
        out->ids[out->n++] = t->byte_ids[text[i]];
    return rc;
}

static int encode_words(struct word *w, const uint8_t *text, size_t len, struct tokens *out,
                        struct err *err)
{
    int rc = 0;
    for (size_t n; rc == 0 && len > 0; text += n, len -= n) {
        n = tokenizer_word(w->t->split, text, len);
        rc = encode_word(w, text, n, out, err);
    }
    return rc;
}

static int encode_text(const struct tokenizer *t, const uint8_t *text, size_t len, unsigned flags,
                       struct tokens *out, struct err *err)
{
    struct word w = {.t = t};
    uint32_t id = 0;
    int rc = 0;
    while (rc == 0 && len > 0) {
        size_t n = until_added(t, text, len, flags);
        rc = encode_words(&w, text, n, out, err);
        text += n;
        len -= n;
        const struct token *k = len ? added_at(t, text, len, flags, &id) : NULL;
        if (rc == 0 && k)
            rc = tokens_add(out, id, err);
        text += k ? k->len : 0;
        len -= k ? k->len : 0;
    }
    mem_free(w.symbols);
    mem_free(w.heap);
    return rc;
}

int tokenizer_encode(const struct tokenizer *t, const void *text, size_t len, unsigned flags,
                     struct tokens *out, struct err *err)
{
    int rc = 0;
    if (len > TOKENIZER_TEXT_MAX)
        return err_set(err, -ERR_LIMIT, "a text of %zu bytes, at most %u are encoded at once", len,
                       TOKENIZER_TEXT_MAX);
    if (flags & TOKENIZER_ENDS && t->bos >= 0)
        rc = tokens_add(out, (uint32_t)t->bos, err);
    if (rc == 0)
        rc = t->split == SPLIT_NONE ? encode_bytes(t, text, len, out, err)
                                    : encode_text(t, text, len, flags, out, err);
    if (rc == 0 && flags & TOKENIZER_ENDS && t->eos >= 0)
        rc = tokens_add(out, (uint32_t)t->eos, err);
    return rc;
}

/* ---- decoding ---- */

int tokenizer_decode(const struct tokenizer *t, const uint32_t *ids, size_t n, struct buf *out)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < n; i++) {
        size_t len;
        const uint8_t *p = tokenizer_piece(t, ids[i], &len);
        if (!tokenizer_is_special(t, ids[i]))
            rc = buf_append(out, p, len);
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
    /* Too long for what they say, surrogates, beyond U+10FFFF. */
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
    if (state < 0 && s->n > 1) { /* what was held stays broken; the byte may begin another */
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
