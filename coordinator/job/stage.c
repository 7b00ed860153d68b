/* Partitioning as tasks, each leased, retried and resumed like every other:
 *
 *   INITIALISING -> FEATURES   one FEATURE task per shard of the dataset
 *                -> CLUSTERING one CLUSTER task: a partitioner, the partitions of all samples
 *                -> SPLITTING  SPLIT tasks: groups of shards into shards of one partition each
 *                -> RUNNING    over the next generation of shards, with new ledgers
 *   RUNNING, all paths at a round of recipe.reshard
 *                -> SCORING    one SCORE task per path and shard kept for routers
 *                -> CLUSTERING discriminatively -> SPLITTING -> RUNNING
 *
 * What a stage found is in the job's record when its task is done, so that a restart goes
 * on with the tasks that are open.  A stage's tasks are made in the turn that enters it:
 * they are on record together or not at all. */
#include "coordinator/state/core.h"

#include "common/base/err.h"
#include "common/base/mem.h"

#include <stdio.h>
#include <string.h>

#define SPLIT_GROUP_MAX 64 /* shards that one SPLIT task reads */

static bool has_room(const struct coordinator *co, size_t n)
{
    return co->state.n_open + n <= TASKS_OPEN_MAX;
}

static void add_range(struct task *t, const struct job *j, size_t shard)
{
    t->ranges = mem_realloc(t->ranges, (t->n_ranges + 1) * sizeof(*t->ranges));
    t->ranges[t->n_ranges++] =
        (struct ledger_range){0, (uint32_t)shard, 0, j->shards[shard].samples};
}

static uint32_t main_paths(const struct job *j)
{
    uint32_t n = 0;
    while (n < j->comp.n_paths && j->comp.paths[n].network == 0)
        n++;
    return n;
}

/* ---- features and clusters ----------------------------------------------- */

void stage_begin(struct coordinator *co, struct job *j)
{
    size_t n = shards_cut(j);
    if (!has_room(co, n))
        return;
    for (size_t i = 0; i < n; i++) {
        struct task *t = task_make(co, j, TASK_FEATURE);
        add_range(t, j, i);
        save_task(co->store, t);
    }
    flow_enter(co, j, JOB_FEATURES, "features of all samples are computed");
}

static void begin_clustering(struct coordinator *co, struct job *j)
{
    struct task *t = has_room(co, 1) ? task_make(co, j, TASK_CLUSTER) : NULL;
    if (t == NULL)
        return;
    t->cluster.pass = j->resharded;
    save_task(co->store, t);
    flow_enter(co, j, JOB_CLUSTERING,
               j->n_scores > 0 ? "a router is trained on what the paths scored"
                               : "samples are assigned to partitions");
}

/* ---- shards of one partition --------------------------------------------- */

/* Shards from `first` that one task may read: neighbours, so that their rows of the
 * assignment are as well, all held out or none; as many as there are partitions, so that
 * what it writes is about as large as what it reads. */
static size_t split_group(const struct job *j, size_t first, size_t n)
{
    size_t most = j->comp.n_partitions < SPLIT_GROUP_MAX ? j->comp.n_partitions : SPLIT_GROUP_MAX;
    size_t end = first + 1;
    while (end < n && end - first < most && !j->shards[end].router &&
           j->shards[end].holdout == j->shards[first].holdout)
        end++;
    return end - first;
}

static void begin_splitting(struct coordinator *co, struct job *j)
{
    size_t n = shards_cut(j);
    uint32_t group = 0;
    if (!has_room(co, n))
        return;
    for (size_t i = 0; i < n;) {
        if (j->shards[i].router) {
            i++;
            continue;
        }
        struct task *t = task_make(co, j, TASK_SPLIT);
        t->split.group = group++;
        for (size_t end = i + split_group(j, i, n); i < end; i++)
            add_range(t, j, i);
        save_task(co->store, t);
    }
    flow_enter(co, j, JOB_SPLITTING, "samples are copied to their partitions");
}

/* The order of new shards must not depend on which task was faster. */
static void order_new(struct job *j)
{
    size_t first = 0;
    while (first < j->n_shards && j->shards[first].generation != j->generation)
        first++;
    for (size_t i = first + 1; i < j->n_shards; i++) {
        struct shard_rec s = j->shards[i];
        size_t k = i;
        for (; k > first && j->shards[k - 1].source > s.source; k--)
            j->shards[k] = j->shards[k - 1];
        j->shards[k] = s;
    }
}

