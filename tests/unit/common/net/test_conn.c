/* One TLS connection and its other end: the pin, the queue and its bounds, and every way to end. */
#include "tests/unit/common/net/net_test.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "common/net/conn.h"

#define QUEUE 4096
#define UNREAD 1000

/* One end, and what it was told. */
struct end {
    struct conn *conn;
    unsigned opened, closed, drained;
    struct err why;
    size_t got;
    bool reads;
    char last;
};

static struct pair {
    struct net_test t;
    struct conn_tls *server_tls, *client_tls;
    uv_tcp_t listener;
    uint16_t port;
    uint32_t deadline_ms; /* of the server's end */
    struct end server, client;
    bool listener_gone;
} p;

static void on_open(void *arg)
{
    ((struct end *)arg)->opened++;
}

static size_t on_data(void *arg, const uint8_t *data, size_t len)
{
    struct end *e = arg;
    if (!e->reads)
        return 0;
    e->got += len;
    e->last = (char)data[len - 1];
    return len;
}

static void on_drain(void *arg)
{
    ((struct end *)arg)->drained++;
}

static void on_close(void *arg, const struct err *why)
{
    struct end *e = arg;
    e->closed++;
    e->conn = NULL;
    e->why = *why;
}

static const struct conn_events events = {on_open, on_data, on_drain, on_close};

static struct conn_options options(struct end *e, const struct conn_tls *tls, uint32_t deadline_ms)
{
    return (struct conn_options){.tls = tls,
                                 .events = &events,
                                 .arg = e,
                                 .max_queue_bytes = QUEUE,
                                 .max_unread_bytes = UNREAD,
                                 .deadline_ms = deadline_ms};
}

static void on_connection(uv_stream_t *listener, int status)
{
    struct conn_options o = options(&p.server, p.server_tls, p.deadline_ms);
    struct err err = {0};
    assert_int_equal(status, 0);
    assert_int_equal(conn_accept(p.t.loop, listener, &o, &p.server.conn, &err), 0);
}

static int begin(void **state)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct err err = {0};
    int len = sizeof a;
    memset(&p, 0, sizeof p);
    net_test_init(&p.t);
    p.deadline_ms = TEST_DEADLINE_MS;
    p.server.reads = p.client.reads = true;
    if (conn_tls_server(p.t.keys, &p.server_tls, &err) < 0 ||
        conn_tls_client(NULL, &p.client_tls, &err) < 0)
        return -1;
    (void)uv_tcp_init(loop_uv(p.t.loop), &p.listener);
    if (uv_tcp_bind(&p.listener, (struct sockaddr *)&a, 0) < 0 ||
        uv_listen((uv_stream_t *)&p.listener, 8, on_connection) < 0 ||
        uv_tcp_getsockname(&p.listener, (struct sockaddr *)&a, &len) < 0)
        return -1;
    p.port = ntohs(a.sin_port);
    return 0;
}

static void on_listener_closed(uv_handle_t *h)
{
    p.listener_gone = true;
}

static void stop_listening(void)
{
    uv_close((uv_handle_t *)&p.listener, on_listener_closed);
    WAIT_FOR(&p.t, p.listener_gone);
}

static int end(void **state)
{
    conn_discard(p.server.conn);
    conn_discard(p.client.conn);
    if (!p.listener_gone)
        stop_listening();
    net_test_release(&p.t);
    conn_tls_free(p.server_tls);
    conn_tls_free(p.client_tls);
    return 0;
}

static void dial(const uint8_t pin[32])
{
    struct conn_options o = options(&p.client, p.client_tls, TEST_DEADLINE_MS);
    struct err err = {0};
    assert_int_equal(conn_connect(p.t.loop, "127.0.0.1", p.port, 0, pin, &o, &p.client.conn, &err),
                     0);
}

/* Both ends are open. */
static void open_both(void)
{
    dial(keys_pin(p.t.keys));
    WAIT_FOR(&p.t, p.client.opened && p.server.opened);
}

static int send_bytes(struct conn *c, size_t len, char fill, bool force)
{
    uint8_t *at;
    int rc = conn_reserve(c, len, force, &at);
    if (rc == 0)
        memset(at, fill, len);
    return rc;
}

