/* Where a task's time goes, from the end of the previous task to its own: each moment counts to one
 * span, so that the spans add up to the whole.
 *
 *   ASKED -> PLANNED -> FETCHED -> BUILT -> LOADED -> STEPS <-> BETWEEN -> MADE -> SENT -> TOLD
 *   -> SAVED
 *
 * Owned by one thread at a time, like the work. */
#ifndef WORKER_TIMES_H
#define WORKER_TIMES_H

#include "common/base/base.h"

enum times_span {
    TIMES_ASKED,   /* without a task */
    TIMES_PLANNED, /* checking which blobs are here */
    TIMES_FETCHED,
    TIMES_BUILT,   /* versions made of deltas */
    TIMES_LOADED,  /* weights onto the device, data opened */
    TIMES_STEPS,   /* inner steps, including their batches */
    TIMES_BETWEEN, /* between steps: fragments, snapshots, checkpoints */
    TIMES_MADE,    /* contributions; for kinds without steps all their work */
    TIMES_SENT,
    TIMES_TOLD,  /* the report, until its answer */
    TIMES_SAVED, /* the part of the local checkpoint that did not overlap the previous two */
    TIMES_SPANS,
};

struct times {
    uint64_t at_ns; /* time before it is counted already */
    uint64_t ns[TIMES_SPANS];
};

#define TIMES_TEXT_MAX 288

/* Begins at a moment of the monotonic clock. */
void times_begin(struct times *t, uint64_t at_ns);
/* Counts the time since the last call to this span. */
void times_take(struct times *t, enum times_span span);
/* "asked 0.012 planned 0.001 ... told 0.003": seconds of spans that are not 0, in their order;
 * returns out. */
char *times_text(const struct times *t, char out[TIMES_TEXT_MAX]);

#endif
