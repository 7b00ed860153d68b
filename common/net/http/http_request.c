/* A request of the HTTP server: its route, its client, its answer, and streams. */
#include "common/net/http/http_impl.h"

#include <sys/socket.h>
#include <unistd.h>

#include "common/base/base.h"
#include "common/net/growing.h"
#include "common/net/loop.h"
#include "common/net/token.h"

#define STREAM_BLOCK_BYTES 8192
#define FILE_BLOCK_BYTES (64 * 1024)
#define HOLDER_SHARE 2 /* one holder has at most 1/2 of the places: more than its streams take */

struct http_request *http_request_new(struct http_server *s, struct MHD_Connection *c,
                                      const char *path, const char *method)
{
    struct http_request *r = mem_alloc(sizeof(*r));
    r->server = s;
    r->connection = c;
    r->path = str_dup(path);
    r->method = str_dup(method);
    r->start_ms = loop_now_ms(s->loop);
    buf_init(&r->body, 0);
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    r->conn = info ? info->socket_context : NULL;
    if (r->conn) {
        r->conn->requests++;
        r->conn->waiting_since_ms = 0;
    }
    list_push(&s->requests, &r->link);
    return r;
}

static void request_free(struct http_request *r)
{
    list_remove(&r->link);
    for (unsigned i = 0; i < r->param_count; i++)
        mem_free(r->params[i].value);
    for (unsigned i = 0; i < r->header_count; i++) {
        mem_free(r->headers[i].name);
        mem_free(r->headers[i].value);
    }
    if (r->response)
        MHD_destroy_response(r->response);
    buf_release(&r->body);
    mem_free(r->path);
    mem_free(r->method);
    mem_free(r);
}

void http_request_maybe_free(struct http_request *r)
{
    if (!r->connection && (r->answered || !r->held))
        request_free(r);
}

/* ---- routes ---- */

static void drop_params(struct http_request *r)
{
    while (r->param_count > 0)
        mem_free(r->params[--r->param_count].value);
}

static bool match(struct http_request *r, const char *pattern)
{
    const char *p = pattern, *u = r->path;
    drop_params(r);
    while (*p) {
        if (*p != '{') {
            if (*p++ != *u++)
                return false;
            continue;
        }
        size_t name_len = strcspn(p + 1, "}"), len = strcspn(u, "/");
        if (len == 0 || r->param_count == HTTP_PARAMS_MAX)
            return false;
        r->params[r->param_count].name = p + 1;
        r->params[r->param_count].name_len = name_len;
        r->params[r->param_count++].value = str_ndup(u, len);
        p += name_len + 2;
        u += len;
    }
    return *u == '\0';
}

static bool method_fits(const struct http_route *t, const char *method)
{
    return strcmp(t->method, method) == 0 ||
           (strcmp(method, "HEAD") == 0 && strcmp(t->method, "GET") == 0);
}

/* ---- who asks ---- */

static void learn_role(struct http_request *r)
{
    const struct http_server_options *o = &r->server->o;
    const char *header = http_request_header(r, "Authorization");
    const char *query = http_request_query(r, "token"), *cookie = http_request_cookie(r);
    if (!o->authenticate)
        return;
    if (header && strncasecmp(header, "Bearer ", 7) == 0) {
        r->role = o->authenticate(o->arg, header + 7, &r->holder);
    } else if (query) {
        r->role = o->authenticate(o->arg, query, &r->holder);
    } else if (cookie && o->session) {
        r->role = o->session(o->arg, cookie, &r->holder);
        r->by_cookie = r->role != 0;
    }
}

/* True if a page of this server sent the request.  A browser also sends the cookie for pages of
 * other ports of this host, but it marks such requests or names the page's origin. */
static bool is_from_us(const struct http_request *r)
{
    const char *site = http_request_header(r, "Sec-Fetch-Site");
    const char *origin = http_request_header(r, "Origin"), *host = http_request_header(r, "Host");
    const char *scheme = r->server->o.keys ? "https://" : "http://";
    if (site)
        return strcmp(site, "same-origin") == 0;
    return origin && host && str_starts(origin, scheme) &&
           strcasecmp(origin + strlen(scheme), host) == 0;
}

static bool only_reads(const struct http_request *r)
{
    return strcmp(r->method, "GET") == 0 || strcmp(r->method, "HEAD") == 0;
}

