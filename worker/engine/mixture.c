#include "worker/engine/mixture.h"

#include "common/base/rng.h"
#include "worker/engine/encoders.h"
#include "worker/engine/engine.h"
#include "worker/engine/feed.h"
#include "worker/engine/forward.h"
#include "worker/engine/task_experts.h"
#include "worker/engine/task_files.h"
#include "worker/link/uplink.h"
#include "worker/net/arena.h"
#include "worker/net/cascade.h"
#include "worker/net/dit_rows.h"
#include "worker/net/flow_matching.h"
#include "worker/net/image_net.h"
#include "worker/net/resize.h"
#include "worker/net/told.h"
#include "worker/order/task_model.h"
#include "worker/train/train.h"

#define STREAM_ORACLE 0x6f7261636c65ULL
#define GROUPS_BYTES (256u << 20) /* most bytes of all groups of an evaluation */
#define EXPERT_BATCH_MAX 64       /* rows of one forward: activations, not results, depend on it */
#define EVALUATE_WAIT_MS 25000
#define EVALUATE_DEADLINE_MS (EVALUATE_WAIT_MS + 10000)
enum { STRATEGIES = 5, EVAL_BATCH = 64 };

struct mixture {
    struct mixture_options opt;
    struct work *w;
    struct device *dev;
    struct mix_rule rule;
    struct task_experts experts;   /* remote: only their order and model */
    struct forward forward;        /* the router */
    struct dit *router;            /* its network, */
    struct dit_rows rows;          /* rows for it, */
    const struct model_spec *spec; /* its model, */
    int classes;                   /* and its classes, at least as many as experts */
    int labels;                    /* the experts' labels besides the null label */
    struct mix *mix;
    struct told routed; /* small images for the router; with an upscaler */
    const uint8_t *low; /* those of the samples that are drawn */

    struct arena arena;
    float *d_logits; /* (rows,classes) */

    /* Host. */
    float *logits;   /* (rows,classes) */
    float *weights;  /* (rows,K) */
    float *selected; /* (rows,K) */
    float *times;    /* (rows) */
    int32_t *truth;  /* (samples that are drawn) the oracle's partitions */
};

static const struct model_spec *chain_spec(const struct mixture *m, int chain)
{
    return &model_chain(m->experts.model, chain)->spec;
}

static bool upscales(const struct mixture *m)
{
    return model_has_upscaler(&m->experts.model->spec);
}

/* ---- remote experts: points are sent as blobs, velocities come back ---- */

/* One remote call: put, evaluate (again until there is an answer), get. */
struct trip {
    const struct mix_call *call;
    const Skerry__V1__Expert *expert;
    char path[CACHE_PATH_MAX]; /* the points */
    uint8_t sha256[32];
    uint64_t size;
    uint8_t result[32];
    struct uplink_job *job;
};

/* Points, and behind them what is beside them. */
static int copy_points(struct mixture *m, const struct mix_call *c, float *x, size_t n,
                       struct err *err)
{
    const size_t bytes = n * sizeof *x;
    struct stream *s = dit_weights(m->router)->stream;
    int rc = m->dev->ops->copy(m->dev, x, c->x, bytes, COPY_FROM_DEVICE, s);
    if (rc == 0 && c->beside)
        rc = m->dev->ops->copy(m->dev, x + n, c->beside, bytes, COPY_FROM_DEVICE, s);
    if (rc < 0)
        return err_set(err, rc, "reading points from %s failed: %s", m->dev->name, err_text(rc));
    return weights_sync(dit_weights(m->router), err);
}

