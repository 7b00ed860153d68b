/* Control requests per second over TLS on loopback: one connection, 256 small
 * requests in flight, server and client on threads of their own.  Prints one
 * JSON line. */
#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/file.h"
#include "common/net/keys.h"
#include "common/net/loop.h"
#include "common/net/rpc.h"
#include "common/net/token.h"
#include "proto/envelope.pb-c.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define METHOD 16
#define IN_FLIGHT 256
#define WARM_UP 20000
#define REQUESTS 200000

typedef Skerry__Envelope__V1__Error Message; /* small, with a string and numbers */

struct bench {
    struct loop *loop;
    struct rpc_client *client;
    unsigned sent, answered, failed;
    uint64_t start_ns, end_ns;
};

static void echo(void *arg, struct rpc_request *req, const ProtobufCMessage *msg)
{
    rpc_reply(req, msg);
}

static void answered(void *arg, const struct rpc_result *r);

static void send_one(struct bench *b)
{
    Message m = SKERRY__ENVELOPE__V1__ERROR__INIT;
    m.detail = (char *)"heartbeat 1234567";
    m.retry_after_ms = b->sent;
    if (rpc_client_call(b->client, METHOD, &m.base, &skerry__envelope__v1__error__descriptor, 10000,
                        answered, b, NULL) < 0)
        b->failed++;
    b->sent++;
}

static void answered(void *arg, const struct rpc_result *r)
{
    struct bench *b = arg;
    if (r->code < 0)
        b->failed++;
    b->answered++;
    if (b->answered == WARM_UP)
        b->start_ns = clock_now_ns();
    if (b->answered == WARM_UP + REQUESTS) {
        b->end_ns = clock_now_ns();
        loop_stop(b->loop);
    } else if (b->sent < WARM_UP + REQUESTS) {
        send_one(b);
    }
}

static void on_state(void *arg, enum rpc_state state, const struct err *why)
{
    struct bench *b = arg;
    if (state == RPC_CONNECTED) {
        while (b->sent < IN_FLIGHT)
            send_one(b);
    } else {
        fprintf(stderr, "bench_rpc: %s\n", why ? why->msg : "?");
        exit(1);
    }
}

static void *serve(void *arg)
{
    loop_run(arg);
    return NULL;
}

static unsigned anybody(void *arg, const struct rpc_claim *c, uint64_t *ret_token, struct err *err)
{
    return TOKEN_ROLE_WORKER;
}

int main(void)
{
    static const struct rpc_method methods[] = {
        {METHOD, "echo", &skerry__envelope__v1__error__descriptor, TOKEN_ROLE_WORKER, echo},
    };
    char dir[] = "/tmp/skerry-bench-XXXXXX";
    struct err err = {0};
    struct keys *keys;
    struct loop *server_loop;
    struct rpc_server *server;
    struct bench b = {0};
    struct token t = {.role = TOKEN_ROLE_WORKER, .host = "127.0.0.1"};
    pthread_t thread;
    if (!mkdtemp(dir) || keys_open(dir, &keys, &err) < 0 || loop_new(&server_loop, &err) < 0 ||
        loop_new(&b.loop, &err) < 0)
        goto fail;
    struct rpc_server_options so = {.host = "127.0.0.1",
                                    .keys = keys,
                                    .authenticate = anybody,
                                    .methods = methods,
                                    .method_count = 1};
    if (rpc_server_open(server_loop, &so, &server, &err) < 0)
        goto fail;
    t.rpc_port = rpc_server_port(server);
    memcpy(t.pin, keys_pin(keys), sizeof(t.pin));
    struct rpc_client_options co = {.token = &t, .on_state = on_state, .arg = &b};
    if (pthread_create(&thread, NULL, serve, server_loop) != 0 ||
        rpc_client_open(b.loop, &co, &b.client, &err) < 0)
        goto fail;
    loop_run(b.loop);
    rpc_client_close(b.client);
    loop_free(b.loop);
    loop_stop(server_loop);
    pthread_join(thread, NULL);
    loop_turn(server_loop, false); /* this thread owns it now */
    rpc_server_close(server);
    loop_free(server_loop);
    keys_free(keys);
    (void)file_remove_tree(dir, NULL); /* a leftover in /tmp is harmless */
    if (b.failed) {
        fprintf(stderr, "bench_rpc: %u requests failed\n", b.failed);
        return 1;
    }
    printf("{\"name\":\"rpc_per_s\",\"value\":%.0f,\"unit\":\"1/s\"}\n",
           REQUESTS * 1e9 / (double)(b.end_ns - b.start_ns));
    return 0;
fail:
    fprintf(stderr, "bench_rpc: %s\n", err.msg);
    return 1;
}
