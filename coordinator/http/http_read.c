/* The GET side of the API. */
#include "coordinator/http/http_internal.h"

#include <errno.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/base/mem.h"
#include "common/base/str.h"
#include "coordinator/http/http_json.h"
#include "coordinator/view/view.h"

#define METRICS_BYTES_MAX (4u << 20)

static void reply(struct http_request *r, json_t *takes)
{
    http_reply_json(r, 200, takes);
}

void http_get_health(void *arg, struct http_request *r)
{
    http_reply_text(r, 200, "text/plain; charset=utf-8", "ok\n");
}

void http_get_status(void *arg, struct http_request *r)
{
    struct http_api *api = arg;
    reply(r, http_json_status(api->o.co));
}

void http_get_jobs(void *arg, struct http_request *r)
{
    struct http_api *api = arg;
    reply(r, http_json_items(http_json_jobs(api->o.co)));
}

void http_get_job(void *arg, struct http_request *r)
{
    struct http_api *api = arg;
    struct err err = {0};
    uint64_t id;
    if (http_request_param_u64(r, "id", &id) < 0)
        return;
    json_t *job = http_json_job(api->o.co, id, &err);
    if (job == NULL)
        http_api_fail(r, &err);
    else
        reply(r, job);
}

/* What is known of the rounds by now: an evaluation ends after its round was
 * recorded, and the record itself does not know the replicas' step. */
struct rounds {
    struct round {
        uint32_t path, round;
        double eval_loss, step;
    } * items;
    size_t n, cap, at; /* at: where the last look-up ended; they come in order */
};

struct lines {
    struct buf out;
    bool full; /* the rest waits for the next request */
    struct rounds rounds;
};

static void add_known_round(void *arg, const struct round_rec *r)
{
    struct rounds *k = arg;
    if (k->n == k->cap) {
        k->cap = k->cap ? 2 * k->cap : 64;
        k->items = mem_realloc(k->items, k->cap * sizeof k->items[0]);
    }
    double before = 0;
    for (size_t i = k->n; i > 0 && before == 0; i--)
        if (k->items[i - 1].path == r->path)
            before = k->items[i - 1].step;
    double steps = r->contributions ? (double)r->steps / r->contributions : 0;
    k->items[k->n++] = (struct round){r->path, r->round, (double)r->eval_loss, before + steps};
}

static const struct round *known_round(struct rounds *k, const struct metric_rec *m)
{
    for (size_t i = 0; i < k->n; i++) {
        size_t at = (k->at + i) % k->n;
        if (k->items[at].path == m->path && k->items[at].round == m->round) {
            k->at = at;
            return &k->items[at];
        }
    }
    return NULL;
}

static void add_line(void *arg, const struct metric_rec *m)
{
    struct lines *l = arg;
    if (l->full)
        return;
    json_t *o = http_json_metric(m);
    if (m->kind == METRIC_ROUND) {
        const struct round *r = known_round(&l->rounds, m);
        http_json_put(o, "step", json_integer(r ? (json_int_t)(r->step + 0.5) : 0));
        http_json_put(o, "eval_loss", r ? http_json_real(r->eval_loss) : json_null());
    }
    char *line = json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(9)); /* they were floats */
    /* Whole lines only: the reader asks again from the last one it got. */
    l->full = l->full || line == NULL || buf_printf(&l->out, "%s\n", line) < 0;
    mem_free(line);
    json_decref(o);
}

void http_get_job_metrics(void *arg, struct http_request *r)
{
    struct http_api *api = arg;
    struct err err = {0};
    uint64_t id, after;
    if (http_request_param_u64(r, "id", &id) < 0 ||
        http_request_query_u64(r, "after", 0, INT64_MAX, &after) < 0)
        return;
    struct lines l = {0};
    buf_init(&l.out, METRICS_BYTES_MAX);
    view_each_round(api->o.co, id, add_known_round, &l.rounds);
    if (view_metrics(api->o.co, id, after, HTTP_METRICS_MAX, add_line, &l, &err) < 0) {
        http_api_fail(r, &err);
    } else {
        http_reply_header(r, "Cache-Control", "no-store");
        http_reply_bytes(r, 200, "application/x-ndjson", buf_str(&l.out), l.out.len);
    }
    buf_release(&l.out);
    mem_free(l.rounds.items);
}

void http_get_tasks(void *arg, struct http_request *r)
{
    static const char *const states[] = {"pending", "leased", "done", "failed", "cancelled"};
    struct http_api *api = arg;
    uint64_t job;
    if (http_request_query_u64(r, "job", 0, INT64_MAX, &job) < 0)
        return;
    const char *state = http_request_query(r, "state");
    bool known = state == NULL;
    for (size_t i = 0; i < sizeof states / sizeof states[0] && !known; i++)
        known = strcmp(states[i], state) == 0;
    if (!known) {
        http_reply_error(r, 400, "invalid",
                         "state must be pending, leased, done, failed or cancelled.");
        return;
    }
    reply(r, http_json_items(http_json_tasks(api->o.co, job, state, HTTP_TASKS_MAX)));
}

void http_get_task(void *arg, struct http_request *r)
{
    struct http_api *api = arg;
    struct err err = {0};
    struct view_task t;
    uint64_t id;
    if (http_request_param_u64(r, "id", &id) < 0)
        return;
    if (view_task(api->o.co, id, &t, &err) < 0)
        http_api_fail(r, &err);
    else
        reply(r, http_json_task(&t));
}

void http_get_workers(void *arg, struct http_request *r)
{
    struct http_api *api = arg;
    reply(r, http_json_items(http_json_workers(api->o.co)));
}

void http_get_modules(void *arg, struct http_request *r)
{
    struct http_api *api = arg;
    struct err err = {0};
    struct view_job j;
    uint64_t job;
    if (http_request_query_u64(r, "job", 0, INT64_MAX, &job) < 0)
        return;
    if (job != 0 && view_job(api->o.co, job, &j, &err) < 0)
        http_api_fail(r, &err);
    else
        reply(r, http_json_items(http_json_modules(api->o.co, job)));
}

void http_get_log(void *arg, struct http_request *r)
{
    struct http_api *api = arg;
    reply(r, http_json_items(http_events_log(api->events)));
}

void http_get_join(void *arg, struct http_request *r)
{
    struct http_api *api = arg;
    char *command = str_printf("workerd --join %s", api->worker_token);
    json_t *o = json_object();
    http_json_put(o, "command", http_json_text(command));
    http_json_put(o, "token", http_json_text(api->worker_token));
    mem_free(command);
    reply(r, o);
}

void http_get_events(void *arg, struct http_request *r)
{
    struct http_api *api = arg;
    http_events_open(api->events, r);
}