/* Writes the points and begins to send them. */
static int send(struct mixture *m, struct trip *t, struct err *err)
{
    const struct mix_call *c = t->call;
    const struct model_spec *spec = chain_spec(m, c->chain);
    const size_t n = (size_t)c->rows * (size_t)model_image_values(spec);
    char name[64];
    float *x = mem_try_array((c->beside ? 2 : 1) * n, sizeof *x);
    if (!x)
        return err_set(err, -ENOMEM, "out of memory for %d points", c->rows);
    snprintf(name, sizeof name, "points-%d", c->expert);
    work_temp_path(m->w, name, t->path);
    struct velocity_points p = {
        .rows = c->rows, .channels = spec->channels, .image = spec->image, .x = x};
    p.beside = c->beside ? x + n : NULL;
    p.t = (float *)(uintptr_t)c->t; /* only read */
    p.labels = (int32_t *)(uintptr_t)c->labels;
    int rc = copy_points(m, c, x, n, err);
    if (rc == 0)
        rc = velocity_write(t->path, &p, t->sha256, &t->size, err);
    mem_free(x);
    if (rc == 0)
        t->job = uplink_put(m->w->uplink, m->w, t->path, t->sha256, t->size, false);
    return rc;
}

static void ask(struct mixture *m, struct trip *t)
{
    Skerry__V1__Blob input = SKERRY__V1__BLOB__INIT;
    input.sha256 = (ProtobufCBinaryData){32, t->sha256};
    input.size = t->size;
    Skerry__V1__EvaluateRequest req = SKERRY__V1__EVALUATE_REQUEST__INIT;
    req.task_id = m->w->task->id;
    req.attempt = m->w->task->attempt;
    req.path = t->expert->path;
    req.input = &input;
    req.wait_ms = EVALUATE_WAIT_MS;
    uplink_free(t->job);
    t->job = uplink_call(m->w->uplink, m->w, SKERRY__V1__METHOD__METHOD_EVALUATE, &req.base,
                         &skerry__v1__evaluate_reply__descriptor, EVALUATE_DEADLINE_MS);
}

/* Waits for the velocities to exist, then begins to get them. */
static int await_result(struct mixture *m, struct trip *t, struct err *err)
{
    for (;;) {
        int rc = uplink_wait(t->job, err);
        if (rc < 0)
            return err_wrap(err, "asking for the velocity of expert %d (path %" PRIu32 ")",
                            t->call->expert, t->expert->path);
        const Skerry__V1__EvaluateReply *r =
            (const Skerry__V1__EvaluateReply *)(const void *)uplink_reply(t->job);
        if (r->output && r->output->sha256.len == 32) {
            memcpy(t->result, r->output->sha256.data, 32);
            struct uplink_job *get = uplink_get(m->w->uplink, m->w, t->result, r->output->size,
                                                r->output->url, "velocities of an expert", false);
            uplink_free(t->job);
            t->job = get;
            return 0;
        }
        if (r->output)
            return err_set(err, -ERR_FORMAT, "the coordinator named velocities without a hash");
        if (r->waiting_for && r->waiting_for[0])
            progress_activity(&m->w->progress, "%s: waiting for expert %d: %s",
                              m->opt.doing ? m->opt.doing : "asking", t->call->expert + 1,
                              r->waiting_for);
        ask(m, t);
    }
}

static int take_result(struct mixture *m, struct trip *t, struct err *err)
{
    const struct mix_call *c = t->call;
    const struct model_spec *spec = chain_spec(m, c->chain);
    const size_t n = (size_t)model_image_values(spec);
    char path[CACHE_PATH_MAX];
    int rc = uplink_wait(t->job, err);
    float *v = rc == 0 ? mem_try_array((size_t)c->rows * n, sizeof *v) : NULL;
    if (rc == 0 && !v)
        rc = err_set(err, -ENOMEM, "out of memory for %d velocities", c->rows);
    if (rc == 0) {
        work_blob_path(m->w, t->result, path);
        rc = velocity_read_result(path, v, c->rows, spec->channels, spec->image, err);
    }
    if (rc == 0) {
        rc = m->dev->ops->copy(m->dev, c->v, v, (size_t)c->rows * n * sizeof *v, COPY_TO_DEVICE,
                               dit_weights(m->router)->stream);
        rc = rc < 0 ? err_set(err, rc, "%s: %s", m->dev->name, err_text(rc))
                    : weights_sync(dit_weights(m->router), err);
    }
    mem_free(v);
    uplink_free(t->job);
    t->job = NULL;
    return rc;
}

