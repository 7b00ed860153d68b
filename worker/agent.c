#include "worker/agent.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/net/loop.h"
#include "common/net/http/transfer.h"
#include "worker/coming.h"
#include "worker/early.h"
#include "worker/decide_agent.h"
#include "worker/engine/engine.h"
#include "worker/kinds/kinds.h"
#include "worker/engine/residual.h"
#include "worker/forget.h"
#include "worker/link/uplink.h"
#include "worker/link/upload.h"
#include "worker/order/modules.h"
#include "worker/order/work.h"
#include "worker/outcome.h"
#include "worker/pulse.h"
#include "worker/settle.h"
#include "worker/vitals.h"

#define ASSIGN_WAIT_MS 25000
#define ASSIGN_DEADLINE_MS (ASSIGN_WAIT_MS + 10000)
#define ASK_AGAIN_MS 250 /* after an answer that came without waiting */
#define RETRY_MS 1000
#define REPORT_MS 30000
#define LEAVE_BYE_MS 1500
#define NOTICE_LOOK_MS 250
#define JOBS_MAX 256
#define SENDS_AGAIN_MAX 3
#define SAVE_TIMES 6 /* writing a large checkpoint to a slow disk takes many times opt.hung_ms */

struct agent {
    struct agent_options opt;
    struct loop *loop;
    struct session *session;
    struct uplink *uplink;
    struct vitals *vitals;
    struct early *early;
    struct coming *coming;
    struct pool *compute;
    struct agent_core core; /* changed only by happened() */

    /* The present task, from ASSIGN to the answer to its report. */
    uint64_t task_id, refused_task; /* the latter: the newest whose result was not taken */
    uint32_t attempt;
    struct work *w;        /* NULL: the task could not even be read */
    bool plan_waits;       /* for a delta that is coming */
    struct job *preparing; /* the compute thread's job that prepares the task's needs */
    struct fetch *fetch;
    struct upload *upload;
    struct outcome_failure failure;
    unsigned sent_again; /* times that its result was sent again, because files were missing */
    uint64_t moving_ms;  /* since when the task has waited for transfers of its blobs */
    struct forget over;  /* jobs */
    uint64_t free_ns;    /* since when there was no task; 0: there was none yet */

    uint64_t call; /* ASSIGN or REPORT in flight; 0: none */
    uint64_t asked_ms;
    uint32_t retry_ms; /* the next AGENT_DO_TIMER's */
    struct loop_timer *retry, *late, *notice, *hung;
    uint64_t signs; /* of the task's trainer, when `hung` was started */
    struct log_change waiting;
    struct err fatal; /* why this process cannot go on; code 0: it can go on */
    char leave_reason[256], notice_reason[256];
    uint32_t send_ms;  /* time for sending when we leave */
    uint64_t leave_ms; /* by when a notice says that we must be gone; 0: no notice came */

    /* Details of the present news. */
    const Skerry__V1__Task *given;
    int code; /* the failure */
    const char *detail;
    bool sending;     /* the upload failed */
    bool blob_failed; /* one of the coordinator, not the source outside */

    struct pulse pulse;
    struct progress_beside beside;
};

/* A job of the compute thread. */
struct job {
    struct agent *a;
    struct work *w;
    struct err err;
    bool last; /* prepare: the task was over before, its work goes with this */
};

/* Decides what the news mean, and acts on it. */
static void happened(struct agent *a, const struct agent_event *ev);

static void news(struct agent *a, enum agent_news what)
{
    happened(a, &(struct agent_event){.news = what, .joined = session_joined(a->session)});
}

static void bad_news(struct agent *a, enum agent_news what, int code, const char *detail)
{
    a->code = code;
    a->detail = detail;
    news(a, what);
}

/* ---- jobs of the compute thread ---- */

/* NULL: too many jobs wait. */
static struct job *submit(struct agent *a, pool_work_fn work, pool_done_fn done)
{
    struct job *j = mem_alloc(sizeof(*j));
    j->a = a;
    j->w = a->w;
    if (pool_submit(a->compute, work, done, j) == 0)
        return j;
    mem_free(j);
    return NULL;
}

