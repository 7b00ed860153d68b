/* The decoder: gradients against finite differences, the modes, devices and micro-batches
 * against each other, documents that do not see each other, the cache against the whole
 * text, features. */
#include <errno.h>
#include <math.h>

#include "tests/unit/ok.h"

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "kernels/device/device.h"
#include "worker/net/llama.h"
#include "worker/fit/means.h"

enum { ROWS = 3, SEQ = 10, VOCAB = 19 };

/* A head of its own, or a tied one; biases, or norms of queries and keys, or a block without rotary
 * positions, and heads that are wider than dim. */
enum kind { PLAIN, TIED, QWEN, QWEN3, SMOLLM3, KINDS };

static struct model_spec spec_of(enum kind kind)
{
    return (struct model_spec){
        .kind = MODEL_LLAMA,
        .dim = 24,
        .depth = 2,
        .heads = 3,
        .kv_heads = 1,
        .mlp = 20,
        .vocab = VOCAB,
        .context = SEQ,
        .rope_theta = 100.0f, /* short texts, so that every pair turns */
        .norm_eps = 1e-5f,
        .tied = kind == TIED,
        .head_dim = kind >= QWEN ? 16 : 0,
        .qkv_bias = kind == QWEN,
        .qk_norm = kind == QWEN3,
        .no_rope_layer_interval = kind == SMOLLM3 ? 2 : 0,
        .cut = {.n_levels = 1},
    };
}

/* Row 0: one document; row 1: two of 4 and 3 tokens and padding; row 2: three tokens. */
struct texts {
    int32_t tokens[ROWS * (SEQ + 1)], start[ROWS * SEQ], target[ROWS * SEQ], pos[ROWS * SEQ];
    struct batch batch;
};

static void put_document(struct texts *t, int row, int at, int n)
{
    for (int i = 0; i < n; i++) {
        const int cell = row * SEQ + at + i;
        t->start[cell] = at;
        t->pos[cell] = i;
        if (i + 1 < n || at + n == SEQ)
            t->target[cell] = t->tokens[row * (SEQ + 1) + at + i + 1];
    }
}

static void fill_texts(struct texts *t)
{
    for (int i = 0; i < ROWS * (SEQ + 1); i++)
        t->tokens[i] = (int32_t)(rng_at_u32(3, 1, (uint64_t)i) % VOCAB);
    for (int i = 0; i < ROWS * SEQ; i++) {
        t->start[i] = i % SEQ;
        t->target[i] = -1;
        t->pos[i] = 0;
    }
    put_document(t, 0, 0, SEQ);
    put_document(t, 1, 0, 4);
    put_document(t, 1, 4, 3);
    put_document(t, 2, 0, 3);
    t->batch = (struct batch){.count = ROWS,
                              .seq = SEQ,
                              .tokens = t->tokens,
                              .start = t->start,
                              .target = t->target,
                              .pos = t->pos};
}

struct fixture {
    struct device *dev, *fast;
    struct model *m[KINDS];
    float *flat[KINDS];
    struct texts texts;
};

static float *random_weights(const struct model *m)
{
    float *flat = model_flat_new(m);
    assert_non_null(flat);
    for (size_t i = 0; i < m->n; i++)
        rng_fill_normal(5, i, 0, flat + m->tensors[i].offset, m->tensors[i].count,
                        m->tensors[i].rank == 1 ? 1.0f : 0.0f, 0.25f);
    return flat;
}

static int setup(void **state)
{
    static struct fixture f;
    OK(device_open("cpu-ref", 1, &f.dev, err));
    OK(device_open("cpu", 2, &f.fast, err));
    for (int i = 0; i < KINDS; i++) {
        struct model_spec spec = spec_of((enum kind)i);
        OK(model_new(&spec, &f.m[i], err));
        f.flat[i] = random_weights(f.m[i]);
    }
    fill_texts(&f.texts);
    *state = &f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    for (int i = 0; i < KINDS; i++) {
        mem_free(f->flat[i]);
        model_free(f->m[i]);
    }
    device_close(f->dev);
    device_close(f->fast);
    return 0;
}

