/* Passes the samples of a task to a trainer, as they are in the shards, in portions of shared
 * memory of whole batches.  Compute thread. */
#ifndef WORKER_EXTERNAL_FEED_H
#define WORKER_EXTERNAL_FEED_H

#include "common/base/base.h"
#include "proto/trainer.pb-c.h"
#include "worker/data/data.h"
#include "worker/order/work.h"

struct external_feed;

/* order as in worker/data/data.h, of one pass; most: samples at most, 0: all. */
int external_feed_open(const struct work *w, Skerry__V1__Range *const *ranges, size_t n,
                       const struct data_order *order, uint32_t batch, uint64_t most,
                       struct external_feed **ret, struct err *err);
/* Before the first portion: skips the samples that an earlier run of the phase has passed on. */
void external_feed_seek(struct external_feed *f, uint64_t position);
void external_feed_close(struct external_feed *f); /* accepts NULL */

/* The next portion; the arrays of m are the feed's until the next call. */
int external_feed_next(struct external_feed *f, Skerry__Trainer__V1__Samples *m, int *ret_fd,
                       struct err *err);

/* What the samples are; how many there are; how many have been passed on. */
Skerry__Trainer__V1__SampleKind external_feed_kind(const struct work *w);
uint64_t external_feed_total(const struct external_feed *f);
uint64_t external_feed_position(const struct external_feed *f);

#endif
