/* What the tests of RPC's two sides share: a server with a few methods, and a client. */
#ifndef TESTS_UNIT_NET_RPC_RIG_H
#define TESTS_UNIT_NET_RPC_RIG_H

#include "common/net/frame.h"
#include "common/net/net_fault.h"
#include "common/net/rpc.h"
#include "proto/envelope.pb-c.h"
#include "tests/unit/common/net/net_test.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>

#define METHOD_ECHO 16
#define METHOD_LATER 17
#define METHOD_BIG 18
#define METHOD_FORBIDDEN 19
#define BIG_BYTES 60000

typedef Skerry__Envelope__V1__Error Message;

#define MESSAGE (&skerry__envelope__v1__error__descriptor)

struct world {
    struct net_test t;
    struct keys *client_keys; /* NULL: it has none */
    struct rpc_server *server;
    struct rpc_client *client;
    struct token token;
    struct rpc_request *held[64];
    unsigned held_count, gone_count;
    unsigned opened, closed;
    struct rpc_peer *peer;
    enum rpc_state state;
    unsigned connected, disconnected;
    struct err why;
    /* outcomes of calls */
    unsigned replies, errors;
    int last_code;
    uint32_t last_number;
    char last_detail[256];
    bool last_remote, last_retryable;
};

/* ---- server side ---- */

static inline void on_echo(void *arg, struct rpc_request *req, const ProtobufCMessage *msg)
{
    rpc_reply(req, msg);
}

static inline void on_gone(void *arg, struct rpc_request *req)
{
    ((struct world *)arg)->gone_count++;
}

static inline void on_later(void *arg, struct rpc_request *req, const ProtobufCMessage *msg)
{
    struct world *w = arg;
    assert_true(w->held_count < 64);
    rpc_request_on_gone(req, on_gone, w);
    w->held[w->held_count++] = req;
}

static inline void on_big(void *arg, struct rpc_request *req, const ProtobufCMessage *msg)
{
    char *text = mem_alloc(BIG_BYTES + 1);
    memset(text, 'x', BIG_BYTES);
    Message m = SKERRY__ENVELOPE__V1__ERROR__INIT;
    m.detail = text;
    rpc_reply(req, &m.base);
    mem_free(text);
}

static const struct rpc_method methods[] = {
    {METHOD_ECHO, "echo", MESSAGE, TOKEN_ROLE_WORKER, on_echo},
    {METHOD_LATER, "later", MESSAGE, TOKEN_ROLE_WORKER, on_later},
    {METHOD_BIG, "big", MESSAGE, TOKEN_ROLE_WORKER, on_big},
    {METHOD_FORBIDDEN, "user only", MESSAGE, TOKEN_ROLE_OPERATOR, on_echo},
};

static inline void on_open(void *arg, struct rpc_peer *peer)
{
    struct world *w = arg;
    w->opened++;
    w->peer = peer;
}

static inline void on_close(void *arg, struct rpc_peer *peer, const struct err *why)
{
    struct world *w = arg;
    w->closed++;
    w->peer = NULL;
}

/* ---- client side ---- */

static inline void on_state(void *arg, enum rpc_state state, const struct err *why)
{
    struct world *w = arg;
    w->state = state;
    w->connected += state == RPC_CONNECTED;
    w->disconnected += state == RPC_DISCONNECTED;
    if (why)
        w->why = *why;
}

static inline void on_done(void *arg, const struct rpc_result *r)
{
    struct world *w = arg;
    if (r->code == 0)
        w->replies++;
    else
        w->errors++;
    w->last_code = r->code;
    w->last_remote = r->remote;
    w->last_retryable = r->retryable;
    w->last_number = r->reply ? ((const Message *)r->reply)->retry_after_ms : r->retry_after_ms;
    (void)str_copy(w->last_detail, sizeof(w->last_detail), r->detail);
}

static inline int call(struct world *w, uint16_t method, uint32_t number, uint32_t deadline_ms,
                       uint64_t *ret_id)
{
    Message m = SKERRY__ENVELOPE__V1__ERROR__INIT;
    m.retry_after_ms = number;
    return rpc_client_call(w->client, method, &m.base, MESSAGE, deadline_ms, on_done, w, ret_id);
}

/* ---- set-up ---- */

static inline unsigned authenticate(void *arg, const struct rpc_claim *c, uint64_t *ret_token,
                                    struct err *err)
{
    uint8_t secret[KEYS_SECRET_BYTES];
    memset(secret, 7, sizeof(secret));
    if (rpc_claim_proves(c, secret)) {
        *ret_token = 11;
        return TOKEN_ROLE_WORKER;
    }
    (void)err_set(err, -ERR_AUTH, "the token's secret is not one of this server");
    return TOKEN_ROLE_NONE;
}

static inline struct rpc_server_options server_options(struct world *w)
{
    return (struct rpc_server_options){
        .host = "127.0.0.1",
        .keys = w->t.keys,
        .authenticate = authenticate,
        .methods = methods,
        .method_count = sizeof(methods) / sizeof(methods[0]),
        .build_id = "test-server",
        .arg = w,
        .on_open = on_open,
        .on_close = on_close,
    };
}

static inline void open_server(struct world *w, const struct rpc_server_options *o)
{
    struct err err = {0};
    int rc = rpc_server_open(w->t.loop, o, &w->server, &err);
    if (rc < 0)
        fail_msg("%s", err.msg);
    w->token = (struct token){.host = "127.0.0.1", .role = TOKEN_ROLE_WORKER};
    w->token.rpc_port = rpc_server_port(w->server);
    memcpy(w->token.pin, keys_pin(w->t.keys), sizeof(w->token.pin));
    memset(w->token.secret, 7, sizeof(w->token.secret));
}

static inline void open_client(struct world *w)
{
    struct rpc_client_options o = {.token = &w->token,
                                   .keys = w->client_keys,
                                   .build_id = "test-client",
                                   .backoff_min_ms = 1,
                                   .backoff_max_ms = 20,
                                   .on_state = on_state,
                                   .arg = w};
    assert_int_equal(rpc_client_open(w->t.loop, &o, &w->client, NULL), 0);
}

static inline struct world *start(bool connect)
{
    struct world *w = mem_alloc(sizeof(*w));
    net_test_init(&w->t);
    struct rpc_server_options o = server_options(w);
    open_server(w, &o);
    if (connect) {
        open_client(w);
        WAIT_FOR(&w->t, w->state == RPC_CONNECTED);
    }
    return w;
}

static inline void stop(struct world *w)
{
    rpc_client_close(w->client);
    rpc_server_close(w->server);
    for (unsigned i = 0; i < w->held_count; i++)
        rpc_fail(w->held[i], -ERR_CANCELLED, false, 0, "too late");
    net_test_release(&w->t);
    mem_free(w);
}

static inline void expect_refusal(struct world *w, int code, const char *words)
{
    open_client(w);
    WAIT_FOR(&w->t, w->state == RPC_FAILED);
    assert_int_equal(w->why.code, code);
    if (!strstr(w->why.msg, words))
        fail_msg("\"%s\" does not say \"%s\"", w->why.msg, words);
    assert_int_equal(w->opened, 0);
    assert_int_equal(call(w, METHOD_ECHO, 1, 1000, NULL), -ENOTCONN);
}

#endif
