/* Networks of two chains: the base against a network of its own, gradients against finite
 * differences, what the upscaler is told, and drawing with both. */
#include "kernels/device/device.h"
#include "tests/unit/worker/tiny.h"
#include "tests/unit/worker/tiny_encoders.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "worker/net/cascade.h"
#include "worker/net/cascade_sample.h"
#include "worker/net/dit_rows.h"
#include "worker/net/resize.h"

enum { B = 4, TOKENS = 5, LOW = 3, HIGH = 6, SMALL = 3 * LOW * LOW, LARGE = 3 * HIGH * HIGH };

struct fixture {
    struct device *dev;
    struct model *m;
    float *flat;
    uint8_t images[B * LARGE];
    int32_t labels[B];
    uint64_t keys[B];
    struct batch batch;
    const struct net_encoders *encoders; /* with captions */
};

static int setup(void **state)
{
    static struct fixture f;
    const struct model_spec spec = tiny_cascade();
    f = (struct fixture){.keys = {50, 7, 1000, 3}};
    OK(device_open("cpu-ref", 1, &f.dev, err));
    OK(model_new(&spec, &f.m, err));
    f.flat = tiny_weights(f.m, 5);
    tiny_batch(&spec, 0, B, f.images, f.labels);
    f.batch = (struct batch){
        .count = B, .images = f.images, .labels = f.labels, .seed = 9, .keys = f.keys};
    *state = &f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    mem_free(f->flat);
    model_free(f->m);
    device_close(f->dev);
    return 0;
}

static struct net *make(struct fixture *f, struct net_options opt)
{
    struct net *n = NULL;
    opt.batch = opt.batch ? opt.batch : B;
    opt.encoders = f->encoders;
    OK(net_new(f->dev, f->m, &opt, &n, err));
    OK(weights_set(n->weights, f->flat, err));
    return n;
}

/* Sum of the losses; with backward also the gradients of it. */
static double sum_of(struct net *n, const struct batch *b, bool backward, struct net_result *r)
{
    float losses[B];
    struct net_result own = {.losses = losses};
    double sum = 0;
    r = r ? r : &own;
    OK(net_loss(n, b, true, 1.0f, backward, r, err));
    for (unsigned i = 0; i < b->count; i++)
        sum += (double)r->losses[i];
    return sum;
}

/* The chains' tensors lie behind each other, each with the names that it has by itself; matrices of
 * both come first; a chain is a level where the recipe says so. */
static void test_table(void **state)
{
    const struct fixture *f = *state;
    const struct model *m = f->m, *base = m->chains[0], *up = m->chains[1];
    struct model_spec plain = tiny_base();
    struct model *alone = NULL;
    OK(model_new(&plain, &alone, err));
    assert_int_equal(m->n, base->n + up->n);
    assert_int_equal(m->params, base->params + up->params);
    assert_int_equal(base->params, alone->params);
    for (size_t i = 0; i < alone->n; i++)
        assert_string_equal(m->tensors[i].name, alone->tensors[i].name);
    for (size_t i = 0; i < m->n; i++) {
        const struct model_tensor *t = &m->tensors[i];
        assert_int_equal(t->decay, t->offset < m->decayed);
        assert_int_equal(i >= base->n, strncmp(t->name, "upscaler.", 9) == 0);
    }
    const struct model_tensor *patch = model_find(m, "upscaler.x_embedder.proj.weight");
    assert_non_null(patch);
    assert_int_equal(patch->shape[1], 6); /* the image and the small one */
    assert_int_equal(up->tensors[0].offset, patch->offset);
    model_free(alone);
}

static void test_levels(void **state)
{
    (void)state;
    struct model_spec spec = tiny_cascade();
    struct model *m = NULL;
    spec.cut = (struct model_cut){.n_levels = 2, .block_level = {0, 0, 0, 1, 1}, .head_level = 1};
    OK(model_new(&spec, &m, err));
    for (size_t i = 0; i < m->n; i++)
        assert_int_equal(m->tensors[i].level, i >= m->chains[0]->n);
    model_free(m);
}

/* Initial values of the base are those of a model by itself; where they are 0, so are the
 * upscaler's. */