static struct net *make(struct device *dev, const struct model *m, const float *flat,
                        enum net_mode mode, enum net_precision precision)
{
    struct net *n = NULL;
    struct net_options opt = {.mode = mode, .precision = precision, .batch = ROWS};
    OK(net_new(dev, m, &opt, &n, err));
    OK(weights_set(n->weights, flat, err));
    return n;
}

/* Sum of all losses. */
static double loss(struct net *n, const struct batch *b, bool first, bool backward)
{
    float losses[ROWS * SEQ];
    struct net_result r = {.losses = losses};
    OK(net_loss(n, b, first, 1.0f, backward, &r, err));
    double sum = 0;
    for (unsigned i = 0; i < b->count * b->seq; i++)
        sum += (double)losses[i];
    return sum;
}

static void differences(struct fixture *f, int which)
{
    const struct model *m = f->m[which];
    const struct batch *b = &f->texts.batch;
    struct net *n = make(f->dev, m, f->flat[which], NET_TRAIN, NET_F32);
    float *dir = mem_alloc_array(m->flat, sizeof *dir), *g = mem_alloc_array(m->flat, sizeof *g);
    (void)loss(n, b, true, true);
    memcpy(g, n->weights->g, m->flat * sizeof *g);

    for (size_t i = 0; i < m->n; i++) {
        const struct model_tensor *t = &m->tensors[i];
        float *w = n->weights->w + t->offset;
        rng_fill_normal(77, i, 0, dir, t->count, 0.0f, 1.0f);
        const float h = 6e-3f / sqrtf((float)t->count);
        double expected = 0, side[2];
        for (uint64_t j = 0; j < t->count; j++)
            expected += (double)g[t->offset + j] * (double)dir[j];
        for (int s = 0; s < 2; s++) {
            for (uint64_t j = 0; j < t->count; j++)
                w[j] = f->flat[which][t->offset + j] + (s ? -h : h) * dir[j];
            side[s] = loss(n, b, true, false);
        }
        memcpy(w, f->flat[which] + t->offset, t->count * sizeof *w);
        const double got = (side[0] - side[1]) / (2.0 * (double)h);
        const double scale = fabs(expected) + 0.05 * sqrt((double)t->count);
        if (fabs(got - expected) > 0.01 * scale)
            fail_msg("%s: the gradient says %g, differences %g", t->name, expected, got);
        assert_true(fabs(expected) > 1e-4); /* a test that sees nothing proves nothing */
    }
    mem_free(g);
    mem_free(dir);
    net_free(n);
}

static void test_finite_differences(void **state)
{
    for (int which = 0; which < KINDS; which++)
        differences(*state, which);
}

static void test_modes_agree(void **state)
{
    struct fixture *f = *state;
    for (int which = 0; which < KINDS; which++) {
        for (int p = 0; p < 2; p++) {
            const enum net_mode modes[] = {NET_TRAIN, NET_RECOMPUTE, NET_FORWARD};
            struct net *n[3];
            double sum[3];
            for (int i = 0; i < 3; i++) {
                n[i] = make(f->fast, f->m[which], f->flat[which], modes[i], p ? NET_BF16 : NET_F32);
                sum[i] = loss(n[i], &f->texts.batch, true, i < 2);
                assert_true(sum[i] == sum[0]);
            }
            assert_memory_equal(n[0]->weights->g, n[1]->weights->g,
                                f->m[which]->flat * sizeof(float));
            for (int i = 0; i < 3; i++)
                net_free(n[i]);
        }
    }
}

/* Largest difference over the largest value. */
static double difference(const float *a, const float *b, uint64_t n)
{
    double worst = 0, scale = 1e-12;
    for (uint64_t i = 0; i < n; i++) {
        worst = fmax(worst, fabs((double)a[i] - (double)b[i]));
        scale = fmax(scale, fabs((double)b[i]));
    }
    return worst / scale;
}

