/* The part of a task's message that is particular to its kind. */
#include "coordinator/job/query.h"
#include "coordinator/job/shards.h"
#include "coordinator/rpc/taskmsg_internal.h"

#include "common/base/mem.h"

#include <stdlib.h>
#include <string.h>

#define AHEAD_MAX 64 /* as TrainTask.ahead */

static bool is_text(const struct job *j)
{
    return j->spec.model.type == JOB_MODEL_LLAMA;
}

static Skerry__V1__Range **ranges(struct taskmsg *b, size_t *ret_n)
{
    const struct task *t = b->task;
    Skerry__V1__Range **list = taskmsg_need(b, t->n_ranges * sizeof(*list));
    *ret_n = t->n_ranges;
    for (size_t i = 0; i < t->n_ranges && !b->failed; i++) {
        const struct shard_rec *s = &b->job->shards[t->ranges[i].shard];
        Skerry__V1__Range *r = taskmsg_need(b, sizeof(*r));
        if (b->failed)
            break;
        skerry__v1__range__init(r);
        r->start = t->ranges[i].start;
        r->count = t->ranges[i].count;
        r->partition = s->partition;
        /* A shard that repeats shares one ticket. */
        for (size_t k = i; k-- > 0 && i - k < 8;)
            if (t->ranges[k].shard == t->ranges[i].shard)
                r->shard = list[k]->shard;
        if (r->shard == NULL)
            r->shard = taskmsg_blob(b, &s->blob);
        list[i] = r;
    }
    return list;
}

/* ---- TRAIN --------------------------------------------------------------- */

static uint64_t total_steps(const struct job *j, const struct task *t)
{
    const struct composition_path *path = &j->comp.paths[t->path];
    uint64_t rounds = (uint64_t)j->spec.outer.rounds, left = rounds - t->train.round;
    if (j->spec.outer.async) { /* its share of the phases to come */
        uint64_t k = path->replicas;
        left = (rounds * k - j->paths[t->path].phases + k - 1) / k;
    } else if (j->spec.outer.steps > 0) {
        return rounds * (uint64_t)j->spec.outer.steps;
    }
    if (j->spec.outer.steps > 0)
        return t->train.first_step + left * (uint64_t)j->spec.outer.steps;
    /* Bounded by time: as many in each phase to come as the last one would have done in full. */
    struct shards_sum sum = shards_sum(j, path->partition, false);
    uint64_t samples = j->paths[t->path].replicas[t->train.replica].samples_last;
    uint64_t phase = samples * 1000 / shards_of_steps(&j->spec, path->batch, 1000, &sum);
    return phase > 0 ? t->train.first_step + left * phase : 0;
}

static int by_step(const void *a, const void *b)
{
    const Skerry__V1__Fragment *const *x = a, *const *y = b;
    return (*x)->step != (*y)->step ? ((*x)->step > (*y)->step ? 1 : -1)
                                    : ((*x)->level > (*y)->level) - ((*x)->level < (*y)->level);
}

/* Fragment f of F contributes after ceil((f+1)(H-delay)/F) of the H steps, so that
 * what is sent is spread evenly over the phase and the last merge is at its end. */
static void add_fragments(struct taskmsg *b, Skerry__V1__TrainTask *m)
{
    const struct job *j = b->job;
    const struct composition_path *path = &j->comp.paths[b->task->path];
    const struct composition_network *n = &j->comp.networks[path->network];
    uint32_t delay = (uint32_t)j->spec.outer.delay, f = j->comp.fragments;
    m->delay = delay < m->steps ? delay : m->steps - 1;
    m->mix = (float)j->spec.outer.mix;
    m->n_fragments = n->n_levels;
    m->fragments = taskmsg_need(b, n->n_levels * sizeof(*m->fragments));
    for (uint32_t l = 0; l < n->n_levels && !b->failed; l++) {
        const struct module_rec *module = &j->modules[path->modules[l]];
        const struct contribution *c =
            query_contribution(b->task, module->id, b->task->train.round);
        Skerry__V1__Fragment *part = taskmsg_need(b, sizeof(*part));
        if (b->failed)
            return;
        skerry__v1__fragment__init(part);
        part->level = l;
        part->step = ((n->levels[l].fragment + 1) * (m->steps - m->delay) + f - 1) / f;
        part->done = module->version > b->task->train.round || (c != NULL && !c->refused);
        m->fragments[l] = part;
    }
    if (!b->failed)
        qsort(m->fragments, m->n_fragments, sizeof(*m->fragments), by_step);
}

