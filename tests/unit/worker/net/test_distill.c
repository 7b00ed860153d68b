/* A student of several teachers; the bound on their memory. */
#include "kernels/device/device.h"
#include "tests/unit/worker/tiny_encoders.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "worker/net/distill.h"
#include "worker/net/dit_rows.h"
#include "worker/net/experts.h"
#include "worker/net/flow_matching.h"

enum { K = 3, N = 8, VALUES = 108 };

struct fixture {
    struct device *dev;
    struct model *m;
    float *flat[K];     /* the teachers */
    unsigned loaded[K]; /* how often */
    int stop_at;        /* expert whose turn cancels; -1: none */
};

static int load(void *arg, int expert, float *flat, struct err *err)
{
    struct fixture *f = arg;
    (void)err;
    memcpy(flat, f->flat[expert], f->m->flat * sizeof *flat);
    f->loaded[expert]++;
    return 0;
}

static int begin(void *arg, int expert, struct err *err)
{
    const struct fixture *f = arg;
    return expert == f->stop_at ? err_set(err, -ERR_CANCELLED, "stopped") : 0;
}

static int setup(void **state)
{
    static struct fixture f = {.stop_at = -1};
    struct model_spec spec = tiny_spec();
    OK(device_open("cpu-ref", 1, &f.dev, err));
    OK(model_new(&spec, &f.m, err));
    for (int k = 0; k < K; k++)
        f.flat[k] = tiny_weights(f.m, 20 + (uint64_t)k);
    *state = &f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    for (int k = 0; k < K; k++)
        mem_free(f->flat[k]);
    model_free(f->m);
    device_close(f->dev);
    return 0;
}

static struct experts *make_experts(struct fixture *f, int room, int batch)
{
    struct experts *x = NULL;
    struct experts_options opt = {
        .count = K,
        .batch = batch,
        .precision = NET_F32,
        .memory_bytes = (uint64_t)room * weights_bytes(f->m, DT_F32, false),
        .arg = f,
        .load = load,
        .begin = begin,
    };
    OK(experts_new(f->dev, f->m, &opt, &x, err));
    assert_int_equal(experts_room(x), room < 1 ? 1 : room > K ? K : room);
    memset(f->loaded, 0, sizeof f->loaded);
    return x;
}

static struct net *make_student(struct fixture *f, enum net_mode mode, const float *flat)
{
    struct net *net = NULL;
    struct net_options opt = {
        .mode = mode, .precision = NET_F32, .batch = N, .label_dropout = 0.3, .distill = true};
    OK(net_new(f->dev, f->m, &opt, &net, err));
    OK(weights_set(net->weights, flat, err));
    return net;
}

struct lesson {
    uint8_t images[N * VALUES];
    int32_t labels[N], partitions[N];
    uint64_t keys[N];
    struct batch batch;
};

static void prepare(const struct fixture *f, struct lesson *l)
{
    tiny_batch(&f->m->spec, 0, N, l->images, l->labels);
    for (int i = 0; i < N; i++) {
        l->partitions[i] = (i * 2) % K;
        l->keys[i] = 500 + (uint64_t)i;
    }
    l->batch = (struct batch){.count = N,
                              .images = l->images,
                              .labels = l->labels,
                              .partitions = l->partitions,
                              .seed = 4,
                              .keys = l->keys};
}

/* What a DiT with these weights says to one noised image. */
static void velocity(struct fixture *f, const float *flat, const float *x, float t, int32_t label,
                     float *v)
{
    struct dit *d = NULL;
    OK(dit_new(f->dev, f->m, &(struct net_options){NET_FORWARD, NET_F32, 1}, &d, err));
    OK(weights_set(dit_weights(d), flat, err));
    OK(dit_forward(d, NULL, 0,
                   &(struct dit_io){.B = 1, .x = x, .t = &t, .labels = &label, .pred = v}, err));
    OK(weights_sync(dit_weights(d), err));
    dit_free(d);
}

/* Sample by sample: the draws of flow matching, the teacher of the partition, the mean of
 * squares in double. */
