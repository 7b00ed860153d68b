/* FEATURE, CLUSTER, SPLIT and SCORE divide the data into partitions; each has a row of its own. */
#include "coordinator/kinds/kind.h"

#include "common/base/hash.h"
#include "common/job/family.h"
#include "coordinator/job/agree.h"
#include "coordinator/kinds/result.h"
#include "coordinator/work/gc.h"
#include "coordinator/work/query.h"
#include "coordinator/work/shards.h"

/* Has each worker of the origin that is on record been confirmed in all of these kinds? */
static bool is_confirmed(const struct state *s, uint64_t origin)
{
    static const uint32_t all = 1u << TASK_FEATURE | 1u << TASK_CLUSTER | 1u << TASK_SPLIT;
    bool found = false;
    for (size_t i = 0; i < s->n_workers; i++) {
        const struct worker *w = s->workers[i];
        if (worker_origin(w) == origin && (w->confirmed & all) != all && !w->checked)
            return false;
        found |= worker_origin(w) == origin;
    }
    return found;
}

/* Notes who made a part of the partitions, if nobody else has made the same.  Others make room who
 * were confirmed: they are the last to be suspected. */
static void note_maker(struct coordinator *co, struct job *j, const struct task *t)
{
    const struct worker *w = state_worker(&co->state, t->worker_id);
    for (unsigned i = j->makers.n == JOB_MAKERS_MAX ? JOB_MAKERS_MAX : 0; i-- > 0;)
        if (is_confirmed(&co->state, j->makers.origin[i]))
            job_drop_maker(j, i);
    if (w != NULL && !t->agreed)
        job_add_maker(j, worker_origin(w));
}

/* ---- FEATURE -------------------------------------------------------------- */

/* Chunks are many times as large as the features: only scored samples need them. */
static bool needs_chunks(const struct job *j, const struct task *t)
{
    const struct shard_rec *s = &j->shards[t->ranges[0].shard];
    return job_is_text(&j->spec) && (s->router || s->holdout);
}

static void feature_message(struct message *b, Skerry__V1__Task *msg)
{
    Skerry__V1__FeatureTask *m = message_new(b, &skerry__v1__feature_task__descriptor);
    m->ranges = message_ranges(b, &m->n_ranges);
    m->chunk = needs_chunks(b->job, b->task) ? (uint32_t)b->job->spec.partition.chunk : 0;
    msg->feature = m;
    if (job_features(&b->job->spec) == JOB_FEATURES_MODEL)
        message_networks(b, msg);
}

/* Those of a network have other bits on other devices, and latents may have been made on them. */
static enum alike_of features_of(const struct job *j)
{
    const int of = job_features(&j->spec);
    return of == JOB_FEATURES_MODEL || of == JOB_FEATURES_LATENTS ? ALIKE_NUMBERS : ALIKE_BYTES;
}

static int feature_apply(struct coordinator *co, struct job *j, struct task *t,
                         const Skerry__V1__ReportRequest *r, struct err *err)
{
    struct blob_ref made;
    int rc = result_blob(co, r->output, "the file of features", &made, err);
    if (rc == 0)
        rc = result_file_waits(co, j, t, &made, features_of(j), err);
    if (rc != 0)
        return rc;
    note_maker(co, j, t);
    t->output = made;
    gc_drop(co, &j->shards[t->ranges[0].shard].features);
    job_edit_shard(j, t->ranges[0].shard)->features = t->output;
    return 0;
}

const struct kind kind_feature = {.message = feature_message, .apply = feature_apply};

#define BALANCE_SLACK 0.01 /* of all samples, by which a fit may miss it */

/* ---- CLUSTER -------------------------------------------------------------- */

static void add_features(struct message *b, Skerry__V1__ClusterTask *m)
{
    const struct job *j = b->job;
    size_t n = shards_cut(j);
    m->features = message_need(b, n * sizeof(*m->features));
    m->counts = message_need(b, n * sizeof(*m->counts));
    m->holdout = message_need(b, n * sizeof(*m->holdout));
    for (size_t i = 0; i < n && !b->failed; i++) {
        m->features[i] = message_blob(b, &j->shards[i].features);
        m->counts[i] = j->shards[i].samples;
        m->holdout[i] = j->shards[i].holdout;
    }
    m->n_features = m->n_counts = m->n_holdout = n;
}

/* scores[p * n_scored + i]: the scores of path p on shard scored[i]. */
static void add_scores(struct message *b, Skerry__V1__ClusterTask *m)
{
    const struct job *j = b->job;
    size_t n = 0;
    uint32_t *scored = query_scored(j, &n);
    m->scored = message_need(b, n * sizeof(*scored));
    m->scores = message_need(b, j->n_scores * sizeof(*m->scores));
    for (size_t i = 0; i < n && !b->failed; i++)
        m->scored[i] = scored[i];
    for (size_t s = 0; s < j->n_scores && !b->failed; s++)
        for (size_t i = 0; i < n; i++)
            if (scored[i] == j->scores[s].shard)
                m->scores[j->scores[s].path * n + i] = message_blob(b, &j->scores[s].blob);
    m->n_scored = n;
    m->n_scores = j->n_scores;
    m->previous = message_blob_or_null(b, &j->partitioner);
    mem_free(scored);
}

