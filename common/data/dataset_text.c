/* Text as a dataset: documents become pieces, pieces are shuffled on disk, then
 * written as shards.
 *
 *    documents ──tokens──► pieces ──by hash of (seed, piece)──► spool on disk ──► shards
 *
 * No shard is given out before everything was read, so a fault in the data costs no upload. */

#include "common/base/base.h"
#include "common/base/rng.h"
#include "common/data/dataset_impl.h"
#include "common/data/shard.h"
#include "common/data/text_source.h"
#include "common/data/tokenizer.h"

#define STREAM_PIECES 0x706965636573ULL /* the seed's streams: the order of the pieces, */
#define STREAM_SPANS 0x7370616e73ULL    /* and which spans are held out */
#define RECORD_MAX (16u << 20)
#define KEPT_BYTES (512u << 20) /* most bytes of a kept document, with its columns */
#define PROGRESS_EVERY 256

/* The head of a piece in a bucket; the key, the payload and the feature follow. */
struct record {
    uint64_t hash;
    uint32_t key_len, len, tokens, dim;
};

struct text_dataset {
    struct text_source *text, *held_out; /* held_out may be NULL */
    const struct tokenizer *tokenizer;   /* NULL: bytes */
    uint32_t context;
};

/* Spans of long documents, counted over all of them; one in 1/holdout is held out. */
struct spans {
    uint32_t pieces; /* pieces of a span */
    uint64_t n;      /* pieces of long documents so far */
    uint64_t first;  /* number of the first span that is held out */
};

/* The document that is held out if no other is: the one whose size is nearest to the holdout. */
struct kept {
    struct buf records;
    double off; /* from that size, bytes */
};

struct text_cut {
    struct cutter *c;
    const struct dataset *ds;
    const struct text_dataset *own; /* the dataset's */
    struct text_source *source;     /* the one that is being read */
    uint64_t before;                /* bytes of those before it */
    struct spool train, holdout;
    struct spans spans;
    struct kept kept;
    const struct tokenizer *tokenizer;
    struct tokens tokens; /* the document */
    uint32_t *piece;      /* one piece of a token file */
    struct buf payload, record;
};

/* ---- opening ---- */

static int open_source(const struct dataset_options *opt, const char *path, const char *name,
                       struct text_source **ret, struct err *err)
{
    struct text_source_options o = {
        .path = path,
        .name = name,
        .field = opt->text_field,
        .column = opt->column,
    };
    struct text_document first;
    struct text_source *probe;
    int rc = text_source_open(&o, &probe, err);
    if (rc < 0)
        return rc;
    rc = text_source_next(probe, &first, err);
    text_source_close(probe);
    if (rc == 0)
        return err_set(err, -ERR_FORMAT, "%s has no documents", path);
    return rc < 0 ? rc : text_source_open(&o, ret, err);
}

static int text_matches(const struct dataset_options *opt, struct err *err)
{
    return opt->text;
}

static int text_open(struct dataset *ds, const struct dataset_options *opt, struct err *err)
{
    struct text_dataset *own = ds->own = mem_alloc(sizeof(*own));
    own->tokenizer = opt->tokenizer;
    own->context = opt->context;
    if (opt->context < 2 || opt->context > SHARD_TOKENS_MAX)
        return err_set(err, -EINVAL, "text cannot be cut into pieces of %u tokens", opt->context);
    int rc = open_source(opt, opt->path, opt->name, &own->text, err);
    if (rc == 0)
        ds->left.others = text_source_left(own->text);
    if (rc < 0 || !opt->holdout_path)
        return rc;
    rc = open_source(opt, opt->holdout_path, NULL, &own->held_out, err);
    return rc < 0 ? err_wrap(err, "holdout_path") : rc;
}

static void text_close(struct dataset *ds)
{
    struct text_dataset *own = ds->own;
    if (!own)
        return;
    text_source_close(own->text);
    text_source_close(own->held_out);
    mem_free(own);
}

static size_t record_bytes(const struct record *r)
{
    return sizeof(*r) + r->key_len + r->len + r->dim * sizeof(float);
}

static int add_record(struct text_cut *t, struct spool *s, const uint8_t *record)
{
    struct record r;
    memcpy(&r, record, sizeof(r));
    return spool_add(s, r.hash, record, record_bytes(&r), t->c->err);
}

/* ---- the document that is kept for the held-out loss ---- */

static int release_kept(struct text_cut *t, struct spool *to)
{
    struct buf *b = &t->kept.records;
    int rc = 0;
    for (size_t at = 0; rc == 0 && at < b->len;) {
        struct record r;
        memcpy(&r, b->data + at, sizeof(r));
        rc = add_record(t, to, b->data + at);
        at += record_bytes(&r);
    }
    buf_clear(b);
    return rc;
}

