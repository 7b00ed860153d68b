#include "worker/agent.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/str.h"
#include "common/net/loop.h"
#include "common/net/transfer.h"
#include "worker/kinds/engine.h"
#include "worker/kinds/kinds.h"
#include "worker/order/modules.h"
#include "worker/order/work.h"
#include "worker/outcome.h"
#include "worker/kinds/residual.h"
#include "worker/link/uplink.h"
#include "worker/link/upload.h"
#include "worker/vitals.h"

#define ASSIGN_WAIT_MS 25000
#define ASSIGN_DEADLINE_MS (ASSIGN_WAIT_MS + 10000)
#define ASK_AGAIN_MS 250 /* after an answer that came without waiting */
#define RETRY_MS 1000
#define REPORT_MS 30000
#define LEAVE_SEND_MS 5000 /* for a result that is on its way when we must go */
#define LEAVE_BYE_MS 1500
#define JOBS_MAX 256

enum agent_state {
    AGENT_IDLE,
    AGENT_ASKING,
    AGENT_PLANNING,
    AGENT_FETCHING,
    AGENT_RUNNING,
    AGENT_UPLOADING,
    AGENT_REPORTING,
};

struct agent {
    struct agent_options opt;
    struct loop *loop;
    struct session *session;
    struct uplink *uplink;
    struct vitals *vitals;
    struct pool *compute;
    enum agent_state state;

    /* The task in hand, from ASSIGN to the answer to its report. */
    uint64_t task_id;
    uint32_t attempt;
    struct work *w; /* NULL when the task could not even be read */
    struct fetch *fetch;
    struct upload *upload;
    struct outcome_failure failure;
    bool revoked;
    bool saving;   /* the local checkpoint is being written */
    bool finished; /* only `saving` is waited for */
    bool cut;      /* the connection was lost while blobs were fetched */

    struct loop_timer *retry, *leave_timer;
    uint64_t call; /* ASSIGN or REPORT in flight; 0: none */
    uint64_t asked_ms;
    uint64_t moving_ms; /* since when the task has waited for its blobs to travel */
    struct log_change waiting;

    bool drain, leaving, bye, ended;
    struct err fatal; /* why this process cannot go on; code 0: it can */
    char leave_reason[256];

    /* What fill_heartbeat points to. */
    struct progress_view view;
    Skerry__V1__Progress progress;
    Skerry__V1__LossPoint points[PROGRESS_POINTS_MAX];
    Skerry__V1__LossPoint *point_list[PROGRESS_POINTS_MAX];
    float throughput;
    double flops, peak_flops; /* of the newest training phase */
    bool told_flops;
};

/* A job of the compute thread. */
struct job {
    struct agent *a;
    struct work *w;
    struct err err;
    uint64_t task_id; /* settle */
    bool accepted;
};

static void ask(struct agent *a);
static void send_report(struct agent *a);
static void plan(struct agent *a);
static void go_on_leaving(struct agent *a);

/* ---- jobs of the compute thread ---- */

static int submit(struct agent *a, pool_work_fn work, pool_done_fn done)
{
    struct job *j = mem_alloc(sizeof(*j));
    j->a = a;
    j->w = a->w;
    int rc = pool_submit(a->compute, work, done, j);
    if (rc < 0)
        mem_free(j);
    return rc;
}

static int settle_work(void *arg)
{
    struct job *j = arg;
    return residual_settle(j->a->opt.engine->state_dir, j->task_id, j->accepted, &j->err);
}

static void settle_done(void *arg, int rc)
{
    struct job *j = arg;
    if (rc < 0 && rc != -ERR_CANCELLED)
        log_warn("agent", "error feedback of task=%" PRIu64 ": %s", j->task_id, j->err.msg);
    mem_free(j);
}

static void settle(struct agent *a, uint64_t task_id, bool accepted)
{
    struct job *j = mem_alloc(sizeof(*j));
    j->a = a;
    j->task_id = task_id;
    j->accepted = accepted;
    if (pool_submit(a->compute, settle_work, settle_done, j) < 0) {
        log_warn("agent", "error feedback of task=%" PRIu64 " is lost: too many jobs wait",
                 task_id);
        mem_free(j);
    }
}

/* ---- the end of a task ---- */

