/* Cutting a dataset into shards. */
#include "common/data/dataset.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/data/dataset_internal.h"
#include "common/base/err.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/data/shard.h"
#include "common/base/str.h"

#define WINDOW_SAMPLES 8192
#define WINDOW_BYTES (256u << 20)
#define STREAM_ORDER 0x736875666cULL /* of the seed: the shuffle */
#define STREAM_HOLDOUT 0x686f6c64ULL /* which samples are held out */

/* A sample that waits in the window of a tar shuffle. */
struct held {
    char *key;
    uint32_t cls;
    const char *ext;
    uint8_t *data;
    size_t len;
    float *feature;
    uint32_t dim;
};

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
    struct dataset_shard shard = {
        .path = o->path,
        .bytes = info.bytes,
        .samples = info.samples,
        .tokens = info.tokens,
        .holdout = holdout,
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
                   "%u; expected as many in each",
                   ds->path, ds->column, key, dim, c->report.dim);
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

/* A good image to its split. */
static int emit(struct cutter *c, const struct held *h)
{
    /* The very first sample is held out when any is asked for: never zero. */
    bool first = c->report.samples == 0 && c->opt->holdout > 0;
    size_t n = strlen(h->key);
    struct shard_sample s = {
        .cls = h->cls,
        .data = h->data,
        .len = h->len,
        .feature = (const uint8_t *)h->feature,
    };
    (void)str_copy(s.key, sizeof(s.key), n < sizeof(s.key) ? h->key : h->key + n - 99);
    (void)str_copy(s.ext, sizeof(s.ext), h->ext);
    return cut_add(c, &s, h->dim, first || cut_is_holdout(c, h->key));
}

static int note_bad(struct cutter *c, const char *key)
{
    struct dataset_report *r = &c->report;
    if (r->bad_count < DATASET_BAD_NAMED)
        r->bad[r->bad_count] = str_dup(key);
    r->bad_count++;
    if (r->bad_count > c->opt->max_bad)
        return err_set(c->err, -ERR_FORMAT,
                       "%u files are no JPEG, PNG or WebP images, at most %u are allowed "
                       "(data.max_bad); the first is %s",
                       r->bad_count, c->opt->max_bad, r->bad[0]);
    return 0;
}

int cut_progress(struct cutter *c, uint64_t done)
{
    if (!c->opt->on_progress)
        return 0;
    int rc = c->opt->on_progress(c->opt->ctx, done, c->total);
    return rc < 0 ? err_set(c->err, rc, "cutting the dataset was stopped") : 0;
}

static int progress(struct cutter *c)
{
    c->seen++;
    return c->seen % 64 && c->seen != c->total ? 0 : cut_progress(c, c->seen);
}

/* Folders: every file once, in a global shuffle. */
static int cut_folder(struct cutter *c, struct dataset *ds)
{
    uint32_t *order = mem_try_array(ds->n_files, sizeof(*order));
    if (!order)
        return err_set(c->err, -ENOMEM, "out of memory while shuffling %s", ds->path);
    rng_permutation(c->opt->seed, STREAM_ORDER, order, ds->n_files);
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < ds->n_files; i++) {
        struct dataset_sample s;
        rc = dataset_read_file(ds, order[i], &s, c->err);
        if (rc < 0 && rc != -ERR_LIMIT)
            break;
        bool bad = rc < 0 || !s.ext;
        if (rc < 0) /* too large to be an image of a dataset */
            (void)snprintf(ds->key, sizeof(ds->key), "%s/%s",
                           ds->classes.items[ds->files[order[i]].cls], ds->files[order[i]].name);
        struct held h = {0};
        if (!bad)
            h = (struct held){
                ds->key, s.cls, s.ext, ds->now.image.data, s.len, ds->now.feature.v, s.dim,
            };
        rc = bad ? note_bad(c, ds->key) : cut_check_dim(c, ds, ds->key, s.dim);
        if (rc == 0 && !bad)
            rc = emit(c, &h);
        if (rc == 0)
            rc = progress(c);
    }
    mem_free(order);
    return rc;
}

static size_t held_bytes(size_t len, uint32_t dim)
{
    return len + dim * sizeof(float);
}

static void held_free(struct held *h)
{
    mem_free(h->key);
    mem_free(h->data);
    mem_free(h->feature);
}

/* Emits a random one of the window. */
static int emit_random(struct cutter *c, struct held *window, size_t *n, size_t *bytes)
{
    size_t i = (size_t)rng_below(&c->rng, *n);
    struct held out = window[i];
    window[i] = window[--*n];
    *bytes -= held_bytes(out.len, out.dim);
    int rc = emit(c, &out);
    held_free(&out);
    return rc;
}

