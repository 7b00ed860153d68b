/* Checks and measures a contribution before it is folded. */
#ifndef COMMON_OUTER_FOLD_CHECK_H
#define COMMON_OUTER_FOLD_CHECK_H

#include "common/outer/fold.h"

struct layout_cell;

struct fold_norm {
    double norm; /* norm of its Delta_i, without buffers */
    uint64_t samples, params, cells;
};

/* Streams one contribution: its header must agree with the layout of origin->from_full, and
 * every scale and value must be finite.  -ERR_FORMAT (or another code): it must be refused;
 * -EIO and the like: our own disk failed. */
int fold_check(const char *path, const struct fold_origin *origin, uint64_t module_id,
               struct fold_norm *ret, struct err *err);

/* The same, and writes the square of each cell's norm (layout.h), a double of this machine, into
 * the file fd from `at` on (fd -1: nowhere).  Their sum, in order, is the square of the norm to
 * the bit. */
int fold_check_cells(const char *path, const struct fold_origin *origin, uint64_t module_id, int fd,
                     uint64_t at, struct fold_norm *ret, struct err *err);
/* Checks only one cell; gives the square of its norm: the bits that fold_check_cells() writes. */
int fold_check_cell(const char *path, const struct fold_origin *origin, uint64_t module_id,
                    const struct layout_cell *cell, double *ret, struct err *err);

/* *ret = the scalar product of two contributions to a module; *ret_square = that of the other with
 * itself.  others NULL: the other is not a contribution but a file like a full version (a
 * momentum).  Both must have passed the check. */
int fold_dot(const char *path, const struct fold_origin *origin, const char *other,
             const struct fold_origin *others, uint64_t module_id, double *ret, double *ret_square,
             struct err *err);

#endif
