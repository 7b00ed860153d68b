#include "worker/net/llama_impl.h"

static struct llama *of(struct net *n)
{
    return (struct llama *)(void *)n;
}

static void op(struct llama *l, int rc, const char *what)
{
    weights_note(&l->weights, rc, what);
}

/* The table index of a tensor of block b. */
static int tensor(const struct llama *l, int b, enum model_llama_block_index i)
{
    return model_llama_block(&l->weights.m->spec, b, i);
}

static struct weights_linear linear(int w, int64_t rows, int64_t in, int64_t out)
{
    return (struct weights_linear){.w = w, .rows = rows, .in = in, .out = out, .no_bias = true};
}

static struct weights_linear qkv_linear(const struct llama *l, int b, int64_t rows)
{
    struct weights_linear lin = linear(tensor(l, b, L_Q), rows, l->C, llama_qkv(l));
    lin.no_bias = !l->weights.m->spec.qkv_bias;
    return lin;
}

/* ---- life ---- */

static uint64_t llama_bytes(const struct model *m, const struct net_options *opt, enum dtype dt)
{
    struct llama l = {0};
    int rc = llama_plan(&l, m, opt, dt);
    mem_free(l.slots);
    mem_free(l.blocks);
    return rc == 0 ? arena_measure(&l.arena) + inputs_measure(&l.inputs) : 0;
}

static void llama_free(struct net *n)
{
    struct llama *l = of(n);
    if (l->dev)
        arena_free(&l->arena, l->dev);
    inputs_free(&l->inputs);
    weights_release(&l->weights);
    mem_free(l->slots);
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
    int rc = llama_plan(l, m, opt, net_dtype(dev, opt->precision));
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
    for (int i = 0; opt->mode == NET_FORWARD && i < net_slots(opt) * s->depth; i++)
        l->blocks[i].n2.x = l->blocks[i].n1.x;
    for (int i = 0; opt->mode != NET_FORWARD && i < net_slots(opt); i++)
        llama_place_grads(l, &l->slots[i]);
    if (l->dt == DT_F32)
        l->dlogits = l->logits;
    *ret = &l->net;
    return 0;
}

struct llama *llama_of(struct net *net)
{
    return net->ops == &llama_net_ops ? of(net) : NULL;
}

const struct model *llama_model(const struct llama *l)
{
    return l->weights.m;
}

void llama_link(struct net *part, struct net *next)
{
    struct llama *l = llama_of(part);
    if (l)
        l->next = llama_of(next);
}

/* ---- batches ---- */

#define POSITIONS (1 << 20) /* limit of rotary embeddings */

/* Checks values that the device would refuse only during its work. */
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

/* Checks the batch and sends it to the device; grad_scale is every row's weight. */
static int load(struct llama *l, const struct batch *b, float grad_scale, struct err *err)
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
    op(l, inputs_send(&l->inputs, l->stream), "copying tokens");
    return 0;
}

static int llama_load(struct net *n, const struct batch *b, struct err *err)
{
    return load(of(n), b, n->grad_scale, err);
}

/* Puts the loaded texts [from, from+count) into a slot. */
static void take(struct llama *l, struct llama_slot *s, unsigned from, unsigned count, unsigned seq)
{
    const struct llama_rows *all = &l->loaded;
    const int64_t at = (int64_t)from * seq;
    s->in = (struct llama_rows){all->tokens + at, all->start + at, all->pos + at, all->target + at,
                                all->weight + at};
    s->loss = l->net.d_losses + at;
    s->B = (int)count;
    s->T = (int)seq;
    s->rows = (int64_t)count * seq;
    s->cache = NULL;
}

/* ---- forward ---- */

static void *row_of(void *base, int64_t row, int64_t ld, enum dtype dt)
{
    return (char *)base + (size_t)(row * ld) * dtype_bytes(dt);
}

/* y (rows,out) (y_dt) = x (rows,in) Wᵀ. */
static void product(struct llama *l, void *y, enum dtype y_dt, const void *x, int w, int64_t rows,
                    int64_t in, int64_t out)
{
    const struct weights_linear lin = linear(w, rows, in, out);
    weights_forward(&l->weights, &lin, y, y_dt, 0, x, 0);
}

