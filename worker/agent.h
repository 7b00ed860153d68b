/* The agent: asks for work, carries a task through its stages, one at a time.
 *
 *   IDLE ─ask─► ASKING ─task─► PLANNING ─► FETCHING ─► RUNNING ─► UPLOADING ─► REPORTING ─► IDLE
 *                                 ▲            (other hash)│            any failure ──▲
 *                                 └────────────────────────┘
 *   revoked: whatever runs is stopped within one step; no report, IDLE
 *   leave:   a result that is being sent gets a few seconds; then good-bye
 *
 * Everything runs on the loop thread, except PLANNING and RUNNING, which are
 * jobs of the one compute thread (engine.h). */
#ifndef WORKER_AGENT_H
#define WORKER_AGENT_H

#include <stdbool.h>
#include <stdint.h>

#include "worker/link/fetch.h"
#include "worker/link/session.h"

struct agent;
struct engine;
struct err;
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

/* Leaves: on_end follows. */
void agent_leave(struct agent *a, const char *reason);

#endif
