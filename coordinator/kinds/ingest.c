/* INGEST: turns an archive of the data into shards. */
#include "coordinator/kinds/kind.h"

#include "common/base/clock.h"
#include "common/job/family.h"
#include "coordinator/job/agree.h"
#include "coordinator/kinds/result.h"
#include "coordinator/work/member.h"
#include "coordinator/work/tasks.h"

static void ingest_message(struct message *b, Skerry__V1__Task *msg)
{
    Skerry__V1__IngestTask *m = message_new(b, &skerry__v1__ingest_task__descriptor);
    m->url = b->job->spec.data.url.items[b->task->ingest.url];
    m->captions = job_has_captions(&b->job->spec);
    msg->ingest = m;
}

/* ---- names of classes ------------------------------------------------------ */

/* The origin of all workers whose archives have a class of this number; 0: there are several. */
static uint64_t only_origin(const struct state *s, const struct job *j, size_t class)
{
    uint64_t origin = 0;
    for (size_t i = 0; i < s->n_tasks; i++) {
        const struct task *t = s->tasks[i];
        if (t->job_id != j->id || t->kind != TASK_INGEST || t->state != TASK_DONE ||
            (t->ingest.classes != 0 && t->ingest.classes <= class))
            continue;
        const struct worker *w = state_worker(s, t->worker_id);
        const uint64_t from = w != NULL ? worker_origin(w) : 0;
        if (from == 0 || (origin != 0 && from != origin))
            return 0;
        origin = from;
    }
    return origin;
}

/* Has a worker contradicted the names, of another origin than these two? */
static bool is_contradicted(const struct state *s, const struct job *j, uint64_t names,
                            uint64_t own)
{
    for (size_t i = 0; i < s->n_tasks; i++) {
        const struct task *t = s->tasks[i];
        if (t->job_id != j->id || t->kind != TASK_INGEST || t->ingest.against == 0)
            continue;
        const struct worker *w = state_worker(s, t->ingest.against);
        if (w != NULL && worker_origin(w) != names && worker_origin(w) != own)
            return true;
    }
    return false;
}

/* Two origins contradict the only one that has told the names from this class on: its archives are
 * cut again by others, and who had contradicted it was right. */
static void rename_classes(struct coordinator *co, struct job *j, uint64_t names, size_t class)
{
    for (size_t i = 0; i < co->state.n_tasks; i++) {
        struct task *t = task_memory(co->state.tasks[i]);
        if (t->job_id != j->id || t->kind != TASK_INGEST || t->ingest.against == 0)
            continue;
        t->ingest.against = t->not_from = 0;
        t->failed = (struct failure_list){0};
    }
    j->renamed = true;
    job_drop_classes(j, class);
    tasks_recut(co, j, names, "two workers contradict its names of classes");
}

/* Worker w of t contradicts the job's name of a class.  That is one word against another while only
 * workers of one origin have told the name: a third one decides, the archive of t waits for it, and
 * nobody is blamed before.  True: it has, w was right, and the job has no such name any more.  Once
 * names were dropped, the archives differ as far as we can know. */
static bool outvotes(struct coordinator *co, struct job *j, struct task *t, const struct worker *w,
                     size_t class)
{
    const uint64_t names = only_origin(&co->state, j, class), own = worker_origin(w);
    if (names == 0 || names == own || j->renamed)
        return false;
    if (is_contradicted(&co->state, j, names, own)) {
        rename_classes(co, j, names, class);
        return true;
    }
    t->ingest.against = w->id;
    t->not_from = names;
    return false;
}

/* The archive has been cut by one of another origin than `against`, and its names agree with the
 * job's. */
static void judge(struct coordinator *co, struct task *t, const struct worker *w)
{
    struct worker *other =
        state_edit_worker(&co->state, state_worker(&co->state, t->ingest.against));
    if (other != NULL && worker_origin(other) != worker_origin(w)) {
        core_say(co, t->job_id, other->id,
                 "worker %llu (%s) told other names of classes of an archive than two others did: "
                 "its word does not count",
                 (unsigned long long)other->id, other->name);
        member_was_wrong(co, other);
        for (size_t i = 0; i < co->state.n_tasks; i++) { /* once, not for each archive */
            struct task *same = task_memory(co->state.tasks[i]);
            if (same->job_id == t->job_id && same->kind == TASK_INGEST &&
                same->ingest.against == other->id)
                same->ingest.against = 0;
        }
    }
    t->ingest.against = t->not_from = 0;
}

/* Archives of one job must agree: the shorter list of classes is a beginning of the longer one. */
static int merge_classes(struct coordinator *co, struct job *j, struct task *t,
                         const struct worker *w, const Skerry__V1__ReportRequest *r,
                         struct err *err)
{
    size_t same = 0;
    if (job_is_text(&j->spec))
        return 0; /* texts have no classes */
    if (r->n_classes > JOB_CLASSES_MAX || r->n_classes == 0)
        return err_set(err, -EINVAL, "an archive has %zu classes, expected 1 to %d", r->n_classes,
                       JOB_CLASSES_MAX);
    while (same < r->n_classes && same < j->n_classes &&
           strcmp(r->classes[same], j->classes[same]) == 0)
        same++;
    if (same < r->n_classes && same < j->n_classes && !outvotes(co, j, t, w, same))
        return err_set(err, -ERR_CONFIG,
                       "the archives of data.url have different names for class %zu, '%.60s' "
                       "and '%.60s'; number the classes alike in all of them",
                       same, j->classes[same], r->classes[same]);
    for (size_t i = j->n_classes; i < r->n_classes; i++)
        job_add_class(j, r->classes[i], 0);
    t->ingest.classes = r->n_classes;
    judge(co, t, w);
    return 0;
}

