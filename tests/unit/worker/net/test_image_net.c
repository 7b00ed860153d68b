/* Networks of images behind struct net: the router's gradients against finite differences, its
 * modes against each other, and what is drawn. */
#include "kernels/device/device.h"
#include "tests/unit/worker/tiny.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "worker/train/eval.h"
#include "worker/net/image_net.h"

enum { B = 4, VALUES = 3 * 6 * 6 };

struct fixture {
    struct device *dev;
    struct model *dit, *router;
    float *dit_flat, *router_flat;
    uint8_t images[B * VALUES];
    int32_t labels[B], partitions[B];
    uint64_t keys[B];
    struct batch batch;
};

static int setup(void **state)
{
    static struct fixture f;
    const struct model_spec dit = tiny_spec(), router = tiny_router();
    f = (struct fixture){.partitions = {2, 0, 3, 0}, .keys = {50, 7, 1000, 3}};
    OK(device_open("cpu-ref", 1, &f.dev, err));
    OK(model_new(&dit, &f.dit, err));
    OK(model_new(&router, &f.router, err));
    f.dit_flat = tiny_weights(f.dit, 5);
    f.router_flat = tiny_weights(f.router, 5);
    tiny_batch(&dit, 0, B, f.images, f.labels);
    f.batch = (struct batch){.count = B,
                             .images = f.images,
                             .labels = f.labels,
                             .partitions = f.partitions,
                             .seed = 9,
                             .keys = f.keys};
    *state = &f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    mem_free(f->dit_flat);
    mem_free(f->router_flat);
    model_free(f->dit);
    model_free(f->router);
    device_close(f->dev);
    return 0;
}

static struct net *make(struct fixture *f, const struct model *m, struct net_options opt)
{
    struct net *n = NULL;
    opt.batch = opt.batch ? opt.batch : B;
    OK(net_new(f->dev, m, &opt, &n, err));
    OK(weights_set(n->weights, m == f->dit ? f->dit_flat : f->router_flat, err));
    return n;
}

/* Sum of the losses; with backward also the gradients of it. */
static double sum_of(struct net *n, const struct batch *b, bool backward, float *losses)
{
    float own[B];
    struct net_result r = {.losses = losses ? losses : own};
    double sum = 0;
    OK(net_loss(n, b, true, 1.0f, backward, &r, err));
    for (unsigned i = 0; i < b->count; i++)
        sum += (double)r.losses[i];
    return sum;
}

static void test_router_gradients(void **state)
{
    struct fixture *f = *state;
    const struct model *m = f->router;
    struct net *n = make(f, m, (struct net_options){NET_TRAIN, NET_F32});
    float *dir = mem_alloc_array(m->flat, sizeof *dir), *g = model_flat_new(m);
    (void)sum_of(n, &f->batch, true, NULL);
    memcpy(g, n->weights->g, m->flat * sizeof *g);

    for (size_t i = 0; i < m->n; i++) {
        const struct model_tensor *t = &m->tensors[i];
        float *w = n->weights->w + t->offset;
        const float *keep = f->router_flat + t->offset;
        const float h = 4e-3f / sqrtf((float)t->count);
        double expected = 0, side[2];
        rng_fill_normal(78, i, 0, dir, t->count, 0.0f, 1.0f);
        for (uint64_t j = 0; j < t->count; j++)
            expected += (double)g[t->offset + j] * (double)dir[j];
        for (int s = 0; s < 2; s++) {
            for (uint64_t j = 0; j < t->count; j++)
                w[j] = keep[j] + (s ? -h : h) * dir[j];
            side[s] = sum_of(n, &f->batch, false, NULL);
        }
        memcpy(w, keep, t->count * sizeof *w);
        const double got = (side[0] - side[1]) / (2.0 * (double)h);
        if (fabs(got - expected) > 0.02 * (fabs(expected) + 0.02 * sqrt((double)t->count)))
            fail_msg("%s: the gradient says %g, differences %g", t->name, expected, got);
        assert_true(fabs(expected) > 1e-7); /* a test that sees nothing proves nothing */
    }
    mem_free(g);
    mem_free(dir);
    net_free(n);
}

