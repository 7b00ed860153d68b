/* Everything the coordinator knows, in memory.
 *
 *   state ─┬─ worker  (joins, leaves, lost; holds at most one task)
 *          └─ job ─┬─ shard, class        the dataset
 *                  ├─ score, row          what partitioning and evaluation found
 *                  ├─ ledger (per partition)  every sample of every open epoch
 *                  ├─ module ── version   written once, the last ones have blobs
 *                  ├─ path ── replica     where each replica's phase stands
 *                  └─ task ── contribution
 *
 * It is a cache of the SQLite file: who changes a field that has a column calls
 * the save function of persist.h in the same turn of the loop, and what was
 * changed is acknowledged after the commit only (store.h).  Fields marked (m)
 * live in memory alone and start anew after a restart.
 *
 * Times `*_ms` are of the monotonic clock and (m); `*_unix_ms` are for display.
 * Ids are given out once and never reused.  Loop thread only. */
#ifndef COORDINATOR_STATE_H
#define COORDINATOR_STATE_H

#include "common/job/job.h"
#include "coordinator/state/devices.h"
#include "coordinator/state/ledger.h"
#include "coordinator/state/record.h"
#include "coordinator/decide/schedule.h"
#include "common/job/recipe.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;
struct rpc_peer;
struct rpc_request;

#define WORKERS_MAX 1024
#define WORKERS_KNOWN_MAX 4096 /* with those that left; the longest gone are forgotten */
#define JOBS_MAX 1024
#define JOBS_ACTIVE_MAX 64
#define TASKS_OPEN_MAX 16384
#define TASKS_ENDED_MAX 256 /* kept per job, beside the open ones */
#define JOB_SHARDS_MAX 65536
#define JOB_CLASSES_MAX 4096
#define JOB_BAD_MAX 1024     /* bad samples kept by name */
#define JOB_SAMPLES_MAX 1024 /* grids kept per job */
#define JOB_ROUNDS_MAX 4096  /* round records kept in memory; all are in the store */
#define TASK_RANGES_MAX 4096 /* as TrainTask.ranges */
#define TASK_LABELS_MAX 1024
#define TASK_FAILURES_MAX 5
#define TASK_TEXT_MAX 65536 /* bytes of a generated text, as ReportRequest.text */
#define JOB_ROWS_MAX 1024
#define ROW_NAME_MAX 65
#define ROW_UNIT_MAX 17
#define APPLIED_MAX 64  /* verdicts that wait for one worker */
#define VERSIONS_KEPT 4 /* of a module; more where contributions may start from older ones */
#define VERSIONS_KEPT_MAX 32
#define NAME_MAX_BYTES 65
#define REASON_MAX 256
#define WORKER_SMALL_MAX 8

/* ---- workers ------------------------------------------------------------- */

enum worker_state {
    WORKER_UNSPECIFIED,
    WORKER_HERE, /* connected, or within the grace of a reconnect */
    WORKER_LOST, /* silent: its lease is gone */
    WORKER_LEFT, /* said good-bye */
};

struct verdict {
    uint64_t task_id;
    bool accepted;
    bool told; /* (m) in an answer that the worker has not confirmed yet */
    char reason[REASON_MAX];
};

struct worker {
    uint64_t id;
    uint8_t identity[16], instance[16];
    char name[NAME_MAX_BYTES], device[129], version[NAME_MAX_BYTES], address[64];
    uint64_t memory_bytes;
    uint32_t threads;
    enum worker_state state;
    char state_reason[REASON_MAX];
    bool drain;
    uint32_t strikes, failures_row, tasks_done, tasks_failed;
    uint64_t bytes[4];      /* control up, down, data up, down: since it first joined */
    uint64_t bytes_seen[4]; /* (m) last counters of this process */
    int64_t joined_unix_ms;
    uint64_t joined_ms;                /* (m) */
    uint64_t quarantined_until_ms;     /* (m) 0: not */
    uint64_t heard_ms;                 /* (m) */
    uint64_t closed_ms;                /* (m) connection gone since; 0: open */
    struct rpc_peer *peer;             /* (m) NULL: no connection */
    struct rpc_request *parked;        /* (m) its ASSIGN that waits */
    uint64_t parked_until_ms;          /* (m) */
    uint64_t task_id;                  /* the lease it holds; 0: none */
    char activity[129];                /* (m) */
    float throughput, loss, grad_norm; /* (m) */
    struct devices devices;            /* (m) */
    struct {
        uint64_t module_id, version;
    } held[64]; /* (m) newest held per module */
    unsigned n_held;
    struct verdict *verdicts; /* to be told; up to APPLIED_MAX */
    unsigned n_verdicts;
    char waiting_for[REASON_MAX];                  /* (m) why it has no task */
    struct schedule_small small[WORKER_SMALL_MAX]; /* (m) what it has no memory for, ring */
    unsigned n_small;                              /* (m) ever noted by this process of it */
    uint32_t device_failures;                      /* (m) reported, since we started */
};

