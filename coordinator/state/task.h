/* A task: a piece of work for a worker, or for the coordinator itself.  It has a common head, and a
 * part for its kind.  Fields marked (m) live only in memory.  Loop thread. */
#ifndef COORDINATOR_TASK_H
#define COORDINATOR_TASK_H

#include "coordinator/decide/lease.h"
#include "coordinator/decide/failure.h"
#include "coordinator/state/ledger.h"
#include "coordinator/state/mark.h"
#include "coordinator/state/record.h"

#define TASK_RANGES_MAX 4096 /* as TrainTask.ranges */
#define TASK_LABELS_MAX 1024
#define TASK_FAILURES_MAX 5 /* then an aside task has failed; another one stalls its job */
#define TASK_DIVERGED_MAX 4 /* workers remembered that call a phase diverged */
#define TASK_TEXT_MAX 65536 /* bytes of a generated text, as ReportRequest.text */

/* Same numbers as TaskKind of skerry.proto. */
enum task_kind {
    TASK_UNSPECIFIED,
    TASK_INIT,
    TASK_INGEST,
    TASK_TRAIN,
    TASK_EVAL,
    TASK_SAMPLE,
    TASK_OUTER, /* runs in the coordinator unless leased to a worker */
    TASK_FEATURE,
    TASK_CLUSTER,
    TASK_SPLIT,
    TASK_SCORE,
    TASK_VELOCITY,
    TASK_ENCODE,
    TASK_CHECK, /* repeats a phase (job/spot_check.h) */
    TASK_KINDS
};

/* What all rooms know of a kind of task; coordinator/kinds handles the tasks. */
struct task_trait {
    const char *name;
    unsigned rank; /* lower ones are given to workers first */
    bool aside;    /* aside from the training: it may fail without failing its job */
    /* Minutes a task may take while another worker idles, before such tasks' times are known. */
    unsigned most_min;
};

extern const struct task_trait task_traits[TASK_KINDS];

/* PENDING and LEASED are open, the others are ends. */
enum task_state {
    TASK_STATE_UNSPECIFIED,
    TASK_PENDING,
    TASK_LEASED,
    TASK_DONE,
    TASK_FAILED,
    TASK_CANCELLED,
};

/* A phase's update of one of its modules. */
struct contribution {
    uint64_t module_id, base_version;
    struct blob_ref blob;
    bool refused;       /* by the check of the outer step, or for coming too late */
    uint64_t samples;   /* it was trained on */
    uint64_t worker_id; /* the sender */
    uint64_t version;   /* the version it went into; 0: none yet */
    bool part;          /* a lost worker's last snapshot: codec_of_part() */
    bool resumed;       /* another worker began its phase: a fault may be that one's */
};

/* The progress of a phase at a worker, from which another one can resume (Snapshot of
 * skerry.proto). */
struct snapshot {
    uint64_t worker_id; /* the sender */
    uint32_t steps, skipped, skipped_row;
    uint64_t samples, position, used;
    double loss_sum, loss_first, loss_last, seconds;
    size_t n;
    struct snapshot_module {
        uint64_t module_id, base_version;
        struct blob_ref blob;
    } modules[]; /* by level */
};

struct task_ingest {
    uint32_t url;     /* index into data.url */
    size_t classes;   /* (m) in its result; 0: unknown, or none */
    uint64_t against; /* (m) a worker whose names of classes the others contradict; 0: none */
    uint64_t from;    /* (m) the origin of who cut it */
    uint64_t uncaptioned, unnamed; /* (m) images without a caption, bad samples without a name */
};

/* TRAIN: a phase of a replica; CHECK: a repetition of another worker's phase. */
struct task_train {
    uint32_t replica, round;
    uint64_t first_step;
    const struct contribution *contributions;
    size_t n_contributions;
    bool edited;                     /* (m) the contributions must be written */
    const struct snapshot *snapshot; /* the newest of an open phase; NULL: none */
    bool snapshot_edited;            /* (m) the snapshot must be written */
    struct blob_ref moments;         /* Adam's, after the phase; size 0: none were sent */
    uint64_t waited_ms;              /* for the network, in addition to `seconds` */
    uint64_t steps_ms;               /* (m) its inner steps alone; 0: its worker has not told */
    uint32_t phase_s;                /* (m) length of a phase bounded by time */
    bool fresh;                      /* its worker begins with the versions alone */
    uint64_t checks, after; /* CHECK: the TRAIN task, and the CHECK that differs from it; 0: none */
    uint64_t doubted_by;    /* (m) the first to fail with another worker's snapshot; 0: none */
    uint64_t diverged[TASK_DIVERGED_MAX]; /* (m) workers that call it diverged */
    unsigned n_diverged;                  /* (m) */
};

