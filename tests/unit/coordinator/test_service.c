/* A whole coordinator on a loopback port, driven by fake workers through real
 * RPC: a job from submit to its end, fences, restarts, bad results, full disk. */
#include "tests/unit/outer/fixture.h"

#include <errno.h>
#include <math.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/net/loop.h"
#include "common/net/rpc.h"
#include "coordinator/core.h"
#include "proto/skerry.pb-c.h"

#define DEADLINE_MS 20000
#define REPLY_MAX 65536

struct fake {
    struct rpc_client *rpc;
    uint8_t instance[16], identity[16];
    uint64_t id;
    Skerry__V1__AssignReply *assigned; /* holds the task below */
    Skerry__V1__Task *task;
    /* of the call in flight */
    bool done;
    int code;
    char detail[512];
    uint8_t reply[REPLY_MAX];
    size_t reply_len;
};

struct rig {
    struct fixture f;
    struct loop *loop;
    struct coordinator *co;
    struct fake workers[3];
    uint8_t shard[32];
    uint64_t shard_size;
};

/* ---- the coordinator ----------------------------------------------------- */

static void start(struct rig *r)
{
    struct err err = {0};
    const struct coordinator_options o = {
        .data_dir = r->f.dir,
        .listen = "127.0.0.1",
        .plain_http = true,
        .heartbeat_ms = 2000,
        .lease_ms = 8000,
        .outer_threads = 1,
    };
    assert_int_equal(loop_new(&r->loop, &err), 0);
    if (coordinator_open(r->loop, &o, &r->co, &err) < 0)
        fail_msg("%s", err.msg);
}

static void stop(struct rig *r)
{
    for (size_t i = 0; i < 3; i++) {
        rpc_client_close(r->workers[i].rpc);
        r->workers[i].rpc = NULL;
    }
    coordinator_close(r->co);
    loop_free(r->loop);
}

static int begin(void **state)
{
    static struct rig rig;
    memset(&rig, 0, sizeof(rig));
    fx_begin(&rig.f);
    for (uint8_t i = 0; i < 3; i++) {
        memset(rig.workers[i].identity, i + 1, 16);
        memset(rig.workers[i].instance, i + 101, 16);
    }
    start(&rig);
    rig.co->state.next_module = MODULE; /* the fixture's contributions are to it */
    *state = &rig;
    return 0;
}

static void drop_task(struct fake *w)
{
    if (w->assigned != NULL)
        skerry__v1__assign_reply__free_unpacked(w->assigned, NULL);
    w->assigned = NULL;
    w->task = NULL;
}

static int end(void **state)
{
    struct rig *r = *state;
    for (size_t i = 0; i < 3; i++)
        drop_task(&r->workers[i]);
    stop(r);
    fx_end(&r->f);
    return 0;
}

/* ---- fake workers -------------------------------------------------------- */

static void on_reply(void *arg, const struct rpc_result *res)
{
    struct fake *w = arg;
    w->done = true;
    w->code = res->code;
    (void)snprintf(w->detail, sizeof(w->detail), "%s", res->detail);
    w->reply_len = 0;
    if (res->code == 0) {
        w->reply_len = protobuf_c_message_get_packed_size(res->reply);
        assert_true(w->reply_len <= REPLY_MAX);
        (void)protobuf_c_message_pack(res->reply, w->reply);
    }
}

static void wait_for(struct rig *r, const bool *flag)
{
    uint64_t until = clock_now_ms() + DEADLINE_MS;
    while (!*flag) {
        if (clock_now_ms() > until)
            fail_msg("no answer within %d ms", DEADLINE_MS);
        loop_turn(r->loop, true);
    }
}

static void begin_call(struct rig *r, struct fake *w, uint16_t method, const void *msg,
                       const ProtobufCMessageDescriptor *reply)
{
    w->done = false;
    assert_int_equal(rpc_client_call(w->rpc, method, msg, reply, DEADLINE_MS, on_reply, w, NULL),
                     0);
}

static int call(struct rig *r, struct fake *w, uint16_t method, const void *msg,
                const ProtobufCMessageDescriptor *reply)
{
    begin_call(r, w, method, msg, reply);
    wait_for(r, &w->done);
    return w->code;
}

