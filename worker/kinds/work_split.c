/* SPLIT: copies samples unchanged into shards of one partition each, so that a worker
 * downloads only its path's data. */

#include "common/base/base.h"
#include "common/data/shard.h"
#include "worker/data/data_samples.h"
#include "worker/engine/task_files.h"
#include "worker/kinds/kinds.h"
#include "worker/order/work.h"
#include "worker/order/task_check.h"

struct run {
    struct work *w;
    struct data data; /* the samples of the ranges, as listed */
    uint32_t *assign; /* (total,top) */
    uint32_t top;     /* columns of it; `used` of them count */
    uint32_t used;
    uint64_t done; /* samples written */
};

static bool belongs(const struct run *r, uint64_t row, uint32_t partition)
{
    for (uint32_t j = 0; j < r->used; j++)
        if (r->assign[row * r->top + j] == partition)
            return true;
    return false;
}

/* Ends a shard: an output of the task. */
static int finish(struct run *r, struct shard_writer *writer, struct work_output *o,
                  uint32_t partition, struct err *err)
{
    struct shard_info info;
    int rc = shard_writer_finish(writer, &info, err);
    if (rc < 0)
        return rc;
    memcpy(o->sha256, info.sha256, 32);
    o->size = info.bytes;
    o->samples = info.samples;
    o->tokens = info.tokens;
    o->partition = partition;
    o->holdout = r->w->task->split->holdout;
    return 0;
}

/* Writes the next `count` samples of a partition, from *row on. */
static int write_shard(struct run *r, uint32_t partition, uint32_t count, uint64_t *row,
                       struct err *err)
{
    struct shard_writer *writer = NULL;
    struct work_output *o = NULL;
    char name[64];
    snprintf(name, sizeof(name), "shard-%zu", r->w->result.n_outputs);
    int rc = work_output_new(r->w, WORK_SHARD, name, &o, err);
    if (rc == 0)
        writer = shard_writer_new(o->path);
    for (uint32_t n = 0; rc == 0 && n < count; ++*row) {
        if (!belongs(r, *row, partition))
            continue;
        if (work_stopped(r->w, err)) {
            rc = -ERR_CANCELLED;
            break;
        }
        struct data_place p = data_at(&r->data, *row);
        const struct shard *shard = &r->data.shards[p.shard];
        rc = shard_writer_add(writer, &shard->samples[p.index], shard->dim, err);
        n++;
        r->done++;
    }
    if (rc == 0)
        rc = finish(r, writer, o, partition, err);
    shard_writer_free(writer);
    return rc;
}

/* As few shards of about equal size as data.shard_samples allows. */
static int write_partition(struct run *r, uint32_t partition, struct err *err)
{
    const uint64_t most = (uint64_t)r->w->spec.data.shard_samples;
    uint64_t n = 0, row = 0;
    int rc = 0;
    for (uint64_t i = 0; i < r->data.total; i++)
        n += belongs(r, i, partition);
    const uint64_t shards = (n + most - 1) / most;
    for (uint64_t s = 0; rc == 0 && s < shards; s++) {
        uint64_t count = n * (s + 1) / shards - n * s / shards;
        rc = write_shard(r, partition, (uint32_t)count, &row, err);
        progress_units(&r->w->progress, (uint32_t)r->done, (uint32_t)(r->data.total * r->used));
    }
    return rc;
}

static int run_open(struct run *r, struct err *err)
{
    const Skerry__V1__SplitTask *t = r->w->task->split;
    struct data_range *ranges = NULL;
    char path[CACHE_PATH_MAX];
    uint64_t bytes = 0;
    int rc = work_ranges(r->w, t->ranges, t->n_ranges, &ranges, err);
    if (rc == 0)
        rc = data_open(&r->data, NULL, &(struct data_order){0}, ranges, t->n_ranges, err);
    mem_free(ranges);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < t->n_ranges; i++)
        bytes += t->ranges[i]->shard->size;
    cache_make_room(r->w->cache, bytes);
    work_blob_path(r->w, t->assignment->sha256.data, path);
    rc = assignment_read(path, t->first, r->data.total, r->w->task->partitions, &r->assign, &r->top,
                         err);
    r->used = t->holdout ? 1 : r->top;
    return rc;
}

static int check(const Skerry__V1__Task *t, struct err *err)
{
    const Skerry__V1__SplitTask *s = t->split;
    if (s->first > TASK_ROWS_MAX)
        return err_set(err, -ERR_LIMIT, "task: split.first is %" PRIu64 ", at most %llu is allowed",
                       s->first, TASK_ROWS_MAX);
    int rc = task_check_partitions(t, err);
    if (rc == 0)
        rc = task_check_blob(s->assignment, "split.assignment", err);
    return rc < 0 ? rc : task_check_ranges(s->ranges, s->n_ranges, "split.ranges", err);
}

static int plan(struct engine *e, struct work *w, struct err *err)
{
    const Skerry__V1__SplitTask *t = w->task->split;
    int rc = work_need_ranges(w, t->ranges, t->n_ranges, err);
    return rc < 0 ? rc : work_need_blob(w, t->assignment, "the assignment", err);
}

static int run(struct engine *e, struct work *w, struct err *err)
{
    struct run r = {.w = w};
    progress_activity(&w->progress, "copying samples to their partitions");
    int rc = run_open(&r, err);
    for (uint32_t p = 0; rc == 0 && p < w->task->partitions; p++)
        rc = write_partition(&r, p, err);
    w->result.samples = r.done;
    mem_free(r.assign);
    data_close(&r.data);
    return rc;
}

const struct kind kind_split = {
    .id = SKERRY__V1__TASK_KIND__TASK_KIND_SPLIT,
    .name = "split",
    .part = offsetof(Skerry__V1__Task, split),
    .check = check,
    .plan = plan,
    .run = run,
};
