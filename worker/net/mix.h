/* Experts' velocities combined by a router's weights (McAllister et al., "Decentralized
 * Diffusion Models", 2025, section 3).  With clusters S_k of the data the marginal flow is
 *
 *    u_t(x) = sum_k w_k(x, t) v_k(x, t),   w_k = p(k | x_t = x, t)
 *
 * which a router estimates; a rule picks which terms of the sum to compute.
 *
 * The pure part:  logits ─ mix_softmax ─► weights ─ mix_select ─► selected, rows sum to 1
 * The work:       rows grouped by expert, each expert run once on its group, results
 *                 added row by row in ascending order of the experts:
 *
 *    mix_run(m, x, t, labels, selected, rows, err);    each expert on the rows that want it
 *    mix_combine(m, v, selected, rows, err);           v = sum; again with other weights
 *
 * struct mix_experts hides what an expert is: a network of this process, a worker
 * elsewhere, a closed form.  Results do not depend on the grouping, as long as an
 * expert's velocity of a row does not depend on the rows beside it.
 *
 * Compute thread; the pure part any thread. */
#ifndef WORKER_MIX_H
#define WORKER_MIX_H

#include "common/base/base.h"
#include "common/job/job.h"
#include "kernels/kernels.h"

struct mix;
struct net_captions;

#define MIX_EXPERTS_MAX 256

struct mix_rule {
    enum job_strategy strategy;
    int top;         /* topk: experts kept, 1..K */
    float nucleus;   /* keeps the fewest experts that together are at least this probable */
    float threshold; /* keeps experts at least this probable; if none is, the most probable one */
};

/* The most experts, out of K, that a sample may need. */
int mix_most(const struct mix_rule *rule, int K);

/* weights (B,K) = softmax of each row of logits (B,K); may alias. */
void mix_softmax(float *weights, const float *logits, int B, int K);

/* Index of the largest of a row; the first of equal ones. */
int mix_argmax(const float *weights, int K);

/* selected (B,K) = the kept weights of each row, renormalised, and 0 for the others; may
 * alias.  Of equal weights the lower index goes first.  truth (B): the partition of each
 * row, which the oracle takes; else NULL.  In a row whose kept weights are all 0 (or not
 * finite) the first kept expert gets weight 1. */
void mix_select(const struct mix_rule *rule, float *selected, const float *weights,
                const int32_t *truth, int B, int K);

/* One expert's share of a batch. */
struct mix_call {
    int expert;
    int rows;
    int chain;                           /* of experts of two chains: 0 the base, 1 the upscaler */
    int shape;                           /* the shape of all rows (model_shape) */
    const float *x;                      /* (rows,n) on the device */
    const float *beside;                 /* as x: what an upscaler is told; else NULL */
    const float *t;                      /* (rows) on the host */
    const int32_t *labels;               /* (rows) on the host */
    const struct net_captions *captions; /* labels are their numbers; NULL: labels are classes */
    float *v;                            /* (rows,n) = on the device */
};

struct mix_experts {
    int count; /* K */
    void *arg;
    /* Carries out all of the calls, in any order.  They are sorted by expert, with one call
     * for each, and none is empty. */
    int (*run)(void *arg, const struct mix_call *calls, int n, struct err *err);
};

struct mix_options {
    struct device *dev;
    struct stream *stream; /* the stream of x and v; kept */
    int64_t values;        /* n: most values of a sample */
    int rows;              /* largest batch */
    int most;              /* most experts of a row (mix_most) */
    bool upscales;         /* the experts have two chains */
};

/* experts is copied; its arg is kept until mix_free. */
int mix_new(const struct mix_options *opt, const struct mix_experts *experts, struct mix **ret,
            struct err *err);
void mix_free(struct mix *m);                      /* accepts NULL */
uint64_t mix_bytes(const struct mix_options *opt); /* on the device */

/* Sets the captions (borrowed) whose numbers the labels of the next runs are; NULL: labels are
 * classes. */
void mix_captions(struct mix *m, const struct net_captions *captions);

/* Sets the shape (model_shape) and n of the next runs' samples; at first 0 and opt->values. */
void mix_shape(struct mix *m, int shape, int64_t n);

/* Sets the chain of the next runs and, for an upscaler, the images (rows,n) on the device that it
 * is told beside x; at first 0 and NULL. */
void mix_chain(struct mix *m, int chain, const float *beside);

/* Runs each expert on those rows of x (rows,n; device) whose want (rows,K) is above 0. */
int mix_run(struct mix *m, const float *x, const float *t, const int32_t *labels, const float *want,
            int rows, struct err *err);

/* v (rows,n; device) = the sum over experts of selected * velocity for the rows of the last
 * mix_run; selected (rows,K) may be above 0 only where want was. */
int mix_combine(struct mix *m, float *v, const float *selected, int rows, struct err *err);

#endif
