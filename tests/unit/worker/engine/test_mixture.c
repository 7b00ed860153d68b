/* Mixtures as tasks, without a network: what is drawn and measured does not depend on how
 * many experts fit, on batches or threads, and agrees with the experts alone. */
#include "tests/unit/worker/mixture_task.h"

#include <errno.h>
#include <math.h>

#include "worker/kinds/kinds.h"
#include "worker/link/uplink.h"
#include "worker/order/work.h"
#include "worker/engine/task_files.h"

/* ---- drawing ---- */

static unsigned draw(struct host *h, const struct order *o, int rows, bool heun, float *images)
{
    struct work *w = host_plan(h, &o->task);
    OK(modules_rebuild(h->modules, w, err));
    struct mixture *m;
    OK(mixture_open(h->engine, w, &(struct mixture_options){.rows = rows}, &m, err));
    const struct sample_source src = mixture_source(m);
    const struct sample_options opt = {
        .steps = 4, .heun = heun, .guidance = 1.5f, .seed = o->sample.seed};
    int32_t labels[SAMPLES];
    for (int i = 0; i < SAMPLES; i++)
        labels[i] = (int32_t)o->labels[i];
    OK(sample_run_f32(&src, &opt, labels, SAMPLES, images, err));
    unsigned loads = mixture_loads(m);
    mixture_close(m);
    work_free(w);
    return loads;
}

/* Bits do not depend on memory, batches or threads.  Loads do: with room for all each
 * expert is read once, with less some are read again. */
static void test_same_bits(void **state)
{
    (void)state;
    static float a[SAMPLES * VALUES], b[SAMPLES * VALUES], before[SAMPLES * VALUES];
    static const int rows[] = {2 * SAMPLES, 6, 2};
    struct host one, two;
    struct order o;
    host_new(&one, "threads-1", 1);
    host_new(&two, "threads-2", 2);
    order_init(&o, SKERRY__V1__TASK_KIND__TASK_KIND_SAMPLE);
    memset(before, 0, sizeof before);
    for (uint32_t s = 0; s <= JOB_STRATEGY_ORACLE; s++) {
        o.task.spec = (char *)(s % 3 == 1 ? SPEC_OF("bf16") : SPEC);
        o.mixture.strategy = s;
        o.mixture.memory_bytes = 0;
        unsigned loads = draw(&one, &o, 64, s % 2, a);
        assert_in_range(loads, 1, K);
        for (uint64_t i = 0; i < 3; i++) {
            o.mixture.memory_bytes = 1 + i * modules[0].size; /* for 1, 1 and 2 experts */
            unsigned more = draw(i ? &two : &one, &o, rows[i], s % 2, b);
            assert_memory_equal(a, b, sizeof a);
            assert_true(more >= loads);
        }
        for (int i = 0; i < SAMPLES * VALUES; i++)
            assert_true(isfinite(a[i]));
        assert_memory_not_equal(a, before, sizeof a); /* strategies differ */
        memcpy(before, a, sizeof a);
    }
    host_free(&one);
    host_free(&two);
}

/* Equal experts mix to what one of them draws alone: the same PNG for the strategies that
 * take one, whatever the router says. */
static void test_equal_experts(void **state)
{
    (void)state;
    struct host h;
    struct order o, path;
    host_new(&h, "equal", 2);
    order_init(&o, SKERRY__V1__TASK_KIND__TASK_KIND_SAMPLE);
    order_path(&path, SKERRY__V1__TASK_KIND__TASK_KIND_SAMPLE, 1);
    struct work *alone = host_run(&h, &path.task);
    for (int k = 0; k < K; k++)
        o.expert[k].modules = &o.lists[1];
    o.mixture.strategy = JOB_STRATEGY_TOP1;
    struct work *mixed = host_run(&h, &o.task);
    assert_int_equal(mixed->result.n_outputs, 1);
    assert_memory_equal(mixed->result.outputs[0].sha256, alone->result.outputs[0].sha256, 32);
    assert_int_equal(mixed->result.samples, SAMPLES);
    work_free(mixed);
    for (int k = 0; k < K; k++)
        o.expert[k].modules = &o.lists[k];
    mixed = host_run(&h, &o.task);
    assert_memory_not_equal(mixed->result.outputs[0].sha256, alone->result.outputs[0].sha256, 32);
    work_free(mixed);
    work_free(alone);
    host_free(&h);
}

/* ---- experts elsewhere: a coordinator whose workers find every velocity to be 0 ---- */

struct uplink {
    struct cache *cache;
    struct {
        uint8_t points[32];
        int rows;
    } sent[64];
    unsigned n;
};

struct uplink_job {
    Skerry__V1__EvaluateReply reply;
    Skerry__V1__Blob output;
    uint8_t sha256[32];
};

