/* A job's life: its states, the tasks of each, and its end.
 *
 *   PENDING -> INGESTING      one INGEST task per URL of the data, if there are any
 *           -> ENCODING       one ENCODE task per shard, where pictures become latents once
 *           -> INITIALISING   one INIT task per network
 *           -> RUNNING        rounds.c
 *           -> FINISHING      the last evaluations and samples
 *           -> DONE
 *
 * and, for partitioned data:
 *
 *   INITIALISING -> FEATURES   one FEATURE task per shard of the dataset
 *                -> CLUSTERING one CLUSTER task: a partitioner, the partitions of all samples
 *                -> SPLITTING  SPLIT tasks: groups of shards into shards of one partition each
 *                -> RUNNING    over the next generation of shards, with new ledgers
 *   RUNNING, all paths at a round of recipe.reshard
 *                -> SCORING    one SCORE task per path and shard kept for routers
 *                -> CLUSTERING discriminatively -> SPLITTING -> RUNNING
 *
 * A task's result is in the job's record when the task is done, so that a restart continues with
 * the open tasks.  A state's tasks are made in the turn that enters it: all of them are on record,
 * or none. */
#include "coordinator/job/flow.h"

#include "coordinator/decide/encode.h"
#include "coordinator/job/best.h"
#include "coordinator/job/draw.h"
#include "coordinator/job/folds.h"
#include "coordinator/job/leftover.h"
#include "coordinator/job/rounds.h"
#include "coordinator/outer/outer_exec.h"
#include "coordinator/work/cost.h"
#include "coordinator/work/gc.h"
#include "coordinator/work/query.h"
#include "coordinator/work/shards.h"
#include "coordinator/work/tasks.h"

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/net/blobstore.h"
#include "common/base/log.h"
#include "common/job/family.h"

/* ---- states -------------------------------------------------------------- */

static void enter(struct coordinator *co, struct job *j, enum job_state state, const char *reason)
{
    j->state = state;
    (void)str_copy(j->reason, sizeof(j->reason), reason);
    if (state == JOB_RUNNING && j->started_unix_ms == 0) {
        j->started_ms = core_now(co);
        j->started_unix_ms = (int64_t)clock_wall_ms();
    }
    log_info("job", "job %llu is %s%s%s", (unsigned long long)j->id, job_state_name(state),
             reason[0] ? ": " : "", reason);
    core_event(co, &(struct event){.kind = EVENT_JOB, .job_id = j->id, .text = reason});
    core_touch(co);
}

void flow_end(struct coordinator *co, struct job *j, enum job_state state, const char *fmt, ...)
{
    char reason[1024];
    va_list ap;
    if (job_is_ended(j))
        return;
    va_start(ap, fmt);
    (void)vsnprintf(reason, sizeof(reason), fmt, ap);
    va_end(ap);
    j->ended_unix_ms = (int64_t)clock_wall_ms();
    cost_settle(co, j);
    enter(co, j, state, reason);
    for (size_t i = 0; i < co->state.n_tasks; i++) {
        const struct task *t = co->state.tasks[i];
        if (t->job_id == j->id && task_is_open(t))
            task_end(co, state_edit_task(&co->state, t), TASK_CANCELLED,
                     reason[0] ? reason : "the job has ended");
    }
    gc_job_ended(co, j);
    folds_clean_up(co, j);
    core_say(co, j->id, 0, "job %llu (%s) is %s%s%s", (unsigned long long)j->id, j->spec.name,
             job_state_name(state), reason[0] ? ": " : "", reason);
}

/* ---- removal ------------------------------------------------------------- */

static const struct job *student_of(const struct state *s, const struct job *j)
{
    for (size_t i = 0; i < s->n_jobs; i++)
        if (!job_is_ended(s->jobs[i]) && s->jobs[i]->comp.teacher_job == j->id)
            return s->jobs[i];
    return NULL;
}

