/* A job with its dataset, its modules and paths, and its figures.  Fields marked (m) live only in
 * memory.  Times `*_ms` are of the monotonic clock and (m); `*_unix_ms` are for display.  Loop
 * thread. */
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
#define JOB_PLACES_MAX 64    /* one bit each in bad_rec.said */
#define JOB_SAMPLES_MAX 1024 /* grids kept per job */
#define JOB_ROUNDS_MAX 4096  /* round records kept with many paths; see job_rounds_max */
#define JOB_ROWS_MAX 1024
#define JOB_VOCAB_BYTES 257   /* token ids: 256 bytes, and the end of a text */
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

/* The name in messages and the API: "running". */
const char *job_state_name(enum job_state s);

#define SHARD_SAMPLES_MAX 65536       /* as workers take them, and the API */
#define SHARD_TOKENS_MAX (1ull << 36) /* as the API takes them: all that so many texts can have */

struct shard_rec {
    struct blob_ref blob; /* size 0: it was of an old generation and is gone */
    uint32_t samples;
    uint64_t tokens;     /* texts; images: 0 */
    uint32_t generation; /* 0: as the dataset was cut; g: made by the g-th splitting */
    uint32_t partition;  /* in generation > 0; with a teacher job: the teacher's number */
    uint32_t source;     /* number of the URL, or of the SPLIT task, that it comes from */
    bool holdout;
    bool router;              /* kept for fitting routers, never trained on */
    struct blob_ref features; /* its samples'; size 0: none */
};

/* The model's input as the frozen networks produce it, as NetworkInput of skerry.proto; zeros:
 * pixels and classes. */
struct network_input {
    uint32_t channels, side;
    uint32_t caption, caption_tokens;
};

#define ENCODER_COMPANIONS 4 /* a part that goes into exports, not to workers */
/* A file of a frozen network's folder, or of ENCODER_COMPANIONS. */
struct encoder_file {
    uint32_t part; /* EncoderPart of skerry.proto */
    char name[ENCODER_NAME_MAX];
    struct blob_ref blob;
};

/* A path's scores of a shard. */
struct score_rec {
    uint32_t path, shard;
    struct blob_ref blob;
};

/* A named figure computed by the workers; a newer one of the same kind of task, path and name
 * replaces it. */
struct row_rec {
    enum task_kind kind;
    uint32_t path, round; /* path UINT32_MAX: of the whole job */
    char name[ROW_NAME_MAX], unit[ROW_UNIT_MAX];
    double value;
    int64_t at_unix_ms;
    uint64_t by; /* (m) worker_origin() of who told it last; 0: unknown */
};

struct replica_rec {
    uint64_t owner;          /* worker that did the last phase; 0: none */
    uint64_t step;           /* at which the current or the next phase starts */
    uint64_t task_id;        /* the phase under way; 0: none */
    uint64_t samples_last;   /* used by its last phase; bounded by time: scaled to outer.seconds */
    struct blob_ref moments; /* Adam's, as the owner left them; size 0: none */
    uint64_t moments_step;   /* (m) at which its last phase ended; 0: unknown since a restart */
    float loss;              /* (m) newest; NAN */
    uint64_t seen;           /* (m) as row_mark.seen */
};

/* A module's weights at a path's best evaluation. */
struct best_module {
    uint64_t version;
    struct blob_ref full; /* whole weights, or their EMA if that was evaluated */
};

/* The newest held-out loss of a path. */
struct eval_rec {
    double loss_sum;
    uint64_t units, bytes; /* samples or tokens; bytes of texts */
    uint32_t round;        /* the version evaluated */
    float loss;            /* NAN: never evaluated */
};

/* Sums over some phases. */
struct phase_sum {
    uint32_t phases;
    uint64_t samples, steps;
    double loss, weight; /* sum of loss * samples; of samples that have a loss */
};

/* An implausibly large held-out loss that another worker must confirm (job/guard.h). */
struct eval_doubt {
    uint64_t worker, origin; /* the worker that reported it; 0: none */
    uint32_t version;
    float confirmed;    /* what another one said of that version; 0: nothing yet */
    uint64_t best_task; /* measures again what it was compared with; 0: none */
};

/* A version that by one worker's word is better than the path's best (job/best.h). */
struct eval_hope {
    struct best_module *best; /* by level; NULL: there is none */
    uint32_t version;
    float loss;
    uint64_t worker, origin; /* the worker that reported it */
    uint64_t task;           /* the EVAL task that measures it again */
};