struct uplink_job *uplink_put(struct uplink *u, struct work *w, const char *path,
                              const uint8_t sha256[32], uint64_t size, bool in_order)
{
    struct velocity_points p = {0};
    OK(velocity_read(path, &(struct velocity_sizes){3, 8, 0, CLASSES}, &p, err));
    assert_true(u->n < 64);
    memcpy(u->sent[u->n].points, sha256, 32);
    u->sent[u->n++].rows = p.rows;
    velocity_points_release(&p);
    return mem_alloc(sizeof(struct uplink_job));
}

struct uplink_job *uplink_call(struct uplink *u, struct work *w, uint16_t method,
                               const ProtobufCMessage *msg, const ProtobufCMessageDescriptor *reply,
                               uint32_t deadline_ms)
{
    static float none[64 * VALUES];
    const Skerry__V1__EvaluateRequest *m = (const Skerry__V1__EvaluateRequest *)(const void *)msg;
    struct uplink_job *j = mem_alloc(sizeof(*j));
    char path[CACHE_PATH_MAX], *made = in(top, "velocities");
    unsigned i = 0;
    while (memcmp(u->sent[i].points, m->input->sha256.data, 32) != 0)
        assert_true(++i < u->n);
    assert_in_range(u->sent[i].rows, 1, 64);
    skerry__v1__evaluate_reply__init(&j->reply);
    skerry__v1__blob__init(&j->output);
    OK(velocity_write_result(made, none, u->sent[i].rows, 3, 8, j->sha256, &j->output.size, err));
    cache_path(u->cache, j->sha256, path);
    OK(file_move(made, path, err));
    OK(cache_added(u->cache, j->sha256, err));
    j->output.sha256 = (ProtobufCBinaryData){32, j->sha256};
    j->reply.output = &j->output;
    mem_free(made);
    return j;
}

struct uplink_job *uplink_get(struct uplink *u, struct work *w, const uint8_t sha256[32],
                              uint64_t size, const char *url, const char *what, bool in_order)
{
    return mem_alloc(sizeof(struct uplink_job));
}

bool uplink_done(struct uplink_job *j)
{
    return true;
}

int uplink_wait(struct uplink_job *j, struct err *err)
{
    return 0;
}

int uplink_wait_saving(struct uplink_job *j, struct err *err)
{
    return 0;
}

const ProtobufCMessage *uplink_reply(const struct uplink_job *j)
{
    return &j->reply.base;
}

void uplink_free(struct uplink_job *j)
{
    mem_free(j);
}

/* Experts that are alike, as all are at first, answer with the same bytes. */
static void test_equal_experts_elsewhere(void **state)
{
    (void)state;
    struct host h;
    struct order o;
    host_new(&h, "elsewhere", 1);
    order_init(&o, SKERRY__V1__TASK_KIND__TASK_KIND_SAMPLE);
    o.mixture.strategy = JOB_STRATEGY_FULL;
    o.mixture.remote = true;
    struct uplink u = {.cache = h.cache};
    struct work *w = host_plan(&h, &o.task);
    const uint64_t before = cache_used_bytes(h.cache);
    w->uplink = &u;
    OK(engine_run(h.engine, w, err));
    assert_int_equal(w->result.n_outputs, 1);
    assert_true(u.n >= K);
    assert_int_equal(cache_used_bytes(h.cache), before); /* nobody asks for them again */
    work_free(w);
    host_free(&h);
}

/* ---- measuring ---- */

static double row(const struct work *w, const char *name)
{
    for (size_t i = 0; i < w->result.n_rows; i++)
        if (strcmp(w->result.rows[i].name, name) == 0)
            return w->result.rows[i].value;
    fail_msg("no row \"%s\"", name);
    return 0;
}

/* The held-out loss of path k on its partition. */
static double path_loss(struct host *h, int k, int partition)
{
    struct order o;
    order_path(&o, SKERRY__V1__TASK_KIND__TASK_KIND_EVAL, k);
    o.ranges[0] = &o.range[partition];
    o.eval.n_ranges = 1;
    struct work *w = host_run(h, &o.task);
    double sum = w->result.loss_sum;
    assert_int_equal(w->result.units, SHARD);
    work_free(w);
    return sum;
}