#define CALL(r, w, NAME, name, msg)                                                                \
    call(r, w, SKERRY__V1__METHOD__METHOD_##NAME, msg, &skerry__v1__##name##_reply__descriptor)

static void dial(struct rig *r, struct fake *w)
{
    struct err err = {0};
    const struct rpc_client_options o = {
        .token = &r->co->worker_token, .build_id = SKERRY_VERSION, .max_body_bytes = 1u << 20};
    uint64_t until = clock_now_ms() + DEADLINE_MS;
    assert_int_equal(rpc_client_open(r->loop, &o, &w->rpc, &err), 0);
    while (rpc_client_state(w->rpc) != RPC_CONNECTED) {
        assert_true(clock_now_ms() < until);
        loop_turn(r->loop, true);
    }
}

static int join(struct rig *r, struct fake *w, const char *version)
{
    Skerry__V1__JoinRequest m = SKERRY__V1__JOIN_REQUEST__INIT;
    if (w->rpc == NULL)
        dial(r, w);
    m.name = (char *)"fake";
    m.device = (char *)"none";
    m.version = (char *)version;
    m.instance.data = w->instance;
    m.identity.data = w->identity;
    m.instance.len = m.identity.len = 16;
    int rc = CALL(r, w, JOIN, join, &m);
    if (rc == 0) {
        Skerry__V1__JoinReply *reply = skerry__v1__join_reply__unpack(NULL, w->reply_len, w->reply);
        w->id = reply->worker_id;
        skerry__v1__join_reply__free_unpacked(reply, NULL);
    }
    return rc;
}

static void ask(struct rig *r, struct fake *w, uint32_t wait_ms)
{
    Skerry__V1__AssignRequest m = SKERRY__V1__ASSIGN_REQUEST__INIT;
    drop_task(w);
    m.wait_ms = wait_ms;
    begin_call(r, w, SKERRY__V1__METHOD__METHOD_ASSIGN, &m, &skerry__v1__assign_reply__descriptor);
}

/* Waits for the answer to ask(); the task, or NULL. */
static Skerry__V1__Task *got(struct rig *r, struct fake *w)
{
    wait_for(r, &w->done);
    if (w->code != 0)
        fail_msg("ASSIGN: %s", w->detail);
    w->assigned = skerry__v1__assign_reply__unpack(NULL, w->reply_len, w->reply);
    w->task = w->assigned->task;
    return w->task;
}

static Skerry__V1__Task *assign(struct rig *r, struct fake *w, enum task_kind kind)
{
    ask(r, w, 15000);
    Skerry__V1__Task *t = got(r, w);
    if (t == NULL)
        fail_msg("no task: %s", w->assigned->waiting_for);
    assert_int_equal(t->kind, kind);
    return t;
}

static struct blob_ref put_file(struct rig *r, const char *path)
{
    struct blob_ref ref;
    struct blob_id id;
    struct buf b;
    assert_int_equal(file_read(path, 64 << 20, &b, NULL), 0);
    assert_int_equal(blobstore_put(r->co->blobs, b.data, b.len, &id, NULL), 0);
    memcpy(ref.sha256, id.sha256, 32);
    ref.size = b.len;
    buf_release(&b);
    return ref;
}

static struct blob_ref put_text(struct rig *r, const char *text)
{
    char *path = fx_path(&r->f, "text");
    assert_int_equal(file_write_atomic(path, text, strlen(text), 0600, NULL), 0);
    struct blob_ref ref = put_file(r, path);
    mem_free(path);
    return ref;
}

struct result {
    Skerry__V1__ReportRequest m;
    Skerry__V1__Contribution c, *list[1];
    Skerry__V1__Blob blob;
};

static void begin_result(struct result *x, const Skerry__V1__Task *t, struct blob_ref *blob)
{
    skerry__v1__report_request__init(&x->m);
    skerry__v1__contribution__init(&x->c);
    skerry__v1__blob__init(&x->blob);
    x->m.task_id = t->id;
    x->m.attempt = t->attempt;
    x->m.steps = 2;
    x->m.samples = 8;
    x->m.loss_mean = 0.5f;
    if (blob == NULL)
        return;
    x->blob.sha256.data = blob->sha256;
    x->blob.sha256.len = 32;
    x->blob.size = blob->size;
    x->c.module_id = MODULE;
    x->c.base_version = t->train ? t->train->round : 0;
    x->c.blob = &x->blob;
    x->list[0] = &x->c;
    x->m.contributions = x->list;
    x->m.n_contributions = 1;
}

/* true: accepted; else w->detail has the reason. */
static bool report(struct rig *r, struct fake *w, const struct result *x)
{
    if (CALL(r, w, REPORT, report, &x->m) != 0)
        fail_msg("REPORT: %s", w->detail);
    Skerry__V1__ReportReply *reply = skerry__v1__report_reply__unpack(NULL, w->reply_len, w->reply);
    bool accepted = reply->accepted;
    (void)snprintf(w->detail, sizeof(w->detail), "%s", reply->reason);
    skerry__v1__report_reply__free_unpacked(reply, NULL);
    return accepted;
}

static void do_init(struct rig *r, struct fake *w)
{
    struct result x;
    struct blob_ref full = put_file(r, r->f.full);
    begin_result(&x, assign(r, w, TASK_INIT), &full);
    if (!report(r, w, &x))
        fail_msg("%s", w->detail);
}

/* Trains: a contribution with noise of this size to the version at hand. */
static struct blob_ref contribute(struct rig *r, const Skerry__V1__Task *t, uint64_t seed,
                                  float size)
{
    char full[4096], *path = fx_path(&r->f, "contribution");
    float *theta = fx_array(), *theta_end = fx_array();
    struct job *j = state_job(&r->co->state, t->job_id);
    const struct version_rec *v = module_version(&j->modules[0], t->train->round);
    struct blob_id id;
    memcpy(id.sha256, v->full.sha256, 32);
    assert_int_equal(blobstore_path(r->co->blobs, &id, full, sizeof(full)), 0);
    fx_read_flat(full, theta);
    fx_normal(seed, size, theta_end);
    for (size_t i = 0; i < PARAMS; i++)
        theta_end[i] += theta[i];
    fx_contribute(full, t->train->round, theta_end, CODEC_E3M0, 8, path);
    struct blob_ref ref = put_file(r, path);
    free(theta);
    free(theta_end);
    mem_free(path);
    return ref;
}

static void finish_train(struct rig *r, struct fake *w)
{
    struct result x;
    struct blob_ref blob = contribute(r, w->task, w->task->id, 0.01f);
    begin_result(&x, w->task, &blob);
    if (!report(r, w, &x))
        fail_msg("%s", w->detail);
}

/* ---- the job ------------------------------------------------------------- */

static const char yaml[] = "name: fake\nseed: 3\n"
                           "data: {path: x, image_size: 16}\n"
                           "model: {type: dit, patch: 4, dim: 32, depth: 1, heads: 2}\n"
                           "train: {batch: 4}\nrecipe: {name: diloco, replicas: 2}\n"
                           "outer: {rounds: 2, steps: 2}\n"
                           "sample: {count: 4}\n";

static int try_submit(struct rig *r, uint64_t *ret_id, struct err *err)
{
    static const char *const classes[] = {"cat", "dog"};
    static const uint64_t counts[] = {20, 20};
    struct blob_ref a = put_text(r, "shard a"), b = put_text(r, "held out");
    struct view_shard shards[2] = {{.size = a.size, .samples = 40},
                                   {.size = b.size, .samples = 4, .holdout = true}};
    memcpy(shards[0].sha256, a.sha256, 32);
    memcpy(shards[1].sha256, b.sha256, 32);
    const struct view_submit s = {.spec = yaml,
                                  .classes = classes,
                                  .counts = counts,
                                  .n_classes = 2,
                                  .shards = shards,
                                  .n_shards = 2};
    return view_job_submit(r->co, &s, ret_id, err);
}

static uint64_t submit(struct rig *r)
{
    uint64_t id = 0;
    struct err err = {0};
    if (try_submit(r, &id, &err) < 0)
        fail_msg("%s", err.msg);
    return id;
}

static void wait_state(struct rig *r, uint64_t job, enum job_state s)
{
    uint64_t until = clock_now_ms() + DEADLINE_MS;
    while (state_job(&r->co->state, job)->state != s) {
        if (clock_now_ms() > until)
            fail_msg("the job is %s: %s", job_state_name(state_job(&r->co->state, job)->state),
                     state_job(&r->co->state, job)->reason);
        loop_turn(r->loop, true);
    }
}

static void count_waiting(void *arg, const struct view_waiting *w)
{
    ++*(unsigned *)arg;
    assert_true(w->what[0] != '\0' && w->why[0] != '\0');
}

static unsigned waiting(struct rig *r)
{
    unsigned n = 0;
    view_each_waiting(r->co, 0, count_waiting, &n);
    return n;
}

/* The end of a job: held-out loss and a grid, in either order. */
static void finish_job(struct rig *r, struct fake *w)
{
    for (int i = 0; i < 2; i++) {
        struct result x;
        struct blob_ref png = put_text(r, "a picture");
        ask(r, w, 15000);
        const Skerry__V1__Task *t = got(r, w);
        assert_non_null(t);
        begin_result(&x, t, NULL);
        Skerry__V1__Blob blob = SKERRY__V1__BLOB__INIT;
        blob.sha256.data = png.sha256;
        blob.sha256.len = 32;
        blob.size = png.size;
        if (t->kind == SKERRY__V1__TASK_KIND__TASK_KIND_SAMPLE) {
            assert_int_equal(t->sample->n_labels, 4);
            assert_int_equal(t->sample->labels[3], 1);
            x.m.output = &blob;
        } else {
            assert_int_equal(t->kind, TASK_EVAL);
            assert_int_equal(t->eval->n_ranges, 1);
        }
        if (!report(r, w, &x))
            fail_msg("%s", w->detail);
    }
}

static void check_end(struct rig *r, uint64_t job)
{
    struct view_job v;
    wait_state(r, job, JOB_DONE);
    const struct job *j = state_job(&r->co->state, job);
    assert_int_equal(view_job(r->co, job, &v, NULL), 0);
    assert_int_equal(v.round, 2);
    assert_true(v.per_param_up > 0.4 && v.per_param_up < 0.7);
    assert_int_equal(j->modules[0].version, 2);
    assert_int_equal(j->n_grids, 1);
    assert_int_equal(j->n_rounds, 2);
    assert_true(j->rounds[1].eval_loss == 0.5f);
    struct ledger_epoch e;
    ledger_figures(j->ledgers[0], 0, &e);
    assert_int_equal(e.done, 32); /* 2 rounds x 2 replicas x 2 steps x 4 images */
    assert_int_equal(e.leased, 0);
}

/* ---- tests --------------------------------------------------------------- */

static void test_life(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0], *b = &r->workers[1];
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    assert_int_equal(join(r, b, SKERRY_VERSION), 0);
    assert_int_not_equal(a->id, b->id);
    uint64_t job = submit(r);
    do_init(r, a);
    for (int round = 0; round < 2; round++) {
        assign(r, a, TASK_TRAIN);
        assign(r, b, TASK_TRAIN);
        assert_int_not_equal(a->task->train->replica, b->task->train->replica);
        assert_int_equal(a->task->train->round, round);
        assert_int_equal(a->task->train->first_step, 2 * round);
        assert_int_equal(a->task->n_modules, 1);
        assert_non_null(a->task->modules[0]->full);
        assert_true(waiting(r) >= 3); /* the version, and two workers */
        /* The warm replica comes back to its worker. */
        if (round == 1)
            assert_int_equal(a->assigned->n_applied, 1);
        finish_train(r, a);
        finish_train(r, b);
    }
    finish_job(r, a);
    check_end(r, job);
}

