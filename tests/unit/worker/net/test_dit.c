/* Gradients of the whole model against finite differences; the modes against each
 * other. */
#include "kernels/device/device.h"
#include "tests/unit/worker/tiny.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "worker/net/dit.h"
#include "worker/model/model_index.h"

enum { B = 3 };

struct fixture {
    struct device *dev;
    struct model *m;
    float *flat, *x, *r; /* weights; input and random dpred (B,Ch,S,S) */
    float *estimate;     /* as x, of a model that reads one */
    float *states;       /* (B,L,D) with captions */
    bf16 *states16;
    int64_t n; /* values of all images */
    float t[B];
    int32_t labels[B], lengths[B];
};

static int setup(void **state, struct model_spec spec)
{
    static struct fixture f;
    f = (struct fixture){
        .t = {0.13f, 0.5f, 0.94f}, .labels = {2, 3, 0}, .lengths = {3, 1, spec.caption_tokens}};
    OK(device_open("cpu-ref", 1, &f.dev, err));
    OK(model_new(&spec, &f.m, err));
    f.flat = tiny_weights(f.m, 5);
    f.n = (int64_t)B * spec.channels * spec.image * spec.image;
    f.x = mem_alloc_array((size_t)f.n, sizeof(float));
    f.r = mem_alloc_array((size_t)f.n, sizeof(float));
    rng_fill_normal(6, 1, 0, f.x, (size_t)f.n, 0.0f, 1.0f);
    rng_fill_normal(6, 2, 0, f.r, (size_t)f.n, 0.0f, 1.0f);
    if (spec.self_condition) {
        f.estimate = mem_alloc_array((size_t)f.n, sizeof(float));
        rng_fill_normal(6, 4, 0, f.estimate, (size_t)f.n, 0.0f, 1.0f);
    }
    if (model_captioned(&spec)) {
        const size_t values = (size_t)B * (size_t)spec.caption_tokens * (size_t)spec.caption;
        f.states = mem_alloc_array(values, sizeof *f.states);
        f.states16 = mem_alloc_array(values, sizeof *f.states16);
        rng_fill_normal(6, 3, 0, f.states, values, 0.0f, 1.0f);
        f.dev->ops->cast(f.dev, f.states16, DT_BF16, f.states, DT_F32, (int64_t)values, NULL);
    }
    *state = &f;
    return 0;
}

static int setup_labels(void **state)
{
    return setup(state, tiny_spec());
}

static int setup_captions(void **state)
{
    return setup(state, tiny_captioned());
}

static int setup_estimate(void **state)
{
    struct model_spec spec = tiny_spec();
    spec.self_condition = true;
    return setup(state, spec);
}

static int setup_captions_estimate(void **state)
{
    struct model_spec spec = tiny_captioned();
    spec.self_condition = true;
    return setup(state, spec);
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    mem_free(f->flat);
    mem_free(f->x);
    mem_free(f->r);
    mem_free(f->estimate);
    mem_free(f->states);
    mem_free(f->states16);
    model_free(f->m);
    device_close(f->dev);
    return 0;
}

static struct dit *make(struct fixture *f, enum net_mode mode, enum net_precision precision)
{
    struct dit *d = NULL;
    struct net_options opt = {.mode = mode, .precision = precision, .batch = B};
    OK(dit_new(f->dev, f->m, &opt, &d, err));
    OK(weights_set(dit_weights(d), f->flat, err));
    return d;
}

/* The CPU computes on host memory: plain arrays will do. */
static struct dit_io io_of(const struct fixture *f, struct dit *d, float *pred)
{
    const bool f32 = dit_weights(d)->dt == DT_F32;
    return (struct dit_io){.B = B,
                           .x = f->x,
                           .estimate = f->estimate,
                           .t = f->t,
                           .labels = f->labels,
                           .states = f32 ? (const void *)f->states : f->states16,
                           .lengths = f->lengths,
                           .pred = pred,
                           .dpred = f->r};
}

static void backward(const struct fixture *f, struct dit *d, bool first)
{
    const struct dit_io io = io_of(f, d, NULL);
    if (first)
        weights_zero_grads(dit_weights(d));
    OK(dit_backward(d, NULL, 0, &io, first, err));
    OK(weights_sync(dit_weights(d), err));
}