/* Answers 403 with the roles of the route and the client's role. */
static void reply_wrong_role(struct http_request *r)
{
    char wanted[64] = "";
    for (unsigned bit = 1; bit <= TOKEN_ROLE_VIEWER; bit <<= 1) {
        size_t n = strlen(wanted);
        if (r->route->roles & bit)
            snprintf(wanted + n, sizeof wanted - n, "%s%s", n ? " or " : "",
                     token_role_name((enum token_role)bit));
    }
    http_reply_error(r, 403, "forbidden", "this takes a token of role %s; yours has the role %s",
                     wanted, token_role_name((enum token_role)r->role));
}

int http_request_route(struct http_request *r)
{
    struct http_server *s = r->server;
    char allow[64] = ""; /* the methods of this path */
    for (unsigned g = 0; g < s->group_count && !r->route; g++) {
        for (unsigned i = 0; i < s->groups[g].count && !r->route; i++) {
            const struct http_route *t = &s->groups[g].routes[i];
            if (!match(r, t->pattern))
                continue;
            const size_t n = strlen(allow);
            (void)snprintf(allow + n, sizeof allow - n, "%s%s%s", n ? ", " : "", t->method,
                           strcmp(t->method, "GET") == 0 ? ", HEAD" : "");
            if (method_fits(t, r->method))
                r->route = t;
        }
    }
    if (!r->route) {
        if (allow[0]) {
            http_reply_header(r, "Allow", allow);
            http_reply_error(r, 405, "method_not_allowed", "%s is not possible here, only %s",
                             r->method, allow);
        } else {
            http_reply_error(r, 404, "not_found", "there is nothing at %s", r->path);
        }
        return -ERR_NOTFOUND;
    }
    learn_role(r);
    struct err err = {0};
    if (r->role && http_request_trust(r, r->holder, &err) < 0) {
        http_reply_err(r, &err);
        return -EAGAIN;
    }
    buf_init(&r->body, r->route->max_body);
    if (r->by_cookie && !only_reads(r) && !is_from_us(r)) {
        http_reply_error(r, 403, "forbidden",
                         "this request did not come from a page of this server: only those may "
                         "change things with a cookie, use Authorization: Bearer ...");
        return -ERR_AUTH;
    }
    if (!r->route->roles || (r->role & r->route->roles))
        return 0;
    if (r->role) {
        reply_wrong_role(r);
    } else {
        http_reply_header(r, "WWW-Authenticate", "Bearer");
        http_reply_error(r, 401, "unauthorized",
                         "a valid token is needed: Authorization: Bearer ..., or ?token=...");
    }
    return -ERR_AUTH;
}

/* ---- what was asked ---- */

const char *http_request_method(const struct http_request *r)
{
    return r->method;
}

const char *http_request_param(const struct http_request *r, const char *name)
{
    for (unsigned i = 0; i < r->param_count; i++)
        if (strlen(name) == r->params[i].name_len &&
            strncmp(r->params[i].name, name, r->params[i].name_len) == 0)
            return r->params[i].value;
    return NULL;
}

const char *http_request_query(const struct http_request *r, const char *name)
{
    if (!r->connection)
        return NULL;
    return MHD_lookup_connection_value(r->connection, MHD_GET_ARGUMENT_KIND, name);
}

const char *http_request_header(const struct http_request *r, const char *name)
{
    if (!r->connection)
        return NULL;
    return MHD_lookup_connection_value(r->connection, MHD_HEADER_KIND, name);
}

const char *http_request_cookie(const struct http_request *r)
{
    if (!r->connection)
        return NULL;
    return MHD_lookup_connection_value(r->connection, MHD_COOKIE_KIND, r->server->o.cookie);
}

const void *http_request_body(const struct http_request *r, size_t *ret_len)
{
    *ret_len = r->body.len;
    return buf_str(&r->body);
}

unsigned http_request_role(const struct http_request *r)
{
    return r->role;
}

uint64_t http_request_holder(const struct http_request *r)
{
    return r->holder;
}

static unsigned connections_of(const struct http_server *s, uint64_t holder)
{
    unsigned n = 0;
    for (const struct list *l = s->conns.next; l != &s->conns; l = l->next)
        n += list_entry(l, struct http_conn, link)->holder == holder;
    return n;
}

