/* The commands of view.h. */
#include "common/base/base.h"
#include "coordinator/job/draw.h"
#include "coordinator/job/flow.h"
#include "coordinator/job/rollback.h"
#include "coordinator/job/submit.h"
#include "coordinator/state/core.h"
#include "coordinator/view/view.h"
#include "coordinator/work/cost.h"
#include "coordinator/work/gc.h"
#include "coordinator/work/member.h"
#include "coordinator/work/query.h"
#include "coordinator/work/tasks.h"

#include "common/net/blobstore.h"
#include "common/base/file.h"
#include "common/job/family.h"

#define PROMPT_MAX 8192           /* see SampleTask.prompt */
#define SPARE_BYTES (64ull << 20) /* room left on the disk for the database */

int view_job_submit(struct coordinator *co, const struct submit *s, uint64_t *ret_id,
                    struct err *err)
{
    return submit_job(co, s, ret_id, err);
}

/* The job, to be changed. */
static int any_job(struct coordinator *co, uint64_t id, struct job **ret, struct err *err)
{
    const int rc = core_writable(co, err);
    if (rc < 0)
        return rc;
    *ret = state_job(&co->state, id);
    return *ret ? 0
                : err_set(err, -ERR_NOTFOUND, "job %llu does not exist", (unsigned long long)id);
}

/* The same; an error if it has ended. */
static int live_job(struct coordinator *co, uint64_t id, struct job **ret, struct err *err)
{
    struct job *j;
    const int rc = any_job(co, id, &j, err);
    if (rc < 0)
        return rc;
    if (job_is_ended(j))
        return err_set(err, -ERR_STALE, "job %llu has ended, it is %s", (unsigned long long)id,
                       job_state_name(j->state));
    *ret = j;
    return 0;
}

int view_job_cancel(struct coordinator *co, uint64_t job_id, struct err *err)
{
    struct job *j;
    int rc = live_job(co, job_id, &j, err);
    if (rc < 0)
        return rc;
    flow_end(co, j, JOB_CANCELLED, "cancelled by a person");
    return 0;
}

int view_job_adjust(struct coordinator *co, uint64_t job_id, const struct view_adjust *a,
                    struct job_swarm *ret, struct err *err)
{
    struct job *j;
    int rc = live_job(co, job_id, &j, err);
    if (rc < 0)
        return rc;
    if (!isnan(a->priority))
        j->quota.priority = (int)a->priority;
    if (!isnan(a->share))
        j->quota.share = a->share;
    cost_settle(co, j);
    if (!isnan(a->budget))
        j->quota.budget = a->budget;
    core_say(co, j->id, 0, "job %llu has priority %d, share %g, budget %g now",
             (unsigned long long)j->id, j->quota.priority, j->quota.share, j->quota.budget);
    core_touch(co);
    *ret = j->quota;
    return 0;
}

int view_job_pause(struct coordinator *co, uint64_t job_id, bool paused, struct err *err)
{
    struct job *j;
    int rc = live_job(co, job_id, &j, err);
    if (rc < 0 || j->paused == paused)
        return rc;
    cost_settle(co, j);
    j->paused = paused;
    core_say(co, j->id, 0, "job %llu is %s by a person", (unsigned long long)j->id,
             paused ? "paused" : "resumed");
    core_touch(co);
    return 0;
}

int view_job_rollback(struct coordinator *co, uint64_t job_id, uint32_t path, uint64_t to,
                      struct err *err)
{
    struct job *j;
    const int rc = live_job(co, job_id, &j, err);
    return rc < 0 ? rc : rollback_job(co, j, path, to, "by a person", err);
}

int view_job_remove(struct coordinator *co, uint64_t job_id, uint64_t holder, bool dry_run,
                    struct view_removal *ret, struct err *err)
{
    const struct token_rec *t = access_token_of(&co->state, holder);
    struct job *j;
    int rc = any_job(co, job_id, &j, err);
    if (rc < 0 || (rc = flow_removable(co, j, err)) < 0)
        return rc;
    *ret = (struct view_removal){.state = job_state_name(j->state),
                                 .bytes = gc_job_removed(co, j, true)};
    (void)str_copy(ret->name, sizeof(ret->name), j->spec.name);
    (void)str_copy(ret->reason, sizeof(ret->reason), j->reason);
    if (dry_run)
        return 0;
    core_say(co, 0, 0, "job %llu (%s) was removed with the token '%s'", (unsigned long long)job_id,
             j->spec.name, t ? t->name : "?");
    flow_remove(co, j);
    return 0;
}

