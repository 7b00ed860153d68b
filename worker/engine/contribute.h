/* A phase's contribution to a module: the coded difference between the version with which the phase
 * began and the replica's weights, plus the residual of earlier rounds
 * (common/outer/contribution.h).  Weights on a card are coded there, others on the host, to the
 * same bytes.  Compute thread. */
#ifndef WORKER_CONTRIBUTE_H
#define WORKER_CONTRIBUTE_H

#include "common/base/base.h"
#include "common/outer/contribution.h"
#include "proto/skerry.pb-c.h"

struct model;
struct net;
struct weights;
struct work;
struct work_output;

struct contribute {
    struct work *w;                    /* a TRAIN task */
    const char *state_dir;             /* residuals */
    const Skerry__V1__ModuleRef *base; /* its file is in the cache */
    const struct model *model;
    struct weights *weights;   /* the replica's on a card, see contribute_there; or NULL: */
    const float *flat;         /* its weights; those of the module's level are read */
    contribution_read_fn read; /* in place of model and flat, of weights that lie elsewhere */
    void *read_arg;
    int threads;      /* of the CPU, for those that are not on a card; read is called by them */
    uint64_t samples; /* behind them */
    bool snapshot;    /* of a phase that goes on: finer, and without the residual */
};

/* The weights of a network that need not come to the host for it: those on a card; else NULL. */
struct weights *contribute_there(struct net *net);

/* Writes the blob into the task's temporary directory and fills *ret.  A residual that
 * does not fit is left out with a warning. */
int contribute(const struct contribute *c, struct work_output *ret, struct err *err);

#endif
