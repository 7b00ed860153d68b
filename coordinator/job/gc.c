/* Which blobs may go.  A blob is kept while anything in the state names it: a
 * shard of a job that runs or ended within the hour, a kept version or the best of a
 * path, a contribution to one of those, a grid, what partitioning still needs.  Deletions happen
 * after the commit that dropped the last name, on the disk pool. */
#include "coordinator/state/core.h"

#include "common/base/clock.h"
#include "common/base/mem.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#define GARBAGE_MAX 65536
#define ORPHAN_S (24 * 3600) /* a dataset is named only when the last of its shards is up */
#define JOB_KEEP_MS (3600ll * 1000)

struct names {
    struct blob_id *ids;
    size_t n, cap;
};

static void name(struct names *s, const struct blob_ref *b)
{
    if (!blob_ref_is_set(b))
        return;
    if (s->n == s->cap) {
        s->cap = s->cap ? s->cap * 2 : 256;
        s->ids = mem_realloc(s->ids, s->cap * sizeof(*s->ids));
    }
    memcpy(s->ids[s->n++].sha256, b->sha256, 32);
}

static int order(const void *a, const void *b)
{
    return memcmp(a, b, sizeof(struct blob_id));
}

/* What only goes on to be used while the job runs. */
static void name_stages(struct names *s, const struct job *j)
{
    name(s, &j->warm_start);
    name(s, &j->assignment);
    for (size_t i = 0; i < j->n_shards; i++)
        name(s, &j->shards[i].features);
    for (size_t i = 0; i < j->n_scores; i++)
        name(s, &j->scores[i].blob);
    for (uint32_t p = 0; p < j->comp.n_paths; p++)
        for (uint32_t r = 0; r < j->comp.paths[p].replicas; r++)
            name(s, &j->paths[p].replicas[r].moments);
}

static void name_job(struct names *s, const struct job *j)
{
    bool keep = !job_is_ended(j) || (int64_t)clock_wall_ms() - j->ended_unix_ms < JOB_KEEP_MS;
    bool teaches = j->state == JOB_DONE && j->comp.mixture;
    for (size_t i = 0; i < j->n_shards; i++)
        if (keep || (teaches && j->shards[i].generation == j->generation))
            name(s, &j->shards[i].blob);
    name(s, &j->partitioner);
    name(s, &j->partitioner_before);
    name(s, &j->tokenizer);
    if (!job_is_ended(j))
        name_stages(s, j);
    for (uint32_t p = 0; p < j->comp.n_paths; p++)
        for (uint32_t l = 0; j->paths[p].best && l < composition_levels(&j->comp, p); l++)
            name(s, &j->paths[p].best[l].full);
    for (uint32_t i = 0; i < j->comp.n_modules; i++)
        for (unsigned v = 0; v < j->modules[i].n_versions; v++) {
            name(s, &j->modules[i].versions[v].full);
            name(s, &j->modules[i].versions[v].delta);
            name(s, &j->modules[i].versions[v].ema);
        }
    for (size_t i = 0; i < j->n_grids; i++)
        name(s, &j->grids[i].blob);
    for (size_t i = 0; i < j->n_unread_blobs; i++)
        name(s, &j->unread_blobs[i]);
}

static void name_task(struct names *s, const struct state *st, const struct task *t)
{
    const struct job *j = state_job(st, t->job_id);
    /* Files of partitioning and velocities are of no use once the job or sampler ended. */
    bool passing = t->kind == TASK_FEATURE || t->kind == TASK_CLUSTER || t->kind == TASK_SCORE;
    if (!passing)
        name(s, &t->output);
    if (t->kind == TASK_VELOCITY)
        name(s, &t->velocity.input);
    if (t->kind != TASK_TRAIN)
        return;
    if (j != NULL && !job_is_ended(j))
        name(s, &t->train.moments);
    for (size_t i = 0; i < t->train.n_contributions; i++) {
        const struct contribution *c = &t->train.contributions[i];
        const struct module_rec *m = j ? job_module(j, c->module_id) : NULL;
        if (m != NULL && module_keeps(m, c) && (c->version != 0 || !job_is_ended(j)))
            name(s, &c->blob);
    }
}

/* All names, sorted. */
static void collect(const struct coordinator *co, struct names *s)
{
    memset(s, 0, sizeof(*s));
    for (size_t i = 0; i < co->state.n_jobs; i++)
        name_job(s, co->state.jobs[i]);
    for (size_t i = 0; i < co->state.n_tasks; i++)
        name_task(s, &co->state, co->state.tasks[i]);
    if (s->n > 0)
        qsort(s->ids, s->n, sizeof(*s->ids), order);
}

static bool named(const struct names *s, const struct blob_id *id)
{
    return s->n > 0 && bsearch(id, s->ids, s->n, sizeof(*s->ids), order) != NULL;
}

void core_garbage(struct coordinator *co, const struct blob_ref *b)
{
    if (!blob_ref_is_set(b) || co->n_garbage == GARBAGE_MAX)
        return; /* the sweep finds what is not remembered here */
    if (co->n_garbage == co->cap_garbage) {
        co->cap_garbage = co->cap_garbage ? co->cap_garbage * 2 : 16;
        co->garbage = mem_realloc(co->garbage, co->cap_garbage * sizeof(*co->garbage));
    }
    co->garbage[co->n_garbage++] = *b;
}

/* ---- on the disk pool ---- */

struct removal {
    struct coordinator *co;
    struct blobstore *store;
    struct names names; /* what must stay (sweep), or what must go */
    bool sweep;
};

static int remove_orphan(void *arg, const struct blob_id *id, uint64_t size)
{
    struct removal *r = arg;
    char path[4096];
    struct stat st;
    if (named(&r->names, id) || blobstore_path(r->store, id, path, sizeof(path)) < 0 ||
        stat(path, &st) < 0 || time(NULL) - st.st_mtime < ORPHAN_S)
        return 0;
    (void)blobstore_delete(r->store, id, NULL); /* tried again at the next sweep */
    return 0;
}

static int removal_work(void *arg)
{
    struct removal *r = arg;
    if (r->sweep)
        return blobstore_scan(r->store, remove_orphan, r, NULL);
    for (size_t i = 0; i < r->names.n; i++)
        (void)blobstore_delete(r->store, &r->names.ids[i], NULL); /* the sweep tries again */
    return 0;
}

static void removal_done(void *arg, int rc)
{
    struct removal *r = arg;
    if (r->sweep)
        r->co->sweeping = false;
    mem_free(r->names.ids);
    mem_free(r);
}

static void submit(struct coordinator *co, const struct names *names, bool sweep)
{
    struct removal *r = mem_alloc(sizeof(*r));
    *r = (struct removal){co, co->blobs, *names, sweep};
    co->sweeping |= sweep;
    if (pool_submit(co->disk, removal_work, removal_done, r) < 0)
        removal_done(r, 0); /* later */
}

void gc_after_commit(struct coordinator *co)
{
    struct names keep, go = {0};
    if (co->n_garbage == 0)
        return;
    collect(co, &keep);
    for (size_t i = 0; i < co->n_garbage; i++) {
        struct blob_id id;
        memcpy(id.sha256, co->garbage[i].sha256, 32);
        if (!named(&keep, &id))
            name(&go, &co->garbage[i]);
    }
    co->n_garbage = 0;
    mem_free(keep.ids);
    if (go.n > 0)
        submit(co, &go, false);
    else
        mem_free(go.ids);
}

void gc_sweep(struct coordinator *co)
{
    struct names keep;
    if (co->sweeping || !co->store_ok)
        return;
    collect(co, &keep);
    submit(co, &keep, true);
}
