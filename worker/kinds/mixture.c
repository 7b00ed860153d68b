#include "worker/kinds/mixture.h"

#include <errno.h>

#include "common/base/err.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "worker/kinds/engine.h"
#include "worker/net/image_net.h"
#include "worker/kinds/mixture_impl.h"

#define STREAM_ORACLE 0x6f7261636c65ULL
#define GROUPS_BYTES (256u << 20) /* of all groups of an evaluation */
#define EXPERT_BATCH_MAX 64       /* rows of one forward: activations, not results, depend on it */

int mixture_rows(const struct work *w, int want)
{
    const uint64_t side = (uint64_t)w->spec.data.image_size;
    const uint64_t row = 2 * sizeof(float) * MODEL_CHANNELS * side * side; /* x and v */
    const uint64_t fit = GROUPS_BYTES / (row * w->task->mixture->experts->n_expert);
    if (fit >= (uint64_t)want)
        return want;
    return fit < DIT_ROWS_MIN ? DIT_ROWS_MIN : (int)fit;
}

static void read_rule(struct mixture *m)
{
    const Skerry__V1__Mixture *t = m->w->task->mixture;
    m->rule = (struct mix_rule){
        .strategy = (enum job_strategy)t->strategy,
        .top = (int)t->top,
        .nucleus = t->nucleus,
        .threshold = t->threshold,
    };
}

static int open_router(struct mixture *m, struct engine *e, struct err *err)
{
    const Skerry__V1__Mixture *t = m->w->task->mixture;
    const int batch = m->opt.rows < DIT_ROWS_MIN ? DIT_ROWS_MIN : m->opt.rows;
    int rc = forward_open_modules(e, m->w, SKERRY__V1__NETWORK__NETWORK_ROUTER, t->router,
                                  t->n_router, batch, &m->forward, err);
    if (rc < 0)
        return err_wrap(err, "the router");
    m->router = net_dit(m->forward.net);
    m->spec = &m->forward.model->spec;
    m->classes = m->spec->classes;
    if (m->classes < m->experts.count)
        return err_set(err, -ERR_FORMAT, "task: a router of %d classes for %d experts", m->classes,
                       m->experts.count);
    return 0;
}

static int make_buffers(struct mixture *m, struct err *err)
{
    const size_t rows = (size_t)m->opt.rows, K = (size_t)m->experts.count;
    arena_add(&m->arena, &m->d_logits, rows * (size_t)m->classes * sizeof *m->d_logits);
    m->logits = mem_try_array(rows * (size_t)m->classes, sizeof *m->logits);
    m->weights = mem_try_array(rows * K, sizeof *m->weights);
    m->selected = mem_try_array(rows * K, sizeof *m->selected);
    m->truth = mem_try_array(rows, sizeof *m->truth);
    if (!m->logits || !m->weights || !m->selected || !m->truth)
        return err_set(err, -ENOMEM, "no memory to route %d samples", m->opt.rows);
    int rc = arena_alloc(&m->arena, m->dev, err);
    return rc < 0 ? rc : dit_rows_open(&m->rows, m->router, err);
}

static int open_mix(struct mixture *m, struct err *err)
{
    const int own = mix_most(&m->rule, m->experts.count);
    const struct mix_options opt = {
        .dev = m->dev,
        .stream = dit_weights(m->router)->stream,
        .values = (int64_t)model_image_values(m->spec),
        .rows = m->opt.rows,
        .most = m->opt.most == 0                 ? own
                : m->opt.most < m->experts.count ? m->opt.most
                                                 : m->experts.count,
    };
    struct mix_experts experts =
        m->w->task->mixture->remote ? mixture_remote(m) : experts_mix(m->experts.experts);
    return mix_new(&opt, &experts, &m->mix, err);
}

