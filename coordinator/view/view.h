/* The coordinator's interface to the HTTP room: all that it may read and command.
 *
 * Reading: each function fills a plain struct or calls `fn` once per item, in
 * order of id, with a struct that is valid during that call.  Strings inside
 * are borrowed from the coordinator: copy what must outlive the call.  Nothing
 * here returns a NULL string; "" stands for none.  Durations are ms of the
 * coordinator's monotonic clock, `*_unix_ms` is wall time for display only.
 * A loss that is not known is NAN, a duration that is not known is -1.
 *
 * Commands validate, change the state in memory and return 0, or a negative
 * code with one sentence in err (-EINVAL, -ERR_CONFIG, -ERR_FORMAT: the
 * caller's fault, 400; -ERR_NOTFOUND: 404; -EEXIST, -EBUSY, -ERR_STALE: 409;
 * -ERR_LIMIT: 429 or 413; -ENOSPC: 507; -EIO, -EAGAIN: 503).  Before reporting
 * success, wait until the change is durable:
 *
 *     rc = view_job_submit(co, &submit, &id, &err);
 *     if (rc == 0)
 *         view_when_durable(co, answer, request);   // answer(request, rc)
 *
 * Everything here is called on the loop thread.  Commands on tokens are in work/tokens.h. */
#ifndef COORDINATOR_VIEW_H
#define COORDINATOR_VIEW_H

#include "common/base/base.h"
#include "coordinator/job/draw.h"
#include "coordinator/job/submit.h"
#include "coordinator/state/event.h"
#include "coordinator/state/state.h"
#include "coordinator/work/cost.h"
#include "coordinator/work/tokens.h"

struct coordinator;

#define VIEW_SHA256_BYTES 32
#define VIEW_LABELS_MAX 1024
#define VIEW_TOKENS_MAX 4096
#define VIEW_TEMPERATURE_MAX 10

/* ---- the whole ----------------------------------------------------------- */

/* The daemon as a whole. */
struct view_status {
    const char *version;
    const char *cluster; /* 32 hex digits */
    uint64_t uptime_ms;
    unsigned workers, workers_alive, workers_busy;
    unsigned jobs;
    unsigned tasks_pending, tasks_leased;
    struct traffic bytes;      /* reported by all workers together */
    struct traffic bytes_here; /* counted at this daemon's own sockets */
    double ratio;              /* our parameter bytes / those of fp32 data-parallel; NAN */
    uint64_t rss_bytes;
    uint64_t disk_room_bytes; /* of the data directory; a cache of a store makes room */
    bool store_ok;            /* false: nothing is acknowledged until the store is writable */
    const char *store_error;  /* why it is not */
    uint64_t store_commits, store_queue, store_queue_max;
    uint64_t store_writing_ms;        /* age of the commit under way; 0: none is */
    bool ships;                       /* a commit counts when an object store has it, too */
    char ship_error[512];             /* the last error of that store; "": none */
    unsigned blobs_damaged;           /* found by the scrubber when it last read each blob */
    unsigned outer_busy, outer_queue; /* outer steps running and waiting */
    double images_per_s;              /* of all working workers */
    double idle_per_hour;             /* dollars that workers without a task cost */
    unsigned parked;                  /* long polls of idle workers */
    bool far;                         /* blobs are in an object store: */
    struct blob_health blobs;
    uint64_t requests;      /* to it since our start: view_store_requests() */
    double request_dollars; /* what requests have cost, also before our start */
};

/* Requests to the store since our start: ours for blobs and for the state, and those of workers,
 * which we know by the URLs that they were given.  0: there is none. */
uint64_t view_store_requests(const struct coordinator *co);

/* Fills ret. */
void view_status(struct coordinator *co, struct view_status *ret);