static void submit_step(struct agent *a, pool_work_fn work, pool_done_fn done)
{
    if (!submit(a, work, done))
        bad_news(a, AGENT_FAILED, -EAGAIN, "too many jobs wait for the compute thread");
}

/* A verdict.  What was said of an earlier attempt must not touch what this one makes.  A refusal
 * does not wait for the compute thread, which may be in a phase that would use the residual; and
 * it is heard again there, behind what may still mark a fragment's file as sent. */
static void settle_verdict(struct agent *a, const Skerry__V1__Applied *v)
{
    const struct residual_word word = {
        .task_id = v->task_id,
        .module_id = v->module_id,
        .news = v->accepted ? RESIDUAL_APPLIED : RESIDUAL_REFUSED,
        .spares_pending = decide_agent_makes(&a->core) && v->task_id == a->task_id,
    };
    struct err err = {0};
    if (!v->accepted && residual_hear(a->opt.engine->state_dir, &word, &err) < 0)
        log_warn("agent", "error feedback of task=%" PRIu64 ": %s", v->task_id, err.msg);
    settle_residual(a->compute, a->opt.engine->state_dir, &word);
}

/* From here on the compute thread has ms milliseconds to answer. */
static void await_answer(struct agent *a, uint64_t ms)
{
    a->signs = progress_signs(&a->w->progress);
    loop_timer_start(a->hung, ms, 0);
}

static int plan_work(void *arg)
{
    struct job *j = arg;
    return engine_plan(j->a->opt.engine, j->w, &j->err);
}

static void plan_done(void *arg, int rc)
{
    struct job j = *(struct job *)arg;
    mem_free(arg);
    loop_timer_stop(j.a->hung);
    bad_news(j.a, rc < 0 ? AGENT_FAILED : AGENT_PLANNED, rc, j.err.msg);
}

static int prepare_work(void *arg)
{
    struct job *j = arg;
    engine_prepare(j->a->opt.engine, j->w);
    return 0;
}

static void prepare_done(void *arg, int rc)
{
    struct job *j = arg;
    j->a->preparing = NULL;
    if (j->last)
        work_free(j->w);
    mem_free(j);
}

/* Has the compute thread prepare the task while its files are fetched. */
static void prepare(struct agent *a)
{
    bool missing = false;
    for (size_t i = 0; i < a->w->n_needs; i++)
        missing |= a->w->needs[i].missing;
    if (missing)
        a->preparing = submit(a, prepare_work, prepare_done);
}

static int run_work(void *arg)
{
    struct job *j = arg;
    return engine_run(j->a->opt.engine, j->w, &j->err);
}

static void run_done(void *arg, int rc)
{
    struct job j = *(struct job *)arg;
    mem_free(arg);
    loop_timer_stop(j.a->hung);
    uplink_drop(j.a->uplink);
    if (rc == 0)
        outcome_log(j.a->task_id, j.w);
    const bool misbuilt = rc == -ERR_HASH && !j.w->full_only;
    bad_news(j.a, rc == 0 ? AGENT_RAN : misbuilt ? AGENT_MISBUILT : AGENT_FAILED, rc, j.err.msg);
}

static int save_work(void *arg)
{
    struct job *j = arg;
    engine_after(j->a->opt.engine, j->w);
    return 0;
}

static void save_done(void *arg, int rc)
{
    struct agent *a = ((struct job *)arg)->a;
    (void)rc; /* engine_after reports its own failures */
    mem_free(arg);
    loop_timer_stop(a->hung);
    news(a, AGENT_SAVED);
}

/* ---- asking ---- */

static void do_timer(struct agent *a)
{
    loop_timer_start(a->retry, a->retry_ms, 0);
}