int mixture_open(struct engine *e, struct work *w, const struct mixture_options *opt,
                 struct mixture **ret, struct err *err)
{
    const Skerry__V1__Mixture *t = w->task->mixture;
    struct mixture *m = mem_alloc(sizeof *m);
    m->w = w;
    m->opt = *opt;
    m->dev = e->dev;
    const int batch = opt->rows < EXPERT_BATCH_MAX ? opt->rows : EXPERT_BATCH_MAX;
    read_rule(m);
    int rc = task_experts_order(&m->experts, w, t->experts->expert, t->experts->n_expert, err);
    m->experts.doing = opt->doing;
    if (rc == 0)
        rc = open_router(m, e, err);
    if (rc == 0 && !t->remote)
        rc = task_experts_open(&m->experts, e, e->dev, batch, t->memory_bytes, err);
    if (rc == 0)
        rc = make_buffers(m, err);
    if (rc == 0)
        rc = open_mix(m, err);
    if (rc < 0) {
        mixture_close(m);
        return rc;
    }
    *ret = m;
    return 0;
}

void mixture_close(struct mixture *m)
{
    if (!m)
        return;
    mix_free(m->mix);
    arena_free(&m->arena, m->dev);
    dit_rows_close(&m->rows);
    forward_close(&m->forward);
    task_experts_close(&m->experts);
    mem_free(m->logits);
    mem_free(m->weights);
    mem_free(m->selected);
    mem_free(m->truth);
    mem_free(m);
}

const struct mix_rule *mixture_rule(const struct mixture *m)
{
    return &m->rule;
}

int mixture_experts(const struct mixture *m)
{
    return m->experts.count;
}

struct mix *mixture_mix(struct mixture *m)
{
    return m->mix;
}

struct stream *mixture_stream(const struct mixture *m)
{
    return dit_weights(m->router)->stream;
}

unsigned mixture_loads(const struct mixture *m)
{
    return m->experts.experts ? experts_loads(m->experts.experts) : 0;
}

/* A router may know more classes than there are experts: the others are left out. */
int mixture_weigh(struct mixture *m, float *weights, const float *x, const float *t, int rows,
                  struct err *err)
{
    struct stream *s = dit_weights(m->router)->stream;
    const int K = m->experts.count;
    int rc = dit_rows_run(&m->rows, m->d_logits, x, t, NULL, rows, err);
    if (rc < 0)
        return rc;
    rc = m->dev->ops->copy(m->dev, m->logits, m->d_logits,
                           (size_t)rows * (size_t)m->classes * sizeof *m->logits, COPY_FROM_DEVICE,
                           s);
    if (rc < 0)
        return err_set(err, rc, "routing failed on %s: %s", m->dev->name, err_text(rc));
    rc = weights_sync(dit_weights(m->router), err);
    for (int i = 0; i < rows && rc == 0; i++)
        mix_softmax(weights + (int64_t)i * K, m->logits + (int64_t)i * m->classes, 1, K);
    return rc;
}

/* One expert for each sample of the run, drawn from its weights. */
static void draw_partitions(struct mixture *m, const struct sample_call *c)
{
    const int K = m->experts.count;
    const uint64_t seed = m->w->task->sample->seed;
    for (int i = 0; i < c->B; i++) {
        const float u = rng_at_uniform(seed, STREAM_ORACLE, (uint64_t)(c->first + i));
        double sum = 0;
        int k = 0;
        for (; k < K - 1; k++) {
            sum += (double)m->weights[(int64_t)i * K + k];
            if ((double)u < sum)
                break;
        }
        m->truth[i] = k;
    }
}

static int velocity(void *arg, const struct sample_call *c, struct err *err)
{
    struct mixture *m = arg;
    const int64_t share = (int64_t)c->B * m->experts.count;
    int rc = mixture_weigh(m, m->weights, c->x, c->t, c->B, err);
    if (rc < 0)
        return rc;
    if (m->rule.strategy == JOB_STRATEGY_ORACLE && c->begin)
        draw_partitions(m, c);
    mix_select(&m->rule, m->selected, m->weights, m->truth, c->B, m->experts.count);
    for (int64_t i = share; i < c->copies * share; i++)
        m->selected[i] = m->selected[i - share];
    rc = mix_run(m->mix, c->x, c->t, c->labels, m->selected, c->copies * c->B, err);
    return rc < 0 ? rc : mix_combine(m->mix, c->v, m->selected, c->copies * c->B, err);
}

struct sample_source mixture_source(struct mixture *m)
{
    return (struct sample_source){
        .dev = m->dev,
        .stream = dit_weights(m->router)->stream,
        .image = m->spec->image,
        .classes = (int)m->w->task->n_classes,
        .rows = m->opt.rows,
        .arg = m,
        .velocity = velocity,
    };
}
