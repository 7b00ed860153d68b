#include "coordinator/http/http_api.h"

#include "common/base/buf.h"
#include "common/net/token.h"
#include "coordinator/http/gantt_svg.h"
#include "coordinator/http/http_api_impl.h"
#include "coordinator/http/http_events.h"
#include "coordinator/http/http_json.h"
#include "coordinator/http/http_metrics.h"
#include "coordinator/http/http_session.h"
#include "coordinator/http/web_assets.h"
#include "coordinator/view/view.h"

#define OPERATOR TOKEN_ROLE_OPERATOR
#define VIEWER (TOKEN_ROLE_VIEWER | TOKEN_ROLE_OPERATOR)
#define ANYBODY TOKEN_ROLE_NONE

#define BODY_SMALL (16u << 10)
#define BODY_SUBMIT (8u << 20)
#define PAGE_MAX 1000     /* most items of a page */
#define METRICS_MAX 10000 /* most records in an answer */
#define LINES_BYTES_MAX (4u << 20)
#define PROMETHEUS_BYTES_MAX (8u << 20)
#define SVG_BYTES_MAX (4u << 20)
#define SECRET_MAX 512

/* ---- reading -------------------------------------------------------------- */

static void get_health(void *arg, struct http_request *r)
{
    http_reply_text(r, 200, "text/plain; charset=utf-8", "ok\n");
}

static void get_status(void *arg, struct http_request *r)
{
    struct http_api *api = arg;
    http_answer_status(api, r, get_status);
}

static void get_jobs(void *arg, struct http_request *r)
{
    struct http_api *api = arg;
    http_answer_shown(api, r, 0, http_json_items(http_json_jobs(api->o.co)), get_jobs);
}

static void get_job(void *arg, struct http_request *r)
{
    struct http_api *api = arg;
    struct err err = {0};
    uint64_t id, rounds, samples;
    if (http_request_param_u64(r, "id", &id) < 0 ||
        http_request_query_u64(r, "history", HTTP_JSON_ROUNDS_MAX, HTTP_JSON_ROUNDS_MAX, &rounds) <
            0 ||
        http_request_query_u64(r, "samples", HTTP_JSON_SAMPLES_MAX, HTTP_JSON_SAMPLES_MAX,
                               &samples) < 0)
        return;
    const bool secrets = http_request_role(r) & OPERATOR;
    struct buf job;
    if (http_json_job_text(api->o.co, id, rounds, samples, secrets, &job, &err) < 0)
        http_answer_refused(api, r, &err);
    else
        http_answer_text(api, r, id, "application/json", &job, get_job);
}

struct lines {
    struct buf out;
    bool full;             /* the rest waits for the next request */
    const struct job *job; /* an evaluation ends after its round was recorded */
    size_t at;             /* where the last look-up of a round ended, since they come in order */
};

/* The round of the record, or the round that made the evaluated version; NULL: it is not known. */
static const struct round_rec *round_of(struct lines *l, const struct metric_rec *m)
{
    const struct job *j = l->job;
    const uint32_t round = m->round - (m->kind == METRIC_EVAL);
    for (size_t i = 0; j != NULL && i < j->n_rounds; i++) {
        const size_t at = (l->at + i) % j->n_rounds;
        if (j->rounds[at].path == m->path && j->rounds[at].round == round) {
            l->at = at;
            return &j->rounds[at];
        }
    }
    return NULL;
}

/* Inner steps of a replica of the path from the first round on record to the end of this one. */
static json_t *steps_until(const struct job *j, const struct round_rec *end)
{
    double steps = 0;
    if (end == NULL)
        return json_null();
    for (const struct round_rec *r = j->rounds; r <= end; r++)
        if (r->path == end->path && r->contributions > 0)
            steps += (double)r->steps / r->contributions;
    return json_integer((json_int_t)(steps + 0.5));
}