struct path_rec {
    uint32_t round;    /* the round under way; == rounds planned: finished */
    bool ready;        /* its tasks exist */
    uint64_t ready_ms; /* (m) since when */
    int64_t ready_unix_ms;
    uint64_t bytes_up, bytes_down; /* of parameters, in the current round */
    uint64_t phases;               /* async: applied so far; round = phases / replicas */
    struct phase_sum sum;          /* since the last round: of jobs without rounds, late phases */
    const struct replica_rec *replicas; /* composition.paths[i].replicas of them */
    struct eval_rec eval;
    struct best_module *best; /* by level; NULL: none, or the job does not stop early */
    uint32_t best_round;
    float best_loss;
    struct eval_doubt doubt;  /* (m) */
    struct eval_hope hope;    /* (m) */
    uint64_t velocity_worker; /* (m) the last to evaluate the path for a sampler elsewhere */
    uint64_t drew_worker;     /* (m) the last to measure or draw it, */
    uint32_t drew_version;    /* (m) and the version of that */
    struct row_mark row;
};

/* A sample that could not be read, by name. */
struct bad_rec {
    char *shard, *key, *reason;
    uint64_t said; /* (m) the places (job_place()) that have said so, a bit each; BAD_SUBMITTED: the
                      submitter has; 0: nobody since we started */
};

#define BAD_SUBMITTED UINT64_MAX

/* An origin of workers that have told of bad samples. */
struct bad_place {
    uint64_t origin;      /* worker_origin() */
    uint64_t cut;         /* samples of archives, counted without a name */
    uint64_t uncaptioned; /* and images without a caption */
};

#define JOB_MAKERS_MAX 64

/* Origins of workers, each once, at most JOB_MAKERS_MAX. */
struct job_makers {
    uint64_t origin[JOB_MAKERS_MAX];
    unsigned n;
    bool since_features; /* all are noted, from the features on: false after a restart in between,
                            or if there were too many */
};

/* The newest step trace (what each device of a worker did in a step), as the worker sent it.
 * text NULL: there is none. */
struct job_trace {
    char *text;
    size_t len;
    uint64_t task_id, worker_id;
    uint32_t path, replica, round;
};

/* The last durations of something, with a cached statistic of them. */
struct job_times {
    uint64_t ms[32]; /* ring */
    unsigned n;      /* ever noted */
    uint64_t found;  /* the statistic when n was found_of: job_time_of() */
    unsigned found_of;
};

