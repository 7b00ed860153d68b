#include "coordinator/state/persist_check.h"

#include "common/base/base.h"
#include "common/job/family.h"

typedef unsigned long long ull;

/* The newest versions of a module are on record without a gap. */
static int check_module(const struct job *j, const struct module_rec *m, struct err *err)
{
    const bool needed = j->state == JOB_RUNNING || j->state == JOB_FINISHING;
    if (m->n_versions == 0 && needed)
        return err_set(err, -ERR_FORMAT, "job %llu is %s, and module %llu has no version",
                       (ull)j->id, job_state_name(j->state), (ull)m->id);
    for (unsigned i = 0; i < m->n_versions; i++)
        if (m->versions[m->n_versions - 1 - i].version + i != m->version)
            return err_set(err, -ERR_FORMAT,
                           "module %llu is at version %llu, and version %llu is missing",
                           (ull)m->id, (ull)m->version, (ull)m->version - i);
    return 0;
}

static int check_ledger(const struct job *j, uint32_t path, struct err *err)
{
    const uint32_t partition = j->comp.paths[path].partition;
    if (!job_has_data(&j->spec) || j->ledgers[job_ledger(j, partition)] != NULL)
        return 0;
    return err_set(err, -ERR_FORMAT, "job %llu is %s, and path %u has no ledger", (ull)j->id,
                   job_state_name(j->state), path);
}

static int check_job(const struct job *j, struct err *err)
{
    int rc = 0;
    for (uint32_t m = 0; m < j->comp.n_modules && rc == 0; m++)
        rc = check_module(j, &j->modules[m], err);
    for (uint32_t p = 0; p < j->comp.n_paths && j->state == JOB_RUNNING && rc == 0; p++)
        rc = check_ledger(j, p, err);
    return rc;
}

static int check_ranges(const struct job *j, const struct task *t, struct err *err)
{
    for (size_t i = 0; i < t->n_ranges; i++) {
        const struct ledger_range *r = &t->ranges[i];
        if (r->shard >= j->n_shards || (uint64_t)r->start + r->count > j->shards[r->shard].samples)
            return err_set(err, -ERR_FORMAT,
                           "task %llu reads samples %u to %llu of shard %u, which job %llu does "
                           "not have",
                           (ull)t->id, r->start, (ull)r->start + r->count, r->shard, (ull)j->id);
    }
    return 0;
}

static int check_task(const struct state *st, const struct task *t, struct err *err)
{
    const struct job *j = state_job(st, t->job_id);
    if (j == NULL || j->unread || !task_is_open(t))
        return 0;
    struct job *of = NULL;
    if (t->kind == TASK_OUTER && (state_module(st, t->outer.module_id, &of) == NULL || of != j))
        return err_set(err, -ERR_FORMAT,
                       "task %llu makes module %llu, which job %llu does not have", (ull)t->id,
                       (ull)t->outer.module_id, (ull)j->id);
    const int rc = t->kind == TASK_TRAIN ? check_ledger(j, t->path, err) : 0;
    return rc < 0 ? rc : check_ranges(j, t, err);
}

int persist_check(const struct state *st, uint64_t *ret_job, struct err *err)
{
    int rc = 0;
    for (size_t i = 0; i < st->n_jobs && rc == 0; i++) {
        *ret_job = st->jobs[i]->id;
        rc = st->jobs[i]->unread ? 0 : check_job(st->jobs[i], err);
    }
    for (size_t i = 0; i < st->n_tasks && rc == 0; i++) {
        *ret_job = st->tasks[i]->job_id;
        rc = check_task(st, st->tasks[i], err);
    }
    return rc;
}