static void test_devices_agree(void **state)
{
    struct fixture *f = *state;
    for (int which = 0; which < KINDS; which++) {
        for (int p = 0; p < 2; p++) {
            const enum net_precision precision = p ? NET_BF16 : NET_F32;
            struct net *a = make(f->dev, f->m[which], f->flat[which], NET_TRAIN, precision);
            struct net *b = make(f->fast, f->m[which], f->flat[which], NET_TRAIN, precision);
            const double x = loss(a, &f->texts.batch, true, true);
            const double y = loss(b, &f->texts.batch, true, true);
            assert_true(fabs(x - y) <= (p ? 1e-2 : 1e-5) * x);
            assert_true(difference(b->weights->g, a->weights->g, f->m[which]->flat) <
                        (p ? 0.04 : 1e-4));
            net_free(a);
            net_free(b);
        }
    }
}

/* Row by row into the same gradients, as micro-batches do. */
static void test_accumulation(void **state)
{
    struct fixture *f = *state;
    for (int which = 0; which < KINDS; which++) {
        const uint64_t flat = f->m[which]->flat;
        struct net *n = make(f->dev, f->m[which], f->flat[which], NET_TRAIN, NET_F32);
        float *whole = mem_alloc_array(flat, sizeof *whole);
        const double sum = loss(n, &f->texts.batch, true, true);
        memcpy(whole, n->weights->g, flat * sizeof *whole);
        double parts = 0;
        for (unsigned row = 0; row < ROWS; row++) {
            struct batch one;
            batch_slice(&f->texts.batch, row, 1, NULL, &one);
            parts += loss(n, &one, row == 0, true);
        }
        assert_true(fabs(parts - sum) < 1e-4);
        assert_true(difference(n->weights->g, whole, flat) < 1e-5);
        mem_free(whole);
        net_free(n);
    }
}

/* More rows times vocabulary than one slice of the head: two slices, or one call a slice. */
static void test_slices(void **state)
{
    struct fixture *f = *state;
    enum { SLICED = 64, BIG = 1 << 18 };
    struct model_spec spec = spec_of(PLAIN);
    spec.dim = 4;
    spec.heads = spec.kv_heads = spec.depth = 1;
    spec.vocab = BIG;
    spec.context = SLICED;
    struct model *m;
    OK(model_new(&spec, &m, err));
    float *flat = random_weights(m), *whole = mem_alloc_array(m->flat, sizeof *whole);
    struct net *n = make(f->fast, m, flat, NET_TRAIN, NET_F32);
    int32_t tokens[2 * (SLICED + 1)], start[2 * SLICED], target[2 * SLICED], pos[2 * SLICED];
    float losses[2 * SLICED], parts[2 * SLICED];
    for (int i = 0; i < 2 * (SLICED + 1); i++)
        tokens[i] = (int32_t)(rng_at_u32(9, 1, (uint64_t)i) % BIG);
    for (int i = 0; i < 2 * SLICED; i++) {
        start[i] = 0;
        pos[i] = i % SLICED;
        target[i] = tokens[i / SLICED * (SLICED + 1) + pos[i] + 1];
    }
    struct batch one, b = {.count = 2,
                           .seq = SLICED,
                           .tokens = tokens,
                           .start = start,
                           .target = target,
                           .pos = pos};
    OK(net_loss(n, &b, true, 0.5f, true, &(struct net_result){.losses = losses}, err));
    memcpy(whole, n->weights->g, m->flat * sizeof *whole);
    for (unsigned row = 0; row < 2; row++) {
        batch_slice(&b, row, 1, NULL, &one);
        OK(net_loss(n, &one, row == 0, 0.5f, true,
                    &(struct net_result){.losses = parts + row * SLICED}, err));
    }
    assert_true(difference(parts, losses, 2 * SLICED) < 1e-6);
    assert_true(difference(n->weights->g, whole, m->flat) < 1e-5);
    net_free(n);
    mem_free(whole);
    mem_free(flat);
    model_free(m);
}

