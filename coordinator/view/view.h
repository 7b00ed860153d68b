/* What the HTTP side may see of the coordinator, and ask of it.
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
 * -ERR_LIMIT: 429 or 413; -ENOSPC: 507; -EIO, -EAGAIN: 503).  Before telling the
 * caller of success, wait until the change is durable:
 *
 *     rc = view_job_submit(co, &submit, &id, &err);
 *     if (rc == 0)
 *         view_when_durable(co, answer, request);   // answer(request, rc)
 *
 * Everything here is called on the loop thread. */
#ifndef COORDINATOR_VIEW_H
#define COORDINATOR_VIEW_H

#include "common/base/base.h"
#include "coordinator/job/cost.h"
#include "coordinator/job/draw.h"
#include "coordinator/job/submit.h"
#include "coordinator/job/tokens.h"
#include "coordinator/state/event.h"
#include "coordinator/state/state.h"

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
    unsigned jobs, jobs_active;
    unsigned tasks_pending, tasks_leased;
    struct traffic bytes;      /* as reported by the workers, all of them together */
    struct traffic bytes_here; /* counted at this daemon's own sockets */
    double ratio;              /* our params bytes / those of fp32 data-parallel; NAN */
    uint64_t rss_bytes;
    bool store_ok;           /* false: nothing is acknowledged until it is writable */
    const char *store_error; /* why not */
    uint64_t store_commits, store_queue, store_queue_max;
    uint64_t store_writing_ms;        /* the commit that is under way; 0: none is */
    bool ships;                       /* a commit is one when an object store has it, too: */
    char ship_error[512];             /* what that said last; "": nothing is wrong */
    unsigned blobs_damaged;           /* that the scrubber has found, in its newest look at each */
    unsigned outer_busy, outer_queue; /* outer steps running and waiting */
    double images_per_s;              /* of all that are at work */
    unsigned parked;                  /* long polls of idle workers */
    bool far;                         /* blobs are in an object store: */
    struct blob_health blobs;
    double request_dollars; /* that requests to it have cost since the start */
};

/* Fills ret. */
void view_status(struct coordinator *co, struct view_status *ret);

/* What is waited for, why, and until when. */
struct view_waiting {
    uint64_t job_id, task_id, worker_id; /* 0: not about one */
    const char *what;                    /* "worker 3 (isle-c)", "round 4 of demo" */
    const char *why;
    int64_t until_ms; /* from now; -1: no limit known */
    bool late;        /* longer than is usual, or nothing will come by itself */
};

/* A step of a job on several devices of a worker, as it sent it (docs/pipeline.md); borrowed until
 * the next event.  -ERR_NOTFOUND: no such job, or none was sent since the coordinator started. */
struct view_trace {
    const struct job_trace *trace;
    const char *worker_name; /* "": it has been forgotten */
};
int view_trace(struct coordinator *co, uint64_t job_id, struct view_trace *ret, struct err *err);

typedef void (*view_waiting_fn)(void *arg, const struct view_waiting *w);
#define VIEW_WAITING_MAX 100

/* What something waits for; job_id 0: of all jobs.  First the stages of jobs and what is late:
 * modules, then workers; then the tasks that nobody has taken, then the other modules and the other
 * workers.  Tasks that nobody has taken for one reason are one,
 * the first, whose `what` tells how many more there are; of more than VIEW_WAITING_MAX the last one
 * tells how many. */
void view_each_waiting(struct coordinator *co, uint64_t job_id, view_waiting_fn fn, void *arg);

/* ---- jobs ---------------------------------------------------------------- */

