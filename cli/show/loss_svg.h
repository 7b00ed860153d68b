/* A loss curve as SVG: every replica faint (of several paths: every path, in its colour),
 * their mean bold, held-out loss as dots. */
#ifndef CLI_LOSS_SVG_H
#define CLI_LOSS_SVG_H

#include "common/base/base.h"

struct buf;

struct loss_point {
    double step, loss;
    int path, replica; /* replica -1: held-out loss */
};

/* Points in any order; appends a complete SVG document to out (bounded by its
 * max).  Fewer than two points give a picture that says so. */
int loss_svg(const struct loss_point *points, size_t n, const char *title, struct buf *out);

#endif
