#include "common/net/http/http_server.h"

#include "common/base/log.h"
#include "common/net/http/http_impl.h"
#include "common/net/http/socket_bytes.h"
#include "common/net/keys.h"
#include "common/net/loop.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#define BACKLOG 128
#define TICK_MS 1000
#define CONNECTION_MEMORY (32 * 1024)
#define ARGUMENTS_MAX 64    /* of a query */
#define BODY_FLOOR_MS 30000 /* after that a body must have come at ... */
#define BODY_FLOOR_BYTES_PER_S 256
#define ADDRESS_SHARE 2 /* one address has at most 1/2 of the strangers' places */
#define IDLE_RUN_MS 2
#define SPINS_MAX 1000
#define PRIORITIES "SECURE128:-VERS-ALL:+VERS-TLS1.3"

/* ---- requests, as libmicrohttpd drives them ---- */

static enum MHD_Result queue_answer(struct http_request *r)
{
    struct MHD_Response *response = r->response;
    r->response = NULL;
    r->queued = true;
    if (r->status >= 500)
        r->server->counters.errors_5xx++;
    else if (r->status >= 400)
        r->server->counters.errors_4xx++;
    enum MHD_Result rc = MHD_queue_response(r->connection, r->status, response);
    MHD_destroy_response(response);
    return rc;
}

/* Ends each callback: queues the answer if there is one, else suspends the request. */
static enum MHD_Result settle(struct http_request *r)
{
    if (r->response)
        return queue_answer(r);
    if (r->answered)
        return MHD_NO; /* there was no memory for the answer */
    r->suspended = true;
    MHD_suspend_connection(r->connection);
    return MHD_YES;
}

static void enter(struct http_request *r)
{
    const struct http_route *t = r->route;
    r->in_callback = true;
    r->held = true;
    t->handle(t->arg ? t->arg : r->server->o.arg, r);
    r->in_callback = false;
}

static int check_body(struct http_request *r)
{
    struct err err = {0};
    const int rc = http_request_limit(r, r->route->max_body, &err);
    if (rc < 0)
        http_reply_err(r, &err);
    return rc;
}

/* libmicrohttpd keeps a record of each argument in the connection's memory, and says nothing where
 * that is full: what is too many is cut off before it reads them. */
static char too_many; /* its address is the mark of such a request */

static void *on_uri(void *cls, const char *uri, struct MHD_Connection *c)
{
    char *at = strchr(uri, '?'); /* in its buffer, which is its own to change */
    for (int n = 0; at && n < ARGUMENTS_MAX; n++)
        at = strchr(at + 1, '&');
    if (!at)
        return NULL;
    *at = '\0';
    return &too_many;
}

static int check_query(struct http_request *r, bool cut)
{
    if (!cut)
        return 0;
    http_reply_error(r, 400, "invalid", "the query has more than %d arguments", ARGUMENTS_MAX);
    return -ERR_LIMIT;
}

static enum MHD_Result begin(struct http_server *s, struct MHD_Connection *c, const char *path,
                             const char *method, void **req_cls)
{
    struct http_request *r = http_request_new(s, c, path, method);
    const bool cut = *req_cls != NULL;
    *req_cls = r;
    r->in_callback = true;
    r->held = true;
    s->counters.requests++;
    if (check_query(r, cut) == 0 && http_request_route(r) == 0 && check_body(r) == 0) {
        const struct http_upload *u = r->route->upload;
        if (!u) {
            r->held = false;
        } else if (u->begin(r->route->arg ? r->route->arg : s->o.arg, r, &r->sink) == 0) {
            r->held = false;
            r->sink_open = true;
        }
    }
    r->in_callback = false;
    /* Refused: answered at once, the body is not read. */
    return r->response ? queue_answer(r) : MHD_YES;
}

static void take_body(struct http_request *r, const char *data, size_t len)
{
    const struct http_route *t = r->route;
    r->body_bytes += len;
    r->server->counters.body_bytes_in += len;
    if (r->failed_body)
        return;
    int rc = -ERR_LIMIT;
    r->in_callback = true;
    if (t->upload)
        rc = t->upload->data(t->arg ? t->arg : r->server->o.arg, r, r->sink, data, len);
    else if (r->body_bytes <= r->max_body)
        rc = buf_append(&r->body, data, len);
    r->in_callback = false;
    r->failed_body = rc < 0;
}

