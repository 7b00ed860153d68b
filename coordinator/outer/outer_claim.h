/* An outer step that a worker has made, looked over.
 *
 *   blocks of 256 elements   the step is made again and compared bit by bit
 *   cells (layout.h) around  the squares by which contributions are judged and, with keep_norm, of
 *                            which the scale is made, are computed again
 *
 * Both are chosen at random when the worker has told its files; with keep_norm some more cells are
 * drawn by what is told of them.  Nothing else is read, wherever the files are, but the headers and
 * the squares: the header of a contribution is written here, since a file of its length can have no
 * tensor elsewhere.  Blocking; any thread. */
#ifndef COORDINATOR_OUTER_CLAIM_H
#define COORDINATOR_OUTER_CLAIM_H

#include "common/outer/fold.h"
#include "coordinator/outer/outer_exec.h"

#define OUTER_CLAIM_CELLS 4

struct outer_look {
    uint64_t params;
    double scale; /* as it was used */
};

/* Fills the norm of each contribution to a claimed step, and *ret.  like: the step as fold.h
 * wants it, without files and contributions.  Negative: the
 * claim is not to be believed, or could not be looked at; err says which.  The fault may be that of
 * the step's inputs, or of our store. */
int outer_claim_look(struct blobstore *store, const struct outer_step *s,
                     const struct fold_step *like, struct outer_look *ret, struct err *err);
/* Of a claimed step that was made here, too: did the worker make something else?  False where a
 * contribution was refused or made shorter, since a worker folds all of them as they are. */
bool outer_claim_is_false(const struct outer_step *s);

#endif
