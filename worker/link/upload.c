#include "worker/link/upload.h"

#include "common/base/log.h"
#include "common/net/loop.h"
#include "common/net/http/transfer.h"
#include "worker/link/session.h"
#include "worker/order/task_check.h"
#include "worker/order/work.h"

#define TICKET_MS 30000
#define RETRY_MS 1000
#define TICKETS_MAX 4 /* in a row by which an output came no further: one may expire meanwhile */
#define LANES 2       /* so that the line is busy while one waits for a ticket or a store */

/* A lane sends one output after the other. */
struct lane {
    struct upload *u;
    struct loop_timer *retry;
    size_t at;              /* its output; upload.what.n: none is left */
    unsigned tickets;       /* tickets used for it since it came further */
    uint64_t call, put;     /* in flight; 0: none */
    uint64_t sent;          /* bytes of it sent */
    uint64_t most;          /* with any ticket that has ended */
    struct log_change kept; /* why it was said to be kept */
};

struct upload {
    struct fetch_env env;
    struct session *session;
    struct upload_what what;
    fetch_done_fn done; /* NULL: cancelled */
    void *arg;
    struct lane lanes[LANES];
    size_t begun, n_there;             /* outputs */
    uint64_t total_bytes, there_bytes; /* of all, and of those that are there */
    char waits[256];                   /* why nothing can be sent; "": it can */
    bool ending;                       /* the deferred turn frees it */
    int code;
    char detail[1024];
};

static void finish(void *arg)
{
    struct upload *u = arg;
    fetch_done_fn done = u->done;
    void *done_arg = u->arg;
    int code = u->code;
    char detail[sizeof(u->detail)];
    str_copy(detail, sizeof(detail), u->detail);
    for (size_t i = 0; i < LANES; i++)
        loop_timer_free(u->lanes[i].retry);
    mem_free(u);
    if (done)
        done(done_arg, code, detail);
}

static void end(struct upload *u, int code, const char *detail)
{
    if (u->ending)
        return;
    u->ending = true;
    u->code = code;
    str_copy(u->detail, sizeof(u->detail), detail);
    loop_defer(u->env.loop, finish, u);
    for (size_t i = 0; i < LANES; i++) {
        struct lane *l = &u->lanes[i];
        loop_timer_stop(l->retry);
        if (l->call)
            session_cancel(u->session, l->call);
        if (l->put)
            xfer_cancel(u->env.xfer, l->put);
    }
}

static void tell(struct upload *u)
{
    char have[STR_HUMAN_MAX], all[STR_HUMAN_MAX];
    uint64_t sent = u->there_bytes;
    for (size_t i = 0; i < LANES; i++)
        sent += u->lanes[i].sent;
    if (u->what.progress)
        progress_activity(u->what.progress, "uploading: %s of %s%s%s", str_human_bytes(sent, have),
                          str_human_bytes(u->total_bytes, all), u->waits[0] ? "; waits: " : "",
                          u->waits);
}

static void ask(struct lane *l);

static bool repeats(const struct upload *u, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(u->what.outputs[i].sha256, u->what.outputs[n].sha256, 32) == 0)
            return true;
    return false;
}

/* Takes the next output; equal bytes are sent once. */
static void take(struct lane *l)
{
    struct upload *u = l->u;
    for (; u->begun < u->what.n && repeats(u, u->begun); u->begun++, u->n_there++)
        u->there_bytes += u->what.outputs[u->begun].size;
    l->at = u->begun < u->what.n ? u->begun++ : u->what.n;
    l->tickets = 0;
    l->sent = l->most = 0;
}

/* Its output is there. */
static void next(struct lane *l)
{
    struct upload *u = l->u;
    u->there_bytes += u->what.outputs[l->at].size;
    u->n_there++;
    take(l);
    if (u->n_there == u->what.n)
        end(u, 0, "");
    else
        ask(l);
}

/* Nobody is there, or has room: the result is kept while the coordinator leaves the task to us. */
static bool is_to_be_kept(const struct xfer_result *r)
{
    if (r->status != 0)
        return r->status == 503 || r->status == 507;
    return r->code == -EHOSTUNREACH || r->code == -ECONNREFUSED ||
           (r->code == -ETIMEDOUT && r->bytes == 0);
}