static void test_router_modes_agree(void **state)
{
    struct fixture *f = *state;
    const struct model *m = f->router;
    for (int p = 0; p < 2; p++) {
        struct net *n[3];
        float losses[3][B];
        for (int i = 0; i < 3; i++) {
            const enum net_mode mode = i == 0 ? NET_TRAIN : i == 1 ? NET_RECOMPUTE : NET_FORWARD;
            n[i] = make(f, m, (struct net_options){mode, p ? NET_BF16 : NET_F32});
            (void)sum_of(n[i], &f->batch, i < 2, losses[i]);
            assert_memory_equal(losses[i], losses[0], sizeof losses[0]);
        }
        assert_memory_equal(n[0]->weights->g, n[1]->weights->g, m->flat * sizeof(float));
        for (int i = 0; i < 3; i++)
            net_free(n[i]);
    }
}

/* A second backward without `first` adds the same gradients again. */
static void test_router_accumulates(void **state)
{
    struct fixture *f = *state;
    const uint64_t flat = f->router->flat;
    struct net *n = make(f, f->router, (struct net_options){NET_TRAIN, NET_F32});
    float *once = mem_alloc_array(flat, sizeof *once);
    struct net_result none = {0};
    (void)sum_of(n, &f->batch, true, NULL);
    memcpy(once, n->weights->g, flat * sizeof *once);
    OK(net_loss(n, &f->batch, false, 1.0f, true, &none, err));
    for (uint64_t i = 0; i < flat; i++)
        assert_true(fabsf(n->weights->g[i] - 2.0f * once[i]) <= 1e-4f * (1 + fabsf(once[i])));
    mem_free(once);
    net_free(n);
}

/* The loss is that of the logits that the DiT underneath gives. */
static void test_router_loss(void **state)
{
    struct fixture *f = *state;
    struct net *n = make(f, f->router, (struct net_options){NET_FORWARD, NET_F32});
    float losses[B], logits[B * 4];
    int32_t best[B];
    struct net_result r = {losses, best};
    OK(net_loss(n, &f->batch, true, 0.0f, false, &r, err));
    const struct flow_matching *flow = &((struct image_net *)n)->flow;
    const struct dit_io io = {.B = B, .x = flow->d_xt, .t = flow->d_t, .pred = logits};
    OK(dit_forward(net_dit(n), NULL, 0, &io, err));
    OK(weights_sync(n->weights, err));
    for (int i = 0; i < B; i++) {
        double sum = 0;
        int most = 0;
        for (int k = 0; k < 4; k++) {
            sum += exp((double)logits[i * 4 + k]);
            most = logits[i * 4 + k] > logits[i * 4 + most] ? k : most;
        }
        const double want = log(sum) - (double)logits[i * 4 + f->partitions[i]];
        assert_true(fabs((double)losses[i] - want) < 1e-5);
        assert_int_equal(best[i], most);
    }
    net_free(n);
}

static void test_refusals(void **state)
{
    struct fixture *f = *state;
    struct err err = {0};
    struct net *n = make(f, f->router, (struct net_options){NET_FORWARD, NET_F32});
    struct net_result r = {0};
    struct batch b = f->batch;
    const int32_t high[B] = {0, 4, 0, 0}, token[1] = {0};
    b.partitions = NULL;
    assert_int_equal(net_loss(n, &b, true, 0, false, &r, &err), -EINVAL);
    b.partitions = high;
    assert_int_equal(net_loss(n, &b, true, 0, false, &r, &err), -EINVAL);
    assert_non_null(strstr(err.msg, "partition 4, the router knows 4"));
    b = f->batch;
    assert_int_equal(net_loss(n, &b, true, 0, true, &r, &err), -EINVAL);
    b.count = B + 1;
    assert_int_equal(net_loss(n, &b, true, 0, false, &r, &err), -EINVAL);
    b = f->batch;
    b.tokens = token;
    assert_int_equal(net_loss(n, &b, true, 0, false, &r, &err), -EINVAL);
    assert_non_null(strstr(err.msg, "router network cannot read texts"));
    net_free(n);
}