/* The norm w of x_in + y, or of x_in where y is NULL; n->h NULL: only the addition. */
static void norm_forward(struct llama *l, const struct llama_slot *s, const struct llama_norm *n,
                         int w, const float *x_in, const void *y)
{
    const struct rmsnorm_fwd p = {
        .x = n->x,
        .h = n->h,
        .rstd = n->rstd,
        .x_in = x_in,
        .y = y,
        .w = weights_f32(&l->weights, w),
        .eps = l->weights.m->spec.norm_eps,
        .rows = s->rows,
        .C = l->C,
        .dt = l->dt,
    };
    op(l, l->ops->rmsnorm_fwd(l->dev, &p, l->stream), "rmsnorm_fwd");
}

/* The norms of q's and k's heads in packed qkv, or their backward in its gradient. */
static void norm_heads(struct llama *l, const struct llama_slot *s, int b, bool backward)
{
    const struct llama_block *p = &s->blocks[b];
    const enum model_llama_block_index norms[] = {L_Q_NORM, L_K_NORM};
    for (int i = 0; i < 2; i++) {
        const int w = tensor(l, b, norms[i]);
        const struct headnorm n = {
            .x = row_of(backward ? p->d.qkv : p->qkv, i, (int64_t)l->H * l->D, l->dt),
            .kept = p->qk ? row_of(p->qk, i, s->rows * l->H * l->D, l->dt) : NULL,
            .dw = backward ? weights_g(&l->weights, w) : NULL,
            .w = weights_f32(&l->weights, w),
            .rows = s->rows,
            .ld = llama_qkv(l),
            .heads = i ? l->K : l->H,
            .D = l->D,
            .eps = l->weights.m->spec.norm_eps,
            .dt = l->dt,
        };
        op(l,
           backward ? l->ops->headnorm_bwd(l->dev, &n, l->stream)
                    : l->ops->headnorm_fwd(l->dev, &n, l->stream),
           "headnorm");
    }
}

/* Rotary positions of block b's q and k in packed qkv, if it has them. */
static void turn(struct llama *l, const struct llama_slot *s, int b, void *qkv, bool inverse)
{
    if (!model_llama_turns(&l->weights.m->spec, b))
        return;
    struct rope p = {
        .x = qkv,
        .pos = s->in.pos,
        .rows = s->rows,
        .ld = llama_qkv(l),
        .heads = l->H + l->K,
        .D = l->D,
        .theta = l->weights.m->spec.rope_theta,
        .scaling = l->weights.m->spec.rope_scaling,
        .inverse = inverse,
        .dt = l->dt,
    };
    op(l, l->ops->rope(l->dev, &p, l->stream), "rope");
}

/* Appends the keys and values of the call's tokens to those in the cache. */
static void remember(struct llama *l, const struct llama_block *p, char *kv, int used, int64_t rows)
{
    const size_t e = dtype_bytes(l->dt), row = (size_t)(2 * l->K * l->D) * e;
    const size_t ld = (size_t)llama_qkv(l) * e, skip = (size_t)(l->H * l->D) * e;

    for (int64_t i = 0; i < rows; i++)
        op(l,
           l->ops->copy(l->dev, kv + ((size_t)used + (size_t)i) * row,
                        (const char *)p->qkv + (size_t)i * ld + skip, row, COPY_DEVICE, l->stream),
           "copying keys");
}

static size_t cache_block_bytes(const struct llama_cache *c)
{
    const struct llama *l = c->l;
    return (size_t)c->seq * (size_t)(2 * l->K * l->D) * dtype_bytes(l->dt);
}

