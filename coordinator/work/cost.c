#include "coordinator/work/cost.h"

#include "common/base/clock.h"
#include "coordinator/work/query.h"

#define HOUR_MS 3600000.0

/* Milliseconds since the worker's time was last charged.  A worker that was loaded and is not back
 * may have ended long ago. */
static double elapsed(const struct coordinator *co, const struct worker *w)
{
    return w->since_ms != 0 ? (double)(core_now(co) - w->since_ms) : 0;
}

/* A process that was loaded is back: it has cost something during our absence, too, for which only
 * the wall clock is left. */
static void count_absence(struct coordinator *co, struct worker *w)
{
    const int64_t wall = (int64_t)clock_wall_ms() - w->since_unix_ms;
    if (w->since_ms == 0 && w->since_unix_ms != 0 && wall > 0)
        w->since_ms = core_now(co) - (uint64_t)wall; /* this clock may begin later, and wraps */
}

static double dollars(const struct coordinator *co, const struct worker *w)
{
    return w->price * elapsed(co, w) / HOUR_MS;
}

void cost_clock_set(const struct coordinator *co, struct worker *w)
{
    w->since_unix_ms = (int64_t)clock_wall_ms() - (int64_t)(core_now(co) - w->since_ms);
}

/* May a worker wait for the job: does it go on, and give out tasks? */
static bool is_waited_for(const struct coordinator *co, const struct job *j)
{
    return !job_is_ended(j) && query_withheld(&co->state, j) == NULL;
}

static bool idles_after(const struct worker *w, const struct job *j)
{
    return w->state == WORKER_HERE && w->task_id == 0 && w->served == j->id;
}

static struct job *works_for(const struct coordinator *co, const struct worker *w)
{
    const struct task *t = w->task_id ? state_task(&co->state, w->task_id) : NULL;
    return t != NULL ? state_job(&co->state, t->job_id) : NULL;
}

/* What the worker's time has cost since it was last charged; the time begins anew. */
static double take_dollars(const struct coordinator *co, struct worker *w)
{
    const double cost = dollars(co, w);
    w->since_ms = core_now(co);
    w->since_unix_ms = (int64_t)clock_wall_ms();
    return cost;
}

/* The same, but no more than since the job was submitted. */
static double since_made(const struct coordinator *co, const struct worker *w, double cost,
                         const struct job *j)
{
    const int64_t age = core_unix_ms(co) - j->made_unix_ms;
    return fmin(cost, age > 0 ? w->price * (double)age / HOUR_MS : 0);
}

/* Adds to *sum of the job.  If that spends its budget, nobody waits for the job any more, and the
 * time waited so far is noted. */
static void charge(struct coordinator *co, struct job *j, double *sum, double cost)
{
    const bool waited_for = is_waited_for(co, j);
    *sum += cost;
    if (!waited_for || is_waited_for(co, j))
        return;
    for (size_t i = 0; i < co->state.n_workers; i++)
        if (idles_after(co->state.workers[i], j))
            j->cost.waiting +=
                take_dollars(co, state_edit_worker(&co->state, co->state.workers[i]));
}

void cost_reckon(struct coordinator *co, struct worker *w, uint64_t next)
{
    struct job *work = works_for(co, w),
               *wait = w->served ? state_job(&co->state, w->served) : NULL;
    double cost = take_dollars(co, w);
    if (work == NULL && (wait == NULL || job_is_ended(wait))) {
        wait = state_job(&co->state, next);
        cost = wait != NULL ? since_made(co, w, cost, wait) : 0;
    }
    if (work != NULL)
        charge(co, work, &work->cost.work, cost);
    else if (wait != NULL && is_waited_for(co, wait))
        charge(co, wait, &wait->cost.waiting, cost);
    w->served = next ? next : w->served;
}

void cost_join(struct coordinator *co, struct worker *w, bool again, double price)
{
    if (again)
        count_absence(co, w);
    if (w->state == WORKER_HERE)
        cost_reckon(co, w, 0);
    w->since_ms = core_now(co);
    w->since_unix_ms = (int64_t)clock_wall_ms();
    w->price = price > 0 && price <= COST_PRICE_MAX ? price : 0;
}

struct job *cost_payer(const struct coordinator *co, const struct worker *w)
{
    struct job *j = works_for(co, w);
    return j != NULL ? j : state_job(&co->state, w->served);
}

void cost_egress(const struct coordinator *co, struct job *j, uint64_t bytes)
{
    j->cost.egress += (double)bytes / 1e9 * co->opt.egress_price;
}

double cost_of_requests(const struct coordinator *co, uint64_t n)
{
    return co->state.request_dollars +
           (double)(n - co->requests_charged) / 1e6 * co->opt.request_price;
}

void cost_requests(struct coordinator *co, uint64_t n)
{
    co->state.request_dollars = cost_of_requests(co, n);
    co->requests_charged = n;
}

void cost_settle(struct coordinator *co, const struct job *j)
{
    for (size_t i = 0; i < co->state.n_workers; i++)
        if (idles_after(co->state.workers[i], j))
            cost_reckon(co, state_edit_worker(&co->state, co->state.workers[i]), 0);
}

void cost_forget(struct coordinator *co, const struct job *j)
{
    const struct token_rec *t = access_token(&co->state, j->token_id);
    const double cost = j->cost.work + j->cost.waiting;
    if (t != NULL && cost > 0)
        access_edit(&co->state, t->id)->spent += cost;
}

void cost_of(const struct coordinator *co, const struct job *j, struct cost *ret)
{
    const bool waited_for = is_waited_for(co, j);
    *ret = (struct cost){.work = j->cost.work, .waiting = j->cost.waiting};
    for (size_t i = 0; i < co->state.n_workers; i++) {
        const struct worker *w = co->state.workers[i];
        const bool works = w->task_id != 0 && works_for(co, w) == j;
        if (w->state != WORKER_HERE || (!works && !(waited_for && idles_after(w, j))))
            continue;
        *(works ? &ret->work : &ret->waiting) += dollars(co, w);
        ret->per_hour += w->price;
        ret->workers++;
        ret->unpriced += w->price <= 0;
    }
}