/* ---- tasks --------------------------------------------------------------- */

/* Same numbers as TaskKind of skerry.proto. */
enum task_kind {
    TASK_UNSPECIFIED,
    TASK_INIT,
    TASK_INGEST,
    TASK_TRAIN,
    TASK_EVAL,
    TASK_SAMPLE,
    TASK_OUTER, /* runs in here, is never leased to a worker */
    TASK_FEATURE,
    TASK_CLUSTER,
    TASK_SPLIT,
    TASK_SCORE,
    TASK_VELOCITY,
    TASK_KINDS
};

/* What a kind of task is to all rooms; what is done with one stands in coordinator/kinds. */
struct task_trait {
    const char *name;
    unsigned rank; /* of tasks that wait for a worker: the lower is given first */
    bool aside;    /* beside the training: it may fail without taking its job with it */
};

extern const struct task_trait task_traits[TASK_KINDS];

enum task_state {
    TASK_STATE_UNSPECIFIED,
    TASK_PENDING,
    TASK_LEASED,
    TASK_DONE,
    TASK_FAILED,
    TASK_CANCELLED,
};

/* What a phase gave to one of its modules. */
struct contribution {
    uint64_t module_id, base_version;
    struct blob_ref blob;
    bool refused;       /* by the check of the outer step, or it came too late */
    uint64_t samples;   /* behind it */
    uint64_t worker_id; /* who sent it */
    uint64_t version;   /* that it went into; 0: none yet */
};

struct task_ingest {
    uint32_t url; /* its number in data.url */
};

/* A phase of a replica. */
struct task_train {
    uint32_t replica, round;
    uint64_t first_step;
    struct contribution *contributions;
    size_t n_contributions;
    struct blob_ref moments; /* Adam's, after the phase; size 0: none came */
    uint64_t waited_ms;      /* for the network, of the phase's seconds */
    uint32_t phase_s;        /* (m) bounded by time: how long the phase is */
};

/* EVAL and SAMPLE. */
struct task_draw {
    uint32_t version; /* that is looked at: as many rounds made it */
    uint32_t steps, columns, count;
    bool heun, ema, asked; /* asked by a person, not by the schedule */
    float guidance;
    uint64_t seed;
    uint32_t *labels; /* count of them (SAMPLE) */
    /* of all main paths together, with the router; the task's path is the router's */
    bool mixture, remote;
    uint32_t strategy, top; /* enum job_strategy */
    float nucleus, threshold;
    /* texts */
    char *prompt;    /* NULL: none */
    uint32_t tokens; /* 0: images */
    float temperature, top_p;
    char *text;      /* (m) what came so far */
    size_t text_len; /* (m) at most TASK_TEXT_MAX */
};

struct task_outer {
    uint64_t module_id;
    uint32_t version; /* that the step begins at */
};

struct task_cluster {
    uint32_t pass; /* how often the job was sharded anew before */
    bool evaluate; /* what routing is worth, at the end of the job */
};

struct task_split {
    uint32_t group; /* of shards: its number */
};

struct task_score {
    uint32_t version;   /* of the path's modules */
    bool ema, evaluate; /* evaluate: as in task_cluster */
};

struct task_velocity {
    uint32_t version;
    bool ema;
    uint64_t parent; /* the SAMPLE task that asks */
    struct blob_ref input;
};

struct task {
    uint64_t id, job_id;
    enum task_kind kind;
    enum task_state state;
    uint32_t attempt, failures;
    uint32_t path;      /* whose modules it works on; INIT: one of the network it makes */
    uint64_t worker_id; /* leased: the holder; ended: who did it */
    char reason[REASON_MAX];
    struct ledger_range *ranges; /* TRAIN, EVAL, FEATURE, SPLIT, SCORE */
    size_t n_ranges;
    union { /* by kind; INIT and FEATURE have no part of their own */
        struct task_ingest ingest;
        struct task_train train;
        struct task_draw draw; /* EVAL, SAMPLE */
        struct task_outer outer;
        struct task_cluster cluster;
        struct task_split split;
        struct task_score score;
        struct task_velocity velocity;
    };
    /* result */
    struct blob_ref output;
    uint32_t steps;
    uint64_t samples;
    float loss_first, loss_last, loss_mean, seconds;
    int64_t made_unix_ms, ended_unix_ms;
    /* (m) of the attempt that runs, and of those before it */
    uint64_t ready_ms; /* since when it may be leased */
    uint64_t leased_ms, progress_ms, ended_ms;
    uint64_t failed_worker;           /* who failed it last: others first */
    uint64_t not_before_ms;           /* back-off of a failed one */
    uint32_t steps_done, steps_total; /* from heartbeats */
    uint64_t samples_done;
    uint64_t progress_mark;   /* hash of what counts as progress */
    uint64_t progress_gap_ms; /* after which it was last taken for stuck */
    char activity[129];
    float loss;
};

