/* Whole training steps on the emulated card: near those of the reference, and of the same bits
 * whether they run operation by operation or as graphs. */
#include "kernels/device/device.h"
#include "tests/unit/components.h"
#include "tests/unit/worker/tiny_encoders.h"
#include "worker/frozen/frozen.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/emulate/record.h"

enum { STEPS = 4, SKIPPED = 2, MAX = 3, SEQ = 8 };

struct report {
    double loss[STEPS], norm[STEPS];
    float *weights;
};

/* Takes a step whose weights are no numbers: it is skipped, and leaves them and the moments. */
static void diverge(struct trainer *t, const struct batch *b, struct step_result *ret)
{
    const struct model_tensor *tensor = &trainer_model(t)->tensors[2];
    float *kept = mem_alloc_array(2 * tensor->count, sizeof *kept), *bad = kept + tensor->count;
    OK(trainer_read(t, TRAINER_WEIGHTS, tensor, kept, err));
    for (uint64_t i = 0; i < tensor->count; i++)
        bad[i] = NAN;
    OK(trainer_write(t, TRAINER_WEIGHTS, tensor, bad, err));
    OK(trainer_written(t, err));
    OK(trainer_step(t, b, ret, err));
    assert_true(ret->skipped);
    OK(trainer_write(t, TRAINER_WEIGHTS, tensor, kept, err));
    OK(trainer_written(t, err));
    mem_free(kept);
}

static struct report train(const char *device, const struct model *m, struct train_options *o)
{
    static uint8_t pixels[MAX * 3 * TINY_PIXELS * TINY_PIXELS];
    struct device *dev;
    struct trainer *t;
    struct report r = {.weights = tiny_weights(m, 21)};
    uint8_t images[MAX * 3 * 6 * 6];
    int32_t labels[MAX], tokens[MAX * (SEQ + 1)], start[MAX * SEQ], target[MAX * SEQ];
    int32_t pos[MAX * SEQ], captions[MAX * 5], lengths[MAX];
    struct tiny_encoders e;
    OK(device_open(device, 1, &dev, err));
    if (model_captioned(&m->spec))
        o->encoders = tiny_encoders(&e, &m->spec, net_dtype(dev, o->precision));
    OK(trainer_make(dev, m, o, &t, err));
    OK(trainer_set(t, r.weights, err));
    for (unsigned step = 0; step < STEPS; step++) {
        struct step_result got;
        for (unsigned i = 0; i < sizeof images; i++)
            images[i] = (uint8_t)rng_at_u32(5, step, i);
        for (unsigned i = 0; i < MAX; i++)
            labels[i] = (int32_t)(rng_at_u32(6, step, i) % 3);
        for (unsigned i = 0; i < MAX * (SEQ + 1); i++)
            tokens[i] = (int32_t)(rng_at_u32(7, step, i) % 11);
        for (unsigned i = 0; i < MAX * SEQ; i++) {
            start[i] = (int)(i % SEQ) >= 3 ? 3 : 0;
            pos[i] = (int)(i % SEQ) - start[i];
            target[i] = i % 5 == 0 ? -1 : tokens[i / SEQ + i + 1];
        }
        struct batch b = model_is_text(&m->spec) ? (struct batch){.count = MAX,
                                                                  .seq = SEQ,
                                                                  .tokens = tokens,
                                                                  .start = start,
                                                                  .target = target,
                                                                  .pos = pos}
                                                 : (struct batch){
                                                       .count = MAX,
                                                       .images = images,
                                                       .labels = labels,
                                                       .partitions = labels,
                                                   };
        if (model_captioned(&m->spec)) {
            tiny_captions(&m->spec, step * MAX, MAX, pixels, captions, lengths);
            b = (struct batch){
                .count = MAX, .images = pixels, .captions = captions, .caption_lengths = lengths};
        }
        if (step == SKIPPED)
            diverge(t, &b, &got);
        else
            OK(trainer_step(t, &b, &got, err));
        r.loss[step] = got.skipped ? 0 : got.loss;
        r.norm[step] = got.skipped ? 0 : got.grad_norm;
    }
    OK(trainer_get(t, r.weights, err));
    trainer_free(t);
    device_close(dev);
    return r;
}

