/* What a running task asks of the coordinator, over real sockets: a mixture whose experts are
 * elsewhere draws the same bits as one whose experts are here, though the connection is lost
 * in between; and a task that is stopped stops waiting. */
#include "tests/unit/blobs.h"
#include "tests/unit/worker/mixture_task.h"

#include <errno.h>
#include <pthread.h>

#include "common/net/http/blob_http.h"
#include "common/net/http/http_server.h"
#include "common/net/rpc.h"
#include "common/net/http/transfer.h"
#include "tests/unit/common/net/net_test.h"
#include "worker/link/session.h"
#include "worker/link/uplink.h"

enum { ASKED_MAX = 4096 };

/* A coordinator of one worker; it computes velocities itself, in another engine. */
struct world {
    struct net_test t;
    struct rpc_server *rpc;
    struct rpc_peer *peer;
    struct http_server *http;
    struct blobstore *store;
    struct blob_http *blobs;
    struct pool *disk, *compute;
    struct host far;
    struct rpc_request *held;        /* an EVALUATE that is not answered */
    struct blob_id asked[ASKED_MAX]; /* inputs seen: answered when they come again */
    unsigned n_asked, joins, evaluations, kick_at;
    struct blob_id tickets[ASKED_MAX]; /* of uploads */
    unsigned n_tickets;
    unsigned together; /* asked for while another file was on its way */
    bool hold, in_order;

    /* The worker. */
    struct token token;
    struct xfer *xfer;
    struct host near;
    struct session *session;
    struct uplink *uplink;
    bool done;
    int rc;
    struct work *w;
    float images[SAMPLES * VALUES];
};

/* ---- the coordinator ---- */

static void on_join(void *arg, struct rpc_request *req, const ProtobufCMessage *msg)
{
    struct world *w = arg;
    Skerry__V1__JoinReply reply = SKERRY__V1__JOIN_REPLY__INIT;
    (void)msg;
    w->joins++;
    reply.worker_id = 1;
    reply.heartbeat_ms = 60000;
    rpc_reply(req, &reply.base);
}

static void on_ticket(void *arg, struct rpc_request *req, const ProtobufCMessage *msg)
{
    struct world *w = arg;
    const Skerry__V1__TicketRequest *m = (const Skerry__V1__TicketRequest *)(const void *)msg;
    Skerry__V1__TicketReply reply = SKERRY__V1__TICKET_REPLY__INIT;
    char path[TICKET_PATH_MAX];
    struct blob_id id;
    assert_int_equal(m->task_id, 11);
    memcpy(id.sha256, m->sha256.data, 32);
    for (unsigned i = 0; i < w->n_tickets; i++)
        w->together +=
            !blob_id_equal(&w->tickets[i], &id) && !blobstore_has(w->store, &w->tickets[i], NULL);
    assert_true(w->n_tickets < ASKED_MAX);
    w->tickets[w->n_tickets++] = id;
    reply.have = blobstore_has(w->store, &id, NULL);
    blob_http_ticket(w->blobs, TICKET_PUT, &id, m->size, 1, path);
    if (!reply.have)
        reply.url = path;
    rpc_reply(req, &reply.base);
}

static bool asked_before(struct world *w, const struct blob_id *id)
{
    for (unsigned i = 0; i < w->n_asked; i++)
        if (blob_id_equal(&w->asked[i], id))
            return true;
    assert_true(w->n_asked < ASKED_MAX);
    w->asked[w->n_asked++] = *id;
    return false;
}

