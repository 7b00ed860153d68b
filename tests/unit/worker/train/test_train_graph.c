/* Training on a device that is not the host: a step waits once, at its end, and from the second
 * of a shape on it is a graph.  None of that is seen in what is learned: every bit is the CPU's,
 * over other contents, rates, shapes, and a step that diverges. */
#include "kernels/device/device.h"
#include "tests/unit/worker/tiny.h"

#include <math.h>
#include <string.h>

#include "tests/unit/worker/lazy_device.h"
#include "worker/net/distill.h"

enum { STEPS = 9, SHORT_STEP = 5, BAD_STEP = 3, MAX = 5, SEQ = 8 };

struct course {
    struct model_spec spec;
    struct train_options opt;
    bool bad, shorter, moves; /* a step diverges, one has fewer samples, memory moves once */
    int lacks;                /* recordings that lack memory */
};

/* All that a course shows. */
struct report {
    struct step_result steps[STEPS];
    float *vectors; /* weights, moments, EMA, last gradients */
    size_t values;
    uint64_t adam;
};

struct content {
    uint8_t images[MAX * 3 * 6 * 6];
    int32_t labels[MAX], partitions[MAX];
    int32_t tokens[MAX * (SEQ + 1)], start[MAX * SEQ], target[MAX * SEQ], pos[MAX * SEQ];
};

static struct batch fill(struct content *c, const struct model_spec *s, unsigned step,
                         unsigned count)
{
    struct batch b = {.count = count};
    if (model_is_text(s)) {
        for (unsigned i = 0; i < count * (SEQ + 1); i++)
            c->tokens[i] = (int32_t)(rng_at_u32(7, step, i) % (unsigned)s->vocab);
        for (unsigned i = 0; i < count * SEQ; i++) {
            const int at = (int)(i % SEQ), cut = (int)(step % SEQ);
            c->start[i] = at >= cut ? cut : 0;
            c->pos[i] = at - c->start[i];
            c->target[i] = rng_at_u32(8, step, i) % 5 == 0 ? -1 : c->tokens[i / SEQ + i + 1];
        }
        b.seq = SEQ;
        b.tokens = c->tokens;
        b.start = c->start;
        b.target = c->target;
        b.pos = c->pos;
        return b;
    }
    for (unsigned i = 0; i < sizeof c->images; i++)
        c->images[i] = (uint8_t)rng_at_u32(5, step, i);
    for (unsigned i = 0; i < count; i++) {
        c->labels[i] = (int32_t)(rng_at_u32(6, step, i) % 3);
        c->partitions[i] = c->labels[i];
    }
    b.images = c->images;
    b.labels = s->kind == MODEL_DIT ? c->labels : NULL;
    b.partitions = c->partitions;
    return b;
}

/* A weight that is not a number for the length of one step. */
static void diverge(struct trainer *t, const struct batch *b)
{
    struct step_result r;
    const struct model_tensor *tensor = &trainer_model(t)->tensors[2];
    float *kept = mem_alloc_array(2 * tensor->count, sizeof *kept);
    float *bad = kept + tensor->count;
    OK(trainer_read(t, TRAINER_WEIGHTS, tensor, kept, err));
    memcpy(bad, kept, tensor->count * sizeof *bad);
    bad[0] = NAN;
    OK(trainer_write(t, TRAINER_WEIGHTS, tensor, bad, err));
    OK(trainer_written(t, err));
    OK(trainer_step(t, b, &r, err));
    assert_true(r.skipped);
    OK(trainer_write(t, TRAINER_WEIGHTS, tensor, kept, err));
    OK(trainer_written(t, err));
    mem_free(kept);
}

static void read_all(struct trainer *t, struct report *r)
{
    const struct model *m = trainer_model(t);
    r->vectors = mem_alloc_array(5 * m->flat, sizeof *r->vectors);
    memset(r->vectors, 0, 5 * m->flat * sizeof *r->vectors);
    r->values = 5 * m->flat;
    for (int v = TRAINER_WEIGHTS; v <= TRAINER_GRADIENT; v++)
        for (size_t i = 0; i < m->n; i++)
            OK(trainer_read(t, (enum trainer_vector)v, &m->tensors[i],
                            r->vectors + (uint64_t)v * m->flat + m->tensors[i].offset, err));
    r->adam = trainer_adam_step(t);
}

