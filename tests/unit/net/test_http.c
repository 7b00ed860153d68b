/* The HTTP server, blobs by ticket and the transfers, against each other. */
#include "net_test.h"

#include "common/net/blob_http.h"
#include "common/net/blobstore.h"
#include "common/net/http_server.h"
#include "common/net/transfer.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>

struct world {
    struct net_test t;
    struct http_server *server;
    struct blobstore *store;
    struct pool *pool;
    struct blob_http *blobs;
    struct xfer *xfer;
    struct token user;
    char url[TOKEN_URL_MAX], bearer[TOKEN_BEARER_MAX];
    struct http_request *held;
    struct http_stream *stream;
    unsigned stream_closed, stored;
    /* outcome of the last transfer */
    unsigned done;
    int code;
    long status;
    char detail[512], *body;
    size_t body_len;
    uint64_t size;
    bool existed;
};

/* ---- routes ---- */

static void on_job(void *arg, struct http_request *r)
{
    uint64_t id, limit;
    if (http_request_param_u64(r, "id", &id) < 0 ||
        http_request_query_u64(r, "limit", 10, 100, &limit) < 0)
        return;
    http_reply_json(r, 200,
                    json_pack("{s:I,s:I}", "id", (json_int_t)id, "limit", (json_int_t)limit));
}

static void on_post(void *arg, struct http_request *r)
{
    json_t *body;
    if (http_request_json(r, &body) < 0)
        return;
    http_reply_json(r, 201, body);
}

static void on_hold(void *arg, struct http_request *r)
{
    ((struct world *)arg)->held = r;
}

static void on_stream_close(void *arg, struct http_stream *s)
{
    struct world *w = arg;
    w->stream_closed++;
    w->stream = NULL;
}

static void on_events(void *arg, struct http_request *r)
{
    struct world *w = arg;
    if (http_stream_open(r, "text/event-stream", on_stream_close, w, &w->stream) == 0)
        assert_int_equal(http_stream_event(w->stream, "hello", "one\ntwo"), 0);
}

static void on_health(void *arg, struct http_request *r)
{
    http_reply_text(r, 200, "text/plain", "ok\n");
}

static const struct http_route routes[] = {
    {"GET", "/healthz", 0, 0, on_health, NULL, NULL},
    {"GET", "/v1/jobs/{id}", TOKEN_ROLE_USER, 0, on_job, NULL, NULL},
    {"POST", "/v1/jobs", TOKEN_ROLE_USER, 1000, on_post, NULL, NULL},
    {"GET", "/v1/hold", TOKEN_ROLE_USER, 0, on_hold, NULL, NULL},
    {"GET", "/v1/events", TOKEN_ROLE_USER, 0, on_events, NULL, NULL},
    {"GET", "/v1/admin", TOKEN_ROLE_WORKER, 0, on_health, NULL, NULL},
};

static unsigned authenticate(void *arg, const char *presented)
{
    struct world *w = arg;
    return token_bearer_matches(w->user.secret, presented) ? TOKEN_ROLE_USER : 0;
}

static void on_stored(void *arg, const struct blob_id *id, uint64_t size)
{
    ((struct world *)arg)->stored++;
}

/* ---- set-up ---- */

