#include "coordinator/work/shards.h"

#include "coordinator/work/gc.h"
#include "coordinator/work/tasks.h"

#include "common/job/family.h"

struct shards_sum shards_sum(const struct job *j, uint32_t partition, bool holdout)
{
    struct shards_sum sum = {0};
    for (size_t i = 0; i < j->n_shards; i++) {
        const struct shard_rec *s = &j->shards[i];
        if (!(holdout ? job_shard_evaluates(j, s, partition) : job_shard_trains(j, s, partition)))
            continue;
        sum.shards++;
        sum.samples += s->samples;
        sum.tokens += s->tokens;
    }
    return sum;
}

size_t shards_cut(const struct job *j)
{
    size_t n = 0;
    while (n < j->n_shards && j->shards[n].generation == 0)
        n++;
    return n;
}

uint64_t shards_of_steps(const struct job_spec *spec, uint32_t batch, uint64_t steps,
                         const struct shards_sum *sum)
{
    uint64_t rows = steps * batch;
    if (!job_family(spec)->packs || sum->tokens == 0)
        return rows;
    /* Pieces of documents are packed into rows.  Chance may have given the phase shorter ones. */
    const double mean = (double)sum->tokens / (double)sum->samples;
    const double pieces = (double)rows * (double)(spec->model.context + 1) / mean;
    return (uint64_t)ceil(pieces + 2 * sqrt(pieces));
}

/* A phase bounded by steps gets all its samples at once: can it? */
static int check_phase(const struct job_spec *spec, const struct composition_path *path,
                       const struct shards_sum *sum, bool as_cut, struct err *err)
{
    const char *what = job_family(spec)->samples;
    uint64_t want = shards_of_steps(spec, path->batch, (uint64_t)spec->outer.steps, sum);
    if (as_cut && want > RANGES_TAKEN_MAX * (sum->samples / sum->shards))
        return err_set(err, -ERR_CONFIG,
                       "a phase takes %llu %s (outer.steps x train.batch), that is more than "
                       "%d pieces of shards of about %llu; raise data.shard_samples, or lower "
                       "outer.steps",
                       (unsigned long long)want, what, RANGES_TAKEN_MAX,
                       (unsigned long long)(sum->samples / sum->shards));
    const uint32_t replicas = spec->recipe.replicas == 0 ? 1 : path->replicas;
    if (want * replicas > sum->samples * LEDGER_EPOCHS_OPEN_MAX)
        return err_set(err, -ERR_CONFIG,
                       "a round takes %llu %s from each of %u replicas, more than %d times "
                       "the dataset of %llu; lower outer.steps",
                       (unsigned long long)want, what, replicas, LEDGER_EPOCHS_OPEN_MAX,
                       (unsigned long long)sum->samples);
    return 0;
}

static uint64_t held_out(const struct job *j)
{
    uint64_t n = 0;
    for (size_t i = 0; i < j->n_shards; i++)
        n += j->shards[i].holdout ? j->shards[i].samples : 0;
    return n;
}

static bool fits_routers(const struct job_spec *spec)
{
    return spec->recipe.reshard.n > 0 || spec->partition.chunk > 0;
}

/* How many training shards of the original dataset are kept for fitting routers: the first ones. */
static uint64_t kept_for_routers(const struct job *j)
{
    const uint64_t n = shards_sum(j, PARTITION_ALL, false).shards;
    const uint64_t keep = (uint64_t)ceil(j->spec.partition.router_fraction * (double)n);
    return !fits_routers(&j->spec) || n == 0 ? 0 : keep < n ? keep : n - 1;
}

/* The fewest shards that one splitting makes of the original dataset: all are full. */
static uint64_t least_split(const struct job *j)
{
    uint64_t keep = kept_for_routers(j), samples = 0;
    for (size_t i = 0; i < j->n_shards; i++) {
        if (!job_shard_trains(j, &j->shards[i], PARTITION_ALL))
            continue;
        samples += keep == 0 ? j->shards[i].samples : 0;
        keep -= keep > 0;
    }
    return samples * (uint64_t)j->spec.recipe.top / (uint64_t)j->spec.data.shard_samples;
}

/* The requirements of partitioning on the original dataset. */
static int check_partitioning(const struct job *j, const struct shards_sum *all, struct err *err)
{
    uint32_t k = j->comp.n_partitions;
    if (k > all->samples)
        return err_set(err, -ERR_CONFIG,
                       "the recipe has %u partitions, but the dataset has only %llu sample%s to "
                       "train on",
                       k, (unsigned long long)all->samples, str_plural(all->samples));
    if (shards_cut(j) > CLUSTER_BLOBS_MAX)
        return err_set(err, -ERR_LIMIT,
                       "the dataset has %zu shards, at most %d can be partitioned; raise "
                       "data.shard_samples",
                       shards_cut(j), CLUSTER_BLOBS_MAX);
    if (j->spec.recipe.reshard.n > 0 && j->spec.outer.async)
        return err_set(err, -ERR_CONFIG,
                       "recipe.reshard needs rounds at which all paths meet, but outer.async has "
                       "none; leave one of the two out");
    const uint64_t times = j->spec.recipe.reshard.n + 1;
    if (shards_cut(j) + times * least_split(j) > JOB_SHARDS_MAX)
        return err_set(err, -ERR_LIMIT,
                       "%zu shards, split by partition %llu times, are more than the %d that a job "
                       "has; raise data.shard_samples, or shorten recipe.reshard",
                       shards_cut(j), (unsigned long long)times, JOB_SHARDS_MAX);
    if (!fits_routers(&j->spec))
        return 0;
    if (all->shards < 2)
        return err_set(err, -ERR_CONFIG,
                       "recipe.reshard and partition.chunk keep shards for fitting routers, but "
                       "there is only one to train on; lower data.shard_samples");
    if (shards_cut(j) + j->comp.n_paths > CLUSTER_BLOBS_MAX)
        return err_set(err, -ERR_LIMIT,
                       "%zu shards and scores of %u paths are more than the %d files that "
                       "routers are fitted on; raise data.shard_samples",
                       shards_cut(j), j->comp.n_paths, CLUSTER_BLOBS_MAX);
    return 0;
}

