/* The outer executor: runs outer steps on its own threads.
 *
 *   loop thread                        executor thread
 *   outer_submit(step) ───────────────► check every contribution (stream)
 *                                       drop the refused, fold the rest (fold.h)
 *                                       fsync, move full, delta, EMA to the blob store
 *   done(arg, step) ◄────────────────── state files of v+1 are in state_dir
 *   save version v+1, then
 *   outer_state_prune(v+1)
 *
 * All or nothing: the files of version v are never touched, so a step that
 * failed, was cancelled or died with the process is simply submitted again and
 * gives the same bits.  Nothing of v+1 counts before the caller has recorded it.
 *
 * State of a module, in state_dir, versioned and written by rename.  state_dir lies
 * on the file system of the blob store (both under --data-dir); one step per
 * state_dir at a time.
 *   target.V.safetensors     theta_target   (absent at V = 0: it is the full file)
 *   momentum.V.safetensors                  (absent at V = 0: zeros)
 *   buffer.V.safetensors     of a delayed momentum (absent at V = 0: zeros)
 * A version the caller did not record leaves files there that the redo replaces.
 *
 * All files of a step are hashed before it reads them (outer_verify.h).  A damaged contribution is
 * removed and refused, and the step fails, so that its phase is repeated; a version that is damaged
 * or gone is made again from the one before it; any other such file ends the step with -ERR_HASH.
 *
 * A step may come with the files of a worker that has already made it (claimed).  Some of their
 * cells are checked (outer_claim.h), and each contribution is judged by the norm that the worker
 * computed.  If everything is in order, the worker's files become the version.  If anything is not
 * (a contribution's norm is too large, say), the step is made here like any other.  If it then uses
 * all contributions unchanged and the worker's files differ from ours, the claim was false
 * (false_claim).
 *
 * Memory is fixed per running step (under 10 MiB), whatever the module's size. */
#ifndef COORDINATOR_OUTER_EXEC_H
#define COORDINATOR_OUTER_EXEC_H

#include "common/base/base.h"
#include "common/net/blobstore.h"
#include "common/outer/coding.h"
#include "common/outer/fold_judge.h"

struct loop;
struct outer_exec;

#define OUTER_REASON_MAX 256
#define OUTER_QUEUE_MAX 256
#define OUTER_CONTRIBUTIONS_MAX 256

/* The files of a version. */
enum outer_file {
    OUTER_FULL,
    OUTER_DELTA, /* from the version before */
    OUTER_EMA,
    OUTER_TARGET, /* from here on the optimiser's state: these two may be blobs */
    OUTER_MOMENTUM,
    OUTER_BUFFER, /* of a delayed momentum; never a blob */
    OUTER_FILES
};

/* How many of a version's files are in the blob store. */
static inline int outer_blobs(bool stored)
{
    return stored ? OUTER_BUFFER : OUTER_TARGET;
}

struct outer_contribution {
    uint64_t tag;    /* the caller's, for example a task id */
    uint64_t sender; /* worker id */
    uint64_t holder; /* of its tickets */
    struct blob_ref blob;
    enum codec codec;
    /* The version it starts from, and the full file of that version if it is older than the step's
     * base (size 0: not kept; only codec f32 needs it). */
    uint64_t from;
    struct blob_ref from_full;
    uint64_t samples; /* it was trained on; for the record */
    double weight;    /* > 0; only the ratio to the others matters; fold_judge.h and fold_share.h
                         may reduce it */
    double most;      /* the largest plausible norm / sqrt(params); 0: unknown */
    /* filled by the executor */
    bool refused;
    bool damaged;  /* refused because our copy is damaged: its sender is not to blame */
    double norm;   /* 0 when it could not be read */
    double shrink; /* the factor applied to it: 1 except for large ones */
    double share;  /* its part of the fold, 0 when refused */
    char reason[OUTER_REASON_MAX]; /* why it was refused */
};

/* The files that a worker says a step yields; all are in the blob store. */
struct outer_claim {
    struct blob_ref made[OUTER_FILES]; /* without the buffer */
    struct blob_ref squares; /* doubles: squared norms of all cells of each contribution; with
                                keep_norm also of their mean */
    double delta_norm, step_norm, residual_norm; /* for the record */
};

/* One step.  The caller fills the first part and allocates `contributions`; both
 * belong to the executor between outer_submit and done. */