/* What one document says changes nothing in the others, and a document in a row of its
 * own has the losses that it has among others. */
static void test_documents_apart(void **state)
{
    struct fixture *f = *state;
    struct net *n = make(f->fast, f->m[0], f->flat[0], NET_FORWARD, NET_F32);
    float before[ROWS * SEQ], after[ROWS * SEQ];
    struct texts t = f->texts;
    t.batch.tokens = t.tokens;
    OK(net_loss(n, &t.batch, true, 1, false, &(struct net_result){.losses = before}, err));
    for (int i = 0; i < 4; i++) /* the first document of row 1 */
        t.tokens[SEQ + 1 + i] = (t.tokens[SEQ + 1 + i] + 7) % VOCAB;
    OK(net_loss(n, &t.batch, true, 1, false, &(struct net_result){.losses = after}, err));
    assert_memory_equal(before, after, SEQ * sizeof *before);
    assert_true(before[SEQ] != after[SEQ]);
    assert_memory_equal(before + SEQ + 4, after + SEQ + 4, (size_t)(2 * SEQ - 4) * sizeof *before);

    struct texts alone = f->texts;
    for (int i = 0; i < 4; i++) {
        alone.tokens[i] = f->texts.tokens[SEQ + 1 + 4 + i];
        alone.start[i] = 0;
        alone.pos[i] = i;
        alone.target[i] = i < 2 ? f->texts.tokens[SEQ + 1 + 4 + i + 1] : -1;
    }
    struct batch b = {.count = 1,
                      .seq = 3,
                      .tokens = alone.tokens,
                      .start = alone.start,
                      .target = alone.target,
                      .pos = alone.pos};
    OK(net_loss(n, &b, true, 1, false, &(struct net_result){.losses = after}, err));
    for (int i = 0; i < 3; i++)
        assert_true(fabsf(after[i] - before[SEQ + 4 + i]) < 1e-5f);
    assert_true(before[SEQ + 4] > 0 && before[SEQ + 6] == 0); /* its last has no target */
    net_free(n);
}

/* Read in pieces of any length, the cache gives the logits of the whole text. */
static void test_cache(void **state)
{
    struct fixture *f = *state;
    struct err e = {0};
    for (int p = 0; p < 2 * (KINDS - TIED); p++) {
        const enum kind kind = TIED + p / 2;
        struct net *n =
            make(f->fast, f->m[kind], f->flat[kind], NET_FORWARD, p % 2 ? NET_BF16 : NET_F32);
        struct llama *l = llama_of(n);
        struct llama_cache *c;
        assert_non_null(l);
        float want[SEQ * VOCAB], got[VOCAB];
        struct batch one;
        batch_slice(&f->texts.batch, 0, 1, NULL, &one);
        OK(llama_logits(l, &one, want, err));
        OK(llama_cache_new(l, &c, err));
        for (int round = 0; round < 2; round++) {
            const int pieces[] = {4, 1, 1, 3, 1};
            uint32_t ids[SEQ];
            for (int i = 0; i < SEQ; i++)
                ids[i] = (uint32_t)f->texts.tokens[i];
            llama_cache_clear(c);
            for (int i = 0, at = 0; i < 5; at += pieces[i++]) {
                OK(llama_read(c, ids + at, pieces[i], got, err));
                assert_int_equal(llama_cache_room(c), SEQ - at - pieces[i]);
                assert_true(difference(got, want + (at + pieces[i] - 1) * VOCAB, VOCAB) <
                            (p % 2 ? 0.03 : 1e-5));
            }
            assert_int_equal(llama_cache_room(c), 0);
            assert_int_equal(llama_read(c, ids, 1, got, &e), -EINVAL);
        }
        llama_cache_clear(c);
        assert_int_equal(llama_read(c, &(uint32_t){VOCAB}, 1, got, &e), -EINVAL);
        llama_cache_free(c);
        net_free(n);
    }
}

