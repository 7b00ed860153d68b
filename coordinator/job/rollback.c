#include "coordinator/job/rollback.h"

#include "common/base/clock.h"
#include "common/base/hash.h"
#include "coordinator/job/folds.h"
#include "coordinator/job/rounds.h"
#include "coordinator/work/gc.h"
#include "coordinator/work/query.h"
#include "coordinator/work/tasks.h"

/* Does the path have a round that could end? */
static bool trains(const struct job *j, uint32_t path)
{
    return j->paths[path].round < (uint32_t)j->spec.outer.rounds;
}

/* Marks the path's modules; false: they all were. */
static bool mark_modules(const struct job *j, uint32_t path, bool *marked)
{
    bool more = false;
    for (uint32_t l = 0; l < composition_levels(&j->comp, path); l++) {
        const uint32_t m = j->comp.paths[path].modules[l];
        more |= !marked[m];
        marked[m] = true;
    }
    return more;
}

static bool is_marked(const struct job *j, uint32_t path, const bool *marked)
{
    for (uint32_t l = 0; l < composition_levels(&j->comp, path); l++)
        if (marked[j->comp.paths[path].modules[l]])
            return true;
    return false;
}

/* A new array: does each module go back with the path? */
static bool *modules_with(const struct job *j, uint32_t path)
{
    bool *marked = mem_alloc_array(j->comp.n_modules + 1, sizeof(*marked));
    bool more = true;
    if (path != ROLLBACK_ALL)
        (void)mark_modules(j, path, marked);
    while (more) {
        more = false;
        for (uint32_t p = 0; p < query_main_paths(j); p++)
            if (trains(j, p) && (path == ROLLBACK_ALL || is_marked(j, p, marked)))
                more |= mark_modules(j, p, marked);
    }
    return marked;
}

static int check_module(const struct module_rec *m, uint64_t to, struct err *err)
{
    if (m->version <= to)
        return err_set(err, -ERR_STALE,
                       "module %llu is at version %llu: give an older version to go back to",
                       (unsigned long long)m->id, (unsigned long long)m->version);
    if (module_version(m, to) == NULL)
        return err_set(err, -ERR_NOTFOUND, "module %llu keeps versions %llu to %llu, not %llu",
                       (unsigned long long)m->id, (unsigned long long)m->versions[0].version,
                       (unsigned long long)m->version, (unsigned long long)to);
    return 0;
}

/* The version number that all of them get: otherwise a module that already has its next version,
 * before the others of its path, would begin the next phase with that one. */
static uint64_t next_version(const struct job *j, const bool *back)
{
    uint64_t newest = 0;
    for (uint32_t i = 0; i < j->comp.n_modules; i++)
        newest = back[i] && j->modules[i].version > newest ? j->modules[i].version : newest;
    return newest + 1;
}

static int check(const struct job *j, uint32_t path, uint64_t to, const bool *back, struct err *err)
{
    bool any = false;
    int rc = 0;
    if (j->state != JOB_RUNNING)
        return err_set(err, -ERR_STALE, "job %llu is not training now", (unsigned long long)j->id);
    const uint64_t next = next_version(j, back);
    for (uint32_t p = 0; p < query_main_paths(j) && rc == 0; p++) {
        if (!trains(j, p) || !is_marked(j, p, back))
            continue;
        any = true;
        if (next > query_barrier(j) || j->paths[p].round == query_barrier(j))
            rc = err_set(err, -ERR_STALE,
                         "path %u waits for its new shards: try again when it trains", p);
    }
    any &= next <= (uint64_t)j->spec.outer.rounds;
    if (rc == 0 && !any)
        return path == ROLLBACK_ALL
                   ? err_set(err, -ERR_STALE, "job %llu has made all of its rounds",
                             (unsigned long long)j->id)
                   : err_set(err, -ERR_STALE, "path %u of job %llu has made all of its rounds",
                             path, (unsigned long long)j->id);
    for (uint32_t i = 0; i < j->comp.n_modules && rc == 0; i++)
        if (back[i])
            rc = check_module(&j->modules[i], to, err);
    return rc;
}