static double loss(struct fixture *f, struct dit *d, float *pred)
{
    const struct dit_io io = io_of(f, d, pred);
    OK(dit_forward(d, NULL, 0, &io, err));
    OK(weights_sync(dit_weights(d), err));
    double sum = 0;
    for (int64_t i = 0; i < f->n; i++)
        sum += (double)pred[i] * (double)f->r[i];
    return sum;
}

static void test_finite_differences(void **state)
{
    struct fixture *f = *state;
    struct dit *d = make(f, NET_TRAIN, NET_F32);
    float *pred = mem_alloc_array((size_t)f->n, sizeof *pred);
    float *dir = mem_alloc_array(f->m->flat, sizeof *dir);
    (void)loss(f, d, pred);
    backward(f, d, true);
    const float *g = dit_weights(d)->g;

    for (size_t i = 0; i < f->m->n; i++) {
        const struct model_tensor *t = &f->m->tensors[i];
        float *w = dit_weights(d)->w + t->offset;
        const float *keep = f->flat + t->offset;
        rng_fill_normal(77, i, 0, dir, t->count, 0.0f, 1.0f);

        if (strstr(t->name, "to_k.bias")) { /* moves all keys alike, which changes no softmax */
            for (uint64_t j = 0; j < t->count; j++)
                assert_true(fabsf(g[t->offset + j]) < 1e-4f);
            continue;
        }
        /* A step of fixed length along a random direction of the whole tensor. */
        const float h = 1.6e-2f / sqrtf((float)t->count);
        double expected = 0, side[2];
        for (uint64_t j = 0; j < t->count; j++)
            expected += (double)g[t->offset + j] * (double)dir[j];
        for (int s = 0; s < 2; s++) {
            for (uint64_t j = 0; j < t->count; j++)
                w[j] = keep[j] + (s ? -h : h) * dir[j];
            side[s] = loss(f, d, pred);
        }
        memcpy(w, keep, t->count * sizeof *w);
        double got = (side[0] - side[1]) / (2.0 * (double)h);
        double scale = fabs(expected) + 0.05 * sqrt((double)t->count);
        if (fabs(got - expected) > 0.01 * scale)
            fail_msg("%s: the gradient says %g, differences %g", t->name, expected, got);
        assert_true(fabs(expected) > 1e-6); /* a test that sees nothing proves nothing */
    }
    mem_free(dir);
    mem_free(pred);
    dit_free(d);
}

/* In bf16 NET_LEAN rounds the input of the GELU before it: only gradients of the second layer of
 * an MLP see it: by 2^-9 of its values, which is 2^-18 of the sum of their squares, times a few. */
static void lean_is_close(const struct fixture *f, const float *g, const float *lean)
{
    for (size_t i = 0; i < f->m->n; i++) {
        const struct model_tensor *t = &f->m->tensors[i];
        double sum = 0, apart = 0;
        for (uint64_t k = t->offset; k < t->offset + t->count; k++) {
            sum += (double)g[k] * (double)g[k];
            apart += (double)(g[k] - lean[k]) * (double)(g[k] - lean[k]);
        }
        bool fc2 = false;
        for (int b = 0; b < f->m->spec.depth; b++)
            fc2 |= (int)i == model_block_tensor(&f->m->spec, b, T_FC2_W);
        assert_true(fc2 ? apart > 0 && apart < sum / (1 << 13) : apart == 0);
    }
}

static void test_modes_agree(void **state)
{
    struct fixture *f = *state;
    const size_t bytes = (size_t)f->n * sizeof(float);
    for (int p = 0; p < 2; p++) {
        enum net_precision precision = p ? NET_BF16 : NET_F32;
        const enum net_mode modes[] = {NET_TRAIN, NET_RECOMPUTE, NET_LEAN, NET_FORWARD};
        struct dit *d[4];
        float *pred[4];
        for (int i = 0; i < 4; i++) {
            d[i] = make(f, modes[i], precision);
            pred[i] = mem_alloc_array((size_t)f->n, sizeof(float));
            (void)loss(f, d[i], pred[i]);
            assert_memory_equal(pred[i], pred[0], bytes);
            if (i < 3)
                backward(f, d[i], true);
        }
        const size_t all = f->m->flat * sizeof(float);
        assert_memory_equal(dit_weights(d[0])->g, dit_weights(d[1])->g, all);
        if (precision == NET_F32)
            assert_memory_equal(dit_weights(d[0])->g, dit_weights(d[2])->g, all);
        else
            lean_is_close(f, dit_weights(d[0])->g, dit_weights(d[2])->g);
        for (int i = 0; i < 4; i++) {
            dit_free(d[i]);
            mem_free(pred[i]);
        }
    }
}

