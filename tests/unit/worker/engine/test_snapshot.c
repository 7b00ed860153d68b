/* Snapshots of a phase: when, what travels, and that another worker has the weights from it.  The
 * uplink is a fake, behind the functions of worker/link/uplink.h. */
#include "tests/unit/common/base/util.h"

#include "common/base/clock.h"
#include "common/base/rng.h"
#include "common/job/job.h"
#include "worker/engine/snapshot.h"
#include "worker/link/uplink.h"
#include "worker/model/model.h"
#include "worker/train/island.h"

#define SPEC                                                                                       \
    "name: x\nseed: 1\ndata: {path: x, image_size: 8}\n"                                           \
    "model: {patch: 2, dim: 16, depth: 2, heads: 2}\n"                                             \
    "train: {batch: 8, precision: f32}\nouter: {rounds: 2, steps: 9}\nwire: {up: %s, down: f32}\n"
#define MODULE 70
#define MS UINT64_C(1000000)

/* ---- the coordinator ---- */

struct uplink_job {
    bool call;
    Skerry__V1__ReportReply reply;
};

static struct {
    struct cache *cache;  /* where the files arrive: that of the next worker */
    bool held;            /* nothing ends */
    bool refuses, broken; /* the report; every file */
    unsigned puts, calls, waits;
    Skerry__V1__Snapshot *saved;
} co;

static struct uplink_job *job_new(bool call)
{
    struct uplink_job *j = mem_alloc(sizeof(*j));
    j->call = call;
    skerry__v1__report_reply__init(&j->reply);
    j->reply.accepted = !co.refuses;
    return j;
}

struct uplink_job *uplink_put(struct uplink *u, struct work *w, const char *path,
                              const uint8_t sha256[32], uint64_t size, bool in_order)
{
    char to[CACHE_PATH_MAX];
    struct buf b;
    OK(file_read(path, 1 << 24, &b, err));
    assert_int_equal(b.len, size);
    cache_path(co.cache, sha256, to);
    OK(file_write_atomic(to, b.data, b.len, 0600, err));
    OK(cache_added(co.cache, sha256, err));
    buf_release(&b);
    co.puts++;
    return job_new(false);
}

struct uplink_job *uplink_call(struct uplink *u, struct work *w, uint16_t method,
                               const ProtobufCMessage *msg, const ProtobufCMessageDescriptor *reply,
                               uint32_t deadline_ms)
{
    const Skerry__V1__ReportRequest *r = (const Skerry__V1__ReportRequest *)(const void *)msg;
    uint8_t packed[4096];
    assert_int_equal(method, SKERRY__V1__METHOD__METHOD_REPORT);
    assert_true(r->snapshot && r->saved && r->task_id == 5 && r->attempt == 2);
    const size_t size = skerry__v1__snapshot__pack(r->saved, packed);
    if (co.saved)
        skerry__v1__snapshot__free_unpacked(co.saved, NULL);
    co.saved = skerry__v1__snapshot__unpack(NULL, size, packed);
    co.calls++;
    return job_new(true);
}

bool uplink_done(struct uplink_job *j)
{
    return !co.held;
}

int uplink_wait_saving(struct uplink_job *j, struct err *err)
{
    co.waits++;
    return co.broken && !j->call ? err_set(err, -ECONNRESET, "as told") : 0;
}

const ProtobufCMessage *uplink_reply(const struct uplink_job *j)
{
    return &j->reply.base;
}

void uplink_free(struct uplink_job *j)
{
    mem_free(j);
}

/* ---- a worker with a phase at hand ---- */

struct rig {
    char *dir, *state, *tmp, *blobs;
    struct island *is;
    struct replicas *rs;
    struct replica *r;
    struct work work;
    Skerry__V1__Task task;
    Skerry__V1__TrainTask train;
    Skerry__V1__ModuleRef module, *modules[1];
    Skerry__V1__Blob full;
    uint8_t sha256[32];
    char *classes[2], spec[512];
    struct snapshot_net net;
    _Atomic uint64_t took_ns;
};

