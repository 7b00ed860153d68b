/* CLUSTER: the features of all samples become a partitioner and the partitions of all samples.
 *
 *   without scores   as partition.method says: k-means in one level or two, product, random
 *   with scores      discriminatively: a classifier of which path scored best on the samples
 *                    kept for routers; its bias gives each path its share of all samples
 *   evaluate         nothing new: figures on routing held-out samples (worker/kinds/routing.h)
 *
 * Fitted on samples that are not held out; all are assigned. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/mem.h"
#include "worker/kinds/engine.h"
#include "worker/kinds/features.h"
#include "worker/fit/partitioner.h"
#include "worker/kinds/routing.h"
#include "worker/kinds/stage.h"
#include "worker/order/task_check.h"
#include "worker/kinds/kinds.h"

_Static_assert(TASK_DIGITS_MAX <= PARTITION_LEVELS_MAX, "a task's levels fit");

/* A partition has at least this part of the mean size.  Cells of a product are empty where the
 * digits go together, and what fills them is arbitrary: let it be enough to train on. */
#define LEAST_SHARE 20
#define LEAST_SHARE_PRODUCT 4

struct run {
    struct engine *e;
    struct work *w;
    const Skerry__V1__ClusterTask *t;
    struct features features;
    uint32_t *all, *fitted; /* indices of files */
    size_t n_fitted;
    struct features_rows all_rows, fit_rows;
    uint64_t *ids; /* of all rows, or of those fitted on while fitting */
    struct partitioner *p;
    struct partition_report report;
};

static int open_features(struct run *r, struct err *err)
{
    const Skerry__V1__ClusterTask *t = r->t;
    const size_t n = t->n_features;
    char *names = mem_try_array(n, CACHE_PATH_MAX);
    const char **paths = mem_try_array(n, sizeof(*paths));
    r->all = mem_try_array(n, sizeof(*r->all));
    r->fitted = mem_try_array(n, sizeof(*r->fitted));
    int rc = names && paths && r->all && r->fitted
                 ? 0
                 : err_set(err, -ENOMEM, "no memory for %zu files", n);
    for (size_t i = 0; rc == 0 && i < n; i++) {
        char *path = names + i * CACHE_PATH_MAX;
        work_blob_path(r->w, t->features[i]->sha256.data, path);
        paths[i] = path;
        r->all[i] = (uint32_t)i;
        if (!t->holdout[i])
            r->fitted[r->n_fitted++] = (uint32_t)i;
    }
    if (rc == 0)
        rc = features_open(paths, t->counts, n, &r->features, err);
    mem_free(paths);
    mem_free(names);
    if (rc == 0)
        rc = features_rows_init(&r->all_rows, &r->features, r->all, n, err);
    if (rc == 0)
        rc = features_rows_init(&r->fit_rows, &r->features, r->fitted, r->n_fitted, err);
    if (rc == 0 && r->fit_rows.source.n == 0)
        rc = err_set(err, -ERR_CONFIG, "all samples are held out: none is left to partition");
    if (rc == 0 && !(r->ids = mem_try_array(r->features.n, sizeof(*r->ids))))
        rc = err_set(err, -ENOMEM, "no memory for %" PRIu64 " samples", r->features.n);
    return rc;
}

static void run_close(struct run *r)
{
    partitioner_free(r->p);
    partition_report_release(&r->report);
    features_rows_release(&r->all_rows);
    features_rows_release(&r->fit_rows);
    features_close(&r->features);
    mem_free(r->all);
    mem_free(r->fitted);
    mem_free(r->ids);
}

static enum partition_kind kind_of(const struct run *r)
{
    switch (r->w->spec.partition.method) {
    case JOB_METHOD_KMEANS:
        return PARTITION_KMEANS;
    case JOB_METHOD_TWO_LEVEL:
        return PARTITION_TWO_LEVEL;
    case JOB_METHOD_PRODUCT:
        return PARTITION_PRODUCT;
    case JOB_METHOD_RANDOM:
        return PARTITION_RANDOM;
    default:
        return r->t->n_levels > 1 ? PARTITION_PRODUCT : PARTITION_TWO_LEVEL;
    }
}

