/* The training step over several batch sizes: images a second, memory, and the host's share.
 *
 *    train_bench --device cuda:0 --dim 1152 --depth 28 --heads 16 --grid 16 \
 *                --batch 64 --batch 128
 *
 * The trainer of worker/train/train.h on made-up images that lie in memory: what loading data costs
 * is not in it.  Figures are lines of JSON, each written as soon as it is known:
 *
 *    {"device": .., "parameters": .., "peak": FLOP/s of large products, measured here}
 *    {"batch": .., "images_per_s": .., "flops": model FLOP/s, "bytes": of the device,
 *     "host_share": of one core, "loss": .., "seconds": of the first step}
 *    {"batch": .., "error": "..."}            out of memory, say; the others go on
 *
 * --profile N: then N steps whose every operation is waited for and timed. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "common/base/args.h"
#include "common/base/err.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "kernels/device/device.h"
#include "kernels/profile.h"
#include "tests/bench/kernels/floor.h"
#if HAVE_CUDA
#include "kernels/cuda/dnn.h"
#endif
#include "worker/net/flops.h"
#include "worker/train/peak.h"
#include "worker/train/train.h"

#define PEAK_SECONDS 0.5

enum { WARM_STEPS = 4, GROUPS = 3, GROUP_STEPS_MIN = 2, DRAWN = 65521 };

struct options {
    const char *device, *dtype;
    int threads, dim, depth, heads, grid, patch, classes, profile;
    double seconds;
    bool recompute, lean;
    struct args_list batches;
};

struct bench {
    const struct options *o;
    struct device *dev;
    struct model *m;
    float *flat;
};

struct measured {
    double seconds; /* of a step: the best group's mean */
    double first;   /* of the first step, with what it loads and tunes */
    double host;    /* processor seconds for each second */
    double loss;
    uint64_t bytes;
};

static enum net_precision precision(const struct options *o)
{
    return strcmp(o->dtype, "f32") == 0 ? NET_F32 : NET_BF16;
}

/* No gate at its initial zero, which would make most gradients vanish.  A large tensor has the
 * same values over and over: drawing 675 M of them would take longer than what is timed. */
static void fill(float *x, size_t n, uint64_t stream)
{
    size_t done = n < DRAWN ? n : DRAWN;
    rng_fill_normal(2, stream, 0, x, done, 0.0f, 0.02f);
    for (size_t more; done < n; done += more) {
        more = done < n - done ? done : n - done;
        memcpy(x + done, x, more * sizeof *x);
    }
}

static int bench_open(struct bench *b, struct err *err)
{
    const struct options *o = b->o;
    const struct model_spec spec = {
        .channels = 3,
        .image = o->grid * o->patch,
        .patch = o->patch,
        .dim = o->dim,
        .depth = o->depth,
        .heads = o->heads,
        .mlp = 4 * o->dim,
        .classes = o->classes,
        .cut = {.n_levels = 1},
    };
    int rc = device_open(o->device, o->threads, &b->dev, err);
    if (rc == 0)
        rc = model_new(&spec, &b->m, err);
    if (rc < 0)
        return rc;
    b->flat = model_flat_new(b->m);
    if (!b->flat)
        return err_set(err, -ENOMEM, "no memory for %.1f M parameters", (double)b->m->params / 1e6);
    for (size_t i = 0; i < b->m->n; i++)
        fill(b->flat + b->m->tensors[i].offset, b->m->tensors[i].count, i);
    return 0;
}

