/* Held-out loss: the training loss on fixed (t, noise).
 *
 * Time and noise of a sample are functions of (seed, sample id) alone, so two
 * models, or one at two times, are compared on exactly the same task, whatever the
 * batch size, order or machine.  Labels are always given (no dropout); t is spread
 * as the job trains it. */
#ifndef WORKER_EVAL_H
#define WORKER_EVAL_H

#include <stdbool.h>
#include <stdint.h>

#include "worker/dit.h"

struct err;

struct eval_options {
    uint64_t seed;
    bool uniform_t; /* else logit-normal */
};

struct eval;

/* d is borrowed until eval_free; its batch is the micro-batch. */
int eval_new(struct dit *d, const struct eval_options *opt, struct eval **ret, struct err *err);
void eval_free(struct eval *e); /* accepts NULL */

/* losses (count) = loss of each sample; images (count,S,S,3) u8, labels and ids
 * (count) on the host; any count. */
int eval_batch(struct eval *e, const uint8_t *images, const int32_t *labels, const uint64_t *ids,
               unsigned count, float *losses, struct err *err);

#endif
