/* The samples of a phase and their order: ranges of shards, shuffled by seed,
 * window and pass.  Shared by data.c (images) and text.c; not for others.
 *
 *    ranges ──► places 0..total-1 ──a permutation inside every window──► order
 *
 * Threads: after opening, the shards and places are read-only; data_order_at is
 * for one thread at a time. */
#ifndef WORKER_DATA_ORDER_H
#define WORKER_DATA_ORDER_H

#include "common/data/shard.h"
#include "worker/data/data.h"

/* A sample: number `index` of shard `shard`. */
struct data_place {
    uint32_t shard, index;
    int32_t partition;
};

struct data_order {
    struct shard *shards;
    uint8_t (*hashes)[32];
    size_t n_shards;

    struct data_place *places; /* in the order of the ranges */
    uint64_t total;

    uint64_t seed, window; /* window 0: over all */
    bool shuffle;
    uint32_t *order; /* of `pass` */
    uint64_t pass;

    /* Bad samples: in a row, of the first pass, and which. */
    uint64_t bad_run;
    unsigned bad_count, bad_named;
    struct data_bad bad[DATA_BAD_MAX];
};

/* Opens the shards.  Fails with a sentence when one cannot be read or a range lies
 * outside of it.  seed, window and shuffle are as data_options has them. */
int data_order_open(struct data_order *o, const struct data_range *ranges, size_t n_ranges,
                    struct err *err);
void data_order_close(struct data_order *o); /* { 0 } is fine */

/* The sample at a position, passes counted on. */
struct data_place data_order_at(struct data_order *o, uint64_t position);

/* Names and counts the bad sample at a position; -ERR_FORMAT when a whole pass held not one good
 * sample: "none of the 5 <what>, e.g. ...".  A good one sets bad_run to 0. */
int data_order_bad(struct data_order *o, uint64_t position, const struct data_place *p,
                   const char *what, const char *reason, struct err *err);
/* -EINVAL when reading cannot begin at the position. */
int data_order_check_seek(const struct data_order *o, bool started, bool repeat, uint64_t position,
                          struct err *err);

#endif
