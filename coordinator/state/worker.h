/* The record of a worker, here or gone.  Fields marked (m) live only in memory.  Loop thread. */
#ifndef COORDINATOR_WORKER_H
#define COORDINATOR_WORKER_H

#include "common/base/list.h"
#include "coordinator/decide/schedule.h"
#include "coordinator/state/mark.h"
#include "coordinator/state/record.h"
#include "proto/skerry.pb-c.h"

struct rpc_peer;
struct rpc_request;

#define APPLIED_MAX 64    /* verdicts in one answer; while more wait, their worker gets no task */
#define VERDICTS_MAX 4096 /* verdicts that wait for one worker */
#define WORKER_SMALL_MAX 8
#define WORKER_DEVICES_MAX 64

enum worker_state {
    WORKER_UNSPECIFIED,
    WORKER_HERE, /* connected, or within the grace of a reconnect */
    WORKER_LOST, /* silent: its lease is gone */
    WORKER_LEFT, /* said good-bye */
};

/* The fate of a phase's contributions, for their sender. */
struct verdict {
    uint64_t task_id;
    uint64_t module_id; /* of the contribution; 0: those without a verdict of their own */
    bool accepted;
    bool told; /* (m) sent in an answer that the worker has not confirmed yet */
    char reason[REASON_MAX];
};

/* As DeviceState of skerry.proto, with its values for "unknown". */
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
    /* data 1f1b split bidirectional joined divided; "": unknown to us */
    const char *schedule;
    uint32_t devices, copies, stages, widest_stage, micro_batches;
    double predicted_s, measured_s;   /* 0: unknown */
    double idle_before, idle, inside; /* shares; NAN: unknown */
    char filled_with[33];
};

/* A worker's devices by its heartbeats: shown, but no decision depends on them.  Zeroed: nothing is
 * known. */
struct devices {
    struct device_state *list;
    size_t n;
    double flops, peak_flops; /* 0: unknown */
    struct step_plan plan;    /* how they share a step */
};

