#include "coordinator/decide/lease.h"

static uint64_t since(uint64_t now, uint64_t then)
{
    return now > then ? now - then : 0;
}

static void conclude(struct lease_decision *ret, enum lease_verdict v, uint64_t until)
{
    ret->verdict = v;
    ret->stuck = false;
    ret->until_ms = until;
}

static uint64_t at_least(uint64_t ms, uint64_t least)
{
    return ms > least ? ms : least;
}

/* How long a worker may make no progress. */
static uint64_t patience(const struct lease_in *in, const struct lease_options *o)
{
    const uint64_t most = at_least(5 * in->median_gap_ms, o->progress_min_ms);
    const uint64_t least = at_least((uint64_t)LEASE_BEATS * o->heartbeat_ms, o->begin_min_ms);
    const uint64_t begin = at_least(5 * in->begin_ms, least);
    return in->unbegun && begin < most ? begin : most;
}

static void say_late(const struct lease_in *in, uint64_t silent, struct lease_decision *ret)
{
    if (in->closed_ms > in->now_ms)
        str_copy(ret->reason, sizeof(ret->reason),
                 "it has not come back since the coordinator was started again");
    else
        (void)snprintf(ret->reason, sizeof(ret->reason),
                       in->closed_ms ? "its connection was cut %.1f s ago"
                                     : "not heard of for %.1f s",
                       (double)(in->closed_ms ? since(in->now_ms, in->closed_ms) : silent) / 1e3);
}

void lease_decide(const struct lease_in *in, const struct lease_options *o,
                  struct lease_decision *ret)
{
    uint64_t silent = since(in->now_ms, in->heard_ms);
    if (in->closed_ms != 0 && since(in->now_ms, in->closed_ms) > o->closed_ms) {
        conclude(ret, LEASE_LOST, 0);
        (void)snprintf(ret->reason, sizeof(ret->reason),
                       "its connection was cut and it did not come back within %.1f s",
                       o->closed_ms / 1e3);
        return;
    }
    if (silent > o->lease_ms) {
        conclude(ret, LEASE_LOST, 0);
        (void)snprintf(ret->reason, sizeof(ret->reason), "silent for %.1f s, allowed are %.1f s",
                       (double)silent / 1e3, o->lease_ms / 1e3);
        return;
    }
    const uint64_t allowed = patience(in, o);
    uint64_t stuck = in->progress_ms ? since(in->now_ms, in->progress_ms) : 0;
    if (stuck > allowed) {
        conclude(ret, LEASE_LOST, 0);
        ret->stuck = true;
        (void)snprintf(ret->reason, sizeof(ret->reason),
                       "it answers but has made no progress for %.0f s, allowed are %.0f s%s",
                       (double)stuck / 1e3, (double)allowed / 1e3,
                       in->unbegun ? " while another worker idles" : "");
        return;
    }
    /* A phase of seconds takes twice as long as others whenever its machine has other work. */
    const uint64_t limit = at_least(in->limit_ms, (uint64_t)LEASE_BEATS * o->heartbeat_ms);
    if (in->idle && in->limit_ms != 0 && in->held_ms > limit) {
        conclude(ret, LEASE_LOST, 0);
        (void)snprintf(ret->reason, sizeof(ret->reason),
                       "it has been at work for %.1f s on what may take %.1f s, and another worker "
                       "idles",
                       (double)in->held_ms / 1e3, (double)limit / 1e3);
        return;
    }
    uint64_t until = in->heard_ms + o->lease_ms + 1;
    if (in->closed_ms != 0 && in->closed_ms + o->closed_ms + 1 < until)
        until = in->closed_ms + o->closed_ms + 1;
    if (in->progress_ms != 0 && in->progress_ms + allowed + 1 < until)
        until = in->progress_ms + allowed + 1;
    if (in->closed_ms != 0 || silent > 2u * o->heartbeat_ms) {
        conclude(ret, LEASE_LATE, until);
        say_late(in, silent, ret);
        return;
    }
    conclude(ret, LEASE_ALIVE, until);
    ret->reason[0] = '\0';
}

bool lease_moved_due(const struct lease_moved *m, uint64_t now_ms)
{
    return m->looked_ms == 0 || now_ms - m->looked_ms >= LEASE_MOVED_LOOK_MS;
}

void lease_moved_add(struct lease_moved *m, uint64_t ms)
{
    const uint64_t room = LEASE_MOVED_MAX_MS - m->ms;
    m->ms += ms < room ? ms : room;
}

void lease_moved_look(struct lease_moved *m, uint64_t now_ms, uint64_t bytes)
{
    const uint64_t ms = m->looked_ms ? now_ms - m->looked_ms : 0;
    if (bytes > m->bytes && bytes - m->bytes >= ms * LEASE_MOVED_FLOOR)
        lease_moved_add(m, ms);
    m->looked_ms = now_ms;
    m->bytes = bytes;
}

bool lease_progress(struct lease_reach *reached, const struct lease_reach *now)
{
    bool more = now->steps > reached->steps || now->samples > reached->samples ||
                now->signs > reached->signs ||
                (now->bytes > reached->bytes && now->bytes - reached->bytes >= LEASE_FLOOR_BYTES);
    if (!more)
        return false;
    if (reached->steps < now->steps)
        reached->steps = now->steps;
    if (reached->samples < now->samples)
        reached->samples = now->samples;
    if (reached->signs < now->signs)
        reached->signs = now->signs;
    reached->bytes = now->bytes;
    return true;
}

static int compare_u64(const void *a, const void *b)
{
    uint64_t x, y;
    memcpy(&x, a, sizeof(x));
    memcpy(&y, b, sizeof(y));
    return (x > y) - (x < y);
}

uint64_t lease_median(const uint64_t *gaps, size_t n)
{
    uint64_t sorted[64];
    if (n == 0)
        return 0;
    if (n > 64)
        n = 64;
    memcpy(sorted, gaps, n * sizeof(*gaps));
    qsort(sorted, n, sizeof(*sorted), compare_u64);
    return sorted[n / 2];
}

uint64_t lease_limit(const uint64_t *took, size_t n)
{
    uint64_t off[64];
    if (n < 3)
        return n == 0 ? 0 : LEASE_FEW * (n == 2 && took[1] > took[0] ? took[1] : took[0]);
    if (n > 64)
        n = 64;
    const uint64_t median = lease_median(took, n);
    for (size_t i = 0; i < n; i++)
        off[i] = took[i] > median ? took[i] - median : median - took[i];
    const uint64_t spread = 6 * lease_median(off, n);
    return median + (spread > median ? spread : median);
}

bool lease_holds(size_t silent, size_t here, uint64_t since_ms, uint64_t now_ms)
{
    return silent > LEASE_HOLD_MIN && 3 * silent > here &&
           (since_ms == 0 || since(now_ms, since_ms) < LEASE_HOLD_MS);
}
