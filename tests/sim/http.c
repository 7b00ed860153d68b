#include "tests/sim/http.h"

#include <stdlib.h>
#include <unistd.h>

#include "common/net/http/http_impl.h"
#include "coordinator/state/core.h"
#include "tests/sim/disk.h"
#include "tests/sim/sim.h"

#define WAY_MS 30
#define PAIRS_MAX 8
#define HEADERS_MAX 6
#define HEADER_BYTES 256 /* of an answer's, at most */
#define PIECES 3         /* of a body, about */

struct pair {
    char *name, *value;
};

/* libmicrohttpd's connection, with the one who asks. */
struct MHD_Connection {
    struct list link; /* of those that the servers have */
    struct http_server *server;
    struct http_request *req;
    struct http_conn conn;
    union MHD_ConnectionInfo info;
    char *method, *path, *body, *cookie;
    struct pair query[PAIRS_MAX], headers[HEADERS_MAX];
    size_t n_query, n_headers, len, at;
    bool suspended;
    struct http_call *call;
};

/* The one who asks: outlives the connection. */
struct http_call {
    struct http_call *next;
    struct MHD_Connection *c; /* NULL: it is closed */
    http_said_fn said;
    void *arg;
    struct list back; /* packets on their way, in order: none overtakes another */
    bool here;
};

struct MHD_Response {
    char *body;
    size_t len;
    uint64_t have;
    char cookie[HEADER_BYTES], content_range[HEADER_BYTES];
    MHD_ContentReaderCallback read; /* of a stream */
    void *arg;
    unsigned held;
};

#define SERVERS_MAX 2 /* as those of net.c */

static struct {
    struct http_server *servers[SERVERS_MAX];
    unsigned n_servers;
    struct list conns; /* of all of them */
    struct http_call *calls;
    uint64_t said, lost_before; /* packets; those are lost */
} http;

/* ---- what libmicrohttpd gives to http_request.c ------------------------------ */

const union MHD_ConnectionInfo *MHD_get_connection_info(struct MHD_Connection *c,
                                                        enum MHD_ConnectionInfoType type, ...)
{
    c->info.socket_context = &c->conn;
    return &c->info;
}

static const char *find(const struct pair *list, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcasecmp(list[i].name, name) == 0)
            return list[i].value;
    return NULL;
}

const char *MHD_lookup_connection_value(struct MHD_Connection *c, enum MHD_ValueKind kind,
                                        const char *key)
{
    if (kind == MHD_GET_ARGUMENT_KIND)
        return find(c->query, c->n_query, key);
    if (kind == MHD_COOKIE_KIND)
        return c->cookie;
    return kind == MHD_HEADER_KIND ? find(c->headers, c->n_headers, key) : NULL;
}

static struct MHD_Response *response_new(const void *data, size_t len)
{
    struct MHD_Response *r = mem_alloc(sizeof(*r));
    r->body = memcpy(mem_alloc(len + 1), data != NULL ? data : "", len);
    r->len = len;
    r->held = 1;
    return r;
}

struct MHD_Response *MHD_create_response_from_buffer(size_t size, void *buffer,
                                                     enum MHD_ResponseMemoryMode mode)
{
    struct MHD_Response *r = response_new(buffer, size);
    if (mode == MHD_RESPMEM_MUST_FREE)
        free(buffer);
    return r;
}

struct MHD_Response *MHD_create_response_from_fd_at_offset64(uint64_t size, int fd, uint64_t offset)
{
    char *data = mem_alloc(size + 1);
    if (pread(fd, data, size, (off_t)offset) != (ssize_t)size)
        sim_fail("a blob cannot be read as it is sent");
    struct MHD_Response *r = response_new(data, size);
    mem_free(data);
    (void)close(fd);
    return r;
}

struct MHD_Response *MHD_create_response_from_callback(uint64_t size, size_t block_size,
                                                       MHD_ContentReaderCallback crc, void *crc_cls,
                                                       MHD_ContentReaderFreeCallback crfc)
{
    struct MHD_Response *r = response_new(NULL, 0);
    r->read = crc;
    r->arg = crc_cls;
    return r;
}