static void add_line(void *arg, const struct metric_rec *m)
{
    struct lines *l = arg;
    if (l->full)
        return;
    json_t *o = http_json_metric(m);
    if (m->kind != METRIC_LOSS) {
        const struct round_rec *r = round_of(l, m);
        const bool at_begin = m->kind == METRIC_EVAL && m->round == 0;
        if (m->kind == METRIC_ROUND)
            http_json_put(o, "eval_loss", http_json_real(r ? (double)r->eval_loss : NAN));
        if (m->step == 0 && !at_begin) /* an older release did not note it */
            http_json_put(o, "step", steps_until(l->job, r));
    }
    const size_t digits = m->n_numbers > 0 ? 17 : 9; /* ours were floats */
    char *line = json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(digits));
    /* Only whole lines: the reader asks again from its last one. */
    l->full = l->full || line == NULL || buf_printf(&l->out, "%s\n", line) < 0;
    mem_free(line);
    json_decref(o);
}

static void get_job_metrics(void *arg, struct http_request *r)
{
    struct http_api *api = arg;
    struct err err = {0};
    uint64_t id, after;
    if (http_request_param_u64(r, "id", &id) < 0 ||
        http_request_query_u64(r, "after", 0, INT64_MAX, &after) < 0)
        return;
    struct lines l = {.job = view_job_record(api->o.co, id)};
    buf_init(&l.out, LINES_BYTES_MAX);
    if (view_metrics(api->o.co, id, after, METRICS_MAX, add_line, &l, &err) < 0) {
        http_answer_refused(api, r, &err);
    } else {
        http_answer_text(api, r, id, "application/x-ndjson", &l.out, get_job_metrics);
    }
    buf_release(&l.out);
}

/* No content from other sites, no inline script or style, no frame around our pages. */
static void add_headers(struct http_request *r)
{
    http_reply_header(r, "Content-Security-Policy",
                      "default-src 'none'; script-src 'self'; style-src 'self'; "
                      "img-src 'self' data: blob:; connect-src 'self'; form-action 'self'; "
                      "base-uri 'none'; frame-ancestors 'none'");
    http_reply_header(r, "Referrer-Policy", "no-referrer");
    http_reply_header(r, "Cache-Control", "no-cache");
}

/* The trace as JSON, if it is JSON (json_decref); NULL: the request is answered. */
static json_t *read_trace(struct http_api *api, struct http_request *r, struct view_trace *ret)
{
    struct err err = {0};
    uint64_t id;
    if (http_request_param_u64(r, "id", &id) < 0)
        return NULL;
    if (view_trace(api->o.co, id, ret, &err) < 0) {
        http_answer_refused(api, r, &err);
        return NULL;
    }
    json_t *json = json_loadb(ret->trace->text, ret->trace->len, 0, NULL); /* it is untrusted */
    if (!json)
        http_reply_error(r, 404, "not_found",
                         "The trace of a step that a worker sent is not JSON.");
    return json;
}

static void get_job_trace(void *arg, struct http_request *r)
{
    struct view_trace v;
    json_t *json = read_trace(arg, r, &v);
    if (json) {
        http_reply_header(r, "Cache-Control", "no-store");
        http_reply_bytes(r, 200, "application/json", v.trace->text, v.trace->len);
    }
    json_decref(json);
}

static void get_job_trace_svg(void *arg, struct http_request *r)
{
    struct view_trace v;
    struct err err = {0};
    struct buf out;
    json_t *json = read_trace(arg, r, &v);
    if (!json)
        return;
    buf_init(&out, SVG_BYTES_MAX);
    if (gantt_svg(json, &out, &err) < 0) {
        http_reply_error(r, 404, "not_found", "%s", err.msg);
    } else {
        add_headers(r);
        http_reply_bytes(r, 200, "image/svg+xml", buf_str(&out), out.len);
    }
    buf_release(&out);
    json_decref(json);
}

/* The cursor and size of a page; false: the request is answered. */
static bool take_page(struct http_request *r, const char *cursor, uint64_t *ret_cursor,
                      uint64_t *ret_limit)
{
    if (http_request_query_u64(r, cursor, 0, INT64_MAX - 1, ret_cursor) < 0 ||
        http_request_query_u64(r, "limit", PAGE_MAX, PAGE_MAX, ret_limit) < 0)
        return false;
    *ret_limit = *ret_limit > 0 ? *ret_limit : PAGE_MAX;
    return true;
}

