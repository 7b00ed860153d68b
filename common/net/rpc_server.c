#include "common/net/rpc.h"

#include <sys/resource.h>

#include "common/base/base.h"
#include "common/base/hash.h"
#include "common/base/list.h"
#include "common/base/log.h"
#include "common/net/conn.h"
#include "common/net/frame.h"
#include "common/net/loop.h"
#include "common/net/net_fault.h"
#include "common/net/pbmem.h"
#include "common/net/rpc_wire.h"
#include "common/net/strangers.h"

#define BACKLOG 1024
#define HANDSHAKE_MS 3000
#define PATIENCE 3      /* times as long while half of the strangers' places are free */
#define BUSY_MS 500     /* time in which a handshake under way keeps its place */
#define CALLED_MS 50    /* time for the first bytes of a client that got a place after waiting */
#define ADDRESS_SHARE 2 /* one address has at most 1/2 of the strangers' places */
#define DOOR_MAX 8192   /* the most connections that wait for a place, */
#define DOOR_FILES 8    /* and at most 1/8 of the process's limit of open files */
#define DOOR_MS 10000   /* the longest wait, after which clients give up */
#define DOOR_TICK_MS 50 /* between checks for free places */
#define DOOR_LOOKS 16   /* the most waiting connections that are tried for a free place */

typedef Skerry__Envelope__V1__Hello Hello;
typedef Skerry__Envelope__V1__Error Error;

struct rpc_server {
    struct loop *loop;
    uv_tcp_t listener;
    struct conn_tls *tls;
    struct rpc_server_options o;
    struct list peers;
    unsigned peer_count, ready_count;
    struct strangers strangers; /* peers that are not ready */
    struct list door;           /* peers without a place: nothing is read from them */
    unsigned door_count;
    struct loop_timer *calls; /* runs while peers wait at the door */
    struct pbmem mem;         /* memory of the message being handled */
    struct rpc_counters gone; /* counters of peers that are gone */
    struct loop_timer *tick;
    uint64_t tick_ms; /* the time of the last tick */
    unsigned fault_seen;
    bool closing;
};

struct rpc_peer {
    struct rpc_server *server;
    struct conn *conn;
    struct list link, requests;
    struct stranger stranger;
    char build_id[RPC_BUILD_ID_MAX];
    uint64_t frames_in, frames_out;
    uint64_t heard_ms;
    unsigned role, in_flight;
    uint64_t token;
    bool ready; /* its Hello was accepted */
    bool waits; /* it waits for a place */
    bool called;
    bool kicked;
    void *user;
};

struct rpc_request {
    struct rpc_peer *peer; /* NULL: the connection is gone */
    struct list link;
    uint64_t id;
    uint16_t method;
    void (*on_gone)(void *arg, struct rpc_request *req);
    void *gone_arg;
    bool held;      /* an answer is kept */
    uint8_t *frame; /* the kept answer; NULL: none yet, or the connection was gone */
    size_t frame_len;
};

struct rpc_claim {
    const uint8_t *key;
    const ProtobufCBinaryData *proof;
    uint8_t material[CONN_EXPORT_BYTES]; /* keying material of this TLS session */
};

/* ---- answers ---- */

static void request_end(struct rpc_request *r)
{
    if (r->peer) {
        r->peer->in_flight--;
        list_remove(&r->link);
    }
    mem_free(r->frame);
    mem_free(r);
}

static void send_error(struct rpc_peer *p, uint16_t method, uint64_t id, const Error *e)
{
    p->frames_out++;
    (void)rpc_send(p->conn, FRAME_REPLY | FRAME_ERROR, method, id, &e->base, FRAME_BODY_MAX_DEFAULT,
                   true); /* fails only with the connection */
}

static Error error_of(int code, char *detail)
{
    Error e = SKERRY__ENVELOPE__V1__ERROR__INIT;
    e.code = rpc_code_to_wire(code);
    e.detail = detail;
    e.retryable = rpc_code_is_retryable(code);
    return e;
}

