#include "coordinator/state/core.h"

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/str.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- states -------------------------------------------------------------- */

void flow_enter(struct coordinator *co, struct job *j, enum job_state state, const char *reason)
{
    j->state = state;
    (void)str_copy(j->reason, sizeof(j->reason), reason);
    if (state == JOB_RUNNING && j->started_unix_ms == 0) {
        j->started_ms = core_now(co);
        j->started_unix_ms = (int64_t)clock_wall_ms();
    }
    save_job(co->store, j);
    log_info("job", "job %llu is %s%s%s", (unsigned long long)j->id, job_state_name(state),
             reason[0] ? ": " : "", reason);
    core_event(co, &(struct view_event){.kind = VIEW_EVENT_JOB, .job_id = j->id, .text = reason});
    core_touch(co);
}

struct remove_arg {
    char *dir;
};

static int remove_work(void *arg)
{
    struct remove_arg *a = arg;
    return file_remove_tree(a->dir, NULL);
}

static void remove_done(void *arg, int rc)
{
    struct remove_arg *a = arg;
    mem_free(a->dir);
    mem_free(a);
}

void flow_clean_up(struct coordinator *co, const struct job *j)
{
    for (uint32_t i = 0; i < j->comp.n_modules; i++)
        if (j->modules[i].outer_task != 0)
            return; /* the end of the last step comes back here */
    struct remove_arg *a = mem_alloc(sizeof(*a));
    a->dir = str_printf("%s/outer/%llu", co->opt.data_dir, (unsigned long long)j->id);
    if (pool_submit(co->disk, remove_work, remove_done, a) < 0)
        remove_done(a, 0); /* the files stay: nothing depends on them */
}

void flow_end(struct coordinator *co, struct job *j, enum job_state state, const char *fmt, ...)
{
    char reason[1024];
    va_list ap;
    if (job_is_ended(j))
        return;
    va_start(ap, fmt);
    (void)vsnprintf(reason, sizeof(reason), fmt, ap);
    va_end(ap);
    j->ended_unix_ms = (int64_t)clock_wall_ms();
    flow_enter(co, j, state, reason);
    for (size_t i = 0; i < co->state.n_tasks; i++) {
        struct task *t = co->state.tasks[i];
        if (t->job_id == j->id && task_is_open(t))
            task_end(co, t, TASK_CANCELLED, reason[0] ? reason : "the job has ended");
    }
    gc_job_ended(co, j);
    flow_clean_up(co, j);
    core_say(co, j->id, 0, "job %llu (%s) is %s%s%s", (unsigned long long)j->id, j->spec.name,
             job_state_name(state), reason[0] ? ": " : "", reason);
}

/* The shards are all there: one INIT task per network. */
static void begin_init(struct coordinator *co, struct job *j)
{
    struct err err = {0};
    if (co->state.n_open + COMPOSITION_NETWORKS > TASKS_OPEN_MAX)
        return; /* tried again at the next turn */
    int rc = shards_check(j, &err);
    if (rc == 0)
        shards_keep_for_routers(co, j);
    if (rc == 0 && !j->comp.partitioned)
        rc = shards_make_ledgers(j, &err);
    if (rc < 0) {
        flow_end(co, j, JOB_FAILED, "the dataset cannot be used: %s", err.msg);
        return;
    }
    for (uint32_t w = 0; w < COMPOSITION_NETWORKS; w++) {
        uint32_t p = 0;
        while (p < j->comp.n_paths && j->comp.paths[p].network != w)
            p++;
        if (p == j->comp.n_paths)
            continue;
        struct task *t = task_make(co, j, TASK_INIT);
        t->path = p;
        save_task(co->store, t);
    }
    flow_enter(co, j, JOB_INITIALISING, "");
}

static void begin(struct coordinator *co, struct job *j)
{
    if (j->spec.data.path != NULL || j->comp.teacher_job != 0) {
        begin_init(co, j);
        return;
    }
    for (size_t i = 0; i < j->spec.data.url.n; i++) {
        struct task *t = task_make(co, j, TASK_INGEST);
        if (t == NULL) {
            flow_end(co, j, JOB_FAILED, "too many tasks are open to ingest %zu archives",
                     j->spec.data.url.n);
            return;
        }
        t->ingest.url = (uint32_t)i;
        save_task(co->store, t);
    }
    flow_enter(co, j, JOB_INGESTING, "");
}

