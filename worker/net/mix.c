#include "worker/net/mix.h"

#include <assert.h>

#include "worker/net/arena.h"

/* ---- weights ---- */

int mix_most(const struct mix_rule *rule, int K)
{
    switch (rule->strategy) {
    case JOB_STRATEGY_TOP1:
    case JOB_STRATEGY_ORACLE:
        return 1;
    case JOB_STRATEGY_TOPK:
        return rule->top < K ? rule->top : K;
    case JOB_STRATEGY_FULL:
    case JOB_STRATEGY_NUCLEUS:
    case JOB_STRATEGY_THRESHOLD:
        break;
    }
    return K;
}

void mix_softmax(float *weights, const float *logits, int B, int K)
{
    for (int b = 0; b < B; b++) {
        const float *in = logits + (int64_t)b * K;
        float *out = weights + (int64_t)b * K;
        double most = (double)in[mix_argmax(in, K)], sum = 0;
        for (int k = 0; k < K; k++)
            sum += exp((double)in[k] - most);
        for (int k = 0; k < K; k++)
            out[k] = (float)(exp((double)in[k] - most) / sum);
    }
}

int mix_argmax(const float *weights, int K)
{
    int best = 0;
    for (int k = 1; k < K; k++)
        if (weights[k] > weights[best])
            best = k;
    return best;
}

/* order (K) = experts by falling weight, equal ones ascending. */
static void rank(int *order, const float *weights, int K)
{
    for (int k = 0; k < K; k++) {
        int at = k;
        for (; at > 0 && weights[k] > weights[order[at - 1]]; at--)
            order[at] = order[at - 1];
        order[at] = k;
    }
}

static int count_nucleus(const struct mix_rule *rule, const int *order, const float *weights, int K)
{
    double sum = 0;
    for (int n = 0; n < K; n++) {
        sum += (double)weights[order[n]];
        if (sum >= (double)rule->nucleus)
            return n + 1;
    }
    return K;
}

static int count_above(const struct mix_rule *rule, const int *order, const float *weights, int K)
{
    int n = 0;
    while (n < K && weights[order[n]] >= rule->threshold)
        n++;
    return n > 0 ? n : 1;
}

/* Puts the kept experts of a row in order (K); returns their number. */
static int keep(const struct mix_rule *rule, const float *weights, int32_t truth, int K, int *order)
{
    switch (rule->strategy) {
    case JOB_STRATEGY_ORACLE:
        assert(truth >= 0 && truth < K);
        order[0] = truth;
        return 1;
    case JOB_STRATEGY_TOP1:
        order[0] = mix_argmax(weights, K);
        return 1;
    case JOB_STRATEGY_TOPK:
        rank(order, weights, K);
        return mix_most(rule, K);
    case JOB_STRATEGY_NUCLEUS:
        rank(order, weights, K);
        return count_nucleus(rule, order, weights, K);
    case JOB_STRATEGY_THRESHOLD:
        rank(order, weights, K);
        return count_above(rule, order, weights, K);
    case JOB_STRATEGY_FULL:
        break;
    }
    rank(order, weights, K);
    return K;
}

void mix_select(const struct mix_rule *rule, float *selected, const float *weights,
                const int32_t *truth, int B, int K)
{
    int order[MIX_EXPERTS_MAX];
    float kept[MIX_EXPERTS_MAX];
    assert(K >= 1 && K <= MIX_EXPERTS_MAX);
    for (int b = 0; b < B; b++) {
        const float *w = weights + (int64_t)b * K;
        int n = keep(rule, w, truth ? truth[b] : 0, K, order);
        double sum = 0;
        for (int i = 0; i < n; i++)
            sum += (double)w[order[i]];
        bool sound = sum > 0 && isfinite(sum);
        memset(kept, 0, (size_t)K * sizeof *kept);
        for (int i = 0; i < n && sound; i++)
            kept[order[i]] = (float)((double)w[order[i]] / sum);
        if (!sound)
            kept[order[0]] = 1;
        memcpy(selected + (int64_t)b * K, kept, (size_t)K * sizeof *kept);
    }
}

