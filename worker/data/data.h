/* The data pipeline of a phase: from ranges of samples in shards on disk to batches, of images
 * (images.h) or of text (text.h).
 *
 *    ranges ──a permutation inside every window, by (seed, pass)──► order ──► batches
 *
 * The batches depend only on the ranges and the options, not on threads or timing.  A sample
 * that cannot be used is counted, named and skipped; the next one in the order takes its
 * place.  One thread at a time. */
#ifndef WORKER_DATA_DATA_H
#define WORKER_DATA_DATA_H

#include "common/base/base.h"
#include "worker/net/batch.h"

struct data;

#define DATA_BAD_MAX 64             /* most bad samples that are named; others are only counted */
#define DATA_SAMPLES_MAX (1u << 24) /* positions of one pass over the ranges */

/* A run of consecutive samples of a shard that lies in a local file. */
struct data_range {
    const char *path; /* borrowed while opening */
    uint8_t sha256[32];
    uint32_t start, count;
    int32_t partition; /* partition of the data: the label of a router */
};

/* The order of the samples. */
struct data_order {
    bool shuffle;      /* else in the order of the ranges (evaluation) */
    bool repeat;       /* start a new pass, in another order, when one ends */
    bool may_be_empty; /* a single pass in which all samples are bad is no error */
    uint64_t seed;
    /* Shuffle within runs of this many positions, so that after n windows
     * exactly the first n * window samples of the ranges were used.
     * 0: over all ranges.  Texts may get longer runs (data_window). */
    uint32_t window;
};

struct data_bad {
    uint8_t shard_sha256[32];
    char key[257]; /* name of the sample in the shard */
    char reason[257];
};

/* The next batch, borrowed until the next call; count 0 at the end.  -ERR_CONFIG: a whole pass had
 * no good sample. */
int data_next(struct data *d, struct batch *ret, struct err *err);

/* Starts at an earlier result of data_position(), to resume in the middle of a phase.
 * Only before the first data_next(). */
int data_seek(struct data *d, uint64_t position, struct err *err);

/* Positions used so far in all passes, bad samples included. */
uint64_t data_position(const struct data *d);

/* Positions of one pass. */
uint64_t data_total(const struct data *d);

/* Positions that are shuffled together, as data_order.window. */
uint32_t data_window(const struct data *d);

/* Returns the number of bad samples in the first pass so far; the first *ret_named of them
 * are in *ret_list, each once, in order, borrowed. */
unsigned data_bad(const struct data *d, const struct data_bad **ret_list, unsigned *ret_named);

void data_free(struct data *d); /* accepts NULL */

/* A sample's name, the same on every machine: 48 bits of the shard's hash, and the
 * index in it. */
uint64_t data_sample_id(const uint8_t shard_sha256[32], uint32_t index);

/* A number for a sample's content, whatever shard it is in: so an evaluation draws the same time
 * and noise for it before and after the data are split. */
uint64_t data_content_key(const uint8_t *data, size_t len);

/* The number of the caption drawn for a sample, uniform over 0..n-1 (n > 0): a function of the
 * seed, the sample's name in its dataset and the pass, the same on every machine and in any shard.
 */
unsigned caption_draw(uint64_t seed, const char *name, uint64_t pass, unsigned n);

#endif
