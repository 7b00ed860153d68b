#include <errno.h>

#include "common/base/err.h"
#include "common/base/mem.h"
#include "worker/net/llama_impl.h"

struct llama_cache {
    struct llama *l;
    void *kv; /* device (depth,seq,2K,D) (dt) */
    int used, seq;
};

static size_t block_bytes(const struct llama_cache *c)
{
    const struct llama *l = c->l;
    return (size_t)c->seq * (size_t)(2 * l->K * l->D) * dtype_bytes(l->dt);
}

int llama_cache_new(struct llama *l, struct llama_cache **ret, struct err *err)
{
    const struct model_spec *s = &l->weights.m->spec;
    struct llama_cache *c = mem_try_zero(sizeof *c);
    if (!c)
        return err_set(err, -ENOMEM, "no memory for a cache of keys");
    c->l = l;
    c->seq = s->context;
    int rc = l->ops->alloc(l->dev, block_bytes(c) * (size_t)s->depth, &c->kv, err);
    if (rc < 0) {
        llama_cache_free(c);
        return rc;
    }
    *ret = c;
    return 0;
}

void llama_cache_free(struct llama_cache *c)
{
    if (!c)
        return;
    c->l->ops->free(c->l->dev, c->kv);
    mem_free(c);
}

void llama_cache_clear(struct llama_cache *c)
{
    c->used = 0;
}

int llama_cache_used(const struct llama_cache *c)
{
    return c->used;
}

int llama_cache_room(const struct llama_cache *c)
{
    return c->seq - c->used;
}

void *llama_cache_block(const struct llama_cache *c, int b)
{
    return (char *)c->kv + (size_t)b * block_bytes(c);
}

int llama_read(struct llama_cache *c, const uint32_t *ids, int n, float *logits, struct err *err)
{
    struct llama *l = c->l;
    if (n < 1 || n > llama_cache_room(c))
        return err_set(err, -EINVAL, "%d tokens after %d in a context of %d", n, c->used, c->seq);
    for (int i = 0; i < n; i++) {
        if (ids[i] >= (uint32_t)l->V)
            return err_set(err, -EINVAL, "token %u is not below the model's vocabulary of %d",
                           ids[i], l->V);
        l->host.tokens[i] = (int32_t)ids[i];
        l->host.pos[i] = c->used + i;
    }
    llama_op(l, inputs_send(&l->inputs, l->stream), "copying tokens");
    struct llama_shape s;
    llama_take(l, 0, 1, (unsigned)n, &s);
    s.cache = c;
    llama_run(l, &s);
    llama_head_logits(l, n - 1, 1);
    llama_op(l,
             l->ops->copy(l->dev, logits, l->logits, (size_t)l->V * sizeof *logits,
                          COPY_FROM_DEVICE, l->stream),
             "copying logits");
    int rc = weights_sync(&l->weights, err);
    if (rc == 0)
        c->used += n;
    return rc;
}