int view_task_cancel(struct coordinator *co, uint64_t task_id, struct err *err)
{
    int rc = core_writable(co, err);
    const struct task *t = state_task(&co->state, task_id);
    if (rc < 0)
        return rc;
    if (t == NULL)
        return err_set(err, -ERR_NOTFOUND, "task %llu does not exist", (unsigned long long)task_id);
    if (t->kind != TASK_SAMPLE || !t->draw.asked)
        return err_set(err, -EINVAL,
                       "task %llu is part of job %llu: only a drawing that a person asked for can "
                       "be cancelled by itself",
                       (unsigned long long)task_id, (unsigned long long)t->job_id);
    if (!task_is_open(t))
        return err_set(err, -ERR_STALE, "task %llu has ended already, it is %s",
                       (unsigned long long)task_id, task_state_name(t->state));
    task_end(co, state_edit_task(&co->state, t), TASK_CANCELLED,
             "cancelled by the person who asked for it");
    core_say(co, t->job_id, 0, "SAMPLE task %llu was cancelled by the person who asked for it",
             (unsigned long long)task_id);
    return 0;
}

/* Is version 0 of all modules there, and is it known what to draw? */
static bool has_model(const struct job *j)
{
    return query_initialised(j) &&
           (j->n_classes > 0 || job_is_text(&j->spec) || !job_has_data(&j->spec));
}

/* Our networks draw into one picture, whose size is bounded; a user's trainer draws as it likes. */
static int check_grid(const struct job *j, const struct draw_request *r, struct err *err)
{
    const struct job_sample *own = &j->spec.sample;
    const uint32_t asked = r->n_labels > 0 ? (uint32_t)r->n_labels : r->count;
    const uint32_t columns = r->columns > 0 ? r->columns : (uint32_t)own->columns;
    struct err why = {0};
    if (job_is_text(&j->spec) || job_family(&j->spec)->external ||
        job_check_grid(&j->spec, asked > 0 ? asked : (uint32_t)own->count, columns, &why) == 0)
        return 0;
    return err_set(err, -EINVAL, "%s", why.msg);
}

/* The request must fit the job's kind; a trainer that reads its own data may draw or write. */
static int check_kind(const struct job *j, const struct draw_request *r, bool captions,
                      struct err *err)
{
    const bool images = !job_is_text(&j->spec) && job_has_data(&j->spec);
    if (images && ((r->prompt != NULL && !captions) || r->tokens > 0 || !isnan(r->temperature) ||
                   r->top_p > 0))
        return err_set(
            err, -EINVAL, "job %llu draws images%s: %stokens, temperature and top_p are for texts",
            (unsigned long long)j->id, captions ? "" : " of classes", captions ? "" : "prompt, ");
    if (!images && (r->count > 0 || r->steps > 0 || r->columns > 0 || r->n_labels > 0 ||
                    r->sampler != NULL || !isnan(r->guidance)))
        return err_set(err, -EINVAL,
                       "job %llu %s: count, labels, steps, sampler, guidance and columns are for "
                       "images of classes",
                       (unsigned long long)j->id,
                       job_is_text(&j->spec) ? "writes texts" : "knows no classes");
    return 0;
}

