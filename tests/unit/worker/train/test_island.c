/* The island: several devices train as one does, stay equal to the bit, and fail together. */
#include "kernels/device/device.h"
#include "tests/unit/worker/train/sides.h"

#include <errno.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "worker/train/checkpoint.h"
#include "worker/net/distill.h"
#include "worker/net/llama.h"

/* Teachers of a formula, on memory that the test can reach. */
static int formula(void *arg, const struct mix_call *calls, int n, struct err *err)
{
    const int64_t values = *(const int64_t *)arg;
    for (int c = 0; c < n; c++)
        for (int64_t i = 0; i < calls[c].rows * values; i++)
            calls[c].v[i] = calls[c].x[i] * (float)(calls[c].expert + 1) * 0.5f -
                            calls[c].t[i / values] * (float)calls[c].labels[i / values];
    return 0;
}

static int teach(void *arg, int rank, struct err *err)
{
    static int64_t values = 3 * 6 * 6;
    const struct mix_experts experts = {.count = 3, .arg = &values, .run = formula};
    return distill_teach(trainer_net(island_trainer_rank(arg, rank)), &experts, err);
}

static struct side open_side(const char *devices, const struct model *m,
                             const struct train_options *o)
{
    return side_on(SIDE_THREADS, devices, m, o, NULL, o->distill ? teach : NULL);
}

/* Weights and moments of every rank are those of the first. */
static void assert_ranks_equal(const struct side *s, const struct model *m)
{
    static const enum trainer_vector all[] = {TRAINER_WEIGHTS, TRAINER_ADAM_M, TRAINER_ADAM_V};
    const size_t bytes = m->flat * sizeof(float);
    struct trainer *first = island_trainer_first(s->t);
    for (int r = 1; r < island_size(s->is); r++) {
        struct trainer *t = island_trainer_rank(s->t, r);
        for (size_t v = 0; v < sizeof all / sizeof *all; v++)
            assert_memory_equal(trainer_device(first, all[v]), trainer_device(t, all[v]), bytes);
        assert_int_equal(trainer_next_step(t), trainer_next_step(first));
        assert_int_equal(trainer_adam_step(t), trainer_adam_step(first));
    }
}

static void check_curve(const char *devices, const struct model *m, const struct train_options *o,
                        uint64_t bucket)
{
    struct side one = open_side("cpu", m, o), many = open_side(devices, m, o);
    if (bucket)
        island_trainer_set_bucket(many.t, bucket);
    for (unsigned i = 0; i < STEPS; i++) {
        struct step_result a, b;
        OK(step(&one, m, i, count_of(i), &a, err));
        OK(step(&many, m, i, count_of(i), &b, err));
        assert_true(fabs(a.loss - b.loss) <= 1e-5 * fabs(a.loss));
        assert_true(fabs(a.grad_norm - b.grad_norm) <= 1e-4 * fabs(a.grad_norm));
        assert_true(a.lr == b.lr && a.step == b.step);
        assert_ranks_equal(&many, m);
    }
    close_side(&one);
    close_side(&many);
}

static void test_curves(void **state)
{
    const struct model_spec specs[] = {tiny_spec(), tiny_router(), tiny_llama(),
                                       tiny_qwen(), tiny_qwen3(),  tiny_cascade()};
    const struct train_options o = options();
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        struct model *m = make_model(&specs[i]);
        check_curve("cpu,cpu", m, &o, 0);
        check_curve("cpu,cpu,cpu", m, &o, 4);
        model_free(m);
    }
    struct model_spec tied = tiny_llama();
    tied.tied = true;
    struct model *m = make_model(&tied);
    check_curve("cpu-ref,cpu-ref,cpu-ref", m, &o, 1000);
    model_free(m);

    /* Each device has its own encoders. */
    struct tiny_encoders encoders[3];
    struct net_encoders tables[3];
    struct train_options captioned = o;
    const struct model_spec told = tiny_captioned();
    for (int i = 0; i < 3; i++)
        tables[i] = *tiny_encoders(&encoders[i], &told, DT_F32);
    captioned.encoders = tables;
    m = make_model(&told);
    check_curve("cpu,cpu,cpu", m, &captioned, 4);
    assert_true(encoders[0].captions > encoders[2].captions && encoders[2].captions > 0);
    model_free(m);

    struct model_spec conditioned = specs[0];
    struct train_options estimates = o;
    conditioned.self_condition = true;
    estimates.self_condition = 0.5;
    m = make_model(&conditioned);
    check_curve("cpu,cpu,cpu", m, &estimates, 4);
    model_free(m);

    struct train_options student = o;
    student.distill = true;
    m = make_model(&specs[0]);
    check_curve("cpu,cpu,cpu", m, &student, 4);
    model_free(m);
}

