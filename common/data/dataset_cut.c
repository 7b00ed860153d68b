/* Cuts samples into shards: the split, the shuffle of sources in order, the counts. */

#include "common/base/base.h"
#include "common/data/dataset_impl.h"
#include "common/data/shard.h"

#define LOOK_BYTES (256u << 20)
#define STREAM_ORDER 0x736875666cULL /* the seed's streams: the shuffle, */
#define STREAM_HOLDOUT 0x686f6c64ULL /* and which samples are held out */

static void shard_begin(struct cutter *c, struct output *o, bool holdout)
{
    mem_free(o->path);
    o->path = str_printf("%s/%s-%06u.tar", c->opt->dir, holdout ? "holdout" : "train", o->number++);
    o->shard = shard_writer_new(o->path);
}

static int shard_finish(struct cutter *c, struct output *o, bool holdout)
{
    struct shard_info info;
    if (!o->shard)
        return 0;
    int rc = shard_writer_finish(o->shard, &info, c->err);
    shard_writer_free(o->shard);
    o->shard = NULL;
    if (rc < 0)
        return rc;
    c->finished += info.samples;
    const double good = (double)c->samples - c->report.bad_count, done = (double)c->finished;
    struct dataset_shard shard = {
        .path = o->path,
        .bytes = info.bytes,
        .samples = info.samples,
        .tokens = info.tokens,
        .holdout = holdout,
        .share = done / fmax(done, good),
    };
    memcpy(shard.sha256, info.sha256, HASH_BYTES);
    return c->opt->on_shard(c->opt->ctx, &shard, c->err);
}

uint64_t cut_hash(const char *key)
{
    uint8_t digest[HASH_BYTES];
    uint64_t h = 0;
    hash_sha256(key, strlen(key), digest);
    for (int i = 0; i < 8; i++)
        h = h << 8 | digest[i];
    return h;
}

bool cut_is_holdout(const struct cutter *c, const char *key)
{
    return rng_mix(cut_hash(key), rng_mix(c->opt->seed, STREAM_HOLDOUT)) < c->holdout_below;
}

uint32_t *cut_order(const struct cutter *c, size_t n)
{
    uint32_t *order = mem_try_array(n, sizeof(*order));
    if (order)
        rng_permutation(c->opt->seed, STREAM_ORDER, order, n);
    return order;
}

int cut_check_dim(struct cutter *c, const struct dataset *ds, const char *key, uint32_t dim)
{
    bool any = c->any;
    c->any = true;
    if (!any)
        c->report.dim = dim;
    if (dim == c->report.dim)
        return 0;
    return err_set(c->err, -ERR_FORMAT,
                   "%s: the column '%s' of sample '%s' has %u numbers, but the first sample's has "
                   "%u; expected the same number in each",
                   ds->name, ds->column, key, dim, c->report.dim);
}

int cut_add(struct cutter *c, const struct shard_sample *s, uint32_t dim, bool holdout)
{
    struct output *o = holdout ? &c->holdout : &c->train;
    struct dataset_report *r = &c->report;
    if (!o->shard)
        shard_begin(c, o, holdout);
    int rc = shard_writer_add(o->shard, s, dim, c->err);
    if (rc < 0)
        return rc;
    r->samples++;
    r->tokens += s->tokens;
    r->holdout_samples += holdout;
    r->holdout_tokens += holdout ? s->tokens : 0;
    if (r->counts)
        r->counts[s->cls]++;
    return shard_writer_samples(o->shard) >= c->opt->shard_samples ? shard_finish(c, o, holdout)
                                                                   : 0;
}

int cut_progress(struct cutter *c, uint64_t done)
{
    if (!c->opt->on_progress)
        return 0;
    if (c->opt->most && done > c->total)
        done = c->total;
    int rc = c->opt->on_progress(c->opt->ctx, done, c->total);
    return rc < 0 ? err_set(c->err, rc, "cutting the dataset was stopped") : 0;
}

/* ---- images ---- */

/* "jpg", "png", "webp" by the first bytes; NULL if none of these. */
static const char *sniff(const uint8_t *data, size_t len)
{
    if (len >= 3 && memcmp(data, "\xff\xd8\xff", 3) == 0)
        return "jpg";
    if (len >= 8 && memcmp(data, "\x89PNG\r\n\x1a\n", 8) == 0)
        return "png";
    if (len >= 12 && memcmp(data, "RIFF", 4) == 0 && memcmp(data + 8, "WEBP", 4) == 0)
        return "webp";
    return NULL;
}

/* Writes a good image to its split. */
static int emit(struct cutter *c, const struct dataset_image *m)
{
    /* The very first sample is held out if any are asked for, so that there is at least one. */
    bool first = c->report.samples == 0 && c->opt->holdout > 0 && !c->opt->may_hold_none;
    struct shard_sample s = {
        .cls = m->cls,
        .data = m->data,
        .len = m->len,
        .feature = m->feature,
        .captions = m->captions,
        .captions_len = m->captions_len,
    };
    shard_key(m->key, strlen(m->key), s.key);
    (void)str_copy(s.ext, sizeof(s.ext), sniff(m->data, m->len));
    return cut_add(c, &s, m->dim, first || cut_is_holdout(c, m->key));
}

