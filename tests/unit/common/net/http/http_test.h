/* What the tests of the HTTP side share: a server with routes, a blob store and
 * transfers on one loop, and what asks them. */
#ifndef TESTS_UNIT_NET_HTTP_TEST_H
#define TESTS_UNIT_NET_HTTP_TEST_H

#include "common/net/growing.h"
#include "common/net/http/blob_http.h"
#include "common/net/http/http_server.h"
#include "common/net/http/transfer.h"
#include "tests/unit/blobs.h"
#include "tests/unit/common/net/http/small_call.h"
#include "tests/unit/common/net/net_test.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/socket.h>

#define TICKET_HOLDER 9

#define TRIES 2 /* of a transfer */

struct world {
    struct net_test t;
    struct http_server *server;
    struct blobstore *store;
    struct pool *pool;
    struct small_callers callers;
    struct blob_http *blobs;
    struct xfer *xfer;
    struct token user;
    char url[TOKEN_URL_MAX], bearer[TOKEN_BEARER_MAX];
    struct http_request *held;
    uint64_t gone_bytes; /* on connections of USER_HOLDER that are gone */
    uint64_t revoked;    /* its tickets count for nothing */
    uint64_t others;     /* the user's token is that of USER_HOLDER and so many */
    struct http_stream *stream;
    unsigned stream_closed, stored, served, served_near;
    unsigned full;              /* PUTs of TICKET_HOLDER that must come again */
    struct blob_neighbour near; /* where blobs are to be had, too; url "": nowhere */
    char near_asks[80];         /* what was asked last; "none" */
    struct growing *growing;    /* the file of the name GROWING; NULL: it is not begun */
    bool never;                 /* and will not be */
    uint64_t grown;             /* bytes of it that count as sent */
    unsigned near_asked;
    pthread_t thread;
    /* outcome of the last transfer */
    unsigned done;
    int code;
    long status;
    char detail[512], *body;
    uint64_t size, moved;
    bool existed;
};

/* ---- routes ---- */

static inline void on_job(void *arg, struct http_request *r)
{
    uint64_t id, limit;
    if (http_request_param_u64(r, "id", &id) < 0 ||
        http_request_query_u64(r, "limit", 10, 100, &limit) < 0)
        return;
    http_reply_json(r, 200,
                    json_pack("{s:I,s:I}", "id", (json_int_t)id, "limit", (json_int_t)limit));
}

static inline void on_post(void *arg, struct http_request *r)
{
    json_t *body;
    if (http_request_json(r, &body) < 0)
        return;
    http_reply_json(r, 201, body);
}

static inline void on_hold(void *arg, struct http_request *r)
{
    ((struct world *)arg)->held = r;
}

static inline void on_stream_close(void *arg, struct http_stream *s)
{
    struct world *w = arg;
    w->stream_closed++;
    w->stream = NULL;
}

static inline void on_events(void *arg, struct http_request *r)
{
    struct world *w = arg;
    if (http_stream_open(r, "text/event-stream", on_stream_close, w, &w->stream) == 0)
        assert_int_equal(http_stream_event(w->stream, "hello", "one\ntwo"), 0);
}

static inline void on_health(void *arg, struct http_request *r)
{
    http_reply_text(r, 200, "text/plain", "ok\n");
}

static const struct http_route routes[] = {
    {"GET", "/healthz", 0, 0, on_health, NULL, NULL},
    {"GET", "/v1/jobs/{id}", TOKEN_ROLE_OPERATOR, 0, on_job, NULL, NULL},
    {"POST", "/v1/jobs", TOKEN_ROLE_OPERATOR, 1000, on_post, NULL, NULL},
    {"GET", "/v1/hold", TOKEN_ROLE_OPERATOR, 0, on_hold, NULL, NULL},
    {"GET", "/v1/events", TOKEN_ROLE_OPERATOR, 0, on_events, NULL, NULL},
    {"GET", "/v1/admin", TOKEN_ROLE_WORKER, 0, on_health, NULL, NULL},
};

#define USER_HOLDER 5

static inline unsigned authenticate(void *arg, const char *presented, uint64_t *ret_holder)
{
    struct world *w = arg;
    uint8_t secret[KEYS_SECRET_BYTES];
    *ret_holder = USER_HOLDER + w->others;
    return token_bearer_read(presented, secret) == 0 &&
                   hash_equal(secret, w->user.secret, sizeof(secret))
               ? TOKEN_ROLE_OPERATOR
               : 0;
}

