/* Long polls of workers within a task: considered in every turn, and answered after its commit once
 * there is an answer, the lease is gone, or the time is up. */
#ifndef COORDINATOR_POLL_H
#define COORDINATOR_POLL_H

#include "common/base/base.h"
#include "common/base/list.h"

struct coordinator;
struct poll;
struct rpc_request;
struct task;

/* Answers p->req and returns true, or leaves it and returns false.  last: the time is up, so it
 * must answer.  The lease is still valid. */
typedef bool (*poll_fn)(struct coordinator *co, struct poll *p, bool last);

struct poll {
    struct list link;
    struct rpc_request *req;
    poll_fn answer;
    uint64_t worker_id, task_id, until_ms;
    uint32_t attempt;
    uint64_t module_id, version, held; /* VERSION */
    uint64_t velocity;                 /* EVALUATE: the VELOCITY task */
};

/* Parks req for at most wait_ms (30 s): answer is called at every turn. */
struct poll *poll_add(struct coordinator *co, struct rpc_request *req, uint32_t wait_ms,
                      poll_fn answer);
/* Answers earlier polls of the same worker for the same: each turn considers all that wait. */
void poll_replace(struct coordinator *co, const struct poll *p);
/* poll_hand() makes the answers that the commit handed over allows.  They leave with
 * poll_release(), when it is done; after a failure poll_take_back() lets the requests wait on. */
void poll_hand(struct coordinator *co);
void poll_release(struct coordinator *co);
void poll_take_back(struct coordinator *co);
void poll_stop(struct coordinator *co); /* answers all */
/* The poll's task, if its worker still has the lease of its attempt; else NULL. */
const struct task *poll_task(const struct coordinator *co, const struct poll *p);

#endif
