#include "coordinator/job/turns.h"

#include "coordinator/work/query.h"

/* After phases, before a CHECK. */
#define RANK_WAITS 4
/* A CHECK is left to workers without a phase until so many rounds after that of its phase. */
#define CHECK_ROUNDS 2
/* ... and to those that make no outer steps until so many: then its version is about to go. */
#define MAKER_ROUNDS 3

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

bool turns_spares_makers(const struct job *j, const struct task *t)
{
    return t->kind == TASK_CHECK && j->paths[t->path].round < t->train.round + MAKER_ROUNDS;
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

/* For whom the replica's next phase is; 0: for nobody in particular. */
static uint64_t whose(const struct state *s, const struct job *j, uint32_t p, uint32_t r)
{
    const struct task *t = query_phase(s, j, p, r);
    const struct worker *had = state_worker(
        s, t != NULL && t->worker_id != 0 ? t->worker_id : j->paths[p].replicas[r].owner);
    return had == NULL || had->state != WORKER_HERE || worker_goes(had) ? 0 : had->id;
}

static void add(struct turns *t, uint64_t worker, uint64_t job, uint64_t left)
{
    t->list[t->n++] = (struct turns_phase){.worker = worker, .job = job, .left_ms = left};
}

/* Adds the job's next phases; of those for nobody in particular the first. */
static void add_job(struct turns *t, const struct coordinator *co, const struct job *j)
{
    uint64_t first = UINT64_MAX;
    t->list = mem_realloc(t->list, (t->n + query_phases_at_once(j) + 1) * sizeof(*t->list));
    for (uint32_t p = 0; p < j->comp.n_paths; p++) {
        const uint64_t left = goes_on(j, p) ? left_ms(co, j, p) : UINT64_MAX;
        for (uint32_t r = 0; left < UINT64_MAX && r < j->comp.paths[p].replicas; r++) {
            const uint64_t worker = whose(&co->state, j, p, r);
            if (worker != 0)
                add(t, worker, j->id, left);
            else
                first = left < first ? left : first;
        }
    }
    if (first < UINT64_MAX)
        add(t, 0, j->id, first);
}

/* Has a path that crosses the module rounds left? */
static bool is_stepped(const struct job *j, const struct module_rec *m)
{
    for (uint32_t p = 0; p < j->comp.n_paths; p++)
        if (j->paths[p].round < (uint32_t)j->spec.outer.rounds && query_crosses(j, p, m))
            return true;
    return false;
}

/* Adds the job's next outer steps that are for the worker that made the last one. */
static void add_steps(struct turns *t, const struct job *j)
{
    t->list = mem_realloc(t->list, (t->n + j->comp.n_modules + 1) * sizeof(*t->list));
    for (uint32_t i = 0; i < j->comp.n_modules; i++)
        if (j->modules[i].folded_by != 0 && is_stepped(j, &j->modules[i]))
            t->list[t->n++] =
                (struct turns_phase){.worker = j->modules[i].folded_by, .job = j->id, .step = true};
}

static int by_worker(const void *a, const void *b)
{
    const struct turns_phase *x = a, *y = b;
    return x->worker < y->worker ? -1 : x->worker > y->worker;
}

void turns_init(struct turns *t, const struct coordinator *co)
{
    *t = (struct turns){0};
    for (size_t i = 0; i < co->state.n_jobs; i++) {
        const struct job *j = co->state.jobs[i];
        if (j->state != JOB_RUNNING || query_withheld(&co->state, j) != NULL)
            continue;
        if (!j->comp.elastic) /* there a round has no phase for who is at a CHECK */
            add_job(t, co, j);
        add_steps(t, j);
    }
    if (t->n > 0)
        qsort(t->list, t->n, sizeof(*t->list), by_worker);
}

void turns_release(struct turns *t)
{
    mem_free(t->list);
    *t = (struct turns){0};
}

/* The first that is listed under `worker` or a later one. */
static size_t first_of(const struct turns *t, uint64_t worker)
{
    size_t lo = 0, hi = t->n;
    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;
        if (t->list[mid].worker < worker)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* Does one of the phases that are listed under `worker` begin before w could repeat one? */
static bool is_sooner(const struct turns *t, uint64_t worker, const struct worker *w)
{
    for (size_t i = first_of(t, worker); i < t->n && t->list[i].worker == worker; i++) {
        const struct turns_phase *p = &t->list[i];
        if (!p->step && (w->phase_job != p->job || p->left_ms < w->phase_ms))
            return true;
    }
    return false;
}

bool turns_makes_step(const struct turns *t, const struct worker *w)
{
    for (size_t i = first_of(t, w->id); i < t->n && t->list[i].worker == w->id; i++)
        if (t->list[i].step)
            return true;
    return false;
}

bool turns_has_phase(const struct turns *t, const struct worker *w)
{
    return is_sooner(t, 0, w) || is_sooner(t, w->id, w);
}
