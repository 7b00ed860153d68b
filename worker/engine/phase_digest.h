/* The name of a phase, by which what was saved in the middle of one goes on in no other. */
#ifndef WORKER_PHASE_DIGEST_H
#define WORKER_PHASE_DIGEST_H

#include "common/base/hash.h"
#include "worker/order/work.h"

/* Of everything that its numbers depend on, but not of the attempt. */
void phase_digest(const struct work *w, char ret_hex[HASH_HEX_MAX]);

#endif