static void get_tasks(void *arg, struct http_request *r)
{
    static const char *const states[] = {"pending", "leased", "done", "failed", "cancelled"};
    struct http_api *api = arg;
    struct err err = {0};
    struct view_job j;
    uint64_t job, before, limit;
    if (http_request_query_u64(r, "job", 0, INT64_MAX, &job) < 0 ||
        !take_page(r, "before", &before, &limit))
        return;
    const char *state = http_request_query(r, "state");
    bool known = state == NULL;
    for (size_t i = 0; i < sizeof states / sizeof states[0] && !known; i++)
        known = strcmp(states[i], state) == 0;
    if (!known) {
        http_reply_error(r, 400, "invalid",
                         "state is not one of pending, leased, done, failed and cancelled");
        return;
    }
    if (job != 0 && view_job(api->o.co, job, &j, &err) < 0)
        http_answer_refused(api, r, &err);
    else
        http_answer_shown(api, r, 0, http_json_tasks(api->o.co, job, state, before, limit),
                          get_tasks);
}

static void get_task(void *arg, struct http_request *r)
{
    struct http_api *api = arg;
    struct err err = {0};
    struct view_task t;
    uint64_t id;
    if (http_request_param_u64(r, "id", &id) < 0)
        return;
    if (view_task(api->o.co, id, &t, &err) < 0)
        http_answer_refused(api, r, &err);
    else
        http_answer_shown(api, r, t.task->job_id, http_json_task(&t), get_task);
}

static void get_workers(void *arg, struct http_request *r)
{
    struct http_api *api = arg;
    uint64_t after, gone, limit;
    if (http_request_query_u64(r, "gone", INT64_MAX, INT64_MAX, &gone) < 0 ||
        !take_page(r, "after", &after, &limit))
        return;
    http_answer_shown(api, r, 0, http_json_workers(api->o.co, after, gone, limit), get_workers);
}

static void get_modules(void *arg, struct http_request *r)
{
    struct http_api *api = arg;
    struct err err = {0};
    struct view_job j;
    uint64_t job;
    if (http_request_query_u64(r, "job", 0, INT64_MAX, &job) < 0)
        return;
    if (job != 0 && view_job(api->o.co, job, &j, &err) < 0)
        http_answer_refused(api, r, &err);
    else
        http_answer_shown(api, r, job, http_json_items(http_json_modules(api->o.co, job)),
                          get_modules);
}

static void get_log(void *arg, struct http_request *r)
{
    struct http_api *api = arg;
    http_reply_json(r, 200, http_json_items(http_events_log(api->events))); /* they are public */
}

static void get_events(void *arg, struct http_request *r)
{
    struct http_api *api = arg;
    http_events_open(api->events, r);
}

static void get_prometheus(void *arg, struct http_request *r)
{
    struct http_api *api = arg;
    struct http_counters http = http_server_counters(api->o.server);
    struct buf out;
    buf_init(&out, PROMETHEUS_BYTES_MAX);
    if (http_metrics_write(api->o.co, api->o.store, &http, &out) < 0)
        http_reply_error(r, 503, "limit", "There are more metrics than fit into %u bytes.",
                         PROMETHEUS_BYTES_MAX);
    else
        http_reply_bytes(r, 200, "text/plain; version=0.0.4; charset=utf-8", buf_str(&out),
                         out.len);
    buf_release(&out);
}

/* ---- the dashboard: its files hold no secrets, so everybody may fetch them --- */

static const struct web_asset *find_asset(const char *name)
{
    for (size_t i = 0; i < web_assets_count; i++)
        if (strcmp(web_assets[i].name, name) == 0)
            return &web_assets[i];
    return NULL;
}

static void reply_asset(struct http_request *r, const char *name)
{
    static const struct {
        const char *ending, *type;
    } types[] = {
        {".html", "text/html; charset=utf-8"},
        {".js", "text/javascript; charset=utf-8"},
        {".css", "text/css; charset=utf-8"},
        {".svg", "image/svg+xml"},
    };
    const struct web_asset *asset = find_asset(name);
    const char *type = NULL;
    for (size_t i = 0; asset && i < sizeof types / sizeof types[0]; i++)
        if (str_ends(name, types[i].ending))
            type = types[i].type;
    if (type == NULL) {
        http_reply_error(r, 404, "not_found", "There is no file of that name.");
        return;
    }
    add_headers(r);
    if (http_reply_unchanged(r, asset->etag))
        return;
    http_reply_static(r, 200, type, asset->data, asset->len);
}

