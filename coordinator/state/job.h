/* A job and all that hangs on it: its dataset, its modules and paths, what was found.  Fields
 * marked (m) live in memory alone.  Times `*_ms` are of the monotonic clock and (m); `*_unix_ms`
 * are for display.  Loop thread. */
#ifndef COORDINATOR_JOB_H
#define COORDINATOR_JOB_H

#include "common/base/base.h"
#include "common/job/job.h"
#include "common/job/recipe.h"
#include "coordinator/state/ledger.h"
#include "coordinator/state/module.h"
#include "coordinator/state/mark.h"
#include "coordinator/state/record.h"
#include "coordinator/state/task.h"

#define JOB_SHARDS_MAX 65536
#define JOB_CLASSES_MAX 4096
#define JOB_BAD_MAX 1024     /* bad samples kept by name */
#define JOB_SAMPLES_MAX 1024 /* grids kept per job */
#define JOB_ROUNDS_MAX 4096  /* round records kept of many paths; see job_rounds_max */
#define JOB_ROWS_MAX 1024
#define JOB_VOCAB_BYTES 257   /* token ids that are bytes, and the end of a text */
#define JOB_NUMBERS_MAX 64    /* names of trainers' numbers */
#define JOB_TRACE_MAX 131072  /* bytes, as in ReportRequest */
#define ENCODER_FILES_MAX 256 /* as Task.encoders */
#define ENCODER_NAME_MAX 129
#define ROW_NAME_MAX 65
#define ROW_UNIT_MAX 17

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
    JOB_FEATURES,   /* features of every sample are computed */
    JOB_SCORING,    /* every path scores the samples kept for routers */
    JOB_CLUSTERING, /* samples are assigned to partitions */
    JOB_SPLITTING,  /* and copied to shards of one partition each */
    JOB_ENCODING,   /* before INITIALISING: shards of images become shards of latents */
    JOB_STATES
};

/* As persons and the API know it: "running". */
const char *job_state_name(enum job_state s);

struct shard_rec {
    struct blob_ref blob; /* size 0: of an old generation, gone */
    uint32_t samples;
    uint64_t tokens;     /* texts; images: 0 */
    uint32_t generation; /* 0: as the dataset was cut; g: made by the g-th splitting */
    uint32_t partition;  /* in generation > 0; with a teacher job: the teacher's number */
    uint32_t source;     /* number of the URL, or of the SPLIT task, that it was cut from */
    bool holdout;
    bool router;              /* kept for fitting routers, never trained on */
    struct blob_ref features; /* its samples'; size 0: none */
};

/* What the frozen networks make the model see, as NetworkInput of skerry.proto; zeros: pixels and
 * classes. */
struct network_input {
    uint32_t channels, side;
    uint32_t caption, caption_tokens;
};

