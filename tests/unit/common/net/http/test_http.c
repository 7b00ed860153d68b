/* The HTTP server: routes, roles, bodies, deferred answers, streams, slow clients. */
#include "tests/unit/common/net/http/http_test.h"

#include <errno.h>

#define SERVER_CONNECTIONS 256 /* the server's default */
#define OF_HOLDER (SERVER_CONNECTIONS / 2)

static void test_routes(void **state)
{
    struct world *w = start(true);
    ask(w, "GET", "/healthz", NULL, NULL, NULL);
    expect(w, 200, "ok");
    ask(w, "GET", "/v1/jobs/17?limit=5", w->bearer, NULL, NULL);
    expect(w, 200, "{\"id\":17,\"limit\":5}");
    ask(w, "GET", "/v1/jobs/x", w->bearer, NULL, NULL);
    expect(w, 400, "id must be a whole number");
    ask(w, "GET", "/v1/jobs/1?limit=1000", w->bearer, NULL, NULL);
    expect(w, 400, "limit must be");
    ask(w, "GET", "/nowhere", w->bearer, NULL, NULL);
    expect(w, 404, "\"code\":\"not_found\"");
    ask(w, "DELETE", "/v1/jobs/1", w->bearer, NULL, NULL);
    expect(w, 405, "method_not_allowed");
    ask(w, "HEAD", "/healthz", NULL, NULL, NULL);
    expect(w, 200, "");
    assert_string_equal(w->body, "");
    stop(w);
}

static void test_auth(void **state)
{
    struct world *w = start(true);
    char token[TOKEN_STRING_MAX];
    w->user.rpc_port = 1;
    assert_int_equal(token_format(&w->user, token, NULL), 0);
    ask(w, "GET", "/v1/jobs/1", NULL, NULL, NULL);
    expect(w, 401, "\"code\":\"unauthorized\"");
    ask(w, "GET", "/v1/jobs/1", "wrong", NULL, NULL);
    expect(w, 401, "unauthorized");
    ask(w, "GET", "/v1/admin", w->bearer, NULL, NULL);
    expect(w, 403, "forbidden");
    ask(w, "GET", "/v1/jobs/1", token, NULL, NULL);
    expect(w, 200, "\"id\":1");
    char *path = str_printf("/v1/jobs/2?token=%s", w->bearer);
    ask(w, "GET", path, NULL, NULL, NULL);
    expect(w, 200, "\"id\":2");
    mem_free(path);
    ask(w, "GET", "/v1/jobs/3", NULL, NULL, "Cookie: skerry=inside");
    expect(w, 200, "\"id\":3");
    char *cookie = str_printf("Cookie: skerry=%s", w->bearer);
    ask(w, "GET", "/v1/jobs/3", NULL, NULL, cookie);
    expect(w, 401, "unauthorized"); /* the secret is no session */
    mem_free(cookie);
    stop(w);
}

/* Sends a POST by hand; returns the status line. */
static int post(struct world *w, const char *headers)
{
    char request[600], got[4096] = "";
    int fd = tcp(w), status = 0;
    (void)snprintf(request, sizeof(request),
                   "POST /v1/jobs HTTP/1.1\r\nHost: localhost:7711\r\nConnection: close\r\n"
                   "Content-Length: 2\r\n%s\r\n{}",
                   headers);
    send_text(fd, request);
    expect_text(w, fd, got, sizeof(got), "\r\n\r\n");
    assert_int_equal(sscanf(got, "HTTP/1.1 %d", &status), 1);
    close(fd);
    return status;
}

/* A cookie changes something only for our own pages, not for those of another port of our host. */
static void test_origin(void **state)
{
#define INSIDE "Cookie: skerry=inside\r\n"
    struct world *w = start(false);
    char bearer[300];
    assert_int_equal(post(w, INSIDE), 403);
    assert_int_equal(post(w, INSIDE "Origin: http://localhost:8080\r\n"), 403);
    assert_int_equal(post(w, INSIDE "Origin: https://localhost:7711\r\n"), 403);
    assert_int_equal(post(w, INSIDE "Origin: null\r\n"), 403);
    assert_int_equal(post(w, INSIDE "Origin: http://localhost:7711\r\n"), 201);
    assert_int_equal(post(w, INSIDE "Sec-Fetch-Site: same-site\r\n"), 403);
    assert_int_equal(post(w, INSIDE "Sec-Fetch-Site: cross-site\r\n"
                                    "Origin: http://localhost:7711\r\n"),
                     403);
    assert_int_equal(post(w, INSIDE "Sec-Fetch-Site: same-origin\r\nOrigin: null\r\n"), 201);
    (void)snprintf(bearer, sizeof(bearer), "Authorization: Bearer %s\r\nOrigin: http://x\r\n",
                   w->bearer);
    assert_int_equal(post(w, bearer), 201); /* who knows the secret may come from anywhere */
    stop(w);
}

