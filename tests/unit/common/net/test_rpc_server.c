/* The server: whom it lets in, what it answers, and whom it cuts. */
#include "tests/unit/common/net/rpc_rig.h"

static void test_handshake(void **state)
{
    struct world *w = start(true);
    WAIT_FOR(&w->t, w->opened == 1);
    assert_string_equal(rpc_client_server_build_id(w->client), "test-server");
    assert_string_equal(rpc_peer_build_id(w->peer), "test-client");
    assert_int_equal(rpc_peer_role(w->peer), TOKEN_ROLE_WORKER);
    assert_true(str_starts(rpc_peer_address(w->peer), "127.0.0.1:"));
    assert_int_equal(call(w, METHOD_ECHO, 42, 5000, NULL), 0);
    WAIT_FOR(&w->t, w->replies == 1);
    assert_int_equal(w->last_number, 42);
    struct rpc_counters at_client = rpc_client_counters(w->client);
    struct rpc_counters at_server = rpc_server_counters(w->server);
    assert_true(at_client.bytes_out > 0 && at_client.bytes_out == at_server.bytes_in);
    assert_int_equal(at_client.bytes_in, at_server.bytes_out);
    stop(w);
}

/* A client's key is known to the server when it has one, and proved by TLS. */
static void test_key(void **state)
{
    struct world *w = start(true);
    struct err err = {0};
    WAIT_FOR(&w->t, w->opened == 1);
    assert_null(rpc_peer_key(w->peer));
    assert_int_equal(rpc_peer_token(w->peer), 11);
    stop(w);

    w = start(false);
    char *dir = file_join(w->t.dir, "client");
    assert_int_equal(file_mkdirs(dir, 0700, &err), 0);
    assert_int_equal(keys_open(dir, &w->client_keys, &err), 0);
    open_client(w);
    WAIT_FOR(&w->t, w->opened == 1);
    assert_memory_equal(rpc_peer_key(w->peer), keys_pin(w->client_keys), KEYS_PIN_BYTES);
    keys_free(w->client_keys);
    mem_free(dir);
    stop(w);
}

static void test_wrong_secret(void **state)
{
    struct world *w = start(false);
    w->token.secret[31] ^= 0x80;
    expect_refusal(w, -ERR_AUTH, "secret");
    stop(w);
}

static void test_wrong_version(void **state)
{
    struct world *w = mem_alloc(sizeof(*w));
    net_test_init(&w->t);
    struct rpc_server_options o = server_options(w);
    o.min_version = 7;
    o.max_version = 9;
    open_server(w, &o);
    expect_refusal(w, -ERR_VERSION, "versions 7 to 9");
    stop(w);
}

static int raw(struct world *w)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons(w->token.rpc_port),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof(a)), 0);
    return fd;
}