static void on_put(void *arg, const struct xfer_result *r)
{
    struct lane *l = arg;
    struct upload *u = l->u;
    l->put = 0;
    if (u->ending)
        return;
    u->waits[0] = '\0';
    if (l->sent > l->most) {
        l->most = l->sent;
        l->tickets = 1;
    }
    if (r->code == 0) {
        l->kept = (struct log_change){0};
        next(l);
    } else if (is_to_be_kept(r)) {
        (void)log_on_change(&l->kept, LOG_LEVEL_INFO, "upload",
                            "the result is kept and sent when it can be: %s", r->detail);
        str_copy(u->waits, sizeof(u->waits), r->detail);
        l->tickets--; /* it was not used */
        loop_timer_start(l->retry, RETRY_MS, 0);
    } else if (l->tickets < TICKETS_MAX && r->code != -ENOSPC && r->code != -ERR_LIMIT) {
        log_info("upload", "trying again with a new ticket: %s", r->detail);
        loop_timer_start(l->retry, RETRY_MS, 0);
    } else {
        struct err err = {0};
        (void)err_set(&err, r->code, "sending a result to the coordinator: %s", r->detail);
        end(u, r->code, err.msg);
    }
}

static void on_put_progress(void *arg, uint64_t done, uint64_t total)
{
    struct lane *l = arg;
    l->sent = done;
    l->u->waits[0] = '\0';
    tell(l->u);
}

static void put(struct lane *l, const char *ticket)
{
    struct upload *u = l->u;
    char url[FETCH_URL_MAX];
    struct err err = {0};
    struct xfer_put p = {.url = url,
                         .path = u->what.outputs[l->at].path,
                         .sha256 = u->what.outputs[l->at].sha256,
                         .progress = on_put_progress,
                         .done = on_put,
                         .arg = l};
    int rc = fetch_resolve(u->env.token, ticket, url, &p.pin, &err);
    l->tickets++;
    if (rc == 0)
        rc = xfer_put(u->env.xfer, &p, &l->put, &err);
    if (rc < 0)
        end(u, rc, err.msg);
}

static void on_ticket(void *arg, const struct rpc_result *r)
{
    struct lane *l = arg;
    struct upload *u = l->u;
    l->call = 0;
    if (u->ending)
        return;
    if (r->code < 0) {
        if (r->remote && !r->retryable)
            end(u, r->code, r->detail);
        else
            loop_timer_start(l->retry, r->retry_after_ms ? r->retry_after_ms : RETRY_MS, 0);
        return;
    }
    const Skerry__V1__TicketReply *reply = (const Skerry__V1__TicketReply *)(const void *)r->reply;
    struct err err = {0};
    int rc = task_check_ticket(reply, &err);
    if (rc == 0 && u->what.coming && reply->coming[0])
        u->what.coming(u->arg, &u->what.outputs[l->at], reply->coming);
    if (rc < 0)
        end(u, rc, err.msg);
    else if (reply->have)
        next(l);
    else
        put(l, reply->url);
}

static void ask(struct lane *l)
{
    struct upload *u = l->u;
    if (u->ending || l->call || l->put || l->at == u->what.n)
        return;
    const struct work_output *o = &u->what.outputs[l->at];
    Skerry__V1__TicketRequest req = SKERRY__V1__TICKET_REQUEST__INIT;
    req.task_id = u->what.task_id;
    req.attempt = u->what.attempt;
    req.sha256 = (ProtobufCBinaryData){32, (uint8_t *)(uintptr_t)o->sha256}; /* only read */
    req.size = o->size;
    Skerry__V1__Contribution c = SKERRY__V1__CONTRIBUTION__INIT;
    c.module_id = o->module_id;
    c.base_version = o->base_version;
    c.samples = o->samples ? o->samples : u->what.samples;
    req.contribution = u->what.coming && o->role == WORK_CONTRIBUTION ? &c : NULL;
    tell(u);
    int rc = session_call(u->session, SKERRY__V1__METHOD__METHOD_TICKET, &req.base,
                          &skerry__v1__ticket_reply__descriptor, TICKET_MS, on_ticket, l, &l->call);
    if (rc < 0)
        loop_timer_start(l->retry, RETRY_MS, 0);
}

static void on_retry(void *arg)
{
    ask(arg);
}

struct upload *upload_start(const struct fetch_env *env, struct session *session,
                            const struct upload_what *what, fetch_done_fn done, void *arg)
{
    struct upload *u = mem_alloc(sizeof(*u));
    *u = (struct upload){.env = *env, .session = session, .what = *what, .done = done, .arg = arg};
    for (size_t i = 0; i < what->n; i++)
        u->total_bytes += what->outputs[i].size;
    for (size_t i = 0; i < LANES; i++) {
        struct lane *l = &u->lanes[i];
        l->u = u;
        l->retry = loop_timer_new(env->loop, on_retry, l);
        take(l);
    }
    if (what->n == 0)
        end(u, 0, "");
    upload_resume(u);
    return u;
}

void upload_resume(struct upload *u)
{
    for (size_t i = 0; i < LANES; i++)
        ask(&u->lanes[i]);
}

void upload_cancel(struct upload *u)
{
    if (!u)
        return;
    u->done = NULL;
    end(u, -ERR_CANCELLED, "cancelled");
}
