/* Prefetching: which modules idle workers fetch while they wait for a task, so that nobody has to
 * wait for a new or spare worker when it gets a phase.
 *
 *   idle, lacks the newest version    is told what to fetch: deltas, or a whole file first
 *   lost a phase without a step       the same; a whole file that it holds in part remains its
 *                                     target while that file is kept, whatever versions come
 *   still fetching                    others go first: it gets no phase of that job while a proven
 *                                     worker is here, and rounds by workers do not count it
 *   has a version near the newest     counts like any other worker
 *
 * A worker that does not support prefetching is told nothing and is held back from nothing.  As
 * many workers are told as the job could use at once besides those that have its tasks, but at
 * least one; who waits with a version near the newest is one of them, so that others fetch none. */
#ifndef COORDINATOR_AHEAD_H
#define COORDINATOR_AHEAD_H

#include "coordinator/state/core.h"

/* The newest version held from which all deltas up to `version` are kept. */
bool ahead_base(const struct worker *w, const struct module_rec *m, uint64_t version,
                uint64_t *ret);
/* The version of m that w is told to fetch now. */
const struct version_rec *ahead_version(const struct worker *w, const struct module_rec *m);

/* Whether w still fetches the files with which phases of the job begin, so that nobody should wait
 * for it. */
bool ahead_is_behind(const struct worker *w, const struct job *j);
/* Whether a worker is here that could do the phases that such workers do not get. */
bool ahead_others(const struct state *s);

/* To be called when w gets a lease of t, and when it loses it. */
void ahead_leased(struct worker *w, const struct job *j, const struct task *t);
void ahead_lost(struct worker *w, const struct task *t);

/* How many more workers may be told, for each job in the order of the state; mem_free it. */
uint32_t *ahead_rooms(const struct coordinator *co);
/* Whether there is something new to tell w, which waits.  If so, it is recorded and taken from
 * `rooms`.  may_work: the result of member_may_work(). */
bool ahead_news(struct coordinator *co, struct worker *w, bool may_work, uint32_t *rooms);

#endif