/* ---- velocities ---- */

/* The rows of the last mix_run by expert: expert k has the entries [start[k], start[k+1]),
 * entry e is row[e], its x and v lie in place e of the arrays below. */
struct mix {
    struct mix_options opt;
    struct mix_experts experts;
    const struct net_captions *captions;
    int chain, shape;
    const float *told; /* (rows,n) beside x; or NULL */
    int64_t n;         /* values of a sample of that run */
    const struct kernel_ops *ops;
    int entries; /* most entries */
    int start[MIX_EXPERTS_MAX + 1];
    int *row;
    float *t;        /* host, (entries) */
    int32_t *labels; /* host, (entries) */

    struct mem_arrays memory; /* the three */

    struct arena arena;
    float *x, *v, *beside; /* (entries,n) */
};

static void plan(struct mix *m)
{
    const uint64_t values = (uint64_t)m->entries * (uint64_t)m->opt.values;
    arena_add(&m->arena, &m->x, values * sizeof(float));
    arena_add(&m->arena, &m->v, values * sizeof(float));
    if (m->opt.upscales)
        arena_add(&m->arena, &m->beside, values * sizeof(float));
}

uint64_t mix_bytes(const struct mix_options *opt)
{
    struct mix m = {.opt = *opt, .entries = opt->rows * opt->most};
    plan(&m);
    return arena_measure(&m.arena);
}

int mix_new(const struct mix_options *opt, const struct mix_experts *experts, struct mix **ret,
            struct err *err)
{
    if (experts->count < 1 || experts->count > MIX_EXPERTS_MAX || opt->rows < 1 || opt->most < 1)
        return err_set(err, -EINVAL,
                       "a mixture of %d experts for %d rows; from 1 to %d experts "
                       "are possible",
                       experts->count, opt->rows, MIX_EXPERTS_MAX);
    struct mix *m = mem_alloc(sizeof *m);
    m->opt = *opt;
    m->experts = *experts;
    m->n = opt->values;
    m->ops = opt->dev->ops;
    m->entries = opt->rows * opt->most;
    const size_t n = (size_t)m->entries;
    m->row = mem_arrays_add(&m->memory, n, sizeof *m->row);
    m->t = mem_arrays_add(&m->memory, n, sizeof *m->t);
    m->labels = mem_arrays_add(&m->memory, n, sizeof *m->labels);
    int rc = 0;
    if (m->memory.failed)
        rc = err_set(err, -ENOMEM, "no memory to group %d rows", m->entries);
    if (rc == 0) {
        plan(m);
        rc = arena_alloc(&m->arena, opt->dev, err);
    }
    if (rc < 0) {
        mix_free(m);
        return rc;
    }
    *ret = m;
    return 0;
}

void mix_free(struct mix *m)
{
    if (!m)
        return;
    arena_free(&m->arena, m->opt.dev);
    mem_arrays_free(&m->memory);
    mem_free(m);
}

void mix_captions(struct mix *m, const struct net_captions *captions)
{
    m->captions = captions;
}

void mix_shape(struct mix *m, int shape, int64_t n)
{
    assert(n > 0 && n <= m->opt.values);
    m->shape = shape;
    m->n = n;
}

void mix_chain(struct mix *m, int chain, const float *beside)
{
    assert(!beside || m->opt.upscales);
    m->chain = chain;
    m->told = beside;
}

static int failed(const struct mix *m, int rc, struct err *err)
{
    return err_set(err, rc, "combining experts failed on %s: %s", m->opt.dev->name, err_text(rc));
}

