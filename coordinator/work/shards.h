/* The samples of a job: how many there are, whether they suffice, and the ledgers over them.
 * Nothing here reads a shard: its counts came with it. */
#ifndef COORDINATOR_SHARDS_H
#define COORDINATOR_SHARDS_H

#include "coordinator/state/core.h"

#define CLUSTER_BLOBS_MAX 2048 /* features and scores of a CLUSTER task: they fit a frame */

/* Totals of some shards. */
struct shards_sum {
    uint64_t shards, samples, tokens;
};

/* Totals of the current generation: the shards on which paths of this partition train, or the held
 * out ones. */
struct shards_sum shards_sum(const struct job *j, uint32_t partition, bool holdout);
/* The number of shards of generation 0; they come first. */
size_t shards_cut(const struct job *j);
/* How many samples `steps` steps take from such shards: images, or pieces of text, of which chance
 * may demand less. */
uint64_t shards_of_steps(const struct job_spec *spec, uint32_t batch, uint64_t steps,
                         const struct shards_sum *sum);
/* Whether the dataset as it was cut suffices for the job; one sentence if not. */
int shards_check(const struct job *j, struct err *err);
/* Reserves the first training shards for fitting routers, if the job fits any. */
void shards_keep_for_routers(struct coordinator *co, struct job *j);
/* Makes the ledgers and sizes of the partitions over the current generation.  If a partition cannot
 * fill a phase, err names it and nothing has changed. */
int shards_make_ledgers(struct job *j, struct err *err);
/* Drops shards of older generations once no open task reads them. */
void shards_drop_old(struct coordinator *co, struct job *j);

#endif
