/* VELOCITY: a sampler whose experts stay on their workers has x_t evaluated by them:
 *
 *   sampler -- EVALUATE(path, x_t) --> VELOCITY task of that path --> another worker
 *           <-- blob with v --------- when it is done */
#include "coordinator/kinds/velocity.h"

#include "common/base/err.h"
#include "common/base/mem.h"
#include "common/net/pbmem.h"
#include "coordinator/job/gc.h"
#include "coordinator/job/tasks.h"
#include "coordinator/kinds/message.h"
#include "coordinator/kinds/result.h"
#include "coordinator/kinds/sample.h"
#include "coordinator/state/core.h"
#include "coordinator/state/poll.h"
#include "proto/skerry.pb-c.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static void velocity_message(struct message *b, Skerry__V1__Task *msg)
{
    Skerry__V1__VelocityTask *m = message_new(b, &skerry__v1__velocity_task__descriptor);
    m->path = b->task->path;
    m->input = message_blob(b, &b->task->velocity.input);
    msg->velocity = m;
    b->best = true;
    message_networks(b, msg);
}

static int velocity_apply(struct coordinator *co, struct job *j, struct task *t,
                          const Skerry__V1__ReportRequest *r, struct err *err)
{
    int rc = result_blob(co, r->output, "the velocities", &t->output, err);
    if (rc == 0)
        j->paths[t->path].velocity_worker = t->worker_id;
    return rc;
}

static bool same_blob(const struct blob_ref *a, const struct blob_ref *b)
{
    return a->size == b->size && memcmp(a->sha256, b->sha256, 32) == 0;
}

static void forget(struct coordinator *co, struct task *t)
{
    gc_drop(co, &t->velocity.input);
    gc_drop(co, &t->output);
    save_task_gone(co->store, t->id);
    state_drop_task(&co->state, t);
}

static struct task *find(struct coordinator *co, uint64_t parent, uint32_t path,
                         const struct blob_ref *input)
{
    for (size_t i = 0; i < co->state.n_tasks; i++) {
        struct task *t = co->state.tasks[i];
        if (t->kind == TASK_VELOCITY && t->velocity.parent == parent && t->path == path &&
            same_blob(&t->velocity.input, input))
            return t;
    }
    return NULL;
}

/* The sampler has gone on: answers to its earlier questions are of no use. */
static void forget_older(struct coordinator *co, uint64_t parent, uint32_t path)
{
    for (size_t i = co->state.n_tasks; i-- > 0;) {
        struct task *t = co->state.tasks[i];
        if (t->kind == TASK_VELOCITY && t->velocity.parent == parent && t->path == path &&
            !task_is_open(t))
            forget(co, t);
    }
}

static struct task *make(struct coordinator *co, struct job *j, const struct task *parent,
                         uint32_t path, const struct blob_ref *input)
{
    forget_older(co, parent->id, path);
    struct task *t = task_make(co, j, TASK_VELOCITY);
    if (t == NULL)
        return NULL;
    t->path = path;
    t->velocity =
        (struct task_velocity){parent->draw.version, parent->draw.ema, parent->id, *input};
    save_task(co->store, t);
    return t;
}

static void send_velocity(struct coordinator *co, const struct poll *p, struct task *t)
{
    Skerry__V1__EvaluateReply reply = SKERRY__V1__EVALUATE_REPLY__INIT;
    char why[REASON_MAX];
    struct pbmem mem;
    struct message b = {.co = co, .mem = &mem};
    pbmem_init(&mem, MESSAGE_BYTES_MAX);
    if (t != NULL && t->state == TASK_DONE) {
        reply.output = message_blob(&b, &t->output);
    } else {
        (void)snprintf(why, sizeof(why), "VELOCITY task %llu of path %u is %s",
                       (unsigned long long)(t ? t->id : 0), t ? t->path : 0,
                       t ? task_state_name(t->state) : "gone");
        reply.waiting_for = why;
    }
    rpc_reply(p->req, &reply.base);
    pbmem_release(&mem);
}

static bool answer_velocity(struct coordinator *co, struct poll *p, bool last)
{
    struct task *t = state_task(&co->state, p->velocity);
    if (t != NULL && t->state == TASK_FAILED) {
        rpc_fail(p->req, -ERR_REMOTE, false, 0, "path %u could not be evaluated: %.200s", t->path,
                 t->reason);
        return true;
    }
    if (t != NULL && task_is_open(t) && !last)
        return false;
    send_velocity(co, p, t);
    return true;
}

void velocity_evaluate(struct coordinator *co, struct worker *w, struct rpc_request *req,
                       const Skerry__V1__EvaluateRequest *m)
{
    struct err err = {0};
    struct blob_ref input = {0};
    struct task *parent = sample_leased(co, w, m->task_id, m->attempt, &err), *t = NULL;
    struct job *j = parent ? state_job(&co->state, parent->job_id) : NULL;
    int rc = j == NULL ? err.code : 0;
    if (rc == 0 &&
        (m->path >= j->comp.n_paths || j->comp.paths[m->path].network != 0 || !parent->draw.remote))
        rc =
            err_set(&err, -EINVAL, "path %u is not of a mixture that is sampled remotely", m->path);
    if (rc == 0)
        rc = result_blob(co, m->input, "the input", &input, &err);
    if (rc == 0) {
        t = find(co, parent->id, m->path, &input);
        if (t == NULL && (t = make(co, j, parent, m->path, &input)) == NULL)
            rc = err_set(&err, -EAGAIN, "too many tasks are open");
    }
    if (rc < 0) {
        rpc_fail(req, rc, rc == -EAGAIN, 1000, "%s", err.msg);
        return;
    }
    parent->progress_ms = core_now(co);
    struct poll *p = poll_add(co, req, m->wait_ms, answer_velocity);
    p->worker_id = w->id;
    p->task_id = parent->id;
    p->attempt = parent->attempt;
    p->velocity = t->id;
}

void velocity_turn(struct coordinator *co)
{
    if (!co->velocities_old)
        return;
    co->velocities_old = false;
    for (size_t i = co->state.n_tasks; i-- > 0;) {
        struct task *t = co->state.tasks[i];
        if (t->kind != TASK_VELOCITY)
            continue;
        const struct task *parent = state_task(&co->state, t->velocity.parent);
        if (parent != NULL && task_is_open(parent))
            continue;
        if (task_is_open(t))
            task_end(co, t, TASK_CANCELLED, "the sampler does not need it any more");
        forget(co, t);
    }
}

const struct kind kind_velocity = {.message = velocity_message, .apply = velocity_apply};