/* What a VELOCITY task of that path leaves, as a blob of the store. */
static void compute(struct world *w, uint32_t path, const struct blob_id *input, uint64_t size,
                    struct blob_id *ret, uint64_t *ret_size)
{
    struct order o;
    char file[CACHE_PATH_MAX];
    uint8_t sha256[32];
    struct buf b;
    order_path(&o, SKERRY__V1__TASK_KIND__TASK_KIND_VELOCITY, (int)path - 10);
    memcpy(sha256, input->sha256, 32);
    blob_of(&o.input, sha256, size);
    o.velocity.input = &o.input;
    o.task.velocity = &o.velocity;
    assert_int_equal(blob_file(w->store, input, file, sizeof file), 0);
    host_put(&w->far, file, sha256);
    struct work *done = host_run(&w->far, &o.task);
    OK(file_read(done->result.outputs[0].path, 1 << 24, &b, err));
    OK(blob_put(w->store, b.data, b.len, ret, err));
    assert_memory_equal(ret->sha256, done->result.outputs[0].sha256, 32);
    *ret_size = b.len;
    buf_release(&b);
    work_free(done);
}

static void on_evaluate(void *arg, struct rpc_request *req, const ProtobufCMessage *msg)
{
    struct world *w = arg;
    const Skerry__V1__EvaluateRequest *m = (const Skerry__V1__EvaluateRequest *)(const void *)msg;
    Skerry__V1__EvaluateReply reply = SKERRY__V1__EVALUATE_REPLY__INIT;
    Skerry__V1__Blob blob = SKERRY__V1__BLOB__INIT;
    char path[TICKET_PATH_MAX];
    struct blob_id input, output;
    if (w->hold) {
        if (w->held) /* asked again on another connection, or after its time */
            rpc_fail(w->held, -ERR_CANCELLED, false, 0, "asked again");
        w->held = req;
        return;
    }
    memcpy(input.sha256, m->input->sha256.data, 32);
    if (++w->evaluations == w->kick_at) {
        rpc_fail(req, -EAGAIN, true, 1, "later");
        rpc_peer_kick(w->peer, "to see whether it comes back");
        return;
    }
    if (!asked_before(w, &input)) {
        reply.waiting_for = (char *)"a worker";
    } else {
        compute(w, m->path, &input, m->input->size, &output, &blob.size);
        blob_http_ticket(w->blobs, TICKET_GET, &output, blob.size, 1, path);
        blob.sha256 = (ProtobufCBinaryData){32, output.sha256};
        blob.url = path;
        reply.output = &blob;
    }
    rpc_reply(req, &reply.base);
}

static const struct rpc_method methods[] = {
    {SKERRY__V1__METHOD__METHOD_JOIN, "join", &skerry__v1__join_request__descriptor,
     TOKEN_ROLE_WORKER, on_join},
    {SKERRY__V1__METHOD__METHOD_TICKET, "ticket", &skerry__v1__ticket_request__descriptor,
     TOKEN_ROLE_WORKER, on_ticket},
    {SKERRY__V1__METHOD__METHOD_EVALUATE, "evaluate", &skerry__v1__evaluate_request__descriptor,
     TOKEN_ROLE_WORKER, on_evaluate},
};

static void on_open(void *arg, struct rpc_peer *peer)
{
    ((struct world *)arg)->peer = peer;
}

static void on_close(void *arg, struct rpc_peer *peer, const struct err *why)
{
    (void)peer;
    (void)why;
    ((struct world *)arg)->peer = NULL;
}

static unsigned anybody(void *arg, const struct rpc_claim *c, uint64_t *ret_token, struct err *err)
{
    return TOKEN_ROLE_WORKER;
}

static void open_coordinator(struct world *w)
{
    const struct rpc_server_options ro = {
        .host = "127.0.0.1",
        .keys = w->t.keys,
        .authenticate = anybody,
        .methods = methods,
        .method_count = COUNT(methods),
        .build_id = "test",
        .arg = w,
        .on_open = on_open,
        .on_close = on_close,
    };
    OK(rpc_server_open(w->t.loop, &ro, &w->rpc, err));
    const struct http_server_options ho = {.host = "127.0.0.1"};
    OK(http_server_open(w->t.loop, &ho, &w->http, err));
    char *dir = in(w->t.dir, "blobs");
    OK(blob_dir_open(dir, 0, &w->store, err));
    mem_free(dir);
    OK(pool_new(w->t.loop, "disk", 1, 64, &w->disk, err));
    const struct blob_http_options bo = {.loop = w->t.loop, .store = w->store, .pool = w->disk};
    OK(blob_http_open(w->http, &bo, &w->blobs, err));
    w->token = (struct token){.host = "127.0.0.1",
                              .role = TOKEN_ROLE_WORKER,
                              .http_plain = true,
                              .rpc_port = rpc_server_port(w->rpc),
                              .http_port = http_server_port(w->http)};
    memcpy(w->token.pin, keys_pin(w->t.keys), sizeof w->token.pin);
}

