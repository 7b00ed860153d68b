#include "worker/link/upload.h"

#include "common/base/log.h"
#include "common/net/loop.h"
#include "common/net/http/transfer.h"
#include "worker/link/session.h"
#include "worker/order/task_check.h"
#include "worker/order/work.h"

#define TICKET_MS 30000
#define RETRY_MS 1000
#define TICKETS_MAX 4 /* per output: a ticket may expire while a slow line is at it */

struct upload {
    struct fetch_env env;
    struct session *session;
    struct upload_what what;
    fetch_done_fn done; /* NULL: cancelled */
    void *arg;
    struct loop_timer *retry;
    size_t at;          /* output in hand */
    unsigned tickets;   /* asked for it */
    uint64_t call, put; /* in flight; 0: none */
    bool ending;        /* the deferred turn frees it */
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
    loop_timer_free(u->retry);
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
    loop_timer_stop(u->retry);
    loop_defer(u->env.loop, finish, u);
}

static void ask(struct upload *u);

static void next(struct upload *u)
{
    u->at++;
    u->tickets = 0;
    ask(u);
}

static void on_put(void *arg, const struct xfer_result *r)
{
    struct upload *u = arg;
    u->put = 0;
    if (u->ending)
        return;
    if (r->code == 0) {
        next(u);
    } else if (u->tickets < TICKETS_MAX && r->code != -ENOSPC && r->code != -ERR_LIMIT) {
        log_info("upload", "trying again with a new ticket: %s", r->detail);
        loop_timer_start(u->retry, RETRY_MS, 0);
    } else {
        struct err err = {0};
        (void)err_set(&err, r->code, "sending a result to the coordinator: %s", r->detail);
        end(u, r->code, err.msg);
    }
}

static void on_put_progress(void *arg, uint64_t done, uint64_t total)
{
    struct upload *u = arg;
    char have[STR_HUMAN_MAX], all[STR_HUMAN_MAX];
    if (u->what.progress)
        progress_activity(u->what.progress, "uploading %zu of %zu: %s of %s", u->at + 1, u->what.n,
                          str_human_bytes(done, have), str_human_bytes(total, all));
}

static void put(struct upload *u, const char *ticket)
{
    char url[FETCH_URL_MAX];
    struct err err = {0};
    struct xfer_put p = {.url = url,
                         .path = u->what.outputs[u->at].path,
                         .sha256 = u->what.outputs[u->at].sha256,
                         .progress = on_put_progress,
                         .done = on_put,
                         .arg = u};
    int rc = fetch_resolve(u->env.token, ticket, url, &p.pin, &err);
    if (rc == 0)
        rc = xfer_put(u->env.xfer, &p, &u->put, &err);
    if (rc < 0)
        end(u, rc, err.msg);
}

static void on_ticket(void *arg, const struct rpc_result *r)
{
    struct upload *u = arg;
    u->call = 0;
    if (u->ending)
        return;
    if (r->code < 0) {
        if (r->remote && !r->retryable)
            end(u, r->code, r->detail);
        else
            loop_timer_start(u->retry, r->retry_after_ms ? r->retry_after_ms : RETRY_MS, 0);
        return;
    }
    const Skerry__V1__TicketReply *reply = (const Skerry__V1__TicketReply *)(const void *)r->reply;
    struct err err = {0};
    int rc = task_check_ticket(reply, &err);
    if (rc < 0)
        end(u, rc, err.msg);
    else if (reply->have)
        next(u);
    else
        put(u, reply->url);
}

static void ask(struct upload *u)
{
    if (u->ending || u->call || u->put)
        return;
    if (u->at == u->what.n) {
        end(u, 0, "");
        return;
    }
    const struct work_output *o = &u->what.outputs[u->at];
    Skerry__V1__TicketRequest req = SKERRY__V1__TICKET_REQUEST__INIT;
    req.task_id = u->what.task_id;
    req.attempt = u->what.attempt;
    req.sha256 = (ProtobufCBinaryData){32, (uint8_t *)(uintptr_t)o->sha256}; /* only read */
    req.size = o->size;
    if (u->what.progress)
        progress_activity(u->what.progress, "uploading %zu of %zu", u->at + 1, u->what.n);
    int rc = session_call(u->session, SKERRY__V1__METHOD__METHOD_TICKET, &req.base,
                          &skerry__v1__ticket_reply__descriptor, TICKET_MS, on_ticket, u, &u->call);
    if (rc == 0)
        u->tickets++;
    else
        loop_timer_start(u->retry, RETRY_MS, 0);
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
    u->retry = loop_timer_new(env->loop, on_retry, u);
    ask(u);
    return u;
}

void upload_resume(struct upload *u)
{
    ask(u);
}

void upload_cancel(struct upload *u)
{
    if (!u)
        return;
    u->done = NULL;
    end(u, -ERR_CANCELLED, "cancelled");
    if (u->call)
        session_cancel(u->session, u->call);
    if (u->put)
        xfer_cancel(u->env.xfer, u->put);
}