/* The cut into buckets changes no bit; nor does another run. */
static void test_buckets(void **state)
{
    const struct model_spec spec = tiny_spec();
    struct train_options o = options();
    struct model *m = make_model(&spec);
    const uint64_t sizes[] = {ISLAND_BUCKET_BYTES, ISLAND_BUCKET_BYTES, 4, 1024, 5000};
    float *want = NULL;
    o.precision = NET_BF16;
    o.recompute = true;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct step_result r;
        struct side s = open_side("cpu,cpu", m, &o);
        float *flat = model_flat_new(m);
        island_trainer_set_bucket(s.t, sizes[i]);
        for (unsigned n = 0; n < STEPS; n++)
            OK(step(&s, m, n, count_of(n), &r, err));
        OK(trainer_get(island_trainer_first(s.t), flat, err));
        if (want)
            assert_memory_equal(want, flat, m->flat * sizeof *flat);
        close_side(&s);
        mem_free(want);
        want = flat;
    }
    mem_free(want);
    model_free(m);
}

static const struct comm_ops *plain_comm;
static int sums; /* calls of rank 0 */

static int counting_all_reduce(struct comm *c, const struct comm_piece *pieces, size_t n,
                               enum comm_type type, struct stream *s)
{
    sums++;
    return plain_comm->all_reduce(c, pieces, n, type, s);
}

/* Of a step like the one before; the first of its kind sums once, when all are there. */
static int count_sums(const struct model_spec *spec, uint64_t bucket, unsigned samples)
{
    struct step_result r;
    struct model *m = make_model(spec);
    const struct train_options o = options();
    struct side s = open_side("cpu,cpu", m, &o);
    struct comm *c = island_comm(s.is, 0);
    plain_comm = c->ops;
    struct comm_ops counting = *plain_comm;
    counting.all_reduce = counting_all_reduce;
    c->ops = &counting;
    island_trainer_set_bucket(s.t, bucket);
    for (unsigned i = 0; i < 3; i++) {
        sums = 0;
        OK(step(&s, m, i, i == 0 ? BATCH - 1 : samples, &r, err));
        assert_true(i == 2 || sums == 1);
    }
    c->ops = plain_comm;
    close_side(&s);
    model_free(m);
    return sums;
}

/* Gradients are summed on the way: those of a block when the backward has passed it. */
static void test_overlap(void **state)
{
    const struct model_spec dit = tiny_spec(), llama = tiny_llama();
    struct model_spec tied = llama;
    tied.tied = true;
    assert_int_equal(count_sums(&dit, 1 << 20, BATCH), 1);
    assert_int_equal(count_sums(&dit, 4, BATCH), 1 + dit.depth + dit.depth + 1 + 1);
    assert_int_equal(count_sums(&dit, 4, 1), 1);
    assert_int_equal(count_sums(&llama, 4, BATCH), 1 + llama.depth + 1);
    assert_int_equal(count_sums(&tied, 4, BATCH), llama.depth + 1);
}

/* An island of one is the trainer: no thread, no communicator, the same bits. */
static void test_one(void **state)
{
    const struct model_spec spec = tiny_spec();
    const struct train_options o = options();
    struct model *m = make_model(&spec);
    struct side s = open_side("cpu", m, &o);
    struct device *dev = NULL;
    struct trainer *t = NULL;
    float *flat = tiny_weights(m, 21);
    OK(device_open("cpu", SIDE_THREADS, &dev, err));
    OK(trainer_make(dev, m, &o, &t, err));
    OK(trainer_set(t, flat, err));
    trainer_position(t, 100, 200);
    assert_null(island_comm(s.is, 0));
    assert_int_equal(island_device(s.is, 0)->threads, SIDE_THREADS);
    for (unsigned i = 0; i < STEPS; i++) {
        struct step_result a, b;
        struct samples x;
        const struct batch batch = make_batch(&m->spec, i, count_of(i), &x);
        OK(trainer_step(t, &batch, &a, err));
        OK(step(&s, m, i, count_of(i), &b, err));
        assert_true(a.loss == b.loss && a.grad_norm == b.grad_norm);
    }
    assert_memory_equal(trainer_device(t, TRAINER_WEIGHTS),
                        trainer_device(island_trainer_first(s.t), TRAINER_WEIGHTS),
                        m->flat * sizeof *flat);
    trainer_free(t);
    device_close(dev);
    close_side(&s);
    mem_free(flat);
    model_free(m);
}

