/* The state of a search for planner.c, and for planner_why.c, which says why an order is not
 * possible. */
#ifndef WORKER_PLANNER_IMPL_H
#define WORKER_PLANNER_IMPL_H

#include "worker/pipe/cuts.h"
#include "worker/pipe/planner.h"

#define BEST 8 /* plans of an order that are kept for filling */

/* A timed plan. */
struct timed {
    struct pipe_plan plan;
    double bound, plain;
};

/* The fastest plans of an order, fastest first. */
struct best {
    struct timed items[BEST];
    int n;
};

struct planner {
    const struct costs *p;
    const struct planner_options *opt;
    struct err *err;
    struct costs share; /* of one copy */
    struct best best[PIPE_ORDERS];
    struct cuts_found *cuts;
    bool apart;       /* cuts leave the frozen networks room on a copy's last device */
    int fits;         /* numbers of copies and micro-batches that divide the samples */
    int data_micros;  /* those of the last data parallelism tried */
    bool fitted;      /* pipelines with these copies fit, in some number of micro-batches */
    unsigned divides; /* bits of orders for which layers, devices and samples can be divided */
    char data_why[PLANNER_WHY_MAX];
};

/* Does the job allow the order? */
static inline bool planner_asks(const struct planner *s, enum pipe_order order)
{
    return s->opt->orders == 0 || (s->opt->orders & PLANNER_BIT(order)) != 0;
}

/* Sets c->why, unless the order is possible or the reason is known. */
void planner_why_not(const struct planner *s, enum pipe_order o, struct planner_candidate *c);

#endif