static int hold(struct cutter *c, const struct dataset_sample *s, struct held *out)
{
    uint8_t *copy = mem_try(s->len);
    float *feature = s->dim ? mem_try_array(s->dim, sizeof(*feature)) : NULL;
    if (!copy || (s->dim && !feature)) {
        mem_free(copy);
        mem_free(feature);
        return err_set(c->err, -ENOMEM, "out of memory while shuffling tars");
    }
    memcpy(copy, s->data, s->len);
    if (feature)
        memcpy(feature, s->feature, s->dim * sizeof(*feature));
    *out = (struct held){str_dup(s->key), s->cls, s->ext, copy, s->len, feature, s->dim};
    return 0;
}

/* Tars: through a window, so that memory is bounded and each is read once. */
static int cut_tars(struct cutter *c, struct dataset *ds)
{
    struct held *window = mem_try_array(WINDOW_SAMPLES, sizeof(*window));
    size_t n = 0, bytes = 0;
    if (!window)
        return err_set(c->err, -ENOMEM, "out of memory while shuffling tars");
    int rc = dataset_rewind(ds, c->err);
    while (rc == 0) {
        struct dataset_sample s;
        rc = dataset_next(ds, &s, c->err);
        if (rc <= 0)
            break;
        rc = 0;
        if (!s.ext) {
            rc = note_bad(c, s.key);
        } else {
            rc = cut_check_dim(c, ds, s.key, s.dim);
            size_t more = held_bytes(s.len, s.dim);
            while (rc == 0 && n && (n == WINDOW_SAMPLES || bytes + more > WINDOW_BYTES))
                rc = emit_random(c, window, &n, &bytes);
            if (rc == 0)
                rc = hold(c, &s, &window[n]);
            if (rc == 0) {
                bytes += more;
                n++;
            }
        }
        if (rc == 0)
            rc = progress(c);
    }
    while (rc == 0 && n)
        rc = emit_random(c, window, &n, &bytes);
    while (n)
        held_free(&window[--n]);
    mem_free(window);
    return rc;
}

static int check_classes(const struct cutter *c, const struct dataset *ds)
{
    if (c->report.samples - c->report.holdout_samples == 0)
        return err_set(c->err, -ERR_FORMAT, "%s has no images left to train on", ds->path);
    for (size_t i = 0; ds->is_folder && i < c->report.classes; i++)
        if (c->report.counts[i] == 0)
            return err_set(c->err, -ERR_FORMAT,
                           "class '%s' of %s has no image that can be read; the first bad file is "
                           "%s",
                           ds->classes.items[i], ds->path,
                           c->report.bad_count ? c->report.bad[0] : "unknown");
    return 0;
}

int dataset_cut(struct dataset *ds, const struct dataset_cut *opt, struct dataset_report *ret,
                struct err *err)
{
    struct cutter c = {.opt = opt, .err = err, .total = ds->samples};
    if (opt->shard_samples == 0 || opt->shard_samples > SHARD_SAMPLES_MAX ||
        !(opt->holdout >= 0 && opt->holdout < 1))
        return err_set(err, -EINVAL, "cannot cut shards of %u samples with a holdout of %g",
                       opt->shard_samples, opt->holdout);
    c.holdout_below = (uint64_t)ldexp(opt->holdout, 64);
    rng_init(&c.rng, opt->seed, STREAM_ORDER);
    c.report.classes = ds->classes.n;
    if (ds->classes.n)
        c.report.counts = mem_alloc_array(ds->classes.n, sizeof(*c.report.counts));
    int rc = ds->text        ? dataset_cut_text(&c, ds)
             : ds->is_folder ? cut_folder(&c, ds)
                             : cut_tars(&c, ds);
    if (rc == 0)
        rc = shard_finish(&c, &c.train, false);
    if (rc == 0)
        rc = shard_finish(&c, &c.holdout, true);
    if (rc == 0 && !ds->text)
        rc = check_classes(&c, ds);
    shard_writer_free(c.train.shard);
    shard_writer_free(c.holdout.shard);
    mem_free(c.train.path);
    mem_free(c.holdout.path);
    if (rc < 0)
        dataset_report_release(&c.report);
    else
        *ret = c.report;
    return rc;
}

void dataset_report_release(struct dataset_report *report)
{
    mem_free(report->counts);
    for (size_t i = 0; i < DATASET_BAD_NAMED; i++)
        mem_free(report->bad[i]);
    *report = (struct dataset_report){0};
}