/* Something that waits, why, and until when. */
struct view_waiting {
    uint64_t job_id, task_id, worker_id; /* 0: it concerns none */
    const char *what;                    /* "worker 3 (isle-c)", "round 4 of demo" */
    const char *why;
    int64_t until_ms; /* from now; -1: no limit known */
    bool late;        /* it waits unusually long, or will not end by itself */
};

/* The trace of a job's step on several devices of a worker, as the worker sent it
 * (docs/pipeline.md); borrowed until the next event.  -ERR_NOTFOUND: there is no such job, or no
 * trace was sent since the coordinator started. */
struct view_trace {
    const struct job_trace *trace;
    const char *worker_name; /* "": the worker has been forgotten */
};
int view_trace(struct coordinator *co, uint64_t job_id, struct view_trace *ret, struct err *err);

typedef void (*view_waiting_fn)(void *arg, const struct view_waiting *w);
#define VIEW_WAITING_MAX 100

/* All that waits; job_id 0: in all jobs.  In this order: stages of jobs; late modules; late
 * workers; tasks that nobody has taken; the other modules; the other workers.  Tasks that wait for
 * the same reason appear as one, the first, whose `what` says how many more there are.  Beyond
 * VIEW_WAITING_MAX items, the last one says how many more there are. */
void view_each_waiting(struct coordinator *co, uint64_t job_id, view_waiting_fn fn, void *arg);

/* ---- jobs ---------------------------------------------------------------- */

/* A job, with totals over its paths. */
struct view_job {
    const struct job *job; /* its record */
    uint64_t id;
    const char *name;
    /* pending ingesting initialising features scoring clustering splitting running finishing
     * done failed cancelled */
    const char *state;
    const char *reason;
    char stalled[REASON_MAX];   /* why it makes no progress: query_stalled(); "": it does */
    bool paused;                /* by a person; `stalled` says it, too */
    uint64_t elapsed_ms;        /* since it began running, until its end */
    uint32_t round, rounds;     /* completed, planned */
    uint64_t step, total_steps; /* inner steps of the slowest path; 0: unknown */
    uint64_t skipped;           /* inner steps without an update, those of open phases too */
    double loss, eval_loss;     /* newest; NAN */
    double images_per_s;
    int64_t eta_ms;                      /* -1 */
    uint32_t paths, replicas;            /* replicas per path */
    uint64_t params;                     /* one path's; 0 before version 0 exists */
    uint64_t bytes_up, bytes_down;       /* parameters over the wire, all workers */
    uint64_t data_bytes_down;            /* data shards */
    double per_param_up, per_param_down; /* bytes per parameter, worker and round; NAN */
    double ratio;                        /* to fp32 data-parallel of the same steps; NAN */
    uint32_t bad_samples;
    uint32_t shards;
    uint64_t samples_total, samples_holdout; /* of the dataset */
    uint32_t stage_done, stage_total;        /* tasks of its present state; total 0: no tasks */
    bool text, mixture;                      /* mixture: sampled as a whole, with a router */
    double eval_bits_per_byte;               /* texts; NAN */
    /* A tar of files that exports put beside the weights; NULL: none. */
    const struct blob_ref *companions;
    uint32_t reshards;
    double waited_share; /* of the time of all phases, in which they waited for the network; NAN */
    double dollars, egress; /* of workers' time, up to the ends of leases; of downloads */
};

typedef void (*view_job_fn)(void *arg, const struct view_job *j);
/* All jobs on record. */
void view_each_job(struct coordinator *co, view_job_fn fn, void *arg);
/* Its record; NULL: there is none. */
const struct job *view_job_record(struct coordinator *co, uint64_t job_id);
/* One job; -ERR_NOTFOUND. */
int view_job(struct coordinator *co, uint64_t job_id, struct view_job *ret, struct err *err);

/* What a job costs in dollars, including the leases under way (docs/sharing.md). */
struct view_cost {
    struct cost time; /* of workers */
    double egress, total;
    /* Per million samples of accepted phases, and of texts, whose samples differ in length, per
     * million tokens; NAN before there are any. */
    double per_million, per_million_tokens;
    double until_end; /* further cost at the pace of the last rounds; NAN: unknown, nobody here */
    const struct job_swarm *quota;
};

