/* Results of partitioning: features, partitioners, shards and scores. */
#include "coordinator/job/gc.h"
#include "coordinator/job/report.h"
#include "coordinator/job/shards.h"
#include "coordinator/state/core.h"

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/mem.h"
#include "common/base/str.h"
#include "proto/skerry.pb-c.h"

#include <errno.h>
#include <math.h>
#include <string.h>

typedef Skerry__V1__ReportRequest report;

int report_blob(struct coordinator *co, const Skerry__V1__Blob *b, const char *what,
                struct blob_ref *ret, struct err *err)
{
    struct blob_id id;
    uint64_t size = 0;
    if (b == NULL || b->sha256.len != 32 || b->size == 0)
        return err_set(err, -EINVAL, "%s is missing or has no hash or size", what);
    memcpy(id.sha256, b->sha256.data, 32);
    if (!blobstore_has(co->blobs, &id, &size))
        return err_set(err, -ERR_NOTFOUND, "%s has not been uploaded", what);
    if (size != b->size)
        return err_set(err, -EINVAL, "%s has %llu bytes in the store, the report says %llu", what,
                       (unsigned long long)size, (unsigned long long)b->size);
    memcpy(ret->sha256, id.sha256, 32);
    ret->size = size;
    return 0;
}

/* ---- rows ---------------------------------------------------------------- */

static size_t row_place(const struct job *j, const struct row_rec *row)
{
    size_t i = 0;
    while (i < j->n_rows && (j->rows[i].kind != row->kind || j->rows[i].path != row->path ||
                             strcmp(j->rows[i].name, row->name) != 0))
        i++;
    return i;
}

void report_rows(struct coordinator *co, struct job *j, const struct task *t, const report *r)
{
    for (size_t i = 0; i < r->n_rows && i < 256; i++) {
        struct row_rec row = {
            .kind = t->kind,
            .path = t->kind == TASK_EVAL && !t->draw.mixture ? t->path : UINT32_MAX,
            .round = task_round(t),
            .value = r->rows[i]->value,
            .at_unix_ms = (int64_t)clock_wall_ms(),
        };
        (void)str_copy(row.name, sizeof(row.name), r->rows[i]->name);
        (void)str_copy(row.unit, sizeof(row.unit), r->rows[i]->unit);
        size_t at = row_place(j, &row);
        if (row.name[0] == '\0' || !isfinite(row.value) || at == JOB_ROWS_MAX)
            continue;
        if (at == j->n_rows)
            j->rows = mem_realloc(j->rows, ++j->n_rows * sizeof(*j->rows));
        j->rows[at] = row;
        save_job_row(co->store, j, at);
    }
}

/* ---- features and partitions --------------------------------------------- */

int report_feature(struct coordinator *co, struct job *j, struct task *t, const report *r,
                   struct err *err)
{
    int rc = report_blob(co, r->output, "the file of features", &t->output, err);
    if (rc < 0)
        return rc;
    size_t at = t->ranges[0].shard;
    j->shards[at].features = t->output;
    save_job_shard(co->store, j, at);
    return 0;
}

static uint64_t trained_on(const struct job *j)
{
    uint64_t n = 0;
    for (size_t i = 0; i < shards_cut(j); i++)
        n += j->shards[i].holdout ? 0 : j->shards[i].samples;
    return n;
}

static int check_sizes(const struct job *j, const report *r, struct err *err)
{
    uint64_t sum = 0, most = trained_on(j) * (uint64_t)j->spec.recipe.top;
    if (r->n_sizes != j->comp.n_partitions)
        return err_set(err, -EINVAL, "sizes of %zu partitions were reported, there are %u",
                       r->n_sizes, j->comp.n_partitions);
    for (size_t i = 0; i < r->n_sizes; i++)
        sum += r->sizes[i] <= most ? r->sizes[i] : most + 1;
    if (sum > most)
        return err_set(err, -EINVAL, "the partitions have more than the %llu samples there are",
                       (unsigned long long)most);
    return 0;
}

int report_cluster(struct coordinator *co, struct job *j, struct task *t, const report *r,
                   struct err *err)
{
    struct blob_ref partitioner = {0}, assignment = {0};
    if (t->cluster.evaluate) { /* only its rows count */
        report_rows(co, j, t, r);
        return 0;
    }
    int rc = report_blob(co, r->output, "the partitioner", &partitioner, err);
    if (rc == 0)
        rc = report_blob(co, r->assignment, "the assignment", &assignment, err);
    if (rc == 0)
        rc = check_sizes(j, r, err);
    if (rc < 0)
        return rc;
    gc_drop(co, &j->partitioner_before);
    gc_drop(co, &j->assignment);
    j->partitioner_before = j->partitioner;
    t->output = j->partitioner = partitioner;
    j->assignment = assignment;
    memcpy(j->sizes, r->sizes, r->n_sizes * sizeof(*j->sizes));
    report_rows(co, j, t, r);
    save_job(co->store, j);
    return 0;
}

/* ---- shards of one partition --------------------------------------------- */

/* Every sample must have come out: `top` times, or once when held out. */
static int check_count(const struct job *j, const struct task *t, uint64_t samples, bool holdout,
                       struct err *err)
{
    uint64_t in = 0;
    for (size_t i = 0; i < t->n_ranges; i++)
        in += t->ranges[i].count;
    uint64_t want = in * (holdout ? 1 : (uint64_t)j->spec.recipe.top);
    if (samples == want)
        return 0;
    return err_set(err, -EINVAL, "%llu samples were written, expected %llu",
                   (unsigned long long)samples, (unsigned long long)want);
}

static int take_split(struct coordinator *co, const struct job *j, const Skerry__V1__ShardInfo *s,
                      struct shard_rec *ret, struct err *err)
{
    int rc = report_blob(co, s->blob, "a shard", &ret->blob, err);
    if (rc < 0)
        return rc;
    if (s->samples == 0 || s->partition >= j->comp.n_partitions)
        return err_set(err, -EINVAL,
                       "a shard of partition %u with %u samples; there are %u partitions",
                       s->partition, s->samples, j->comp.n_partitions);
    ret->samples = s->samples;
    ret->tokens = s->tokens;
    ret->partition = s->partition;
    return 0;
}

int report_split(struct coordinator *co, struct job *j, struct task *t, const report *r,
                 struct err *err)
{
    bool holdout = j->shards[t->ranges[0].shard].holdout;
    uint64_t samples = 0;
    int rc = 0;
    if (r->n_shards == 0 || r->n_shards > 4096 || j->n_shards + r->n_shards > JOB_SHARDS_MAX)
        return err_set(err, -EINVAL,
                       "a split made %zu shards, expected 1 to 4096 and at most %d of the job; "
                       "raise data.shard_samples",
                       r->n_shards, JOB_SHARDS_MAX);
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
    for (size_t i = 0; i < r->n_shards && rc == 0; i++) {
        *job_add_shard(j) = made[i]; /* the number was checked */
        save_job_shard(co->store, j, j->n_shards - 1);
    }
    mem_free(made);
    return rc;
}

/* ---- scores -------------------------------------------------------------- */

int report_score(struct coordinator *co, struct job *j, struct task *t, const report *r,
                 struct err *err)
{
    int rc = report_blob(co, r->output, "the file of scores", &t->output, err);
    if (rc < 0)
        return rc;
    j->scores = mem_realloc(j->scores, (j->n_scores + 1) * sizeof(*j->scores));
    j->scores[j->n_scores++] =
        (struct score_rec){.path = t->path, .shard = t->ranges[0].shard, .blob = t->output};
    save_job_score(co->store, j, j->n_scores - 1);
    return 0;
}