static double host_seconds(void)
{
    struct rusage u;
    (void)getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static int steps(struct trainer *t, const struct batch *batch, int n, struct measured *m,
                 double *ret_seconds, struct err *err)
{
    const double start = profile_now(), host = host_seconds();
    struct step_result r = {0};
    for (int i = 0; i < n; i++) {
        int rc = trainer_step(t, batch, &r, err);
        if (rc < 0)
            return rc;
    }
    *ret_seconds = profile_now() - start;
    m->host = (host_seconds() - host) / *ret_seconds;
    m->loss = r.loss;
    return 0;
}

/* Groups of as many steps as fill a third of the time each; the best one counts, with the
 * host's share in it. */
static int measure(struct bench *b, struct trainer *t, const struct batch *batch,
                   struct measured *m, struct err *err)
{
    double s;
    int rc = steps(t, batch, 1, m, &m->first, err);
    for (int i = 0; i < WARM_STEPS && rc == 0; i++)
        rc = steps(t, batch, 1, m, &s, err);
    if (rc < 0)
        return rc;
    const double room = b->o->seconds / GROUPS;
    const int n = s * GROUP_STEPS_MIN > room ? GROUP_STEPS_MIN : (int)(room / s) + 1;
    m->seconds = 0;
    for (int i = 0; i < GROUPS && rc == 0; i++) {
        struct measured now = *m;
        rc = steps(t, batch, n, &now, &s, err);
        if (rc == 0 && (m->seconds == 0 || s / n < m->seconds)) {
            *m = now;
            m->seconds = s / n;
        }
    }
    return rc;
}

static int profile(struct bench *b, struct trainer *t, const struct batch *batch, struct err *err)
{
    struct profile *p = mem_alloc(sizeof *p);
    struct measured unused;
    double seconds;
    b->dev->profile = p;
    int rc = steps(t, batch, b->o->profile, &unused, &seconds, err);
    b->dev->profile = NULL;
    if (rc == 0)
        profile_print(p, stdout);
    mem_free(p);
    return rc;
}

static int with_trainer(struct bench *b, const struct batch *batch, struct measured *m,
                        struct err *err)
{
    const struct train_options opt = {
        .batch = (int)batch->count,
        .accumulate = 1,
        .lr = 1e-4,
        .beta1 = 0.9,
        .beta2 = 0.999,
        .eps = 1e-8,
        .clip = 1.0,
        .label_dropout = 0.1,
        .precision = precision(b->o),
        .recompute = b->o->recompute,
        .lean = b->o->lean,
    };
    const struct kernel_ops *ops = b->dev->ops;
    struct trainer *t = NULL;
    uint64_t before = 0, after = 0, total = 0;
    int rc = ops->memory(b->dev, &before, &total);
    if (rc == 0)
        rc = trainer_make(b->dev, b->m, &opt, &t, err);
    if (rc == 0)
        rc = trainer_set(t, b->flat, err);
    if (rc == 0)
        rc = measure(b, t, batch, m, err);
    if (rc == 0)
        rc = ops->memory(b->dev, &after, &total);
    m->bytes = before > after ? before - after : 0;
    if (rc == 0 && b->o->profile > 0)
        rc = profile(b, t, batch, err);
    trainer_free(t);
    return rc;
}

static int one_batch(struct bench *b, int count, struct measured *m, struct err *err)
{
    const size_t values = (size_t)model_image_values(&b->m->spec) * (size_t)count;
    uint8_t *images = mem_alloc(values);
    int32_t *labels = mem_alloc_array((size_t)count, sizeof *labels);
    for (size_t i = 0; i < values; i++)
        images[i] = (uint8_t)rng_at_u32(1, 1, i);
    for (int i = 0; i < count; i++)
        labels[i] = i % b->o->classes;
    const struct batch batch = {.count = (unsigned)count, .images = images, .labels = labels};
    int rc = with_trainer(b, &batch, m, err);
    if (rc == 0) {
        printf("{\"batch\": %d, \"images_per_s\": %.6g, \"flops\": %.6g, \"bytes\": %llu, "
               "\"host_share\": %.4g, \"loss\": %.6g, \"seconds\": %.4g}\n",
               count, count / m->seconds, flops_step(b->m, &batch) / m->seconds,
               (unsigned long long)m->bytes, m->host, m->loss, m->first);
        printf("  batch %-5d %9.1f images/s %8.1f GFLOP/s %8.2f GiB, host %.1f %% of a core\n",
               count, count / m->seconds, flops_step(b->m, &batch) / m->seconds / 1e9,
               (double)m->bytes / (1 << 30), 100 * m->host);
    }
    mem_free(images);
    mem_free(labels);
    return rc;
}

/* By whom attention was computed: cuDNN declines without a word. */
static void say_attention(const struct bench *b)
{
#if HAVE_CUDA
    struct dnn_use use;
    if (strncmp(b->dev->name, "cuda", 4) != 0)
        return;
    cuda_dnn_use(b->dev, &use);
    printf("  attention: %llu by cuDNN %d, %llu by our own%s%s\n", (unsigned long long)use.fused,
           use.version, (unsigned long long)use.own, *use.why ? ": " : "", use.why);
#else
    (void)b;
#endif
}

/* A size that does not fit is a result like any other; a device that failed ends it. */
static int all_batches(struct bench *b, struct err *err)
{
    int done = 0;
    for (size_t i = 0; i < b->o->batches.n; i++) {
        struct measured m = {0};
        const int count = atoi(b->o->batches.items[i]);
        if (count <= 0)
            return err_set(err, -EINVAL, "--batch %s is not a positive number",
                           b->o->batches.items[i]);
        int rc = one_batch(b, count, &m, err);
        if (rc < 0) {
            printf("  batch %-5d %s\n", count, err->msg);
            printf("{\"batch\": %d, \"error\": \"no result: %s\"}\n", count,
                   rc == -ENOMEM ? "too little memory" : "see the record");
        }
        done += rc == 0;
        say_attention(b);
        if (rc < 0 && rc != -ENOMEM)
            return rc;
    }
    return done ? 0 : -ENOMEM;
}

static int run(struct bench *b, struct err *err)
{
    double peak = 0;
    const enum dtype dt = precision(b->o) == NET_BF16 ? DT_BF16 : DT_F32;
    int rc = bench_open(b, err);
    if (rc == 0)
        rc = peak_measure(b->dev, dt, PEAK_SECONDS, &peak, err);
    if (rc < 0)
        return rc;
    printf("%s: %s; %.1f M parameters; products at %.1f TFLOP/s\n", b->dev->name, b->dev->about,
           (double)b->m->params / 1e6, peak / 1e12);
    printf("{\"device\": \"%s\", \"parameters\": %llu, \"peak\": %.6g}\n", b->dev->about,
           (unsigned long long)b->m->params, peak);
    return all_batches(b, err);
}

int main(int argc, char **argv)
{
    struct options o = {
        .device = "cuda:0",
        .dtype = "bf16",
        .dim = 384,
        .depth = 12,
        .heads = 6,
        .grid = 8,
        .patch = 2,
        .classes = 1000,
        .seconds = 3,
    };
    const struct args_flag flags[] = {
        {"device", 0, ARGS_STR, &o.device, "NAME", "cpu, cpu-ref or cuda:N"},
        {"dtype", 0, ARGS_STR, &o.dtype, "TYPE", "bf16 or f32"},
        {"threads", 0, ARGS_INT, &o.threads, "N", "threads of a CPU"},
        {"dim", 0, ARGS_INT, &o.dim, "N", "width", .min = 4, .max = 1 << 16},
        {"depth", 0, ARGS_INT, &o.depth, "N", "blocks", .min = 1, .max = MODEL_BLOCKS_MAX},
        {"heads", 0, ARGS_INT, &o.heads, "N", "heads", .min = 1, .max = 1 << 10},
        {"grid", 0, ARGS_INT, &o.grid, "N", "tokens of a side", .min = 1, .max = 1 << 10},
        {"patch", 0, ARGS_INT, &o.patch, "N", "pixels of a token's side", .min = 1, .max = 64},
        {"classes", 0, ARGS_INT, &o.classes, "N", "labels", .min = 1, .max = MODEL_CLASSES_MAX},
        {"seconds", 0, ARGS_DOUBLE, &o.seconds, "S", "for each batch size", .max = 600},
        {"profile", 0, ARGS_INT, &o.profile, "STEPS", "say where the time of a step goes"},
        {"recompute", 0, ARGS_BOOL, &o.recompute, NULL, "keep little, run the forward twice"},
        {"lean", 0, ARGS_BOOL, &o.lean, NULL, "keep no output of a GELU, make it twice"},
        {"batch", 0, ARGS_LIST, &o.batches, "N", "images a step; several times", .required = true},
        {0},
    };
    struct args args = {
        .program = "train_bench",
        .usage = "--batch N [--batch N] [--device NAME]",
        .about = "times the training step",
        .flags = flags,
    };
    struct err err = {0};
    struct bench b = {.o = &o};
    int rc = args_parse(&args, argc, argv, &err);
    if (rc != 0)
        return args_exit(&args, rc, &err);
    (void)setvbuf(stdout, NULL, _IOLBF, 0); /* what was measured stays if the rest fails */
    rc = run(&b, &err);
    if (rc < 0)
        (void)fprintf(stderr, "train_bench: %s\n", err.msg);
    mem_free(b.flat);
    model_free(b.m);
    device_close(b.dev);
    return rc < 0;
}