static enum MHD_Result on_request(void *cls, struct MHD_Connection *c, const char *path,
                                  const char *method, const char *version, const char *data,
                                  size_t *len, void **req_cls)
{
    struct http_server *s = cls;
    struct http_request *r = *req_cls;
    if (!r || *req_cls == &too_many)
        return begin(s, c, path, method, req_cls);
    if (r->queued) {
        *len = 0;
        return MHD_YES;
    }
    if (*len) {
        take_body(r, data, *len);
        *len = 0;
        return r->body_bytes > r->max_body + HTTP_EXCESS_BYTES ? MHD_NO : MHD_YES; /* no: cut */
    }
    r->suspended = false;
    if (r->response)
        return queue_answer(r);
    if (r->failed_body && !r->route->upload) {
        r->held = true;
        r->in_callback = true;
        http_reply_error(r, 413, "too_large", "the body is larger than the %zu bytes taken here",
                         r->route->max_body);
        r->in_callback = false;
        return queue_answer(r);
    }
    r->sink_open = false;
    enter(r);
    return settle(r);
}

static void on_completed(void *cls, struct MHD_Connection *c, void **req_cls,
                         enum MHD_RequestTerminationCode why)
{
    struct http_request *r = *req_cls;
    if (!r || *req_cls == &too_many)
        return;
    *req_cls = NULL;
    r->connection = NULL;
    if (r->conn)
        r->conn->waiting_since_ms = loop_now_ms(r->server->loop);
    r->conn = NULL;
    if (r->sink_open && r->route->upload->abort) {
        r->sink_open = false;
        r->route->upload->abort(r->route->arg ? r->route->arg : r->server->o.arg, r, r->sink);
    }
    if (r->stream)
        http_stream_gone(r->stream);
    if (r->growth)
        http_growth_gone(r->growth);
    http_request_maybe_free(r);
}

static void kick(struct http_server *s);

/* Shuts down the connection that has waited for a next request for longest: libmicrohttpd would
 * accept nobody when all places are taken, and whoever asks again dials again. */
static void drop_unused(struct http_server *s)
{
    struct http_conn *out = NULL;
    for (struct list *l = s->conns.next; l != &s->conns; l = l->next) {
        struct http_conn *n = list_entry(l, struct http_conn, link);
        if (n->requests > 0 && n->waiting_since_ms != 0 &&
            (!out || n->waiting_since_ms < out->waiting_since_ms))
            out = n;
    }
    if (!out)
        return;
    (void)shutdown(out->fd, SHUT_RDWR);
    out->waiting_since_ms = 0; /* once */
}

/* Shuts down the connection that makes room for c: libmicrohttpd sees that and closes it. */
static void greet(struct http_server *s, struct MHD_Connection *c, struct http_conn *n)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    struct stranger *out = strangers_admit(&s->strangers, &n->stranger, info->client_addr);
    if (out)
        (void)shutdown(list_entry(out, struct http_conn, stranger)->fd, SHUT_RDWR);
    if (s->counters.connections >= s->o.max_connections - s->o.max_connections / 8)
        drop_unused(s);
}

static uint64_t bytes_of(const struct http_conn *n)
{
    uint64_t in = 0, out = 0;
    socket_bytes_add(n->fd, &in, &out);
    return in + out;
}

static void on_connection(void *cls, struct MHD_Connection *c, void **socket_context,
                          enum MHD_ConnectionNotificationCode what)
{
    struct http_server *s = cls;
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *info =
            MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
        struct http_conn *n = mem_alloc(sizeof(*n));
        int one = 1;
        unsigned idle_ms = s->o.idle_ms; /* also for bytes that the peer does not acknowledge */
        n->fd = info->connect_fd;
        n->waiting_since_ms = loop_now_ms(s->loop);
        greet(s, c, n);
        (void)setsockopt(n->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)); /* may fail */
        (void)setsockopt(n->fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &idle_ms, sizeof(idle_ms));
        list_push(&s->conns, &n->link);
        s->counters.connections++;
        *socket_context = n;
    } else {
        struct http_conn *n = *socket_context;
        if (n->holder != 0 && s->o.on_gone != NULL)
            s->o.on_gone(s->o.arg, n->holder, bytes_of(n));
        list_remove(&n->link);
        strangers_drop(&s->strangers, &n->stranger);
        s->counters.connections--;
        mem_free(n);
        *socket_context = NULL;
        kick(s); /* at its limit libmicrohttpd stops listening, and begins again when it runs */
    }
}

