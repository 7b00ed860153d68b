/* The noised image: what is drawn depends on seed and key alone, and which labels are refused. */
#include "kernels/device/device.h"
#include "tests/unit/worker/tiny_encoders.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "worker/net/flow_matching.h"
#include "worker/net/resize.h"

enum { B = 6, VALUES = 108, CLASSES = 3 };

static struct fixture {
    struct device *dev;
    struct model *m;
    struct weights w;
    struct flow_matching flow;
    uint8_t images[B * VALUES];
    int32_t labels[B];
    uint64_t keys[B];
    struct batch batch;
} f;

static int setup(void **state)
{
    (void)state;
    const struct model_spec spec = tiny_spec();
    f = (struct fixture){.keys = {50, 7, 1000, 3, 4, 5}};
    OK(device_open("cpu-ref", 1, &f.dev, err));
    OK(model_new(&spec, &f.m, err));
    OK(weights_init(&f.w, f.dev, f.m, DT_F32, false, err));
    tiny_batch(&spec, 0, B, f.images, f.labels);
    f.batch = (struct batch){
        .count = B, .images = f.images, .labels = f.labels, .seed = 9, .keys = f.keys};
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    flow_matching_release(&f.flow);
    flow_matching_release(&f.flow); /* { 0 } is fine */
    weights_release(&f.w);
    model_free(f.m);
    device_close(f.dev);
    return 0;
}

static void load(struct net_options opt)
{
    flow_matching_release(&f.flow);
    opt.batch = opt.batch ? opt.batch : B;
    OK(flow_matching_init(&f.flow, &f.w, &opt, err));
    OK(flow_matching_load(&f.flow, &f.batch, err));
}

static void mix(unsigned from, unsigned count)
{
    OK(flow_matching_mix(&f.flow, from, count, err));
    OK(weights_sync(&f.w, err));
}

/* x_t = (1-t) x0 + t eps, target = eps - x0, with pixels of -1 to 1. */
static void test_definition(void **state)
{
    (void)state;
    load((struct net_options){0});
    mix(0, B);
    for (int i = 0; i < B; i++) {
        const double t = (double)f.flow.t[i];
        assert_true(t > 0 && t < 1);
        for (int j = 0; j < VALUES; j++) {
            const int at = i * VALUES + j, plane = VALUES / 3;
            const int pixel = i * VALUES + (j % plane) * 3 + j / plane; /* RGB beside each other */
            const double x0 = f.images[pixel] / 127.5 - 1.0, eps = (double)f.flow.d_eps[at];
            assert_true(fabs((double)f.flow.d_xt[at] - ((1 - t) * x0 + t * eps)) < 1e-5);
            assert_true(fabs((double)f.flow.d_target[at] - (eps - x0)) < 1e-5);
        }
    }
}

/* Other places, batches and cuts: the same draws of the same key; another seed: others. */
static void test_seed_and_key_alone(void **state)
{
    (void)state;
    float t[B], xt[B * VALUES];
    int32_t labels[B];
    load((struct net_options){.label_dropout = 0.5});
    mix(0, B);
    memcpy(t, f.flow.t, sizeof t);
    memcpy(labels, f.flow.labels, sizeof labels);
    memcpy(xt, f.flow.d_xt, sizeof xt);
    load((struct net_options){.label_dropout = 0.5, .batch = 2, .load = B});
    assert_memory_equal(f.flow.t, t, sizeof t);
    assert_memory_equal(f.flow.labels, labels, sizeof labels);
    for (unsigned from = 0; from < B; from += 2) {
        mix(from, 2);
        assert_memory_equal(f.flow.d_xt, xt + (size_t)from * VALUES, 2 * VALUES * sizeof *xt);
    }
    f.batch.keys = f.keys + 2;
    f.batch.images = f.images + 2 * VALUES;
    f.batch.labels = f.labels + 2;
    f.batch.count = 1;
    load((struct net_options){.label_dropout = 0.5});
    mix(0, 1);
    assert_true(f.flow.t[0] == t[2] && f.flow.labels[0] == labels[2]);
    assert_memory_equal(f.flow.d_xt, xt + (size_t)2 * VALUES, VALUES * sizeof *xt);
    f.batch.seed++;
    load((struct net_options){.label_dropout = 0.5});
    assert_true(f.flow.t[0] != t[2]);
}