static void get_web_file(void *arg, struct http_request *r)
{
    const char *name = http_request_param(r, "name");
    /* The pages themselves are served only at /. */
    reply_asset(r, str_ends(name, ".html") ? "" : name);
}

/* ---- login --------------------------------------------------------------- */

/* The form, whose paragraph about a refusal is for those that were refused. */
static void reply_form(struct http_request *r, bool denied)
{
    static const char about[] = "    <p class=\"denied\"";
    const struct web_asset *form = find_asset("login.html");
    const char *text = (const char *)form->data, *end = text + form->len;
    const char *from = memmem(text, form->len, about, strlen(about));
    const char *to = (const char *)memchr(from, '\n', (size_t)(end - from)) + 1;
    struct buf page;
    buf_init(&page, form->len);
    (void)buf_append(&page, text, (size_t)((denied ? to : from) - text)); /* it has room */
    (void)buf_append(&page, to, (size_t)(end - to));
    add_headers(r);
    http_reply_bytes(r, denied ? 401 : 200, "text/html; charset=utf-8", buf_str(&page), page.len);
    buf_release(&page);
}

static void redirect_home(struct http_request *r)
{
    http_reply_header(r, "Location", "/");
    http_reply_header(r, "Cache-Control", "no-store");
    http_reply_empty(r, 303);
}

static void log_in(const struct http_api *api, struct http_request *r, const char *secret)
{
    char id[SESSION_ID_MAX];
    uint64_t holder = 0;
    if (api->o.authenticate(api->o.auth_arg, secret, &holder) & VIEWER) {
        http_session_open(api->o.sessions, holder, id);
        http_reply_cookie(r, id, SESSION_LIFE_MS / 1000);
        redirect_home(r);
    } else {
        reply_form(r, true);
    }
}

static void get_page(void *arg, struct http_request *r)
{
    struct http_api *api = arg;
    const char *secret = http_request_query(r, "token");
    if (secret != NULL)
        log_in(api, r, secret); /* which also clears the address bar */
    else if (http_request_role(r) & VIEWER)
        reply_asset(r, "index.html");
    else
        reply_form(r, false);
}

/* The first value of a form, with %XX and '+' decoded, cut to fit. */
static bool form_value(const char *text, size_t len, const char *name, char *out, size_t size)
{
    size_t n = strlen(name), used = 0;
    if (len <= n || strncmp(text, name, n) != 0 || text[n] != '=')
        return false;
    for (size_t i = n + 1; i < len && text[i] != '&' && used + 1 < size; i++) {
        unsigned value;
        if (text[i] == '%' && i + 2 < len && sscanf(text + i + 1, "%2x", &value) == 1) {
            out[used++] = (char)value;
            i += 2;
        } else {
            out[used++] = text[i] == '+' ? ' ' : text[i];
        }
    }
    out[used] = '\0';
    return true;
}

static void post_login(void *arg, struct http_request *r)
{
    char form[3 * SECRET_MAX + 16], secret[SECRET_MAX + 2] = "";
    size_t len;
    const char *body = http_request_body(r, &len);
    if (body == NULL || len >= sizeof form) {
        log_in(arg, r, "");
        return;
    }
    memcpy(form, body, len);
    form[len] = '\0';
    (void)form_value(form, len, "token", secret, sizeof secret);
    /* White space at the ends comes from pasting. */
    const char *start = secret + strspn(secret, " \t\r\n");
    for (size_t n = strlen(start); n > 0 && strchr(" \t\r\n", start[n - 1]); n--)
        secret[(size_t)(start - secret) + n - 1] = '\0';
    log_in(arg, r, start);
}

static void post_logout(void *arg, struct http_request *r)
{
    struct http_api *api = arg;
    const char *cookie = http_request_cookie(r);
    if (cookie != NULL)
        http_session_close(api->o.sessions, cookie);
    http_reply_cookie(r, "", 0);
    redirect_home(r);
}

/* ---- routes --------------------------------------------------------------- */