/* -ERR_NOTFOUND. */
int view_job_cost(struct coordinator *co, uint64_t job_id, struct view_cost *ret, struct err *err);

struct job;
/* Held-out loss of a text job in bits per byte; NAN: no texts, or not evaluated. */
double view_job_bits_per_byte(const struct job *j);

/* A path through the grid of modules. */
struct view_path {
    uint32_t path;
    const char *network;               /* main router */
    const char *state;                 /* waiting (for modules, or the data) running done stopped */
    uint32_t partition;                /* UINT32_MAX: all of the data */
    uint64_t samples, tokens, holdout; /* to train on; holdout: samples to evaluate on */
    uint32_t batch, replicas;
    uint32_t round, rounds;
    uint32_t n_modules;
    const uint64_t *modules, *versions; /* by level: ids, and the newest version of each */
    double loss, eval_loss;             /* newest; NAN.  Router: cross-entropy */
    uint32_t eval_round;                /* the version evaluated */
    double bits_per_byte;               /* texts; NAN */
    double best_loss;                   /* early stopping; NAN: none kept */
    uint32_t best_round;
    const struct best_module *best; /* by level, what an export takes; NULL: none kept */
    uint64_t bytes_up, bytes_down;  /* of parameters, in the current round */
};

typedef void (*view_path_fn)(void *arg, const struct view_path *p);
/* The paths of a job, in order. */
void view_each_path(struct coordinator *co, uint64_t job_id, view_path_fn fn, void *arg);

/* A partition of the data, as far as it is known. */
struct view_partition {
    uint32_t partition, shards;
    uint64_t samples, tokens, holdout;
    double share; /* its part of all training samples; NAN before it is known */
};

typedef void (*view_partition_fn)(void *arg, const struct view_partition *p);
/* The partitions of a job; none if its data are not partitioned. */
void view_each_partition(struct coordinator *co, uint64_t job_id, view_partition_fn fn, void *arg);

/* One replica of one path. */
struct view_replica {
    uint32_t path, replica;
    uint32_t round;              /* of its phase */
    const char *state;           /* idle pending leased reported */
    uint64_t task_id, worker_id; /* 0: none */
    const char *worker_name;
    uint64_t step;                    /* inner steps since the job began */
    uint32_t steps_done, steps_total; /* the phase's */
    double loss, images_per_s;
    /* A worker that is gone, and had the phase before: worker_id goes on with it, or if that is the
     * same, its last snapshot counts.  0: there is none. */
    uint64_t gone_id;
    const char *gone_name, *gone_state; /* lost left */
};

typedef void (*view_replica_fn)(void *arg, const struct view_replica *r);
/* By path and replica. */
void view_each_replica(struct coordinator *co, uint64_t job_id, view_replica_fn fn, void *arg);

/* The samples of an epoch, by state. */
struct view_epoch {
    uint32_t partition, epoch;             /* partition UINT32_MAX: all the data */
    uint64_t total, done, leased, pending; /* samples; total = done + leased + pending */
};

typedef void (*view_epoch_fn)(void *arg, const struct view_epoch *e);
/* For each partition the open epochs, and the last closed ones. */
void view_each_epoch(struct coordinator *co, uint64_t job_id, view_epoch_fn fn, void *arg);

/* The first `limit` records with n > after.  Old loss points are thinned out
 * (every second one goes) when there are more than METRIC_POINTS_MAX. */
int view_metrics(struct coordinator *co, uint64_t job_id, uint64_t after, size_t limit,
                 metric_fn fn, void *arg, struct err *err);

/* ---- modules and versions ------------------------------------------------ */