/* No labels is the null label; so is a dropout of all.  A time given is taken. */
static void test_draws(void **state)
{
    struct fixture *f = *state;
    float with[B], without[B], dropped[B], early[B], again[B];
    struct batch b = f->batch;
    struct net *n = make(f, f->dit, (struct net_options){NET_FORWARD, NET_F32});
    (void)sum_of(n, &b, false, with);
    b.labels = NULL;
    (void)sum_of(n, &b, false, without);
    assert_memory_not_equal(with, without, sizeof with);
    b.t = 0.1f;
    (void)sum_of(n, &b, false, early);
    for (int i = 0; i < B; i++)
        assert_true(((struct image_net *)n)->flow.t[i] == 0.1f);
    assert_memory_not_equal(early, without, sizeof with);
    b.seed++;
    (void)sum_of(n, &b, false, again);
    assert_memory_not_equal(early, again, sizeof early);
    net_free(n);
    n = make(f, f->dit, (struct net_options){NET_FORWARD, NET_F32, .label_dropout = 1.0});
    (void)sum_of(n, &f->batch, false, dropped);
    assert_memory_equal(dropped, without, sizeof dropped);
    net_free(n);
}

static void test_hidden(void **state)
{
    struct fixture *f = *state;
    struct net *n = make(f, f->dit, (struct net_options){NET_FORWARD, NET_F32});
    struct net_hidden h;
    struct batch b = f->batch;
    b.labels = NULL;
    b.t = 0.1f;
    OK(net_hidden(n, &b, &h, err));
    assert_int_equal(h.T, 9);
    assert_int_equal(h.C, 12);
    assert_int_equal(h.dt, DT_F32);
    float all[B * 9 * 12];
    memcpy(all, h.x, sizeof all);
    batch_slice(&b, 2, 1, &(struct batch_sizes){.image = VALUES}, &b);
    OK(net_hidden(n, &b, &h, err));
    assert_memory_equal(h.x, all + 2 * 9 * 12, 9 * 12 * sizeof(float));
    net_free(n);
}

/* Constant images of one grey per partition: the router finds out which. */
static void test_router_learns(void **state)
{
    struct fixture *f = *state;
    struct train_options opt = tiny_options();
    struct trainer *t = NULL;
    struct device *dev = NULL;
    enum { N = 12 };
    uint8_t images[N * VALUES];
    int32_t partitions[N];
    uint64_t ids[N];
    opt.batch = N;
    opt.accumulate = 2;
    opt.lr = 5e-3;
    OK(device_open("cpu", 2, &dev, err));
    OK(trainer_make(dev, f->router, &opt, &t, err));
    float *flat = model_flat_new(f->router);
    model_init(f->router, 3, flat);
    OK(trainer_set(t, flat, err));
    for (int i = 0; i < N; i++) {
        partitions[i] = i % 4;
        ids[i] = (uint64_t)i;
        memset(images + (size_t)i * VALUES, 20 + 70 * (i % 4), VALUES);
    }
    struct batch b = {.count = N, .images = images, .partitions = partitions, .keys = ids};
    struct step_result r = {0};
    for (int i = 0; i < 150; i++)
        OK(trainer_step(t, &b, &r, err));
    assert_true(r.loss < 0.8 * log(4));
    struct eval_sum sum = {0};
    b.seed = 1;
    b.t = 0.2f; /* as often drawn in training */
    OK(eval_batch(trainer_net(t), &b, &sum, err));
    assert_int_equal(sum.hits, N);
    mem_free(flat);
    trainer_free(t);
    device_close(dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_router_gradients),
        cmocka_unit_test(test_router_modes_agree),
        cmocka_unit_test(test_router_accumulates),
        cmocka_unit_test(test_router_loss),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_draws),
        cmocka_unit_test(test_hidden),
        cmocka_unit_test(test_router_learns),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