static void fail(struct rpc_peer *p, uint16_t method, uint64_t id, int code, const char *detail)
{
    const Error e = error_of(code, (char *)detail);
    send_error(p, method, id, &e);
}

/* Sends the answer, or keeps it. */
static int answer(struct rpc_request *r, uint8_t flags, const ProtobufCMessage *msg, uint32_t max)
{
    if (r->held)
        return rpc_pack(flags, r->method, r->id, msg, max, &r->frame, &r->frame_len);
    int rc = rpc_send(r->peer->conn, flags, r->method, r->id, msg, max, true);
    r->peer->frames_out++;
    return rc;
}

static void answer_error(struct rpc_request *r, const Error *e)
{
    (void)answer(r, FRAME_REPLY | FRAME_ERROR, &e->base, FRAME_BODY_MAX_DEFAULT);
}

void rpc_reply(struct rpc_request *r, const ProtobufCMessage *msg)
{
    if (r->peer && answer(r, FRAME_REPLY, msg, r->peer->server->o.max_body_bytes) == -ERR_LIMIT) {
        const Error e = error_of(-ERR_LIMIT, (char *)"the answer is larger than a message may be");
        answer_error(r, &e);
    }
    if (!r->held)
        request_end(r);
}

void rpc_fail(struct rpc_request *r, int code, bool retryable, uint32_t retry_after_ms,
              const char *fmt, ...)
{
    if (r->peer) {
        char detail[1024];
        va_list ap;
        va_start(ap, fmt);
        (void)vsnprintf(detail, sizeof(detail), fmt, ap); /* cut is fine */
        va_end(ap);
        Error e = error_of(code, detail);
        e.retryable = retryable;
        e.retry_after_ms = retry_after_ms;
        answer_error(r, &e);
    }
    if (!r->held)
        request_end(r);
}

void rpc_request_hold(struct rpc_request *r)
{
    r->held = true;
}

void rpc_request_send(struct rpc_request *r)
{
    uint8_t *to;
    if (r->peer && r->frame && conn_reserve(r->peer->conn, r->frame_len, true, &to) == 0) {
        memcpy(to, r->frame, r->frame_len);
        r->peer->frames_out++;
    }
    request_end(r);
}

void rpc_request_again(struct rpc_request *r)
{
    mem_free(r->frame);
    r->frame = NULL;
    r->held = false;
}

struct rpc_peer *rpc_request_peer(const struct rpc_request *r)
{
    return r->peer;
}

void rpc_request_on_gone(struct rpc_request *r, void (*fn)(void *arg, struct rpc_request *req),
                         void *arg)
{
    r->on_gone = fn;
    r->gone_arg = arg;
}

/* ---- strangers ---- */

/* True if the stranger has sent bytes and came a short time ago.  Before the Hello heard_ms is the
 * time when it came. */
static bool is_busy(const struct stranger *n)
{
    const struct rpc_peer *p = list_entry(n, const struct rpc_peer, stranger);
    const uint64_t ms = loop_now_ms(p->server->loop) - p->heard_ms;
    return conn_bytes_in(p->conn) > 0 ? ms < BUSY_MS : p->called && ms < CALLED_MS;
}

static void make_room(struct stranger *out)
{
    struct rpc_peer *p = list_entry(out, struct rpc_peer, stranger);
    struct err err = {0};
    (void)err_set(&err, -ETIMEDOUT, "all places for connections without a Hello are taken");
    conn_close(p->conn, &err); /* its callback comes later */
}

/* Gives the peer a place, that of `out` if not NULL. */
static void enter(struct rpc_peer *p, struct stranger *out)
{
    const struct rpc_server *s = p->server;
    const bool few = 2 * s->strangers.count >= s->strangers.max;
    p->heard_ms = loop_now_ms(s->loop);
    if (out)
        make_room(out);
    conn_begin(p->conn, s->o.handshake_ms * (few ? 1 : PATIENCE));
}