static int check_ask(const struct job *j, const struct draw_request *r, struct err *err)
{
    if (r->count > VIEW_LABELS_MAX || r->n_labels > VIEW_LABELS_MAX)
        return err_set(err, -EINVAL, "at most %d samples can be drawn at once", VIEW_LABELS_MAX);
    if (r->steps > 1000 || r->columns > VIEW_LABELS_MAX)
        return err_set(err, -EINVAL, "steps is %u and columns %u, at most 1000 and %d are possible",
                       r->steps, r->columns, VIEW_LABELS_MAX);
    if (r->guidance > 100)
        return err_set(err, -EINVAL, "guidance is %g, expected 0 to 100", r->guidance);
    if (j->spec.model.label_dropout == 0 && !isnan(r->guidance) && r->guidance != 1)
        return err_set(err, -EINVAL,
                       "guidance is %g, but with model.label_dropout 0 the model never learns to "
                       "do without a label; use guidance 1",
                       r->guidance);
    if (r->sampler != NULL && strcmp(r->sampler, "euler") != 0 && strcmp(r->sampler, "heun") != 0)
        return err_set(err, -EINVAL, "sampler is '%.20s', expected 'euler' or 'heun'", r->sampler);
    int strategy;
    if (r->has_path && (r->path >= j->comp.n_paths || j->comp.paths[r->path].network != 0))
        return err_set(err, -EINVAL, "path %u cannot be drawn from, the job has paths 0 to %u",
                       r->path, query_main_paths(j) - 1);
    if (r->strategy != NULL && job_strategy_parse(r->strategy, &strategy) < 0)
        return err_set(err, -EINVAL,
                       "strategy is '%.20s', expected top1, topk, full, nucleus, threshold or "
                       "oracle",
                       r->strategy);
    if ((r->strategy != NULL || r->remote || r->top > 0) && (!j->comp.mixture || r->has_path))
        return err_set(err, -EINVAL,
                       "strategy, top and remote are for the mixture of a ddm job, not for one "
                       "path");
    if (r->top > query_main_paths(j))
        return err_set(err, -EINVAL, "top is %u, the mixture has %u experts", r->top,
                       query_main_paths(j));
    const bool captions = job_has_captions(&j->spec);
    if (captions && r->n_labels > 0)
        return err_set(
            err, -EINVAL,
            "job %llu draws captions: give prompt, one caption per line, in place of labels",
            (unsigned long long)j->id);
    const int rc = check_kind(j, r, captions, err);
    if (rc < 0)
        return rc;
    if (r->tokens > VIEW_TOKENS_MAX || r->temperature > VIEW_TEMPERATURE_MAX)
        return err_set(err, -EINVAL,
                       "tokens is %u and temperature %g, at most %d and %d are possible", r->tokens,
                       r->temperature, VIEW_TOKENS_MAX, VIEW_TEMPERATURE_MAX);
    if (r->prompt != NULL && strlen(r->prompt) > PROMPT_MAX)
        return err_set(err, -EINVAL, "prompt has %zu bytes, at most %d are possible",
                       strlen(r->prompt), PROMPT_MAX);
    size_t lines = 1;
    for (const char *p = captions ? r->prompt : NULL; p && (p = strchr(p, '\n')) != NULL; p++)
        lines++;
    if (lines > TASK_LABELS_MAX)
        return err_set(err, -EINVAL, "prompt has %zu captions, at most %d are possible", lines,
                       TASK_LABELS_MAX);
    for (size_t i = 0; i < r->n_labels; i++)
        if (r->labels[i] >= j->n_classes)
            return err_set(err, -EINVAL,
                           "label %u does not exist: the job has %zu class%s, numbered from 0",
                           r->labels[i], j->n_classes, j->n_classes == 1 ? "" : "es");
    return 0;
}

int view_sample_request(struct coordinator *co, uint64_t job_id, const struct draw_request *r,
                        uint64_t *ret_task, struct err *err)
{
    struct job *j;
    int rc = any_job(co, job_id, &j, err);
    if (rc < 0)
        return rc;
    if (j->refused != NULL)
        return err_set(err, -ERR_STALE, "job %llu cannot be drawn from: %s",
                       (unsigned long long)job_id, j->refused);
    if (j->paused && !job_is_ended(j))
        return err_set(err, -ERR_STALE,
                       "job %llu is paused, and no worker draws for it: `skerry resume %llu` lets "
                       "it go on",
                       (unsigned long long)job_id, (unsigned long long)job_id);
    if (!has_model(j))
        return err_set(err, -ERR_STALE, "job %llu has no model yet to draw from",
                       (unsigned long long)job_id);
    if (!query_can(j, "draws"))
        return err_set(err, -EINVAL, "the trainer of job %llu has not said that it can draw",
                       (unsigned long long)job_id);
    if (job_is_text(&j->spec) && !query_has_text(j))
        return err_set(err, -EINVAL,
                       "job %llu learns ids of a tokenizer that it does not name (data.tokenizer), "
                       "so they cannot be shown as text",
                       (unsigned long long)job_id);
    if ((rc = check_ask(j, r, err)) < 0 || (rc = check_grid(j, r, err)) < 0)
        return rc;
    tasks_prune(co, j);
    uint32_t path = r->has_path ? r->path : UINT32_MAX, at = r->has_path ? r->path : 0;
    struct task *t = draw_sample(co, j, path, j->paths[at].round, r);
    if (t == NULL)
        return err_set(err, -ERR_LIMIT, "%d tasks are open, no more are taken", TASKS_OPEN_MAX);
    *ret_task = t->id;
    return 0;
}