/* Can the job go back at all, and does it have the path? */
static int check_kind(const struct job *j, uint32_t path, struct err *err)
{
    if (j->spec.outer.async || query_streams(j))
        return err_set(
            err, -EINVAL, "job %llu trains %s: only a job that trains in rounds can be rolled back",
            (unsigned long long)j->id, j->spec.outer.async ? "without rounds" : "in fragments");
    if (path != ROLLBACK_ALL && path >= query_main_paths(j) && query_main_paths(j) > 0)
        return err_set(err, -EINVAL, "job %llu has no path %u: its paths are 0 to %u",
                       (unsigned long long)j->id, path, query_main_paths(j) - 1);
    return 0;
}

static char *provenance(const struct version_rec *now, const struct version_rec *old)
{
    char base[HASH_HEX_MAX], full[HASH_HEX_MAX];
    return str_printf("{\"base\":%llu,\"base_full\":{\"sha256\":\"%s\",\"size\":%llu},"
                      "\"full\":{\"sha256\":\"%s\",\"size\":%llu},\"restored\":%llu,"
                      "\"contributions\":[]}",
                      (unsigned long long)now->version, hash_hex(now->full.sha256, 32, base),
                      (unsigned long long)now->full.size, hash_hex(old->full.sha256, 32, full),
                      (unsigned long long)old->full.size, (unsigned long long)old->version);
}

/* No worker need make the step to a version that there is by now. */
static void cancel_step(struct coordinator *co, struct module_rec *m)
{
    struct task *t = state_edit_task(&co->state, state_task(&co->state, m->outer_task));
    if (m->at_worker != NULL && t != NULL && task_is_open(t))
        task_end(co, t, TASK_CANCELLED, "the job has gone back to an older version");
    folds_release(m);
}

/* Repeats version `to` as new versions up to `next`. */
static void restore(struct coordinator *co, struct job *j, struct module_rec *m, uint64_t to,
                    uint64_t next)
{
    const struct version_rec *old = module_version(m, to), *now = module_version(m, m->version);
    const struct version_rec v = {
        .version = m->version + 1,
        .full = old->full,
        .ema = old->ema,
        .provenance = provenance(now, old),
        .restored = true,
        .at_unix_ms = (int64_t)clock_wall_ms(),
    };
    folds_adopt(co, j, m, &v);
    if (m->version < next)
        restore(co, j, m, m->version, next);
}

/* No worker has moments for the next step: forgets their owners. */
static void forget_moments(struct coordinator *co, struct job *j, uint32_t path)
{
    for (uint32_t r = 0; r < j->comp.paths[path].replicas; r++) {
        struct replica_rec *rr = job_edit_replica(j, path, r);
        gc_drop(co, &rr->moments);
        rr->moments = (struct blob_ref){0};
        rr->owner = 0;
        rr->step++;
    }
}

/* Ends the path's rounds before that of version `next`; the schedule counts also those that had not
 * begun. */
static void close_rounds(struct coordinator *co, struct job *j, uint32_t p, uint64_t next)
{
    rounds_close(co, j, p);
    while (j->paths[p].round < next) {
        rounds_close(co, j, p);
        for (uint32_t r = 0; r < j->comp.paths[p].replicas; r++)
            job_edit_replica(j, p, r)->step += (uint64_t)j->spec.outer.steps;
    }
}

static void go_back(struct coordinator *co, struct job *j, uint64_t to, const bool *back)
{
    const uint64_t next = next_version(j, back);
    for (uint32_t i = 0; i < j->comp.n_modules; i++)
        if (back[i]) {
            cancel_step(co, module_memory(&j->modules[i]));
            restore(co, j, job_edit_module(j, &j->modules[i]), to, next);
        }
    for (uint32_t p = 0; p < query_main_paths(j); p++) {
        if (!trains(j, p) || !is_marked(j, p, back))
            continue;
        close_rounds(co, j, p, next);
        forget_moments(co, j, p);
    }
}

int rollback_job(struct coordinator *co, struct job *j, uint32_t path, uint64_t to, const char *who,
                 struct err *err)
{
    int rc = check_kind(j, path, err);
    bool *back = rc == 0 && j->state == JOB_RUNNING ? modules_with(j, path) : NULL;
    if (rc == 0)
        rc = check(j, path, to, back, err);
    if (rc == 0) {
        go_back(co, j, to, back);
        core_say(co, j->id, 0, "job %llu is rolled back to version %llu %s",
                 (unsigned long long)j->id, (unsigned long long)to, who);
        core_touch(co);
    }
    mem_free(back);
    return rc;
}
