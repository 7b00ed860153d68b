/* Whether a worker still has its lease.  Hung is not dead: liveness is
 * heartbeats and progress, both timed by our own monotonic clock.
 *
 *   heartbeats     ....x..x..x......         |  LATE   |  LOST
 *   connection     open ------ closed, not back within closed_ms: LOST
 *   progress       max(60 s, 5 x the median gap) without any: LOST
 *   not begun      without any since it has the task for 5 x what such tasks take to begin (or 5
 *                  heartbeats, or begin_min_ms), not proven, and another worker as good idles: LOST
 *   crawling       longer than such a task may take, while another worker idles: LOST, however far
 *                  it says that it is; time in which we saw its data pass does not count
 *
 * Progress is what only grows: steps, samples and bytes beyond what was reached, and signs that a
 * trainer of the user's is at work on a long step.  What a worker says that it is doing is none, or
 * one that hangs in a loop would keep its lease for ever. Pure; the reason is shown always. */
#ifndef COORDINATOR_LEASE_H
#define COORDINATOR_LEASE_H

#include "common/base/base.h"

#define LEASE_REASON_MAX 256

#define LEASE_FLOOR_BYTES                                                                          \
    16384 /* fewer are no progress: a transfer moves more in 20 s, or is cut */

/* The most that an attempt was seen to have done.  signs: a trainer's, whose worker gives them
 * within a step for an hour at most. */
struct lease_reach {
    uint64_t steps, samples, bytes, signs;
};

/* LATE is worth a sentence in the status, LOST costs the lease. */
enum lease_verdict { LEASE_UNSPECIFIED, LEASE_ALIVE, LEASE_LATE, LEASE_LOST };

struct lease_in {
    uint64_t now_ms;
    uint64_t heard_ms;      /* last request of the worker */
    uint64_t closed_ms;     /* its connection is gone since; 0: open */
    uint64_t progress_ms;   /* last progress of its task; 0: it has none */
    uint64_t median_gap_ms; /* between progress of such tasks; 0: unknown */
    uint64_t begin_ms;      /* from a lease to the first progress of such tasks; 0: unknown */
    bool unbegun;           /* it has made none, and one that is as good could have it at once */
    uint64_t held_ms;       /* since it has the task */
    uint64_t limit_ms;      /* that such a task may take, lease_limit(); 0: unknown */
    bool idle;              /* another worker could have it at once */
};

struct lease_options {
    uint32_t heartbeat_ms, lease_ms;
    uint32_t closed_ms;       /* how long a reconnect may take */
    uint32_t progress_min_ms; /* no progress is not judged before this */
    uint32_t begin_min_ms;    /* nor, where somebody else could have the task, before this */
};

struct lease_decision {
    enum lease_verdict verdict;
    bool stuck;        /* lost for want of progress */
    uint64_t until_ms; /* when the verdict may become worse */
    char reason[LEASE_REASON_MAX];
};

/* How the lease stands at now_ms. */
void lease_decide(const struct lease_in *in, const struct lease_options *o,
                  struct lease_decision *ret);

/* Whether `now` is progress beyond what was reached, which it then is. */
bool lease_progress(struct lease_reach *reached, const struct lease_reach *now);

/* How long data have passed between an attempt's worker and us, by what our own sockets have seen:
 * 1 Mbit/s at least, from look to look.  A worker that pretends has to move as much, and not for
 * ever. */
#define LEASE_MOVED_LOOK_MS 10000u
#define LEASE_MOVED_FLOOR 125u /* bytes in a millisecond */
#define LEASE_MOVED_MAX_MS (4 * 3600000u)
struct lease_moved {
    uint64_t ms;        /* that it passed */
    uint64_t looked_ms; /* the last look; 0: none */
    uint64_t bytes;     /* seen then */
};
/* Is another look due? */
bool lease_moved_due(const struct lease_moved *m, uint64_t now_ms);
/* A look: `bytes` have passed, on the connections that are open and those before. */
void lease_moved_look(struct lease_moved *m, uint64_t now_ms, uint64_t bytes);

/* Median of n gaps (n <= 64), 0 when n is 0. */
uint64_t lease_median(const uint64_t *gaps, size_t n);

/* What a task may take that took others so long (n <= 64): twice the median, or the median and six
 * times the median distance from it where workers are unlike.  Of fewer than three LEASE_FEW times
 * the longest: others may be slower.  0 for none. */
#define LEASE_FEW 5
uint64_t lease_limit(const uint64_t *took, size_t n);

#define LEASE_BEATS 5        /* heartbeats in which somebody who works must have told of a step */
#define LEASE_HOLD_MIN 3     /* so few may well be lost together */
#define LEASE_HOLD_MS 60000u /* then it was no outage of ours */

/* More than LEASE_HOLD_MIN workers, and more than a third of those here, are silent together: then
 * we are cut off, or they all are, and no lease is taken for a while.  since_ms: when that began;
 * 0: it has not. */
bool lease_holds(size_t silent, size_t here, uint64_t since_ms, uint64_t now_ms);

#endif