static struct report take(struct device *dev, const struct course *c)
{
    struct model *m;
    struct trainer *t;
    struct content content;
    struct report r = {.adam = 0};
    OK(model_new(&c->spec, &m, err));
    OK(trainer_make(dev, m, &c->opt, &t, err));
    float *flat = tiny_weights(m, 21);
    OK(trainer_set(t, flat, err));
    trainer_position(t, 10, 40);
    for (unsigned i = 0; i < STEPS; i++) {
        const unsigned count = c->shorter && i == SHORT_STEP ? 3 : MAX;
        const struct batch b = fill(&content, &c->spec, i, count);
        if (c->bad && i == BAD_STEP)
            diverge(t, &b);
        if (c->moves && i == 4)
            lazy.move_next = true;
        const int before = lazy.syncs;
        OK(trainer_step(t, &b, &r.steps[i], err));
        memset(&content, 0xff, sizeof content); /* a step keeps nothing of it */
        if (!dev->unified)
            assert_int_equal(lazy.syncs, before + 1);
    }
    read_all(t, &r);
    mem_free(flat);
    trainer_free(t);
    model_free(m);
    return r;
}

/* launches: what the device must have started as graphs. */
static void compare(const struct course *c, bool refuse, int launches)
{
    struct device *cpu;
    OK(device_open("cpu", 2, &cpu, err));
    struct report want = take(cpu, c);
    struct device *dev = lazy_open(cpu);
    lazy.refuse = refuse;
    lazy.lacks = c->lacks;
    struct report got = take(dev, c);
    assert_int_equal(lazy.launches, launches);
    assert_int_equal(lazy.graphs, 0);
    if (refuse)
        assert_int_equal(lazy.begins, 1);
    for (unsigned i = 0; i < STEPS; i++) {
        assert_true(got.steps[i].loss == want.steps[i].loss);
        assert_true(got.steps[i].grad_norm == want.steps[i].grad_norm);
        assert_true(got.steps[i].lr == want.steps[i].lr && got.steps[i].step == want.steps[i].step);
    }
    assert_int_equal(got.adam, STEPS);
    assert_int_equal(got.values, want.values);
    assert_memory_equal(got.vectors, want.vectors, want.values * sizeof *want.vectors);
    mem_free(want.vectors);
    mem_free(got.vectors);
    device_close(cpu);
}

static struct course course_of(struct model_spec spec)
{
    struct course c = {.spec = spec, .opt = tiny_options()};
    c.opt.warmup = 13; /* the rate differs from step to step, then follows the cosine */
    c.opt.schedule = JOB_SCHEDULE_COSINE;
    c.opt.weight_decay = 0.1;
    return c;
}

static void test_images(void **state)
{
    for (int i = 0; i < 4; i++) {
        struct course c = course_of(tiny_spec());
        c.opt.accumulate = i % 2 ? 3 : 1;
        c.opt.precision = i / 2 ? NET_BF16 : NET_F32;
        c.opt.recompute = i == 2;
        compare(&c, false, STEPS - 1);
    }
}

static void test_router(void **state)
{
    struct course c = course_of(tiny_router());
    compare(&c, false, STEPS - 1);
}

static void test_texts(void **state)
{
    for (int i = 0; i < 2; i++) {
        struct course c = course_of(tiny_llama());
        c.spec.tied = i;
        c.opt.accumulate = 1 + i;
        compare(&c, false, STEPS - 1);
    }
}

/* The bad step is a launch too, and nothing of it stays. */
static void test_divergence(void **state)
{
    struct course c = course_of(tiny_spec());
    c.bad = true;
    compare(&c, false, STEPS);
    c = course_of(tiny_llama());
    c.bad = true;
    compare(&c, false, STEPS);
}

/* A short step is plain, as are those that come new after it. */
static void test_shapes(void **state)
{
    struct course c = course_of(tiny_spec());
    c.shorter = true;
    compare(&c, false, STEPS - 3);
}

static void test_moved_memory(void **state)
{
    struct course c = course_of(tiny_spec());
    c.moves = true;
    compare(&c, false, STEPS - 2);
}

static void test_no_recording(void **state)
{
    struct course c = course_of(tiny_spec());
    compare(&c, true, 0);
}

/* A recording that lacks memory is tried again at the second, fourth and eighth step that is equal
 * to the one before it; the graph of the fourth serves for the rest. */
static void test_lack_of_memory(void **state)
{
    struct course c = course_of(tiny_spec());
    c.lacks = 2;
    compare(&c, false, STEPS - 4);
    assert_int_equal(lazy.begins, 3);
}

/* Those of teachers wait in the middle. */
static void test_students(void **state)
{
    assert_false(distill_net_ops.graphs);
    assert_true(dit_net_ops.graphs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_images),       cmocka_unit_test(test_router),
        cmocka_unit_test(test_texts),        cmocka_unit_test(test_divergence),
        cmocka_unit_test(test_shapes),       cmocka_unit_test(test_moved_memory),
        cmocka_unit_test(test_no_recording), cmocka_unit_test(test_lack_of_memory),
        cmocka_unit_test(test_students),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