/* Puts the peer into the door's list before that one. */
static void wait_at_door(struct rpc_peer *p, struct list *before)
{
    struct rpc_server *s = p->server;
    list_push(before, &p->stranger.link);
    p->waits = true;
    if (s->door_count++ == 0)
        loop_timer_start(s->calls, DOOR_TICK_MS, DOOR_TICK_MS);
}

static void leave_door(struct rpc_peer *p)
{
    list_remove(&p->stranger.link);
    p->waits = false;
    if (--p->server->door_count == 0)
        loop_timer_stop(p->server->calls);
}

/* Gives free places to peers at the door, the oldest first; peers of an address that has its share
 * of the places are passed over. */
static void call_in(struct rpc_server *s)
{
    const struct rpc_peer *full = NULL;
    unsigned looks = DOOR_LOOKS;
    for (struct list *l = s->door.next, *next; l != &s->door && looks-- > 0; l = next) {
        struct rpc_peer *p = list_entry(l, struct rpc_peer, stranger.link);
        next = l->next;
        if (full && memcmp(full->stranger.address, p->stranger.address, 16) == 0)
            continue;
        leave_door(p);
        struct stranger *out = strangers_admit(&s->strangers, &p->stranger, conn_sockaddr(p->conn));
        if (out == &p->stranger) {
            wait_at_door(p, next);
            full = p;
            continue;
        }
        p->called = true;
        enter(p, out);
    }
}

static void on_calls(void *arg)
{
    call_in(arg);
}

/* Gives a new peer a place, lets it wait for one, or refuses it. */
static void receive(struct rpc_peer *p)
{
    struct rpc_server *s = p->server;
    struct stranger *out = strangers_admit(&s->strangers, &p->stranger, conn_sockaddr(p->conn));
    if (out != &p->stranger)
        enter(p, out);
    else if (s->door_count < s->o.max_waiting)
        wait_at_door(p, &s->door);
    else
        make_room(out);
}

/* ---- the Hello ---- */

static void refuse(struct rpc_peer *p, uint64_t id, int code, const char *detail)
{
    struct err err = {0};
    fail(p, RPC_METHOD_HELLO, id, code, detail);
    (void)err_set(&err, code, "refused: %s", detail);
    conn_finish(p->conn, &err);
}

const uint8_t *rpc_claim_key(const struct rpc_claim *c)
{
    return c->key;
}

bool rpc_claim_proves(const struct rpc_claim *c, const uint8_t secret[KEYS_SECRET_BYTES])
{
    uint8_t want[HASH_BYTES];
    hash_hmac(secret, KEYS_SECRET_BYTES, c->material, sizeof(c->material), want);
    return c->proof->len == sizeof(want) && hash_equal(want, c->proof->data, sizeof(want));
}

static int authenticate(struct rpc_peer *p, const Hello *h, struct err *err)
{
    const struct rpc_server_options *o = &p->server->o;
    struct rpc_claim claim = {.key = conn_peer_key(p->conn), .proof = &h->proof};
    int rc = conn_export(p->conn, claim.material, err);
    if (rc == 0)
        p->role = o->authenticate(o->arg, &claim, &p->token, err);
    return p->role ? 0 : err->code;
}

static void greet(struct rpc_peer *p, uint64_t id, uint32_t version)
{
    struct rpc_server *s = p->server;
    Hello h = SKERRY__ENVELOPE__V1__HELLO__INIT;
    h.min_version = s->o.min_version;
    h.max_version = s->o.max_version;
    h.build_id = (char *)s->o.build_id;
    h.version = version;
    h.cluster_id.data = s->o.cluster_id;
    h.cluster_id.len = sizeof(s->o.cluster_id);
    p->frames_out++;
    (void)rpc_send(p->conn, FRAME_REPLY, RPC_METHOD_HELLO, id, &h.base, FRAME_BODY_MAX_HELLO,
                   true); /* fails only with the connection */
}

