/* The coordinator's view as JSON, in the shapes of docs/openapi.yaml.
 *
 * Every function returns a new reference and never NULL, except where it takes an err.  Unknown
 * values are null.  In text, bytes that are not UTF-8 become '?' (a peer may send anything, and
 * long text is cut).  Rounds are counted from 1, as people do: round r made version r.  Loop
 * thread. */
#ifndef COORDINATOR_HTTP_JSON_H
#define COORDINATOR_HTTP_JSON_H

#include <jansson.h>

#include "common/base/base.h"
#include "common/base/buf.h"
#include "coordinator/view/view.h"

/* How answers are written: doubles read back exactly. */
#define HTTP_JSON_FLAGS (JSON_COMPACT | JSON_REAL_PRECISION(17))

/* Building blocks. */
/* Text as UTF-8, of control characters only newlines and tabs: untrusted text may reach terminals.
 */
json_t *http_json_text(const char *s);
json_t *http_json_real(double x);      /* null unless finite */
json_t *http_json_id(uint64_t id);     /* null when 0 */
json_t *http_json_at(int64_t unix_ms); /* ISO 8601 */
/* Lower-cases a word of the state ("TRAIN"); null when empty. */
json_t *http_json_word(const char *word);
/* Takes value; aborts without memory, as all small allocations do. */
void http_json_put(json_t *object, const char *key, json_t *value);
void http_json_push(json_t *array, json_t *value);
/* {"items": takes array} */
json_t *http_json_items(json_t *array);

/* Schemas by name. */
json_t *http_json_status(struct coordinator *co); /* Status */
/* Updates an older Status with the state of a slow commit. */
void http_json_status_slow(struct coordinator *co, json_t *status);
json_t *http_json_jobs(struct coordinator *co);          /* [JobSummary] */
json_t *http_json_job_summary(const struct view_job *j); /* JobSummary */
/* Job without its history and with at most so many of its newest samples, or NULL. */
json_t *http_json_job(struct coordinator *co, uint64_t id, size_t samples, struct err *err);
/* Job as text with at most `rounds` and `samples` of its newest (http_json_job.c), for those who
 * may see its `secrets` or not (job_without_secrets).  On 0 the caller releases ret. */
#define HTTP_JSON_ROUNDS_MAX 2000
#define HTTP_JSON_SAMPLES_MAX JOB_SAMPLES_MAX
int http_json_job_text(struct coordinator *co, uint64_t id, size_t rounds, size_t samples,
                       bool secrets, struct buf *ret, struct err *err);
json_t *http_json_quota(const struct job_swarm *q);    /* Quota */
json_t *http_json_worker(const struct view_worker *w); /* Worker */
json_t *http_json_task(const struct view_task *t);     /* Task */
/* Pages: {"items", "next"}, where next is the cursor of the following page, or null.  Workers: ids
 * above `after`, ascending.  Tasks: ids below `before` (0: all), newest first. */
json_t *http_json_workers(struct coordinator *co, uint64_t after, size_t gone, size_t max);
json_t *http_json_tasks(struct coordinator *co, uint64_t job_id, const char *state, uint64_t before,
                        size_t max);
json_t *http_json_modules(struct coordinator *co, uint64_t job_id); /* [ModuleVersions] */
json_t *http_json_round(const struct round_rec *r);                 /* Round */
json_t *http_json_sample(const struct grid_rec *s);                 /* Sample */
/* MetricRecord; a round's lacks "eval_loss", which the caller adds. */
json_t *http_json_metric(const struct metric_rec *m);

#endif
