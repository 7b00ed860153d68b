/* Moments on their way: how exact they arrive, and what is refused. */
#include "kernels/device/device.h"
#include "tests/unit/worker/tiny.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/file.h"
#include "common/base/pieces.h"
#include "common/st/st.h"
#include "worker/train/moments.h"

enum { BATCH = 5, STEPS = 6 };

struct fixture {
    char dir[64], path[96];
    struct device *dev;
    struct model *m;
    struct trainer *from, *to;
};

static void steps(struct trainer *t, unsigned n)
{
    uint8_t images[BATCH * 108];
    int32_t labels[BATCH];
    for (unsigned i = 0; i < n; i++) {
        struct step_result r;
        tiny_batch(&trainer_model(t)->spec, trainer_next_step(t) * BATCH, BATCH, images, labels);
        OK(tiny_step(t, images, labels, BATCH, &r, err));
    }
}

static int setup(void **state)
{
    static struct fixture f;
    struct model_spec spec = tiny_spec();
    struct train_options opt = tiny_options();
    f = (struct fixture){0};
    spec.dim = 24; /* tensors of more than one block */
    spec.heads = 3;
    (void)snprintf(f.dir, sizeof f.dir, "/tmp/skerry-test-XXXXXX");
    if (!mkdtemp(f.dir))
        return -1;
    (void)snprintf(f.path, sizeof f.path, "%s/moments", f.dir);
    OK(device_open("cpu", 1, &f.dev, err));
    OK(model_new(&spec, &f.m, err));
    float *flat = tiny_weights(f.m, 3);
    struct trainer **both[] = {&f.from, &f.to};
    for (int i = 0; i < 2; i++) {
        OK(trainer_make(f.dev, f.m, &opt, both[i], err));
        OK(trainer_set(*both[i], flat, err));
        trainer_position(*both[i], 0, 100);
    }
    mem_free(flat);
    steps(f.from, STEPS);
    *state = &f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    trainer_free(f->from);
    trainer_free(f->to);
    model_free(f->m);
    device_close(f->dev);
    return file_remove_tree(f->dir, NULL);
}

static float *read_tensor(struct trainer *t, enum trainer_vector v, const struct model_tensor *m)
{
    float *x = mem_alloc_array(m->count, sizeof *x);
    OK(trainer_read(t, v, m, x, err));
    return x;
}

/* Every value within the step of its block; the roots of v never smaller. */
static void test_round_trip(void **state)
{
    struct fixture *f = *state;
    uint8_t one[HASH_BYTES], two[HASH_BYTES];
    uint64_t bytes, blocks = 0;
    OK(moments_save(f->from, f->path, one, &bytes, err));
    OK(moments_save(f->from, f->path, two, NULL, err));
    assert_memory_equal(one, two, sizeof one);
    OK(moments_load(f->to, f->path, err));
    assert_int_equal(trainer_adam_step(f->to), STEPS);

    for (size_t i = 0; i < f->m->n; i++) {
        const struct model_tensor *t = &f->m->tensors[i];
        float *m = read_tensor(f->from, TRAINER_ADAM_M, t);
        float *v = read_tensor(f->from, TRAINER_ADAM_V, t);
        float *m2 = read_tensor(f->to, TRAINER_ADAM_M, t);
        float *v2 = read_tensor(f->to, TRAINER_ADAM_V, t);
        for (uint64_t b = 0; b < t->count; b += 256, blocks++) {
            const uint64_t end = b + 256 < t->count ? b + 256 : t->count;
            double ms = 0, vs = 0;
            for (uint64_t j = b; j < end; j++) {
                ms = fmax(ms, fabs((double)m[j]));
                vs = fmax(vs, sqrt((double)v[j]));
            }
            for (uint64_t j = b; j < end; j++) {
                const double root = sqrt((double)v[j]), root2 = sqrt((double)v2[j]);
                assert_true(fabs((double)m[j] - (double)m2[j]) <= ms / 254 * 1.001);
                assert_true(root2 >= root * 0.99999 && root2 <= root + vs / 255 * 1.001);
            }
        }
        mem_free(m);
        mem_free(v);
        mem_free(m2);
        mem_free(v2);
    }
    /* A byte for each value, four for each block; the rest is the header. */
    assert_true(bytes > 2 * f->m->params + 8 * blocks);
    assert_true(bytes < 2 * f->m->params + 8 * blocks + 128 * 4 * f->m->n);
}

