#include "coordinator/rpc/report.h"

#include "coordinator/job/remake.h"
#include "coordinator/kinds/kinds.h"
#include "coordinator/kinds/result.h"
#include "coordinator/work/member.h"
#include "coordinator/work/query.h"
#include "coordinator/work/tasks.h"

#include "common/base/hash.h"
#include "proto/skerry.pb-c.h"

#define FULL_DISK_WAIT_MS 5000
#define BAD_NAMED_MAX 64     /* as ReportRequest.bad: each is looked for among those of the job */
#define RATE_BYTES_MIN 65536 /* less tells of waits, not of a link */
/* Until a worker is asked again for what it had no memory for: others could do it, or not. */
#define SMALL_MS 300000
#define SMALL_ALONE_MS 10000

/* A report of a part of a running phase.  A fault in it does not fail the phase: its
 * sender is told, and the end of the phase can still make up for it. */
static int apply_snapshot(struct coordinator *co, struct job *j, struct task *t,
                          const Skerry__V1__ReportRequest *r, struct err *err)
{
    int rc = kinds_apply(co, j, t, r, err);
    if (rc < 0)
        return rc;
    t->progress_ms = core_now(co);
    t->begun = true;
    core_touch(co);
    return 0;
}

/* ---- bad samples --------------------------------------------------------- */

static const char *shard_name(const Skerry__V1__BadSample *b, char out[HASH_HEX_MAX])
{
    out[0] = '\0';
    return b->shard_sha256.len == 32 ? hash_hex(b->shard_sha256.data, 32, out) : out;
}

static struct bad_rec *find_bad(const struct job *j, const char *shard, const char *key)
{
    for (size_t i = 0; i < j->n_bad; i++)
        if (strcmp(j->bad[i].shard, shard) == 0 && strcmp(j->bad[i].key, key) == 0)
            return &j->bad[i];
    return NULL;
}

/* The bad samples of a report that the job does not know by name. */
struct bad_news {
    unsigned place; /* job_place() of its worker */
    uint32_t named;
    uint64_t unnamed; /* or beyond JOB_BAD_MAX */
};

/* What is known by name is now said by this worker, too.  A task has no more bad samples than
 * samples. */
static void hear_bad(struct job *j, const struct worker *w, const Skerry__V1__ReportRequest *r,
                     uint64_t held, struct bad_news *ret)
{
    const uint64_t told = r->bad_count > r->n_bad ? r->bad_count : r->n_bad;
    const uint64_t all = told < held ? told : held, n = r->n_bad < all ? r->n_bad : all;
    *ret = (struct bad_news){.place = job_place(j, worker_origin(w)), .unnamed = all - n};
    for (size_t i = 0; i < n; i++) {
        char shard[HASH_HEX_MAX];
        struct bad_rec *known = find_bad(j, shard_name(r->bad[i], shard), r->bad[i]->key);
        if (known != NULL)
            known->said |= 1ull << ret->place;
        else if (j->n_bad + ret->named < JOB_BAD_MAX)
            ret->named++;
        else
            ret->unnamed++;
    }
}

/* Are there more of them than the job allows?  Another worker has to confirm it. */
static int check_bad(struct job *j, const struct worker *w, const Skerry__V1__ReportRequest *r,
                     uint64_t held, struct bad_news *ret, struct err *err)
{
    if (r->n_bad > BAD_NAMED_MAX)
        return err_set(err, -EINVAL,
                       "the report names %zu samples that cannot be read, expected at most %d",
                       r->n_bad, BAD_NAMED_MAX);
    if (r->n_bad == 0 && r->bad_count == 0)
        return 0;
    hear_bad(j, w, r, held, ret);
    const uint64_t all = job_bad_for(j, ret->place) + ret->named + ret->unnamed;
    const char *key = "not named", *why = "";
    if (all <= (uint64_t)j->spec.data.max_bad)
        return 0;
    if (j->n_bad > 0 || r->n_bad > 0) {
        key = j->n_bad > 0 ? j->bad[0].key : r->bad[0]->key;
        why = j->n_bad > 0 ? j->bad[0].reason : r->bad[0]->reason;
    }
    return err_set(
        err, -ERR_CONFIG,
        "samples that cannot be read: %llu; data.max_bad allows %d; the first is %.60s: %.80s",
        (unsigned long long)all, j->spec.data.max_bad, key, why);
}

/* Notes them.  A broken image is met again in every epoch, so named ones count once, and of unnamed
 * ones the most in any one phase; an archive is counted only once. */