static void test_init(void **state)
{
    const struct fixture *f = *state;
    const struct model_spec plain = tiny_base();
    struct model *alone = NULL;
    OK(model_new(&plain, &alone, err));
    float *whole = model_flat_new(f->m), *flat = model_flat_new(alone);
    model_init(f->m, 77, whole);
    model_init(alone, 77, flat);
    for (size_t i = 0; i < alone->n; i++)
        assert_memory_equal(whole + f->m->tensors[i].offset, flat + alone->tensors[i].offset,
                            alone->tensors[i].count * sizeof *flat);
    for (size_t i = alone->n; i < f->m->n; i++) {
        const struct model_tensor *t = &f->m->tensors[i];
        const struct model_tensor *like = model_find(alone, t->name + strlen("upscaler."));
        bool zeros = true, theirs = true;
        for (uint64_t j = 0; j < t->count; j++)
            zeros = zeros && whole[t->offset + j] == 0;
        for (uint64_t j = 0; like && j < like->count; j++)
            theirs = theirs && flat[like->offset + j] == 0;
        assert_true(!like || zeros == theirs);
    }
    mem_free(whole);
    mem_free(flat);
    model_free(alone);
}

/* The base learns what a network by itself learns of the small images, to the bit. */
static void base_is_by_itself(struct fixture *f)
{
    const struct model *m = f->m;
    struct model_spec plain = m->spec;
    struct model *alone = NULL;
    plain.upscaler = (struct model_upscaler){0};
    OK(model_new(&plain, &alone, err));
    float *flat = model_flat_new(alone), all[B], base[B], want[B];
    uint8_t low[B * SMALL];
    for (size_t i = 0; i < alone->n; i++)
        memcpy(flat + alone->tensors[i].offset, f->flat + m->tensors[i].offset,
               alone->tensors[i].count * sizeof *flat);
    for (int i = 0; i < B; i++)
        resize_down(f->images + i * LARGE, HIGH, HIGH / LOW, low + i * SMALL);
    struct batch small = f->batch;
    small.images = low;

    const struct net_options opt = {NET_TRAIN, NET_F32, B, .label_dropout = 0.5,
                                    .encoders = f->encoders};
    struct net *both = make(f, opt), *one = NULL;
    OK(net_new(f->dev, alone, &opt, &one, err));
    OK(weights_set(one->weights, flat, err));
    (void)sum_of(both, &f->batch, true, &(struct net_result){.losses = all, .base = base});
    (void)sum_of(one, &small, true, &(struct net_result){.losses = want});
    assert_memory_equal(base, want, sizeof want);
    for (int i = 0; i < B; i++)
        assert_true(all[i] > base[i]);
    for (size_t i = 0; i < alone->n; i++)
        assert_memory_equal(both->weights->g + m->tensors[i].offset,
                            one->weights->g + alone->tensors[i].offset,
                            alone->tensors[i].count * sizeof(float));
    net_free(one);
    net_free(both);
    mem_free(flat);
    model_free(alone);
}

static void test_base_is_a_network_by_itself(void **state)
{
    struct fixture *f = *state, g = *f;
    struct model_spec spec = tiny_cascade();
    base_is_by_itself(f);
    spec.self_condition = true;
    OK(model_new(&spec, &g.m, err));
    g.flat = tiny_weights(g.m, 5);
    g.batch.estimate = true;
    base_is_by_itself(&g);
    mem_free(g.flat);
    model_free(g.m);
}

/* Told captions in place of labels. */
static struct model_spec captioned_cascade(void)
{
    struct model_spec s = tiny_cascade();
    s.dim = s.upscaler.dim = 16;
    s.mlp = s.upscaler.mlp = 64;
    s.heads = s.upscaler.heads = 2;
    s.caption = 10;
    s.caption_tokens = TOKENS;
    return s;
}

