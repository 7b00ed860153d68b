#include "worker/net/llama.h"

#include <errno.h>
#include <limits.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/mem.h"
#include "worker/net/llama_impl.h"

#define SLICE_BYTES (64u << 20) /* of logits at a time */
#define SLICE_LEAST 64

/* ---- memory ---- */

/* What one block computes on its way.  In NET_FORWARD and NET_RECOMPUTE all blocks
 * share this memory. */
static void plan_scratch(struct llama *l, struct llama_block *b, uint64_t rows)
{
    const uint64_t e = dtype_bytes(l->dt), C = (uint64_t)l->C, M = (uint64_t)l->M;
    struct arena *a = &l->arena;
    const bool train = l->net.opt.mode != NET_FORWARD;

    arena_add(a, &b->rstd1, rows * sizeof(float));
    arena_add(a, &b->h1, rows * C * e);
    arena_add(a, &b->qkv, rows * (uint64_t)llama_qkv_width(l) * e);
    arena_add(a, &b->o, rows * C * e);
    if (train) {
        arena_add(a, &b->lse, rows * (uint64_t)l->H * sizeof(float));
        arena_add(a, &b->x2, rows * C * sizeof(float)); /* else x1, in place */
    }
    arena_add(a, &b->rstd2, rows * sizeof(float));
    arena_add(a, &b->h2, rows * C * e);
    arena_add(a, &b->gu, rows * 2 * M * e);
    arena_add(a, &b->act, rows * M * e);
}

static void plan_blocks(struct llama *l, int depth, uint64_t rows)
{
    struct arena *a = &l->arena;
    const uint64_t start = arena_mark(a);

    for (int i = 0; i < depth; i++) {
        if (l->net.opt.mode != NET_TRAIN)
            arena_reset(a, start);
        plan_scratch(l, &l->blocks[i], rows);
    }
    const uint64_t shared = arena_mark(a);
    for (int i = 0; i < depth; i++) {
        if (l->net.opt.mode == NET_FORWARD)
            arena_reset(a, shared);
        arena_add(a, &l->blocks[i].x1, rows * (uint64_t)l->C * sizeof(float));
    }
}

static void plan_backward(struct llama *l, uint64_t rows)
{
    const uint64_t e = dtype_bytes(l->dt), C = (uint64_t)l->C, M = (uint64_t)l->M;
    const uint64_t qkv = (uint64_t)llama_qkv_width(l), wide = 2 * M > qkv ? 2 * M : qkv;
    struct arena *a = &l->arena;

    if (l->dt != DT_F32)
        arena_add(a, &l->dlogits, (uint64_t)l->slice * (uint64_t)l->V * e);
    arena_add(a, &l->dx, rows * C * sizeof(float));
    arena_add(a, &l->dh, rows * C * e);
    arena_add(a, &l->dy, rows * C * e);
    arena_add(a, &l->dwide, rows * wide * e);
    arena_add(a, &l->dact, rows * M * e);
}

static int64_t slice_rows(int64_t rows, int vocab)
{
    int64_t n = SLICE_BYTES / (int64_t)sizeof(float) / vocab / SLICE_LEAST * SLICE_LEAST;
    if (n < SLICE_LEAST)
        n = SLICE_LEAST;
    return n < rows ? n : rows;
}

static void plan_inputs(struct llama *l, uint64_t rows)
{
    struct llama_rows *h = &l->host, *d = &l->loaded;
    inputs_add(&l->inputs, &h->tokens, &d->tokens, rows * sizeof *h->tokens);
    inputs_add(&l->inputs, &h->start, &d->start, rows * sizeof *h->start);
    inputs_add(&l->inputs, &h->pos, &d->pos, rows * sizeof *h->pos);
    inputs_add(&l->inputs, &h->target, &d->target, rows * sizeof *h->target);
    inputs_add(&l->inputs, &h->weight, &d->weight, rows * sizeof *h->weight);
}

/* Sizes and plan, no device memory yet.  -ENOMEM. */
static int init_sizes(struct llama *l, const struct model *m, const struct net_options *opt,
                      enum dtype dt)
{
    const struct model_spec *s = &m->spec;
    const uint64_t rows = (uint64_t)opt->batch * (uint64_t)s->context;
    struct arena *a = &l->arena;

