/* The sampler's order of convergence, guidance and independence from batches; the
 * held-out loss. */
#include "kernels/device/device.h"
#include "tests/unit/worker/tiny_encoders.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "worker/net/dit_rows.h"
#include "worker/net/sample.h"

enum { N = 5, VALUES = 108 };

struct fixture {
    struct device *dev;
    struct model *m;
    float *flat;
};

static const int32_t labels[N] = {0, 1, 2, 1, 0};

static int setup(void **state)
{
    static struct fixture f;
    struct model_spec spec = tiny_spec();
    OK(device_open("cpu-ref", 1, &f.dev, err));
    OK(model_new(&spec, &f.m, err));
    f.flat = tiny_weights(f.m, 5);
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

static struct dit *make(struct fixture *f, int batch)
{
    struct dit *d = NULL;
    OK(dit_new(f->dev, f->m, &(struct net_options){NET_FORWARD, NET_F32, batch}, &d, err));
    OK(weights_set(dit_weights(d), f->flat, err));
    return d;
}

static void draw(struct dit *d, struct sample_options opt, float *out)
{
    struct dit_rows dit;
    opt.seed = 3;
    OK(dit_rows_open(&dit, d, err));
    const struct sample_source src = sample_of_dit(&dit);
    OK(sample_run_f32(&src, &opt, labels, N, out, err));
    dit_rows_close(&dit);
}

static double error(const float *a, const float *b)
{
    double sum = 0;
    for (int i = 0; i < N * VALUES; i++)
        sum += pow((double)a[i] - (double)b[i], 2);
    return sqrt(sum);
}

/* Leaves only the slow sines and cosines of the time: those of random weights turn too
 * fast for a step to be small. */
static void slow_down(struct dit *d)
{
    const struct model_tensor *t = model_find(dit_weights(d)->m, "t_embedder.mlp.0.weight");
    float *w = dit_weights(d)->w + t->offset;
    for (uint64_t i = 0; i < t->count; i++) {
        if (i % 128 < 96)
            w[i] = 0;
    }
}

/* Twice the steps: half the error for Euler, a quarter for Heun. */
static void test_order(void **state)
{
    struct dit *d = make(*state, 2 * N);
    slow_down(d);
    static float truth[N * VALUES], out[N * VALUES];
    struct sample_options opt = {.steps = 400, .heun = true, .guidance = 1.5f};
    draw(d, opt, truth);
    for (int heun = 0; heun < 2; heun++) {
        double e[2];
        for (int i = 0; i < 2; i++) {
            opt.heun = heun;
            opt.steps = 20 << i;
            draw(d, opt, out);
            e[i] = error(out, truth);
        }
        double ratio = e[0] / e[1];
        if (heun ? ratio < 3 : ratio < 1.7 || ratio > 2.4)
            fail_msg("%s: errors %g and %g", heun ? "heun" : "euler", e[0], e[1]);
    }
    dit_free(d);
}

/* A source that writes down what it is told. */
struct teller {
    float x[2 * N * VALUES], v[2 * N * VALUES]; /* of the call before */
    float t;
    float times[64];
    int calls, begun;
};

static int tell(void *arg, const struct sample_call *c, struct err *err)
{
    struct teller *a = arg;
    const int64_t n = (int64_t)c->copies * c->B * VALUES;
    assert_int_equal(c->begin, c->estimate == NULL);
    for (int64_t i = 0; i < n && c->estimate; i++)
        assert_true(fabsf(c->estimate[i] - (a->x[i] - a->t * a->v[i])) < 1e-5f);
    for (int64_t i = 0; i < n; i++)
        c->v[i] = 0.3f * c->x[i] + 0.1f * (float)c->labels[i / VALUES];
    memcpy(a->x, c->x, (size_t)n * sizeof *a->x);
    memcpy(a->v, c->v, (size_t)n * sizeof *a->v);
    a->t = c->t[0];
    a->times[a->calls++] = a->t;
    a->begun += c->begin;
    return 0;
}

static int tell_level(void *arg, const struct sample_call *c, struct err *err)
{
    struct teller *a = arg;
    (void)err;
    a->times[a->calls++] = c->t[0];
    for (int64_t i = 0; i < (int64_t)c->copies * c->B * VALUES; i++)
        c->v[i] = 0.5f;
    return 0;
}

/* Row by row the estimate of the evaluation before, its own one; none at the first of each run. */
static void test_estimates(void **state)
{
    struct fixture *f = *state;
    static float out[N * VALUES];
    for (int i = 0; i < 4; i++) {
        static struct teller teller;
        teller = (struct teller){0};
        const struct sample_source src = {.dev = f->dev,
                                          .channels = 3,
                                          .image = 6,
                                          .classes = 3,
                                          .rows = 6,
                                          .estimates = true,
                                          .arg = &teller,
                                          .velocity = tell};
        const struct sample_options opt = {
            .steps = 3, .heun = i & 1, .guidance = i & 2 ? 1.5f : 1, .seed = 3};
        OK(sample_run_f32(&src, &opt, labels, N, out, err));
        const int runs = i & 2 ? 2 : 1;
        assert_int_equal(teller.calls, runs * 3 * (i & 1 ? 2 : 1));
        assert_int_equal(teller.begun, runs);
    }
}

/* With a shift the steps are those of times that are shifted like the training's, from 1 to 0: of a
 * field of constant velocities the whole is what one step gives. */
static void test_grid(void **state)
{
    struct fixture *f = *state;
    static float one[N * VALUES], out[N * VALUES];
    static const float grid[2][4] = {{1, 0.75f, 0.5f, 0.25f}, {1, 0.9f, 0.75f, 0.5f}};
    static struct teller teller;
    const struct sample_source src = {.dev = f->dev,
                                      .channels = 3,
                                      .image = 6,
                                      .classes = 3,
                                      .rows = N,
                                      .arg = &teller,
                                      .velocity = tell_level};
    struct sample_options opt = {.steps = 1, .guidance = 1, .seed = 3};
    OK(sample_run_f32(&src, &opt, labels, N, one, err));
    opt.steps = 4;
    for (int i = 0; i < 4; i++) {
        teller = (struct teller){0};
        opt.shift = i & 1 ? 3 : 1;
        opt.heun = i & 2;
        OK(sample_run_f32(&src, &opt, labels, N, out, err));
        assert_int_equal(teller.calls, opt.heun ? 8 : 4);
        for (int k = 0; k < teller.calls; k++) {
            const int step = opt.heun ? (k + 1) / 2 : k; /* Heun asks at both ends of a step */
            const float t = step < 4 ? grid[i & 1][step] : 0;
            assert_true(fabsf(teller.times[k] - t) < 1e-6f);
        }
        assert_true(error(out, one) < 1e-4);
    }
}

static void test_batches(void **state)
{
    static float a[N * VALUES], b[N * VALUES];
    struct sample_options opt = {.steps = 3, .guidance = 2.0f};
    struct dit *d = make(*state, 2 * N);
    draw(d, opt, a);
    dit_free(d);
    d = make(*state, 5); /* two at a time */
    draw(d, opt, b);
    dit_free(d);
    assert_memory_equal(a, b, sizeof a);
    assert_memory_not_equal(a, a + 4 * VALUES, VALUES * sizeof *a); /* same label, other noise */
}

/* Few rows that are filled up are told theirs, too. */
static void test_batches_with_estimates(void **state)
{
    struct fixture *f = *state, own = *f;
    static float a[N * VALUES], b[N * VALUES], none[N * VALUES];
    const struct sample_options opt = {.steps = 3, .guidance = 2.0f};
    struct model_spec spec = tiny_spec();
    spec.self_condition = true;
    OK(model_new(&spec, &own.m, err));
    own.flat = tiny_weights(own.m, 5);
    for (int i = 0; i < 3; i++) {
        float *out = i == 0 ? a : i == 1 ? b : none;
        struct dit *d = make(&own, i == 1 ? 5 : 2 * N); /* 5: two at a time, and then one */
        if (i == 2) {
            const struct model_tensor *t = model_find(own.m, "x_embedder.proj.weight");
            for (uint64_t j = 0; j < t->count; j++)
                if (j % 24 >= 12) /* what reads the estimate */
                    dit_weights(d)->w[t->offset + j] = 0;
        }
        draw(d, opt, out);
        dit_free(d);
    }
    assert_memory_equal(a, b, sizeof a);
    assert_memory_not_equal(a, none, sizeof a);
    mem_free(own.flat);
    model_free(own.m);
}

static void test_guidance(void **state)
{
    static float off[N * VALUES], nearly[N * VALUES], strong[N * VALUES];
    struct dit *d = make(*state, 2 * N);
    draw(d, (struct sample_options){.steps = 4, .guidance = 1.0f}, off);
    draw(d, (struct sample_options){.steps = 4, .guidance = 1.000001f}, nearly);
    draw(d, (struct sample_options){.steps = 4, .guidance = 3.0f}, strong);
    dit_free(d);
    assert_true(error(off, nearly) < 1e-3);
    assert_true(error(off, strong) > 1e-2);
}

struct watch {
    unsigned calls, last, total, stop_at;
};

static int count_calls(void *arg, unsigned done, unsigned total)
{
    struct watch *w = arg;
    assert_true(done > w->last);
    w->last = done;
    w->total = total;
    return ++w->calls == w->stop_at;
}

static void test_progress_and_pixels(void **state)
{
    struct err e = {0};
    struct dit *d = make(*state, 4);
    struct watch w = {0};
    uint8_t u8[N * VALUES];
    float f32[N * VALUES];
    struct sample_options opt = {
        .steps = 3, .heun = true, .guidance = 1.5f, .seed = 3, .progress = count_calls, .arg = &w};
    struct dit_rows dit;
    OK(dit_rows_open(&dit, d, err));
    const struct sample_source src = sample_of_dit(&dit);
    OK(sample_run(&src, &opt, labels, N, u8, err));
    assert_int_equal(w.calls, 9); /* three runs of two, two and one, three steps each */
    assert_int_equal(w.last, 18);
    assert_int_equal(w.total, 18);
    draw(d, (struct sample_options){.steps = 3, .heun = true, .guidance = 1.5f}, f32);
    for (int i = 0; i < N; i++) { /* first pixel: planes become channels */
        for (int c = 0; c < 3; c++) {
            float v = roundf(fminf(fmaxf((f32[i * VALUES + c * 36] + 1) * 127.5f, 0), 255));
            assert_true(fabsf(v - (float)u8[i * VALUES + c]) <= 1);
        }
    }

    w = (struct watch){.stop_at = 2};
    assert_int_equal(sample_run(&src, &opt, labels, N, u8, &e), -ERR_CANCELLED);
    assert_int_equal(w.calls, 2);
    opt.steps = 0;
    assert_int_equal(sample_run(&src, &opt, labels, N, u8, &e), -EINVAL);
    opt.steps = 1;
    int32_t bad[1] = {3};
    assert_int_equal(sample_run(&src, &opt, bad, 1, u8, &e), -EINVAL);
    dit_rows_close(&dit);
    dit_free(d);
}

/* A decoder that says how it was called. */
static int decode(void *arg, const float *latents, int count, uint8_t *images, struct err *err)
{
    int *calls = arg;
    (void)err;
    for (int i = 0; i < count * 3 * TINY_PIXELS * TINY_PIXELS; i++)
        images[i] = (uint8_t)(*calls + 1);
    images[0] = latents[0] > 0 ? 100 : 50;
    (*calls)++;
    return 0;
}

/* A label is the number of a caption, the last one the null: a sample's bits depend on its caption
 * alone, not on where it stands in the table, nor on the batch. */
static void test_captions(void **state)
{
    const struct model_spec spec = tiny_captioned();
    const size_t L = (size_t)spec.caption_tokens, D = (size_t)spec.caption;
    const int n = 4 * 6 * 6;
    struct fixture f = *(struct fixture *)*state;
    struct err why = {0};
    int32_t ids[4 * 5], lengths[4], calls = 0;
    static uint8_t pixels[N * 3 * TINY_PIXELS * TINY_PIXELS];
    static float states[4 * 50], turned[4 * 50], out[2][N * 144];
    struct tiny_encoders e;
    OK(model_new(&spec, &f.m, err));
    f.flat = tiny_weights(f.m, 5);
    (void)tiny_encoders(&e, &spec, DT_F32);
    tiny_captions(&spec, 0, 4, pixels, ids, lengths);
    OK(e.table.captions(e.table.arg, ids, lengths, 4, states, err));
    for (int pass = 0; pass < 2; pass++) {
        /* Second: captions 0 and 2 change places, and so do the labels. */
        const int32_t order[4] = {2, 1, 0, 3}, asked[N] = {2, 1, 0, 1, 2};
        int32_t turned_lengths[4];
        for (int i = 0; i < 4; i++) {
            memcpy(turned + (size_t)i * L * D, states + (size_t)order[i] * L * D,
                   L * D * sizeof *states);
            turned_lengths[i] = lengths[order[i]];
        }
        const struct net_captions table = {4, pass ? turned : states,
                                           pass ? turned_lengths : lengths};
        struct dit *d = make(&f, pass ? 5 : 2 * N);
        struct dit_rows rows;
        OK(dit_rows_open(&rows, d, err));
        dit_rows_captions(&rows, &table);
        assert_int_equal(dit_rows_null(&rows), 3);
        const struct sample_source src = sample_of_dit(&rows);
        struct sample_options opt = {.steps = 2, .guidance = 2.0f, .seed = 3};
        OK(sample_run_f32(&src, &opt, pass ? asked : labels, N, out[pass], err));
        opt.decode = decode;
        opt.decoder = &calls;
        opt.pixels = TINY_PIXELS;
        calls = 0;
        OK(sample_run(&src, &opt, pass ? asked : labels, N, pixels, err));
        assert_int_equal(calls, pass ? 3 : 1);
        assert_int_equal(pixels[0], out[0][0] > 0 ? 100 : 50);
        assert_int_equal(pixels[N * 3 * TINY_PIXELS * TINY_PIXELS - 1], calls);
        const int32_t bad = 3; /* the null caption is no label */
        assert_int_equal(sample_run(&src, &opt, &bad, 1, pixels, &why), -EINVAL);
        dit_rows_close(&rows);
        dit_free(d);
    }
    assert_memory_equal(out[0], out[1], sizeof out[0]);
    assert_memory_not_equal(out[0] + n, out[0] + 3 * n, (size_t)n * sizeof(float));
    mem_free(f.flat);
    model_free(f.m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_batches),
        cmocka_unit_test(test_estimates),
        cmocka_unit_test(test_grid),
        cmocka_unit_test(test_batches_with_estimates),
        cmocka_unit_test(test_guidance),
        cmocka_unit_test(test_captions),
        cmocka_unit_test(test_progress_and_pixels),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