static void hello(struct rpc_peer *p, const struct frame *f)
{
    struct rpc_server *s = p->server;
    Hello *h = NULL;
    if (f->flags == 0 && f->method == RPC_METHOD_HELLO)
        h = (Hello *)protobuf_c_message_unpack(&skerry__envelope__v1__hello__descriptor,
                                               pbmem_allocator(&s->mem), f->body_len, f->body);
    if (!h) {
        refuse(p, f->request_id, -ERR_FORMAT, "the first message must be a Hello");
        return;
    }
    rpc_build_id_copy(p->build_id, h->build_id);
    uint32_t version = h->max_version < s->o.max_version ? h->max_version : s->o.max_version;
    if (version < h->min_version || version < s->o.min_version) {
        char *detail = str_printf(
            "the server (build %s) speaks protocol versions %u to %u, this client (build %s) %u "
            "to %u: install the same release on both",
            s->o.build_id, s->o.min_version, s->o.max_version, p->build_id, h->min_version,
            h->max_version);
        refuse(p, f->request_id, -ERR_VERSION, detail);
        mem_free(detail);
        return;
    }
    struct err err = {0};
    if (authenticate(p, h, &err) < 0) {
        refuse(p, f->request_id, err.code, err.msg);
        return;
    }
    if (s->ready_count >= s->o.max_connections) {
        refuse(p, f->request_id, -EAGAIN, "the server has as many connections as it can serve");
        return;
    }
    p->ready = true;
    s->ready_count++;
    strangers_drop(&s->strangers, &p->stranger);
    call_in(s);
    conn_no_deadline(p->conn);
    greet(p, f->request_id, version);
    if (s->o.on_open)
        s->o.on_open(s->o.arg, p);
}

/* ---- requests ---- */

static const struct rpc_method *find_method(const struct rpc_server *s, uint16_t method)
{
    for (unsigned i = 0; i < s->o.method_count; i++)
        if (s->o.methods[i].method == method)
            return &s->o.methods[i];
    return NULL;
}

static bool fault_drops(struct rpc_server *s, uint16_t method)
{
    const struct net_fault *f = net_fault();
    return f->drop_every && f->drop_method == method && ++s->fault_seen % f->drop_every == 0;
}

/* Takes a request; negative: the connection cannot go on. */
static int request(struct rpc_peer *p, const struct frame *f)
{
    struct rpc_server *s = p->server;
    const struct rpc_method *m = find_method(s, f->method);
    if (f->flags != 0)
        return -ERR_FORMAT; /* an answer, but the server has asked nothing */
    if (fault_drops(s, f->method))
        return 0;
    if (!m) {
        fail(p, f->method, f->request_id, -ERR_UNIMPLEMENTED,
             "the server does not know the method");
        return 0;
    }
    if (!(m->roles & p->role)) {
        fail(p, f->method, f->request_id, -ERR_AUTH, "this token's role may not call the method");
        return 0;
    }
    if (p->in_flight >= s->o.max_in_flight) {
        fail(p, f->method, f->request_id, -EAGAIN, "too many requests are waiting");
        return 0;
    }
    ProtobufCMessage *msg =
        protobuf_c_message_unpack(m->request, pbmem_allocator(&s->mem), f->body_len, f->body);
    if (!msg)
        return -ERR_FORMAT;
    struct rpc_request *r = mem_alloc(sizeof(*r));
    r->peer = p;
    r->id = f->request_id;
    r->method = f->method;
    p->in_flight++;
    list_push(&p->requests, &r->link);
    m->handle(s->o.arg, r, msg);
    return 0;
}