static void take_bad(struct job *j, struct task *t, const Skerry__V1__ReportRequest *r,
                     const struct bad_news *news)
{
    j->bad_count += news->named;
    if (t->kind == TASK_INGEST) {
        j->bad_count += (uint32_t)news->unnamed;
        j->places[news->place].cut += news->unnamed;
        t->ingest.unnamed = news->unnamed;
    } else if (news->unnamed > j->bad_unnamed) {
        j->bad_count += (uint32_t)(news->unnamed - j->bad_unnamed);
        j->bad_unnamed = (uint32_t)news->unnamed;
    }
    for (size_t i = 0, left = news->named; i < r->n_bad && left > 0; i++) {
        char shard[HASH_HEX_MAX];
        if (find_bad(j, shard_name(r->bad[i], shard), r->bad[i]->key) != NULL)
            continue;
        (void)job_add_bad(j, shard, r->bad[i]->key, r->bad[i]->reason, 1ull << news->place);
        left--;
    }
}

/* ---- the report ---------------------------------------------------------- */

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
    task_lease_again(co, t, worker_memory(w), r->attempt);
    if (t->state != TASK_LEASED || t->attempt != r->attempt || t->worker_id != w->id)
        return err_set(err, -ERR_STALE, "attempt %u of task %llu has lost its lease%s%s",
                       r->attempt, (unsigned long long)t->id, t->reason[0] ? ": " : "", t->reason);
    *ret = t;
    return 0;
}

static void take_figures(const struct job *j, struct task *t, const Skerry__V1__ReportRequest *r)
{
    /* A step takes at least one sample, and a phase at most the requested steps: the schedule
     * continues from this count. */
    const uint64_t asked = j->spec.outer.steps > 0 ? (uint64_t)j->spec.outer.steps : r->samples;
    const uint64_t most = asked < r->samples ? asked : r->samples;
    t->steps = r->steps < most ? r->steps : (uint32_t)most;
    t->skipped = r->skipped < t->steps ? r->skipped : t->steps;
    t->samples = r->samples;
    t->loss_first = r->loss_first;
    t->loss_last = r->loss_last;
    t->loss_mean = isfinite(r->loss_mean) ? r->loss_mean : NAN;
    t->seconds = r->seconds > 0 && r->seconds < RESULT_SECONDS_MAX ? r->seconds : 0;
    /* Units of other kinds are known from heartbeats alone, of which the last may come too late. */
    t->steps_done = t->kind == TASK_TRAIN ? t->steps : t->steps_total;
    t->samples_done = r->samples;
}

/* Keeps the trace as it is: only people read it. */
static void take_trace(struct job *j, const struct task *t, const Skerry__V1__ReportRequest *r)
{
    if (r->trace.len == 0 || r->trace.len > JOB_TRACE_MAX)
        return;
    mem_free(j->trace.text);
    j->trace = (struct job_trace){
        .text = memcpy(mem_alloc(r->trace.len), r->trace.data, r->trace.len),
        .len = r->trace.len,
        .task_id = t->id,
        .worker_id = t->worker_id,
        .path = t->path,
        .replica = task_replica(t),
        .round = task_round(t),
    };
}

static bool is_gone(const struct coordinator *co, const struct blob_ref *b)
{
    return blob_ref_is_set(b) && !blobstore_has(co->blobs, &b->id, NULL);
}

/* Is an input of t no longer in our store?  Then its worker is not to blame. */
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

/* Does it take more than the word of t's worker to call another one's snapshot bad?  Where nobody
 * else can continue the phase, its second word is enough. */
static bool is_first_doubt(const struct coordinator *co, const struct task *t)
{
    const uint64_t by = t->train.doubted_by;
    const struct worker *first = by != 0 ? state_worker(&co->state, by) : NULL;
    return by == 0 || (first != NULL && member_another(co, by, t) &&
                       !member_confirms(co, by, worker_origin(first), t));
}

/* A phase has failed that may have begun with a snapshot.  If that is worth nothing the phase
 * begins anew: its worker's own goes, another one's when a second worker fails with it, too.  Who
 * said that it diverges may then have been right. */
static void distrust(struct coordinator *co, struct task *t)
{
    const struct snapshot *s = t->kind == TASK_TRAIN ? t->train.snapshot : NULL;
    if (s == NULL)
        return;
    if (s->worker_id == t->worker_id) {
        task_keep_snapshot(co, t, NULL);
    } else if (is_first_doubt(co, t)) {
        t->train.doubted_by = t->train.doubted_by != 0 ? t->train.doubted_by : t->worker_id;
    } else {
        task_keep_snapshot(co, t, NULL);
        t->train.n_diverged = 0;
    }
}