int flow_removable(const struct coordinator *co, const struct job *j, struct err *err)
{
    const unsigned long long id = j->id;
    const struct job *student = student_of(&co->state, j);
    if (!job_is_ended(j))
        return err_set(err, -ERR_STALE,
                       "job %llu (%s) has not ended, it is %s: stop it with `skerry cancel %llu` "
                       "first",
                       id, j->spec.name, j->paused ? "paused" : job_state_name(j->state), id);
    if (student != NULL)
        return err_set(
            err, -EBUSY,
            "job %llu (%s) teaches job %llu (%s), which has not ended: wait for its end, "
            "or stop it with `skerry cancel %llu` first",
            id, j->spec.name, (unsigned long long)student->id, student->spec.name,
            (unsigned long long)student->id);
    for (uint32_t i = 0; i < j->comp.n_modules; i++)
        if (j->modules[i].outer_task != 0)
            return err_set(err, -EAGAIN,
                           "an outer step of job %llu (%s) has not stopped yet, try again", id,
                           j->spec.name);
    return 0;
}

void flow_remove(struct coordinator *co, struct job *j)
{
    struct state *s = &co->state;
    char *dir = outer_state_dir(j->id, 0);
    for (size_t i = 0; i < s->n_tasks; i++)
        if (s->tasks[i]->job_id == j->id && task_is_open(s->tasks[i]))
            task_end(co, state_edit_task(s, s->tasks[i]), TASK_CANCELLED, "its job was removed");
    (void)gc_job_removed(co, j, false);
    leftover_drop(co, file_join(co->opt.data_dir, dir), 0); /* an unread job has kept it */
    cost_forget(co, j);
    for (size_t i = s->n_tasks; i-- > 0;)
        if (s->tasks[i]->job_id == j->id)
            state_drop_task(s, s->tasks[i]);
    state_drop_job(s, j);
    core_touch(co);
    mem_free(dir);
}

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

/* ---- features and clusters ----------------------------------------------- */

/* Who may have made all partitions that were of no use does not make them again. */
static void make_again(struct coordinator *co, const struct job *j, struct task *t)
{
    if (j->suspects.n > 0 && j->generation == 0)
        task_from_elsewhere(co, t, j->suspects.origin[0], j->useless);
}

/* If there is no room for the tasks, it is tried again at the next turn, like the others. */
static void begin_features(struct coordinator *co, struct job *j)
{
    size_t n = shards_cut(j);
    if (!has_room(co, n))
        return;
    for (size_t i = 0; i < n; i++) {
        struct task *t = task_make(co, j, TASK_FEATURE);
        make_again(co, j, t);
        add_range(t, j, i);
    }
    j->makers = (struct job_makers){.since_features = true};
    enter(co, j, JOB_FEATURES, "features of all samples are computed");
}

static void begin_clustering(struct coordinator *co, struct job *j)
{
    struct task *t = has_room(co, 1) ? task_make(co, j, TASK_CLUSTER) : NULL;
    if (t == NULL)
        return;
    t->cluster.pass = j->resharded;
    make_again(co, j, t);
    enter(co, j, JOB_CLUSTERING,
          j->n_scores > 0 ? "a router is trained on what the paths scored"
                          : "samples are assigned to partitions");
}

/* ---- shards of one partition --------------------------------------------- */

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
        make_again(co, j, t);
        for (size_t end = i + query_split_group(j, i, n); i < end; i++)
            add_range(t, j, i);
    }
    enter(co, j, JOB_SPLITTING, "samples are copied to their partitions");
}

/* The order of new shards must not depend on which task was faster. */
static void order_new(struct job *j)
{
    size_t first = 0;
    while (first < j->n_shards && j->shards[first].generation != j->generation)
        first++;
    job_order_shards(j, first);
}

static void drop_scores(struct coordinator *co, struct job *j)
{
    for (size_t i = 0; i < j->n_scores; i++)
        gc_drop(co, &j->scores[i].blob);
    job_drop_scores(j);
}

/* Swaps the numbers of the last two generations. */
static void swap_generations(struct job *j)
{
    for (size_t i = shards_cut(j); i < j->n_shards; i++) {
        const uint32_t was = j->shards[i].generation;
        if (was == j->generation)
            job_edit_shard(j, i)->generation--;
        else if (was + 1 == j->generation)
            job_edit_shard(j, i)->generation++;
    }
}