/* How a worker serves others of its site (rpc/neighbours.h). */
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
    bool drain; /* a person asked for it; cleared when the worker has left */
    uint32_t strikes, failures_row, tasks_done, tasks_failed;
    uint32_t doubted_folds; /* its outer steps that were rejected, wrong, or never ended */
    bool checked;           /* one of its phases was repeated elsewhere, and agreed */
    uint64_t bytes[4];      /* control up, down, data up, down: since it first joined */
    uint64_t bytes_seen[4]; /* (m) last counters of its present process */
    int64_t joined_unix_ms;
    bool has_key;             /* false: it only ever ran releases without keys */
    uint8_t key[32];          /* its key's fingerprint */
    uint64_t token_id;        /* the token that it first came with */
    int64_t revoked_unix_ms;  /* 0: not revoked */
    double price;             /* dollars per hour of its machine; 0: none given */
    uint64_t served;          /* job of its newest lease; 0: none */
    int64_t since_unix_ms;    /* the time up to which it is charged (work/cost.h) */
    uint64_t since_ms;        /* (m) the same; 0: it was loaded, and is not back */
    uint64_t task_id;         /* the lease it holds; 0: none */
    struct verdict *verdicts; /* not yet sent or confirmed; up to VERDICTS_MAX */
    unsigned n_verdicts;
    struct row_mark row;
    bool verdicts_edited; /* (m) */
    /* (m) */
    bool leaving; /* it has announced that its machine is about to be taken back */
    uint64_t joined_ms;
    bool allows_trainers;     /* it runs programs that come with jobs */
    int reads;                /* Reads of skerry.proto: it gets no task that asks more */
    uint64_t disk_room_bytes; /* of its work directory; 0: not told */
    uint64_t machine;         /* equal for workers on one machine, as they say; 0: unknown */
    struct worker_share share;
    uint32_t diverged_alone;       /* phases that only it called diverged, and others have done */
    uint32_t confirmed;            /* a bit for each kind that another made alike (agree.h) */
    uint64_t quarantined_until_ms; /* 0: not quarantined */
    uint64_t heard_ms;
    uint64_t reported_ms;       /* its last accepted result; 0: none */
    uint64_t phase_ms;          /* duration of its last phase; 0: it has done none */
    uint64_t phase_job;         /* whose that was */
    uint64_t lost_job;          /* job of a task taken from it, until it gets another; 0: none */
    uint64_t sends_ms;          /* since when it uploads files of its task; 0: it does not */
    double sends_bytes_per_s;   /* recent upload rate of results; 0: unknown */
    uint64_t points_ms;         /* time covered by its loss points at their greatest rate */
    uint64_t closed_ms;         /* when its connection closed; 0: open */
    uint64_t gone_bytes;        /* that passed on its closed data connections */
    struct rpc_peer *peer;      /* NULL: no connection */
    struct rpc_request *parked; /* its waiting ASSIGN */
    struct list parked_at;      /* in state.parked */
    uint64_t parked_until_ms;
    char activity[129];
    float throughput, loss, grad_norm;
    struct devices devices;
    struct {
        uint64_t module_id, version;
    } held[64]; /* newest held per module */
    unsigned n_held;
    bool fetches_ahead; /* it fetches modules ahead while it waits */
    bool named;         /* scratch of work/gone.h */
    struct {
        uint64_t job_id; /* 0: it was told nothing yet */
        uint32_t path;
        uint64_t version; /* of the whole file it was last told to fetch: it may hold a part */
        uint64_t told;    /* hash of what it was last told to fetch; 0: nothing */
        bool due;         /* it has not finished that, as far as we know */
    } ahead;              /* work/ahead.h */
    char waiting_for[REASON_MAX];                  /* why it has no task */
    struct schedule_small small[WORKER_SMALL_MAX]; /* tasks too large for its memory; a ring */
    unsigned n_small;                              /* ever noted of its present process */
    uint32_t device_failures;                      /* reported since we started */
};

/* For writing fields marked (m) only: nothing is marked as edited. */
static inline struct worker *worker_memory(const struct worker *w)
{
    return (struct worker *)w;
}

static inline enum failure_standing worker_standing(const struct worker *w)
{
    return failure_standing(w->tasks_done, w->failures_row, w->strikes);
}

/* Whether it takes no further task. */
static inline bool worker_goes(const struct worker *w)
{
    return w->drain || w->leaving;
}

/* Bytes of the data plane, both ways; only grows. */
static inline uint64_t worker_data_bytes(const struct worker *w)
{
    return w->bytes[2] + w->bytes[3];
}

void worker_free(struct worker *w);

/* A hash of its token and its address (of IPv6: its /64): equal for workers that may be one machine
 * under two names. */
uint64_t worker_origin(const struct worker *w);
uint64_t worker_origin_of(uint64_t token_id, const char *address);

/* Adds v, without its `told`, in place of an earlier one on the same contribution.  False: there
 * were VERDICTS_MAX, and the oldest has made room. */
bool worker_add_verdict(struct worker *w, const struct verdict *v);
/* Forgets what was said of an earlier contribution: another one has come in its place. */
void worker_drop_verdict(struct worker *w, uint64_t task_id, uint64_t module_id);
/* Those that were told, in an answer that may not have come, are to be told again. */
void worker_untell_verdicts(struct worker *w);
/* Whether any verdict was told. */
bool worker_was_told(const struct worker *w);
/* Forgets those that were told. */
void worker_confirm_verdicts(struct worker *w);

/* Fields missing in m stay unchanged; invalid values count as unknown. */
void devices_take(struct devices *d, const Skerry__V1__HeartbeatRequest *m);
/* The worker is gone: forgets its devices and their rates, but keeps how they shared a step. */
void devices_gone(struct devices *d);
/* flops / peak_flops, or NAN. */
double devices_mfu(const struct devices *d);

#endif