static struct snapshots *open_snapshots(struct rig *r, uint64_t window)
{
    r->net = (struct snapshot_net){&r->work, r->r};
    const struct snapshots_options opt = {.w = &r->work,
                                          .window = window,
                                          .make = snapshot_net_make,
                                          .arg = &r->net,
                                          .took_ns = &r->took_ns};
    return snapshots_open(&opt);
}

static void begin(struct rig *r, const char *up)
{
    struct replica_cursor at;
    bool resumed;
    *r = (struct rig){.dir = scratch_new(), .classes = {(char *)"a", (char *)"b"}};
    r->state = file_join(r->dir, "state");
    r->tmp = file_join(r->dir, "tmp");
    r->blobs = file_join(r->dir, "blobs");
    OK(file_mkdirs(r->state, 0700, err));
    OK(file_mkdirs(r->tmp, 0700, err));
    OK(cache_open(r->blobs, 0, &co.cache, err));
    OK(island_open("cpu", 1, &r->is, err));
    r->rs = replicas_new(r->is, r->state, 1 << 30, NULL, NULL);
    (void)snprintf(r->spec, sizeof(r->spec), SPEC, up);
    skerry__v1__task__init(&r->task);
    skerry__v1__train_task__init(&r->train);
    skerry__v1__module_ref__init(&r->module);
    skerry__v1__blob__init(&r->full);
    r->task.kind = SKERRY__V1__TASK_KIND__TASK_KIND_TRAIN;
    r->task.id = 5;
    r->task.attempt = 2;
    r->task.job_id = 3;
    r->task.spec = r->spec;
    r->task.classes = r->classes;
    r->task.n_classes = 2;
    r->task.train = &r->train;
    r->task.modules = r->modules;
    r->task.n_modules = 1;
    r->modules[0] = &r->module;
    r->module.module_id = MODULE;
    r->module.version = 4;
    r->train.steps = r->train.total_steps = 9;
    r->train.snapshot_ms = 1;
    r->work = (struct work){.task = &r->task,
                            .temp_dir = r->tmp,
                            .cache = co.cache,
                            .uplink = (struct uplink *)(uintptr_t)1};
    OK(job_parse(r->spec, strlen(r->spec), "job.yaml", &r->work.spec, err));
    OK(replica_plan(r->rs, &r->work, err));
    OK(replica_get(r->rs, &r->work, NULL, &r->r, &resumed, &at, err));
}

/* The phase's first weights become a file of the cache; those at hand are n(0, 0.01) beside. */
static void train(struct rig *r)
{
    char *path = file_join(r->dir, "base"), to[CACHE_PATH_MAX];
    struct model *m = r->r->model;
    struct buf b;
    for (size_t i = 0; i < m->n; i++)
        rng_fill_normal(7, i, 0, r->r->flat + m->tensors[i].offset, m->tensors[i].count, 0.0f,
                        0.2f);
    OK(model_save(m, 0, r->r->flat, path, r->sha256, NULL, err));
    r->module.sha256 = (ProtobufCBinaryData){32, r->sha256};
    OK(file_read(path, 1 << 24, &b, err));
    cache_path(co.cache, r->sha256, to);
    OK(file_write_atomic(to, b.data, b.len, 0600, err));
    OK(cache_added(co.cache, r->sha256, err));
    buf_release(&b);
    for (size_t i = 0; i < m->n; i++)
        for (size_t k = 0; k < m->tensors[i].count; k++)
            r->r->flat[m->tensors[i].offset + k] += 0.01f * (float)((i + k * k) % 17) / 17 - 0.005f;
    OK(trainer_set(r->r->trainer, r->r->flat, err));
    mem_free(path);
}

static void end(struct rig *r)
{
    replicas_free(r->rs);
    island_close(r->is);
    cache_close(co.cache);
    job_release(&r->work.spec);
    if (co.saved)
        skerry__v1__snapshot__free_unpacked(co.saved, NULL);
    mem_free(r->state);
    mem_free(r->tmp);
    mem_free(r->blobs);
    scratch_free(r->dir);
    memset(&co, 0, sizeof(co));
}

