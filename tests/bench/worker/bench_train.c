/* Speed of the training step.
 *
 *    bench_train --dtype bf16 --threads 2        answers `go N` on stdin with the seconds that
 *                                                N steps took, so that a driver can alternate
 *                                                it with another program (torch_dit.py)
 *    bench_train --matmul-share                  how much of a step its matmuls would take at
 *                                                oneDNN's isolated rate, as a JSON line
 *    bench_train --profile 5                     where the time of five steps goes
 *
 * Default model: dim 384, depth 12, 6 heads, 64 tokens, batch 64.  With --caption-tokens it reads
 * latents of 4 channels and is told captions, whose states are there: no encoder is timed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/args.h"
#include "common/base/err.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "kernels/device/device.h"
#include "kernels/profile.h"
#include "tests/bench/kernels/floor.h"
#include "worker/train/train.h"

enum { CLASSES = 10, SHARE_ROUNDS = 5, LINE_MAX_BYTES = 128 };

struct options {
    const char *device, *dtype;
    int threads, dim, depth, heads, batch, grid, patch, profile, caption, caption_tokens;
    bool recompute, share;
};

struct bench {
    struct device *dev;
    struct model *m;
    struct trainer *t;
    uint8_t *images;
    uint16_t *moments; /* zeros */
    int32_t *labels;
    int batch;
    struct net_encoders encoders;
    bool encoded;
};

/* Writes the states once: afterwards they are there. */
static int no_encoder(void *arg, const int32_t *tokens, const int32_t *lengths, unsigned count,
                      void *d_states, struct err *err)
{
    struct bench *b = arg;
    const struct model_spec *s = &b->m->spec;
    const size_t n = (size_t)count * (size_t)s->caption_tokens * (size_t)s->caption;
    (void)tokens;
    (void)lengths;
    if (b->encoded)
        return 0;
    float *values = mem_alloc_array(n, sizeof *values);
    rng_fill_normal(3, 1, 0, values, n, 0.0f, 1.0f);
    int rc = b->dev->ops->cast(b->dev, d_states, b->encoders.dt, values, DT_F32, (int64_t)n, NULL);
    mem_free(values);
    b->encoded = true;
    return rc < 0 ? err_set(err, rc, "no states: %s", err_text(rc)) : 0;
}

static struct net_encoders no_encoders(struct bench *b, const struct options *o,
                                       enum net_precision precision)
{
    static const float shift[4] = {0}, scale[4] = {1, 1, 1, 1};
    static int32_t null_tokens[4096];
    return (struct net_encoders){.arg = b,
                                 .captions = no_encoder,
                                 .shift = shift,
                                 .scale = scale,
                                 .null_tokens = null_tokens,
                                 .null_length = o->caption_tokens,
                                 .dt = net_dtype(b->dev, precision)};
}

static int bench_open(struct bench *b, const struct options *o, struct err *err)
{
    const bool captioned = o->caption_tokens > 0;
    const struct model_spec spec = {
        .channels = captioned ? 4 : 3,
        .image = o->grid * o->patch,
        .patch = o->patch,
        .dim = o->dim,
        .depth = o->depth,
        .heads = o->heads,
        .mlp = 4 * o->dim,
        .classes = CLASSES,
        .caption = captioned ? o->caption : 0,
        .caption_tokens = o->caption_tokens,
        .cut = {.n_levels = 1},
    };
    struct train_options opt = {
        .batch = o->batch,
        .accumulate = 1,
        .lr = 1e-4,
        .beta1 = 0.9,
        .beta2 = 0.999,
        .eps = 1e-8,
        .clip = 1.0,
        .label_dropout = 0.1,
        .precision = strcmp(o->dtype, "bf16") == 0 ? NET_BF16 : NET_F32,
        .recompute = o->recompute,
    };
    int rc = device_open(o->device, o->threads, &b->dev, err);
    if (rc == 0 && captioned) {
        b->encoders = no_encoders(b, o, opt.precision);
        opt.encoders = &b->encoders;
    }
    if (rc == 0)
        rc = model_new(&spec, &b->m, err);
    if (rc == 0)
        rc = trainer_make(b->dev, b->m, &opt, &b->t, err);
    if (rc < 0)
        return rc;

    const size_t values = (size_t)o->batch * (size_t)model_image_values(&spec);
    b->batch = o->batch;
    b->images = mem_alloc(values);
    b->moments = mem_try_zero(2 * values * sizeof *b->moments);
    b->labels = mem_alloc_array((size_t)o->batch, sizeof *b->labels);
    for (size_t i = 0; i < values; i++)
        b->images[i] = (uint8_t)rng_at_u32(1, 1, i);
    for (int i = 0; i < o->batch; i++)
        b->labels[i] = i % CLASSES;

    /* No gate at its initial zero, which would make gradients vanish. */
    float *flat = model_flat_new(b->m);
    if (!flat)
        return err_set(err, -ERR_LIMIT, "no memory for %.1f M parameters",
                       (double)b->m->params / 1e6);
    for (size_t i = 0; i < b->m->n; i++)
        rng_fill_normal(2, i, 0, flat + b->m->tensors[i].offset, b->m->tensors[i].count, 0.0f,
                        0.02f);
    rc = trainer_set(b->t, flat, err);
    mem_free(flat);
    return rc;
}

static void bench_close(struct bench *b)
{
    trainer_free(b->t);
    model_free(b->m);
    device_close(b->dev);
    mem_free(b->images);
    mem_free(b->moments);
    mem_free(b->labels);
}

