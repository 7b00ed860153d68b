/* What becomes of a task that a worker could not do.  A failure belongs to the task and the
 * worker: that worker waits before it is offered the task again, longer each time and without an
 * end; all others may have it at once.  A program that came with the job may fail once for free:
 * its worker has the task again at once.  One worker's word ends no task.  That nobody can do it
 * counts when
 *   - another worker says so too that was known when the first one said it: a machine that comes
 *     back under another name confirms nothing.  Both have proven themselves, or they come from
 *     different places (another token, or another address), or nobody else is here who could tell:
 *     two names of one machine are no two words, or
 *   - no other worker is here, or was within FAILURE_GONE_MS, and the only one says so again
 *     FAILURE_ALONE_MS later: a job does not wait for ever for workers that are gone.
 * When FAILURES_MAX workers have failed a task, all wait.  But those who have proven themselves
 * wait only when as many of them have failed it, or else anybody with a token and a thousand names
 * keeps a task from them; and where none of them is here, those who are new do not wait for those
 * who have failed: somebody among them can do it.  Pure. */
#ifndef COORDINATOR_FAILURE_H
#define COORDINATOR_FAILURE_H

#include "common/base/base.h"

#define FAILURES_MAX 4          /* workers remembered: the oldest makes room */
#define FAILURE_ALONE_MS 30000u /* between two opinions of the only worker */
#define FAILURE_GONE_MS 600000u /* after it a worker that is gone is not waited for */

/* What the tasks that it had say of a worker; the lower is served first. */
enum failure_standing { STANDING_PROVEN, STANDING_NEW, STANDING_FAILING, STANDINGS };

/* done: tasks, ever; row: failures since the last; strikes: how often it was in quarantine. */
enum failure_standing failure_standing(uint32_t done, uint32_t row, uint32_t strikes);

/* What one worker made of the task. */
struct failure {
    uint64_t worker, until_ms; /* it is not offered the task before */
    uint32_t count;
    uint64_t lasting_ms; /* since when it says that nobody can do the task; 0: it does not */
    uint64_t newest;     /* the last worker that was known then */
    uint64_t origin;     /* where it comes from */
    bool proven;         /* it was then */
};

/* Zeroed: none. */
struct failure_list {
    struct failure at[FAILURES_MAX];
    unsigned n, n_proven;        /* ever noted; of them proven */
    uint64_t wait_ms[STANDINGS]; /* nobody of this standing is offered the task before */
};

struct failure_in {
    uint64_t now_ms, worker;
    uint64_t origin;                /* equal: perhaps one machine under two names */
    enum failure_standing standing; /* its, before this failure */
    bool lasting;                   /* it says that nobody can do the task */
    bool program;                   /* a program that came with the job failed */
    bool others;                    /* other workers are here that may have the task now */
    bool proven;                    /* one of them is proven */
    bool others_tell;               /* one is proven or from elsewhere, and has not said so yet */
    bool only;                      /* no other worker is here, or was within FAILURE_GONE_MS */
    uint64_t newest;                /* the last worker that has become known: ids grow */
};

struct failure_decision {
    bool confirmed;     /* nobody can do it */
    uint64_t worker_ms; /* its worker is not offered the task before */
};

/* Notes a failure. */
void failure_note(struct failure_list *l, const struct failure_in *in,
                  struct failure_decision *ret);

/* Keeps a worker from the task until then, though it has not failed it. */
void failure_bar(struct failure_list *l, uint64_t worker, uint64_t until_ms);

/* When a worker of this standing may be offered the task; 0: nothing keeps it.  l may be NULL. */
uint64_t failure_until(const struct failure_list *l, uint64_t worker,
                       enum failure_standing standing);

/* Does it keep some worker from the task at now_ms?  l may be NULL. */
bool failure_holds(const struct failure_list *l, uint64_t now_ms);

/* Does this worker say that nobody can do it? */
bool failure_says(const struct failure_list *l, uint64_t worker);
/* Does somebody? */
bool failure_doubted(const struct failure_list *l);

#endif