/* A file of a frozen network's folder, or one that goes along as they do. */
#define ENCODER_COMPANIONS 4 /* a part that no worker gets: an export does */
struct encoder_file {
    uint32_t part; /* EncoderPart of skerry.proto */
    char name[ENCODER_NAME_MAX];
    struct blob_ref blob;
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

struct replica_rec {
    uint64_t owner;          /* worker that did the last phase; 0: none */
    uint64_t step;           /* at which the current phase starts, or the next one */
    uint64_t task_id;        /* the phase that runs; 0: none */
    uint64_t samples_last;   /* that its last phase used, or would have in its time */
    struct blob_ref moments; /* Adam's, as the owner left them; size 0: none */
    float loss;              /* (m) newest; NAN */
    uint64_t seen;           /* (m) as row_mark.seen */
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
    uint64_t samples, steps;
    double loss, weight; /* sum of loss * samples; of samples that have a loss */
};

/* A held-out loss that is out of all proportion, of which another worker is asked (job/guard.h). */
struct eval_doubt {
    uint64_t worker, origin; /* the worker that says so; 0: none does */
    uint32_t version;
};

struct path_rec {
    uint32_t round;    /* phase that runs; == rounds planned: finished */
    bool ready;        /* the phase's tasks exist */
    uint64_t ready_ms; /* (m) since when */
    int64_t ready_unix_ms;
    uint64_t bytes_up, bytes_down; /* params, of the current round */
    uint64_t phases;               /* async: applied so far; round is this over the replicas */
    struct phase_sum sum; /* (m) of phases since the last round: without rounds, and late ones */
    const struct replica_rec *replicas; /* composition.paths[i].replicas of them */
    struct eval_rec eval;
    struct best_module *best; /* by level; NULL: none, or the job does not stop early */
    uint32_t best_round;
    float best_loss;
    struct eval_doubt doubt;  /* (m) */
    uint64_t velocity_worker; /* (m) the last that ran the path for a sampler elsewhere */
    struct row_mark row;
};

/* A sample that could not be read, by name. */
struct bad_rec {
    char *shard, *key, *reason;
};

/* What each device of a worker did in a step of the newest phase that left one, as the worker sent
 * it.  text NULL: none did. */
struct job_trace {
    char *text;
    size_t len;
    uint64_t task_id, worker_id;
    uint32_t path, replica, round;
};

/* The last times of something, and what they come to. */
struct job_times {
    uint64_t ms[32]; /* ring */
    unsigned n;      /* ever noted */
    uint64_t found;  /* of the first found_of of them, as whoever reads them makes it */
    unsigned found_of;
};

/* Dollars that its workers' time has cost, up to the ends of leases (job/cost.h). */
struct job_cost {
    double work;    /* under leases */
    double waiting; /* between them */
};

struct job {
    uint64_t id;
    char *yaml;
    struct job_spec spec;
    struct composition comp;
    enum job_state state;
    char reason[1024];
    int64_t made_unix_ms, started_unix_ms, ended_unix_ms;
    uint64_t started_ms;    /* (m) */
    uint64_t token_id;      /* that it was submitted with; 0: not known */
    struct job_swarm quota; /* the spec's, as a person has adjusted it */
    bool paused;            /* by a person: its tasks are given to nobody */
    struct job_cost cost;
    char **classes;
    uint64_t *counts; /* per class, or zeros */
    size_t n_classes;
    const struct shard_rec *shards;
    size_t n_shards, cap_shards;
    struct bad_rec *bad;
    size_t n_bad;
    uint32_t bad_count;
    uint32_t bad_unnamed;                  /* (m) in bad_count beside those */
    uint32_t vocab;                        /* token ids of the dataset; 0: images */
    struct blob_ref tokenizer, warm_start; /* size 0: bytes; from the seed */
    struct encoder_file *encoders;         /* of the frozen networks */
    size_t n_encoders;
    struct network_input input;
    /* Partitioning. */
    uint32_t generation; /* the shards' that are trained on */
    uint32_t resharded;  /* entries of recipe.reshard that are done */
    uint32_t finishing;  /* enum job_finishing */
    struct blob_ref partitioner, assignment;
    struct blob_ref partitioner_before; /* while a re-sharding may still be dropped */
    uint64_t *sizes; /* comp.n_partitions: training samples of each, all 0 before it is known */
    const struct score_rec *scores;
    size_t n_scores;
    const struct row_rec *rows;
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
    const struct module_rec *modules; /* comp.n_modules */
    const struct path_rec *paths;     /* comp.n_paths */
    /* (m) Ended phases that no replica has any more and whose contributions wait for a version:
     * tasks, in the order of their ids. */
    uint64_t *late;
    size_t n_late;
    const struct round_rec *rounds;
    size_t n_rounds;
    const struct grid_rec *grids;
    size_t n_grids;
    struct job_trace trace; /* (m) */
    uint64_t metric_n;      /* last n of the metrics */
    uint64_t metric_points; /* loss points in the store */
    /* Those that trainers name, JOB_NUMBERS_MAX at most; values (m): the newest of any replica. */
    struct metric_number *numbers;
    size_t n_numbers;
    bool numbers_refused; /* (m) there was one more, which was said */
    uint64_t bytes_up, bytes_down, shard_bytes_down;
    uint64_t bytes_near;   /* of those down: sent by neighbours of the worker that asked */
    uint64_t steps_done;   /* inner steps of all accepted phases */
    uint64_t phases_done;  /* accepted phases */
    uint64_t samples_done; /* that those trained on */
    uint64_t waited_ms;    /* for the network, by those */
    uint64_t trained_ms;   /* they took beside that */
    /* (m) Contributions and deltas of a second: of the one that runs, and at most. */
    uint64_t second, second_bytes, peak_bytes;
    float loss, eval_loss;       /* newest; NAN */
    uint32_t leases;             /* (m) that it holds: state_set_task_state() counts */
    bool loss_changed;           /* (m) some replica's did, and the job's own is to be made anew */
    struct job_times phase_gaps; /* (m) ms between progress of phases */
    struct job_times begin_ms;   /* (m) from a lease to its first progress */
    struct job_times phase_ms;   /* (m) that phases took, from lease to report */
    /* (m) What persist_changes() has to look at. */
    struct row_mark row;
    struct marks modules_edited, paths_edited, shards_edited, rows_edited, grids_gone, rounds_gone;
    size_t classes_saved, bad_saved, scores_saved,
        encoders_saved; /* rows that are queued: the first ones */
    bool scores_dropped, rounds_edited;
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

/* Modules, paths and replicas from j->comp, the quota from j->spec; *next_module is the id of the
 * first module. */
void job_build(struct job *j, uint64_t *next_module);
void job_free(struct job *j);

/* Marks the job to fail, once: the first reason stands, and an ended job stays as it is.  Its
 * tasks stay open until flow.c ends it, in the turn that the caller has asked for. */
void job_doom(struct job *j, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* ---- for writing --------------------------------------------------------- */

struct module_rec *job_edit_module(struct job *j, const struct module_rec *m);
struct path_rec *job_edit_path(struct job *j, uint32_t path);
struct replica_rec *job_edit_replica(struct job *j, uint32_t path, uint32_t replica);
/* For fields marked (m), and no others: nothing is marked as edited. */
static inline struct replica_rec *job_replica_memory(struct job *j, uint32_t path, uint32_t replica)
{
    return (struct replica_rec *)&j->paths[path].replicas[replica];
}
struct shard_rec *job_edit_shard(struct job *j, size_t n);
void job_add_late(struct job *j, uint64_t task);
void job_drop_late(struct job *j, uint64_t task);
/* Sorts shards from `first` by their source; those of one source stay in their order. */
void job_order_shards(struct job *j, size_t first);
/* A record at the end of j->shards, zeroed; NULL at JOB_SHARDS_MAX. */
struct shard_rec *job_add_shard(struct job *j);
static inline void job_note_time(struct job_times *t, uint64_t ms)
{
    t->ms[t->n++ % (sizeof(t->ms) / sizeof(t->ms[0]))] = ms;
}
/* of(ms, n) of those that are kept, made again only after another one was noted. */
uint64_t job_time_of(struct job_times *t, uint64_t (*of)(const uint64_t *ms, size_t n));
/* At the end of j->classes. */
void job_add_class(struct job *j, const char *name, uint64_t samples);
void job_add_encoder(struct job *j, const struct encoder_file *f);
/* Keeps the name of a bad sample; false at JOB_BAD_MAX. */
bool job_add_bad(struct job *j, const char *shard, const char *key, const char *reason);
void job_add_score(struct job *j, const struct score_rec *r);
void job_drop_scores(struct job *j);
/* In place of the row of the same kind, path and name; false: JOB_ROWS_MAX others are kept. */
bool job_put_row(struct job *j, const struct row_rec *r);
/* The number that a trainer calls so; NULL: it is none of A-Z a-z 0-9 . _ -, or JOB_NUMBERS_MAX
 * others are kept. */
struct metric_number *job_number(struct job *j, const char *name);
/* Records of rounds that are kept: 1,024, or 16 of each path as far as JOB_ROUNDS_MAX goes. */
size_t job_rounds_max(const struct job *j);
/* The oldest makes room. */
void job_add_round(struct job *j, const struct round_rec *r);
/* Forgets all but the newest n. */
void job_keep_rounds(struct job *j, size_t n);
struct round_rec *job_edit_round(struct job *j, size_t n);
/* Takes g->text.  The oldest makes room at JOB_SAMPLES_MAX: its blob is the caller's to let go. */
const struct grid_rec *job_add_grid(struct job *j, const struct grid_rec *g);

/* ---- the data ------------------------------------------------------------ */

const struct module_rec *job_module(const struct job *j, uint64_t id);
/* Whether a path of this partition trains on the shard. */
bool job_shard_trains(const struct job *j, const struct shard_rec *s, uint32_t partition);
/* Whether it is held out, of this partition or of all. */
bool job_shard_evaluates(const struct job *j, const struct shard_rec *s, uint32_t partition);
/* A new ledger of a partition over the shards of the job's generation, in place of
 * the old one.  -EINVAL when there are no samples. */
int job_make_ledger(struct job *j, uint32_t partition, struct err *err);

#endif
