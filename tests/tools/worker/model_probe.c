/* Opens a model file as the worker does and writes down what it says, for comparison with
 * PyTorch (tests/reference/test_export.py):
 *
 *    model_probe DTYPE IMAGE PATCH DIM DEPTH HEADS MLP CLASSES MODEL.safetensors OUT.safetensors
 *                [router]
 *
 * Tensors: x (B,3,S,S), t (B), labels (B) in [0,CLASSES], pred (B,3,S,S); noise and sample
 * (CLASSES of them at most, Euler, 8 steps, guidance 1.5).  Of a router: x, t and weights
 * (B,CLASSES), the probabilities of the experts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/st/st.h"
#include "kernels/device/device.h"
#include "worker/net/dit_rows.h"
#include "worker/net/mix.h"
#include "worker/net/sample.h"

enum { B = 4, STREAM_SAMPLE = 0x736d706c };

struct probe {
    struct device *dev;
    struct model *m;
    struct dit *d;
    size_t n; /* values of an image */
    bool router;
};

static int open_model(struct probe *p, char **argv, struct err *err)
{
    const struct model_spec spec = {
        .kind = p->router ? MODEL_ROUTER : MODEL_DIT,
        .channels = 3,
        .image = atoi(argv[2]),
        .patch = atoi(argv[3]),
        .dim = atoi(argv[4]),
        .depth = atoi(argv[5]),
        .heads = atoi(argv[6]),
        .mlp = atoi(argv[7]),
        .classes = atoi(argv[8]),
        .cut = {.n_levels = 1},
    };
    const struct net_options opt = {
        .mode = NET_FORWARD,
        .precision = strcmp(argv[1], "bf16") == 0 ? NET_BF16 : NET_F32,
        .batch = 2 * B,
    };
    int rc = device_open("cpu", 1, &p->dev, err);
    if (rc == 0)
        rc = model_new(&spec, &p->m, err);
    if (rc == 0)
        rc = dit_new(p->dev, p->m, &opt, &p->d, err);
    float *flat = rc == 0 ? model_flat_new(p->m) : NULL;
    if (rc == 0 && !flat)
        rc = err_set(err, -ERR_LIMIT, "no memory for the weights");
    if (rc == 0)
        rc = model_load(p->m, -1, &(const char *){argv[9]}, 1, flat, err);
    if (rc == 0)
        rc = weights_set(dit_weights(p->d), flat, err);
    mem_free(flat);
    p->n = (size_t)(3 * spec.image * spec.image);
    return rc;
}

static void make_points(const struct probe *p, float *x, float *t)
{
    rng_fill_normal(7, 1, 0, x, B * p->n, 0.0f, 1.0f);
    for (int i = 0; i < B; i++)
        t[i] = (float)(i + 1) / (B + 1);
}

static int write_routing(struct probe *p, struct st_writer *w, struct err *err)
{
    const int K = p->m->spec.classes;
    const size_t bytes = B * p->n * sizeof(float), each = (size_t)(B * K) * sizeof(float);
    float *x = mem_alloc(bytes), *weights = mem_alloc(each), t[B];
    make_points(p, x, t);
    const struct dit_io io = {.B = B, .x = x, .t = t, .pred = weights};
    int rc = dit_forward(p->d, NULL, 0, &io, err);
    if (rc == 0)
        rc = weights_sync(dit_weights(p->d), err);
    mix_softmax(weights, weights, B, K);
    if (rc == 0)
        rc = st_writer_write(w, x, bytes, err);
    if (rc == 0)
        rc = st_writer_write(w, t, sizeof t, err);
    if (rc == 0)
        rc = st_writer_write(w, weights, each, err);
    mem_free(weights);
    mem_free(x);
    return rc;
}