char *cut_name(const char *key)
{
    char *name = str_dup(key);
    str_make_line(name);
    return name;
}

static int note_bad(struct cutter *c, const struct dataset_image *m)
{
    struct dataset_report *r = &c->report;
    if (r->bad_count < DATASET_BAD_NAMED) {
        r->bad[r->bad_count] = cut_name(m->key);
        r->bad_why[r->bad_count] = m->fault      ? m->fault
                                   : m->len == 0 ? "empty"
                                                 : "not a JPEG, PNG or WebP image";
    }
    r->bad_count++;
    if (r->bad_count > c->opt->max_bad)
        return err_set(c->err, -ERR_FORMAT,
                       "%u image file%s cannot be read, at most %u may be left out "
                       "(data.max_bad); the first is %s: %s",
                       r->bad_count, str_plural(r->bad_count), c->opt->max_bad, r->bad[0],
                       r->bad_why[0]);
    return 0;
}

static int note_captions(struct cutter *c, const struct dataset_image *m)
{
    struct dataset_report *r = &c->report;
    r->captions_cut += m->captions_cut;
    if (m->captions_not_utf8 && r->not_utf8++ == 0)
        r->not_utf8_first = cut_name(m->key);
    if (!m->captions && !r->uncaptioned_first)
        r->uncaptioned_first = cut_name(m->key);
    if (m->captions || ++r->uncaptioned <= c->opt->max_bad)
        return 0;
    return err_set(c->err, -ERR_FORMAT,
                   "image '%s' has no caption%s, nor have %" PRIu64 " before it; at most %u may be "
                   "without (data.max_bad)",
                   m->key, m->captions_not_utf8 ? " in UTF-8" : "", r->uncaptioned - 1,
                   c->opt->max_bad);
}

/* Checks that a good image is like the others, and counts it. */
static int check_image(struct cutter *c, const struct dataset *ds, const struct dataset_image *m)
{
    int rc = cut_check_dim(c, ds, m->key, m->dim);
    return rc == 0 && ds->captions ? note_captions(c, m) : rc;
}

/* ---- images that do not come shuffled ---- */

/* An image in the spool; the column, the key with its NUL, the captions and the file follow. */
struct spooled {
    uint32_t cls, dim;
    size_t key_len, captions_len, len;
};

struct images {
    struct cutter *c;
    struct spool spool;
    struct buf record;
    uint64_t written; /* images */
};

/* An image counts as half done when it was read, and as done when it was written. */
static int tell_images(struct images *m)
{
    return m->written % 64 == 0 ? cut_progress(m->c, (m->c->seen + m->written) / 2) : 0;
}

static int spool_image(struct images *to, const struct dataset_image *m)
{
    struct cutter *c = to->c;
    const struct spooled head = {m->cls, m->dim, strlen(m->key), m->captions_len, m->len};
    struct buf *b = &to->record;
    buf_clear(b);
    int rc = buf_append(b, &head, sizeof(head));
    if (rc == 0)
        rc = buf_append(b, m->feature, m->dim * sizeof(float));
    if (rc == 0)
        rc = buf_append(b, m->key, head.key_len + 1);
    if (rc == 0)
        rc = buf_append(b, m->captions, m->captions_len);
    if (rc == 0)
        rc = buf_append(b, m->data, m->len);
    if (rc < 0)
        return err_set(c->err, rc, "out of memory while shuffling images");
    return spool_add(&to->spool, rng_mix(rng_mix(c->opt->seed, STREAM_ORDER), cut_hash(m->key)),
                     b->data, b->len, c->err);
}

static int emit_spooled(void *ctx, const uint8_t *p, size_t len)
{
    struct images *from = ctx;
    struct spooled head;
    (void)len;
    memcpy(&head, p, sizeof(head));
    p += sizeof(head);
    const uint8_t *key = p + head.dim * sizeof(float), *captions = key + head.key_len + 1;
    const struct dataset_image m = {
        .key = (const char *)key,
        .cls = head.cls,
        .feature = p,
        .dim = head.dim,
        .captions = head.captions_len ? (const char *)captions : NULL,
        .captions_len = head.captions_len,
        .data = captions + head.captions_len,
        .len = head.len,
    };
    int rc = emit(from->c, &m);
    from->written++;
    return rc < 0 ? rc : tell_images(from);
}

static int emit_images(struct images *m)
{
    return spool_emit(&m->spool, emit_spooled, m, m->c->err);
}

/* Images are shuffled over the whole dataset: those of a tar are often sorted by class. */
static int add_unshuffled(struct images *to, const struct dataset_image *m)
{
    int rc = spool_image(to, m);
    if (rc == 0 && to->c->opt->look && to->spool.bytes >= LOOK_BYTES)
        rc = emit_images(to);
    return rc;
}

