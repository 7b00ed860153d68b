/* Shared by the API's files: http_api.c (routes, reading, the page) on top, http_command.c,
 * http_access.c and http_answer.c below it. */
#ifndef COORDINATOR_HTTP_API_IMPL_H
#define COORDINATOR_HTTP_API_IMPL_H

#include "common/base/buf.h"
#include "common/base/list.h"
#include "common/net/http/http_server.h"
#include "coordinator/http/http_api.h"
#include "coordinator/http/http_body.h"

struct http_api {
    struct http_api_options o;
    struct http_route *routes; /* the table with arg = this */
    struct list pending;       /* answers that wait until their content is durable */
    unsigned n_shown;          /* those of them that only show state, and acknowledge nothing */
    char *kept;                /* the last status sent; NULL: none */
    struct http_events *events;
};

/* ---- http_answer.c ---- */

/* Answers with the HTTP status for err's code, see coordinator/view/view.h. */
void http_answer_fail(struct http_request *r, const struct err *err);
/* Answers (status, takes body) once all changes made so far are durable. */
void http_answer_when_durable(struct http_api *api, struct http_request *r, unsigned status,
                              json_t *body);
/* Answers a refused command: at once, or, if the state was the reason, once that is durable. */
void http_answer_refused(struct http_api *api, struct http_request *r, const struct err *err);
/* Answers a command that returned rc: refused, or body (takes it) once it is durable. */
void http_answer_command(struct http_api *api, struct http_request *r, int rc,
                         const struct err *err, json_t *body);
/* Answers with body, which shows this job (0: any) as it is now, once that is durable; if the
 * commit fails, again(api, r) is called.  Takes body. */
void http_answer_shown(struct http_api *api, struct http_request *r, uint64_t job, json_t *body,
                       http_handler again);
/* The same with finished text; text is empty afterwards. */
void http_answer_text(struct http_api *api, struct http_request *r, uint64_t job, const char *type,
                      struct buf *text, http_handler again);
/* Answers with the status; during a slow commit with the previous one. */
void http_answer_status(struct http_api *api, struct http_request *r, http_handler again);
/* A commit is slow: answers the requests that wait for the status. */
void http_answer_slow(struct http_api *api);
/* Answers all waiting requests with 503. */
void http_answer_stop(struct http_api *api);

/* ---- http_command.c: handlers; arg is the struct http_api ---- */

void http_post_job(void *arg, struct http_request *r);
void http_post_cancel(void *arg, struct http_request *r);
void http_post_remove(void *arg, struct http_request *r);
void http_post_pause(void *arg, struct http_request *r);
void http_post_rollback(void *arg, struct http_request *r);
void http_post_resume(void *arg, struct http_request *r);
void http_post_adjust(void *arg, struct http_request *r);
void http_post_task_cancel(void *arg, struct http_request *r);
void http_post_sample(void *arg, struct http_request *r);
void http_post_drain(void *arg, struct http_request *r);
void http_post_upload(void *arg, struct http_request *r);
/* {"id"}, and a further member if there is a key; takes value. */
json_t *http_json_with_id(uint64_t id, const char *key, json_t *value);
/* A number of a body, or `other` if it is missing. */
double http_real_or(const json_t *body, const char *name, double other);
/* The request's body as an object, {} if there is none; NULL: it was invalid, and is answered. */
json_t *http_take_body(struct http_request *r, const struct http_field *fields, size_t n);
/* The same, and the {id} in the path. */
json_t *http_take_id_and_body(struct http_request *r, uint64_t *ret_id,
                              const struct http_field *fields, size_t n);
/* The {id} of a command without a body; false: it was invalid, and is answered. */
bool http_take_id(struct http_request *r, uint64_t *ret);

/* ---- http_access.c: handlers for tokens ---- */

void http_get_tokens(void *arg, struct http_request *r);
void http_post_token(void *arg, struct http_request *r);
void http_post_token_adjust(void *arg, struct http_request *r);
void http_post_token_revoke(void *arg, struct http_request *r);
void http_post_worker_revoke(void *arg, struct http_request *r);

#endif
