#include "coordinator/rpc/report.h"

#include "coordinator/job/member.h"
#include "coordinator/job/tasks.h"
#include "coordinator/kinds/kinds.h"

#include "common/base/hash.h"
#include "proto/skerry.pb-c.h"

#define FULL_DISK_WAIT_MS 5000
/* Until a worker is asked again for what it had no memory for: others could do it, or not. */
#define SMALL_MS 300000
#define SMALL_ALONE_MS 10000

/* A part of a phase that goes on.  What is wrong with it is no failure of the phase:
 * its sender is told, and it can still be made good at the end. */
static int apply_snapshot(struct coordinator *co, struct job *j, struct task *t,
                          const Skerry__V1__ReportRequest *r, struct err *err)
{
    int rc = kinds_apply(co, j, t, r, err);
    if (rc < 0)
        return rc;
    t->progress_ms = core_now(co);
    core_touch(co);
    return 0;
}

/* ---- bad samples --------------------------------------------------------- */

static bool already_named(const struct job *j, const char *shard, const char *key)
{
    for (size_t i = 0; i < j->n_bad; i++)
        if (strcmp(j->bad[i].shard, shard) == 0 && strcmp(j->bad[i].key, key) == 0)
            return true;
    return false;
}

/* A broken image is met again in every epoch: what has a name counts once.  Of
 * those without one the most that one phase met count; archives are cut once. */
static void take_bad(struct coordinator *co, struct job *j, const struct task *t,
                     const Skerry__V1__ReportRequest *r)
{
    uint32_t extra = r->bad_count > r->n_bad ? r->bad_count - (uint32_t)r->n_bad : 0, fresh = 0;
    for (size_t i = 0; i < r->n_bad; i++) {
        char shard[HASH_HEX_MAX] = "";
        if (r->bad[i]->shard_sha256.len == 32)
            (void)hash_hex(r->bad[i]->shard_sha256.data, 32, shard);
        if (already_named(j, shard, r->bad[i]->key))
            continue;
        if (job_add_bad(j, shard, r->bad[i]->key, r->bad[i]->reason))
            fresh++;
        else
            extra++;
    }
    if (t->kind == TASK_INGEST) {
        fresh += extra;
    } else if (extra > j->bad_unnamed) {
        fresh += extra - j->bad_unnamed;
        j->bad_unnamed = extra;
    }
    if (fresh == 0)
        return;
    j->bad_count += fresh;
    if (j->bad_count > (uint32_t)j->spec.data.max_bad)
        job_doom(j,
                 "%u samples cannot be read, data.max_bad allows %d; the first is "
                 "%s: %s",
                 j->bad_count, j->spec.data.max_bad, j->n_bad ? j->bad[0].key : "not named",
                 j->n_bad ? j->bad[0].reason : "");
}

/* ---- all ----------------------------------------------------------------- */

static int find_lease(struct coordinator *co, const struct worker *w,
                      const Skerry__V1__ReportRequest *r, struct task **ret, bool *ret_repeated,
                      struct err *err)
{
    struct task *t = state_edit_task(&co->state, state_task(&co->state, r->task_id));
    *ret_repeated = false;
    if (t == NULL)
        return err_set(err, -ERR_STALE, "task %llu is not known", (unsigned long long)r->task_id);
    if (t->attempt == r->attempt && t->worker_id == w->id && t->state == TASK_DONE) {
        *ret_repeated = true;
        return 0;
    }
    if (t->state != TASK_LEASED || t->attempt != r->attempt || t->worker_id != w->id)
        return err_set(err, -ERR_STALE, "attempt %u of task %llu has lost its lease%s%s",
                       r->attempt, (unsigned long long)t->id, t->reason[0] ? ": " : "", t->reason);
    *ret = t;
    return 0;
}

static void take_figures(struct task *t, const Skerry__V1__ReportRequest *r)
{
    /* A step takes at least one sample; the schedule goes on from this count. */
    t->steps = r->steps < r->samples ? r->steps : (uint32_t)r->samples;
    t->samples = r->samples;
    t->loss_first = r->loss_first;
    t->loss_last = r->loss_last;
    t->loss_mean = isfinite(r->loss_mean) ? r->loss_mean : NAN;
    t->seconds = isfinite(r->seconds) ? r->seconds : 0;
    t->steps_done = t->steps;
    t->samples_done = r->samples;
}

static bool is_gone(const struct coordinator *co, const struct blob_ref *b)
{
    struct blob_id id;
    memcpy(id.sha256, b->sha256, sizeof(id.sha256));
    return blob_ref_is_set(b) && !blobstore_has(co->blobs, &id, NULL);
}