static void on_assign_reply(void *arg, const struct rpc_result *r)
{
    struct agent *a = arg;
    if (a->call == 0) /* do_cancel has dropped the call, which is made again */
        return;
    a->call = 0;
    if (r->code == -ERR_CANCELLED) {
        news(a, AGENT_UNSENT);
        return;
    }
    const bool heard = a->core.state == AGENT_ASKING && a->core.leave == AGENT_STAYS;
    a->retry_ms = r->retry_after_ms ? r->retry_after_ms : RETRY_MS;
    if (r->code < 0) {
        if (heard && r->remote && (r->code == -ERR_STALE || r->code == -ERR_NOTFOUND))
            session_rejoin(a->session);
        if (heard && r->remote)
            log_on_change(&a->waiting, LOG_LEVEL_WARN, "agent", "no work: %s", r->detail);
        news(a, AGENT_UNANSWERED);
        return;
    }
    const Skerry__V1__AssignReply *reply = (const Skerry__V1__AssignReply *)(const void *)r->reply;
    for (size_t i = 0; heard && i < reply->n_applied; i++)
        settle_verdict(a, reply->applied[i]);
    forget_jobs(&a->over, a->compute, a->opt.engine->state_dir, reply);
    /* The coordinator answers at once if it has files to announce, however long the poll. */
    const bool hinted =
        early_take(a->early, heard && !reply->task && !reply->drain ? reply->ahead : NULL);
    if (reply->task)
        a->waiting.hash = 0;
    else if (heard && reply->waiting_for && reply->waiting_for[0])
        log_on_change(&a->waiting, LOG_LEVEL_INFO, "agent", "waiting: %s", reply->waiting_for);
    a->given = reply->task;
    a->retry_ms = ASK_AGAIN_MS;
    const bool quick = !hinted && loop_now_ms(a->loop) - a->asked_ms < ASK_AGAIN_MS;
    happened(a, &(struct agent_event){
                    .news = reply->task ? AGENT_GIVEN
                            : quick     ? AGENT_NOTHING_YET
                                        : AGENT_NOTHING,
                    .drain = reply->drain,
                });
}

static void do_ask(struct agent *a)
{
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
    req.ahead_over = !early_busy(a->early);
    a->asked_ms = loop_now_ms(a->loop);
    a->retry_ms = RETRY_MS;
    int rc = session_call(a->session, SKERRY__V1__METHOD__METHOD_ASSIGN, &req.base,
                          &skerry__v1__assign_reply__descriptor, ASSIGN_DEADLINE_MS,
                          on_assign_reply, a, &a->call);
    if (rc < 0)
        news(a, rc == -ENOTCONN ? AGENT_UNSENT : AGENT_UNANSWERED);
}

/* ---- from the task to its result ---- */

/* Transfers while nothing is computed count as waiting. */
static void moves(struct agent *a)
{
    a->moving_ms = loop_now_ms(a->loop);
}

static void moved(struct agent *a)
{
    a->w->result.waited_ms += loop_now_ms(a->loop) - a->moving_ms;
}

static void plan_now(struct agent *a)
{
    moved(a);
    a->plan_waits = false;
    progress_activity(&a->w->progress, "looking for blobs");
    submit_step(a, plan_work, plan_done);
}

/* Plans, unless a delta that the task needs is on its way. */
static void on_coming(void *arg)
{
    struct agent *a = arg;
    if (a->plan_waits && !coming_awaits(a->coming, a->w->task))
        plan_now(a);
}

static void do_plan(struct agent *a)
{
    a->blob_failed = false;
    a->plan_waits = true;
    moves(a);
    progress_activity(&a->w->progress, "downloading a delta that was sent early");
    xfer_hurry(a->opt.env.xfer);
    on_coming(a);
}

static void do_start(struct agent *a)
{
    const Skerry__V1__Task *task = a->given;
    const struct kind *kind = kind_find(kinds_all, task->kind);
    struct err err = {0};
    a->task_id = task->id;
    a->attempt = task->attempt;
    a->sent_again = 0;
    log_info("agent", "task=%" PRIu64 " attempt=%u %s job=%" PRIu64, task->id, task->attempt,
             kind ? kind->name : "?", task->job_id);
    int rc = work_new(kinds_all, task, a->opt.env.cache, a->opt.tmp_dir, &a->w, &err);
    if (rc < 0) {
        bad_news(a, AGENT_FAILED, rc, err.msg);
        return;
    }
    a->w->uplink = a->uplink;
    a->w->anew = task->id == a->refused_task;
    times_begin(&a->w->times, a->free_ns ? a->free_ns : clock_now_ns());
    times_take(&a->w->times, TIMES_ASKED);
    do_plan(a);
}

