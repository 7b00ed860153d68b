/* Error-feedback residuals on disk: the part of updates that the codec has not sent yet.
 *
 *   DIR/residual-JOB-MODULE-PATH-REPLICA                 the contribution was applied
 *   DIR/residual-JOB-MODULE-PATH-REPLICA.pending-TASK    made; the coordinator has it not yet
 *   DIR/residual-JOB-MODULE-PATH-REPLICA.sent-TASK       it has, and its verdict is to come
 *
 * The verdict names the task and perhaps a module; it may come after a restart, so the file names
 * contain everything.  A residual belongs to what was sent: if the coordinator never got that, the
 * older residual is still what was not sent.
 *
 * Any thread.  What was refused must be heard at once, even while a phase runs: its contribution
 * would carry the residual of the refused one. */
#ifndef WORKER_RESIDUAL_H
#define WORKER_RESIDUAL_H

#include "common/base/base.h"
#include "worker/order/cache.h"

/* The contribution to which a residual belongs. */
struct residual_key {
    uint64_t job_id, module_id;
    uint32_t path, replica;
};

/* The two names, for a contribution that is about to be made.  The sent file of an earlier task of
 * the same key becomes the current one: no refusal was heard, so that task's contribution still
 * waits for its version, and the older residual would be sent twice.  Pending files of
 * earlier tasks, and of an earlier attempt of this one, are removed. */
int residual_prepare(const char *dir, const struct residual_key *key, uint64_t task_id,
                     char ret_current[CACHE_PATH_MAX], char ret_pending[CACHE_PATH_MAX],
                     struct err *err);

enum residual_news {
    RESIDUAL_SENT,   /* the coordinator has the contribution: its pending file is a sent one */
    RESIDUAL_UNSENT, /* it never will: the pending file goes */
    /* Its verdict: the file becomes the current one, or goes. */
    RESIDUAL_APPLIED,
    RESIDUAL_REFUSED,
};

/* What became of a task's contributions. */
struct residual_word {
    uint64_t task_id;
    uint64_t module_id; /* 0: of all of which nothing was said before */
    enum residual_news news;
    bool spares_pending; /* a verdict that cannot be on what is made now */
};

/* If an earlier attempt's contribution was sent, RESIDUAL_SENT leaves its file as it is: that one
 * counts. */
int residual_hear(const char *dir, const struct residual_word *w, struct err *err);

#endif
