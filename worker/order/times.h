/* Where the time of a task goes, from the end of the one before to its own: each moment counts to
 * one span, so that the spans add up to all of it.
 *
 *   ASKED -> PLANNED -> FETCHED -> BUILT -> LOADED -> STEPS <-> BETWEEN -> MADE -> SENT -> TOLD
 *   -> SAVED
 *
 * One thread at a time has it, as it has the work. */
#ifndef WORKER_TIMES_H
#define WORKER_TIMES_H

#include "common/base/base.h"

enum times_span {
    TIMES_ASKED,   /* without a task */
    TIMES_PLANNED, /* looked at what is here */
    TIMES_FETCHED,
    TIMES_BUILT,   /* versions out of deltas */
    TIMES_LOADED,  /* onto the device, data opened */
    TIMES_STEPS,   /* inner steps alone, their batches included */
    TIMES_BETWEEN, /* steps: fragments, snapshots, checkpoints */
    TIMES_MADE,    /* contributions; kinds without steps: all that they do */
    TIMES_SENT,
    TIMES_TOLD,  /* the report, until its answer */
    TIMES_SAVED, /* what of the local checkpoint was not beside the two before */
    TIMES_SPANS,
};

struct times {
    uint64_t at_ns; /* all before it is counted */
    uint64_t ns[TIMES_SPANS];
};

#define TIMES_TEXT_MAX 288

/* Begins at a moment of the monotonic clock. */
void times_begin(struct times *t, uint64_t at_ns);
/* What has passed since the last call counts to this span. */
void times_take(struct times *t, enum times_span span);
/* "asked 0.012 planned 0.001 ... told 0.003": seconds of spans that are not 0, in their order;
 * returns out. */
char *times_text(const struct times *t, char out[TIMES_TEXT_MAX]);

#endif
