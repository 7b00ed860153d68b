/* The samples of a task, one row each in the order of its ranges, for FEATURE and SCORE, and the
 * sizes of their batches.  Compute thread. */
#ifndef WORKER_ROWS_H
#define WORKER_ROWS_H

#include "common/base/base.h"
#include "worker/engine/feed.h"

struct rows {
    struct work *w;
    Skerry__V1__Range *const *ranges; /* the task's */
    size_t n_ranges;
    uint64_t n, at; /* rows; the next one that a sample may be */
    uint64_t *ids;  /* (n) */
    bool *taken;    /* (n) */
};

int rows_open(struct rows *r, struct work *w, Skerry__V1__Range *const *ranges, size_t n_ranges,
              struct err *err);
void rows_close(struct rows *r); /* { 0 } is fine */

/* Takes all samples as feed_each does; of texts each row is one piece. */
int rows_each(struct rows *r, struct engine *e, const struct feed_options *opt, feed_take_fn take,
              void *arg, struct err *err);
/* The row of a sample of the batch, each once.  Batches come in order, the bad samples are left
 * out. */
int rows_find(struct rows *r, uint64_t id, uint64_t *ret, struct err *err);

/* Whether the job's data are text. */
bool rows_are_texts(const struct work *w);
/* Samples of one call: of texts, so many that they fill the device. */
unsigned rows_of_call(const struct work *w);
/* Runs of `chunk` tokens that a row of the job's texts has at most; 0 without chunks. */
uint32_t rows_columns(const struct work *w, uint32_t chunk);

#endif