/* Sends all groups at the same time. */
static int run_remote(void *arg, const struct mix_call *calls, int n, struct err *err)
{
    struct mixture *m = arg;
    for (int i = 0; i < n; i++)
        if (calls[i].shape != 0)
            return err_set(err, -ERR_UNIMPLEMENTED, "remote experts see squares only");
    if (!m->w->uplink)
        return err_set(err, -ENOTCONN, "remote experts need a coordinator");
    struct trip *trips = mem_try_zero((size_t)n * sizeof *trips);
    if (!trips)
        return err_set(err, -ENOMEM, "out of memory for %d experts", n);
    if (m->opt.doing)
        progress_activity(&m->w->progress, "%s: %d experts elsewhere", m->opt.doing, n);
    int rc = 0;
    for (int i = 0; i < n && rc == 0; i++) {
        trips[i].call = &calls[i];
        trips[i].expert = m->experts.by_partition[calls[i].expert];
        rc = send(m, &trips[i], err);
    }
    for (int i = 0; i < n && rc == 0; i++)
        if ((rc = uplink_wait(trips[i].job, err)) == 0)
            ask(m, &trips[i]);
    for (int i = 0; i < n && rc == 0; i++)
        rc = await_result(m, &trips[i], err);
    for (int i = 0; i < n && rc == 0; i++)
        rc = take_result(m, &trips[i], err);
    for (int i = 0; i < n && rc == 0; i++)
        cache_remove(m->w->cache, trips[i].result); /* equal experts may have given the same blob */
    for (int i = 0; i < n; i++)
        uplink_free(trips[i].job);
    mem_free(trips);
    return rc;
}

static struct mix_experts remote(struct mixture *m)
{
    return (struct mix_experts){.count = m->experts.count, .arg = m, .run = run_remote};
}

/* ---- opening ---- */

int mixture_rows(const struct work *w, int want)
{
    const Skerry__V1__NetworkInput *in = w->task->input;
    const bool latents = in && in->channels > 0;
    const uint64_t side = latents ? in->side : (uint64_t)w->spec.data.image_size;
    const uint64_t channels = latents ? in->channels : MODEL_PIXEL_CHANNELS;
    const uint64_t arrays = job_has_upscaler(&w->spec) ? 3 : 2; /* x and v, and beside */
    const uint64_t row = arrays * sizeof(float) * channels * side * side;
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
    const struct told_options routed = {.dev = m->dev,
                                        .stream = dit_weights(m->router)->stream,
                                        .side = m->spec->image,
                                        .factor = 1,
                                        .rows = m->opt.rows,
                                        .noise = m->experts.model->spec.upscaler.noise};
    m->truth =
        mem_try_array(m->w->task->sample ? m->w->task->sample->n_labels + 1 : 1, sizeof *m->truth);
    m->times = mem_try_array(rows, sizeof *m->times);
    if (!m->logits || !m->weights || !m->selected || !m->truth || !m->times)
        return err_set(err, -ENOMEM, "no memory to route %d samples", m->opt.rows);
    int rc = arena_alloc(&m->arena, m->dev, err);
    if (rc == 0 && upscales(m))
        rc = told_open(&m->routed, &routed, err);
    return rc < 0 ? rc : dit_rows_open(&m->rows, m->router, err);
}

static int open_mix(struct mixture *m, struct err *err)
{
    const int own = mix_most(&m->rule, m->experts.count);
    const struct mix_options opt = {
        .dev = m->dev,
        .stream = dit_weights(m->router)->stream,
        .values = (int64_t)model_image_values(chain_spec(m, upscales(m))),
        .upscales = upscales(m),
        .rows = m->opt.rows,
        .most = m->opt.most == 0                 ? own
                : m->opt.most < m->experts.count ? m->opt.most
                                                 : m->experts.count,
    };
    struct mix_experts experts =
        m->w->task->mixture->remote ? remote(m) : experts_mix(m->experts.experts);
    return mix_new(&opt, &experts, &m->mix, err);
}

