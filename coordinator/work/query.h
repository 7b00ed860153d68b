/* Queries on jobs, answered from a job, its tasks and the tables.  For all rooms from here up.
 * Pure: they do not change the state and know no clock, store or loop. */
#ifndef COORDINATOR_QUERY_H
#define COORDINATOR_QUERY_H

#include "common/base/base.h"
#include "coordinator/state/state.h"

/* ---- the composition ----------------------------------------------------- */

/* Paths of the main network: they come first. */
uint32_t query_main_paths(const struct job *j);
/* Rounds that the slowest path has done. */
uint32_t query_rounds_done(const struct job *j);
/* Whether the job's data are text as far as we know: false for images, and for token ids whose
 * tokenizer the job does not name.  What a trainer does with text is its own business. */
bool query_has_text(const struct job *j);
/* The network on which a task works.  A mixture, which takes the memory of many, has a number of
 * its own, from COMPOSITION_NETWORKS on. */
uint32_t query_network(const struct job *j, const struct task *t);
/* Whether the program that trains the job's networks can also do `what`: "evaluates" or "draws".
 * Our own can; a trainer declared it with version 0. */
bool query_can(const struct job *j, const char *what);
/* Whether a user's program computes the task, which only some workers run. */
bool query_needs_trainers(const struct job *j, const struct task *t);
/* What workers must know for tasks of the job: Reads of skerry.proto. */
int query_reads(const struct job *j);
/* Whether the worker's release and settings allow it such tasks of the job at all. */
bool query_is_able(const struct job *j, enum task_kind kind, const struct worker *w);
/* Whether the worker has reported lately that it has too little memory for such tasks of the job.
 */
bool query_is_small(const struct job *j, enum task_kind kind, uint32_t network,
                    const struct worker *w, uint64_t now_ms);
/* Whether the worker may be given such tasks of the job: it is able, and has not reported lately
 * that they need too much memory. */
bool query_fits(const struct job *j, enum task_kind kind, uint32_t network, const struct worker *w,
                uint64_t now_ms);
/* Whether the worker, which waits for a task, could be given this one now. */
bool query_could_have(const struct job *j, const struct task *t, const struct worker *w,
                      uint64_t now_ms);
bool query_crosses(const struct job *j, uint32_t path, const struct module_rec *m);
/* Replicas of the paths that cross the module. */
uint32_t query_replicas_through(const struct job *j, const struct module_rec *m);
bool query_share_module(const struct job *j, uint32_t p, uint32_t q);
/* Whether contributions arrive during their phase, and replicas keep their weights. */
bool query_streams(const struct job *j);

/* ---- progress ------------------------------------------------------------ */

/* How many tasks of this kind the job has open. */
size_t query_open_tasks(const struct state *s, const struct job *j, enum task_kind kind);
/* Tasks done, and all tasks, of the job's present state; 0 of 0: it has no such tasks. */
void query_progress(const struct state *s, const struct job *j, uint32_t *ret_done,
                    uint32_t *ret_total);
/* Whether every module has a version. */
bool query_initialised(const struct job *j);
/* Whether every module of the path has this version or a newer one. */
bool query_modules_at(const struct job *j, uint32_t path, uint64_t version);
/* The newest version that all modules of the path have had; one far ahead may not keep it. */
uint64_t query_path_version(const struct job *j, uint32_t path);
/* Whether the module's next version would drop the one with which a path's round begins. */
bool query_leaves_behind(const struct job *j, const struct module_rec *m);
/* Whether every path has closed its last round. */
bool query_finished(const struct job *j);
/* The round at which paths wait for their new shards; UINT32_MAX: there is none ahead. */
uint32_t query_barrier(const struct job *j);

/* Whether the job is stalled: its tasks are withheld, or its tasks or the outer steps of a module
 * fail repeatedly.  ret_reason says which.  Repeated failures end by themselves when a worker can
 * do the tasks. */
bool query_stalled(const struct state *s, const struct job *j, char ret_reason[REASON_MAX]);

/* What the leases and the waiting of all jobs of a token have cost, removed ones, too. */
double query_token_cost(const struct state *s, uint64_t token);

/* Why the job's tasks are withheld, as a phrase for a task: the job is paused, its budget or that
 * of its token is spent, or its teacher is unread; NULL: they are not. */
const char *query_withheld(const struct state *s, const struct job *j);

/* ---- partitioning -------------------------------------------------------- */

/* How many of the shards [first, n) one SPLIT task reads.  They are adjacent, and so are their rows
 * of the assignment; either all are held out or none.  There are as many as partitions, so that the
 * shards written are about as large as those read. */
size_t query_split_group(const struct job *j, size_t first, size_t n);
/* The most shards that a SPLIT of so many samples makes, and all of a splitting: all are full but
 * one of each partition. */
uint64_t query_split_most(const struct job *j, uint64_t samples, bool holdout);
uint64_t query_splits_most(const struct job *j);
/* Shards that have scores, ascending, in a new array of *ret_n; NULL: none. */
uint32_t *query_scored(const struct job *j, size_t *ret_n);

/* ---- phases and contributions -------------------------------------------- */

/* How many samples are in the task's ranges. */
uint64_t query_held(const struct task *t);
/* The task of a replica's phase; NULL: none runs. */
const struct task *query_phase(const struct state *s, const struct job *j, uint32_t path,
                               uint32_t replica);
/* Samples/s of the worker that trains this phase; 0: unknown, or t is NULL or no phase. */
double query_speed(const struct state *s, const struct task *t);
/* Replicas in the path's round; where workers decide, those that have a phase, at least one, and of
 * an ended job those of its last round. */
uint32_t query_replicas(const struct state *s, const struct job *j, uint32_t path);
/* Phases that the job can have running at once. */
uint32_t query_phases_at_once(const struct job *j);
/* Whether the replica skips the path's round, since there was no worker for it when it began. */
bool query_rests(const struct state *s, const struct job *j, uint32_t path, uint32_t replica);
/* The length in s of a phase bounded by time that begins now: outer.seconds.  Asynchronous phases
 * that share modules end together; theirs is 0.5 to 1.5 times that. */
uint32_t query_phase_seconds(const struct state *s, uint64_t now_ms, const struct job *j,
                             const struct task *t);
/* When a phase bounded by time ends, in ms. */
double query_phase_end(const struct task *t);
/* How long the path's round has run; by the wall clock if it began before we started. */
uint64_t query_round_ms(const struct path_rec *p, uint64_t now_ms);
/* The task's contribution that starts from version `base` of a module; NULL: none. */
const struct contribution *query_contribution(const struct task *t, uint64_t module, uint64_t base);
/* A phase's contribution to the module's next version, unless it was refused; t may be NULL. */
const struct contribution *query_given(const struct task *t, const struct module_rec *m);

/* A phase's contribution that is in no version yet, from whichever version; t may be NULL. */
const struct contribution *query_waits(const struct task *t, const struct module_rec *m);
/* Whether a contribution that starts from the old version `base` still goes into the next one. */
bool query_takes_late(const struct job *j, const struct module_rec *m, uint64_t base);

struct outer_count {
    uint32_t expected, arrived, leased; /* leased: missing, but a worker has the task */
    uint32_t away; /* of the leased: the worker is disconnected, and may come back */
};

/* The contributions to the module's next version. */
void query_outer_count(const struct state *s, const struct job *j, const struct module_rec *m,
                       struct outer_count *ret);

/* Contributions to m that are in no version yet, including those that a running step folds and
 * those of earlier rounds. */
uint64_t query_waiting(const struct state *s, const struct job *j, const struct module_rec *m);

#endif