static void attend(struct llama *l, const struct llama_slot *s, int b)
{
    const struct llama_block *p = &s->blocks[b];
    struct attention_fwd att = {
        .o = p->o,
        .lse = p->lse,
        .qkv = p->qkv,
        .start = s->cache ? NULL : s->in.start,
        .B = s->B,
        .T = s->T,
        .H = l->H,
        .D = l->D,
        .Hkv = l->K,
        .causal = true,
        .dt = l->dt,
    };
    if (s->cache) {
        char *kv = (char *)s->cache->kv + (size_t)(b - l->part.from) * cache_block_bytes(s->cache);
        const int used = s->cache->used;
        remember(l, p, kv, used, s->rows);
        att.kv = kv;
        att.Tk = used + s->T;
    }
    op(l, l->ops->attention_fwd(l->dev, &att, l->stream), "attention_fwd");
}

/* Block b from h1 up to act; with_down also its last product, to y. */
static void block_forward(struct llama *l, const struct llama_slot *s, int b, bool with_down)
{
    const struct llama_block *p = &s->blocks[b];
    const int64_t rows = s->rows, C = l->C, M = l->M;
    const struct weights_linear qkv = qkv_linear(l, b, rows);

    weights_forward(&l->weights, &qkv, p->qkv, l->dt, 0, p->n1.h, 0);
    if (l->qk_norm)
        norm_heads(l, s, b, false);
    turn(l, s, b, p->qkv, false);
    attend(l, s, b);
    product(l, s->y, l->dt, p->o, tensor(l, b, L_O), rows, (int64_t)l->H * l->D, C);
    norm_forward(l, s, &p->n2, tensor(l, b, L_NORM2), p->n1.x, s->y);
    product(l, p->gu, l->dt, p->n2.h, tensor(l, b, L_GATE), rows, C, 2 * M);
    op(l, l->ops->swiglu_fwd(l->dev, p->act, p->gu, rows, M, l->dt, l->stream), "swiglu_fwd");
    if (with_down)
        product(l, s->y, l->dt, p->act, tensor(l, b, L_DOWN), rows, M, C);
}

/* From the tokens, or the output of the part before, to y, or with the last part to hf. */
static void run(struct llama *l, const struct llama_slot *s, const struct model_part *part)
{
    const struct model_spec *spec = &l->weights.m->spec;
    if (part->from == 0)
        op(l,
           l->ops->embed_fwd(l->dev, s->blocks[0].n1.x, weights_f32(&l->weights, L_EMBED),
                             s->in.tokens, (int)s->rows, l->C, l->V, false, l->stream),
           "embed_fwd");
    for (int b = part->from; b < part->to; b++) {
        const struct llama_norm *n = &s->blocks[b].n1;
        const bool add = b > part->from;
        norm_forward(l, s, n, tensor(l, b, L_NORM1), add ? s->blocks[b - 1].n2.x : n->x,
                     add ? s->y : NULL);
        block_forward(l, s, b, true);
    }
    const struct llama_norm sum = {.x = part->to < l->depth ? s->blocks[part->to].n1.x : NULL};
    norm_forward(l, s, part->to < l->depth ? &sum : &s->nf, model_llama_final(spec, L_NORM),
                 s->blocks[part->to - 1].n2.x, s->y);
}

/* ---- the head, a slice of rows at a time ---- */

/* logits (n,V) = those of rows [from, from+n). */
static void head_logits(struct llama *l, const struct llama_slot *s, int64_t from, int64_t n)
{
    product(l, l->logits, DT_F32, row_of(s->nf.h, from, l->C, l->dt), l->head, n, l->C, l->V);
}