static void bytes_arrive_and_are_counted(void **state)
{
    uint8_t a[CONN_EXPORT_BYTES], b[CONN_EXPORT_BYTES];
    struct err err = {0};
    open_both();
    assert_int_equal(send_bytes(p.client.conn, 300, 'x', false), 0);
    assert_int_equal(send_bytes(p.client.conn, 1, 'y', false), 0);
    WAIT_FOR(&p.t, p.server.got == 301);
    assert_int_equal(p.server.last, 'y');
    assert_true(conn_bytes_out(p.client.conn) > 301);
    assert_int_equal(conn_bytes_in(p.server.conn), conn_bytes_out(p.client.conn));
    assert_int_equal(conn_export(p.client.conn, a, &err), 0);
    assert_int_equal(conn_export(p.server.conn, b, &err), 0);
    assert_memory_equal(a, b, sizeof a);
    char expected[64];
    (void)snprintf(expected, sizeof expected, "127.0.0.1:%u", p.port);
    assert_string_equal(conn_address(p.client.conn), expected);
}

static void another_key_than_the_pinned_one_is_refused(void **state)
{
    uint8_t pin[32];
    memcpy(pin, keys_pin(p.t.keys), sizeof pin);
    pin[31] ^= 1;
    dial(pin);
    WAIT_FOR(&p.t, p.client.closed);
    assert_int_equal(p.client.why.code, -ERR_AUTH);
    assert_non_null(strstr(p.client.why.msg, "is not the one this token was made for"));
    assert_int_equal(p.client.opened, 0);
}

static void a_full_queue_says_so_and_drains(void **state)
{
    open_both();
    assert_int_equal(send_bytes(p.client.conn, QUEUE, 'a', false), 0);
    assert_false(conn_is_full(p.client.conn));
    assert_int_equal(send_bytes(p.client.conn, 1, 'b', false), -EAGAIN);
    assert_int_equal(send_bytes(p.client.conn, 1, 'c', true), 0);
    assert_true(conn_is_full(p.client.conn));
    assert_int_equal(p.client.drained, 0);
    WAIT_FOR(&p.t, p.client.drained && p.server.got == QUEUE + 1);
    assert_int_equal(p.client.drained, 1);
    assert_int_equal(p.server.last, 'c');
    assert_int_equal(send_bytes(p.client.conn, 1, 'd', false), 0);
}

static void a_queue_of_eight_times_its_bound_is_cut(void **state)
{
    open_both();
    for (int i = 0; i < 8; i++)
        assert_int_equal(send_bytes(p.client.conn, QUEUE, 'a', true), 0);
    assert_true(send_bytes(p.client.conn, 1, 'a', true) < 0);
    assert_int_equal(p.client.closed, 0); /* never from within a call */
    WAIT_FOR(&p.t, p.client.closed);
    assert_non_null(strstr(p.client.why.msg, "the other side does not read what it is sent"));
}

static void what_is_left_unread_is_bounded(void **state)
{
    open_both();
    p.server.reads = false;
    assert_int_equal(send_bytes(p.client.conn, UNREAD, 'a', false), 0);
    WAIT_FOR(&p.t, conn_bytes_in(p.server.conn) == conn_bytes_out(p.client.conn) &&
                       !conn_is_full(p.client.conn) && conn_bytes_out(p.client.conn) > UNREAD);
    assert_int_equal(p.server.closed, 0);
    assert_int_equal(send_bytes(p.client.conn, 1, 'a', false), 0);
    WAIT_FOR(&p.t, p.server.closed);
    assert_int_equal(p.server.why.code, -ERR_LIMIT);
    assert_string_equal(p.server.why.msg, "the other side sent more than may be buffered");
}

static void finishing_sends_what_is_queued(void **state)
{
    struct err why = {0};
    (void)err_set(&why, -ERR_STALE, "enough");
    open_both();
    assert_int_equal(send_bytes(p.client.conn, QUEUE, 'z', false), 0);
    conn_finish(p.client.conn, &why);
    assert_int_equal(send_bytes(p.client.conn, 1, 'a', true), -ENOTCONN);
    WAIT_FOR(&p.t, p.client.closed && p.server.closed);
    assert_int_equal(p.server.got, QUEUE);
    assert_int_equal(p.client.why.code, -ERR_STALE);
    assert_string_equal(p.client.why.msg, "enough");
    assert_int_equal(p.server.why.code, -ECONNRESET);
    assert_int_equal(p.client.closed, 1);
}