static void test_bodies(void **state)
{
    struct world *w = start(true);
    ask(w, "POST", "/v1/jobs", w->bearer, "{\"a\":1}", NULL);
    expect(w, 201, "{\"a\":1}");
    ask(w, "POST", "/v1/jobs", w->bearer, "{\"a\":", NULL);
    expect(w, 400, "invalid_json");
    ask(w, "POST", "/v1/jobs", w->bearer, "[1]", NULL);
    expect(w, 400, "must be a JSON object");
    char *big = mem_alloc(3001);
    memset(big, ' ', 3000);
    ask(w, "POST", "/v1/jobs", w->bearer, big, NULL);
    expect(w, 413, "too_large");
    ask(w, "POST", "/v1/jobs", w->bearer, big, "Transfer-Encoding: chunked");
    expect(w, 413, "too_large");
    ask(w, "POST", "/v1/jobs/1", w->bearer, "{}", NULL);
    expect(w, 405, "method_not_allowed");
    mem_free(big);
    stop(w);
}

static void test_deferred(void **state)
{
    struct world *w = start(true);
    char *url = str_printf("%s/v1/hold", w->url);
    struct small_call c = {.method = "GET",
                           .url = url,
                           .pin = w->user.pin,
                           .bearer = w->bearer,
                           .done = on_answer,
                           .arg = w};
    small_call(&w->callers, &c);
    WAIT_FOR(&w->t, w->held);
    ask(w, "GET", "/healthz", NULL, NULL, NULL); /* others are served meanwhile */
    http_reply_text(w->held, 200, "text/plain", "at last");
    WAIT_FOR(&w->t, w->done == 2);
    expect(w, 200, "at last");
    /* One that is never answered before the server closes. */
    w->held = NULL;
    small_call(&w->callers, &c);
    WAIT_FOR(&w->t, w->held);
    struct http_request *late = w->held;
    http_server_close(w->server);
    w->server = NULL;
    http_reply_text(late, 200, "text/plain", "too late");
    mem_free(url);
    stop(w);
}

static void test_wrong_pin(void **state)
{
    struct world *w = start(true);
    w->user.pin[0] ^= 1;
    ask(w, "GET", "/healthz", NULL, NULL, NULL);
    assert_int_equal(w->code, -ERR_AUTH);
    assert_non_null(strstr(w->detail, "not the one this token was made for"));
    stop(w);
}

static void test_events(void **state)
{
    struct world *w = start(false);
    char got[4096] = "", request[300];
    int fd = tcp(w);
    snprintf(request, sizeof(request), "GET /v1/events?token=%s HTTP/1.1\r\nHost: x\r\n\r\n",
             w->bearer);
    send_text(fd, request);
    expect_text(w, fd, got, sizeof(got), "event: hello\ndata: one\ndata: two\n\n");
    assert_null(strstr(got, "Set-Cookie"));
    assert_non_null(strstr(got, "text/event-stream"));
    assert_int_equal(http_stream_event(w->stream, NULL, "later"), 0);
    expect_text(w, fd, got, sizeof(got), "data: later\n\n");
    http_stream_close(w->stream);
    WAIT_FOR(&w->t, w->stream_closed == 1);
    close(fd);
    stop(w);
}

/* Whoever is shut out loses what is under way, and nobody else does. */
static void test_cut(void **state)
{
    struct world *w = start_within(false, 1000);
    char got[4096] = "", request[300], byte;
    int fd = tcp(w);
    snprintf(request, sizeof(request), "GET /v1/events?token=%s HTTP/1.1\r\nHost: x\r\n\r\n",
             w->bearer);
    send_text(fd, request);
    expect_text(w, fd, got, sizeof(got), "event: hello\n");
    http_server_cut(w->server, USER_HOLDER + 1);
    assert_int_equal(http_stream_event(w->stream, NULL, "still here"), 0);
    expect_text(w, fd, got, sizeof(got), "data: still here\n\n");
    assert_int_equal(w->stream_closed, 0);
    assert_int_equal(http_server_moved(w->server, USER_HOLDER + 1), 0);
    WAIT_FOR(&w->t, http_server_moved(w->server, USER_HOLDER) >= strlen(request) + strlen(got));
    assert_int_equal(w->gone_bytes, 0);
    http_server_cut(w->server, USER_HOLDER);
    WAIT_FOR(&w->t, w->stream_closed == 1);
    WAIT_FOR(&w->t, http_server_moved(w->server, USER_HOLDER) == 0);
    assert_in_range(w->gone_bytes, strlen(request) + strlen(got), 4096);
    WAIT_FOR(&w->t, recv(fd, &byte, 1, MSG_DONTWAIT) <= 0 && errno != EAGAIN);
    close(fd);
    stop(w);
}