static void cluster_message(struct message *b, Skerry__V1__Task *msg)
{
    const struct job *j = b->job;
    Skerry__V1__ClusterTask *m = message_new(b, &skerry__v1__cluster_task__descriptor);
    add_features(b, m);
    m->levels = message_need(b, j->comp.n_digits * sizeof(*m->levels));
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

static uint64_t trained_on(const struct job *j)
{
    uint64_t n = 0;
    for (size_t i = 0, cut = shards_cut(j); i < cut; i++)
        n += j->shards[i].holdout ? 0 : j->shards[i].samples;
    return n;
}

/* Each sample is in `top` different partitions. */
static int check_sizes(const struct job *j, const Skerry__V1__ReportRequest *r, struct err *err)
{
    const uint64_t n = trained_on(j), all = n * (uint64_t)j->spec.recipe.top;
    uint64_t sum = 0;
    if (r->n_sizes != j->comp.n_partitions)
        return err_set(err, -EINVAL, "sizes of %zu partitions were reported, expected %u",
                       r->n_sizes, j->comp.n_partitions);
    for (size_t i = 0; i < r->n_sizes; i++)
        if (r->sizes[i] > n)
            return err_set(err, -EINVAL, "a partition has %llu of %llu samples",
                           (unsigned long long)r->sizes[i], (unsigned long long)n);
        else
            sum += r->sizes[i];
    if (sum != all)
        return err_set(err, -EINVAL, "the partitions together have %llu samples, expected %llu",
                       (unsigned long long)sum, (unsigned long long)all);
    return 0;
}

/* A fit fills all partitions and keeps to partition.balance, if the samples allow it. */
static bool is_odd(const struct job *j, const Skerry__V1__ReportRequest *r)
{
    const double all = (double)trained_on(j) * j->spec.recipe.top, mean = all / (double)r->n_sizes;
    bool odd = false;
    for (size_t i = 0; i < r->n_sizes; i++)
        odd |= r->sizes[i] == 0 ||
               (j->spec.partition.balance > 0 &&
                (double)r->sizes[i] > j->spec.partition.balance * mean + BALANCE_SLACK * all);
    return odd;
}

/* Has another worker to make it again?  As kind.apply. */
static int cluster_waits(struct coordinator *co, struct job *j, struct task *t,
                         const Skerry__V1__ReportRequest *r, const struct blob_ref *partitioner,
                         const struct blob_ref *assignment, struct err *err)
{
    struct agree_result made = {.of = ALIKE_ASSIGNMENT,
                                .file = assignment,
                                .sizes = r->sizes,
                                .n_sizes = r->n_sizes,
                                .odd = is_odd(j, r)};
    struct hash h;
    hash_init(&h);
    result_hash_blob(&h, partitioner);
    result_hash_blob(&h, assignment);
    hash_update(&h, r->sizes, r->n_sizes * sizeof(*r->sizes));
    hash_final(&h, made.hash);
    const int rc = agree_look(co, j, t, &made, err);
    return rc < 0 ? rc : agree_hear(co, j, t, &made) ? 0 : KIND_WAITS;
}

static int cluster_apply(struct coordinator *co, struct job *j, struct task *t,
                         const Skerry__V1__ReportRequest *r, struct err *err)
{
    struct blob_ref partitioner = {0}, assignment = {0};
    if (t->cluster.evaluate) { /* its rows are its only result */
        result_rows(co, j, t, r);
        return 0;
    }
    int rc = result_blob(co, r->output, "the partitioner", &partitioner, err);
    if (rc == 0)
        rc = result_blob(co, r->assignment, "the assignment", &assignment, err);
    if (rc == 0)
        rc = check_sizes(j, r, err);
    if (rc == 0)
        rc = cluster_waits(co, j, t, r, &partitioner, &assignment, err);
    if (rc != 0)
        return rc;
    note_maker(co, j, t);
    gc_drop(co, &j->partitioner_before);
    gc_drop(co, &j->assignment);
    j->partitioner_before = j->partitioner;
    t->output = j->partitioner = partitioner;
    j->assignment = assignment;
    memcpy(j->sizes, r->sizes, r->n_sizes * sizeof(*j->sizes));
    result_rows(co, j, t, r);
    return 0;
}

const struct kind kind_cluster = {.message = cluster_message, .apply = cluster_apply};

/* ---- SPLIT ---------------------------------------------------------------- */

static void split_message(struct message *b, Skerry__V1__Task *msg)
{
    const struct job *j = b->job;
    size_t first = b->task->ranges[0].shard;
    Skerry__V1__SplitTask *m = message_new(b, &skerry__v1__split_task__descriptor);
    m->ranges = message_ranges(b, &m->n_ranges);
    m->assignment = message_blob(b, &j->assignment);
    m->holdout = j->shards[first].holdout;
    for (size_t i = 0; i < first; i++)
        m->first += j->shards[i].samples;
    msg->split = m;
}

/* Every sample must be in the result `top` times, or once if it is held out. */
static int check_count(const struct job *j, const struct task *t, uint64_t samples, bool holdout,
                       struct err *err)
{
    uint64_t want = query_held(t) * (holdout ? 1 : (uint64_t)j->spec.recipe.top);
    if (samples == want)
        return 0;
    return err_set(err, -EINVAL, "%llu samples were written, expected %llu",
                   (unsigned long long)samples, (unsigned long long)want);
}

static int take_split(struct coordinator *co, const struct job *j, const Skerry__V1__ShardInfo *s,
                      struct shard_rec *ret, struct err *err)
{
    int rc = result_shard(co, j, s, ret, err);
    if (rc == 0 && s->partition >= j->comp.n_partitions)
        rc = err_set(err, -EINVAL, "a shard of partition %u; there are %u partitions", s->partition,
                     j->comp.n_partitions);
    return rc;
}

/* Would its partitions have more samples than CLUSTER gave them? */
static bool exceeds(const struct job *j, const struct shard_rec *made, size_t n)
{
    uint64_t *samples = mem_alloc_array(j->comp.n_partitions, sizeof(*samples));
    bool more = false;
    for (size_t i = 0; i < j->n_shards; i++)
        if (j->shards[i].generation == j->generation + 1 && !j->shards[i].holdout)
            samples[j->shards[i].partition] += j->shards[i].samples;
    for (size_t i = 0; i < n && !made[i].holdout; i++) {
        samples[made[i].partition] += made[i].samples;
        more |= samples[made[i].partition] > j->sizes[made[i].partition];
    }
    mem_free(samples);
    return more;
}

static bool split_waits(struct coordinator *co, struct job *j, struct task *t,
                        const struct shard_rec *made, size_t n)
{
    struct agree_result result = {.odd = exceeds(j, made, n)};
    struct hash h;
    hash_init(&h);
    result_hash_shards(&h, made, n);
    hash_final(&h, result.hash);
    return !agree_hear(co, j, t, &result);
}

static int split_apply(struct coordinator *co, struct job *j, struct task *t,
                       const Skerry__V1__ReportRequest *r, struct err *err)
{
    bool holdout = j->shards[t->ranges[0].shard].holdout;
    uint64_t samples = 0;
    int rc = 0;
    const uint64_t most = query_split_most(j, query_held(t), holdout);
    if (r->n_shards == 0 || r->n_shards > most)
        return err_set(err, -EINVAL, "a split gave %zu shards, expected 1 to %llu", r->n_shards,
                       (unsigned long long)most);
    struct shard_rec *made = mem_alloc_array(r->n_shards, sizeof(*made));
    for (size_t i = 0; i < r->n_shards && rc == 0; i++) {
        rc = take_split(co, j, r->shards[i], &made[i], err);
        made[i].generation = j->generation + 1;
        made[i].source = t->split.group;
        made[i].holdout = holdout;
        samples += made[i].samples;
    }
    if (rc == 0)
        rc = check_count(j, t, samples, holdout, err);
    if (rc == 0 && split_waits(co, j, t, made, r->n_shards))
        rc = KIND_WAITS;
    if (rc == 0 && j->n_shards + r->n_shards > JOB_SHARDS_MAX)
        rc = err_set(err, -ERR_CONFIG,
                     "the partitions make more than %d shards; raise data.shard_samples",
                     JOB_SHARDS_MAX);
    if (rc == 0)
        note_maker(co, j, t);
    for (size_t i = 0; i < r->n_shards && rc == 0; i++)
        *job_add_shard(j) = made[i];
    mem_free(made);
    return rc;
}

const struct kind kind_split = {.message = split_message, .apply = split_apply};

/* ---- SCORE ---------------------------------------------------------------- */

static void score_message(struct message *b, Skerry__V1__Task *msg)
{
    Skerry__V1__ScoreTask *m = message_new(b, &skerry__v1__score_task__descriptor);
    m->path = b->task->path;
    m->ranges = message_ranges(b, &m->n_ranges);
    m->chunk = b->task->score.evaluate ? (uint32_t)b->job->spec.partition.chunk : 0;
    m->skip = TEXT_SKIP;
    msg->score = m;
    b->best = b->task->score.evaluate;
    message_networks(b, msg);
}

static int score_apply(struct coordinator *co, struct job *j, struct task *t,
                       const Skerry__V1__ReportRequest *r, struct err *err)
{
    struct blob_ref made;
    int rc = result_blob(co, r->output, "the file of scores", &made, err);
    if (rc == 0)
        rc = result_file_waits(co, j, t, &made, ALIKE_NUMBERS, err);
    if (rc != 0)
        return rc;
    t->output = made;
    job_add_score(
        j, &(struct score_rec){.path = t->path, .shard = t->ranges[0].shard, .blob = t->output});
    return 0;
}

const struct kind kind_score = {.message = score_message, .apply = score_apply};
