#include "worker/engine/contribute_card.h"

#include "common/outer/layout.h"
#include "worker/model/model.h"
#include "worker/model/weights.h"

_Static_assert(CARD_CHUNK % CODEC_BLOCK == 0, "chunks begin at a block");

/* Offsets in a place's memory, the same on both sides: inputs, the residual, then the results,
 * which come down in one copy. */
enum { REFUSED_BYTES = 256 };
struct parts {
    size_t residual, refused, scales, payload, bytes;
};

struct place {
    char *host, *device;
    struct stream *stream;
};

struct card {
    struct weights *w;
    enum codec codec;
    struct parts at;
    struct place places[CARD_PLACES];
    struct contribution_chunk chunks[CARD_PLACES];
    struct contribution_coder coder;
};

bool card_codes(const struct weights *w)
{
    return w->ops->encode != NULL;
}

static struct parts parts_of(enum codec codec)
{
    const size_t vector = codec == CODEC_F32 ? 0 : CARD_CHUNK * sizeof(float);
    const size_t scales = codec_scales(codec, CARD_CHUNK) * sizeof(uint16_t);
    struct parts p = {.residual = vector, .refused = 2 * vector};
    p.scales = p.refused + REFUSED_BYTES;
    p.payload = p.scales + scales; /* stays a multiple of 256 */
    p.bytes = p.payload + codec_payload_bytes(codec, CARD_CHUNK);
    return p;
}

static int copy(struct card *c, const struct place *p, size_t at, size_t bytes, enum copy_kind kind)
{
    char *to = kind == COPY_TO_DEVICE ? p->device : p->host;
    const char *from = kind == COPY_TO_DEVICE ? p->host : p->device;
    return c->w->ops->copy(c->w->dev, to + at, from + at, bytes, kind, p->stream);
}

static int queue(struct card *c, const struct place *p, const struct contribution_chunk *chunk,
                 const float *theta)
{
    const struct parts *at = &c->at;
    const size_t vector = chunk->n * sizeof(float);
    float *residual = (float *)(void *)(p->device + at->residual);
    const bool differs = c->codec != CODEC_F32;
    const struct encode e = {
        .codec = c->codec,
        .payload = p->device + at->payload,
        .scales = (uint16_t *)(void *)(p->device + at->scales),
        .left = chunk->feedback ? residual : NULL,
        .refused = (uint32_t *)(void *)(p->device + at->refused),
        .theta = theta,
        .base = differs ? (const float *)(const void *)p->device : NULL,
        .residual = chunk->carried ? residual : NULL,
        .n = (int64_t)chunk->n,
    };
    int rc = differs ? copy(c, p, 0, vector, COPY_TO_DEVICE) : 0;
    if (rc == 0 && chunk->carried)
        rc = copy(c, p, at->residual, vector, COPY_TO_DEVICE);
    if (rc == 0)
        rc = c->w->ops->zero(c->w->dev, e.refused, sizeof *e.refused, p->stream);
    if (rc == 0)
        rc = c->w->ops->encode(c->w->dev, &e, p->stream);
    if (rc == 0)
        rc = copy(c, p, at->refused,
                  at->payload - at->refused + codec_payload_bytes(c->codec, chunk->n),
                  COPY_FROM_DEVICE);
    if (rc == 0 && chunk->feedback)
        rc = copy(c, p, at->residual, vector, COPY_FROM_DEVICE);
    return rc;
}

static int begin(void *arg, struct contribution_chunk *chunk, struct err *err)
{
    struct card *c = arg;
    const struct place *p = &c->places[chunk - c->chunks];
    const char *name = chunk->layout->st.tensors[chunk->t].name;
    const struct model_tensor *t = model_find(c->w->m, name);
    if (!t || chunk->first > t->count || chunk->n > t->count - chunk->first)
        return err_set(err, -ERR_FORMAT, "the model has no tensor %s of this size", name);
    int rc = queue(c, p, chunk, c->w->w + t->offset + chunk->first);
    return rc < 0 ? err_set(err, rc, "coding %s on %s: %s", name, c->w->dev->name, err_text(rc))
                  : 0;
}

static int end(void *arg, struct contribution_chunk *chunk, struct err *err)
{
    const struct card *c = arg;
    const struct place *p = &c->places[chunk - c->chunks];
    int rc = c->w->ops->sync(c->w->dev, p->stream, err);
    if (rc < 0)
        return rc;
    return *(const uint32_t *)(const void *)(p->host + c->at.refused) ? -EDOM : 0;
}

static int place_open(struct card *c, size_t i, struct err *err)
{
    const struct kernel_ops *ops = c->w->ops;
    struct place *p = &c->places[i];
    void *host = NULL, *device = NULL;
    int rc = ops->stream_new(c->w->dev, &p->stream, err);
    if (rc == 0)
        rc = ops->alloc_host(c->w->dev, c->at.bytes, &host, err);
    p->host = host;
    if (rc == 0)
        rc = ops->alloc(c->w->dev, c->at.bytes, &device, err);
    p->device = device;
    if (rc < 0)
        return rc;
    c->chunks[i] = (struct contribution_chunk){
        .base = (float *)(void *)p->host,
        .residual = (float *)(void *)(p->host + c->at.residual),
        .payload = p->host + c->at.payload,
        .scales = (uint16_t *)(void *)(p->host + c->at.scales),
    };
    return 0;
}

int card_open(struct weights *w, enum codec codec, struct card **ret, struct err *err)
{
    struct card *c = mem_alloc(sizeof *c);
    *c = (struct card){.w = w, .codec = codec, .at = parts_of(codec)};
    c->coder = (struct contribution_coder){.size = CARD_CHUNK,
                                           .n = CARD_PLACES,
                                           .chunks = c->chunks,
                                           .begin = begin,
                                           .end = end,
                                           .arg = c};
    int rc = weights_sync(w, err);
    for (size_t i = 0; i < CARD_PLACES && rc == 0; i++)
        rc = place_open(c, i, err);
    if (rc < 0) {
        card_close(c);
        return rc;
    }
    *ret = c;
    return 0;
}

void card_close(struct card *c)
{
    if (!c)
        return;
    const struct kernel_ops *ops = c->w->ops;
    for (size_t i = 0; i < CARD_PLACES; i++) {
        struct place *p = &c->places[i];
        if (p->stream)
            ops->stream_free(c->w->dev, p->stream);
        ops->free(c->w->dev, p->device);
        ops->free_host(c->w->dev, p->host);
    }
    mem_free(c);
}

const struct contribution_coder *card_coder(const struct card *c)
{
    return &c->coder;
}