/* ---- phases that diverge -------------------------------------------------- */

static void note_diverged(struct task *t)
{
    bool known = t->kind != TASK_TRAIN || t->train.n_diverged == TASK_DIVERGED_MAX;
    for (unsigned i = 0; !known && i < t->train.n_diverged; i++)
        known = t->train.diverged[i] == t->worker_id;
    if (!known)
        t->train.diverged[t->train.n_diverged++] = t->worker_id;
}

/* Worker `done` has done the phase.  Who alone said that it diverges, perhaps under several names
 * of one place, was wrong: once may be chance, or its device, and from then on it is a failure. */
static void judge_diverged(struct coordinator *co, struct task *t, const struct worker *done)
{
    const unsigned n = t->kind == TASK_TRAIN ? t->train.n_diverged : 0;
    const struct worker *first = n > 0 ? state_worker(&co->state, t->train.diverged[0]) : NULL;
    bool alone = first != NULL && (n == 1 || worker_origin(first) != worker_origin(done));
    for (unsigned i = 0; alone && i < n; i++) {
        const struct worker *w = state_worker(&co->state, t->train.diverged[i]);
        alone = w != NULL && w != done && worker_origin(w) == worker_origin(first);
    }
    for (unsigned i = 0; alone && i < n; i++) {
        struct worker *w =
            state_edit_worker(&co->state, state_worker(&co->state, t->train.diverged[i]));
        core_say(co, t->job_id, w->id,
                 "worker %llu (%s) said that task %llu diverges, but worker %llu has done it",
                 (unsigned long long)w->id, w->name, (unsigned long long)t->id,
                 (unsigned long long)done->id);
        if (w->diverged_alone++ > 0)
            member_failed(co, w);
    }
    if (n > 0)
        t->train.n_diverged = 0;
}

static bool snapshot_gone(const struct coordinator *co, const struct task *t)
{
    const struct snapshot *s = t->kind == TASK_TRAIN ? t->train.snapshot : NULL;
    for (size_t i = 0; s != NULL && i < s->n; i++)
        if (is_gone(co, &s->modules[i].blob))
            return true;
    return false;
}

/* No worker here has the memory for the task, which is aside: it ends, with those that wait and
 * take as much.  A person's request waits for a worker (draw.h). */
static void end_alike(struct coordinator *co, const struct task *t, const char *reason)
{
    const struct job *j = state_job(&co->state, t->job_id);
    for (size_t i = 0; i < co->state.n_tasks; i++) {
        const struct task *o = co->state.tasks[i];
        const bool asked = task_drawing(o) != NULL && o->draw.asked;
        if (o == t || (o->state == TASK_PENDING && o->job_id == t->job_id && o->kind == t->kind &&
                       !asked && query_network(j, o) == query_network(j, t)))
            task_end(co, state_edit_task(&co->state, o), TASK_FAILED, reason);
    }
}

/* Its worker has no memory for the task: it goes to others.  If no other worker is known and no
 * phase of its path was ever done, nobody could begin it. */
static void too_large(struct coordinator *co, struct task *t, const char *reason)
{
    struct worker *w = state_edit_worker(&co->state, state_worker(&co->state, t->worker_id));
    const struct job *j = state_job(&co->state, t->job_id);
    const bool others = member_others_fit(co, w, t);
    const bool begun = j != NULL && t->kind == TASK_TRAIN && j->paths[t->path].round > 0;
    if (w != NULL)
        member_note_small(co, w, t, others ? SMALL_MS : SMALL_ALONE_MS);
    const bool ends = !others && task_is_aside(t);
    char text[REASON_MAX];
    if (co->state.n_workers == 1 && !begun && !ends) {
        task_failed(co, t, FAULT_LASTING, reason);
        return;
    }
    core_say(co, t->job_id, t->worker_id, "%s task %llu is too large for worker %llu%s: %s",
             task_kind_name(t->kind), (unsigned long long)t->id, (unsigned long long)t->worker_id,
             ends ? ", and so for all that are here" : "", reason);
    if (!ends && co->opt.local && query_needs_trainers(j, t)) {
        task_failed(co, t, FAULT_PROGRAM, reason); /* a person waits, and no larger one will come */
        return;
    }
    if (!ends) {
        task_requeue(co, t, reason);
        return;
    }
    (void)snprintf(text, sizeof(text), "it is too large for every worker here: %.200s", reason);
    end_alike(co, t, text);
}