/* A client that does not read is cut when its queue is full, and nobody else
 * suffers. */
static void test_slow_stream(void **state)
{
    struct world *w = start(false);
    char request[300], *big = mem_alloc(10001);
    memset(big, 'z', 10000);
    int fd = tcp(w);
    snprintf(request, sizeof(request),
             "GET /v1/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n\r\n", w->bearer);
    send_text(fd, request);
    WAIT_FOR(&w->t, w->stream);
    unsigned written = 0;
    int rc;
    while ((rc = http_stream_event(w->stream, "big", big)) == 0) {
        assert_true(++written < 10000);
        loop_turn(w->t.loop, false);
    }
    assert_int_equal(rc, -ERR_LIMIT);
    WAIT_FOR(&w->t, w->stream_closed == 1);
    assert_int_equal(http_server_counters(w->server).streams_cut, 1);
    ask(w, "GET", "/healthz", NULL, NULL, NULL);
    expect(w, 200, "ok");
    mem_free(big);
    close(fd);
    stop(w);
}

/* Slow loris: a header that never ends is cut, though bytes keep coming. */
static void test_slow_header(void **state)
{
    struct world *w = start_within(false, 1000);
    int fd = tcp(w);
    char byte;
    send_text(fd, "GET /healthz HTTP/1.1\r\nX-Slow: ");
    uint64_t until = clock_now_ms() + TEST_DEADLINE_MS;
    while (read(fd, &byte, 1) < 0 && errno == EAGAIN) {
        loop_turn(w->t.loop, true);
        (void)!write(fd, "a", 1); /* fails once we are cut */
        assert_true(clock_now_ms() < until);
    }
    close(fd);
    stop(w);
}

/* A connection whose request has shown the user's token; `rest`: of that request. */
static int known_by(struct world *w, const char *line, const char *rest)
{
    int fd = tcp(w);
    char *text = str_printf("%s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n%s\r\n", line,
                            w->bearer, rest);
    uint64_t before = http_server_counters(w->server).requests;
    send_text(fd, text);
    mem_free(text);
    WAIT_FOR(&w->t, http_server_counters(w->server).requests > before);
    return fd;
}

static int known(struct world *w)
{
    return known_by(w, "GET /v1/jobs/1", "");
}

/* All places taken, then free again: libmicrohttpd had stopped to listen. */
static void test_full(void **state)
{
    struct world *w = start(false);
    int fds[SERVER_CONNECTIONS];
    for (unsigned i = 0; i < SERVER_CONNECTIONS; i++) {
        w->others = i / OF_HOLDER;
        fds[i] = known_by(w, "POST /v1/jobs", "Content-Length: 10\r\n"); /* it is awaited */
    }
    assert_int_equal(http_server_counters(w->server).connections, SERVER_CONNECTIONS);
    int late = tcp(w); /* in the kernel's queue */
    for (int i = 0; i < SERVER_CONNECTIONS; i++)
        assert_int_equal(close(fds[i]), 0);
    WAIT_FOR(&w->t, http_server_counters(w->server).connections <= 1);
    assert_int_equal(close(late), 0);
    ask(w, "GET", "/healthz", NULL, NULL, NULL);
    expect(w, 200, "ok");
    stop(w);
}

/* Asks once more on a connection; got: what comes. */
static void again(struct world *w, int fd, const char *path, char got[4096], const char *words)
{
    char *text = str_printf("GET %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n\r\n", path,
                            w->bearer);
    got[0] = '\0';
    send_text(fd, text);
    expect_text(w, fd, got, 4096, words);
    mem_free(text);
}

/* Connections that nobody uses make room, first those that have been unused for longest. */
static void test_unused(void **state)
{
    enum { KEPT = SERVER_CONNECTIONS / 8 * 7 };
    struct world *w = start(false);
    int fds[SERVER_CONNECTIONS];
    char got[4096];
    ask(w, "GET", "/healthz", NULL, NULL, NULL); /* this client's own is the oldest */
    fds[0] = known_by(w, "POST /v1/jobs", "Content-Length: 10\r\n"); /* one in use */
    for (unsigned i = 1; i < SERVER_CONNECTIONS; i++) {
        w->others = 1 + i / OF_HOLDER;
        fds[i] = known(w);
    }
    WAIT_FOR(&w->t, http_server_counters(w->server).connections <= KEPT);
    w->others = 7;
    ask(w, "POST", "/v1/jobs", w->bearer, "{\"a\":1}", NULL);
    expect(w, 201, "\"a\":1"); /* it has dialled again */
    for (unsigned i = 1; i < SERVER_CONNECTIONS - KEPT; i++)
        WAIT_FOR(&w->t, recv(fds[i], got, sizeof(got), 0) == 0);
    again(w, fds[SERVER_CONNECTIONS - 1], "/v1/jobs/7", got, "\"id\":7");
    assert_true(recv(fds[0], got, sizeof(got), 0) < 0);
    for (unsigned i = 0; i < SERVER_CONNECTIONS; i++)
        assert_int_equal(close(fds[i]), 0);
    stop(w);
}