/* Drops the new shards and their partitioner; the present shards get the number of the
 * new generation, so that a generation is never made twice. */
static void keep_routing(struct coordinator *co, struct job *j)
{
    swap_generations(j);
    gc_drop(co, &j->partitioner);
    j->partitioner = j->partitioner_before;
    j->partitioner_before = (struct blob_ref){0};
}

/* Makes ledgers over the new shards.  A re-sharding that leaves a path without data is dropped: the
 * job goes on with the old routing. */
static int make_ledgers(struct coordinator *co, struct job *j, struct err *err)
{
    struct err why = {0};
    int rc = shards_make_ledgers(j, &why);
    if (rc == 0)
        best_forget(co, j);
    if (rc == 0 || j->generation == 1) {
        gc_drop(co, &j->partitioner_before);
        j->partitioner_before = (struct blob_ref){0};
        return rc < 0 ? err_set(err, rc, "%s", why.msg) : 0;
    }
    core_say(co, j->id, 0, "the data stay routed as they were, a re-sharding was dropped: %s",
             why.msg);
    keep_routing(co, j);
    if ((rc = shards_make_ledgers(j, err)) < 0)
        swap_generations(j); /* to agree with the ledgers on record */
    return rc;
}

/* Leaves of the suspects those that made some of these partitions, too. */
static void suspect(struct job *j, const char *why)
{
    const struct job_makers all = j->useless == NULL ? j->makers : j->suspects;
    j->suspects.n = 0;
    for (unsigned i = 0; i < all.n; i++)
        for (unsigned k = 0; k < j->makers.n; k++)
            if (all.origin[i] == j->makers.origin[k])
                j->suspects.origin[j->suspects.n++] = all.origin[i];
    mem_free(j->useless);
    j->useless = str_dup(why);
}

/* Are the first partitions of no use, and could a single worker be to blame?  Then others make them
 * again before that ends the job; or anybody, if nobody knows any more who made these. */
static bool doubts_partitions(struct coordinator *co, struct job *j, const char *why)
{
    if (co->opt.local || !j->comp.partitioned)
        return false;
    if (!has_room(co, shards_cut(j)))
        return true; /* tried again at the next turn */
    if (j->makers.since_features) {
        suspect(j, why);
        if (j->suspects.n == 0)
            return false;
    }
    for (size_t i = shards_cut(j); i < j->n_shards; i++)
        gc_drop(co, &j->shards[i].blob);
    job_drop_generation(j, 1);
    gc_drop(co, &j->partitioner);
    gc_drop(co, &j->assignment);
    j->partitioner = j->assignment = (struct blob_ref){0};
    core_say(co, j->id, 0, "the partitions of job %llu are made again%s: %s",
             (unsigned long long)j->id, j->makers.since_features ? " by other workers" : "", why);
    begin_features(co, j);
    return true;
}

static void next_generation(struct coordinator *co, struct job *j)
{
    struct err err = {0};
    j->generation++;
    j->old_shards = true;
    order_new(j);
    if (j->generation > 1)
        j->resharded++;
    drop_scores(co, j);
    if (make_ledgers(co, j, &err) < 0) {
        j->generation--; /* the ledgers on record are those of the one before */
        if (j->generation > 0 || !doubts_partitions(co, j, err.msg))
            flow_end(co, j, JOB_FAILED, "the data cannot be partitioned like this: %s", err.msg);
        return;
    }
    enter(co, j, JOB_RUNNING, "");
}

/* ---- scores -------------------------------------------------------------- */

/* Makes a SCORE task of every path for every listed shard. */
static void make_scores(struct coordinator *co, struct job *j, const uint32_t *shards, size_t n,
                        bool evaluate)
{
    for (uint32_t p = 0; p < query_main_paths(j); p++)
        for (size_t i = 0; i < n; i++) {
            struct task *t = task_make(co, j, TASK_SCORE);
            t->path = p;
            t->score = (struct task_score){j->paths[p].round, j->spec.outer.ema > 0, evaluate};
            add_range(t, j, shards[i]);
        }
}