static void test_fences(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0], *b = &r->workers[1];
    struct result x;
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    assert_int_equal(join(r, b, SKERRY_VERSION), 0);
    uint64_t job = submit(r);
    do_init(r, a);
    assign(r, a, TASK_TRAIN);
    struct blob_ref blob = contribute(r, a->task, 1, 0.01f);
    begin_result(&x, a->task, &blob);
    /* The same ask again: the answer was lost on the way. */
    uint64_t id = a->task->id;
    assign(r, a, TASK_TRAIN);
    assert_int_equal(a->task->id, id);
    /* Another's task, a wrong attempt. */
    assert_false(report(r, b, &x));
    x.m.attempt++;
    assert_false(report(r, a, &x));
    assert_non_null(strstr(a->detail, "lost its lease"));
    x.m.attempt--;
    assert_true(report(r, a, &x));
    assert_true(report(r, a, &x)); /* a repeated one is fine and counts once */
    const struct job *j = state_job(&r->co->state, job);
    struct ledger_epoch e;
    ledger_figures(j->ledgers[0], 0, &e);
    assert_int_equal(e.done, 8);
    /* A worker that says good-bye gives its task back at once. */
    assign(r, b, TASK_TRAIN);
    id = b->task->id;
    begin_result(&x, b->task, &blob);
    Skerry__V1__LeaveRequest leave = SKERRY__V1__LEAVE_REQUEST__INIT;
    assert_int_equal(CALL(r, b, LEAVE, leave, &leave), 0);
    assert_int_equal(state_task(&r->co->state, id)->state, TASK_PENDING);
    assert_int_equal(CALL(r, b, REPORT, report, &x.m), -ERR_STALE);
    assign(r, a, TASK_TRAIN);
    assert_int_equal(a->task->id, id);
    assert_int_equal(a->task->attempt, 2);
    finish_train(r, a);
    wait_state(r, job, JOB_RUNNING);
}

