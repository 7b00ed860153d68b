/* FEATURE, CLUSTER, SPLIT and SCORE: divide the data into partitions. */
#ifndef COORDINATOR_KINDS_PARTITION_H
#define COORDINATOR_KINDS_PARTITION_H

#include "coordinator/kinds/kind.h"

extern const struct kind kind_feature, kind_cluster, kind_split, kind_score;

#endif