static void test_by_hand(void **state)
{
    struct fixture *f = *state;
    struct lesson l;
    struct flow_matching flow;
    float losses[N], *mine = tiny_weights(f->m, 7);
    unsigned null_labels = 0;
    prepare(f, &l);
    struct experts *x = make_experts(f, K, 3);
    struct net *student = make_student(f, NET_TRAIN, mine);
    const struct mix_experts teachers = experts_mix(x);
    OK(distill_teach(student, &teachers, err));
    OK(net_loss(student, &l.batch, true, 1.0f / N, true, &(struct net_result){.losses = losses},
                err));

    OK(flow_matching_init(&flow, student->weights, &student->opt, err));
    OK(flow_matching_load(&flow, &l.batch, err));
    OK(flow_matching_mix(&flow, 0, l.batch.count, err));
    for (int i = 0; i < N; i++) {
        float ours[VALUES], theirs[VALUES];
        const float *xt = flow.d_xt + i * VALUES;
        double sum = 0;
        null_labels += flow.labels[i] == f->m->spec.classes;
        velocity(f, mine, xt, flow.t[i], flow.labels[i], ours);
        velocity(f, f->flat[l.partitions[i]], xt, flow.t[i], flow.labels[i], theirs);
        for (int j = 0; j < VALUES; j++)
            sum += pow((double)ours[j] - (double)theirs[j], 2);
        if (fabs(sum / VALUES - (double)losses[i]) > 1e-5 * sum / VALUES)
            fail_msg("sample %d: loss %g, expected %g", i, (double)losses[i], sum / VALUES);
    }
    assert_true(null_labels > 0 && null_labels < N); /* dropped for the teacher too */
    flow_matching_release(&flow);
    net_free(student);
    experts_free(x);
    mem_free(mine);
}

/* A student that is its teacher has nothing to learn; flow matching would say otherwise. */
static void test_at_the_goal(void **state)
{
    struct fixture *f = *state;
    struct lesson l;
    float losses[N];
    prepare(f, &l);
    for (int i = 0; i < N; i++)
        l.partitions[i] = 1;
    struct experts *x = make_experts(f, 1, N);
    struct net *student = make_student(f, NET_TRAIN, f->flat[1]);
    const struct mix_experts teachers = experts_mix(x);
    OK(distill_teach(student, &teachers, err));
    OK(net_loss(student, &l.batch, true, 1.0f / N, true, &(struct net_result){.losses = losses},
                err));
    for (int i = 0; i < N; i++)
        assert_true(losses[i] == 0);
    for (uint64_t i = 0; i < f->m->flat; i++)
        if (student->weights->g[i] != 0)
            fail_msg("gradient %g at %d", (double)student->weights->g[i], (int)i);
    assert_int_equal(f->loaded[1], 1);
    assert_int_equal(f->loaded[0] + f->loaded[2], 0);
    net_free(student);
    experts_free(x);
}

/* The teachers are told the captions of the student's batch: one with its weights says what it
 * says, and one with others does not. */
static void test_captions(void **state)
{
    static uint8_t images[N * 3 * TINY_PIXELS * TINY_PIXELS];
    struct fixture g = *(struct fixture *)*state;
    const struct model_spec spec = tiny_captioned();
    struct tiny_encoders e;
    struct net *student = NULL;
    int32_t ids[N * 5], lengths[N], partitions[N] = {0};
    uint64_t keys[N] = {1, 2, 3, 4, 5, 6, 7, 8};
    float losses[N];
    OK(model_new(&spec, &g.m, err));
    for (int k = 0; k < K; k++)
        g.flat[k] = tiny_weights(g.m, 20 + (uint64_t)k);
    tiny_captions(&spec, 0, N, images, ids, lengths);
    const struct batch b = {.count = N,
                            .images = images,
                            .captions = ids,
                            .caption_lengths = lengths,
                            .partitions = partitions,
                            .keys = keys};
    const struct net_options opt = {.mode = NET_TRAIN,
                                    .precision = NET_F32,
                                    .batch = N,
                                    .label_dropout = 0.3,
                                    .distill = true,
                                    .encoders = tiny_encoders(&e, &spec, DT_F32)};
    struct experts *x = make_experts(&g, 1, 5);
    const struct mix_experts teachers = experts_mix(x);
    OK(net_new(g.dev, g.m, &opt, &student, err));
    OK(distill_teach(student, &teachers, err));
    for (int k = 0; k < 2; k++) {
        OK(weights_set(student->weights, g.flat[k], err));
        OK(net_loss(student, &b, true, 1, false, &(struct net_result){.losses = losses}, err));
        for (int i = 0; i < N; i++)
            assert_true(k ? losses[i] > 0.01f : losses[i] < 1e-9f);
    }
    net_free(student);
    experts_free(x);
    for (int k = 0; k < K; k++)
        mem_free(g.flat[k]);
    model_free(g.m);
}

