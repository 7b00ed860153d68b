/* The agent asks for work and carries a task from the message to its report, one at a time.  What
 * it does next is decided by worker/decide_agent.h, which has the states; here are the calls, the
 * timers and the jobs.
 *
 * Everything runs on the loop thread, except what plans, runs and saves a task: jobs of the one
 * compute thread (worker/engine/engine.h). */
#ifndef WORKER_AGENT_H
#define WORKER_AGENT_H

#include "common/base/base.h"
#include "worker/link/fetch.h"
#include "worker/link/session.h"

struct agent;
struct engine;
struct modules;

struct agent_options {
    struct fetch_env env; /* loop, transfers, cache, token; kept until agent_free */
    struct engine *engine;
    struct modules *modules;
    const char *tmp_dir;            /* kept */
    struct session_options session; /* the callbacks and arg are filled by the agent */
    void *arg;
    /* The agent has left: code 0 on request or drained, negative when it cannot
     * work here any more (err says why, else NULL). */
    void (*on_end)(void *arg, int code, const struct err *err);
};

int agent_new(const struct agent_options *o, struct agent **ret, struct err *err);
/* Waits for the compute thread.  Accepts NULL. */
void agent_free(struct agent *a);

/* Leaves: on_end follows.  A result that is on its way, and what others can go on with, is sent
 * first, if that takes no longer than send_ms. */
void agent_leave(struct agent *a, const char *reason, uint32_t send_ms);

/* The machine may go soon: what others can go on with is sent now. */
void agent_save(struct agent *a, const char *reason);

/* The machine goes in so many ms: no other task is taken, the one in hand goes on for as long as
 * leaves time to save it, and then the agent leaves. */
void agent_notice(struct agent *a, const char *reason, uint32_t ms);

#endif
