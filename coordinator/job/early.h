/* When an outer step is begun early (outer_early.h), and who is told of its delta.
 *
 *   TICKET with a contribution   its sender is told where the delta to the next version is sent
 *                                while it is made, if the module's steps can be begun early
 *   all contributions to the next step are here or coming       the step is begun
 *   that changes (a worker is lost, a task has another attempt)  it is stopped, and begun anew
 *   the step is decided (folds.h)                                it is taken, or has cost only time
 *
 * Of a step that was taken the delta can be fetched while it leads to the newest version, so that a
 * worker whose transfer was cut goes on in the order in which it had begun.  Then, or after a new
 * start of the coordinator, it fetches the version's delta, from its beginning.
 *
 * A step can be begun early in rounds without fragments, at a coordinator with a directory of
 * blobs, if no factor lengthens the mean, and if its contributions are large enough to take time.
 */
#ifndef COORDINATOR_EARLY_H
#define COORDINATOR_EARLY_H

#include "coordinator/state/core.h"

struct growing;

/* The lease of t announces a contribution: its sender will upload these bytes, and report them.
 * True: there is a delta to wait for, and its name among blobs. */
bool early_announce(struct coordinator *co, const struct task *t, const struct contribution *c,
                    struct blob_id *ret);
/* Begins, stops and forgets early steps.  Called in each turn in which something advances. */
void early_turn(struct coordinator *co);
/* The delta of that name, and its module: as blob_http_options.growing. */
int early_delta(void *co, const struct blob_id *id, struct growing **ret, uint64_t *ret_module_id);
/* Forgets all, when the coordinator stops. */
void early_end(struct coordinator *co);

#endif
