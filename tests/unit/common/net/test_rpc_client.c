/* The client: whom it trusts, when it dials again, and what becomes of its calls. */
#include "tests/unit/common/net/rpc_rig.h"

#include <dlfcn.h>
#include <netdb.h>
#include <poll.h>

typedef int look_up_fn(const char *, const char *, const struct addrinfo *, struct addrinfo **);

/* The name "both" leads to the server, and to an address where nobody is: */
static const char *both[2] = {"127.0.0.1", "127.0.0.2"};

/* The name "slow" leads to the server once this is set. */
static _Atomic bool found;

int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints,
                struct addrinfo **ret)
{
    look_up_fn *real;
    *(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
    const bool asks = !(hints->ai_flags & AI_NUMERICHOST), slow = asks && !strcmp(name, "slow");
    const uint64_t until = clock_now_ms() + TEST_DEADLINE_MS;
    while (slow && !found && clock_now_ms() < until)
        (void)poll(NULL, 0, 1);
    if (!asks || strcmp(name, "both") != 0)
        return real(slow ? both[0] : name, service, hints, ret);
    const int rc = real(both[0], service, hints, ret);
    return rc == 0 ? real(both[1], service, hints, &(*ret)->ai_next) : rc;
}

static void test_wrong_pin(void **state)
{
    struct world *w = start(false);
    w->token.pin[5] ^= 1;
    expect_refusal(w, -ERR_AUTH, "key");
    stop(w);
}

static void test_wrong_cluster(void **state)
{
    struct world *w = start(false);
    w->token.cluster_id[0] = 1;
    open_client(w);
    WAIT_FOR(&w->t, w->state == RPC_FAILED);
    assert_non_null(strstr(w->why.msg, "cluster"));
    stop(w);
}

/* The time to connect begins when the address is known, for which there is three times as much. */
static void test_slow_names(void **state)
{
    enum { CONNECT_MS = 1000 };
    struct world *w = start(false);
    (void)str_copy(w->token.host, sizeof(w->token.host), "slow");
    struct rpc_client_options o = {.token = &w->token,
                                   .build_id = "test-client",
                                   .connect_ms = CONNECT_MS,
                                   .on_state = on_state,
                                   .arg = w};
    for (unsigned halves = 3; halves <= 7; halves += 4) {
        const uint64_t until = clock_now_ms() + halves * CONNECT_MS / 2;
        found = false;
        w->disconnected = 0;
        w->state = RPC_CONNECTING;
        assert_int_equal(rpc_client_open(w->t.loop, &o, &w->client, NULL), 0);
        WAIT_FOR(&w->t, clock_now_ms() > until);
        found = true;
        WAIT_FOR(&w->t, w->disconnected > 0 || w->state == RPC_CONNECTED);
        assert_int_equal(w->disconnected, halves == 7);
        if (halves == 3)
            rpc_client_close(w->client);
    }
    assert_non_null(strstr(w->why.msg, "no name server has found the address of slow in time"));
    stop(w);
}

/* Who is cut in the middle of the handshake, as by a server with a crowd, waits twice as long each
 * time. */
static void test_crowd(void **state)
{
    struct world *w = mem_alloc(sizeof(*w));
    net_test_init(&w->t);
    struct rpc_server_options o = server_options(w);
    o.max_connections = 1;
    open_server(w, &o);
    open_client(w);
    WAIT_FOR(&w->t, w->opened == 1);
    struct world second = {.t = w->t, .token = w->token};
    struct rpc_client_options late = {.token = &w->token,
                                      .build_id = "test-client",
                                      .backoff_min_ms = 10,
                                      .on_state = on_state,
                                      .arg = &second};
    const uint64_t begun = clock_now_ms();
    assert_int_equal(rpc_client_open(w->t.loop, &late, &second.client, NULL), 0);
    WAIT_FOR(&w->t, second.disconnected == 5);
    assert_true(clock_now_ms() - begun >= 10 + 20 + 40 + 80); /* without doubling: 40 at most */
    rpc_client_close(w->client);
    w->client = NULL;
    WAIT_FOR(&w->t, second.state == RPC_CONNECTED);
    rpc_client_close(second.client);
    stop(w);
}

static void test_deadline_and_late_reply(void **state)
{
    struct world *w = start(true);
    assert_int_equal(call(w, METHOD_LATER, 1, 20, NULL), 0);
    WAIT_FOR(&w->t, w->held_count == 1 && w->errors == 1);
    assert_int_equal(w->last_code, -ETIMEDOUT);
    Message m = SKERRY__ENVELOPE__V1__ERROR__INIT;
    rpc_reply(w->held[0], &m.base); /* late: must be dropped */
    w->held_count = 0;
    assert_int_equal(call(w, METHOD_ECHO, 5, 5000, NULL), 0);
    WAIT_FOR(&w->t, w->replies == 1);
    assert_int_equal(w->errors, 1);
    assert_int_equal(rpc_client_in_flight(w->client), 0);
    stop(w);
}

/* Of calls that end at a time the first one calls again, which makes the table grow, and cancels
 * the last. */
struct together {
    struct world *w;
    uint64_t last;
    unsigned ended;
};

static void on_first(void *arg, const struct rpc_result *r)
{
    struct together *t = arg;
    if (t->ended++ > 0)
        return;
    assert_int_equal(r->code, -ETIMEDOUT);
    assert_int_equal(call(t->w, METHOD_ECHO, 1, 5000, NULL), 0);
    assert_int_equal(call(t->w, METHOD_ECHO, 2, 5000, NULL), 0);
    rpc_client_cancel(t->w->client, t->last);
    assert_int_equal(t->ended, 2);
}

static void test_grows_within_deadlines(void **state)
{
    enum { CALLS = 64 }; /* as many as the table takes at first */
    struct world *w = start(true);
    struct together t = {.w = w};
    const Message m = SKERRY__ENVELOPE__V1__ERROR__INIT;
    for (unsigned i = 0; i < CALLS; i++)
        assert_int_equal(
            rpc_client_call(w->client, METHOD_LATER, &m.base, MESSAGE, 20, on_first, &t, &t.last),
            0);
    WAIT_FOR(&w->t, t.ended == CALLS && w->replies == 2);
    stop(w);
}

static void test_cancel(void **state)
{
    struct world *w = start(true);
    uint64_t id;
    assert_int_equal(call(w, METHOD_LATER, 1, 0, &id), 0);
    rpc_client_cancel(w->client, id);
    assert_int_equal(w->errors, 1);
    assert_int_equal(w->last_code, -ERR_CANCELLED);
    rpc_client_cancel(w->client, id);
    assert_int_equal(w->errors, 1);
    WAIT_FOR(&w->t, w->held_count == 1);
    stop(w);
}

static void test_pipelined(void **state)
{
    struct world *w = start(true);
    unsigned sent = 0;
    while (sent < 10000) {
        int rc = call(w, METHOD_ECHO, sent, 20000, NULL);
        if (rc == 0)
            sent++;
        else {
            assert_int_equal(rc, -EAGAIN);
            loop_turn(w->t.loop, true);
        }
    }
    WAIT_FOR(&w->t, w->replies + w->errors == 10000);
    assert_int_equal(w->errors, 0);
    assert_int_equal(w->last_number, 9999); /* in order */
    stop(w);
}

/* The queue of a client that is not drained fills up and says so. */
static void test_backpressure(void **state)
{
    struct world *w = start(true);
    rpc_client_close(w->client);
    struct rpc_client_options o = {.token = &w->token,
                                   .max_queue_bytes = 1000,
                                   .max_in_flight = 100000,
                                   .on_state = on_state,
                                   .arg = w};
    w->state = RPC_CONNECTING;
    assert_int_equal(rpc_client_open(w->t.loop, &o, &w->client, NULL), 0);
    WAIT_FOR(&w->t, w->state == RPC_CONNECTED);
    unsigned sent = 0;
    while (call(w, METHOD_ECHO, sent, 0, NULL) == 0)
        sent++;
    assert_in_range(sent, 10, 40);
    assert_int_equal(call(w, METHOD_ECHO, sent, 0, NULL), -EAGAIN);
    WAIT_FOR(&w->t, w->replies == sent);
    assert_int_equal(call(w, METHOD_ECHO, sent, 0, NULL), 0);
    stop(w);
}

static void test_lost_connection(void **state)
{
    struct world *w = start(true);
    assert_int_equal(call(w, METHOD_LATER, 1, 0, NULL), 0);
    WAIT_FOR(&w->t, w->held_count == 1);
    rpc_client_reconnect(w->client);
    WAIT_FOR(&w->t, w->errors == 1 && w->connected == 2 && w->opened == 2);
    assert_int_equal(w->last_code, -ECONNRESET);
    WAIT_FOR(&w->t, w->gone_count == 1);
    assert_null(rpc_request_peer(w->held[0]));
    assert_int_equal(w->closed, 1);
    stop(w);
}

/* Who lost the connection dials the address that it was at; the next is for who finds nobody. */
static void dials_where_it_was(const char *first, const char *second, unsigned failures)
{
    struct world *w = start(false);
    both[0] = first;
    both[1] = second;
    (void)str_copy(w->token.host, sizeof(w->token.host), "both");
    open_client(w);
    for (unsigned i = 1; i <= 3; i++) {
        WAIT_FOR(&w->t, w->connected == i);
        assert_int_equal(w->disconnected, failures + i - 1);
        rpc_client_reconnect(w->client);
    }
    stop(w);
}

static void test_addresses(void **state)
{
    dials_where_it_was("127.0.0.1", "127.0.0.2", 0);
    dials_where_it_was("127.0.0.2", "127.0.0.1", 1);
}

struct mover {
    struct world *w;
    struct token to;
};

/* Moves the client once it has lost its first dial. */
static void on_mover(void *arg, enum rpc_state state, const struct err *why)
{
    struct mover *m = arg;
    if (state == RPC_DISCONNECTED && m->w->disconnected == 0)
        rpc_client_move(m->w->client, &m->to, 0);
    on_state(m->w, state, why);
}

/* Whoever moves it to and fro says which address is next. */
static void test_moved(void **state)
{
    struct world *w = start(false);
    struct mover m = {w, w->token};
    both[0] = "127.0.0.1";
    both[1] = "127.0.0.2";
    (void)str_copy(m.to.host, sizeof(m.to.host), "both");
    (void)str_copy(w->token.host, sizeof(w->token.host), "127.0.0.3");
    struct rpc_client_options o = {.token = &w->token,
                                   .build_id = "test-client",
                                   .backoff_min_ms = 10,
                                   .on_state = on_mover,
                                   .arg = &m};
    assert_int_equal(rpc_client_open(w->t.loop, &o, &w->client, NULL), 0);
    WAIT_FOR(&w->t, w->connected == 1);
    assert_int_equal(w->disconnected, 1);
    stop(w);
}

static void test_server_restart(void **state)
{
    struct world *w = start(true);
    WAIT_FOR(&w->t, w->opened == 1);
    struct rpc_server_options o = server_options(w);
    o.port = rpc_server_port(w->server);
    rpc_server_close(w->server);
    assert_int_equal(w->closed, 1);
    WAIT_FOR(&w->t, w->state == RPC_DISCONNECTED);
    open_server(w, &o);
    WAIT_FOR(&w->t, w->opened == 2);
    stop(w);
}

/* A server with another key has taken the place, as a coordinator on the wrong data dir does: who
 * was connected waits for the right one. */
static void test_other_server(void **state)
{
    struct world *w = start(true);
    WAIT_FOR(&w->t, w->opened == 1);
    const struct rpc_server_options right = server_options(w);
    struct rpc_server_options o = right;
    struct keys *other;
    struct err err = {0};
    char *dir = file_join(w->t.dir, "other");
    assert_int_equal(file_mkdirs(dir, 0700, &err), 0);
    assert_int_equal(keys_open(dir, &other, &err), 0);
    o.keys = other;
    o.port = rpc_server_port(w->server);
    rpc_server_close(w->server);
    assert_int_equal(rpc_server_open(w->t.loop, &o, &w->server, &err), 0);
    WAIT_FOR(&w->t, strstr(w->why.msg, "not the one this token was made for") != NULL);
    assert_int_not_equal(w->state, RPC_FAILED);
    rpc_server_close(w->server);
    o.keys = right.keys;
    open_server(w, &o);
    WAIT_FOR(&w->t, w->opened == 2);
    keys_free(other);
    mem_free(dir);
    stop(w);
}

/* With the back-off of a worker: a server that is away for seconds is looked for all the time. */
static void test_dials_on(void **state)
{
    struct world *w = start(true);
    WAIT_FOR(&w->t, w->state == RPC_CONNECTED && w->peer);
    rpc_client_close(w->client);
    struct rpc_client_options o = {
        .token = &w->token, .build_id = "test-client", .on_state = on_state, .arg = w};
    assert_int_equal(rpc_client_open(w->t.loop, &o, &w->client, NULL), 0);
    WAIT_FOR(&w->t, w->connected == 2);
    rpc_server_close(w->server);
    w->server = NULL;
    w->disconnected = 0;
    uint64_t begun = clock_now_ms();
    WAIT_FOR(&w->t, w->disconnected == 12); /* with a back-off that doubles: 36 s at least */
    assert_true(clock_now_ms() - begun < 30000);
    stop(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wrong_pin),
        cmocka_unit_test(test_wrong_cluster),
        cmocka_unit_test(test_slow_names),
        cmocka_unit_test(test_crowd),
        cmocka_unit_test(test_deadline_and_late_reply),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_pipelined),
        cmocka_unit_test(test_backpressure),
        cmocka_unit_test(test_lost_connection),
        cmocka_unit_test(test_server_restart),
        cmocka_unit_test(test_other_server),
        cmocka_unit_test(test_dials_on),
        cmocka_unit_test(test_addresses),
        cmocka_unit_test(test_moved),
        cmocka_unit_test(test_grows_within_deadlines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