int http_request_trust(struct http_request *r, uint64_t holder, struct err *err)
{
    r->holder = holder;
    if (!r->conn)
        return 0;
    const unsigned most = (r->server->o.max_connections + HOLDER_SHARE - 1) / HOLDER_SHARE;
    if (r->conn->holder != holder && connections_of(r->server, holder) >= most)
        return err_set(err, -EAGAIN,
                       "%u connections are open with this token or this worker's tickets, the most "
                       "that one may have: close some, or try again later",
                       most);
    r->conn->holder = holder;
    strangers_drop(&r->server->strangers, &r->conn->stranger);
    return 0;
}

void *http_request_sink(const struct http_request *r)
{
    return r->sink;
}

int http_request_param_u64(struct http_request *r, const char *name, uint64_t *ret)
{
    const char *text = http_request_param(r, name);
    if (text && str_parse_u64(text, ret) == 0)
        return 0;
    http_reply_error(r, 400, "invalid", "%s must be a whole number, not \"%.60s\"", name,
                     text ? text : "");
    return -EINVAL;
}

int http_request_query_u64(struct http_request *r, const char *name, uint64_t fallback,
                           uint64_t max, uint64_t *ret)
{
    const char *text = http_request_query(r, name);
    uint64_t n = fallback;
    if (text && (str_parse_u64(text, &n) < 0 || n > max)) {
        http_reply_error(r, 400, "invalid", "%s must be a whole number up to %llu, not \"%.60s\"",
                         name, (unsigned long long)max, text);
        return -EINVAL;
    }
    *ret = n;
    return 0;
}

int http_request_limit(struct http_request *r, uint64_t bytes, struct err *err)
{
    const char *len = http_request_header(r, "Content-Length");
    uint64_t n = 0;
    r->max_body = bytes;
    if (len && str_parse_u64(len, &n) < 0) /* without: none, or chunked, and counted as it comes */
        return err_set(err, -EINVAL, "Content-Length is not a number");
    if (n > bytes)
        return err_set(err, -ERR_LIMIT, "the body has %llu bytes, at most %llu are taken here",
                       (unsigned long long)n, (unsigned long long)bytes);
    return 0;
}

int http_request_json(struct http_request *r, json_t **ret)
{
    json_error_t e;
    json_t *j = json_loadb(buf_str(&r->body), r->body.len, JSON_REJECT_DUPLICATES, &e);
    if (!j) {
        http_reply_error(r, 400, "invalid_json", "the body is not JSON: %s (line %d, column %d)",
                         e.text, e.line, e.column);
        return -ERR_FORMAT;
    }
    if (!json_is_object(j)) {
        json_decref(j);
        http_reply_error(r, 400, "invalid_json", "the body must be a JSON object");
        return -ERR_FORMAT;
    }
    *ret = j;
    return 0;
}

/* ---- the answer ---- */

/* Takes response; queues it, now or when libmicrohttpd asks again. */
static void reply_response(struct http_request *r, unsigned status, struct MHD_Response *response,
                           const char *content_type)
{
    if (r->answered || !response || !r->connection || !r->server) {
        /* The client is gone, or memory is: nothing to say, the request ends. */
        if (response)
            MHD_destroy_response(response);
        r->answered = true;
        if (r->connection && r->suspended && r->server && !r->response) {
            r->status = 503;
            r->response = MHD_create_response_from_buffer(0, NULL, MHD_RESPMEM_PERSISTENT);
            r->suspended = false;
            MHD_resume_connection(r->connection);
            r->server->kick(r->server);
        }
        http_request_maybe_free(r);
        return;
    }
    if (content_type)
        (void)MHD_add_response_header(response, "Content-Type", content_type); /* valid names */
    (void)MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    for (unsigned i = 0; i < r->header_count; i++)
        (void)MHD_add_response_header(response, r->headers[i].name, r->headers[i].value);
    r->response = response;
    r->status = status;
    r->answered = true;
    if (r->in_callback || !r->suspended)
        return; /* queued when the callback returns */
    r->suspended = false;
    MHD_resume_connection(r->connection);
    r->server->kick(r->server);
}

void http_reply_header(struct http_request *r, const char *name, const char *value)
{
    if (r->header_count == HTTP_HEADERS_MAX)
        return;
    r->headers[r->header_count].name = str_dup(name);
    r->headers[r->header_count++].value = str_dup(value);
}