struct outer_step {
    uint64_t job_id, module_id;
    uint64_t base;                    /* v */
    char *state_dir;                  /* the module's; made if missing */
    struct blob_ref old[OUTER_FILES]; /* version v's; size 0: there is none (v = 0), it is not kept
                                         (delta), or no hash is on record (state) */
    struct blob_ref before;           /* v - 1; size 0: not kept */
    bool stored;                      /* the state is in the blob store, not in state_dir */
    bool fresh;                       /* v has no state, like version 0 */
    bool to_store;                    /* put the state of v + 1 there; excludes a delay */
    bool claimed;                     /* a worker has made it; implies stored and to_store */
    struct outer_claim claim;
    enum codec down;                /* the job's wire.down */
    double lr, momentum, ema_decay; /* keys of outer; the young-average rule is applied inside */
    double scale;                   /* times the weighted mean, > 0; with keep_norm the most */
    bool keep_norm;                 /* fold.h */
    double share_cap;               /* on the weight of one sender's contributions: fold_share.h */
    unsigned delay;                 /* steps from one momentum step to the next; 0, 1: each step */
    unsigned min_accepted;          /* fewer good contributions fail the step; at least 1 */
    struct outer_contribution *contributions; /* in the order of summation: sort them */
    size_t n_contributions;
    struct fold_past past[FOLD_HISTORY_MAX]; /* the module's last contributions */
    size_t n_past;
    struct outer_contribution word; /* fold_judge.h: this version's, with its blob or its norm */
    bool lenient;                   /* fold_judge.h */
    void *arg;                      /* the caller's */

    /* results */
    int rc; /* 0 or negative; verdicts are valid unless rc is a fault of ours (outer_done_fn) */
    char reason[1024];                 /* why it failed */
    struct blob_ref made[OUTER_FILES]; /* those that are not in the blob store are in state_dir */
    double delta_norm, step_norm, residual_norm;
    uint64_t params;
    unsigned accepted;
    uint64_t elapsed_ms;
    double used_ema_decay, used_scale; /* for the provenance record */
    bool early;                        /* it was begun before (outer_early.h), and is that */
    int doubt; /* claimed: why it was made here all the same; -ERR_LIMIT: a norm is too large */
    char why[OUTER_REASON_MAX]; /* the same in words */
    bool false_claim;           /* the worker's files are not what the step yields */
};

/* Called on the loop thread, exactly once per submitted step, which then belongs to the caller
 * again.  rc: 0; -ERR_LIMIT when fewer than min_accepted contributions are good, or one is damaged;
 * -ERR_CANCELLED at shutdown; else a fault of ours (disk full, I/O, memory; -ERR_HASH: a file is
 * damaged, gone or not finite): try again later. */
typedef void (*outer_done_fn)(struct outer_step *step);

/* `threads` steps run at a time. [loop] */
int outer_exec_new(struct loop *loop, struct blobstore *store, unsigned threads,
                   struct outer_exec **ret, struct err *err);

/* Stops running steps at their next chunk; every step still open is answered
 * with -ERR_CANCELLED before this returns. [loop] */
void outer_exec_free(struct outer_exec *exec);

/* -EAGAIN: OUTER_QUEUE_MAX steps wait already; -EBUSY: a step of this state_dir is open; -EINVAL:
 * an impossible step (err names the field).  On 0, done is called later. [loop] */
int outer_submit(struct outer_exec *exec, struct outer_step *step, outer_done_fn done,
                 struct err *err);

/* The step in fold.h's form, without files and contributions. */
struct fold_step outer_fold_step(const struct outer_step *s);

/* Steps submitted and not yet done, those running included. [loop] */
unsigned outer_pending(const struct outer_exec *exec);

/* outer_state_dir(): where a module's state is, below the data directory; module_id 0: the folder
 * of the whole job.  outer_state_file(): a file in it, "target", "momentum" or "buffer".  The
 * caller frees both with mem_free. */
static inline char *outer_state_dir(uint64_t job_id, uint64_t module_id)
{
    return module_id ? str_printf("outer/%llu/%llu", (unsigned long long)job_id,
                                  (unsigned long long)module_id)
                     : str_printf("outer/%llu", (unsigned long long)job_id);
}

static inline char *outer_state_file(const char *state_dir, const char *what, uint64_t version)
{
    return str_printf("%s/%s.%llu.safetensors", state_dir, what, (unsigned long long)version);
}

/* The file of an older version over which the next one is written: its place in memory and on the
 * disk is there already.  The caller frees it with mem_free. */
static inline char *outer_state_spare(const char *state_dir, const char *what)
{
    return str_printf("%s/%s.spare", state_dir, what);
}

/* Removes state files of versions below `keep` (after v+1 has been recorded), and of those above
 * `newest`, of which no step may be running, but for one of each kind, which becomes the spare.
 * Any thread. */
int outer_state_prune(const char *state_dir, uint64_t keep, uint64_t newest, struct err *err);

/* Frees strings and contributions of a step, not the step itself. */
static inline void outer_step_release(struct outer_step *step)
{
    mem_free(step->state_dir);
    mem_free(step->contributions);
    step->state_dir = NULL;
    step->contributions = NULL;
    step->n_contributions = 0;
}

#endif
