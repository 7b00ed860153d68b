#include "worker/engine/external_feed.h"

#include <unistd.h>

#include "common/base/file.h"
#include "common/data/shard.h"
#include "common/job/family.h"
#include "common/trainer/channel.h"
#include "worker/data/data_samples.h"

#define PORTION_SAMPLES 4096
#define PORTION_BYTES (32u << 20) /* most bytes of a portion without its last batch */

struct external_feed {
    struct data data; /* the shards and the order; nothing is decoded */
    uint64_t total;
    uint32_t batch;
    uint64_t *ends;
    uint32_t *classes;
    size_t cap;
    int32_t *tokens; /* tokens of a piece */
};

Skerry__Trainer__V1__SampleKind external_feed_kind(const struct work *w)
{
    if (!job_has_data(&w->spec))
        return SKERRY__TRAINER__V1__SAMPLE_KIND__SAMPLE_KIND_NONE;
    return job_is_text(&w->spec) ? SKERRY__TRAINER__V1__SAMPLE_KIND__SAMPLE_KIND_TEXT
                                 : SKERRY__TRAINER__V1__SAMPLE_KIND__SAMPLE_KIND_IMAGE;
}

int external_feed_open(const struct work *w, Skerry__V1__Range *const *ranges, size_t n,
                       const struct data_order *order, uint32_t batch, uint64_t most,
                       struct external_feed **ret, struct err *err)
{
    struct data_range *local = NULL;
    int rc = work_ranges(w, ranges, n, &local, err);
    if (rc < 0)
        return rc;
    struct external_feed *f = mem_alloc(sizeof(*f));
    f->batch = batch ? batch : 1;
    f->cap = PORTION_SAMPLES + f->batch;
    f->ends = mem_try_array(f->cap, sizeof(*f->ends));
    f->classes = mem_try_array(f->cap, sizeof(*f->classes));
    f->tokens = mem_try_array(SHARD_TOKENS_MAX, sizeof(*f->tokens));
    rc = f->ends && f->classes && f->tokens ? data_open(&f->data, NULL, order, local, n, err)
                                            : err_set(err, -ENOMEM, "no memory to read samples");
    mem_free(local);
    if (rc < 0) {
        external_feed_close(f);
        return rc;
    }
    f->total = most > 0 && most < f->data.total ? most : f->data.total;
    *ret = f;
    return 0;
}

void external_feed_close(struct external_feed *f)
{
    if (!f)
        return;
    data_close(&f->data);
    mem_free(f->ends);
    mem_free(f->classes);
    mem_free(f->tokens);
    mem_free(f);
}

void external_feed_seek(struct external_feed *f, uint64_t position)
{
    f->data.head = position < f->total ? position : f->total;
}

uint64_t external_feed_total(const struct external_feed *f)
{
    return f->total;
}

uint64_t external_feed_position(const struct external_feed *f)
{
    return f->data.head;
}

static const struct shard_sample *sample_at(struct external_feed *f, uint64_t position)
{
    const struct data_place p = data_at(&f->data, position);
    return &f->data.shards[p.shard].samples[p.index];
}

static bool is_text(const struct shard_sample *s)
{
    return s->tokens > 0;
}

static uint64_t bytes_of(const struct shard_sample *s)
{
    return is_text(s) ? (uint64_t)s->tokens * sizeof(int32_t) : s->len;
}

/* The number of samples in the next portion: whole batches, as many as fit. */
static size_t measure(struct external_feed *f)
{
    uint64_t end = 0;
    size_t n = 0;
    while (f->data.head + n < f->total &&
           (n % f->batch != 0 || (n < PORTION_SAMPLES && end < PORTION_BYTES))) {
        const struct shard_sample *s = sample_at(f, f->data.head + n);
        end += bytes_of(s);
        f->ends[n] = end;
        f->classes[n++] = s->cls;
    }
    return n;
}

static int fill(struct external_feed *f, size_t n, int fd, struct err *err)
{
    int rc = 0;
    for (size_t i = 0; i < n && rc == 0; i++) {
        const struct shard_sample *s = sample_at(f, f->data.head + i);
        const uint64_t at = i > 0 ? f->ends[i - 1] : 0;
        if (is_text(s))
            shard_tokens(s, f->tokens);
        rc = file_pwrite_all(fd, is_text(s) ? (const void *)f->tokens : s->data,
                             (size_t)bytes_of(s), at, "shared memory", err);
    }
    return rc;
}

int external_feed_next(struct external_feed *f, Skerry__Trainer__V1__Samples *m, int *ret_fd,
                       struct err *err)
{
    const size_t n = measure(f);
    int fd = -1, rc = 0;
    if (n > 0)
        rc = channel_memory("skerry-samples", f->ends[n - 1], &fd, err);
    if (rc == 0 && n > 0)
        rc = fill(f, n, fd, err);
    if (rc < 0) {
        if (fd >= 0)
            (void)close(fd);
        return rc;
    }
    f->data.head += n;
    m->ends = f->ends;
    m->n_ends = n;
    m->classes = f->classes;
    m->n_classes = n;
    m->last = f->data.head >= f->total;
    *ret_fd = fd;
    return 0;
}