int shards_check(const struct job *j, struct err *err)
{
    const struct job_spec *spec = &j->spec;
    struct shards_sum all = shards_sum(j, PARTITION_ALL, false);
    int rc = 0;
    if (!job_has_data(spec))
        return 0;
    if (all.samples == 0)
        return err_set(err, -EINVAL, "the dataset has no samples to train on, all are held out");
    if ((spec->recipe.early_stop || (spec->partition.chunk > 0 && j->comp.partitioned)) &&
        held_out(j) == 0)
        return err_set(err, -ERR_CONFIG,
                       "%s needs held-out data, but of this dataset nothing is held out; raise "
                       "data.holdout",
                       spec->recipe.early_stop ? "recipe.early_stop" : "partition.chunk");
    if (j->comp.partitioned)
        rc = check_partitioning(j, &all, err);
    for (uint32_t p = 0; p < j->comp.n_paths && rc == 0; p++)
        rc = check_phase(spec, &j->comp.paths[p], &all, !j->comp.partitioned, err);
    return rc;
}

void shards_keep_for_routers(struct coordinator *co, struct job *j)
{
    if (!j->comp.partitioned)
        return;
    uint64_t keep = kept_for_routers(j);
    for (size_t i = 0; i < j->n_shards && keep > 0; i++)
        if (job_shard_trains(j, &j->shards[i], PARTITION_ALL)) {
            job_edit_shard(j, i)->router = true;
            keep--;
        }
}

/* Is p the first path with its partition? */
static bool first_of_partition(const struct job *j, uint32_t p)
{
    for (uint32_t q = 0; q < p; q++)
        if (j->comp.paths[q].partition == j->comp.paths[p].partition)
            return false;
    return true;
}

/* Can path p fill its phases from its partition? */
static int check_partition(const struct job *j, uint32_t p, struct err *err)
{
    uint32_t part = j->comp.paths[p].partition;
    struct shards_sum sum = shards_sum(j, part, false);
    int rc = sum.samples == 0 ? err_set(err, -EINVAL,
                                        "it has no samples to train on; use fewer partitions, more "
                                        "data or partition.balance")
                              : check_phase(&j->spec, &j->comp.paths[p], &sum, true, err);
    if (rc < 0 && j->comp.n_partitions > 1 && part != PARTITION_ALL)
        return err_wrap(err, "partition %u of %u with %llu samples", part, j->comp.n_partitions,
                        (unsigned long long)sum.samples);
    return rc;
}

int shards_make_ledgers(struct job *j, struct err *err)
{
    int rc = 0;
    if (!job_has_data(&j->spec))
        return 0;
    for (uint32_t p = 0; p < j->comp.n_paths && rc == 0; p++)
        rc = first_of_partition(j, p) ? check_partition(j, p, err) : 0;
    for (uint32_t p = 0; p < j->comp.n_paths && rc == 0; p++)
        rc = first_of_partition(j, p) ? job_make_ledger(j, j->comp.paths[p].partition, err) : 0;
    for (uint32_t k = 0; k < j->comp.n_partitions && rc == 0; k++)
        j->sizes[k] = shards_sum(j, k, false).samples;
    return rc;
}

/* Marks older shards that open tasks still read. */
static void mark_needed(const struct coordinator *co, const struct job *j, bool *needed)
{
    for (size_t i = 0; i < co->state.n_tasks; i++) {
        const struct task *t = co->state.tasks[i];
        for (size_t r = 0; t->job_id == j->id && task_is_open(t) && r < t->n_ranges; r++)
            needed[t->ranges[r].shard] = true;
    }
}

void shards_drop_old(struct coordinator *co, struct job *j)
{
    if (!j->old_shards)
        return;
    bool *needed = mem_alloc_array(j->n_shards + 1, sizeof(*needed));
    mark_needed(co, j, needed);
    j->old_shards = false;
    for (size_t i = 0; i < j->n_shards; i++) {
        const struct shard_rec *s = &j->shards[i];
        if (s->generation == 0 || s->generation >= j->generation || !blob_ref_is_set(&s->blob))
            continue;
        if (needed[i]) {
            j->old_shards = true;
            continue;
        }
        gc_drop(co, &s->blob);
        job_edit_shard(j, i)->blob = (struct blob_ref){0};
    }
    mem_free(needed);
}
