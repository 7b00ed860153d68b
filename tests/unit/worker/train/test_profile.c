/* A profile is measured on the devices of an island, kept, and what plans are made of. */
#include "tests/unit/worker/train/real_encoders.h"

#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/file.h"
#include "worker/pipe/planner.h"
#include "worker/train/profile.h"

/* Returns the bytes of its gradients. */
static uint64_t check_chain(const struct costs *p, int chain, int depth)
{
    const struct costs_chain *c = &p->chains[chain];
    uint64_t gradients = 0;
    assert_int_equal(c->n, depth);
    for (int i = 0; i < c->n; i++) {
        const struct costs_layer *l = &c->layers[i];
        for (int k = 0; k < p->sizes.n; k++)
            assert_true(l->f.s[k] > 0 && l->f.s[k] < 10 && l->b.s[k] > 0 && l->b.s[k] < 10 &&
                        l->w.s[k] > 0 && l->w.s[k] < 10);
        assert_true(l->step > 0 && l->out_bytes > 0 && l->slot_bytes > 0 && l->state_bytes > 0);
        gradients += l->gradient_bytes;
    }
    return gradients;
}

static void check_costs(const struct costs *p, const struct model *m, int devices)
{
    uint64_t gradients = 0;
    assert_int_equal(p->n_devices, devices);
    assert_int_equal(p->n_chains, model_n_chains(&m->spec));
    for (int c = 0; c < p->n_chains; c++)
        gradients += check_chain(p, c, model_chain(m, c)->spec.depth);
    assert_true(gradients >= m->params * sizeof(float));
    for (int i = 0; i < devices; i++) /* which are equal cores */
        assert_true(p->devices[i].speed == 1);
    for (int i = 0; i + 1 < devices; i++)
        assert_true(p->links[i].alpha > 0 && p->links[i].bytes_per_s > 1e6);
}

static void check_same(const struct costs *a, const struct costs *b)
{
    const struct costs_chain *c = &a->chains[0], *d = &b->chains[0];
    assert_float_equal(c->layers[0].f.s[0] / d->layers[0].f.s[0], 1, 1e-6);
    assert_int_equal(c->layers[0].slot_bytes, d->layers[0].slot_bytes);
    assert_true(c->stage.bytes > 0 && c->stage.slot_bytes > 0);
    assert_memory_equal(&c->stage, &d->stage, sizeof c->stage);
    assert_memory_equal(&c->last, &d->last, sizeof c->last);
    assert_true(a->devices[0].kind == COSTS_HOST && b->devices[0].kind == COSTS_HOST);
}

static void check(const struct model_spec *spec, const struct train_options *o, const char *devices,
                  int n)
{
    char folder[] = "/tmp/skerry-profile-XXXXXX";
    struct err e = {0};
    struct model *m = make_model(spec);
    struct island *is = NULL;
    struct costs p, again;
    assert_non_null(mkdtemp(folder));
    OK(island_open(devices, n, &is, err));
    OK(profile_get(is, m, o, UINT64_MAX, folder, &p, err));
    check_costs(&p, m, n);
    /* The second one is read: a measurement would have other times. */
    OK(profile_get(is, m, o, 1 << 20, folder, &again, err));
    check_same(&again, &p);
    assert_int_equal(again.devices[0].memory, 1 << 20);
    costs_release(&again);

    /* One of another island in its place is not believed, nor a damaged one: both are made anew. */
    struct file_names names;
    OK(file_list(folder, 8, &names, err));
    assert_int_equal(names.n, 1);
    char *path = file_join(folder, names.items[0]);
    again = p;
    again.n_devices = 1;
    OK(costs_write(path, &again, err));
    OK(profile_get(is, m, o, UINT64_MAX, folder, &again, err));
    check_costs(&again, m, n);
    costs_release(&again);
    OK(file_write_atomic(path, "{\"format\": ", 11, 0600, err));
    assert_true(costs_read(path, &again, &e) < 0);
    OK(profile_get(is, m, o, UINT64_MAX, folder, &again, err));
    check_costs(&again, m, n);
    costs_release(&again);
    OK(costs_read(path, &again, err));
    costs_release(&again);
    mem_free(path);
    file_names_release(&names);

    const struct planner_options opt = {.samples = 8,
                                        .n_micros = 2,
                                        .micros = {2, 4},
                                        .width = 1,
                                        .orders = PLANNER_BIT(PIPE_1F1B)};
    struct planner_result r;
    OK(planner_search(&p, &opt, &r, err));
    const struct pipe_plan *plan = &r.of[PIPE_1F1B].plan;
    assert_true(plan->cuts[0].n > 1 && plan->cuts[0].n * plan->copies == n);
    for (int i = 0; i < plan->cuts[0].n; i++)
        assert_int_equal(plan->cuts[0].stages[i].devices, 1);
    planner_release(&r);
    costs_release(&p);

    profile_forget(is, m, o, folder);
    OK(file_list(folder, 8, &names, err));
    assert_int_equal(names.n, 0);
    file_names_release(&names);
    assert_int_equal(rmdir(folder), 0);
    island_close(is);
    model_free(m);
}