static const struct replica_cursor here = {.steps = 4,
                                           .skipped = 2,
                                           .skipped_row = 1,
                                           .samples = 32,
                                           .position = 33,
                                           .loss_sum = 2.5,
                                           .loss_first = 1,
                                           .loss_last = 0.25f,
                                           .seconds = 1.5};

/* At the next step that is due one is made; the one after that tells. */
static void save_at(struct snapshots *s, struct replica_cursor at)
{
    const unsigned calls = co.calls;
    const uint64_t until = clock_now_ns() + 10 * CLOCK_NS_PER_S;
    while (co.calls == calls && clock_now_ns() < until)
        snapshots_step(s, &at);
    assert_int_equal(co.calls, calls + 1);
}

static void lost_of(const char *up, double most)
{
    struct rig r;
    begin(&r, up);
    train(&r);
    struct snapshots *s = open_snapshots(&r, most > 0 ? 8 : 0);
    assert_non_null(s);
    save_at(s, here);
    assert_int_equal(co.saved->used, most > 0 ? 32 : 0); /* whole windows of the 33 */
    float *now = model_flat_new(r.r->model), *got = model_flat_new(r.r->model);
    struct replica_cursor at = {0};
    double off = 0;
    OK(trainer_get(r.r->trainer, now, err));
    for (size_t i = 0; i < co.saved->n_modules; i++) {
        co.saved->modules[i]->blob->url = NULL;
        assert_int_equal(co.saved->modules[i]->base_version, 4);
    }
    r.train.resume = co.saved;
    OK(snapshot_load(&r.work, r.r->model, got, &at, err));
    assert_memory_equal(&at.steps, &here.steps, sizeof(at.steps));
    assert_true(at.skipped == 2 && at.skipped_row == 1);
    assert_true(at.samples == 32 && at.position == 33 && at.loss_sum == 2.5 && at.seconds == 1.5);
    assert_true(at.loss_first == 1 && at.loss_last == 0.25f);
    for (size_t i = 0; i < r.r->model->n; i++)
        for (size_t k = 0; k < r.r->model->tensors[i].count; k++) {
            const size_t p = r.r->model->tensors[i].offset + k;
            off = fmax(off, fabs((double)got[p] - (double)now[p]));
        }
    if (off > most)
        fail_msg("%s: off by %g", up, off);
    snapshots_close(s);
    r.train.resume = NULL;
    mem_free(now);
    mem_free(got);
    end(&r);
}

/* e3m0 is too coarse to go on from: int8 is taken. */
static void another_worker_has_the_weights(void **state)
{
    (void)state;
    lost_of("f32", 0);
    lost_of("bf16", 4e-5);
    lost_of("int8", 5e-5);
    lost_of("e3m0", 5e-5);
}

static void not_the_same_twice(void **state)
{
    (void)state;
    struct rig r;
    begin(&r, "int8");
    train(&r);
    struct snapshots *s = open_snapshots(&r, 0);
    save_at(s, here);
    const unsigned puts = co.puts;
    snapshots_step(s, &here); /* takes the answer */
    r.train.snapshot_ms = 0;
    atomic_store(&r.work.save, true);
    snapshots_step(s, &here);
    assert_int_equal(co.puts, puts); /* nothing has come since */
    atomic_store(&r.work.stop, WORK_SAVING);
    snapshots_last(s, &here);
    assert_int_equal(co.puts, puts);
    struct replica_cursor more = here;
    more.steps++;
    snapshots_last(s, &more);
    assert_int_equal(co.puts, puts + 1);
    assert_int_equal(co.saved->steps, 5);
    snapshots_close(s);
    end(&r);
}