static void open_captioned(const struct fixture *from, struct tiny_encoders *e, struct fixture *ret)
{
    static const int32_t ids[B * TOKENS] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3,
                                            5, 8, 9, 7, 9, 3, 2, 3, 8, 4},
                                 lengths[B] = {5, 1, 3, 2};
    const struct model_spec spec = captioned_cascade();
    *ret = *from;
    OK(model_new(&spec, &ret->m, err));
    ret->flat = tiny_weights(ret->m, 5);
    ret->batch.captions = ids;
    ret->batch.caption_lengths = lengths;
    (void)tiny_encoders(e, &spec, DT_F32);
    e->table.shift = e->table.scale = NULL;
    e->table.images = NULL;
    ret->encoders = &e->table;
}

static void test_captions(void **state)
{
    struct tiny_encoders e;
    struct fixture g;
    open_captioned(*state, &e, &g);
    base_is_by_itself(&g);
    /* Of both chains, which drop some, and of the network by itself. */
    assert_in_range(e.captions, 2 * B, 3 * B - 1);
    struct net *n = make(&g, (struct net_options){NET_TRAIN, NET_F32});
    const double sum = sum_of(n, &g.batch, false, NULL);
    int32_t other[B * TOKENS];
    memcpy(other, g.batch.captions, sizeof other);
    other[0] = 77;
    g.batch.captions = other;
    assert_true(sum_of(n, &g.batch, false, NULL) != sum);
    net_free(n);
    mem_free(g.flat);
    model_free(g.m);
}

/* What one chain is told and the other is not, since it drops captions by itself, is encoded
 * besides; losses are those of encoders that are asked by both chains. */
static void test_captions_once(void **state)
{
    struct tiny_encoders e;
    struct fixture g;
    unsigned least = 2 * B, most = 0;
    open_captioned(*state, &e, &g);
    struct net *once = make(&g, (struct net_options){NET_TRAIN, NET_F32, .label_dropout = 0.5});
    e.table.made = true; /* both chains ask */
    struct net *twice = make(&g, (struct net_options){NET_TRAIN, NET_F32, .label_dropout = 0.5});
    for (uint64_t seed = 0; seed < 20; seed++) {
        float a[B], b[B];
        g.batch.seed = seed;
        e.captions = 0;
        (void)sum_of(once, &g.batch, false, &(struct net_result){.losses = a});
        least = e.captions < least ? e.captions : least;
        most = e.captions > most ? e.captions : most;
        e.captions = 0;
        (void)sum_of(twice, &g.batch, false, &(struct net_result){.losses = b});
        assert_int_equal(e.captions, 2 * B);
        assert_memory_equal(a, b, sizeof a);
    }
    assert_int_equal(least, B);
    assert_in_range(most, B + 1, 2 * B - 1);
    net_free(once);
    net_free(twice);
    mem_free(g.flat);
    model_free(g.m);
}

/* Both chains are told the caption: the base draws what a network by itself draws. */
static void test_samples_of_captions(void **state)
{
    struct tiny_encoders e;
    struct fixture g;
    struct dit_rows rows = {0};
    uint8_t low[2 * SMALL], images[2][2 * LARGE];
    float states[3 * TOKENS * 10];
    const int32_t labels[2] = {1, 0}, lengths[3] = {5, 2, 1};
    const struct net_captions captions = {3, states, lengths};
    const struct sample_options opt = {.steps = 3, .guidance = 1.5f, .seed = 3};
    open_captioned(*state, &e, &g);
    rng_fill_normal(5, 6, 0, states, sizeof states / sizeof *states, 0.0f, 1.0f);
    struct net *n = make(&g, (struct net_options){NET_FORWARD, NET_F32});
    OK(cascade_sample(n, &opt, &captions, labels, 2, images[0], low, err));
    uint8_t alone[2 * SMALL];
    OK(dit_rows_open(&rows, cascade_chain(n, 0), err));
    dit_rows_captions(&rows, &captions);
    const struct sample_source src = sample_of_dit(&rows);
    OK(sample_run(&src, &opt, labels, 2, alone, err));
    assert_memory_equal(low, alone, sizeof low);
    dit_rows_close(&rows);
    /* What is asked for is drawn. */
    const int32_t same[2] = {1, 1};
    OK(cascade_sample(n, &opt, &captions, same, 2, images[1], low, err));
    assert_memory_equal(images[0], images[1], LARGE);
    assert_memory_not_equal(images[0] + LARGE, images[1] + LARGE, LARGE);
    net_free(n);
    mem_free(g.flat);
    model_free(g.m);
}

