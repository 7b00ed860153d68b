/* EVAL of a mixture: the held-out loss of flow matching with the experts combined in several
 * ways.  Time and noise of a sample are those of every evaluation of the job (eval.h), so
 * the rows compare with each other and with a monolith's loss.  Each batch runs every
 * expert once; the strategies only combine. */
#include <errno.h>
#include <stdio.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/mem.h"
#include "worker/train/eval.h"
#include "worker/kinds/feed.h"
#include "worker/net/flow_matching.h"
#include "worker/kinds/mixture_impl.h"

enum { STRATEGIES = 5, EVAL_BATCH = 64 };

struct strategy {
    const char *name;
    struct mix_rule rule;
    double sum;
};

struct mixture_eval {
    struct mixture *m;
    struct flow_matching flow;
    struct feed *feed;
    uint64_t seed;
    struct strategy strategies[STRATEGIES];
    int n_strategies, own; /* own: which is the mixture's */
    uint64_t samples, hits, routed[MIX_EXPERTS_MAX];

    struct arena arena;
    float *d_v, *d_loss; /* (B,n), (B) */
    float *all, *loss;   /* host: ones (B,K), (B) */
};

static bool same_rule(const struct mix_rule *a, const struct mix_rule *b)
{
    return a->strategy == b->strategy && (a->strategy != JOB_STRATEGY_TOPK || a->top == b->top);
}

static void choose_strategies(struct mixture_eval *v)
{
    static const struct strategy fixed[] = {
        {.name = "full", .rule = {.strategy = JOB_STRATEGY_FULL}},
        {.name = "top1", .rule = {.strategy = JOB_STRATEGY_TOP1}},
        {.name = "top2", .rule = {.strategy = JOB_STRATEGY_TOPK, .top = 2}},
        {.name = "oracle", .rule = {.strategy = JOB_STRATEGY_ORACLE}},
    };
    const struct mix_rule *own = mixture_rule(v->m);
    v->own = -1;
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++) {
        if (same_rule(&fixed[i].rule, own))
            v->own = v->n_strategies;
        v->strategies[v->n_strategies++] = fixed[i];
    }
    if (v->own < 0) { /* another one: a row of its own */
        v->own = v->n_strategies;
        v->strategies[v->n_strategies++] =
            (struct strategy){.name = job_strategy_name((int)own->strategy), .rule = *own};
    }
}

static int eval_open(struct mixture_eval *v, int batch, struct err *err)
{
    struct mixture *m = v->m;
    const struct work *w = m->w;
    const struct net_options opt = {
        .mode = NET_FORWARD, .batch = batch, .uniform_t = w->spec.train.t == JOB_T_UNIFORM};
    const size_t B = (size_t)batch, K = (size_t)m->experts.count;
    choose_strategies(v);
    v->seed = eval_seed(w->spec.seed);
    int rc = flow_matching_init(&v->flow, dit_weights(m->router), &opt, err);
    if (rc < 0)
        return rc;
    v->flow.classes = (int)w->task->n_classes; /* the experts have labels, the router none */
    arena_add(&v->arena, &v->d_v, B * (size_t)v->flow.n * sizeof *v->d_v);
    arena_add(&v->arena, &v->d_loss, B * sizeof *v->d_loss);
    v->all = mem_try_array(B * K, sizeof *v->all);
    v->loss = mem_try_array(B, sizeof *v->loss);
    if (!v->all || !v->loss)
        return err_set(err, -ENOMEM, "no memory to combine %zu experts", K);
    for (size_t i = 0; i < B * K; i++)
        v->all[i] = 1;
    return arena_alloc(&v->arena, m->dev, err);
}

static void eval_close(struct mixture_eval *v)
{
    arena_free(&v->arena, v->m->dev);
    flow_matching_release(&v->flow);
    mem_free(v->all);
    mem_free(v->loss);
}

static int note_routing(struct mixture_eval *v, const struct batch *b, struct err *err)
{
    const int K = v->m->experts.count;
    for (unsigned i = 0; i < b->count; i++) {
        if (b->partitions[i] < 0 || b->partitions[i] >= K)
            return err_set(err, -ERR_FORMAT, "a held-out sample is of partition %d of %d",
                           (int)b->partitions[i], K);
        const int best = mix_argmax(v->m->weights + (int64_t)i * K, K);
        v->routed[best]++;
        v->hits += best == b->partitions[i];
    }
    v->samples += b->count;
    return 0;
}

