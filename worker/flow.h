/* The noised image of rectified flow (Liu et al. 2022; Lipman et al. 2022), which all image
 * objectives start from:
 *
 *    x_t = (1-t) x0 + t eps,   target = eps - x0,   t = sigmoid(normal) (Esser et al. 2024)
 *                                                       or uniform, or as the batch says
 *
 *     flow_load(f, &batch, err);        draws, uploads, computes d_xt, d_target
 *     dit_forward(dit, pred, f->d_xt, f->d_t, f->d_labels, B, err);
 *
 * Time, noise and label dropout of a sample are functions of (seed, key) alone: networks
 * that share a seed and keys see the same task.  Fields without d_ are host memory. */
#ifndef WORKER_FLOW_H
#define WORKER_FLOW_H

#include <stdbool.h>
#include <stdint.h>

#include "worker/arena.h"
#include "worker/net.h"

struct err;

struct flow {
    struct device *dev;
    struct stream *stream;
    struct net_options opt;
    int image, classes; /* labels 0..classes-1; classes is null; 0: there are none */
    int64_t n;          /* values of an image */
    struct arena arena;

    float *t;        /* (B) in (0,1) */
    float *eps;      /* (B,n) */
    int32_t *labels; /* (B) null label included */

    uint8_t *d_u8;                         /* (B,S,S,3) */
    float *d_x0, *d_eps, *d_xt, *d_target; /* (B,3,S,S) */
    float *d_t;                            /* (B) */
    int32_t *d_labels;                     /* (B) */
};

/* For opt->batch images of m on the device and stream of w.  release accepts what init left
 * on failure, and { 0 }. */
int flow_init(struct flow *f, const struct weights *w, const struct net_options *opt,
              struct err *err);
void flow_release(struct flow *f);
uint64_t flow_bytes(const struct model *m, const struct net_options *opt); /* on the device */

/* Only queues work on the stream: host fields are free to write after it was waited for.
 * -EINVAL for a label that is not below classes. */
int flow_load(struct flow *f, const struct net_batch *b, struct err *err);

/* Time and noise (n) of a sample, for those who want them without images. */
float flow_time(uint64_t seed, uint64_t key, bool uniform_t);
void flow_noise(uint64_t seed, uint64_t key, float *eps, int64_t n);

#endif
