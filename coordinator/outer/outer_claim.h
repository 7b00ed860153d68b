/* Checks samples of an outer step that a worker has made (a claimed step).
 *
 *   blocks of 256 elements   the step is made again and compared bit by bit
 *   cells (layout.h) around  the squares by which contributions are judged and, with keep_norm, of
 *                            which the scale is made, are computed again
 *
 * Both are chosen at random once the worker has named its files; with keep_norm a few more cells
 * are drawn by their claimed squares.  Besides these, only the headers and the squares are read,
 * wherever the files are.  The header of a contribution is not read but constructed: a file of its
 * length can have its tensor nowhere else.  Blocking; any thread. */
#ifndef COORDINATOR_OUTER_CLAIM_H
#define COORDINATOR_OUTER_CLAIM_H

#include "common/outer/fold.h"
#include "coordinator/outer/outer_exec.h"

#define OUTER_CLAIM_CELLS 4

struct outer_look {
    uint64_t params;
    double scale; /* the one the worker used */
};

/* Fills the norm of each contribution to a claimed step, and *ret.  like: the step in fold.h's
 * form, without files and contributions.  Negative: the claim is wrong or could not be checked; err
 * says which.  The cause may lie in the step's inputs or in our store. */
int outer_claim_look(struct blobstore *store, const struct outer_step *s,
                     const struct fold_step *like, struct outer_look *ret, struct err *err);
/* For a claimed step that was also made here: whether the worker's files differ.  False if a
 * contribution was refused or shrunk, since a worker folds all of them unchanged. */
bool outer_claim_is_false(const struct outer_step *s);

#endif
