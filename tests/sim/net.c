#include "tests/sim/net.h"

#include "common/base/buf.h"
#include "common/base/hash.h"
#include "common/net/rpc.h"
#include "common/net/token.h"
#include "tests/sim/disk.h"
#include "tests/sim/sim.h"
#include "tests/sim/world.h"

#define WAY_MS 20       /* that a message takes at most */
#define SLOW_WAY_MS 800 /* and now and then */
#define IDLE_MS 60000   /* that a silent peer is kept */

struct rpc_claim {
    const uint8_t *key, *verifier;
};

struct rpc_peer {
    struct net_conn *conn;
    void *user;
};

#define ADDRESSES 4 /* that workers dial from: some of them from the same one */

/* Of one direction: nothing arrives before. */
struct way {
    uint64_t next_ms, blocked_until_ms;
};

struct net_conn {
    struct net_conn *next;
    struct rpc_server *server; /* NULL: it is gone */
    struct net_client client;
    struct rpc_peer peer;
    uint8_t key[32];
    char address[32];
    uint64_t token;
    bool here, there; /* open at the worker, at the coordinator */
    struct way up, down;
};

struct packet;

struct rpc_request {
    struct net_conn *conn;
    uint16_t method;
    uint64_t call;
    void (*gone)(void *arg, struct rpc_request *req);
    void *gone_arg;
    bool held;
    struct packet *kept;
    struct rpc_request *next, **prev; /* of those that are not answered */
};

#define SERVERS_MAX 2 /* one of a coordinator that was deposed and does not know it */

struct rpc_server {
    struct rpc_server_options o;
};

static struct {
    struct rpc_server *servers[SERVERS_MAX]; /* workers know the addresses of all */
    unsigned n_servers;
    struct net_conn *conns;
    struct rpc_request *open;
    uint64_t lost_before; /* answers of which nothing is known any more */
    uint64_t sent;
} net;

/* ---- messages on their way ------------------------------------------------ */

struct packet {
    struct net_conn *conn;
    uint16_t method;
    uint64_t call;
    int code;
    uint32_t retry_ms;
    uint64_t n; /* of all that were sent */
    size_t len;
    uint8_t bytes[];
};

static uint64_t arrival(struct way *w)
{
    uint64_t at = sim_now_ms() + sim_below(sim_chance(30) ? SLOW_WAY_MS : WAY_MS);
    at = at < w->blocked_until_ms ? w->blocked_until_ms : at;
    w->next_ms = at < w->next_ms ? w->next_ms + 1 : at + 1; /* in order */
    return w->next_ms - sim_now_ms();
}

static struct packet *pack(struct net_conn *c, uint16_t method, uint64_t call,
                           const ProtobufCMessage *msg)
{
    const size_t len = msg != NULL ? protobuf_c_message_get_packed_size(msg) : 0;
    struct packet *p = mem_alloc(sizeof(*p) + len);
    p->conn = c;
    p->method = method;
    p->call = call;
    p->n = ++net.sent;
    p->len = len;
    if (msg != NULL)
        (void)protobuf_c_message_pack(msg, p->bytes);
    return p;
}

/* ---- at the coordinator --------------------------------------------------- */

static void forget(struct rpc_request *r)
{
    *r->prev = r->next;
    if (r->next != NULL)
        r->next->prev = r->prev;
    mem_free(r);
}

static void peer_closed(void *arg)
{
    struct net_conn *c = arg;
    struct err err = {0};
    if (!c->there || c->server == NULL)
        return;
    c->there = false;
    for (struct rpc_request *r = net.open, *next; r != NULL; r = next) {
        next = r->next;
        if (r->conn == c && r->gone != NULL)
            r->gone(r->gone_arg, r); /* answers it */
    }
    c->server->o.on_close(c->server->o.arg, &c->peer, &err);
}

static const struct rpc_method *find_method(const struct rpc_server *s, uint16_t method)
{
    for (unsigned i = 0; i < s->o.method_count; i++)
        if (s->o.methods[i].method == method)
            return &s->o.methods[i];
    return NULL;
}

