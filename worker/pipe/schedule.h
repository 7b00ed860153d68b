/* A step of an island as one static list of instructions per device.
 *
 *     struct pipe_plan      which device holds which layers, and the order of micro-batches
 *     schedule_make(..)     makes the lists of a plan
 *     schedule_check(..)    (check.h) checks that the lists can run, and fit
 *     simulate(..)          (simulate.h) computes when each instruction runs
 *
 * A CHAIN of layers is cut into STAGES, each on a run of devices.  A stage on r devices splits
 * each micro-batch by position: rank k has samples [k*u/r, (k+1)*u/r) of u.  Data parallelism is
 * the plan of one stage.  Each device does the micro-batches of a stage in ascending order,
 * forward, backward and weights alike, so gradients are summed in the order of one device.
 *
 *     LOAD                 loads the inputs of the step, at the beginning of the list
 *     F, B, W              forward; backward of the input; backward of the weights
 *     E                    forward without gradients, for a model's estimate
 *     SEND, RECV           queued on a stream per direction; computing goes on.  The F or B that
 *                          reads what a RECV brings waits for it; a RECV comes in the list as soon
 *                          as its buffer is free, which is before the preceding F or B
 *     FROZEN               frozen layers [from, to) over samples of the *next* step
 *     REDUCE               queued: the sum of a stage's gradients over its ranks and copies
 *     CLIP                 waits for the REDUCEs of every device: the norm is that of all gradients
 *     STEP                 the optimiser
 *
 * ORDERS.  FIFO-1F1B: a stage runs `warm` forwards, then alternates backward (with W) and
 * forward.  Split: W runs after B where it disturbs least, in as many slots as the first stage of
 * 1F1B has (zero bubble; the global norm forbids more); with two chains, wherever their stages lie.
 * Two chains: joined (all of the first, then all of the second, one flush), bidirectional (the
 * second chain's stages lie on the devices in reverse), or divided (each chain on devices of its
 * own, both at the same time, one flush).
 *
 * PIPES.  R copies are R equal pipelines; a schedule is that of each of them. */
#ifndef WORKER_SCHEDULE_H
#define WORKER_SCHEDULE_H

#include "worker/pipe/costs.h"

#define PIPE_STAGES_MAX COSTS_DEVICES_MAX

enum pipe_order {
    PIPE_DATA, /* one stage */
    PIPE_1F1B, /* with two chains: joined */
    PIPE_SPLIT,
    PIPE_DIVIDED, /* from here on: only for two chains */
    PIPE_BIDIRECTIONAL,
    PIPE_ORDERS,
};

struct pipe_stage {
    int from, to;        /* layers [from, to) */
    int device, devices; /* first device, and number of devices */
    int warm;            /* most micro-batches after F and before B; joined: of both chains */
    int slots;           /* most of this chain after F and before W: memory is planned for them */
};

struct pipe_cut {
    int n; /* stages, from the input to the loss */
    struct pipe_stage stages[PIPE_STAGES_MAX];
    int micros;
    int samples;      /* samples of a micro-batch */
    const int *sizes; /* (micros) samples of each, borrowed, if they differ; NULL: `samples` */
};

struct pipe_plan {
    enum pipe_order order;
    int variant;         /* number of the list, for an order that is found by trying */
    int chains, devices; /* devices: of one copy */
    int copies;
    bool shard; /* the ranks of a stage divide its moments; each has all master weights */
    /* Self-conditioning, of the first chain: all micro-batches run through a pipeline once more,
     * before the step and without gradients, and the results go back to the first stage, whose F
     * waits for them. */
    bool estimate;
    bool bare[COSTS_DEVICES_MAX]; /* no frozen network lies on the device: others run them */
    struct pipe_cut cuts[COSTS_CHAINS_MAX];
};

/* The name of its order; that of two chains one after the other is "joined". */
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

/* What SEND and RECV carry: states to the next stage, gradients to the one before, the results of
 * frozen layers to the stages that read them, velocities from the last stage to the first. */
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

/* The instructions of a device; those of all devices of a copy. */
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
 * the fastest.  Split has one more, SCHEDULE_EARLY: 1F1B's lists, for schedule_send_early once they
 * are filled or will not be.  p may be NULL: then all layers and passes take equal time, and links
 * are free.  -ENOMEM. */
#define SCHEDULE_VARIANTS 6
#define SCHEDULE_EARLY SCHEDULE_VARIANTS
int schedule_make(const struct costs *p, const struct pipe_plan *plan, struct pipe_schedule *ret,
                  struct err *err);
void schedule_release(struct pipe_schedule *s);
int schedule_copy(const struct pipe_schedule *s, struct pipe_schedule *ret); /* -ENOMEM */