static void test_revoked(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0];
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    uint64_t job = submit(r);
    do_init(r, a);
    assign(r, a, TASK_TRAIN);
    Skerry__V1__HeartbeatRequest beat = SKERRY__V1__HEARTBEAT_REQUEST__INIT;
    Skerry__V1__Progress p = SKERRY__V1__PROGRESS__INIT;
    Skerry__V1__LossPoint point = SKERRY__V1__LOSS_POINT__INIT, *points[] = {&point};
    p.task_id = a->task->id;
    p.attempt = a->task->attempt;
    p.steps_done = 1;
    p.loss = 0.25f;
    p.points = points;
    p.n_points = 1;
    point.step = 1;
    point.loss = 0.25f;
    beat.progress = &p;
    beat.bytes_up = 1000;
    assert_int_equal(CALL(r, a, HEARTBEAT, heartbeat, &beat), 0);
    assert_int_equal(state_worker(&r->co->state, a->id)->bytes[2], 1000);
    assert_int_equal(state_job(&r->co->state, job)->metric_n, 1);
    assert_int_equal(view_job_cancel(r->co, job, NULL), 0);
    assert_int_equal(CALL(r, a, HEARTBEAT, heartbeat, &beat), 0);
    Skerry__V1__HeartbeatReply *reply =
        skerry__v1__heartbeat_reply__unpack(NULL, a->reply_len, a->reply);
    assert_int_equal(reply->revoked_task_id, p.task_id);
    assert_non_null(strstr(reply->revoked_reason, "cancelled"));
    skerry__v1__heartbeat_reply__free_unpacked(reply, NULL);
    assert_true(view_job_cancel(r->co, job, NULL) < 0);
    assert_int_equal(waiting(r), 0);
}