/* ---- captions -------------------------------------------------------------- */

/* Images without a caption in all archives so far: a figure of the job, which has a limit. */
static struct row_rec uncaptioned(const struct job *j, uint64_t more)
{
    struct row_rec row = {
        .kind = TASK_INGEST,
        .path = UINT32_MAX,
        .name = "images without a caption",
        .value = (double)more,
        .at_unix_ms = (int64_t)clock_wall_ms(),
    };
    for (size_t i = 0; i < j->n_rows; i++)
        if (j->rows[i].kind == TASK_INGEST && strcmp(j->rows[i].name, row.name) == 0)
            row.value += j->rows[i].value;
    return row;
}

/* As job_bad_for() of bad samples. */
static uint64_t uncaptioned_for(const struct job *j, unsigned place)
{
    uint64_t all = 0, most = 0;
    for (unsigned i = 0; i < JOB_PLACES_MAX; i++) {
        const uint64_t n = j->places[i].uncaptioned;
        all += n;
        most = i != place && n > most ? n : most;
    }
    return all - most;
}

/* Another worker has to confirm that there are too many. */
static int check_uncaptioned(const struct job *j, unsigned place, uint64_t more, struct err *err)
{
    const uint64_t most = (uint64_t)j->spec.data.max_bad, all = uncaptioned_for(j, place);
    if (more <= most && all + more <= most)
        return 0;
    return err_set(err, -ERR_CONFIG, "images without a caption: %.0f; data.max_bad allows %d",
                   (double)all + (double)more, j->spec.data.max_bad);
}

/* Has another worker to cut it again?  What is in its shards nobody else sees. */
static bool ingest_waits(struct coordinator *co, struct job *j, struct task *t,
                         const Skerry__V1__ReportRequest *r, const struct shard_rec *made)
{
    struct agree_result result = {0};
    struct hash h;
    hash_init(&h);
    result_hash_shards(&h, made, r->n_shards);
    for (size_t i = 0; i < r->n_classes; i++)
        hash_update(&h, r->classes[i], strlen(r->classes[i]) + 1);
    hash_update(&h, &r->uncaptioned, sizeof(r->uncaptioned));
    hash_final(&h, result.hash);
    return !agree_hear(co, j, t, &result);
}

/* A single worker may have cut too many out of its archives, so others cut all of them once more
 * before that is a fault of the data. */
static int check_room(struct coordinator *co, struct job *j, size_t n, struct err *err)
{
    if (j->n_shards + n <= JOB_SHARDS_MAX)
        return 0;
    if (j->recut || co->opt.local || !tasks_recut(co, j, 0, "they make too many shards"))
        return err_set(err, -ERR_CONFIG,
                       "the archives make more than %d shards; raise data.shard_samples",
                       JOB_SHARDS_MAX);
    j->recut = true;
    return 0; /* none is left of those that were cut before */
}

static int ingest_apply(struct coordinator *co, struct job *j, struct task *t,
                        const Skerry__V1__ReportRequest *r, struct err *err)
{
    const struct worker *w = state_worker(&co->state, t->worker_id);
    const unsigned place = r->uncaptioned > 0 && w != NULL ? job_place(j, worker_origin(w)) : 0;
    int rc = r->uncaptioned > 0 ? check_uncaptioned(j, place, r->uncaptioned, err) : 0;
    if (rc < 0)
        return rc;
    if (r->n_shards == 0 || r->n_shards > 4096)
        return err_set(err, -EINVAL,
                       "an archive gave %zu shards, expected 1 to 4096; raise data.shard_samples",
                       r->n_shards);
    struct shard_rec *made = mem_alloc_array(r->n_shards, sizeof(*made));
    for (size_t i = 0; i < r->n_shards && rc == 0; i++) {
        rc = result_shard(co, j, r->shards[i], &made[i], err);
        made[i].partition = 0;
        made[i].source = t->ingest.url;
    }
    if (rc == 0 && w == NULL)
        rc = err_set(err, -ERR_STALE, "its worker is gone");
    if (rc == 0 && ingest_waits(co, j, t, r, made))
        rc = KIND_WAITS;
    if (rc == 0)
        rc = check_room(co, j, r->n_shards, err);
    if (rc == 0)
        rc = merge_classes(co, j, t, w, r, err);
    for (size_t i = 0; i < r->n_shards && rc == 0; i++)
        *job_add_shard(j) = made[i]; /* the number was checked */
    if (rc == 0)
        job_order_shards(j, 0); /* by URL, so that it does not matter which archive was cut first */
    if (rc == 0)
        t->ingest.from = worker_origin(w);
    if (rc == 0 && r->uncaptioned > 0) {
        const struct row_rec row = uncaptioned(j, r->uncaptioned);
        (void)job_put_row(j, &row); /* the job's first rows: there is room */
        j->places[place].uncaptioned += r->uncaptioned;
        t->ingest.uncaptioned = r->uncaptioned;
    }
    mem_free(made);
    return rc;
}

const struct kind kind_ingest = {.message = ingest_message, .apply = ingest_apply};