/* Makes room for an expert, and for the decoder of what they draw, which comes last. */
static void make_room(struct engine *e, const struct work *w, const struct model *model, int batch)
{
    struct train_options train;
    train_options_from_job(&w->spec, false, 0, 0, &train);
    engine_room(e, experts_bytes(model, batch, net_dtype(e->dev, train.precision)) +
                       (w->task->sample && w->task->n_encoders > 0
                            ? encoders_missing(e->encoders[0], FROZEN_DECODE)
                            : 0));
}

int mixture_open(struct engine *e, struct work *w, const struct mixture_options *opt,
                 struct mixture **ret, struct err *err)
{
    const Skerry__V1__Mixture *t = w->task->mixture;
    struct mixture *m = mem_alloc(sizeof *m);
    m->w = w;
    m->opt = *opt;
    m->labels = (int)w->task->n_classes;
    m->dev = e->dev;
    const int batch = opt->rows < EXPERT_BATCH_MAX ? opt->rows : EXPERT_BATCH_MAX;
    read_rule(m);
    int rc = task_experts_order(&m->experts, w, t->experts->expert, t->experts->n_expert, err);
    m->experts.doing = opt->doing;
    if (rc == 0)
        rc = open_router(m, e, err);
    if (rc == 0 && !t->remote)
        make_room(e, w, m->experts.model, batch);
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
    told_close(&m->routed);
    dit_rows_close(&m->rows);
    forward_close(&m->forward);
    task_experts_close(&m->experts);
    mem_free(m->logits);
    mem_free(m->weights);
    mem_free(m->selected);
    mem_free(m->times);
    mem_free(m->truth);
    mem_free(m);
}

unsigned mixture_loads(const struct mixture *m)
{
    return m->experts.experts ? experts_loads(m->experts.experts) : 0;
}

/* weights (rows,K) on the host = the router's probabilities at x (device), t (host).  If it has
 * more classes than there are experts, the others are left out. */
static int weigh(struct mixture *m, float *weights, const float *x, const float *t, int rows,
                 struct err *err)
{
    struct stream *s = dit_weights(m->router)->stream;
    const int K = m->experts.count;
    const struct dit_rows_in in = {.x = x, .t = t};
    int rc = dit_rows_run(&m->rows, m->d_logits, &in, rows, err);
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

/* The weights (B,K) of upscalers, in m->weights: those of the router at B small images with random
 * streams m->routed.streams, made as noisy as the upscaler is told them. */
static int weigh_small(struct mixture *m, const uint8_t *low, uint64_t seed, int B, struct err *err)
{
    int rc = told_run(&m->routed, low, seed, B, err);
    for (int i = 0; i < B; i++)
        m->times[i] = m->routed.opt.noise;
    return rc < 0 ? rc : weigh(m, m->weights, m->routed.d_x, m->times, B, err);
}

/* Draws one expert for each sample of the run, from its weights. */
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
        m->truth[c->first + i] = k;
    }
}

/* The experts' velocities, mixed by m->weights. */
static int blend(struct mixture *m, const struct sample_call *c, int chain, struct err *err)
{
    const int64_t share = (int64_t)c->B * m->experts.count;
    mix_chain(m->mix, chain, chain ? c->estimate : NULL);
    mix_shape(m->mix, 0, (int64_t)model_image_values(chain_spec(m, chain)));
    mix_select(&m->rule, m->selected, m->weights, m->truth + c->first, c->B, m->experts.count);
    for (int64_t i = share; i < c->copies * share; i++)
        m->selected[i] = m->selected[i - share];
    int rc = mix_run(m->mix, c->x, c->t, c->labels, m->selected, c->copies * c->B, err);
    return rc < 0 ? rc : mix_combine(m->mix, c->v, m->selected, c->copies * c->B, err);
}

static int velocity(void *arg, const struct sample_call *c, struct err *err)
{
    struct mixture *m = arg;
    int rc = weigh(m, m->weights, c->x, c->t, c->B, err);
    if (rc == 0 && m->rule.strategy == JOB_STRATEGY_ORACLE && c->begin)
        draw_partitions(m, c);
    return rc < 0 ? rc : blend(m, c, 0, err);
}

