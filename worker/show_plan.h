/* workerd --plan JOB --profile FILE: what an island of the profile's devices would do with a job's
 * batch, for a person.  Needs neither a coordinator nor the devices. */
#ifndef WORKER_SHOW_PLAN_H
#define WORKER_SHOW_PLAN_H

#include "common/base/base.h"

/* Prints a line per order of the planner (planner.h): its time, its bubbles before and after, what
 * fills them, memory, or why not; then the chosen one's stages and the reason.  Of the job counts
 * train.batch, and train.accumulate where it is a number.  Negative: a file cannot be read, or
 * there is no plan. */
int show_plan(const char *job_path, const char *profile_path, FILE *out, struct err *err);

#endif
