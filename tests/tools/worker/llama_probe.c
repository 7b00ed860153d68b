/* A decoder's training, and what a decoder says, for comparison with another
 * implementation (tests/reference/test_llama.py):
 *
 *    llama_probe train DEVICE DTYPE SIZES STEPS OUT.safetensors
 *    llama_probe read  DEVICE DTYPE SIZES MODEL.safetensors OUT.safetensors
 *
 * SIZES is DIM,DEPTH,HEADS,KV-HEADS,FFN,VOCAB,CONTEXT,TIED,THETA,EPS,HEAD-DIM,QKV-BIAS,QK-NORM,
 * NO-ROPE-INTERVAL, and of scaled positions also FACTOR,LOW,HIGH,ORIGINAL.
 *
 * train: w0.NAME and wN.NAME (weights before and after), g0.NAME (gradients of the first
 * step, before clipping), logits (ROWS,CONTEXT,VOCAB) of the first step, and per step K the
 * rows of text K.tokens (ROWS,CONTEXT+1), K.start, K.pos, K.target (ROWS,CONTEXT); losses,
 * norms and rates (STEPS).
 * read: tokens (ROWS,CONTEXT+1), logits (ROWS,CONTEXT,VOCAB) of whole rows, and text: the
 * likeliest CONTEXT/2 tokens after the first CONTEXT/2 of row 0, from the cache. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/st/st.h"
#include "kernels/device/device.h"
#include "worker/net/generate.h"
#include "worker/net/llama.h"
#include "worker/train/train.h"

enum { ROWS = 5 };

struct probe {
    struct device *dev;
    struct model *m;
    struct net *net; /* the trainer's, or one forward only */
    enum net_precision precision;
    size_t seq, vocab;
    float *flat;
    struct st_writer *out;
    int32_t *tokens, *start, *pos, *target;
    struct batch batch;
};

static int open_probe(struct probe *p, char **argv, struct err *err)
{
    struct model_spec s = {.kind = MODEL_LLAMA, .cut = {.n_levels = 1}};
    int tied = 0, bias = 0, norm = 0;
    struct rope_scaling *r = &s.rope_scaling;
    const int n = sscanf(argv[4], "%d,%d,%d,%d,%d,%d,%d,%d,%f,%f,%d,%d,%d,%d,%f,%f,%f,%f", &s.dim,
                         &s.depth, &s.heads, &s.kv_heads, &s.mlp, &s.vocab, &s.context, &tied,
                         &s.rope_theta, &s.norm_eps, &s.head_dim, &bias, &norm,
                         &s.no_rope_layer_interval, &r->factor, &r->low, &r->high, &r->context);
    if (n != 14 && n != 18)
        return err_set(err, -ERR_CONFIG, "'%s' is not 14 or 18 sizes", argv[4]);
    s.tied = tied != 0;
    s.qkv_bias = bias != 0;
    s.qk_norm = norm != 0;
    p->precision = strcmp(argv[3], "bf16") == 0 ? NET_BF16 : NET_F32;
    p->seq = (size_t)s.context;
    p->vocab = (size_t)s.vocab;
    int rc = device_open(argv[2], 2, &p->dev, err);
    if (rc == 0)
        rc = model_new(&s, &p->m, err);
    if (rc < 0)
        return rc;
    const size_t cells = ROWS * p->seq;
    p->flat = model_flat_new(p->m);
    p->tokens = mem_alloc_array(cells + ROWS, sizeof *p->tokens);
    p->start = mem_alloc_array(cells, sizeof *p->start);
    p->pos = mem_alloc_array(cells, sizeof *p->pos);
    p->target = mem_alloc_array(cells, sizeof *p->target);
    p->batch = (struct batch){.count = ROWS,
                              .seq = (unsigned)s.context,
                              .tokens = p->tokens,
                              .start = p->start,
                              .target = p->target,
                              .pos = p->pos};
    p->out = st_writer_new();
    return 0;
}

/* Rows of documents of any length; packed: several a row, and padding. */
static void draw(struct probe *p, uint64_t step, bool packed)
{
    const size_t seq = p->seq;
    for (size_t r = 0; r < ROWS; r++) {
        for (size_t i = 0; i <= seq; i++)
            p->tokens[r * (seq + 1) + i] =
                (int32_t)(rng_at_u32(1, step, r * (seq + 1) + i) % p->vocab);
        size_t at = 0;
        while (at < seq) {
            size_t n = packed ? 2 + rng_at_u32(2, step, r * seq + at) % seq : seq;
            const bool padding = packed && at > 0 && at + n > seq;
            n = at + n > seq ? seq - at : n;
            for (size_t i = 0; i < n; i++) {
                const size_t cell = r * seq + at + i;
                p->start[cell] = (int32_t)(padding ? at + i : at);
                p->pos[cell] = padding ? 0 : (int32_t)i;
                p->target[cell] =
                    padding || i + 1 == n ? -1 : p->tokens[r * (seq + 1) + at + i + 1];
            }
            at += n;
        }
    }
}

