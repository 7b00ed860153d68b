/* Several networks of one shape on a device, within a bound on memory: activations once,
 * weights of as many as fit.  When a batch wants more of them, those that are loaded run
 * first; then each of the others takes the place of the one used longest ago.
 *
 * Compute thread. */
#ifndef WORKER_EXPERTS_H
#define WORKER_EXPERTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/dtype.h"
#include "proto/skerry.pb-c.h"
#include "worker/net/mix.h"
#include "worker/net/model.h"
#include "worker/net/net.h"

struct engine;
struct err;
struct experts;
struct work;

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

/* How often weights were loaded; how many fit at once. */
unsigned experts_loads(const struct experts *x);
int experts_room(const struct experts *x);

/* Is a list of experts in a message usable?  remote: their modules may be missing. */
int experts_validate(Skerry__V1__Expert *const *list, size_t n, bool remote, const char *field,
                     struct err *err);

/* Those of a task, from module files in the cache.  Expert k of the set is the one of
 * partition k: -ERR_FORMAT unless list has each of 0..n-1 once. */
struct task_experts {
    struct experts *experts;
    struct model *model;
    struct work *w;
    const Skerry__V1__Expert *by_partition[MIX_EXPERTS_MAX];
    int count;
    bool silent;       /* neither tells people nor stops with the task: a rank but the first */
    const char *doing; /* "drawing": what people are told, with the expert; NULL: nothing */
};
/* *t must stay where it is.  memory_bytes 0: half of what the engine may keep. */
int task_experts_order(struct task_experts *t, struct work *w, Skerry__V1__Expert *const *list,
                       size_t n, struct err *err);
int task_experts_open(struct task_experts *t, struct engine *e, struct device *dev, int batch,
                      uint64_t memory_bytes, struct err *err);
void task_experts_close(struct task_experts *t); /* { 0 } is fine */

#endif