/* Up to `most` of the dataset's original shards: kept for routers, or held out. */
static size_t pick(const struct job *j, bool holdout, size_t most, uint32_t *out)
{
    size_t n = 0, cut = shards_cut(j);
    for (size_t i = 0; i < cut && n < most; i++)
        if (holdout ? j->shards[i].holdout : j->shards[i].router)
            out[n++] = (uint32_t)i;
    return n;
}

/* The number of shards whose scores by every path fit in a CLUSTER task. */
static size_t scores_room(const struct job *j)
{
    return (CLUSTER_BLOBS_MAX - shards_cut(j)) / query_main_paths(j);
}

/* A re-sharding for which there may be no room is dropped. */
static void begin_scoring(struct coordinator *co, struct job *j)
{
    uint32_t shards[CLUSTER_BLOBS_MAX];
    size_t n = pick(j, false, scores_room(j), shards);
    if (j->n_shards + query_splits_most(j) > JOB_SHARDS_MAX) {
        core_say(co, j->id, 0,
                 "the data stay routed as they were, a re-sharding was dropped: with it the job "
                 "could have more than %d shards; raise data.shard_samples next time",
                 JOB_SHARDS_MAX);
        j->resharded++;
        core_touch(co);
        return;
    }
    if (!has_room(co, n * query_main_paths(j)))
        return;
    make_scores(co, j, shards, n, false);
    enter(co, j, JOB_SCORING, "every path scores the samples kept for routers");
}

/* The shards whose scores measure the benefit of routing at the end. */
static size_t pick_held_out(const struct job *j, uint32_t shards[CLUSTER_BLOBS_MAX])
{
    if (!j->comp.partitioned || j->spec.partition.chunk == 0)
        return 0;
    size_t room = scores_room(j), held = pick(j, true, room, shards);
    if (held > room - room / 2) /* some for the router that is trained on chunks */
        held = room - room / 2;
    return held == 0 ? 0 : held + pick(j, false, room - held, &shards[held]);
}

static void evaluate_routing(struct coordinator *co, struct job *j)
{
    size_t n = 0;
    uint32_t *scored = query_scored(j, &n);
    mem_free(scored);
    /* If some scores could not be made, the others are of no use. */
    struct task *t =
        n > 0 && n * query_main_paths(j) == j->n_scores ? task_make(co, j, TASK_CLUSTER) : NULL;
    if (t == NULL)
        return;
    t->cluster.evaluate = true;
    t->cluster.pass = j->resharded;
}

/* ---- from the data to the end --------------------------------------------- */

/* All shards are there: makes one INIT task per network. */
static void begin_init(struct coordinator *co, struct job *j)
{
    struct err err = {0};
    if (co->state.n_open + COMPOSITION_NETWORKS > TASKS_OPEN_MAX)
        return; /* tried again at the next turn */
    int rc = shards_check(j, &err);
    if (rc == 0)
        shards_keep_for_routers(co, j);
    if (rc == 0 && !j->comp.partitioned)
        rc = shards_make_ledgers(j, &err);
    if (rc < 0) {
        flow_end(co, j, JOB_FAILED, "the dataset cannot be used: %s", err.msg);
        return;
    }
    for (uint32_t w = 0; w < COMPOSITION_NETWORKS; w++) {
        uint32_t p = 0;
        while (p < j->comp.n_paths && j->comp.paths[p].network != w)
            p++;
        if (p == j->comp.n_paths)
            continue;
        struct task *t = task_make(co, j, TASK_INIT);
        t->path = p;
    }
    enter(co, j, JOB_INITIALISING, "");
}

/* The number of pictures that all phases together see; 0 if phases are bounded by time. */
static uint64_t pictures_seen(const struct job *j)
{
    uint64_t sum = 0;
    for (uint32_t p = 0; p < j->comp.n_paths; p++)
        sum += (uint64_t)j->comp.paths[p].batch * (j->comp.elastic ? 1 : j->comp.paths[p].replicas);
    return sum * (uint64_t)j->spec.outer.steps * (uint64_t)j->spec.outer.rounds;
}

