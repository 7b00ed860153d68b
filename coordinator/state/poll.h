/* Requests of workers that wait within a task: looked at in every turn, answered after its commit
 * when there is something, when the lease is gone, or when the time is up. */
#ifndef COORDINATOR_POLL_H
#define COORDINATOR_POLL_H

#include "common/base/base.h"
#include "common/base/list.h"

struct coordinator;
struct poll;
struct rpc_request;
struct task;

/* Answers p->req and returns true, or leaves it and returns false.  last: the time is up,
 * answer.  The lease stands. */
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
/* Makes the answers that can be made of what the next commit has.  They leave when it is done, and
 * the requests wait on after a failure. */
void poll_hand(struct coordinator *co);
void poll_release(struct coordinator *co);
void poll_take_back(struct coordinator *co);
void poll_stop(struct coordinator *co); /* answers all */
/* The task's lease as (worker, attempt) still stands. */
const struct task *poll_task(const struct coordinator *co, const struct poll *p);

#endif
