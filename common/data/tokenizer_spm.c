/* Reads a SentencePiece model: the fields of its protobuf message that affect ids. */
#include "common/data/tokenizer_build.h"

enum piece_type { NORMAL = 1, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE };
enum model_type { UNIGRAM = 1, BPE };

/* The rest of a message. */
struct wire {
    const uint8_t *at, *end;
};

/* One field: a number (also the bits of a float), or bytes. */
struct field {
    uint64_t number; /* the field's number */
    uint64_t value;
    struct wire bytes;
};

struct piece {
    const char *text;
    size_t len;
    float score;
    uint64_t type;
};

/* Settings from the specs of trainer and normalizer. */
struct spec {
    uint64_t model_type;
    bool byte_fallback, suffix, dummy_prefix, extra_spaces_go, escape;
    int32_t unk, bos, eos;
    struct wire charsmap;
};

static bool read_varint(struct wire *w, uint64_t *ret)
{
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64 && w->at < w->end; shift += 7) {
        uint8_t byte = *w->at++;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80)) {
            *ret = value;
            return true;
        }
    }
    return false;
}

/* The next field; false: there is none that can be read. */
static bool read_field(struct wire *w, struct field *f)
{
    static const uint8_t fixed[8] = {[1] = 8, [5] = 4};
    uint64_t tag, len;
    *f = (struct field){0};
    if (!read_varint(w, &tag))
        return false;
    f->number = tag >> 3;
    if ((tag & 7) == 0)
        return read_varint(w, &f->value);
    len = fixed[tag & 7];
    if (len == 0 && ((tag & 7) != 2 || !read_varint(w, &len)))
        return false;
    if (len > (uint64_t)(w->end - w->at))
        return false;
    f->bytes = (struct wire){w->at, w->at + len};
    if ((tag & 7) == 5)
        memcpy(&f->value, w->at, 4);
    w->at += len;
    return true;
}

static bool read_piece(struct wire w, struct piece *p)
{
    struct field f;
    uint32_t bits;
    *p = (struct piece){.type = NORMAL};
    while (w.at < w.end) {
        if (!read_field(&w, &f))
            return false;
        if (f.number == 1) {
            p->text = (const char *)f.bytes.at;
            p->len = f.bytes.at ? (size_t)(f.bytes.end - f.bytes.at) : 0;
        } else if (f.number == 2) {
            bits = (uint32_t)f.value;
            memcpy(&p->score, &bits, 4);
        } else if (f.number == 3) {
            p->type = f.value;
        }
    }
    return p->len > 0 && str_is_utf8(p->text, p->len) && isfinite(p->score);
}

static bool read_trainer(struct wire w, struct spec *s)
{
    struct field f;
    while (w.at < w.end) {
        if (!read_field(&w, &f))
            return false;
        if (f.number == 3)
            s->model_type = f.value;
        else if (f.number == 24)
            s->suffix = f.value;
        else if (f.number == 35)
            s->byte_fallback = f.value;
        else if (f.number == 40)
            s->unk = (int32_t)f.value;
        else if (f.number == 41)
            s->bos = (int32_t)f.value;
        else if (f.number == 42)
            s->eos = (int32_t)f.value;
    }
    return true;
}

static bool read_normalizer(struct wire w, struct spec *s)
{
    struct field f;
    while (w.at < w.end) {
        if (!read_field(&w, &f))
            return false;
        if (f.number == 2)
            s->charsmap = f.bytes;
        else if (f.number == 3)
            s->dummy_prefix = f.value;
        else if (f.number == 4)
            s->extra_spaces_go = f.value;
        else if (f.number == 5)
            s->escape = f.value;
    }
    return true;
}

/* Reads the specs and counts the pieces. */
static int read_specs(const struct build *b, struct wire w, struct spec *s, size_t *ret_pieces)
{
    struct field f;
    bool good = true;
    *s = (struct spec){.model_type = UNIGRAM,
                       .dummy_prefix = true,
                       .extra_spaces_go = true,
                       .escape = true,
                       .bos = 1,
                       .eos = 2};
    *ret_pieces = 0;
    while (good && w.at < w.end) {
        good = read_field(&w, &f);
        *ret_pieces += good && f.number == 1;
        if (good && f.number == 2)
            good = read_trainer(f.bytes, s);
        if (good && f.number == 3)
            good = read_normalizer(f.bytes, s);
    }
    if (!good)
        return build_refuse(b, "it is neither JSON nor a SentencePiece model, or is cut short");
    if (s->model_type != UNIGRAM && s->model_type != BPE)
        return build_refuse(b,
                            "its SentencePiece model is of the type %" PRIu64
                            ", expected Unigram (1) or BPE (2)",
                            s->model_type);
    if (s->suffix || !s->escape)
        return build_refuse(b, "its SentencePiece model has %s, which is not supported",
                            s->suffix ? "treat_whitespace_as_suffix" : "spaces without U+2581");
    if (s->model_type == UNIGRAM && !s->extra_spaces_go)
        return build_refuse(b,
                            "its SentencePiece model is Unigram and keeps extra spaces, which is "
                            "not supported");
    return 0;
}

/* Sets the rewriting and cutting of texts: for Unigram as in transformers' T5, for BPE as in
 * SentencePiece. */
