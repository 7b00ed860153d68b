#include "coordinator/http/http_api.h"

#include <errno.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/mem.h"
#include "common/base/str.h"
#include "common/net/token.h"
#include "coordinator/http/http_internal.h"
#include "coordinator/view/view.h"

#define USER TOKEN_ROLE_USER
#define ANYBODY TOKEN_ROLE_NONE

/* The blob routes are common/net/http/blob_http's. */
static const struct http_route routes[] = {
    {"GET", "/healthz", ANYBODY, 0, http_get_health, NULL, NULL},
    {"GET", "/metrics", USER, 0, http_get_prometheus, NULL, NULL},
    {"GET", "/", ANYBODY, 0, http_get_page, NULL, NULL},
    {"GET", "/web/{name}", ANYBODY, 0, http_get_web_file, NULL, NULL},
    {"POST", "/login", ANYBODY, 4096, http_post_login, NULL, NULL},
    {"POST", "/logout", ANYBODY, 4096, http_post_logout, NULL, NULL},
    {"GET", "/v1/status", USER, 0, http_get_status, NULL, NULL},
    {"GET", "/v1/jobs", USER, 0, http_get_jobs, NULL, NULL},
    {"POST", "/v1/jobs", USER, HTTP_BODY_SUBMIT, http_post_job, NULL, NULL},
    {"GET", "/v1/jobs/{id}", USER, 0, http_get_job, NULL, NULL},
    {"POST", "/v1/jobs/{id}/cancel", USER, HTTP_BODY_SMALL, http_post_cancel, NULL, NULL},
    {"GET", "/v1/jobs/{id}/metrics", USER, 0, http_get_job_metrics, NULL, NULL},
    {"POST", "/v1/jobs/{id}/sample", USER, HTTP_BODY_SMALL, http_post_sample, NULL, NULL},
    {"GET", "/v1/tasks", USER, 0, http_get_tasks, NULL, NULL},
    {"GET", "/v1/tasks/{id}", USER, 0, http_get_task, NULL, NULL},
    {"POST", "/v1/tasks/{id}/cancel", USER, HTTP_BODY_SMALL, http_post_task_cancel, NULL, NULL},
    {"GET", "/v1/workers", USER, 0, http_get_workers, NULL, NULL},
    {"POST", "/v1/workers/{id}/drain", USER, HTTP_BODY_SMALL, http_post_drain, NULL, NULL},
    {"GET", "/v1/modules", USER, 0, http_get_modules, NULL, NULL},
    {"POST", "/v1/uploads", USER, HTTP_BODY_SMALL, http_post_upload, NULL, NULL},
    {"GET", "/v1/log", USER, 0, http_get_log, NULL, NULL},
    {"GET", "/v1/join", USER, 0, http_get_join, NULL, NULL},
    {"GET", "/v1/events", USER, 0, http_get_events, NULL, NULL},
};

#define N_ROUTES (sizeof routes / sizeof routes[0])

const struct http_route *http_api_routes(unsigned *ret_count)
{
    *ret_count = N_ROUTES;
    return routes;
}

int http_api_open(const struct http_api_options *o, struct http_api **ret, struct err *err)
{
    struct http_api *api = mem_alloc(sizeof *api);
    api->o = *o;
    api->worker_token = str_dup(o->worker_token ? o->worker_token : "");
    list_init(&api->pending);
    int rc = http_events_new(o->co, &api->events, err);
    if (rc < 0) {
        mem_free(api->worker_token);
        mem_free(api);
        return rc;
    }
    api->routes = mem_alloc_array(N_ROUTES, sizeof routes[0]);
    memcpy(api->routes, routes, sizeof routes);
    for (size_t i = 0; i < N_ROUTES; i++)
        api->routes[i].arg = api;
    http_server_routes(o->server, api->routes, N_ROUTES);
    *ret = api;
    return 0;
}

/* ---- answers that wait for the disk -------------------------------------- */

struct pending {
    struct list link;         /* in api->pending, alone once it was answered */
    struct http_request *req; /* NULL: answered by close, the callback only frees */
    unsigned status;
    json_t *body;
};

static void durable(void *arg, int rc)
{
    struct pending *p = arg;
    list_remove(&p->link);
    if (p->req != NULL && rc == 0)
        http_reply_json(p->req, p->status, json_incref(p->body));
    else if (p->req != NULL)
        http_reply_error(p->req, 503, "stopping",
                         "The coordinator stops before this is on the disk: ask again later.");
    json_decref(p->body);
    mem_free(p);
}

void http_api_when_durable(struct http_api *api, struct http_request *r, unsigned status,
                           json_t *body)
{
    struct pending *p = mem_alloc(sizeof *p);
    *p = (struct pending){.req = r, .status = status, .body = body};
    list_push(&api->pending, &p->link);
    view_when_durable(api->o.co, durable, p);
}

void http_api_close(struct http_api *api)
{
    if (api == NULL)
        return;
    struct list *l;
    while ((l = list_pop(&api->pending)) != NULL) {
        struct pending *p = list_entry(l, struct pending, link);
        http_reply_error(p->req, 503, "stopping",
                         "The coordinator stops before this is on the disk: ask again later.");
        p->req = NULL;
    }
    http_events_free(api->events);
    mem_free(api->routes);
    mem_free(api->worker_token);
    mem_free(api);
}

/* ---- errors -------------------------------------------------------------- */

void http_api_fail(struct http_request *r, const struct err *err)
{
    static const struct {
        int code;
        unsigned status;
        const char *word;
    } map[] = {
        {-ERR_NOTFOUND, 404, "not_found"}, {-ENOENT, 404, "not_found"},
        {-EEXIST, 409, "conflict"},        {-EBUSY, 409, "conflict"},
        {-ERR_STALE, 409, "conflict"},     {-ERR_LIMIT, 429, "limit"},
        {-ENOSPC, 507, "no_space"},        {-EIO, 503, "unavailable"},
        {-EAGAIN, 503, "unavailable"},     {-ERR_CANCELLED, 503, "unavailable"},
        {-EINVAL, 400, "invalid"},         {-ERR_CONFIG, 400, "invalid"},
        {-ERR_FORMAT, 400, "invalid"},     {-ERR_HASH, 422, "hash_mismatch"},
        {-ERANGE, 400, "invalid"},         {-ERR_UNIMPLEMENTED, 400, "invalid"},
        {-ERR_VERSION, 400, "invalid"},    {-ENOMEM, 503, "unavailable"},
    };
    for (size_t i = 0; i < sizeof map / sizeof map[0]; i++) {
        if (map[i].code == err->code) {
            http_reply_error(r, map[i].status, map[i].word, "%s", err->msg);
            return;
        }
    }
    http_reply_error(r, 500, "internal", "%s", err->msg);
}
