/* A card that is not there: device memory is memory of its own, and what is queued on a stream
 * happens at the stream's sync, not before.  Who reads a result too early sees poison, who
 * reuses a buffer too early spoils it.  It codes with common/outer. */
#ifndef TESTS_UNIT_WORKER_FAKE_CARD_H
#define TESTS_UNIT_WORKER_FAKE_CARD_H

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/outer/coding.h"
#include "kernels/kernels.h"

enum { FAKE_QUEUE = 16 };

struct fake_call {
    void *dst;
    const void *src; /* NULL: zero */
    size_t bytes;
    struct encode encode; /* when n > 0 */
};

struct stream {
    struct fake_call calls[FAKE_QUEUE];
    int n;
};

static struct {
    int live;    /* allocations and streams */
    int syncs;   /* with work in them */
    int fail_at; /* the sync of this number fails; 0: none */
} fake;

static int fake_alloc(struct device *dev, size_t bytes, void **ret, struct err *err)
{
    *ret = aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (!*ret)
        return -ENOMEM;
    memset(*ret, 0xff, bytes);
    fake.live++;
    return 0;
}

static void fake_free(struct device *dev, void *p)
{
    fake.live -= p != NULL;
    free(p);
}

static int fake_stream_new(struct device *dev, struct stream **ret, struct err *err)
{
    *ret = calloc(1, sizeof **ret);
    fake.live++;
    return *ret ? 0 : -ENOMEM;
}

static void fake_stream_free(struct device *dev, struct stream *s)
{
    fake.live--;
    free(s);
}

static int fake_push(struct stream *s, const struct fake_call *call)
{
    if (!s || s->n == FAKE_QUEUE)
        return -ERR_DEVICE;
    s->calls[s->n++] = *call;
    return 0;
}

static int fake_copy(struct device *dev, void *dst, const void *src, size_t bytes,
                     enum copy_kind kind, struct stream *s)
{
    return fake_push(s, &(struct fake_call){.dst = dst, .src = src, .bytes = bytes});
}

static int fake_zero(struct device *dev, void *dst, size_t bytes, struct stream *s)
{
    return fake_push(s, &(struct fake_call){.dst = dst, .bytes = bytes});
}

static int fake_encode(struct device *dev, const struct encode *p, struct stream *s)
{
    return fake_push(s, &(struct fake_call){.encode = *p});
}

static void fake_run_encode(const struct encode *p)
{
    const size_t n = (size_t)p->n;
    float *u = malloc(n * sizeof *u), *q = malloc(n * sizeof *q);
    for (size_t i = 0; i < n; i++) {
        u[i] = p->codec == CODEC_F32 ? p->theta[i] : p->base[i] - p->theta[i];
        if (p->residual)
            u[i] += p->residual[i];
    }
    if (coding_encode((enum codec)p->codec, n, u, p->payload, p->scales, q) < 0)
        *p->refused = 1;
    for (size_t i = 0; i < n && p->left; i++)
        p->left[i] = u[i] - q[i];
    free(u);
    free(q);
}

static int fake_sync(struct device *dev, struct stream *s, struct err *err)
{
    if (!s || !s->n)
        return 0;
    for (int i = 0; i < s->n; i++) {
        const struct fake_call *c = &s->calls[i];
        if (c->encode.n)
            fake_run_encode(&c->encode);
        else if (c->src)
            memcpy(c->dst, c->src, c->bytes);
        else
            memset(c->dst, 0, c->bytes);
    }
    s->n = 0;
    if (++fake.syncs == fake.fail_at)
        return err_set(err, -ERR_DEVICE, "the card fell off the bus");
    return 0;
}

static const struct kernel_ops fake_ops = {
    .alloc = fake_alloc,
    .free = fake_free,
    .alloc_host = fake_alloc,
    .free_host = fake_free,
    .copy = fake_copy,
    .zero = fake_zero,
    .stream_new = fake_stream_new,
    .stream_free = fake_stream_free,
    .sync = fake_sync,
    .encode = fake_encode,
};

static inline int fake_card_open(struct device **ret, struct err *err)
{
    static struct device dev = {.ops = &fake_ops, .name = "card:0", .about = "a card"};
    *ret = &dev;
    return 0;
}

static inline void fake_card_close(struct device *dev)
{
}

#endif