static void compare(struct model_spec spec, int accumulate, enum net_precision precision)
{
    struct model *m;
    struct train_options o = tiny_options();
    o.batch = MAX;
    o.accumulate = accumulate;
    o.precision = precision;
    o.weight_decay = 0.1;
    const double near = precision == NET_BF16 ? 3e-2 : 1e-5;
    OK(model_new(&spec, &m, err));
    struct report want = train("cpu-ref", m, &o);
    setenv("SKERRY_CUDA_GRAPHS", "0", 1);
    const int before = emu_launches();
    struct report plain = train("cuda:0", m, &o);
    assert_int_equal(emu_launches(), before);
    unsetenv("SKERRY_CUDA_GRAPHS");
    struct report graphs = train("cuda:0", m, &o);
    assert_int_equal(emu_launches(), before + STEPS - 1);
    for (int i = 0; i < STEPS; i++) {
        if (!(fabs(plain.loss[i] - want.loss[i]) <= near * want.loss[i]) ||
            !(fabs(plain.norm[i] - want.norm[i]) <= 10 * near * want.norm[i]))
            fail_msg("step %d: loss %g, expected %g; norm %g, expected %g", i, plain.loss[i],
                     want.loss[i], plain.norm[i], want.norm[i]);
    }
    assert_memory_equal(plain.loss, graphs.loss, sizeof plain.loss);
    assert_memory_equal(plain.norm, graphs.norm, sizeof plain.norm);
    assert_memory_equal(plain.weights, graphs.weights, m->flat * sizeof(float));
    mem_free(want.weights);
    mem_free(plain.weights);
    mem_free(graphs.weights);
    model_free(m);
}

static void test_images(void **state)
{
    compare(tiny_spec(), 1, NET_F32);
    compare(tiny_spec(), 2, NET_BF16);
}

/* Works of the forward and backward of a step's first micro-batch, or of another one, in bf16 and
 * of sizes that the card's libraries take whole. */
static int works_of(int depth, bool first)
{
    const struct net_options opt = {.mode = NET_TRAIN, .precision = NET_BF16, .batch = 1};
    static const uint8_t image[3 * 32 * 32];
    const int32_t label = 0;
    const uint64_t key = 1;
    const struct batch b = {.count = 1, .images = image, .labels = &label, .keys = &key};
    const struct net_micro micro = {.count = 1, .first = first, .backward = true};
    struct model_spec spec = tiny_spec();
    struct device *dev;
    struct model *m;
    struct net *net;
    struct graph *g = NULL;
    spec.depth = depth;
    spec.image = 32;
    spec.dim = 64;
    spec.heads = 1;
    spec.mlp = 4 * spec.dim;
    OK(device_open("cuda:0", 1, &dev, err));
    OK(model_new(&spec, &m, err));
    OK(net_new(dev, m, &opt, &net, err));
    float *flat = tiny_weights(m, 21);
    OK(weights_set(net->weights, flat, err));
    for (int recorded = 0; recorded < 2; recorded++) { /* first each product settles its way */
        OK(net_load(net, &b, 1, err));
        if (recorded)
            OK(dev->ops->graph_begin(dev, net->weights->stream, err));
        OK(net_forward(net, NULL, 0, &micro, err));
        OK(net_backward(net, NULL, 0, err));
    }
    OK(dev->ops->graph_end(dev, net->weights->stream, &g, err));
    OK(dev->ops->graph_launch(dev, g, net->weights->stream));
    OK(weights_sync(net->weights, err));
    dev->ops->graph_free(dev, g);
    net_free(net);
    mem_free(flat);
    model_free(m);
    device_close(dev);
    return emu_works();
}

static int works_per_block(bool first)
{
    return works_of(3, first) - works_of(2, first);
}

/* Of the way of each product that has the fewest; a call of cuDNN counts as one. */
static void test_works_per_block(void **state)
{
    setenv("SKERRY_TUNE", "0", 1);
    const int once = works_per_block(true), again = works_per_block(false);
    setenv("SKERRY_SDPA", "own", 1);
    const int own = works_per_block(true);
    unsetenv("SKERRY_SDPA");
    unsetenv("SKERRY_TUNE");
    printf("[kernels_per_block] %d, in each other micro-batch %d, with our own attention %d\n",
           once, again, own);
    assert_in_range(once, 1, 24);
    assert_true(own > once); /* else cuDNN was not asked */
}

static void test_captions(void **state)
{
    compare(tiny_captioned(), 1, NET_F32);
    compare(tiny_captioned(), 2, NET_BF16);
}

static void test_router(void **state)
{
    compare(tiny_router(), 1, NET_F32);
}

static void test_texts(void **state)
{
    compare(tiny_llama(), 2, NET_F32);
    compare(tiny_llama(), 1, NET_BF16);
    compare(tiny_qwen(), 2, NET_BF16);
    compare(tiny_qwen3(), 2, NET_BF16);
}