/* True if a document is a better one to keep; never once others are held out. */
static bool is_nearer(struct text_cut *t, const struct text_document *doc)
{
    const double size = (double)(doc->text ? doc->len : doc->n_ids * sizeof(uint16_t));
    const double asked = t->c->opt->holdout * (double)text_source_bytes(t->own->text);
    const double off = fabs(size - fmax(asked, 2 * DATASET_PIECE_MIN));
    if (t->holdout.records > 0 || (t->kept.records.len > 0 && off >= t->kept.off))
        return false;
    t->kept.off = off;
    return true;
}

/* Decides on the kept document at the end. */
static int settle_kept(struct text_cut *t)
{
    const bool holds = t->holdout.records > 0;
    t->c->report.holdout_documents += !holds && t->kept.records.len > 0;
    return release_kept(t, holds ? &t->train : &t->holdout);
}

/* ---- documents to pieces ---- */

/* Checks that the ids of a token file are below the tokenizer's vocabulary; without one they set
 * the vocabulary. */
static int check_vocab(const struct text_cut *t, const char *key, const uint32_t *ids, size_t n)
{
    uint32_t *vocab = &t->c->report.vocab;
    for (size_t i = 0; i < n; i++) {
        if (ids[i] < *vocab)
            continue;
        if (t->own->tokenizer)
            return err_set(t->c->err, -ERR_FORMAT,
                           "document '%s' has the token %u, but the vocabulary of data.tokenizer "
                           "ends at %u: the data were made with another tokenizer",
                           key, ids[i], *vocab - 1);
        *vocab = ids[i] + 1;
    }
    return 0;
}

static int tell_progress(struct text_cut *t)
{
    t->c->seen = t->before + text_source_done(t->source);
    return cut_progress(t->c, t->c->seen);
}

/* The destination of a document, or of a piece. */
enum split { SPLIT_TRAIN, SPLIT_HOLDOUT, SPLIT_SPANS, SPLIT_KEEP };

static int add_piece(struct text_cut *t, const struct text_document *doc, enum split split,
                     uint64_t number, const uint32_t *ids, size_t n)
{
    struct cutter *c = t->c;
    char key[1024];
    uint64_t stream = rng_mix(rng_mix(c->opt->seed, STREAM_PIECES), number);
    buf_clear(&t->payload);
    int rc = shard_encode_tokens(ids, n, &t->payload);
    if (rc < 0)
        return err_set(c->err, rc, "out of memory while cutting '%s'", doc->key);
    int len = snprintf(key, sizeof(key), "%s#%" PRIu64, doc->key, number);
    struct record r = {
        .hash = rng_mix(stream, cut_hash(doc->key)),
        .key_len = (uint32_t)len,
        .len = (uint32_t)t->payload.len,
        .tokens = (uint32_t)n,
        .dim = (uint32_t)doc->dim,
    };
    buf_clear(&t->record);
    rc = buf_append(&t->record, &r, sizeof(r));
    if (rc == 0)
        rc = buf_append(&t->record, key, r.key_len);
    if (rc == 0)
        rc = buf_append(&t->record, t->payload.data, r.len);
    if (rc == 0)
        rc = buf_append(&t->record, doc->feature, r.dim * sizeof(float));
    if (rc == 0 && split == SPLIT_KEEP)
        rc = buf_append(&t->kept.records, t->record.data, t->record.len);
    if (rc < 0)
        return err_set(c->err, rc, "out of memory while cutting '%s'", key);
    return split == SPLIT_KEEP
               ? 0
               : add_record(t, split == SPLIT_HOLDOUT ? &t->holdout : &t->train, t->record.data);
}

/* The ids at..at+n of the document. */
static int ids_at(struct text_cut *t, const struct text_document *doc, size_t at, size_t n,
                  const uint32_t **ret)
{
    *ret = doc->text ? t->tokens.ids + at : t->piece;
    return doc->text ? 0 : text_source_ids(t->source, at, n, t->piece, t->c->err);
}

static enum split split_of(struct text_cut *t, const struct text_document *doc, size_t total)
{
    const struct cutter *c = t->c;
    if (t->own->held_out || c->opt->holdout == 0)
        return SPLIT_TRAIN;
    if (total > (size_t)DATASET_WHOLE_SPANS * t->spans.pieces * t->own->context)
        return SPLIT_SPANS;
    if (cut_is_holdout(c, doc->key))
        return SPLIT_HOLDOUT;
    return total >= 2 && !c->opt->may_hold_none && is_nearer(t, doc) ? SPLIT_KEEP : SPLIT_TRAIN;
}

