/* The training step: it learns, and its bits depend on nothing they should not. */
#include "kernels/device/device.h"
#include "tests/unit/worker/tiny.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "worker/train/eval.h"

static struct model *make_model(void)
{
    struct model_spec spec = tiny_spec();
    struct model *m = NULL;
    OK(model_new(&spec, &m, err));
    return m;
}

struct run {
    const char *device;
    int threads;
    struct train_options opt;
    unsigned steps;
};

/* Trains from fixed weights; the final flat weights (mem_free). */
static float *train(const struct model *m, const struct run *r, double *ret_losses)
{
    struct device *dev = NULL;
    struct trainer *t = NULL;
    const unsigned n = (unsigned)r->opt.batch;
    uint8_t *images = mem_alloc((size_t)n * 3 * 6 * 6);
    int32_t *labels = mem_alloc_array(n, sizeof *labels);
    float *flat = tiny_weights(m, 21);
    OK(device_open(r->device, r->threads, &dev, err));
    OK(trainer_make(dev, m, &r->opt, &t, err));
    OK(trainer_set(t, flat, err));
    trainer_position(t, 100, 200);
    for (unsigned i = 0; i < r->steps; i++) {
        struct step_result res;
        tiny_batch(&m->spec, i * n, n, images, labels);
        OK(tiny_step(t, images, labels, n, &res, err));
        assert_int_equal(res.step, 100 + i);
        if (ret_losses)
            ret_losses[i] = res.loss;
    }
    OK(trainer_get(t, flat, err));
    trainer_free(t);
    device_close(dev);
    mem_free(labels);
    mem_free(images);
    return flat;
}

static double distance(const struct model *m, const float *a, const float *b)
{
    double most = 0;
    for (uint64_t i = 0; i < m->flat; i++)
        most = fmax(most, fabs((double)a[i] - (double)b[i]));
    return most;
}

static void test_threads(void **state)
{
    struct model *m = make_model();
    for (int p = 0; p < 2; p++) {
        struct run r = {.device = "cpu", .threads = 1, .opt = tiny_options(), .steps = 4};
        r.opt.precision = p ? NET_BF16 : NET_F32;
        float *one = train(m, &r, NULL);
        r.threads = 3;
        float *three = train(m, &r, NULL);
        assert_memory_equal(one, three, m->flat * sizeof *one);
        mem_free(one);
        mem_free(three);
    }
    model_free(m);
}

/* Micro-batches change the order of sums only: noise, t and dropout stay. */
static void test_accumulate(void **state)
{
    struct model *m = make_model();
    double a[3], b[3];
    struct run r = {.device = "cpu-ref", .threads = 1, .opt = tiny_options(), .steps = 3};
    r.opt.eps = 1e-3; /* keeps Adam from amplifying rounding */
    float *whole = train(m, &r, a);
    r.opt.accumulate = 3; /* 2 + 2 + 1 */
    float *cut = train(m, &r, b);
    for (int i = 0; i < 3; i++)
        assert_true(fabs(a[i] - b[i]) < 1e-5);
    assert_true(distance(m, whole, cut) < 1e-5);
    mem_free(whole);
    mem_free(cut);
    model_free(m);
}

static void test_recompute(void **state)
{
    struct model *m = make_model();
    struct run r = {.device = "cpu", .threads = 1, .opt = tiny_options(), .steps = 3};
    float *kept = train(m, &r, NULL);
    r.opt.recompute = true;
    float *again = train(m, &r, NULL);
    assert_memory_equal(kept, again, m->flat * sizeof *kept);
    mem_free(kept);
    mem_free(again);
    model_free(m);
}

/* Of the steps, in some and of all replicas in the same; a step's cut, and recomputing, leave an
 * estimate as it is. */