enum MHD_Result MHD_add_response_header(struct MHD_Response *response, const char *header,
                                        const char *content)
{
    unsigned long long last;
    if (strcmp(header, "Range") == 0 && sscanf(content, "bytes=0-%llu", &last) == 1)
        response->have = last + 1;
    if (strcmp(header, "Set-Cookie") == 0)
        (void)str_copy(response->cookie, sizeof(response->cookie), content);
    if (strcmp(header, "Content-Range") == 0)
        (void)str_copy(response->content_range, sizeof(response->content_range), content);
    return MHD_YES;
}

void MHD_destroy_response(struct MHD_Response *response)
{
    if (--response->held > 0)
        return;
    mem_free(response->body);
    mem_free(response);
}

void MHD_suspend_connection(struct MHD_Connection *c)
{
    c->suspended = true;
}

void MHD_resume_connection(struct MHD_Connection *c)
{
    c->suspended = false;
}

/* ---- the way back -------------------------------------------------------------- */

struct packet {
    struct list link;
    struct http_said said;
    bool last; /* else a stream goes on */
    uint64_t n;
    char cookie[HEADER_BYTES], content_range[HEADER_BYTES], body[];
};

static void come_back(void *arg)
{
    struct http_call *call = arg;
    struct packet *p = list_entry(list_pop(&call->back), struct packet, link);
    if (p->n <= http.lost_before) {
        p->said = (struct http_said){0};
        p->last = true;
    }
    if (call->here) {
        call->here = !p->last;
        call->said(call->arg, &p->said);
    }
    mem_free(p);
}

/* response: with its headers; NULL: without. */
static void say(struct http_call *call, unsigned status, const char *body, size_t len,
                const struct MHD_Response *response, bool last)
{
    struct packet *p = mem_alloc(sizeof(*p) + len + 1);
    memcpy(p->body, body, len);
    const struct coordinator *co = call->c != NULL ? call->c->server->o.arg : NULL;
    const bool promises = co != NULL && co->store_ok;
    p->said = (struct http_said){status, p->body, len, 0, promises, p->cookie, p->content_range};
    if (response != NULL) {
        p->said.have = response->have;
        memcpy(p->cookie, response->cookie, sizeof(p->cookie));
        memcpy(p->content_range, response->content_range, sizeof(p->content_range));
    }
    p->last = last;
    p->n = ++http.said;
    list_push(&call->back, &p->link);
    (void)sim_in(sim_below(WAY_MS), come_back, call);
}

static void cut(struct http_call *call)
{
    say(call, 0, "", 0, NULL, true);
}

static void drop_pairs(struct pair *list, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        mem_free(list[i].name);
        mem_free(list[i].value);
    }
}

/* The server is through with it. */
static void complete(struct MHD_Connection *c)
{
    struct http_request *r = c->req;
    list_remove(&c->link);
    c->call->c = NULL;
    if (r != NULL) {
        r->connection = NULL;
        r->conn = NULL;
        if (r->sink_open)
            r->route->upload->abort(r->route->arg, r, r->sink);
        r->sink_open = false;
        if (r->stream != NULL)
            http_stream_gone(r->stream);
        http_request_maybe_free(r);
    }
    drop_pairs(c->query, c->n_query);
    drop_pairs(c->headers, c->n_headers);
    mem_free(c->method);
    mem_free(c->path);
    mem_free(c->body);
    mem_free(c->cookie);
    mem_free(c);
}

static void send_stream(struct MHD_Connection *c)
{
    const struct MHD_Response *r = c->req->response;
    char text[4096];
    for (ssize_t n; (n = r->read(r->arg, 0, text, sizeof(text))) != 0;) {
        if (n < 0) {
            cut(c->call);
            MHD_destroy_response(c->req->response);
            c->req->response = NULL;
            complete(c);
            return;
        }
        if (!disk_crashed())
            say(c->call, 200, text, (size_t)n, NULL, false);
    }
}