/* Each chain learns from the same chain of its teacher: where only the upscalers differ, the base
 * has nothing to learn. */
static void test_two_chains(void **state)
{
    struct fixture g = *(struct fixture *)*state;
    const struct model_spec spec = tiny_cascade();
    struct net *student = NULL;
    struct lesson l;
    float losses[N], base[N];
    OK(model_new(&spec, &g.m, err));
    for (int k = 0; k < K; k++)
        g.flat[k] = tiny_weights(g.m, 20 + (uint64_t)k);
    for (size_t i = 0; i < g.m->chains[0]->n; i++) { /* 0 and 1 have the same base */
        const struct model_tensor *t = &g.m->tensors[i];
        memcpy(g.flat[0] + t->offset, g.flat[1] + t->offset, t->count * sizeof(float));
    }
    prepare(&g, &l);
    struct experts *x = make_experts(&g, 1, 5);
    const struct mix_experts teachers = experts_mix(x);
    student = make_student(&g, NET_TRAIN, g.flat[1]);
    struct net_result r = {.losses = losses, .base = base};
    assert_int_equal(net_loss(student, &l.batch, true, 1, false, &r, NULL), -EINVAL);
    OK(distill_teach(student, &teachers, err));
    for (int k = K - 1; k >= 0; k--) {
        for (int i = 0; i < N; i++)
            l.partitions[i] = k;
        OK(net_loss(student, &l.batch, true, 1.0f / N, true, &r, err));
        for (int i = 0; i < N; i++) {
            assert_true(k == 2 ? base[i] > 0.01f : base[i] == 0);
            assert_true(k == 1 ? losses[i] == 0 : losses[i] > base[i] + 0.01f);
        }
    }
    OK(net_loss(student, &l.batch, true, 1.0f / N, true, &r, err));
    for (size_t i = 0; i < g.m->n; i++) {
        const struct model_tensor *t = &g.m->tensors[i];
        bool zeros = true;
        for (uint64_t j = 0; j < t->count; j++)
            zeros = zeros && student->weights->g[t->offset + j] == 0;
        assert_true(zeros || i >= g.m->chains[0]->n);
    }
    assert_false(net_has_parts(g.m, &student->opt));
    assert_false(student->ops->graphs); /* the host asks the teachers */
    net_free(student);
    experts_free(x);
    for (int k = 0; k < K; k++)
        mem_free(g.flat[k]);
    model_free(g.m);
}

static double train(struct fixture *f, int room, int batch, float *end, double *ret_first)
{
    struct lesson l;
    struct trainer *t = NULL;
    struct train_options opt = tiny_options();
    struct step_result r = {0};
    float *start = tiny_weights(f->m, 7);
    prepare(f, &l);
    opt.batch = N;
    opt.accumulate = 2;
    opt.lr = 3e-3;
    opt.distill = true;
    struct net_options nopt = train_net_options(&opt);
    struct net *net = NULL;
    struct experts *x = make_experts(f, room, batch);
    const struct mix_experts teachers = experts_mix(x);
    OK(net_new(f->dev, f->m, &nopt, &net, err));
    OK(distill_teach(net, &teachers, err));
    OK(trainer_new(net, &opt, &t, err));
    OK(trainer_set(t, start, err));
    for (int i = 0; i < 30; i++) {
        OK(trainer_step(t, &l.batch, &r, err));
        if (i == 0)
            *ret_first = r.loss;
    }
    OK(trainer_get(t, end, err));
    trainer_free(t);
    experts_free(x);
    mem_free(start);
    return r.loss;
}