static void take_rates(struct agent *a)
{
    if (a->view.flops <= 0)
        return;
    a->flops = a->view.flops;
    a->peak_flops = a->view.peak_flops;
}

/* A phase may be over before any heartbeat has told of it. */
static void keep_rates(struct agent *a)
{
    progress_take(&a->w->progress, &a->view);
    if (a->view.samples_per_second > 0)
        a->throughput = a->view.samples_per_second;
    take_rates(a);
}

static void finish_task(struct agent *a)
{
    a->finished = true;
    if (a->saving)
        return; /* save_done comes back here */
    a->finished = false;
    if (a->w)
        keep_rates(a);
    work_free(a->w);
    a->w = NULL;
    a->task_id = 0;
    if (a->flops > 0 && !a->told_flops)
        session_heartbeat(a->session);
    a->revoked = false;
    a->failure.code = 0;
    a->state = AGENT_IDLE;
    if (a->fatal.code < 0 && !a->leaving)
        agent_leave(a, a->fatal.msg);
    if (a->leaving)
        go_on_leaving(a);
    else
        ask(a);
}

/* A small file, there and gone again: 0, or why the work dir does not take it. */
static int try_disk(const struct agent *a, struct err *err)
{
    char *path = file_join(a->opt.tmp_dir, "probe");
    int rc = file_write_atomic(path, path, strlen(path), 0600, err);
    if (rc == 0)
        rc = file_remove(path, err);
    mem_free(path);
    return rc;
}

/* The code that the report goes out with.  What this machine's disk did is not the task's
 * fault: a full one is as too little memory, a work dir that is gone as a broken device.
 * What an upload finds full is the coordinator's disk. */
static int blame(struct agent *a, int code)
{
    struct err err = {0};
    int rc = code == -ERR_DEVICE || code == -ENOMEM ? 0 : try_disk(a, &err);
    bool full = rc == -ENOSPC || rc == -EDQUOT || rc == -EFBIG || code == -EFBIG ||
                code == -EDQUOT || (code == -ENOSPC && a->state != AGENT_UPLOADING);
    if (code == -ERR_DEVICE || code == -ENOMEM)
        return code;
    if (full)
        return -ENOMEM;
    if (rc == 0)
        return code;
    (void)err_set(&a->fatal, -EIO,
                  "the work dir cannot be used any more: %s; see to it, or give another "
                  "--work-dir, and start workerd again",
                  err.msg);
    return -ERR_DEVICE;
}

static void fail_task(struct agent *a, int code, const char *reason)
{
    const bool ingest = a->w && a->w->source_path;
    a->failure.code = blame(a, code);
    a->failure.retryable = outcome_retryable(code, ingest);
    str_copy(a->failure.reason, sizeof(a->failure.reason), reason);
    log_warn("agent", "task=%" PRIu64 " failed: %s", a->task_id, reason);
    if (code == -ERR_DEVICE)
        (void)err_set(&a->fatal, code, "the device failed: %s", reason);
    a->state = AGENT_REPORTING;
    send_report(a);
}

/* The stage is over; should the task end here?  Then it has been ended. */
static bool gone(struct agent *a)
{
    if (!a->revoked && !a->leaving)
        return false;
    if (a->revoked)
        settle(a, a->task_id, false);
    finish_task(a);
    return true;
}

/* ---- report ---- */

static void on_report_reply(void *arg, const struct rpc_result *r)
{
    struct agent *a = arg;
    a->call = 0;
    if (a->state != AGENT_REPORTING || r->code == -ERR_CANCELLED)
        return;
    if (r->code < 0) {
        if (!r->remote || r->retryable) {
            if (r->remote && r->code == -ERR_STALE)
                session_rejoin(a->session); /* it has forgotten us, not the task */
            loop_timer_start(a->retry, r->retry_after_ms ? r->retry_after_ms : RETRY_MS, 0);
            return;
        }
        log_warn("agent", "the report of task=%" PRIu64 " was refused: %s", a->task_id, r->detail);
        settle(a, a->task_id, false);
        finish_task(a);
        return;
    }
    const Skerry__V1__ReportReply *reply = (const Skerry__V1__ReportReply *)(const void *)r->reply;
    if (!reply->accepted) {
        log_warn("agent", "the result of task=%" PRIu64 " was not taken: %s", a->task_id,
                 reply->reason);
        settle(a, a->task_id, false);
    }
    finish_task(a);
}

