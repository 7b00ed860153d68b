#include "coordinator/work/ahead.h"

#include "common/base/rng.h"
#include "coordinator/work/query.h"

#define DELTAS_MAX 16 /* see ModuleRef.deltas */
#define NEAR_PART 4   /* near: behind by at most this part of the kept versions */

bool ahead_base(const struct worker *w, const struct module_rec *m, uint64_t version, uint64_t *ret)
{
    bool found = false;
    for (unsigned i = 0; i < w->n_held; i++) {
        const uint64_t v = w->held[i].version;
        if (w->held[i].module_id != m->id || v > version || (found && v <= *ret) ||
            version - v > DELTAS_MAX)
            continue;
        bool all = true;
        for (uint64_t d = v + 1; d <= version && all; d++) {
            const struct version_rec *r = module_version(m, d);
            all = r != NULL && blob_ref_is_set(&r->delta);
        }
        if (all) {
            *ret = v;
            found = true;
        }
    }
    return found;
}

const struct version_rec *ahead_version(const struct worker *w, const struct module_rec *m)
{
    uint64_t base;
    const struct version_rec *begun =
        w->ahead.version > 0 ? module_version(m, w->ahead.version) : NULL;
    return begun == NULL || ahead_base(w, m, m->version, &base) ? module_version(m, m->version)
                                                                : begun;
}

static const struct module_rec *module_at(const struct job *j, uint32_t path, uint32_t level)
{
    return &j->modules[j->comp.paths[path].modules[level]];
}

/* Could the worker begin a phase as soon as those that did the last one? */
static bool is_near(const struct worker *w, const struct job *j, uint32_t path)
{
    bool near = true;
    for (uint32_t l = 0; l < composition_levels(&j->comp, path) && near; l++) {
        const struct module_rec *m = module_at(j, path, l);
        uint64_t base = 0;
        near = ahead_base(w, m, m->version, &base) && m->version - base <= m->kept / NEAR_PART;
    }
    return near;
}

bool ahead_is_behind(const struct worker *w, const struct job *j)
{
    return w->ahead.due && w->ahead.job_id == j->id && !is_near(w, j, w->ahead.path);
}

bool ahead_others(const struct state *s)
{
    for (size_t i = 0; i < s->n_workers; i++) {
        const struct worker *w = s->workers[i];
        if (w->state == WORKER_HERE && !worker_goes(w) && !w->ahead.due &&
            worker_standing(w) == STANDING_PROVEN)
            return true;
    }
    return false;
}

void ahead_leased(struct worker *w, const struct job *j, const struct task *t)
{
    w->ahead.due = false;
    w->ahead.told = 0;
    if (t->kind != TASK_TRAIN)
        return;
    const struct module_rec *m = module_at(j, t->path, 0);
    const bool newest = j->spec.outer.async || query_streams(j);
    w->ahead.job_id = j->id;
    w->ahead.path = t->path;
    w->ahead.version = newest ? m->version : t->train.round;
}

void ahead_lost(struct worker *w, const struct task *t)
{
    w->ahead.due = w->fetches_ahead && t->kind == TASK_TRAIN && t->reached.steps == 0;
}

/* Is there a version to fetch?  The first one each worker draws from the seed. */
static bool has_versions(const struct job *j)
{
    for (uint32_t i = 0; i < j->comp.n_modules; i++)
        if (j->modules[i].version > 0)
            return true;
    return false;
}

/* Could w get the job's phases? */
static bool fits(const struct coordinator *co, const struct worker *w, const struct job *j)
{
    return j->state == JOB_RUNNING && query_withheld(&co->state, j) == NULL &&
           query_fits(j, TASK_TRAIN, 0, w, core_now(co));
}

/* Does w fetch the job's versions, or wait with one near the newest? */
static bool has_place(const struct coordinator *co, const struct worker *w, const struct job *j)
{
    if (w->state != WORKER_HERE || w->ahead.job_id != j->id)
        return false;
    return w->ahead.due ||
           (w->task_id == 0 && w->fetches_ahead && !worker_goes(w) &&
            worker_standing(w) != STANDING_FAILING && w->quarantined_until_ms <= core_now(co) &&
            is_near(w, j, w->ahead.path) && fits(co, w, j));
}