/* Whoever has an answer gets it. */
static void settle(struct MHD_Connection *c)
{
    struct http_request *r = c->req;
    struct MHD_Response *response = r->response;
    if (response == NULL || c->suspended)
        return;
    if (r->stream != NULL) {
        send_stream(c);
        return;
    }
    r->response = NULL;
    if (!disk_crashed())
        say(c->call, r->status, response->body, response->len, response, true);
    complete(c);
    MHD_destroy_response(response);
}

static void settle_all(void *arg)
{
    for (struct list *l = http.conns.next, *next; http.n_servers > 0 && l != &http.conns;
         l = next) {
        struct MHD_Connection *c = list_entry(l, struct MHD_Connection, link);
        next = l->next;
        if (c->req != NULL)
            settle(c);
    }
}

static void kick(struct http_server *s)
{
    (void)sim_in(0, settle_all, NULL);
}

/* ---- the way there --------------------------------------------------------------- */

static void handle(struct MHD_Connection *c)
{
    struct http_request *r = c->req;
    const struct http_route *t = r->route;
    r->sink_open = false;
    r->in_callback = r->held = true;
    t->handle(t->arg != NULL ? t->arg : r->server->o.arg, r);
    r->in_callback = false;
    if (r->response != NULL) {
        settle(c);
        return;
    }
    r->suspended = true;
    MHD_suspend_connection(c);
}

static void take_piece(void *arg)
{
    struct http_call *call = arg;
    struct MHD_Connection *c = call->c;
    if (c == NULL || c->req == NULL)
        return;
    struct http_request *r = c->req;
    const struct http_upload *u = r->route->upload;
    if (u != NULL && sim_chance(30)) {
        complete(c);
        cut(call);
        return;
    }
    size_t n = 1 + sim_below(c->len / PIECES + 1);
    n = n < c->len - c->at ? n : c->len - c->at;
    if (n == 0) {
        handle(c);
        return;
    }
    const int rc = u != NULL ? u->data(r->route->arg, r, r->sink, c->body + c->at, n)
                             : buf_append(&r->body, c->body + c->at, n);
    c->at = rc < 0 ? c->len : c->at + n; /* a body that is not wanted is not read */
    (void)sim_in(sim_below(WAY_MS), take_piece, call);
}

static void arrive(void *arg)
{
    struct http_call *call = arg;
    struct MHD_Connection *c = call->c;
    if (c == NULL)
        return;
    struct http_request *r = c->req = http_request_new(c->server, c, c->path, c->method);
    r->in_callback = r->held = true;
    if (http_request_route(r) == 0) {
        const struct http_upload *u = r->route->upload;
        if (u == NULL || u->begin(r->route->arg, r, &r->sink) == 0)
            r->held = false;
        r->sink_open = u != NULL && !r->held;
    }
    r->in_callback = false;
    if (r->response != NULL)
        settle(c);
    else
        (void)sim_in(0, take_piece, call);
}

/* "a=b&c=d" */
static void take_query(struct MHD_Connection *c, const char *text)
{
    while (text != NULL && *text != '\0' && c->n_query < PAIRS_MAX) {
        const size_t n = strcspn(text, "&"), eq = strcspn(text, "=&");
        struct pair *p = &c->query[c->n_query++];
        p->name = str_printf("%.*s", (int)eq, text);
        p->value = str_printf("%.*s", (int)(n > eq ? n - eq - 1 : 0), text + eq + (n > eq));
        text += n + (text[n] == '&');
    }
}