/* The daemon is replaced in the middle of a phase: the lease is still there. */
static void test_restart(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0];
    struct result x;
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    uint64_t job = submit(r), before = a->id;
    do_init(r, a);
    assign(r, a, TASK_TRAIN);
    struct blob_ref blob = contribute(r, a->task, 1, 0.01f);
    begin_result(&x, a->task, &blob);
    stop(r);
    start(r);
    assert_int_equal(state_job(&r->co->state, job)->state, JOB_RUNNING);
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    assert_int_equal(a->id, before);
    assert_true(report(r, a, &x));
    stop(r);
    start(r);
    /* What was acknowledged is there; a new process of the worker gets the rest. */
    a->instance[0]++;
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    assign(r, a, TASK_TRAIN);
    assert_int_equal(a->task->train->replica, 1);
    finish_train(r, a);
    for (int i = 0; i < 2; i++) {
        assign(r, a, TASK_TRAIN);
        assert_int_equal(a->task->train->round, 1);
        finish_train(r, a);
    }
    finish_job(r, a);
    check_end(r, job);
}

/* A broken contribution is refused by the check, its phase is done again. */
static void test_bad_contribution(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0];
    struct result x;
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    uint64_t job = submit(r);
    do_init(r, a);
    assign(r, a, TASK_TRAIN);
    struct blob_ref junk = put_text(r, "this is no contribution");
    begin_result(&x, a->task, &junk);
    assert_true(report(r, a, &x)); /* it is looked into when it is folded */
    uint64_t bad = a->task->id;
    assign(r, a, TASK_TRAIN);
    finish_train(r, a);
    wait_state(r, job, JOB_RUNNING);
    /* One good of two is a quorum: the round closes without the bad one. */
    assign(r, a, TASK_TRAIN);
    const struct job *j = state_job(&r->co->state, job);
    assert_int_equal(j->modules[0].version, 1);
    assert_int_equal(j->rounds[0].contributions, 1);
    assert_int_equal(j->rounds[0].expected, 2);
    assert_true(state_task(&r->co->state, bad)->contributions[0].refused);
    assert_int_equal(state_worker(&r->co->state, a->id)->tasks_failed, 1);
    bool told_bad = false;
    for (size_t i = 0; i < a->assigned->n_applied; i++)
        told_bad |= a->assigned->applied[i]->task_id == bad && !a->assigned->applied[i]->accepted;
    assert_true(told_bad);
}

