/* The samples of a phase, their order, and the bad ones: the base of the pipelines of images and
 * text, also for tasks that read samples without batches (columns, splits). */
#ifndef WORKER_DATA_DATA_SAMPLES_H
#define WORKER_DATA_DATA_SAMPLES_H

#include "common/data/shard.h"
#include "worker/data/data.h"

/* A sample: number `index` of shard `shard`. */
struct data_place {
    uint32_t shard, index;
    int32_t partition;
};

struct data_ops {
    int (*next)(struct data *d, struct batch *ret, struct err *err);
    void (*free)(struct data *d); /* closes d and frees its storage */
};

/* The first member of a pipeline. */
struct data {
    const struct data_ops *ops;
    struct data_order opt;
    bool started;  /* data_next was called */
    uint64_t head; /* position of the next sample */

    struct shard *shards; /* read-only after opening, as places is */
    uint8_t (*hashes)[32];
    size_t n_shards;
    struct data_place *places; /* in the order of the ranges */
    uint64_t total;
    uint64_t mixed;  /* leading positions that are shuffled; others lie as in the ranges */
    uint32_t *order; /* the order of `pass` */
    uint64_t pass;

    /* Bad samples: in a row up to now; of the first pass, counted and named. */
    uint64_t bad_run;
    unsigned bad_count, bad_named;
    struct data_bad bad[DATA_BAD_MAX];
};

/* d is zeroed by the caller.  Opens the shards; fails if one cannot be read or a range lies outside
 * its shard. */
int data_open(struct data *d, const struct data_ops *ops, const struct data_order *opt,
              const struct data_range *ranges, size_t n_ranges, struct err *err);
void data_close(struct data *d); /* { 0 } is fine */

/* Shuffles only so many leading positions.  Before the first batch. */
void data_mix(struct data *d, uint64_t mixed);

/* The sample at a position, which is counted over all passes.  One thread at a time. */
struct data_place data_at(struct data *d, uint64_t position);

/* Is there a sample at a position? */
static inline bool data_has(const struct data *d, uint64_t position)
{
    return d->opt.repeat || position < d->total;
}

/* Names and counts the bad sample at the head.  -ERR_CONFIG, since no worker could do it, if a
 * whole pass had no good sample: "none of the 5 <what>, e.g. ...".  The caller sets bad_run to 0 at
 * a good sample. */
int data_found_bad(struct data *d, const struct data_place *p, const char *what, const char *reason,
                   struct err *err);

#endif