static void test_estimates(void **state)
{
    struct model_spec spec = tiny_spec();
    struct model *m = NULL;
    struct run r = {.device = "cpu", .threads = 1, .opt = tiny_options(), .steps = 6};
    struct train_options other = r.opt;
    unsigned n = 0;
    double a[6], b[6];
    spec.self_condition = true;
    OK(model_new(&spec, &m, err));
    r.opt.self_condition = other.self_condition = 0.25;
    other.replica++;
    for (uint64_t s = 0; s < 1000; s++) {
        n += train_has_estimate(&r.opt, s);
        assert_int_equal(train_has_estimate(&r.opt, s), train_has_estimate(&other, s));
    }
    assert_in_range(n, 200, 300);
    r.opt.self_condition = 1;
    r.opt.eps = 1e-3; /* keeps Adam from amplifying rounding */
    float *always = train(m, &r, a);
    r.opt.recompute = true;
    float *again = train(m, &r, NULL);
    assert_memory_equal(always, again, m->flat * sizeof *again);
    r.opt.accumulate = 3;
    float *cut = train(m, &r, b);
    assert_true(distance(m, always, cut) < 1e-5);
    r.opt.self_condition = 0;
    float *never = train(m, &r, b);
    assert_true(a[0] != b[0] && distance(m, always, never) > 1e-4);
    const struct model_tensor *t = model_find(m, "x_embedder.proj.weight");
    float *start = tiny_weights(m, 21);
    for (uint64_t j = 12; j < 24; j++) /* what reads an estimate that is zeros learns nothing */
        assert_true(never[t->offset + j] == start[t->offset + j]);
    mem_free(start);
    mem_free(always);
    mem_free(again);
    mem_free(cut);
    mem_free(never);
    model_free(m);
}

static void test_seed_and_replica(void **state)
{
    struct model *m = make_model();
    double loss[3][1];
    for (int i = 0; i < 3; i++) {
        struct run r = {.device = "cpu-ref", .threads = 1, .opt = tiny_options(), .steps = 1};
        r.opt.seed += i == 1;
        r.opt.replica += i == 2;
        mem_free(train(m, &r, loss[i]));
    }
    assert_true(loss[0][0] != loss[1][0]);
    assert_true(loss[0][0] != loss[2][0]);
    model_free(m);
}

/* One constant image per class: the loss must fall, and so must the held-out loss of
 * the same images. */
static void test_learns(void **state)
{
    struct model *m = make_model();
    struct device *dev = NULL;
    struct trainer *t = NULL;
    struct train_options opt = tiny_options();
    enum { N = 12, VALUES = 3 * 6 * 6 };
    uint8_t images[N * VALUES];
    int32_t labels[N];
    uint64_t ids[N];
    struct eval_sum before = {0}, after = {0};
    opt.batch = N;
    opt.lr = 1e-2;
    opt.warmup = 5;
    OK(device_open("cpu", 1, &dev, err));
    OK(trainer_make(dev, m, &opt, &t, err));
    float *flat = model_flat_new(m);
    model_init(m, 3, flat);
    OK(trainer_set(t, flat, err));
    for (int i = 0; i < N; i++) {
        labels[i] = i % 3;
        ids[i] = (uint64_t)i;
        memset(images + (size_t)i * VALUES, 60 + 60 * (i % 3), VALUES);
    }

    const struct batch held = {
        .count = N, .images = images, .labels = labels, .seed = eval_seed(1), .keys = ids};
    OK(eval_batch(trainer_net(t), &held, &before, err));
    struct step_result r;
    for (int i = 0; i < 150; i++)
        OK(tiny_step(t, images, labels, N, &r, err));
    OK(eval_batch(trainer_net(t), &held, &after, err));
    assert_int_equal(after.units, N);
    assert_true(after.loss < 0.5 * before.loss);

    mem_free(flat);
    trainer_free(t);
    device_close(dev);
    model_free(m);
}

/* A weight that is not finite: the step is skipped and only its number has moved, so that the next
 * step is that of a trainer that begins there. */
