/* Several networks of one kind on a device, within a bound on memory: one set of activations,
 * and the weights of as many networks as fit.  If a batch needs more of them, the loaded ones run
 * first; then each of the others takes the place of the least recently used one.
 *
 * Compute thread. */
#ifndef WORKER_EXPERTS_H
#define WORKER_EXPERTS_H

#include "common/base/base.h"
#include "kernels/dtype.h"
#include "worker/net/mix.h"
#include "worker/model/model.h"
#include "worker/net/net.h"

struct experts;

struct experts_options {
    int count; /* 1..MIX_EXPERTS_MAX */
    int batch; /* rows of one forward, raised to DIT_ROWS_MIN; larger calls are cut */
    enum net_precision precision;
    uint64_t memory_bytes; /* bound on the weights; one network is loaded in any case */
    void *arg;
    /* Writes the weights of an expert to flat. */
    int (*load)(void *arg, int expert, float *flat, struct err *err);
    /* Called before an expert runs; a negative code stops the run.  May be NULL. */
    int (*begin)(void *arg, int expert, struct err *err);
};

/* m is borrowed: a MODEL_DIT, of one chain or two. */
int experts_new(struct device *dev, const struct model *m, const struct experts_options *opt,
                struct experts **ret, struct err *err);
void experts_free(struct experts *x); /* accepts NULL */
/* Device bytes with the weights of one network loaded, which is the least. */
uint64_t experts_bytes(const struct model *m, int batch, enum dtype dt);

/* The experts for mix_new.  Results depend neither on the cut into forwards nor on the order. */
struct mix_experts experts_mix(struct experts *x);

/* For tests: how often weights were loaded, and how many networks fit at once. */
unsigned experts_loads(const struct experts *x);
int experts_room(const struct experts *x);

#endif
