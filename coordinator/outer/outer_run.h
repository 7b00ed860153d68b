/* A step on its way through the executor: its files, and the fold of them.  Shared by outer_exec.c,
 * which makes steps, and outer_early.c, which begins them before all contributions are here. */
#ifndef COORDINATOR_OUTER_RUN_H
#define COORDINATOR_OUTER_RUN_H

#include <semaphore.h>

#include "common/base/list.h"
#include "common/outer/fold.h"
#include "coordinator/outer/outer_exec.h"
#include "coordinator/outer/seen.h"

struct outer_early;

struct outer_exec {
    struct loop *loop;
    struct blobstore *store; /* any thread */
    struct pool *pool;
    struct pool *early;  /* runs early steps */
    sem_t computing;     /* held by those of them that compute; any thread */
    struct seen *seen;   /* any thread */
    struct list running; /* struct outer_run; loop thread */
    struct list earlies; /* struct outer_early; loop thread */
};

/* A step and what its thread needs. */
struct outer_run {
    struct list link;
    struct outer_exec *exec;
    struct outer_step *step;
    outer_done_fn done;
    struct outer_early *early; /* the same step, begun before; NULL: it was not */
    /* the executor thread's */
    char *in[OUTER_FILES];    /* version v's; NULL: none, or not needed (delta) */
    char *out[OUTER_FILES];   /* version v + 1's */
    char *spare[OUTER_FILES]; /* what outer_state_prune() has left of the state, if any */
    char *blobs[OUTER_CONTRIBUTIONS_MAX]; /* paths; NULL: not in the store */
    char *froms[OUTER_CONTRIBUTIONS_MAX]; /* paths of older versions from which they start; NULL */
    uint64_t params;                      /* parameters of the module */
};

/* Finds and holds the step's files, and names those that it makes.  outer_run_close() lets go of
 * them; call it before the step is answered, which then belongs to the caller. */
int outer_run_open(struct outer_run *r, struct err *err);
void outer_run_close(struct outer_run *r);

/* Removes the files of v + 1 from state_dir. */
void outer_run_discard(const struct outer_step *s);

/* The local file of a blob, held until outer_let_go(); NULL: nobody has it, or its bytes differ.
 * Negative: the store cannot say now, which is not the blob's fault. */
int outer_run_blob(const struct outer_exec *e, const struct blob_ref *blob, char **ret_path,
                   struct err *err);

/* Our version and state must be intact and readable; if not, it is our fault alone. */
int outer_run_check_ours(const struct outer_run *r, struct err *err);
/* Whether they are intact; and whether that was seen a moment ago.  These mend nothing. */
bool outer_run_is_intact(const struct outer_run *r);
bool outer_run_is_seen(const struct outer_run *r);

/* The origin of contribution i; codecs of differences take the layout of any version. */
struct fold_origin outer_run_origin(const struct outer_run *r, size_t i);

/* The step for the fold: of the contributions that are not refused, in `inputs`, which it keeps. */
struct fold_step outer_run_fold(const struct outer_run *r,
                                struct fold_input inputs[OUTER_CONTRIBUTIONS_MAX]);
/* Lets the fold check our version and state while it reads them; keeps r's step. */
void outer_run_hash_ours(const struct outer_run *r, struct fold_step *step);

/* Saves the state of v + 1 also in a store far away. */
int outer_run_save_state(const struct outer_run *r, const struct blob_ref made[OUTER_FILES],
                         struct err *err);

#endif
