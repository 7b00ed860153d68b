/* Whether a worker keeps its lease, by its heartbeats and by its progress, both timed by our own
 * monotonic clock.
 *
 *   heartbeats     ....x..x..x......         |  LATE   |  LOST
 *   connection     open ------ closed, not back within closed_ms: LOST
 *   progress       max(progress_min_ms, 5 x the median gap) without any: LOST
 *   not begun      no progress since it got the task for 5 x the time such tasks take to begin
 *                  (or 5 heartbeats, or begin_min_ms), not proven, and an equally good worker
 *                  idles: LOST
 *   crawling       longer than such a task may take, and than 5 heartbeats, while another worker
 *                  idles: LOST, however far it claims to be; time in which we saw its data pass
 *                  does not count
 *
 * Progress only grows: steps, samples and bytes beyond those reached before, and signs that a
 * user's trainer is at work on a long step, or that pieces of a file are written, say.  The
 * activity that a worker reports is not progress; else a worker that hangs in a loop would keep its
 * lease for ever.  Pure; there is always a reason. */
#ifndef COORDINATOR_LEASE_H
#define COORDINATOR_LEASE_H

#include "common/base/base.h"

#define LEASE_REASON_MAX 256

/* Fewer bytes are not progress: a transfer moves more in 20 s, or is cut. */
#define LEASE_FLOOR_BYTES 16384

/* The furthest an attempt was seen to be.  signs: of work that goes on between two steps; a worker
 * sends them for at most an hour within one. */
struct lease_reach {
    uint64_t steps, samples, bytes, signs;
};

/* LATE is reported in the status; LOST ends the lease. */
enum lease_verdict { LEASE_UNSPECIFIED, LEASE_ALIVE, LEASE_LATE, LEASE_LOST };

struct lease_in {
    uint64_t now_ms;
    uint64_t heard_ms;      /* last request of the worker */
    uint64_t closed_ms;     /* when its connection closed; 0: open */
    uint64_t progress_ms;   /* last progress of its task; 0: it has no task */
    uint64_t median_gap_ms; /* between progress of such tasks; 0: unknown */
    uint64_t begin_ms;      /* from the lease to the first progress of such tasks; 0: unknown */
    bool unbegun;      /* no progress yet, and an equally good worker could have the task now */
    uint64_t held_ms;  /* how long it has had the task */
    uint64_t limit_ms; /* how long such a task may take, lease_limit(); 0: unknown */
    bool idle;         /* another worker could have the task now */
};

struct lease_options {
    uint32_t heartbeat_ms, lease_ms;
    uint32_t closed_ms;       /* how long a reconnect may take */
    uint32_t progress_min_ms; /* a lack of progress is not judged before this */
    uint32_t begin_min_ms;    /* the same for a task not begun that another worker could have */
};

struct lease_decision {
    enum lease_verdict verdict;
    bool stuck;        /* lost for lack of progress */
    uint64_t until_ms; /* when the verdict may worsen */
    char reason[LEASE_REASON_MAX];
};

/* How the lease stands at now_ms. */
void lease_decide(const struct lease_in *in, const struct lease_options *o,
                  struct lease_decision *ret);

/* Whether `now` is progress beyond *reached, which is raised to it. */
bool lease_progress(struct lease_reach *reached, const struct lease_reach *now);

/* How long data have passed between an attempt's worker and us at 1 Mbit/s or more, measured at our
 * own sockets from look to look.  A worker that pretends must move as much, and the total is
 * limited (LEASE_MOVED_MAX_MS). */
#define LEASE_MOVED_LOOK_MS 10000u
#define LEASE_MOVED_FLOOR 125u /* bytes per millisecond */
#define LEASE_MOVED_MAX_MS (4 * 3600000u)
struct lease_moved {
    uint64_t ms;        /* how long data passed, or had no room here, in all */
    uint64_t looked_ms; /* the last look; 0: none */
    uint64_t bytes;     /* counted at that look */
};
/* Whether another look is due. */
bool lease_moved_due(const struct lease_moved *m, uint64_t now_ms);
void lease_moved_add(struct lease_moved *m, uint64_t ms);
/* A look: `bytes` have passed so far, on open and on former connections together. */
void lease_moved_look(struct lease_moved *m, uint64_t now_ms, uint64_t bytes);

/* Median of n gaps (n <= 64), 0 when n is 0. */
uint64_t lease_median(const uint64_t *gaps, size_t n);

/* How long a task may take, by the times that n <= 64 such tasks took: twice the median, or the
 * median plus six times the median distance from it if that is more.  With fewer than three times:
 * LEASE_FEW times the longest, since other workers may be slower.  0 for n = 0. */
#define LEASE_FEW 5
uint64_t lease_limit(const uint64_t *took, size_t n);

#define LEASE_BEATS 5        /* heartbeats within which a working worker has reported a step */
#define LEASE_HOLD_MIN 3     /* this few may well be lost together */
#define LEASE_HOLD_MS 60000u /* a longer silence is no outage of ours */

/* Whether leases are held because more than LEASE_HOLD_MIN workers, and more than a third of those
 * here, are silent together: either we are cut off or they all are, so no lease is taken for
 * LEASE_HOLD_MS.  since_ms: when the silence began; 0: it has not. */
bool lease_holds(size_t silent, size_t here, uint64_t since_ms, uint64_t now_ms);

#endif
