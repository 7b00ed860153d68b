/* What workers that wait for a task fetch meanwhile: the modules of a job of theirs, so that a
 * newcomer or a spare is not waited for when it gets a phase.
 *
 *   waits, lacks the newest version   it is told what leads there: deltas, or a whole file first
 *   lost a phase without a step       the same; a whole file that it has a part of stays what it is
 *                                     led to for as long as that is kept, whatever versions come
 *   still fetching                    others go first: it gets no phase of that job while somebody
 *                                     proven is here, and rounds by workers do not count it
 *   has a version near the newest     it is one of them
 *
 * A hint costs nothing where it is not heeded: a worker that does not say that it fetches ahead is
 * told nothing and waits for nothing.  As many workers are told as the job could use at once,
 * beside those that have its tasks; one at least. */
#ifndef COORDINATOR_AHEAD_H
#define COORDINATOR_AHEAD_H

#include "coordinator/state/core.h"

/* The newest version held from which all deltas up to `version` are kept. */
bool ahead_base(const struct worker *w, const struct module_rec *m, uint64_t version,
                uint64_t *ret);
/* The version of m that w is led to now. */
const struct version_rec *ahead_version(const struct worker *w, const struct module_rec *m);

/* Is it fetching what phases of the job begin with, so that nobody should wait for it? */
bool ahead_is_behind(const struct worker *w, const struct job *j);
/* Is somebody here who could do what they do not get? */
bool ahead_others(const struct state *s);

/* w has a lease of t; or lost it. */
void ahead_leased(struct worker *w, const struct job *j, const struct task *t);
void ahead_lost(struct worker *w, const struct task *t);

/* How many more may be told, by job, in the order of the state; mem_free. */
uint32_t *ahead_rooms(const struct state *s);
/* For one that waits: is there something else to tell it than the last time?  Then it is noted, and
 * counts among the rooms.  may_work: what member_may_work() says. */
bool ahead_news(struct coordinator *co, struct worker *w, bool may_work, uint32_t *rooms);

#endif
