#include "common/net/rpc.h"

#include "common/base/base.h"
#include "common/base/hash.h"
#include "common/base/list.h"
#include "common/net/conn.h"
#include "common/net/frame.h"
#include "common/net/loop.h"
#include "common/net/pbmem.h"
#include "common/net/rpc_wire.h"
#include "common/net/token.h"

#define BUCKETS_MIN 64
#define CROWDED_MAX 4 /* the most times that the shortest wait doubles */

typedef Skerry__Envelope__V1__Hello Hello;
typedef Skerry__Envelope__V1__Error Error;

struct call {
    struct call *next_in_bucket;
    struct list link;
    uint64_t id;
    uint64_t deadline_ms; /* by the loop's clock; UINT64_MAX: none */
    const ProtobufCMessageDescriptor *reply;
    rpc_done_fn done;
    void *arg;
};

struct rpc_client {
    struct loop *loop;
    struct conn_tls *tls;
    struct conn *conn; /* NULL: it waits to dial */
    struct rpc_client_options o;
    struct token token;
    char server_build_id[RPC_BUILD_ID_MAX];
    enum rpc_state state;
    struct loop_timer *redial, *deadlines;
    uint64_t next_deadline_ms; /* at or before the earliest deadline of the calls */
    uint64_t next_id, hello_id;
    struct list calls;
    struct list due;       /* calls past their deadline, about to be ended */
    struct call **buckets; /* by id */
    unsigned bucket_count, in_flight;
    unsigned address; /* which of the host's is dialled: after a failure the next one */
    bool away;        /* no dial has succeeded since lost_ms */
    uint64_t lost_ms;
    unsigned crowded;         /* dials in a row that were cut in the middle of the handshake */
    struct pbmem mem;         /* memory of the message being handled */
    struct rpc_counters gone; /* bytes of earlier connections, frames of all */
    bool met, opened; /* met: it was connected once; opened: this connection's server has shown the
                         right key */
    bool permanent, closed;
};

/* ---- the table of calls ---- */

static struct call **slot(struct rpc_client *c, uint64_t id)
{
    struct call **p = &c->buckets[id & (c->bucket_count - 1)];
    while (*p && (*p)->id != id)
        p = &(*p)->next_in_bucket;
    return p;
}

/* Ids count up, so their low bits spread evenly. */
static void put_in(struct rpc_client *c, struct call *k)
{
    struct call **p = &c->buckets[k->id & (c->bucket_count - 1)];
    k->next_in_bucket = *p;
    *p = k;
}

static void grow(struct rpc_client *c)
{
    mem_free(c->buckets);
    c->bucket_count *= 2;
    c->buckets = mem_alloc_array(c->bucket_count, sizeof(c->buckets[0]));
    const struct list *lists[] = {&c->calls, &c->due};
    for (unsigned i = 0; i < 2; i++)
        for (struct list *l = lists[i]->next; l != lists[i]; l = l->next)
            put_in(c, list_entry(l, struct call, link));
}

static void insert(struct rpc_client *c, struct call *k)
{
    if (c->in_flight >= c->bucket_count)
        grow(c);
    put_in(c, k);
    list_push(&c->calls, &k->link);
    c->in_flight++;
}

/* Takes the call out of the table, then calls done, which may do anything. */
static void complete(struct rpc_client *c, struct call *k, const struct rpc_result *r)
{
    *slot(c, k->id) = k->next_in_bucket;
    list_remove(&k->link);
    c->in_flight--;
    rpc_done_fn done = k->done;
    void *arg = k->arg;
    mem_free(k);
    done(arg, r);
}

static void complete_with(struct rpc_client *c, struct call *k, int code, const char *detail)
{
    struct rpc_result r = {
        .code = code,
        .detail = detail,
        .retryable = code != -ERR_CANCELLED,
    };
    complete(c, k, &r);
}

static void complete_all(struct rpc_client *c, int code, const char *detail)
{
    /* Only the present calls: a callback may call again. */
    unsigned n = c->in_flight;
    while (n-- > 0 && !list_empty(&c->calls))
        complete_with(c, list_entry(c->calls.next, struct call, link), code, detail);
}

/* ---- deadlines ---- */

static void arm(struct rpc_client *c, uint64_t deadline_ms)
{
    uint64_t now = loop_now_ms(c->loop);
    c->next_deadline_ms = deadline_ms;
    loop_timer_start(c->deadlines, deadline_ms > now ? deadline_ms - now : 0, 0);
}

