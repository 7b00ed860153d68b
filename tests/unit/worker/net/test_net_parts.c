/* Networks whose parts lie on several devices: losses and velocities are those of the whole
 * network, to the bit. */
#include "tests/unit/worker/tiny_encoders.h"

#include <errno.h>
#include <string.h>

#include "kernels/device/device.h"
#include "worker/net/dit_rows.h"
#include "worker/net/image_net.h"
#include "worker/net/net_parts.h"

enum { DEVICES = 3, SAMPLES = 5, SEQ = 8, ROWS = 6, VALUES = 4 * 16 * 16 };

static struct device *devs[DEVICES];

static int open_devices(void **state)
{
    for (int i = 0; i < DEVICES; i++)
        OK(device_open("cpu", 1, &devs[i], err));
    return 0;
}

static int close_devices(void **state)
{
    for (int i = 0; i < DEVICES; i++)
        device_close(devs[i]);
    return 0;
}

struct samples {
    uint8_t images[SAMPLES * 3 * 6 * 6], pixels[SAMPLES * 3 * TINY_PIXELS * TINY_PIXELS];
    int32_t labels[SAMPLES], captions[SAMPLES * 5], lengths[SAMPLES];
    uint64_t keys[SAMPLES];
    int32_t tokens[SAMPLES * (SEQ + 1)], start[SAMPLES * SEQ], target[SAMPLES * SEQ];
    int32_t pos[SAMPLES * SEQ];
};

static struct batch draw(struct samples *s, const struct model_spec *spec)
{
    struct batch b = {.count = SAMPLES, .seed = 9, .keys = s->keys};
    for (unsigned i = 0; i < SAMPLES; i++)
        s->keys[i] = i + 1;
    if (model_captioned(spec)) {
        tiny_captions(spec, 0, SAMPLES, s->pixels, s->captions, s->lengths);
        b.images = s->pixels;
        b.captions = s->captions;
        b.caption_lengths = s->lengths;
    } else if (spec->kind != MODEL_LLAMA) {
        tiny_batch(spec, 0, SAMPLES, s->images, s->labels);
        b.images = s->images;
        b.labels = s->labels;
    } else {
        for (unsigned i = 0; i < SAMPLES * (SEQ + 1); i++)
            s->tokens[i] = (int32_t)(rng_at_u32(3, 1, i) % (uint32_t)spec->vocab);
        for (unsigned i = 0; i < SAMPLES * SEQ; i++) {
            s->target[i] = i % 5 == 0 ? -1 : s->tokens[i / SEQ + i + 1];
            s->pos[i] = (int32_t)(i % SEQ);
        }
        b = (struct batch){.count = SAMPLES,
                           .seq = SEQ,
                           .tokens = s->tokens,
                           .start = s->start,
                           .target = s->target,
                           .pos = s->pos};
    }
    return b;
}

struct side {
    struct net *net;
    float losses[SAMPLES * SEQ], v[ROWS * VALUES];
};

/* The velocities of a few rows, more than the network takes at once. */
static void velocities(struct side *s, const struct model *m, const struct net_captions *captions)
{
    static const float t[ROWS] = {0.9f, 0.9f, 0.1f, 0.4f, 0.5f, 1.0f};
    static const int32_t labels[ROWS] = {0, 1, 1, 0, 1, 0};
    float x[ROWS * VALUES];
    struct dit_rows rows;
    for (int i = 0; i < ROWS * VALUES; i++)
        x[i] = (float)(i % 17) / 8.0f - 1.0f;
    OK(dit_rows_open_net(&rows, s->net, err));
    if (captions)
        dit_rows_captions(&rows, captions);
    const struct dit_rows_in in = {.x = x, .t = t, .labels = labels};
    OK(dit_rows_run(&rows, s->v, &in, ROWS, err));
    dit_rows_close(&rows);
    assert_true(model_image_values(&m->spec) <= VALUES);
}

static void compare(const struct model_spec *spec, enum net_precision precision)
{
    const bool told = model_captioned(spec);
    struct samples x = {0};
    struct side *sides = mem_alloc_array(2, sizeof *sides);
    struct tiny_encoders encoders[DEVICES];
    struct net_encoders tables[DEVICES];
    struct model *m = NULL;
    OK(model_new(spec, &m, err));
    float *flat = tiny_weights(m, 21);
    struct net_options opt = {.mode = NET_FORWARD, .precision = precision, .batch = SAMPLES};
    for (int i = 0; i < DEVICES && told; i++)
        tables[i] = *tiny_encoders(&encoders[i], spec, net_dtype(devs[0], precision));
    opt.encoders = told ? tables : NULL;
    OK(net_new(devs[0], m, &opt, &sides[0].net, err));
    OK(net_parts_new(devs, DEVICES, m, &opt, &sides[1].net, err));
    assert_null(net_parts_first(sides[0].net));
    assert_non_null(net_parts_first(sides[1].net));
    const size_t C = (size_t)spec->caption_tokens * (size_t)spec->caption;
    float *states = mem_alloc_array(2 * C + 1, sizeof *states); /* zeros in either type */
    const struct net_captions captions = {2, states, (int32_t[]){1, spec->caption_tokens}};
    for (int k = 0; k < 2; k++) {
        struct net_result r = {.losses = sides[k].losses};
        const struct batch b = draw(&x, spec);
        OK(net_set(sides[k].net, flat, err));
        for (int again = 0; again < 2; again++)
            OK(net_loss(sides[k].net, &b, false, 0, false, &r, err));
        if (spec->kind == MODEL_DIT)
            velocities(&sides[k], m, told ? &captions : NULL);
    }
    assert_true(sides[0].losses[1] > 0);
    assert_memory_equal(sides[0].losses, sides[1].losses, sizeof sides[0].losses);
    assert_memory_equal(sides[0].v, sides[1].v, sizeof sides[0].v);
    for (int k = 0; k < 2; k++)
        net_free(sides[k].net);
    model_free(m);
    mem_free(states);
    mem_free(flat);
    mem_free(sides);
}

static void test_bits(void **state)
{
    struct model_spec specs[] = {tiny_spec(), tiny_captioned(), tiny_llama(), tiny_qwen(),
                                 tiny_qwen3()};
    for (int depth = 2; depth <= 5; depth += 3) /* of two blocks the third device has none */
        for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
            specs[i].depth = depth;
            compare(&specs[i], NET_F32);
            compare(&specs[i], NET_BF16);
        }
}

static void test_refused(void **state)
{
    const struct net_options opt = {.mode = NET_FORWARD, .batch = SAMPLES};
    struct model_spec spec = tiny_spec(), tied = tiny_llama();
    struct net *net = NULL;
    struct net_hidden hidden;
    struct model *m = NULL;
    struct err e = {0};
    struct samples x = {0};
    tied.tied = true;
    OK(model_new(&tied, &m, err));
    assert_int_equal(net_parts_new(devs, 2, m, &opt, &net, &e), -EINVAL);
    assert_non_null(strstr(e.msg, "cannot be cut"));
    model_free(m);
    OK(model_new(&spec, &m, err));
    OK(net_parts_new(devs, 2, m, &opt, &net, err));
    const struct batch b = draw(&x, &spec);
    assert_int_equal(net_hidden(net, &b, &hidden, &e), -ERR_UNIMPLEMENTED);
    assert_non_null(strstr(e.msg, "one must hold it whole"));
    net_free(net);
    model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bits),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