static void drop_scores(struct coordinator *co, struct job *j)
{
    for (size_t i = 0; i < j->n_scores; i++)
        core_garbage(co, &j->scores[i].blob);
    j->n_scores = 0;
    save_job_scores(co->store, j);
}

/* What was best on other data says nothing about the new ones. */
static void drop_bests(struct coordinator *co, struct job *j)
{
    for (uint32_t p = 0; p < j->comp.n_paths; p++) {
        struct path_rec *path = &j->paths[p];
        if (path->best == NULL)
            continue;
        for (uint32_t l = 0; l < composition_levels(&j->comp, p); l++)
            core_garbage(co, &path->best[l].full);
        mem_free(path->best);
        path->best = NULL;
        save_path(co->store, j, p);
    }
}

static void save_new(struct coordinator *co, const struct job *j)
{
    for (size_t i = 0; i < j->n_shards; i++)
        if (j->shards[i].generation + 1 >= j->generation)
            save_job_shard(co->store, j, i);
}

/* The new shards and their partitioner go; those that were trained on get the number of the
 * new generation, so that a generation is never made twice. */
static void keep_routing(struct coordinator *co, struct job *j)
{
    for (size_t i = shards_cut(j); i < j->n_shards; i++) {
        struct shard_rec *s = &j->shards[i];
        if (s->generation == j->generation)
            s->generation--;
        else if (s->generation + 1 == j->generation)
            s->generation++;
    }
    core_garbage(co, &j->partitioner);
    j->partitioner = j->partitioner_before;
    j->partitioner_before = (struct blob_ref){0};
}

/* Ledgers over the new shards.  A re-sharding that leaves a path without data is dropped: the
 * job goes on as its data were routed before. */
static int make_ledgers(struct coordinator *co, struct job *j, struct err *err)
{
    struct err why = {0};
    int rc = shards_make_ledgers(j, &why);
    if (rc == 0 || j->generation == 1) {
        core_garbage(co, &j->partitioner_before);
        j->partitioner_before = (struct blob_ref){0};
        return rc < 0 ? err_set(err, rc, "%s", why.msg) : 0;
    }
    core_say(co, j->id, 0, "the data stay routed as they were, a re-sharding was dropped: %s",
             why.msg);
    keep_routing(co, j);
    return shards_make_ledgers(j, err);
}

static void next_generation(struct coordinator *co, struct job *j)
{
    struct err err = {0};
    drop_bests(co, j);
    j->generation++;
    j->old_shards = true;
    order_new(j);
    if (j->generation > 1)
        j->resharded++;
    drop_scores(co, j);
    if (make_ledgers(co, j, &err) < 0) {
        j->generation--; /* what is on record of the ledgers is of the one before */
        flow_end(co, j, JOB_FAILED, "the data cannot be partitioned like this: %s", err.msg);
        return;
    }
    save_new(co, j);
    flow_enter(co, j, JOB_RUNNING, "");
}

void stage_advance(struct coordinator *co, struct job *j)
{
    switch (j->state) {
    case JOB_FEATURES:
        if (flow_open_tasks(co, j, TASK_FEATURE) == 0)
            begin_clustering(co, j);
        break;
    case JOB_SCORING:
        if (flow_open_tasks(co, j, TASK_SCORE) == 0)
            begin_clustering(co, j);
        break;
    case JOB_CLUSTERING:
        if (flow_open_tasks(co, j, TASK_CLUSTER) == 0)
            begin_splitting(co, j);
        break;
    case JOB_SPLITTING:
        if (flow_open_tasks(co, j, TASK_SPLIT) == 0)
            next_generation(co, j);
        break;
    default:
        break;
    }
}

/* ---- scores -------------------------------------------------------------- */

uint32_t stage_barrier(const struct job *j)
{
    return j->comp.partitioned && j->resharded < j->spec.recipe.reshard.n
               ? (uint32_t)j->spec.recipe.reshard.items[j->resharded]
               : UINT32_MAX;
}

/* Every path on every listed shard. */
static void make_scores(struct coordinator *co, struct job *j, const uint32_t *shards, size_t n,
                        bool evaluate)
{
    for (uint32_t p = 0; p < main_paths(j); p++)
        for (size_t i = 0; i < n; i++) {
            struct task *t = task_make(co, j, TASK_SCORE);
            t->path = p;
            t->score = (struct task_score){j->paths[p].round, j->spec.outer.ema > 0, evaluate};
            add_range(t, j, shards[i]);
            save_task(co->store, t);
        }
}

