/* What happens to a task after a worker failed it.  A failure concerns one task and one worker:
 * that worker waits before it is offered the task again, longer each time but never for good; all
 * others may have it at once.  A program that came with the job may fail once without a wait.
 *
 * A single worker's report that nobody can do the task does not end it: the fault may be that of
 * its machine, or of its copy of the data.  It is confirmed when a second worker reports the same,
 * and that worker was known before the first report, since a machine that returns under a new name
 * confirms nothing.  Also they must
 *   - have different tokens; or
 *   - be on different machines, as far as these tell, and come from different addresses, or both be
 *     proven, or no other worker may be here to judge: two names of one machine are not two
 *     witnesses, nor are two containers.
 * Until then the task waits, however long.  Only where all workers are their user's own, and the
 * user waits for the end (`local`), is one machine enough: that of two workers, or of the only one
 * when it reports the fault again FAILURE_ALONE_MS later.
 *
 * When FAILURES_MAX workers have failed a task, all workers wait, with two exceptions.  Proven
 * workers wait only when as many proven ones have failed it; else anybody with a token and many
 * names could keep the task from them.  And while no proven worker is here, new ones do not wait:
 * one of them may be able to do it.  Pure. */
#ifndef COORDINATOR_FAILURE_H
#define COORDINATOR_FAILURE_H

#include "common/base/base.h"

#define FAILURES_MAX 4          /* workers remembered; the oldest makes room */
#define FAILURE_ALONE_MS 30000u /* between two reports of one worker that nobody can do it */

/* A worker's record with its tasks; lower values are served first. */
enum failure_standing { STANDING_PROVEN, STANDING_NEW, STANDING_FAILING, STANDINGS };

/* done: tasks done, ever; row: failures since the last of them; strikes: its quarantines. */
enum failure_standing failure_standing(uint32_t done, uint32_t row, uint32_t strikes);

/* One worker's failures of the task. */
struct failure {
    uint64_t worker, until_ms; /* the worker is not offered the task before until_ms */
    uint32_t count;
    uint64_t lasting_ms; /* when it first reported that nobody can do the task; 0: never */
    uint64_t newest;     /* the newest worker known at lasting_ms */
    uint64_t origin;     /* the worker's token and address */
    uint64_t machine;    /* 0: unknown */
    uint64_t token;
    bool proven; /* whether it was proven at lasting_ms */
};

/* A task's failures; zeroed: none. */
struct failure_list {
    struct failure at[FAILURES_MAX];
    unsigned n, n_proven;        /* workers ever noted; the proven ones among them */
    uint64_t wait_ms[STANDINGS]; /* workers of this standing are not offered the task before */
};

struct failure_in {
    uint64_t now_ms, worker;
    uint64_t origin;                /* equal origins: perhaps one machine under two names */
    uint64_t machine;               /* what the worker says; 0: nothing */
    uint64_t token;                 /* the worker's */
    enum failure_standing standing; /* the worker's, before this failure */
    bool lasting;                   /* the worker reports that nobody can do the task */
    bool program;                   /* a program that came with the job failed */
    bool others;                    /* other workers are here that may have the task now */
    bool proven;                    /* one of them is proven */
    bool others_tell;               /* one that has not reported is proven or of another origin */
    bool only;                      /* no other worker is here */
    bool local;                     /* all workers are the user's, who waits for the end */
    uint64_t newest;                /* the newest worker known: ids grow */
};

struct failure_decision {
    bool confirmed;     /* it is confirmed that nobody can do the task */
    uint64_t worker_ms; /* the worker is not offered the task before */
};

/* Notes a failure. */
void failure_note(struct failure_list *l, const struct failure_in *in,
                  struct failure_decision *ret);

/* Keeps a worker from the task until until_ms, though it has not failed it. */
void failure_bar(struct failure_list *l, uint64_t worker, uint64_t until_ms);

/* When the worker, of this standing, may be offered the task; 0: at once.  l may be NULL. */
uint64_t failure_until(const struct failure_list *l, uint64_t worker,
                       enum failure_standing standing);

/* Whether any worker is kept from the task at now_ms.  l may be NULL. */
bool failure_holds(const struct failure_list *l, uint64_t now_ms);

/* How often this worker has failed the task, as far as it is remembered. */
uint32_t failure_count(const struct failure_list *l, uint64_t worker);
/* Whether this worker has reported that nobody can do the task. */
bool failure_says(const struct failure_list *l, uint64_t worker);
/* Whether any worker has. */
bool failure_doubted(const struct failure_list *l);

#endif
