#include "common/data/tokenizer_build.h"

#define NONE TOKENIZER_NONE
#define POOL_MAX (256u << 20)

int build_refuse(const struct build *b, const char *fmt, ...)
{
    char why[512];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(why, sizeof(why), fmt, ap);
    va_end(ap);
    return err_set(b->err, -ERR_FORMAT, "tokenizer %s: %s", b->name, why);
}

int build_no_memory(const struct build *b)
{
    return err_set(b->err, -ENOMEM, "out of memory for the tokenizer %s", b->name);
}

/* GPT-2's alphabet: printable Latin-1 stands for itself, the other bytes for U+0100 and on. */
static void make_alphabet(struct build *b)
{
    int next = 256;
    memset(b->byte_of, 0xff, sizeof(b->byte_of));
    for (int c = 0; c < 256; c++) {
        bool itself = (c >= '!' && c <= '~') || (c >= 0xa1 && c <= 0xac) || c >= 0xae;
        b->byte_of[itself ? c : next++] = (int16_t)c;
    }
}

void build_open(struct build *b, const char *name, struct err *err)
{
    *b = (struct build){.t = mem_alloc(sizeof(*b->t)), .name = name, .err = err};
    struct tokenizer *t = b->t;
    t->split = SPLIT_WHOLE;
    t->bos = t->eos = t->put_first = t->put_last = t->unk = -1;
    memset(t->byte_ids, 0xff, sizeof(t->byte_ids));
    buf_init(&t->pool, POOL_MAX);
    buf_init(&t->charsmap, TOKENIZER_FILE_MAX);
    buf_init(&b->scratch, TOKENIZER_FILE_MAX);
    make_alphabet(b);
}

int build_close(struct build *b, int rc, struct tokenizer **ret)
{
    buf_release(&b->scratch);
    if (rc < 0)
        tokenizer_free(b->t);
    else
        *ret = b->t;
    return rc;
}

/* ---- tables ---- */

static uint32_t table_size(size_t n)
{
    uint32_t size = 16;
    while (size < 2 * n)
        size *= 2;
    return size;
}

int build_merge_room(struct build *b, size_t merges)
{
    struct tokenizer *t = b->t;
    uint32_t pairs = table_size(merges);
    mem_free(t->merges);
    t->merges = mem_try_array(pairs, sizeof(*t->merges));
    if (!t->merges)
        return build_no_memory(b);
    memset(t->merges, 0xff, pairs * sizeof(*t->merges));
    t->merge_mask = pairs - 1;
    return 0;
}

int build_room(struct build *b, size_t vocab, size_t merges)
{
    struct tokenizer *t = b->t;
    if (vocab == 0)
        return build_refuse(b, "its vocabulary is empty");
    if (vocab > TOKENIZER_VOCAB_MAX)
        return build_refuse(b, "it has %zu tokens, at most %u are possible", vocab,
                            TOKENIZER_VOCAB_MAX);
    uint32_t texts = table_size(vocab);
    t->tokens = mem_try_array(vocab, sizeof(*t->tokens));
    t->by_text = mem_try_array(texts, sizeof(*t->by_text));
    if (!t->tokens || !t->by_text)
        return build_no_memory(b);
    memset(t->by_text, 0xff, texts * sizeof(*t->by_text));
    t->vocab = (uint32_t)vocab;
    t->text_mask = texts - 1;
    return build_merge_room(b, merges);
}

/* Turns text of the alphabet into bytes.  Text with other characters (added tokens) stays. */
static int from_alphabet(struct build *b, const char *text, size_t len)
{
    const uint8_t *p = (const uint8_t *)text, *end = p + len;
    while (p < end) {
        uint32_t c = *p;
        size_t n = c < 0x80 ? 1 : 2;
        if (n == 2)
            c = p + 1 < end ? (c & 0x1f) << 6 | (p[1] & 0x3f) : NONE;
        if ((*p >= 0x80 && (*p & 0xe0) != 0xc0) || c >= 512 || b->byte_of[c] < 0) {
            buf_clear(&b->scratch);
            return buf_append(&b->scratch, text, len);
        }
        int rc = buf_append_byte(&b->scratch, (uint8_t)b->byte_of[c]);
        if (rc < 0)
            return rc;
        p += n;
    }
    return 0;
}

int build_text(struct build *b, const char *text, size_t len)
{
    const struct tokenizer *t = b->t;
    buf_clear(&b->scratch);
    int rc = t->meta         ? tokenizer_meta((const uint8_t *)text, len, &b->scratch)
             : t->characters ? buf_append(&b->scratch, text, len)
                             : from_alphabet(b, text, len);
    return rc < 0 ? build_no_memory(b) : 0;
}

/* Makes an id findable by its text. */
static void index_text(struct tokenizer *t, uint32_t id)
{
    const struct token *k = &t->tokens[id];
    const uint8_t *text = t->pool.data + k->at;
    if (tokenizer_find(t, text, k->len) >= 0)
        return; /* another id with the same text: the first stays */
    uint32_t i = tokenizer_hash(text, k->len);
    while (t->by_text[i & t->text_mask] != NONE)
        i++;
    t->by_text[i & t->text_mask] = id;
}

