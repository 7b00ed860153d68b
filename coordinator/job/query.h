/* Questions about jobs: what can be read from a job, its tasks and the tables.  Asked by all rooms
 * from here up; pure: nothing here changes the state, or knows a clock, the store or the loop. */
#ifndef COORDINATOR_QUERY_H
#define COORDINATOR_QUERY_H

#include "common/base/base.h"
#include "coordinator/state/state.h"

/* ---- the composition ----------------------------------------------------- */

/* Paths of the main network: they come first. */
uint32_t query_main_paths(const struct job *j);
/* Are the job's texts known as such?  Not where the data are ids of a tokenizer that it does not
 * name; a trainer's are its own business. */
bool query_has_text(const struct job *j);
/* The network that a task is about. */
uint32_t query_network(const struct job *j, const struct task *t);
/* Can what trains the job's networks also do this, "evaluates" or "draws"?  Our own can; a trainer
 * has said so with version 0. */
bool query_can(const struct job *j, const char *what);
/* Does a program of the user's compute the task, which only some workers run? */
bool query_needs_trainers(const struct job *j, const struct task *t);
/* Has the worker said lately that such tasks of the job are too large for it? */
bool query_is_small(const struct job *j, enum task_kind kind, uint32_t network,
                    const struct worker *w, uint64_t now_ms);
/* May the worker be given such tasks of the job?  It runs trainers, if that takes one, and has not
 * said lately that they are too large for it. */
bool query_fits(const struct job *j, enum task_kind kind, uint32_t network, const struct worker *w,
                uint64_t now_ms);
/* Could the worker, which waits for a task, be given this one now? */
bool query_could_have(const struct job *j, const struct task *t, const struct worker *w,
                      uint64_t now_ms);
bool query_crosses(const struct job *j, uint32_t path, const struct module_rec *m);
bool query_share_module(const struct job *j, uint32_t p, uint32_t q);
/* Do contributions come while their phase goes on, and replicas keep their weights? */
bool query_streams(const struct job *j);

/* ---- how far ------------------------------------------------------------- */

/* Open tasks of the job of a kind. */
size_t query_open_tasks(const struct state *s, const struct job *j, enum task_kind kind);
/* Tasks done and to do of the state that the job is in; 0 of 0: it has no such tasks. */
void query_progress(const struct state *s, const struct job *j, uint32_t *ret_done,
                    uint32_t *ret_total);
/* Has every module a version? */
bool query_initialised(const struct job *j);
/* Has every module of the path this version, or a newer one? */
bool query_modules_at(const struct job *j, uint32_t path, uint64_t version);
/* Has every path closed its last round? */
bool query_finished(const struct job *j);
/* The round at which paths wait for their new shards; UINT32_MAX: none is to come. */
uint32_t query_barrier(const struct job *j);

/* Does the job not go on because its tasks are withheld, or they or the outer steps of a module
 * fail again and again?  ret_reason says which.  The latter goes on by itself when somebody can do
 * them. */
bool query_stalled(const struct state *s, const struct job *j, char ret_reason[REASON_MAX]);

/* What the leases and the waiting of all jobs of a token have cost, as they are kept. */
double query_token_cost(const struct state *s, uint64_t token);

/* Why none of the job's tasks is given out, as what a task is: it is paused, or its budget or that
 * of the token that it was submitted with is spent; NULL: they are. */
const char *query_withheld(const struct state *s, const struct job *j);

/* ---- partitioning -------------------------------------------------------- */

/* How many of the shards [first, n) one SPLIT task reads: neighbours, so that their rows of the
 * assignment are as well, all held out or none; as many as there are partitions, so that what
 * the task writes is about as large as what it reads. */
size_t query_split_group(const struct job *j, size_t first, size_t n);
/* Shards with scores, ascending, in a new array of *ret_n; NULL: none. */
uint32_t *query_scored(const struct job *j, size_t *ret_n);

/* ---- phases and contributions -------------------------------------------- */

/* Samples that the task's ranges hold. */
uint64_t query_held(const struct task *t);
/* The task of a replica's phase; NULL: none runs. */
const struct task *query_phase(const struct state *s, const struct job *j, uint32_t path,
                               uint32_t replica);
/* Replicas of the path's round: those that have a phase where workers decide, at least one. */
uint32_t query_replicas(const struct state *s, const struct job *j, uint32_t path);
/* Phases that the job can have at once, whoever does them. */
uint32_t query_phases_at_once(const struct job *j);
/* Is the replica out of the path's round, for want of a worker when it began? */
bool query_rests(const struct state *s, const struct job *j, uint32_t path, uint32_t replica);
/* How long a phase bounded by time is that begins now, in s: outer.seconds.  Asynchronous ones
 * that share modules end together: half of that to half as much again. */
uint32_t query_phase_seconds(const struct state *s, uint64_t now_ms, const struct job *j,
                             const struct task *t);
/* When a phase bounded by time ends, in ms. */
double query_phase_end(const struct task *t);
/* How long the path's round has run; of one that began before we started the wall clock tells. */
uint64_t query_round_ms(const struct path_rec *p, uint64_t now_ms);
/* What a task has given to a module's version; NULL: nothing. */
const struct contribution *query_contribution(const struct task *t, uint64_t module, uint64_t base);
/* What a phase has given to the module's next version, unless it was refused; t may be NULL. */
const struct contribution *query_given(const struct task *t, const struct module_rec *m);

/* Of those the one that is in no version yet, whichever it began with; t may be NULL. */
const struct contribution *query_waits(const struct task *t, const struct module_rec *m);
/* Does a contribution to this version of the module, which is at a later one, go into the next? */
bool query_takes_late(const struct job *j, const struct module_rec *m, uint64_t base);

struct outer_count {
    uint32_t expected, arrived, leased; /* leased: of the missing, being worked on */
    uint32_t away; /* of these: by a worker that has no connection, and may come back with it */
};

/* The contributions to the module's next version. */
void query_outer_count(const struct state *s, const struct job *j, const struct module_rec *m,
                       struct outer_count *ret);

/* Contributions to m that are not in a version yet, also those that a running step folds, and those
 * of rounds before. */
uint64_t query_waiting(const struct state *s, const struct job *j, const struct module_rec *m);

#endif