void http_reply_cookie(struct http_request *r, const char *value, uint64_t max_age_s)
{
    const struct http_server_options *o = &r->server->o;
    char *cookie = str_printf("%s=%s; Path=/; HttpOnly; SameSite=Strict; Max-Age=%llu%s", o->cookie,
                              value, (unsigned long long)max_age_s, o->keys ? "; Secure" : "");
    http_reply_header(r, "Set-Cookie", cookie);
    mem_free(cookie);
}

static void reply_data(struct http_request *r, unsigned status, const char *content_type,
                       const void *data, size_t len, enum MHD_ResponseMemoryMode mode)
{
    if (r->server)
        r->server->counters.body_bytes_out += len;
    reply_response(r, status, MHD_create_response_from_buffer(len, (void *)data, mode),
                   content_type);
}

void http_reply_json(struct http_request *r, unsigned status, json_t *takes)
{
    char *text = takes ? json_dumps(takes, JSON_COMPACT | JSON_REAL_PRECISION(17)) : NULL;
    json_decref(takes);
    if (!text) {
        http_reply_error(r, 500, "internal", "the answer could not be written as JSON");
        return;
    }
    http_reply_header(r, "Cache-Control", "no-store");
    reply_data(r, status, "application/json", text, strlen(text), MHD_RESPMEM_MUST_FREE);
}

void http_reply_text(struct http_request *r, unsigned status, const char *content_type,
                     const char *text)
{
    reply_data(r, status, content_type, text, strlen(text), MHD_RESPMEM_MUST_COPY);
}

void http_reply_bytes(struct http_request *r, unsigned status, const char *content_type,
                      const void *data, size_t len)
{
    reply_data(r, status, content_type, data, len, MHD_RESPMEM_MUST_COPY);
}

void http_reply_static(struct http_request *r, unsigned status, const char *content_type,
                       const void *data, size_t len)
{
    reply_data(r, status, content_type, data, len, MHD_RESPMEM_PERSISTENT);
}

void http_reply_empty(struct http_request *r, unsigned status)
{
    reply_data(r, status, NULL, "", 0, MHD_RESPMEM_PERSISTENT);
}

void http_reply_error(struct http_request *r, unsigned status, const char *code, const char *fmt,
                      ...)
{
    char message[1024];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(message, sizeof(message), fmt, ap); /* cut is fine */
    va_end(ap);
    str_make_line(message); /* it may hold a cut character, or whatever a client has sent */
    http_reply_json(r, status,
                    json_pack("{s:{s:s,s:s}}", "error", "code", code, "message", message));
}

unsigned http_reply_status(int code, const char **ret_word)
{
    static const struct {
        int code;
        unsigned status;
        const char *word;
    } map[] = {
        {-EINVAL, 400, "invalid"},         {-ERANGE, 400, "invalid"},
        {-ERR_FORMAT, 400, "invalid"},     {-ERR_CONFIG, 400, "invalid"},
        {-ERR_VERSION, 400, "invalid"},    {-ERR_AUTH, 403, "forbidden"},
        {-ERR_NOTFOUND, 404, "not_found"}, {-ENOENT, 404, "not_found"},
        {-EEXIST, 409, "conflict"},        {-EBUSY, 409, "conflict"},
        {-ERR_STALE, 409, "conflict"},     {-ERR_LIMIT, 413, "too_large"},
        {-ERR_HASH, 422, "hash_mismatch"}, {-ERR_UNIMPLEMENTED, 501, "not_implemented"},
        {-EAGAIN, 503, "unavailable"},     {-EIO, 503, "unavailable"},
        {-ENOMEM, 503, "unavailable"},     {-ERR_CANCELLED, 503, "unavailable"},
        {-ENOSPC, 507, "no_space"},
    };
    for (size_t i = 0; i < sizeof(map) / sizeof(map[0]); i++) {
        if (map[i].code == code) {
            *ret_word = map[i].word;
            return map[i].status;
        }
    }
    *ret_word = "internal";
    return 500;
}

void http_reply_err(struct http_request *r, const struct err *err)
{
    const char *word;
    const unsigned status = http_reply_status(err->code, &word);
    http_reply_error(r, status, word, "%s", err->msg[0] ? err->msg : err_text(err->code));
}