/* The part of an EVAL or SAMPLE task; of others NULL. */
static inline const struct task_draw *task_drawing(const struct task *t)
{
    return t->kind == TASK_EVAL || t->kind == TASK_SAMPLE ? &t->draw : NULL;
}

/* EVAL or SAMPLE of all main paths together. */
static inline bool task_is_mixture(const struct task *t)
{
    return task_drawing(t) != NULL && t->draw.mixture;
}

/* A sampler whose experts stay on their workers. */
static inline bool task_is_remote(const struct task *t)
{
    return t->kind == TASK_SAMPLE && t->draw.remote;
}

/* Are the modules' means looked at? */
bool task_wants_ema(const struct task *t);
/* CLUSTER, SCORE: of what routing is worth, at the end of the job. */
bool task_evaluates(const struct task *t);
/* The number that persons and the store know the task by, beside its path: the round of a
 * phase, a version, or the number of a URL, group or pass. */
uint32_t task_round(const struct task *t);
void task_set_round(struct task *t, uint32_t round); /* as it was read from the store */
/* 0 but for TRAIN. */
uint32_t task_replica(const struct task *t);

static inline bool task_is_open(const struct task *t)
{
    return t->state == TASK_PENDING || t->state == TASK_LEASED;
}

/* ---- jobs ---------------------------------------------------------------- */

enum job_state {
    JOB_UNSPECIFIED,
    JOB_PENDING,
    JOB_INGESTING,
    JOB_INITIALISING,
    JOB_RUNNING,
    JOB_FINISHING,
    JOB_DONE,
    JOB_FAILED,
    JOB_CANCELLED,
    /* between INITIALISING and RUNNING, and again at each resharding */
    JOB_FEATURES,   /* of every sample */
    JOB_SCORING,    /* of the router's samples under every path */
    JOB_CLUSTERING, /* samples to partitions */
    JOB_SPLITTING,  /* shards to shards of one partition each */
    JOB_STATES
};

const char *job_state_name(enum job_state s);
const char *task_kind_name(enum task_kind k);
const char *task_state_name(enum task_state s);

struct shard_rec {
    struct blob_ref blob; /* size 0: of an old generation, gone */
    uint32_t samples;
    uint64_t tokens;     /* of texts */
    uint32_t generation; /* 0: as the dataset was cut; g: made by the g-th splitting */
    uint32_t partition;  /* of generation > 0; with a teacher job: the teacher's number */
    uint32_t source;     /* number of the URL, or of the SPLIT task, that it was cut from */
    bool holdout;
    bool router;              /* kept for fitting routers, never trained on */
    struct blob_ref features; /* of its samples; size 0: none */
};

/* What a path scored on a shard. */
struct score_rec {
    uint32_t path, shard;
    struct blob_ref blob;
};

/* A figure with a name, as the workers found it; a newer one of the same kind of
 * task, path and name takes its place. */
struct row_rec {
    enum task_kind kind;
    uint32_t path, round; /* path UINT32_MAX: of the whole job */
    char name[ROW_NAME_MAX], unit[ROW_UNIT_MAX];
    double value;
    int64_t at_unix_ms;
};

struct version_rec {
    uint64_t version;
    struct blob_ref full, delta, ema; /* delta: from version - 1 */
    char *provenance;                 /* JSON */
    int64_t at_unix_ms;
};

struct module_rec {
    uint64_t id;
    uint32_t network, level, index;
    uint64_t version; /* newest; meaningful when n_versions > 0 */
    uint64_t params;
    struct version_rec versions[VERSIONS_KEPT_MAX]; /* oldest first */
    unsigned n_versions;
    unsigned kept; /* so many versions at most, from the composition */
    /* Contributions folded, and how many versions older than the newest they began. */
    uint64_t folded, stale_sum, stale_max;
    uint64_t bytes_from_others;    /* contributions of other paths than the first that crosses it */
    uint64_t outer_task;           /* (m) the OUTER task that runs now; 0: none */
    uint64_t retry_ms;             /* (m) no outer step before it */
    uint32_t outer_failures;       /* (m) in a row */
    char outer_reason[REASON_MAX]; /* (m) of the quorum, or the last failure */
    uint64_t quorum_ms;            /* (m) when the quorum was complete; 0: not yet */
};