struct http_call *http_ask(const struct http_ask *a, http_said_fn said, void *arg)
{
    if (http.n_servers == 0 || disk_crashed())
        return NULL;
    struct http_call *call = mem_alloc(sizeof(*call));
    struct MHD_Connection *c = mem_alloc(sizeof(*c));
    const size_t path = strcspn(a->target, "?");
    *call = (struct http_call){.next = http.calls, .c = c, .said = said, .arg = arg, .here = true};
    list_init(&call->back);
    http.calls = call;
    c->call = call;
    c->server = http.servers[http.n_servers > 1 ? sim_below(http.n_servers) : 0];
    c->method = str_dup(a->method);
    c->path = str_printf("%.*s", (int)path, a->target);
    take_query(c, a->target[path] == '?' ? a->target + path + 1 : NULL);
    if (a->bearer != NULL)
        c->headers[c->n_headers++] =
            (struct pair){str_dup("Authorization"), str_printf("Bearer %s", a->bearer)};
    if (a->range != NULL)
        c->headers[c->n_headers++] = (struct pair){str_dup("Content-Range"), str_dup(a->range)};
    for (size_t i = 0; i < a->n_headers && c->n_headers < HEADERS_MAX; i++)
        c->headers[c->n_headers++] =
            (struct pair){str_dup(a->headers[i].name), str_dup(a->headers[i].value)};
    c->cookie = str_dup(a->cookie);
    c->body = memcpy(mem_alloc(a->len + 1), a->len > 0 ? a->body : "", a->len);
    c->len = a->len;
    c->conn.fd = -1;
    list_init(&c->conn.stranger.link);
    list_init(&c->link);
    list_push(&http.conns, &c->link);
    (void)sim_in(sim_below(WAY_MS), arrive, call);
    return call;
}

/* libmicrohttpd does not look at a connection that waits for its answer. */
static void close_conn(struct MHD_Connection *c)
{
    if (c->req == NULL || !c->suspended || c->req->stream != NULL)
        complete(c);
}

void http_hang_up(struct http_call *c)
{
    if (c == NULL)
        return;
    c->here = false;
    if (c->c != NULL)
        close_conn(c->c);
}

/* ---- the server -------------------------------------------------------------------- */

int http_server_open(struct loop *loop, const struct http_server_options *o,
                     struct http_server **ret, struct err *err)
{
    struct http_server *s = mem_alloc(sizeof(*s));
    s->loop = loop;
    s->o = *o;
    s->o.max_connections = 2; /* of a holder one, and its list stays empty: there is room */
    s->o.max_streams = 4;
    s->o.max_stream_bytes = 256 * 1024;
    s->kick = kick;
    list_init(&s->conns);
    list_init(&s->requests);
    list_init(&s->streams);
    if (http.n_servers == SERVERS_MAX)
        sim_fail("more than %d coordinators listen", SERVERS_MAX);
    if (http.conns.next == NULL)
        list_init(&http.conns);
    strangers_init(&s->strangers, 8, 8, NULL);
    *ret = http.servers[http.n_servers++] = s;
    return 0;
}

void http_server_routes(struct http_server *s, const struct http_route *routes, unsigned count)
{
    s->groups[s->group_count].routes = routes;
    s->groups[s->group_count++].count = count;
}

uint16_t http_server_port(const struct http_server *s)
{
    return 7001;
}

struct http_counters http_server_counters(const struct http_server *s)
{
    return s->counters;
}

void http_server_cut(struct http_server *s, uint64_t holder)
{
    for (struct list *l = http.conns.next, *next; l != &http.conns; l = next) {
        struct MHD_Connection *c = list_entry(l, struct MHD_Connection, link);
        next = l->next;
        if (c->server != s || c->conn.holder != holder || c->req == NULL || c->req->in_callback)
            continue;
        cut(c->call);
        close_conn(c);
    }
}

uint64_t http_server_moved(const struct http_server *s, uint64_t holder)
{
    return 0;
}

void http_server_close(struct http_server *s)
{
    if (s == NULL)
        return;
    for (struct list *l = http.conns.next, *next; l != &http.conns; l = next) {
        struct MHD_Connection *c = list_entry(l, struct MHD_Connection, link);
        next = l->next;
        if (c->server != s)
            continue;
        cut(c->call);
        complete(c);
    }
    for (struct list *l; (l = list_pop(&s->requests)) != NULL;)
        list_entry(l, struct http_request, link)->server = NULL; /* handlers hold them */
    for (unsigned i = 0; i < http.n_servers; i++)
        if (http.servers[i] == s)
            http.servers[i] = http.servers[--http.n_servers];
    mem_free(s);
}

void http_lose_answers(void)
{
    http.lost_before = http.said;
}

void http_end(void)
{
    for (struct http_call *c = http.calls, *next; c != NULL; c = next) {
        next = c->next;
        mem_free(c);
    }
    http.calls = NULL;
}
