/* What http_api.c and http_command.c share: the API's object, and how its handlers answer. */
#ifndef COORDINATOR_HTTP_API_IMPL_H
#define COORDINATOR_HTTP_API_IMPL_H

#include "common/base/list.h"
#include "common/net/http/http_server.h"
#include "coordinator/http/http_api.h"

struct http_api {
    struct http_api_options o;
    char *worker_token;
    struct http_route *routes; /* the table with arg = this */
    struct list pending;       /* answers that wait until their change is durable */
    struct http_events *events;
};

/* Answers with the status that err's code has by coordinator/view/view.h. */
void http_api_fail(struct http_request *r, const struct err *err);
/* Answers (status, takes body) once all changes made so far are durable. */
void http_api_when_durable(struct http_api *api, struct http_request *r, unsigned status,
                           json_t *body);

/* Handlers of http_command.c; arg is the struct http_api. */
void http_post_job(void *arg, struct http_request *r);
void http_post_cancel(void *arg, struct http_request *r);
void http_post_task_cancel(void *arg, struct http_request *r);
void http_post_sample(void *arg, struct http_request *r);
void http_post_drain(void *arg, struct http_request *r);
void http_post_upload(void *arg, struct http_request *r);

#endif