static void on_fetched(void *arg, int code, const char *detail)
{
    struct agent *a = arg;
    a->fetch = NULL;
    bad_news(a, code < 0 ? AGENT_UNFETCHED : AGENT_FETCHED, code, detail);
    if (a->core.state == AGENT_AWAITING || a->core.state == AGENT_PLANNING)
        log_info("agent", "%s; fetching again when the coordinator is back", detail);
    if (a->core.state == AGENT_AWAITING)
        progress_activity(&a->w->progress, "waiting for the coordinator");
}

static void do_fetch(struct agent *a)
{
    const struct fetch_what what = {
        .needs = a->w->needs,
        .n = a->w->n_needs,
        .source_url = a->w->source_path ? a->w->task->ingest->url : NULL,
        .source_path = a->w->source_path,
        .ret_blob_failed = &a->blob_failed,
        .progress = &a->w->progress,
    };
    times_take(&a->w->times, TIMES_PLANNED);
    moves(a);
    a->fetch = fetch_start(&a->opt.env, &what, on_fetched, a);
    prepare(a);
}

static void do_run(struct agent *a)
{
    times_take(&a->w->times, TIMES_FETCHED);
    moved(a);
    submit_step(a, run_work, run_done);
}

static void do_whole(struct agent *a)
{
    log_warn("agent", "task=%" PRIu64 ": %s; taking the whole version", a->task_id, a->detail);
    a->w->full_only = true;
}

static void do_save(struct agent *a)
{
    if (submit(a, save_work, save_done))
        await_answer(a, (uint64_t)a->opt.hung_ms * SAVE_TIMES);
    else
        news(a, AGENT_SAVED); /* there is nothing to save */
}

/* Tells the coordinator at once. */
static void on_early(void *arg)
{
    news(arg, AGENT_HAS_MORE);
}

static void on_uploaded(void *arg, int code, const char *detail)
{
    struct agent *a = arg;
    a->upload = NULL;
    a->sending = true;
    times_take(&a->w->times, TIMES_SENT);
    if (code == 0) {
        moved(a);
        progress_activity(&a->w->progress, "reporting");
    }
    bad_news(a, code < 0 ? AGENT_FAILED : AGENT_UPLOADED, code, detail);
    a->sending = false;
}

static void on_told(void *arg, const struct work_output *o, const char *url)
{
    const struct agent *a = arg;
    if (a->core.leave == AGENT_STAYS && !a->core.drain) /* or no phase follows */
        coming_start(a->coming, o->module_id, o->base_version + 1, url);
}

static void do_upload(struct agent *a)
{
    const struct upload_what what = {
        .task_id = a->task_id,
        .attempt = a->attempt,
        .outputs = a->w->result.outputs,
        .n = a->w->result.n_outputs,
        .progress = &a->w->progress,
        .samples = a->w->result.samples,
        .coming = a->w->task->train ? on_told : NULL,
    };
    moves(a);
    a->upload = upload_start(&a->opt.env, a->session, &what, on_uploaded, a);
}

static void do_resume(struct agent *a)
{
    if (a->upload)
        upload_resume(a->upload);
}

static void do_drop(struct agent *a)
{
    fetch_cancel(a->fetch);
    upload_cancel(a->upload);
    a->fetch = NULL;
    a->upload = NULL;
}

/* ---- report ---- */

static void do_fail(struct agent *a)
{
    struct err err = {0};
    const int disk = outcome_own(a->code) ? 0 : outcome_try_disk(a->opt.tmp_dir, &err);
    a->failure.code = outcome_blame(a->code, disk, a->sending);
    a->failure.retryable =
        outcome_retryable(a->code, a->w && a->w->source_path && !a->blob_failed && !a->sending);
    str_copy(a->failure.reason, sizeof(a->failure.reason), a->detail);
    log_warn("agent", "task=%" PRIu64 " failed: %s", a->task_id, a->detail);
    a->core.broken |= outcome_breaks(a->code, a->failure.code, a->detail, err.msg, &a->fatal);
}