/* EVAL and SAMPLE. */
struct task_draw {
    uint32_t version; /* the version used, which equals the number of rounds behind it */
    uint32_t steps, columns, count;
    bool heun, ema, asked; /* asked: by a person, not by the schedule */
    float guidance;
    uint64_t seed;
    uint32_t *labels; /* count of them (SAMPLE) */
    /* mixture: all main paths together, with the router; task.path is the router's */
    bool mixture, remote;
    uint32_t strategy, top; /* enum job_strategy */
    float nucleus, threshold;
    char *prompt; /* texts; captioned images: the captions, one a line; NULL: none */
    /* texts */
    uint32_t tokens; /* 0: images */
    float temperature, top_p;
    char *text;      /* (m) received so far */
    size_t text_len; /* (m) at most TASK_TEXT_MAX */
    /* (m) VELOCITY tasks that the attempt has asked for */
    uint64_t questions;
};

struct task_outer {
    uint64_t module_id;
    uint32_t version; /* from which the step starts */
};

struct task_cluster {
    uint32_t pass; /* how often the job was resharded before */
    bool evaluate; /* measures the benefit of routing, at the end of the job */
};

struct task_split {
    uint32_t group; /* number of the group of shards */
};

struct task_score {
    uint32_t version;   /* the path's modules' */
    bool ema, evaluate; /* evaluate: as in task_cluster */
};

#define TASK_TOLD_MAX 2

/* What is known of the files of a result with this hash. */
struct task_look {
    uint8_t hash[32];
    enum { LOOK_NONE, LOOK_RUNS, LOOK_GOOD, LOOK_BAD } state; /* RUNS: a thread looks at them */
};

/* A result that has been made once, and waits for another worker's (coordinator/job/agree.h). */
struct task_told {
    uint64_t worker, origin;
    uint32_t attempt;
    uint8_t hash[32];
    struct blob_ref file;  /* that is compared if the hash differs; size 0: none is */
    struct task_look look; /* at it and the newest other one */
    size_t n_sizes;
    uint64_t sizes[]; /* of the partitions, in CLUSTER's */
};

struct task_velocity {
    uint32_t version;
    bool ema;
    uint64_t parent; /* the SAMPLE task that asked for it */
    struct blob_ref input;
};

struct task {
    uint64_t id, job_id;
    enum task_kind kind;
    enum task_state state;
    uint32_t attempt, failures;
    uint32_t path;      /* the path whose modules it uses; INIT: one of the network it makes */
    uint64_t worker_id; /* leased: its holder; ended: the worker that did it */
    char reason[REASON_MAX];
    struct ledger_range *ranges; /* TRAIN, CHECK, EVAL, FEATURE, SPLIT, SCORE, ENCODE */
    size_t n_ranges;
    union { /* by kind; INIT, FEATURE and ENCODE have no part of their own */
        struct task_ingest ingest;
        struct task_train train; /* TRAIN, CHECK */
        struct task_draw draw;   /* EVAL, SAMPLE */
        struct task_outer outer;
        struct task_cluster cluster;
        struct task_split split;
        struct task_score score;
        struct task_velocity velocity;
    };
    /* result */
    struct blob_ref output;
    uint32_t steps, skipped; /* skipped: of a leased phase from heartbeats */
    uint64_t samples;
    float loss_first, loss_last, loss_mean, seconds;
    int64_t made_unix_ms, ended_unix_ms;
    /* (m) of the present attempt, and of those before it */
    uint64_t ready_ms; /* since when it may be leased */
    uint64_t leased_ms, progress_ms, ended_ms;
    bool begun;                       /* it has made progress */
    bool older;                       /* a lease from before our start, or given back: when its work
                                         began is unknown */
    uint32_t slow;                    /* how often it was taken from a worker that was too slow */
    uint64_t lost_by;                 /* pending: the worker that was taken for lost with it */
    uint64_t gone;                    /* the last that was lost, or left, with it; 0: none */
    struct failure_list failed;       /* the workers that failed it */
    uint32_t own_failures;            /* of the job's program, or of steps that diverge */
    uint64_t not_before_ms;           /* back-off of all workers */
    uint32_t steps_done, steps_total; /* from heartbeats */
    uint32_t first_steps;             /* the first that it told: those of an attempt before, too */
    uint64_t first_ms;                /* when that was */
    uint64_t samples_done;
    struct lease_reach reached; /* its last progress */
    struct lease_moved moved;
    uint64_t progress_gap_ms; /* the gap after which it was last judged stuck */
    char activity[129];
    float loss;
    struct task_told *told[TASK_TOLD_MAX]; /* the kinds of coordinator/job/agree.h */
    unsigned n_told;
    struct task_look sound; /* its newest result by itself */
    bool agreed;            /* two made its result alike */
    uint64_t not_from;      /* the origin whose workers do not have it, as it is to judge them */
    struct {
        uint64_t worker_id;
        uint64_t next; /* it has told the points of smaller steps */
    } points;
    struct row_mark row;
};