/* One holder takes a part of the places, whether by a token or by tickets. */
static void test_one_holder(void **state)
{
    static const char full[] = "128 connections are open with this token";
    struct world *w = start(false);
    int fds[OF_HOLDER];
    char got[4096] = "", path[TICKET_PATH_MAX + 64];
    const struct blob_id id = {{0}};
    w->others = TICKET_HOLDER - USER_HOLDER;
    for (unsigned i = 0; i < OF_HOLDER; i++)
        fds[i] = known(w);
    int fd = known(w);
    expect_text(w, fd, got, sizeof(got), full);
    assert_non_null(strstr(got, " 503 "));
    assert_int_equal(close(fd), 0);
    fd = tcp(w);
    blob_http_ticket(w->blobs, TICKET_GET, &id, 0, TICKET_HOLDER, path);
    char *text = str_printf("GET %s HTTP/1.1\r\nHost: x\r\n\r\n", path);
    got[0] = '\0';
    send_text(fd, text);
    expect_text(w, fd, got, sizeof(got), full);
    WAIT_FOR(&w->t, http_server_counters(w->server).strangers == 1);
    again(w, fds[0], "/v1/jobs/7", got, "\"id\":7"); /* those that it has go on */
    w->others = 0;
    again(w, fd, "/v1/jobs/8", got, "\"id\":8"); /* another holder's */
    assert_int_equal(http_server_counters(w->server).strangers, 0);
    again(w, fds[0], "/v1/jobs/9", got, "\"id\":9"); /* that leaves a place */
    got[0] = '\0';
    send_text(fd, text);
    expect_text(w, fd, got, sizeof(got), " 404 ");
    for (unsigned i = 0; i < OF_HOLDER; i++)
        assert_int_equal(close(fds[i]), 0);
    assert_int_equal(close(fd), 0);
    mem_free(text);
    stop(w);
}

/* Strangers take no place of those who are known, and the newest is served. */
static void test_strangers(void **state)
{
    enum { SHARE = SERVER_CONNECTIONS / 4 };
    struct world *w = start(false);
    int friend = known(w), fds[SERVER_CONNECTIONS];
    char byte;
    for (unsigned i = 0; i < SERVER_CONNECTIONS; i++) {
        fds[i] = tcp(w);
        if (i < SHARE)
            WAIT_FOR(&w->t, http_server_counters(w->server).strangers > i);
        else
            WAIT_FOR(&w->t, read(fds[i - SHARE], &byte, 1) == 0); /* the oldest is cut */
    }
    assert_int_equal(http_server_counters(w->server).strangers, SHARE);
    ask(w, "GET", "/healthz", NULL, NULL, NULL);
    expect(w, 200, "ok");
    uint64_t before = http_server_counters(w->server).requests;
    send_text(friend, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n");
    WAIT_FOR(&w->t, http_server_counters(w->server).requests > before);
    for (unsigned i = 0; i < SERVER_CONNECTIONS; i++)
        assert_int_equal(close(fds[i]), 0);
    assert_int_equal(close(friend), 0);
    stop(w);
}

static void test_plain_needs_loopback(void **state)
{
    struct net_test t;
    struct http_server *s = NULL;
    struct err err = {0};
    net_test_init(&t);
    struct http_server_options o = {.host = "0.0.0.0"};
    assert_int_equal(http_server_open(t.loop, &o, &s, &err), -ERR_CONFIG);
    assert_non_null(strstr(err.msg, "loopback"));
    net_test_release(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_routes),
        cmocka_unit_test(test_auth),
        cmocka_unit_test(test_origin),
        cmocka_unit_test(test_bodies),
        cmocka_unit_test(test_deferred),
        cmocka_unit_test(test_wrong_pin),
        cmocka_unit_test(test_events),
        cmocka_unit_test(test_slow_stream),
        cmocka_unit_test(test_cut),
        cmocka_unit_test(test_slow_header),
        cmocka_unit_test(test_full),
        cmocka_unit_test(test_one_holder),
        cmocka_unit_test(test_unused),
        cmocka_unit_test(test_strangers),
        cmocka_unit_test(test_plain_needs_loopback),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
