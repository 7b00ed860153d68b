/* Opens the data of a task as the job says, images (worker/data/images.h) or text
 * (worker/data/text.h), for training, evaluation and other readers of samples in order. */
#ifndef WORKER_FEED_H
#define WORKER_FEED_H

#include "common/base/base.h"
#include "worker/net/net.h"
#include "worker/order/work.h"

struct engine;
struct data;

struct feed_options {
    unsigned batch;    /* images, or rows of model.context tokens */
    unsigned side;     /* pixels of an image's side; 0: the job's, and images are cached */
    bool unlabelled;   /* images: any class is accepted */
    bool train;        /* shuffled and, as the job says, flipped; else in order */
    bool repeat;       /* start again when the ranges are used up */
    bool pieces;       /* texts: one piece per row; else packed */
    unsigned skip;     /* texts: first tokens of a piece that are no targets */
    bool may_be_empty; /* as data_order.may_be_empty */
    uint64_t seed;     /* of the order of samples */
    uint32_t window;   /* as data_order.window */
    uint64_t all_rows; /* texts: as text_options.all_rows */
    uint64_t most;     /* feed_each: samples, about; 0: all.  Images are cut, rows of texts not */
    bool keep;         /* latents are kept, though the job leaves that to us (encoders_keep) */
    bool tell_bad;     /* feed_each: adds the bad samples to w's result */
};

/* Ranges of w's task whose shards are in the cache; the caller frees the data. */
int feed_open(struct engine *e, struct work *w, Skerry__V1__Range *const *ranges, size_t n_ranges,
              const struct feed_options *opt, struct data **ret, struct err *err);

/* Takes all batches in order, each with the seed of the job's evaluations, until take fails or the
 * work is stopped; *ret_samples: how many samples there were. */
typedef int (*feed_take_fn)(void *arg, struct batch *b, struct err *err);
int feed_each(struct engine *e, struct work *w, Skerry__V1__Range *const *ranges, size_t n_ranges,
              const struct feed_options *opt, feed_take_fn take, void *arg, uint64_t *ret_samples,
              struct err *err);

/* Adds the bad samples to w's result. */
void feed_take_bad(const struct data *d, struct work *w);

#endif
