/* Networks in two parts with two micro-batches in flight, by hand: the losses and gradients of
 * some steps are those of the whole network on one micro-batch after the other, to the bit. */
#include "tests/unit/worker/tiny_encoders.h"

#include <errno.h>
#include <string.h>

#include "kernels/device/device.h"
#include "worker/net/net.h"

enum { SAMPLES = 5, MICRO = 3, STEPS = 3, SEQ = 8, VOCAB = 11, VALUES = 3 * 6 * 6 };

/* Two micro-batches of 3 and 2. */
static const struct net_micro micros[2] = {{0, MICRO, true, true},
                                           {MICRO, SAMPLES - MICRO, false, true}};

struct samples {
    uint8_t images[SAMPLES * VALUES];
    int32_t labels[SAMPLES];
    uint64_t keys[SAMPLES];
    int32_t tokens[SAMPLES * (SEQ + 1)], start[SAMPLES * SEQ], target[SAMPLES * SEQ];
    int32_t pos[SAMPLES * SEQ];
    uint8_t pixels[SAMPLES * 3 * TINY_PIXELS * TINY_PIXELS];
    int32_t captions[SAMPLES * 5], lengths[SAMPLES];
};

static struct batch draw(struct samples *s, const struct model_spec *of, uint64_t step)
{
    const struct model_spec spec = tiny_spec();
    const bool text = model_is_text(of);
    tiny_batch(&spec, step * SAMPLES, SAMPLES, s->images, s->labels);
    for (unsigned i = 0; i < SAMPLES; i++)
        s->keys[i] = rng_mix(step, i);
    for (unsigned i = 0; i < SAMPLES * (SEQ + 1); i++)
        s->tokens[i] = (int32_t)(rng_at_u32(7, step, i) % VOCAB);
    for (unsigned i = 0; i < SAMPLES * SEQ; i++) {
        s->start[i] = (int)(i % SEQ) >= 3 ? 3 : 0;
        s->pos[i] = (int)(i % SEQ) - s->start[i];
        s->target[i] = i % 5 == 0 ? -1 : s->tokens[i / SEQ + i + 1];
    }
    if (text)
        return (struct batch){.count = SAMPLES,
                              .seq = SEQ,
                              .tokens = s->tokens,
                              .start = s->start,
                              .target = s->target,
                              .pos = s->pos};
    if (of->channels == 4) { /* latents */
        const struct model_spec captioned = tiny_captioned();
        tiny_captions(&captioned, step * SAMPLES, SAMPLES, s->pixels, s->captions, s->lengths);
        return (struct batch){.count = SAMPLES,
                              .images = s->pixels,
                              .captions = s->captions,
                              .caption_lengths = s->lengths,
                              .labels = s->labels,
                              .partitions = s->labels,
                              .seed = 9,
                              .keys = s->keys};
    }
    return (struct batch){.count = SAMPLES,
                          .images = s->images,
                          .labels = s->labels,
                          .partitions = s->labels,
                          .seed = 9,
                          .keys = s->keys};
}

static void whole(struct net *n)
{
    for (int i = 0; i < 2; i++) {
        OK(net_forward(n, NULL, 0, &micros[i], err));
        OK(net_backward(n, NULL, 0, err));
    }
}

/* What a pipeline of two stages queues: "F01" is the forward of part 0 in slot 1, "W" and a slot
 * what the backwards in slot 1 have left. */
static void in_parts(struct net *n, const char *schedule)
{
    const int depth = net_model(n)->spec.depth;
    const struct model_part parts[2] = {{0, 1}, {1, depth}};
    for (const char *p = schedule; *p; p += 3) {
        const struct model_part *part = &parts[p[1] == '1'];
        const int slot = p[2] - '0';
        if (*p == 'W') {
            assert_true(n->later[slot].n > 0);
            OK(net_weights(n, slot, err));
            assert_int_equal(n->later[slot].n, 0);
        } else if (*p == 'F')
            OK(net_forward(n, part, slot, &micros[slot], err));
        else
            OK(net_backward(n, part, slot, err));
    }
}

struct trained {
    float losses[STEPS][SAMPLES * SEQ];
    float *g, *w;
};

/* Plain gradient descent; the CPU's memory is the host's.  schedule NULL: whole. */
static struct trained train(struct device *dev, const struct model *m, struct net_options opt,
                            const char *schedule)
{
    struct net *n = NULL;
    struct samples s;
    struct trained r = {.g = model_flat_new(m), .w = tiny_weights(m, 5)};
    struct tiny_encoders e;
    if (m->spec.channels == 4)
        opt.encoders = tiny_encoders(&e, &m->spec, net_dtype(dev, opt.precision));
    opt.slots = schedule ? 2 : 0;
    opt.split = schedule && strchr(schedule, 'W');
    OK(net_new(dev, m, &opt, &n, err));
    OK(weights_set(n->weights, r.w, err));
    for (uint64_t step = 0; step < STEPS; step++) {
        const struct batch b = draw(&s, &m->spec, step);
        OK(net_load(n, &b, 0.1f, err));
        if (schedule)
            in_parts(n, schedule);
        else
            whole(n);
        OK(weights_sync(n->weights, err));
        memcpy(r.losses[step], n->d_losses, SAMPLES * batch_losses(&b) * sizeof(float));
        for (uint64_t i = 0; i < m->flat; i++)
            n->weights->w[i] -= 0.1f * n->weights->g[i];
        OK(weights_changed(n->weights, err));
    }
    memcpy(r.g, n->weights->g, m->flat * sizeof(float));
    memcpy(r.w, n->weights->w, m->flat * sizeof(float));
    net_free(n);
    return r;
}

