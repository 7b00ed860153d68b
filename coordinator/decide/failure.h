/* What becomes of a task that a worker could not do.  A failure belongs to the task and the
 * worker: that worker waits before it is offered the task again, longer each time and without an
 * end; all others may have it at once.  A program that came with the job may fail once for free:
 * its worker has the task again at once.  One worker's word ends no task.  That nobody can do it
 * counts when
 *   - another worker says so too that was known when the first one said it: a machine that comes
 *     back under another name confirms nothing, or
 *   - the coordinator knows no other worker, and the only one says so again FAILURE_ALONE_MS later.
 * When FAILURES_MAX workers have failed a task, all of them wait.  Pure. */
#ifndef COORDINATOR_FAILURE_H
#define COORDINATOR_FAILURE_H

#include "common/base/base.h"

#define FAILURES_MAX 4          /* workers remembered: the oldest makes room */
#define FAILURE_ALONE_MS 30000u /* between two opinions of the only worker */

/* What one worker made of the task. */
struct failure {
    uint64_t worker, until_ms; /* it is not offered the task before */
    uint32_t count;
    uint64_t lasting_ms; /* since when it says that nobody can do the task; 0: it does not */
    uint64_t newest;     /* the last worker that was known then */
};

/* Zeroed: none. */
struct failure_list {
    struct failure at[FAILURES_MAX];
    unsigned n; /* ever noted */
};

struct failure_in {
    uint64_t now_ms, worker;
    bool lasting;    /* it says that nobody can do the task */
    bool program;    /* a program that came with the job failed */
    bool others;     /* other workers are here that may have the task now */
    bool only;       /* no other worker is known, here or gone */
    uint64_t newest; /* the last worker that has become known: ids grow */
};

struct failure_decision {
    bool confirmed;     /* nobody can do it */
    uint64_t all_ms;    /* nobody is offered the task before; 0: others may have it now */
    uint64_t worker_ms; /* nor its worker before */
};

/* Notes a failure. */
void failure_note(struct failure_list *l, const struct failure_in *in,
                  struct failure_decision *ret);

/* When the worker may be offered the task again; 0: it has not failed it. */
uint64_t failure_until(const struct failure_list *l, uint64_t worker);

/* Does somebody say that nobody can do it? */
bool failure_doubted(const struct failure_list *l);

#endif
