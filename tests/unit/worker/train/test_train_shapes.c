/* Images of several shapes in one step: a shape that is the square is the square, gradients of a
 * rectangle against finite differences, a batch of several shapes against its samples one by one,
 * parts and slots, and the cut into micro-batches. */
#include "kernels/device/device.h"
#include "tests/unit/worker/tiny_encoders.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "worker/net/image_net.h"
#include "worker/train/eval.h"

enum { B = 7, MOST = 2 * 4 * 6 * 6 };

static const uint8_t mixed[B] = {0, 1, 1, 2, 2, 2, 3};

/* A network that knows 6 x 6, 4 x 8 and 8 x 4 beside the square of 6, and a batch for it. */
struct bench {
    struct device *dev;
    struct model *m;
    float *flat;
    struct tiny_encoders enc;
    const struct net_encoders *encoders;
    uint8_t images[B * MOST];
    uint16_t moments[B * MOST];
    int32_t labels[B], partitions[B], ids[B * 5], lengths[B];
    uint64_t keys[B];
    struct batch batch;
};

static void with_shapes(struct model_spec *s)
{
    s->n_shapes = 3;
    s->shapes[0] = (struct model_shape){6, 6};
    s->shapes[1] = (struct model_shape){4, 8};
    s->shapes[2] = (struct model_shape){8, 4};
}

static void load_up(struct bench *b, struct model_spec spec, const uint8_t *shapes)
{
    memset(b, 0, sizeof *b);
    with_shapes(&spec);
    OK(device_open("cpu-ref", 1, &b->dev, err));
    OK(model_new(&spec, &b->m, err));
    b->flat = tiny_weights(b->m, 5);
    if (model_captioned(&spec))
        b->encoders = tiny_encoders(&b->enc, &spec, DT_F32);
    for (int i = 0; i < B * MOST; i++) {
        b->images[i] = (uint8_t)rng_at_u32(99, 1, (uint64_t)i);
        b->moments[i] = tiny_bf16(0.3f * rng_at_normal(98, 1, (uint64_t)i));
    }
    for (int i = 0; i < B; i++) {
        b->labels[i] = i % 3;
        b->partitions[i] = i % 4;
        b->keys[i] = (uint64_t)(100 - i);
        b->lengths[i] = 1 + i % 5;
    }
    b->batch = (struct batch){.count = B,
                              .images = b->encoders ? NULL : b->images,
                              .moments = b->encoders ? b->moments : NULL,
                              .captions = b->encoders ? b->ids : NULL,
                              .caption_lengths = b->encoders ? b->lengths : NULL,
                              .shapes = shapes,
                              .labels = b->labels,
                              .partitions = b->partitions,
                              .seed = 9,
                              .keys = b->keys};
}

static void put_away(struct bench *b)
{
    mem_free(b->flat);
    model_free(b->m);
    device_close(b->dev);
}

static struct net *make(struct bench *b, int batch, int slots)
{
    struct net *n = NULL;
    const struct net_options opt = {.mode = NET_TRAIN,
                                    .precision = NET_F32,
                                    .batch = batch,
                                    .load = B,
                                    .slots = slots,
                                    .encoders = b->encoders};
    OK(net_new(b->dev, b->m, &opt, &n, err));
    OK(weights_set(n->weights, b->flat, err));
    return n;
}

static struct batch slice(struct bench *b, const struct net *n, unsigned from, unsigned count)
{
    const struct batch_sizes sizes = net_batch_sizes(b->m, &n->opt);
    struct batch part;
    batch_slice(&b->batch, from, count, &sizes, &part);
    return part;
}

/* Sum of the losses of samples of one shape. */
static double sum_of(struct net *n, const struct batch *b, bool backward)
{
    float losses[B];
    struct net_result r = {.losses = losses};
    double sum = 0;
    OK(net_loss(n, b, true, 1.0f, backward, &r, err));
    for (unsigned i = 0; i < b->count; i++)
        sum += (double)losses[i];
    return sum;
}

static void the_square_is_a_shape(void **state)
{
    const uint8_t ones[B] = {1, 1, 1, 1, 1, 1, 1};
    for (int captioned = 0; captioned < 2; captioned++) {
        struct bench b;
        load_up(&b, captioned ? tiny_captioned() : tiny_spec(), NULL);
        struct net *n = make(&b, B, 1);
        const double square = sum_of(n, &b.batch, true);
        float *g = model_flat_new(b.m);
        memcpy(g, n->weights->g, b.m->flat * sizeof *g);
        b.batch.shapes = ones;
        assert_true(sum_of(n, &b.batch, true) == square);
        assert_memory_equal(n->weights->g, g, b.m->flat * sizeof *g);
        mem_free(g);
        net_free(n);
        put_away(&b);
    }
}

static void check_gradient(struct bench *b, struct net *n, const struct batch *batch,
                           const float *g, const struct model_tensor *t, uint64_t stream)
{
    float *w = n->weights->w + t->offset, *dir = mem_alloc_array(t->count, sizeof *dir);
    const float *keep = b->flat + t->offset, h = 4e-3f / sqrtf((float)t->count);
    double expected = 0, side[2];
    rng_fill_normal(78, stream, 0, dir, t->count, 0.0f, 1.0f);
    for (uint64_t j = 0; j < t->count; j++)
        expected += (double)g[t->offset + j] * (double)dir[j];
    for (int s = 0; s < 2; s++) {
        for (uint64_t j = 0; j < t->count; j++)
            w[j] = keep[j] + (s ? -h : h) * dir[j];
        side[s] = sum_of(n, batch, false);
    }
    memcpy(w, keep, t->count * sizeof *w);
    const double got = (side[0] - side[1]) / (2.0 * (double)h);
    if (fabs(got - expected) > 0.02 * (fabs(expected) + 0.05 * sqrt((double)t->count)))
        fail_msg("%s: the gradient says %g, differences %g", t->name, expected, got);
    mem_free(dir);
}