/* A path without samples cannot be trained, and one with hardly any is of no use. */
static struct partition_options options_of(const struct run *r)
{
    const struct job_partition *j = &r->w->spec.partition;
    const uint64_t n = r->fit_rows.source.n, k = r->w->task->partitions;
    const bool product = kind_of(r) == PARTITION_PRODUCT && r->t->n_scores == 0;
    const uint64_t least = n / k / (product ? LEAST_SHARE_PRODUCT : LEAST_SHARE);
    struct partition_options o = {
        .kind = kind_of(r),
        .n_levels = (uint32_t)r->t->n_levels,
        .seed = r->w->spec.seed,
        .pca = (uint32_t)j->dims,
        .balance = j->balance,
        .min_samples = least > 0 ? least : 1,
        .feature = job_features_name(stage_features(r->w)),
    };
    memcpy(o.radix, r->t->levels, r->t->n_levels * sizeof(uint32_t));
    /* As many fine clusters as asked, where there are samples for four in each. */
    uint64_t fine = (uint64_t)j->fine;
    fine = fine > n / 4 ? n / 4 : fine;
    o.fine = (uint32_t)(fine < 4 * k ? (4 * k < n ? 4 * k : n) : fine);
    return o;
}

static int fit_features(struct run *r, struct err *err)
{
    const struct partition_options opt = options_of(r);
    const struct fit_watch watch = stage_watch(r->w);
    features_rows_ids(&r->fit_rows, r->ids);
    return partitioner_fit(r->e->dev, &r->fit_rows.source, r->ids, &opt, &watch, &r->p, &r->report,
                           err);
}

static int open_previous(const struct run *r, struct partitioner **ret, struct err *err)
{
    char path[CACHE_PATH_MAX];
    work_blob_path(r->w, r->t->previous->sha256.data, path);
    int rc = partitioner_read(path, ret, err);
    if (rc == 0 && (*ret)->k != r->w->task->partitions) {
        rc = err_set(err, -ERR_FORMAT, "the previous partitioner has %u partitions, the job %u",
                     (*ret)->k, r->w->task->partitions);
        partitioner_free(*ret);
        *ret = NULL;
    }
    return rc;
}

/* share (K): how often each path is a target, kept between the sizes that partitions may have, so
 * that a path which is behind for now still has something to learn from. */
static void shares_of(const struct partition_options *opt, const struct run *r, const uint32_t *y,
                      uint64_t n, double *share)
{
    const uint32_t k = r->w->task->partitions;
    const double low = (double)opt->min_samples / (double)r->fit_rows.source.n;
    const double high = opt->balance > 0 ? opt->balance / k : 1;
    for (uint64_t i = 0; i < n; i++)
        share[y[i]] += 1 / (double)n;
    for (uint32_t round = 0; round < k; round++) { /* each round bounds one more at least */
        double bound = 0, rest = 0;
        for (uint32_t p = 0; p < k; p++) {
            share[p] = fmin(fmax(share[p], low), high);
            *(share[p] > low && share[p] < high ? &rest : &bound) += share[p];
        }
        for (uint32_t p = 0; p < k && rest > 0; p++)
            if (share[p] > low && share[p] < high)
                share[p] *= (1 - bound) / rest;
    }
    double sum = 0;
    for (uint32_t p = 0; p < k; p++)
        sum += share[p];
    for (uint32_t p = 0; p < k; p++)
        share[p] /= sum;
}

static int fit_scores(struct run *r, struct err *err)
{
    struct partition_options opt = options_of(r);
    const struct fit_watch watch = stage_watch(r->w);
    struct routing table = {0};
    struct features_rows rows = {0};
    double *share = mem_try_array(r->w->task->partitions, sizeof(*share));
    uint32_t *y = NULL;
    int rc = share ? routing_open(r->w, &r->features, false, &table, err)
                   : err_set(err, -ENOMEM, "no memory for shares");
    if (rc == 0 && !(y = mem_try_array(table.n + 1, sizeof(*y))))
        rc = err_set(err, -ENOMEM, "no memory for %" PRIu64 " targets", table.n);
    if (rc == 0)
        rc = routing_targets(&table, y, err);
    if (rc == 0)
        shares_of(&opt, r, y, table.n, share);
    opt.min_samples = 0; /* the shares are the sizes */
    opt.balance = 0;
    if (rc == 0)
        rc = features_rows_init(&rows, &r->features, table.files, table.n_files, err);
    if (rc == 0) {
        const struct linear_targets targets = {
            .y = y, .share = share, .routed = &r->fit_rows.source};
        rc = partitioner_fit_linear(r->e->dev, &rows.source, &targets, &opt, &watch, &r->p,
                                    &r->report, err);
    }
    if (rc == 0) {
        work_row(r->w, r->report.accuracy, "", "router's accuracy");
        work_row(r->w, r->report.loss, "nat", "router's loss");
        work_row(r->w, (double)table.n, "samples", "router was fitted to");
    }
    features_rows_release(&rows);
    routing_release(&table);
    mem_free(y);
    mem_free(share);
    return rc;
}

