#include "coordinator/http/http_events.h"

#include "common/base/clock.h"
#include "common/base/list.h"
#include "common/net/http/http_server.h"
#include "coordinator/http/http_json.h"
#include "coordinator/view/view.h"

struct listener {
    struct list link; /* in ev->listeners; in no list once ev is gone */
    struct http_stream *stream;
};

/* News of a commit, which are published after it. */
struct news {
    struct list link;
    uint64_t commit;
    const char *event;
    json_t *json;
};

struct http_events {
    struct coordinator *co;
    int handle;
    struct list listeners;
    struct list waiting; /* struct news; the oldest are dropped if there are too many */
    size_t n_waiting;
    uint64_t n_let_go;                /* news dropped since the last publication */
    bool asked;                       /* a callback is waiting for the commit */
    uint64_t n;                       /* sentences so far */
    json_t *log[HTTP_EVENTS_LOG_MAX]; /* ring: sentence n is at (n - 1) % max */
};

static void send_all(struct http_events *ev, const char *event, json_t *takes)
{
    char *text = takes ? json_dumps(takes, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    /* A stream is closed in a later turn, so the list does not change here. */
    for (struct list *l = ev->listeners.next; text && l != &ev->listeners; l = l->next)
        (void)http_stream_event(list_entry(l, struct listener, link)->stream, event, text);
    mem_free(text);
    json_decref(takes);
}

static struct news *first(const struct http_events *ev)
{
    return list_empty(&ev->waiting) ? NULL : list_entry(ev->waiting.next, struct news, link);
}

static struct news *take_first(struct http_events *ev)
{
    struct list *l = list_pop(&ev->waiting);
    ev->n_waiting -= l != NULL;
    return l ? list_entry(l, struct news, link) : NULL;
}

static void news_free(struct news *n)
{
    json_decref(n->json);
    mem_free(n);
}

static void keep(struct http_events *ev, json_t *sentence)
{
    http_json_put(sentence, "n", json_integer((json_int_t)++ev->n));
    json_t **slot = &ev->log[(ev->n - 1) % HTTP_EVENTS_LOG_MAX];
    json_decref(*slot);
    *slot = json_incref(sentence);
}

static void tell(struct http_events *ev, const struct news *n)
{
    if (strcmp(n->event, "log") == 0)
        keep(ev, n->json);
    if (!list_empty(&ev->listeners))
        send_all(ev, n->event, json_incref(n->json));
}

static json_t *said(const char *text, const struct event *e)
{
    json_t *o = json_object();
    http_json_put(o, "at", http_json_at((int64_t)clock_wall_ms()));
    http_json_put(o, "job", http_json_id(e->job_id));
    http_json_put(o, "task", http_json_id(e->task_id));
    http_json_put(o, "worker", http_json_id(e->worker_id));
    http_json_put(o, "text", http_json_text(text));
    return o;
}

/* Says how many were dropped; after the others, since the log keeps the newest. */
static void tell_let_go(struct http_events *ev)
{
    char text[160];
    if (ev->n_let_go == 0)
        return;
    (void)snprintf(text, sizeof text,
                   "%llu events are not told: more came than are kept while they "
                   "waited for the disk of the data dir",
                   (unsigned long long)ev->n_let_go);
    const struct news n = {.event = "log", .json = said(text, &(struct event){.kind = EVENT_LOG})};
    ev->n_let_go = 0;
    tell(ev, &n);
    json_decref(n.json);
}

/* News that came during that commit belong to the next one. */
static void tell_news(void *arg, int rc)
{
    struct http_events *ev = arg;
    while (first(ev) != NULL && (rc < 0 || view_has_commit(ev->co, first(ev)->commit))) {
        struct news *n = take_first(ev);
        if (rc == 0)
            tell(ev, n);
        news_free(n);
    }
    if (rc == 0)
        tell_let_go(ev);
    ev->asked = first(ev) != NULL;
    if (ev->asked)
        view_when_durable(ev->co, tell_news, ev);
}

/* Publishes it after the next commit, so that no published event is lost in a crash. */
static void tell_later(struct http_events *ev, const char *event, json_t *takes)
{
    struct news *n = mem_alloc(sizeof *n);
    if (ev->n_waiting == HTTP_EVENTS_WAITING_MAX) {
        news_free(take_first(ev));
        ev->n_let_go++;
    }
    *n = (struct news){.commit = view_next_commit(ev->co), .event = event, .json = takes};
    list_push(&ev->waiting, &n->link);
    ev->n_waiting++;
    if (!ev->asked)
        view_when_durable(ev->co, tell_news, ev);
    ev->asked = true;
}

/* " of path 3" in a job with several, else nothing. */
static const char *of_path(const struct view_job *job, uint32_t path, char out[40])
{
    out[0] = '\0';
    if (path == UINT32_MAX && job->mixture)
        (void)snprintf(out, 40, " of the mixture");
    else if (path != UINT32_MAX && job->paths > 1)
        (void)snprintf(out, 40, " of path %u", path);
    return out;
}

static void drawn(const struct view_job *job, const struct grid_rec *s, char *out, size_t size)
{
    char of[40];
    if (s->blob.size == 0)
        (void)snprintf(out, size, ": a text%s was written after round %u",
                       of_path(job, s->path, of), s->round);
    else
        (void)snprintf(out, size, ": %u sample%s%s %s drawn after round %u", s->count,
                       str_plural(s->count), of_path(job, s->path, of),
                       s->count == 1 ? "was" : "were", s->round);
}

/* The sentence for people about an event; false: none (a worker's events come
 * with a LOG event of their own). */
static bool sentence(struct http_events *ev, const struct event *e, char *out, size_t size)
{
    struct view_job job;
    char of[40], loss[STR_HUMAN_MAX];
    if (e->kind == EVENT_LOG)
        return snprintf(out, size, "%s", e->text) > 0; /* cut is fine */
    if (e->kind == EVENT_WORKER || e->kind == EVENT_LOSS || e->kind == EVENT_TEXT ||
        view_job(ev->co, e->job_id, &job, NULL) < 0)
        return false;
    char *rest =
        out + snprintf(out, size, "job %llu (%.64s)", (unsigned long long)job.id, job.name);
    size_t left = size - (size_t)(rest - out);
    if (e->round != NULL)
        (void)snprintf(rest, left, ": %s", e->text);
    else if (e->sample != NULL)
        drawn(&job, e->sample, rest, left);
    else if (e->metric != NULL)
        (void)snprintf(rest, left, ": held-out loss %s%s after round %u",
                       str_human_loss(e->metric->loss, loss), of_path(&job, e->metric->path, of),
                       e->metric->round);
    else if (strcmp(job.state, "done") == 0 || strcmp(job.state, "failed") == 0 ||
             strcmp(job.state, "cancelled") == 0)
        return false; /* its end has a LOG event */
    else
        (void)snprintf(rest, left, " is %s%s%s", job.state, e->text[0] ? ": " : "", e->text);
    return true;
}

static void keep_sentence(struct http_events *ev, const struct event *e)
{
    char text[512];
    if (!sentence(ev, e, text, sizeof text))
        return;
    tell_later(ev, "log", said(text, e));
}

static json_t *with_job(json_t *o, uint64_t job_id)
{
    http_json_put(o, "job", http_json_id(job_id));
    return o;
}

/* A piece of generated text, and its place. */
static json_t *text_event(const struct event *e)
{
    json_t *o = json_object();
    http_json_put(o, "task", http_json_id(e->task_id));
    http_json_put(o, "offset", json_integer((json_int_t)e->offset));
    http_json_put(o, "text", http_json_text(e->text));
    return with_job(o, e->job_id);
}

static void on_event(void *arg, const struct event *e)
{
    struct http_events *ev = arg;
    keep_sentence(ev, e);
    if (list_empty(&ev->listeners))
        return;
    struct view_job job;
    struct view_worker worker;
    switch (e->kind) {
    case EVENT_JOB:
        if (view_job(ev->co, e->job_id, &job, NULL) == 0)
            tell_later(ev, "job", http_json_job_summary(&job));
        break;
    case EVENT_WORKER:
        if (view_worker(ev->co, e->worker_id, &worker, NULL) == 0)
            tell_later(ev, "worker", http_json_worker(&worker));
        break;
    case EVENT_ROUND:
        if (e->round)
            tell_later(ev, "round", with_job(http_json_round(e->round), e->job_id));
        break;
    case EVENT_LOSS:
        if (e->metric)
            send_all(ev, "loss", with_job(http_json_metric(e->metric), e->job_id));
        break;
    case EVENT_SAMPLE:
        if (e->sample)
            tell_later(ev, "sample", with_job(http_json_sample(e->sample), e->job_id));
        break;
    case EVENT_TEXT:
        send_all(ev, "text", text_event(e));
        break;
    case EVENT_LOG:
        break;
    }
}

int http_events_new(struct coordinator *co, struct http_events **ret, struct err *err)
{
    struct http_events *ev = mem_alloc(sizeof *ev);
    ev->co = co;
    list_init(&ev->listeners);
    list_init(&ev->waiting);
    ev->handle = view_subscribe(co, on_event, ev);
    if (ev->handle < 0) {
        int rc = ev->handle;
        mem_free(ev);
        return err_set(err, rc, "too many subscribers to the coordinator's events");
    }
    *ret = ev;
    return 0;
}

void http_events_free(struct http_events *ev)
{
    if (ev == NULL)
        return;
    view_unsubscribe(ev->co, ev->handle);
    struct list *l;
    for (struct news *n; (n = take_first(ev)) != NULL;)
        news_free(n);
    while ((l = list_pop(&ev->listeners)) != NULL)
        http_stream_close(list_entry(l, struct listener, link)->stream);
    for (size_t i = 0; i < HTTP_EVENTS_LOG_MAX; i++)
        json_decref(ev->log[i]);
    mem_free(ev);
}

/* May run after http_events_free(): touches only the listener. */
static void on_close(void *arg, struct http_stream *s)
{
    struct listener *l = arg;
    list_remove(&l->link);
    mem_free(l);
}

void http_events_open(struct http_events *ev, struct http_request *r)
{
    struct listener *l = mem_alloc(sizeof *l);
    list_init(&l->link);
    if (http_stream_open(r, "text/event-stream", on_close, l, &l->stream) < 0) {
        mem_free(l); /* it was answered with 503 */
        return;
    }
    list_push(&ev->listeners, &l->link);
    /* Tells proxies and the browser at once that the stream is open. */
    static const char hello[] = "retry: 2000\n\n";
    (void)http_stream_write(l->stream, hello, sizeof hello - 1);
}

json_t *http_events_log(const struct http_events *ev)
{
    json_t *a = json_array();
    uint64_t first = ev->n > HTTP_EVENTS_LOG_MAX ? ev->n - HTTP_EVENTS_LOG_MAX : 0;
    for (uint64_t i = first; i < ev->n; i++)
        http_json_push(a, json_incref(ev->log[i % HTTP_EVENTS_LOG_MAX]));
    return a;
}
