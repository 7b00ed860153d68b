/* The blocking HTTP client against a server on another thread. */
#include "common/net/http/http_client.h"
#include "common/net/http/http_impl.h"
#include "tests/unit/common/net/http/http_test.h"
#include "tests/unit/deaf.h"

#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define ANSWER_MAX ((size_t)64 << 20) /* of http_call() */

/* ---- routes: handlers run on the server's thread, so they assert nothing ---- */

static void on_client_gone(void *arg, struct http_stream *s)
{
    struct world *w = arg;
    if (w->stream == s) /* not of an earlier request */
        w->stream = NULL;
}

static struct http_stream *open_stream(struct world *w, struct http_request *r, const char *type)
{
    struct http_stream *s;
    if (http_stream_open(r, type, on_client_gone, w, &s) < 0)
        return NULL;
    w->stream = s;
    return s;
}

/* Which request of its connection this is. */
static void on_nth(void *arg, struct http_request *r)
{
    http_reply_json(r, 200, json_pack("{s:i}", "nth", (int)r->conn->requests));
}

static bool other_is_due; /* its question comes yet; the server's thread */

static void other_half(void *arg)
{
    struct world *w = arg;
    struct http_stream *s = w->stream;
    other_is_due = s == NULL;
    if (!s)
        return;
    w->stream = NULL; /* the next answer has one of its own */
    (void)http_stream_write(s, "half", 4);
    http_stream_close(s);
}

/* Begins, and leaves the rest to whoever has w->stream. */
static void on_half(void *arg, struct http_request *r)
{
    struct http_stream *s = open_stream(arg, r, "text/plain");
    if (s)
        (void)http_stream_write(s, "half, ", 6);
    if (other_is_due)
        other_half(arg);
}

/* Says nothing until whoever has w->stream does. */
static void on_late(void *arg, struct http_request *r)
{
    if (open_stream(arg, r, "text/plain") && other_is_due)
        other_half(arg);
}

static void on_huge(void *arg, struct http_request *r)
{
    static char huge[ANSWER_MAX + 1];
    http_reply_static(r, 200, "application/octet-stream", huge, sizeof(huge));
}

static void on_largest(void *arg, struct http_request *r)
{
    static char largest[ANSWER_MAX];
    http_reply_static(r, 200, "application/octet-stream", largest, sizeof(largest));
}

static const struct http_route client_routes[] = {
    {"GET", "/t/half", TOKEN_ROLE_OPERATOR, 0, on_half, NULL, NULL},
    {"GET", "/t/late", TOKEN_ROLE_OPERATOR, 0, on_late, NULL, NULL},
    {"POST", "/t/late", TOKEN_ROLE_OPERATOR, 0, on_late, NULL, NULL},
    {"GET", "/t/nth", TOKEN_ROLE_OPERATOR, 0, on_nth, NULL, NULL},
    {"GET", "/t/huge", 0, 0, on_huge, NULL, NULL},
    {"GET", "/t/largest", 0, 0, on_largest, NULL, NULL},
};

/* ---- set-up ---- */

static struct http_client *client_of(struct world *w, const char *bearer)
{
    struct http_client *c;
    struct err err = {0};
    if (http_client_new(w->url, w->user.http_plain ? NULL : w->user.pin, bearer, &c, &err) < 0)
        fail_msg("%s", err.msg);
    return c;
}

static struct world *start_apart(bool tls, struct http_client **ret)
{
    struct world *w = start(tls);
    http_server_routes(w->server, client_routes, sizeof(client_routes) / sizeof(client_routes[0]));
    *ret = client_of(w, w->bearer);
    serve(w);
    return w;
}

static void stop_apart(struct world *w, struct http_client *c)
{
    http_client_free(c);
    unserve(w);
    stop(w);
}

static void expect_call(struct http_client *c, const char *method, const char *path,
                        const char *body, long status, const char *words)
{
    struct http_response r = {0};
    struct err err = {0};
    if (http_call(c, method, path, body, body ? strlen(body) : 0, &r, &err) < 0)
        fail_msg("%s %s: %s", method, path, err.msg);
    assert_int_equal(r.len, strlen(r.body));
    if (r.status != status || !strstr(r.body, words))
        fail_msg("%s %s: HTTP %ld: %s; wanted HTTP %ld with \"%s\"", method, path, r.status, r.body,
                 status, words);
    http_response_release(&r);
    assert_null(r.body);
}