static struct world *start(bool tls)
{
    struct world *w = mem_alloc(sizeof(*w));
    struct err err = {0};
    net_test_init(&w->t);
    struct http_server_options o = {
        .host = "127.0.0.1",
        .keys = tls ? w->t.keys : NULL,
        .request_ms = 1000,
        .max_stream_bytes = 20000,
        .authenticate = authenticate,
        .arg = w,
    };
    if (http_server_open(w->t.loop, &o, &w->server, &err) < 0)
        fail_msg("%s", err.msg);
    http_server_routes(w->server, routes, sizeof(routes) / sizeof(routes[0]));
    char *dir = file_join(w->t.dir, "blobs");
    assert_int_equal(blobstore_open(dir, 50 << 20, &w->store, &err), 0);
    mem_free(dir);
    assert_int_equal(pool_new(w->t.loop, "disk", 1, 16, &w->pool, &err), 0);
    struct blob_http_options bo = {.store = w->store,
                                   .pool = w->pool,
                                   .roles = TOKEN_ROLE_USER,
                                   .on_stored = on_stored,
                                   .arg = w};
    assert_int_equal(blob_http_open(w->server, &bo, &w->blobs, &err), 0);
    struct xfer_options xo = {.backoff_min_ms = 1,
                              .backoff_max_ms = 20,
                              .max_tries = 2,
                              .floor_s = 1,
                              .min_bytes_per_s = 1000};
    assert_int_equal(xfer_new(w->t.loop, &xo, &w->xfer, &err), 0);
    w->user = (struct token){.host = "127.0.0.1", .role = TOKEN_ROLE_USER, .http_plain = !tls};
    w->user.http_port = http_server_port(w->server);
    memset(w->user.secret, 9, sizeof(w->user.secret));
    memcpy(w->user.pin, keys_pin(w->t.keys), sizeof(w->user.pin));
    token_http_url(&w->user, w->url);
    token_bearer(w->user.secret, w->bearer);
    return w;
}

static void stop(struct world *w)
{
    xfer_free(w->xfer);
    http_server_close(w->server);
    pool_free(w->pool);
    blob_http_close(w->blobs);
    blobstore_close(w->store);
    mem_free(w->body);
    net_test_release(&w->t);
    mem_free(w);
}

static void on_done(void *arg, const struct xfer_result *r)
{
    struct world *w = arg;
    w->done++;
    w->code = r->code;
    w->status = r->status;
    w->size = r->size;
    w->existed = r->existed;
    (void)str_copy(w->detail, sizeof(w->detail), r->detail);
    mem_free(w->body);
    w->body = str_ndup(r->body ? r->body : "", r->body_len);
    w->body_len = r->body_len;
}

/* One small request; the outcome is in w. */
static void ask(struct world *w, const char *method, const char *path, const char *bearer,
                const char *body, const char *header)
{
    char *url = str_printf("%s%s", w->url, path);
    const char *headers[] = {header, NULL};
    struct xfer_call c = {.method = method,
                          .url = url,
                          .pin = w->user.pin,
                          .bearer = bearer,
                          .body = body,
                          .body_len = body ? strlen(body) : 0,
                          .headers = headers,
                          .done = on_done,
                          .arg = w};
    unsigned before = w->done;
    assert_int_equal(xfer_call(w->xfer, &c, NULL, NULL), 0);
    WAIT_FOR(&w->t, w->done > before);
    mem_free(url);
}

static void expect(struct world *w, long status, const char *words)
{
    if (w->code != 0 || w->status != status || !strstr(w->body, words))
        fail_msg("code %d (%s), HTTP %ld: %s; wanted HTTP %ld with \"%s\"", w->code, w->detail,
                 w->status, w->body, status, words);
}

/* ---- the server ---- */

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
    assert_int_equal(w->body_len, 0);
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
    char *cookie = str_printf("Cookie: skerry=%s", w->bearer);
    ask(w, "GET", "/v1/jobs/3", NULL, NULL, cookie);
    expect(w, 200, "\"id\":3");
    mem_free(cookie);
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
    struct xfer_call c = {.method = "GET",
                          .url = url,
                          .pin = w->user.pin,
                          .bearer = w->bearer,
                          .done = on_done,
                          .arg = w};
    assert_int_equal(xfer_call(w->xfer, &c, NULL, NULL), 0);
    WAIT_FOR(&w->t, w->held);
    ask(w, "GET", "/healthz", NULL, NULL, NULL); /* others are served meanwhile */
    http_reply_text(w->held, 200, "text/plain", "at last");
    WAIT_FOR(&w->t, w->done == 2);
    expect(w, 200, "at last");
    /* One that is never answered before the server closes. */
    w->held = NULL;
    assert_int_equal(xfer_call(w->xfer, &c, NULL, NULL), 0);
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

static int tcp(struct world *w)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons(w->user.http_port),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0);
    int small = 4096;
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small)), 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof(a)), 0);
    assert_int_equal(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
    return fd;
}