/* The coordinator lacks a file that it had received: another coordinator, or another disk, has
 * taken over. */
static void send_again(struct agent *a, const char *why)
{
    log_warn("agent", "the result of task=%" PRIu64 " is sent again: %s", a->task_id, why);
    if (++a->sent_again <= SENDS_AGAIN_MAX)
        news(a, AGENT_MISSING);
    else
        bad_news(a, AGENT_FAILED, -ERR_NOTFOUND, why);
}

static void on_report_reply(void *arg, const struct rpc_result *r)
{
    struct agent *a = arg;
    a->call = 0;
    if (a->core.state != AGENT_REPORTING || r->code == -ERR_CANCELLED)
        return;
    if (r->code < 0 && (!r->remote || r->retryable)) {
        if (r->remote && r->code == -ERR_STALE)
            session_rejoin(a->session); /* it has forgotten this worker, not the task */
        if (r->remote && r->code == -ERR_NOTFOUND && a->failure.code == 0) {
            send_again(a, r->detail);
            return;
        }
        a->retry_ms = r->retry_after_ms ? r->retry_after_ms : RETRY_MS;
        news(a, AGENT_UNANSWERED);
        return;
    }
    const Skerry__V1__ReportReply *reply = (const Skerry__V1__ReportReply *)(const void *)r->reply;
    if (a->w)
        times_take(&a->w->times, TIMES_TOLD);
    const char *why = r->code < 0 ? r->detail : reply->accepted ? NULL : reply->reason;
    if (why)
        log_warn("agent", "the result of task=%" PRIu64 " was not taken: %s", a->task_id, why);
    a->refused_task = why ? a->task_id : a->refused_task;
    news(a, why ? AGENT_REJECTED : AGENT_ACCEPTED);
}

static void do_report(struct agent *a)
{
    if (a->call)
        return;
    Skerry__V1__ReportRequest *req =
        outcome_new(a->task_id, a->attempt, a->w, &a->failure, &a->pulse.view);
    int rc = session_call(a->session, SKERRY__V1__METHOD__METHOD_REPORT, &req->base,
                          &skerry__v1__report_reply__descriptor, REPORT_MS, on_report_reply, a,
                          &a->call);
    outcome_free(req);
    a->retry_ms = RETRY_MS;
    if (rc == -ERR_LIMIT && a->failure.code == 0)
        bad_news(a, AGENT_FAILED, rc, "the result has too many parts for one report");
    else if (rc < 0)
        news(a, AGENT_UNANSWERED);
}

/* ---- the end of a task ---- */

static void do_cancel(struct agent *a)
{
    const uint64_t call = a->call;
    a->call = 0; /* its answer is not needed */
    if (call)
        session_cancel(a->session, call);
}

static void settle(struct agent *a, enum residual_news news)
{
    const struct residual_word word = {.task_id = a->task_id, .news = news};
    settle_residual(a->compute, a->opt.engine->state_dir, &word);
}

static void do_unsent(struct agent *a)
{
    settle(a, RESIDUAL_UNSENT);
}

/* The report is taken: with the result, or with why there is none. */
static void do_sent(struct agent *a)
{
    const bool failed = a->failure.code < 0;
    if (failed || (a->w && a->w->task->train))
        settle(a, failed ? RESIDUAL_UNSENT : RESIDUAL_SENT);
}

static void stop_work(struct agent *a, enum work_stop why)
{
    coming_stop(a->coming);
    if (!a->w || atomic_load(&a->w->stop) >= (int)why)
        return;
    atomic_store(&a->w->stop, why);
    uplink_interrupt(a->uplink);
    if (a->plan_waits)
        plan_now(a);
    if (decide_agent_computes(&a->core))
        await_answer(a, a->opt.hung_ms);
}

static void do_revoke(struct agent *a)
{
    stop_work(a, WORK_REVOKED);
}

