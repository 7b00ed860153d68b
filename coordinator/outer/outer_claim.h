/* An outer step that a worker has made, looked over: in some blocks of 256 elements, chosen at
 * random when the worker has told its files, the step is made again and compared bit by bit.  In
 * the cells (layout.h) around them it is the squares by which contributions are judged and, with
 * keep_norm, of which the scale is made; then some more are drawn by what is told of them.  Those
 * cells of contributions, those blocks and the headers of other files, and the squares are all that
 * is read, wherever the files are: the header of a contribution is written here, for a file of its
 * length can have no tensor elsewhere.  Blocking; any thread. */
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
 * wants it, without files and contributions.  Negative: it is not to
 * be believed, or could not be looked at, which err says; that may be the fault of what it was made
 * of, or of our store. */
int outer_claim_look(struct blobstore *store, const struct outer_step *s,
                     const struct fold_step *like, struct outer_look *ret, struct err *err);
/* Of a claimed step that was made here: has the worker something else?  Where a contribution was
 * refused or made shorter nobody can say, for he takes all as they are. */
bool outer_claim_is_false(const struct outer_step *s);

#endif
