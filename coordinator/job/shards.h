/* The samples of a job: how many there are, whether they are enough, and the ledgers over them.
 * Nothing here reads a shard: its numbers came with it. */
#ifndef COORDINATOR_SHARDS_H
#define COORDINATOR_SHARDS_H

#include "coordinator/state/core.h"

#define CLUSTER_BLOBS_MAX 2048 /* features and scores of a CLUSTER task: they fit a frame */

/* What some shards add up to. */
struct shards_sum {
    uint64_t shards, samples, tokens;
};

/* Of the current generation: what paths of this partition train on, or what is held out. */
struct shards_sum shards_sum(const struct job *j, uint32_t partition, bool holdout);
/* Shards of generation 0: they come first. */
size_t shards_cut(const struct job *j);
/* How many samples the steps take from such shards: images, or pieces of text. */
uint64_t shards_of_steps(const struct job_spec *spec, uint32_t batch, uint64_t steps,
                         const struct shards_sum *sum);
/* Is the dataset as it was cut enough for the job?  One sentence if not. */
int shards_check(const struct job *j, struct err *err);
/* Sets the first training shards aside, if the job fits routers. */
void shards_keep_for_routers(struct coordinator *co, struct job *j);
/* Ledgers and sizes of the partitions, over the current generation.  A partition that cannot
 * fill a phase is named, and nothing has changed. */
int shards_make_ledgers(struct job *j, struct err *err);
/* Lets shards of older generations go as soon as no open task reads them. */
void shards_drop_old(struct coordinator *co, struct job *j);

#endif
