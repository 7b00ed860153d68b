/* Jobs over data that nobody reads, and workers that could train, of a state without a coordinator
 * (bare.h). */
#ifndef TESTS_UNIT_COORDINATOR_OVER_DATA_H
#define TESTS_UNIT_COORDINATOR_OVER_DATA_H

#include "tests/unit/coordinator/bare.h"

static inline void make_ledger(struct job *j, uint32_t p)
{
    struct err err = {0};
    if (job_make_ledger(j, j->comp.paths[p].partition, &err) < 0)
        fail_msg("%s", err.msg);
}

/* A running job whose modules have version 0, over shards of 10 samples each. */
static inline struct job *job_of(struct coordinator *co, const char *yaml, int shards)
{
    struct job *j = add(&co->state, yaml);
    for (int i = 0; i < shards; i++)
        cut(j, "t");
    for (uint32_t p = 0; p < j->comp.n_paths && shards > 0; p++)
        make_ledger(j, p);
    for (uint32_t m = 0; m < j->comp.n_modules; m++)
        module_add_version(module_memory(&j->modules[m]), &(struct version_rec){.full.size = 1});
    return j;
}

/* Its data are divided. */
static inline void in_partitions(struct job *j)
{
    for (uint32_t i = 0; i < 9 * j->comp.n_partitions; i++)
        *job_add_shard(j) = (struct shard_rec){.blob.size = 1,
                                               .samples = 10,
                                               .tokens = 1000,
                                               .generation = 1,
                                               .partition = i % j->comp.n_partitions};
    j->generation = 1;
    for (uint32_t p = 0; p < j->comp.n_paths; p++)
        make_ledger(j, p);
}

static inline struct worker *here(struct coordinator *co)
{
    struct worker *w = state_add_worker(&co->state, 0);
    w->tasks_done = 1;
    state_set_worker_state(&co->state, w, WORKER_HERE);
    return w;
}

#endif