static void expect_failure(int rc, const struct err *err, int code, const char *words)
{
    if (rc != code || err->code != code || !strstr(err->msg, words))
        fail_msg("%d (%s); wanted %d with \"%s\"", rc, err->msg, code, words);
}

/* ---- calls ---- */

static void test_call(void **state)
{
    struct http_client *c;
    struct world *w = start_apart(true, &c);
    expect_call(c, "DELETE", "/v1/jobs/1", NULL, 405, "method_not_allowed");
    expect_call(c, "GET", "/nowhere", NULL, 404, "not_found");
    struct http_client *nobody = client_of(w, NULL);
    expect_call(nobody, "GET", "/v1/jobs/17", NULL, 401, "unauthorized");
    http_client_free(nobody);
    expect_call(c, "GET", "/t/nth", NULL, 200, "{\"nth\":1}"); /* a refusal closes */
    expect_call(c, "GET", "/v1/jobs/17?limit=5", NULL, 200, "{\"id\":17,\"limit\":5}");
    expect_call(c, "POST", "/v1/jobs", "{\"a\":1}", 201, "{\"a\":1}");
    expect_call(c, "POST", "/v1/jobs", NULL, 400, "invalid_json"); /* sent, with no body */
    expect_call(c, "GET", "/v1/jobs/18", NULL, 200, "{\"id\":18"); /* the POST is forgotten */
    expect_call(c, "GET", "/t/nth", NULL, 200, "{\"nth\":6}");     /* all on one connection */
    http_client_free(c);
    unserve(w);
    assert_int_equal(http_server_counters(w->server).requests, 9);
    http_client_free(NULL);
    stop(w);
}

static unsigned slow[2]; /* GETs, commands */

static void on_slow(void *arg, bool command)
{
    struct world *w = arg;
    slow[command]++;
    (void)loop_post(w->t.loop, other_half, w);
}

/* The answer is sent when its slowness is told of: without that this hangs. */
static void test_slow_answer(void **state)
{
    struct http_client *c;
    struct world *w = start_apart(false, &c);
    http_client_on_slow(c, 1, on_slow, w);
    expect_call(c, "POST", "/t/late", NULL, 200, "half");
    expect_call(c, "POST", "/t/late", NULL, 200, "half"); /* each is told of */
    expect_call(c, "GET", "/t/late", NULL, 200, "half");
    assert_true(slow[0] == 1 && slow[1] == 2);
    stop_apart(w, c);
}

static volatile sig_atomic_t interrupted;

static void interrupt(void *arg, bool command)
{
    interrupted = SIGINT;
}

static void interrupt_and_answer(void *arg, bool command)
{
    interrupted = SIGINT;
    on_slow(arg, command);
}

/* What waits for a connection ends, also a command: nothing of it was sent. */
static void test_interrupted_connecting(void **state)
{
    struct deaf deaf;
    char url[64];
    struct http_client *c;
    struct http_response r = {0};
    struct err err = {0};
    deaf_listen(&deaf);
    (void)snprintf(url, sizeof url, "http://127.0.0.1:%u", deaf.port);
    assert_int_equal(http_client_new(url, NULL, NULL, &c, &err), 0);
    http_client_heed(c, &interrupted);
    http_client_on_slow(c, 1, interrupt, NULL);
    static const char *const methods[] = {"GET", "POST"};
    for (size_t i = 0; i < 2; i++) {
        interrupted = 0;
        int rc = http_call(c, methods[i], "/", NULL, 0, &r, &err);
        expect_failure(rc, &err, -ERR_CANCELLED, "interrupted");
    }
    interrupted = 0;
    int rc = http_client_connect(c, &err);
    expect_failure(rc, &err, -ERR_CANCELLED, "interrupted");
    interrupted = 0;
    http_client_free(c);
    deaf_close(&deaf);
}

/* Of a command that is on its way the answer is known, and of one that is begun after the signal.
 */
static void test_interrupted_command(void **state)
{
    struct http_client *c;
    struct world *w = start_apart(false, &c);
    http_client_heed(c, &interrupted);
    http_client_on_slow(c, 300, interrupt_and_answer, w); /* by then it is sent */
    expect_call(c, "POST", "/t/late", NULL, 200, "half");
    assert_int_equal(interrupted, SIGINT);
    expect_call(c, "POST", "/v1/jobs", "{\"a\":1}", 201, "{\"a\":1}");
    interrupted = 0;
    stop_apart(w, c);
}