/* A tied head adds to the embedding's gradient, as the first part does: there only the order of
 * the whole network gives its bits. */
static void compare(struct model_spec spec)
{
    static const char *const schedules[] = {
        "F00F10B10B00F01F11B11B01", /* one after the other */
        "F00F01F10B10F11B00B11B01", /* one forward, one backward */
        "F00F01F10F11B10B11B00B01", /* all forwards first */
        "F00F10B10B00W_0F01F11B11B01W_1", "F00F01F10B10F11B00B11W_0B01W_1",
        "F00F01F10F11B10B11B00B01W_0W_1",
    };
    struct device *dev = NULL;
    struct model *m = NULL;
    OK(device_open("cpu-ref", 1, &dev, err));
    OK(model_new(&spec, &m, err));
    const size_t bytes = m->flat * sizeof(float);
    for (int kind = 0; kind < 4; kind++) {
        const struct net_options opt = {.mode = kind & 1 ? NET_RECOMPUTE : NET_TRAIN,
                                        .precision = kind & 2 ? NET_BF16 : NET_F32,
                                        .batch = MICRO,
                                        .load = SAMPLES,
                                        .label_dropout = 0.3};
        struct trained want = train(dev, m, opt, NULL);
        assert_true(want.losses[0][1] > 0);
        for (size_t i = 0; i < (spec.tied ? 1 : sizeof schedules / sizeof *schedules); i++) {
            const bool split = strchr(schedules[i], 'W');
            if (split && (spec.kind == MODEL_ROUTER || opt.mode == NET_RECOMPUTE))
                continue;
            struct trained got = train(dev, m, opt, schedules[i]);
            assert_memory_equal(got.losses, want.losses, sizeof want.losses);
            assert_memory_equal(got.g, want.g, bytes);
            assert_memory_equal(got.w, want.w, bytes);
            mem_free(got.g);
            mem_free(got.w);
        }
        mem_free(want.g);
        mem_free(want.w);
    }
    model_free(m);
    device_close(dev);
}

static void test_dit(void **state)
{
    (void)state;
    compare(tiny_spec());
}

static void test_captions(void **state)
{
    (void)state;
    compare(tiny_captioned());
}

/* A router that reads latents, and a DiT of latents that is told labels. */
static void test_latents(void **state)
{
    struct model_spec dit = tiny_spec(), router = tiny_router();
    (void)state;
    dit.channels = router.channels = 4;
    compare(dit);
    compare(router);
}

static void test_router(void **state)
{
    (void)state;
    compare(tiny_router());
}

static void test_llama(void **state)
{
    struct model_spec tied = tiny_llama();
    (void)state;
    tied.tied = true;
    compare(tiny_llama());
    compare(tiny_qwen());
    compare(tiny_qwen3());
    compare(tied);
}

static void test_refusals(void **state)
{
    struct err e = {0};
    struct device *dev = NULL;
    struct model *m = NULL;
    struct net *n = NULL;
    struct samples s;
    const struct model_spec spec = tiny_spec();
    const struct batch b = draw(&s, &spec, 0);
    struct net_options opt = {NET_TRAIN, NET_F32, SAMPLES, .slots = 2};
    struct net_micro micro = {0, 1, true, false};
    (void)state;
    OK(device_open("cpu-ref", 1, &dev, err));
    OK(model_new(&spec, &m, err));
    OK(net_new(dev, m, &opt, &n, err));
    OK(net_load(n, &b, 1, err));
    assert_int_equal(net_forward(n, &(struct model_part){1, 1}, 0, &micro, &e), -EINVAL);
    assert_int_equal(net_forward(n, &(struct model_part){0, 4}, 0, &micro, &e), -EINVAL);
    assert_string_equal(e.msg, "blocks 0 to 4 of a network of blocks 0 to 3");
    assert_int_equal(net_forward(n, NULL, 2, &micro, &e), -EINVAL);
    assert_string_equal(e.msg, "slot 2 in a network made for 2");
    OK(net_forward(n, NULL, 1, &micro, err));
    assert_int_equal(net_backward(n, NULL, 1, &e), -EINVAL);
    micro.from = SAMPLES;
    assert_int_equal(net_forward(n, NULL, 1, &micro, &e), -EINVAL);
    net_free(n);
    opt.slots = NET_SLOTS_MAX + 1;
    assert_int_equal(net_new(dev, m, &opt, &n, &e), -EINVAL);
    model_free(m);
    device_close(dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dit),     cmocka_unit_test(test_captions),
        cmocka_unit_test(test_latents), cmocka_unit_test(test_router),
        cmocka_unit_test(test_llama),   cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
