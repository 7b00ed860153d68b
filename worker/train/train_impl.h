/* The inside of a trainer, for its three files: train.c makes steps, train_list.c their lists, and
 * train_vectors.c reads and writes the vectors. */
#ifndef WORKER_TRAIN_IMPL_H
#define WORKER_TRAIN_IMPL_H

#include "worker/net/arena.h"
#include "worker/train/train.h"

/* Results of a step on the device; the host reads the first two. */
enum {
    FOUND_SQUARES, /* squares of the whole gradient: the sum of those below */
    FOUND_LOSS,    /* sum of the losses */
    FOUND_TENSORS, /* squares of each tensor's gradient, in table order */
};

/* The step as one graph.  The first step of a shape runs operation by operation, which makes
 * everything that is made at first use; the second is recorded; later steps launch the graph. */
struct recording {
    struct graph *graph;
    bool known, off;   /* `last` is set; nothing can be recorded */
    unsigned asked;    /* steps since the last recording that one could have been made of */
    struct batch last; /* the last step's; its pointers may dangle */
};

/* The lists of a step. */
struct step_lists {
    struct pipe_schedule schedule;
    int micros;      /* micro-batches; 0: there are no lists yet */
    int *sizes;      /* (batch) samples of each micro-batch */
    unsigned filled; /* samples of the next step whose frozen work fills the bubbles */
};

/* The network on which F, B and W of a chain work. */
struct trainer_chain {
    struct net *net; /* NULL: the trainer has no part of it */
    struct model_part part;
    int depth; /* blocks of the whole chain */
};

#define STEP_KINDS_MAX 256 /* shapes and sizes of micro-batches that are remembered */

struct trainer {
    struct train_options opt;
    const struct model *m;
    struct device *dev;
    const struct kernel_ops *ops;
    struct net *net;
    struct weights *w; /* net's */
    uint64_t step, total_steps, adam_step;
    double done; /* trainer_set_done() */

    bool with_peers;
    struct train_peers peers;
    void *losses; /* (peers.batch, losses of a sample) device: those of the whole step */
    const struct train_part *parts; /* (n_parts) the parts that it stands for */
    int n_parts;                    /* 0: it stands for itself only */
    const struct model *whole;      /* m, or the model of the pipeline */
    struct train_share share;       /* of m's flat vector, in adam_m and adam_v */

    struct pipe_plan plan;                         /* micro-batches and estimate: this step's */
    struct step_lists lists[2];                    /* for steps without and with an estimate */
    double fill_share;                             /* share of bubbles to fill */
    int device;                                    /* number of its device in the plan */
    struct trainer_chain chains[COSTS_CHAINS_MAX]; /* the plan's */
    int n_chains, reduced;    /* chains in which it has a part; whose gradients are summed */
    struct net_micro *micros; /* (batch) this trainer's share of each micro-batch of the step */
    int *sizes;               /* (batch) samples of each micro-batch */
    struct vec_span *spans;   /* (tensors) of the gradient, for sumsq */
    unsigned *at;             /* (batch) place of each of the trainer's samples in its copy's */
    unsigned count;           /* number of the trainer's samples */
    struct batch_held own;    /* those samples, if other trainers have the rest */
    struct trace trace;       /* of the last traced step */
    bool tracing;             /* the next step is traced */
    bool rehearses;           /* the step is computed once before, without transfers */
    bool alone;               /* that is being done */
    uint32_t kinds[STEP_KINDS_MAX]; /* ring: micro-batches that were rehearsed */
    unsigned n_kinds;
    uint64_t traced_from;  /* ns */
    trainer_pace_fn *pace; /* NULL: none */
    void *pace_arg;
    uint64_t ready_ns; /* when the instruction's inputs were there */

    uint64_t *keys;           /* (batch) host: keys of the step's samples */
    struct recording recs[2]; /* of steps without and with an estimate */

    struct inputs inputs;
    struct adamw_now *now, *d_now;
    void *found; /* host, (FOUND_TENSORS) doubles */

    struct arena arena;     /* device memory of the fields below */
    float *adam_m, *adam_v; /* the share's */
    double *d_found;        /* (FOUND_TENSORS + tensors) */
    float *clip;            /* scale of the gradient; NaN: it must not be used */
};

/* Makes the lists of a plan, filled with the frozen work of `next` samples of the next step. */
int step_schedule(const struct trainer *t, const struct pipe_plan *plan, unsigned next,
                  struct pipe_schedule *ret, struct err *err);
/* Cuts the step's samples, and makes its lists, which are the same on all ranks of a copy. */
int step_make_list(struct trainer *t, const struct batch *b, struct err *err);
bool step_has_estimate(const struct trainer *t);
/* The trainer's rank in its stage. */
int step_rank(const struct trainer *t, int chain, int stage);
/* The trainer's rank among the devices with the same layers. */
int step_rank_in_place(const struct trainer *t);
/* Whether the trainer has rehearsed no such step: of pictures of several shapes, whether it has a
 * micro-batch of another kind; of others always. */
bool step_is_new(struct trainer *t, const struct batch *b);

#endif