static void arrive(void *arg)
{
    struct packet *p = arg;
    struct net_conn *c = p->conn;
    const struct rpc_method *m = c->there && c->server ? find_method(c->server, p->method) : NULL;
    ProtobufCMessage *msg =
        m != NULL ? protobuf_c_message_unpack(m->request, NULL, p->len, p->bytes) : NULL;
    if (msg != NULL) {
        struct rpc_request *r = mem_alloc(sizeof(*r));
        *r =
            (struct rpc_request){.conn = c, .method = p->method, .call = p->call, .next = net.open};
        r->prev = &net.open;
        if (r->next != NULL)
            r->next->prev = &r->next;
        net.open = r;
        m->handle(c->server->o.arg, r, msg);
        protobuf_c_message_free_unpacked(msg, NULL);
    }
    mem_free(p);
}

int rpc_server_open(struct loop *loop, const struct rpc_server_options *o, struct rpc_server **ret,
                    struct err *err)
{
    if (net.n_servers == SERVERS_MAX)
        sim_fail("more than %d coordinators listen", SERVERS_MAX);
    net.servers[net.n_servers++] = *ret = mem_alloc(sizeof(**ret));
    (*ret)->o = *o;
    return 0;
}

uint16_t rpc_server_port(const struct rpc_server *s)
{
    return 7000;
}

struct rpc_counters rpc_server_counters(const struct rpc_server *s)
{
    return (struct rpc_counters){0};
}

void rpc_server_close(struct rpc_server *s)
{
    if (s == NULL)
        return;
    for (struct net_conn *c = net.conns; c != NULL; c = c->next)
        if (c->server == s) {
            peer_closed(c);
            c->server = NULL;
        }
    for (unsigned i = 0; i < net.n_servers; i++)
        if (net.servers[i] == s)
            net.servers[i] = net.servers[--net.n_servers];
    mem_free(s);
}

static void come_back(void *arg)
{
    struct packet *p = arg;
    struct net_conn *c = p->conn;
    if (c->here && p->n > net.lost_before)
        c->client.on_reply(c->client.arg, &(struct net_reply){p->method, p->call, p->code,
                                                              p->retry_ms, p->bytes, p->len});
    mem_free(p);
}

/* What a coordinator does that has crashed nobody sees. */
static void answer(struct rpc_request *req, struct packet *p)
{
    struct net_conn *c = req->conn;
    if (req->held) {
        req->kept = p;
        return;
    }
    forget(req);
    if (p == NULL)
        return;
    if (c->there && c->here && c->server != NULL && !disk_crashed())
        (void)sim_in(arrival(&c->down), come_back, p);
    else
        mem_free(p);
}

void rpc_reply(struct rpc_request *req, const ProtobufCMessage *msg)
{
    answer(req, pack(req->conn, req->method, req->call, msg));
}

void rpc_fail(struct rpc_request *req, int code, bool retryable, uint32_t retry_after_ms,
              const char *fmt, ...)
{
    struct packet *p = pack(req->conn, req->method, req->call, NULL);
    p->code = code;
    p->retry_ms = !retryable ? 0 : retry_after_ms > 0 ? retry_after_ms : 100;
    answer(req, p);
}

void rpc_request_hold(struct rpc_request *req)
{
    req->held = true;
}

void rpc_request_send(struct rpc_request *req)
{
    req->held = false;
    answer(req, req->kept);
}

void rpc_request_again(struct rpc_request *req)
{
    mem_free(req->kept);
    req->kept = NULL;
    req->held = false;
}

struct rpc_peer *rpc_request_peer(const struct rpc_request *req)
{
    return req->conn->there ? &req->conn->peer : NULL;
}

void rpc_request_on_gone(struct rpc_request *req, void (*fn)(void *arg, struct rpc_request *req),
                         void *arg)
{
    req->gone = fn;
    req->gone_arg = arg;
}

const char *rpc_peer_address(const struct rpc_peer *p)
{
    return p->conn->address;
}