/* What it has cost in dollars, at the prices of the time (work/cost.h). */
struct job_cost {
    double work;    /* its workers' time under leases, up to the ends of leases */
    double waiting; /* between them */
    double egress;  /* downloads of its workers, but those from neighbours */
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
    uint64_t token_id;      /* the token that it was submitted with; 0: unknown */
    struct job_swarm quota; /* the spec's, with a person's adjustments */
    bool paused;            /* by a person: its tasks are not assigned */
    struct job_cost cost;
    char **classes;
    uint64_t *counts; /* per class, or zeros */
    size_t n_classes;
    const struct shard_rec *shards;
    size_t n_shards, cap_shards;
    struct bad_rec *bad;
    size_t n_bad;
    uint32_t bad_count;
    /* (m) The most of them in any one phase that are not in bad. */
    uint32_t bad_unnamed;
    /* (m) Where they were found, in the order of job_place(), and how many places ever. */
    struct bad_place places[JOB_PLACES_MAX];
    unsigned n_places;
    uint32_t vocab;                        /* token ids of the dataset; 0: images */
    struct blob_ref tokenizer, warm_start; /* size 0: bytes; from the seed */
    struct encoder_file *encoders;         /* of the frozen networks */
    size_t n_encoders;
    struct network_input input;
    /* Partitioning. */
    uint32_t generation; /* of the shards trained on */
    uint32_t resharded;  /* entries of recipe.reshard that are done */
    uint32_t finishing;  /* enum job_finishing */
    struct blob_ref partitioner, assignment;
    struct blob_ref partitioner_before; /* while a resharding may still be dropped */
    /* Training samples of each of comp.n_partitions; all 0 before they are known. */
    uint64_t *sizes;
    const struct score_rec *scores;
    size_t n_scores;
    const struct row_rec *rows;
    size_t n_rows;
    bool old_shards; /* (m) some shards of an old generation may be dropped */
    bool recut;      /* (m) archives were cut again, since the dataset was of no use */
    bool renamed;    /* (m) and since two places contradicted one place's names of classes */
    bool shrunk;     /* (m) rows of shards and classes beyond the last go from the store */
    /* (m) Who made some part of the present partitions that nobody confirmed; who made some of all
     * that were of no use, the last for this reason (NULL: none were). */
    struct job_makers makers, suspects;
    char *useless;
    char *doom; /* (m) why it shall fail: flow.c ends it in the next turn; NULL: it shall not */
    /* (m) Why a newer rule refuses the job, which was saved before, or how its rows are damaged. */
    char *refused;
    /* (m) The job cannot even be composed, or its rows contradict each other: it has one module
     * without a version, its rows stay in the store unchanged, and unread_blobs are the blobs that
     * they name. */
    bool unread;
    struct unread_blob {
        int role; /* enum blob_role */
        struct blob_ref blob;
    } * unread_blobs;
    size_t n_unread_blobs;
    /* Indexed by job_ledger(); NULL before the data is there, or if no path trains on it. */
    struct ledger **ledgers;
    const struct module_rec *modules; /* comp.n_modules */
    const struct path_rec *paths;     /* comp.n_paths */
    /* (m) TRAIN tasks that ended, belong to no replica any more, and have contributions that wait
     * for a version; in order of id. */
    uint64_t *late;
    size_t n_late;
    const struct round_rec *rounds;
    size_t n_rounds;
    const struct grid_rec *grids;
    size_t n_grids;
    struct job_trace trace; /* (m) */
    uint64_t metric_n;      /* n of the newest metric */
    uint64_t metric_points; /* loss points in the store */
    /* Trainers' own numbers, JOB_NUMBERS_MAX at most; values (m): the newest of any replica. */
    struct metric_number *numbers;
    size_t n_numbers;
    bool numbers_refused; /* (m) there were more, and that was logged */
    bool rows_refused;    /* (m) the same of rows */
    uint64_t bytes_up, bytes_down, shard_bytes_down;
    uint64_t steps_done;    /* inner steps of all accepted phases */
    uint64_t steps_skipped; /* of those, steps without an update */
    uint64_t phases_done;   /* accepted phases */
    uint64_t samples_done;  /* trained on by accepted phases */
    uint64_t waited_ms;     /* time in which accepted phases waited for the network */
    uint64_t trained_ms;    /* the rest of their time */
    /* (m) Bytes of contributions and deltas per second: in the present one, and the maximum. */
    uint64_t second, second_bytes, peak_bytes;
    float loss, eval_loss;        /* newest; NAN */
    uint32_t leases;              /* (m) leases of its tasks: state_set_task_state() counts them */
    bool points_new, metrics_new; /* (m) the row must be written with the points, the metrics */
    bool loss_changed;            /* (m) a replica's has: the job's must be computed again */
    struct job_times phase_gaps;  /* (m) ms between progress of phases */
    struct job_times begin_ms;    /* (m) from a lease to its first progress */
    struct job_times phase_ms;    /* (m) durations of phases, from lease to report */
    /* (m) Changes for persist_changes(). */
    struct row_mark row;
    struct marks modules_edited, paths_edited, shards_edited, rows_edited, grids_gone, rounds_gone;
    size_t classes_saved, bad_saved, scores_saved,
        encoders_saved; /* how many rows, from the first on, are queued */
    bool scores_dropped, rounds_edited;
};

