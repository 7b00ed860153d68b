#include "coordinator/job/gone.h"

static bool is_gone(const struct worker *w)
{
    return w->state != WORKER_HERE && w->task_id == 0;
}

static void name(const struct state *s, uint64_t id)
{
    const struct worker *w = state_worker(s, id);
    if (w != NULL)
        worker_memory(w)->named = true;
}

static void name_of_task(const struct state *s, const struct task *t)
{
    name(s, t->worker_id);
    for (size_t i = 0; t->kind == TASK_TRAIN && i < t->train.n_contributions; i++)
        name(s, t->train.contributions[i].worker_id);
}

static void name_of_job(const struct state *s, const struct job *j)
{
    name(s, j->trace.worker_id);
    for (uint32_t p = 0; p < j->comp.n_paths; p++)
        for (uint32_t r = 0; r < j->comp.paths[p].replicas; r++)
            name(s, j->paths[p].replicas[r].owner);
}

/* Marks the blobs named by jobs that go on. */
static void name_all(const struct state *s)
{
    for (size_t i = 0; i < s->n_workers; i++)
        worker_memory(s->workers[i])->named = false;
    for (size_t i = 0; i < s->n_jobs; i++)
        if (!job_is_ended(s->jobs[i]))
            name_of_job(s, s->jobs[i]);
    for (size_t i = 0; i < s->n_tasks; i++) {
        const struct job *j = state_job(s, s->tasks[i]->job_id);
        if (j != NULL && !job_is_ended(j))
            name_of_task(s, s->tasks[i]);
    }
}

static bool is_needed(const struct state *s, const struct worker *w, int64_t now_unix_ms)
{
    const struct token_rec *t = access_token(s, w->token_id);
    if (w->named || w->drain)
        return true;
    if (w->revoked_unix_ms != 0)
        return t != NULL && access_is_live(t, now_unix_ms);
    return t == NULL || t->ends_unix_ms != 0 || t->uses_max != 0;
}

static int64_t stays_ms(const struct worker *w, size_t gone)
{
    if (w->strikes > 0 || w->doubted_folds > 0)
        return GONE_DOUBTED_MS;
    return gone > GONE_MAX ? GONE_LEAST_MS : GONE_MS;
}

void gone_forget(struct coordinator *co)
{
    struct state *s = &co->state;
    const int64_t now = core_unix_ms(co);
    const size_t before = s->n_workers;
    name_all(s);
    for (size_t i = 0; i < s->n_workers && before - s->n_workers < GONE_AT_ONCE;) {
        const struct worker *w = s->workers[i];
        if (is_gone(w) && now - w->since_unix_ms >= stays_ms(w, s->n_workers - s->n_here) &&
            !is_needed(s, w, now))
            state_drop_worker(s, w);
        else
            i++;
    }
    if (s->n_workers != before)
        core_touch(co);
}

void gone_make_room(struct coordinator *co)
{
    for (size_t i = 0; i < co->state.n_workers; i++)
        if (is_gone(co->state.workers[i])) {
            state_drop_worker(&co->state, co->state.workers[i]);
            return;
        }
}