/* What travels is waited for only by the last one. */
static void one_at_a_time(void **state)
{
    (void)state;
    struct rig r;
    begin(&r, "int8");
    train(&r);
    struct snapshots *s = open_snapshots(&r, 0);
    struct replica_cursor at = here;
    co.held = true;
    r.train.snapshot_ms = UINT32_MAX;
    snapshots_step(s, &at);
    assert_int_equal(co.puts, 0); /* not yet */
    atomic_store(&r.work.save, true);
    for (; at.steps < 8; at.steps++)
        snapshots_step(s, &at);
    assert_true(co.puts == 1 && co.calls == 0 && co.waits == 0);
    assert_false(atomic_load(&r.work.save));
    co.held = false;
    snapshots_step(s, &at);
    snapshots_step(s, &at);
    assert_true(co.puts == 1 && co.calls == 1 && co.saved->steps == 4);
    snapshots_close(s);
    end(&r);
}

static void failing_is_no_failure_of_the_phase(void **state)
{
    (void)state;
    struct rig r;
    begin(&r, "int8");
    train(&r);
    struct snapshots *s = open_snapshots(&r, 0);
    struct replica_cursor at = here;
    co.broken = true;
    atomic_store(&r.work.save, true);
    snapshots_step(s, &at);
    snapshots_step(s, &at);
    assert_true(co.puts == 1 && co.calls == 0);
    co.broken = false;
    co.refuses = true;
    atomic_store(&r.work.save, true);
    at.steps++;
    snapshots_step(s, &at);
    snapshots_step(s, &at);
    assert_int_equal(co.calls, 1);
    co.refuses = false;
    atomic_store(&r.work.save, true);
    snapshots_step(s, &at); /* the same step again: nobody has it */
    snapshots_step(s, &at);
    assert_int_equal(co.calls, 2);
    snapshots_close(s);
    r.work.uplink = NULL;
    assert_null(open_snapshots(&r, 0));
    end(&r);
}

static void as_often_as_the_link_bears(void **state)
{
    (void)state;
    assert_int_equal(snapshots_pause_ns(60000, 0, 0), 60000 * MS);
    assert_int_equal(snapshots_pause_ns(60000, 100 * MS, 1000 * MS), 60000 * MS);
    assert_int_equal(snapshots_pause_ns(60000, 2000 * MS, 0), 100000 * MS);
    assert_int_equal(snapshots_pause_ns(60000, 2000 * MS, 40000 * MS), 160000 * MS);
}