/* The loss goes down; how many teachers fit, and how batches are cut, changes no bit. */
static void test_training(void **state)
{
    struct fixture *f = *state;
    float *a = model_flat_new(f->m), *b = model_flat_new(f->m);
    double first, last = train(f, K, N, a, &first);
    if (!(last < 0.5 * first))
        fail_msg("loss from %g to %g", first, last);
    assert_int_equal(f->loaded[0] + f->loaded[1] + f->loaded[2], K);
    for (int room = 0; room < K; room++) {
        double again;
        assert_true(train(f, room, 1 + room, b, &again) == last);
        assert_memory_equal(a, b, f->m->flat * sizeof *a);
        assert_true(f->loaded[0] + f->loaded[1] + f->loaded[2] > K);
    }
    mem_free(a);
    mem_free(b);
}

static void test_refusals(void **state)
{
    struct fixture *f = *state;
    struct err e = {0};
    struct lesson l;
    float losses[N];
    struct net_result r = {.losses = losses};
    struct net *plain = NULL;
    struct net_options opt = {.mode = NET_FORWARD, .precision = NET_F32, .batch = N};
    prepare(f, &l);
    struct experts *x = make_experts(f, K, N);
    struct mix_experts teachers = experts_mix(x);
    OK(net_new(f->dev, f->m, &opt, &plain, err));
    assert_int_equal(distill_teach(plain, &teachers, &e), -EINVAL);
    net_free(plain);

    struct net *student = make_student(f, NET_FORWARD, f->flat[0]);
    assert_int_equal(net_loss(student, &l.batch, false, 0, false, &r, &e), -EINVAL);
    OK(distill_teach(student, &teachers, err));
    OK(net_loss(student, &l.batch, false, 0, false, &r, err));
    l.partitions[3] = K;
    assert_int_equal(net_loss(student, &l.batch, false, 0, false, &r, &e), -EINVAL);
    assert_non_null(strstr(e.msg, "sample 3 is of partition 3"));
    l.partitions[3] = 0;
    l.batch.partitions = NULL;
    assert_int_equal(net_loss(student, &l.batch, false, 0, false, &r, &e), -EINVAL);
    l.batch.partitions = l.partitions;
    f->stop_at = 2;
    assert_int_equal(net_loss(student, &l.batch, false, 0, false, &r, &e), -ERR_CANCELLED);
    f->stop_at = -1;
    OK(distill_teach(student, NULL, err));
    assert_int_equal(net_loss(student, &l.batch, false, 0, false, &r, &e), -EINVAL);
    net_free(student);
    experts_free(x);
}

/* ---- without memory ---- */

static const struct kernel_ops *plain;
static int live, allocs_left;

static int do_alloc(struct device *d, size_t bytes, void **ret, struct err *e)
{
    if (allocs_left-- == 0)
        return err_set(e, -ENOMEM, "no room");
    const int rc = plain->alloc(d, bytes, ret, e);
    live += rc == 0;
    return rc;
}

static void do_free(struct device *d, void *p)
{
    live -= p != NULL;
    plain->free(d, p);
}

/* A student for which the device has no room, at whichever of its allocations, leaves nothing (what
 * is not the device's is told by the sanitizers). */
static void test_no_room(void **state)
{
    const struct fixture *f = *state;
    const struct model_spec spec = tiny_cascade();
    const struct net_options opt = {
        .mode = NET_TRAIN, .precision = NET_F32, .batch = N, .distill = true};
    struct model *m = NULL;
    struct net *net = NULL;
    int n = 0, rc = -ENOMEM;
    OK(model_new(&spec, &m, err));
    plain = f->dev->ops;
    struct kernel_ops ops = *plain;
    ops.alloc = do_alloc;
    ops.free = do_free;
    f->dev->ops = &ops;
    for (; rc == -ENOMEM; n++) {
        struct err e = {0};
        allocs_left = n;
        rc = net_new(f->dev, m, &opt, &net, &e);
        assert_true(rc == 0 || (rc == -ENOMEM && live == 0));
    }
    OK(rc);
    assert_true(n > 4);
    net_free(net);
    assert_int_equal(live, 0);
    f->dev->ops = plain;
    model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_by_hand),  cmocka_unit_test(test_at_the_goal),
        cmocka_unit_test(test_captions), cmocka_unit_test(test_training),
        cmocka_unit_test(test_refusals), cmocka_unit_test(test_two_chains),
        cmocka_unit_test(test_no_room),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
