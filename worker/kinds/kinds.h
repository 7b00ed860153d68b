/* The kinds of tasks that this worker knows (worker/order/kind.h), each in a file of its own. */
#ifndef WORKER_KINDS_H
#define WORKER_KINDS_H

#include "worker/order/kind.h"

/* Ends with NULL. */
extern const struct kind *const kinds_all[];

extern const struct kind kind_init, kind_ingest, kind_train, kind_check, kind_eval, kind_sample,
    kind_velocity, kind_feature, kind_cluster, kind_split, kind_score, kind_encode, kind_outer;
/* What takes the place of some of them where a trainer of the user's computes. */
extern const struct kind kind_external_init, kind_external_train, kind_external_eval,
    kind_external_sample;

#endif