/* A second backward without `first` adds the same gradients again. */
static void test_accumulation(void **state)
{
    struct fixture *f = *state;
    struct dit *d = make(f, NET_TRAIN, NET_F32);
    float *pred = mem_alloc_array((size_t)f->n, sizeof *pred);
    float *once = mem_alloc_array(f->m->flat, sizeof *once);
    for (int pass = 0; pass < 2; pass++) {
        (void)loss(f, d, pred);
        backward(f, d, pass == 0);
        if (pass == 0)
            memcpy(once, dit_weights(d)->g, f->m->flat * sizeof *once);
    }
    for (uint64_t i = 0; i < f->m->flat; i++)
        assert_true(fabsf(dit_weights(d)->g[i] - 2.0f * once[i]) <= 1e-4f * (1 + fabsf(once[i])));
    mem_free(once);
    mem_free(pred);
    dit_free(d);
}

/* None is zeros, and what is told counts. */
static void test_estimate(void **state)
{
    struct fixture *f = *state;
    struct dit *d = make(f, NET_FORWARD, NET_F32);
    const size_t bytes = (size_t)f->n * sizeof(float);
    float *told = mem_alloc(bytes), *none = mem_alloc(bytes), *zeros = mem_alloc(bytes);
    (void)loss(f, d, told);
    float *estimate = f->estimate;
    f->estimate = NULL;
    (void)loss(f, d, none);
    f->estimate = memset(estimate, 0, bytes);
    (void)loss(f, d, zeros);
    assert_memory_equal(none, zeros, bytes);
    assert_memory_not_equal(told, none, bytes);
    mem_free(told);
    mem_free(none);
    mem_free(zeros);
    dit_free(d);
}

static void test_memory(void **state)
{
    struct fixture *f = *state;
    const uint64_t forward =
        dit_bytes(f->m, &(struct net_options){NET_FORWARD, NET_F32, 8}, DT_F32);
    const uint64_t train = dit_bytes(f->m, &(struct net_options){NET_TRAIN, NET_F32, 8}, DT_F32);
    const uint64_t recompute =
        dit_bytes(f->m, &(struct net_options){NET_RECOMPUTE, NET_F32, 8}, DT_F32);
    const uint64_t lean = dit_bytes(f->m, &(struct net_options){NET_LEAN, NET_F32, 8}, DT_F32);
    assert_true(forward < recompute);
    assert_true(recompute < lean);
    assert_true(lean < train);
    assert_int_equal(weights_bytes(f->m, DT_F32, false), f->m->flat * 4);
    assert_int_equal(weights_bytes(f->m, DT_BF16, true), f->m->flat * 10);

    struct err err = {0};
    struct dit *d = make(f, NET_FORWARD, NET_F32);
    struct dit_io io = io_of(f, d, NULL);
    io.B = B + 1;
    assert_int_equal(dit_forward(d, NULL, 0, &io, &err), -EINVAL);
    io.B = B;
    assert_int_equal(dit_backward(d, NULL, 0, &io, true, &err), -EINVAL);
    dit_free(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_finite_differences),
        cmocka_unit_test(test_modes_agree),
        cmocka_unit_test(test_accumulation),
        cmocka_unit_test(test_memory),
    };
    const struct CMUnitTest estimates[] = {
        cmocka_unit_test(test_finite_differences), cmocka_unit_test(test_modes_agree),
        cmocka_unit_test(test_accumulation),       cmocka_unit_test(test_memory),
        cmocka_unit_test(test_estimate),
    };
    return cmocka_run_group_tests_name("labels", tests, setup_labels, teardown) +
           cmocka_run_group_tests_name("captions", tests, setup_captions, teardown) +
           cmocka_run_group_tests_name("estimate", estimates, setup_estimate, teardown) +
           cmocka_run_group_tests_name("captions, estimate", estimates, setup_captions_estimate,
                                       teardown);
}