/* Whether the task is aside from the training, and so may fail without failing its job. */
bool task_is_aside(const struct task *t);
/* Whether task.train is its part. */
static inline bool task_has_phase(const struct task *t)
{
    return t->kind == TASK_TRAIN || t->kind == TASK_CHECK;
}

/* The part of an EVAL or SAMPLE task; NULL for others. */
static inline const struct task_draw *task_drawing(const struct task *t)
{
    return t->kind == TASK_EVAL || t->kind == TASK_SAMPLE ? &t->draw : NULL;
}

/* Whether it is an EVAL or SAMPLE of all main paths together. */
static inline bool task_is_mixture(const struct task *t)
{
    return task_drawing(t) != NULL && t->draw.mixture;
}

/* Whether it is a sampler whose experts stay on their workers. */
static inline bool task_is_remote(const struct task *t)
{
    return t->kind == TASK_SAMPLE && t->draw.remote;
}

/* Whether it uses the EMA of the modules' weights. */
bool task_wants_ema(const struct task *t);
/* Whether it is a CLUSTER or SCORE that measures the benefit of routing, at the end of the job. */
bool task_evaluates(const struct task *t);
/* The number by which people and the store know the task, besides its path: the round of a phase, a
 * version, or the number of a URL, group or pass. */
uint32_t task_round(const struct task *t);
void task_set_round(struct task *t, uint32_t round); /* as read from the store */
/* 0 except for TRAIN and CHECK. */
uint32_t task_replica(const struct task *t);

static inline bool task_is_open(const struct task *t)
{
    return t->state == TASK_PENDING || t->state == TASK_LEASED;
}

/* Steps in the phase's newest snapshot; 0: no snapshot, or no phase. */
uint32_t task_saved_steps(const struct task *t);

/* The name in messages and the API: "TRAIN". */
const char *task_kind_name(enum task_kind k);
/* "pending". */
const char *task_state_name(enum task_state s);

/* A contribution of a TRAIN or CHECK task, for writing. */
struct contribution *task_edit_contribution(struct task *t, const struct contribution *c);
void task_add_contribution(struct task *t, const struct contribution *c);
void task_drop_contribution(struct task *t, const struct contribution *c);

/* A zeroed snapshot of n modules. */
struct snapshot *snapshot_new(size_t n);
/* Replaces the TRAIN task's snapshot; takes s, which may be NULL. */
void task_set_snapshot(struct task *t, struct snapshot *s);

/* Does it wait for a worker of another origin than those who had it? */
static inline bool task_is_elsewhere(const struct task *t)
{
    return t->not_from != 0;
}

/* For writing fields marked (m) only: nothing is marked as edited. */
static inline struct task *task_memory(const struct task *t)
{
    return (struct task *)t;
}

void task_forget_told(struct task *t);
void task_free(struct task *t);

#endif