/* ---- failures ---- */

/* The CPU's table with one call that fails, on the device of rank 1. */
static const struct kernel_ops *plain;
static int matmuls_left, adamws_left;

static int failing_matmul(struct device *dev, const struct matmul *mm, struct stream *s)
{
    return matmuls_left-- > 0 ? plain->matmul(dev, mm, s) : -ERR_DEVICE;
}

static int failing_adamw(struct device *dev, const struct adamw *p, struct stream *s)
{
    return adamws_left-- > 0 ? plain->adamw(dev, p, s) : -ERR_DEVICE;
}

/* The failing step is the first one, or like the one before. */
static void check_failure(const struct model *m, const struct train_options *o, bool later,
                          int matmuls, int adamws)
{
    struct err e = {0};
    struct step_result r, again;
    struct side s = {0};
    float *flat = tiny_weights(m, 21);
    OK(island_open("cpu,cpu,cpu", 3, &s.is, err));
    struct device *dev = island_device(s.is, 1);
    plain = dev->ops;
    struct kernel_ops faulty = *plain;
    faulty.matmul = failing_matmul;
    faulty.adamw = failing_adamw;
    dev->ops = &faulty;
    OK(island_trainer_new(s.is, m, o, NULL, NULL, &s.t, err));
    OK(trainer_set(island_trainer_first(s.t), flat, err));
    OK(island_trainer_follow(s.t, ISLAND_ALL, err));
    matmuls_left = adamws_left = 1 << 30;
    if (later)
        OK(step(&s, m, 0, BATCH, &r, err));
    matmuls_left = matmuls;
    adamws_left = adamws;
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(step(&s, m, i, BATCH, &r, &e), -ERR_DEVICE);
        assert_non_null(strstr(e.msg, "rank 1 of 3 (cpu): "));
    }
    /* The next task begins with the weights that it brings. */
    matmuls_left = adamws_left = 1 << 30;
    OK(trainer_set(island_trainer_first(s.t), flat, err));
    OK(trainer_reset_moments(island_trainer_first(s.t), err));
    trainer_position(island_trainer_first(s.t), 100, 200);
    OK(island_trainer_follow(s.t, ISLAND_ALL, err));
    OK(step(&s, m, 0, BATCH, &r, err));
    assert_ranks_equal(&s, m);
    struct side fresh = open_side("cpu,cpu,cpu", m, o);
    OK(step(&fresh, m, 0, BATCH, &again, err));
    assert_true(again.loss == r.loss && again.grad_norm == r.grad_norm);
    assert_memory_equal(trainer_device(island_trainer_first(s.t), TRAINER_WEIGHTS),
                        trainer_device(island_trainer_first(fresh.t), TRAINER_WEIGHTS),
                        m->flat * sizeof *flat);
    close_side(&fresh);
    island_trainer_free(s.t);
    dev->ops = plain;
    island_close(s.is);
    mem_free(flat);
}

static void test_failures(void **state)
{
    const struct model_spec spec = tiny_spec();
    const struct train_options o = options();
    struct model *m = make_model(&spec);
    /* in the forward, in the middle of the backward, in the update */
    const int places[][2] = {{0, 9}, {40, 9}, {1 << 30, 0}};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        check_failure(m, &o, false, places[i][0], places[i][1]);
        check_failure(m, &o, true, places[i][0], places[i][1]);
    }
    model_free(m);
}

/* ---- meetings ---- */

enum { MEETINGS = 100 };

struct gathering {
    struct island *is;
    int fails; /* this rank, in place of its last meeting */
    atomic_int here;
    int rcs[3];
};

static int gather(void *arg, int rank, struct err *err)
{
    struct gathering *g = arg;
    for (int i = 1; i <= MEETINGS; i++) {
        if (i == MEETINGS && g->fails == rank)
            return err_set(err, -ENOMEM, "nothing left");
        atomic_fetch_add(&g->here, 1);
        int rc = g->rcs[rank] = island_meet(g->is);
        if (rc < 0)
            return rc;
        if (atomic_load(&g->here) < i * 3)
            return err_set(err, -EINVAL, "alone");
    }
    return 0;
}