static void test_gradients(void **state)
{
    struct fixture *f = *state;
    const struct model *m = f->m;
    struct net *n = make(f, (struct net_options){NET_TRAIN, NET_F32});
    float *dir = mem_alloc_array(m->flat, sizeof *dir), *g = model_flat_new(m);
    (void)sum_of(n, &f->batch, true, NULL);
    memcpy(g, n->weights->g, m->flat * sizeof *g);

    for (size_t i = 0; i < m->n; i++) {
        const struct model_tensor *t = &m->tensors[i];
        float *w = n->weights->w + t->offset;
        const float *keep = f->flat + t->offset;
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

/* What forgets and makes again, and a step in pieces, find the same. */
static void test_modes_and_pieces_agree(void **state)
{
    struct fixture *f = *state;
    const uint64_t flat = f->m->flat;
    struct net *n[3];
    double sums[3];
    for (int i = 0; i < 3; i++) {
        n[i] = make(f, (struct net_options){
                           (enum net_mode[]){NET_TRAIN, NET_LEAN, NET_RECOMPUTE}[i], NET_F32});
        sums[i] = sum_of(n[i], &f->batch, true, NULL);
        assert_true(sums[i] == sums[0]);
        assert_memory_equal(n[i]->weights->g, n[0]->weights->g, flat * sizeof(float));
    }
    OK(net_load(n[1], &f->batch, 1.0f, err));
    for (unsigned i = 0; i < B; i += 2) {
        const struct net_micro micro = {.from = i, .count = 2, .first = i == 0, .backward = true};
        OK(net_forward(n[1], NULL, 0, &micro, err));
        OK(net_backward(n[1], NULL, 0, err));
    }
    OK(weights_sync(n[1]->weights, err));
    for (uint64_t i = 0; i < flat; i++)
        assert_true(fabsf(n[1]->weights->g[i] - n[0]->weights->g[i]) <=
                    1e-4f * (1.0f + fabsf(n[0]->weights->g[i])));
    for (int i = 0; i < 3; i++)
        net_free(n[i]);
}

/* The upscaler sees the small image beside its own: without weights for it its loss is another one,
 * and the base's is not. */
static void test_told(void **state)
{
    struct fixture *f = *state;
    struct net *n = make(f, (struct net_options){NET_FORWARD, NET_F32});
    const struct model_tensor *t = model_find(f->m, "upscaler.x_embedder.proj.weight");
    float all[2][B], base[2][B];
    for (int i = 0; i < 2; i++) {
        (void)sum_of(n, &f->batch, false, &(struct net_result){.losses = all[i], .base = base[i]});
        for (uint64_t j = 0; j < t->count; j++)
            if (j / 9 % 6 >= 3) /* (C,6,3,3): of the small image */
                n->weights->w[t->offset + j] = 0;
    }
    assert_memory_equal(base[0], base[1], sizeof base[0]);
    for (int i = 0; i < B; i++)
        assert_true(fabsf(all[0][i] - all[1][i]) > 1e-5f);
    net_free(n);
}

static void draw(struct fixture *f, int batch, int count, uint8_t *images, uint8_t *low)
{
    static const int32_t labels[5] = {0, 1, 2, 1, 0};
    struct net *n = make(f, (struct net_options){NET_FORWARD, NET_F32, batch});
    const struct sample_options opt = {.steps = 4, .guidance = 1.5f, .seed = 3};
    OK(cascade_sample(n, &opt, NULL, labels, count, images, low, err));
    net_free(n);
}

/* Samples are of their number, whatever is drawn beside them, and small ones those of the base. */
static void test_samples(void **state)
{
    struct fixture *f = *state;
    uint8_t a[5 * LARGE], b[5 * LARGE], low[5 * SMALL], few[5 * SMALL];
    draw(f, 10, 5, a, low);
    draw(f, 4, 5, b, few);
    assert_memory_equal(a, b, sizeof a);
    assert_memory_equal(low, few, sizeof low);
    memset(b, 0, sizeof b);
    draw(f, 8, 3, b, NULL);
    assert_memory_equal(a, b, 3 * LARGE);
    assert_memory_not_equal(a, a + LARGE, LARGE);
}

/* The small image reaches what is drawn: without weights for it other pixels come. */
static void test_samples_are_told(void **state)
{
    struct fixture *f = *state;
    const struct model_tensor *t = model_find(f->m, "upscaler.x_embedder.proj.weight");
    uint8_t a[2 * LARGE], b[2 * LARGE], low[2][2 * SMALL];
    float *kept = mem_alloc_array(t->count, sizeof *kept);
    memcpy(kept, f->flat + t->offset, t->count * sizeof *kept);
    draw(f, 8, 2, a, low[0]);
    for (uint64_t j = 0; j < t->count; j++)
        if (j / 9 % 6 >= 3)
            f->flat[t->offset + j] = 0;
    draw(f, 8, 2, b, low[1]);
    memcpy(f->flat + t->offset, kept, t->count * sizeof *kept);
    assert_memory_equal(low[0], low[1], sizeof low[0]);
    assert_memory_not_equal(a, b, sizeof a);
    mem_free(kept);
}

static int count_progress(void *arg, unsigned done, unsigned total)
{
    unsigned *last = arg;
    assert_int_equal(total, 8);
    assert_int_equal(done, *last + 1);
    *last = done;
    return done == 6;
}

/* Progress is of both chains, and whoever stops it stops it. */
static void test_progress(void **state)
{
    struct fixture *f = *state;
    struct err err = {0};
    unsigned last = 0;
    uint8_t images[LARGE];
    const int32_t label = 1;
    struct net *n = make(f, (struct net_options){NET_FORWARD, NET_F32, 4});
    const struct sample_options opt = {
        .steps = 4, .guidance = 1.0f, .seed = 3, .progress = count_progress, .arg = &last};
    assert_int_equal(cascade_sample(n, &opt, NULL, &label, 1, images, NULL, &err), -ERR_CANCELLED);
    assert_int_equal(last, 6);
    net_free(n);
}

static void test_refused(void **state)
{
    struct fixture *f = *state;
    struct err err = {0};
    struct net *n = NULL;
    struct model *part = NULL;
    const struct model_part parts[] = {{0, 2}, {1, 3}}; /* the upscaler has two blocks */
    assert_int_equal(model_part_new(f->m, parts, &part, &err), -EINVAL);
    assert_non_null(strstr(err.msg, "blocks 1 to 3 of 2"));
    n = make(f, (struct net_options){NET_FORWARD, NET_F32});
    struct batch latents = f->batch;
    latents.images = NULL;
    assert_int_equal(net_load(n, &latents, 1.0f, &err), -EINVAL);
    assert_non_null(strstr(err.msg, "without pixels"));
    net_free(n);
}

/* Specs that do not fit, each by its sentence. */
static void test_bad_specs(void **state)
{
    (void)state;
    struct model_spec bad[4];
    static const char *const words[] = {"must divide data.image_size", "below 1", "model.patch",
                                        "of one shape"};
    struct err err = {0};
    struct model *m = NULL;
    for (int i = 0; i < 4; i++)
        bad[i] = tiny_cascade();
    bad[0].upscaler.image = 7;
    bad[1].upscaler.noise = 1;
    bad[2].upscaler.patch = 4;
    bad[3].channels = 4;
    for (int i = 0; i < 4; i++) {
        assert_int_equal(model_new(&bad[i], &m, &err), -ERR_CONFIG);
        if (!strstr(err.msg, words[i]))
            fail_msg("'%s' does not say '%s'", err.msg, words[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_levels),
        cmocka_unit_test(test_init),
        cmocka_unit_test(test_base_is_a_network_by_itself),
        cmocka_unit_test(test_gradients),
        cmocka_unit_test(test_modes_and_pieces_agree),
        cmocka_unit_test(test_told),
        cmocka_unit_test(test_samples),
        cmocka_unit_test(test_captions_once),
        cmocka_unit_test(test_captions),
        cmocka_unit_test(test_samples_of_captions),
        cmocka_unit_test(test_samples_are_told),
        cmocka_unit_test(test_progress),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_bad_specs),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
