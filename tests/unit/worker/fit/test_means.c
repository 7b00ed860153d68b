/* Means over runs of tokens, against the hidden states they are of. */
#include "kernels/device/device.h"
#include "tests/unit/worker/tiny.h"

#include <math.h>
#include <string.h>

#include "worker/fit/means.h"

enum { B = 2, SEQ = 7, C = 12, PATCHES = 9, VALUES = 108 };

static struct fixture {
    struct device *dev;
    struct model *m;
    struct net *n;
    float *flat;
    int32_t tokens[B * (SEQ + 1)], start[B * SEQ], target[B * SEQ], pos[B * SEQ];
    uint8_t images[B * VALUES];
    int32_t labels[B];
    uint64_t keys[B];
    float states[B * PATCHES * C];
    struct net_hidden h;
} f;

static int setup(void **state)
{
    (void)state;
    f = (struct fixture){.keys = {1, 2}};
    OK(device_open("cpu-ref", 1, &f.dev, err));
    for (int i = 0; i < B * (SEQ + 1); i++)
        f.tokens[i] = (i * 7 + i / 3) % 11;
    for (int i = 0; i < B * SEQ; i++) {
        f.pos[i] = i % SEQ;
        f.target[i] = -1;
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    net_free(f.n);
    model_free(f.m);
    mem_free(f.flat);
    device_close(f.dev);
    return 0;
}

/* The network and what it makes of a batch. */
static struct batch open_net(struct model_spec spec)
{
    struct batch b = {.count = B, .seed = 3, .keys = f.keys};
    if (spec.kind == MODEL_LLAMA) {
        b.seq = SEQ;
        b.tokens = f.tokens;
        b.start = f.start;
        b.target = f.target;
        b.pos = f.pos;
    } else {
        tiny_batch(&spec, 0, B, f.images, f.labels);
        b.images = f.images;
        b.labels = f.labels;
    }
    OK(model_new(&spec, &f.m, err));
    f.flat = tiny_weights(f.m, 5);
    OK(net_new(f.dev, f.m, &(struct net_options){NET_FORWARD, NET_F32, B}, &f.n, err));
    OK(weights_set(f.n->weights, f.flat, err));
    OK(net_hidden(f.n, &b, &f.h, err));
    assert_true(f.h.C == C && f.h.T <= PATCHES);
    memcpy(f.states, f.h.x, sizeof *f.states * B * (size_t)f.h.T * C);
    return b;
}

/* got (C) = the mean of a sample's states [begin, end). */
static void is_mean(const float *got, int sample, int begin, int end)
{
    double size = 0;
    for (int c = 0; c < C; c++) {
        double mean = 0;
        for (int t = begin; t < end; t++)
            mean += (double)f.states[(sample * f.h.T + t) * C + c] / (end - begin);
        assert_true(fabs(mean - (double)got[c]) < 1e-5);
        size += fabs(mean);
    }
    assert_true(size > 1e-3); /* a test that sees nothing proves nothing */
}

/* Seven tokens in chunks of three: two, a short one, and one that is past the end. */
static void test_chunks(void **state)
{
    (void)state;
    enum { CHUNK = 3, CHUNKS = 4 };
    float head[B * C], chunks[B * CHUNKS * C];
    const struct batch b = open_net(tiny_llama());
    assert_int_equal(f.h.T, SEQ);
    memset(chunks, 0xff, sizeof chunks);
    OK(means_of(f.n, &b,
                &(struct means){.chunk = CHUNK, .n_chunks = CHUNKS, .head = head, .chunks = chunks},
                err));
    for (int i = 0; i < B; i++) {
        is_mean(head + i * C, i, 0, SEQ); /* first 0: all */
        for (int k = 0; k < CHUNKS - 1; k++)
            is_mean(chunks + (i * CHUNKS + k) * C, i, k * CHUNK,
                    (k + 1) * CHUNK < SEQ ? (k + 1) * CHUNK : SEQ);
        for (int c = 0; c < C; c++)
            assert_true(chunks[(i * CHUNKS + CHUNKS - 1) * C + c] == 0);
    }
}

/* Without chunks only the first tokens are read: what is no token later is never seen. */
static void test_only_the_first_tokens(void **state)
{
    (void)state;
    struct err e = {0};
    float head[B * C], chunks[B * C];
    const uint32_t lengths[B] = {SEQ, 2};
    const struct batch b = open_net(tiny_llama());
    for (int i = 0; i < B; i++)
        f.tokens[i * (SEQ + 1) + 5] = 1000;
    struct means m = {.lengths = lengths, .first = 4, .head = head};
    OK(means_of(f.n, &b, &m, err));
    is_mean(head, 0, 0, 4);
    is_mean(head + C, 1, 0, 2); /* all of a shorter text */
    m.chunks = chunks;
    m.chunk = m.n_chunks = 1;
    assert_true(means_of(f.n, &b, &m, &e) < 0);
}

/* More than there are: all. */
static void test_first_past_the_end(void **state)
{
    (void)state;
    float head[B * C];
    const struct batch b = open_net(tiny_llama());
    OK(means_of(f.n, &b, &(struct means){.first = 100, .head = head}, err));
    for (int i = 0; i < B; i++)
        is_mean(head + i * C, i, 0, SEQ);
}

static void test_images(void **state)
{
    (void)state;
    float head[B * C];
    const struct batch b = open_net(tiny_spec());
    assert_int_equal(f.h.T, PATCHES);
    OK(means_of(f.n, &b, &(struct means){.head = head}, err));
    for (int i = 0; i < B; i++)
        is_mean(head + i * C, i, 0, PATCHES);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_chunks),
        TEST(test_only_the_first_tokens),
        TEST(test_first_past_the_end),
        TEST(test_images),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
