/* Several networks of one shape on a device, within a bound on memory: activations once,
 * weights of as many as fit.  When a batch wants more of them, those that are loaded run
 * first; then each of the others takes the place of the one used longest ago.
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
    int batch; /* rows of one forward; larger calls are cut, DIT_ROWS_MIN are always possible */
    enum net_precision precision;
    uint64_t memory_bytes; /* for weights; at least one network is loaded */
    void *arg;
    /* flat = the weights of an expert. */
    int (*load)(void *arg, int expert, float *flat, struct err *err);
    /* Before an expert runs: tells, and stops the run when negative.  May be NULL. */
    int (*begin)(void *arg, int expert, struct err *err);
};

/* m is borrowed, a MODEL_DIT. */
int experts_new(struct device *dev, const struct model *m, const struct experts_options *opt,
                struct experts **ret, struct err *err);
void experts_free(struct experts *x); /* accepts NULL */
/* Bytes on the device with the weights of one network loaded, at least. */
uint64_t experts_bytes(const struct model *m, int batch, enum dtype dt);

/* For mix_new.  Results depend neither on the cut into forwards nor on the order. */
struct mix_experts experts_mix(struct experts *x);

/* How often weights were loaded; how many fit at once (for tests). */
unsigned experts_loads(const struct experts *x);
int experts_room(const struct experts *x);

#endif
