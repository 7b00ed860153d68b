/* workerd --plan JOB: what an island would do with a job's batch, for a person: one of the devices
 * of --profile FILE, which need not be here, or of --device, which are measured.  Needs no
 * coordinator. */
#ifndef WORKER_SHOW_PLAN_H
#define WORKER_SHOW_PLAN_H

#include "common/base/base.h"
#include "worker/pipe/costs.h"

/* Prints a line per order of the planner (planner.h): its time, its bubbles before and after, what
 * fills them, memory, or why not; then the chosen one's stages, the reason, and what each device
 * holds.  What a worker of such devices reads of the job counts: train.batch (an expert's share),
 * accumulate, parallel, stages, pipeline, fill, shard, recompute, and model.self_condition.
 * Negative: a file cannot be read, submit would refuse the job, the profile is of another model,
 * the model is one that is not cut, or there is no plan. */
int show_plan(const char *job_path, const char *profile_path, FILE *out, struct err *err);
/* Is that a job that can be planned?  Before its costs are measured. */
int show_plan_check(const char *job_path, struct err *err);
/* Of costs that name says where they are from. */
int show_plan_of(const char *job_path, const char *name, const struct costs *p, FILE *out,
                 struct err *err);

#endif
