/* The engine: the devices, the replicas whose optimiser state is here, and whatever else the kinds
 * of tasks share.  The agent drives it; the row of a task's kind (worker/order/kind.h) does the
 * work.
 *
 *   engine_plan      which blobs does the task need?
 *   engine_prepare   meanwhile what can be made without them
 *   engine_run       does it, fills w->result
 *   engine_after     what may wait until the result is on its way: the local checkpoint
 *
 * Everything but engine_device_text runs on the compute thread, one task at a time. */
#ifndef WORKER_ENGINE_H
#define WORKER_ENGINE_H

#include <stdatomic.h>

#include "common/base/base.h"
#include "common/base/log.h"

#define ENGINE_ENCODERS 2 /* jobs that take turns keep their frozen networks */

struct cache;
struct image_cache;
struct device;
struct encoders;
struct island;
struct modules;
struct replicas;
struct trainers;
struct work;

struct engine_options {
    const char *device;      /* as island_open takes it: "auto", "cpu", "cuda:N", "cuda:0,cuda:1" */
    int threads;             /* all devices together */
    bool again;              /* after a restart: devices may be missing */
    unsigned decode_threads; /* for the image pipeline */
    uint64_t memory_bytes;   /* most that replicas kept between phases take */
    size_t image_cache_bytes;
    double throttle;         /* stretches each training step by this factor; 0 and 1: not */
    bool allow_trainers;     /* programs of users may be run (docs/trainers.md) */
    uint64_t trainer_memory; /* most that one takes, bytes; 0: no limit */
    const char *models;      /* a folder with weights of frozen networks, or NULL; borrowed */
    const char *state_dir;   /* residuals, checkpoints; copied */
    struct cache *cache;     /* kept until close */
    struct modules *modules; /* kept until close */
    uint64_t started_ns;     /* when the process started, for "first step after" */
};

/* The last local checkpoint within a phase; zero: none was written. */
struct engine_saved {
    uint64_t at_ns, cost_ns; /* when it was written, and how long that took */
};

struct engine {
    struct engine_options opt;
    char *state_dir;
    struct island *island; /* what trains */
    struct device *dev;    /* its first: what does everything else */
    struct image_cache *images;
    struct replicas *replicas;
    struct trainers *trainers; /* NULL: none was asked for (worker/engine/trainers.h) */
    struct encoders *encoders[ENGINE_ENCODERS]; /* newest first (worker/engine/encoders.h) */
    double peak[2];                   /* by enum dtype, worker/train/peak.h; 0: not asked for yet */
    bool stepped;                     /* the first training step of this process is done */
    struct log_change no_mid, no_end; /* checkpoints in a phase, and behind it */
    struct engine_saved mid;          /* in a phase */
    _Atomic uint64_t snapshot_ns;     /* engine_snapshots; any thread */
    uint64_t snapshot_job;

    uint64_t folds; /* the job of which an outer step was made here last; 0: of none */

    /* What a kind keeps from one task to its next, such as a loaded model: engine_keep. */
    void *kept;
    void (*free_kept)(void *kept); /* tells whose it is */
};

int engine_open(const struct engine_options *opt, struct engine **ret, struct err *err);
void engine_close(struct engine *e); /* accepts NULL */

/* What it took to make and send the last snapshot of the job, which is written there; 0: of this
 * job none was.  Compute thread. */
_Atomic uint64_t *engine_snapshots(struct engine *e, uint64_t job_id);

/* "cpu: CPU, 2 threads, ...", "cuda:0,cuda:1: 2 x NVIDIA H200, ..." */
void engine_device_text(const struct engine *e, char *out, size_t size);

int engine_plan(struct engine *e, struct work *w, struct err *err);
void engine_prepare(struct engine *e, struct work *w);
int engine_run(struct engine *e, struct work *w, struct err *err);
void engine_after(struct engine *e, struct work *w);

/* Frees what is kept and takes this instead; NULL: nothing, since room is wanted. */
void engine_keep(struct engine *e, void *kept, void (*free_kept)(void *kept));
/* Makes room for `bytes` more on the first device: what is kept there between tasks goes until they
 * fit, a running trainer of another job last. */
void engine_room(struct engine *e, uint64_t bytes);
/* Frees all that no task uses, since another program wants the room. */
void engine_rest(struct engine *e);

#endif