static void test_meetings(void **state)
{
    struct err e = {0};
    struct gathering g = {.fails = -1};
    OK(island_open("cpu,cpu,cpu", 3, &g.is, err));
    OK(island_run(g.is, gather, &g, err));
    for (g.fails = 0; g.fails < 3; g.fails++) {
        atomic_store(&g.here, 0);
        assert_int_equal(island_run(g.is, gather, &g, &e), -ENOMEM);
        assert_non_null(strstr(e.msg, "nothing left"));
        for (int i = 0; i < 3; i++)
            assert_int_equal(g.rcs[i], i == g.fails ? 0 : -ECONNABORTED);
    }
    g.fails = -1;
    atomic_store(&g.here, 0);
    OK(island_run(g.is, gather, &g, err));
    island_close(g.is);
}

/* Every rank skips the step, none is touched, and training can go on from other weights. */
static void test_divergence(void **state)
{
    const struct model_spec spec = tiny_spec();
    const struct train_options o = options();
    struct err e = {0};
    struct step_result r;
    struct model *m = make_model(&spec);
    struct side s = open_side("cpu,cpu", m, &o);
    struct trainer *first = island_trainer_first(s.t);
    float *flat = tiny_weights(m, 4);
    OK(step(&s, m, 0, BATCH, &r, err));
    flat[model_find(m, "blocks.1.mlp.fc1.bias")->offset] = INFINITY;
    OK(trainer_set(first, flat, err));
    OK(island_trainer_follow(s.t, ISLAND_WEIGHTS, err));
    OK(step(&s, m, 1, BATCH, &r, err));
    assert_true(r.skipped);
    assert_memory_equal(trainer_device(first, TRAINER_WEIGHTS), flat, m->flat * sizeof *flat);
    assert_int_equal(trainer_next_step(first), 102);
    assert_int_equal(trainer_adam_step(first), 1);
    assert_ranks_equal(&s, m);
    flat[model_find(m, "blocks.1.mlp.fc1.bias")->offset] = 0;
    OK(trainer_set(first, flat, err));
    OK(island_trainer_follow(s.t, ISLAND_WEIGHTS, err));
    OK(step(&s, m, 1, BATCH, &r, err));
    assert_ranks_equal(&s, m);

    assert_int_equal(step(&s, m, 1, 0, &r, &e), -EINVAL);
    close_side(&s);
    mem_free(flat);
    model_free(m);
}

/* What rank 0 saves is enough for all. */
static void test_resume(void **state)
{
    const struct model_spec spec = tiny_spec();
    const struct train_options o = options();
    struct step_result want, got;
    struct model *m = make_model(&spec);
    char path[64];
    snprintf(path, sizeof path, "/tmp/skerry-island-%d", (int)getpid());
    struct side s = open_side("cpu,cpu", m, &o);
    for (unsigned i = 0; i < 3; i++)
        OK(step(&s, m, i, count_of(i), &want, err));
    OK(checkpoint_save(island_trainer_first(s.t), path, NULL, 0, false, err));
    for (unsigned i = 3; i < STEPS; i++)
        OK(step(&s, m, i, count_of(i), &want, err));

    struct side later = open_side("cpu,cpu", m, &o);
    OK(checkpoint_load(island_trainer_first(later.t), path, NULL, err));
    OK(island_trainer_follow(later.t, ISLAND_ALL, err));
    assert_ranks_equal(&later, m);
    for (unsigned i = 3; i < STEPS; i++)
        OK(step(&later, m, i, count_of(i), &got, err));
    assert_true(want.loss == got.loss && want.step == got.step);
    assert_memory_equal(trainer_device(island_trainer_first(s.t), TRAINER_WEIGHTS),
                        trainer_device(island_trainer_first(later.t), TRAINER_WEIGHTS),
                        m->flat * sizeof(float));
    unlink(path);
    close_side(&s);
    close_side(&later);
    model_free(m);
}

/* The state of a replica is the same on any number of devices: a step after going on with
 * fewer, or more, is the step of those who never stopped, but for the order of sums. */