static void do_finish(struct agent *a)
{
    char text[TIMES_TEXT_MAX];
    if (a->w) {
        /* A phase may end before any heartbeat has reported it. */
        pulse_take(&a->pulse, &a->w->progress);
        times_take(&a->w->times, TIMES_SAVED);
        a->free_ns = a->w->times.at_ns;
        log_info("agent", "times of task=%" PRIu64 ": %s", a->task_id,
                 times_text(&a->w->times, text));
    }
    if (a->preparing && a->preparing->w == a->w)
        a->preparing->last = true;
    else
        work_free(a->w);
    a->w = NULL;
    a->task_id = 0;
    a->failure.code = 0;
    if (pulse_over(&a->pulse))
        session_heartbeat(a->session);
}

/* ---- leaving ---- */

static void on_bye(void *arg)
{
    news(arg, AGENT_GOODBYE);
}

static void on_late(void *arg)
{
    stop_work(arg, WORK_LEAVING); /* files that are not sent by now stay here */
    news(arg, AGENT_LATE);
}

static void do_leave(struct agent *a)
{
    log_info("agent", "leaving: %s", a->leave_reason);
    (void)early_take(a->early, NULL);
    stop_work(a, a->core.leave == AGENT_SENDS ? WORK_SAVING : WORK_LEAVING);
}

static void do_late(struct agent *a)
{
    loop_timer_start(a->late, a->send_ms, 0);
}

static void do_bye(struct agent *a)
{
    loop_timer_stop(a->late);
    session_leave(a->session, a->leave_reason, LEAVE_BYE_MS, on_bye, a);
}

static void do_end(struct agent *a)
{
    const int code = a->fatal.code < 0 ? a->fatal.code : session_drained(a->session);
    a->opt.on_end(a->opt.arg, code, code < 0 ? &a->fatal : NULL);
}

static void do_stop_timer(struct agent *a)
{
    loop_timer_stop(a->retry);
}

static const char *reason_of(const struct agent *a, const struct agent_decision *d)
{
    const bool drained = d->reason && strcmp(d->reason, "drained") == 0;
    return !d->reason ? a->fatal.msg : drained && a->leave_ms ? a->notice_reason : d->reason;
}

static void happened(struct agent *a, const struct agent_event *ev)
{
    static const struct {
        enum agent_action action;
        void (*act)(struct agent *a);
    } acts[] = {
        {AGENT_DO_LEAVE, do_leave},
        {AGENT_DO_REVOKE, do_revoke},
        {AGENT_DO_STOP_TIMER, do_stop_timer},
        {AGENT_DO_DROP, do_drop},
        {AGENT_DO_CANCEL, do_cancel},
        {AGENT_DO_SENT, do_sent},
        {AGENT_DO_UNSENT, do_unsent},
        {AGENT_DO_FAIL, do_fail},
        {AGENT_DO_WHOLE, do_whole},
        {AGENT_DO_FINISH, do_finish},
        {AGENT_DO_START, do_start},
        {AGENT_DO_PLAN, do_plan},
        {AGENT_DO_FETCH, do_fetch},
        {AGENT_DO_RUN, do_run},
        {AGENT_DO_SAVE, do_save},
        {AGENT_DO_UPLOAD, do_upload},
        {AGENT_DO_RESUME, do_resume},
        {AGENT_DO_REPORT, do_report},
        {AGENT_DO_ASK, do_ask},
        {AGENT_DO_TIMER, do_timer},
        {AGENT_DO_LATE, do_late},
        {AGENT_DO_BYE, do_bye},
        {AGENT_DO_END, do_end},
    };
    const struct agent_decision d = decide_agent(&a->core, ev);
    if (d.actions & AGENT_DO_LEAVE)
        str_copy(a->leave_reason, sizeof(a->leave_reason), reason_of(a, &d));
    for (size_t i = 0; i < sizeof(acts) / sizeof(acts[0]); i++)
        if (d.actions & acts[i].action)
            acts[i].act(a);
}

/* ---- news of the session ---- */

static void on_retry(void *arg)
{
    news(arg, AGENT_TIMER);
}

