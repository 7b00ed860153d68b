/* The image pipeline of a phase: from ranges of samples in shards on disk to
 * batches of pixels, decoded ahead of the step by background threads.
 *
 *    ranges ──seeded shuffle──► order:  s7 s2 s9 s4 s1 ...        (positions)
 *                                        │  │  │  │
 *                     decode threads  ───┴──┴──┴──┘  each takes the next position
 *                                        ▼
 *                     ring of decoded samples (bounded), read in position order
 *                                        ▼
 *    data_next() on the compute thread:  batch of the next `count` good samples
 *
 * The batches depend on (ranges, seed, window, repeat, flip) alone, never on
 * the number of threads or their luck.  A sample that cannot be decoded is
 * counted, named and skipped; the next one of the order takes its place.
 *
 * data_cache keeps decoded images between phases, so that later epochs do not
 * decode again.  It has a maximum and keeps what came first: the access
 * pattern is cyclic, where replacing the oldest would never hit.
 *
 * Threads: one at a time for a data; data_cache is safe on any thread. */
#ifndef WORKER_DATA_H
#define WORKER_DATA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "worker/net/batch.h"

struct err;
struct data;
struct data_cache;

#define DATA_CHANNELS 3
#define DATA_THREADS_MAX 64
#define DATA_BAD_MAX 64             /* bad samples that are named; more are only counted */
#define DATA_SAMPLES_MAX (1u << 24) /* positions of one pass over the ranges */

/* A run of consecutive samples of a shard that lies in a local file. */
struct data_range {
    const char *path; /* borrowed by data_open */
    uint8_t sha256[32];
    uint32_t start, count;
    int32_t partition; /* of the data: the label of a router */
};

struct data_options {
    unsigned image_size; /* pixels of a side; images are cropped and scaled to it */
    unsigned batch;      /* samples of a batch */
    unsigned threads;    /* decode threads, 0 = 1 */
    unsigned classes;    /* a sample of a higher class is bad; 0: any is fine */
    bool flip;           /* mirror half of the samples, by (seed, pass, sample id) */
    bool shuffle;        /* else in the order of the ranges (evaluation) */
    bool repeat;         /* start a new pass, with another order, when one ends */
    uint64_t seed;
    /* Shuffle within runs of this many positions, so that after n windows
     * exactly the first n * window samples of the ranges were used.
     * 0: over all ranges. */
    uint32_t window;
    /* May be NULL; must outlive the data.  A cache holds one image size at a
     * time: data_open with another size empties it. */
    struct data_cache *cache;
};

struct data_bad {
    uint8_t shard_sha256[32];
    char key[257]; /* name of the sample in the shard */
    char reason[257];
};

/* Opens the shards' indexes and starts the threads.  Fails with a sentence
 * when a shard cannot be read or a range lies outside of it. */
int data_open(const struct data_options *opt, const struct data_range *ranges, size_t n_ranges,
              struct data **ret, struct err *err);

/* Waits for the next batch, borrowed until the next call; its keys are
 * data_content_key()s, NULL when shuffled (training).  -ERR_FORMAT when a whole pass held not one
 * good sample. */
int data_next(struct data *d, struct batch *ret, struct err *err);

/* Starts at what data_position() said once, to resume in the middle of a phase.
 * Only before the first data_next(). */
int data_seek(struct data *d, uint64_t position, struct err *err);

/* Positions used so far, bad samples included, passes counted on. */
uint64_t data_position(const struct data *d);

/* Samples of one pass. */
uint64_t data_total(const struct data *d);

/* Bad samples met so far in the first pass, in order.  Returns how many; the
 * first *ret_named of them are in *ret_list, borrowed. */
unsigned data_bad(const struct data *d, const struct data_bad **ret_list, unsigned *ret_named);

void data_free(struct data *d); /* joins the threads; accepts NULL */

/* The same name for the same sample on every machine: 48 bits of the shard's
 * hash and the index in it. */
uint64_t data_sample_id(const uint8_t shard_sha256[32], uint32_t index);

/* A number for what a sample is, in whatever shard it lies: an evaluation draws the same for
 * it before and after the data were split. */
uint64_t data_content_key(const uint8_t *data, size_t len);

/* At most max_bytes of decoded pixels. */
int data_cache_new(size_t max_bytes, struct data_cache **ret, struct err *err);
void data_cache_free(struct data_cache *c);    /* accepts NULL */
size_t data_cache_bytes(struct data_cache *c); /* held now; for tests */

#endif
