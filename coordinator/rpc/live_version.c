/* The next version of a module, for a phase that goes on: told when it is there. */
#include "coordinator/job/query.h"
#include "coordinator/rpc/live.h"
#include "coordinator/rpc/poll.h"
#include "coordinator/state/core.h"
#include "coordinator/rpc/taskmsg.h"

#include "common/base/err.h"
#include "common/base/mem.h"
#include "common/net/pbmem.h"
#include "proto/skerry.pb-c.h"

#include <errno.h>
#include <stdio.h>

#define NO_VERSION UINT64_MAX

/* What the worker says that it holds is better than what we think that it does. */
static void note_held(struct worker *w, uint64_t module, uint64_t version)
{
    unsigned kept = 0;
    for (unsigned i = 0; i < w->n_held; i++)
        if (w->held[i].module_id != module)
            w->held[kept++] = w->held[i];
    w->n_held = kept;
    if (version == NO_VERSION || kept == sizeof(w->held) / sizeof(w->held[0]))
        return;
    w->held[kept].module_id = module;
    w->held[kept].version = version;
    w->n_held++;
}

static void send_version(struct coordinator *co, struct poll *p, const struct task *t,
                         struct worker *w, const struct module_rec *m)
{
    Skerry__V1__VersionReply reply = SKERRY__V1__VERSION_REPLY__INIT;
    const struct job *j = state_job(&co->state, t->job_id);
    struct pbmem mem;
    struct err err = {0};
    pbmem_init(&mem, TASKMSG_BYTES_MAX);
    note_held(w, m->id, p->held);
    if (taskmsg_module(co, j, t, w, m, &mem, &reply.module, &err) < 0)
        rpc_fail(p->req, err.code, true, 1000, "%s", err.msg);
    else
        rpc_reply(p->req, &reply.base);
    pbmem_release(&mem);
}

static bool answer_version(struct coordinator *co, struct poll *p, bool last)
{
    Skerry__V1__VersionReply reply = SKERRY__V1__VERSION_REPLY__INIT;
    char why[REASON_MAX];
    struct task *t = poll_task(co, p);
    struct worker *w = state_worker(&co->state, p->worker_id);
    struct job *j = t ? state_job(&co->state, t->job_id) : NULL;
    const struct module_rec *m = j ? job_module(j, p->module_id) : NULL;
    if (m == NULL || w == NULL) {
        rpc_fail(p->req, -ERR_NOTFOUND, false, 0, "there is no such module");
        return true;
    }
    t->progress_ms = core_now(co); /* who waits for others is not stuck */
    if (m->version >= p->version) {
        send_version(co, p, t, w, m);
        return true;
    }
    reply.later = !query_coming(&co->state, j, m);
    if (!reply.later && !last)
        return false;
    (void)snprintf(why, sizeof(why), "module %llu is at version %llu: %.200s",
                   (unsigned long long)m->id, (unsigned long long)m->version, m->outer_reason);
    reply.waiting_for = why;
    rpc_reply(p->req, &reply.base);
    return true;
}

void live_version(struct coordinator *co, struct worker *w, struct rpc_request *req,
                  const Skerry__V1__VersionRequest *m)
{
    struct task *t = state_task(&co->state, m->task_id);
    struct job *j = t ? state_job(&co->state, t->job_id) : NULL;
    const struct module_rec *module = j ? job_module(j, m->module_id) : NULL;
    if (module == NULL || t->kind != TASK_TRAIN || !query_crosses(j, t->path, module)) {
        rpc_fail(req, -EINVAL, false, 0, "module %llu is not on the path of task %llu",
                 (unsigned long long)m->module_id, (unsigned long long)m->task_id);
        return;
    }
    struct poll *p = poll_add(co, req, m->wait_ms, answer_version);
    p->worker_id = w->id;
    p->task_id = m->task_id;
    p->attempt = m->attempt;
    p->module_id = m->module_id;
    p->version = m->version;
    p->held = m->held;
}