/* Moments go with the replica, unless it stays where they are. */
static void add_moments(struct taskmsg *b, Skerry__V1__TrainTask *m)
{
    const struct replica_rec *r = &b->job->paths[b->task->path].replicas[b->task->train.replica];
    if (b->job->spec.recipe.moments != JOB_MOMENTS_TRAVEL)
        return;
    m->send_moments = true;
    if (r->owner != b->worker->id)
        m->moments = taskmsg_blob_or_null(b, &r->moments);
}

/* A tiny dataset does not fill the phase; rows of text are filled by repeating it. */
static uint32_t steps_that_fit(const struct job *j, const struct task *t)
{
    uint64_t samples = 0, steps = (uint64_t)j->spec.outer.steps;
    for (size_t i = 0; i < t->n_ranges; i++)
        samples += t->ranges[i].count;
    uint64_t fit = samples / j->comp.paths[t->path].batch;
    if (steps > fit && !is_text(j))
        steps = fit > 0 ? fit : 1;
    return (uint32_t)steps;
}

/* The worker fetches them while it computes this phase.  That the next one comes to it, and
 * takes as many samples, is likely and no more. */
static void add_ahead(struct taskmsg *b, Skerry__V1__TrainTask *m)
{
    const struct job *j = b->job;
    const struct task *t = b->task;
    const struct composition_path *cp = &j->comp.paths[t->path];
    uint32_t shards[AHEAD_MAX];
    uint64_t samples = 0;
    if (t->train.round + 1 >= (uint64_t)j->spec.outer.rounds && !j->spec.outer.async)
        return;
    for (size_t i = 0; i < t->n_ranges; i++)
        samples += t->ranges[i].count;
    size_t n = ledger_ahead(j->ledgers[job_ledger(j, cp->partition)], samples, t->train.replica,
                            cp->replicas, shards, AHEAD_MAX);
    m->ahead = taskmsg_need(b, n * sizeof(Skerry__V1__Blob *));
    for (size_t i = 0; i < n && !b->failed; i++) {
        bool now = false;
        for (size_t k = 0; k < t->n_ranges; k++)
            now |= t->ranges[k].shard == shards[i];
        if (!now && blob_ref_is_set(&j->shards[shards[i]].blob))
            m->ahead[m->n_ahead++] = taskmsg_blob(b, &j->shards[shards[i]].blob);
    }
}

static void add_train(struct taskmsg *b, Skerry__V1__Task *msg)
{
    const struct task *t = b->task;
    const struct job *teacher = state_job(&b->co->state, b->job->comp.teacher_job);
    Skerry__V1__TrainTask *m = taskmsg_need(b, sizeof(*m));
    if (b->failed)
        return;
    skerry__v1__train_task__init(m);
    m->round = t->train.round;
    m->path = t->path;
    m->replica = t->train.replica;
    m->steps = steps_that_fit(b->job, t);
    m->seconds = b->task->train.phase_s;
    m->first_step = t->train.first_step;
    m->total_steps = total_steps(b->job, t);
    m->ranges = ranges(b, &m->n_ranges);
    m->epoch = t->n_ranges ? t->ranges[0].epoch : 0;
    m->batch = b->job->comp.paths[t->path].batch;
    if (teacher != NULL)
        m->teachers = taskmsg_experts(b, teacher, true, &m->n_teachers);
    add_moments(b, m);
    add_ahead(b, m);
    if (query_streams(b->job))
        add_fragments(b, m);
    msg->train = m;
}