/* Of the upscalers: the weights of a sample stay as they are, and so does the oracle's choice. */
static int upscaler_velocity(void *arg, const struct sample_call *c, struct err *err)
{
    struct mixture *m = arg;
    int rc = 0;
    for (int i = 0; i < c->B && c->begin; i++)
        m->routed.streams[i] = rng_mix(CASCADE_STREAM_ROUTED, (uint64_t)(c->first + i));
    if (c->begin)
        rc = weigh_small(m, m->low + (size_t)c->first * mixture_low_bytes(m),
                         m->w->task->sample->seed, c->B, err);
    return rc < 0 ? rc : blend(m, c, 1, err);
}

void mixture_captions(struct mixture *m, const struct net_captions *captions)
{
    m->labels = captions->n - 1;
    mix_captions(m->mix, captions);
}

struct sample_source mixture_source(struct mixture *m)
{
    return (struct sample_source){
        .dev = m->dev,
        .stream = dit_weights(m->router)->stream,
        .channels = m->spec->channels,
        .image = m->spec->image,
        .classes = m->labels,
        .rows = m->opt.rows,
        .arg = m,
        .velocity = velocity,
    };
}

size_t mixture_low_bytes(const struct mixture *m)
{
    return upscales(m) ? (size_t)model_image_values(chain_spec(m, 0)) : 0;
}

struct cascade_source mixture_cascade(struct mixture *m, const uint8_t *low)
{
    const struct sample_source base = mixture_source(m);
    struct cascade_source src = {{base, base}, m->experts.model->spec.upscaler.noise};
    m->low = low;
    src.chains[1].image = chain_spec(m, 1)->image;
    src.chains[1].velocity = upscaler_velocity;
    return src;
}

/* ---- EVAL ---- */

struct strategy {
    const char *name;
    struct mix_rule rule;
    double sums[MODEL_CHAINS]; /* the losses of each chain */
};

struct mixture_eval {
    struct mixture *m;
    int n_chains;
    struct flow_matching flow[MODEL_CHAINS];
    struct net_encoders shared;   /* with two chains that read captions: the upscaler's */
    struct told told;             /* with an upscaler */
    uint8_t *low;                 /* the same: (B,s,s,3) host */
    struct net_captions captions; /* of a batch */
    struct strategy strategies[STRATEGIES];
    int n_strategies, own; /* own: index of the mixture's strategy */
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
    const struct mix_rule *own = &v->m->rule;
    v->own = -1;
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++) {
        if (same_rule(&fixed[i].rule, own))
            v->own = v->n_strategies;
        v->strategies[v->n_strategies++] = fixed[i];
    }
    if (v->own < 0) { /* another strategy gets a row of its own */
        v->own = v->n_strategies;
        v->strategies[v->n_strategies++] =
            (struct strategy){.name = job_strategy_name((int)own->strategy), .rule = *own};
    }
}

/* For what the upscalers are told. */
static int open_told(struct mixture_eval *v, int batch, struct err *err)
{
    const struct told_options opt = {.dev = v->flow[1].dev,
                                     .stream = v->flow[1].stream,
                                     .side = v->flow[0].spec->image,
                                     .factor = v->flow[1].spec->image / v->flow[0].spec->image,
                                     .rows = batch,
                                     .noise = v->m->experts.model->spec.upscaler.noise};
    v->low = mem_try_array((size_t)batch, (size_t)v->flow[0].most);
    return v->low ? told_open(&v->told, &opt, err)
                  : err_set(err, -ENOMEM, "no memory for %d small images", batch);
}

