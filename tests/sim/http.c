/* Nobody asks over HTTP: in place of common/net/http and coordinator/http. */
#include "common/base/base.h"
#include "common/net/http/blob_http.h"
#include "common/net/http/http_server.h"
#include "coordinator/http/http_api.h"
#include "coordinator/http/http_session.h"

struct http_server {
    int unused;
};

struct http_api {
    int unused;
};

int http_server_open(struct loop *loop, const struct http_server_options *o,
                     struct http_server **ret, struct err *err)
{
    static struct http_server s;
    *ret = &s;
    return 0;
}

uint16_t http_server_port(const struct http_server *s)
{
    return 7001;
}

void http_server_cut(struct http_server *s, uint64_t holder)
{
}

void http_server_close(struct http_server *s)
{
}

int blob_http_open(struct http_server *server, const struct blob_http_options *o,
                   struct blob_http **ret, struct err *err)
{
    return 0;
}

void blob_http_close(struct blob_http *b)
{
}

void blob_http_ticket(const struct blob_http *b, enum ticket_method method,
                      const struct blob_id *id, uint64_t max_bytes, uint64_t holder,
                      char ret_path[TICKET_PATH_MAX])
{
    (void)snprintf(ret_path, TICKET_PATH_MAX, "/");
}

struct blob_http_counters blob_http_counters(const struct blob_http *b)
{
    return (struct blob_http_counters){0};
}

int http_api_open(const struct http_api_options *o, struct http_api **ret, struct err *err)
{
    static struct http_api api;
    *ret = &api;
    return 0;
}

void http_api_slow(struct http_api *api)
{
}

void http_api_close(struct http_api *api)
{
}

struct http_sessions *http_sessions_new(const char *path)
{
    return NULL;
}

void http_sessions_free(struct http_sessions *s)
{
}

uint64_t http_session_holder(struct http_sessions *s, const char *id)
{
    return 0;
}