static void test_answer_limit(void **state)
{
    struct http_client *c;
    struct world *w = start_apart(false, &c);
    struct http_response r = {0};
    struct err err = {0};
    assert_int_equal(http_call(c, "GET", "/t/largest", NULL, 0, &r, &err), 0);
    assert_int_equal(r.len, ANSWER_MAX);
    http_response_release(&r);
    assert_true(http_call(c, "GET", "/t/huge", NULL, 0, &r, &err) < 0);
    assert_null(r.body);
    assert_true(err.msg[0]);
    expect_call(c, "GET", "/healthz", NULL, 200, "ok"); /* it can be used again */
    stop_apart(w, c);
}

static void test_trust(void **state)
{
    struct http_client *c;
    struct world *w = start_apart(true, &c);
    struct http_response r = {0};
    struct err err = {0};
    uint8_t pin[KEYS_PIN_BYTES];
    memcpy(pin, w->user.pin, sizeof(pin));
    pin[31] ^= 1;
    http_client_free(c);
    assert_int_equal(http_client_new(w->url, pin, w->bearer, &c, &err), 0);
    int rc = http_call(c, "GET", "/healthz", NULL, 0, &r, &err);
    expect_failure(rc, &err, -ERR_AUTH, "not the one this token was made for");
    http_client_free(c);
    /* Without a pin the authorities decide, and none knows this key. */
    assert_int_equal(http_client_new(w->url, NULL, w->bearer, &c, &err), 0);
    rc = http_call(c, "GET", "/healthz", NULL, 0, &r, &err);
    expect_failure(rc, &err, -ERR_AUTH, "add one of your own with update-ca-certificates");
    assert_true(http_call(c, "GET", "/healthz", NULL, 0, &r, NULL) < 0);
    http_client_free(c);
    unserve(w);
    assert_int_equal(http_server_counters(w->server).requests, 0);
    stop(w);
}

static void test_nobody_there(void **state)
{
    struct world *w = start(false);
    struct http_client *c = client_of(w, w->bearer);
    struct http_response r = {0};
    struct err err = {0};
    http_server_close(w->server);
    w->server = NULL;
    loop_turn(w->t.loop, false); /* closes the port */
    int rc = http_call(c, "GET", "/healthz?token=secret", NULL, 0, &r, &err);
    expect_failure(rc, &err, -ECONNREFUSED, "127.0.0.1");
    assert_null(strstr(err.msg, "secret")); /* queries carry tokens */
    http_client_free(c);
    stop(w);
}