static void gradients_of_a_rectangle(void **state)
{
    const struct model_spec specs[] = {tiny_spec(), tiny_captioned(), tiny_router()};
    for (int i = 0; i < 3; i++) {
        struct bench b;
        load_up(&b, specs[i], mixed);
        struct net *n = make(&b, B, 1);
        const struct batch run = slice(&b, n, 3, 3); /* of 4 x 8 */
        float *g = model_flat_new(b.m);
        (void)sum_of(n, &run, true);
        memcpy(g, n->weights->g, b.m->flat * sizeof *g);
        for (size_t t = 0; t < b.m->n; t++)
            check_gradient(&b, n, &run, g, &b.m->tensors[t], t);
        mem_free(g);
        net_free(n);
        put_away(&b);
    }
}

/* Losses of a loaded batch, a run at a time; a slot each, parts one after the other. */
static void all_at_once(struct bench *b, struct net *n, bool parts, float losses[B], float *g)
{
    const int depth = b->m->spec.depth;
    const struct model_part cut[2] = {{0, 1}, {1, depth}}, all = {0, depth};
    struct net_micro m[B] = {0};
    int runs = 0;
    OK(net_load(n, &b->batch, 1.0f, err));
    for (unsigned from = 0; from < B; from += m[runs++].count)
        m[runs] = (struct net_micro){.from = from,
                                     .count = batch_run(&b->batch, from, B),
                                     .first = from == 0,
                                     .backward = true};
    for (int r = 0; r < runs && parts; r++)
        OK(net_forward(n, &cut[0], r, &m[r], err));
    for (int r = 0; r < runs; r++) {
        const int slot = parts ? r : 0;
        OK(net_forward(n, parts ? &cut[1] : &all, slot, &m[r], err));
        OK(net_backward(n, parts ? &cut[1] : &all, slot, err));
        if (parts)
            OK(net_backward(n, &cut[0], slot, err));
    }
    OK(weights_sync(n->weights, err));
    memcpy(losses, n->d_losses, B * sizeof *losses);
    memcpy(g, n->weights->g, b->m->flat * sizeof *g);
}

static void a_batch_is_its_samples(void **state)
{
    for (int captioned = 0; captioned < 2; captioned++) {
        struct bench b;
        struct err e = {0};
        float losses[2][B];
        load_up(&b, captioned ? tiny_captioned() : tiny_spec(), mixed);
        struct net *n = make(&b, B, 4);
        float *g[2] = {model_flat_new(b.m), model_flat_new(b.m)};
        all_at_once(&b, n, false, losses[0], g[0]);
        all_at_once(&b, n, true, losses[1], g[1]);
        assert_memory_equal(losses[0], losses[1], sizeof losses[0]);
        assert_memory_equal(g[0], g[1], b.m->flat * sizeof *g[0]);
        for (unsigned i = 0; i < B; i++) {
            const struct batch one = slice(&b, n, i, 1);
            const double alone = sum_of(n, &one, false);
            assert_true(isfinite(alone) && alone > 0);
            assert_true(fabs(alone - (double)losses[0][i]) < 1e-5 * alone);
        }
        const struct net_micro two = {.from = 2, .count = 2};
        OK(net_load(n, &b.batch, 1.0f, err));
        assert_int_equal(net_forward(n, NULL, 0, &two, &e), -EINVAL);
        mem_free(g[0]);
        mem_free(g[1]);
        net_free(n);
        put_away(&b);
    }
}

/* Steps are the same but for the order of sums, and evaluations too. */
static void steps_do_not_depend_on_the_cut(void **state)
{
    double loss[3], eval[3];
    for (int i = 0; i < 3; i++) {
        const int accumulate[] = {1, 4, B};
        struct bench b;
        struct trainer *t;
        struct step_result r;
        struct eval_sum sum = {0};
        load_up(&b, tiny_spec(), mixed);
        struct train_options o = tiny_options();
        o.batch = B;
        o.accumulate = accumulate[i];
        OK(trainer_make(b.dev, b.m, &o, &t, err));
        OK(trainer_set(t, b.flat, err));
        for (int s = 0; s < 3; s++)
            OK(trainer_step(t, &b.batch, &r, err));
        loss[i] = r.loss;
        OK(eval_batch(trainer_net(t), &b.batch, &sum, err));
        eval[i] = sum.loss;
        assert_int_equal(sum.samples, B);
        trainer_free(t);
        put_away(&b);
    }
    for (int i = 1; i < 3; i++) {
        assert_true(fabs(loss[i] - loss[0]) < 1e-5 * loss[0]);
        assert_true(fabs(eval[i] - eval[0]) < 1e-5 * eval[0]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_square_is_a_shape),
        cmocka_unit_test(gradients_of_a_rectangle),
        cmocka_unit_test(a_batch_is_its_samples),
        cmocka_unit_test(steps_do_not_depend_on_the_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