/* After the journey the steps go nearly where they would have gone. */
static void test_goes_on(void **state)
{
    struct fixture *f = *state;
    float *start = model_flat_new(f->m), *here = model_flat_new(f->m),
          *there = model_flat_new(f->m);
    OK(moments_save(f->from, f->path, NULL, NULL, err));
    OK(moments_load(f->to, f->path, err));
    OK(trainer_get(f->from, start, err));
    OK(trainer_set(f->to, start, err));
    trainer_position(f->to, trainer_next_step(f->from), 100);
    steps(f->from, 3);
    steps(f->to, 3);
    OK(trainer_get(f->from, here, err));
    OK(trainer_get(f->to, there, err));
    double moved = 0, apart = 0;
    for (uint64_t i = 0; i < f->m->flat; i++) {
        moved += pow((double)here[i] - (double)start[i], 2);
        apart += pow((double)here[i] - (double)there[i], 2);
    }
    assert_true(moved > 0);
    assert_true(sqrt(apart) < 0.2 * sqrt(moved));
    mem_free(start);
    mem_free(here);
    mem_free(there);
}

static void count(void *arg)
{
    ++*(size_t *)arg;
}

/* Coding them takes as long as writing them: each tensor is a sign that it goes on. */
static void test_signs(void **state)
{
    struct fixture *f = *state;
    size_t n = 0;
    pieces_hear(count, &n);
    OK(moments_save(f->from, f->path, NULL, NULL, err));
    assert_true(n > 2 * f->m->n);
    const size_t saved = n;
    OK(moments_load(f->to, f->path, err));
    assert_true(n - saved > 5 * f->m->n); /* each of its four vectors is read, too */
    pieces_hear(NULL, NULL);
}

static void test_zero(void **state)
{
    struct fixture *f = *state;
    OK(trainer_reset_moments(f->to, err));
    OK(moments_save(f->to, f->path, NULL, NULL, err));
    steps(f->to, 1);
    OK(moments_load(f->to, f->path, err));
    assert_int_equal(trainer_adam_step(f->to), 0);
    float *v = read_tensor(f->to, TRAINER_ADAM_V, &f->m->tensors[0]);
    float *m = read_tensor(f->to, TRAINER_ADAM_M, &f->m->tensors[0]);
    for (uint64_t i = 0; i < f->m->tensors[0].count; i++)
        assert_true(v[i] == 0.0f && m[i] == 0.0f);
    mem_free(v);
    mem_free(m);
}

/* Damage: a file as it should be, with one thing changed; the moments stay. */
static void refuse(struct fixture *f, const struct buf *sound, size_t len, size_t at,
                   const void *bytes, size_t n, const char *sentence)
{
    struct err e = {0};
    char *copy = mem_alloc(sound->len + 1);
    memcpy(copy, sound->data, sound->len);
    memcpy(copy + at, bytes, n);
    OK(file_write_atomic(f->path, copy, len, 0600, err));
    e = (struct err){0};
    assert_int_equal(moments_load(f->to, f->path, &e), -ERR_FORMAT);
    if (!strstr(e.msg, sentence))
        fail_msg("\"%s\" does not say %s", e.msg, sentence);
    assert_int_equal(trainer_adam_step(f->to), 2);
    mem_free(copy);
}

static size_t find(const struct buf *b, const char *text)
{
    const char *at = memmem(b->data, b->len, text, strlen(text));
    assert_non_null(at);
    return (size_t)(at - (const char *)b->data);
}

