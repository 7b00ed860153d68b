/* The experts that a task names, loaded from module files in the cache: those of a mixture, or
 * the teachers of a distillation.  Compute thread. */
#ifndef WORKER_TASK_EXPERTS_H
#define WORKER_TASK_EXPERTS_H

#include "common/base/base.h"
#include "proto/skerry.pb-c.h"
#include "worker/net/experts.h"

struct engine;
struct work;

/* Expert k of the set is the one of partition k: -ERR_FORMAT unless list has each of 0..n-1 once.
 */
struct task_experts {
    struct experts *experts;
    struct model *model;
    struct work *w;
    const Skerry__V1__Expert *by_partition[MIX_EXPERTS_MAX];
    int count;
    bool silent;       /* neither tells people nor stops with the task: a rank but the first */
    const char *doing; /* "drawing": what people are told, with the expert; NULL: nothing */
};
/* Finds the experts' order and makes their model.  *t must stay where it is. */
int task_experts_order(struct task_experts *t, struct work *w, Skerry__V1__Expert *const *list,
                       size_t n, struct err *err);
/* memory_bytes 0: half of what the engine may keep. */
int task_experts_open(struct task_experts *t, struct engine *e, struct device *dev, int batch,
                      uint64_t memory_bytes, struct err *err);
void task_experts_close(struct task_experts *t); /* { 0 } is fine */

#endif
