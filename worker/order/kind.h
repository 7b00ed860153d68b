/* A kind of task as one row: what its message must contain, which blobs it needs, what it does.
 *
 * A kind is a file worker/kinds/work_*.c that ends with its row; worker/kinds/kinds.c lists the
 * rows.  The code that receives tasks is given that list, so this room does not know which kinds
 * exist: work_new() finds the row, checks the message by it and keeps it (work.h).
 *
 * check is pure and runs on the loop thread, the rest on the compute thread. */
#ifndef WORKER_KIND_H
#define WORKER_KIND_H

#include "common/base/base.h"
#include "proto/skerry.pb-c.h"

struct engine;
struct work;

/* What Task.modules must be.  Modules that are present are checked in any case. */
enum kind_modules {
    KIND_MODULES_ANY,
    KIND_MODULES_NEEDED,     /* one for each level */
    KIND_MODULES_OR_MIXTURE, /* the same, or a Task.mixture */
    KIND_MODULES_MADE,       /* the task makes them: they have no blobs or hashes yet */
};

struct kind {
    Skerry__V1__TaskKind id;
    const char *name; /* "train": in logs, and the message's field for this kind */
    size_t part;      /* offsetof that field in Skerry__V1__Task; 0: it has none */
    enum kind_modules modules;
    bool external; /* for jobs that a user's program trains, in place of the kind's other row */
    bool encoders; /* runs the job's frozen networks, or a network behind them */
    bool saves;    /* a run that is stopped by WORK_SAVING sends a snapshot */
    bool labels;   /* makes or runs a network that takes labels, unless it is one for text */

    /* Checks the kind's own part, beyond the common checks of task_check.h; NULL: nothing. */
    int (*check)(const Skerry__V1__Task *t, struct err *err);
    /* Adds needed blobs beyond modules and tokenizer, by work_need_*; NULL: none. */
    int (*plan)(struct engine *e, struct work *w, struct err *err);
    /* Called while blobs are fetched, none of which it may read: does the first part of run's work.
     * It reports no failure: run will meet it again.  NULL: nothing. */
    void (*prepare)(struct engine *e, struct work *w);
    /* With all blobs in the cache: fills w->result.  Checks work_stopped() once per step. */
    int (*run)(struct engine *e, struct work *w, struct err *err);
    /* Work that can wait until the result is being sent; NULL: nothing. */
    void (*after)(struct engine *e, struct work *w);
};

/* The row of an id in a list that ends with NULL; NULL: unknown. */
static inline const struct kind *kind_find(const struct kind *const *kinds, Skerry__V1__TaskKind id)
{
    while (*kinds && ((*kinds)->id != id || (*kinds)->external))
        kinds++;
    return *kinds;
}

/* The row that runs tasks of `kind` in jobs with a user's trainer: the kind's external row, or
 * kind. */
static inline const struct kind *kind_external(const struct kind *const *kinds,
                                               const struct kind *kind)
{
    while (*kinds && ((*kinds)->id != kind->id || !(*kinds)->external))
        kinds++;
    return *kinds ? *kinds : kind;
}

#endif
