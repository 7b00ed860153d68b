/* The networks of a task, as models: sizes from the job; properties of the data and the cut from
 * the message. */
#ifndef WORKER_TASK_MODEL_H
#define WORKER_TASK_MODEL_H

#include "common/base/base.h"
#include "worker/model/model.h"
#include "worker/order/work.h"

/* The task's own network is cut as Task.levels says, the router of a mixture as
 * Mixture.router_levels says; another network is one level.  -ERR_FORMAT when levels do not hold
 * each block, the embedders and the head exactly once. */
int task_model(const struct work *w, Skerry__V1__Network network, struct model **ret,
               struct err *err);

/* Loads the files of modules, in any cut that is complete, into a flat vector of m. */
int task_load(const struct work *w, const struct model *m, Skerry__V1__ModuleRef *const *refs,
              size_t n, float *flat, struct err *err);

#endif