/* ---- EVAL, SAMPLE, VELOCITY ---------------------------------------------- */

static void add_eval(struct taskmsg *b, Skerry__V1__Task *msg)
{
    Skerry__V1__EvalTask *m = taskmsg_need(b, sizeof(*m));
    if (b->failed)
        return;
    skerry__v1__eval_task__init(m);
    m->path = b->task->path;
    m->version_round = b->task->draw.version;
    m->samples = b->task->draw.count;
    m->ema = b->task->draw.ema;
    m->skip = is_text(b->job) ? TEXT_SKIP : 0;
    m->ranges = ranges(b, &m->n_ranges);
    msg->eval = m;
}

static void add_sample(struct taskmsg *b, Skerry__V1__Task *msg)
{
    const struct task_draw *d = &b->task->draw;
    Skerry__V1__SampleTask *m = taskmsg_need(b, sizeof(*m));
    if (b->failed)
        return;
    skerry__v1__sample_task__init(m);
    m->path = b->task->path;
    m->steps = d->steps;
    m->heun = d->heun;
    m->guidance = d->guidance;
    m->seed = d->seed;
    m->n_labels = d->labels ? d->count : 0;
    m->labels = d->labels;
    m->columns = d->columns < d->count ? d->columns : d->count;
    m->ema = d->ema;
    if (d->prompt != NULL)
        m->prompt = d->prompt;
    m->tokens = d->tokens;
    m->temperature = d->temperature;
    m->top_p = d->top_p;
    msg->sample = m;
}

static void add_velocity(struct taskmsg *b, Skerry__V1__Task *msg)
{
    Skerry__V1__VelocityTask *m = taskmsg_need(b, sizeof(*m));
    if (b->failed)
        return;
    skerry__v1__velocity_task__init(m);
    m->path = b->task->path;
    m->input = taskmsg_blob(b, &b->task->velocity.input);
    msg->velocity = m;
}

/* ---- INGEST and partitioning --------------------------------------------- */

static void add_ingest(struct taskmsg *b, Skerry__V1__Task *msg)
{
    Skerry__V1__IngestTask *m = taskmsg_need(b, sizeof(*m));
    if (b->failed)
        return;
    skerry__v1__ingest_task__init(m);
    m->url = b->job->spec.data.url.items[b->task->ingest.url];
    msg->ingest = m;
}

/* Chunks are many times as large as the features: only samples that are scored need them. */
static bool needs_chunks(const struct job *j, const struct task *t)
{
    const struct shard_rec *s = &j->shards[t->ranges[0].shard];
    return is_text(j) && (s->router || s->holdout);
}

static void add_feature(struct taskmsg *b, Skerry__V1__Task *msg)
{
    Skerry__V1__FeatureTask *m = taskmsg_need(b, sizeof(*m));
    if (b->failed)
        return;
    skerry__v1__feature_task__init(m);
    m->ranges = ranges(b, &m->n_ranges);
    m->chunk = needs_chunks(b->job, b->task) ? (uint32_t)b->job->spec.partition.chunk : 0;
    msg->feature = m;
}

static void add_features(struct taskmsg *b, Skerry__V1__ClusterTask *m)
{
    const struct job *j = b->job;
    size_t n = shards_cut(j);
    m->features = taskmsg_need(b, n * sizeof(*m->features));
    m->counts = taskmsg_need(b, n * sizeof(*m->counts));
    m->holdout = taskmsg_need(b, n * sizeof(*m->holdout));
    for (size_t i = 0; i < n && !b->failed; i++) {
        m->features[i] = taskmsg_blob(b, &j->shards[i].features);
        m->counts[i] = j->shards[i].samples;
        m->holdout[i] = j->shards[i].holdout;
    }
    m->n_features = m->n_counts = m->n_holdout = n;
}