static void test_all_bad(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0];
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    uint64_t job = submit(r);
    do_init(r, a);
    for (int i = 0; i < 2; i++) {
        struct result x;
        assign(r, a, TASK_TRAIN);
        struct blob_ref junk = put_text(r, i ? "junk one" : "junk two");
        begin_result(&x, a->task, &junk);
        assert_true(report(r, a, &x));
    }
    /* Nothing changed, both phases come again with a new attempt. */
    assign(r, a, TASK_TRAIN);
    assert_int_equal(a->task->attempt, 2);
    assert_int_equal(state_job(&r->co->state, job)->modules[0].version, 0);
    finish_train(r, a);
}

static void test_refused_results(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0];
    struct result x;
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    uint64_t job = submit(r);
    do_init(r, a);
    assign(r, a, TASK_TRAIN);
    struct blob_ref blob = contribute(r, a->task, 1, 0.01f);
    begin_result(&x, a->task, &blob);
    x.m.samples = 9; /* more than it was given */
    assert_false(report(r, a, &x));
    assert_non_null(strstr(a->detail, "expected 1 to 8"));
    assert_int_equal(state_task(&r->co->state, x.m.task_id)->state, TASK_PENDING);
    assert_int_equal(state_task(&r->co->state, x.m.task_id)->failures, 1);
    /* What cannot succeed fails the job, with its reason. */
    assign(r, a, TASK_TRAIN);
    begin_result(&x, a->task, NULL);
    x.m.failed = true;
    x.m.reason = (char *)"this model does not fit";
    assert_true(report(r, a, &x));
    wait_state(r, job, JOB_FAILED);
    assert_non_null(strstr(state_job(&r->co->state, job)->reason, "does not fit"));
}

static void test_refused_joins(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0], *b = &r->workers[1];
    assert_int_equal(join(r, a, "0.0.0-other"), -ERR_VERSION);
    assert_non_null(strstr(a->detail, "same release"));
    Skerry__V1__AssignRequest early = SKERRY__V1__ASSIGN_REQUEST__INIT;
    assert_int_equal(CALL(r, a, ASSIGN, assign, &early), -ERR_STALE);
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    memcpy(b->identity, a->identity, 16);
    assert_int_equal(join(r, b, SKERRY_VERSION), -EBUSY);
    assert_non_null(strstr(b->detail, "--work-dir"));
}

static void test_refused_jobs(void **state)
{
    struct rig *r = *state;
    struct err err = {0};
    uint64_t id;
    struct view_shard shard = {.sha256 = {1}, .size = 5, .samples = 4};
    static const char *const classes[] = {"cat"};
    static const uint64_t counts[] = {4};
    struct view_submit s = {.spec = yaml,
                            .classes = classes,
                            .counts = counts,
                            .n_classes = 1,
                            .shards = &shard,
                            .n_shards = 1};
    assert_int_equal(view_job_submit(r->co, &s, &id, &err), -ERR_NOTFOUND);
    assert_non_null(strstr(err.msg, "was not uploaded"));
    struct blob_ref blob = put_text(r, "12345");
    memcpy(shard.sha256, blob.sha256, 32);
    shard.size = 6;
    assert_int_equal(view_job_submit(r->co, &s, &id, &err), -EINVAL);
    shard.size = 5;
    shard.holdout = true;
    assert_int_equal(view_job_submit(r->co, &s, &id, &err), -EINVAL);
    assert_non_null(strstr(err.msg, "held out"));
    shard.holdout = false;
    s.spec = "name: fake\ndata: {path: x, image_size: 16}\n"
             "model: {type: dit, patch: 4, dim: 32, depth: 1, heads: 2}\n"
             "train: {batch: 4}\nouter: {rounds: 2, steps: 2049}\n";
    assert_int_equal(view_job_submit(r->co, &s, &id, &err), -ERR_CONFIG); /* 4 images */
    assert_non_null(strstr(err.msg, "data.shard_samples"));
    s.spec = "name: x\nspeed: 3\n";
    assert_int_equal(view_job_submit(r->co, &s, &id, &err), -ERR_CONFIG);
    assert_non_null(strstr(err.msg, "speed"));
    assert_int_equal(r->co->state.n_jobs, 0);
}