static void send_report(struct agent *a)
{
    if (a->call)
        return;
    Skerry__V1__ReportRequest *req = outcome_new(a->task_id, a->attempt, a->w, &a->failure);
    int rc = session_call(a->session, SKERRY__V1__METHOD__METHOD_REPORT, &req->base,
                          &skerry__v1__report_reply__descriptor, REPORT_MS, on_report_reply, a,
                          &a->call);
    outcome_free(req);
    if (rc == -ERR_LIMIT && a->failure.code == 0)
        fail_task(a, rc, "the result has too many parts for one report");
    else if (rc < 0)
        loop_timer_start(a->retry, RETRY_MS, 0);
}

/* ---- stages ---- */

static void log_result(const struct agent *a)
{
    const struct work_result *r = &a->w->result;
    if (r->steps > 0)
        log_info("agent",
                 "done task=%" PRIu64 " train steps=%u samples=%" PRIu64
                 " loss=%.4f seconds=%.2f bad=%u",
                 a->task_id, r->steps, r->samples, (double)r->loss_mean, (double)r->seconds,
                 r->bad_count);
    else
        log_info("agent", "done task=%" PRIu64 " %s seconds=%.2f", a->task_id, a->w->kind->name,
                 (double)r->seconds);
}

/* What travelled while nothing was computed counts as waiting. */
static void moved(struct agent *a)
{
    a->w->result.waited_ms += loop_now_ms(a->loop) - a->moving_ms;
}

static void on_uploaded(void *arg, int code, const char *detail)
{
    struct agent *a = arg;
    a->upload = NULL;
    if (code < 0) {
        fail_task(a, code, detail);
        return;
    }
    moved(a);
    progress_activity(&a->w->progress, "reporting");
    a->state = AGENT_REPORTING;
    send_report(a);
}

static int save_work(void *arg)
{
    struct job *j = arg;
    engine_after(j->a->opt.engine, j->w);
    return 0;
}

static void save_done(void *arg, int rc)
{
    struct job *j = arg;
    struct agent *a = j->a;
    (void)rc; /* engine_after reports what it could not do */
    mem_free(j);
    a->saving = false;
    if (a->finished)
        finish_task(a);
}

static void start_upload(struct agent *a)
{
    const struct upload_what what = {
        .task_id = a->task_id,
        .attempt = a->attempt,
        .outputs = a->w->result.outputs,
        .n = a->w->result.n_outputs,
        .progress = &a->w->progress,
    };
    a->upload = upload_start(&a->opt.env, a->session, &what, on_uploaded, a);
}

static int run_work(void *arg)
{
    struct job *j = arg;
    return engine_run(j->a->opt.engine, j->w, &j->err);
}

static void run_done(void *arg, int rc)
{
    struct job *j = arg;
    struct agent *a = j->a;
    struct err err = j->err;
    mem_free(j);
    uplink_drop(a->uplink);
    if (rc == 0)
        log_result(a);
    if (gone(a))
        return;
    if (rc == -ERR_HASH && !a->w->full_only) {
        log_warn("agent", "task=%" PRIu64 ": %s; taking the whole version", a->task_id, err.msg);
        a->w->full_only = true;
        plan(a);
    } else if (rc < 0) {
        fail_task(a, rc, err.msg);
    } else {
        a->saving = submit(a, save_work, save_done) == 0;
        a->state = AGENT_UPLOADING;
        a->moving_ms = loop_now_ms(a->loop);
        start_upload(a);
    }
}

static void on_fetched(void *arg, int code, const char *detail)
{
    struct agent *a = arg;
    a->fetch = NULL;
    if (gone(a))
        return;
    if (code < 0 && (a->cut || !session_joined(a->session))) {
        /* The coordinator is away, or was: no fault of the task. */
        log_info("agent", "%s; fetching again when the coordinator is back", detail);
        progress_activity(&a->w->progress, "waiting for the coordinator");
        if (session_joined(a->session))
            plan(a); /* else on_joined does */
        return;
    }
    a->state = AGENT_RUNNING;
    moved(a);
    if (code == 0 && (code = submit(a, run_work, run_done)) < 0)
        detail = "too many jobs wait for the compute thread";
    if (code < 0)
        fail_task(a, code, detail);
}