/* ---- the worker ---- */

static void on_joined(void *arg, bool again)
{
    (void)again;
    uplink_resume(((struct world *)arg)->uplink);
}

static void on_lost(void *arg)
{
    (void)arg;
}

static void on_failed(void *arg, const struct err *why)
{
    (void)arg;
    fail_msg("the session failed: %s", why ? why->msg : "");
}

static void fill_heartbeat(void *arg, Skerry__V1__HeartbeatRequest *req)
{
    (void)arg;
    (void)req;
}

static void on_heard(void *arg)
{
    (void)arg;
}

static void open_worker(struct world *w)
{
    const struct session_options so = {
        .loop = w->t.loop,
        .token = &w->token,
        .name = "near",
        .device = "cpu",
        .arg = w,
        .on_joined = on_joined,
        .on_lost = on_lost,
        .on_failed = on_failed,
        .fill_heartbeat = fill_heartbeat,
        .on_heard = on_heard,
    };
    const struct xfer_options xo = {.backoff_min_ms = 1, .backoff_max_ms = 20};
    OK(xfer_new(w->t.loop, &xo, &w->xfer, err));
    const struct fetch_env env = {w->t.loop, w->xfer, w->near.cache, &w->token};
    OK(session_open(&so, &w->session, err));
    w->uplink = uplink_open(&env, w->session);
    OK(pool_new(w->t.loop, "compute", 1, 4, &w->compute, err));
}

static struct world *world_new(const char *far, const char *near)
{
    struct world *w = mem_alloc(sizeof *w);
    net_test_init(&w->t);
    host_new(&w->far, far, 1);
    host_new(&w->near, near, 2);
    open_coordinator(w);
    open_worker(w);
    WAIT_FOR(&w->t, session_joined(w->session));
    return w;
}

static void world_free(struct world *w)
{
    pool_free(w->compute);
    uplink_close(w->uplink);
    session_close(w->session);
    xfer_free(w->xfer);
    rpc_server_close(w->rpc);
    if (w->held)
        rpc_fail(w->held, -ERR_CANCELLED, false, 0, "the end");
    http_server_close(w->http);
    pool_free(w->disk);
    blob_http_close(w->blobs);
    w->store->ops->close(w->store);
    host_free(&w->far);
    host_free(&w->near);
    net_test_release(&w->t);
    mem_free(w);
}

static int draw(struct world *w)
{
    int32_t labels[SAMPLES];
    struct mixture *m = NULL;
    struct err err = {0};
    int rc = mixture_open(w->near.engine, w->w, &(struct mixture_options){.rows = 6}, &m, &err);
    if (rc < 0)
        return rc;
    const struct sample_source src = mixture_source(m);
    const struct sample_options opt = {.steps = 3, .guidance = 1.5f, .seed = 9};
    for (int i = 0; i < SAMPLES; i++)
        labels[i] = i % CLASSES;
    rc = sample_run_f32(&src, &opt, labels, SAMPLES, w->images, &err);
    mixture_close(m);
    return rc;
}

static int draw_work(void *arg)
{
    return draw(arg);
}

static void draw_done(void *arg, int rc)
{
    struct world *w = arg;
    uplink_drop(w->uplink);
    w->rc = rc;
    w->done = true;
}

