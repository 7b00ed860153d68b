#include "coordinator/job/remake.h"

#include "common/base/hash.h"
#include "common/job/family.h"
#include "coordinator/job/agree.h"
#include "coordinator/work/tasks.h"

#define WAIT_MS 60000u
#define WAIT_DOUBLED_MAX 5 /* then it is half an hour */

typedef unsigned long long ull;

void remake_hash(const struct blob_ref *made, size_t n, uint8_t ret[32])
{
    struct hash h;
    hash_init(&h);
    for (size_t i = 0; i < n; i++) {
        hash_update(&h, made[i].sha256, sizeof(made[i].sha256));
        hash_update(&h, &made[i].size, sizeof(made[i].size));
    }
    hash_final(&h, ret);
}

static bool is_of(const struct job *j, const struct task *t, uint32_t network)
{
    return t->job_id == j->id && j->comp.paths[t->path].network == network;
}

bool remake_may(const struct state *s, const struct job *j, uint32_t network)
{
    for (uint32_t i = 0; i < j->comp.n_modules; i++) {
        const struct module_rec *m = &j->modules[i];
        if (m->network == network &&
            (m->n_versions != 1 || m->version > 0 || m->outer_task != 0 || m->at_worker != NULL))
            return false;
    }
    for (size_t i = 0; i < s->n_tasks; i++) {
        const struct task *t = s->tasks[i];
        if (t->kind == TASK_TRAIN && is_of(j, t, network) &&
            (t->train.n_contributions > 0 || (t->state == TASK_LEASED && t->steps_done > 0)))
            return false;
    }
    return true;
}

/* What one worker's word has made version 0; NULL: it is made now, or two have made it alike, or
 * that is not on record any more. */
static const struct task *made_by(const struct state *s, const struct job *j, uint32_t network)
{
    const struct task *found = NULL;
    for (size_t i = 0; i < s->n_tasks; i++)
        if (s->tasks[i]->kind == TASK_INIT && is_of(j, s->tasks[i], network))
            found = s->tasks[i];
    return found != NULL && found->state == TASK_DONE && !found->agreed ? found : NULL;
}

/* The task begins with version 0 of its network. */
static bool begins_with_it(const struct job *j, const struct task *t)
{
    return t->kind == TASK_TRAIN ||
           (t->kind == TASK_FEATURE && job_features(&j->spec) == JOB_FEATURES_MODEL);
}

static void hash_present(const struct job *j, uint32_t network, uint8_t ret[32])
{
    struct blob_ref made[COMPOSITION_LEVELS_MAX];
    for (uint32_t i = 0; i < j->comp.n_modules; i++)
        if (j->modules[i].network == network && j->modules[i].index == 0)
            made[j->modules[i].level] = j->modules[i].versions[0].full;
    remake_hash(made, j->comp.networks[network].n_levels, ret);
}

void remake_consider(struct coordinator *co, struct job *j, const struct task *failed,
                     const struct worker *by)
{
    const uint32_t network = j->comp.paths[failed->path].network;
    if (!begins_with_it(j, failed) || job_family(&j->spec)->external || j->doom != NULL ||
        !remake_may(&co->state, j, network))
        return;
    struct task *t = state_edit_task(&co->state, made_by(&co->state, j, network));
    const struct worker *maker = t != NULL ? state_worker(&co->state, t->worker_id) : NULL;
    const bool own = maker != NULL && worker_origin(maker) == worker_origin(by);
    uint8_t hash[32];
    if (t == NULL || (own && failed->failures < TASK_FAILURES_MAX))
        return;
    hash_present(j, network, hash);
    agree_doubt(co, j, t, hash);
    core_say(co, j->id, by->id,
             "version 0 of job %llu is made again, as worker %llu (%s) could not begin with it: "
             "%.300s",
             (ull)j->id, (ull)by->id, by->name, failed->reason);
    task_requeue(co, t, "a worker could not begin with version 0: it is made again");
    t->not_before_ms =
        core_now(co) +
        ((uint64_t)WAIT_MS << (t->failures < WAIT_DOUBLED_MAX ? t->failures : WAIT_DOUBLED_MAX));
    t->failures++;
}

void remake_begin_anew(struct coordinator *co, struct job *j, uint32_t network)
{
    for (size_t i = 0; i < co->state.n_tasks; i++) {
        const struct task *t = co->state.tasks[i];
        if (!is_of(j, t, network) || !task_is_open(t) || !begins_with_it(j, t))
            continue;
        struct task *mine = state_edit_task(&co->state, t);
        if (t->state == TASK_LEASED)
            task_requeue(co, mine, "version 0 was made again");
        mine->failed = (struct failure_list){0};
        mine->failures = 0;
        mine->not_before_ms = 0;
    }
}