/* A job, with the figures of all its paths. */
struct view_job {
    uint64_t id;
    const char *name;
    /* pending ingesting initialising features scoring clustering splitting running finishing
     * done failed cancelled */
    const char *state;
    const char *reason;
    char stalled[256]; /* why it does not go on although workers try, or may not; "": it does */
    bool paused;       /* by a person, which `stalled` says, too */
    const char *spec;  /* YAML as submitted, with what job_keep_defaults writes in */
    const char *recipe;
    int64_t created_unix_ms, ended_unix_ms; /* ended 0: not yet */
    uint64_t age_ms, elapsed_ms; /* since submit; since it began running, until its end */
    uint32_t round, rounds;      /* completed, planned */
    uint64_t step, total_steps;  /* inner steps of the slowest path; 0: unknown */
    double loss, eval_loss;      /* newest; NAN */
    double images_per_s;
    int64_t eta_ms;                      /* -1 */
    uint32_t paths, replicas;            /* replicas per path */
    uint64_t params;                     /* one path's; 0 before version 0 exists */
    uint64_t bytes_up, bytes_down;       /* parameters over the wire, all workers */
    uint64_t data_bytes_down;            /* data shards */
    double per_param_up, per_param_down; /* bytes per parameter, worker and round; NAN */
    double ratio;                        /* to fp32 data-parallel of the same steps; NAN */
    uint32_t bad_samples, max_bad;
    uint32_t classes, shards;
    uint64_t samples_total, samples_holdout; /* the dataset's */
    uint32_t sample_grids;                   /* drawn so far */
    uint32_t stage_done, stage_total;        /* tasks of the state it is in; total 0: no tasks */
    bool text, mixture;                      /* sampled as one, by a router */
    double eval_bits_per_byte;               /* texts; NAN */
    uint64_t tokens_total;                   /* texts: to train on */
    uint32_t vocab;
    struct network_input input;
    const struct blob_ref *tokenizer; /* texts: the tokenizer.json; NULL: bytes */
    const struct blob_ref
        *companions;              /* a tar of what an export puts beside the weights, or NULL */
    uint32_t modules, partitions; /* all networks; 1 partition: the data are in one piece */
    uint32_t generation;          /* how often the data were partitioned */
    uint32_t reshards_done, reshards;
    uint64_t waited_ms;         /* phases, for the network */
    double waited_share;        /* as a share of the time of all phases; NAN */
    uint64_t peak_bytes_per_s;  /* contributions and deltas, all workers, in one second since the
                                   start of the coordinator */
    uint32_t teacher;           /* job that it learns from; 0: none */
    double dollars, egress;     /* of workers' time, up to the ends of leases; of downloads */
    const uint8_t *partitioner; /* sha256 of the router of samples, or NULL */
};

typedef void (*view_job_fn)(void *arg, const struct view_job *j);
/* All jobs on record. */
void view_each_job(struct coordinator *co, view_job_fn fn, void *arg);
/* One job; -ERR_NOTFOUND. */
int view_job(struct coordinator *co, uint64_t job_id, struct view_job *ret, struct err *err);