static int open_eval(struct mixture_eval *v, struct engine *e, int batch, struct err *err)
{
    struct mixture *m = v->m;
    struct work *w = m->w;
    struct encoders *enc = NULL;
    int rc = encoders_get(e, w, &enc, err);
    if (rc < 0)
        return rc;
    struct net_options opt = {.mode = NET_FORWARD,
                              .batch = batch,
                              .uniform_t = w->spec.train.t == JOB_T_UNIFORM,
                              .shift = (float)w->spec.train.shift,
                              .encoders = enc ? &enc->tables[0] : NULL};
    struct weights like_experts = *dit_weights(m->router); /* their input, on the same stream */
    const size_t B = (size_t)batch, K = (size_t)m->experts.count;
    choose_strategies(v);
    v->n_chains = model_n_chains(&m->experts.model->spec);
    for (int i = 0; i < v->n_chains && rc == 0; i++) {
        like_experts.m = model_chain(m->experts.model, i);
        if (i > 0 && v->flow[0].tokens > 0) {
            flow_matching_share(&v->flow[0], &v->shared);
            opt.encoders = &v->shared;
        }
        rc = flow_matching_init(&v->flow[i], &like_experts, &opt, err);
    }
    if (rc == 0 && upscales(m))
        rc = open_told(v, batch, err);
    if (rc < 0)
        return rc;
    arena_add(&v->arena, &v->d_v, B * (size_t)v->flow[v->n_chains - 1].most * sizeof *v->d_v);
    arena_add(&v->arena, &v->d_loss, B * sizeof *v->d_loss);
    v->all = mem_try_array(B * K, sizeof *v->all);
    v->loss = mem_try_array(B, sizeof *v->loss);
    if (!v->all || !v->loss)
        return err_set(err, -ENOMEM, "no memory to combine %zu experts", K);
    for (size_t i = 0; i < B * K; i++)
        v->all[i] = 1;
    return arena_alloc(&v->arena, m->dev, err);
}

static void close_eval(struct mixture_eval *v)
{
    arena_free(&v->arena, v->m->dev);
    for (int i = 0; i < v->n_chains; i++)
        flow_matching_release(&v->flow[i]);
    told_close(&v->told);
    mem_free(v->low);
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
    return 0;
}

/* Adds the losses of one strategy for combining the experts' velocities. */
static int add_losses(struct mixture_eval *v, struct strategy *s, const struct batch *b, int chain,
                      struct err *err)
{
    struct mixture *m = v->m;
    const struct flow_matching *f = &v->flow[chain];
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
        s->sums[chain] += (double)v->loss[i];
    return rc;
}

/* Noises a chain's samples. */
static int noise(struct flow_matching *f, const struct batch *b, struct err *err)
{
    int rc = flow_matching_load(f, b, err);
    if (rc == 0)
        rc = flow_matching_mix(f, 0, b->count, err);
    return rc < 0 ? rc : f->dev->ops->sync(f->dev, f->stream, err);
}

/* Runs the experts on a chain's noised samples, whose weights are known. */
static int add_chain(struct mixture_eval *v, const struct batch *b, int chain, struct err *err)
{
    struct mixture *m = v->m;
    const struct flow_matching *f = &v->flow[chain];
    mix_chain(m->mix, chain, chain ? v->told.d_x : NULL);
    mix_shape(m->mix, batch_shape(b, 0), f->n);
    if (f->d_states) {
        v->captions = (struct net_captions){f->loaded, f->d_states, f->lengths};
        mix_captions(m->mix, &v->captions);
    }
    int rc = mix_run(m->mix, f->d_xt, f->t, f->labels, v->all, (int)b->count, err);
    for (int i = 0; i < v->n_strategies && rc == 0; i++)
        rc = add_losses(v, &v->strategies[i], b, chain, err);
    return rc;
}

/* The base of two chains, or the only one. */
static int add_base(struct mixture_eval *v, const struct batch *b, struct err *err)
{
    struct mixture *m = v->m;
    const struct flow_matching *f = &v->flow[0];
    int rc = noise(&v->flow[0], b, err);
    dit_rows_shape(&m->rows, batch_shape(b, 0));
    if (rc == 0)
        rc = weigh(m, m->weights, f->d_xt, f->t, (int)b->count, err);
    if (rc == 0)
        rc = note_routing(v, b, err);
    return rc < 0 ? rc : add_chain(v, b, 0, err);
}