/* What a product needs is settled when it first runs; within a recording it cannot be. */
static void test_new_product(void **state)
{
    struct err e = {0};
    struct device *dev;
    struct graph *g = NULL;
    float a[6] = {1, 2, 3, 4, 5, 6}, b[3] = {1, -1, 2}, c[2] = {0, 0};
    const struct matmul mm = {
        .layout = MM_NN, .m = 2, .n = 1, .k = 3, .c = c, .a = a, .b = b, .dt = DT_F32};
    OK(device_open("cuda:0", 1, &dev, err));
    OK(dev->ops->graph_begin(dev, NULL, err));
    assert_int_equal(dev->ops->matmul(dev, &mm, NULL), -EBUSY);
    assert_int_equal(dev->ops->graph_end(dev, NULL, &g, &e), -EBUSY);
    assert_null(g);
    OK(dev->ops->matmul(dev, &mm, NULL));
    OK(dev->ops->sync(dev, NULL, err));
    assert_true(c[0] == 5 && c[1] == 11);
    OK(dev->ops->graph_begin(dev, NULL, err));
    OK(dev->ops->matmul(dev, &mm, NULL));
    OK(dev->ops->graph_end(dev, NULL, &g, err));
    c[0] = c[1] = 0;
    OK(dev->ops->graph_launch(dev, g, NULL));
    OK(dev->ops->sync(dev, NULL, err));
    assert_true(c[0] == 5 && c[1] == 11);
    dev->ops->graph_free(dev, g);
    device_close(dev);
}

/* States of texts by a CLIP; pass: as in frozen_options. */
static void encode(struct device *dev, const struct component *c, enum dtype dt, int pass,
                   float out[MAX * 5 * 24])
{
    static const int32_t ids[MAX * 5] = {1, 4, 2, 8, 5, 7, 1, 4, 2, 8, 5, 7, 0, 9, 3};
    static const int32_t lengths[MAX] = {5, 2, 3};
    struct frozen_options opt = {
        .part = FROZEN_TEXT, .dt = dt, .group = 2, .tokens = 5, .layer = -1, .pass = pass};
    struct frozen_io io = {.in = ids, .lengths = lengths};
    struct frozen_host *host = NULL;
    struct frozen *f;
    if (pass)
        OK(frozen_host_new(dev, c, &opt, &host, err));
    opt.host = host;
    OK(frozen_open(dev, c, &opt, &f, err));
    const size_t bytes = MAX * frozen_out_bytes(f);
    OK(dev->ops->alloc(dev, bytes, &io.out, err));
    for (int i = 0; i < 2; i++)
        OK(frozen_run(f, &io, MAX, err));
    OK(dev->ops->copy(dev, out, io.out, bytes, COPY_FROM_DEVICE, NULL));
    OK(dev->ops->sync(dev, NULL, err));
    dev->ops->free(dev, io.out);
    frozen_close(f);
    frozen_host_free(host);
}

/* Weights that stay in the host's memory give the bits of those on the card. */
static void test_streamed(void **state)
{
    static const char config[] =
        "{\"architectures\": [\"CLIPTextModel\"], \"vocab_size\": 50, \"hidden_size\": 24,"
        " \"num_hidden_layers\": 3, \"num_attention_heads\": 2, \"intermediate_size\": 40,"
        " \"max_position_embeddings\": 9}";
    float card[MAX * 5 * 24] = {0}, streamed[MAX * 5 * 24];
    struct component *c;
    struct device *dev;
    char *folder = scratch_new();
    component_write_text(folder, "config.json", config);
    component_write_weights(folder, config, "model.safetensors", (struct made){0});
    OK(component_open(folder, COMPONENT_ANY, &c, err));
    OK(device_open("cuda:0", 1, &dev, err));
    for (int i = 0; i < 4; i++) {
        const enum dtype dt = i % 2 ? DT_BF16 : DT_F32;
        memset(streamed, 0, sizeof streamed);
        encode(dev, c, dt, 0, card);
        encode(dev, c, dt, i < 2 ? 2 : MAX, streamed);
        assert_memory_equal(streamed, card, MAX * 5 * 24 * dtype_bytes(dt));
    }
    component_close(c);
    device_close(dev);
    scratch_free(folder);
}

/* NAME: that function alone. */
int main(int argc, char **argv)
{
    cmocka_set_test_filter(argc > 1 ? argv[1] : NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_new_product), cmocka_unit_test(test_images),
        cmocka_unit_test(test_captions),    cmocka_unit_test(test_router),
        cmocka_unit_test(test_texts),       cmocka_unit_test(test_works_per_block),
        cmocka_unit_test(test_streamed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