static void test_measured(void **state)
{
    struct model_spec dit = tiny_spec(), llama = tiny_llama(), told = tiny_captioned();
    struct train_options o = options();
    struct tiny_encoders encoders[2];
    struct net_encoders tables[2];
    dit.depth = 4;
    check(&dit, &o, "cpu,cpu", 2);
    check(&llama, &o, "cpu,cpu", 2); /* two blocks: there is none between the ends */
    o.precision = NET_BF16;
    llama.depth = 5;
    check(&llama, &o, "cpu,cpu,cpu,cpu", 4);
    o.precision = NET_F32;
    for (int k = 0; k < 2; k++)
        tables[k] = *tiny_encoders(&encoders[k], &told, DT_F32);
    o.encoders = tables;
    check(&told, &o, "cpu,cpu", 2);
    assert_int_equal(encoders[0].captions, 0); /* none of its own was asked */
}

/* Seconds of the second block, at the most samples. */
static double second_block(const struct costs *p, int chain)
{
    const struct costs_layer *l = &p->chains[chain].layers[1];
    const int at = p->sizes.n - 1;
    return l->f.s[at] + l->b.s[at] + l->w.s[at];
}

/* Each of two chains is measured as itself; larger pictures for the same weights are another
 * model. */
static void test_larger_upscaler(void **state)
{
    char folder[] = "/tmp/skerry-profile-XXXXXX";
    struct model_spec spec = tiny_cascade();
    const struct train_options o = options();
    struct island *is = NULL;
    assert_non_null(mkdtemp(folder));
    OK(island_open("cpu,cpu", 2, &is, err));
    spec.depth = 3;
    spec.upscaler.depth = 3;
    spec.upscaler.dim = 64;
    spec.upscaler.mlp = 256;
    for (int k = 0; k < 2; k++) {
        struct file_names names;
        struct costs p;
        spec.upscaler.image = k == 0 ? 48 : 24;
        struct model *m = make_model(&spec);
        OK(profile_get(is, m, &o, UINT64_MAX, folder, &p, err));
        if (second_block(&p, 1) < 4 * second_block(&p, 0))
            fail_msg("%g s of the upscaler, %g s of the base", second_block(&p, 1),
                     second_block(&p, 0));
        OK(file_list(folder, 8, &names, err));
        assert_int_equal(names.n, k + 1);
        file_names_release(&names);
        costs_release(&p);
        model_free(m);
    }
    OK(file_remove_tree(folder, err));
    island_close(is);
}

/* Of two chains both are measured. */
static void test_chains(void **state)
{
    struct model_spec spec = tiny_cascade();
    const struct train_options o = options();
    spec.depth = 4;
    check(&spec, &o, "cpu,cpu", 2);
    check(&spec, &o, "cpu,cpu,cpu,cpu", 4);
}

/* Two devices of a busy machine: forwards of a block take long as often as is said here, and each
 * product that is added to an earlier one. */
static struct busy {
    struct device *dev;
    const struct kernel_ops *own;
    struct kernel_ops ops;
    unsigned forwards, late;
} busy[2];

#define LATE_S 0.02

static void be_late(void)
{
    for (const uint64_t begun = clock_now_ns(); clock_now_ns() - begun < (uint64_t)(LATE_S * 1e9);)
        sched_yield();
}

static struct busy *busy_of(const struct device *dev)
{
    return &busy[dev == busy[1].dev];
}

static int busy_swiglu(struct device *dev, void *act, const void *gu, int64_t rows, int64_t M,
                       enum dtype dt, struct stream *s)
{
    struct busy *b = busy_of(dev);
    if (b->forwards++ < b->late)
        be_late();
    return b->own->swiglu_fwd(dev, act, gu, rows, M, dt, s);
}

static int busy_matmul(struct device *dev, const struct matmul *mm, struct stream *s)
{
    if (mm->accumulate && busy_of(dev)->late > 0)
        be_late();
    return busy_of(dev)->own->matmul(dev, mm, s);
}

static void profile_busy(struct island *is, const struct model *m, unsigned late0, unsigned late1,
                         const char *folder, struct costs *ret)
{
    const struct train_options o = options();
    for (int i = 0; i < 2; i++) {
        struct busy *b = &busy[i];
        *b = (struct busy){.dev = island_device(is, i), .late = i ? late1 : late0};
        b->own = b->dev->ops;
        b->ops = *b->own;
        b->ops.swiglu_fwd = busy_swiglu;
        b->ops.matmul = busy_matmul;
        b->dev->ops = &b->ops;
    }
    profile_forget(is, m, &o, folder);
    OK(profile_get(is, m, &o, 1 << 30, folder, ret, err));
    for (int i = 0; i < 2; i++)
        busy[i].dev->ops = busy[i].own;
}

/* What else a machine does is no cost of a part, though it slows one device down all the time, and
 * its equal for a while. */
