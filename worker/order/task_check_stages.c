/* The parts of a task's message about networks and about the stages that partition data. */
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stddef.h>

#include "common/base/err.h"
#include "worker/order/task_check_impl.h"

static int check_level(const Skerry__V1__Level *level, size_t l, struct err *err)
{
    int rc = task_check_count(level->n_blocks, TASK_BLOCKS_MAX, "levels.blocks", err);
    for (size_t i = 0; i < level->n_blocks && rc == 0; i++) {
        if (level->blocks[i] >= TASK_BLOCKS_MAX)
            rc = err_set(err, -ERR_LIMIT,
                         "task: levels[%zu] has block %" PRIu32 ", at most %d blocks are allowed",
                         l, level->blocks[i], TASK_BLOCKS_MAX);
        else if (i > 0 && level->blocks[i] <= level->blocks[i - 1])
            rc = err_set(err, -ERR_FORMAT, "task: the blocks of levels[%zu] do not ascend", l);
    }
    return rc;
}

int task_check_network(const Skerry__V1__Task *t, struct err *err)
{
    const size_t levels = t->n_levels ? t->n_levels : 1;
    const bool init = t->kind == SKERRY__V1__TASK_KIND__TASK_KIND_INIT;
    if ((int)t->network < SKERRY__V1__NETWORK__NETWORK_MAIN ||
        (int)t->network > SKERRY__V1__NETWORK__NETWORK_ROUTER)
        return err_set(err, -ERR_FORMAT, "task: network %d is not known", (int)t->network);
    if (t->partitions > TASK_PARTITIONS_MAX)
        return err_set(err, -ERR_LIMIT,
                       "task: partitions is %" PRIu32 ", at most %d are "
                       "allowed",
                       t->partitions, TASK_PARTITIONS_MAX);
    int rc = task_check_count(t->n_levels, TASK_MODULES_MAX, "levels", err);
    for (size_t l = 0; l < t->n_levels && rc == 0; l++)
        rc = check_level(t->levels[l], l, err);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < t->n_modules && init; i++)
        if (t->modules[i]->level >= levels)
            return err_set(err, -ERR_FORMAT,
                           "task: modules[%zu] is of level %" PRIu32 ", but there are %zu levels",
                           i, t->modules[i]->level, levels);
    if (!init && t->n_modules > 0 && t->n_modules != levels)
        return err_set(err, -ERR_FORMAT, "task: %zu modules for %zu levels; one each is expected",
                       t->n_modules, levels);
    return 0;
}

static int check_chunk(uint32_t tokens, const char *field, struct err *err)
{
    if (tokens > TASK_PIECE_MAX)
        return err_set(err, -ERR_LIMIT, "task: %s is %" PRIu32 " tokens, at most %u are allowed",
                       field, tokens, TASK_PIECE_MAX);
    return 0;
}

int task_check_feature(const Skerry__V1__FeatureTask *t, struct err *err)
{
    if (!t)
        return err_set(err, -ERR_FORMAT, "task: feature is missing");
    int rc = check_chunk(t->chunk, "feature.chunk", err);
    return rc < 0 ? rc : task_check_ranges(t->ranges, t->n_ranges, "feature.ranges", err);
}

int task_check_score(const Skerry__V1__ScoreTask *t, struct err *err)
{
    if (!t)
        return err_set(err, -ERR_FORMAT, "task: score is missing");
    int rc = check_chunk(t->chunk, "score.chunk", err);
    if (rc == 0)
        rc = check_chunk(t->skip, "score.skip", err);
    return rc < 0 ? rc : task_check_ranges(t->ranges, t->n_ranges, "score.ranges", err);
}

static int check_partitions(const Skerry__V1__Task *t, struct err *err)
{
    return t->partitions ? 0 : err_set(err, -ERR_FORMAT, "task: partitions is missing");
}

int task_check_split(const Skerry__V1__Task *t, struct err *err)
{
    const Skerry__V1__SplitTask *s = t->split;
    if (!s)
        return err_set(err, -ERR_FORMAT, "task: split is missing");
    if (s->first > TASK_ROWS_MAX)
        return err_set(err, -ERR_LIMIT, "task: split.first is %" PRIu64 ", at most %llu is allowed",
                       s->first, TASK_ROWS_MAX);
    int rc = check_partitions(t, err);
    if (rc == 0)
        rc = task_check_blob(s->assignment, "split.assignment", err);
    return rc < 0 ? rc : task_check_ranges(s->ranges, s->n_ranges, "split.ranges", err);
}

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

int task_check_cluster(const Skerry__V1__Task *t, struct err *err)
{
    const Skerry__V1__ClusterTask *c = t->cluster;
    if (!c)
        return err_set(err, -ERR_FORMAT, "task: cluster is missing");
    int rc = check_partitions(t, err);
    if (rc == 0)
        rc = check_features(c, err);
    if (rc == 0)
        rc = check_radix(c, t->partitions, err);
    if (rc == 0 && (c->top == 0 || c->top > t->partitions))
        rc = err_set(err, -ERR_LIMIT, "task: cluster.top is %" PRIu32 ", of %" PRIu32 " partitions",
                     c->top, t->partitions);
    if (rc == 0)
        rc = check_chunk(c->chunk, "cluster.chunk", err);
    return rc < 0 ? rc : check_scores(c, t->partitions, err);
}