/* True if the next piece of a long document of `total` tokens is held out. */
static bool in_held_span(struct text_cut *t, const struct text_document *doc, size_t total)
{
    struct spans *s = &t->spans;
    const double share = t->c->opt->holdout;
    if (s->n == 0) { /* the seed decides how far into the text */
        uint64_t every = (uint64_t)(1 / share), there = total / t->own->context / s->pieces;
        s->first = rng_mix(rng_mix(t->c->opt->seed, STREAM_SPANS), cut_hash(doc->key)) %
                   (every < there ? every : there);
    }
    const double after = (double)(s->n++ / s->pieces) - (double)s->first;
    return floor(after * share) > floor((after - 1) * share);
}

static int cut_document(struct text_cut *t, const struct text_document *doc, size_t total,
                        enum split split)
{
    uint32_t context = t->own->context;
    size_t least = context < DATASET_PIECE_MIN ? context : DATASET_PIECE_MIN;
    uint64_t number = 0;
    enum split to = split;
    int rc = split == SPLIT_KEEP ? release_kept(t, &t->train) : 0;
    /* Each piece begins with the last token of the one before. */
    for (size_t at = 0; rc == 0 && at + 1 < total; at += context - 1) {
        size_t n = total - at < context ? total - at : context;
        const uint32_t *ids;
        if (at > 0 && n < least) { /* the end: it goes where the piece went whose tokens it has */
            at = total - least;
            n = least;
        } else if (split == SPLIT_SPANS) {
            to = in_held_span(t, doc, total) ? SPLIT_HOLDOUT : SPLIT_TRAIN;
        }
        rc = ids_at(t, doc, at, n, &ids);
        if (rc == 0)
            rc = check_vocab(t, doc->key, ids, n);
        if (rc == 0)
            rc = add_piece(t, doc, to, number++, ids, n);
        if (rc == 0 && number % PROGRESS_EVERY == 0)
            rc = tell_progress(t);
    }
    t->c->report.documents += number > 0;
    t->c->report.holdout_documents += number > 0 && split == SPLIT_HOLDOUT;
    return rc;
}

/* Counts documents that are not UTF-8: they are used as they are, but the user may not know. */
static void note_bytes(struct dataset_report *r, const struct text_document *doc)
{
    r->text_bytes += doc->len;
    if (!str_is_utf8(doc->text, doc->len) && r->not_utf8++ == 0)
        r->not_utf8_first = cut_name(doc->file);
}

static int take_document(struct text_cut *t, const struct text_document *doc, bool only_holdout)
{
    struct cutter *c = t->c;
    int rc = cut_check_dim(c, t->ds, doc->key, (uint32_t)doc->dim);
    t->tokens.n = 0;
    if (rc == 0 && doc->text) {
        rc =
            tokenizer_encode(t->tokenizer, doc->text, doc->len, TOKENIZER_ENDS, &t->tokens, c->err);
        if (rc < 0)
            rc = err_wrap(c->err, "document '%s'", doc->key);
        note_bytes(&c->report, doc);
    }
    size_t total = doc->text ? t->tokens.n : doc->n_ids;
    enum split split = only_holdout ? SPLIT_HOLDOUT : split_of(t, doc, total);
    return rc < 0 ? rc : cut_document(t, doc, total, split);
}

/* Counts and names a line that cannot be read; c->err says why. */
static int note_line(struct text_cut *t)
{
    struct dataset_report *r = &t->c->report;
    const struct err why = *t->c->err;
    char *where = NULL;
    const char *reason = text_source_broken(t->source, &where);
    if (!reason)
        return why.code;
    if (r->bad_count < DATASET_BAD_NAMED) {
        r->bad[r->bad_count] = cut_name(where);
        r->bad_why[r->bad_count] = reason;
    }
    mem_free(where);
    r->bad_count++;
    if (r->bad_count <= t->c->opt->max_bad)
        return 0;
    return err_set(t->c->err, -ERR_FORMAT,
                   "%u line%s cannot be read, at most %u may be left out (data.max_bad); the last "
                   "is %s",
                   r->bad_count, str_plural(r->bad_count), t->c->opt->max_bad, why.msg);
}

static int take_source(struct text_cut *t, struct text_source *source, bool holdout)
{
    struct text_document doc;
    int rc;
    t->source = source;
    t->before = t->c->seen;
    for (uint64_t n = 1; (rc = text_source_next(source, &doc, t->c->err)) != 0; n++) {
        rc = rc < 0 ? note_line(t) : take_document(t, &doc, holdout);
        if (rc == 0 && n % PROGRESS_EVERY == 0)
            rc = tell_progress(t);
        if (rc < 0)
            break;
    }
    return rc < 0 ? rc : tell_progress(t);
}