static void start_drawing(struct world *w, bool remote)
{
    struct order o;
    order_init(&o, SKERRY__V1__TASK_KIND__TASK_KIND_SAMPLE);
    o.mixture.strategy = JOB_STRATEGY_TOPK;
    o.mixture.remote = remote;
    w->w = host_plan(&w->near, &o.task);
    w->w->uplink = w->uplink;
    w->done = false;
    assert_int_equal(pool_submit(w->compute, draw_work, draw_done, w), 0);
}

/* ---- tests ---- */

static void test_remote_is_local(void **state)
{
    (void)state;
    static float here[SAMPLES * VALUES];
    struct world *w = world_new("far", "near");
    start_drawing(w, false);
    WAIT_FOR(&w->t, w->done);
    assert_int_equal(w->rc, 0);
    assert_int_equal(w->evaluations, 0);
    memcpy(here, w->images, sizeof here);
    work_free(w->w);
    memset(w->images, 0, sizeof w->images);
    w->kick_at = 7;
    start_drawing(w, true);
    WAIT_FOR(&w->t, w->done);
    assert_int_equal(w->rc, 0);
    assert_memory_equal(here, w->images, sizeof here);
    assert_true(w->evaluations > 7);
    assert_int_equal(w->joins, 2); /* it came back */
    work_free(w->w);
    world_free(w);
}

static int send_all(void *arg)
{
    enum { FILES = 4, BYTES = 1 << 20 };
    struct world *w = arg;
    struct uplink_job *jobs[FILES];
    struct err why = {0};
    int rc = 0;
    uint8_t *bytes = mem_alloc(BYTES), sha256[FILES][32];
    char *paths[FILES];
    for (int i = 0; i < FILES; i++) {
        paths[i] = str_printf("%s/sent.%d", w->t.dir, i);
        memset(bytes, i, BYTES);
        hash_sha256(bytes, BYTES, sha256[i]);
        OK(file_write_atomic(paths[i], bytes, BYTES, 0600, err));
    }
    for (int i = 0; i < FILES; i++)
        jobs[i] = uplink_put(w->uplink, w->w, paths[i], sha256[i], BYTES, w->in_order);
    for (int i = 0; i < FILES; i++)
        mem_free(paths[i]);
    uplink_free(jobs[FILES - 1]); /* given up */
    for (int i = 0; i < FILES - 1 && rc == 0; i++)
        rc = uplink_wait(jobs[i], &why);
    for (int i = 0; i < FILES - 1; i++)
        uplink_free(jobs[i]);
    mem_free(bytes);
    return rc;
}

static void send_them(bool in_order)
{
    struct world *w = world_new("far-3", "near-3");
    struct order o;
    order_init(&o, SKERRY__V1__TASK_KIND__TASK_KIND_SAMPLE);
    w->w = host_plan(&w->near, &o.task);
    w->w->uplink = w->uplink;
    w->in_order = in_order;
    assert_int_equal(pool_submit(w->compute, send_all, draw_done, w), 0);
    WAIT_FOR(&w->t, w->done);
    assert_int_equal(w->rc, 0);
    assert_true(w->n_tickets >= 3);
    assert_int_equal(w->together > 0, !in_order);
    work_free(w->w);
    world_free(w);
}

/* What training waits for is there in the order in which it was asked for, what does not need to
 * be goes beside it. */
static void test_in_order(void **state)
{
    (void)state;
    send_them(true);
    send_them(false);
}

static void test_stopped(void **state)
{
    (void)state;
    struct world *w = world_new("far-2", "near-2");
    w->hold = true;
    start_drawing(w, true);
    WAIT_FOR(&w->t, w->held != NULL);
    assert_false(w->done);
    atomic_store(&w->w->stop, WORK_REVOKED);
    uplink_interrupt(w->uplink);
    WAIT_FOR(&w->t, w->done);
    assert_int_equal(w->rc, -ERR_CANCELLED);
    work_free(w->w);
    world_free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_remote_is_local),
        cmocka_unit_test(test_in_order),
        cmocka_unit_test(test_stopped),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