/* Sends the result of each B before its W runs: 1F1B becomes split, and nothing runs later. */
void schedule_send_early(struct pipe_schedule *s);
/* Turns 1F1B's plan into split: W needs slots at the last stages, too, so each stage gets as many
 * as the first stage of its chain has. */
void pipe_plan_split(struct pipe_plan *plan);
/* Inserts before item `at` of device d's list.  -ENOMEM. */
int schedule_insert(struct pipe_schedule *s, int d, int at, const struct pipe_instr *in);

/* The most devices of a stage of the first chain, in one copy. */
int pipe_width(const struct pipe_plan *plan);
/* Do several devices hold the same layers? */
static inline bool pipe_shares(const struct pipe_plan *plan)
{
    return pipe_width(plan) * plan->copies > 1;
}
/* The stage of a device of a copy; -1: none, as of the other chain in a divided plan. */
int pipe_stage_of(const struct pipe_cut *cut, int device);
/* Does a chain begin there, so that captions and pictures are read there? */
bool pipe_begins(const struct pipe_plan *plan, int device);

/* The PLACES of a copy: groups of devices that hold the same layers.  With one chain these are its
 * stages; with two chains, its devices, each of which has a stage of both chains or of one. */
struct pipe_place {
    int device, devices; /* first device, and number of devices */
};
int pipe_places(const struct pipe_plan *plan);
struct pipe_place pipe_place(const struct pipe_plan *plan, int place);
int pipe_place_of(const struct pipe_plan *plan, int device);
/* Does each of two chains have devices of its own? */
bool pipe_is_divided(const struct pipe_plan *plan);

/* How many of `devices` the first of two divided chains gets, in proportion to the work of both; if
 * possible each chain gets at least one and no more than it has layers. */
int pipe_divide(int devices, const double work[2], const int layers[2]);

/* pipe_share: rank `rank` of a stage has samples [first, first+count) of a micro-batch.  pipe_most:
 * the most samples that any of r ranks has. */
void pipe_share(const struct pipe_cut *cut, int stage, int rank, int micro, int *first, int *count);
static inline int pipe_most(int samples, int r)
{
    return (samples + r - 1) / r;
}

/* Seconds at speed 1 and bytes of a run of layers, for a step of `micros` micro-batches of
 * `samples` samples.  w is a mean: all micro-batches but the first add to earlier gradients. */
struct pipe_cost {
    double f, b, w, step;
    uint64_t slot, split, weights, state, gradients;
};
struct pipe_cost pipe_layer_cost(const struct costs *p, int chain, int layer, int micros,
                                 int samples);
void pipe_cost_add(struct pipe_cost *sum, const struct pipe_cost *one);
struct pipe_cost pipe_stage_cost(const struct costs *p, const struct pipe_plan *plan, int chain,
                                 int stage);

/* A run of layers on a device, whose bytes are asked for. */
struct pipe_part {
    int chain, from, to; /* layers [from, to) */
    int device;
    int samples; /* of a micro-batch, here */
    int load;    /* of the copy's step; with data parallelism of the device's */
    int slots;   /* with those of pipe_ahead */
    bool split;
    int sharers; /* ranks that divide its state */
};
struct pipe_bytes {
    uint64_t model; /* weights, gradients, the share of the state */
    uint64_t slots;
    uint64_t beside; /* costs_beside, and what costs_workspace adds for this part */
};
struct pipe_bytes pipe_part_bytes(const struct costs *p, const struct pipe_part *part,
                                  const struct pipe_cost *cost);
/* What a device has once, whatever its stages: the operations' working memory, and where `load`
 * samples of a pipeline's step are encoded ahead, room for what the frozen networks make. */
uint64_t pipe_common_bytes(const struct costs *p, int device, int load);
/* Slots that a stage has beside those of its micro-batches in flight: on a card one, into which the
 * next arrives while another is computed. */
static inline int pipe_ahead(enum costs_kind kind, const struct pipe_plan *plan)
{
    return kind == COSTS_CARD && pipe_places(plan) > 1;
}
/* The speed of the slowest of a run of devices. */
double pipe_speed(const struct costs *p, int device, int devices);
/* Seconds of a ring sum over a stage's devices and all copies. */
double pipe_reduce_seconds(const struct costs *p, int device, int devices, int copies,
                           uint64_t bytes);
/* Seconds in which those that share the optimiser's state give each other the new weights: half of
 * the sum's, which moves as much again. */
double pipe_gather_seconds(const struct costs *p, int device, int devices, int copies,
                           uint64_t bytes);

#endif
