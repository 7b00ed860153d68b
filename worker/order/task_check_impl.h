/* Shared by task_check*.c: checks of pieces of a message; `field` names the piece. */
#ifndef WORKER_TASK_CHECK_IMPL_H
#define WORKER_TASK_CHECK_IMPL_H

#include <stddef.h>

#include "worker/order/task_check.h"

int task_check_count(size_t n, size_t max, const char *field, struct err *err);
/* A blob to fetch: hash, a believable size, and a ticket. */
int task_check_blob(const Skerry__V1__Blob *blob, const char *field, struct err *err);
/* Not empty. */
int task_check_ranges(Skerry__V1__Range *const *ranges, size_t n, const char *field,
                      struct err *err);

/* Which network, how it is cut, how many partitions. */
int task_check_network(const Skerry__V1__Task *t, struct err *err);

/* The stages before training (task_check_stages.c). */
int task_check_feature(const Skerry__V1__FeatureTask *t, struct err *err);
int task_check_cluster(const Skerry__V1__Task *t, struct err *err);
int task_check_split(const Skerry__V1__Task *t, struct err *err);
int task_check_score(const Skerry__V1__ScoreTask *t, struct err *err);

#endif