static void test_times(void **state)
{
    (void)state;
    float t[B];
    load((struct net_options){0});
    memcpy(t, f.flow.t, sizeof t);
    load((struct net_options){.uniform_t = true});
    for (int i = 0; i < B; i++)
        assert_true(f.flow.t[i] != t[i] && f.flow.t[i] > 0 && f.flow.t[i] < 1);
    f.batch.t = 0.375f; /* the batch has the last word */
    load((struct net_options){.uniform_t = true});
    for (int i = 0; i < B; i++)
        assert_true(f.flow.t[i] == 0.375f);
}

/* Half of the logit-normal times are above 1/2, a sixth above sigmoid(1); with a shift of s these
 * places move to s t / (1 + (s - 1) t), and the order of samples stays. */
static void test_shift(void **state)
{
    (void)state;
    enum { DRAWS = 400 };
    float before[B];
    for (int s = 1; s <= 3; s += 2) {
        const double half = s * 0.5 / (1 + (s - 1) * 0.5), high = 0.7310586,
                     sixth = s * high / (1 + (s - 1) * high);
        int above_half = 0, above_sixth = 0;
        for (uint64_t i = 0; i < DRAWS; i++) {
            f.batch.seed = i;
            load((struct net_options){0});
            memcpy(before, f.flow.t, sizeof before);
            load((struct net_options){.shift = (float)s});
            for (int k = 0; k < B; k++) {
                const double t = (double)before[k];
                assert_true(fabs((double)f.flow.t[k] - s * t / (1 + (s - 1) * t)) < 1e-6);
                above_half += (double)f.flow.t[k] > half;
                above_sixth += (double)f.flow.t[k] > sixth;
            }
        }
        assert_in_range(above_half, DRAWS * B * 46 / 100, DRAWS * B * 54 / 100);
        assert_in_range(above_sixth, DRAWS * B * 13 / 100, DRAWS * B * 19 / 100);
    }
    f.batch.t = 0.375f; /* the batch's own time stays */
    load((struct net_options){.shift = 3});
    assert_true(f.flow.t[0] == 0.375f);
    assert_true(flow_shift(0, 3) == 0 && flow_shift(1, 3) == 1 && flow_shift(1, 0.1f) == 1);
}

static void test_labels(void **state)
{
    (void)state;
    struct err err = {0};
    load((struct net_options){.label_dropout = 0});
    assert_memory_equal(f.flow.labels, f.labels, sizeof f.labels);
    load((struct net_options){.label_dropout = 1});
    for (int i = 0; i < B; i++)
        assert_int_equal(f.flow.labels[i], CLASSES);
    f.labels[4] = CLASSES; /* dropped or not: it is no label */
    assert_int_equal(flow_matching_load(&f.flow, &f.batch, &err), -EINVAL);
    assert_string_equal(err.msg, "label 3 of sample 4 is not below 3");
    f.labels[4] = -1;
    assert_int_equal(flow_matching_load(&f.flow, &f.batch, &err), -EINVAL);
    assert_string_equal(err.msg, "label -1 of sample 4 is not below 3");
    f.batch.labels = NULL;
    load((struct net_options){.label_dropout = 0});
    for (int i = 0; i < B; i++)
        assert_int_equal(f.flow.labels[i], CLASSES);
}

/* Routers know no labels: none is refused. */
static void test_labels_of_a_router(void **state)
{
    (void)state;
    struct model *m;
    struct weights w;
    const struct model_spec spec = tiny_router();
    OK(model_new(&spec, &m, err));
    OK(weights_init(&w, f.dev, m, DT_F32, false, err));
    OK(flow_matching_init(&f.flow, &w, &(struct net_options){.batch = B}, err));
    f.labels[0] = 100;
    OK(flow_matching_load(&f.flow, &f.batch, err));
    for (int i = 0; i < B; i++)
        assert_int_equal(f.flow.labels[i], 0);
    flow_matching_release(&f.flow);
    weights_release(&w);
    model_free(m);
}

