/* Speed of a decoder: the training step, and texts token by token.
 *
 *    bench_llama --profile 5        where the time of five steps goes, tokens per second
 *    bench_llama --generate 100     tokens per second from the cache
 *
 * Default model: dim 256, depth 6, 4 heads, 2 of keys, bytes, 16 rows of 256 tokens. */
#include <stdio.h>
#include <string.h>

#include "common/base/args.h"
#include "common/base/err.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "kernels/device/device.h"
#include "kernels/profile.h"
#include "tests/bench/kernels/floor.h"
#include "worker/net/generate.h"
#include "worker/net/llama.h"
#include "worker/train/train.h"

struct options {
    const char *device, *dtype;
    int threads, dim, depth, heads, kv_heads, ffn, vocab, context, batch, profile, generate;
    bool recompute;
};

struct bench {
    struct device *dev;
    struct model *m;
    struct trainer *t;
    int32_t *tokens, *start, *target, *pos;
    struct batch batch;
    float *flat;
};

static int open_model(struct bench *b, const struct options *o, struct err *err)
{
    const struct model_spec spec = {
        .kind = MODEL_LLAMA,
        .dim = o->dim,
        .depth = o->depth,
        .heads = o->heads,
        .kv_heads = o->kv_heads,
        .mlp = o->ffn ? o->ffn : (o->dim * 8 / 3 + 31) / 32 * 32,
        .vocab = o->vocab,
        .context = o->context,
        .rope_theta = 10000.0f,
        .norm_eps = 1e-5f,
        .cut = {.n_levels = 1},
    };
    int rc = device_open(o->device, o->threads, &b->dev, err);
    if (rc == 0)
        rc = model_new(&spec, &b->m, err);
    if (rc == 0 && !(b->flat = model_flat_new(b->m)))
        rc =
            err_set(err, -ERR_LIMIT, "no memory for %.1f M parameters", (double)b->m->params / 1e6);
    if (rc == 0)
        model_init(b->m, 1, b->flat);
    return rc;
}

/* Two documents in each row. */
static void draw(struct bench *b, const struct options *o)
{
    const size_t seq = (size_t)o->context, cells = seq * (size_t)o->batch;
    b->tokens = mem_alloc_array(cells + (size_t)o->batch, sizeof(int32_t));
    b->start = mem_alloc_array(cells, sizeof(int32_t));
    b->target = mem_alloc_array(cells, sizeof(int32_t));
    b->pos = mem_alloc_array(cells, sizeof(int32_t));
    for (size_t i = 0; i < cells + (size_t)o->batch; i++)
        b->tokens[i] = (int32_t)(rng_at_u32(1, 1, i) % (uint32_t)o->vocab);
    for (size_t i = 0; i < cells; i++) {
        const size_t at = i % seq, cut = seq * 2 / 3;
        b->start[i] = (int32_t)(at < cut ? 0 : cut);
        b->pos[i] = (int32_t)at - b->start[i];
        b->target[i] = b->tokens[i / seq * (seq + 1) + at + 1];
    }
    b->batch = (struct batch){.count = (unsigned)o->batch,
                              .seq = (unsigned)o->context,
                              .tokens = b->tokens,
                              .start = b->start,
                              .target = b->target,
                              .pos = b->pos};
}

static int open_trainer(struct bench *b, const struct options *o, struct err *err)
{
    const struct train_options opt = {
        .batch = o->batch,
        .accumulate = 1,
        .lr = 1e-4,
        .beta1 = 0.9,
        .beta2 = 0.999,
        .eps = 1e-8,
        .clip = 1.0,
        .precision = strcmp(o->dtype, "bf16") == 0 ? NET_BF16 : NET_F32,
        .recompute = o->recompute,
    };
    const struct net_options nopt = train_net_options(&opt);
    struct net *net;
    draw(b, o);
    int rc = net_new(b->dev, b->m, &nopt, &net, err);
    if (rc == 0)
        rc = trainer_new(net, &opt, &b->t, err);
    return rc == 0 ? trainer_set(b->t, b->flat, err) : rc;
}

static int steps(struct bench *b, int n, double *ret_seconds, struct err *err)
{
    double start = profile_now();
    for (int i = 0; i < n; i++) {
        struct step_result r;
        int rc = trainer_step(b->t, &b->batch, &r, err);
        if (rc < 0)
            return rc;
    }
    *ret_seconds = profile_now() - start;
    return 0;
}

