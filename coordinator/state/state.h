/* The coordinator's state in memory.
 *
 *   state ─┬─ token   (who may come in)                                  access.h
 *          ├─ worker  (joins, leaves, lost; holds at most one task)      worker.h
 *          ├─ task ── contribution                                       task.h
 *          └─ job ─┬─ shard, class        the dataset                    job.h
 *                  ├─ score, row          what partitioning and evaluation found
 *                  ├─ ledger (per partition)  every sample of every open epoch
 *                  ├─ module ── version   written once, the last ones have blobs
 *                  └─ path ── replica     where each replica's phase stands
 *
 * It is a cache of the SQLite file that saves itself (mark.h): a change is acknowledged only after
 * its commit (store.h).  Fields marked (m) live only in memory and are zero after a restart.
 *
 * Ids are never reused.  Loop thread only. */
#ifndef COORDINATOR_STATE_H
#define COORDINATOR_STATE_H

#include "common/base/list.h"
#include "coordinator/state/access.h"
#include "coordinator/state/job.h"
#include "coordinator/state/task.h"
#include "coordinator/state/worker.h"

#define WORKERS_MAX 10240
#define WORKERS_KNOWN_MAX 16384 /* with those that left; the longest gone are forgotten */
#define JOBS_MAX 1024           /* and one more while its submission is checked */
#define JOBS_ACTIVE_MAX 64
#define TASKS_OPEN_MAX 16384
#define TASKS_ENDED_MAX 256 /* kept per job, beside the open ones */

/* Arrays of pointers in order of id. */
struct state {
    const struct worker **workers;
    size_t n_workers, cap_workers;
    struct job **jobs;
    size_t n_jobs, cap_jobs;
    const struct task **tasks;
    size_t n_tasks, cap_tasks;
    struct token_rec *tokens;
    size_t n_tokens;
    size_t n_open; /* open tasks */
    /* (m) Indexes; only the functions below change them. */
    const struct task **ready; /* pending tasks for workers, in order of id */
    size_t n_ready, cap_ready;
    struct list parked;        /* workers that wait for a task, the longest waiting first */
    size_t n_here;             /* workers that are WORKER_HERE */
    struct access_faces faces; /* access.h */
    /* Saved with the rows. */
    uint64_t next_worker, next_job, next_task, next_module, next_token;
    uint64_t bytes_gone[4]; /* as worker.bytes, of all forgotten workers together */
    double request_dollars; /* what requests to the store have cost: cost_requests() */
    /* (m) Changes for persist_changes(). */
    struct marks workers_edited, tasks_edited, workers_gone, tasks_gone, jobs_gone, tokens_gone;
    uint64_t gone_commit; /* the commit with the newest removals */
    struct row_mark counters;
    uint64_t commits; /* that the database has, with the one that is queued */
};

void state_init(struct state *s);
void state_release(struct state *s);

/* NULL when there is none. */
const struct worker *state_worker(const struct state *s, uint64_t id);
/* The index in `workers` of the first with a larger id. */
size_t state_workers_after(const struct state *s, uint64_t id);
struct job *state_job(const struct state *s, uint64_t id);
const struct task *state_task(const struct state *s, uint64_t id);
const struct module_rec *state_module(const struct state *s, uint64_t id, struct job **ret_job);
/* Is there a job whose rows are not loaded?  Rows whose own parent is lost count as its. */
bool state_any_unread(const struct state *s);

/* For writing, until the end of the turn; NULL of NULL. */
struct worker *state_edit_worker(struct state *s, const struct worker *w);
struct task *state_edit_task(struct state *s, const struct task *t);

/* Adds a record to the table, zeroed except for the id (0: the next one; else as loaded, larger
 * than all before it).  NULL at the table's maximum, but never for a task that is loaded: one that
 * had ended may be open again. */
struct worker *state_add_worker(struct state *s, uint64_t id);
struct job *state_add_job(struct state *s, uint64_t id);
struct task *state_add_task(struct state *s, uint64_t id, uint64_t job_id, enum task_kind kind);

/* Frees the record and removes it, with its dependent rows, from the state and the store. */
void state_drop_worker(struct state *s, const struct worker *w);
void state_drop_task(struct state *s, const struct task *t);
void state_drop_job(struct state *s, struct job *j);

/* Every change of a task's state goes through here: it maintains n_open, `ready`, and the leases of
 * the job. */
void state_set_task_state(struct state *s, struct task *t, enum task_state to);
/* Every change of a worker's state goes through here: it maintains n_here. */
void state_set_worker_state(struct state *s, struct worker *w, enum worker_state to);

/* Parks the worker's ASSIGN request until then; the worker must not have one parked. */
void state_park(struct state *s, struct worker *w, struct rpc_request *req, uint64_t until_ms);
/* Unparks the worker's request and returns it for the caller to answer; NULL: none was parked. */
struct rpc_request *state_unpark(struct worker *w);

#endif