static size_t on_data(void *arg, const uint8_t *data, size_t len)
{
    struct rpc_peer *p = arg;
    struct rpc_server *s = p->server;
    size_t used = 0;
    while (used < len) {
        const uint32_t max_body = p->ready ? s->o.max_body_bytes : FRAME_BODY_MAX_HELLO;
        struct frame f;
        struct err err = {0};
        long n = frame_parse(data + used, len - used, max_body, &f, &err);
        if (n == -EAGAIN)
            break;
        if (n >= 0) {
            used += (size_t)n;
            p->frames_in++;
            p->heard_ms = loop_now_ms(s->loop);
            bool ready = p->ready;
            if (ready)
                n = request(p, &f);
            else
                hello(p, &f);
            if (s->closing) /* a handler closed the server: p is gone, conn knows */
                return 0;
            pbmem_clear(&s->mem);
            if (n < 0)
                (void)err_set(&err, (int)n, "a message of method %u cannot be read", f.method);
            else if (!p->ready || p->kicked)
                return used; /* conn is finishing */
        }
        if (n < 0) {
            conn_close(p->conn, &err);
            return 0;
        }
    }
    if (conn_is_full(p->conn))
        conn_pause(p->conn, true);
    return used;
}

static void on_drain(void *arg)
{
    struct rpc_peer *p = arg;
    conn_pause(p->conn, false);
}

/* ---- peers ---- */

static void on_open(void *arg)
{
}

static struct rpc_counters peer_counters(const struct rpc_peer *p)
{
    return (struct rpc_counters){
        .bytes_in = conn_bytes_in(p->conn),
        .bytes_out = conn_bytes_out(p->conn),
        .frames_in = p->frames_in,
        .frames_out = p->frames_out,
    };
}

static void peer_free(struct rpc_peer *p, const struct err *why)
{
    struct rpc_server *s = p->server;
    list_remove(&p->link);
    s->peer_count--;
    s->ready_count -= p->ready;
    if (p->waits)
        leave_door(p);
    else
        strangers_drop(&s->strangers, &p->stranger);
    if (!p->ready && !s->closing)
        call_in(s);
    struct rpc_counters n = peer_counters(p);
    s->gone.bytes_in += n.bytes_in;
    s->gone.bytes_out += n.bytes_out;
    s->gone.frames_in += n.frames_in;
    s->gone.frames_out += n.frames_out;
    if (p->ready && s->o.on_close)
        s->o.on_close(s->o.arg, p, why);
    struct list *l;
    while ((l = list_pop(&p->requests))) {
        struct rpc_request *r = list_entry(l, struct rpc_request, link);
        r->peer = NULL;
        if (r->on_gone)
            r->on_gone(r->gone_arg, r);
    }
    mem_free(p);
}

static void on_close(void *arg, const struct err *why)
{
    struct rpc_peer *p = arg;
    if (!p->ready)
        log_debug("rpc", "a connection ended before it was authenticated from=%s why=\"%s\"",
                  conn_address(p->conn), why->msg);
    peer_free(p, why);
}

static const struct conn_events events = {on_open, on_data, on_drain, on_close};

static void on_connection(uv_stream_t *listener, int status)
{
    struct rpc_server *s = listener->data;
    if (status < 0 || s->closing)
        return; /* out of descriptors: the kernel keeps it waiting */
    struct rpc_peer *p = mem_alloc(sizeof(*p));
    struct conn_options o = {
        .tls = s->tls,
        .events = &events,
        .arg = p,
        .max_queue_bytes = s->o.max_queue_bytes,
        .max_unread_bytes = s->o.max_body_bytes + FRAME_HEADER_BYTES,
        .deadline_ms = DOOR_MS,
        .waits = true,
    };
    p->server = s;
    p->heard_ms = loop_now_ms(s->loop);
    list_init(&p->requests);
    if (conn_accept(s->loop, listener, &o, &p->conn, NULL) < 0) {
        mem_free(p);
        return;
    }
    list_push(&s->peers, &p->link);
    s->peer_count++;
    receive(p);
}

