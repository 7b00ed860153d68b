/* A network for forward passes only: evaluation, sampling, features, scores.  It is on the island's
 * first device, or, if the whole model does not fit there, in parts on all devices
 * (worker/net/net_parts.h).  Compute thread. */
#ifndef WORKER_FORWARD_H
#define WORKER_FORWARD_H

#include "common/base/base.h"
#include "worker/model/model.h"
#include "worker/net/net.h"
#include "worker/order/work.h"

struct engine;

struct forward {
    struct model *model;
    struct net *net; /* its DiT: net_dit() of image_net.h */
};

/* The task's own modules on the device, for at most `batch` samples a call. */
int forward_open(struct engine *e, struct work *w, int batch, struct forward *ret, struct err *err);

/* Any modules of one of the job's networks, in any cut that is complete. */
int forward_open_modules(struct engine *e, struct work *w, Skerry__V1__Network network,
                         Skerry__V1__ModuleRef *const *refs, size_t n_refs, int batch,
                         struct forward *ret, struct err *err);

void forward_close(struct forward *f); /* { 0 } is fine */

#endif