static int add(struct probe *p, const char *name, enum st_dtype dtype, size_t a, size_t b, size_t c,
               struct err *err)
{
    const uint64_t shape[3] = {a, b, c};
    return st_writer_add(p->out, name, dtype, c ? 3 : b ? 2 : 1, shape, err);
}

static int declare_training(struct probe *p, size_t steps, struct err *err)
{
    static const char *const sets[] = {"w0", "g0", "wN"};
    static const char *const series[] = {"losses", "norms", "rates"};
    static const char *const parts[] = {"tokens", "start", "pos", "target"};
    char name[ST_NAME_MAX];
    int rc = 0;
    for (int s = 0; s < 3; s++) {
        for (size_t i = 0; i < p->m->n && rc == 0; i++) {
            const struct model_tensor *t = &p->m->tensors[i];
            (void)snprintf(name, sizeof name, "%s.%s", sets[s], t->name);
            rc = st_writer_add(p->out, name, ST_F32, t->rank, t->shape, err);
        }
    }
    for (int s = 0; s < 3 && rc == 0; s++)
        rc = add(p, series[s], ST_F32, steps, 0, 0, err);
    if (rc == 0)
        rc = add(p, "logits", ST_F32, ROWS, p->seq, p->vocab, err);
    for (size_t k = 0; k < steps; k++) {
        for (int j = 0; j < 4 && rc == 0; j++) {
            (void)snprintf(name, sizeof name, "%zu.%s", k, parts[j]);
            rc = add(p, name, ST_I32, ROWS, p->seq + (j == 0), 0, err);
        }
    }
    return rc;
}