static void on_tick(void *arg)
{
    struct rpc_server *s = arg;
    uint64_t now = loop_now_ms(s->loop);
    bool late = now - s->tick_ms > s->o.idle_ms / 2;
    s->tick_ms = now;
    if (late)
        return; /* the process was stopped and could hear no peer: judge at the next tick */
    for (struct list *l = s->peers.next; l != &s->peers; l = l->next) {
        struct rpc_peer *p = list_entry(l, struct rpc_peer, link);
        if (p->ready && now - p->heard_ms > s->o.idle_ms) {
            struct err err = {0};
            (void)err_set(&err, -ETIMEDOUT, "silent for more than %u ms", s->o.idle_ms);
            conn_close(p->conn, &err); /* its callback comes later: the list stays as it is */
        }
    }
}

/* ---- the server ---- */

static unsigned door_places(void)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) < 0 || files.rlim_cur / DOOR_FILES > DOOR_MAX)
        return DOOR_MAX;
    return (unsigned)(files.rlim_cur / DOOR_FILES);
}

static void set_defaults(struct rpc_server_options *o)
{
    o->host = o->host ? o->host : "0.0.0.0";
    o->build_id = o->build_id ? o->build_id : "unknown";
    if (!o->max_version) {
        o->min_version = RPC_VERSION_MIN;
        o->max_version = RPC_VERSION_MAX;
    }
    o->max_connections = o->max_connections ? o->max_connections : 1024;
    o->max_in_flight = o->max_in_flight ? o->max_in_flight : RPC_MAX_IN_FLIGHT;
    o->max_body_bytes = o->max_body_bytes ? o->max_body_bytes : FRAME_BODY_MAX_DEFAULT;
    if (o->max_body_bytes > FRAME_BODY_MAX)
        o->max_body_bytes = FRAME_BODY_MAX;
    o->max_queue_bytes = o->max_queue_bytes ? o->max_queue_bytes : RPC_QUEUE_BYTES;
    o->handshake_ms = o->handshake_ms ? o->handshake_ms : HANDSHAKE_MS;
    o->max_strangers = o->max_strangers ? o->max_strangers : 512;
    o->max_waiting = o->max_waiting ? o->max_waiting : door_places();
}

static int listen_on(struct rpc_server *s, struct err *err)
{
    struct sockaddr_storage a;
    int rc = uv_ip4_addr(s->o.host, s->o.port, (struct sockaddr_in *)&a);
    if (rc < 0)
        rc = uv_ip6_addr(s->o.host, s->o.port, (struct sockaddr_in6 *)&a);
    if (rc < 0)
        return err_set(err, -ERR_CONFIG, "%s is not an address to listen on", s->o.host);
    rc = uv_tcp_bind(&s->listener, (struct sockaddr *)&a, 0);
    if (rc == 0)
        rc = uv_listen((uv_stream_t *)&s->listener, BACKLOG, on_connection);
    if (rc == UV_EADDRINUSE)
        return err_set(err, rc,
                       "port %u on %s is in use by another program: stop it or choose "
                       "another port",
                       s->o.port, s->o.host);
    if (rc < 0)
        return err_set(err, rc, "cannot listen on %s port %u: %s", s->o.host, s->o.port,
                       uv_strerror(rc));
    return 0;
}

static void server_free(void *arg)
{
    struct rpc_server *s = arg;
    conn_tls_free(s->tls);
    pbmem_release(&s->mem);
    mem_free(s);
}

static void listener_closed(uv_handle_t *h)
{
    struct rpc_server *s = h->data;
    /* Connections use tls until their own close callbacks have run. */
    loop_defer(s->loop, server_free, s);
}