/* A module, with figures of its outer steps so far. */
struct view_module {
    uint64_t id, job_id;
    uint32_t level, index;
    uint64_t version, params;
    const uint8_t *sha256;   /* the newest full file; NULL before version 0 */
    const char *outer_state; /* idle waiting running retrying */
    const char *outer_reason;
    uint64_t folded;  /* contributions, in all versions */
    double staleness; /* mean number of versions before the newest that they began; NAN */
    uint64_t staleness_max;
    const char *network;        /* main router */
    uint32_t paths;             /* paths that cross it */
    uint64_t bytes_from_others; /* of contributions by all but the first of these paths */
    uint32_t fragment;          /* its number in the level */
};

typedef void (*view_module_fn)(void *arg, const struct view_module *m);
/* job_id 0: of all jobs. */
void view_each_module(struct coordinator *co, uint64_t job_id, view_module_fn fn, void *arg);

typedef void (*view_version_fn)(void *arg, const struct version_rec *v);
/* The versions on record, oldest first, without the files that are not kept. */
void view_each_version(struct coordinator *co, uint64_t module_id, view_version_fn fn, void *arg);

/* ---- tasks --------------------------------------------------------------- */

/* A task, open or ended. */
struct view_task {
    const struct task *task;
    const char *worker_name;
    const char *text; /* SAMPLE of texts: the text so far */
    double loss;
    uint64_t age_ms, leased_ms; /* since made; since leased */
};

typedef void (*view_task_fn)(void *arg, const struct view_task *t);

/* A page of tasks, newest first: at most max with ids below `before` (0: from the newest); true:
 * there are more.  job_id 0: all jobs; state NULL: all states.  The state has the open tasks and
 * the TASKS_ENDED_MAX newest ended ones of each job. */
bool view_tasks(struct coordinator *co, uint64_t job_id, const char *state, uint64_t before,
                size_t max, view_task_fn fn, void *arg);
/* One task; -ERR_NOTFOUND. */
int view_task(struct coordinator *co, uint64_t task_id, struct view_task *ret, struct err *err);

/* ---- workers ------------------------------------------------------------- */

/* A worker, here or gone. */
struct view_worker {
    const struct worker *worker;
    const char *state;         /* idle busy late lost left draining quarantined */
    const char *reason;        /* why it is in this state */
    const struct task *task;   /* NULL: none */
    double images_per_s, loss; /* the speed of its training phase; NAN */
    uint64_t heartbeat_age_ms, joined_age_ms;
    int64_t quarantine_ms; /* remaining; 0: none */
};

typedef void (*view_worker_fn)(void *arg, const struct view_worker *w);
/* All workers on record, including gone ones. */
void view_each_worker(struct coordinator *co, view_worker_fn fn, void *arg);
/* A page of workers, in order of id: at most max with ids above `after`, and of those that are gone
 * only the `gone` that left last (fewer, if several left in one ms); true: there are more. */
bool view_workers(struct coordinator *co, uint64_t after, size_t gone, size_t max,
                  view_worker_fn fn, void *arg);
/* At most max workers, each kind in order of id: late, quarantined and draining ones, the others
 * that are here, and if there is room gone ones, those first that left last. */
void view_some_workers(struct coordinator *co, size_t max, view_worker_fn fn, void *arg);
/* One worker; -ERR_NOTFOUND. */
int view_worker(struct coordinator *co, uint64_t worker_id, struct view_worker *ret,
                struct err *err);

/* ---- tokens -------------------------------------------------------------- */

struct view_token {
    const struct token_rec *token;
    const char *state; /* live ended revoked */
    int64_t left_ms;   /* until its end; -1: it has none */
    uint32_t workers_here;
    double cost; /* dollars of its jobs' leases and waiting so far, which the budget bounds */
};

typedef void (*view_token_fn)(void *arg, const struct view_token *t);
/* In order of id. */
void view_each_token(struct coordinator *co, view_token_fn fn, void *arg);
/* Shuts a worker out for good. */
int view_worker_revoke(struct coordinator *co, uint64_t worker_id, struct err *err);

