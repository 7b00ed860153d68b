/* What evil workers bring in place of results that others can make again: archives, latents,
 * versions 0, features, scores and partitions.  Where all of them are compared none may count while
 * two honest workers from other places are here. */
#ifndef TESTS_SIM_CLAIMS_H
#define TESTS_SIM_CLAIMS_H

#include "coordinator/state/task.h"

struct coordinator;

void claims_begin(void); /* a world */
void claims_end(void);
/* Is a result of this kind only noted until another worker has made the same? */
bool claims_made_again(enum task_kind kind);
/* A blob that others would make otherwise. */
void claims_add(uint64_t worker, const uint8_t sha256[32]);
/* first: what was believed meanwhile was not seen when it was. */
void claims_look(const struct coordinator *co, bool first);
/* Of all worlds: how many there were, and how many counted. */
void claims_count(uint64_t *ret_claims, uint64_t *ret_believed);

#endif