    l->net.opt = *opt;
    l->dt = dt;
    l->C = s->dim;
    l->H = s->heads;
    l->K = s->kv_heads;
    l->D = s->dim / s->heads;
    l->M = s->mlp;
    l->V = s->vocab;
    l->head = model_llama_head(s);
    l->slice = slice_rows((int64_t)rows, s->vocab);
    l->blocks = mem_try_array((size_t)s->depth, sizeof *l->blocks);
    if (!l->blocks)
        return -ENOMEM;

    const uint64_t C = (uint64_t)l->C;
    const uint64_t all = (uint64_t)net_load_most(opt) * (uint64_t)s->context;
    plan_inputs(l, all);
    plan_blocks(l, s->depth, rows);
    arena_add(a, &l->y, rows * C * dtype_bytes(dt));
    arena_add(a, &l->xf, rows * C * sizeof(float));
    arena_add(a, &l->rstd_f, rows * sizeof(float));
    arena_add(a, &l->hf, rows * C * dtype_bytes(dt));
    arena_add(a, &l->logits, (uint64_t)l->slice * (uint64_t)l->V * sizeof(float));
    arena_add(a, &l->net.d_losses, all * sizeof(float));
    if (opt->mode != NET_FORWARD)
        plan_backward(l, rows);
    return 0;
}

static uint64_t llama_bytes(const struct model *m, const struct net_options *opt, enum dtype dt)
{
    struct llama l = {0};
    uint64_t bytes =
        init_sizes(&l, m, opt, dt) == 0 ? arena_bytes(&l.arena) + inputs_bytes(&l.inputs) : 0;
    mem_free(l.blocks);
    mem_free(l.arena.slots);
    inputs_free(&l.inputs);
    return bytes;
}

/* ---- life ---- */

static void llama_free(struct net *n)
{
    struct llama *l = (struct llama *)(void *)n;
    if (l->dev)
        arena_free(&l->arena, l->dev);
    inputs_free(&l->inputs);
    weights_release(&l->weights);
    mem_free(l->blocks);
    mem_free(l);
}

static int llama_make(struct device *dev, const struct model *m, const struct net_options *opt,
                      struct net **ret, struct err *err)
{
    const struct model_spec *s = &m->spec;
    if (opt->batch < 1 || (int64_t)net_load_most(opt) * s->context > INT_MAX)
        return err_set(err, -EINVAL, "a batch of %d rows of %d tokens", opt->batch, s->context);
    struct llama *l = mem_try_zero(sizeof *l);
    if (!l)
        return err_set(err, -ENOMEM, "no memory for a model");
    l->net.ops = &llama_net_ops;
    l->net.weights = &l->weights;
    int rc = init_sizes(l, m, opt, net_dtype(dev, opt->precision));
    if (rc < 0)
        rc = err_set(err, -ENOMEM, "no memory for a model of %d blocks", m->spec.depth);
    if (rc == 0)
        rc = weights_init(&l->weights, dev, m, l->dt, opt->mode != NET_FORWARD, err);
    if (rc == 0) {
        l->dev = dev;
        l->ops = dev->ops;
        l->stream = l->weights.stream;
        rc = inputs_alloc(&l->inputs, dev, err);
    }
    if (rc == 0)
        rc = arena_alloc(&l->arena, dev, err);
    if (rc < 0) {
        if (!l->dev)
            mem_free(l->arena.slots);
        llama_free(&l->net);
        return rc;
    }
    for (int i = 0; opt->mode == NET_FORWARD && i < m->spec.depth; i++)
        l->blocks[i].x2 = l->blocks[i].x1;
    if (l->dt == DT_F32)
        l->dlogits = l->logits;
    *ret = &l->net;
    return 0;
}

struct llama *llama_of(struct net *net)
{
    return net->ops == &llama_net_ops ? (struct llama *)(void *)net : NULL;
}

const struct model *llama_model(const struct llama *l)
{
    return l->weights.m;
}

/* ---- batches ---- */

#define POSITIONS (1 << 20) /* that rotary embeddings take */

/* What the device would refuse only when it has come to it. */
static int check_row(const struct llama *l, const struct batch *b, size_t i, int32_t token,
                     struct err *err)
{
    const int at = (int)(i % b->seq);
    const size_t row = i / b->seq;
    if (token < 0 || token >= l->V || b->target[i] >= l->V)
        return err_set(err, -ERR_FORMAT,
                       "row %zu, position %d: token %d is not below the vocabulary of %d", row, at,
                       (int)(token < l->V ? b->target[i] : token), l->V);
    if (b->start[i] < 0 || b->start[i] > at || b->pos[i] < 0 || b->pos[i] > POSITIONS)
        return err_set(err, -ERR_FORMAT, "row %zu, position %d: starts at %d and is number %d", row,
                       at, (int)b->start[i], (int)b->pos[i]);
    return 0;
}