/* Adds the losses of one way to combine what the experts said. */
static int add_losses(struct mixture_eval *v, struct strategy *s, const struct batch *b,
                      struct err *err)
{
    struct mixture *m = v->m;
    const struct flow_matching *f = &v->flow;
    const int B = (int)b->count;
    mix_select(&s->rule, m->selected, m->weights, b->partitions, B, m->experts.count);
    int rc = mix_combine(m->mix, v->d_v, m->selected, B, err);
    if (rc < 0)
        return rc;
    rc = m->dev->ops->mse(m->dev, v->d_loss, NULL, v->d_v, f->d_target, NULL, 0.0f, B, f->n,
                          f->stream);
    if (rc == 0)
        rc = m->dev->ops->copy(m->dev, v->loss, v->d_loss, b->count * sizeof *v->loss,
                               COPY_FROM_DEVICE, f->stream);
    if (rc < 0)
        return err_set(err, rc, "the loss failed on %s: %s", m->dev->name, err_text(rc));
    rc = m->dev->ops->sync(m->dev, f->stream, err);
    for (int i = 0; i < B && rc == 0; i++)
        s->sum += (double)v->loss[i];
    return rc;
}

static int add_batch(struct mixture_eval *v, const struct batch *b, struct err *err)
{
    struct mixture *m = v->m;
    struct flow_matching *f = &v->flow;
    int rc = flow_matching_load(f, b, err);
    if (rc == 0)
        rc = flow_matching_mix(f, 0, b->count, err);
    if (rc == 0)
        rc = m->dev->ops->sync(m->dev, f->stream, err);
    if (rc == 0)
        rc = mixture_weigh(m, m->weights, f->d_xt, f->t, (int)b->count, err);
    if (rc == 0)
        rc = note_routing(v, b, err);
    if (rc == 0)
        rc = mix_run(m->mix, f->d_xt, f->t, f->labels, v->all, (int)b->count, err);
    for (int i = 0; i < v->n_strategies && rc == 0; i++)
        rc = add_losses(v, &v->strategies[i], b, err);
    return rc;
}

static int measure(struct mixture_eval *v, struct err *err)
{
    struct work *w = v->m->w;
    const uint64_t total = feed_total(v->feed), asked = w->task->eval->samples;
    const uint64_t limit = asked && asked < total ? asked : total;
    while (v->samples < limit) {
        struct batch b;
        if (work_stopped(w, err))
            return -ERR_CANCELLED;
        int rc = feed_next(v->feed, &b, err);
        if (rc < 0)
            return rc;
        if (b.count == 0)
            break;
        if (b.count > limit - v->samples)
            b.count = (unsigned)(limit - v->samples);
        b.seed = v->seed;
        if ((rc = add_batch(v, &b, err)) < 0)
            return rc;
        progress_units(&w->progress, (uint32_t)v->samples, (uint32_t)limit);
    }
    return v->samples ? 0 : err_set(err, -ERR_FORMAT, "no held-out sample can be read");
}

static void tell(const struct mixture_eval *v)
{
    struct work *w = v->m->w;
    const double n = (double)v->samples;
    for (int i = 0; i < v->n_strategies; i++)
        work_row(w, v->strategies[i].sum / n, "", "loss %s", v->strategies[i].name);
    work_row(w, (double)v->hits / n, "", "router accuracy");
    for (int k = 0; k < v->m->experts.count; k++)
        work_row(w, (double)v->routed[k] / n, "", "routed %d", k);
    w->result.samples = w->result.units = v->samples;
    w->result.loss_sum = v->strategies[v->own].sum;
    w->result.loss_mean = (float)(v->strategies[v->own].sum / n);
}

int mixture_eval_run(struct engine *e, struct work *w, struct err *err)
{
    const Skerry__V1__EvalTask *t = w->task->eval;
    const int batch = mixture_rows(w, EVAL_BATCH);
    const struct feed_options feed = {.batch = (unsigned)batch};
    const struct mixture_options opt = {
        .rows = batch, .most = MIX_EXPERTS_MAX, .doing = "evaluating"};
    const uint64_t begun = clock_now_ns();
    struct mixture_eval v = {0};
    progress_activity(&w->progress, "evaluating");
    int rc = mixture_open(e, w, &opt, &v.m, err);
    if (rc < 0)
        return rc;
    rc = eval_open(&v, batch, err);
    if (rc == 0)
        rc = feed_open(e, w, t->ranges, t->n_ranges, &feed, &v.feed, err);
    if (rc == 0)
        rc = measure(&v, err);
    if (rc == 0)
        tell(&v);
    if (v.feed)
        feed_take_bad(v.feed, w);
    w->result.seconds = (float)(clock_now_ns() - begun) / 1e9f;
    feed_free(v.feed);
    eval_close(&v);
    mixture_close(v.m);
    return rc;
}
