#include "coordinator/decide/schedule.h"

#define HELPER_MS 1000 /* until it is looked at again */

uint64_t schedule_small_until(uint64_t now_ms, const struct schedule_task *t,
                              const struct schedule_small *small, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        if (small[i].job_id == t->job_id && small[i].kind == t->kind &&
            small[i].network == t->network && small[i].until_ms > now_ms)
            return small[i].until_ms;
    return 0;
}

/* 0: may be taken now; else when, and *ret_why says what it waits for. */
static uint64_t held_back(uint64_t now, uint64_t worker, const struct schedule_task *t,
                          const struct schedule_options *o, const char **ret_why)
{
    if (t->not_before_ms > now) {
        *ret_why = "waits after a failure";
        return t->not_before_ms;
    }
    if (t->needs_trainers && !o->trainers) {
        *ret_why = "needs a worker that was started with --allow-trainers";
        return UINT64_MAX;
    }
    if (t->needs_helper && !o->helper) {
        *ret_why = "needs another worker that evaluates its experts";
        return now + HELPER_MS;
    }
    uint64_t until = schedule_small_until(now, t, o->small, o->n_small);
    if (until != 0) {
        *ret_why = "needs more memory than this worker has";
        return until;
    }
    until = failure_until(t->failed, worker);
    if (now < until) {
        *ret_why = "was failed by this worker, which waits before it tries again";
        return until;
    }
    until = t->ready_ms + t->patience_ms;
    if (t->owner != 0 && t->owner != worker && t->owner_here && !t->owner_training && now < until) {
        *ret_why = "is kept for the worker that has its moments";
        return until;
    }
    return 0;
}

static bool before(uint64_t worker, const struct schedule_task *a, const struct schedule_task *b)
{
    if (a->rank != b->rank)
        return a->rank < b->rank;
    if (a->lag != b->lag)
        return a->lag < b->lag;
    bool warm_a = a->owner == worker, warm_b = b->owner == worker;
    if (warm_a != warm_b)
        return warm_a;
    /* A replica without an owner costs no worker its moments. */
    if ((a->owner == 0) != (b->owner == 0))
        return a->owner == 0;
    if (a->job_leases != b->job_leases)
        return a->job_leases < b->job_leases;
    return a->id < b->id;
}

void schedule_pick(uint64_t now_ms, uint64_t worker, const struct schedule_task *tasks, size_t n,
                   const struct schedule_options *o, struct schedule_decision *ret)
{
    *ret = (struct schedule_decision){.index = -1};
    const char *why = NULL;
    uint64_t waiting = 0;
    for (size_t i = 0; i < n; i++) {
        const char *this_why = NULL;
        uint64_t until = held_back(now_ms, worker, &tasks[i], o, &this_why);
        if (until != 0) {
            if (ret->until_ms == 0 || until < ret->until_ms) {
                ret->until_ms = until;
                why = this_why;
                waiting = tasks[i].id;
            }
            continue;
        }
        if (ret->index < 0 || before(worker, &tasks[i], &tasks[ret->index]))
            ret->index = (long)i;
    }
    if (ret->index >= 0) {
        const struct schedule_task *t = &tasks[ret->index];
        ret->until_ms = 0;
        (void)snprintf(ret->reason, sizeof(ret->reason), "task %llu%s", (unsigned long long)t->id,
                       t->owner == worker ? ", whose last phase it did" : "");
    } else if (why != NULL) {
        (void)snprintf(ret->reason, sizeof(ret->reason), "task %llu %s",
                       (unsigned long long)waiting, why);
    } else {
        (void)snprintf(ret->reason, sizeof(ret->reason), "no task is ready");
    }
}