/* A router beside an upscaler reads the images of a batch made smaller. */
static void test_small_images(void **state)
{
    (void)state;
    struct model *m;
    struct weights w;
    struct model_spec spec = tiny_router();
    uint8_t low[3 * 3 * 3];
    spec.image = 3;
    spec.patch = 1;
    spec.shrink = 2;
    OK(model_new(&spec, &m, err));
    OK(weights_init(&w, f.dev, m, DT_F32, false, err));
    OK(flow_matching_init(&f.flow, &w, &(struct net_options){.batch = B}, err));
    assert_int_equal(net_batch_sizes(m, &f.flow.opt).image, 3 * 6 * 6);
    OK(flow_matching_load(&f.flow, &f.batch, err));
    for (int i = 0; i < B; i++) {
        resize_down(f.images + (size_t)i * 3 * 6 * 6, 6, 2, low);
        assert_memory_equal(f.flow.images + (size_t)i * sizeof low, low, sizeof low);
    }
    flow_matching_release(&f.flow);
    weights_release(&w);
    model_free(m);
}

/* ---- latents and captions ---- */

enum { LATENTS = 4 * 6 * 6, PIXELS = 3 * TINY_PIXELS * TINY_PIXELS, TOKENS = 5, WIDTH = 10 };

static struct captioned {
    struct model *m;
    struct weights w;
    struct tiny_encoders e;
    struct flow_matching flow;
    uint8_t images[B * PIXELS];
    int32_t ids[B * TOKENS], lengths[B];
    uint16_t moments[B * 2 * LATENTS];
    struct batch batch;
} c;

static int setup_captions(void **state)
{
    (void)state;
    const struct model_spec spec = tiny_captioned();
    (void)setup(state);
    memset(&c, 0, sizeof c);
    OK(model_new(&spec, &c.m, err));
    OK(weights_init(&c.w, f.dev, c.m, DT_F32, false, err));
    tiny_captions(&spec, 0, B, c.images, c.ids, c.lengths);
    c.batch = (struct batch){.count = B,
                             .images = c.images,
                             .captions = c.ids,
                             .caption_lengths = c.lengths,
                             .seed = 9,
                             .keys = f.keys};
    return 0;
}

static int teardown_captions(void **state)
{
    flow_matching_release(&c.flow);
    weights_release(&c.w);
    model_free(c.m);
    return teardown(state);
}

static void load_captions(double dropout)
{
    const struct net_options opt = {
        .batch = B, .label_dropout = dropout, .encoders = tiny_encoders(&c.e, &c.m->spec, DT_F32)};
    flow_matching_release(&c.flow);
    OK(flow_matching_init(&c.flow, &c.w, &opt, err));
    OK(flow_matching_load(&c.flow, &c.batch, err));
    OK(flow_matching_mix(&c.flow, 0, B, err));
    OK(weights_sync(&c.w, err));
}