/* ---- files ---- */

enum range { RANGE_NONE, RANGE_OK, RANGE_BAD };

/* Parses one range of bytes; several, or another unit, are answered with the whole file. */
static enum range parse_range(const char *h, uint64_t size, uint64_t *ret_from, uint64_t *ret_len)
{
    char *end;
    if (!h || strncmp(h, "bytes=", 6) != 0 || strchr(h, ','))
        return RANGE_NONE;
    h += 6;
    if (*h == '-') {
        unsigned long long n = strtoull(h + 1, &end, 10);
        if (end == h + 1 || *end)
            return RANGE_NONE;
        if (n == 0 || size == 0)
            return RANGE_BAD;
        *ret_len = n < size ? n : size;
        *ret_from = size - *ret_len;
        return RANGE_OK;
    }
    unsigned long long from = strtoull(h, &end, 10), to = UINT64_MAX;
    if (end == h || *end != '-')
        return RANGE_NONE;
    if (end[1]) {
        h = end + 1;
        to = strtoull(h, &end, 10);
        if (end == h || *end || to < from)
            return RANGE_NONE;
    }
    if (from >= size)
        return RANGE_BAD;
    *ret_from = from;
    *ret_len = (to < size - 1 ? to : size - 1) - from + 1;
    return RANGE_OK;
}

static bool etag_matches(const char *h, const char *etag)
{
    const char *p = h && etag ? strstr(h, etag) : NULL;
    size_t n = etag ? strlen(etag) : 0;
    return p && p > h && p[-1] == '"' && p[n] == '"';
}

/* A part of a file that goes out through TLS. */
struct file_part {
    int fd;
    uint64_t from;
};

static ssize_t read_part(void *cls, uint64_t pos, char *out, size_t max)
{
    const struct file_part *p = cls;
    ssize_t n = pread(p->fd, out, max, (off_t)(p->from + pos));
    return n > 0 ? n : MHD_CONTENT_READER_END_WITH_ERROR;
}

static void free_part(void *cls)
{
    struct file_part *p = cls;
    (void)close(p->fd); /* read only: nothing to lose */
    mem_free(p);
}

/* Takes fd.  Without TLS libmicrohttpd sends with sendfile; with TLS it would read the file
 * in pieces of 4 KiB and send each by itself. */
static struct MHD_Response *file_response(const struct http_request *r, int fd, uint64_t from,
                                          uint64_t len)
{
    struct MHD_Response *response;
    if (!r->server || !r->server->o.keys) {
        response = MHD_create_response_from_fd_at_offset64(len, fd, from);
        if (!response)
            (void)close(fd);
        return response;
    }
    struct file_part *p = mem_alloc(sizeof(*p));
    *p = (struct file_part){fd, from};
    response = MHD_create_response_from_callback(len, FILE_BLOCK_BYTES, read_part, p, free_part);
    if (!response)
        free_part(p);
    return response;
}

bool http_reply_unchanged(struct http_request *r, const char *etag)
{
    char text[96];
    snprintf(text, sizeof(text), "\"%s\"", etag);
    http_reply_header(r, "ETag", text);
    if (!etag_matches(http_request_header(r, "If-None-Match"), etag))
        return false;
    http_reply_empty(r, 304);
    return true;
}

/* The part of a file of `size` bytes that is asked for, or all of it, and the status of the answer;
 * 416 is sent, for a part behind its end. */
static unsigned choose_part(struct http_request *r, uint64_t size, const char *etag,
                            uint64_t *ret_from, uint64_t *ret_len)
{
    char text[96];
    uint64_t from = 0, len = size;
    const char *if_range = http_request_header(r, "If-Range");
    enum range range = parse_range(http_request_header(r, "Range"), size, &from, &len);
    if (range != RANGE_NONE && if_range && !etag_matches(if_range, etag))
        range = RANGE_NONE;
    *ret_from = range == RANGE_OK ? from : 0;
    *ret_len = range == RANGE_OK ? len : size;
    if (range == RANGE_NONE)
        return 200;
    if (range == RANGE_BAD)
        snprintf(text, sizeof(text), "bytes */%llu", (unsigned long long)size);
    else
        snprintf(text, sizeof(text), "bytes %llu-%llu/%llu", (unsigned long long)from,
                 (unsigned long long)(from + len - 1), (unsigned long long)size);
    http_reply_header(r, "Content-Range", text);
    if (range == RANGE_OK)
        return 206;
    http_reply_error(r, 416, "range", "the range lies behind the end: there are %llu bytes",
                     (unsigned long long)size);
    return 416;
}