/* ---- time ---- */

/* libmicrohttpd closes silent connections; this cuts those that send too slowly. */
static void on_tick(void *arg)
{
    struct http_server *s = arg;
    uint64_t now = loop_now_ms(s->loop);
    for (struct list *l = s->conns.next; l != &s->conns; l = l->next) {
        struct http_conn *n = list_entry(l, struct http_conn, link);
        uint64_t limit = s->o.request_ms + (n->requests ? s->o.idle_ms : 0);
        if (n->waiting_since_ms && now - n->waiting_since_ms > limit)
            (void)shutdown(n->fd, SHUT_RDWR); /* libmicrohttpd sees it and closes */
    }
    for (struct list *l = s->requests.next; l != &s->requests; l = l->next) {
        struct http_request *r = list_entry(l, struct http_request, link);
        uint64_t age = now - r->start_ms;
        char byte;
        if (!r->conn || r->held || r->answered)
            continue;
        /* libmicrohttpd does not notice that a client left within its body. */
        bool left = recv(r->conn->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
        if (left || (age > BODY_FLOOR_MS && r->body_bytes < age / 1000 * BODY_FLOOR_BYTES_PER_S))
            (void)shutdown(r->conn->fd, SHUT_RDWR);
    }
    http_stream_tick(s);
}

/* True while a request is being served. */
static bool is_busy(const struct http_server *s)
{
    for (const struct list *l = s->requests.next; l != &s->requests; l = l->next) {
        const struct http_request *r = list_entry(l, struct http_request, link);
        if (r->connection && !r->suspended && !(r->stream && r->stream->suspended) &&
            !(r->growth && r->growth->suspended))
            return true;
    }
    return false;
}

static void on_more(void *arg)
{
    http_growth_wake(arg, false);
}

static void run(struct http_server *s);

static void on_due(void *arg)
{
    struct http_server *s = arg;
    s->run_due = false;
    if (!s->closing)
        run(s);
}

static void kick(struct http_server *s)
{
    if (s->closing || s->run_due)
        return;
    s->run_due = true;
    loop_defer(s->loop, on_due, s);
}

static void run(struct http_server *s)
{
    MHD_UNSIGNED_LONG_LONG ms;
    (void)MHD_run(s->daemon); /* fails only without external polling */
    if (s->closing)
        return;
    if (MHD_get_timeout(s->daemon, &ms) == MHD_NO) {
        loop_timer_stop(s->timer);
        return;
    }
    /* libmicrohttpd asks to run at once for a transfer under way, which is right, and
     * also while a TLS handshake waits for the client, which would use a whole
     * core: there its descriptor wakes the loop. */
    if (ms == 0 && s->spins < SPINS_MAX && is_busy(s)) {
        s->spins++;
        kick(s);
    } else {
        loop_timer_start(s->timer, ms < IDLE_RUN_MS ? IDLE_RUN_MS : ms, 0);
    }
}

static void on_timer(void *arg)
{
    struct http_server *s = arg;
    s->spins = 0;
    run(s);
}

static void on_readable(uv_poll_t *h, int status, int ev)
{
    struct http_server *s = h->data;
    s->spins = 0;
    run(s);
}

/* ---- the server ---- */

static void on_log(void *cls, const char *fmt, va_list ap) __attribute__((format(printf, 2, 0)));
static void on_log(void *cls, const char *fmt, va_list ap)
{
    char text[512];
    if (!log_enabled(LOG_LEVEL_DEBUG))
        return;
    (void)vsnprintf(text, sizeof(text), fmt, ap); /* cut is fine */
    log_debug("http", "%s", text);
}

static void set_defaults(struct http_server_options *o)
{
    o->host = o->host ? o->host : "0.0.0.0";
    o->cookie = o->cookie ? o->cookie : "skerry";
    o->max_connections = o->max_connections ? o->max_connections : 256;
    o->max_strangers = o->max_strangers ? o->max_strangers : (o->max_connections + 1) / 2;
    o->max_streams = o->max_streams ? o->max_streams : 64;
    o->request_ms = o->request_ms ? o->request_ms : 10000;
    o->idle_ms = o->idle_ms ? o->idle_ms : 30000;
    o->max_stream_bytes = o->max_stream_bytes ? o->max_stream_bytes : 256 * 1024;
    o->ping_ms = o->ping_ms ? o->ping_ms : 10000;
}

static int listen_on(struct http_server *s, int *ret_family, struct err *err)
{
    struct sockaddr_storage a = {0};
    socklen_t len = sizeof(struct sockaddr_in);
    int one = 1;
    if (uv_ip4_addr(s->o.host, s->o.port, (struct sockaddr_in *)&a) < 0) {
        len = sizeof(struct sockaddr_in6);
        if (uv_ip6_addr(s->o.host, s->o.port, (struct sockaddr_in6 *)&a) < 0)
            return err_set(err, -ERR_CONFIG, "%s is not an address to listen on", s->o.host);
    }
    if (!s->o.keys && strncmp(s->o.host, "127.", 4) != 0 && strcmp(s->o.host, "::1") != 0)
        return err_set(err, -ERR_CONFIG,
                       "plain HTTP is served on a loopback address only, not %s: somebody who "
                       "listens on the way would learn the token",
                       s->o.host);
    s->listen_fd = socket(a.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (s->listen_fd < 0)
        return err_errno(err, "cannot make a socket for HTTP");
    (void)setsockopt(s->listen_fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)); /* may fail */
    if (bind(s->listen_fd, (struct sockaddr *)&a, len) < 0 || listen(s->listen_fd, BACKLOG) < 0) {
        if (errno == EADDRINUSE)
            return err_set(err, -EADDRINUSE,
                           "port %u on %s is in use by another program: stop it "
                           "or choose another port",
                           s->o.port, s->o.host);
        return err_errno(err, "cannot listen on %s port %u", s->o.host, s->o.port);
    }
    len = sizeof(a);
    if (getsockname(s->listen_fd, (struct sockaddr *)&a, &len) < 0)
        return err_errno(err, "cannot read the port of HTTP");
    *ret_family = a.ss_family;
    s->port = ntohs(a.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&a)->sin6_port
                                            : ((struct sockaddr_in *)&a)->sin_port);
    return 0;
}