int llama_load(struct llama *l, const struct batch *b, float grad_scale, struct err *err)
{
    const struct model_spec *s = &l->weights.m->spec;
    struct llama_rows *h = &l->host;
    if (b->count < 1 || b->count > net_load_most(&l->net.opt) || b->seq < 1 ||
        b->seq > (unsigned)s->context || !b->tokens)
        return err_set(err, -EINVAL, "%u rows of %u tokens in a model made for %u of %d", b->count,
                       b->seq, net_load_most(&l->net.opt), s->context);
    const size_t rows = (size_t)b->count * b->seq;
    for (size_t i = 0; i < rows; i++) {
        const int32_t token = b->tokens[i / b->seq * (b->seq + 1) + i % b->seq];
        int rc = check_row(l, b, i, token, err);
        if (rc < 0)
            return rc;
        h->tokens[i] = token;
        h->weight[i] = grad_scale;
    }
    memcpy(h->start, b->start, rows * sizeof *h->start);
    memcpy(h->pos, b->pos, rows * sizeof *h->pos);
    memcpy(h->target, b->target, rows * sizeof *h->target);
    llama_op(l, inputs_send(&l->inputs, l->stream), "copying tokens");
    return 0;
}

void llama_take(struct llama *l, unsigned from, unsigned count, unsigned seq,
                struct llama_shape *ret)
{
    const struct llama_rows *all = &l->loaded;
    const int64_t at = (int64_t)from * seq;
    l->d = (struct llama_rows){all->tokens + at, all->start + at, all->pos + at, all->target + at,
                               all->weight + at};
    l->loss = l->net.d_losses + at;
    *ret = (struct llama_shape){.B = (int)count, .T = (int)seq, .rows = (int64_t)count * seq};
}

/* All of a batch, forward. */
static int run_all(struct llama *l, const struct batch *b, struct llama_shape *ret, struct err *err)
{
    if (b->count > (unsigned)l->net.opt.batch)
        return err_set(err, -EINVAL, "%u rows in a model made for %d", b->count, l->net.opt.batch);
    int rc = llama_load(l, b, 0, err);
    if (rc < 0)
        return rc;
    llama_take(l, 0, b->count, b->seq, ret);
    llama_run(l, ret);
    return 0;
}

static int llama_net_load(struct net *n, const struct batch *b, struct err *err)
{
    return llama_load((struct llama *)(void *)n, b, n->grad_scale, err);
}

static int llama_queue(struct net *n, unsigned from, unsigned count, bool first, bool backward,
                       struct err *err)
{
    struct llama *l = (struct llama *)(void *)n;
    struct llama_shape s;
    llama_take(l, from, count, n->loaded.seq, &s);
    llama_run(l, &s);
    if (backward && first)
        weights_zero_grads(&l->weights);
    llama_head(l, &s, backward, first);
    if (backward)
        llama_backward(l, &s, first);
    return weights_check(&l->weights, err);
}

static int llama_hidden(struct net *n, const struct batch *b, struct net_hidden *ret,
                        struct err *err)
{
    struct llama *l = (struct llama *)(void *)n;
    struct llama_shape s;
    int rc = run_all(l, b, &s, err);
    if (rc < 0)
        return rc;
    *ret = (struct net_hidden){.x = l->hf, .dt = l->dt, .T = s.T, .C = l->C};
    return weights_sync(&l->weights, err);
}

int llama_logits(struct llama *l, const struct batch *b, float *logits, struct err *err)
{
    struct llama_shape s;
    int rc = run_all(l, b, &s, err);
    if (rc < 0)
        return rc;
    for (int64_t from = 0; from < s.rows; from += l->slice) {
        const int64_t n = s.rows - from < l->slice ? s.rows - from : l->slice;
        llama_head_logits(l, from, n);
        llama_op(l,
                 l->ops->copy(l->dev, logits + from * l->V, l->logits,
                              (size_t)(n * l->V) * sizeof *logits, COPY_FROM_DEVICE, l->stream),
                 "copying logits");
    }
    return weights_sync(&l->weights, err);
}

const struct net_ops llama_net_ops = {
    .name = "llama",
    .bytes = llama_bytes,
    .make = llama_make,
    .free = llama_free,
    .load = llama_net_load,
    .queue = llama_queue,
    .graphs = true,
    .hidden = llama_hidden,
};