/* The draws are those of a network of two chains (worker/net/cascade.c). */
static int add_upscaler(struct mixture_eval *v, const struct batch *b, struct err *err)
{
    struct mixture *m = v->m;
    struct batch own = *b;
    own.seed = rng_mix(b->seed, CASCADE_STREAM_UPSCALER);
    for (unsigned i = 0; i < b->count; i++) {
        m->routed.streams[i] = rng_mix(b->keys[i], CASCADE_STREAM_ROUTED);
        v->told.streams[i] = rng_mix(b->keys[i], CASCADE_STREAM_TOLD);
    }
    int rc = weigh_small(m, v->low, own.seed, (int)b->count, err);
    if (rc == 0)
        rc = told_run(&v->told, v->low, own.seed, (int)b->count, err);
    if (rc == 0)
        rc = noise(&v->flow[1], &own, err);
    return rc < 0 ? rc : add_chain(v, &own, 1, err);
}

/* Adds a batch of one shape. */
static int add_run(struct mixture_eval *v, const struct batch *b, struct err *err)
{
    struct batch small = *b;
    if (v->n_chains == 1 || !b->images)
        return add_base(v, b, err);
    for (unsigned i = 0; i < b->count; i++)
        resize_down(b->images + i * (size_t)v->flow[1].most, v->flow[1].spec->image,
                    v->told.opt.factor, v->low + i * (size_t)v->flow[0].most);
    small.images = v->low;
    int rc = add_base(v, &small, err);
    return rc < 0 ? rc : add_upscaler(v, b, err);
}

static int add_batch(void *arg, struct batch *b, struct err *err)
{
    struct mixture_eval *v = arg;
    const struct batch_sizes sizes = net_batch_sizes(v->m->experts.model, &v->flow[0].opt);
    int rc = 0;
    for (unsigned i = 0, n; i < b->count && rc == 0; i += n) {
        struct batch part;
        n = batch_run(b, i, b->count);
        batch_slice(b, i, n, &sizes, &part);
        rc = add_run(v, &part, err);
    }
    return rc;
}

static void tell(const struct mixture_eval *v)
{
    struct work *w = v->m->w;
    const double n = (double)v->samples;
    const double *own = v->strategies[v->own].sums;
    for (int i = 0; i < v->n_strategies; i++)
        work_row(w, (v->strategies[i].sums[0] + v->strategies[i].sums[1]) / n, "", "loss %s",
                 v->strategies[i].name);
    for (int i = 0; i < v->n_chains && v->n_chains > 1; i++)
        work_row(w, own[i] / n, "", i == 0 ? "base's loss" : "upscaler's loss");
    work_row(w, (double)v->hits / n, "", "router accuracy");
    for (int k = 0; k < v->m->experts.count; k++)
        work_row(w, (double)v->routed[k] / n, "", "routed %d", k);
    w->result.samples = w->result.units = v->samples;
    w->result.loss_sum = own[0] + own[1];
    w->result.loss_mean = (float)((own[0] + own[1]) / n);
}

int mixture_eval(struct engine *e, struct work *w, struct err *err)
{
    const Skerry__V1__EvalTask *t = w->task->eval;
    const int batch = mixture_rows(w, EVAL_BATCH);
    const struct feed_options feed = {
        .batch = (unsigned)batch, .most = t->samples, .tell_bad = true};
    const struct mixture_options opt = {
        .rows = batch, .most = MIX_EXPERTS_MAX, .doing = "evaluating"};
    struct mixture_eval v = {0};
    progress_activity(&w->progress, "evaluating");
    int rc = mixture_open(e, w, &opt, &v.m, err);
    if (rc < 0)
        return rc;
    rc = open_eval(&v, e, batch, err);
    if (rc == 0)
        rc = feed_each(e, w, t->ranges, t->n_ranges, &feed, add_batch, &v, &v.samples, err);
    if (rc == 0 && v.samples == 0)
        rc = err_set(err, -ERR_FORMAT, "no held-out sample can be read");
    if (rc == 0)
        tell(&v);
    close_eval(&v);
    mixture_close(v.m);
    return rc;
}