/* The last minutes of a phase are not worth one. */
static void none_that_does_not_pay(void **state)
{
    static const struct {
        uint64_t left_s, pause_s, sent_s;
        bool pays;
    } cases[] = {
        {1800, 600, 0, true},     {300, 600, 0, true},       {299, 600, 0, false},
        {400, 600, 100, true},    {399, 600, 100, false},    {99, 600, 100, false},
        {3600, 4800, 1200, true}, {3599, 4800, 1200, false}, {0, 60, 0, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (snapshots_pays(cases[i].left_s * 1000 * MS, cases[i].pause_s * 1000 * MS,
                           cases[i].sent_s * 1000 * MS) != cases[i].pays)
            fail_msg("case %zu", i);
}

/* By steps, and by the clock; one that is asked for is made all the same. */
static void none_at_the_end(void **state)
{
    struct rig r;
    begin(&r, "int8");
    train(&r);
    clock_fake_set(clock_now_ns());
    struct snapshots *s = open_snapshots(&r, 0);
    struct replica_cursor at = here; /* 1.5 s for 4 of 9 steps */
    r.train.snapshot_ms = 4000;
    clock_fake_advance(4 * CLOCK_NS_PER_S);
    snapshots_step(s, &at);
    assert_int_equal(co.puts, 0); /* 1.9 s remain */
    r.train.steps = 0;
    r.train.seconds = 3;
    snapshots_step(s, &at);
    assert_int_equal(co.puts, 0);
    r.train.seconds = 4;
    snapshots_step(s, &at);
    assert_int_equal(co.puts, 1);
    snapshots_step(s, &at); /* it is sent */
    snapshots_step(s, &at);
    at.steps++;
    at.seconds = 4;
    atomic_store(&r.work.save, true);
    snapshots_step(s, &at);
    assert_int_equal(co.puts, 2);
    snapshots_close(s);
    clock_fake_clear();
    end(&r);
}

/* The step under way counts to what the next one takes; not the first, which is longer, nor the
 * local checkpoint between two, which is rare. */
static void how_long_one_takes(void **state)
{
    struct rig r;
    begin(&r, "int8");
    train(&r);
    clock_fake_set(clock_now_ns());
    struct snapshots *s = open_snapshots(&r, 0);
    struct replica_cursor at = here;
    clock_fake_advance(60 * CLOCK_NS_PER_S);
    r.train.snapshot_ms = UINT32_MAX;
    snapshots_step(s, &at);
    clock_fake_advance(30 * CLOCK_NS_PER_S);
    snapshots_go_on(s);
    clock_fake_advance(3 * CLOCK_NS_PER_S);
    co.held = true;
    atomic_store(&r.work.save, true);
    snapshots_step(s, &at);
    clock_fake_advance(2 * CLOCK_NS_PER_S);
    co.held = false;
    snapshots_step(s, &at);
    snapshots_step(s, &at);
    assert_int_equal(atomic_load(&r.took_ns), 5 * CLOCK_NS_PER_S);
    snapshots_close(s);
    clock_fake_clear();
    end(&r);
}

static void check_says_what_is_wrong(void **state)
{
    (void)state;
    Skerry__V1__Blob blob = SKERRY__V1__BLOB__INIT;
    Skerry__V1__Contribution c = SKERRY__V1__CONTRIBUTION__INIT, *list[2] = {&c, &c};
    Skerry__V1__Snapshot s = SKERRY__V1__SNAPSHOT__INIT;
    Skerry__V1__ModuleRef m = SKERRY__V1__MODULE_REF__INIT, *modules[1] = {&m};
    Skerry__V1__TrainTask train = SKERRY__V1__TRAIN_TASK__INIT;
    Skerry__V1__Task task = SKERRY__V1__TASK__INIT;
    uint8_t sha256[32] = {1};
    blob.sha256 = (ProtobufCBinaryData){32, sha256};
    blob.size = 10;
    blob.url = (char *)"/v1/blobs/x";
    m.module_id = c.module_id = 7;
    m.version = c.base_version = 3;
    c.blob = &blob;
    s.modules = list;
    train.steps = 9;
    train.resume = &s;
    task.train = &train;
    task.modules = modules;
    task.n_modules = 1;
    for (int i = 0; i < 11; i++) {
        struct err e = {0};
        s.n_modules = i == 1 ? 2 : 1;
        s.steps = i == 2 ? 10 : i == 3 ? 0 : 9;
        s.samples = i == 4 ? 0 : 5;
        s.loss_sum = i == 5 ? (double)INFINITY : 1;
        c.base_version = i == 6 ? 4 : 3;
        c.blob = i == 7 ? NULL : &blob;
        blob.size = i == 8 ? 0 : 10;
        s.seconds = i == 9 ? INFINITY : i == 10 ? -1 : 60; /* nanoseconds are made of them */
        const int rc = snapshot_check(&task, &e);
        if ((rc == 0) != (i == 0) || (rc < 0 && !strstr(e.msg, "resume")))
            fail_msg("case %d: %d %s", i, rc, e.msg);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(another_worker_has_the_weights),
        cmocka_unit_test(not_the_same_twice),
        cmocka_unit_test(one_at_a_time),
        cmocka_unit_test(failing_is_no_failure_of_the_phase),
        cmocka_unit_test(as_often_as_the_link_bears),
        cmocka_unit_test(none_that_does_not_pay),
        cmocka_unit_test(none_at_the_end),
        cmocka_unit_test(how_long_one_takes),
        cmocka_unit_test(check_says_what_is_wrong),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
