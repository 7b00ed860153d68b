/* Encodes texts: finds added tokens, rewrites the text between them, cuts it into words, and
 * merges each word (BPE) or cuts it into pieces (Unigram). */
#include "common/base/base.h"
#include "common/data/tokenizer_impl.h"
#include "common/data/unicode.h"

#define NONE TOKENIZER_NONE

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

/* Two neighbours that could merge.  It is stale if the symbols have changed. */
struct candidate {
    uint32_t rank, at, left, right, id;
};

struct word {
    const struct tokenizer *t;
    unsigned flags;
    struct tokens *out;
    struct err *err;
    struct tokens first; /* the word's ids before merging */
    struct symbol *symbols;
    struct candidate *heap; /* lowest rank first, then leftmost */
    size_t cap, n_heap;
    struct buf text, spare; /* rewritten */
    struct buf spaced;      /* a word with its Metaspace, a part with ByteLevel's space */
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

/* The id of a word's character; -1: the vocabulary lacks it. */
static int64_t find_symbol(const struct tokenizer *t, const uint8_t *text, size_t len, bool last)
{
    uint8_t ended[8] = {0};
    if (last && t->suffix) {
        memcpy(ended, text, len);
        memcpy(ended + len, "</w>", 4);
        return tokenizer_find(t, ended, len + 4);
    }
    return tokenizer_find(t, text, len);
}

/* The bytes or characters that merging begins with. */
static int first_ids(struct word *w, const uint8_t *text, size_t len)
{
    const struct tokenizer *t = w->t;
    bool unknown = false;
    w->first.n = 0;
    int rc = tokens_room(&w->first, len, w->err);
    for (size_t n = 1; rc == 0 && len > 0; text += n, len -= n) {
        if (!t->characters && (len > 1 || !t->suffix) && t->byte_ids[*text] != NONE) {
            w->first.ids[w->first.n++] = t->byte_ids[*text];
            unknown = false;
            continue;
        }
        if (t->characters)
            (void)unicode_decode(text, len, &n);
        int64_t id = find_symbol(t, text, n, n == len);
        if (id >= 0)
            rc = tokens_add(&w->first, (uint32_t)id, w->err);
        else if (!unknown || !t->fuse_unk || t->byte_fallback)
            rc = tokenizer_unknown(t, text, n, &w->first, w->err);
        unknown = id < 0;
    }
    return rc;
}

static int encode_word(struct word *w, const uint8_t *text, size_t len)
{
    const struct tokenizer *t = w->t;
    if (t->scores)
        return tokenizer_unigram(t, text, len, w->flags, w->out, w->err);
    int64_t whole = t->whole_words ? tokenizer_find(t, text, len) : -1;
    if (whole >= 0)
        return tokens_add(w->out, (uint32_t)whole, w->err);
    int rc = first_ids(w, text, len);
    const size_t n = w->first.n;
    if (rc == 0)
        rc = word_room(w, n, w->err);
    if (rc == 0)
        rc = tokens_room(w->out, n, w->err);
    if (rc < 0 || n == 0)
        return rc;
    w->n_heap = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t at = (uint32_t)i;
        w->symbols[i] =
            (struct symbol){w->first.ids[i], i ? at - 1 : NONE, i + 1 < n ? at + 1 : NONE};
        if (i > 0)
            consider(w, at - 1);
    }
    merge_all(w);
    for (uint32_t i = 0; i != NONE; i = w->symbols[i].after)
        w->out->ids[w->out->n++] = w->symbols[i].id;
    return 0;
}

/* ---- encoding ---- */

static int encode_bytes(const struct tokenizer *t, const uint8_t *text, size_t len,
                        struct tokens *out, struct err *err)
{
    int rc = tokens_room(out, len, err);
    for (size_t i = 0; rc == 0 && i < len; i++)
        out->ids[out->n++] = t->byte_ids[text[i]];
    return rc;
}

/* A word with a space before it, cut before each other space. */
static int encode_spaced(struct word *w, const uint8_t *text, size_t len, bool prefix)
{
    const struct tokenizer *t = w->t;
    buf_clear(&w->spaced);
    int rc = buf_append_byte(&w->spaced, ' ');
    if (rc == 0)
        rc = tokenizer_meta(text, len, &w->spaced);
    if (rc < 0)
        return err_set(w->err, rc, "out of memory for a word of %zu bytes", len);
    const size_t from = !prefix || w->spaced.data[1] == ' ';
    text = w->spaced.data + from;
    len = w->spaced.len - from;
    while (rc == 0 && len > 0) {
        const uint8_t *next = t->cut_at_space ? memchr(text + 1, ' ', len - 1) : NULL;
        size_t n = next ? (size_t)(next - text) : len;
        rc = encode_word(w, text, n);
        text += n;
        len -= n;
    }
    return rc;
}

static int encode_words(struct word *w, enum split split, const uint8_t *text, size_t len,
                        bool first)
{
    const struct tokenizer *t = w->t;
    bool drop;
    int rc = 0;
    for (size_t n; rc == 0 && len > 0; text += n, len -= n, first = false) {
        n = tokenizer_word(split, text, len, &drop);
        if (drop)
            continue;
        if (split == SPLIT_CLIP)
            rc = encode_words(w, SPLIT_GPT2, text, n, false);
        else if (t->metaspace)
            rc = encode_spaced(w, text, n,
                               t->prefix == PREFIX_ALL || (t->prefix == PREFIX_FIRST && first));
        else
            rc = encode_word(w, text, n);
    }
    return rc;
}