static int steps(struct bench *b, int n, double *ret_seconds, struct err *err)
{
    double start = profile_now();
    for (int i = 0; i < n; i++) {
        struct step_result r;
        const struct batch batch = {.count = (unsigned)b->batch,
                                    .images = b->images,
                                    .labels = b->labels,
                                    .moments = b->moments};
        int rc = trainer_step(b->t, &batch, &r, err);
        if (rc < 0)
            return rc;
    }
    *ret_seconds = profile_now() - start;
    return 0;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Steps and isolated products alternate, so that a busy machine hurts both; the median
 * of the shares counts. */
static int matmul_share(struct bench *b, int threads, struct err *err)
{
    struct profile *p = mem_alloc(sizeof *p);
    double shares[SHARE_ROUNDS], step[SHARE_ROUNDS], floor[SHARE_ROUNDS], other;
    b->dev->profile = p;
    int rc = steps(b, 1, &other, err);
    b->dev->profile = NULL;
    for (int i = 0; i < SHARE_ROUNDS && rc == 0; i++) {
        rc = steps(b, 2, &step[i], err);
        if (rc == 0)
            rc = profile_matmul_floor(p, threads, &floor[i], err);
        step[i] /= 2;
        shares[i] = floor[i] / step[i];
    }
    mem_free(p);
    if (rc < 0)
        return rc;
    qsort(shares, SHARE_ROUNDS, sizeof *shares, by_value);
    qsort(step, SHARE_ROUNDS, sizeof *step, by_value);
    qsort(floor, SHARE_ROUNDS, sizeof *floor, by_value);
    printf(
        "{\"name\": \"matmul_share\", \"value\": %.3f, \"note\": \"%.0f ms of matmul at oneDNN's "
        "isolated rate in a step of %.0f ms\"}\n",
        shares[SHARE_ROUNDS / 2], 1e3 * floor[SHARE_ROUNDS / 2], 1e3 * step[SHARE_ROUNDS / 2]);
    return 0;
}

static int profile(struct bench *b, int n, struct err *err)
{
    struct profile *p = mem_alloc(sizeof *p);
    double seconds;
    b->dev->profile = p;
    int rc = steps(b, n, &seconds, err);
    b->dev->profile = NULL;
    if (rc == 0) {
        profile_print(p, stdout);
        printf("%.1f ms a step, %.1f images/s; outside of operations %.1f ms\n", 1e3 * seconds / n,
               b->batch * n / seconds, 1e3 * (seconds - profile_seconds(p, NULL)) / n);
    }
    mem_free(p);
    return rc;
}

static int serve(struct bench *b, const struct options *o, struct err *err)
{
    char line[LINE_MAX_BYTES];
    printf("ready %s %s, %s\n", o->device, o->dtype, b->dev->about);
    (void)fflush(stdout); /* a broken pipe shows as the end of input */
    while (fgets(line, sizeof line, stdin)) {
        if (strncmp(line, "go ", 3) != 0)
            break;
        double seconds;
        int rc = steps(b, atoi(line + 3), &seconds, err);
        if (rc < 0)
            return rc;
        printf("%.6f\n", seconds);
        (void)fflush(stdout);
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct options o = {
        .device = "cpu",
        .dtype = "bf16",
        .threads = 2,
        .dim = 384,
        .depth = 12,
        .heads = 6,
        .batch = 64,
        .grid = 8,
        .patch = 2,
        .caption = 768,
    };
    const struct args_flag flags[] = {
        {"device", 0, ARGS_STR, &o.device, "NAME", "cpu, cpu-ref or cuda:N"},
        {"dtype", 0, ARGS_STR, &o.dtype, "TYPE", "bf16 or f32"},
        {"threads", 0, ARGS_INT, &o.threads, "N", "threads", .min = 1, .max = 1024},
        {"dim", 0, ARGS_INT, &o.dim, "N", "width"},
        {"depth", 0, ARGS_INT, &o.depth, "N", "blocks"},
        {"heads", 0, ARGS_INT, &o.heads, "N", "heads"},
        {"batch", 0, ARGS_INT, &o.batch, "N", "images a step"},
        {"grid", 0, ARGS_INT, &o.grid, "N", "tokens of a side"},
        {"patch", 0, ARGS_INT, &o.patch, "N", "pixels of a token's side"},
        {"caption", 0, ARGS_INT, &o.caption, "N", "channels of a caption's states"},
        {"caption-tokens", 0, ARGS_INT, &o.caption_tokens, "N", "tokens of a caption; 0: labels"},
        {"recompute", 0, ARGS_BOOL, &o.recompute, NULL, "keep little, run the forward twice"},
        {"matmul-share", 0, ARGS_BOOL, &o.share, NULL, "print the figure and exit"},
        {"profile", 0, ARGS_INT, &o.profile, "STEPS", "print where the time goes and exit"},
        {0},
    };
    struct args args = {
        .program = "bench_train",
        .usage = "[--dtype bf16|f32] [--threads N] [--matmul-share | --profile STEPS]",
        .about = "times the training step",
        .flags = flags,
    };
    struct err err = {0};
    struct bench b = {0};
    int rc = args_parse(&args, argc, argv, &err);
    if (rc != 0)
        return args_exit(&args, rc, &err);

    double warm;
    rc = bench_open(&b, &o, &err);
    if (rc == 0)
        rc = steps(&b, 2, &warm, &err);
    if (rc == 0)
        rc = o.share     ? matmul_share(&b, o.threads, &err)
             : o.profile ? profile(&b, o.profile, &err)
                         : serve(&b, &o, &err);
    if (rc < 0)
        (void)fprintf(stderr, "bench_train: %s\n", err.msg);
    bench_close(&b);
    return rc < 0 ? 1 : 0;
}