static inline unsigned session(void *arg, const char *cookie, uint64_t *ret_holder)
{
    return strcmp(cookie, "inside") == 0 ? TOKEN_ROLE_OPERATOR : 0;
}

static inline void on_gone(void *arg, uint64_t holder, uint64_t bytes)
{
    ((struct world *)arg)->gone_bytes += holder == USER_HOLDER ? bytes : 0;
}

static inline bool may_get(void *arg, unsigned role, const struct blob_id *id)
{
    return role == TOKEN_ROLE_OPERATOR;
}

static inline bool holds(void *arg, uint64_t holder)
{
    return holder != ((struct world *)arg)->revoked;
}

static inline void on_stored(void *arg, const struct blob_id *id, uint64_t size, bool here)
{
    ((struct world *)arg)->stored++;
}

static inline void on_full(void *arg, uint64_t holder)
{
    ((struct world *)arg)->full += holder == TICKET_HOLDER;
}

static inline void on_served(void *arg, const struct blob_id *id, uint64_t size, uint64_t holder,
                             enum blob_sender from)
{
    ((struct world *)arg)->served++;
    ((struct world *)arg)->served_near += from == BLOB_BY_NEIGHBOUR;
}

/* Whoever says that the neighbour has failed is not led there again. */
static inline bool neighbour(void *arg, const struct blob_id *id, uint64_t size, uint64_t holder,
                             const char *asks, struct blob_neighbour *ret)
{
    struct world *w = arg;
    assert_int_equal(holder, TICKET_HOLDER);
    w->near_asked++;
    (void)str_copy(w->near_asks, sizeof(w->near_asks), asks ? asks : "none");
    *ret = w->near;
    return asks && w->near.url[0] != '\0' && strcmp(asks, w->near.pin) != 0;
}

static const struct blob_id GROWING = {{7}};

static inline int growing(void *arg, const struct blob_id *id, struct growing **ret,
                          uint64_t *ret_of)
{
    const struct world *w = arg;
    if (!blob_id_equal(id, &GROWING) || w->never)
        return -ERR_NOTFOUND;
    if (!w->growing)
        return -EAGAIN;
    *ret = growing_share(w->growing);
    *ret_of = 77;
    return 0;
}

static inline void on_sent(void *arg, uint64_t of, uint64_t bytes)
{
    assert_int_equal(of, 77);
    ((struct world *)arg)->grown += bytes;
}

/* ---- set-up ---- */

/* request_ms: as in http_server_options; the default is for a machine that is busy. */
static inline struct world *start_within(bool tls, uint32_t request_ms)
{
    struct world *w = mem_alloc(sizeof(*w));
    struct err err = {0};
    net_test_init(&w->t);
    struct http_server_options o = {
        .host = "127.0.0.1",
        .keys = tls ? w->t.keys : NULL,
        .request_ms = request_ms,
        .max_stream_bytes = 20000,
        .authenticate = authenticate,
        .session = session,
        .on_gone = on_gone,
        .arg = w,
    };
    if (http_server_open(w->t.loop, &o, &w->server, &err) < 0)
        fail_msg("%s", err.msg);
    http_server_routes(w->server, routes, sizeof(routes) / sizeof(routes[0]));
    char *dir = file_join(w->t.dir, "blobs");
    assert_int_equal(blob_dir_open(dir, 50 << 20, &w->store, &err), 0);
    mem_free(dir);
    assert_int_equal(pool_new(w->t.loop, "disk", 1, 16, &w->pool, &err), 0);
    small_callers_init(&w->callers, w->t.loop);
    struct blob_http_options bo = {.loop = w->t.loop,
                                   .store = w->store,
                                   .pool = w->pool,
                                   .far = w->pool,
                                   .may_get = may_get,
                                   .holds = holds,
                                   .on_stored = on_stored,
                                   .on_full = on_full,
                                   .on_served = on_served,
                                   .growing = growing,
                                   .on_sent = on_sent,
                                   .neighbour = neighbour,
                                   .away_wait_ms = 30,
                                   .arg = w};
    assert_int_equal(blob_http_open(w->server, &bo, &w->blobs, &err), 0);
    struct xfer_options xo = {.backoff_min_ms = 1,
                              .backoff_max_ms = 20,
                              .max_tries = TRIES,
                              .floor_s = 1,
                              .min_bytes_per_s = 1000};
    assert_int_equal(xfer_new(w->t.loop, &xo, &w->xfer, &err), 0);
    w->user = (struct token){.host = "127.0.0.1", .role = TOKEN_ROLE_OPERATOR, .http_plain = !tls};
    w->user.http_port = http_server_port(w->server);
    memset(w->user.secret, 9, sizeof(w->user.secret));
    memcpy(w->user.pin, keys_pin(w->t.keys), sizeof(w->user.pin));
    token_http_url(&w->user, w->url);
    token_bearer(w->user.secret, w->bearer);
    return w;
}