static void test_divergence(void **state)
{
    struct err e = {0};
    struct model *m = make_model();
    struct device *dev = NULL;
    struct trainer *t = NULL, *later = NULL;
    struct train_options opt = tiny_options();
    uint8_t images[5 * 108];
    int32_t labels[5];
    OK(device_open("cpu-ref", 1, &dev, err));
    OK(trainer_make(dev, m, &opt, &t, err));
    OK(trainer_make(dev, m, &opt, &later, err));
    float *flat = tiny_weights(m, 4), *after = model_flat_new(m);
    OK(trainer_set(later, flat, err));
    trainer_position(later, 1, 0);
    flat[model_find(m, "blocks.1.mlp.fc1.bias")->offset] = INFINITY;
    OK(trainer_set(t, flat, err));
    tiny_batch(&m->spec, 0, 5, images, labels);
    struct step_result r, want;
    OK(tiny_step(t, images, labels, 5, &r, err));
    assert_true(r.skipped && r.step == 0 && !(isfinite(r.loss) && isfinite(r.grad_norm)));
    OK(trainer_get(t, after, err));
    assert_memory_equal(flat, after, m->flat * sizeof *flat);
    assert_int_equal(trainer_next_step(t), 1);
    assert_int_equal(trainer_adam_step(t), 0);

    float *sound = tiny_weights(m, 4);
    OK(trainer_set(t, sound, err));
    OK(tiny_step(t, images, labels, 5, &r, err));
    OK(tiny_step(later, images, labels, 5, &want, err));
    assert_true(!r.skipped && r.loss == want.loss && r.lr == want.lr && r.step == 1);
    OK(trainer_get(t, flat, err));
    OK(trainer_get(later, after, err));
    assert_memory_equal(flat, after, m->flat * sizeof *flat);
    mem_free(sound);
    trainer_free(later);

    labels[2] = 3; /* the null label is not the data's to give */
    assert_int_equal(tiny_step(t, images, labels, 5, &r, &e), -EINVAL);
    labels[2] = 0;
    assert_int_equal(tiny_step(t, images, labels, 6, &r, &e), -EINVAL);
    assert_int_equal(tiny_step(t, images, labels, 0, &r, &e), -EINVAL);
    mem_free(flat);
    mem_free(after);
    trainer_free(t);
    device_close(dev);
    model_free(m);
}

/* Moments younger than the replica: the rate rises anew; older ones do not care. */
static void test_young_moments(void **state)
{
    struct model *m = make_model();
    struct device *dev = NULL;
    struct trainer *t = NULL;
    struct train_options opt = tiny_options();
    uint8_t images[5 * 108];
    int32_t labels[5];
    opt.moments_warmup = 4;
    OK(device_open("cpu", 1, &dev, err));
    OK(trainer_make(dev, m, &opt, &t, err));
    float *flat = tiny_weights(m, 4);
    OK(trainer_set(t, flat, err));
    tiny_batch(&m->spec, 0, 5, images, labels);
    const struct {
        uint64_t step, adam;
        double factor;
    } cases[] = {{0, 0, 1},   {100, 0, 0.25}, {101, 1, 0.5},
                 {103, 3, 1}, {100, 100, 1},  {100, 2, 0.75}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct step_result r;
        trainer_position(t, cases[i].step, 0);
        trainer_set_adam_step(t, cases[i].adam);
        OK(tiny_step(t, images, labels, 5, &r, err));
        if (fabs(r.lr - opt.lr * cases[i].factor) > 1e-12)
            fail_msg("case %zu: %g, expected %g", i, r.lr, opt.lr * cases[i].factor);
    }
    mem_free(flat);
    trainer_free(t);
    device_close(dev);
    model_free(m);
}

/* trainer_set between steps keeps moments and position: get and set are no-ops. */
static void test_set_keeps_moments(void **state)
{
    struct model *m = make_model();
    struct train_options opt = tiny_options();
    float *end[2];
    for (int swap = 0; swap < 2; swap++) {
        struct device *dev = NULL;
        struct trainer *t = NULL;
        uint8_t images[5 * 108];
        int32_t labels[5];
        OK(device_open("cpu", 1, &dev, err));
        OK(trainer_make(dev, m, &opt, &t, err));
        end[swap] = tiny_weights(m, 4);
        OK(trainer_set(t, end[swap], err));
        for (unsigned i = 0; i < 4; i++) {
            struct step_result r;
            tiny_batch(&m->spec, i, 5, images, labels);
            OK(tiny_step(t, images, labels, 5, &r, err));
            OK(trainer_get(t, end[swap], err));
            if (swap)
                OK(trainer_set(t, end[swap], err));
        }
        trainer_free(t);
        device_close(dev);
    }
    assert_memory_equal(end[0], end[1], m->flat * sizeof(float));
    mem_free(end[0]);
    mem_free(end[1]);
    model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads),           cmocka_unit_test(test_accumulate),
        cmocka_unit_test(test_recompute),         cmocka_unit_test(test_estimates),
        cmocka_unit_test(test_seed_and_replica),  cmocka_unit_test(test_learns),
        cmocka_unit_test(test_divergence),        cmocka_unit_test(test_young_moments),
        cmocka_unit_test(test_set_keeps_moments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