static void send_text(int fd, const char *text)
{
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
}

/* Appends what comes until `words` are in it. */
static void expect_text(struct world *w, int fd, char *got, size_t cap, const char *words)
{
    size_t len = strlen(got);
    uint64_t until = clock_now_ms() + TEST_DEADLINE_MS;
    while (!strstr(got, words)) {
        loop_turn(w->t.loop, true);
        ssize_t n = read(fd, got + len, cap - len - 1);
        if (n > 0)
            len += (size_t)n;
        got[len] = '\0';
        if (clock_now_ms() > until)
            fail_msg("\"%s\" does not come; got: %s", words, got);
    }
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
    assert_non_null(strstr(got, "Set-Cookie: skerry="));
    assert_non_null(strstr(got, "text/event-stream"));
    assert_int_equal(http_stream_event(w->stream, NULL, "later"), 0);
    expect_text(w, fd, got, sizeof(got), "data: later\n\n");
    http_stream_close(w->stream);
    WAIT_FOR(&w->t, w->stream_closed == 1);
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
    struct world *w = start(false);
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

/* ---- blobs ---- */

static char *path_in(struct world *w, const char *name)
{
    return file_join(w->t.dir, name);
}

/* A file of len pseudo-random bytes; its id. */
static struct blob_id make_file(struct world *w, const char *name, size_t len)
{
    struct blob_id id;
    uint8_t *data = mem_alloc(len + 1);
    uint64_t x = 88172645463325252ull;
    for (size_t i = 0; i < len; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        data[i] = (uint8_t)x;
    }
    char *path = path_in(w, name);
    assert_int_equal(file_write_atomic(path, data, len, 0600, NULL), 0);
    hash_sha256(data, len, id.sha256);
    mem_free(path);
    mem_free(data);
    return id;
}

static char *ticket_url(struct world *w, enum ticket_method m, const struct blob_id *id,
                        uint64_t max)
{
    char path[TICKET_PATH_MAX];
    blob_http_ticket(w->blobs, m, id, max, 60, path);
    return str_printf("%s%s", w->url, path);
}

static void put_file(struct world *w, const char *name, const struct blob_id *id, uint64_t max)
{
    char *url = ticket_url(w, TICKET_PUT, id, max), *path = path_in(w, name);
    struct xfer_put p = {.url = url, .pin = w->user.pin, .path = path, .done = on_done, .arg = w};
    unsigned before = w->done;
    assert_int_equal(xfer_put(w->xfer, &p, NULL, NULL), 0);
    WAIT_FOR(&w->t, w->done > before);
    mem_free(url);
    mem_free(path);
}

static void get_file(struct world *w, const char *name, const struct blob_id *id, uint64_t size,
                     const uint8_t *sha256)
{
    char *url = ticket_url(w, TICKET_GET, id, 0), *path = path_in(w, name);
    struct xfer_get g = {.url = url,
                         .pin = w->user.pin,
                         .path = path,
                         .size = size,
                         .sha256 = sha256,
                         .done = on_done,
                         .arg = w};
    unsigned before = w->done;
    assert_int_equal(xfer_get(w->xfer, &g, NULL, NULL), 0);
    WAIT_FOR(&w->t, w->done > before);
    mem_free(url);
    mem_free(path);
}

static void round_trip(bool tls, size_t len)
{
    struct world *w = start(tls);
    struct blob_id id = make_file(w, "a", len);
    put_file(w, "a", &id, len);
    if (w->code < 0)
        fail_msg("%s", w->detail);
    assert_int_equal(w->stored, 1);
    assert_false(w->existed);
    uint64_t size;
    assert_true(blobstore_has(w->store, &id, &size));
    assert_int_equal(size, len);
    put_file(w, "a", &id, len); /* again: it is there */
    assert_int_equal(w->code, 0);
    assert_int_equal(w->stored, 1);
    get_file(w, "b", &id, len, id.sha256);
    if (w->code < 0)
        fail_msg("%s", w->detail);
    char *path = path_in(w, "b");
    uint8_t sum[32];
    assert_int_equal(hash_file(path, sum, NULL, NULL), 0);
    assert_memory_equal(sum, id.sha256, 32);
    mem_free(path);
    stop(w);
}

static void test_round_trips(void **state)
{
    round_trip(true, 3000000);
    round_trip(false, 3000000);
    round_trip(true, 1);
    round_trip(true, 0);
}

static void test_put_resumes(void **state)
{
    struct world *w = start(true);
    const size_t len = 500000;
    struct blob_id id = make_file(w, "a", len);
    char *path = path_in(w, "a");
    struct buf content;
    struct blob_writer *writer;
    assert_int_equal(file_read(path, len, &content, NULL), 0);
    assert_int_equal(blob_writer_resume(w->store, &id, len, &writer, NULL), 0);
    assert_int_equal(blob_writer_write(writer, content.data, 300000, NULL), 0);
    blob_writer_abort(writer, true);
    put_file(w, "a", &id, len);
    if (w->code < 0)
        fail_msg("%s", w->detail);
    assert_true(blobstore_has(w->store, &id, NULL));
    assert_int_equal(blob_http_counters(w->blobs).bytes_in, 200000); /* only the rest travelled */
    assert_int_equal(blobstore_used_bytes(w->store), len);
    buf_release(&content);
    mem_free(path);
    stop(w);
}

/* Bytes arrive, then the client vanishes: they are kept, and the rest suffices. */
static void test_put_cut(void **state)
{
    struct world *w = start(false);
    const size_t len = 400000;
    struct blob_id id = make_file(w, "a", len);
    char *path = path_in(w, "a"), *url = ticket_url(w, TICKET_PUT, &id, len);
    struct buf content;
    assert_int_equal(file_read(path, len, &content, NULL), 0);
    int fd = tcp(w);
    char *head = str_printf("PUT %s HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n",
                            url + strlen(w->url), len);
    send_text(fd, head);
    size_t sent = 0;
    while (blob_http_counters(w->blobs).bytes_in < 100000) {
        ssize_t n = write(fd, content.data + sent, 150000 - sent);
        if (n > 0)
            sent += (size_t)n;
        loop_turn(w->t.loop, true);
    }
    close(fd);
    WAIT_FOR(&w->t, http_server_counters(w->server).connections == 0);
    assert_false(blobstore_has(w->store, &id, NULL));
    uint64_t before = blob_http_counters(w->blobs).bytes_in;
    put_file(w, "a", &id, len);
    if (w->code < 0)
        fail_msg("%s", w->detail);
    assert_true(blobstore_has(w->store, &id, NULL));
    assert_int_equal(blob_http_counters(w->blobs).bytes_in - before, len - before);
    buf_release(&content);
    mem_free(head);
    mem_free(url);
    mem_free(path);
    stop(w);
}

static void test_put_refused(void **state)
{
    struct world *w = start(true);
    struct blob_id id = make_file(w, "a", 100000), other = make_file(w, "b", 1000);
    put_file(w, "a", &other, 100000); /* a's bytes under b's name */
    assert_int_equal(w->code, -ERR_HASH);
    assert_false(blobstore_has(w->store, &other, NULL));
    assert_int_equal(blobstore_used_bytes(w->store), 0);
    put_file(w, "a", &id, 99999);
    assert_int_equal(w->code, -ERR_LIMIT);
    char *url = ticket_url(w, TICKET_GET, &id, 0), *path = path_in(w, "a");
    struct xfer_put p = {.url = url, .pin = w->user.pin, .path = path, .done = on_done, .arg = w};
    unsigned before = w->done;
    assert_int_equal(xfer_put(w->xfer, &p, NULL, NULL), 0);
    WAIT_FOR(&w->t, w->done > before);
    assert_int_equal(w->code, -ERR_AUTH);
    assert_non_null(strstr(w->detail, "allows GET, not PUT"));
    mem_free(url);
    mem_free(path);
    stop(w);
}

static void test_quota(void **state)
{
    struct world *w = start(true);
    struct blob_id id = make_file(w, "a", (50 << 20) + 1);
    put_file(w, "a", &id, (50 << 20) + 1);
    assert_int_equal(w->code, -ENOSPC);
    assert_non_null(strstr(w->detail, "full"));
    stop(w);
}

static void test_ranges(void **state)
{
    struct world *w = start(false);
    struct blob_id id;
    char hex[BLOB_HEX_MAX], path[128];
    assert_int_equal(blobstore_put(w->store, "0123456789", 10, &id, NULL), 0);
    blob_id_hex(&id, hex);
    snprintf(path, sizeof(path), "/v1/blobs/%s", hex);
    static const struct {
        const char *range;
        long status;
        const char *body;
    } cases[] = {
        {"Range: bytes=2-4", 206, "234"},        {"Range: bytes=7-", 206, "789"},
        {"Range: bytes=-3", 206, "789"},         {"Range: bytes=0-99", 206, "0123456789"},
        {"Range: bytes=0-0", 206, "0"},          {"Range: bytes=x", 200, "0123456789"},
        {"Range: bytes=4-2", 200, "0123456789"}, {"Range: bytes=1-2,4-5", 200, "0123456789"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        ask(w, "GET", path, w->bearer, NULL, cases[i].range);
        expect(w, cases[i].status, cases[i].body);
        assert_int_equal(w->body_len, strlen(cases[i].body));
    }
    ask(w, "GET", path, w->bearer, NULL, "Range: bytes=10-");
    expect(w, 416, "there are 10 bytes");
    char etag[100];
    snprintf(etag, sizeof(etag), "If-None-Match: \"%s\"", hex);
    ask(w, "GET", path, w->bearer, NULL, etag);
    assert_int_equal(w->status, 304);
    ask(w, "GET", path, NULL, NULL, NULL);
    expect(w, 403, "no complete ticket");
    path[20] = path[20] == 'a' ? 'b' : 'a';
    ask(w, "GET", path, w->bearer, NULL, NULL);
    expect(w, 404, "there is no blob");
    ask(w, "GET", "/v1/blobs/xyz", w->bearer, NULL, NULL);
    expect(w, 400, "64 lower-case hex");
    stop(w);
}

/* ---- transfers against a bad world ---- */

static void test_get_resumes(void **state)
{
    struct world *w = start(true);
    const size_t len = 400000;
    struct blob_id id = make_file(w, "a", len);
    put_file(w, "a", &id, len);
    assert_int_equal(w->code, 0);
    char *a = path_in(w, "a"), *part = path_in(w, "b.part");
    struct buf content;
    assert_int_equal(file_read(a, len, &content, NULL), 0);
    assert_int_equal(file_write_atomic(part, content.data, 250000, 0600, NULL), 0);
    uint64_t before = http_server_counters(w->server).body_bytes_out;
    get_file(w, "b", &id, len, id.sha256);
    assert_int_equal(w->code, 0);
    assert_int_equal(http_server_counters(w->server).body_bytes_out - before, len - 250000);
    /* A part that is whole needs nothing but its hash. */
    assert_int_equal(file_write_atomic(part, content.data, len, 0600, NULL), 0);
    before = http_server_counters(w->server).body_bytes_out;
    get_file(w, "b", &id, len, id.sha256);
    assert_int_equal(w->code, 0);
    assert_int_equal(http_server_counters(w->server).body_bytes_out, before);
    /* A damaged part is noticed, and fetched again as a whole. */
    content.data[1000] ^= 1;
    assert_int_equal(file_write_atomic(part, content.data, 250000, 0600, NULL), 0);
    get_file(w, "b", &id, len, id.sha256);
    assert_int_equal(w->code, 0);
    assert_false(file_exists(part));
    buf_release(&content);
    mem_free(a);
    mem_free(part);
    stop(w);
}

static void test_get_wrong_hash(void **state)
{
    struct world *w = start(true);
    struct blob_id id = make_file(w, "a", 1000);
    put_file(w, "a", &id, 1000);
    uint8_t other[32];
    memcpy(other, id.sha256, 32);
    other[3] ^= 1;
    get_file(w, "b", &id, 1000, other);
    assert_int_equal(w->code, -ERR_HASH);
    char *b = path_in(w, "b"), *part = path_in(w, "b.part");
    assert_false(file_exists(b));
    assert_false(file_exists(part));
    mem_free(b);
    mem_free(part);
    stop(w);
}

/* A server of our own that follows a script: each connection is answered with
 * the next text and cut. */
struct script {
    uv_tcp_t listener;
    const char *const *texts;
    unsigned next, count;
    bool hold; /* the last one is kept open in silence */
    uint16_t port;
};

struct script_conn {
    uv_tcp_t tcp;
    uv_write_t write;
    struct script *script;
    const char *text;
    char got[2048];
    size_t len;
};

static void script_free(uv_handle_t *h)
{
    mem_free(h->data);
}

static void script_written(uv_write_t *req, int status)
{
    struct script_conn *c = req->data;
    if (!uv_is_closing((uv_handle_t *)&c->tcp) && !c->script->hold)
        uv_close((uv_handle_t *)&c->tcp, script_free);
}

static void script_alloc(uv_handle_t *h, size_t n, uv_buf_t *b)
{
    struct script_conn *c = h->data;
    *b = uv_buf_init(c->got + c->len, (unsigned)(sizeof(c->got) - 1 - c->len));
}

static void script_read(uv_stream_t *s, ssize_t n, const uv_buf_t *b)
{
    struct script_conn *c = s->data;
    if (n < 0) {
        if (!uv_is_closing((uv_handle_t *)s))
            uv_close((uv_handle_t *)s, script_free);
        return;
    }
    c->len += (size_t)n;
    if (!strstr(c->got, "\r\n\r\n") || !c->text)
        return;
    uv_buf_t out = uv_buf_init((char *)c->text, (unsigned)strlen(c->text));
    c->text = NULL;
    c->write.data = c;
    assert_int_equal(uv_write(&c->write, s, &out, 1, script_written), 0);
}

static void script_accept(uv_stream_t *l, int status)
{
    struct script *s = l->data;
    struct script_conn *c = mem_alloc(sizeof(*c));
    assert_int_equal(uv_tcp_init(l->loop, &c->tcp), 0);
    c->tcp.data = c;
    c->script = s;
    c->text = s->texts[s->next < s->count ? s->next++ : s->count - 1];
    assert_int_equal(uv_accept(l, (uv_stream_t *)&c->tcp), 0);
    assert_int_equal(uv_read_start((uv_stream_t *)&c->tcp, script_alloc, script_read), 0);
}

static void script_start(struct script *s, struct world *w)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int len = sizeof(a);
    assert_int_equal(uv_tcp_init(loop_uv(w->t.loop), &s->listener), 0);
    s->listener.data = s;
    assert_int_equal(uv_tcp_bind(&s->listener, (struct sockaddr *)&a, 0), 0);
    assert_int_equal(uv_listen((uv_stream_t *)&s->listener, 8, script_accept), 0);
    assert_int_equal(uv_tcp_getsockname(&s->listener, (struct sockaddr *)&a, &len), 0);
    s->port = ntohs(a.sin_port);
}

static void script_get(struct world *w, struct script *s, uint64_t size, uint64_t max)
{
    char url[64], *path = path_in(w, "s");
    snprintf(url, sizeof(url), "http://127.0.0.1:%u/x", s->port);
    struct xfer_get g = {
        .url = url, .path = path, .size = size, .max_bytes = max, .done = on_done, .arg = w};
    unsigned before = w->done;
    assert_int_equal(xfer_get(w->xfer, &g, NULL, NULL), 0);
    WAIT_FOR(&w->t, w->done > before);
    mem_free(path);
}

static void test_scripted(void **state)
{
    struct world *w = start(true);
    /* 503, then half of it and a cut, then the rest. */
    static const char *const cut[] = {
        "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n01234",
        "HTTP/1.1 206 Partial\r\nContent-Length: 5\r\nContent-Range: bytes 5-9/10\r\n\r\n56789",
    };
    struct script s = {.texts = cut, .count = 3};
    script_start(&s, w);
    script_get(w, &s, 10, 0);
    if (w->code < 0)
        fail_msg("%s", w->detail);
    struct buf got;
    char *path = path_in(w, "s");
    assert_int_equal(file_read(path, 100, &got, NULL), 0);
    assert_string_equal(buf_str(&got), "0123456789");
    buf_release(&got);
    assert_true(xfer_counters(w->xfer).retries >= 1);
    uv_close((uv_handle_t *)&s.listener, NULL);
    /* One that does not know ranges sends the whole again. */
    static const char *const whole[] = {
        "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n01234",
        "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabcdefghij",
    };
    struct script s2 = {.texts = whole, .count = 2};
    script_start(&s2, w);
    script_get(w, &s2, 10, 0);
    assert_int_equal(w->code, 0);
    assert_int_equal(file_read(path, 100, &got, NULL), 0);
    assert_string_equal(buf_str(&got), "abcdefghij");
    buf_release(&got);
    script_get(w, &s2, 0, 5); /* more than we allow */
    assert_int_equal(w->code, -ERR_LIMIT);
    uv_close((uv_handle_t *)&s2.listener, NULL);
    loop_turn(w->t.loop, false);
    mem_free(path);
    stop(w);
}

/* Slower than the floor for its whole window: cut, tried again, given up. */
static void test_slow_floor(void **state)
{
    struct world *w = start(true);
    static const char *const slow[] = {"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n0"};
    struct script s = {.texts = slow, .count = 1, .hold = true};
    script_start(&s, w);
    script_get(w, &s, 10, 0);
    assert_int_equal(w->code, -ETIMEDOUT);
    uv_close((uv_handle_t *)&s.listener, NULL);
    loop_turn(w->t.loop, false);
    stop(w);
}

static void test_cancel(void **state)
{
    struct world *w = start(true);
    static const char *const slow[] = {"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n0"};
    struct script s = {.texts = slow, .count = 1, .hold = true};
    script_start(&s, w);
    char url[64], *path = path_in(w, "s");
    snprintf(url, sizeof(url), "http://127.0.0.1:%u/x", s.port);
    struct xfer_get g = {.url = url, .path = path, .size = 10, .done = on_done, .arg = w};
    uint64_t id;
    assert_int_equal(xfer_get(w->xfer, &g, &id, NULL), 0);
    WAIT_FOR(&w->t, s.next == 1);
    xfer_cancel(w->xfer, id);
    assert_int_equal(w->done, 1);
    assert_int_equal(w->code, -ERR_CANCELLED);
    assert_int_equal(xfer_get(w->xfer, &g, &id, NULL), 0);
    xfer_free(w->xfer); /* cancels the rest */
    w->xfer = NULL;
    assert_int_equal(w->done, 2);
    uv_close((uv_handle_t *)&s.listener, NULL);
    loop_turn(w->t.loop, false);
    mem_free(path);
    stop(w);
}

static void test_nobody_there(void **state)
{
    struct world *w = start(true);
    http_server_close(w->server);
    w->server = NULL;
    ask(w, "GET", "/healthz", NULL, NULL, NULL);
    assert_int_equal(w->code, -ECONNREFUSED);
    struct xfer_get g = {.url = "ftp://x/", .path = "/tmp/x", .done = on_done, .arg = w};
    assert_int_equal(xfer_get(w->xfer, &g, NULL, NULL), -EINVAL);
    stop(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_routes),
        cmocka_unit_test(test_auth),
        cmocka_unit_test(test_bodies),
        cmocka_unit_test(test_deferred),
        cmocka_unit_test(test_wrong_pin),
        cmocka_unit_test(test_events),
        cmocka_unit_test(test_slow_stream),
        cmocka_unit_test(test_slow_header),
        cmocka_unit_test(test_plain_needs_loopback),
        cmocka_unit_test(test_round_trips),
        cmocka_unit_test(test_put_resumes),
        cmocka_unit_test(test_put_cut),
        cmocka_unit_test(test_put_refused),
        cmocka_unit_test(test_quota),
        cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_get_resumes),
        cmocka_unit_test(test_get_wrong_hash),
        cmocka_unit_test(test_scripted),
        cmocka_unit_test(test_slow_floor),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_nobody_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
