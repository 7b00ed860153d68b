/* Early steps: an outer step that is begun while its contributions are still arriving, so that
 * workers can fetch its delta meanwhile.
 *
 *   outer_early(step) ──► early thread: folds what has come of all contributions, waits for more
 *   outer_early_delta() ◄── the delta so far (growing.h), for those who want it
 *   outer_submit(step) ──► the step as it was decided: its checks, verdicts and weights
 *                           the same bytes, weights and constants: the early files are its files
 *                           anything else: it is folded like any other
 *
 * Nothing depends on an early step: what it made counts only if the decided step, whose
 * contributions were hashed, checked and judged, would make the same.  Its inputs are hashed as
 * they are read, and again, from the blobs, before it is adopted.
 *
 * One that must wait for 15 s for a byte of a contribution ends.  At most OUTER_EARLY_MAX run at a
 * time, on threads of their own, of which half are one job's at most, so that a job whose uploads
 * are slow leaves places to others.  OUTER_EARLY_COMPUTING of them compute at a time: one that
 * waits for bytes lets another.
 *
 * The files of one that is stopped, or of which the decided step has no use, are removed; those
 * that a stop of the process leaves go at the next start (leftover.h). */
#ifndef COORDINATOR_OUTER_EARLY_H
#define COORDINATOR_OUTER_EARLY_H

#include "common/base/base.h"

struct fold_result;
struct fold_step;
struct growing;
struct outer_early;
struct outer_exec;
struct outer_run;
struct outer_step;

#define OUTER_EARLY_MAX 8 /* at a time: memory is under 8 MiB for each */
#define OUTER_EARLY_OF_JOB (OUTER_EARLY_MAX / 2)
#define OUTER_EARLY_COMPUTING 2

/* ---- loop thread ---- */

/* False: too many run, or too many of the job, or one of this state_dir has not ended. */
bool outer_early_has_place(struct outer_exec *exec, uint64_t job_id, const char *state_dir);
/* Begins the step, which it takes.  -EAGAIN: there is no place.  on_end: it touches no file any
 * more, and a place may be free; called once or twice.  May be NULL. */
int outer_early(struct outer_exec *exec, struct outer_step *takes,
                void (*on_end)(struct outer_step *step));
/* Stops that of a state_dir; none is fine. */
void outer_early_stop(struct outer_exec *exec, const char *state_dir);
/* A share of its delta.  -EAGAIN: nothing of it is there yet; -ERR_NOTFOUND: there will be none. */
int outer_early_delta(struct outer_exec *exec, const char *state_dir, struct growing **ret);

/* For the executor: takes the early step for a decided one, and stops it if they differ; NULL:
 * there is none.  To be let go of when the decided step is done. */
struct outer_early *outer_early_of(struct outer_exec *exec, const struct outer_step *step);
void outer_early_let_go(struct outer_early *e); /* accepts NULL */
/* Stops all; freeing the pool waits for them. */
void outer_early_stop_all(struct outer_exec *exec);

/* ---- the executor's threads ---- */

/* Waits until r->early, if there is one, has found what both start from: each may mend that.
 * Returns whether its result may be taken. */
bool outer_early_await_open(const struct outer_run *r);
/* Whether it hashes all of that while it reads it; not if that was done a moment before it began.
 * To be asked when it is open. */
bool outer_early_hashes(const struct outer_run *r);
/* The result of r->early, for whose end it waits, since its files have the same names as those of
 * r, if it is that of `step` (NULL: it is not); else negative, and what it has made is of no use.
 */
int outer_early_take(const struct outer_run *r, const struct fold_step *step,
                     struct fold_result *ret, struct err *err);

#endif