static int write_flat(struct probe *p, const float *flat, struct err *err)
{
    for (size_t i = 0; i < p->m->n; i++) {
        const struct model_tensor *t = &p->m->tensors[i];
        int rc = st_writer_write(p->out, flat + t->offset, t->count * sizeof *flat, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int write_logits(struct probe *p, struct net *net, struct err *err)
{
    const size_t n = ROWS * p->seq * p->vocab;
    float *logits = mem_alloc_array(n, sizeof *logits);
    int rc = llama_logits(llama_of(net), &p->batch, logits, err);
    if (rc == 0)
        rc = st_writer_write(p->out, logits, n * sizeof *logits, err);
    mem_free(logits);
    return rc;
}

static int write_batches(struct probe *p, size_t steps, struct err *err)
{
    const size_t cells = ROWS * p->seq;
    int rc = 0;
    for (size_t k = 0; k < steps && rc == 0; k++) {
        draw(p, k, true);
        const int32_t *parts[] = {p->tokens, p->start, p->pos, p->target};
        for (int j = 0; j < 4 && rc == 0; j++)
            rc = st_writer_write(p->out, parts[j], (cells + (j == 0 ? ROWS : 0)) * sizeof(int32_t),
                                 err);
    }
    return rc;
}

static int open_trainer(struct probe *p, size_t steps, struct trainer **ret, struct err *err)
{
    const struct train_options opt = {
        .batch = ROWS,
        .accumulate = 2, /* micro-batches of 3 and 2 rows */
        .lr = 1e-3,
        .warmup = 3,
        .schedule = JOB_SCHEDULE_COSINE,
        .weight_decay = 0.05,
        .beta1 = 0.9,
        .beta2 = 0.98,
        .eps = 1e-6,
        .clip = 0.5,
        .precision = p->precision,
        .seed = 5,
    };
    const struct net_options nopt = train_net_options(&opt);
    int rc = net_new(p->dev, p->m, &nopt, &p->net, err);
    if (rc == 0)
        rc = trainer_new(p->net, &opt, ret, err);
    if (rc == 0)
        trainer_position(*ret, 0, steps + 2);
    return rc;
}

/* Weights that make every gradient visible; norms near one. */
static void draw_weights(struct probe *p)
{
    for (size_t i = 0; i < p->m->n; i++) {
        const struct model_tensor *t = &p->m->tensors[i];
        rng_fill_normal(3, i, 0, p->flat + t->offset, t->count, t->rank == 1 ? 1.0f : 0.0f,
                        t->rank == 1 ? 0.2f : 0.1f);
    }
}

static int first_logits(struct probe *p, struct err *err)
{
    const struct net_options opt = {.mode = NET_FORWARD, .precision = p->precision, .batch = ROWS};
    struct net *twin = NULL;
    int rc = net_new(p->dev, p->m, &opt, &twin, err);
    draw_weights(p);
    draw(p, 0, true);
    if (rc == 0)
        rc = weights_set(twin->weights, p->flat, err);
    if (rc == 0)
        rc = write_logits(p, twin, err);
    net_free(twin);
    return rc;
}

static int train_steps(struct probe *p, struct trainer *t, size_t steps, float *series,
                       struct err *err)
{
    int rc = 0;
    for (size_t k = 0; k < steps && rc == 0; k++) {
        struct step_result r = {0};
        draw(p, k, true);
        rc = trainer_step(t, &p->batch, &r, err);
        series[k] = (float)r.loss;
        series[steps + k] = (float)r.grad_norm;
        series[2 * steps + k] = (float)r.lr;
        for (size_t i = 0; k == 0 && i < p->m->n && rc == 0; i++)
            rc = trainer_read(t, TRAINER_GRADIENT, &p->m->tensors[i],
                              p->flat + p->m->tensors[i].offset, err);
        if (rc == 0 && k == 0)
            rc = write_flat(p, p->flat, err);
    }
    return rc;
}

static int run_training(struct probe *p, char **argv, struct err *err)
{
    const size_t steps = (size_t)atoi(argv[5]);
    float *series = mem_alloc_array(3 * steps, sizeof *series);
    struct trainer *t = NULL;
    int rc = open_trainer(p, steps, &t, err);
    if (rc == 0)
        rc = declare_training(p, steps, err);
    if (rc == 0)
        rc = st_writer_open(p->out, argv[6], err);
    draw_weights(p);
    if (rc == 0)
        rc = trainer_set(t, p->flat, err);
    if (rc == 0)
        rc = write_flat(p, p->flat, err);
    if (rc == 0)
        rc = train_steps(p, t, steps, series, err);
    if (rc == 0)
        rc = trainer_get(t, p->flat, err);
    if (rc == 0)
        rc = write_flat(p, p->flat, err);
    if (rc == 0)
        rc = st_writer_write(p->out, series, 3 * steps * sizeof *series, err);
    if (rc == 0)
        rc = first_logits(p, err);
    if (rc == 0)
        rc = write_batches(p, steps, err);
    trainer_free(t);
    mem_free(series);
    return rc;
}

struct text {
    int32_t *ids;
};

static int take(void *arg, uint32_t id, unsigned done)
{
    struct text *t = arg;
    t->ids[done - 1] = (int32_t)id;
    return 0;
}

static int write_text(struct probe *p, struct net *net, struct err *err)
{
    const size_t n = p->seq / 2;
    const struct generate_options opt = {.tokens = (unsigned)n, .temperature = 0, .top_p = 1};
    uint32_t *prompt = mem_alloc_array(n, sizeof *prompt);
    struct text text = {mem_alloc_array(n, sizeof *text.ids)};
    for (size_t i = 0; i < n; i++)
        prompt[i] = (uint32_t)p->tokens[i];
    int rc = generate_tokens(llama_of(net), prompt, n, -1, &opt, take, &text, err);
    if (rc == 0)
        rc = st_writer_write(p->out, text.ids, n * sizeof *text.ids, err);
    mem_free(text.ids);
    mem_free(prompt);
    return rc;
}

static int run_reading(struct probe *p, char **argv, struct err *err)
{
    const struct net_options opt = {.mode = NET_FORWARD, .precision = p->precision, .batch = ROWS};
    struct net *net = NULL;
    int rc = net_new(p->dev, p->m, &opt, &net, err);
    if (rc == 0)
        rc = model_load_foreign(p->m, argv[5], p->flat, err);
    if (rc == 0)
        rc = weights_set(net->weights, p->flat, err);
    if (rc == 0)
        rc = add(p, "tokens", ST_I32, ROWS, p->seq + 1, 0, err);
    if (rc == 0)
        rc = add(p, "logits", ST_F32, ROWS, p->seq, p->vocab, err);
    if (rc == 0)
        rc = add(p, "text", ST_I32, p->seq / 2, 0, 0, err);
    if (rc == 0)
        rc = st_writer_open(p->out, argv[6], err);
    draw(p, 0, false);
    if (rc == 0)
        rc = st_writer_write(p->out, p->tokens, ROWS * (p->seq + 1) * sizeof *p->tokens, err);
    if (rc == 0)
        rc = write_logits(p, net, err);
    if (rc == 0)
        rc = write_text(p, net, err);
    net_free(net);
    return rc;
}

int main(int argc, char **argv)
{
    struct probe p = {0};
    struct err err = {0};
    if (argc != 7) {
        (void)fprintf(stderr, "usage: llama_probe train|read DEVICE DTYPE SIZES STEPS|MODEL OUT\n");
        return 2;
    }
    int rc = open_probe(&p, argv, &err);
    if (rc == 0)
        rc = strcmp(argv[1], "train") == 0 ? run_training(&p, argv, &err)
                                           : run_reading(&p, argv, &err);
    if (rc == 0)
        rc = st_writer_commit(p.out, NULL, NULL, &err);
    if (rc < 0)
        (void)fprintf(stderr, "llama_probe: %s\n", err.msg);
    st_writer_free(p.out);
    mem_free(p.tokens);
    mem_free(p.start);
    mem_free(p.pos);
    mem_free(p.target);
    mem_free(p.flat);
    model_free(p.m);
    if (p.dev)
        device_close(p.dev);
    return rc < 0;
}