/* Sets the text of an id to the bytes in scratch. */
static int set_token(struct build *b, uint32_t id)
{
    struct tokenizer *t = b->t;
    const size_t len = b->scratch.len;
    if (len == 0 || len > TOKENIZER_PIECE_MAX)
        return build_refuse(b, "the token %u is empty or longer than %d bytes", id,
                            TOKENIZER_PIECE_MAX);
    t->tokens[id] = (struct token){(uint32_t)t->pool.len, (uint32_t)len, true, false};
    if (buf_append(&t->pool, b->scratch.data, len) < 0)
        return build_refuse(b, "its tokens have more than %u bytes together", POOL_MAX);
    index_text(t, id);
    return 0;
}

/* The byte of a name such as <0x41>; -1: it is not such a name. */
static int named_byte(const char *text, size_t len)
{
    unsigned byte;
    char name[8];
    if (len != 6 || sscanf(text, "<0x%2X>", &byte) != 1)
        return -1;
    (void)snprintf(name, sizeof(name), "<0x%02X>", byte);
    return memcmp(name, text, 6) == 0 ? (int)byte : -1;
}

int build_token(struct build *b, uint32_t id, const char *text, size_t len)
{
    struct tokenizer *t = b->t;
    const int byte = t->byte_fallback ? named_byte(text, len) : -1;
    if (t->tokens[id].used)
        return build_refuse(b, "two tokens have the id %u, one of them '%.64s'", id, text);
    int rc = byte < 0 ? build_text(b, text, len) : 0;
    if (byte < 0 || rc < 0)
        return rc < 0 ? rc : set_token(b, id);
    t->tokens[id] = (struct token){(uint32_t)t->pool.len, 1, true, false};
    t->byte_ids[byte] = id; /* no text leads to it */
    rc = buf_append_byte(&t->pool, (uint8_t)byte);
    return rc < 0 ? build_no_memory(b) : 0;
}

void build_bytes(struct build *b)
{
    for (int c = 0; c < 256; c++) {
        uint8_t byte = (uint8_t)c;
        int64_t hit = tokenizer_find(b->t, &byte, 1);
        b->t->byte_ids[c] = hit < 0 ? NONE : (uint32_t)hit;
    }
}

/* ---- merges ---- */

void build_merge(struct build *b, uint32_t left, uint32_t right, uint32_t rank, uint32_t id)
{
    struct tokenizer *t = b->t;
    uint32_t i = tokenizer_pair_hash(left, right);
    for (; t->merges[i & t->merge_mask].id != NONE; i++) {
        struct merge *m = &t->merges[i & t->merge_mask];
        if (m->left == left && m->right == right) {
            m->rank = rank; /* as in a map that is filled in order, the last one wins */
            m->id = id;
            return;
        }
    }
    t->merges[i & t->merge_mask] = (struct merge){left, right, rank, id};
}

int build_merge_text(struct build *b, const char *const side[2], const size_t len[2], uint32_t rank)
{
    int64_t ids[3] = {-1, -1, -1};
    struct buf whole;
    int rc = 0;
    buf_init(&whole, 2 * TOKENIZER_PIECE_MAX);
    for (int k = 0; rc == 0 && k < 2; k++) {
        rc = build_text(b, side[k], len[k]);
        ids[k] = rc < 0 ? -1 : tokenizer_find(b->t, b->scratch.data, b->scratch.len);
        if (ids[k] >= 0)
            rc = buf_append(&whole, b->scratch.data, b->scratch.len);
    }
    ids[2] = rc < 0 ? -1 : tokenizer_find(b->t, whole.data, whole.len);
    buf_release(&whole);
    if (ids[0] < 0 || ids[1] < 0 || ids[2] < 0)
        return build_refuse(b, "merge %u is not made of two tokens that together are a token",
                            rank);
    build_merge(b, (uint32_t)ids[0], (uint32_t)ids[1], rank, (uint32_t)ids[2]);
    return 0;
}

/* ---- added tokens ---- */

static int added_room(struct build *b)
{
    struct tokenizer *t = b->t;
    if (t->n_added < b->added_cap)
        return 0;
    if (t->n_added == TOKENIZER_ADDED_MAX)
        return build_refuse(b, "it has more than %d added tokens", TOKENIZER_ADDED_MAX);
    size_t cap = b->added_cap ? 2 * b->added_cap : 16;
    struct added *more = mem_try_realloc_array(t->added, cap, sizeof(*more));
    if (!more)
        return build_no_memory(b);
    t->added = more;
    b->added_cap = cap;
    return 0;
}

/* True if the text of a token is this, or is written like this. */
static bool has_text(struct build *b, const struct token *k, const char *text, size_t len)
{
    const uint8_t *own = b->t->pool.data + k->at;
    return (k->len == len && memcmp(own, text, len) == 0) ||
           (build_text(b, text, len) == 0 && k->len == b->scratch.len &&
            memcmp(own, b->scratch.data, k->len) == 0);
}

