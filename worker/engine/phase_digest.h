/* The digest of a phase, so that a file saved in the middle of one is resumed in no other. */
#ifndef WORKER_PHASE_DIGEST_H
#define WORKER_PHASE_DIGEST_H

#include "common/base/hash.h"
#include "worker/order/work.h"

/* Covers everything that the phase's numbers depend on, but not the attempt, nor the steps of the
 * whole job: without rounds these are counted anew for each attempt, and a checkpoint has its own.
 * A phase that others may repeat (coordinator/job/spot_check.h) is resumed by its own release only:
 * another one may make other bits of the same samples. */
void phase_digest(const struct work *w, char ret_hex[HASH_HEX_MAX]);

#endif
