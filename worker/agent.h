/* The agent asks for work and carries one task at a time from its message to its report.
 * worker/decide_agent.h has the states and decides the next action; the agent has the calls, timers
 * and jobs.
 *
 * Everything runs on the loop thread, except planning, running and saving a task, which are jobs of
 * the one compute thread (worker/engine/engine.h). */
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
    const char *tmp_dir; /* kept */
    uint32_t hung_ms;    /* a task that has not stopped in that time hangs, unless its trainer gives
                            signs */
    struct session_options session; /* the agent fills the callbacks and arg */
    void *arg;
    /* The agent has left: code 0 on request or when drained, 1 if the coordinator said at the end
     * that a person has drained it; negative when it cannot work here any more (then err says why,
     * else it is NULL). */
    void (*on_end)(void *arg, int code, const struct err *err);
};

int agent_new(const struct agent_options *o, struct agent **ret, struct err *err);
/* Ends the work, and waits for the compute thread, for at most hung_ms.  False: agent_free would
 * wait for ever, since a thread of the agent sits in a call of a driver that does not return.  Only
 * the end of the process, or execve, ends that thread.  Accepts NULL. */
bool agent_stop(struct agent *a);
/* Waits for the compute thread and for a reading of the devices.  Accepts NULL. */
void agent_free(struct agent *a);

/* Leaves: on_end follows.  First it sends a result under way and a snapshot for the next worker, if
 * that takes no longer than send_ms. */
void agent_leave(struct agent *a, const char *reason, uint32_t send_ms);

/* The machine may be taken back soon: sends a snapshot now. */
void agent_save(struct agent *a, const char *reason);

/* The machine is taken back in ms milliseconds: takes no other task, goes on with the present one
 * as long as there is time left to save it, and then leaves.  false: it would have left without,
 * since it was drained or told to leave. */
bool agent_notice(struct agent *a, const char *reason, uint32_t ms);

#endif