static int plan_work(void *arg)
{
    struct job *j = arg;
    return engine_plan(j->a->opt.engine, j->w, &j->err);
}

static void plan_done(void *arg, int rc)
{
    struct job *j = arg;
    struct agent *a = j->a;
    struct err err = j->err;
    mem_free(j);
    if (gone(a))
        return;
    if (rc < 0) {
        fail_task(a, rc, err.msg);
        return;
    }
    a->state = AGENT_FETCHING;
    a->moving_ms = loop_now_ms(a->loop);
    const struct fetch_what what = {
        .needs = a->w->needs,
        .n = a->w->n_needs,
        .source_url = a->w->source_path ? a->w->task->ingest->url : NULL,
        .source_path = a->w->source_path,
        .progress = &a->w->progress,
    };
    a->fetch = fetch_start(&a->opt.env, &what, on_fetched, a);
}

static void plan(struct agent *a)
{
    a->state = AGENT_PLANNING;
    a->cut = false;
    progress_activity(&a->w->progress, "looking for blobs");
    int rc = submit(a, plan_work, plan_done);
    if (rc < 0)
        fail_task(a, rc, "too many jobs wait for the compute thread");
}

static void start_task(struct agent *a, const Skerry__V1__Task *task)
{
    struct err err = {0};
    const struct kind *kind = kind_find(kinds_all, task->kind);
    a->task_id = task->id;
    a->attempt = task->attempt;
    log_info("agent", "task=%" PRIu64 " attempt=%u %s job=%" PRIu64, task->id, task->attempt,
             kind ? kind->name : "?", task->job_id);
    int rc = work_new(kinds_all, task, a->opt.env.cache, a->opt.tmp_dir, &a->w, &err);
    if (rc < 0) {
        fail_task(a, rc, err.msg);
        return;
    }
    a->w->uplink = a->uplink;
    plan(a);
}

/* ---- asking ---- */

static void on_assign_reply(void *arg, const struct rpc_result *r)
{
    struct agent *a = arg;
    a->call = 0;
    if (a->state != AGENT_ASKING)
        return;
    a->state = AGENT_IDLE;
    if (r->code == -ERR_CANCELLED || a->leaving)
        return;
    if (r->code < 0) {
        if (r->remote && (r->code == -ERR_STALE || r->code == -ERR_NOTFOUND))
            session_rejoin(a->session);
        if (r->remote)
            log_on_change(&a->waiting, LOG_LEVEL_WARN, "agent", "no work: %s", r->detail);
        loop_timer_start(a->retry, r->retry_after_ms ? r->retry_after_ms : RETRY_MS, 0);
        return;
    }
    const Skerry__V1__AssignReply *reply = (const Skerry__V1__AssignReply *)(const void *)r->reply;
    for (size_t i = 0; i < reply->n_applied; i++)
        settle(a, reply->applied[i]->task_id, reply->applied[i]->accepted);
    a->drain = a->drain || reply->drain;
    if (reply->task) {
        a->waiting.hash = 0;
        start_task(a, reply->task);
        return;
    }
    if (reply->waiting_for && reply->waiting_for[0])
        log_on_change(&a->waiting, LOG_LEVEL_INFO, "agent", "waiting: %s", reply->waiting_for);
    if (loop_now_ms(a->loop) - a->asked_ms < ASK_AGAIN_MS)
        loop_timer_start(a->retry, ASK_AGAIN_MS, 0);
    else
        ask(a);
}

static void ask(struct agent *a)
{
    if (a->state != AGENT_IDLE || a->leaving || a->call)
        return;
    if (a->drain) {
        agent_leave(a, "drained");
        return;
    }
    struct modules_version held[MODULES_MAX];
    Skerry__V1__HeldVersion versions[MODULES_MAX], *list[MODULES_MAX];
    size_t n = modules_held(a->opt.modules, held);
    for (size_t i = 0; i < n; i++) {
        skerry__v1__held_version__init(&versions[i]);
        versions[i].module_id = held[i].module_id;
        versions[i].version = held[i].version;
        list[i] = &versions[i];
    }
    Skerry__V1__AssignRequest req = SKERRY__V1__ASSIGN_REQUEST__INIT;
    req.wait_ms = ASSIGN_WAIT_MS;
    req.held = list;
    req.n_held = n;
    a->asked_ms = loop_now_ms(a->loop);
    int rc = session_call(a->session, SKERRY__V1__METHOD__METHOD_ASSIGN, &req.base,
                          &skerry__v1__assign_reply__descriptor, ASSIGN_DEADLINE_MS,
                          on_assign_reply, a, &a->call);
    if (rc == 0)
        a->state = AGENT_ASKING;
    else if (rc != -ENOTCONN) /* then on_joined asks */
        loop_timer_start(a->retry, RETRY_MS, 0);
}