static int start(struct http_server *s, int family, struct err *err)
{
    const struct keys *k = s->o.keys;
    struct MHD_OptionItem tls[] = {
        {MHD_OPTION_HTTPS_MEM_KEY, 0, k ? (void *)keys_key_pem(k) : NULL},
        {MHD_OPTION_HTTPS_MEM_CERT, 0, k ? (void *)keys_cert_pem(k) : NULL},
        {MHD_OPTION_HTTPS_PRIORITIES, 0, (void *)PRIORITIES},
        {MHD_OPTION_END, 0, NULL},
    };
    unsigned flags = MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG;
    if (k)
        flags |= MHD_USE_TLS;
    if (family == AF_INET6)
        flags |= MHD_USE_IPv6;
    s->daemon = MHD_start_daemon(
        flags, 0, NULL, NULL, on_request, s, MHD_OPTION_EXTERNAL_LOGGER, on_log, NULL,
        MHD_OPTION_LISTEN_SOCKET, s->listen_fd, MHD_OPTION_CONNECTION_LIMIT, s->o.max_connections,
        MHD_OPTION_CONNECTION_TIMEOUT, (s->o.idle_ms + 999) / 1000,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_MEMORY, MHD_OPTION_NOTIFY_COMPLETED,
        on_completed, s, MHD_OPTION_NOTIFY_CONNECTION, on_connection, s,
        MHD_OPTION_URI_LOG_CALLBACK, on_uri, s, MHD_OPTION_ARRAY, k ? tls : tls + 3,
        MHD_OPTION_END);
    if (!s->daemon)
        return err_set(err, -ERR_CONFIG, "cannot start the HTTP server (see the debug log)");
    s->listen_fd = -1; /* the daemon's now */
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(s->daemon, MHD_DAEMON_INFO_EPOLL_FD);
    s->poll = mem_alloc(sizeof(*s->poll));
    int rc = uv_poll_init(loop_uv(s->loop), s->poll, info->epoll_fd);
    if (rc == 0)
        rc = uv_poll_start(s->poll, UV_READABLE, on_readable);
    if (rc < 0)
        return err_set(err, rc, "cannot watch the HTTP server: %s", uv_strerror(rc));
    s->poll->data = s;
    return 0;
}