struct replica_rec {
    uint64_t owner;          /* worker that did the last phase; 0: nobody */
    uint64_t step;           /* at which the current phase starts, or the next one */
    uint64_t task_id;        /* of the current phase; 0: none */
    uint64_t samples_last;   /* that its last phase used, or would have in its time */
    struct blob_ref moments; /* Adam's, as the owner left them; size 0: none */
    float loss;              /* (m) newest; NAN */
};

/* A module's weights as they were at a path's best evaluation. */
struct best_module {
    uint64_t version;
    struct blob_ref full; /* whole weights, or their EMA when that was evaluated */
};

/* Held-out loss of a path, newest. */
struct eval_rec {
    double loss_sum;
    uint64_t units, bytes; /* samples or tokens; bytes of texts */
    uint32_t round;        /* version that was looked at */
    float loss;            /* NAN: never evaluated */
};

/* What some phases add up to. */
struct phase_sum {
    uint32_t phases;
    uint64_t samples, steps, waited_ms, trained_ms;
    double loss, weight; /* sum of loss * samples; of samples that have a loss */
};

struct path_rec {
    uint32_t round;    /* phase that runs; == rounds planned: finished */
    bool ready;        /* the phase's tasks exist */
    uint64_t ready_ms; /* (m) since when */
    int64_t ready_unix_ms;
    uint64_t bytes_up, bytes_down; /* params, of the current round */
    uint64_t phases;               /* async: applied so far; round is this over the replicas */
    struct phase_sum sum;          /* (m) async: of the phases since the last round */
    struct replica_rec *replicas;  /* composition.paths[i].replicas of them */
    struct eval_rec eval;
    struct best_module *best; /* by level; NULL: none, or the job does not stop early */
    uint32_t best_round;
    float best_loss;
    uint64_t velocity_worker; /* (m) who ran the path for a sampler elsewhere last */
};

struct bad_rec {
    char *shard, *key, *reason;
};

struct job {
    uint64_t id;
    char *yaml;
    struct job_spec spec;
    struct composition comp;
    enum job_state state;
    char reason[1024];
    int64_t made_unix_ms, started_unix_ms, ended_unix_ms;
    uint64_t started_ms; /* (m) */
    char **classes;
    uint64_t *counts; /* per class, or zeros */
    size_t n_classes;
    struct shard_rec *shards;
    size_t n_shards, cap_shards;
    struct bad_rec *bad;
    size_t n_bad;
    uint32_t bad_count;
    uint32_t bad_unnamed;                  /* (m) in bad_count beside those */
    uint32_t vocab;                        /* token ids of the dataset; 0: images */
    struct blob_ref tokenizer, warm_start; /* size 0: bytes; from the seed */
    /* Partitioning. */
    uint32_t generation; /* of shards that are trained on */
    uint32_t resharded;  /* entries of recipe.reshard that are done */
    uint32_t finishing;  /* enum job_finishing */
    struct blob_ref partitioner, assignment;
    struct blob_ref partitioner_before; /* while a re-sharding may still be dropped */
    uint64_t *sizes; /* comp.n_partitions: training samples of each, all 0 before it is known */
    struct score_rec *scores;
    size_t n_scores;
    struct row_rec *rows;
    size_t n_rows;
    bool old_shards; /* (m) some of an old generation may be let go */
    char *doom;      /* (m) why it is to fail: flow.c ends it in the next turn; NULL: it is not */
    /* (m) A rule that came after it was saved refuses it: the sentence; NULL: none does. */
    char *refused;
    /* (m) Not even how it is composed is known: it has one module without a version, its rows
     * stay in the store as they are, and this is what they name. */
    bool unread;
    struct unread_blob {
        int role; /* enum blob_role */
        struct blob_ref blob;
    } * unread_blobs;
    size_t n_unread_blobs;
    /* By job_ledger(); NULL before the data is there, or without a path of it. */
    struct ledger **ledgers;
    struct module_rec *modules; /* comp.n_modules */
    struct path_rec *paths;     /* comp.n_paths */
    struct round_rec *rounds;
    size_t n_rounds;
    struct grid_rec *grids;
    size_t n_grids;
    uint64_t metric_n;      /* last n of the metrics */
    uint64_t metric_points; /* loss points in the store */
    uint64_t bytes_up, bytes_down, shard_bytes_down;
    uint64_t steps_done;  /* inner steps of all accepted phases */
    uint64_t phases_done; /* accepted phases */
    uint64_t waited_ms;   /* for the network, by those */
    uint64_t trained_ms;  /* they took beside that */
    /* (m) Contributions and deltas of a second: of the one that runs, and at most. */
    uint64_t second, second_bytes, peak_bytes;
    float loss, eval_loss;   /* newest; NAN */
    uint64_t phase_gaps[32]; /* (m) ms between progress of phases, ring */
    unsigned n_phase_gaps;
};