static void on_deadlines(void *arg)
{
    struct rpc_client *c = arg;
    uint64_t now = loop_now_ms(c->loop), next = UINT64_MAX;
    c->next_deadline_ms = UINT64_MAX;
    for (struct list *l = c->calls.next, *n = l->next; l != &c->calls; l = n, n = l->next) {
        struct call *k = list_entry(l, struct call, link);
        if (k->deadline_ms <= now) {
            list_remove(l);
            list_push(&c->due, l);
        } else if (k->deadline_ms < next) {
            next = k->deadline_ms;
        }
    }
    if (next != UINT64_MAX)
        arm(c, next);
    while (!list_empty(&c->due))
        complete_with(c, list_entry(c->due.next, struct call, link), -ETIMEDOUT,
                      "no answer came in time");
}

/* ---- connecting ---- */

static void dial(void *arg);

static void report(struct rpc_client *c, enum rpc_state state, const struct err *why)
{
    c->state = state;
    if (c->o.on_state && !c->closed)
        c->o.on_state(c->o.arg, state, why);
}

/* Plans the next dial after one failed or the connection ended. */
static void dial_later(struct rpc_client *c)
{
    uint64_t now = loop_now_ms(c->loop);
    uint16_t random;
    hash_random(&random, sizeof(random));
    if (!c->away)
        c->lost_ms = now;
    c->away = true;
    uint32_t ms = rpc_backoff_ms(now - c->lost_ms, c->o.backoff_min_ms << c->crowded,
                                 c->o.backoff_max_ms, random);
    loop_timer_start(c->redial, ms, 0);
}

static void lost(struct rpc_client *c, const struct err *why)
{
    struct err copy = *why;
    /* A server that accepts and cuts has no place for now. */
    if (c->state == RPC_CONNECTED || conn_bytes_out(c->conn) == 0)
        c->crowded = 0;
    else if (c->crowded < CROWDED_MAX)
        c->crowded++;
    if (c->state != RPC_CONNECTED)
        c->address++;
    c->gone.bytes_in += conn_bytes_in(c->conn);
    c->gone.bytes_out += conn_bytes_out(c->conn);
    c->conn = NULL;
    if (copy.code == -ERR_VERSION || (copy.code == -ERR_AUTH && (c->opened || !c->met)))
        c->permanent = true; /* else another program may answer there for now */
    c->state = RPC_DISCONNECTED;
    complete_all(c, -ECONNRESET, copy.msg);
    if (c->closed)
        return;
    if (c->permanent) {
        report(c, RPC_FAILED, &copy);
        return;
    }
    dial_later(c);
    report(c, RPC_DISCONNECTED, &copy);
    if (!c->closed && c->state == RPC_DISCONNECTED)
        c->state = RPC_CONNECTING;
}

static void on_close(void *arg, const struct err *why)
{
    lost(arg, why);
}

static void on_open(void *arg)
{
    struct rpc_client *c = arg;
    uint8_t proof[HASH_BYTES];
    struct err err = {0};
    c->opened = true;
    if (rpc_proof(c->conn, c->token.secret, proof, &err) < 0) {
        conn_close(c->conn, &err);
        return;
    }
    Hello h = SKERRY__ENVELOPE__V1__HELLO__INIT;
    h.min_version = c->o.min_version;
    h.max_version = c->o.max_version;
    h.build_id = (char *)c->o.build_id;
    h.proof.data = proof;
    h.proof.len = sizeof(proof);
    c->hello_id = c->next_id++;
    (void)rpc_send(c->conn, 0, RPC_METHOD_HELLO, c->hello_id, &h.base, FRAME_BODY_MAX_HELLO,
                   true); /* fails only with the connection */
}

/* Takes the server's answer to the Hello, or fails with the reason. */
static int greeted(struct rpc_client *c, const struct frame *f, struct err *err)
{
    if (f->method != RPC_METHOD_HELLO || !(f->flags & FRAME_REPLY) || f->request_id != c->hello_id)
        return err_set(err, -ERR_FORMAT, "the server did not begin with a Hello");
    if (f->flags & FRAME_ERROR) {
        Error *e =
            (Error *)protobuf_c_message_unpack(&skerry__envelope__v1__error__descriptor,
                                               pbmem_allocator(&c->mem), f->body_len, f->body);
        if (!e)
            return err_set(err, -ERR_FORMAT, "the server's refusal cannot be read");
        return err_set(err, rpc_code_from_wire(e->code), "%s", e->detail);
    }
    Hello *h = (Hello *)protobuf_c_message_unpack(&skerry__envelope__v1__hello__descriptor,
                                                  pbmem_allocator(&c->mem), f->body_len, f->body);
    if (!h)
        return err_set(err, -ERR_FORMAT, "the server's Hello cannot be read");
    rpc_build_id_copy(c->server_build_id, h->build_id);
    if (h->version < c->o.min_version || h->version > c->o.max_version)
        return err_set(err, -ERR_VERSION,
                       "the server (build %s) chose protocol version %u, this client speaks %u to "
                       "%u: install the same release on both",
                       c->server_build_id, h->version, c->o.min_version, c->o.max_version);
    if (h->cluster_id.len != TOKEN_CLUSTER_BYTES ||
        memcmp(h->cluster_id.data, c->token.cluster_id, TOKEN_CLUSTER_BYTES) != 0)
        return err_set(err, -ERR_AUTH, "the server belongs to another cluster than the token");
    return 0;
}