/* Sends raw bytes to the RPC port; true once the server has closed on them. */
static void expect_cut(struct world *w, const void *bytes, size_t len)
{
    int fd = raw(w);
    assert_int_equal(write(fd, bytes, len), (ssize_t)len);
    assert_int_equal(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
    char byte[256];
    ssize_t n;
    WAIT_FOR(&w->t, (n = read(fd, byte, sizeof(byte))) == 0 || (n < 0 && errno != EAGAIN));
    close(fd);
    WAIT_FOR(&w->t, rpc_server_connections(w->server) == 0);
    assert_int_equal(w->opened, 0);
}

static void test_garbage(void **state)
{
    struct world *w = start(false);
    static const char http[] = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    static const uint8_t tls_like[64] = {22, 3, 1, 0, 40, 1, 0, 0, 36, 3, 3};
    uint8_t noise[4096];
    for (size_t i = 0; i < sizeof(noise); i++)
        noise[i] = (uint8_t)(i * 37 + 11);
    expect_cut(w, http, sizeof(http) - 1);
    expect_cut(w, tls_like, sizeof(tls_like));
    expect_cut(w, noise, sizeof(noise));
    stop(w);
}

static void test_handshake_deadline(void **state)
{
    struct world *w = mem_alloc(sizeof(*w));
    net_test_init(&w->t);
    struct rpc_server_options o = server_options(w);
    o.handshake_ms = 30;
    open_server(w, &o);
    expect_cut(w, "", 0); /* connects and says nothing */
    stop(w);
}

/* A client on a slow line has time, unless places for those who are not known yet are short. */
static void test_handshake_patience(void **state)
{
    struct world *w = mem_alloc(sizeof(*w));
    int fds[4]; /* as many as one address may have */
    char byte;
    net_test_init(&w->t);
    struct rpc_server_options o = server_options(w);
    o.handshake_ms = 1000;
    o.max_strangers = 8;
    open_server(w, &o);
    for (unsigned i = 0; i < 4; i++) {
        fds[i] = raw(w);
        WAIT_FOR(&w->t, rpc_server_connections(w->server) > i);
    }
    WAIT_FOR(&w->t, recv(fds[3], &byte, 1, MSG_DONTWAIT) == 0);
    assert_true(recv(fds[0], &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN);
    WAIT_FOR(&w->t, recv(fds[0], &byte, 1, MSG_DONTWAIT) == 0);
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(close(fds[i]), 0);
    stop(w);
}

static void test_max_connections(void **state)
{
    struct world *w = mem_alloc(sizeof(*w));
    net_test_init(&w->t);
    struct rpc_server_options o = server_options(w);
    o.max_connections = 1;
    open_server(w, &o);
    open_client(w);
    WAIT_FOR(&w->t, w->opened == 1);
    struct world second = {.t = w->t, .token = w->token};
    open_client(&second);
    WAIT_FOR(&w->t, second.disconnected >= 1);
    assert_int_equal(w->opened, 1);
    rpc_client_close(second.client);
    stop(w);
}

/* Strangers, however many, keep nobody out: the oldest of them go. */
static void test_strangers(void **state)
{
    enum { FLOOD = 64, PLACES = 8 };
    struct world *w = mem_alloc(sizeof(*w));
    int fds[FLOOD];
    net_test_init(&w->t);
    struct rpc_server_options o = server_options(w);
    o.max_connections = o.max_strangers = PLACES;
    open_server(w, &o);
    open_client(w);
    WAIT_FOR(&w->t, w->opened == 1);
    struct world second = {.t = w->t, .token = w->token};
    for (int i = 0; i < FLOOD; i++) {
        unsigned was = rpc_server_connections(w->server);
        fds[i] = raw(w);
        WAIT_FOR(&w->t, rpc_server_connections(w->server) > was || i >= PLACES / 2);
    }
    open_client(&second);
    WAIT_FOR(&w->t, second.state == RPC_CONNECTED);
    assert_int_equal(second.disconnected, 0);
    assert_int_equal(w->disconnected, 0); /* the one that was known was not asked to go */
    WAIT_FOR(&w->t, rpc_server_connections(w->server) <= 2 + PLACES / 2);
    for (int i = 0; i < FLOOD; i++)
        close(fds[i]);
    rpc_client_close(second.client);
    stop(w);
}

/* Where all places are taken by handshakes under way a newcomer waits for one, and is not cut; so
 * many may wait. */
static void test_door(void **state)
{
    struct world *w = mem_alloc(sizeof(*w));
    char byte = 22;
    net_test_init(&w->t);
    struct rpc_server_options o = server_options(w);
    o.max_strangers = 2; /* of one address: one */
    o.max_waiting = 1;
    open_server(w, &o);
    int first = raw(w);
    assert_int_equal(write(first, &byte, 1), 1);
    WAIT_FOR(&w->t, rpc_server_counters(w->server).bytes_in == 1);
    open_client(w);
    WAIT_FOR(&w->t, rpc_server_connections(w->server) == 2);
    int second = raw(w);
    WAIT_FOR(&w->t, recv(second, &byte, 1, MSG_DONTWAIT) == 0 || errno == ECONNRESET);
    WAIT_FOR(&w->t, w->opened == 1);
    assert_int_equal(w->disconnected, 0);
    close(first);
    close(second);
    stop(w);
}

static void test_unknown_and_forbidden(void **state)
{
    struct world *w = start(true);
    assert_int_equal(call(w, 999, 1, 5000, NULL), 0);
    WAIT_FOR(&w->t, w->errors == 1);
    assert_int_equal(w->last_code, -ERR_UNIMPLEMENTED);
    assert_int_equal(call(w, METHOD_FORBIDDEN, 1, 5000, NULL), 0);
    WAIT_FOR(&w->t, w->errors == 2);
    assert_int_equal(w->last_code, -ERR_AUTH);
    assert_true(w->last_remote);
    assert_int_equal(call(w, METHOD_ECHO, 9, 5000, NULL), 0); /* the connection survived */
    WAIT_FOR(&w->t, w->replies == 1);
    stop(w);
}

static void test_too_large(void **state)
{
    struct world *w = start(true);
    Message m = SKERRY__ENVELOPE__V1__ERROR__INIT;
    char *text = mem_alloc(70001);
    memset(text, 'y', 70000);
    m.detail = text;
    assert_int_equal(rpc_client_call(w->client, METHOD_ECHO, &m.base, MESSAGE, 0, on_done, w, NULL),
                     -ERR_LIMIT);
    /* A client that allows itself more is cut by the server. */
    rpc_client_close(w->client);
    struct rpc_client_options o = {.token = &w->token,
                                   .max_body_bytes = 1 << 20,
                                   .backoff_min_ms = 1,
                                   .on_state = on_state,
                                   .arg = w};
    w->state = RPC_CONNECTING;
    assert_int_equal(rpc_client_open(w->t.loop, &o, &w->client, NULL), 0);
    WAIT_FOR(&w->t, w->state == RPC_CONNECTED);
    assert_int_equal(rpc_client_call(w->client, METHOD_ECHO, &m.base, MESSAGE, 0, on_done, w, NULL),
                     0);
    WAIT_FOR(&w->t, w->errors == 1);
    assert_int_equal(w->last_code, -ECONNRESET);
    mem_free(text);
    stop(w);
}

static void test_deferred(void **state)
{
    struct world *w = start(true);
    assert_int_equal(call(w, METHOD_LATER, 1, 0, NULL), 0);
    assert_int_equal(call(w, METHOD_ECHO, 2, 0, NULL), 0);
    WAIT_FOR(&w->t, w->held_count == 1 && w->replies == 1);
    assert_int_equal(w->last_number, 2); /* the second did not wait for the first */
    rpc_fail(w->held[0], -EBUSY, true, 1234, "not yet: %d", 5);
    w->held_count = 0;
    WAIT_FOR(&w->t, w->errors == 1);
    assert_int_equal(w->last_code, -EBUSY);
    assert_string_equal(w->last_detail, "not yet: 5");
    assert_true(w->last_retryable);
    assert_int_equal(w->last_number, 1234);
    stop(w);
}

/* An answer that is kept leaves when it is told to, or never; also when nobody is there any more.
 */
static void test_kept(void **state)
{
    struct world *w = start(true);
    assert_int_equal(call(w, METHOD_LATER, 1, 0, NULL), 0);
    assert_int_equal(call(w, METHOD_LATER, 2, 0, NULL), 0);
    WAIT_FOR(&w->t, w->held_count == 2);
    for (int i = 0; i < 2; i++) {
        rpc_request_hold(w->held[i]);
        rpc_fail(w->held[i], -EBUSY, true, 0, "the first answer");
    }
    rpc_request_again(w->held[0]);
    rpc_request_hold(w->held[0]);
    rpc_fail(w->held[0], -EBUSY, true, 0, "the second answer");
    assert_int_equal(call(w, METHOD_ECHO, 3, 0, NULL), 0);
    WAIT_FOR(&w->t, w->replies == 1);
    assert_int_equal(w->errors, 0);
    rpc_request_send(w->held[0]);
    WAIT_FOR(&w->t, w->errors == 1);
    assert_string_equal(w->last_detail, "the second answer");
    rpc_client_close(w->client);
    w->client = NULL;
    WAIT_FOR(&w->t, rpc_request_peer(w->held[1]) == NULL);
    rpc_request_send(w->held[1]);
    w->held_count = 0;
    stop(w);
}

/* Many large answers: the server stops reading instead of buffering them all,
 * and every call is still answered. */
static void test_large_replies(void **state)
{
    struct world *w = start(true);
    for (unsigned i = 0; i < 300; i++)
        assert_int_equal(call(w, METHOD_BIG, i, 0, NULL), 0);
    WAIT_FOR(&w->t, w->replies + w->errors == 300);
    stop(w);
}

static void test_kick(void **state)
{
    struct world *w = start(true);
    WAIT_FOR(&w->t, w->peer);
    rpc_peer_kick(w->peer, "go away");
    WAIT_FOR(&w->t, w->closed == 1 && w->connected == 2);
    stop(w);
}

/* A server that did not run for longer than a peer may be silent: the silence was its own. */
static void test_standstill(void **state)
{
    enum { IDLE_MS = 300 };
    struct world *w = start(false);
    struct rpc_server_options o = server_options(w);
    rpc_server_close(w->server);
    o.idle_ms = IDLE_MS;
    open_server(w, &o);
    open_client(w);
    WAIT_FOR(&w->t, w->state == RPC_CONNECTED && w->peer);
    assert_int_equal(call(w, METHOD_ECHO, 1, 5000, NULL), 0);
    for (uint64_t until = clock_now_ms() + 2 * IDLE_MS; clock_now_ms() < until;)
        ; /* as a slow disk holds the loop's thread */
    WAIT_FOR(&w->t, w->replies + w->errors == 1);
    assert_int_equal(w->last_code, 0);
    assert_int_equal(w->disconnected, 0);
    WAIT_FOR(&w->t, w->disconnected == 1); /* and this silence is the peer's */
    stop(w);
}

static void test_port_in_use(void **state)
{
    struct world *w = start(false);
    struct err err = {0};
    struct rpc_server *other = NULL;
    struct rpc_server_options o = server_options(w);
    o.port = rpc_server_port(w->server);
    assert_int_equal(rpc_server_open(w->t.loop, &o, &other, &err), -EADDRINUSE);
    assert_non_null(strstr(err.msg, "in use"));
    stop(w);
}

/* Writes of a few bytes and dropped requests; only where faults are built in. */
static void test_faults(void **state)
{
    bool built_in = net_fault_set(
        (struct net_fault){.write_max = 5, .drop_method = METHOD_ECHO, .drop_every = 2});
    struct world *w = start(true);
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(call(w, METHOD_ECHO, i, built_in ? 300 : 5000, NULL), 0);
    WAIT_FOR(&w->t, w->replies + w->errors == 4);
    assert_int_equal(w->replies, built_in ? 2 : 4);
    (void)net_fault_set((struct net_fault){0});
    stop(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_handshake),
        cmocka_unit_test(test_key),
        cmocka_unit_test(test_wrong_secret),
        cmocka_unit_test(test_wrong_version),
        cmocka_unit_test(test_garbage),
        cmocka_unit_test(test_handshake_deadline),
        cmocka_unit_test(test_handshake_patience),
        cmocka_unit_test(test_max_connections),
        cmocka_unit_test(test_strangers),
        cmocka_unit_test(test_door),
        cmocka_unit_test(test_unknown_and_forbidden),
        cmocka_unit_test(test_too_large),
        cmocka_unit_test(test_deferred),
        cmocka_unit_test(test_kept),
        cmocka_unit_test(test_large_replies),
        cmocka_unit_test(test_kick),
        cmocka_unit_test(test_standstill),
        cmocka_unit_test(test_port_in_use),
        cmocka_unit_test(test_faults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
