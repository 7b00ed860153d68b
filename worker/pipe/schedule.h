/* A step of an island as one static list of instructions per device.
 *
 *     struct pipe_plan      who holds which layers, and in which order micro-batches go
 *     schedule_make(..)     the lists of a plan
 *     schedule_check(..)    (check.h) that the lists can run, and fit
 *     simulate(..)          (simulate.h) when each instruction runs
 *
 * A CHAIN of layers is cut into STAGES, each on a run of devices.  A stage on r devices splits
 * each micro-batch by position: rank k has samples [k*u/r, (k+1)*u/r) of u.  Data parallelism is
 * the plan of one stage.  Each device does the micro-batches of a stage in ascending order,
 * forward, backward and weights alike, so gradients are summed in the order of one device.
 *
 *     LOAD                 inputs of the step, at the list's begin
 *     F, B, W              forward; backward of the input; of the weights
 *     E                    forward without gradients, of which a model's estimate is made
 *     SEND, RECV           queued on a stream per direction; computing goes on.  The F or B that
 *                          needs what a RECV brings waits for it; a RECV stands in the list where
 *                          its buffer is free, which is before the F or B before
 *     FROZEN               frozen layers [from, to) over samples of the *next* step
 *     REDUCE               queued: the sum of a stage's gradients over its ranks and copies
 *     CLIP                 waits for the REDUCEs of every device: the gradient's norm is of all
 *     STEP                 the optimiser
 *
 * ORDERS.  FIFO-1F1B: a stage runs `warm` forwards, then alternates backward (with W) and
 * forward.  Split: W after B where it disturbs least, in as many slots as the first stage of
 * 1F1B has (zero bubble; the global norm forbids more); of two chains wherever their stages lie.
 * Two chains: joined (all of the first, then all of the second, one flush), bidirectional (the
 * second chain's stages lie on the devices in reverse), or divided (each chain on devices of its
 * own, both at the same time, one flush).
 *
 * PIPES.  R copies are R equal pipelines; a schedule is that of each of them. */
#ifndef WORKER_SCHEDULE_H
#define WORKER_SCHEDULE_H

#include "worker/pipe/costs.h"

#define PIPE_STAGES_MAX COSTS_DEVICES_MAX
#define PIPE_MICROS_MAX 1024

enum pipe_order {
    PIPE_DATA, /* one stage */
    PIPE_1F1B, /* of two chains: joined */
    PIPE_SPLIT,
    PIPE_DIVIDED, /* from here on: for two chains alone */
    PIPE_BIDIRECTIONAL,
    PIPE_ORDERS,
};

struct pipe_stage {
    int from, to;        /* layers [from, to) */
    int device, devices; /* the first, and how many */
    int warm;            /* most micro-batches, joined: of both chains, with F and without B */
    int slots;           /* most of this chain with F and without W: memory is laid out for them */
};

struct pipe_cut {
    int n; /* stages, from the input to the loss */
    struct pipe_stage stages[PIPE_STAGES_MAX];
    int micros;
    int samples;      /* of a micro-batch */
    const int *sizes; /* (micros) those of each, borrowed, where they are unlike; NULL: `samples` */
};

struct pipe_plan {
    enum pipe_order order;
    int variant;         /* of an order that is found by trying: which list */
    int chains, devices; /* devices: of one copy */
    int copies;
    bool shard; /* the ranks of a stage share its moments and master weights out */
    /* Self-conditioning, of the first chain: all micro-batches run through a pipeline once more,
     * before the step, without gradients, and what comes out goes back to the first stage, whose F
     * waits for it. */
    bool estimate;
    bool bare[COSTS_DEVICES_MAX]; /* no frozen network lies on the device: others run them */
    struct pipe_cut cuts[COSTS_CHAINS_MAX];
};

/* Of its order; that of two chains one after the other is "joined". */
const char *pipe_plan_name(const struct pipe_plan *plan);

/* Instructions, as above. */
enum pipe_op {
    PIPE_LOAD,
    PIPE_F,
    PIPE_B,
    PIPE_W,
    PIPE_E,
    PIPE_SEND,
    PIPE_RECV,
    PIPE_FROZEN,
    PIPE_REDUCE,
    PIPE_CLIP,
    PIPE_STEP,
    PIPE_OPS,
};
const char *pipe_op_name(enum pipe_op op);

/* What SEND and RECV carry: to the next stage, to the one before, to whoever wants what frozen
 * layers made, from the last stage to the first. */
enum pipe_what { PIPE_STATES, PIPE_GRADIENTS, PIPE_ENCODED, PIPE_VELOCITIES };

