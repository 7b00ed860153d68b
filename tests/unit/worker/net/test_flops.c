/* Model FLOPs against what the networks ask of a device, and against figures in print. */
#include <math.h>
#include <string.h>

#include "tests/unit/worker/tiny_encoders.h"

#include "kernels/device/device.h"
#include "worker/net/flops.h"

enum { COUNT = 3, SEQ = 8 };

/* A device that counts the products and the attention that it is asked for. */
struct counter {
    struct device *cpu, dev;
    struct kernel_ops ops;
};
static struct counter counter;
static double products, attention;

static int count_matmul(struct device *dev, const struct matmul *mm, struct stream *s)
{
    products += 2.0 * (double)mm->m * (double)mm->n * (double)mm->k;
    return counter.cpu->ops->matmul(dev, mm, s);
}

static int count_attention(struct device *dev, const struct attention_fwd *p, struct stream *s)
{
    attention += 4.0 * p->B * p->H * p->T * (p->q ? p->Tk : p->T) *
                 p->D; /* scores, and their mean of values */
    return counter.cpu->ops->attention_fwd(dev, p, s);
}

static int setup(void **state)
{
    OK(device_open("cpu-ref", 1, &counter.cpu, err));
    counter.dev = *counter.cpu;
    counter.ops = *counter.cpu->ops;
    counter.ops.matmul = count_matmul;
    counter.ops.attention_fwd = count_attention;
    counter.dev.ops = &counter.ops;
    return 0;
}

static int teardown(void **state)
{
    device_close(counter.cpu);
    return 0;
}

struct input {
    uint8_t images[COUNT * 3 * 6 * 6];
    int32_t labels[COUNT], tokens[COUNT * (SEQ + 1)];
    int32_t start[COUNT * SEQ], target[COUNT * SEQ], pos[COUNT * SEQ];
    uint64_t keys[COUNT];
    uint8_t pixels[COUNT * 3 * TINY_PIXELS * TINY_PIXELS];
    int32_t captions[COUNT * 5], lengths[COUNT];
    struct batch batch;
};

static void fill(struct input *in, const struct model_spec *s)
{
    memset(in, 0, sizeof *in);
    in->batch = (struct batch){.count = COUNT, .keys = in->keys};
    if (model_captioned(s)) {
        tiny_captions(s, 0, COUNT, in->pixels, in->captions, in->lengths);
        in->batch.images = in->pixels;
        in->batch.captions = in->captions;
        in->batch.caption_lengths = in->lengths;
        return;
    }
    if (s->kind != MODEL_LLAMA) {
        tiny_batch(s, 0, COUNT, in->images, in->labels);
        in->batch.images = in->images;
        in->batch.labels = s->kind == MODEL_DIT ? in->labels : NULL;
        in->batch.partitions = in->labels;
        return;
    }
    for (int i = 0; i < COUNT * SEQ; i++)
        in->pos[i] = i % SEQ; /* one text a row */
    in->batch.seq = SEQ;
    in->batch.tokens = in->tokens;
    in->batch.start = in->start;
    in->batch.target = in->target;
    in->batch.pos = in->pos;
}

/* Runs a batch; products and attention say what was asked of the device. */
static void run(const struct model *m, const struct batch *b, bool backward)
{
    struct tiny_encoders e;
    struct net_options opt = {
        .mode = backward ? NET_TRAIN : NET_FORWARD, .precision = NET_F32, .batch = COUNT};
    if (model_captioned(&m->spec))
        opt.encoders = tiny_encoders(&e, &m->spec, DT_F32);
    struct net_result none = {0};
    struct net *n;
    float *flat = tiny_weights(m, 5);
    OK(net_new(&counter.dev, m, &opt, &n, err));
    OK(weights_set(n->weights, flat, err));
    products = attention = 0;
    OK(net_loss(n, b, true, 1.0f, backward, &none, err));
    net_free(n);
    mem_free(flat);
}

/* The forward to the last product; the backward is twice that, less the gradients of what
 * nobody asks for: `spared`, of the network's inputs. */
static void as_computed(const struct model_spec *s, double spared)
{
    struct input in;
    struct model *m;
    OK(model_new(s, &m, err));
    fill(&in, s);
    run(m, &in.batch, false);
    const double forward = products;
    assert_true(products > 0 && attention > 0);
    assert_true(products + attention == flops_forward(m, COUNT, SEQ));
    assert_true(flops_step(m, &in.batch) == 3 * (products + attention));
    run(m, &in.batch, true);
    assert_true(products == 3 * forward - spared);
    model_free(m);
}