static void test_hostile(void **state)
{
    struct fixture *f = *state;
    struct err e = {0};
    struct buf sound = {0};
    struct st st = {0};
    OK(trainer_reset_moments(f->to, err));
    steps(f->to, 2);
    float *before = read_tensor(f->to, TRAINER_ADAM_M, &f->m->tensors[3]);
    OK(moments_save(f->from, f->path, NULL, NULL, err));
    OK(file_read(f->path, 1 << 24, &sound, err));
    OK(st_open(f->path, &st, err));
    const size_t scale = (size_t)st_find(&st, "blocks.1.mlp.fc1.weight.vs")->offset;
    char step[24];
    (void)snprintf(step, sizeof step, "\"%llu\"", (unsigned long long)trainer_adam_step(f->from));
    const float bad[] = {NAN, INFINITY, -1.0f, 1e30f};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        refuse(f, &sound, sound.len, scale, &bad[i], sizeof bad[i], "blocks.1.mlp.fc1.weight.vs");
    refuse(f, &sound, sound.len, find(&sound, "moments.1"), "momentz.1", 9, "format");
    refuse(f, &sound, sound.len, find(&sound, step), "\"x\"", 3, "adam_step");
    refuse(f, &sound, sound.len, find(&sound, "fc1.weight.vs"), "fc9.weight.vs", 13, "fc1.weight");
    refuse(f, &sound, sound.len, find(&sound, "U8"), "I8", 2, "");
    refuse(f, &sound, sound.len - 7, 0, sound.data, 1, "");
    refuse(f, &sound, 4, 0, sound.data, 1, "");
    float *after = read_tensor(f->to, TRAINER_ADAM_M, &f->m->tensors[3]);
    assert_memory_equal(before, after, f->m->tensors[3].count * sizeof *after);
    assert_int_equal(moments_load(f->to, "/nonexistent/x", &e), -ENOENT);
    mem_free(before);
    mem_free(after);
    st_release(&st);
    buf_release(&sound);
}

/* A file that makes m as large as it likes makes no longer steps than Adam can, and none where v is
 * nothing. */
static void test_inflated(void **state)
{
    struct fixture *f = *state;
    struct buf sound = {0};
    struct st st = {0};
    const struct model_tensor *t = model_find(f->m, "blocks.1.mlp.fc1.weight");
    const float huge = 1e18f, none = 0;
    OK(moments_save(f->from, f->path, NULL, NULL, err));
    OK(file_read(f->path, 1 << 24, &sound, err));
    OK(st_open(f->path, &st, err));
    memcpy((char *)sound.data + st_find(&st, "blocks.1.mlp.fc1.weight.ms")->offset, &huge, 4);
    memcpy((char *)sound.data + st_find(&st, "blocks.1.mlp.fc1.weight.ms")->offset + 4, &huge, 4);
    memcpy((char *)sound.data + st_find(&st, "blocks.1.mlp.fc1.weight.vs")->offset + 4, &none, 4);
    OK(file_write_atomic(f->path, sound.data, sound.len, 0600, err));
    OK(moments_load(f->to, f->path, err));
    float *m = read_tensor(f->to, TRAINER_ADAM_M, t), *v = read_tensor(f->to, TRAINER_ADAM_V, t);
    const struct train_options *o = trainer_options(f->to);
    const double k = (1 - o->beta1) / sqrt((1 - o->beta2) * (1 - o->beta1 * o->beta1 / o->beta2));
    double most = 0;
    for (uint64_t j = 0; j < 512; j++) {
        assert_true(fabs((double)m[j]) <= k * sqrt((double)v[j]) * 1.00001);
        most = fmax(most, fabs((double)m[j]));
    }
    assert_true(most > 0 && m[256] == 0 && m[511] == 0);
    mem_free(m);
    mem_free(v);
    st_release(&st);
    buf_release(&sound);
}

/* The moments of another model. */
static void test_other_model(void **state)
{
    struct fixture *f = *state;
    struct err e = {0};
    struct model_spec spec = tiny_spec();
    struct train_options opt = tiny_options();
    struct model *m = NULL;
    struct trainer *t = NULL;
    OK(model_new(&spec, &m, err));
    OK(trainer_make(f->dev, m, &opt, &t, err));
    OK(moments_save(f->from, f->path, NULL, NULL, err));
    assert_int_equal(moments_load(t, f->path, &e), -ERR_FORMAT);
    trainer_free(t);
    model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_signs),       cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_goes_on),     cmocka_unit_test(test_zero),
        cmocka_unit_test(test_hostile),     cmocka_unit_test(test_inflated),
        cmocka_unit_test(test_other_model),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