static void test_response_check(void **state)
{
    static const struct {
        long status;
        const char *body;
        int code;
        const char *words;
    } cases[] = {
        {200, "{}", 0, ""},
        {201, "", 0, ""},
        {299, "{\"error\":{\"message\":\"no\"}}", 0, ""},
        {304, "", -ERR_REMOTE, "the server answered HTTP 304"},
        {400, "{\"error\":{\"message\":\"id is a number\"}}", -EINVAL, "id is a number"},
        {401, "{\"error\":{\"message\":\"no token\"}}", -ERR_AUTH, "no token"},
        {403, "", -ERR_AUTH, "the server answered HTTP 403"},
        {404, "<html>", -ERR_NOTFOUND, "the server answered HTTP 404"},
        {409, "[1]", -EBUSY, "HTTP 409"},
        {413, "{\"error\":1}", -ERR_LIMIT, "HTTP 413"},
        {422, "{\"error\":{\"message\":7}}", -ERR_HASH, "HTTP 422"},
        {429, "", -EAGAIN, "HTTP 429"},
        {451, "", -ERR_REMOTE, "HTTP 451"},
        {500, "{\"error\":{\"message\":\"broken\"}}", -EAGAIN, "broken"},
        {501, "", -ERR_REMOTE, "HTTP 501"},
        {502, "", -EAGAIN, "HTTP 502"},
        {503, "", -EAGAIN, "HTTP 503"},
        {507, "{\"error\":{\"message\":\"full\"}}", -ENOSPC, "full"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct err err = {0};
        struct http_response r = {
            .status = cases[i].status, .body = (char *)cases[i].body, .len = strlen(cases[i].body)};
        int rc = http_response_check(&r, &err);
        expect_failure(rc, &err, cases[i].code, cases[i].words);
        assert_int_equal(http_response_check(&r, NULL), cases[i].code);
    }
}

/* ---- files ---- */

/* Path of a ticket; only while the server's thread does not run. */
static char *blob_path(struct world *w, enum ticket_method m, const struct blob_id *id,
                       uint64_t max)
{
    char *url = ticket_url(w, m, id, max), *path = str_dup(url + strlen(w->url));
    mem_free(url);
    return path;
}

static void test_files(void **state)
{
    struct world *w = start(true);
    const size_t len = 2000000;
    struct blob_id id = make_file(w, "a", len), other = make_file(w, "c", 1000);
    char *put = blob_path(w, TICKET_PUT, &id, len), *get = blob_path(w, TICKET_GET, &id, 0);
    char *put_other = blob_path(w, TICKET_PUT, &other, len);
    char *a = path_in(w, "a"), *b = path_in(w, "b"), *none = path_in(w, "none");
    char *part = path_in(w, "b.part");
    struct http_client *c = client_of(w, w->bearer);
    struct err err = {0};
    uint8_t sum[HASH_BYTES];
    serve(w);
    int rc = http_get_file(c, get, b, NULL, NULL, NULL, &err);
    expect_failure(rc, &err, -ERR_NOTFOUND, "there is no blob");
    rc = http_put_file(c, get, a, NULL, NULL, &err);
    expect_failure(rc, &err, -ERR_AUTH, "allows GET, not PUT");
    rc = http_put_file(c, put, none, NULL, NULL, &err);
    expect_failure(rc, &err, -ENOENT, none);
    rc = http_put_file(c, put_other, a, NULL, NULL, &err); /* under another's name */
    assert_int_equal(rc, -ERR_HASH);
    assert_int_equal(http_put_file(c, put_other, a, NULL, NULL, NULL), -ERR_HASH);
    err = (struct err){0};
    if (http_put_file(c, put, a, NULL, NULL, &err) < 0 ||
        http_get_file(c, get, b, id.sha256, NULL, NULL, &err) < 0)
        fail_msg("%s", err.msg);
    assert_int_equal(hash_file(b, sum, NULL, NULL), 0);
    assert_memory_equal(sum, id.sha256, sizeof(sum));
    assert_int_equal(file_remove(b, NULL), 0);
    rc = http_get_file(c, get, b, other.sha256, NULL, NULL, &err);
    expect_failure(rc, &err, -ERR_HASH, "not the one that was asked for");
    assert_false(file_exists(b));
    struct rlimit before;
    (void)signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    const struct rlimit small = {.rlim_cur = 1000, .rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    rc = http_get_file(c, get, b, id.sha256, NULL, NULL, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    expect_failure(rc, &err, -EFBIG, "File too large");
    assert_false(file_exists(b) || file_exists(part));
    http_client_free(c);
    unserve(w);
    assert_int_equal(w->stored, 1);
    assert_false(blobstore_has(w->store, &other, NULL));
    mem_free(put);
    mem_free(get);
    mem_free(put_other);
    mem_free(a);
    mem_free(b);
    mem_free(part);
    mem_free(none);
    stop(w);
}

struct progress {
    struct world *world;
    unsigned calls;
    uint64_t first, last, total;
};

static void on_progress(void *arg, uint64_t done, uint64_t total)
{
    struct progress *p = arg;
    if (p->calls++ == 0) {
        p->first = done;
        (void)loop_post(p->world->t.loop, other_half, p->world); /* else the file never ends */
    }
    p->last = done;
    p->total = total;
}

/* What has come of a file is gone on with, if its hash tells that it is the same. */
static void test_part_is_kept(void **state)
{
    struct world *w = start(true);
    const struct blob_id id = make_file(w, "a", 2000);
    char *get = blob_path(w, TICKET_GET, &id, 0);
    char *a = path_in(w, "a"), *b = path_in(w, "b"), *part = path_in(w, "b.part");
    struct http_client *c = client_of(w, w->bearer);
    struct buf content;
    const volatile sig_atomic_t flag = SIGINT, none = 0;
    put_file(w, "a", &id, 2000);
    assert_int_equal(file_read(a, 2000, &content, NULL), 0);
    assert_int_equal(file_write_atomic(part, content.data, 1500, 0600, NULL), 0);
    serve(w);
    http_client_heed(c, &flag);
    assert_int_equal(http_get_file(c, get, b, id.sha256, NULL, NULL, NULL), -ERR_CANCELLED);
    assert_true(file_exists(part));
    http_client_heed(c, &none);
    assert_int_equal(http_get_file(c, get, b, id.sha256, NULL, NULL, NULL), 0);
    assert_true(file_exists(b) && !file_exists(part));
    assert_int_equal(file_write_atomic(part, content.data, 1500, 0600, NULL), 0);
    http_client_heed(c, &flag);
    assert_int_equal(http_get_file(c, get, b, NULL, NULL, NULL, NULL), -ERR_CANCELLED);
    assert_false(file_exists(part));
    http_client_free(c);
    unserve(w);
    buf_release(&content);
    mem_free(get);
    mem_free(a);
    mem_free(b);
    mem_free(part);
    stop(w);
}

/* The second half is sent when progress told of the first: without it this hangs.
 * The stream's route needs the bearer, and there is no size. */
static void test_file_progress(void **state)
{
    struct http_client *c;
    struct world *w = start_apart(false, &c);
    struct progress p = {.world = w};
    struct buf got;
    struct err err = {0};
    char *path = path_in(w, "half");
    if (http_get_file(c, "/t/half", path, NULL, on_progress, &p, &err) < 0)
        fail_msg("%s", err.msg);
    assert_int_equal(p.first, 6);
    assert_true(p.last == 6 || p.last == 10);
    assert_int_equal(p.total, 0);
    assert_int_equal(file_read(path, 100, &got, &err), 0);
    assert_string_equal(buf_str(&got), "half, half");
    buf_release(&got);
    mem_free(path);
    stop_apart(w, c);
}

/* A server that says how long a file is, and sends its second half once it is told of the first. */
struct lengthy {
    int listener, fd;
    uint64_t total;
};

static void *send_first_half(void *arg)
{
    static const char head[] = "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf, ";
    struct lengthy *s = arg;
    char request[4096];
    s->fd = accept(s->listener, NULL, NULL);
    if (recv(s->fd, request, sizeof request, 0) > 0)
        (void)send(s->fd, head, sizeof head - 1, MSG_NOSIGNAL); /* without it there is no call */
    return NULL;
}

static void send_second_half(void *arg, uint64_t done, uint64_t total)
{
    struct lengthy *s = arg;
    if (s->total == 0)
        (void)send(s->fd, "half", 4, MSG_NOSIGNAL);
    s->total = total ? total : UINT64_MAX;
}

static void test_file_of_known_length(void **state)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct lengthy s = {.listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), .fd = -1};
    char url[64], dir[] = "/tmp/skerry-http.XXXXXX", path[64];
    struct http_client *c;
    struct err err = {0};
    pthread_t thread;
    socklen_t len = sizeof at;
    assert_int_equal(bind(s.listener, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(s.listener, 1), 0);
    assert_int_equal(getsockname(s.listener, (struct sockaddr *)&at, &len), 0);
    assert_int_equal(pthread_create(&thread, NULL, send_first_half, &s), 0);
    assert_non_null(mkdtemp(dir));
    (void)snprintf(url, sizeof url, "http://127.0.0.1:%u", ntohs(at.sin_port));
    (void)snprintf(path, sizeof path, "%s/file", dir);
    assert_int_equal(http_client_new(url, NULL, NULL, &c, &err), 0);
    if (http_get_file(c, "/file", path, NULL, send_second_half, &s, &err) < 0)
        fail_msg("%s", err.msg);
    assert_int_equal(s.total, 10);
    http_client_free(c);
    assert_int_equal(pthread_join(thread, NULL), 0);
    close(s.fd);
    close(s.listener);
    assert_int_equal(file_remove_tree(dir, &err), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_file_of_known_length),
        cmocka_unit_test(test_call),
        cmocka_unit_test(test_answer_limit),
        cmocka_unit_test(test_trust),
        cmocka_unit_test(test_nobody_there),
        cmocka_unit_test(test_response_check),
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_part_is_kept),
        cmocka_unit_test(test_file_progress),
        cmocka_unit_test(test_slow_answer),
        cmocka_unit_test(test_interrupted_connecting),
        cmocka_unit_test(test_interrupted_command),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
