/* One batch through the flow objective: from pixels, times and noise to losses and
 * the derivative of their mean.  Shared by training and evaluation.
 *
 *     flow_draw(f, i, seed, key, uniform_t);  f->labels[i] = ...     for each sample
 *     flow_run(f, images, B, 1.0f / count, err);                      losses in f->loss
 *     dit_backward(dit, f->d_dpred, f->d_labels, B, first, err);
 *
 * Fields without d_ are host memory, free to write after flow_run returned. */
#ifndef WORKER_FLOW_H
#define WORKER_FLOW_H

#include <stdbool.h>
#include <stdint.h>

#include "worker/arena.h"
#include "worker/dit.h"

struct err;

struct flow {
    struct dit *dit;
    int64_t n; /* values of an image */
    struct arena arena;

    float *t;        /* (B) in (0,1) */
    float *eps;      /* (B,n) */
    int32_t *labels; /* (B) null label included */
    float *loss;     /* (B) */

    uint8_t *d_u8;                                  /* (B,S,S,3) */
    float *d_x0, *d_eps, *d_xt, *d_target, *d_pred; /* (B,3,S,S) */
    float *d_dpred;                                 /* (B,3,S,S), or NULL without backward */
    float *d_t, *d_loss;
    int32_t *d_labels;
};

/* For the dit's batch.  release accepts what init left on failure, and { 0 }. */
int flow_init(struct flow *f, struct dit *dit, bool backward, struct err *err);
void flow_release(struct flow *f);

/* Bytes on the device. */
uint64_t flow_bytes(const struct model *m, int batch, bool backward);

/* Time and noise of slot i: functions of (seed, key) alone. */
void flow_draw(struct flow *f, int i, uint64_t seed, uint64_t key, bool uniform_t);

/* images (B,S,S,3) u8 on the host.  grad_scale multiplies the derivative of each loss. */
int flow_run(struct flow *f, const uint8_t *images, int B, float grad_scale, struct err *err);

#endif