/* Is something that t needs no longer in our store?  Then its worker is not to blame. */
static bool input_gone(const struct coordinator *co, const struct task *t, char reason[REASON_MAX])
{
    static const char advice[] = "is gone from the coordinator's blobs: put its file back from a "
                                 "copy, or submit the job anew";
    const struct job *j = state_job(&co->state, t->job_id);
    for (size_t i = 0; i < t->n_ranges; i++) {
        uint32_t shard = t->ranges[i].shard;
        if (shard < j->n_shards && is_gone(co, &j->shards[shard].blob)) {
            (void)snprintf(reason, REASON_MAX, "shard %u %s", shard, advice);
            return true;
        }
    }
    for (uint32_t l = 0; l < composition_levels(&j->comp, t->path); l++) {
        const struct module_rec *m = &j->modules[j->comp.paths[t->path].modules[l]];
        if (m->n_versions > 0 && is_gone(co, &m->versions[m->n_versions - 1].full)) {
            (void)snprintf(reason, REASON_MAX, "version %llu of module %llu %s",
                           (unsigned long long)m->version, (unsigned long long)m->id, advice);
            return true;
        }
    }
    return false;
}

/* Its worker has no memory for it: to others; counted as a failure when nobody here could
 * begin it and no phase of its path was ever done. */
static void too_large(struct coordinator *co, struct task *t, const char *reason)
{
    struct worker *w = state_edit_worker(&co->state, state_worker(&co->state, t->worker_id));
    const struct job *j = state_job(&co->state, t->job_id);
    const bool others = member_others_fit(co, w, t);
    const bool begun = j != NULL && t->kind == TASK_TRAIN && j->paths[t->path].round > 0;
    if (w != NULL)
        member_note_small(co, w, t, core_now(co) + (others ? SMALL_MS : SMALL_ALONE_MS));
    if (!others && !begun) {
        task_failed(co, t, true, reason);
        return;
    }
    core_say(co, t->job_id, t->worker_id, "%s task %llu is too large for worker %llu: %s",
             task_kind_name(t->kind), (unsigned long long)t->id, (unsigned long long)t->worker_id,
             reason);
    task_requeue(co, t, reason);
}

/* Its worker's device broke: to another at once, not counted as a failure. */
static void lost_device(struct coordinator *co, struct task *t, const char *reason)
{
    struct worker *w = state_edit_worker(&co->state, state_worker(&co->state, t->worker_id));
    core_say(co, t->job_id, t->worker_id, "the device of worker %llu failed in %s task %llu: %s",
             (unsigned long long)t->worker_id, task_kind_name(t->kind), (unsigned long long)t->id,
             reason);
    t->failed_worker = t->worker_id;
    if (w != NULL) {
        w->device_failures++;
        w->tasks_failed++;
    }
    task_requeue(co, t, reason);
}

static void take_failure(struct coordinator *co, struct worker *w, struct task *t,
                         const Skerry__V1__ReportRequest *r)
{
    char reason[REASON_MAX];
    (void)str_copy(reason, sizeof(reason), r->reason[0] ? r->reason : "no reason was given");
    if (r->failure == SKERRY__V1__FAILURE__FAILURE_DEVICE) {
        lost_device(co, t, reason);
    } else if (r->failure == SKERRY__V1__FAILURE__FAILURE_MEMORY) {
        too_large(co, t, reason);
    } else if (r->retryable && core_disk_full(co)) {
        /* Not the worker's fault, and not the task's. */
        task_requeue(co, t, "the disk of the coordinator is full");
        t->not_before_ms = core_now(co) + FULL_DISK_WAIT_MS;
    } else {
        if (!input_gone(co, t, reason))
            member_failed(co, w);
        task_failed(co, t, r->retryable, reason);
    }
}

int report_apply(struct coordinator *co, struct worker *w, const Skerry__V1__ReportRequest *r,
                 struct err *err)
{
    struct task *t = NULL;
    bool repeated;
    char reason[REASON_MAX];
    int rc = find_lease(co, w, r, &t, &repeated, err);
    if (rc < 0 || repeated)
        return rc;
    struct job *j = state_job(&co->state, t->job_id);
    if (r->snapshot)
        return apply_snapshot(co, j, t, r, err);
    if (r->failed) {
        take_failure(co, w, t, r);
        take_bad(co, j, t, r);
        return 0;
    }
    rc = kinds_apply(co, j, t, r, err);
    if (rc < 0) {
        /* A result that does not fit is a failure of its maker. */
        (void)snprintf(reason, sizeof(reason), "its result was refused: %.200s", err->msg);
        member_failed(co, w);
        task_failed(co, t, true, reason);
        return rc;
    }
    take_figures(t, r);
    task_end(co, t, TASK_DONE, "");
    member_succeeded(co, w);
    take_bad(co, j, t, r);
    return 0;
}