static float widened(uint16_t h)
{
    const uint32_t bits = (uint32_t)h << 16;
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

/* x0 = (mean + std noise - shift) scale: the same of moments and of the pictures that they are of,
 * and its noise is not the flow's. */
static void test_posterior(void **state)
{
    (void)state;
    float xt[B * LATENTS];
    double sum = 0, square = 0, product = 0;
    load_captions(0);
    assert_int_equal(c.e.images, B);
    for (int i = 0; i < B; i++) {
        for (int j = 0; j < LATENTS; j++) {
            const uint8_t *image = c.images + (size_t)i * PIXELS;
            const double mean = (double)widened(tiny_moment(image, j));
            const double std = exp(0.5 * (double)widened(tiny_moment(image, LATENTS + j)));
            const double x0 = (double)c.flow.d_x0[i * LATENTS + j];
            const double eps = (double)c.flow.d_eps[i * LATENTS + j];
            const int ch = j / 36;
            const double z = (x0 / (0.5 + ch) + 0.25 * ch - mean) / std;
            sum += z;
            square += z * z;
            product += z * eps;
            assert_true(fabs((double)c.flow.d_target[i * LATENTS + j] - (eps - x0)) < 1e-5);
        }
    }
    const double n = B * LATENTS;
    assert_true(fabs(sum / n) < 0.15 && fabs(square / n - 1) < 0.25 && fabs(product / n) < 0.15);

    memcpy(xt, c.flow.d_xt, sizeof xt);
    for (int i = 0; i < B * 2 * LATENTS; i++)
        c.moments[i] = tiny_moment(c.images + i / (2 * LATENTS) * PIXELS, i % (2 * LATENTS));
    c.batch.images = NULL;
    c.batch.moments = c.moments;
    load_captions(0);
    assert_int_equal(c.e.images, 0);
    assert_memory_equal(c.flow.d_xt, xt, sizeof xt);
}

/* A sample's states are those of its caption or, dropped, of the empty one. */
static void expect_states(int i, const int32_t *ids, int length)
{
    const float *states = c.flow.d_states;
    assert_int_equal(c.flow.lengths[i], length);
    for (int j = 0; j < TOKENS * WIDTH; j++) {
        const int at = j / WIDTH;
        const float want = at < length ? tiny_state(ids[at], at, j % WIDTH) : 0;
        assert_true(states[i * TOKENS * WIDTH + j] == want);
    }
}

static void test_captions(void **state)
{
    (void)state;
    const int32_t null[] = {90, 91};
    int dropped = 0;
    load_captions(0);
    for (int i = 0; i < B; i++)
        expect_states(i, c.ids + (size_t)i * TOKENS, c.lengths[i]);
    load_captions(1);
    for (int i = 0; i < B; i++)
        expect_states(i, null, 2);
    load_captions(0.3); /* of the same samples as labels are */
    load((struct net_options){.label_dropout = 0.3});
    for (int i = 0; i < B; i++) {
        const bool drop = f.flow.labels[i] == CLASSES;
        dropped += drop;
        expect_states(i, drop ? null : c.ids + (size_t)i * TOKENS, drop ? 2 : c.lengths[i]);
    }
    assert_true(dropped > 0 && dropped < B);
    c.batch.captions = NULL;
    load_captions(0);
    for (int i = 0; i < B; i++)
        expect_states(i, null, 2);
}

static void test_refused_captions(void **state)
{
    (void)state;
    struct err err = {0};
    struct net_options opt = {.batch = B};
    assert_int_equal(flow_matching_init(&c.flow, &c.w, &opt, &err), -EINVAL);
    assert_string_equal(err.msg, "a network with captions has no text encoder");
    opt.encoders = tiny_encoders(&c.e, &c.m->spec, DT_BF16);
    assert_int_equal(flow_matching_init(&c.flow, &c.w, &opt, &err), -EINVAL);
    assert_string_equal(err.msg, "a text encoder in bf16 before a network in f32");
    load_captions(0);
    c.lengths[2] = TOKENS + 1;
    assert_int_equal(flow_matching_load(&c.flow, &c.batch, &err), -EINVAL);
    assert_string_equal(err.msg, "the caption of sample 2 has 6 tokens, expected 1 to 5");
    c.lengths[2] = 0;
    assert_int_equal(flow_matching_load(&c.flow, &c.batch, &err), -EINVAL);
    c.lengths[2] = 1;
    c.batch.images = NULL;
    assert_int_equal(flow_matching_load(&c.flow, &c.batch, &err), -EINVAL);
    assert_string_equal(err.msg,
                        "a batch of images without latents, or an encoder that makes them");
}

#define TEST_CAPTIONS(f) cmocka_unit_test_setup_teardown(f, setup_captions, teardown_captions)
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_definition),
        TEST(test_seed_and_key_alone),
        TEST(test_times),
        TEST(test_shift),
        TEST(test_labels),
        TEST(test_labels_of_a_router),
        TEST(test_small_images),
        TEST_CAPTIONS(test_posterior),
        TEST_CAPTIONS(test_captions),
        TEST_CAPTIONS(test_refused_captions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