struct pipe_instr {
    enum pipe_op op;
    enum pipe_what what; /* SEND, RECV */
    int chain;           /* FROZEN and ENCODED: the frozen network */
    int stage, micro;
    int peer;         /* SEND, RECV: the other device */
    int first, count; /* samples: F, B, W, E, SEND, RECV of the micro-batch (F, B, W, E: may be
                       * none); FROZEN and ENCODED of the step */
    int from, to;     /* FROZEN: layers */
};

/* Those of a device; of all devices of a copy. */
struct pipe_list {
    struct pipe_instr *items;
    int n, room;
};
struct pipe_schedule {
    int n_devices;
    struct pipe_list lists[COSTS_DEVICES_MAX];
};

/* p has the devices of one copy (costs_share), and the plan keeps to the limits above.  Orders that
 * are found by trying (split, bidirectional) come in SCHEDULE_VARIANTS, of which the caller takes
 * the fastest.  Split has one more, SCHEDULE_EARLY: of which 1F1B's lists are made, for
 * schedule_send_early, once they are filled or will not be.  p may be NULL: layers are then alike,
 * their three passes, too, and links free.  -ENOMEM. */
#define SCHEDULE_VARIANTS 6
#define SCHEDULE_EARLY SCHEDULE_VARIANTS
int schedule_make(const struct costs *p, const struct pipe_plan *plan, struct pipe_schedule *ret,
                  struct err *err);
void schedule_release(struct pipe_schedule *s);
int schedule_copy(const struct pipe_schedule *s, struct pipe_schedule *ret); /* -ENOMEM */

/* Has what B made leave before W runs: 1F1B becomes split, and nothing becomes later. */
void schedule_send_early(struct pipe_schedule *s);
/* Makes split of 1F1B's plan: W needs slots at the last stages, too, so each has as many as
 * 1F1B's first one of its chain. */
void pipe_plan_split(struct pipe_plan *plan);
/* Before item `at` of device d's list.  -ENOMEM. */
int schedule_insert(struct pipe_schedule *s, int d, int at, const struct pipe_instr *in);

/* The most devices that a stage of a copy has, of the first chain. */
int pipe_width(const struct pipe_plan *plan);
/* Do several devices hold the same layers? */
static inline bool pipe_shares(const struct pipe_plan *plan)
{
    return pipe_width(plan) * plan->copies > 1;
}
/* The stage that a device of a copy is of; -1: of none, as of the other chain of a divided plan. */
int pipe_stage_of(const struct pipe_cut *cut, int device);
/* Does a chain begin there?  What it reads, captions and pictures, is wanted where it does. */
bool pipe_begins(const struct pipe_plan *plan, int device);

/* PLACES of a copy: devices that hold the same.  Of one chain these are its stages, of two its
 * devices, each of which has a stage of both chains or of one. */
struct pipe_place {
    int device, devices; /* the first, and how many */
};
int pipe_places(const struct pipe_plan *plan);
struct pipe_place pipe_place(const struct pipe_plan *plan, int place);
int pipe_place_of(const struct pipe_plan *plan, int device);
/* Has each of two chains devices of its own? */
bool pipe_is_divided(const struct pipe_plan *plan);

/* How many of `devices` the first of two divided chains has, in proportion to the work of both;
 * neither has none, or more than it has layers, where that can be. */
int pipe_divide(int devices, const double work[2], const int layers[2]);

/* Samples [first, first+count) of a micro-batch that rank `rank` of a stage has, and the most that
 * any rank of r has. */
void pipe_share(const struct pipe_cut *cut, int stage, int rank, int micro, int *first, int *count);
static inline int pipe_most(int samples, int r)
{
    return (samples + r - 1) / r;
}

/* Seconds at speed 1 and bytes of a run of layers, whose step has so many micro-batches of so many
 * samples; w is their mean, as all but the first add to gradients that are there. */
struct pipe_cost {
    double f, b, w, step;
    uint64_t slot, weights, state, gradients;
};
struct pipe_cost pipe_layer_cost(const struct costs *p, int chain, int layer, int micros,
                                 int samples);
void pipe_cost_add(struct pipe_cost *sum, const struct pipe_cost *one);
struct pipe_cost pipe_stage_cost(const struct costs *p, const struct pipe_plan *plan, int chain,
                                 int stage);

/* Bytes on a device of layers [from, to), without slots: weights and gradients, the state that
 * `sharers` ranks divide, and buffers of what crosses: two of each kind. */
uint64_t pipe_fixed_bytes(const struct costs *p, int chain, int from, int to, int samples,
                          const struct pipe_cost *cost, int sharers);
/* The slowest of a run of devices. */
double pipe_speed(const struct costs *p, int device, int devices);
/* Seconds of a sum over a stage's devices and all copies, by a ring. */
double pipe_reduce_seconds(const struct costs *p, int device, int devices, int copies,
                           uint64_t bytes);

#endif