static int profile(struct bench *b, const struct options *o, struct err *err)
{
    struct profile *p = mem_alloc(sizeof *p);
    double seconds;
    int rc = steps(b, 1, &seconds, err);
    b->dev->profile = p;
    if (rc == 0)
        rc = steps(b, o->profile, &seconds, err);
    b->dev->profile = NULL;
    if (rc == 0) {
        profile_print(p, stdout);
        printf("%.1f ms a step, %.0f tokens/s; outside of operations %.1f ms\n",
               1e3 * seconds / o->profile, o->batch * o->context * o->profile / seconds,
               1e3 * (seconds - profile_seconds(p, NULL)) / o->profile);
    }
    mem_free(p);
    return rc;
}

static int ignore(void *arg, uint32_t id, unsigned done)
{
    (void)arg;
    (void)id;
    (void)done;
    return 0;
}

static int generate(struct bench *b, const struct options *o, struct err *err)
{
    const struct net_options opt = {
        .mode = NET_FORWARD,
        .precision = strcmp(o->dtype, "bf16") == 0 ? NET_BF16 : NET_F32,
        .batch = 1,
    };
    const struct generate_options go = {
        .tokens = (unsigned)o->generate, .temperature = 0.8f, .top_p = 0.95f};
    const uint32_t prompt[] = {1, 2, 3};
    struct net *net = NULL;
    int rc = net_new(b->dev, b->m, &opt, &net, err);
    if (rc == 0)
        rc = weights_set(net->weights, b->flat, err);
    double start = profile_now();
    if (rc == 0)
        rc = generate_tokens(llama_of(net), prompt, 3, -1, &go, ignore, NULL, err);
    if (rc == 0)
        printf("%.0f tokens/s\n", o->generate / (profile_now() - start));
    net_free(net);
    return rc;
}

int main(int argc, char **argv)
{
    struct options o = {
        .device = "cpu",
        .dtype = "bf16",
        .threads = 2,
        .dim = 256,
        .depth = 6,
        .heads = 4,
        .kv_heads = 2,
        .vocab = 257,
        .context = 256,
        .batch = 16,
        .profile = 5,
    };
    const struct args_flag flags[] = {
        {"device", 0, ARGS_STR, &o.device, "NAME", "cpu, cpu-ref or cuda:N"},
        {"dtype", 0, ARGS_STR, &o.dtype, "TYPE", "bf16 or f32"},
        {"threads", 0, ARGS_INT, &o.threads, "N", "threads", .min = 1, .max = 1024},
        {"dim", 0, ARGS_INT, &o.dim, "N", "width", .min = 4, .max = 8192},
        {"depth", 0, ARGS_INT, &o.depth, "N", "blocks", .min = 1, .max = 256},
        {"heads", 0, ARGS_INT, &o.heads, "N", "heads", .min = 1, .max = 256},
        {"kv-heads", 0, ARGS_INT, &o.kv_heads, "N", "of keys", .min = 1, .max = 256},
        {"ffn", 0, ARGS_INT, &o.ffn, "N", "hidden width; 0: 8/3 of dim", .max = 65536},
        {"vocab", 0, ARGS_INT, &o.vocab, "N", "token ids", .min = 2, .max = 1 << 20},
        {"context", 0, ARGS_INT, &o.context, "N", "tokens of a row", .min = 2, .max = 4096},
        {"batch", 0, ARGS_INT, &o.batch, "N", "rows", .min = 1, .max = 4096},
        {"recompute", 0, ARGS_BOOL, &o.recompute, NULL, "keep little, compute twice"},
        {"profile", 0, ARGS_INT, &o.profile, "N", "of so many steps (default: 5)", .min = 1,
         .max = 1000},
        {"generate", 0, ARGS_INT, &o.generate, "N", "a text of so many tokens instead", .min = 1,
         .max = 100000},
        {0},
    };
    struct args args = {.program = "bench_llama",
                        .usage = "[--profile N | --generate N]",
                        .flags = flags,
                        .about = "Speed of a decoder: training steps, and texts."};
    struct bench b = {0};
    struct err err = {0};

    int rc = args_parse(&args, argc, argv, &err);
    if (rc)
        return args_exit(&args, rc, &err);
    rc = open_model(&b, &o, &err);
    if (rc == 0 && o.generate)
        rc = generate(&b, &o, &err);
    else if (rc == 0 && (rc = open_trainer(&b, &o, &err)) == 0)
        rc = profile(&b, &o, &err);
    if (rc < 0)
        (void)fprintf(stderr, "bench_llama: %s\n", err.msg);
    trainer_free(b.t);
    mem_free(b.tokens);
    mem_free(b.start);
    mem_free(b.target);
    mem_free(b.pos);
    mem_free(b.flat);
    model_free(b.m);
    if (b.dev)
        device_close(b.dev);
    return rc < 0;
}