/* Steps of JOB_FINISHING: each begins when the last one's tasks are done. */
enum job_finishing {
    FINISHING_EVAL,
    FINISHING_DRAW,  /* samples, the mixture's losses, scores for routing */
    FINISHING_ROUTE, /* what routing is worth */
};

/* Ledgers of a job: one per partition and one of all the data. */
static inline uint32_t job_ledgers(const struct job *j)
{
    return j->comp.n_partitions + 1;
}

/* Index of the ledger of a path's partition. */
static inline uint32_t job_ledger(const struct job *j, uint32_t partition)
{
    return partition == PARTITION_ALL ? j->comp.n_partitions : partition;
}

static inline bool job_is_ended(const struct job *j)
{
    return j->state == JOB_DONE || j->state == JOB_FAILED || j->state == JOB_CANCELLED;
}

/* ---- the tables ---------------------------------------------------------- */

/* Arrays of pointers in order of id. */
struct state {
    struct worker **workers;
    size_t n_workers, cap_workers;
    struct job **jobs;
    size_t n_jobs, cap_jobs;
    struct task **tasks;
    size_t n_tasks, cap_tasks;
    size_t n_open;                                          /* tasks that are open */
    uint64_t next_worker, next_job, next_task, next_module; /* saved with the rows */
};

void state_init(struct state *s);
void state_release(struct state *s);

/* NULL when there is none. */
struct worker *state_worker(const struct state *s, uint64_t id);
struct worker *state_worker_by_identity(const struct state *s, const uint8_t identity[16]);
struct job *state_job(const struct state *s, uint64_t id);
struct task *state_task(const struct state *s, uint64_t id);
struct module_rec *state_module(const struct state *s, uint64_t id, struct job **ret_job);
struct module_rec *job_module(const struct job *j, uint64_t id);
const struct version_rec *module_version(const struct module_rec *m, uint64_t version);
/* May the contribution still go into a version, or did it go into one that is kept? */
bool module_keeps(const struct module_rec *m, const struct contribution *c);
/* Was it kept until the newest version came? */
bool module_lets_go(const struct module_rec *m, const struct contribution *c);

/* New records, zeroed but for the id (0: the next one; else as loaded, larger
 * than all before it) and in the table.  NULL at the table's maximum. */
struct worker *state_add_worker(struct state *s, uint64_t id);
struct job *state_add_job(struct state *s, uint64_t id);
struct task *state_add_task(struct state *s, uint64_t id, uint64_t job_id, enum task_kind kind);

/* Frees the record and forgets it. */
void state_drop_worker(struct state *s, struct worker *w);
void state_drop_task(struct state *s, struct task *t);
void state_drop_job(struct state *s, struct job *j);

/* Every change of a task's state goes through here: it keeps n_open. */
void state_set_task_state(struct state *s, struct task *t, enum task_state to);

/* Keeps the name of a bad sample; false at JOB_BAD_MAX. */
bool job_add_bad(struct job *j, const char *shard, const char *key, const char *reason);

/* A record at the end of j->shards, zeroed; NULL at JOB_SHARDS_MAX. */
struct shard_rec *job_add_shard(struct job *j);
/* Whether a path of this partition trains on it. */
bool job_shard_trains(const struct job *j, const struct shard_rec *s, uint32_t partition);
/* Held-out shards of a partition, or of all. */
bool job_shard_evaluates(const struct job *j, const struct shard_rec *s, uint32_t partition);

/* A new ledger of a partition over the shards of the job's generation, in place of
 * the old one.  -EINVAL when there are no samples. */
int job_make_ledger(struct job *j, uint32_t partition, struct err *err);

/* Marks the job to fail, once: the first reason stands, and an ended job stays as it is.  Its
 * tasks stay open until flow.c ends it, in the turn that the caller has asked for. */
void job_doom(struct job *j, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Makes modules, paths and replicas from j->comp. */
void job_build(struct state *s, struct job *j);

#endif