/* ---- answers ---- */

static void answer(struct rpc_client *c, const struct frame *f, struct call *k)
{
    struct rpc_result r = {.detail = "", .remote = true};
    ProtobufCAllocator *mem = pbmem_allocator(&c->mem);
    if (f->flags & FRAME_ERROR) {
        Error *e = (Error *)protobuf_c_message_unpack(&skerry__envelope__v1__error__descriptor, mem,
                                                      f->body_len, f->body);
        r.code = e ? rpc_code_from_wire(e->code) : -ERR_FORMAT;
        r.detail = e ? e->detail : "the server's error cannot be read";
        r.retryable = e && e->retryable;
        r.retry_after_ms = e ? e->retry_after_ms : 0;
    } else {
        r.reply = protobuf_c_message_unpack(k->reply, mem, f->body_len, f->body);
        if (!r.reply) {
            r.code = -ERR_FORMAT;
            r.detail = "the server's answer cannot be read";
        }
    }
    complete(c, k, &r);
}

/* Takes a frame; negative: the connection cannot go on. */
static int take(struct rpc_client *c, const struct frame *f, struct err *err)
{
    c->gone.frames_in++;
    if (c->state != RPC_CONNECTED) {
        int rc = greeted(c, f, err);
        if (rc < 0)
            return rc;
        conn_no_deadline(c->conn);
        c->met = true;
        c->away = false;
        report(c, RPC_CONNECTED, NULL);
        return 0;
    }
    if (!(f->flags & FRAME_REPLY))
        return err_set(err, -ERR_FORMAT, "the server sent a request");
    struct call *k = *slot(c, f->request_id);
    if (k) /* else: cancelled or past its deadline */
        answer(c, f, k);
    return 0;
}

static size_t on_data(void *arg, const uint8_t *data, size_t len)
{
    struct rpc_client *c = arg;
    struct conn *conn = c->conn;
    size_t used = 0;
    while (used < len) {
        const uint32_t max_body =
            c->state == RPC_CONNECTED ? c->o.max_body_bytes : FRAME_BODY_MAX_HELLO;
        struct frame f;
        struct err err = {0};
        long n = frame_parse(data + used, len - used, max_body, &f, &err);
        if (n == -EAGAIN)
            break;
        if (n >= 0) {
            used += (size_t)n;
            n = take(c, &f, &err);
            if (c->closed || c->conn != conn)
                return 0;
            pbmem_clear(&c->mem);
        }
        if (n < 0) {
            conn_close(conn, &err);
            return 0;
        }
    }
    return used;
}

static void on_drain(void *arg)
{
}

static const struct conn_events events = {on_open, on_data, on_drain, on_close};

static void dial(void *arg)
{
    struct rpc_client *c = arg;
    struct conn_options o = {
        .tls = c->tls,
        .events = &events,
        .arg = c,
        .max_queue_bytes = c->o.max_queue_bytes,
        .max_unread_bytes = c->o.max_body_bytes + FRAME_HEADER_BYTES,
        .deadline_ms = c->o.connect_ms,
    };
    struct err err = {0};
    c->state = RPC_CONNECTING;
    c->opened = false;
    if (conn_connect(c->loop, c->token.host, c->token.rpc_port, c->address, c->token.pin, &o,
                     &c->conn, &err) < 0) {
        c->conn = NULL;
        dial_later(c);
    }
}

/* ---- the client ---- */

static void set_defaults(struct rpc_client_options *o)
{
    o->build_id = o->build_id ? o->build_id : "unknown";
    if (!o->max_version) {
        o->min_version = RPC_VERSION_MIN;
        o->max_version = RPC_VERSION_MAX;
    }
    o->connect_ms = o->connect_ms ? o->connect_ms : RPC_DEADLINE_MS;
    o->backoff_min_ms = o->backoff_min_ms ? o->backoff_min_ms : 200;
    o->backoff_max_ms = o->backoff_max_ms ? o->backoff_max_ms : 10000;
    o->max_in_flight = o->max_in_flight ? o->max_in_flight : RPC_MAX_IN_FLIGHT;
    o->max_body_bytes = o->max_body_bytes ? o->max_body_bytes : FRAME_BODY_MAX_DEFAULT;
    if (o->max_body_bytes > FRAME_BODY_MAX)
        o->max_body_bytes = FRAME_BODY_MAX;
    o->max_queue_bytes = o->max_queue_bytes ? o->max_queue_bytes : RPC_QUEUE_BYTES;
}

