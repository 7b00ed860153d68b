#include "worker/net/llama_impl.h"

#define SLICE_BYTES (64u << 20) /* bytes of logits at a time */
#define SLICE_LEAST 64

/* Memory for one block's activations.  In NET_FORWARD and NET_RECOMPUTE all blocks share
 * it. */
static void plan_scratch(struct llama *l, struct llama_block *b, uint64_t rows)
{
    const uint64_t e = dtype_bytes(l->dt), C = (uint64_t)l->C, M = (uint64_t)l->M;
    struct arena *a = &l->arena;
    const bool train = l->net.opt.mode != NET_FORWARD;

    arena_add(a, &b->n1.rstd, rows * sizeof(float));
    arena_add(a, &b->n1.h, rows * C * e);
    arena_add(a, &b->qkv, rows * (uint64_t)llama_qkv(l) * e);
    arena_add(a, &b->o, rows * (uint64_t)(l->H * l->D) * e);
    if (train) {
        if (l->qk_norm)
            arena_add(a, &b->qk, rows * (uint64_t)((l->H + l->K) * l->D) * e);
        arena_add(a, &b->lse, rows * (uint64_t)l->H * sizeof(float));
        arena_add(a, &b->n2.x, rows * C * sizeof(float)); /* else x1, in place */
    }
    arena_add(a, &b->n2.rstd, rows * sizeof(float));
    arena_add(a, &b->n2.h, rows * C * e);
    arena_add(a, &b->gu, rows * 2 * M * e);
    arena_add(a, &b->act, rows * M * e);
}

static void plan_blocks(struct llama *l, const struct llama_slot *s, uint64_t rows)
{
    struct arena *a = &l->arena;
    const uint64_t start = arena_mark(a);

    for (int i = l->part.from; i < l->part.to; i++) {
        if (net_shares_blocks(l->net.opt.mode))
            arena_reset(a, start);
        plan_scratch(l, &s->blocks[i], rows);
    }
    const uint64_t shared = arena_mark(a);
    for (int i = l->part.from; i < l->part.to; i++) {
        if (l->net.opt.mode == NET_FORWARD)
            arena_reset(a, shared);
        arena_add(a, &s->blocks[i].n1.x, rows * (uint64_t)l->C * sizeof(float));
    }
    if (l->part.to < l->depth)
        arena_add(a, &s->blocks[l->part.to].n1.x, rows * (uint64_t)l->C * sizeof(float));
}

static void plan_slot(struct llama *l, struct llama_slot *s, uint64_t rows)
{
    const uint64_t e = dtype_bytes(l->dt), C = (uint64_t)l->C, o = (uint64_t)(l->H * l->D);
    struct arena *a = &l->arena;

    plan_blocks(l, s, rows);
    arena_add(a, &s->y, rows * C * e);
    if (l->part.to == l->depth) {
        arena_add(a, &s->nf.x, rows * C * sizeof(float));
        arena_add(a, &s->nf.rstd, rows * sizeof(float));
        arena_add(a, &s->nf.h, rows * C * e);
    }
    if (l->net.opt.mode == NET_FORWARD)
        return;
    arena_add(a, &s->dx, rows * C * sizeof(float));
    arena_add(a, &s->dh, rows * (o > C ? o : C) * e);
    if (!l->net.opt.split)
        return;
    struct llama_block_grads *g = &s->blocks[l->part.to - 1].d;
    arena_add(a, &g->down, rows * C * e);
    arena_add(a, &g->o, rows * C * e);
    arena_add(a, &g->gu, rows * 2 * (uint64_t)l->M * e);
    arena_add(a, &g->qkv, rows * (uint64_t)llama_qkv(l) * e);
}

static void plan_backward(struct llama *l, uint64_t rows)
{
    const uint64_t e = dtype_bytes(l->dt), M = (uint64_t)l->M;
    const uint64_t qkv = (uint64_t)llama_qkv(l), wide = 2 * M > qkv ? 2 * M : qkv;
    struct arena *a = &l->arena;

    if (l->dt != DT_F32 && l->part.to == l->depth)
        arena_add(a, &l->dlogits, (uint64_t)l->slice * (uint64_t)l->V * e);
    if (!l->net.opt.split) {
        arena_add(a, &l->dy, rows * (uint64_t)l->C * e);
        arena_add(a, &l->dwide, rows * wide * e);
    }
    arena_add(a, &l->dact, rows * M * e);
}

void llama_place_grads(const struct llama *l, const struct llama_slot *s)
{
    for (int i = l->part.from; i < l->part.to; i++) {
        const struct llama_block *above = &s->blocks[i + 1];
        struct llama_block_grads *g = &s->blocks[i].d;
        if (!l->net.opt.split)
            *g = (struct llama_block_grads){l->dy, l->dy, l->dwide, l->dwide};
        else if (i + 1 < l->part.to)
            *g = (struct llama_block_grads){above->n2.x, above->n1.x, above->gu, above->qkv};
    }
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

int llama_plan(struct llama *l, const struct model *m, const struct net_options *opt, enum dtype dt)
{
    const struct model_spec *s = &m->spec;
    const uint64_t rows = (uint64_t)opt->batch * (uint64_t)s->context;
    const size_t slots = (size_t)net_slots(opt);
    struct arena *a = &l->arena;

    l->net.opt = *opt;
    l->dt = dt;
    l->C = s->dim;
    l->H = s->heads;
    l->K = s->kv_heads;
    l->D = model_head_dim(s);
    l->M = s->mlp;
    l->V = s->vocab;
    l->qk_norm = s->qk_norm;
    l->head = model_llama_head(s);
    l->slice = slice_rows((int64_t)rows, s->vocab);
    l->depth = s->depth;
    l->part = net_part_of(m);
    l->slots = mem_try_array(slots, sizeof *l->slots);
    l->blocks = mem_try_array(slots * (size_t)s->depth, sizeof *l->blocks);
    if (!l->slots || !l->blocks)
        return -ENOMEM;

    const uint64_t all = (uint64_t)net_load_most(opt) * (uint64_t)s->context;
    plan_inputs(l, all);
    for (size_t i = 0; i < slots; i++) {
        l->slots[i].blocks = l->blocks + i * (size_t)s->depth;
        plan_slot(l, &l->slots[i], rows);
    }
    if (l->part.to == l->depth)
        arena_add(a, &l->logits, (uint64_t)l->slice * (uint64_t)l->V * sizeof(float));
    arena_add(a, &l->net.d_losses, all * sizeof(float));
    if (opt->mode != NET_FORWARD)
        plan_backward(l, rows);
    return 0;
}
