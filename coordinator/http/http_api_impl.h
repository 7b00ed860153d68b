/* What the pieces of the API share: http_api.c (routes, reading, the page) on top, http_command.c
 * and http_answer.c below it. */
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
    struct list pending;       /* answers that wait until what they tell is durable */
    unsigned n_shown;          /* of those: that wait and acknowledge nothing */
    char *kept;                /* the newest status that was answered; NULL: none */
    struct http_events *events;
};

/* ---- http_answer.c ---- */

/* Answers with the status that err's code has by coordinator/view/view.h. */
void http_answer_fail(struct http_request *r, const struct err *err);
/* Answers (status, takes body) once all changes made so far are durable. */
void http_answer_when_durable(struct http_api *api, struct http_request *r, unsigned status,
                              json_t *body);
/* The same for a command that was refused: at once, unless it was for what the state says. */
void http_answer_refused(struct http_api *api, struct http_request *r, const struct err *err);
/* Answers with takes body, which shows this job (0: anything) as it is now, once that is durable;
 * if the commit fails, again(api, r) is called. */
void http_answer_shown(struct http_api *api, struct http_request *r, uint64_t job, json_t *body,
                       http_handler again);
/* The same with what is written already; text is empty afterwards. */
void http_answer_text(struct http_api *api, struct http_request *r, uint64_t job, const char *type,
                      struct buf *text, http_handler again);
/* Answers with the status.  In a slow commit: as it was before that. */
void http_answer_status(struct http_api *api, struct http_request *r, http_handler again);
/* Whoever waits for the status waits in a slow commit. */
void http_answer_slow(struct http_api *api);
/* Answers all that wait, with 503. */
void http_answer_stop(struct http_api *api);

/* ---- http_command.c: handlers; arg is the struct http_api ---- */

void http_post_job(void *arg, struct http_request *r);
void http_post_cancel(void *arg, struct http_request *r);
void http_post_pause(void *arg, struct http_request *r);
void http_post_rollback(void *arg, struct http_request *r);
void http_post_resume(void *arg, struct http_request *r);
void http_post_adjust(void *arg, struct http_request *r);
void http_post_task_cancel(void *arg, struct http_request *r);
void http_post_sample(void *arg, struct http_request *r);
void http_post_drain(void *arg, struct http_request *r);
void http_post_upload(void *arg, struct http_request *r);
/* The body as an object, an absent one as {}; NULL: answered. */
/* A number of a body; other: it is not there. */
double http_real_or(const json_t *body, const char *name, double other);
json_t *http_take_body(struct http_request *r, const struct http_field *fields, size_t n);
/* The {id} of a command without a body; false: answered. */
bool http_take_id(struct http_request *r, uint64_t *ret);

/* ---- http_access.c: the same, of tokens ---- */

void http_get_tokens(void *arg, struct http_request *r);
void http_post_token(void *arg, struct http_request *r);
void http_post_token_adjust(void *arg, struct http_request *r);
void http_post_token_revoke(void *arg, struct http_request *r);
void http_post_worker_revoke(void *arg, struct http_request *r);

#endif