static void a_discarded_connection_calls_nobody(void **state)
{
    open_both();
    conn_discard(p.client.conn);
    p.client.conn = NULL;
    conn_discard(NULL);
    WAIT_FOR(&p.t, p.server.closed);
    assert_int_equal(p.client.closed, 0);
    assert_non_null(strstr(p.server.why.msg, "the connection was lost"));
}

static void nobody_listens(void **state)
{
    char expected[64];
    stop_listening();
    dial(keys_pin(p.t.keys));
    WAIT_FOR(&p.t, p.client.closed);
    assert_int_equal(p.client.why.code, -ECONNREFUSED);
    (void)snprintf(expected, sizeof expected, "cannot connect to 127.0.0.1 port %u", p.port);
    assert_non_null(strstr(p.client.why.msg, expected));
}

/* A plain socket to the listener, accepted. */
static int plain_socket(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                            .sin_port = htons(p.port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    WAIT_FOR(&p.t, p.server.conn);
    return fd;
}

static void what_is_no_tls_is_refused(void **state)
{
    int fd = plain_socket();
    assert_int_equal(send(fd, "GET / HTTP/1.1\r\n\r\n", 18, 0), 18);
    WAIT_FOR(&p.t, p.server.closed);
    close(fd);
    assert_int_equal(p.server.why.code, -ERR_FORMAT);
    assert_string_equal(p.server.why.msg,
                        "the TLS handshake failed: the other side speaks no TLS, so it is "
                        "another program");
    assert_int_equal(p.server.opened, 0);
}

/* A server that refuses us, such as one that speaks no TLS 1.3. */
static void an_alert_is_told(void **state)
{
    static const char alert[] = "\x15\x03\x03\x00\x02\x02\x46"; /* fatal, protocol_version */
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof a;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&a, &size), 0);
    assert_int_equal(listen(listener, 1), 0);
    p.port = ntohs(a.sin_port);
    dial(keys_pin(p.t.keys));
    int fd = accept(listener, NULL, NULL); /* the kernel connects without the loop */
    assert_true(fd >= 0);
    assert_int_equal(send(fd, alert, sizeof alert - 1, 0), sizeof alert - 1);
    WAIT_FOR(&p.t, p.client.closed);
    close(fd);
    close(listener);
    assert_int_equal(p.client.why.code, -ERR_FORMAT);
    assert_string_equal(p.client.why.msg,
                        "the TLS handshake failed: the other side refuses it (alert: Error in "
                        "protocol version), so it is another program, or one that speaks no TLS "
                        "1.3");
}

static void a_hang_up_in_the_handshake_is_told(void **state)
{
    close(plain_socket());
    WAIT_FOR(&p.t, p.server.closed);
    assert_int_equal(p.server.why.code, -ECONNRESET);
    assert_string_equal(p.server.why.msg, "the other side hung up during the TLS handshake");
}

static void a_silent_one_is_given_up(void **state)
{
    p.deadline_ms = 1;
    int fd = plain_socket();
    WAIT_FOR(&p.t, p.server.closed);
    close(fd);
    assert_int_equal(p.server.why.code, -ETIMEDOUT);
    assert_string_equal(p.server.why.msg, "the TLS handshake took too long");
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(bytes_arrive_and_are_counted),        TEST(another_key_than_the_pinned_one_is_refused),
        TEST(a_full_queue_says_so_and_drains),     TEST(a_queue_of_eight_times_its_bound_is_cut),
        TEST(what_is_left_unread_is_bounded),      TEST(finishing_sends_what_is_queued),
        TEST(a_discarded_connection_calls_nobody), TEST(nobody_listens),
        TEST(what_is_no_tls_is_refused),           TEST(an_alert_is_told),
        TEST(a_hang_up_in_the_handshake_is_told),  TEST(a_silent_one_is_given_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