/* The CPU computes on host memory, so that plain arrays serve as device memory here. */
static int write_results(struct probe *p, struct st_writer *w, struct err *err)
{
    const int classes = p->m->spec.classes;
    const size_t bytes = B * p->n * sizeof(float);
    const struct sample_options opt = {.steps = 8, .guidance = 1.5f, .seed = 9};
    float *x = mem_alloc(bytes), *pred = mem_alloc(bytes), t[B];
    float *noise = mem_alloc(bytes), *sample = mem_alloc(bytes);
    int32_t labels[B], drawn[B];
    make_points(p, x, t);
    for (int i = 0; i < B; i++) {
        labels[i] = i == 0 ? classes : i % classes;
        drawn[i] = i % classes;
        rng_fill_normal(opt.seed, rng_mix(STREAM_SAMPLE, (uint64_t)i), 0, noise + (size_t)i * p->n,
                        p->n, 0.0f, 1.0f);
    }
    const struct dit_io io = {.B = B, .x = x, .t = t, .labels = labels, .pred = pred};
    int rc = dit_forward(p->d, NULL, 0, &io, err);
    if (rc == 0)
        rc = weights_sync(dit_weights(p->d), err);
    struct dit_rows dit = {0};
    if (rc == 0)
        rc = dit_rows_open(&dit, p->d, err);
    if (rc == 0) {
        const struct sample_source src = sample_of_dit(&dit);
        rc = sample_run_f32(&src, &opt, drawn, B, sample, err);
    }
    dit_rows_close(&dit);
    const struct {
        const void *data;
        size_t bytes;
    } parts[] = {
        {x, bytes},    {t, sizeof t},  {labels, sizeof labels},
        {pred, bytes}, {noise, bytes}, {sample, bytes},
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts && rc == 0; i++)
        rc = st_writer_write(w, parts[i].data, parts[i].bytes, err);
    mem_free(sample);
    mem_free(noise);
    mem_free(pred);
    mem_free(x);
    return rc;
}

static int declare(const struct probe *p, struct st_writer *w, struct err *err)
{
    const uint64_t S = (uint64_t)p->m->spec.image, images[] = {B, 3, S, S}, b[] = {B};
    const uint64_t weights[] = {B, (uint64_t)p->m->spec.classes};
    int rc = st_writer_add(w, "x", ST_F32, 4, images, err);
    if (rc == 0)
        rc = st_writer_add(w, "t", ST_F32, 1, b, err);
    if (p->router)
        return rc < 0 ? rc : st_writer_add(w, "weights", ST_F32, 2, weights, err);
    if (rc == 0)
        rc = st_writer_add(w, "labels", ST_I32, 1, b, err);
    if (rc == 0)
        rc = st_writer_add(w, "pred", ST_F32, 4, images, err);
    if (rc == 0)
        rc = st_writer_add(w, "noise", ST_F32, 4, images, err);
    if (rc == 0)
        rc = st_writer_add(w, "sample", ST_F32, 4, images, err);
    return rc;
}

int main(int argc, char **argv)
{
    struct probe p = {0};
    struct err err = {0};
    if (argc != 11 && (argc != 12 || strcmp(argv[11], "router") != 0)) {
        (void)fprintf(stderr, "usage: model_probe DTYPE IMAGE PATCH DIM DEPTH HEADS MLP CLASSES "
                              "MODEL OUT [router]\n");
        return 2;
    }
    p.router = argc == 12;
    struct st_writer *w = st_writer_new();
    int rc = open_model(&p, argv, &err);
    if (rc == 0)
        rc = declare(&p, w, &err);
    if (rc == 0)
        rc = st_writer_open(w, argv[10], &err);
    if (rc == 0)
        rc = p.router ? write_routing(&p, w, &err) : write_results(&p, w, &err);
    if (rc == 0)
        rc = st_writer_commit(w, NULL, NULL, &err);
    st_writer_free(w);
    dit_free(p.d);
    model_free(p.m);
    device_close(p.dev);
    if (rc < 0)
        (void)fprintf(stderr, "model_probe: %s\n", err.msg);
    return rc < 0;
}