static void on_hung(void *arg)
{
    struct agent *a = arg;
    /* A trainer made ready for the next task goes on; a result or last snapshot is sent first. */
    if ((a->w && progress_signs(&a->w->progress) != a->signs) || a->core.leave == AGENT_SENDS ||
        (a->core.saving && a->core.state != AGENT_SAVING && a->core.leave == AGENT_STAYS)) {
        await_answer(a, a->opt.hung_ms);
        return;
    }
    (void)err_set(&a->fatal, -ERR_DEVICE, "the device hangs: task=%" PRIu64 " does not %s",
                  a->task_id, a->core.saving ? "save its state" : "stop");
    news(a, AGENT_HUNG);
}

static void on_notice(void *arg)
{
    struct agent *a = arg;
    const uint64_t now = loop_now_ms(a->loop), left = a->leave_ms > now ? a->leave_ms - now : 0;
    const uint64_t took_ns = atomic_load(&a->opt.engine->snapshot_ns);
    const enum agent_notice next = decide_agent_notice(&a->core, left, took_ns);
    if (next == AGENT_NOTICE_SAVE && a->w)
        atomic_store(&a->w->save, true);
    if (next == AGENT_NOTICE_LEAVE && a->core.leave == AGENT_STAYS)
        agent_leave(a, a->notice_reason, left > LEAVE_BYE_MS ? (uint32_t)left - LEAVE_BYE_MS : 0);
}

static void on_joined(void *arg, bool again)
{
    struct agent *a = arg;
    const uint64_t now = loop_now_ms(a->loop);
    if (again) /* the heartbeat carries the lease that is still held */
        xfer_hurry(a->opt.env.xfer);
    if (a->leave_ms > now) /* a restarted coordinator has forgotten the notice */
        session_notice(a->session, a->notice_reason, (uint32_t)(a->leave_ms - now));
    uplink_resume(a->uplink);
    /* A report that was taken may be of a task that is not known any more.  What became of it is
     * heard before that answer, which would drop the residuals. */
    if (a->core.state == AGENT_REPORTING)
        session_heartbeat(a->session);
    news(a, AGENT_JOINED);
}

static void on_lost(void *arg)
{
    news(arg, AGENT_LOST); /* calls in flight fail by themselves; the task goes on */
}

static void on_failed(void *arg, const struct err *why)
{
    struct agent *a = arg;
    if (why && why->code < 0)
        a->fatal = *why;
    else
        (void)err_set(&a->fatal, -ERR_AUTH, "%s", err_text(-ERR_AUTH));
    news(a, AGENT_REFUSED_FOR_EVER);
}

static void on_applied(void *arg, const Skerry__V1__Applied *applied)
{
    settle_verdict(arg, applied);
}

static void on_drain(void *arg)
{
    struct agent *a = arg;
    if (!a->core.drain)
        log_info("agent", "draining: no other task is taken");
    news(a, AGENT_DRAIN);
}

static void on_revoked(void *arg, const Skerry__V1__HeartbeatReply *reply)
{
    struct agent *a = arg;
    if (reply->revoked_task_id != a->task_id || reply->revoked_attempt != a->attempt)
        return;
    if (a->w)
        atomic_store(&a->w->job_goes_on, reply->job_goes_on);
    if (a->core.state == AGENT_STOPPING || a->core.state == AGENT_SAVING)
        return;
    log_info("agent", "task=%" PRIu64 " was taken back: %s", a->task_id, reply->revoked_reason);
    news(a, AGENT_REVOKED);
}

static void fill_heartbeat(void *arg, Skerry__V1__HeartbeatRequest *req)
{
    struct agent *a = arg;
    const bool told = a->w && a->core.state != AGENT_SAVING;
    struct xfer_counters data = xfer_counters(a->opt.env.xfer);
    req->bytes_up = data.bytes_out;
    req->bytes_down = data.bytes_in;
    vitals_put(a->vitals, req);
    progress_tell_beside(&a->beside, told ? &a->w->progress : NULL);
    pulse_put(&a->pulse, told ? &a->w->progress : NULL, a->task_id, a->attempt, req);
}

