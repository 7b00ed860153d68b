/* Plain records that are written once and shown as they are: the state keeps them in its tables,
 * events carry them, and the view passes them on. */
#ifndef COORDINATOR_RECORD_H
#define COORDINATOR_RECORD_H

#include "common/base/base.h"
#include "common/net/blobstore.h"

#define NAME_MAX_BYTES 65
#define REASON_MAX 512

/* Where a round's time went, in seconds, as the phase that ended last tells. */
struct round_parts {
    uint64_t worker;      /* that made it; 0: not known, as in a round that saw a restart */
    float begin;          /* until it was leased */
    float steps, network; /* computing; waiting for the network meanwhile */
    float rest;           /* of the phase: fetching, coding, sending, saving */
    float fold;           /* from its report to the new version */
    float behind;         /* how long after the last but one it ended */
};

/* Round r of a path made version r + 1. */
struct round_rec {
    uint32_t path, round, contributions, expected;
    float loss, eval_loss;   /* mean weighted by samples; NAN */
    float seconds;           /* from ready to the new version */
    uint64_t samples, steps; /* all replicas together */
    uint64_t bytes_up, bytes_down;
    int64_t at_unix_ms;
    bool edited; /* only in memory: its row must be queued */
    /* Only in memory: who told eval_loss (0: unknown), and whether two have. */
    bool eval_sure;
    uint64_t eval_by;
    struct round_parts parts; /* only in memory */
};

/* The result of a SAMPLE task. */
struct grid_rec {
    uint64_t task_id;
    uint32_t round, count, columns;
    uint32_t path; /* UINT32_MAX: the mixture */
    struct blob_ref blob;
    char *text; /* in place of a picture; NULL: it is a picture */
    int64_t at_unix_ms;
    bool saved; /* only in memory: its row is queued */
};

/* A record of the job's metrics; n grows by one with each, over all kinds. */
enum metric_kind { METRIC_LOSS = 1, METRIC_ROUND = 2, METRIC_EVAL = 3 };

struct metric_rec {
    uint64_t n;
    enum metric_kind kind;
    uint32_t path, replica, round;
    uint64_t step; /* LOSS: inner step of the replica.  ROUND, EVAL: the replicas' mean step at the
                    * end of the round; 0 in records of older releases */
    double loss, lr;                        /* ROUND: weighted mean; EVAL: held-out */
    double seconds;                         /* ROUND */
    uint64_t samples, bytes_up, bytes_down; /* ROUND */
    int64_t at_unix_ms;
    const struct metric_number *numbers; /* LOSS, EVAL: a trainer's own numbers */
    size_t n_numbers;
};

#define METRIC_NUMBERS_MAX 16
#define METRIC_NAME_MAX 65

/* A trainer's own number of a step or an evaluation; names consist of A-Z a-z 0-9 . _ -. */
struct metric_number {
    char name[METRIC_NAME_MAX];
    double value;
    double held_out; /* in a job only: the newest of an evaluation; value is then of a step */
    uint64_t by;     /* (m) in a job only: worker_origin() of who named it; 0: unknown */
};

typedef void (*metric_fn)(void *arg, const struct metric_rec *m);

/* A sample that could not be read. */
struct bad_sample {
    const char *shard; /* hex, or the archive's URL */
    const char *key, *reason;
};

/* Bytes that crossed the network. */
struct traffic {
    uint64_t control_up, control_down; /* RPC, seen from the workers: up = to the coordinator */
    uint64_t data_up, data_down;       /* blobs over HTTP */
};

#endif