/* ---- commands ------------------------------------------------------------ */

/* Records a job, or says why not; see submit.h. */
int view_job_submit(struct coordinator *co, const struct submit *s, uint64_t *ret_id,
                    struct err *err);
/* Ends a job; -ERR_STALE: it has ended. */
int view_job_cancel(struct coordinator *co, uint64_t job_id, struct err *err);
/* Changes a job's priority, share and budget from the next task on; NAN: unchanged.  *ret: the
 * result.  -ERR_STALE: it has ended. */
struct view_adjust {
    double priority, share, budget;
};
int view_job_adjust(struct coordinator *co, uint64_t job_id, const struct view_adjust *a,
                    struct job_swarm *ret, struct err *err);
/* Pauses or resumes a job.  A paused job's tasks are not assigned; those under way run to their end
 * and count.  -ERR_STALE: it has ended. */
int view_job_pause(struct coordinator *co, uint64_t job_id, bool paused, struct err *err);
/* Rolls the job, or a path of it, back to version `to` (job/rollback.h, which has the errors); path
 * UINT32_MAX: all paths. */
int view_job_rollback(struct coordinator *co, uint64_t job_id, uint32_t path, uint64_t to,
                      struct err *err);
/* Removes an ended job with all that is on record of it (job/flow.h, which has the errors), for
 * this holder; with dry_run it only tells what that would remove. */
struct view_removal {
    char name[NAME_MAX_BYTES];
    const char *state; /* in which it has ended */
    char reason[1024]; /* why; also that this release cannot read it, though another may */
    uint64_t bytes; /* of its files, without those that were uploaded with it: as much goes unless
                       other jobs name some of them */
};
int view_job_remove(struct coordinator *co, uint64_t job_id, uint64_t holder, bool dry_run,
                    struct view_removal *ret, struct err *err);
/* Cancels a task made by view_sample_request(), and no other: -EINVAL for a task that a job needs,
 * -ERR_STALE for one that has ended. */
int view_task_cancel(struct coordinator *co, uint64_t task_id, struct err *err);

/* Requests samples: *ret_task is the SAMPLE task. */
int view_sample_request(struct coordinator *co, uint64_t job_id, const struct draw_request *r,
                        uint64_t *ret_task, struct err *err);

/* Lets a worker finish its task and gives it no more. */
int view_worker_drain(struct coordinator *co, uint64_t worker_id, struct err *err);

/* An upload of a file is about to come (sha256, size): keeps the blob, if it is here, from garbage
 * collection for a day.  -ENOSPC: the disk is too full. */
int view_upload_expect(struct coordinator *co, const uint8_t sha256[VIEW_SHA256_BYTES],
                       uint64_t size, struct err *err);

/* Calls fn once all changes made until now are durable; see durable_fn. */
void view_when_durable(struct coordinator *co, durable_fn fn, void *arg);
/* Whether the state of this job (0: of all) may be shown now: core_is_shown(). */
bool view_is_shown(struct coordinator *co, uint64_t job_id);
/* False: it may.  Else fn(arg, rc) is called when it may: see core_when_shown(). */
bool view_when_shown(struct coordinator *co, uint64_t job_id, durable_fn fn, void *arg);
/* The number of the commit that will contain present changes; and whether a commit is done. */
uint64_t view_next_commit(const struct coordinator *co);
bool view_has_commit(const struct coordinator *co, uint64_t commit);
/* How long the present commit has been under way, 0: none is; and whether that is unusual. */
uint64_t view_writing_ms(const struct coordinator *co);
bool view_is_slow(const struct coordinator *co);

/* ---- events -------------------------------------------------------------- */

/* At most EVENT_SUBSCRIBERS_MAX; returns a handle > 0 or -ERR_LIMIT. */
int view_subscribe(struct coordinator *co, event_fn fn, void *arg);
/* By its handle. */
void view_unsubscribe(struct coordinator *co, int handle);

#endif