/* Its worker's device broke: the task goes to another at once, and it does not count as a failure.
 */
static void lost_device(struct coordinator *co, struct task *t, const char *reason)
{
    struct worker *w = state_edit_worker(&co->state, state_worker(&co->state, t->worker_id));
    core_say(co, t->job_id, t->worker_id, "the device of worker %llu failed in %s task %llu: %s",
             (unsigned long long)t->worker_id, task_kind_name(t->kind), (unsigned long long)t->id,
             reason);
    if (w != NULL) {
        w->device_failures++;
        w->tasks_failed++;
    }
    task_passed_on(co, t, reason);
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
    } else if (snapshot_gone(co, t)) {
        task_keep_snapshot(co, t, NULL);
        task_requeue(co, t, "its snapshot is gone from the coordinator's blobs");
    } else if (r->failure == SKERRY__V1__FAILURE__FAILURE_NETWORK || input_gone(co, t, reason)) {
        task_failed(co, t, FAULT_PASSING, reason);
    } else {
        const bool program = r->failure == SKERRY__V1__FAILURE__FAILURE_TRAINER &&
                             query_needs_trainers(state_job(&co->state, t->job_id), t);
        const bool diverged = r->failure == SKERRY__V1__FAILURE__FAILURE_DIVERGED && r->retryable;
        if (diverged)
            note_diverged(t);
        distrust(co, t);
        task_failed(co, t,
                    !r->retryable ? FAULT_LASTING
                    : program     ? FAULT_PROGRAM
                    : diverged    ? FAULT_DIVERGED
                                  : FAULT_TASK,
                    reason);
        if (!program && !diverged && task_is_open(t))
            remake_consider(co, state_job(&co->state, t->job_id), t, w);
        if (!program && !diverged) /* after it: what it was before counts for the task */
            member_failed(co, w);
    }
}

/* Notes the speed at which the files of a result came, by their sizes in the store; it means little
 * for fragments, which are uploaded during training. */
static void note_rate(struct coordinator *co, struct worker *w, const struct job *j,
                      const Skerry__V1__ReportRequest *r)
{
    struct blob_ref b;
    double bytes = 0;
    for (size_t i = 0; !query_streams(j) && i < r->n_contributions; i++)
        bytes += result_blob(co, r->contributions[i]->blob, "", &b, NULL) == 0 ? (double)b.size : 0;
    if (w->sends_ms != 0 && bytes >= RATE_BYTES_MIN) {
        const double rate = bytes * 1e3 / (double)(core_now(co) - w->sends_ms + 1);
        const double had = w->sends_bytes_per_s;
        w->sends_bytes_per_s = had > 0 ? (had + rate) / 2 : rate;
    }
    w->sends_ms = 0;
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
    if (r->snapshot) {
        w->sends_ms = 0;
        return apply_snapshot(co, j, t, r, err);
    }
    if (r->failed) {
        take_failure(co, w, t, r);
        return 0;
    }
    const uint64_t held = t->kind == TASK_INGEST ? UINT32_MAX : query_held(t);
    struct bad_news bad = {0};
    rc = check_bad(j, w, r, held, &bad, err);
    if (rc == 0)
        rc = kinds_apply(co, j, t, r, err);
    if (rc == -EAGAIN || rc == -ERR_NOTFOUND)
        return rc; /* a named file is far away, or not here: the worker sends it and reports again
                    */
    if (rc < 0) {
        /* An invalid result is a failure of its maker, or shows a fault of the data. */
        (void)snprintf(reason, sizeof(reason), "its result was refused: %.200s", err->msg);
        distrust(co, t);
        task_failed(co, t, rc == -ERR_CONFIG ? FAULT_LASTING : FAULT_TASK, reason);
        if (t->kind != TASK_INGEST || t->ingest.against != w->id) /* a third one decides */
            member_failed(co, w);
        return rc;
    }
    if (rc > 0) { /* nobody knows yet whether it is right */
        w->reported_ms = core_now(co);
        task_requeue(co, t, "another worker makes it again, to compare");
        return 0;
    }
    const bool judged = task_has_phase(t) || t->kind == TASK_OUTER;
    if (judged) /* other kinds do not look at what they have no use for */
        note_rate(co, w, j, r);
    take_figures(j, t, r);
    take_trace(j, t, r);
    task_end(co, t, TASK_DONE, "");
    member_succeeded(co, w, judged);
    judge_diverged(co, t, w);
    w->reported_ms = core_now(co);
    take_bad(j, t, r, &bad);
    return 0;
}
