/* The epoch ledger of one partition: which samples are done, leased or pending.
 *
 *   epoch e:  the shards in an order drawn from (seed, e), as segments
 *             | done done | held by task 17 | free | held by 19 | free ... |
 *
 * take() gives a task `n` samples: first from the shards at positions p of the
 * epoch's order with p mod k == replica, then from any other; when the epoch
 * has fewer free samples the rest comes from the next one.  Samples held by a
 * task count as pending until ledger_set_leased(), as leased after it.  settle() makes
 * the first n samples of the task's ranges done and the rest free.  An epoch
 * whose samples are all done is closed: it leaves a line of figures.
 *
 * An even ledger takes from all shards in turn, a little from each in proportion to its free
 * samples, so that every stretch of a task's samples is a fair draw.  It is for shards of several
 * partitions together: taken one after the other, they would give one partition after the other.
 *
 * Every sample of an epoch is thus counted exactly once (invariant 4).  Pure:
 * no clock, no store; same calls, same ranges. */
#ifndef COORDINATOR_LEDGER_H
#define COORDINATOR_LEDGER_H

#include "common/base/base.h"

struct ledger;
struct buf;

/* Open epochs at once; a phase may go through a small dataset many times. */
#define LEDGER_EPOCHS_OPEN_MAX 4096

/* `count` samples of shard `shard` (an index into the job's shards) from `start`. */
struct ledger_range {
    uint32_t epoch, shard, start, count;
};

struct ledger_shard {
    uint32_t shard;   /* index in the job */
    uint32_t samples; /* at least 1 */
};

/* The shards of the partition; copied.  -EINVAL without any sample. */
int ledger_new(uint64_t seed, const struct ledger_shard *shards, size_t n, struct ledger **ret,
               struct err *err);
void ledger_set_even(struct ledger *l); /* before the first take */
void ledger_free(struct ledger *l);     /* accepts NULL */

/* Takes up to n samples for task `holder` (not 0, not holding any yet), in at
 * most max_ranges ranges, written to ranges in the order of use.  Fewer when
 * max_ranges or the open epochs are used up.  Returns the number of ranges. */
size_t ledger_take(struct ledger *l, uint64_t holder, uint64_t n, uint32_t replica, uint32_t k,
                   struct ledger_range *ranges, size_t max_ranges);

/* Whether a take of n samples would get n, or no task holds samples that it could give back. */
bool ledger_has(const struct ledger *l, uint64_t n);

/* The shards that a take of n samples would now come from, in the order of use, as far as the
 * open epochs go; at most max.  An even ledger has none: its takes come from all. */
size_t ledger_ahead(const struct ledger *l, uint64_t n, uint32_t replica, uint32_t k,
                    uint32_t *shards, size_t max);

/* Sets whether the samples that `holder` holds count as leased.  l may be NULL. */
void ledger_set_leased(struct ledger *l, uint64_t holder, bool leased);

/* Ends the holder's claim: the first `done` samples of these ranges (in the order of ledger_take())
 * are done, the rest free again.  -EINVAL, and nothing has changed: the ranges are not those of the
 * holder. */
int ledger_settle(struct ledger *l, uint64_t holder, const struct ledger_range *ranges, size_t n,
                  uint64_t done, struct err *err);

/* Samples of one epoch, by state. */
struct ledger_epoch {
    uint32_t epoch;
    uint64_t total, done, leased, pending;
};

/* Closed epochs are those below first_open; all their samples are done. */
uint32_t ledger_first_open(const struct ledger *l);
uint32_t ledger_open(const struct ledger *l); /* how many are open */
uint64_t ledger_room(const struct ledger *l); /* samples of the epochs that may still be opened */
/* Figures of an epoch: a closed or open one, or the first not begun. */
void ledger_figures(const struct ledger *l, uint32_t epoch, struct ledger_epoch *ret);

/* Persistence: open epochs as bytes, and back into a new ledger of the same
 * seed and shards.  Leased flags are not kept.  -ERR_FORMAT when the bytes do
 * not describe every sample exactly once. */
int ledger_save(struct ledger *l, struct buf *out);
int ledger_load(struct ledger *l, const void *data, size_t len, struct err *err);

/* The bytes changed since the last ledger_save(). */
bool ledger_dirty(const struct ledger *l);

#endif
