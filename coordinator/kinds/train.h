/* TRAIN: a phase of a replica. */
#ifndef COORDINATOR_KINDS_TRAIN_H
#define COORDINATOR_KINDS_TRAIN_H

#include "coordinator/state/core.h"
#include "proto/skerry.pb-c.h"

/* The next version of a module, for a phase that is running: answers req when the version exists,
 * when nobody works on it, or after a time limit; negative: the caller answers. */
int train_version(struct coordinator *co, struct worker *w, struct rpc_request *req,
                  const Skerry__V1__VersionRequest *m, struct err *err);

#endif
