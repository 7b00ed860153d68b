#include "coordinator/job/cost.h"

#include "common/base/clock.h"

#define HOUR_MS 3600000.0

/* Since its time was reckoned with last, in ms.  Of a worker that was loaded only the wall clock
 * tells. */
static double elapsed(const struct coordinator *co, const struct worker *w)
{
    const int64_t wall = (int64_t)clock_wall_ms() - w->since_unix_ms;
    if (w->since_ms != 0)
        return (double)(core_now(co) - w->since_ms);
    return w->since_unix_ms != 0 && wall > 0 ? (double)wall : 0;
}

static double dollars(const struct coordinator *co, const struct worker *w)
{
    return w->price * elapsed(co, w) / HOUR_MS;
}

/* The job that the worker waits for, if that goes on. */
static struct job *waits_for(const struct coordinator *co, const struct worker *w)
{
    struct job *j = w->served ? state_job(&co->state, w->served) : NULL;
    return j != NULL && !job_is_ended(j) ? j : NULL;
}

static struct job *works_for(const struct coordinator *co, const struct worker *w)
{
    const struct task *t = w->task_id ? state_task(&co->state, w->task_id) : NULL;
    return t != NULL ? state_job(&co->state, t->job_id) : NULL;
}

void cost_reckon(struct coordinator *co, struct worker *w, uint64_t next)
{
    struct job *work = works_for(co, w), *wait = waits_for(co, w);
    if (work != NULL)
        work->cost.work += dollars(co, w);
    else if (wait != NULL || (wait = state_job(&co->state, next)) != NULL)
        wait->cost.waiting += dollars(co, w);
    w->since_ms = core_now(co);
    w->since_unix_ms = (int64_t)clock_wall_ms();
    w->served = next ? next : w->served;
}

void cost_join(struct coordinator *co, struct worker *w, double price)
{
    if (w->state == WORKER_HERE)
        cost_reckon(co, w, 0);
    w->since_ms = core_now(co);
    w->since_unix_ms = (int64_t)clock_wall_ms();
    w->price = price > 0 && price <= COST_PRICE_MAX ? price : 0;
}

void cost_job_ends(struct coordinator *co, const struct job *j)
{
    for (size_t i = 0; i < co->state.n_workers; i++) {
        const struct worker *w = co->state.workers[i];
        if (w->state == WORKER_HERE && w->task_id == 0 && w->served == j->id)
            cost_reckon(co, state_edit_worker(&co->state, w), 0);
    }
}

void cost_of(const struct coordinator *co, const struct job *j, struct cost *ret)
{
    *ret = (struct cost){.work = j->cost.work, .waiting = j->cost.waiting};
    for (size_t i = 0; i < co->state.n_workers; i++) {
        const struct worker *w = co->state.workers[i];
        const bool works = w->task_id != 0 && works_for(co, w) == j;
        if (w->state != WORKER_HERE || (!works && (w->task_id != 0 || waits_for(co, w) != j)))
            continue;
        *(works ? &ret->work : &ret->waiting) += dollars(co, w);
        ret->per_hour += w->price;
        ret->workers++;
        ret->unpriced += w->price <= 0;
    }
}
