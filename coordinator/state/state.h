/* Everything the coordinator knows, in memory.
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
 * It is a cache of the SQLite file that saves itself (mark.h): what was changed is
 * acknowledged after the commit only (store.h).  Fields marked (m) live in memory alone and
 * start anew after a restart.
 *
 * Ids are given out once and never reused.  Loop thread only. */
#ifndef COORDINATOR_STATE_H
#define COORDINATOR_STATE_H

#include "common/base/list.h"
#include "coordinator/state/access.h"
#include "coordinator/state/job.h"
#include "coordinator/state/task.h"
#include "coordinator/state/worker.h"

#define WORKERS_MAX 10240
#define WORKERS_KNOWN_MAX 16384 /* with those that left; the longest gone are forgotten */
#define JOBS_MAX 1024
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
    size_t n_open; /* tasks that are open */
    /* (m) Indexes, kept by the functions below alone. */
    const struct task **ready; /* those that are pending and for workers, in order of id */
    size_t n_ready, cap_ready;
    struct list parked;        /* workers that wait for a task, by parked_at; the longest first */
    size_t n_here;             /* workers that are WORKER_HERE */
    struct access_faces faces; /* access.h */
    /* Saved with the rows. */
    uint64_t next_worker, next_job, next_task, next_module, next_token;
    uint64_t bytes_gone[4]; /* as those of struct worker, of all that were forgotten */
    /* (m) What persist_changes() has to look at. */
    struct marks workers_edited, tasks_edited, workers_gone, tasks_gone, jobs_gone, tokens_gone;
    uint64_t gone_commit; /* that has the newest of those */
    struct row_mark counters;
};

void state_init(struct state *s);
void state_release(struct state *s);

/* NULL when there is none. */
const struct worker *state_worker(const struct state *s, uint64_t id);
/* Where in workers those with larger ids begin. */
size_t state_workers_after(const struct state *s, uint64_t id);
struct job *state_job(const struct state *s, uint64_t id);
const struct task *state_task(const struct state *s, uint64_t id);
const struct module_rec *state_module(const struct state *s, uint64_t id, struct job **ret_job);

/* For writing, until the end of the turn; NULL of NULL. */
struct worker *state_edit_worker(struct state *s, const struct worker *w);
struct task *state_edit_task(struct state *s, const struct task *t);

/* New records, zeroed but for the id (0: the next one; else as loaded, larger
 * than all before it) and in the table.  NULL at the table's maximum; a task that is loaded has its
 * place in any case, as one that had ended may be open again. */
struct worker *state_add_worker(struct state *s, uint64_t id);
struct job *state_add_job(struct state *s, uint64_t id);
struct task *state_add_task(struct state *s, uint64_t id, uint64_t job_id, enum task_kind kind);

/* Frees the record and forgets it, and so does the store with all that hangs on it. */
void state_drop_worker(struct state *s, const struct worker *w);
void state_drop_task(struct state *s, const struct task *t);
void state_drop_job(struct state *s, struct job *j);

/* Every change of a task's state goes through here: it keeps n_open, the ready ones, and the leases
 * of its job. */
void state_set_task_state(struct state *s, struct task *t, enum task_state to);
/* And every change of a worker's: it keeps n_here. */
void state_set_worker_state(struct state *s, struct worker *w, enum worker_state to);

/* The worker's ASSIGN waits until then; it had none that does. */
void state_park(struct state *s, struct worker *w, struct rpc_request *req, uint64_t until_ms);
/* It waits no more: what it asked with, for the caller to answer; NULL: it did not wait. */
struct rpc_request *state_unpark(struct worker *w);

#endif