static void on_heard(void *arg)
{
    const struct agent *a = arg;
    if (a->w)
        pulse_heard(&a->pulse, &a->w->progress);
}

/* ---- life ---- */

int agent_new(const struct agent_options *o, struct agent **ret, struct err *err)
{
    struct agent *a = mem_alloc(sizeof(*a));
    a->opt = *o;
    a->loop = o->env.loop;
    a->retry = loop_timer_new(a->loop, on_retry, a);
    a->late = loop_timer_new(a->loop, on_late, a);
    a->notice = loop_timer_new(a->loop, on_notice, a);
    a->hung = loop_timer_new(a->loop, on_hung, a);
    struct session_options s = o->session;
    s.arg = a;
    s.on_joined = on_joined;
    s.on_lost = on_lost;
    s.on_failed = on_failed;
    s.on_applied = on_applied;
    s.on_revoked = on_revoked;
    s.on_drain = on_drain;
    s.fill_heartbeat = fill_heartbeat;
    s.on_heard = on_heard;
    int rc = pool_new(a->loop, "compute", 1, JOBS_MAX, &a->compute, err);
    if (rc == 0)
        rc = vitals_open(a->loop, o->engine->island, o->env.cache, &a->vitals, err);
    if (rc == 0)
        rc = session_open(&s, &a->session, err);
    if (rc < 0) {
        agent_free(a);
        return rc;
    }
    a->opt.env.compute = a->compute;
    a->opt.env.beside = &a->beside;
    a->uplink = uplink_open(&a->opt.env, a->session);
    a->early = early_new(&(struct early_options){.env = &a->opt.env,
                                                 .modules = a->opt.modules,
                                                 .compute = a->compute,
                                                 .tmp_dir = a->opt.tmp_dir,
                                                 .arg = a,
                                                 .on_done = on_early});
    a->coming = coming_new(&a->opt.env, a->opt.modules, a->opt.tmp_dir, on_coming, a);
    *ret = a;
    return 0;
}

bool agent_stop(struct agent *a)
{
    if (!a)
        return true;
    a->core.leave = AGENT_ENDED;
    stop_work(a, WORK_LEAVING);
    do_drop(a);
    if (a->early)
        (void)early_take(a->early, NULL);
    return !a->core.hung && !(a->vitals && vitals_late(a->vitals)) &&
           pool_stop(a->compute, a->opt.hung_ms);
}

void agent_free(struct agent *a)
{
    if (!a)
        return;
    (void)agent_stop(a);
    pool_free(a->compute); /* its last answers see this and end the task */
    early_free(a->early);
    coming_free(a->coming);
    uplink_close(a->uplink);
    session_close(a->session);
    vitals_close(a->vitals);
    loop_timer_free(a->retry);
    loop_timer_free(a->late);
    loop_timer_free(a->notice);
    loop_timer_free(a->hung);
    work_free(a->w);
    mem_free(a);
}

void agent_leave(struct agent *a, const char *reason, uint32_t send_ms)
{
    a->send_ms = send_ms;
    const bool saves = a->w && a->w->kind->saves && session_joined(a->session);
    happened(a, &(struct agent_event){.news = AGENT_LEAVE, .reason = reason, .saves = saves});
}

void agent_save(struct agent *a, const char *reason)
{
    log_info("agent", "%s", reason);
    if (a->w)
        atomic_store(&a->w->save, true);
}

bool agent_notice(struct agent *a, const char *reason, uint32_t ms)
{
    const bool drained = a->core.drain;
    if (a->core.leave != AGENT_STAYS)
        return false;
    log_warn("agent", "%s in %.0f s", reason, ms / 1e3);
    str_copy(a->notice_reason, sizeof(a->notice_reason), reason);
    a->leave_ms = loop_now_ms(a->loop) + ms;
    session_notice(a->session, reason, ms);
    news(a, AGENT_DRAIN);
    if (a->core.leave == AGENT_STAYS)
        loop_timer_start(a->notice, 0, NOTICE_LOOK_MS);
    return !drained;
}