static int take_steps(struct build *b, const struct spec *s)
{
    static const enum rewrite tidy[] = {REWRITE_RUNS, REWRITE_STRIP_LEFT, REWRITE_STRIP_RIGHT};
    struct tokenizer *t = b->t;
    int rc = 0;
    t->meta = t->characters = t->fuse_unk = t->sentencepiece = true;
    t->byte_fallback = s->byte_fallback;
    if (s->charsmap.at < s->charsmap.end)
        rc = build_charsmap(b, s->charsmap.at, (size_t)(s->charsmap.end - s->charsmap.at));
    if (s->model_type == UNIGRAM) {
        t->split = SPLIT_SPACES;
        t->metaspace = t->cut_at_space = true;
        t->prefix = s->dummy_prefix ? PREFIX_ALL : PREFIX_NONE;
        return rc;
    }
    for (size_t i = 0; rc == 0 && s->extra_spaces_go && i < 3; i++)
        rc = build_rewrite(b, tidy[i]);
    if (rc == 0 && s->dummy_prefix)
        rc = build_rewrite(b, REWRITE_PREPEND);
    return rc < 0 ? rc : build_rewrite(b, REWRITE_META);
}

static int take_piece(struct build *b, uint32_t id, const struct piece *p)
{
    struct tokenizer *t = b->t;
    char text[64];
    if (p->type < NORMAL || p->type > BYTE || p->type == UNUSED)
        return build_refuse(b, "the piece %u is of the type %" PRIu64 ", which is not supported",
                            id, p->type);
    t->scores[id] = (double)p->score;
    int rc = build_token(b, id, p->text, p->len);
    if (rc < 0 || p->type == NORMAL || p->type == BYTE)
        return rc;
    (void)snprintf(text, sizeof(text), "%.*s", (int)(p->len < 63 ? p->len : 63), p->text);
    if (p->len > 63)
        return build_refuse(b, "the special piece '%s' is longer than 63 bytes", text);
    return build_added(b, text, p->len,
                       (struct added){.id = id, .special = p->type != USER_DEFINED});
}

/* Adds T5's extra ids, which follow the pieces, the last one first. */
static int take_extra_ids(struct build *b, uint32_t n_pieces)
{
    char text[32];
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < b->extra_ids; i++) {
        const uint32_t id = n_pieces + b->extra_ids - 1 - i;
        (void)snprintf(text, sizeof(text), "<extra_id_%u>", i);
        rc = build_added(b, text, strlen(text), (struct added){.id = id, .special = true});
        b->t->scores[id] = 0;
    }
    return rc;
}

static int take_pieces(struct build *b, struct wire w)
{
    struct field f;
    struct piece p;
    uint32_t id = 0;
    int rc = 0;
    b->t->scores = mem_try_array(b->t->vocab, sizeof(*b->t->scores));
    if (!b->t->scores)
        return build_no_memory(b);
    while (rc == 0 && w.at < w.end && read_field(&w, &f)) {
        if (f.number != 1)
            continue;
        rc = read_piece(f.bytes, &p) ? take_piece(b, id, &p)
                                     : build_refuse(b, "the piece %u cannot be read", id);
        id++;
    }
    return rc < 0 ? rc : take_extra_ids(b, id);
}

/* ---- BPE: each two pieces that together are a piece can merge, the likeliest first ---- */

/* The pieces by score, the best first. */
static int by_score(const void *a, const void *b, void *arg)
{
    const double *scores = arg;
    const double x = scores[*(const uint32_t *)a], y = scores[*(const uint32_t *)b];
    return x != y ? (x > y ? -1 : 1) : 0;
}

/* Adds the merges that make a piece; with `count` only counts them. */
static void merge_into(struct build *b, uint32_t id, uint32_t rank, size_t *count)
{
    const struct tokenizer *t = b->t;
    const struct token *k = &t->tokens[id];
    const uint8_t *text = t->pool.data + k->at;
    for (size_t cut = 1; !k->special && cut < k->len; cut++) {
        int64_t left = tokenizer_find(t, text, cut);
        int64_t right = left < 0 ? -1 : tokenizer_find(t, text + cut, k->len - cut);
        if (right < 0 || t->tokens[left].special || t->tokens[right].special)
            continue;
        if (count)
            ++*count;
        else
            build_merge(b, (uint32_t)left, (uint32_t)right, rank, id);
    }
}

static int take_merges(struct build *b)
{
    struct tokenizer *t = b->t;
    uint32_t *order = mem_try_array(t->vocab, sizeof(*order));
    size_t n = 0;
    uint32_t rank = 0;
    for (uint32_t id = 0; order && id < t->vocab; id++) {
        order[id] = id;
        merge_into(b, id, 0, &n);
    }
    int rc = order ? build_merge_room(b, n) : build_no_memory(b);
    if (rc == 0)
        qsort_r(order, t->vocab, sizeof(*order), by_score, t->scores);
    for (uint32_t i = 0; rc == 0 && i < t->vocab; i++) {
        rank = i > 0 && t->scores[order[i]] == t->scores[order[i - 1]] ? rank : i;
        merge_into(b, order[i], rank, NULL);
    }
    mem_free(order);
    mem_free(t->scores);
    t->scores = NULL; /* scores would mean Unigram */
    return rc;
}

static int32_t known(const struct tokenizer *t, int32_t id)
{
    return id >= 0 && (uint32_t)id < t->vocab && t->tokens[id].used ? id : -1;
}

int tokenizer_read_spm(struct build *b, const void *data, size_t len)
{
    const struct wire w = {data, (const uint8_t *)data + len};
    struct tokenizer *t = b->t;
    struct spec s;
    size_t n = 0;
    int rc = read_specs(b, w, &s, &n);
    if (rc == 0)
        rc = take_steps(b, &s);
    if (rc == 0)
        rc = build_room(b, n + b->extra_ids, 0);
    if (rc == 0)
        rc = take_pieces(b, w);
    if (rc == 0 && s.model_type == BPE)
        rc = take_merges(b);
    t->unk = rc < 0 ? -1 : known(t, s.unk);
    t->bos = rc < 0 ? -1 : known(t, s.bos);
    t->eos = rc < 0 ? -1 : known(t, s.eos);
    return rc;
}
