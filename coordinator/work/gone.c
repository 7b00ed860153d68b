#include "coordinator/work/gone.h"

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

/* Marks the workers named by jobs that go on. */
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

/* Does a person or a job still mean this very worker? */
static bool is_needed(const struct worker *w)
{
    return w->named || w->drain || w->revoked_unix_ms != 0;
}

/* How long the worker stays on record; 0: for ever. */
static int64_t stays_ms(const struct state *s, const struct worker *w, int64_t now_unix_ms)
{
    const struct token_rec *t = access_token(s, w->token_id);
    const size_t gone = s->n_workers - s->n_here;
    const bool shut_out = w->revoked_unix_ms != 0;
    if (w->named || w->drain || (shut_out && t != NULL && access_is_live(t, now_unix_ms)))
        return 0;
    if (!shut_out && (t == NULL || t->ends_unix_ms != 0 || t->uses_max != 0))
        return GONE_KEY_MS;
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
        const int64_t stays = is_gone(w) ? stays_ms(s, w, now) : 0;
        if (stays > 0 && now - w->since_unix_ms >= stays)
            state_drop_worker(s, w);
        else
            i++;
    }
    if (s->n_workers != before)
        core_touch(co);
}

void gone_make_room(struct coordinator *co)
{
    struct state *s = &co->state;
    const struct worker *first = NULL;
    name_all(s);
    for (size_t i = 0; i < s->n_workers; i++) {
        const struct worker *w = s->workers[i];
        if (!is_gone(w))
            continue;
        const int more = first != NULL ? is_needed(w) - is_needed(first) : -1;
        if (more < 0 || (more == 0 && w->since_unix_ms < first->since_unix_ms))
            first = w;
    }
    if (first != NULL)
        state_drop_worker(s, first);
}