const uint8_t *rpc_peer_key(const struct rpc_peer *p)
{
    return p->conn->key;
}

uint64_t rpc_peer_token(const struct rpc_peer *p)
{
    return p->conn->token;
}

void rpc_peer_set_user(struct rpc_peer *p, void *user)
{
    p->user = user;
}

void *rpc_peer_user(const struct rpc_peer *p)
{
    return p->user;
}

const uint8_t *rpc_claim_key(const struct rpc_claim *c)
{
    return c->key;
}

bool rpc_claim_proves(const struct rpc_claim *c, const uint8_t secret[KEYS_SECRET_BYTES])
{
    return memcmp(c->verifier, secret, KEYS_SECRET_BYTES) == 0;
}

/* ---- cuts ------------------------------------------------------------------ */

static void heard(void *arg)
{
    struct net_conn *c = arg;
    if (!c->here)
        return;
    c->here = false;
    c->client.on_closed(c->client.arg);
}

void rpc_peer_kick(struct rpc_peer *p, const char *why)
{
    (void)sim_in(0, peer_closed, p->conn);
    if (!disk_crashed())
        (void)sim_in(arrival(&p->conn->down), heard, p->conn);
}

void net_close(struct net_conn *c, bool silently)
{
    c->here = false;
    (void)sim_in(silently ? IDLE_MS : arrival(&c->up), peer_closed, c);
}

void net_cut(struct net_conn *c)
{
    const uint64_t last_ms = sim_chance(500) ? 10 : 15000;
    (void)sim_in(sim_below(last_ms), peer_closed, c);
    (void)sim_in(sim_below(last_ms), heard, c);
}

void net_block(struct net_conn *c, bool up, bool down, uint64_t ms)
{
    const uint64_t until = sim_now_ms() + ms;
    if (up && c->up.blocked_until_ms < until)
        c->up.blocked_until_ms = until;
    if (down && c->down.blocked_until_ms < until)
        c->down.blocked_until_ms = until;
}

void net_down(const struct rpc_server *s)
{
    for (struct net_conn *c = net.conns; c != NULL; c = c->next)
        if (c->there && c->server == s) {
            c->there = false;
            (void)sim_in(sim_below(sim_chance(800) ? 100 : 20000), heard, c);
        }
}

/* ---- at the worker --------------------------------------------------------- */

static void opened(void *arg)
{
    struct net_conn *c = arg;
    if (c->here)
        c->client.on_open(c->client.arg);
}

struct net_conn *net_dial(const struct net_client *client, bool *ret_refused)
{
    const struct rpc_claim claim = {client->key, world_token()}; /* whoever dials knows it */
    struct err err = {0};
    uint64_t token = 0;
    if (net.n_servers == 0 || disk_crashed())
        return NULL;
    struct rpc_server *s = net.servers[net.n_servers > 1 ? sim_below(net.n_servers) : 0];
    *ret_refused = s->o.authenticate(s->o.arg, &claim, &token, &err) != TOKEN_ROLE_WORKER;
    if (*ret_refused)
        return NULL;
    struct net_conn *c = mem_alloc(sizeof(*c));
    c->client = *client;
    c->server = s;
    c->peer.conn = c;
    memcpy(c->key, client->key, sizeof(c->key));
    c->client.key = c->key;
    (void)snprintf(c->address, sizeof(c->address), "192.0.2.%u:1", c->key[31] % ADDRESSES + 1);
    c->token = token;
    c->here = c->there = true;
    c->next = net.conns;
    net.conns = c;
    (void)sim_in(arrival(&c->down), opened, c);
    return c;
}

void net_send(struct net_conn *c, uint16_t method, uint64_t call, const ProtobufCMessage *msg)
{
    (void)sim_in(arrival(&c->up), arrive, pack(c, method, call, msg));
}

void net_lose_answers(void)
{
    net.lost_before = net.sent;
}

void net_end(void)
{
    for (struct net_conn *c = net.conns, *next; c != NULL; c = next) {
        next = c->next;
        mem_free(c);
    }
    net.conns = NULL;
}