int build_added(struct build *b, const char *text, size_t len, struct added flags)
{
    struct tokenizer *t = b->t;
    struct token *k = &t->tokens[flags.id];
    size_t i = 0;
    int rc = added_room(b);
    if (rc == 0 && len == 0)
        rc = build_refuse(b, "an added token has no content");
    if (rc == 0 && k->used && !has_text(b, k, text, len))
        rc = build_refuse(b, "the added token '%.64s' has the id %u of another token", text,
                          flags.id);
    buf_clear(&b->scratch);
    if (rc == 0 && buf_append(&b->scratch, text, len) < 0)
        rc = build_no_memory(b);
    if (rc == 0 && !k->used)
        rc = set_token(b, flags.id);
    if (rc < 0)
        return rc;
    k->special = flags.special;
    flags.at = (uint32_t)t->pool.len;
    flags.len = (uint32_t)len;
    if (len > TOKENIZER_PIECE_MAX || buf_append(&t->pool, text, len) < 0)
        return build_refuse(b, "its tokens have more than %u bytes together", POOL_MAX);
    while (i < t->n_added && t->added[i].id != flags.id)
        i++;
    t->added[i] = flags;
    t->n_added += i == t->n_added;
    return 0;
}

int32_t build_special(const struct build *b, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        int64_t id = tokenizer_find(b->t, names[i], strlen(names[i]));
        if (id >= 0 && b->t->tokens[id].special)
            return (int32_t)id;
    }
    return -1;
}

/* ---- rewriting ---- */

int build_rewrite(struct build *b, enum rewrite how)
{
    struct tokenizer *t = b->t;
    if (t->n_rewrites == TOKENIZER_REWRITES_MAX)
        return build_refuse(b, "it has more than %d normalizers", TOKENIZER_REWRITES_MAX);
    t->rewrites[t->n_rewrites++] = how;
    return 0;
}

int build_charsmap(struct build *b, const uint8_t *data, size_t len)
{
    struct tokenizer *t = b->t;
    uint32_t size = 0;
    if (t->trie)
        return build_refuse(b, "it has two Precompiled normalizers");
    if (len >= 4)
        memcpy(&size, data, 4);
    if (size < 4 || size % 4 != 0 || size > len - 4)
        return build_refuse(b, "its precompiled_charsmap of %zu bytes is cut short", len);
    t->trie = mem_try(size);
    if (!t->trie || buf_append(&t->charsmap, data + 4 + size, len - 4 - size) < 0)
        return build_no_memory(b);
    memcpy(t->trie, data + 4, size);
    t->n_trie = size / 4;
    return build_rewrite(b, REWRITE_CHARSMAP);
}

/* ---- the end ---- */

static int longest_first(const void *a, const void *b)
{
    const struct added *x = a, *y = b;
    if (x->len != y->len)
        return x->len > y->len ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* Rewrites the added tokens that are searched for in rewritten text. */
static int rewrite_added(struct build *b, struct buf *out, struct buf *spare)
{
    struct tokenizer *t = b->t;
    for (size_t i = 0; t->n_rewrites && i < t->n_added; i++) {
        struct added *a = &t->added[i];
        if (!a->normalized)
            continue;
        int rc = tokenizer_rewrite(t, t->pool.data + a->at, a->len, out, spare);
        a->at = (uint32_t)t->pool.len;
        a->len = (uint32_t)out->len;
        if (rc < 0 || buf_append(&t->pool, out->data, out->len) < 0)
            return build_no_memory(b);
    }
    return 0;
}

/* True if words give the ids of the whole text, to encode which would take 72 bytes for each of its
 * symbols. */
static bool can_cut(const struct tokenizer *t)
{
    bool drop;
    if (t->split != SPLIT_WHOLE || t->scores || t->whole_words || t->suffix ||
        tokenizer_find(t, " ", 1) < 0)
        return false;
    for (uint32_t i = 0; t->merges && i <= t->merge_mask; i++) {
        const uint32_t id = t->merges[i].id;
        const struct token *k = id == NONE ? NULL : &t->tokens[id];
        if (k && tokenizer_word(SPLIT_BEFORE, t->pool.data + k->at, k->len, &drop) < k->len)
            return false;
    }
    return true;
}

int build_finish(struct build *b)
{
    struct tokenizer *t = b->t;
    struct buf out, spare;
    buf_init(&out, 32 * TOKENIZER_PIECE_MAX);
    buf_init(&spare, 32 * TOKENIZER_PIECE_MAX);
    int rc = rewrite_added(b, &out, &spare);
    buf_release(&out);
    buf_release(&spare);
    if (rc == 0 && t->scores && tokenizer_unigram_sort(t) < 0)
        rc = build_no_memory(b);
    if (rc < 0)
        return rc;
    if (can_cut(t))
        t->split = SPLIT_BEFORE;
    if (t->n_added)
        qsort(t->added, t->n_added, sizeof(*t->added), longest_first);
    for (size_t i = 0; i < t->n_added; i++) {
        const struct added *a = &t->added[i];
        if (a->len)
            t->added_starts[a->normalized][t->pool.data[a->at]] |= a->special ? 2 : 1;
    }
    return 0;
}
