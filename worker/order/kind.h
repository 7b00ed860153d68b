/* A kind of task as one row: what its message must hold, which blobs it needs, what it does.
 *
 * A kind is a file worker/kinds/work_*.c that ends in its row; worker/kinds/kinds.c lists the
 * rows.  Whoever takes a task off the wire is given that list, so that nothing here knows what
 * kinds there are: work_new finds the row, checks the message by it and keeps it (work.h).
 *
 * check is pure and on the loop thread, the rest runs on the compute thread. */
#ifndef WORKER_KIND_H
#define WORKER_KIND_H

#include "common/base/base.h"
#include "proto/skerry.pb-c.h"

struct engine;
struct work;

/* What Task.modules must be.  Those that are there are checked in any case. */
enum kind_modules {
    KIND_MODULES_ANY,
    KIND_MODULES_NEEDED,     /* one for each level */
    KIND_MODULES_OR_MIXTURE, /* or a Task.mixture instead */
    KIND_MODULES_MADE,       /* the task makes them: they have neither blobs nor hashes yet */
};

struct kind {
    Skerry__V1__TaskKind id;
    const char *name; /* "train": in logs, and the field of the message that is its own part */
    size_t part;      /* offsetof that field in Skerry__V1__Task; 0: it has none */
    enum kind_modules modules;
    bool external; /* of jobs that a program of the user's trains, in place of the row before */
    bool encoders; /* runs the job's frozen networks, or a network behind them */
    bool saves;    /* a run that is stopped by WORK_SAVING sends what others can go on with */
    bool labels;   /* makes or runs a network that knows labels, unless it is one of texts */

    /* The own part, beyond what task_check.h looks at for all; NULL: nothing. */
    int (*check)(const Skerry__V1__Task *t, struct err *err);
    /* Blobs beyond modules and tokenizer, by work_need_*; NULL: none. */
    int (*plan)(struct engine *e, struct work *w, struct err *err);
    /* While blobs are on their way, none of which it may read: makes what run would make first.
     * What it cannot make run will say; NULL: nothing. */
    void (*prepare)(struct engine *e, struct work *w);
    /* With all blobs in the cache: fills w->result.  Looks at work_stopped() once per step. */
    int (*run)(struct engine *e, struct work *w, struct err *err);
    /* What may wait until the result is on its way; NULL: nothing. */
    void (*after)(struct engine *e, struct work *w);
};

/* The row of an id in a list that ends with NULL; NULL: not known. */
static inline const struct kind *kind_find(const struct kind *const *kinds, Skerry__V1__TaskKind id)
{
    while (*kinds && ((*kinds)->id != id || (*kinds)->external))
        kinds++;
    return *kinds;
}

/* The row that does the task of `kind` for jobs with a trainer of the user's: another or the same.
 */
static inline const struct kind *kind_external(const struct kind *const *kinds,
                                               const struct kind *kind)
{
    while (*kinds && ((*kinds)->id != kind->id || !(*kinds)->external))
        kinds++;
    return *kinds ? *kinds : kind;
}

#endif