/* Losses; with backward also dh = gradient of hf, and the head's own. */
static void head(struct llama *l, const struct llama_slot *s, bool backward, bool first)
{
    for (int64_t from = 0; from < s->rows; from += l->slice) {
        const int64_t n = s->rows - from < l->slice ? s->rows - from : l->slice;
        head_logits(l, s, from, n);
        struct cross_entropy ce = {
            .loss = s->loss + from,
            .dlogits = backward ? l->dlogits : NULL,
            .logits = l->logits,
            .target = s->in.target + from,
            .w = s->in.weight + from,
            .grad_scale = 1.0f,
            .rows = n,
            .V = l->V,
            .dt = DT_F32,
            .grad_dt = l->dt,
        };
        op(l, l->ops->cross_entropy(l->dev, &ce, l->stream), "cross_entropy");
        if (!backward)
            continue;
        /* A tied head adds to what weights_zero_grads has cleared, as the embedding does. */
        const bool set = first && from == 0 && l->head != L_EMBED;
        struct weights_linear lin = {l->head, n, l->C, l->V, .no_bias = true};
        weights_grad(&l->weights, &lin, l->dlogits, 0, row_of(s->nf.h, from, l->C, l->dt), 0, set);
        weights_input_grad(&l->weights, &lin, row_of(s->dh, from, l->C, l->dt), l->dt, 0,
                           l->dlogits, 0, false);
    }
}

static int llama_forward(struct net *n, const struct model_part *part, int slot,
                         const struct net_micro *micro, struct err *err)
{
    struct llama *l = of(n);
    struct llama_slot *s = &l->slots[slot];
    take(l, s, micro->from, micro->count, n->loaded.seq);
    run(l, s, part);
    if (part->to == l->depth)
        head(l, s, micro->backward, micro->first);
    return weights_check(&l->weights, err);
}

/* Runs a whole batch, without the head. */
static int run_all(struct llama *l, const struct batch *b, struct err *err)
{
    if (b->count > (unsigned)l->net.opt.batch)
        return err_set(err, -EINVAL, "%u rows in a model made for %d", b->count, l->net.opt.batch);
    int rc = load(l, b, 0, err);
    if (rc < 0)
        return rc;
    take(l, l->slots, 0, b->count, b->seq);
    run(l, l->slots, &(struct model_part){0, l->depth});
    return 0;
}

static int llama_hidden(struct net *n, const struct batch *b, struct net_hidden *ret,
                        struct err *err)
{
    struct llama *l = of(n);
    int rc = run_all(l, b, err);
    if (rc < 0)
        return rc;
    *ret = (struct net_hidden){.x = l->slots[0].nf.h, .dt = l->dt, .T = l->slots[0].T, .C = l->C};
    return weights_sync(&l->weights, err);
}

int llama_logits(struct llama *l, const struct batch *b, float *logits, struct err *err)
{
    const struct llama_slot *s = l->slots;
    int rc = run_all(l, b, err);
    if (rc < 0)
        return rc;
    for (int64_t from = 0; from < s->rows; from += l->slice) {
        const int64_t n = s->rows - from < l->slice ? s->rows - from : l->slice;
        head_logits(l, s, from, n);
        op(l,
           l->ops->copy(l->dev, logits + from * l->V, l->logits,
                        (size_t)(n * l->V) * sizeof *logits, COPY_FROM_DEVICE, l->stream),
           "copying logits");
    }
    return weights_sync(&l->weights, err);
}

/* ---- backward ---- */

/* Backward of a norm and the addition before it: from dh to dx and dy, the gradient of the added
 * branch; NULL: nothing was added. */
static void norm_backward(struct llama *l, const struct llama_slot *s, const struct llama_norm *n,
                          int w, bool set, void *dy)
{
    const struct rmsnorm_bwd p = {
        .dx = s->dx,
        .dy = dy,
        .dw = weights_g(&l->weights, w),
        .dh = s->dh,
        .x = n->x,
        .rstd = n->rstd,
        .w = weights_f32(&l->weights, w),
        .dx_set = set,
        .rows = s->rows,
        .C = l->C,
        .dt = l->dt,
    };
    op(l, l->ops->rmsnorm_bwd(l->dev, &p, l->stream), "rmsnorm_bwd");
}