/* Assigns rows to entries; -EINVAL: a row wants more experts than there is room for. */
static int group(struct mix *m, const float *t, const int32_t *labels, const float *want, int rows,
                 struct err *err)
{
    const int K = m->experts.count;
    int e = 0;
    if (rows > m->opt.rows)
        return err_set(err, -EINVAL, "%d rows in a mixture made for %d", rows, m->opt.rows);
    for (int k = 0; k < K; k++) {
        m->start[k] = e;
        for (int i = 0; i < rows; i++) {
            if (!(want[(int64_t)i * K + k] > 0))
                continue;
            if (e == m->entries)
                return err_set(err, -EINVAL, "more than %d experts for a row", m->opt.most);
            m->row[e] = i;
            m->t[e] = t[i];
            m->labels[e] = labels[i];
            e++;
        }
    }
    m->start[K] = e;
    return 0;
}

/* to = the rows of all groups densely, neighbours in one copy. */
static int gather(struct mix *m, float *to, const float *x, struct err *err)
{
    const int total = m->start[m->experts.count];
    const int64_t n = m->n;
    for (int e = 0, run; e < total; e += run) {
        for (run = 1; e + run < total && m->row[e + run] == m->row[e] + run;)
            run++;
        int rc = m->ops->copy(m->opt.dev, to + e * n, x + m->row[e] * n,
                              (size_t)(run * n) * sizeof(float), COPY_DEVICE, m->opt.stream);
        if (rc < 0)
            return failed(m, rc, err);
    }
    return 0;
}

int mix_run(struct mix *m, const float *x, const float *t, const int32_t *labels, const float *want,
            int rows, struct err *err)
{
    struct mix_call calls[MIX_EXPERTS_MAX];
    const int64_t n = m->n;
    int n_calls = 0;
    int rc = group(m, t, labels, want, rows, err);
    if (rc == 0)
        rc = gather(m, m->x, x, err);
    if (rc == 0 && m->told)
        rc = gather(m, m->beside, m->told, err);
    if (rc == 0)
        rc = m->ops->sync(m->opt.dev, m->opt.stream, err); /* experts may have other streams */
    if (rc < 0)
        return rc;
    for (int k = 0; k < m->experts.count; k++) {
        const int e = m->start[k], count = m->start[k + 1] - e;
        if (count > 0)
            calls[n_calls++] = (struct mix_call){
                .expert = k,
                .rows = count,
                .chain = m->chain,
                .shape = m->shape,
                .x = m->x + e * n,
                .beside = m->told ? m->beside + e * n : NULL,
                .t = m->t + e,
                .labels = m->labels + e,
                .captions = m->captions,
                .v = m->v + e * n,
            };
    }
    return n_calls ? m->experts.run(m->experts.arg, calls, n_calls, err) : 0;
}

/* The number of entries from e on that one call may add: they are neighbours in v, too, and have
 * weight 1, with which no rounding can depend on how an operation splits its values. */
static int run_length(const struct mix *m, int k, int e, const float *selected)
{
    const int K = m->experts.count;
    int run = 1;
    if (selected[(int64_t)m->row[e] * K + k] != 1.0f)
        return 1;
    while (e + run < m->start[k + 1] && m->row[e + run] == m->row[e] + run &&
           selected[(int64_t)m->row[e + run] * K + k] == 1.0f)
        run++;
    return run;
}

int mix_combine(struct mix *m, float *v, const float *selected, int rows, struct err *err)
{
    const int K = m->experts.count;
    const int64_t n = m->n;
    int rc = m->ops->zero(m->opt.dev, v, (size_t)(rows * n) * sizeof(float), m->opt.stream);
    for (int k = 0; k < K; k++) {
        for (int e = m->start[k], run; e < m->start[k + 1] && rc == 0; e += run) {
            const float w = selected[(int64_t)m->row[e] * K + k];
            run = run_length(m, k, e, selected);
            if (w > 0)
                rc = m->ops->axpy(m->opt.dev, v + m->row[e] * n, w, m->v + e * n, run * n,
                                  m->opt.stream);
        }
    }
    return rc < 0 ? failed(m, rc, err) : 0;
}