/* The blob routes are common/net/http/blob_http's. */
static const struct http_route routes[] = {
    {"GET", "/healthz", ANYBODY, 0, get_health, NULL, NULL},
    {"GET", "/metrics", VIEWER, 0, get_prometheus, NULL, NULL},
    {"GET", "/", ANYBODY, 0, get_page, NULL, NULL},
    {"GET", "/web/{name}", ANYBODY, 0, get_web_file, NULL, NULL},
    {"POST", "/login", ANYBODY, 4096, post_login, NULL, NULL},
    {"POST", "/logout", ANYBODY, 4096, post_logout, NULL, NULL},
    {"GET", "/v1/status", VIEWER, 0, get_status, NULL, NULL},
    {"GET", "/v1/jobs", VIEWER, 0, get_jobs, NULL, NULL},
    {"POST", "/v1/jobs", OPERATOR, BODY_SUBMIT, http_post_job, NULL, NULL},
    {"GET", "/v1/jobs/{id}", VIEWER, 0, get_job, NULL, NULL},
    {"POST", "/v1/jobs/{id}/cancel", OPERATOR, BODY_SMALL, http_post_cancel, NULL, NULL},
    {"POST", "/v1/jobs/{id}/remove", OPERATOR, BODY_SMALL, http_post_remove, NULL, NULL},
    {"POST", "/v1/jobs/{id}/pause", OPERATOR, BODY_SMALL, http_post_pause, NULL, NULL},
    {"POST", "/v1/jobs/{id}/rollback", OPERATOR, BODY_SMALL, http_post_rollback, NULL, NULL},
    {"POST", "/v1/jobs/{id}/resume", OPERATOR, BODY_SMALL, http_post_resume, NULL, NULL},
    {"POST", "/v1/jobs/{id}/adjust", OPERATOR, BODY_SMALL, http_post_adjust, NULL, NULL},
    {"GET", "/v1/jobs/{id}/metrics", VIEWER, 0, get_job_metrics, NULL, NULL},
    {"GET", "/v1/jobs/{id}/trace", VIEWER, 0, get_job_trace, NULL, NULL},
    {"GET", "/v1/jobs/{id}/trace.svg", VIEWER, 0, get_job_trace_svg, NULL, NULL},
    {"POST", "/v1/jobs/{id}/sample", OPERATOR, BODY_SMALL, http_post_sample, NULL, NULL},
    {"GET", "/v1/tasks", VIEWER, 0, get_tasks, NULL, NULL},
    {"GET", "/v1/tasks/{id}", VIEWER, 0, get_task, NULL, NULL},
    {"POST", "/v1/tasks/{id}/cancel", OPERATOR, BODY_SMALL, http_post_task_cancel, NULL, NULL},
    {"GET", "/v1/workers", VIEWER, 0, get_workers, NULL, NULL},
    {"POST", "/v1/workers/{id}/drain", OPERATOR, BODY_SMALL, http_post_drain, NULL, NULL},
    {"GET", "/v1/modules", VIEWER, 0, get_modules, NULL, NULL},
    {"POST", "/v1/uploads", OPERATOR, BODY_SMALL, http_post_upload, NULL, NULL},
    {"GET", "/v1/log", VIEWER, 0, get_log, NULL, NULL},
    {"POST", "/v1/workers/{id}/revoke", OPERATOR, BODY_SMALL, http_post_worker_revoke, NULL, NULL},
    {"GET", "/v1/tokens", OPERATOR, 0, http_get_tokens, NULL, NULL},
    {"POST", "/v1/tokens", OPERATOR, BODY_SMALL, http_post_token, NULL, NULL},
    {"POST", "/v1/tokens/{id}/adjust", OPERATOR, BODY_SMALL, http_post_token_adjust, NULL, NULL},
    {"POST", "/v1/tokens/{id}/revoke", OPERATOR, BODY_SMALL, http_post_token_revoke, NULL, NULL},
    {"GET", "/v1/events", VIEWER, 0, get_events, NULL, NULL},
};

#define N_ROUTES (sizeof routes / sizeof routes[0])

int http_api_open(const struct http_api_options *o, struct http_api **ret, struct err *err)
{
    struct http_api *api = mem_alloc(sizeof *api);
    api->o = *o;
    list_init(&api->pending);
    int rc = http_events_new(o->co, &api->events, err);
    if (rc < 0) {
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

void http_api_slow(struct http_api *api)
{
    http_answer_slow(api);
}

void http_api_close(struct http_api *api)
{
    if (api == NULL)
        return;
    http_answer_stop(api);
    http_events_free(api->events);
    mem_free(api->kept);
    mem_free(api->routes);
    mem_free(api);
}