/* While nothing can be written nothing is acknowledged, and then it goes on. */
static void test_disk_full(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0];
    struct err err = {0};
    uint64_t id;
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    r->co->store_ok = false;
    (void)str_copy(r->co->store_error, sizeof(r->co->store_error), "the disk is full");
    assert_int_equal(try_submit(r, &id, &err), -ENOSPC);
    assert_non_null(strstr(err.msg, "the disk is full"));
    assert_int_equal(waiting(r), 1);
    ask(r, a, 1000);
    wait_for(r, &a->done);
    assert_int_equal(a->code, -ENOSPC);
    core_touch(r->co); /* the retry's timer does this */
    loop_turn(r->loop, false);
    assert_true(r->co->store_ok);
    submit(r);
    do_init(r, a);
}

/* A contribution that comes while the step of its round runs is not in it. */
static void test_late_contribution(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0], *b = &r->workers[1];
    struct result x;
    struct err err = {0};
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    assert_int_equal(join(r, b, SKERRY_VERSION), 0);
    struct job *j = state_job(&r->co->state, submit(r));
    j->spec.outer.grace = 0.3;
    do_init(r, a);
    assign(r, a, TASK_TRAIN);
    assign(r, b, TASK_TRAIN);
    struct blob_ref blob = contribute(r, b->task, 7, 0.01f);
    begin_result(&x, b->task, &blob);
    finish_train(r, a);
    while (j->modules[0].outer_task == 0)
        loop_turn(r->loop, true);
    struct worker *w = state_worker(&r->co->state, b->id);
    assert_int_equal(report_apply(r->co, w, &x.m, &err), 0);
    while (j->n_rounds == 0)
        loop_turn(r->loop, true);
    assert_int_equal(j->rounds[0].contributions, 1);
    assert_int_equal(j->rounds[0].expected, 2);
    assert_int_equal(w->n_verdicts, 1);
    assert_int_equal(w->verdicts[0].task_id, x.m.task_id);
    assert_false(w->verdicts[0].accepted);
    assert_non_null(strstr(w->verdicts[0].reason, "after round 1 was closed"));
    assert_int_equal(w->tasks_failed, 0);
}

/* A bad contribution and a fault of our disk in one step: it goes on after the fault. */
static void test_fault_of_ours(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0];
    struct result x;
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    struct job *j = state_job(&r->co->state, submit(r));
    do_init(r, a);
    struct module_rec *m = &j->modules[0];
    char *in_the_way = str_printf("%s/outer/%llu/%llu/full.1.safetensors", r->f.dir,
                                  (unsigned long long)j->id, (unsigned long long)m->id);
    assert_int_equal(file_mkdirs(in_the_way, 0700, NULL), 0);
    assign(r, a, TASK_TRAIN);
    struct blob_ref junk = put_text(r, "this is no contribution");
    begin_result(&x, a->task, &junk);
    assert_true(report(r, a, &x));
    assign(r, a, TASK_TRAIN);
    finish_train(r, a);
    while (m->outer_failures == 0)
        loop_turn(r->loop, true);
    assert_int_equal(m->version, 0);
    assert_int_equal(file_remove_tree(in_the_way, NULL), 0);
    mem_free(in_the_way);
    uint64_t until = clock_now_ms() + DEADLINE_MS;
    while (j->n_rounds == 0) {
        assert_true(clock_now_ms() < until);
        loop_turn(r->loop, true);
    }
    assert_int_equal(m->version, 1);
    assert_int_equal(j->rounds[0].contributions, 1);
}

static void test_cancelled_in_a_step(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0];
    struct result x;
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    struct job *j = state_job(&r->co->state, submit(r));
    do_init(r, a);
    assign(r, a, TASK_TRAIN);
    finish_train(r, a);
    assign(r, a, TASK_TRAIN);
    struct blob_ref blob = contribute(r, a->task, 7, 0.01f);
    begin_result(&x, a->task, &blob);
    assert_int_equal(report_apply(r->co, state_worker(&r->co->state, a->id), &x.m, NULL), 0);
    while (j->modules[0].outer_task == 0)
        loop_turn(r->loop, false);
    assert_int_equal(view_job_cancel(r->co, j->id, NULL), 0);
    char *dir = str_printf("%s/outer/%llu", r->f.dir, (unsigned long long)j->id);
    uint64_t until = clock_now_ms() + DEADLINE_MS;
    while (j->modules[0].outer_task != 0 || file_is_dir(dir)) {
        assert_true(clock_now_ms() < until);
        loop_turn(r->loop, true);
    }
    mem_free(dir);
}