/* Bytes of the moments of all pictures in bf16; shards compress them a little. */
static uint64_t latents_bytes(const struct job *j)
{
    uint64_t pictures = 0;
    for (size_t i = 0; i < j->n_shards; i++)
        pictures += j->shards[i].samples;
    return pictures * (j->spec.data.flip ? 2 : 1) * 4 * j->input.channels * j->input.side *
           j->input.side;
}

/* All shards are there.  A teacher's are those that its job left. */
static void begin_encoding(struct coordinator *co, struct job *j)
{
    struct encode_decision d;
    const int run = j->spec.encoders.run;
    const struct job_train *train = &j->spec.train;
    const bool fills =
        train->fill && j->spec.data.buckets.n == 0 && train->parallel != JOB_PARALLEL_DATA;
    uint64_t room = UINT64_MAX; /* in a store far away there is enough, up to the quota */
    if (!co->blobs->ops->health)
        (void)file_disk_free(co->opt.data_dir, &room, NULL); /* or the disk is ignored */
    const uint64_t quota = co->opt.blob_quota_bytes, used = co->blobs->used_bytes;
    const uint64_t left = quota == 0 ? UINT64_MAX : quota > used ? quota - used : 0;
    const struct encode_in in = {.asked_once = run == JOB_ENCODE_JOB,
                                 .asked_step = run == JOB_ENCODE_FLY || run == JOB_ENCODE_WORKER,
                                 .pictures = shards_sum(j, PARTITION_ALL, false).samples,
                                 .shards = j->n_shards,
                                 .seen = pictures_seen(j),
                                 .flip = j->spec.data.flip,
                                 .latents_bytes = latents_bytes(j),
                                 .disk_free = left < room ? left : room,
                                 .random_crop = j->spec.data.crop == JOB_CROP_RANDOM,
                                 .pipeline = fills && train->parallel == JOB_PARALLEL_PIPELINE,
                                 .stages = fills ? train->stages : 0,
                                 .micros = train->accumulate,
                                 .batch = train->batch};
    if (!job_has_latents(&j->spec) || j->comp.teacher_job != 0) {
        begin_init(co, j);
        return;
    }
    encode_decide(&in, &d);
    if (d.impossible) {
        flow_end(co, j, JOB_FAILED, "%s", d.reason);
        return;
    }
    if (d.once && !has_room(co, j->n_shards))
        return; /* tried again at the next turn */
    core_say(co, j->id, 0, "%s", d.reason);
    if (!d.once) {
        begin_init(co, j);
        return;
    }
    for (size_t i = 0; i < j->n_shards; i++)
        add_range(task_make(co, j, TASK_ENCODE), j, i);
    enter(co, j, JOB_ENCODING, d.reason);
}

/* Is what the archives gave of no use?  One worker may be to blame, so others cut them once more
 * before that ends the job. */
static bool doubts_archives(struct coordinator *co, struct job *j)
{
    struct err err = {0};
    if (j->recut || co->opt.local || shards_check(j, &err) == 0)
        return false;
    j->recut = true;
    return tasks_recut(co, j, 0, err.msg);
}

static void begin(struct coordinator *co, struct job *j)
{
    if (j->spec.data.path != NULL || j->comp.teacher_job != 0 || !job_has_data(&j->spec)) {
        begin_encoding(co, j);
        return;
    }
    if (!has_room(co, j->spec.data.url.n))
        return; /* tried again at the next turn */
    for (size_t i = 0; i < j->spec.data.url.n; i++)
        task_make(co, j, TASK_INGEST)->ingest.url = (uint32_t)i;
    enter(co, j, JOB_INGESTING, "");
}

static void finish(struct coordinator *co, struct job *j)
{
    if (!has_room(co, j->comp.n_paths))
        return;
    j->finishing = FINISHING_EVAL;
    enter(co, j, JOB_FINISHING, "the last losses are measured and the last samples drawn");
    for (uint32_t p = 0; p < j->comp.n_paths; p++)
        (void)draw_eval(co, j, p, (uint32_t)j->spec.outer.rounds);
}

