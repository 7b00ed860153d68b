/* The commands of view.h. */
#include "coordinator/core.h"

#include "common/base/err.h"
#include "common/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#define SPARE_BYTES (64ull << 20) /* left on the disk for the database */

int view_job_cancel(struct coordinator *co, uint64_t job_id, struct err *err)
{
    int rc = core_writable(co, err);
    struct job *j = state_job(&co->state, job_id);
    if (rc < 0)
        return rc;
    if (j == NULL)
        return err_set(err, -ERR_NOTFOUND, "job %llu does not exist", (unsigned long long)job_id);
    if (job_is_ended(j))
        return err_set(err, -ERR_STALE, "job %llu has ended already, it is %s",
                       (unsigned long long)job_id, job_state_name(j->state));
    flow_end(co, j, JOB_CANCELLED, "cancelled by a person");
    return 0;
}

static int check_ask(const struct job *j, const struct view_sample_request *r, struct err *err)
{
    if (r->count > VIEW_LABELS_MAX || r->n_labels > VIEW_LABELS_MAX)
        return err_set(err, -EINVAL, "at most %d samples can be drawn at once", VIEW_LABELS_MAX);
    if (r->steps > 1000 || r->columns > VIEW_LABELS_MAX)
        return err_set(err, -EINVAL, "steps is %u and columns %u, at most 1000 and %d are possible",
                       r->steps, r->columns, VIEW_LABELS_MAX);
    if (r->guidance > 100)
        return err_set(err, -EINVAL, "guidance is %g, expected 0 to 100", r->guidance);
    if (r->sampler != NULL && strcmp(r->sampler, "euler") != 0 && strcmp(r->sampler, "heun") != 0)
        return err_set(err, -EINVAL, "sampler is '%.20s', expected 'euler' or 'heun'", r->sampler);
    for (size_t i = 0; i < r->n_labels; i++)
        if (r->labels[i] >= j->n_classes)
            return err_set(err, -EINVAL, "label %u does not exist, the job has %zu classes",
                           r->labels[i], j->n_classes);
    return 0;
}

int view_sample_request(struct coordinator *co, uint64_t job_id,
                        const struct view_sample_request *r, uint64_t *ret_task, struct err *err)
{
    int rc = core_writable(co, err);
    struct job *j = state_job(&co->state, job_id);
    if (rc < 0)
        return rc;
    if (j == NULL)
        return err_set(err, -ERR_NOTFOUND, "job %llu does not exist", (unsigned long long)job_id);
    if (j->comp.n_modules == 0 || j->modules[0].n_versions == 0 || j->n_classes == 0)
        return err_set(err, -ERR_STALE, "job %llu has no model yet to draw from",
                       (unsigned long long)job_id);
    if ((rc = check_ask(j, r, err)) < 0)
        return rc;
    tasks_prune(co, j);
    struct task *t = flow_make_sample(co, j, 0, j->paths[0].round, r);
    if (t == NULL)
        return err_set(err, -ERR_LIMIT, "%d tasks are open, no more are taken", TASKS_OPEN_MAX);
    *ret_task = t->id;
    return 0;
}

int view_worker_drain(struct coordinator *co, uint64_t worker_id, struct err *err)
{
    int rc = core_writable(co, err);
    struct worker *w = state_worker(&co->state, worker_id);
    if (rc < 0)
        return rc;
    if (w == NULL)
        return err_set(err, -ERR_NOTFOUND, "worker %llu does not exist",
                       (unsigned long long)worker_id);
    if (w->state != WORKER_HERE)
        return err_set(err, -ERR_STALE, "worker %llu is not here any more",
                       (unsigned long long)worker_id);
    w->drain = true;
    w->parked_until_ms = 0; /* its long poll is answered now, with the news */
    save_worker(co->store, w);
    core_say(co, 0, w->id, "worker %llu (%s) is to finish and leave", (unsigned long long)w->id,
             w->name);
    core_touch(co);
    return 0;
}

int view_upload_expect(struct coordinator *co, const uint8_t sha256[VIEW_SHA256_BYTES],
                       uint64_t size, struct err *err)
{
    struct blob_id id;
    char path[4096];
    uint64_t room = 0;
    int rc = core_writable(co, err);
    if (rc < 0)
        return rc;
    memcpy(id.sha256, sha256, 32);
    /* The sweep takes orphans by their age: what is there becomes young again. */
    if (blobstore_path(co->blobs, &id, path, sizeof(path)) == 0 &&
        blobstore_has(co->blobs, &id, NULL))
        return utimensat(AT_FDCWD, path, NULL, 0) == 0
                   ? 0
                   : err_errno(err, "keeping a blob that is there");
    if ((rc = file_disk_free(co->opt.data_dir, &room, err)) < 0)
        return rc;
    if (room < size || room - size < SPARE_BYTES)
        return err_set(err, -ENOSPC,
                       "the disk of the coordinator has %llu MiB left, too little "
                       "for an upload of %llu MiB",
                       (unsigned long long)(room >> 20), (unsigned long long)(size >> 20));
    return 0;
}