size_t flow_open_tasks(const struct coordinator *co, const struct job *j, enum task_kind kind)
{
    size_t n = 0;
    for (size_t i = 0; i < co->state.n_tasks; i++) {
        const struct task *t = co->state.tasks[i];
        n += t->job_id == j->id && task_is_open(t) && t->kind == kind;
    }
    return n;
}

static bool initialised(const struct job *j)
{
    for (uint32_t i = 0; i < j->comp.n_modules; i++)
        if (j->modules[i].n_versions == 0)
            return false;
    return true;
}

static void finish(struct coordinator *co, struct job *j)
{
    j->finishing = FINISHING_EVAL;
    flow_enter(co, j, JOB_FINISHING, "the last losses are measured and the last samples drawn");
    for (uint32_t p = 0; p < j->comp.n_paths; p++)
        (void)draw_eval(co, j, p, (uint32_t)j->spec.outer.rounds);
}

/* What is drawn at the end may depend on the last evaluations. */
static void advance_finishing(struct coordinator *co, struct job *j)
{
    bool evals = flow_open_tasks(co, j, TASK_EVAL) > 0;
    if (j->finishing == FINISHING_EVAL && !evals) {
        j->finishing = FINISHING_DRAW;
        draw_last(co, j);
        (void)stage_score_held_out(co, j);
        save_job(co->store, j);
        evals = flow_open_tasks(co, j, TASK_EVAL) > 0;
    }
    if (j->finishing == FINISHING_DRAW && flow_open_tasks(co, j, TASK_SCORE) == 0) {
        j->finishing = FINISHING_ROUTE;
        (void)stage_evaluate_routing(co, j);
        save_job(co->store, j);
    }
    if (j->finishing == FINISHING_ROUTE && !evals && flow_open_tasks(co, j, TASK_SAMPLE) == 0 &&
        flow_open_tasks(co, j, TASK_CLUSTER) == 0)
        flow_end(co, j, JOB_DONE, "%s", "");
}

static bool at_barrier(const struct job *j)
{
    uint32_t round = stage_barrier(j);
    for (uint32_t p = 0; p < j->comp.n_paths; p++)
        if (j->paths[p].ready || j->paths[p].round != round)
            return false;
    return true;
}

static void advance_running(struct coordinator *co, struct job *j)
{
    rounds_advance(co, j);
    if (j->state != JOB_RUNNING)
        return;
    if (at_barrier(j))
        stage_reshard(co, j);
    else if (rounds_finished(j))
        finish(co, j);
}

static void advance(struct coordinator *co, struct job *j)
{
    enum job_state before;
    do {
        before = j->state;
        switch (j->state) {
        case JOB_PENDING:
            begin(co, j);
            break;
        case JOB_INGESTING:
            if (flow_open_tasks(co, j, TASK_INGEST) == 0)
                begin_init(co, j);
            break;
        case JOB_INITIALISING:
            if (initialised(j) && j->comp.partitioned)
                stage_begin(co, j);
            else if (initialised(j))
                flow_enter(co, j, JOB_RUNNING, "");
            break;
        case JOB_FEATURES:
        case JOB_SCORING:
        case JOB_CLUSTERING:
        case JOB_SPLITTING:
            stage_advance(co, j);
            break;
        case JOB_RUNNING:
            advance_running(co, j);
            break;
        case JOB_FINISHING:
            advance_finishing(co, j);
            break;
        default:
            break;
        }
    } while (j->state != before);
    if (!job_is_ended(j))
        shards_drop_old(co, j);
}

void flow_advance(struct coordinator *co)
{
    for (size_t i = 0; i < co->state.n_jobs; i++)
        if (!job_is_ended(co->state.jobs[i]))
            advance(co, co->state.jobs[i]);
}
