/* Between job_keys.c (the tables) and job.c (the checks); not for others. */
#ifndef COMMON_BASE_JOB_KEYS_H
#define COMMON_BASE_JOB_KEYS_H

#include "common/job/conf.h"

extern const struct conf_key job_spec_keys[];
extern const char *const job_model_names[];
extern const char *const job_schedule_names[];
extern const char *const job_precision_names[];
extern const char *const job_t_names[];
extern const char *const job_sampler_names[];
extern const char *const job_moments_names[];
extern const char *const job_features_names[];
extern const char *const job_method_names[];
extern const char *const job_strategy_names[];

#endif