/* ---- pieces to shards ---- */

struct emitting {
    struct text_cut *t;
    bool holdout;
    uint64_t n;
};

static int emit_record(void *ctx, const uint8_t *p, size_t len)
{
    struct emitting *e = ctx;
    struct cutter *c = e->t->c;
    struct record r;
    struct shard_sample sample = {.ext = "tok"};
    (void)len;
    memcpy(&r, p, sizeof(r));
    p += sizeof(r);
    shard_key((const char *)p, r.key_len, sample.key);
    sample.data = p + r.key_len;
    sample.len = r.len;
    sample.tokens = r.tokens;
    sample.feature = p + r.key_len + r.len;
    int rc = cut_add(c, &sample, r.dim, e->holdout);
    return rc == 0 && ++e->n % PROGRESS_EVERY == 0 ? cut_progress(c, c->seen) : rc;
}

static int emit_all(struct text_cut *t, struct spool *s, bool holdout)
{
    return spool_emit(s, emit_record, &(struct emitting){t, holdout, 0}, t->c->err);
}

static int check_documents(const struct text_cut *t)
{
    const struct dataset_report *r = &t->c->report;
    if (text_source_bytes(t->own->text) == 0)
        return err_set(t->c->err, -ERR_FORMAT, "%s is empty, expected text to train on",
                       t->ds->name);
    if (t->own->held_out && r->holdout_documents == 0)
        return err_set(t->c->err, -ERR_FORMAT, "the held-out text has no document of two tokens");
    if (r->documents > (t->c->opt->may_hold_all ? 0 : r->holdout_documents))
        return 0;
    return err_set(t->c->err, -ERR_FORMAT,
                   r->documents == 0  ? "%s has no document of at least two tokens"
                   : r->documents > 1 ? "%s has no text left to train on: all its documents are "
                                        "held out; lower data.holdout, or give data.holdout_path"
                                      : "%s has no text left to train on: its only document is "
                                        "held out; set data.holdout: 0, or give data.holdout_path",
                   t->ds->name);
}

static int text_cut(struct cutter *c, struct dataset *ds)
{
    const struct text_dataset *own = ds->own;
    struct text_cut t = {.c = c, .ds = ds, .own = own};
    struct tokenizer *bytes_only = tokenizer_bytes();
    uint64_t bytes = text_source_bytes(own->text);
    uint64_t held = own->held_out ? text_source_bytes(own->held_out) : 0;
    c->total = bytes + held;
    t.tokenizer = own->tokenizer ? own->tokenizer : bytes_only;
    c->report.vocab = tokenizer_vocab(t.tokenizer);
    t.spans.pieces = own->context < DATASET_SPAN ? DATASET_SPAN / own->context : 1;
    spool_init(&t.train, c->opt->dir, "train-pieces", bytes);
    spool_init(&t.holdout, c->opt->dir, "holdout-pieces", own->held_out ? held : bytes);
    buf_init(&t.payload, RECORD_MAX);
    buf_init(&t.record, RECORD_MAX);
    buf_init(&t.kept.records, KEPT_BYTES);
    t.piece = mem_try_array(own->context, sizeof(*t.piece));
    int rc = t.piece ? take_source(&t, own->text, false)
                     : err_set(c->err, -ENOMEM, "out of memory for pieces");
    if (rc == 0 && own->held_out)
        rc = take_source(&t, own->held_out, true);
    if (rc == 0)
        rc = settle_kept(&t);
    if (rc == 0)
        rc = check_documents(&t);
    c->samples = t.train.records + t.holdout.records + c->report.bad_count;
    if (rc == 0)
        rc = emit_all(&t, &t.train, false);
    if (rc == 0)
        rc = emit_all(&t, &t.holdout, true);
    spool_release(&t.train);
    spool_release(&t.holdout);
    buf_release(&t.payload);
    buf_release(&t.record);
    buf_release(&t.kept.records);
    tokens_release(&t.tokens);
    tokenizer_free(bytes_only);
    mem_free(t.piece);
    return rc;
}

const struct dataset_source dataset_text = {
    .matches = text_matches,
    .open = text_open,
    .close = text_close,
    .cut = text_cut,
    .reads = "only files .txt .jsonl (.zst .gz) .bin in the folder itself are read, and those in "
             "folders inside by a pattern such as DIR/*/*.txt",
};