/* Steps of JOB_FINISHING: each begins when the last one's tasks are done. */
enum job_finishing {
    FINISHING_EVAL,
    FINISHING_DRAW,  /* samples, the mixture's losses, scores for routing */
    FINISHING_ROUTE, /* how much routing improves the loss */
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

/* Makes modules, paths and replicas from j->comp, and the quota from j->spec; *next_module is the
 * id of the first module. */
void job_build(struct job *j, uint64_t *next_module);
void job_free(struct job *j);

/* Marks the job to fail: the first reason counts, and an ended job stays as it is.  Its tasks stay
 * open until flow.c ends it in a turn, which the caller has to schedule. */
void job_doom(struct job *j, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* ---- for writing --------------------------------------------------------- */

struct module_rec *job_edit_module(struct job *j, const struct module_rec *m);
struct path_rec *job_edit_path(struct job *j, uint32_t path);
struct replica_rec *job_edit_replica(struct job *j, uint32_t path, uint32_t replica);
/* For writing fields marked (m) only: nothing is marked as edited. */
static inline struct replica_rec *job_replica_memory(struct job *j, uint32_t path, uint32_t replica)
{
    return (struct replica_rec *)&j->paths[path].replicas[replica];
}
struct shard_rec *job_edit_shard(struct job *j, size_t n);
void job_add_late(struct job *j, uint64_t task);
void job_drop_late(struct job *j, uint64_t task);
/* Sorts shards from `first` on by source (stable). */
void job_order_shards(struct job *j, size_t first);
/* Appends a zeroed record to j->shards; NULL at JOB_SHARDS_MAX. */
struct shard_rec *job_add_shard(struct job *j);
static inline void job_note_time(struct job_times *t, uint64_t ms)
{
    t->ms[t->n++ % (sizeof(t->ms) / sizeof(t->ms[0]))] = ms;
}
/* of(ms, n) over the times kept; computed again only after another one was noted. */
uint64_t job_time_of(struct job_times *t, uint64_t (*of)(const uint64_t *ms, size_t n));
/* Appends to j->classes. */
void job_add_class(struct job *j, const char *name, uint64_t samples);
/* Forgets the classes from number n on. */
void job_drop_classes(struct job *j, size_t n);
/* Forgets the shards of the archives, by number in data.url, for which `of` is true. */
void job_drop_shards(struct job *j, const bool *of);
/* If there is no room for it, nobody knows any more who they all are. */
void job_add_maker(struct job *j, uint64_t origin);
/* Forgets this one. */
void job_drop_maker(struct job *j, unsigned n);
/* Drops the newest shards, from this generation on. */
void job_drop_generation(struct job *j, uint32_t generation);
/* Takes back what was counted of an archive cut by one of this origin: images without a caption,
 * and bad samples without a name. */
void job_uncount_archive(struct job *j, uint64_t origin, uint64_t uncaptioned, uint64_t unnamed);
void job_add_encoder(struct job *j, const struct encoder_file *f);
/* Keeps the name of a bad sample; false at JOB_BAD_MAX. */
bool job_add_bad(struct job *j, const char *shard, const char *key, const char *reason,
                 uint64_t said);
/* The index in j->places of workers of this origin.  A new one takes over the oldest's, with what
 * that has said, if there are JOB_PLACES_MAX. */
unsigned job_place(struct job *j, uint64_t origin);
/* How many bad samples count against the job for a worker of this place: all that were told of
 * since we started, except what only one other place has said (the one that has said most). */
uint64_t job_bad_for(const struct job *j, unsigned place);
void job_add_score(struct job *j, const struct score_rec *r);
void job_drop_scores(struct job *j);
/* Adds r, or replaces the row of the same kind, path and name.  If there are JOB_ROWS_MAX others, a
 * row from the place that has most makes room; false: r's own place has about as many. */
bool job_put_row(struct job *j, const struct row_rec *r);
/* The trainer's number of this name, added if it is new.  If there are JOB_NUMBERS_MAX others, one
 * from the place that has most makes room for one from `by` (worker_origin(); 0: unknown).  NULL:
 * the name does not consist of A-Z a-z 0-9 . _ -, or that place has about as many. */
struct metric_number *job_number(struct job *j, const char *name, uint64_t by);
/* How many round records are kept: 1,024, or 16 per path if that is more, up to JOB_ROUNDS_MAX. */
size_t job_rounds_max(const struct job *j);
/* The oldest makes room. */
void job_add_round(struct job *j, const struct round_rec *r);
/* Keeps only the newest n. */
void job_keep_rounds(struct job *j, size_t n);
struct round_rec *job_edit_round(struct job *j, size_t n);
/* Takes g->text.  The oldest makes room at JOB_SAMPLES_MAX: the caller drops its blob. */
const struct grid_rec *job_add_grid(struct job *j, const struct grid_rec *g);

/* ---- the data ------------------------------------------------------------ */

const struct module_rec *job_module(const struct job *j, uint64_t id);
/* Whether a path of this partition trains on the shard. */
bool job_shard_trains(const struct job *j, const struct shard_rec *s, uint32_t partition);
/* Whether the shard is held out, in this partition or in all of them. */
bool job_shard_evaluates(const struct job *j, const struct shard_rec *s, uint32_t partition);
/* Replaces a partition's ledger by a new one over the shards of the job's generation.  -EINVAL:
 * there are no samples. */
int job_make_ledger(struct job *j, uint32_t partition, struct err *err);

#endif
