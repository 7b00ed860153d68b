/* The provenance of a version made of contributions: everything needed to make it again, as JSON.
 * Each reader takes the fields that it knows (blobs.h, audit.c, folds.c). */
#ifndef COORDINATOR_PROVENANCE_H
#define COORDINATOR_PROVENANCE_H

#include "coordinator/state/core.h"
#include "coordinator/outer/outer_exec.h"

/* The record of a step that succeeded; mem_free it. */
char *provenance_of(const struct coordinator *co, const struct outer_step *s);

#endif
