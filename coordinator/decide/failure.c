#include "coordinator/decide/failure.h"

#define FIRST_MS 1000u
#define OTHERS_MS 10000u /* for so long the task is kept for other workers, if any are here */
#define WORKER_MAX_MS 300000u
#define ALL_MAX_MS 30000u

enum failure_standing failure_standing(uint32_t done, uint32_t row, uint32_t strikes)
{
    if (row > 0 || (done == 0 && strikes > 0))
        return STANDING_FAILING;
    return done > 0 ? STANDING_PROVEN : STANDING_NEW;
}

static unsigned held(const struct failure_list *l)
{
    return l->n < FAILURES_MAX ? l->n : FAILURES_MAX;
}

static struct failure *record_of(struct failure_list *l, uint64_t worker)
{
    for (unsigned i = 0; i < held(l); i++)
        if (l->at[i].worker == worker)
            return &l->at[i];
    struct failure *f = &l->at[l->n++ % FAILURES_MAX];
    *f = (struct failure){.worker = worker};
    return f;
}

static uint64_t doubled(uint64_t first, uint32_t times, uint64_t most)
{
    uint64_t ms = first << (times < 20 ? times : 20);
    return ms < most ? ms : most;
}

static bool is_confirmed(const struct failure_list *l, const struct failure *own,
                         const struct failure_in *in)
{
    for (unsigned i = 0; i < held(l); i++) {
        const struct failure *f = &l->at[i];
        if (f->worker == in->worker || f->lasting_ms == 0 || in->worker > f->newest)
            continue;
        const bool apart = in->local || f->machine == 0 || f->machine != in->machine;
        if (f->token != in->token ||
            (apart && (f->origin != in->origin || (f->proven && own->proven) || !in->others_tell)))
            return true;
    }
    return in->local && in->only && in->now_ms - own->lasting_ms >= FAILURE_ALONE_MS;
}

/* So many workers have failed the task that it may be the task's fault. */
static void note_all(struct failure_list *l, const struct failure_in *in)
{
    if (l->n >= FAILURES_MAX) {
        const uint64_t until = in->now_ms + doubled(FIRST_MS, l->n - FAILURES_MAX, ALL_MAX_MS);
        l->wait_ms[STANDING_FAILING] = until;
        l->wait_ms[STANDING_NEW] = in->proven ? until : 0;
    }
    if (l->n_proven >= FAILURES_MAX)
        l->wait_ms[STANDING_PROVEN] =
            in->now_ms + doubled(FIRST_MS, l->n_proven - FAILURES_MAX, ALL_MAX_MS);
}

void failure_note(struct failure_list *l, const struct failure_in *in, struct failure_decision *ret)
{
    struct failure *f = record_of(l, in->worker);
    uint64_t wait = doubled(FIRST_MS, f->count++, WORKER_MAX_MS);
    if (in->lasting && f->lasting_ms == 0) {
        f->lasting_ms = in->now_ms;
        f->newest = in->newest;
        f->origin = in->origin;
        f->machine = in->machine;
        f->token = in->token;
        f->proven = in->standing == STANDING_PROVEN;
    }
    *ret = (struct failure_decision){.confirmed = in->lasting && is_confirmed(l, f, in)};
    if (in->others && wait < OTHERS_MS)
        wait = OTHERS_MS;
    if (in->lasting && wait < FAILURE_ALONE_MS)
        wait = FAILURE_ALONE_MS;
    if (in->program && !in->lasting && f->count == 1)
        wait = 0;
    f->until_ms = ret->worker_ms = in->now_ms + wait;
    l->n_proven += f->count == 1 && in->standing == STANDING_PROVEN;
    note_all(l, in);
}

void failure_bar(struct failure_list *l, uint64_t worker, uint64_t until_ms)
{
    record_of(l, worker)->until_ms = until_ms;
}

uint64_t failure_until(const struct failure_list *l, uint64_t worker,
                       enum failure_standing standing)
{
    uint64_t until = l != NULL ? l->wait_ms[standing] : 0;
    for (unsigned i = 0; l != NULL && i < held(l); i++)
        if (l->at[i].worker == worker && l->at[i].until_ms > until)
            until = l->at[i].until_ms;
    return until;
}

bool failure_holds(const struct failure_list *l, uint64_t now_ms)
{
    for (unsigned i = 0; l != NULL && i < STANDINGS; i++)
        if (l->wait_ms[i] > now_ms)
            return true;
    for (unsigned i = 0; l != NULL && i < held(l); i++)
        if (l->at[i].until_ms > now_ms)
            return true;
    return false;
}

uint32_t failure_count(const struct failure_list *l, uint64_t worker)
{
    for (unsigned i = 0; i < held(l); i++)
        if (l->at[i].worker == worker)
            return l->at[i].count;
    return 0;
}

bool failure_says(const struct failure_list *l, uint64_t worker)
{
    for (unsigned i = 0; i < held(l); i++)
        if (l->at[i].worker == worker)
            return l->at[i].lasting_ms != 0;
    return false;
}

bool failure_doubted(const struct failure_list *l)
{
    for (unsigned i = 0; i < held(l); i++)
        if (l->at[i].lasting_ms != 0)
            return true;
    return false;
}