/* The worker, to be changed. */
static int any_worker(struct coordinator *co, uint64_t id, struct worker **ret, struct err *err)
{
    const int rc = core_writable(co, err);
    if (rc < 0)
        return rc;
    *ret = state_edit_worker(&co->state, state_worker(&co->state, id));
    return *ret ? 0
                : err_set(err, -ERR_NOTFOUND, "worker %llu does not exist", (unsigned long long)id);
}

int view_worker_revoke(struct coordinator *co, uint64_t worker_id, struct err *err)
{
    struct worker *w;
    const int rc = any_worker(co, worker_id, &w, err);
    if (rc < 0)
        return rc;
    if (w->revoked_unix_ms != 0)
        return err_set(err, -ERR_STALE, "worker %llu was revoked already",
                       (unsigned long long)worker_id);
    member_revoke(co, w, "it was revoked by an operator");
    core_touch(co);
    return 0;
}

int view_worker_drain(struct coordinator *co, uint64_t worker_id, struct err *err)
{
    struct worker *w;
    const int rc = any_worker(co, worker_id, &w, err);
    if (rc < 0)
        return rc;
    if (w->state != WORKER_HERE)
        return err_set(err, -ERR_STALE, "worker %llu is not here any more",
                       (unsigned long long)worker_id);
    w->drain = true;
    w->parked_until_ms = 0; /* its long poll is answered now, with this change */
    core_say(co, 0, w->id, "worker %llu (%s) is to finish and leave", (unsigned long long)w->id,
             w->name);
    core_touch(co);
    return 0;
}

int view_upload_expect(struct coordinator *co, const uint8_t sha256[VIEW_SHA256_BYTES],
                       uint64_t size, struct err *err)
{
    struct blob_id id;
    uint64_t room = 0;
    char left[STR_HUMAN_MAX], wanted[STR_HUMAN_MAX], spare[STR_HUMAN_MAX];
    int rc = core_writable(co, err);
    if (rc < 0)
        return rc;
    memcpy(id.sha256, sha256, 32);
    /* The sweep takes orphans by their age: a blob that is here becomes young again. */
    gc_keep(co, sha256);
    if (blobstore_has(co->blobs, &id, NULL))
        return co->blobs->ops->touch(co->blobs, &id, err);
    if ((rc = core_disk_room(co, &room, err)) < 0)
        return rc;
    if (room < size || room - size < SPARE_BYTES)
        return err_set(err, -ENOSPC,
                       "the disk of the coordinator has %s left, too little for an upload of %s "
                       "beside the %s that stay free: make room there",
                       str_human_bytes(room, left), str_human_bytes(size, wanted),
                       str_human_bytes(SPARE_BYTES, spare));
    return 0;
}

/* ---- news ---------------------------------------------------------------- */

void view_when_durable(struct coordinator *co, durable_fn fn, void *arg)
{
    core_when_durable(co, fn, arg);
}

bool view_is_shown(struct coordinator *co, uint64_t job_id)
{
    return core_is_shown(co, job_id ? state_job(&co->state, job_id) : NULL);
}

bool view_when_shown(struct coordinator *co, uint64_t job_id, durable_fn fn, void *arg)
{
    return core_when_shown(co, job_id ? state_job(&co->state, job_id) : NULL, fn, arg);
}

uint64_t view_next_commit(const struct coordinator *co)
{
    return store_next(co->store);
}

bool view_has_commit(const struct coordinator *co, uint64_t commit)
{
    return store_has(co->store, commit);
}

uint64_t view_writing_ms(const struct coordinator *co)
{
    return core_writing_ms(co);
}

bool view_is_slow(const struct coordinator *co)
{
    return core_writing_ms(co) >= CORE_SLOW_MS;
}

int view_subscribe(struct coordinator *co, event_fn fn, void *arg)
{
    for (int i = 0; i < EVENT_SUBSCRIBERS_MAX; i++) {
        if (co->subscribers[i].handle != 0)
            continue;
        co->subscribers[i] = (struct subscriber){++co->next_handle, fn, arg};
        return co->subscribers[i].handle;
    }
    return -ERR_LIMIT;
}

void view_unsubscribe(struct coordinator *co, int handle)
{
    for (int i = 0; i < EVENT_SUBSCRIBERS_MAX; i++)
        if (co->subscribers[i].handle == handle)
            co->subscribers[i].handle = 0;
}