static int check_room(const struct cutter *c, const struct dataset *ds)
{
    uint64_t room;
    char need[STR_HUMAN_MAX], have[STR_HUMAN_MAX];
    int rc = file_disk_free(c->opt->dir, &room, c->err);
    if (rc < 0 || c->opt->look || ds->bytes <= room)
        return rc;
    return err_set(c->err, -ENOSPC, "%s takes %s to shuffle, but %s has only %s free", ds->name,
                   str_human_bytes(ds->bytes, need), c->opt->dir, str_human_bytes(room, have));
}

static int refuse_empty(const struct cutter *c, const struct dataset *ds)
{
    const struct dataset_report *r = &c->report;
    return r->samples > 0
               ? err_set(c->err, -ERR_FORMAT,
                         "%s has %" PRIu64 " image%s, held out, and none left to train on: add "
                         "some, or set data.holdout to 0",
                         ds->name, r->samples, str_plural(r->samples))
               : err_set(c->err, -ERR_FORMAT,
                         "%s has no image that can be read; the first bad file is %s: %s", ds->name,
                         r->bad_count ? r->bad[0] : "?", r->bad_count ? r->bad_why[0] : "?");
}

/* Reads all images, and adds those that are good. */
static int read_images(struct images *to, struct dataset *ds, dataset_next_fn *next, bool shuffled)
{
    struct cutter *c = to->c;
    struct dataset_image m;
    int rc = 0;
    while (rc == 0 && (rc = next(ds, &m, c->err)) > 0) {
        if (!sniff(m.data, m.len))
            rc = note_bad(c, &m);
        else if ((rc = check_image(c, ds, &m)) == 0)
            rc = shuffled ? emit(c, &m) : add_unshuffled(to, &m);
        c->seen++;
        if (rc == 0 && (c->seen % 64 == 0 || c->seen == c->total))
            rc = cut_progress(c, shuffled ? c->seen : (c->seen + to->written) / 2);
    }
    return rc;
}

int cut_images(struct cutter *c, struct dataset *ds, dataset_next_fn *next, bool shuffled)
{
    struct images m = {.c = c};
    spool_init(&m.spool, c->opt->dir, "images", ds->bytes);
    buf_init(&m.record, DATASET_IMAGE_MAX + (8u << 20)); /* with its column and captions */
    int rc = shuffled ? 0 : check_room(c, ds);
    if (rc == 0)
        rc = read_images(&m, ds, next, shuffled);
    if (rc == 0)
        rc = emit_images(&m);
    if (rc == 0 && !shuffled)
        rc = cut_progress(c, c->seen);
    spool_release(&m.spool);
    buf_release(&m.record);
    if (rc == 0 && c->report.samples <= (c->opt->may_hold_all ? 0 : c->report.holdout_samples))
        rc = refuse_empty(c, ds);
    if (rc == 0 && c->seen == ds->samples && c->report.uncaptioned == c->report.samples)
        rc = err_set(c->err, -ERR_FORMAT, "%s has no captions: those of all its images are blank",
                     ds->name);
    return rc;
}

/* ---- the cut as a whole ---- */

int cut_open(struct cutter *c, const struct dataset *ds, const struct dataset_cut *opt,
             struct err *err)
{
    if (opt->shard_samples == 0 || opt->shard_samples > SHARD_SAMPLES_MAX ||
        !(opt->holdout >= 0 && opt->holdout < 1))
        return err_set(err, -EINVAL, "cannot cut shards of %u samples with a holdout of %g",
                       opt->shard_samples, opt->holdout);
    *c = (struct cutter){
        .opt = opt,
        .err = err,
        .total = opt->most && opt->most < ds->samples ? opt->most : ds->samples,
        .holdout_below = (uint64_t)ldexp(opt->holdout, 64),
        .report.classes = ds->classes.n,
    };
    c->samples = c->total;
    if (ds->classes.n)
        c->report.counts = mem_alloc_array(ds->classes.n, sizeof(*c->report.counts));
    return 0;
}

void dataset_report_release(struct dataset_report *report)
{
    mem_free(report->counts);
    mem_free(report->not_utf8_first);
    mem_free(report->uncaptioned_first);
    for (size_t i = 0; i < DATASET_BAD_NAMED; i++)
        mem_free(report->bad[i]);
    *report = (struct dataset_report){0};
}

int cut_close(struct cutter *c, int rc, struct dataset_report *ret)
{
    if (rc == 0)
        rc = shard_finish(c, &c->train, false);
    if (rc == 0)
        rc = shard_finish(c, &c->holdout, true);
    shard_writer_free(c->train.shard);
    shard_writer_free(c->holdout.shard);
    mem_free(c->train.path);
    mem_free(c->holdout.path);
    if (rc < 0)
        dataset_report_release(&c->report);
    else
        *ret = c->report;
    return rc;
}