void http_reply_file(struct http_request *r, int fd, uint64_t size, const char *content_type,
                     const char *etag)
{
    uint64_t from, len;
    http_reply_header(r, "Accept-Ranges", "bytes");
    if (etag && http_reply_unchanged(r, etag)) {
        close(fd);
        return;
    }
    const unsigned status = choose_part(r, size, etag, &from, &len);
    if (status == 416) {
        close(fd);
        return;
    }
    if (r->server && strcmp(r->method, "HEAD") != 0)
        r->server->counters.body_bytes_out += len;
    struct MHD_Response *response = file_response(r, fd, from, len);
    reply_response(r, status, response, content_type);
}

/* ---- files that are still written ---- */

#define MORE_MS 5 /* between looks for more of them */

static ssize_t read_growth(void *cls, uint64_t pos, char *out, size_t max)
{
    struct http_growth *h = cls;
    pos += h->from;
    const ssize_t n = h->cut ? -1 : growing_read(h->file, pos, out, max);
    if (n < 0)
        return MHD_CONTENT_READER_END_WITH_ERROR;
    h->server->counters.body_bytes_out += (uint64_t)n;
    if (n > 0)
        h->tally.sent(h->tally.arg, h->tally.of, (uint64_t)n);
    if (n > 0 || !h->request)
        return n;
    h->pos = pos;
    h->suspended = true;
    MHD_suspend_connection(h->request->connection);
    if (!loop_timer_active(h->server->more))
        loop_timer_start(h->server->more, MORE_MS, MORE_MS);
    return 0;
}

void http_growth_gone(struct http_growth *h)
{
    list_remove(&h->link);
    h->request->growth = NULL;
    h->request = NULL;
}

static void growth_free(void *cls)
{
    struct http_growth *h = cls;
    if (h->request)
        http_growth_gone(h);
    growing_drop(h->file);
    mem_free(h);
}

void http_growth_wake(struct http_server *server, bool cut)
{
    bool waits = false, woken = false;
    for (struct list *l = server->growths.next; l != &server->growths; l = l->next) {
        struct http_growth *h = list_entry(l, struct http_growth, link);
        char byte;
        h->cut |= cut;
        if (!h->suspended)
            continue;
        if (!h->cut && growing_read(h->file, h->pos, &byte, 1) == 0) {
            waits = true;
            continue;
        }
        h->suspended = false;
        woken = true;
        MHD_resume_connection(h->request->connection);
    }
    if (!waits)
        loop_timer_stop(server->more);
    if (woken)
        server->kick(server);
}

void http_reply_growing(struct http_request *r, struct growing *g, const char *content_type,
                        const struct http_tally *tally)
{
    char tag[GROWING_TAG_MAX + 2];
    uint64_t from = 0, len = growing_length(g);
    unsigned status = 200;
    snprintf(tag, sizeof(tag), "\"%s\"", growing_tag(g));
    http_reply_header(r, "ETag", tag);
    if (http_request_header(r, "If-Range")) /* else it may be a part of another of this name */
        status = choose_part(r, len, growing_tag(g), &from, &len);
    if (status == 416)
        return;
    struct http_growth *h = mem_alloc(sizeof(*h));
    *h = (struct http_growth){
        .server = r->server, .request = r, .file = growing_share(g), .tally = *tally, .from = from};
    list_init(&h->link);
    struct MHD_Response *response =
        MHD_create_response_from_callback(len, FILE_BLOCK_BYTES, read_growth, h, growth_free);
    if (response && r->server)
        list_push(&r->server->growths, &h->link);
    r->growth = h;
    if (!response)
        growth_free(h);
    http_reply_header(r, "Cache-Control", "no-store");
    reply_response(r, status, response, content_type);
}

/* ---- streams ---- */