/* Partitions of all samples, and how many each has of those that are trained on. */
static int assign(struct run *r, struct err *err)
{
    const uint64_t n = r->features.n;
    const uint32_t top = r->t->top, k = r->p->k;
    struct work_output *o = NULL;
    uint32_t *index = mem_try_array(n, top * sizeof(*index));
    r->w->result.sizes = mem_try_array(k, sizeof(uint64_t));
    r->w->result.n_sizes = k;
    int rc = index && r->w->result.sizes
                 ? 0
                 : err_set(err, -ENOMEM, "no memory for the partitions of %" PRIu64 " samples", n);
    features_rows_ids(&r->all_rows, r->ids);
    if (rc == 0)
        rc = partitioner_assign(r->p, r->e->dev, &r->all_rows.source, r->ids, n, top, index, err);
    for (size_t f = 0; rc == 0 && f < r->n_fitted; f++) {
        const struct features_file *file = &r->features.files[r->fitted[f]];
        for (uint64_t i = file->first * top; i < (file->first + file->n) * top; i++)
            r->w->result.sizes[index[i]]++;
    }
    if (rc == 0)
        rc = work_output_new(r->w, WORK_ASSIGNMENT, "assignment", &o, err);
    if (rc == 0)
        rc = assignment_write(o->path, index, n, top, o->sha256, &o->size, err);
    mem_free(index);
    return rc;
}

static int deliver(struct run *r, struct err *err)
{
    const struct partition_report *p = &r->report;
    struct work_output *o = NULL;
    int rc = work_output_new(r->w, WORK_RESULT, "partitioner", &o, err);
    if (rc == 0)
        rc = partitioner_write(r->p, o->path, o->sha256, &o->size, err);
    if (rc == 0)
        rc = assign(r, err);
    if (rc < 0)
        return rc;
    work_row(r->w, p->largest, "", "largest partition over the mean");
    work_row(r->w, (double)p->smallest, "samples", "smallest partition");
    work_row(r->w, (double)p->empty, "", "empty partitions");
    work_row(r->w, (double)p->repaired, "", "empty clusters repaired");
    work_row(r->w, p->gap, "", "samples beyond the sizes asked for");
    work_row(r->w, p->explained, "", "variance kept by PCA");
    r->w->result.samples = r->features.n;
    return 0;
}

static int evaluate(struct run *r, struct err *err)
{
    struct routing train = {0}, held = {0};
    struct partitioner *p = NULL;
    int rc = open_previous(r, &p, err);
    if (rc == 0)
        rc = routing_open(r->w, &r->features, false, &train, err);
    if (rc == 0)
        rc = routing_open(r->w, &r->features, true, &held, err);
    if (rc == 0)
        rc = routing_evaluate(r->w, r->e->dev, p, &train, &held, err);
    r->w->result.samples = held.n;
    routing_release(&train);
    routing_release(&held);
    partitioner_free(p);
    return rc;
}

/* ---- the message ---- */

static int check_blobs(Skerry__V1__Blob *const *blobs, size_t n, size_t max, const char *field,
                       struct err *err)
{
    int rc = task_check_count(n, max, field, err);
    for (size_t i = 0; i < n && rc == 0; i++)
        rc = task_check_blob(blobs[i], field, err);
    return rc;
}

/* The levels multiply to the number of partitions. */
static int check_radix(const Skerry__V1__ClusterTask *c, uint32_t partitions, struct err *err)
{
    uint64_t product = 1;
    int rc = task_check_count(c->n_levels, TASK_DIGITS_MAX, "cluster.levels", err);
    for (size_t i = 0; i < c->n_levels && product <= partitions && rc == 0; i++)
        product *= c->levels[i];
    if (rc == 0 && (c->n_levels == 0 || product != partitions))
        rc = err_set(err, -ERR_FORMAT,
                     "task: cluster.levels do not multiply to %" PRIu32 " partitions", partitions);
    return rc;
}