/* scores[p * n_scored + i]: path p on shard scored[i]. */
static void add_scores(struct taskmsg *b, Skerry__V1__ClusterTask *m)
{
    const struct job *j = b->job;
    size_t n = 0;
    uint32_t *scored = query_scored(j, &n);
    m->scored = taskmsg_need(b, n * sizeof(*scored));
    m->scores = taskmsg_need(b, j->n_scores * sizeof(*m->scores));
    for (size_t i = 0; i < n && !b->failed; i++)
        m->scored[i] = scored[i];
    for (size_t s = 0; s < j->n_scores && !b->failed; s++)
        for (size_t i = 0; i < n; i++)
            if (scored[i] == j->scores[s].shard)
                m->scores[j->scores[s].path * n + i] = taskmsg_blob(b, &j->scores[s].blob);
    m->n_scored = n;
    m->n_scores = j->n_scores;
    m->previous = taskmsg_blob_or_null(b, &j->partitioner);
    mem_free(scored);
}

static void add_cluster(struct taskmsg *b, Skerry__V1__Task *msg)
{
    const struct job *j = b->job;
    Skerry__V1__ClusterTask *m = taskmsg_need(b, sizeof(*m));
    if (b->failed)
        return;
    skerry__v1__cluster_task__init(m);
    add_features(b, m);
    m->levels = taskmsg_need(b, j->comp.n_digits * sizeof(*m->levels));
    if (b->failed)
        return;
    memcpy(m->levels, j->comp.digits, j->comp.n_digits * sizeof(*m->levels));
    m->n_levels = j->comp.n_digits;
    m->top = (uint32_t)j->spec.recipe.top;
    m->evaluate = b->task->cluster.evaluate;
    m->chunk = (uint32_t)j->spec.partition.chunk;
    if (j->n_scores > 0)
        add_scores(b, m);
    msg->cluster = m;
}

static void add_split(struct taskmsg *b, Skerry__V1__Task *msg)
{
    const struct job *j = b->job;
    size_t first = b->task->ranges[0].shard;
    Skerry__V1__SplitTask *m = taskmsg_need(b, sizeof(*m));
    if (b->failed)
        return;
    skerry__v1__split_task__init(m);
    m->ranges = ranges(b, &m->n_ranges);
    m->assignment = taskmsg_blob(b, &j->assignment);
    m->holdout = j->shards[first].holdout;
    for (size_t i = 0; i < first; i++)
        m->first += j->shards[i].samples;
    msg->split = m;
}

static void add_score(struct taskmsg *b, Skerry__V1__Task *msg)
{
    Skerry__V1__ScoreTask *m = taskmsg_need(b, sizeof(*m));
    if (b->failed)
        return;
    skerry__v1__score_task__init(m);
    m->path = b->task->path;
    m->ranges = ranges(b, &m->n_ranges);
    m->chunk = b->task->score.evaluate ? (uint32_t)b->job->spec.partition.chunk : 0;
    m->skip = TEXT_SKIP;
    msg->score = m;
}

void taskmsg_kind(struct taskmsg *b, Skerry__V1__Task *msg)
{
    static void (*const add[TASK_KINDS])(struct taskmsg *, Skerry__V1__Task *) = {
        [TASK_INGEST] = add_ingest, [TASK_TRAIN] = add_train,     [TASK_EVAL] = add_eval,
        [TASK_SAMPLE] = add_sample, [TASK_FEATURE] = add_feature, [TASK_CLUSTER] = add_cluster,
        [TASK_SPLIT] = add_split,   [TASK_SCORE] = add_score,     [TASK_VELOCITY] = add_velocity,
    };
    if (add[b->task->kind] != NULL)
        add[b->task->kind](b, msg);
}