static void test_busy(void **state)
{
    char folder[] = "/tmp/skerry-profile-XXXXXX";
    const struct model_spec spec = tiny_llama();
    struct model *m = make_model(&spec);
    struct island *is = NULL;
    struct costs p;
    assert_non_null(mkdtemp(folder));
    OK(island_open("cpu,cpu", 2, &is, err));
    profile_busy(is, m, 0, 0, folder, &p);
    costs_release(&p);
    profile_busy(is, m, UINT_MAX, busy[1].forwards / 3, folder, &p);
    for (int i = 0; i < p.chains[0].n; i++) {
        const struct costs_layer *l = &p.chains[0].layers[i];
        for (int k = 0; k < p.sizes.n; k++)
            assert_true(l->f.s[k] < LATE_S);
        assert_true(l->add > LATE_S);
    }
    costs_release(&p);
    OK(file_remove_tree(folder, err));
    island_close(is);
    model_free(m);
}

/* Frozen networks that could fill bubbles are timed layer by layer, and come back from the file. */
static void test_frozen(void **state)
{
    char folder[] = "/tmp/skerry-profile-XXXXXX";
    const struct model_spec spec = tiny_captioned();
    struct train_options o = options();
    struct real_encoders encoders = {0};
    struct island *is = NULL;
    struct costs p, again;
    struct model *m = make_model(&spec);
    assert_non_null(mkdtemp(folder));
    OK(island_open("cpu,cpu", 2, &is, err));
    real_encoders_open(&encoders, is);
    o.encoders = encoders.tables;
    for (int fill = 0; fill < 2; fill++) {
        o.fill = fill;
        OK(profile_get(is, m, &o, 1 << 30, folder, &p, err));
        assert_int_equal(p.n_frozen, 2 * fill);
        OK(profile_get(is, m, &o, 1 << 30, folder, &again, err));
        assert_int_equal(again.n_frozen, p.n_frozen);
        for (int k = 0; k < p.n_frozen; k++) {
            const struct costs_frozen *a = &p.frozen[k], *b = &again.frozen[k];
            const enum net_encoder which = k == 0 ? NET_IMAGES : NET_CAPTIONS;
            assert_int_equal(a->n, frozen_layers(encoders.ranks[0].of[which]));
            assert_int_equal(b->n, a->n);
            assert_string_equal(b->name, k == 0 ? "images" : "captions");
            assert_int_equal(b->out_bytes, a->out_bytes);
            assert_int_equal(a->out_bytes, frozen_out_bytes(encoders.ranks[0].of[which]));
            for (int i = 0; i < a->n; i++) {
                assert_true(a->layers[i].t.s[0] > 0 && a->layers[i].t.s[1] < 10);
                assert_int_equal(b->layers[i].weight_bytes, a->layers[i].weight_bytes);
                assert_int_equal(b->layers[i].scratch_bytes, a->layers[i].scratch_bytes);
            }
        }
        costs_release(&again);
        costs_release(&p);
        profile_forget(is, m, &o, folder);
    }
    assert_int_equal(rmdir(folder), 0);
    real_encoders_close(&encoders);
    island_close(is);
    model_free(m);
}

/* One of fewer samples than a batch of now has is not of use for it. */
static void test_sizes(void **state)
{
    char folder[] = "/tmp/skerry-profile-XXXXXX";
    struct model_spec spec = tiny_llama();
    struct train_options o = options();
    struct island *is = NULL;
    spec.dim = 24; /* 8 or 4 a head */
    struct model *m = make_model(&spec);
    assert_non_null(mkdtemp(folder));
    OK(island_open("cpu,cpu", 2, &is, err));
    for (int batch = 1; batch <= 5; batch += 2) {
        struct costs p;
        o.batch = batch;
        OK(profile_get(is, m, &o, 1 << 30, folder, &p, err));
        assert_int_equal(p.sizes.samples[p.sizes.n - 1], batch < 4 ? batch : 4);
        costs_release(&p);
    }
    /* It is not that of another number of heads, though no tensor has another shape. */
    struct model_spec heads = spec;
    heads.heads = 6;
    heads.kv_heads = 2;
    struct model *other = make_model(&heads);
    struct file_names before, after;
    OK(file_list(folder, 8, &before, err));
    profile_forget(is, other, &o, folder);
    OK(file_list(folder, 8, &after, err));
    assert_int_equal(after.n, before.n);
    file_names_release(&before);
    file_names_release(&after);
    model_free(other);
    OK(file_remove_tree(folder, err));
    island_close(is);
    model_free(m);
}

static void test_refused(void **state)
{
    struct model_spec spec = tiny_spec();
    const struct train_options o = options();
    struct err e = {0};
    struct island *is = NULL;
    struct costs p;
    spec.depth = 1;
    struct model *m = make_model(&spec);
    OK(island_open("cpu,cpu", 2, &is, err));
    assert_int_equal(profile_get(is, m, &o, 1 << 30, "/tmp", &p, &e), -EINVAL);
    island_close(is);
    model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_measured),
        cmocka_unit_test(test_chains),
        cmocka_unit_test(test_larger_upscaler),
        cmocka_unit_test(test_frozen),
        cmocka_unit_test(test_busy),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