static ssize_t read_queue(void *cls, uint64_t pos, char *out, size_t max)
{
    struct http_stream *s = cls;
    if (s->cut)
        return MHD_CONTENT_READER_END_WITH_ERROR;
    if (s->queue.len == 0 && s->ending)
        return MHD_CONTENT_READER_END_OF_STREAM;
    if (s->queue.len == 0) {
        /* Without this libmicrohttpd would ask again and again. */
        s->suspended = true;
        MHD_suspend_connection(s->request->connection);
        return 0;
    }
    size_t n = s->queue.len < max ? s->queue.len : max;
    memcpy(out, s->queue.data, n);
    buf_consume(&s->queue, n);
    if (s->queue.len == 0 && s->queue.cap > STREAM_BLOCK_BYTES)
        buf_release(&s->queue);
    s->server->counters.body_bytes_out += n;
    return (ssize_t)n;
}

static void wake(struct http_stream *s)
{
    if (!s->suspended)
        return;
    s->suspended = false;
    MHD_resume_connection(s->request->connection);
    s->server->kick(s->server);
}

int http_stream_open(struct http_request *r, const char *content_type,
                     void (*on_close)(void *arg, struct http_stream *s), void *arg,
                     struct http_stream **ret)
{
    struct http_server *server = r->server;
    if (!server || !r->connection || server->counters.streams >= server->o.max_streams) {
        http_reply_error(r, 503, "too_many_streams", "too many event streams are open");
        return -EAGAIN;
    }
    struct http_stream *s = mem_alloc(sizeof(*s));
    struct MHD_Response *response = MHD_create_response_from_callback(
        MHD_SIZE_UNKNOWN, STREAM_BLOCK_BYTES, read_queue, s, NULL);
    if (!response) {
        mem_free(s);
        http_reply_error(r, 503, "no_memory", "no memory for another stream");
        return -EAGAIN;
    }
    s->server = server;
    s->request = r;
    s->on_close = on_close;
    s->arg = arg;
    s->is_events = strcmp(content_type, "text/event-stream") == 0;
    s->written_ms = loop_now_ms(server->loop);
    buf_init(&s->queue, server->o.max_stream_bytes);
    list_push(&server->streams, &s->link);
    server->counters.streams++;
    r->stream = s;
    http_reply_header(r, "Cache-Control", "no-store");
    reply_response(r, 200, response, content_type);
    *ret = s;
    return 0;
}

int http_stream_write(struct http_stream *s, const void *data, size_t len)
{
    if (s->cut)
        return -ERR_LIMIT;
    if (s->ending)
        return -ERR_CANCELLED;
    s->written_ms = loop_now_ms(s->server->loop);
    if (buf_append(&s->queue, data, len) < 0) {
        s->cut = true;
        s->server->counters.streams_cut++;
        if (s->request->conn)
            (void)shutdown(s->request->conn->fd, SHUT_RDWR); /* libmicrohttpd closes then */
        wake(s);
        return -ERR_LIMIT;
    }
    wake(s);
    return 0;
}

int http_stream_event(struct http_stream *s, const char *event, const char *data)
{
    struct buf b;
    buf_init(&b, s->server->o.max_stream_bytes);
    int rc = event ? buf_printf(&b, "event: %s\n", event) : 0;
    for (const char *p = data; rc == 0;) {
        size_t n = strcspn(p, "\n");
        rc = buf_printf(&b, "data: %.*s\n", (int)n, p);
        p += n;
        if (*p++ == '\0')
            break;
    }
    if (rc == 0)
        rc = buf_append_str(&b, "\n");
    if (rc == 0)
        rc = http_stream_write(s, b.data, b.len);
    buf_release(&b);
    return rc;
}

void http_stream_close(struct http_stream *s)
{
    s->ending = true;
    wake(s);
}

void http_stream_gone(struct http_stream *s)
{
    list_remove(&s->link);
    s->server->counters.streams--;
    s->request->stream = NULL;
    if (s->on_close)
        s->on_close(s->arg, s);
    buf_release(&s->queue);
    mem_free(s);
}

void http_stream_tick(struct http_server *server)
{
    uint64_t now = loop_now_ms(server->loop);
    for (struct list *l = server->streams.next; l != &server->streams; l = l->next) {
        struct http_stream *s = list_entry(l, struct http_stream, link);
        if (s->is_events && !s->ending && !s->cut && now - s->written_ms >= server->o.ping_ms)
            (void)http_stream_write(s, ":\n\n", 3); /* a slow one is cut by it */
    }
}