static void test_resume_on_others(void **state)
{
    static const char *const names[] = {"cpu", "cpu,cpu,cpu"};
    const struct model_spec spec = tiny_spec();
    struct train_options o = options();
    struct step_result want, got;
    struct model *m = make_model(&spec);
    char path[64];
    o.accumulate = o.batch; /* more than there are for each of two */
    snprintf(path, sizeof path, "/tmp/skerry-island-others-%d", (int)getpid());
    struct side s = open_side("cpu,cpu", m, &o);
    for (unsigned i = 0; i < 3; i++)
        OK(step(&s, m, i, count_of(i), &want, err));
    OK(checkpoint_save(island_trainer_first(s.t), path, NULL, 0, false, err));
    OK(step(&s, m, 3, count_of(3), &want, err));
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        struct side later = open_side(names[k], m, &o);
        struct trainer *t = island_trainer_first(later.t);
        OK(checkpoint_load(t, path, NULL, err));
        OK(island_trainer_follow(later.t, ISLAND_ALL, err));
        assert_int_equal(trainer_adam_step(t), 3);
        OK(step(&later, m, 3, count_of(3), &got, err));
        assert_true(want.step == got.step && fabs(want.loss - got.loss) < 1e-5);
        const float *a = trainer_device(island_trainer_first(s.t), TRAINER_WEIGHTS);
        const float *b = trainer_device(t, TRAINER_WEIGHTS);
        for (uint64_t i = 0; i < m->flat; i++)
            assert_true(fabsf(a[i] - b[i]) < 1e-4F);
        close_side(&later);
    }
    unlink(path);
    close_side(&s);
    model_free(m);
}

/* ---- devices ---- */

static void check_text(const char *names, int threads, const char *begin, const int *each)
{
    struct island *is = NULL;
    char text[256];
    OK(island_open(names, threads, &is, err));
    island_text(is, text, sizeof text);
    if (strncmp(text, begin, strlen(begin)) != 0)
        fail_msg("%s", text);
    for (int i = 0; i < island_size(is); i++)
        assert_int_equal(island_device(is, i)->threads, each[i]);
    island_close(is);
}

static void refused(const char *names, int code, const char *what)
{
    struct err err = {0};
    struct island *is = NULL;
    assert_int_equal(island_open(names, 2, &is, &err), code);
    if (!strstr(err.msg, what))
        fail_msg("%s", err.msg);
}

static void test_devices(void **state)
{
    check_text("cpu", 3, "cpu: CPU, 3 threads", (int[]){3});
    check_text("cpu,cpu", 4, "cpu,cpu: 2 x CPU, 2 threads", (int[]){2, 2});
    check_text("cpu,cpu,cpu", 1, "cpu,cpu,cpu: 3 x CPU, 1 thread", (int[]){1, 1, 1});
    check_text(" cpu , cpu\t,cpu", 3, "cpu,cpu,cpu: 3 x CPU, 1 thread", (int[]){1, 1, 1});
    check_text("cpu ", 1, "cpu: CPU, 1 thread", (int[]){1});
    check_text("cpu:3,cpu:1", 1, "cpu,cpu: CPU, 3 threads", (int[]){3, 1});
    refused("cpu:3,cpu:0", -EINVAL, "device \"cpu:0\": expected cpu:N with N threads");
    refused("cpu:2x", -EINVAL, "a number from 1 to 256");
    refused("cpu,cpu-ref", -EINVAL, "cpu and cpu-ref are of two kinds");
    refused("cpu, ,cpu", -EINVAL, "between the commas");
    refused("", -EINVAL, "device \"\"");
    refused("cpu,", -EINVAL, "between the commas");
    refused(",cpu", -EINVAL, "between the commas");
    refused("cpu,auto", -EINVAL, "between the commas");
    refused("cuda:0,cuda:all", -EINVAL, "cuda:all is all cards");
    refused("cuda:all,cpu", -EINVAL, "cuda:all is all cards");
    refused("cpu,gpu", -EINVAL, "device \"gpu\" is unknown");
    refused("cpu,cpu,cpu,cpu,cpu,cpu,cpu,cpu,cpu,cpu,cpu,cpu,cpu,cpu,cpu,cpu,cpu", -ERR_LIMIT,
            "at most 16");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_curves),   cmocka_unit_test(test_buckets),
        cmocka_unit_test(test_overlap),  cmocka_unit_test(test_one),
        cmocka_unit_test(test_failures), cmocka_unit_test(test_divergence),
        cmocka_unit_test(test_resume),   cmocka_unit_test(test_resume_on_others),
        cmocka_unit_test(test_devices),  cmocka_unit_test(test_meetings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
