/* A whole coordinator on a loopback port, driven by fake workers through real RPC. */
#ifndef TESTS_UNIT_COORDINATOR_RIG_H
#define TESTS_UNIT_COORDINATOR_RIG_H

#include "tests/unit/blobs.h"
#include "tests/unit/wait.h"

#include "tests/unit/common/outer/fixture.h"

#include <errno.h>
#include <math.h>

#include "common/base/log.h"
#include "common/net/loop.h"
#include "common/net/rpc.h"
#include "coordinator/coordinator.h"
#include "coordinator/state/core.h"
#include "coordinator/view/view.h"
#include "proto/skerry.pb-c.h"

#define DEADLINE_MS WAIT_MS
#define REPLY_MAX 65536

struct fake {
    struct rpc_client *rpc;
    const struct token *token; /* NULL: the coordinator's first */
    const struct keys *keys;   /* NULL: of a release before keys */
    const char *site;          /* whose workers it serves; NULL: it serves nobody */
    bool fetches_ahead;
    bool old;                     /* of a release that knows only plain tasks */
    Skerry__V1__HeldVersion held; /* what it says that it holds; module_id 0: nothing */
    uint8_t instance[16], identity[16], share_key[32];
    uint64_t id;
    Skerry__V1__AssignReply *assigned; /* holds the task below */
    Skerry__V1__Task *task;
    char refused[512]; /* for good, and why */
    /* of the call in flight */
    bool done, retryable;
    int code;
    uint32_t retry_after_ms;
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

static inline void start(struct rig *r)
{
    struct err err = {0};
    const struct coordinator_options o = {
        .data_dir = r->f.dir,
        .listen = "127.0.0.1",
        .plain_http = true,
        .heartbeat_ms = 2000,
        .lease_ms = 60000, /* nobody heartbeats, and a commit may take seconds */
        .outer_threads = 1,
    };
    assert_int_equal(loop_new(&r->loop, &err), 0);
    if (coordinator_open(r->loop, &o, &r->co, &err) < 0)
        fail_msg("%s", err.msg);
}

/* Until no turn is due and no commit is under way. */
static inline void settle(struct rig *r)
{
    uint64_t until = clock_now_ms() + DEADLINE_MS;
    do {
        assert_true(clock_now_ms() < until);
        loop_turn(r->loop, r->co->writing);
    } while (r->co->turn_scheduled || r->co->writing);
}

static inline void stop(struct rig *r)
{
    for (size_t i = 0; i < 3; i++) {
        rpc_client_close(r->workers[i].rpc);
        r->workers[i].rpc = NULL;
    }
    coordinator_close(r->co);
    loop_free(r->loop);
}

static inline int begin(void **state)
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

static inline void drop_task(struct fake *w)
{
    if (w->assigned != NULL)
        skerry__v1__assign_reply__free_unpacked(w->assigned, NULL);
    w->assigned = NULL;
    w->task = NULL;
}

static inline int end(void **state)
{
    struct rig *r = *state;
    for (size_t i = 0; i < 3; i++)
        drop_task(&r->workers[i]);
    stop(r);
    fx_end(&r->f);
    return 0;
}

/* Records for writing. */
static inline struct worker *edit_worker(struct rig *r, uint64_t id)
{
    return state_edit_worker(&r->co->state, state_worker(&r->co->state, id));
}

static inline struct task *edit_task(struct rig *r, uint64_t id)
{
    return state_edit_task(&r->co->state, state_task(&r->co->state, id));
}

/* ---- outer steps that are held ---- */

struct held_steps {
    pthread_mutex_t lock;
    const struct blobstore_ops *real;
    struct blobstore_ops ops;
};

static inline struct held_steps *held_steps(void)
{
    static struct held_steps h = {.lock = PTHREAD_MUTEX_INITIALIZER};
    return &h;
}

/* Only the threads of steps wait for a file. */
static inline int held_local(struct blobstore *s, const struct blob_id *id, bool wait,
                             char **ret_path, struct err *err)
{
    struct held_steps *h = held_steps();
    if (wait) {
        pthread_mutex_lock(&h->lock);
        pthread_mutex_unlock(&h->lock);
    }
    return h->real->local(s, id, wait, ret_path, err);
}

/* From here until let_steps() outer steps begin, and are not made: else one may be over before the
 * loop's turn that began it is. */
static inline void hold_steps(struct rig *r)
{
    struct held_steps *h = held_steps();
    h->real = r->co->blobs->ops;
    h->ops = *h->real;
    h->ops.local = held_local;
    r->co->blobs->ops = &h->ops;
    pthread_mutex_lock(&h->lock);
}

static inline void let_steps(void)
{
    pthread_mutex_unlock(&held_steps()->lock);
}

/* ---- fake workers -------------------------------------------------------- */

static inline void on_reply(void *arg, const struct rpc_result *res)
{
    struct fake *w = arg;
    w->done = true;
    w->code = res->code;
    w->retryable = res->retryable;
    w->retry_after_ms = res->retry_after_ms;
    (void)snprintf(w->detail, sizeof(w->detail), "%s", res->detail);
    w->reply_len = 0;
    if (res->code == 0) {
        w->reply_len = protobuf_c_message_get_packed_size(res->reply);
        assert_true(w->reply_len <= REPLY_MAX);
        (void)protobuf_c_message_pack(res->reply, w->reply);
    }
}

static inline void wait_for(struct rig *r, const bool *flag)
{
    uint64_t until = clock_now_ms() + DEADLINE_MS;
    while (!*flag) {
        if (clock_now_ms() > until)
            fail_msg("no answer within %d ms", DEADLINE_MS);
        loop_turn(r->loop, true);
    }
}

static inline void begin_call(struct rig *r, struct fake *w, uint16_t method, const void *msg,
                              const ProtobufCMessageDescriptor *reply)
{
    w->done = false;
    assert_int_equal(rpc_client_call(w->rpc, method, msg, reply, DEADLINE_MS, on_reply, w, NULL),
                     0);
}

static inline int call(struct rig *r, struct fake *w, uint16_t method, const void *msg,
                       const ProtobufCMessageDescriptor *reply)
{
    begin_call(r, w, method, msg, reply);
    wait_for(r, &w->done);
    return w->code;
}

#define CALL(r, w, NAME, name, msg)                                                                \
    call(r, w, SKERRY__V1__METHOD__METHOD_##NAME, msg, &skerry__v1__##name##_reply__descriptor)

static inline void on_state(void *arg, enum rpc_state state, const struct err *why)
{
    struct fake *w = arg;
    if (state == RPC_FAILED)
        (void)str_copy(w->refused, sizeof(w->refused), why->msg);
}

static inline void dial(struct rig *r, struct fake *w)
{
    struct err err = {0};
    const struct rpc_client_options o = {.token = w->token ? w->token : &r->co->worker_token,
                                         .keys = w->keys,
                                         .build_id = SKERRY_VERSION,
                                         .max_body_bytes = 1u << 20,
                                         .on_state = on_state,
                                         .arg = w};
    w->refused[0] = '\0';
    assert_int_equal(rpc_client_open(r->loop, &o, &w->rpc, &err), 0);
    WAIT_FOR(r, rpc_client_state(w->rpc) == RPC_CONNECTED || w->refused[0] != '\0');
}

/* A new connection: as after a restart of the worker. */
static inline void hang_up(struct fake *w)
{
    rpc_client_close(w->rpc);
    w->rpc = NULL;
}

static inline int join(struct rig *r, struct fake *w, const char *version)
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
    m.fetches_ahead = w->fetches_ahead;
    m.reads =
        w->old ? SKERRY__V1__READS__READS_UNSPECIFIED : SKERRY__V1__READS__READS_CASCADE_EXPERTS;
    if (w->site != NULL) {
        m.site = (char *)(uintptr_t)w->site;
        m.share_host = (char *)"10.0.0.7";
        m.share_port = 7720;
        m.share_key.data = w->share_key;
        m.share_key.len = sizeof(w->share_key);
    }
    int rc = CALL(r, w, JOIN, join, &m);
    if (rc == 0) {
        Skerry__V1__JoinReply *reply = skerry__v1__join_reply__unpack(NULL, w->reply_len, w->reply);
        w->id = reply->worker_id;
        skerry__v1__join_reply__free_unpacked(reply, NULL);
    }
    return rc;
}

static inline void ask(struct rig *r, struct fake *w, uint32_t wait_ms)
{
    Skerry__V1__AssignRequest m = SKERRY__V1__ASSIGN_REQUEST__INIT;
    Skerry__V1__HeldVersion held = SKERRY__V1__HELD_VERSION__INIT, *list = &held;
    drop_task(w);
    held.module_id = w->held.module_id;
    held.version = w->held.version;
    m.held = &list;
    m.n_held = held.module_id != 0;
    m.wait_ms = wait_ms;
    begin_call(r, w, SKERRY__V1__METHOD__METHOD_ASSIGN, &m, &skerry__v1__assign_reply__descriptor);
}

/* Waits for the answer to ask(); the task, or NULL. */
static inline Skerry__V1__Task *got(struct rig *r, struct fake *w)
{
    wait_for(r, &w->done);
    if (w->code != 0)
        fail_msg("ASSIGN: %s", w->detail);
    w->assigned = skerry__v1__assign_reply__unpack(NULL, w->reply_len, w->reply);
    w->task = w->assigned->task;
    return w->task;
}

static inline Skerry__V1__Task *assign(struct rig *r, struct fake *w, enum task_kind kind)
{
    ask(r, w, 15000);
    Skerry__V1__Task *t = got(r, w);
    if (t == NULL)
        fail_msg("no task: %s", w->assigned->waiting_for);
    assert_int_equal(t->kind, kind);
    return t;
}

static inline struct blob_ref put_file(struct rig *r, const char *path)
{
    struct blob_ref ref;
    struct blob_id id;
    struct buf b;
    assert_int_equal(file_read(path, 64 << 20, &b, NULL), 0);
    assert_int_equal(blob_put(r->co->blobs, b.data, b.len, &id, NULL), 0);
    memcpy(ref.sha256, id.sha256, 32);
    ref.size = b.len;
    buf_release(&b);
    return ref;
}

static inline struct blob_ref put_text(struct rig *r, const char *text)
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

static inline void begin_result(struct result *x, const Skerry__V1__Task *t, struct blob_ref *blob)
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

/* Reports, again while a thread looks at the result. */
static inline int call_report(struct rig *r, struct fake *w, const Skerry__V1__ReportRequest *m)
{
    const uint64_t until = clock_now_ms() + DEADLINE_MS;
    int rc;
    do
        rc = CALL(r, w, REPORT, report, m);
    while (rc == -EAGAIN && clock_now_ms() < until);
    return rc;
}

/* true: accepted; else w->detail has the reason. */
static inline bool report(struct rig *r, struct fake *w, const struct result *x)
{
    if (call_report(r, w, &x->m) != 0)
        fail_msg("REPORT: %s", w->detail);
    Skerry__V1__ReportReply *reply = skerry__v1__report_reply__unpack(NULL, w->reply_len, w->reply);
    bool accepted = reply->accepted;
    (void)snprintf(w->detail, sizeof(w->detail), "%s", reply->reason);
    skerry__v1__report_reply__free_unpacked(reply, NULL);
    return accepted;
}

static inline void finish_init(struct rig *r, struct fake *w)
{
    struct result x;
    struct blob_ref full = put_file(r, r->f.full);
    begin_result(&x, w->task, &full);
    if (!report(r, w, &x))
        fail_msg("%s", w->detail);
}

static inline void do_init(struct rig *r, struct fake *w)
{
    (void)assign(r, w, TASK_INIT);
    finish_init(r, w);
}

/* Trains: a contribution with noise of this size to the version at hand, in this codec. */
static inline struct blob_ref contribute_as(struct rig *r, const Skerry__V1__Task *t, uint64_t seed,
                                            float size, enum codec codec)
{
    char full[4096], *path = fx_path(&r->f, "contribution");
    float *theta = fx_array(), *theta_end = fx_array();
    struct job *j = state_job(&r->co->state, t->job_id);
    const struct version_rec *v = module_version(&j->modules[0], t->train->round);
    struct blob_id id;
    memcpy(id.sha256, v->full.sha256, 32);
    assert_int_equal(blob_file(r->co->blobs, &id, full, sizeof(full)), 0);
    fx_read_flat(full, theta);
    fx_normal(seed, size, theta_end);
    for (size_t i = 0; i < PARAMS; i++)
        theta_end[i] += theta[i];
    fx_contribute(full, t->train->round, theta_end, codec, 8, path);
    struct blob_ref ref = put_file(r, path);
    free(theta);
    free(theta_end);
    mem_free(path);
    return ref;
}

static inline struct blob_ref contribute(struct rig *r, const Skerry__V1__Task *t, uint64_t seed,
                                         float size)
{
    const struct job *j = state_job(&r->co->state, t->job_id);
    return contribute_as(r, t, seed, size, (enum codec)j->spec.wire.up);
}

static inline void finish_train(struct rig *r, struct fake *w)
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
                           "train: {batch: 4, lr: 0.1}\nrecipe: {name: diloco, replicas: 2}\n"
                           "outer: {rounds: 2, steps: 2}\n"
                           "sample: {count: 4}\n";

static inline int try_submit(struct rig *r, const char *spec, uint64_t *ret_id, struct err *err)
{
    static const char *const classes[] = {"cat", "dog"};
    static const uint64_t counts[] = {20, 20};
    struct blob_ref a = put_text(r, "shard a"), b = put_text(r, "held out");
    struct submit_shard shards[2] = {{.size = a.size, .samples = 40},
                                     {.size = b.size, .samples = 4, .holdout = true}};
    memcpy(shards[0].sha256, a.sha256, 32);
    memcpy(shards[1].sha256, b.sha256, 32);
    const struct submit s = {.spec = spec,
                             .classes = classes,
                             .counts = counts,
                             .n_classes = 2,
                             .shards = shards,
                             .n_shards = 2};
    return view_job_submit(r->co, &s, ret_id, err);
}

static inline uint64_t submit_spec(struct rig *r, const char *spec)
{
    uint64_t id = 0;
    struct err err = {0};
    if (try_submit(r, spec, &id, &err) < 0)
        fail_msg("%s", err.msg);
    return id;
}

static inline uint64_t submit(struct rig *r)
{
    return submit_spec(r, yaml);
}

static inline void wait_state(struct rig *r, uint64_t job, enum job_state s)
{
    uint64_t until = clock_now_ms() + DEADLINE_MS;
    while (state_job(&r->co->state, job)->state != s) {
        if (clock_now_ms() > until)
            fail_msg("the job is %s: %s", job_state_name(state_job(&r->co->state, job)->state),
                     state_job(&r->co->state, job)->reason);
        loop_turn(r->loop, true);
    }
}

static inline void count_waiting(void *arg, const struct view_waiting *w)
{
    ++*(unsigned *)arg;
    assert_true(w->what[0] != '\0' && w->why[0] != '\0');
}

static inline unsigned waiting(struct rig *r)
{
    unsigned n = 0;
    view_each_waiting(r->co, 0, count_waiting, &n);
    return n;
}

/* The end of a job: held-out loss and a grid, in either order. */
static inline void finish_job(struct rig *r, struct fake *w)
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
        edit_task(r, t->id)->steps_total = 30; /* by a heartbeat of its beginning */
        if (!report(r, w, &x))
            fail_msg("%s", w->detail);
        assert_int_equal(state_task(&r->co->state, t->id)->steps_done, 30);
    }
}

static inline void check_end(struct rig *r, uint64_t job)
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

#endif
