#include "coordinator/job/turns.h"

#include "coordinator/work/query.h"

/* After phases, before a CHECK. */
#define RANK_WAITS 4
/* A CHECK is left to workers without a phase until so many rounds after that of its phase. */
#define CHECK_ROUNDS 2

/* Does it measure again what another worker has told? */
static bool is_doubted(const struct job *j, const struct task *t)
{
    const struct path_rec *p = &j->paths[t->path];
    const struct eval_doubt *d = &p->doubt;
    return t->kind == TASK_EVAL && !t->draw.mixture &&
           (t->id == p->hope.task ||
            (d->worker != 0 && (t->id == d->best_task || t->draw.version == d->version)));
}

unsigned turns_rank(const struct job *j, const struct task *t)
{
    const struct task_draw *d = task_drawing(t);
    const bool waits = d != NULL && j->state == JOB_RUNNING && !d->asked && !is_doubted(j, t) &&
                       j->paths[t->path].round <= d->version;
    return waits ? RANK_WAITS : task_traits[t->kind].rank;
}

/* ---- phases ---------------------------------------------------------------- */

bool turns_spares(const struct job *j, const struct task *t)
{
    return t->kind == TASK_CHECK && j->paths[t->path].round < t->train.round + CHECK_ROUNDS;
}

/* How long the path's phases under way take at least. */
static uint64_t left_ms(const struct coordinator *co, const struct job *j, uint32_t p)
{
    uint64_t most = 0;
    for (uint32_t r = 0; r < j->comp.paths[p].replicas; r++) {
        const struct task *t = query_phase(&co->state, j, p, r);
        if (t == NULL || t->state != TASK_LEASED || t->steps_done <= t->first_steps ||
            t->steps_total < t->steps_done)
            continue;
        const uint64_t left = (core_now(co) - t->first_ms) * (t->steps_total - t->steps_done) /
                              (t->steps_done - t->first_steps);
        most = left > most ? left : most;
    }
    return most;
}

/* Is the path about to begin another round? */
static bool goes_on(const struct job *j, uint32_t p)
{
    const uint32_t next = j->paths[p].round + j->paths[p].ready;
    return next < (uint32_t)j->spec.outer.rounds && next != query_barrier(j);
}

/* Is the replica's next phase for the worker, or for nobody in particular? */
static bool is_for(const struct state *s, const struct job *j, uint32_t p, uint32_t r,
                   const struct worker *w)
{
    const struct task *t = query_phase(s, j, p, r);
    const struct worker *had = state_worker(
        s, t != NULL && t->worker_id != 0 ? t->worker_id : j->paths[p].replicas[r].owner);
    return had == w || had == NULL || had->state != WORKER_HERE || worker_goes(had);
}

bool turns_has_phase(const struct coordinator *co, const struct worker *w)
{
    const struct state *s = &co->state;
    for (size_t i = 0; i < s->n_jobs; i++) {
        const struct job *j = s->jobs[i];
        /* An elastic round has no phase for who is at a CHECK. */
        if (j->state != JOB_RUNNING || j->comp.elastic || query_withheld(s, j) != NULL)
            continue;
        const uint64_t takes = w->phase_job == j->id ? w->phase_ms : UINT64_MAX;
        for (uint32_t p = 0; p < j->comp.n_paths; p++)
            for (uint32_t r = 0; goes_on(j, p) && r < j->comp.paths[p].replicas; r++)
                if (is_for(s, j, p, r, w) && left_ms(co, j, p) < takes)
                    return true;
    }
    return false;
}
