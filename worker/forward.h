/* A model for looking only: evaluation and sampling.  Compute thread. */
#ifndef WORKER_FORWARD_H
#define WORKER_FORWARD_H

#include "worker/dit.h"
#include "worker/model.h"
#include "worker/work.h"

struct engine;
struct err;

struct forward {
    struct model *model;
    struct dit *dit;
};

/* The path's modules on the device, for at most `batch` samples a call. */
int forward_open(struct engine *e, const struct work *w, int batch, struct forward *ret,
                 struct err *err);
void forward_close(struct forward *f); /* { 0 } is fine */

#endif