int rpc_client_open(struct loop *loop, const struct rpc_client_options *o, struct rpc_client **ret,
                    struct err *err)
{
    ASSERT_LOOP_THREAD(loop);
    struct rpc_client *c = mem_alloc(sizeof(*c));
    int rc = conn_tls_client(o->keys, &c->tls, err);
    if (rc < 0) {
        mem_free(c);
        return rc;
    }
    c->loop = loop;
    c->o = *o;
    c->token = *o->token;
    c->o.token = &c->token;
    set_defaults(&c->o);
    pbmem_init(&c->mem, (size_t)c->o.max_body_bytes * RPC_UNPACK_FACTOR);
    list_init(&c->calls);
    list_init(&c->due);
    c->bucket_count = BUCKETS_MIN;
    c->buckets = mem_alloc_array(c->bucket_count, sizeof(c->buckets[0]));
    c->next_deadline_ms = UINT64_MAX;
    /* A random first id, so that an answer to a request of an earlier connection
     * is never taken for an answer to one of this client. */
    hash_random(&c->next_id, sizeof(c->next_id));
    c->redial = loop_timer_new(loop, dial, c);
    c->deadlines = loop_timer_new(loop, on_deadlines, c);
    loop_timer_start(c->redial, 0, 0);
    *ret = c;
    return 0;
}

static void client_free(void *arg)
{
    struct rpc_client *c = arg;
    conn_tls_free(c->tls);
    pbmem_release(&c->mem);
    mem_free(c->buckets);
    mem_free(c);
}

void rpc_client_close(struct rpc_client *c)
{
    if (!c || c->closed)
        return;
    ASSERT_LOOP_THREAD(c->loop);
    c->closed = true;
    for (struct list *l; (l = !list_empty(&c->due) ? c->due.next : c->calls.next) != &c->calls;)
        complete_with(c, list_entry(l, struct call, link), -ERR_CANCELLED, "the client was closed");
    loop_timer_free(c->redial);
    loop_timer_free(c->deadlines);
    conn_discard(c->conn);
    /* Functions of this client may be further up the stack. */
    loop_defer(c->loop, client_free, c);
}

void rpc_client_move(struct rpc_client *c, const struct token *token, unsigned address)
{
    c->address = address;
    memcpy(c->token.host, token->host, sizeof(c->token.host));
    c->token.rpc_port = token->rpc_port;
}

int rpc_client_call(struct rpc_client *c, uint16_t method, const ProtobufCMessage *msg,
                    const ProtobufCMessageDescriptor *reply, uint32_t deadline_ms, rpc_done_fn done,
                    void *arg, uint64_t *ret_id)
{
    ASSERT_LOOP_THREAD(c->loop);
    if (c->closed || c->state != RPC_CONNECTED)
        return -ENOTCONN;
    if (c->in_flight >= c->o.max_in_flight)
        return -EAGAIN;
    int rc = rpc_send(c->conn, 0, method, c->next_id, msg, c->o.max_body_bytes, false);
    if (rc < 0)
        return rc;
    c->gone.frames_out++;
    struct call *k = mem_alloc(sizeof(*k));
    k->id = c->next_id++;
    k->reply = reply;
    k->done = done;
    k->arg = arg;
    k->deadline_ms = deadline_ms ? loop_now_ms(c->loop) + deadline_ms : UINT64_MAX;
    insert(c, k);
    if (k->deadline_ms < c->next_deadline_ms)
        arm(c, k->deadline_ms);
    if (ret_id)
        *ret_id = k->id;
    return 0;
}

void rpc_client_cancel(struct rpc_client *c, uint64_t id)
{
    struct call *k = *slot(c, id);
    if (k)
        complete_with(c, k, -ERR_CANCELLED, "cancelled");
}

enum rpc_state rpc_client_state(const struct rpc_client *c)
{
    return c->state;
}

unsigned rpc_client_in_flight(const struct rpc_client *c)
{
    return c->in_flight;
}

struct rpc_counters rpc_client_counters(const struct rpc_client *c)
{
    struct rpc_counters n = c->gone;
    if (c->conn) {
        n.bytes_in += conn_bytes_in(c->conn);
        n.bytes_out += conn_bytes_out(c->conn);
    }
    return n;
}

const char *rpc_client_server_build_id(const struct rpc_client *c)
{
    return c->server_build_id;
}

void rpc_client_reconnect(struct rpc_client *c)
{
    if (c->permanent || c->closed)
        return;
    c->away = false;
    if (!c->conn) {
        loop_timer_start(c->redial, 0, 0);
        return;
    }
    struct err why = {0};
    (void)err_set(&why, -ECONNRESET, "dialling again as asked");
    conn_close(c->conn, &why);
}
