/* The keys of a job file, for job.c and its tests. */
#ifndef COMMON_JOB_JOB_KEYS_H
#define COMMON_JOB_JOB_KEYS_H

#include "common/job/conf.h"

extern const struct conf_key job_spec_keys[];

#endif