/* What a job costs, in dollars, with the leases that go on (docs/sharing.md). */
struct view_cost {
    struct cost time; /* of workers */
    double egress, total;
    double per_million; /* samples that count; NAN before there are any */
    double until_end;   /* more, at the pace of the last rounds; NAN: not known */
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
    uint64_t samples, tokens, holdout; /* that it trains on; that it is judged by */
    uint32_t batch, replicas;
    uint32_t round, rounds;
    uint32_t n_modules;
    const uint64_t *modules, *versions; /* by level: ids, and the newest version of each */
    double loss, eval_loss;             /* newest; NAN.  Router: cross-entropy */
    uint32_t eval_round;                /* version that was evaluated */
    double bits_per_byte;               /* texts; NAN */
    double best_loss;                   /* early stopping; NAN: none kept */
    uint32_t best_round;
    uint64_t bytes_up, bytes_down; /* parameters, in the round that runs */
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
/* The partitions of a job; none of data in one piece. */
void view_each_partition(struct coordinator *co, uint64_t job_id, view_partition_fn fn, void *arg);

/* Figures that tasks found: balance of the partitions, losses of a mixture's strategies,
 * accuracy of the router, bits per byte routed once and again. */
typedef void (*view_row_fn)(void *arg, const struct row_rec *r);
/* The figures of a job, in the order in which they were first found. */
void view_each_row(struct coordinator *co, uint64_t job_id, view_row_fn fn, void *arg);

/* The module of each level that a path stopped at: what an export of it takes. */
struct view_best {
    uint32_t path, level, round;
    uint64_t module_id, version;
    const uint8_t *blob; /* sha256 of whole weights */
    uint64_t size;
};

typedef void (*view_best_fn)(void *arg, const struct view_best *b);
/* By path and level; none without early stopping. */
void view_each_best(struct coordinator *co, uint64_t job_id, view_best_fn fn, void *arg);

/* One replica of one path. */
struct view_replica {
    uint32_t path, replica;
    uint32_t round;              /* phase it is in */
    const char *state;           /* idle pending leased reported */
    uint64_t task_id, worker_id; /* 0: none */
    const char *worker_name;
    uint64_t step;                    /* inner steps since the job began */
    uint32_t steps_done, steps_total; /* the phase's */
    double loss, images_per_s;
};

typedef void (*view_replica_fn)(void *arg, const struct view_replica *r);
/* By path and replica. */
void view_each_replica(struct coordinator *co, uint64_t job_id, view_replica_fn fn, void *arg);

typedef void (*view_round_fn)(void *arg, const struct round_rec *r);
/* The rounds that are in memory, oldest first. */
void view_each_round(struct coordinator *co, uint64_t job_id, view_round_fn fn, void *arg);

/* How far the samples of an epoch are. */
struct view_epoch {
    uint32_t partition, epoch;             /* partition UINT32_MAX: of all the data */
    uint64_t total, done, leased, pending; /* samples; total = done + leased + pending */
};

typedef void (*view_epoch_fn)(void *arg, const struct view_epoch *e);
/* Of each partition the epochs that are open, and the last that were closed. */
void view_each_epoch(struct coordinator *co, uint64_t job_id, view_epoch_fn fn, void *arg);

typedef void (*view_sample_fn)(void *arg, const struct grid_rec *s);
/* What SAMPLE tasks drew, oldest first. */
void view_each_sample(struct coordinator *co, uint64_t job_id, view_sample_fn fn, void *arg);

/* A class of the dataset. */
struct view_class {
    uint32_t index;
    const char *name;
    uint64_t samples; /* 0 when not known */
};

typedef void (*view_class_fn)(void *arg, const struct view_class *c);
/* In the order of the dataset. */
void view_each_class(struct coordinator *co, uint64_t job_id, view_class_fn fn, void *arg);

typedef void (*view_number_fn)(void *arg, const struct metric_number *n);
/* What the job's trainers have named; the value is the newest of any replica, NAN: not known. */
void view_each_number(struct coordinator *co, uint64_t job_id, view_number_fn fn, void *arg);

typedef void (*view_bad_sample_fn)(void *arg, const struct bad_sample *b);
/* Those that are kept by name. */
void view_each_bad_sample(struct coordinator *co, uint64_t job_id, view_bad_sample_fn fn,
                          void *arg);

/* The first `limit` records with n > after.  Old loss points are thinned out
 * (every second one goes) when there are more than METRIC_POINTS_MAX. */
int view_metrics(struct coordinator *co, uint64_t job_id, uint64_t after, size_t limit,
                 metric_fn fn, void *arg, struct err *err);

/* ---- modules and versions ------------------------------------------------ */

/* A module, with what its outer steps did so far. */
struct view_module {
    uint64_t id, job_id;
    uint32_t level, index;
    uint64_t version, params;
    const uint8_t *sha256;   /* the newest full file; NULL before version 0 */
    const char *outer_state; /* idle waiting running retrying */
    const char *outer_reason;
    uint64_t folded;  /* contributions, in all versions */
    double staleness; /* versions that they began before the newest: mean, NAN */
    uint64_t staleness_max;
    const char *network;        /* main router */
    uint32_t paths;             /* that cross it */
    uint64_t bytes_from_others; /* contributions of other paths than the first of them */
    uint32_t fragment;          /* its number in the level */
};

typedef void (*view_module_fn)(void *arg, const struct view_module *m);
/* job_id 0: of all jobs. */
void view_each_module(struct coordinator *co, uint64_t job_id, view_module_fn fn, void *arg);

/* Versions that are still kept, oldest first. */
typedef void (*view_version_fn)(void *arg, const struct version_rec *v);
/* The versions that are kept, oldest first. */
void view_each_version(struct coordinator *co, uint64_t module_id, view_version_fn fn, void *arg);

/* ---- tasks --------------------------------------------------------------- */

/* A task, open or ended. */
struct view_task {
    const struct task *task;
    const char *worker_name;
    const char *text; /* SAMPLE of texts: what has come so far */
    double loss;
    uint64_t age_ms, leased_ms; /* since made; since leased */
};

typedef void (*view_task_fn)(void *arg, const struct view_task *t);

/* A page, newest first: those with smaller ids than `before` (0: from the newest), at most max;
 * true: there are more.  job_id 0: all jobs; state NULL: all states.  Open tasks and the newest
 * ended ones of each job (TASKS_ENDED_MAX) are kept. */
bool view_tasks(struct coordinator *co, uint64_t job_id, const char *state, uint64_t before,
                size_t max, view_task_fn fn, void *arg);
/* One task; -ERR_NOTFOUND. */
int view_task(struct coordinator *co, uint64_t task_id, struct view_task *ret, struct err *err);

/* ---- workers ------------------------------------------------------------- */

/* A worker that has joined once. */
struct view_worker {
    const struct worker *worker;
    const char *state;       /* idle busy late lost left draining quarantined */
    const char *reason;      /* why it is in this state */
    const struct task *task; /* NULL: none */
    double loss;
    uint64_t heartbeat_age_ms, joined_age_ms;
    int64_t quarantine_ms; /* left; 0: none */
};

typedef void (*view_worker_fn)(void *arg, const struct view_worker *w);
/* All that are known, gone ones too. */
void view_each_worker(struct coordinator *co, view_worker_fn fn, void *arg);
/* A page of them, in order of id: those with larger ids than `after`, at most max; true: there are
 * more. */
bool view_workers(struct coordinator *co, uint64_t after, size_t max, view_worker_fn fn, void *arg);
/* At most max of them: gone ones only where there is room. */
void view_some_workers(struct coordinator *co, size_t max, view_worker_fn fn, void *arg);
/* One worker; -ERR_NOTFOUND. */
int view_worker(struct coordinator *co, uint64_t worker_id, struct view_worker *ret,
                struct err *err);

/* ---- who may come in ----------------------------------------------------- */

struct view_token {
    const struct token_rec *token;
    const char *state; /* live ended revoked */
    int64_t left_ms;   /* until its end; -1: it has none */
    uint32_t workers_here;
    double cost; /* dollars of its jobs' leases and waiting, as they are kept: what budget bounds */
};

typedef void (*view_token_fn)(void *arg, const struct view_token *t);
/* In order of id. */
void view_each_token(struct coordinator *co, view_token_fn fn, void *arg);
/* See job/tokens.h. */
int view_token_make(struct coordinator *co, const struct token_order *o, uint64_t *ret_id,
                    char ret_text[TOKEN_STRING_MAX], struct err *err);
/* holder: who asks. */
int view_token_adjust(struct coordinator *co, uint64_t id, uint64_t holder,
                      const struct token_bounds *b, const struct token_rec **ret, struct err *err);
int view_token_revoke(struct coordinator *co, uint64_t id, uint64_t holder, struct err *err);
/* Cuts a worker for good. */
int view_worker_revoke(struct coordinator *co, uint64_t worker_id, struct err *err);

/* ---- commands ------------------------------------------------------------ */

/* Puts a job on record, or says why not; see submit.h. */
int view_job_submit(struct coordinator *co, const struct submit *s, uint64_t *ret_id,
                    struct err *err);
/* Ends a job; -ERR_STALE: it has ended. */
int view_job_cancel(struct coordinator *co, uint64_t job_id, struct err *err);
/* What a job may have beside others, from the next task on; NAN: as it is.  *ret: as it is then.
 * -ERR_STALE: it has ended. */
struct view_adjust {
    double priority, share, budget;
};
int view_job_adjust(struct coordinator *co, uint64_t job_id, const struct view_adjust *a,
                    struct job_swarm *ret, struct err *err);
/* A paused job's tasks are given to nobody; those under way run to their end and count.
 * -ERR_STALE: it has ended. */
int view_job_pause(struct coordinator *co, uint64_t job_id, bool paused, struct err *err);
/* What the job, or a path of it, is at becomes what version `to` was (job/rollback.h, where the
 * errors are); path UINT32_MAX: all. */
int view_job_rollback(struct coordinator *co, uint64_t job_id, uint32_t path, uint64_t to,
                      struct err *err);
/* Ends a task that view_sample_request() made, and no other: -EINVAL for a task that a job needs,
 * -ERR_STALE for one that has ended. */
int view_task_cancel(struct coordinator *co, uint64_t task_id, struct err *err);

/* Has something drawn: *ret_task is the SAMPLE task. */
int view_sample_request(struct coordinator *co, uint64_t job_id, const struct draw_request *r,
                        uint64_t *ret_task, struct err *err);

/* Finish what it does and give it no more. */
int view_worker_drain(struct coordinator *co, uint64_t worker_id, struct err *err);

/* An upload of a data shard is about to come (sha256, size): keeps the blob
 * from garbage collection for an hour.  -ENOSPC when the disk is too full. */
int view_upload_expect(struct coordinator *co, const uint8_t sha256[VIEW_SHA256_BYTES],
                       uint64_t size, struct err *err);

/* Calls fn once all changes made until now are durable; see durable_fn. */
void view_when_durable(struct coordinator *co, durable_fn fn, void *arg);
/* Is what can be read of this job (0: of all) now durable, or can nothing be made durable and that
 * is to be seen? */
bool view_is_shown(struct coordinator *co, uint64_t job_id);
/* false: it is.  Else fn(arg, rc) is called when it is: see core_when_shown(). */
bool view_when_shown(struct coordinator *co, uint64_t job_id, durable_fn fn, void *arg);
/* The commit that what happens now will be in, by number; and is it done? */
uint64_t view_next_commit(const struct coordinator *co);
bool view_has_commit(const struct coordinator *co, uint64_t commit);
/* For how long the commit has been under way that is, 0: none; and is that unusual? */
uint64_t view_writing_ms(const struct coordinator *co);
bool view_is_slow(const struct coordinator *co);

/* ---- events -------------------------------------------------------------- */

/* At most EVENT_SUBSCRIBERS_MAX; returns a handle > 0 or -ERR_LIMIT. */
int view_subscribe(struct coordinator *co, event_fn fn, void *arg);
/* By its handle. */
void view_unsubscribe(struct coordinator *co, int handle);

#endif
