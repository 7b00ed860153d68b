#include "worker/fit/means.h"

#include "worker/net/net.h"

/* Device memory of a call. */
struct call {
    struct weights *w;
    const struct net_hidden *h;
    int B;
    float *mean;  /* (B,C) */
    int32_t *len; /* (B), or NULL */
};

/* out: rows of `ld` values on the host, one per sample. */
static int take(const struct call *m, int begin, int end, float *out, size_t ld, float *row)
{
    const struct weights *w = m->w;
    const size_t C = (size_t)m->h->C, n = (size_t)m->B * C;
    if (end > m->h->T)
        end = m->h->T;
    if (begin >= end)
        return 0;
    int rc = w->ops->mean_tokens(w->dev, m->mean, m->h->x, m->B, m->h->T, m->h->C, begin, end,
                                 m->len, m->h->dt, w->stream);
    if (rc == 0)
        rc = w->ops->copy(w->dev, row, m->mean, n * sizeof *row, COPY_FROM_DEVICE, w->stream);
    if (rc == 0)
        rc = w->ops->sync(w->dev, w->stream, NULL);
    for (int i = 0; rc == 0 && i < m->B; i++)
        memcpy(out + (size_t)i * ld, row + (size_t)i * C, C * sizeof *row);
    return rc;
}

static int take_all(const struct call *m, const struct means *f, float *row)
{
    const size_t C = (size_t)m->h->C, ld = (size_t)f->n_chunks * C;
    int rc = take(m, 0, f->first ? f->first : m->h->T, f->head, C, row);
    if (f->chunks)
        memset(f->chunks, 0, (size_t)m->B * ld * sizeof *f->chunks);
    for (int c = 0; f->chunks && c < f->n_chunks && rc == 0; c++)
        rc = take(m, c * f->chunk, (c + 1) * f->chunk, f->chunks + (size_t)c * C, ld, row);
    return rc;
}

/* A batch of the first n tokens of each row, whose states do not depend on later ones. */
static int32_t *shorten(const struct batch *b, unsigned n, struct batch *ret)
{
    const size_t cells = (size_t)b->count * n;
    int32_t *memory = mem_try_array(4 * cells + b->count, sizeof *memory);
    if (!memory)
        return NULL;
    int32_t *tokens = memory, *start = tokens + cells + b->count, *pos = start + cells;
    int32_t *target = pos + cells;
    for (size_t i = 0; i < b->count; i++) {
        memcpy(tokens + i * (n + 1), b->tokens + i * (b->seq + 1), (n + 1) * sizeof *tokens);
        memcpy(start + i * n, b->start + i * b->seq, n * sizeof *start);
        memcpy(pos + i * n, b->pos + i * b->seq, n * sizeof *pos);
        memcpy(target + i * n, b->target + i * b->seq, n * sizeof *target);
    }
    *ret = (struct batch){.count = b->count,
                          .seq = n,
                          .tokens = tokens,
                          .start = start,
                          .pos = pos,
                          .target = target};
    return memory;
}

int means_of(struct net *net, const struct batch *b, const struct means *f, struct err *err)
{
    struct net_hidden h;
    struct batch head;
    int32_t *shorter = NULL;
    if (b->tokens && !f->chunks && f->first > 0 && (unsigned)f->first < b->seq) {
        shorter = shorten(b, (unsigned)f->first, &head);
        if (!shorter)
            return err_set(err, -ENOMEM, "no memory for %u texts", b->count);
    }
    int rc = net_hidden(net, shorter ? &head : b, &h, err);
    mem_free(shorter);
    if (rc < 0)
        return rc;
    struct weights *w = net->weights;
    struct call m = {.w = w, .h = &h, .B = (int)b->count};
    const size_t n = (size_t)b->count * (size_t)h.C;
    void *mean = NULL, *len = NULL;
    float *row = mem_try_array(n, sizeof *row);
    rc = row ? w->ops->alloc(w->dev, n * sizeof(float), &mean, err) : -ENOMEM;
    if (rc == 0 && f->lengths)
        rc = w->ops->alloc(w->dev, b->count * sizeof(int32_t), &len, err);
    if (rc == 0 && f->lengths)
        rc = w->ops->copy(w->dev, len, f->lengths, b->count * sizeof(int32_t), COPY_TO_DEVICE,
                          w->stream);
    m.mean = mean;
    m.len = len;
    if (rc == 0)
        rc = take_all(&m, f, row);
    w->ops->free(w->dev, len);
    w->ops->free(w->dev, mean);
    mem_free(row);
    if (rc < 0)
        return err_set(err, rc, "features of %u samples failed on %s: %s", b->count, w->dev->name,
                       err_text(rc));
    return 0;
}
