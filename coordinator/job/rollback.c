#include "coordinator/job/rollback.h"

#include "common/base/clock.h"
#include "common/base/hash.h"
#include "coordinator/job/folds.h"
#include "coordinator/job/gc.h"
#include "coordinator/job/query.h"
#include "coordinator/job/rounds.h"

/* Does the path have a round that could end? */
static bool trains(const struct job *j, uint32_t path)
{
    return j->paths[path].round < (uint32_t)j->spec.outer.rounds;
}

/* Is the module on a path that is to go back? */
static bool goes_back(const struct job *j, const struct module_rec *m)
{
    bool is = false;
    for (uint32_t p = 0; p < query_main_paths(j); p++)
        is |= trains(j, p) && query_crosses(j, p, m);
    return is;
}

static int check_module(const struct module_rec *m, uint64_t to, struct err *err)
{
    if (m->version <= to)
        return err_set(err, -ERR_STALE,
                       "module %llu is at version %llu: only an older one can be gone back to",
                       (unsigned long long)m->id, (unsigned long long)m->version);
    if (module_version(m, to) == NULL)
        return err_set(err, -ERR_NOTFOUND, "module %llu keeps versions %llu to %llu, not %llu",
                       (unsigned long long)m->id, (unsigned long long)m->versions[0].version,
                       (unsigned long long)m->version, (unsigned long long)to);
    return 0;
}

static int check(const struct job *j, uint64_t to, struct err *err)
{
    bool any = false;
    int rc = 0;
    if (j->spec.outer.async || query_streams(j))
        return err_set(
            err, -EINVAL, "job %llu trains %s: only what trains in rounds can be rolled back",
            (unsigned long long)j->id, j->spec.outer.async ? "without rounds" : "in fragments");
    if (j->state != JOB_RUNNING)
        return err_set(err, -ERR_STALE, "job %llu is not training now", (unsigned long long)j->id);
    for (uint32_t p = 0; p < query_main_paths(j) && rc == 0; p++) {
        any |= trains(j, p);
        if (trains(j, p) && j->paths[p].round == query_barrier(j))
            rc = err_set(err, -ERR_STALE,
                         "path %u waits for its new shards: try again when it trains", p);
    }
    for (uint32_t i = 0; i < j->comp.n_modules && rc == 0; i++)
        if (goes_back(j, &j->modules[i]))
            rc = check_module(&j->modules[i], to, err);
    return rc == 0 && !any ? err_set(err, -ERR_STALE, "job %llu has made all of its rounds",
                                     (unsigned long long)j->id)
                           : rc;
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

static void restore(struct coordinator *co, struct job *j, struct module_rec *m, uint64_t to)
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
}

/* Nobody has moments for the step that comes. */
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

int rollback_job(struct coordinator *co, struct job *j, uint64_t to, struct err *err)
{
    const int rc = check(j, to, err);
    if (rc < 0)
        return rc;
    for (uint32_t i = 0; i < j->comp.n_modules; i++)
        if (goes_back(j, &j->modules[i]))
            restore(co, j, job_edit_module(j, &j->modules[i]), to);
    for (uint32_t p = 0; p < query_main_paths(j); p++) {
        if (!trains(j, p))
            continue;
        rounds_close(co, j, p);
        forget_moments(co, j, p);
    }
    core_say(co, j->id, 0, "job %llu is rolled back to version %llu by a person",
             (unsigned long long)j->id, (unsigned long long)to);
    core_touch(co);
    return 0;
}