uint32_t *ahead_rooms(const struct coordinator *co)
{
    const struct state *s = &co->state;
    uint32_t *rooms = mem_alloc_array(s->n_jobs + 1, sizeof(*rooms));
    for (size_t i = 0; i < s->n_jobs; i++) {
        if (s->jobs[i]->state != JOB_RUNNING || !has_versions(s->jobs[i]))
            continue; /* or a path would be looked for, for each worker that waits */
        const uint32_t most = query_phases_at_once(s->jobs[i]);
        rooms[i] = most > s->jobs[i]->leases ? most - s->jobs[i]->leases : 1;
    }
    for (size_t i = 0; i < s->n_workers; i++) {
        const struct worker *w = s->workers[i];
        const struct job *j = w->ahead.job_id != 0 ? state_job(s, w->ahead.job_id) : NULL;
        const bool has = j != NULL && has_place(co, w, j);
        for (size_t k = 0; has && k < s->n_jobs; k++)
            rooms[k] -= s->jobs[k] == j && rooms[k] > 0;
    }
    return rooms;
}

/* Is a worker here that had the replica last, or has it now? */
static bool is_taken(const struct state *s, const struct job *j, uint32_t p, uint32_t r)
{
    const struct task *t = query_phase(s, j, p, r);
    const struct worker *w = state_worker(s, j->paths[p].replicas[r].owner);
    return (t != NULL && t->state == TASK_LEASED) || (w != NULL && w->state == WORKER_HERE);
}

/* The worker's own path; else the first with a replica that nobody here has; else the first. */
static uint32_t path_for(const struct state *s, const struct worker *w, const struct job *j)
{
    const uint32_t n = query_main_paths(j);
    for (uint32_t p = 0; p < n; p++)
        for (uint32_t r = 0; r < j->comp.paths[p].replicas; r++)
            if (j->paths[p].replicas[r].owner == w->id)
                return p;
    for (uint32_t p = 0; p < n; p++)
        for (uint32_t r = 0; r < j->comp.paths[p].replicas; r++)
            if (!is_taken(s, j, p, r))
                return p;
    return 0;
}

/* A mark of the path's newest versions; 0: the worker has them, or they are the first ones. */
static uint64_t mark(const struct worker *w, const struct job *j, uint32_t path)
{
    uint64_t sum = rng_mix(j->id, path), missing = 0;
    for (uint32_t l = 0; l < composition_levels(&j->comp, path); l++) {
        const struct module_rec *m = module_at(j, path, l);
        uint64_t base = 0;
        const struct version_rec *v = m->n_versions > 0 ? ahead_version(w, m) : NULL;
        if (v == NULL || m->version == 0)
            return 0;
        const bool here = ahead_base(w, m, m->version, &base);
        missing += !here || base < m->version;
        sum = rng_mix(sum, rng_mix(v->version, here ? base + 1 : 0));
    }
    return missing > 0 ? sum | 1 : 0;
}

/* The running job of the highest priority that could use the worker; if several could, the one of
 * which it was already told. */
static const struct job *job_for(const struct coordinator *co, const struct worker *w,
                                 const uint32_t *rooms, size_t *ret_at)
{
    const struct job *best = NULL;
    for (size_t i = 0; i < co->state.n_jobs; i++) {
        const struct job *j = co->state.jobs[i];
        const bool had = has_place(co, w, j);
        if ((!had && rooms[i] == 0) || !fits(co, w, j) ||
            (best != NULL && (had ? best->quota.priority > j->quota.priority
                                  : best->quota.priority >= j->quota.priority)))
            continue;
        best = j;
        *ret_at = i;
    }
    return best;
}

bool ahead_news(struct coordinator *co, struct worker *w, bool may_work, uint32_t *rooms)
{
    size_t at = 0;
    const bool fit = may_work && w->fetches_ahead && worker_standing(w) != STANDING_FAILING;
    const struct job *j = fit ? job_for(co, w, rooms, &at) : NULL;
    const bool had = j != NULL && has_place(co, w, j);
    const bool same = had && w->ahead.due;
    const uint32_t path = same ? w->ahead.path : j != NULL ? path_for(&co->state, w, j) : 0;
    if (j != NULL && (w->ahead.job_id != j->id || w->ahead.path != path))
        w->ahead.version = 0; /* it has no part of these modules' files */
    const uint64_t told = j != NULL ? mark(w, j, path) : 0;
    const bool news = told != 0 ? told != w->ahead.told : j == NULL && w->ahead.told != 0;
    w->ahead.due = told != 0 && (news || w->ahead.due);
    w->ahead.told = told;
    if (j == NULL)
        return news;
    rooms[at] -= !had && rooms[at] > 0;
    w->ahead.job_id = j->id;
    w->ahead.path = path;
    if (told != 0)
        w->ahead.version = ahead_version(w, module_at(j, path, 0))->version;
    return news;
}