/* Features of every shard. */
static int check_features(const Skerry__V1__ClusterTask *c, struct err *err)
{
    if (c->n_features == 0 || c->n_counts != c->n_features || c->n_holdout != c->n_features)
        return err_set(err, -ERR_FORMAT,
                       "task: cluster has %zu features, %zu counts and %zu holdout marks; one of "
                       "each is expected for every shard",
                       c->n_features, c->n_counts, c->n_holdout);
    for (size_t i = 0; i < c->n_counts; i++)
        if (c->counts[i] == 0 || c->counts[i] > TASK_SHARD_SAMPLES_MAX)
            return err_set(err, -ERR_LIMIT,
                           "task: cluster.counts[%zu] is %" PRIu32 ", expected 1..%u", i,
                           c->counts[i], TASK_SHARD_SAMPLES_MAX);
    return check_blobs(c->features, c->n_features, TASK_RANGES_MAX, "cluster.features", err);
}

/* Scores of every partition's path on every scored shard. */
static int check_scores(const Skerry__V1__ClusterTask *c, uint32_t partitions, struct err *err)
{
    int rc = task_check_count(c->n_scored, TASK_RANGES_MAX, "cluster.scored", err);
    if (rc == 0 && c->n_scores != (uint64_t)c->n_scored * partitions)
        rc = err_set(err, -ERR_FORMAT,
                     "task: cluster.scores has %zu blobs, expected %" PRIu32 " paths on %zu shards",
                     c->n_scores, partitions, c->n_scored);
    for (size_t i = 0; i < c->n_scored && rc == 0; i++)
        if (c->scored[i] >= c->n_features)
            rc = err_set(err, -ERR_LIMIT, "task: cluster.scored[%zu] is %" PRIu32 ", of %zu shards",
                         i, c->scored[i], c->n_features);
    if (rc == 0)
        rc = check_blobs(c->scores, c->n_scores, TASK_SCORES_MAX, "cluster.scores", err);
    if (rc == 0 && (c->n_scores > 0 || c->evaluate))
        rc = task_check_blob(c->previous, "cluster.previous", err);
    return rc;
}

static int check(const Skerry__V1__Task *t, struct err *err)
{
    const Skerry__V1__ClusterTask *c = t->cluster;
    int rc = task_check_partitions(t, err);
    if (rc == 0)
        rc = check_features(c, err);
    if (rc == 0)
        rc = check_radix(c, t->partitions, err);
    if (rc == 0 && (c->top == 0 || c->top > t->partitions))
        rc = err_set(err, -ERR_LIMIT, "task: cluster.top is %" PRIu32 ", of %" PRIu32 " partitions",
                     c->top, t->partitions);
    if (rc == 0)
        rc = task_check_tokens(c->chunk, "cluster.chunk", err);
    return rc < 0 ? rc : check_scores(c, t->partitions, err);
}

static int plan(struct engine *e, struct work *w, struct err *err)
{
    const Skerry__V1__ClusterTask *t = w->task->cluster;
    int rc = t->evaluate ? work_need_blob(w, t->previous, "the partitioner", err) : 0;
    for (size_t i = 0; rc == 0 && i < t->n_features; i++)
        rc = work_need_blob(w, t->features[i], "features", err);
    for (size_t i = 0; rc == 0 && i < t->n_scores; i++)
        rc = work_need_blob(w, t->scores[i], "scores", err);
    return rc;
}

static int run(struct engine *e, struct work *w, struct err *err)
{
    struct run r = {.e = e, .w = w, .t = w->task->cluster};
    const uint64_t begun = clock_now_ns();
    progress_activity(&w->progress, "clustering");
    int rc = open_features(&r, err);
    if (rc == 0 && r.t->evaluate) {
        rc = evaluate(&r, err);
    } else if (rc == 0) {
        rc = r.t->n_scores > 0 ? fit_scores(&r, err) : fit_features(&r, err);
        if (rc == 0)
            rc = deliver(&r, err);
    }
    w->result.seconds = (float)(clock_now_ns() - begun) / 1e9F;
    run_close(&r);
    return rc;
}

const struct kind kind_cluster = {
    .id = SKERRY__V1__TASK_KIND__TASK_KIND_CLUSTER,
    .name = "cluster",
    .part = offsetof(Skerry__V1__Task, cluster),
    .check = check,
    .plan = plan,
    .run = run,
};
