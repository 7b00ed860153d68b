/* Shared by the http_*.c of the coordinator and nobody else. */
#ifndef COORDINATOR_HTTP_INTERNAL_H
#define COORDINATOR_HTTP_INTERNAL_H

#include <stdint.h>

#include "common/base/list.h"
#include "common/net/http/http_server.h"
#include "coordinator/http/http_api.h"
#include "coordinator/http/http_events.h"

struct http_api {
    struct http_api_options o;
    char *worker_token;
    struct http_route *routes; /* the table with arg = this */
    unsigned n_routes;
    struct list pending; /* answers that wait until their change is durable */
    struct http_events *events;
};

#define HTTP_BODY_SMALL (16u << 10)
#define HTTP_BODY_SUBMIT (8u << 20)
#define HTTP_TASKS_MAX 1000
#define HTTP_METRICS_MAX 10000 /* records in one answer */

/* http_api.c */
/* Answers with the status that err's code has by coordinator/view/view.h. */
void http_api_fail(struct http_request *r, const struct err *err);
/* Answers (status, takes body) once all changes made so far are durable. */
void http_api_when_durable(struct http_api *api, struct http_request *r, unsigned status,
                           json_t *body);

/* Handlers; arg is the struct http_api. */
void http_get_status(void *arg, struct http_request *r); /* http_read.c */
void http_get_jobs(void *arg, struct http_request *r);
void http_get_job(void *arg, struct http_request *r);
void http_get_job_metrics(void *arg, struct http_request *r);
void http_get_tasks(void *arg, struct http_request *r);
void http_get_task(void *arg, struct http_request *r);
void http_get_workers(void *arg, struct http_request *r);
void http_get_modules(void *arg, struct http_request *r);
void http_get_log(void *arg, struct http_request *r);
void http_get_join(void *arg, struct http_request *r);
void http_get_health(void *arg, struct http_request *r);
void http_get_events(void *arg, struct http_request *r);
void http_get_prometheus(void *arg, struct http_request *r); /* http_metrics.c */
void http_post_job(void *arg, struct http_request *r);       /* http_command.c */
void http_post_cancel(void *arg, struct http_request *r);
void http_post_task_cancel(void *arg, struct http_request *r);
void http_post_sample(void *arg, struct http_request *r);
void http_post_drain(void *arg, struct http_request *r);
void http_post_upload(void *arg, struct http_request *r);
void http_get_page(void *arg, struct http_request *r); /* http_page.c */
void http_get_web_file(void *arg, struct http_request *r);
void http_post_login(void *arg, struct http_request *r);
void http_post_logout(void *arg, struct http_request *r);

#endif
