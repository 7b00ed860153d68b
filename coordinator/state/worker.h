/* What is known of a worker, here or gone.  Fields marked (m) live in memory alone.  Loop
 * thread. */
#ifndef COORDINATOR_WORKER_H
#define COORDINATOR_WORKER_H

#include "common/base/list.h"
#include "coordinator/decide/schedule.h"
#include "coordinator/state/mark.h"
#include "coordinator/state/record.h"

struct rpc_peer;
struct rpc_request;
struct Skerry__V1__HeartbeatRequest;

#define APPLIED_MAX 64 /* verdicts that wait for one worker */
#define WORKER_SMALL_MAX 8
#define WORKER_DEVICES_MAX 64

enum worker_state {
    WORKER_UNSPECIFIED,
    WORKER_HERE, /* connected, or within the grace of a reconnect */
    WORKER_LOST, /* silent: its lease is gone */
    WORKER_LEFT, /* said good-bye */
};

/* What became of a phase's contributions, for their sender. */
struct verdict {
    uint64_t task_id;
    bool accepted;
    bool told; /* (m) in an answer that the worker has not confirmed yet */
    char reason[REASON_MAX];
};

/* As DeviceState of skerry.proto, whose marks for "unknown" it keeps. */
struct device_state {
    char name[33], model[97];
    uint64_t memory_used, memory_total;
    int32_t utilization;
    uint32_t temperature;
    float power;
    int64_t ecc_errors;
    char throttled[129], trouble[129];
};

/* As StepPlan of skerry.proto.  devices 0: nothing is known. */
struct step_plan {
    /* data 1f1b split bidirectional joined divided; "": one that we do not know */
    const char *schedule;
    uint32_t devices, copies, stages, widest_stage, micro_batches;
    double predicted_s, measured_s;   /* 0: unknown */
    double idle_before, idle, inside; /* shares; NAN: unknown */
    char filled_with[33];
};

/* What heartbeats say of a worker's devices: shown, never decided on.  Zeroed: nothing is
 * known. */
struct devices {
    struct device_state *list;
    size_t n;
    double flops, peak_flops; /* 0: unknown */
    struct step_plan plan;    /* how they share a step */
};

/* What it serves to workers of the same site (rpc/neighbours.h). */
struct worker_share {
    char site[65]; /* "": it serves nobody */
    char at[64];   /* HOST:PORT */
    uint8_t key[32];
};

struct worker {
    uint64_t id;
    uint8_t identity[16], instance[16];
    char name[NAME_MAX_BYTES], device[129], version[NAME_MAX_BYTES], address[64];
    uint64_t memory_bytes;
    uint32_t threads;
    enum worker_state state;
    char state_reason[REASON_MAX];
    bool drain; /* a person's wish: it ends when the worker has left */
    uint32_t strikes, failures_row, tasks_done, tasks_failed;
    uint32_t doubted_folds; /* outer steps of its that were not believed, wrong, or never ended */
    bool checked;           /* a phase of its was done again elsewhere, and was alike */
    uint64_t bytes[4];      /* control up, down, data up, down: since it first joined */
    uint64_t bytes_seen[4]; /* (m) last counters of this process */
    int64_t joined_unix_ms;
    bool has_key;             /* else it has come with releases before keys only */
    uint8_t key[32];          /* fingerprint of its own */
    uint64_t token_id;        /* that it first came with */
    int64_t revoked_unix_ms;  /* 0: not */
    double price;             /* dollars an hour of its machine; 0: it told none */
    uint64_t served;          /* job of its newest lease; 0: none */
    int64_t since_unix_ms;    /* up to when its time is reckoned with (job/cost.h) */
    uint64_t since_ms;        /* (m) the same; 0: it was loaded */
    uint64_t task_id;         /* the lease it holds; 0: none */
    struct verdict *verdicts; /* to be told; up to APPLIED_MAX */
    unsigned n_verdicts;
    struct row_mark row;
    bool verdicts_edited; /* (m) */
    /* (m) */
    bool leaving; /* it has said so: its machine is about to be taken back */
    uint64_t joined_ms;
    bool allows_trainers; /* programs that come with jobs may be run there */
    struct worker_share share;
    uint64_t quarantined_until_ms; /* 0: not */
    uint64_t heard_ms;
    uint64_t reported_ms;       /* its last result that was taken; 0: none */
    uint64_t phase_ms;          /* that its last phase took; 0: it has done none */
    uint64_t lost_job;          /* whose task was taken from it, and none given since; 0: none */
    uint64_t sends_ms;          /* since when it sends files of its task; 0: it does not */
    double sends_bytes_per_s;   /* lately, of results; 0: unknown */
    uint64_t points_ms;         /* until when it has told points, at their greatest rate */
    uint64_t closed_ms;         /* connection gone since; 0: open */
    uint64_t gone_bytes;        /* that passed on connections for data that are closed */
    struct rpc_peer *peer;      /* NULL: no connection */
    struct rpc_request *parked; /* its ASSIGN that waits */
    struct list parked_at;      /* in state.parked */
    uint64_t parked_until_ms;
    char activity[129];
    float throughput, loss, grad_norm;
    struct devices devices;
    struct {
        uint64_t module_id, version;
    } held[64]; /* newest held per module */
    unsigned n_held;
    bool fetches_ahead; /* what it is told to, while it waits */
    bool named;         /* job/gone.h, while that looks */
    struct {
        uint64_t job_id; /* 0: nothing was named yet */
        uint32_t path;
        uint64_t version; /* of a whole file that it was last led to: it may have a part of it */
        uint64_t told;    /* a mark of what was last named; 0: nothing */
        bool due;         /* it is not through with that, as far as we know */
    } ahead;              /* job/ahead.h */
    char waiting_for[REASON_MAX];                  /* why it has no task */
    struct schedule_small small[WORKER_SMALL_MAX]; /* what it has no memory for, ring */
    unsigned n_small;                              /* ever noted by this process of it */
    uint32_t device_failures;                      /* reported, since we started */
};

/* For fields marked (m), and no others: nothing is marked as edited. */
static inline struct worker *worker_memory(const struct worker *w)
{
    return (struct worker *)w;
}

static inline enum failure_standing worker_standing(const struct worker *w)
{
    return failure_standing(w->tasks_done, w->failures_row, w->strikes);
}

/* Takes it no other task? */
static inline bool worker_goes(const struct worker *w)
{
    return w->drain || w->leaving;
}

/* Of the data plane, both ways: only grows. */
static inline uint64_t worker_data_bytes(const struct worker *w)
{
    return w->bytes[2] + w->bytes[3];
}

void worker_free(struct worker *w);

/* Of its token and its address (of IPv6: its /64): equal for what may be one machine under two
 * names. */
uint64_t worker_origin(const struct worker *w);

/* The oldest makes room at APPLIED_MAX. */
void worker_add_verdict(struct worker *w, uint64_t task_id, bool accepted, const char *reason);
/* Were any told? */
bool worker_was_told(const struct worker *w);
/* Forgets those that were told. */
void worker_confirm_verdicts(struct worker *w);

/* What m does not say stays as it was; what makes no sense counts as unknown. */
void devices_take(struct devices *d, const struct Skerry__V1__HeartbeatRequest *m);
/* The worker is gone: its devices are not seen any more, what it reached stays known. */
void devices_gone(struct devices *d);
/* flops / peak_flops, or NAN. */
double devices_mfu(const struct devices *d);

#endif