/* The last evaluations go first: which versions are drawn at the end may depend on them. */
static void advance_finishing(struct coordinator *co, struct job *j)
{
    bool evals = query_open_tasks(&co->state, j, TASK_EVAL) > 0;
    if (j->finishing == FINISHING_EVAL && !evals) {
        uint32_t shards[CLUSTER_BLOBS_MAX];
        const size_t n = pick_held_out(j, shards);
        if (!has_room(co, j->comp.n_paths + 2 + n * query_main_paths(j)))
            return;
        j->finishing = FINISHING_DRAW;
        draw_last(co, j);
        make_scores(co, j, shards, n, true);
        evals = query_open_tasks(&co->state, j, TASK_EVAL) > 0;
    }
    if (j->finishing == FINISHING_DRAW && query_open_tasks(&co->state, j, TASK_SCORE) == 0 &&
        has_room(co, 1)) {
        j->finishing = FINISHING_ROUTE;
        evaluate_routing(co, j);
    }
    if (j->finishing == FINISHING_ROUTE && !evals &&
        query_open_tasks(&co->state, j, TASK_SAMPLE) == 0 &&
        query_open_tasks(&co->state, j, TASK_CLUSTER) == 0)
        flow_end(co, j, JOB_DONE, "%s", "");
}

static bool at_barrier(const struct job *j)
{
    uint32_t round = query_barrier(j);
    for (uint32_t p = 0; p < j->comp.n_paths; p++)
        if (j->paths[p].ready || j->paths[p].round != round)
            return false;
    return true;
}

static void advance_running(struct coordinator *co, struct job *j)
{
    rounds_advance(co, j);
    if (j->doom != NULL)
        return;
    if (at_barrier(j))
        begin_scoring(co, j);
    else if (query_finished(j))
        finish(co, j);
}

/* Advances the job in its present state. */
static void step(struct coordinator *co, struct job *j)
{
    best_settle(co, j);
    switch (j->state) {
    case JOB_PENDING:
        begin(co, j);
        break;
    case JOB_INGESTING:
        if (query_open_tasks(&co->state, j, TASK_INGEST) == 0 && !doubts_archives(co, j))
            begin_encoding(co, j);
        break;
    case JOB_ENCODING:
        if (query_open_tasks(&co->state, j, TASK_ENCODE) == 0)
            begin_init(co, j);
        break;
    case JOB_INITIALISING:
        if (query_initialised(j) && j->comp.partitioned)
            begin_features(co, j);
        else if (query_initialised(j))
            enter(co, j, JOB_RUNNING, "");
        break;
    case JOB_FEATURES:
        if (query_open_tasks(&co->state, j, TASK_FEATURE) == 0)
            begin_clustering(co, j);
        break;
    case JOB_SCORING:
        if (query_open_tasks(&co->state, j, TASK_SCORE) == 0)
            begin_clustering(co, j);
        break;
    case JOB_CLUSTERING:
        if (query_open_tasks(&co->state, j, TASK_CLUSTER) == 0)
            begin_splitting(co, j);
        break;
    case JOB_SPLITTING:
        if (query_open_tasks(&co->state, j, TASK_SPLIT) == 0)
            next_generation(co, j);
        break;
    case JOB_RUNNING:
        advance_running(co, j);
        break;
    case JOB_FINISHING:
        advance_finishing(co, j);
        break;
    default:
        break;
    }
}

static void advance(struct coordinator *co, struct job *j)
{
    enum job_state before;
    do {
        before = j->state;
        if (j->doom != NULL)
            flow_end(co, j, JOB_FAILED, "%s", j->doom);
        else
            step(co, j);
    } while (j->state != before || (j->doom != NULL && !job_is_ended(j)));
    if (!job_is_ended(j))
        shards_drop_old(co, j);
}

void flow_advance(struct coordinator *co)
{
    for (size_t i = 0; i < co->state.n_jobs; i++)
        if (!job_is_ended(co->state.jobs[i]))
            advance(co, co->state.jobs[i]);
}