/* From the gradient of the block's end to dh = gradient of h of n2. */
static void mlp_backward(struct llama *l, const struct llama_slot *s, int b, bool first)
{
    const int64_t rows = s->rows;
    const struct llama_block *p = &s->blocks[b];
    const struct weights_linear gu = linear(tensor(l, b, L_GATE), rows, l->C, 2 * (int64_t)l->M);
    const struct weights_linear down = linear(tensor(l, b, L_DOWN), rows, l->M, l->C);
    struct weights *w = &l->weights;

    weights_grad_later(w, &down, p->d.down, 0, p->act, 0, first);
    weights_input_grad(w, &down, l->dact, l->dt, 0, p->d.down, 0, false);
    op(l, l->ops->swiglu_bwd(l->dev, p->d.gu, l->dact, p->gu, rows, l->M, l->dt, l->stream),
       "swiglu_bwd");
    weights_grad_later(w, &gu, p->d.gu, 0, p->n2.h, 0, first);
    weights_input_grad(w, &gu, s->dh, l->dt, 0, p->d.gu, 0, false);
}

/* From the gradient of the attention's end to dh = gradient of h of n1. */
static void attention_backward(struct llama *l, const struct llama_slot *s, int b, bool first)
{
    const struct llama_block *p = &s->blocks[b];
    const struct weights_linear qkv = qkv_linear(l, b, s->rows);
    const struct weights_linear out =
        linear(tensor(l, b, L_O), s->rows, (int64_t)l->H * l->D, l->C);
    struct weights *w = &l->weights;

    weights_grad_later(w, &out, p->d.o, 0, p->o, 0, first);
    weights_input_grad(w, &out, s->dh, l->dt, 0, p->d.o, 0, false); /* gradient of o */
    struct attention_bwd att = {
        .dqkv = p->d.qkv,
        .d_o = s->dh,
        .o = p->o,
        .lse = p->lse,
        .qkv = p->qkv,
        .start = s->in.start,
        .B = s->B,
        .T = s->T,
        .H = l->H,
        .D = l->D,
        .Hkv = l->K,
        .causal = true,
        .dt = l->dt,
    };
    op(l, l->ops->attention_bwd(l->dev, &att, l->stream), "attention_bwd");
    turn(l, s, b, p->d.qkv, true);
    if (l->qk_norm)
        norm_heads(l, s, b, true);
    weights_grad_later(w, &qkv, p->d.qkv, 0, p->n1.h, 0, first);
    weights_input_grad(w, &qkv, s->dh, l->dt, 0, p->d.qkv, 0, false);
}

static void block_backward(struct llama *l, const struct llama_slot *s, int b, bool first)
{
    const struct llama_block *p = &s->blocks[b];
    if (l->net.opt.mode == NET_RECOMPUTE) { /* which has kept x of n1 */
        norm_forward(l, s, &p->n1, tensor(l, b, L_NORM1), p->n1.x, NULL);
        block_forward(l, s, b, false);
    }
    mlp_backward(l, s, b, first);
    norm_backward(l, s, &p->n2, tensor(l, b, L_NORM2), false, p->d.o);
    attention_backward(l, s, b, first);
}

static int llama_backward(struct net *n, const struct model_part *part, int slot,
                          const struct net_micro *micro, struct err *err)
{
    struct llama *l = of(n);
    const struct model_spec *spec = &l->weights.m->spec;
    const struct llama_slot *s = &l->slots[slot];
    const struct llama_block *last = &s->blocks[part->to - 1];
    if (part->to == l->depth) {
        if (l->head != L_EMBED)
            weights_ready_matrices(&l->weights, l->head, l->head);
        norm_backward(l, s, &s->nf, model_llama_final(spec, L_NORM), true, last->d.down);
    } else {
        op(l, l->ops->cast(l->dev, last->d.down, l->dt, s->dx, DT_F32, s->rows * l->C, l->stream),
           "cast");
    }
    for (int b = part->to - 1; b >= part->from; b--) {
        block_backward(l, s, b, micro->first);
        weights_ready_matrices(&l->weights, tensor(l, b, L_Q), tensor(l, b, L_DOWN));
        norm_backward(l, s, &s->blocks[b].n1, tensor(l, b, L_NORM1), false,
                      b > part->from ? s->blocks[b - 1].d.down : NULL);
    }
    if (part->from == 0)
        op(l,
           l->ops->embed_bwd(l->dev, weights_g(&l->weights, L_EMBED), s->dx, s->in.tokens,
                             (int)s->rows, l->C, l->V, l->stream),
           "embed_bwd");
    return weights_check(&l->weights, err);
}