int rpc_server_open(struct loop *loop, const struct rpc_server_options *o, struct rpc_server **ret,
                    struct err *err)
{
    ASSERT_LOOP_THREAD(loop);
    struct rpc_server *s = mem_alloc(sizeof(*s));
    s->loop = loop;
    s->o = *o;
    set_defaults(&s->o);
    list_init(&s->peers);
    strangers_init(&s->strangers, s->o.max_strangers,
                   (s->o.max_strangers + ADDRESS_SHARE - 1) / ADDRESS_SHARE, is_busy);
    list_init(&s->door);
    pbmem_init(&s->mem, (size_t)s->o.max_body_bytes * RPC_UNPACK_FACTOR);
    int rc = conn_tls_server(o->keys, &s->tls, err);
    if (rc < 0) {
        server_free(s);
        return rc;
    }
    (void)uv_tcp_init(loop_uv(loop), &s->listener); /* opens no descriptor yet */
    s->listener.data = s;
    rc = listen_on(s, err);
    if (rc < 0) {
        s->closing = true;
        uv_close((uv_handle_t *)&s->listener, listener_closed);
        return rc;
    }
    s->calls = loop_timer_new(loop, on_calls, s);
    if (s->o.idle_ms) {
        s->tick = loop_timer_new(loop, on_tick, s);
        s->tick_ms = loop_now_ms(loop);
        loop_timer_start(s->tick, s->o.idle_ms / 4 + 1, s->o.idle_ms / 4 + 1);
    }
    *ret = s;
    return 0;
}

void rpc_server_close(struct rpc_server *s)
{
    if (!s)
        return;
    ASSERT_LOOP_THREAD(s->loop);
    static const struct err why = {.code = -ERR_CANCELLED, .msg = "the server was closed"};
    s->closing = true;
    while (!list_empty(&s->peers)) {
        struct rpc_peer *p = list_entry(s->peers.next, struct rpc_peer, link);
        struct conn *c = p->conn;
        peer_free(p, &why);
        conn_discard(c);
    }
    loop_timer_free(s->tick);
    loop_timer_free(s->calls);
    uv_close((uv_handle_t *)&s->listener, listener_closed);
}

uint16_t rpc_server_port(const struct rpc_server *s)
{
    struct sockaddr_storage a;
    int len = sizeof(a);
    if (uv_tcp_getsockname(&s->listener, (struct sockaddr *)&a, &len) < 0)
        return 0;
    return ntohs(a.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&a)->sin6_port
                                         : ((struct sockaddr_in *)&a)->sin_port);
}

unsigned rpc_server_connections(const struct rpc_server *s)
{
    return s->peer_count;
}

struct rpc_counters rpc_server_counters(const struct rpc_server *s)
{
    struct rpc_counters sum = s->gone;
    for (const struct list *l = s->peers.next; l != &s->peers; l = l->next) {
        struct rpc_counters n = peer_counters(list_entry(l, struct rpc_peer, link));
        sum.bytes_in += n.bytes_in;
        sum.bytes_out += n.bytes_out;
        sum.frames_in += n.frames_in;
        sum.frames_out += n.frames_out;
    }
    return sum;
}

unsigned rpc_peer_role(const struct rpc_peer *p)
{
    return p->role;
}

const uint8_t *rpc_peer_key(const struct rpc_peer *p)
{
    return conn_peer_key(p->conn);
}

uint64_t rpc_peer_token(const struct rpc_peer *p)
{
    return p->token;
}

const char *rpc_peer_address(const struct rpc_peer *p)
{
    return conn_address(p->conn);
}

const char *rpc_peer_build_id(const struct rpc_peer *p)
{
    return p->build_id;
}

void rpc_peer_set_user(struct rpc_peer *p, void *user)
{
    p->user = user;
}

void *rpc_peer_user(const struct rpc_peer *p)
{
    return p->user;
}

void rpc_peer_kick(struct rpc_peer *p, const char *why)
{
    struct err err = {0};
    (void)err_set(&err, -ERR_CANCELLED, "%s", why);
    p->kicked = true;
    conn_finish(p->conn, &err);
}