/* The oracle is every expert on its own partition; all are on the draws of any evaluation. */
static void test_evaluation(void **state)
{
    (void)state;
    struct host h;
    struct order o;
    double apart = 0, routed = 0;
    host_new(&h, "evaluation", 2);
    order_init(&o, SKERRY__V1__TASK_KIND__TASK_KIND_EVAL);
    o.mixture.strategy = JOB_STRATEGY_NUCLEUS;
    struct work *w = host_run(&h, &o.task);
    for (int k = 0; k < K; k++)
        apart += path_loss(&h, k, k);
    assert_int_equal(w->result.units, K * SHARD);
    assert_true(fabs(row(w, "loss oracle") * K * SHARD - apart) < 1e-9 * apart);
    assert_true(fabs(row(w, "loss nucleus") * K * SHARD - w->result.loss_sum) < 1e-9 * apart);
    assert_true(row(w, "loss full") != row(w, "loss top1"));
    assert_true(row(w, "loss top2") != row(w, "loss top1"));
    for (int k = 0; k < K; k++) {
        char name[32];
        snprintf(name, sizeof(name), "routed %d", k);
        routed += row(w, name);
    }
    assert_true(fabs(routed - 1) < 1e-12);

    /* The router alone, evaluated as a path, is right as often. */
    struct order router;
    order_path(&router, SKERRY__V1__TASK_KIND__TASK_KIND_EVAL, ROUTER);
    router.task.network = SKERRY__V1__NETWORK__NETWORK_ROUTER;
    struct work *r = host_run(&h, &router.task);
    assert_true(row(r, "accuracy") == row(w, "router accuracy"));
    assert_true(row(r, "accuracy") > 0 && row(r, "accuracy") < 1);
    work_free(r);

    o.eval.samples = 13;
    o.mixture.memory_bytes = 1;
    struct work *few = host_run(&h, &o.task);
    assert_int_equal(few->result.units, 13);
    work_free(few);

    /* Equal experts: every strategy has that expert's loss. */
    o.eval.samples = 0;
    for (int k = 0; k < K; k++)
        o.expert[k].modules = &o.lists[2];
    struct work *equal = host_run(&h, &o.task);
    double of_one = 0;
    for (int k = 0; k < K; k++)
        of_one += path_loss(&h, 2, k);
    of_one /= K * SHARD;
    assert_true(fabs(row(equal, "loss top1") - of_one) < 1e-9 * of_one);
    assert_true(fabs(row(equal, "loss full") - of_one) < 1e-5 * of_one);
    work_free(equal);

    o.range[1].partition = K;
    struct work *lost = host_plan(&h, &o.task);
    FAILS(engine_run(h.engine, lost, err), "partition 3 of 3");
    work_free(lost);
    work_free(w);
    host_free(&h);
}

/* ---- learning from experts ---- */

/* A phase whose student is every teacher has nothing to learn; with their own it has. */
static void test_distillation(void **state)
{
    (void)state;
    struct host h;
    struct order o;
    host_new(&h, "distillation", 2);
    order_path(&o, SKERRY__V1__TASK_KIND__TASK_KIND_TRAIN, 0);
    o.train.teachers = o.experts;
    o.train.n_teachers = K;
    for (int k = 0; k < K; k++)
        o.expert[k].modules = &o.lists[0];
    struct work *w = host_run(&h, &o.task);
    assert_true(w->result.loss_mean == 0 && w->result.steps == 6);
    work_free(w);
    o.task.id = 12;
    for (int k = 0; k < K; k++)
        o.expert[k].modules = &o.lists[k];
    w = host_run(&h, &o.task);
    assert_true(w->result.loss_first > 0);
    assert_int_equal(w->result.n_outputs, 1);
    work_free(w);
    host_free(&h);
}

/* ---- what does not fit ---- */

static void test_refusals(void **state)
{
    (void)state;
    struct host h;
    struct order o;
    struct work *w;
    host_new(&h, "refusals", 1);
    order_init(&o, SKERRY__V1__TASK_KIND__TASK_KIND_SAMPLE);
    o.mixture.strategy = 77;
    FAILS(work_new(kinds_all, &o.task, h.cache, h.tmp, &w, err), "strategy 77");
    o.mixture.strategy = JOB_STRATEGY_TOPK;
    o.mixture.top = K + 1;
    FAILS(work_new(kinds_all, &o.task, h.cache, h.tmp, &w, err),
          "mixture.top is 4, expected 1 to 3");
    o.mixture.top = 1;
    o.mixture.n_router = 0;
    FAILS(work_new(kinds_all, &o.task, h.cache, h.tmp, &w, err), "mixture.router has 0 modules");
    o.mixture.n_router = 1;
    o.mixture.experts = NULL;
    FAILS(work_new(kinds_all, &o.task, h.cache, h.tmp, &w, err), "mixture.experts is missing");
    o.mixture.experts = &o.all;
    o.expert[1].n_modules = 0;
    FAILS(work_new(kinds_all, &o.task, h.cache, h.tmp, &w, err), "mixture.experts has 0 modules");
    o.mixture.remote = true; /* then that is fine, but nobody can be asked */
    w = host_plan(&h, &o.task);
    FAILS(engine_run(h.engine, w, err), "need a coordinator");
    work_free(w);
    o.mixture.remote = false;
    o.expert[1].n_modules = 1;
    o.expert[1].partition = 2;
    w = host_plan(&h, &o.task);
    FAILS(engine_run(h.engine, w, err), "one expert for each of 3 partitions");
    atomic_store(&w->stop, WORK_REVOKED);
    work_free(w);
    o.expert[1].partition = 1;
    w = host_plan(&h, &o.task);
    atomic_store(&w->stop, WORK_REVOKED);
    assert_int_equal(engine_run(h.engine, w, NULL), -ERR_CANCELLED);
    work_free(w);
    host_free(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_equal_experts),
        cmocka_unit_test(test_equal_experts_elsewhere),
        cmocka_unit_test(test_evaluation),
        cmocka_unit_test(test_distillation),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