static int llama_crossing(struct net *n, enum net_way way, int block, int slot,
                          const struct net_micro *micro, struct net_piece *ret)
{
    const struct llama *l = of(n);
    const struct llama_slot *s = &l->slots[slot];
    const size_t rows = (size_t)micro->count * n->loaded.seq;
    ret[0] = (struct net_piece){way == NET_UP ? s->blocks[block].n1.x : s->dx,
                                rows * (size_t)l->C * sizeof(float)};
    return 1;
}

const struct net_ops llama_net_ops = {
    .bytes = llama_bytes,
    .make = llama_make,
    .free = llama_free,
    .load = llama_load,
    .forward = llama_forward,
    .backward = llama_backward,
    .crossing = llama_crossing,
    .graphs = true,
    .hidden = llama_hidden,
};

/* ---- one text at a time ---- */

int llama_cache_new(struct llama *l, struct llama_cache **ret, struct err *err)
{
    const struct model_spec *s = &l->weights.m->spec;
    struct llama_cache *c = mem_try_zero(sizeof *c);
    if (!c)
        return err_set(err, -ENOMEM, "no memory for a cache of keys");
    c->l = l;
    c->seq = s->context;
    const size_t blocks = (size_t)(l->part.to - l->part.from);
    int rc = l->ops->alloc(l->dev, cache_block_bytes(c) * blocks, &c->kv, err);
    if (rc == 0 && l->next)
        rc = llama_cache_new(l->next, &c->next, err);
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
    llama_cache_free(c->next);
    c->l->ops->free(c->l->dev, c->kv);
    mem_free(c);
}

void llama_cache_clear(struct llama_cache *c)
{
    for (; c; c = c->next)
        c->used = 0;
}

int llama_cache_room(const struct llama_cache *c)
{
    return c->seq - c->used;
}

/* Runs n ids through the blocks of a part; the first part's are checked. */
static void read_part(struct llama_cache *c, const uint32_t *ids, int n)
{
    struct llama *l = c->l;
    for (int i = 0; i < n; i++) {
        l->host.tokens[i] = (int32_t)ids[i];
        l->host.pos[i] = c->used + i;
    }
    op(l, inputs_send(&l->inputs, l->stream), "copying tokens");
    take(l, l->slots, 0, 1, (unsigned)n);
    l->slots->cache = c;
    run(l, l->slots, &l->part);
}

/* Brings the states after a part to the beginning of the next one. */
static int bring_states(struct llama *l, int n, struct err *err)
{
    const int at = l->part.to;
    return weights_bring(&l->next->weights, l->next->slots->blocks[at].n1.x, &l->weights,
                         l->slots->blocks[at].n1.x, (uint64_t)n * (uint64_t)l->C * sizeof(float),
                         err);
}

int llama_read(struct llama_cache *c, const uint32_t *ids, int n, float *logits, struct err *err)
{
    struct llama *l = c->l;
    if (n < 1 || n > llama_cache_room(c))
        return err_set(err, -EINVAL, "%d tokens after %d in a context of %d", n, c->used, c->seq);
    for (int i = 0; i < n; i++)
        if (ids[i] >= (uint32_t)l->V)
            return err_set(err, -EINVAL, "token %u is not below the model's vocabulary of %d",
                           ids[i], l->V);
    int rc = 0;
    for (struct llama_cache *at = c; at && rc == 0; at = at->next) {
        l = at->l;
        read_part(at, ids, n);
        rc = l->next ? bring_states(l, n, err) : 0;
    }
    if (rc < 0)
        return rc;
    head_logits(l, l->slots, n - 1, 1);
    op(l,
       l->ops->copy(l->dev, logits, l->logits, (size_t)l->V * sizeof *logits, COPY_FROM_DEVICE,
                    l->stream),
       "copying logits");
    rc = weights_sync(&l->weights, err);
    for (; c && rc == 0; c = c->next)
        c->used += n;
    return rc;
}
