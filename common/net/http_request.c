#include "common/base/err.h"
#include "common/base/mem.h"
#include "common/base/str.h"
#include "common/net/http_internal.h"
#include "common/net/loop.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

#define COOKIE "skerry"

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
    info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    if (info && info->client_addr) {
        const struct sockaddr *a = info->client_addr;
        const void *any = a;
        const struct sockaddr_in *v4 = any;
        const struct sockaddr_in6 *v6 = any;
        const void *ip = a->sa_family == AF_INET6 ? (const void *)&v6->sin6_addr : &v4->sin_addr;
        (void)inet_ntop(a->sa_family, ip, r->address, sizeof(r->address)); /* "" if unknown */
    }
    list_push(&s->requests, &r->link);
    return r;
}

void http_request_free(struct http_request *r)
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
        http_request_free(r);
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
    if (!o->authenticate)
        return;
    if (header && strncasecmp(header, "Bearer ", 7) == 0) {
        r->role = o->authenticate(o->arg, header + 7);
        return;
    }
    const char *cookie = MHD_lookup_connection_value(r->connection, MHD_COOKIE_KIND, COOKIE);
    const char *query = http_request_query(r, "token");
    if (query) {
        r->role = o->authenticate(o->arg, query);
        if (r->role && strlen(query) < 1024 && !strpbrk(query, ";, \r\n\"")) {
            /* So that a page opened with ?token= can load what it refers to. */
            char *value = str_printf(COOKIE "=%s; Path=/; HttpOnly; SameSite=Strict%s", query,
                                     o->keys ? "; Secure" : "");
            http_reply_header(r, "Set-Cookie", value);
            mem_free(value);
        }
    } else if (cookie) {
        r->role = o->authenticate(o->arg, cookie);
    }
}

int http_request_route(struct http_request *r)
{
    struct http_server *s = r->server;
    bool path_known = false;
    for (unsigned g = 0; g < s->group_count && !r->route; g++) {
        for (unsigned i = 0; i < s->groups[g].count && !r->route; i++) {
            const struct http_route *t = &s->groups[g].routes[i];
            if (!match(r, t->pattern))
                continue;
            path_known = true;
            if (method_fits(t, r->method))
                r->route = t;
        }
    }
    if (!r->route) {
        if (path_known)
            http_reply_error(r, 405, "method_not_allowed", "%s is not possible here", r->method);
        else
            http_reply_error(r, 404, "not_found", "there is nothing at %s", r->path);
        return -ERR_NOTFOUND;
    }
    learn_role(r);
    buf_init(&r->body, r->route->max_body);
    if (!r->route->roles || (r->role & r->route->roles))
        return 0;
    if (r->role) {
        http_reply_error(r, 403, "forbidden", "this token's role may not do that");
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

const char *http_request_path(const struct http_request *r)
{
    return r->path;
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

const void *http_request_body(const struct http_request *r, size_t *ret_len)
{
    *ret_len = r->body.len;
    return buf_str(&r->body);
}

unsigned http_request_role(const struct http_request *r)
{
    return r->role;
}

const char *http_request_address(const struct http_request *r)
{
    return r->address;
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