static void on_retry(void *arg)
{
    struct agent *a = arg;
    if (a->state == AGENT_IDLE)
        ask(a);
    else if (a->state == AGENT_REPORTING && !a->finished)
        send_report(a);
}

/* ---- what the session tells ---- */

static void on_joined(void *arg, bool again)
{
    struct agent *a = arg;
    (void)again; /* the heartbeat carries the lease that is still held */
    uplink_resume(a->uplink);
    if (a->state == AGENT_IDLE)
        ask(a);
    else if (a->state == AGENT_FETCHING && !a->fetch)
        plan(a);
    else if (a->state == AGENT_UPLOADING && a->upload)
        upload_resume(a->upload);
    else if (a->state == AGENT_REPORTING && !a->finished)
        send_report(a);
}

static void on_lost(void *arg)
{
    struct agent *a = arg; /* calls in flight fail by themselves; the task goes on */
    a->cut |= a->state == AGENT_FETCHING;
}

static void on_failed(void *arg, const struct err *why)
{
    struct agent *a = arg;
    if (!a->ended) {
        a->ended = true;
        a->opt.on_end(a->opt.arg, why && why->code < 0 ? why->code : -ERR_AUTH, why);
    }
}

static void on_applied(void *arg, const Skerry__V1__Applied *applied)
{
    struct agent *a = arg;
    /* Word about an earlier attempt must not touch what this one will write. */
    bool computing =
        a->state == AGENT_PLANNING || a->state == AGENT_FETCHING || a->state == AGENT_RUNNING;
    if (!computing || applied->task_id != a->task_id)
        settle(a, applied->task_id, applied->accepted);
}

static void on_drain(void *arg)
{
    struct agent *a = arg;
    if (a->drain)
        return;
    a->drain = true;
    log_info("agent", "draining: no other task is taken");
    if (a->state == AGENT_ASKING || a->state == AGENT_IDLE)
        agent_leave(a, "drained");
}

static void drop_transfers(struct agent *a)
{
    fetch_cancel(a->fetch);
    upload_cancel(a->upload);
    a->fetch = NULL;
    a->upload = NULL;
}

static void stop_work(struct agent *a, enum work_stop why)
{
    if (!a->w)
        return;
    atomic_store(&a->w->stop, why);
    uplink_interrupt(a->uplink);
}

static void on_revoked(void *arg, uint64_t task_id, uint32_t attempt, const char *reason)
{
    struct agent *a = arg;
    if (task_id != a->task_id || attempt != a->attempt || a->revoked || a->finished)
        return;
    log_info("agent", "task=%" PRIu64 " was taken back: %s", task_id, reason ? reason : "");
    a->revoked = true;
    stop_work(a, WORK_REVOKED);
    if (a->state == AGENT_PLANNING || a->state == AGENT_RUNNING)
        return; /* the compute thread answers soon */
    drop_transfers(a);
    if (a->call) {
        uint64_t call = a->call;
        a->call = 0; /* the answer is of no interest */
        session_cancel(a->session, call);
    }
    loop_timer_stop(a->retry);
    (void)gone(a);
}

