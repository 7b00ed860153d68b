/* A trainer, between the two files of it: train.c makes its steps, train_vectors.c reads and writes
 * its vectors. */
#ifndef WORKER_TRAIN_IMPL_H
#define WORKER_TRAIN_IMPL_H

#include "worker/net/arena.h"
#include "worker/train/train.h"

/* What a step finds out on the device, and of which the host reads the first two. */
enum {
    FOUND_SQUARES, /* the gradient's: the sum of all below */
    FOUND_LOSS,    /* sum */
    FOUND_TENSORS, /* squares of each tensor's gradient, in table order */
};

/* The step as one graph.  The first step of a shape runs operation by operation, which settles
 * everything that is made at first use; the second is recorded; later ones are launches. */
struct recording {
    struct graph *graph;
    bool known, off;   /* last is there; nothing can be recorded */
    struct batch last; /* step's; what it points to may be gone */
};

/* The lists of a step: of so many micro-batches, filled with the frozen work of so many samples of
 * the next step. */
struct step_lists {
    struct pipe_schedule schedule;
    int micros; /* 0: there are none yet */
    int *sizes; /* (batch) of each micro-batch */
    unsigned filled;
};

/* What F, B and W of a chain work on. */
struct trainer_chain {
    struct net *net; /* NULL: the trainer has no part of it */
    struct model_part part;
    int depth; /* blocks of the whole chain */
};

struct trainer {
    struct train_options opt;
    const struct model *m;
    struct device *dev;
    const struct kernel_ops *ops;
    struct net *net;
    struct weights *w; /* net's */
    bool has_weights;
    uint64_t step, total_steps, adam_step;

    bool with_peers;
    struct train_peers peers;
    void *losses; /* (peers.batch, losses of a sample) device: of the whole step */
    const struct train_part *parts; /* that it stands for: (n_parts) */
    int n_parts;                    /* 0: itself alone */
    const struct model *whole;      /* m, or that of the pipeline */
    struct train_share share;       /* of m's flat vector: adam_m, adam_v, ema */

    struct pipe_plan plan;                         /* micro-batches and estimate: this step's */
    struct step_lists lists[2];                    /* of steps without an estimate, and with one */
    double fill_share;                             /* of bubbles */
    int device;                                    /* which of the plan it is */
    struct trainer_chain chains[COSTS_CHAINS_MAX]; /* of the plan; net NULL: it has no part of it */
    int n_chains, reduced;    /* chains that it has a part of; that have this step's gradients */
    struct net_micro *micros; /* (batch) of the step: this trainer's share of each micro-batch */
    int *sizes;               /* (batch) samples of each micro-batch */
    struct vec_span *spans;   /* (tensors) of the gradient, as sumsq has them */
    unsigned *at;             /* (batch) where each of the trainer's samples stands in its copy's */
    unsigned count;           /* of them */
    struct batch_held own;    /* they, where others have the rest */
    struct trace trace;       /* of the last step that had one */
    bool tracing;             /* the next step has one */
    uint64_t traced_from;     /* ns */
    trainer_pace_fn *pace;    /* NULL: none */
    void *pace_arg;
    uint64_t ready_ns; /* what the instruction waited for was there */

    uint64_t *keys;           /* (batch) host: of the step's samples */
    struct recording recs[2]; /* of steps without an estimate, and with one */

    struct inputs inputs;
    struct adamw_now *now, *d_now;
    void *found; /* host, (FOUND_TENSORS) doubles */

    struct arena arena;           /* device memory of the fields below */
    float *adam_m, *adam_v, *ema; /* of the share; ema NULL when off */
    double *d_found;              /* (FOUND_TENSORS + tensors) */
    float *clip;                  /* scale of the gradient; NaN: it must not be used */
};

#endif
