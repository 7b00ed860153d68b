/* The provenance of a version made of contributions: everything needed to make it again, as JSON.
 * Each reader takes the fields that it knows (blobs.h, audit.c, folds.c). */
#ifndef COORDINATOR_PROVENANCE_H
#define COORDINATOR_PROVENANCE_H

#include "coordinator/state/core.h"
#include "coordinator/outer/outer_exec.h"

/* The record of a step that succeeded; mem_free it. */
char *provenance_of(const struct coordinator *co, const struct outer_step *s);

/* For the next step: the norms of the last versions, by which contributions are judged; those of a
 * warm-up are raised to what they may grow to, and in fragments they do not count. */
void provenance_past(const struct job *j, const struct module_rec *m, struct outer_step *s);
/* And the files of version v that it reads, with their hashes; older releases recorded none for the
 * state. */
void provenance_inputs(const struct module_rec *m, const struct version_rec *v,
                       struct outer_step *s);

#endif