static void fill_heartbeat(void *arg, Skerry__V1__HeartbeatRequest *req)
{
    struct agent *a = arg;
    struct xfer_counters data = xfer_counters(a->opt.env.xfer);
    req->bytes_up = data.bytes_out;
    req->bytes_down = data.bytes_in;
    req->throughput = a->throughput;
    vitals_put(a->vitals, req);
    struct progress_view *v = &a->view;
    if (a->w && !a->finished) {
        progress_take(&a->w->progress, v);
        take_rates(a);
    }
    req->flops = a->flops;
    req->peak_flops = a->peak_flops;
    a->told_flops |= a->flops > 0;
    if (!a->w || a->finished)
        return;
    if (v->samples_per_second > 0)
        req->throughput = a->throughput = v->samples_per_second;
    skerry__v1__progress__init(&a->progress);
    a->progress.task_id = a->task_id;
    a->progress.attempt = a->attempt;
    a->progress.steps_done = v->steps_done;
    a->progress.steps_total = v->steps_total;
    a->progress.samples_done = v->samples_done;
    a->progress.loss = v->loss;
    a->progress.grad_norm = v->grad_norm;
    a->progress.samples_per_second = v->samples_per_second;
    a->progress.activity = v->activity;
    for (size_t i = 0; i < v->n_points; i++) {
        skerry__v1__loss_point__init(&a->points[i]);
        a->points[i].step = v->points[i].step;
        a->points[i].loss = v->points[i].loss;
        a->points[i].lr = v->points[i].lr;
        a->point_list[i] = &a->points[i];
    }
    a->progress.points = a->point_list;
    a->progress.n_points = v->n_points;
    req->progress = &a->progress;
}

/* ---- life ---- */

int agent_new(const struct agent_options *o, struct agent **ret, struct err *err)
{
    struct agent *a = mem_alloc(sizeof(*a));
    a->opt = *o;
    a->loop = o->env.loop;
    a->retry = loop_timer_new(a->loop, on_retry, a);
    struct session_options s = o->session;
    s.arg = a;
    s.on_joined = on_joined;
    s.on_lost = on_lost;
    s.on_failed = on_failed;
    s.on_applied = on_applied;
    s.on_revoked = on_revoked;
    s.on_drain = on_drain;
    s.fill_heartbeat = fill_heartbeat;
    int rc = pool_new(a->loop, "compute", 1, JOBS_MAX, &a->compute, err);
    if (rc == 0)
        rc = vitals_open(a->loop, o->engine->island, &a->vitals, err);
    if (rc == 0)
        rc = session_open(&s, &a->session, err);
    if (rc < 0) {
        agent_free(a);
        return rc;
    }
    a->uplink = uplink_open(&a->opt.env, a->session);
    *ret = a;
    return 0;
}

void agent_free(struct agent *a)
{
    if (!a)
        return;
    a->leaving = a->ended = true;
    stop_work(a, WORK_LEAVING);
    drop_transfers(a);
    if (a->compute)
        pool_free(a->compute); /* its last answers find `leaving` and end the task */
    uplink_close(a->uplink);
    session_close(a->session);
    vitals_close(a->vitals);
    loop_timer_free(a->retry);
    loop_timer_free(a->leave_timer);
    work_free(a->w);
    mem_free(a);
}

static void end_if_done(struct agent *a)
{
    bool computing = a->state == AGENT_PLANNING || a->state == AGENT_RUNNING || a->saving;
    if (!a->bye || computing || a->ended)
        return;
    a->ended = true;
    a->opt.on_end(a->opt.arg, a->fatal.code, a->fatal.code < 0 ? &a->fatal : NULL);
}

static void on_bye(void *arg)
{
    struct agent *a = arg;
    a->bye = true;
    end_if_done(a);
}

static void say_bye(struct agent *a)
{
    if (a->leave_timer) {
        loop_timer_free(a->leave_timer);
        a->leave_timer = NULL;
        session_leave(a->session, a->leave_reason, LEAVE_BYE_MS, on_bye, a);
    }
}

/* A task has ended while leaving. */
static void go_on_leaving(struct agent *a)
{
    say_bye(a);
    end_if_done(a);
}

static void on_leave_timer(void *arg)
{
    struct agent *a = arg;
    drop_transfers(a);
    say_bye(a);
}

void agent_leave(struct agent *a, const char *reason)
{
    if (a->leaving)
        return;
    log_info("agent", "leaving: %s", reason);
    a->leaving = true;
    str_copy(a->leave_reason, sizeof(a->leave_reason), reason);
    if (a->state == AGENT_IDLE)
        loop_timer_stop(a->retry);
    stop_work(a, WORK_LEAVING);
    a->leave_timer = loop_timer_new(a->loop, on_leave_timer, a);
    if (a->state == AGENT_UPLOADING || a->state == AGENT_REPORTING) {
        loop_timer_start(a->leave_timer, LEAVE_SEND_MS, 0);
        return;
    }
    drop_transfers(a);
    if (a->state == AGENT_FETCHING)
        finish_task(a); /* says good-bye */
    else
        say_bye(a);
}