int http_server_open(struct loop *loop, const struct http_server_options *o,
                     struct http_server **ret, struct err *err)
{
    ASSERT_LOOP_THREAD(loop);
    struct http_server *s = mem_alloc(sizeof(*s));
    int family = AF_INET;
    s->loop = loop;
    s->o = *o;
    s->kick = kick;
    s->listen_fd = -1;
    set_defaults(&s->o);
    list_init(&s->conns);
    strangers_init(&s->strangers, s->o.max_strangers,
                   (s->o.max_strangers + ADDRESS_SHARE - 1) / ADDRESS_SHARE, NULL);
    list_init(&s->requests);
    list_init(&s->streams);
    list_init(&s->growths);
    s->more = loop_timer_new(loop, on_more, s);
    s->timer = loop_timer_new(loop, on_timer, s);
    s->tick = loop_timer_new(loop, on_tick, s);
    int rc = listen_on(s, &family, err);
    if (rc == 0)
        rc = start(s, family, err);
    if (rc < 0) {
        http_server_close(s);
        return rc;
    }
    loop_timer_start(s->tick, TICK_MS, TICK_MS);
    *ret = s;
    return 0;
}

void http_server_routes(struct http_server *s, const struct http_route *routes, unsigned count)
{
    ASSERT_LOOP_THREAD(s->loop);
    if (s->group_count == HTTP_GROUPS_MAX) {
        log_error("http", "more than %d groups of routes", HTTP_GROUPS_MAX);
        abort();
    }
    s->groups[s->group_count].routes = routes;
    s->groups[s->group_count++].count = count;
}

static void poll_closed(uv_handle_t *h)
{
    mem_free(h);
}

static void server_free(void *arg)
{
    mem_free(arg);
}

/* libmicrohttpd may not be stopped while something is suspended. */
static void wake_all(struct http_server *s)
{
    for (struct list *l = s->streams.next; l != &s->streams; l = l->next) {
        struct http_stream *st = list_entry(l, struct http_stream, link);
        st->ending = st->cut = true;
        if (st->suspended)
            MHD_resume_connection(st->request->connection);
        st->suspended = false;
    }
    http_growth_wake(s, true);
    for (struct list *l = s->requests.next; l != &s->requests; l = l->next) {
        struct http_request *r = list_entry(l, struct http_request, link);
        if (!r->suspended || !r->connection)
            continue;
        static const char text[] = "the server is stopping\n";
        r->suspended = false;
        r->status = 503;
        if (r->response)
            MHD_destroy_response(r->response);
        r->response =
            MHD_create_response_from_buffer(sizeof(text) - 1, (void *)text, MHD_RESPMEM_PERSISTENT);
        MHD_resume_connection(r->connection);
    }
}

void http_server_cut(struct http_server *s, uint64_t holder)
{
    for (struct list *l = s->conns.next; l != &s->conns; l = l->next) {
        const struct http_conn *n = list_entry(l, struct http_conn, link);
        if (n->holder == holder)
            (void)shutdown(n->fd, SHUT_RDWR); /* libmicrohttpd sees it and closes */
    }
}

uint64_t http_server_moved(const struct http_server *s, uint64_t holder)
{
    uint64_t bytes = 0;
    for (const struct list *l = s->conns.next; l != &s->conns; l = l->next) {
        const struct http_conn *n = list_entry(l, struct http_conn, link);
        bytes += n->holder == holder ? bytes_of(n) : 0;
    }
    return bytes;
}

void http_server_close(struct http_server *s)
{
    if (!s)
        return;
    ASSERT_LOOP_THREAD(s->loop);
    s->closing = true;
    if (s->poll) {
        (void)uv_poll_stop(s->poll); /* cannot fail */
        uv_close((uv_handle_t *)s->poll, poll_closed);
    }
    if (s->daemon) {
        wake_all(s);
        MHD_stop_daemon(s->daemon);
    }
    if (s->listen_fd >= 0)
        close(s->listen_fd);
    loop_timer_free(s->more);
    loop_timer_free(s->timer);
    loop_timer_free(s->tick);
    /* Requests that handlers still hold point to the server. */
    for (struct list *l; (l = list_pop(&s->requests));)
        list_entry(l, struct http_request, link)->server = NULL;
    loop_defer(s->loop, server_free, s);
}

uint16_t http_server_port(const struct http_server *s)
{
    return s->port;
}

struct http_counters http_server_counters(const struct http_server *s)
{
    struct http_counters n = s->counters;
    n.strangers = s->strangers.count;
    return n;
}