/* The same broken images in every phase count once, named or not. */
static void test_bad_samples(void **state)
{
    enum { NAMED = 64, ALL = 70 };
    struct rig *r = *state;
    struct fake *a = &r->workers[0];
    Skerry__V1__BadSample bad[NAMED], *list[NAMED];
    char keys[NAMED][24];
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    struct job *j = state_job(&r->co->state, submit(r));
    do_init(r, a);
    for (int i = 0; i < NAMED; i++) {
        skerry__v1__bad_sample__init(&bad[i]);
        (void)snprintf(keys[i], sizeof(keys[i]), "image-%d", i);
        bad[i].key = keys[i];
        bad[i].reason = (char *)"cut short";
        list[i] = &bad[i];
    }
    for (int phase = 0; phase < 2; phase++) {
        struct result x;
        assign(r, a, TASK_TRAIN);
        struct blob_ref blob = contribute(r, a->task, 7, 0.01f);
        begin_result(&x, a->task, &blob);
        x.m.bad = list;
        x.m.n_bad = NAMED;
        x.m.bad_count = ALL;
        assert_true(report(r, a, &x));
        assert_int_equal(j->bad_count, ALL);
        assert_int_equal(j->n_bad, NAMED);
    }
}

/* Phases bounded by time: the schedule's end is foretold from the last phase. */
static void test_seconds(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0];
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    struct job *j = state_job(&r->co->state, submit(r));
    j->spec.outer.steps = 0;
    j->spec.outer.seconds = 10;
    do_init(r, a);
    for (int replica = 0; replica < 2; replica++) {
        struct result x;
        assign(r, a, TASK_TRAIN);
        assert_int_equal(a->task->train->seconds, 10);
        assert_int_equal(a->task->train->total_steps, 0); /* nobody knows yet */
        struct blob_ref blob = contribute(r, a->task, 7, 0.01f);
        begin_result(&x, a->task, &blob);
        x.m.seconds = 1; /* 8 samples, then there were no more */
        assert_true(report(r, a, &x));
    }
    assign(r, a, TASK_TRAIN);
    assert_int_equal(a->task->train->first_step, 2);
    assert_int_equal(a->task->train->total_steps, 2 + 80 / 4);
}

/* A connection belongs to the worker that joined on it last. */
static void test_two_workers_on_a_connection(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0];
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    uint64_t first = a->id;
    a->identity[0] = a->instance[0] = 77;
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    assert_int_not_equal(a->id, first);
    assert_null(state_worker(&r->co->state, first)->peer);
    assert_non_null(state_worker(&r->co->state, a->id)->peer);
}

/* Neither our restart nor our full disk is held against a worker. */
static void test_excused(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0];
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    stop(r);
    start(r);
    struct worker *w = state_worker(&r->co->state, a->id);
    assert_int_equal(w->state, WORKER_HERE);
    assert_true(w->heard_ms >= core_now(r->co) + 10000); /* the longest pause of a dialler */
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    r->co->store_ok = false;
    w->heard_ms = core_now(r->co) - r->co->opt.lease_ms - 1000;
    member_check(r->co);
    assert_int_equal(w->state, WORKER_HERE);
    r->co->store_ok = true;
    w->heard_ms = core_now(r->co) - r->co->opt.lease_ms - 1000;
    member_check(r->co);
    assert_int_equal(w->state, WORKER_LOST);
}

int main(void)
{
    log_set_level(LOG_LEVEL_ERROR);
#define LIVE(f) cmocka_unit_test_setup_teardown(f, begin, end)
    const struct CMUnitTest tests[] = {
        LIVE(test_life),
        LIVE(test_fences),
        LIVE(test_revoked),
        LIVE(test_restart),
        LIVE(test_bad_contribution),
        LIVE(test_all_bad),
        LIVE(test_refused_results),
        LIVE(test_refused_joins),
        LIVE(test_refused_jobs),
        LIVE(test_disk_full),
        LIVE(test_late_contribution),
        LIVE(test_fault_of_ours),
        LIVE(test_cancelled_in_a_step),
        LIVE(test_bad_samples),
        LIVE(test_seconds),
        LIVE(test_two_workers_on_a_connection),
        LIVE(test_excused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