static void dit(void **state)
{
    const struct model_spec s = tiny_spec();
    as_computed(&s, 2.0 * COUNT * s.dim * (model_patches(&s) * model_patch_values(&s) + 256));
}

/* Both chains, of which the upscaler reads twice the channels. */
static void cascade(void **state)
{
    const struct model_spec s = tiny_cascade();
    struct model_spec c[MODEL_CHAINS];
    double inputs = 0;
    model_chain_specs(&s, c);
    for (int i = 0; i < MODEL_CHAINS; i++)
        inputs += c[i].dim * (model_patches(&c[i]) * model_input_values(&c[i]) + 256);
    as_computed(&s, 2.0 * COUNT * inputs);
}

/* Nobody asks for the gradient of states either. */
static void captions(void **state)
{
    const struct model_spec s = tiny_captioned();
    as_computed(
        &s, 2.0 * COUNT * s.dim *
                (model_patches(&s) * model_patch_values(&s) + 256 + s.caption_tokens * s.caption));
}

static void router(void **state)
{
    const struct model_spec s = tiny_router();
    as_computed(&s, 2.0 * COUNT * s.dim * (model_patches(&s) * model_patch_values(&s) + 256));
}

static void llama(void **state)
{
    struct model_spec s = tiny_llama();
    as_computed(&s, 0);
    s.tied = true;
    as_computed(&s, 0);
    s = tiny_qwen();
    as_computed(&s, 0);
    s = tiny_qwen3();
    as_computed(&s, 0);
}

/* Packed texts are texts of their own, padding is nothing. */
static void packed(void **state)
{
    const struct model_spec s = tiny_llama();
    static const int32_t start[2 * SEQ] = {0, 0, 0, 3, 3, 5, 6, 7, 0, 0, 0, 0, 0, 0, 0, 0};
    const struct batch b = {.count = 2, .seq = SEQ, .tokens = start, .start = start};
    struct model *m;
    OK(model_new(&s, &m, err));
    const double want = flops_forward(m, 1, 3) + flops_forward(m, 1, 2) + flops_forward(m, 1, SEQ);
    assert_true(fabs(flops_step(m, &b) - 3 * want) < 1e-9 * want);
    assert_true(want < flops_forward(m, 2, SEQ));
    model_free(m);
}

/* Peebles & Xie give 118.64 G multiply-adds for DiT-XL/2 on 32x32 latents of 4 channels, with
 * twice as many outputs; ours have 3, and as many outputs. */
static void in_print(void **state)
{
    struct model *m;
    const struct model_spec xl = {.channels = 3,
                                  .image = 32,
                                  .patch = 2,
                                  .dim = 1152,
                                  .depth = 28,
                                  .heads = 16,
                                  .mlp = 4608,
                                  .classes = 1000,
                                  .cut = {.n_levels = 1}};
    OK(model_new(&xl, &m, err));
    const double theirs = 118.64e9 - 256.0 * 1152 * (16 + 32 - 12 - 12);
    assert_true(fabs(flops_forward(m, 1, 0) / 2 - theirs) < 0.005 * 118.64e9 / 10);
    model_free(m);

    /* PaLM's 6N + 12LHQT per token, N without the embedding that is looked up. */
    struct model_spec s = tiny_llama();
    s.dim = 64, s.heads = s.kv_heads = 4, s.mlp = 256, s.vocab = 1000, s.context = 128;
    OK(model_new(&s, &m, err));
    uint64_t vectors = (uint64_t)s.dim * (2u * (unsigned)s.depth + 1); /* of the norms */
    double n = (double)(m->params - vectors - (uint64_t)s.vocab * (uint64_t)s.dim);
    double palm = 6 * n + 12.0 * s.depth * s.dim * 128;
    assert_true(fabs(3 * flops_forward(m, 1, 128) / 128 - palm) < 1e-9 * palm);
    model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dit),      cmocka_unit_test(cascade), cmocka_unit_test(captions),
        cmocka_unit_test(router),   cmocka_unit_test(llama),   cmocka_unit_test(packed),
        cmocka_unit_test(in_print),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