static inline struct world *start(bool tls)
{
    return start_within(tls, 0);
}

static inline void stop(struct world *w)
{
    xfer_free(w->xfer);
    http_server_close(w->server);
    small_callers_release(&w->callers);
    pool_free(w->pool);
    blob_http_close(w->blobs);
    w->store->ops->close(w->store);
    mem_free(w->body);
    net_test_release(&w->t);
    mem_free(w);
}
/* Serves on a thread of its own, for clients that block.  Until unserve() the
 * world's fields belong to that thread. */
static inline void *serve_thread(void *arg)
{
    loop_run(((struct world *)arg)->t.loop);
    return NULL;
}

static inline void serve(struct world *w)
{
    assert_int_equal(pthread_create(&w->thread, NULL, serve_thread, w), 0);
}

static inline void unserve(struct world *w)
{
    loop_stop(w->t.loop);
    assert_int_equal(pthread_join(w->thread, NULL), 0);
    loop_turn(w->t.loop, false); /* this is the loop thread again */
}

/* ---- one request, one connection ---- */

static inline void on_done(void *arg, const struct xfer_result *r)
{
    struct world *w = arg;
    w->done++;
    w->code = r->code;
    w->status = r->status;
    w->size = r->size;
    w->existed = r->existed;
    w->moved = r->bytes;
    (void)str_copy(w->detail, sizeof(w->detail), r->detail);
}

static inline void on_answer(void *arg, int code, long status, const char *body)
{
    struct world *w = arg;
    w->done++;
    w->code = code;
    w->status = status;
    (void)str_copy(w->detail, sizeof(w->detail), code < 0 ? body : "");
    mem_free(w->body);
    w->body = str_dup(code < 0 ? "" : body);
}

/* One small request; the outcome is in w. */
static inline void ask(struct world *w, const char *method, const char *path, const char *bearer,
                       const char *body, const char *header)
{
    char *url = str_printf("%s%s", w->url, path);
    const struct small_call c = {.method = method,
                                 .url = url,
                                 .pin = w->user.pin,
                                 .bearer = bearer,
                                 .body = body,
                                 .header = header,
                                 .done = on_answer,
                                 .arg = w};
    unsigned before = w->done;
    small_call(&w->callers, &c);
    WAIT_FOR(&w->t, w->done > before);
    mem_free(url);
}

static inline void expect(struct world *w, long status, const char *words)
{
    if (w->code != 0 || w->status != status || !strstr(w->body, words))
        fail_msg("code %d (%s), HTTP %ld: %s; wanted HTTP %ld with \"%s\"", w->code, w->detail,
                 w->status, w->body, status, words);
}

static inline int tcp(struct world *w)
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

static inline void send_text(int fd, const char *text)
{
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
}

/* Appends what comes until `words` are in it. */
static inline void expect_text(struct world *w, int fd, char *got, size_t cap, const char *words)
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

/* ---- files and blobs ---- */

static inline char *path_in(struct world *w, const char *name)
{
    return file_join(w->t.dir, name);
}

/* A file of len pseudo-random bytes; its id. */
static inline struct blob_id make_file(struct world *w, const char *name, size_t len)
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

static inline char *ticket_url(struct world *w, enum ticket_method m, const struct blob_id *id,
                               uint64_t max)
{
    char path[TICKET_PATH_MAX];
    blob_http_ticket(w->blobs, m, id, max, TICKET_HOLDER, path);
    return str_printf("%s%s", w->url, path);
}

static inline void put_file(struct world *w, const char *name, const struct blob_id *id,
                            uint64_t max)
{
    char *url = ticket_url(w, TICKET_PUT, id, max), *path = path_in(w, name);
    struct xfer_put p = {.url = url, .pin = w->user.pin, .path = path, .done = on_done, .arg = w};
    unsigned before = w->done;
    assert_int_equal(xfer_put(w->xfer, &p, NULL, NULL), 0);
    WAIT_FOR(&w->t, w->done > before);
    mem_free(url);
    mem_free(path);
}

static inline void get_file(struct world *w, const char *name, const struct blob_id *id,
                            uint64_t size, const uint8_t *sha256)
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

#endif