static void test_features(void **state)
{
    struct fixture *f = *state;
    enum { C = 24, CHUNK = 4, CHUNKS = 3, FIRST = 6 };
    struct net *n = make(f->fast, f->m[0], f->flat[0], NET_FORWARD, NET_F32);
    const uint32_t lengths[ROWS] = {SEQ, 7, 3};
    float head[ROWS * C], chunks[ROWS * CHUNKS * C];
    struct net_hidden h;
    OK(net_hidden(n, &f->texts.batch, &h, err));
    assert_int_equal(h.T, SEQ);
    float *x = mem_alloc_array(ROWS * SEQ * C, sizeof *x);
    memcpy(x, h.x, ROWS * SEQ * C * sizeof *x);
    memset(chunks, 0xff, sizeof chunks);
    OK(means_of(n, &f->texts.batch,
                &(struct means){.lengths = lengths,
                                .first = FIRST,
                                .chunk = CHUNK,
                                .n_chunks = CHUNKS,
                                .head = head,
                                .chunks = chunks},
                err));
    for (int r = 0; r < ROWS; r++) {
        for (int k = -1; k < CHUNKS; k++) {
            const int begin = k < 0 ? 0 : k * CHUNK;
            int end = k < 0 ? FIRST : begin + CHUNK;
            end = end < (int)lengths[r] ? end : (int)lengths[r];
            for (int c = 0; c < C; c++) {
                double mean = 0;
                for (int t = begin; t < end; t++)
                    mean += (double)x[(r * SEQ + t) * C + c] / (end - begin);
                const float got = k < 0 ? head[r * C + c] : chunks[(r * CHUNKS + k) * C + c];
                assert_true(fabs(mean - (double)got) < 1e-5);
            }
        }
    }
    /* Without chunks only the beginnings are read. */
    float again[ROWS * C];
    OK(means_of(n, &f->texts.batch,
                &(struct means){.lengths = lengths, .first = FIRST, .head = again}, err));
    assert_true(difference(again, head, ROWS * C) < 1e-6);
    mem_free(x);
    net_free(n);
}

static void test_refusals(void **state)
{
    struct fixture *f = *state;
    struct err err = {0};
    struct net *n = make(f->dev, f->m[0], f->flat[0], NET_FORWARD, NET_F32);
    float losses[ROWS * SEQ];
    struct net_result r = {.losses = losses};
    struct texts t = f->texts;
    struct batch b = t.batch;
    b.tokens = t.tokens;
    b.target = t.target;
    assert_int_equal(net_loss(n, &b, true, 1, true, &r, &err), -EINVAL);
    b.count = ROWS + 1;
    assert_int_equal(net_loss(n, &b, true, 1, false, &r, &err), -EINVAL);
    b.count = ROWS;
    t.tokens[SEQ + 2] = VOCAB;
    assert_int_equal(net_loss(n, &b, true, 1, false, &r, &err), -ERR_FORMAT);
    assert_non_null(strstr(err.msg, "row 1, position 1"));
    t.tokens[SEQ + 2] = 0;
    t.target[3] = VOCAB;
    assert_int_equal(net_loss(n, &b, true, 1, false, &r, &err), -ERR_FORMAT);
    net_free(n);

    const struct net_options opt[] = {{.mode = NET_FORWARD, .batch = 8},
                                      {.mode = NET_RECOMPUTE, .batch = 8},
                                      {.mode = NET_TRAIN, .batch = 8}};
    assert_true(net_bytes(f->m[0], &opt[0], DT_F32) < net_bytes(f->m[0], &opt[1], DT_F32));
    assert_true(net_bytes(f->m[0], &opt[1], DT_F32) < net_bytes(f->m[0], &opt[2], DT_F32));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_finite_differences),
        cmocka_unit_test(test_modes_agree),
        cmocka_unit_test(test_devices_agree),
        cmocka_unit_test(test_accumulation),
        cmocka_unit_test(test_slices),
        cmocka_unit_test(test_documents_apart),
        cmocka_unit_test(test_cache),
        cmocka_unit_test(test_features),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