/* Encodes the text between two added tokens. */
static int encode_part(struct word *w, const uint8_t *text, size_t len, bool first)
{
    const struct tokenizer *t = w->t;
    if (t->metaspace || t->prefix == PREFIX_NONE || text[0] == ' ')
        return encode_words(w, t->split, text, len, first);
    buf_clear(&w->spaced);
    int rc = buf_append_byte(&w->spaced, ' ');
    if (rc == 0)
        rc = buf_append(&w->spaced, text, len);
    return rc < 0 ? err_set(w->err, rc, "out of memory for a text of %zu bytes", len)
                  : encode_words(w, t->split, w->spaced.data, w->spaced.len, first);
}

/* ---- added tokens in a text ---- */

/* The place of an added token; `to` SIZE_MAX: there is none. */
struct hit {
    size_t from, to;
    uint32_t id;
};

/* True if a word goes on at a place of the text. */
static bool word_at(const uint8_t *text, size_t len, size_t at, bool before)
{
    size_t n, from = at;
    while (before && from > 0 && (text[--from] & 0xc0) == 0x80 && at - from < 4)
        ;
    return (before ? at > 0 : at < len) &&
           unicode_is_word(unicode_decode(text + from, len - from, &n));
}

/* Extends the place by the white space that the token includes. */
static void widen(const struct added *a, const uint8_t *text, size_t len, size_t low,
                  struct hit *hit)
{
    size_t at = low, n;
    for (bool space; a->lstrip && at < hit->from; at += n) {
        space = unicode_is_space(unicode_decode(text + at, len - at, &n));
        low = space ? low : at + n;
    }
    hit->from = a->lstrip ? low : hit->from;
    while (a->rstrip && hit->to < len &&
           unicode_is_space(unicode_decode(text + hit->to, len - hit->to, &n)))
        hit->to += n;
}

/* The longest added token at a place of the text; NULL: none. */
static const struct added *added_at(const struct word *w, const uint8_t *text, size_t len,
                                    bool normalized)
{
    const struct tokenizer *t = w->t;
    for (size_t i = 0; i < t->n_added; i++) {
        const struct added *a = &t->added[i];
        if (a->normalized == normalized && (!a->special || w->flags & TOKENIZER_SPECIAL) &&
            a->len > 0 && a->len <= len && memcmp(t->pool.data + a->at, text, a->len) == 0)
            return a;
    }
    return NULL;
}

static struct hit find_added(const struct word *w, const uint8_t *text, size_t len, size_t low,
                             bool normalized)
{
    const uint8_t *starts = w->t->added_starts[normalized];
    const uint8_t wanted = w->flags & TOKENIZER_SPECIAL ? 3 : 1;
    struct hit hit = {len, SIZE_MAX, 0};
    const struct added *a;
    for (size_t at = low; w->t->n_added && at < len; at += a ? a->len : 1) {
        a = starts[text[at]] & wanted ? added_at(w, text + at, len - at, normalized) : NULL;
        if (!a || (a->single_word &&
                   (word_at(text, len, at, true) || word_at(text, len, at + a->len, false))))
            continue;
        hit = (struct hit){at, at + a->len, a->id};
        widen(a, text, len, low, &hit);
        break;
    }
    return hit;
}

/* Added tokens are searched for twice: in the original text, and in the text between them after
 * that is rewritten. */
static int encode_around(struct word *w, const uint8_t *text, size_t len, bool first,
                         bool normalized)
{
    const struct tokenizer *t = w->t;
    int rc = 0;
    for (size_t at = 0; rc == 0 && at < len;) {
        struct hit hit = find_added(w, text, len, at, normalized);
        const uint8_t *part = text + at;
        size_t n = hit.from - at;
        bool begins = first && at == 0;
        if (n > 0 && normalized)
            rc = encode_part(w, part, n, begins);
        else if (n > 0 && t->n_rewrites == 0)
            rc = encode_around(w, part, n, begins, true);
        else if (n > 0) {
            rc = tokenizer_rewrite(t, part, n, &w->text, &w->spare);
            rc = rc < 0 ? err_set(w->err, rc, "out of memory for a text of %zu bytes", n)
                        : encode_around(w, w->text.data, w->text.len, begins, true);
        }
        if (rc == 0 && hit.to != SIZE_MAX)
            rc = tokens_add(w->out, hit.id, w->err);
        at = hit.to == SIZE_MAX ? len : hit.to;
    }
    return rc;
}

static int encode_text(const struct tokenizer *t, const uint8_t *text, size_t len, unsigned flags,
                       struct tokens *out, struct err *err)
{
    struct word w = {.t = t, .flags = flags, .out = out, .err = err};
    /* NFC and charsmaps make texts longer, none of them more than this. */
    const size_t most = 32 * len + 64;
    buf_init(&w.text, most);
    buf_init(&w.spare, most);
    buf_init(&w.spaced, most);
    int rc = encode_around(&w, text, len, true, false);
    tokens_release(&w.first);
    mem_free(w.symbols);
    mem_free(w.heap);
    buf_release(&w.text);
    buf_release(&w.spare);
    buf_release(&w.spaced);
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