/* Up to `most` shards of the dataset as it was cut: kept for routers, or held out. */
static size_t pick(const struct job *j, bool holdout, size_t most, uint32_t *out)
{
    size_t n = 0, cut = shards_cut(j);
    for (size_t i = 0; i < cut && n < most; i++)
        if (holdout ? j->shards[i].holdout : j->shards[i].router)
            out[n++] = (uint32_t)i;
    return n;
}

/* Shards of which every path's scores fit a CLUSTER task. */
static size_t scores_room(const struct job *j)
{
    return (STAGE_BLOBS_MAX - shards_cut(j)) / main_paths(j);
}

void stage_reshard(struct coordinator *co, struct job *j)
{
    uint32_t shards[STAGE_BLOBS_MAX];
    size_t n = pick(j, false, scores_room(j), shards);
    if (!has_room(co, n * main_paths(j)))
        return;
    make_scores(co, j, shards, n, false);
    flow_enter(co, j, JOB_SCORING, "every path scores the samples kept for routers");
}

bool stage_score_held_out(struct coordinator *co, struct job *j)
{
    uint32_t shards[STAGE_BLOBS_MAX];
    if (!j->comp.partitioned || j->spec.partition.chunk == 0)
        return false;
    size_t room = scores_room(j), held = pick(j, true, room, shards);
    if (held > room - room / 2) /* some for the router that is trained on chunks */
        held = room - room / 2;
    size_t n = held + pick(j, false, room - held, &shards[held]);
    if (held == 0 || !has_room(co, n * main_paths(j)))
        return false;
    make_scores(co, j, shards, n, true);
    return true;
}

bool stage_evaluate_routing(struct coordinator *co, struct job *j)
{
    size_t n = 0;
    uint32_t *scored = stage_scored(j, &n);
    mem_free(scored);
    /* Scores that could not be had leave the others without a use. */
    struct task *t =
        n > 0 && n * main_paths(j) == j->n_scores ? task_make(co, j, TASK_CLUSTER) : NULL;
    if (t == NULL)
        return false;
    t->cluster.evaluate = true;
    t->cluster.pass = j->resharded;
    save_task(co->store, t);
    return true;
}

uint32_t *stage_scored(const struct job *j, size_t *ret_n)
{
    size_t cut = shards_cut(j), n = 0;
    bool *has = mem_alloc_array(cut + 1, sizeof(*has));
    uint32_t *list = j->n_scores > 0 ? mem_alloc_array(j->n_scores, sizeof(*list)) : NULL;
    for (size_t i = 0; i < j->n_scores; i++)
        has[j->scores[i].shard] = j->scores[i].shard < cut;
    for (size_t i = 0; i < cut && list != NULL; i++)
        if (has[i])
            list[n++] = (uint32_t)i;
    mem_free(has);
    *ret_n = n;
    return list;
}

/* ---- how far ------------------------------------------------------------- */

static uint32_t split_groups(const struct job *j)
{
    size_t n = shards_cut(j);
    uint32_t groups = 0;
    for (size_t i = 0; i < n; i += j->shards[i].router ? 1 : split_group(j, i, n))
        groups += !j->shards[i].router;
    return groups;
}

void stage_progress(const struct coordinator *co, const struct job *j, uint32_t *ret_done,
                    uint32_t *ret_total)
{
    enum task_kind kind = TASK_UNSPECIFIED;
    size_t total = 0;
    if (j->state == JOB_INGESTING) {
        kind = TASK_INGEST;
        total = j->spec.data.url.n;
    } else if (j->state == JOB_FEATURES) {
        kind = TASK_FEATURE;
        total = shards_cut(j);
    } else if (j->state == JOB_SCORING) {
        kind = TASK_SCORE;
        total = j->n_scores + flow_open_tasks(co, j, TASK_SCORE);
    } else if (j->state == JOB_CLUSTERING) {
        kind = TASK_CLUSTER;
        total = 1;
    } else if (j->state == JOB_SPLITTING) {
        kind = TASK_SPLIT;
        total = split_groups(j);
    }
    size_t open = kind != TASK_UNSPECIFIED ? flow_open_tasks(co, j, kind) : 0;
    *ret_total = (uint32_t)total;
    *ret_done = (uint32_t)(total > open ? total - open : 0);
}
