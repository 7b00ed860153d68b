#include "coordinator/core.h"

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/str.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- submit -------------------------------------------------------------- */

/* A phase bounded by steps gets all its samples at once: can it? */
static int check_phase(const struct job_spec *spec, uint64_t shards, uint64_t samples,
                       struct err *err)
{
    uint64_t want = (uint64_t)spec->outer.steps * (uint64_t)spec->train.batch;
    if (want > RANGES_TAKEN_MAX * (samples / shards))
        return err_set(err, -ERR_CONFIG,
                       "a phase takes %llu images (outer.steps x train.batch), that is more than "
                       "%d pieces of shards of about %llu; raise data.shard_samples, or lower "
                       "outer.steps",
                       (unsigned long long)want, RANGES_TAKEN_MAX,
                       (unsigned long long)(samples / shards));
    if (want * (uint64_t)spec->recipe.replicas > samples * LEDGER_EPOCHS_OPEN_MAX)
        return err_set(err, -ERR_CONFIG,
                       "a round takes %llu images from each of %d replicas, more than %d times "
                       "the dataset of %llu; lower outer.steps",
                       (unsigned long long)want, spec->recipe.replicas, LEDGER_EPOCHS_OPEN_MAX,
                       (unsigned long long)samples);
    return 0;
}

static int check_dataset(struct coordinator *co, const struct job_spec *spec,
                         const struct view_submit *s, struct err *err)
{
    uint64_t train = 0, shards = 0;
    if (spec->data.path == NULL) {
        if (s->n_shards > 0)
            return err_set(err, -EINVAL, "data.url is given and shards as well: expected one");
        return 0;
    }
    if (s->n_shards == 0 || s->n_classes == 0)
        return err_set(err, -EINVAL,
                       "the dataset has no shards or no classes; data.path is cut "
                       "and uploaded by `skerry submit`");
    if (s->n_shards > JOB_SHARDS_MAX || s->n_classes > JOB_CLASSES_MAX)
        return err_set(err, -ERR_LIMIT,
                       "the dataset has %zu shards and %zu classes, at most %d "
                       "and %d fit; raise data.shard_samples",
                       s->n_shards, s->n_classes, JOB_SHARDS_MAX, JOB_CLASSES_MAX);
    for (size_t i = 0; i < s->n_shards; i++) {
        struct blob_id id;
        char hex[BLOB_HEX_MAX];
        uint64_t size = 0;
        memcpy(id.sha256, s->shards[i].sha256, 32);
        blob_id_hex(&id, hex);
        if (!blobstore_has(co->blobs, &id, &size))
            return err_set(err, -ERR_NOTFOUND, "shard %zu (%.12s...) was not uploaded", i, hex);
        if (size != s->shards[i].size)
            return err_set(err, -EINVAL, "shard %zu (%.12s...) has %llu bytes, %llu were announced",
                           i, hex, (unsigned long long)size, (unsigned long long)s->shards[i].size);
        if (s->shards[i].samples == 0)
            return err_set(err, -EINVAL, "shard %zu has no samples", i);
        train += s->shards[i].holdout ? 0 : s->shards[i].samples;
        shards += !s->shards[i].holdout;
    }
    if (train == 0)
        return err_set(err, -EINVAL, "the dataset has no samples to train on, all are held out");
    return check_phase(spec, shards, train, err);
}

static void take_dataset(struct job *j, const struct view_submit *s)
{
    j->n_classes = s->n_classes;
    j->classes = mem_alloc_array(s->n_classes + 1, sizeof(*j->classes));
    j->counts = mem_alloc_array(s->n_classes + 1, sizeof(*j->counts));
    for (size_t i = 0; i < s->n_classes; i++) {
        j->classes[i] = str_ndup(s->classes[i], 256);
        j->counts[i] = s->counts ? s->counts[i] : 0;
    }
    for (size_t i = 0; i < s->n_shards; i++) {
        struct shard_rec r = {.samples = s->shards[i].samples};
        memcpy(r.blob.sha256, s->shards[i].sha256, 32);
        r.blob.size = s->shards[i].size;
        r.holdout = s->shards[i].holdout;
        struct shard_rec *to = job_add_shard(j);
        if (to != NULL) /* checked before */
            *to = r;
    }
    for (size_t i = 0; i < s->n_bad; i++)
        (void)job_add_bad(j, s->bad[i].shard, s->bad[i].key, s->bad[i].reason);
    j->bad_count = (uint32_t)s->n_bad;
}

/* The oldest ended job makes room. */
static void make_room(struct coordinator *co)
{
    for (size_t i = 0; co->state.n_jobs >= JOBS_MAX && i < co->state.n_jobs; i++) {
        struct job *j = co->state.jobs[i];
        if (!job_is_ended(j))
            continue;
        for (size_t t = co->state.n_tasks; t-- > 0;)
            if (co->state.tasks[t]->job_id == j->id)
                state_drop_task(&co->state, co->state.tasks[t]);
        save_job_gone(co->store, j->id);
        state_drop_job(&co->state, j);
        return;
    }
}

static size_t active_jobs(const struct state *s)
{
    size_t n = 0;
    for (size_t i = 0; i < s->n_jobs; i++)
        n += !job_is_ended(s->jobs[i]);
    return n;
}

int flow_submit(struct coordinator *co, const struct view_submit *s, uint64_t *ret_id,
                struct err *err)
{
    struct job_spec spec;
    struct composition comp;
    int rc = core_writable(co, err);
    if (rc < 0 || (rc = job_parse(s->spec, strlen(s->spec), "job.yaml", &spec, err)) < 0)
        return rc;
    if (active_jobs(&co->state) >= JOBS_ACTIVE_MAX) {
        job_release(&spec);
        return err_set(err, -ERR_LIMIT, "%d jobs are active, no more are taken", JOBS_ACTIVE_MAX);
    }
    if ((rc = recipe_compose(&spec, &comp, err)) < 0 ||
        (rc = check_dataset(co, &spec, s, err)) < 0) {
        if (rc != 0 && comp.modules != NULL)
            composition_release(&comp);
        job_release(&spec);
        return rc;
    }
    make_room(co);
    struct job *j = state_add_job(&co->state, 0);
    if (j == NULL) {
        composition_release(&comp);
        job_release(&spec);
        return err_set(err, -ERR_LIMIT, "all %d places for jobs are taken", JOBS_MAX);
    }
    j->yaml = str_dup(s->spec);
    j->spec = spec;
    j->comp = comp;
    j->state = JOB_PENDING;
    j->made_unix_ms = (int64_t)clock_wall_ms();
    job_build(&co->state, j);
    take_dataset(j, s);
    co->counters_dirty = true;
    save_job(co->store, j);
    save_job_dataset(co->store, j);
    save_job_parts(co->store, j);
    core_say(co, j->id, 0, "job %llu (%s) was submitted", (unsigned long long)j->id, j->spec.name);
    core_touch(co);
    *ret_id = j->id;
    return 0;
}

int view_job_submit(struct coordinator *co, const struct view_submit *s, uint64_t *ret_id,
                    struct err *err)
{
    return flow_submit(co, s, ret_id, err);
}

/* ---- states -------------------------------------------------------------- */

static void enter(struct coordinator *co, struct job *j, enum job_state state, const char *reason)
{
    j->state = state;
    (void)str_copy(j->reason, sizeof(j->reason), reason);
    if (state == JOB_RUNNING) {
        j->started_ms = core_now(co);
        j->started_unix_ms = (int64_t)clock_wall_ms();
    }
    save_job(co->store, j);
    log_info("job", "job %llu is %s%s%s", (unsigned long long)j->id, job_state_name(state),
             reason[0] ? ": " : "", reason);
    core_event(co, &(struct view_event){.kind = VIEW_EVENT_JOB, .job_id = j->id, .text = reason});
    core_touch(co);
}

struct remove_arg {
    char *dir;
};

static int remove_work(void *arg)
{
    struct remove_arg *a = arg;
    return file_remove_tree(a->dir, NULL);
}

static void remove_done(void *arg, int rc)
{
    struct remove_arg *a = arg;
    mem_free(a->dir);
    mem_free(a);
}

void flow_clean_up(struct coordinator *co, const struct job *j)
{
    for (uint32_t i = 0; i < j->comp.n_modules; i++)
        if (j->modules[i].outer_task != 0)
            return; /* the end of the last step comes back here */
    struct remove_arg *a = mem_alloc(sizeof(*a));
    a->dir = str_printf("%s/outer/%llu", co->opt.data_dir, (unsigned long long)j->id);
    if (pool_submit(co->disk, remove_work, remove_done, a) < 0)
        remove_done(a, 0); /* the files stay: nothing depends on them */
}

void flow_end(struct coordinator *co, struct job *j, enum job_state state, const char *fmt, ...)
{
    char reason[1024];
    va_list ap;
    if (job_is_ended(j))
        return;
    va_start(ap, fmt);
    (void)vsnprintf(reason, sizeof(reason), fmt, ap);
    va_end(ap);
    j->ended_unix_ms = (int64_t)clock_wall_ms();
    enter(co, j, state, reason);
    for (size_t i = 0; i < co->state.n_tasks; i++) {
        struct task *t = co->state.tasks[i];
        if (t->job_id == j->id && task_is_open(t))
            task_end(co, t, TASK_CANCELLED, reason[0] ? reason : "the job has ended");
    }
    flow_clean_up(co, j);
    core_say(co, j->id, 0, "job %llu (%s) is %s%s%s", (unsigned long long)j->id, j->spec.name,
             job_state_name(state), reason[0] ? ": " : "", reason);
}

int flow_dataset_ready(struct coordinator *co, struct job *j, struct err *err)
{
    int rc = 0;
    for (uint32_t p = 0; p < j->comp.n_partitions && rc == 0; p++) {
        uint64_t samples = 0, n = 0;
        for (size_t i = 0; i < j->n_shards; i++)
            if (job_shard_trains(j, &j->shards[i], p)) {
                samples += j->shards[i].samples;
                n++;
            }
        if (j->ledgers[p] == NULL && n > 0)
            rc = check_phase(&j->spec, n, samples, err);
        if (rc == 0 && j->ledgers[p] == NULL)
            rc = job_make_ledger(j, p, err);
    }
    return rc;
}

static void begin_init(struct coordinator *co, struct job *j)
{
    struct err err = {0};
    if (flow_dataset_ready(co, j, &err) < 0) {
        flow_end(co, j, JOB_FAILED, "the dataset cannot be used: %s", err.msg);
        return;
    }
    struct task *t = task_make(co, j, TASK_INIT);
    if (t == NULL)
        return; /* too many open tasks: tried again at the next turn */
    save_task(co->store, t);
    enter(co, j, JOB_INITIALISING, "");
}

static void begin(struct coordinator *co, struct job *j)
{
    if (j->spec.data.path != NULL) {
        begin_init(co, j);
        return;
    }
    for (size_t i = 0; i < j->spec.data.url.n; i++) {
        struct task *t = task_make(co, j, TASK_INGEST);
        if (t == NULL) {
            flow_end(co, j, JOB_FAILED, "too many tasks are open to ingest %zu archives",
                     j->spec.data.url.n);
            return;
        }
        t->round = (uint32_t)i;
        save_task(co->store, t);
    }
    enter(co, j, JOB_INGESTING, "");
}

/* Open tasks of a kind. */
static size_t open_tasks(const struct state *s, const struct job *j, enum task_kind a,
                         enum task_kind b)
{
    size_t n = 0;
    for (size_t i = 0; i < s->n_tasks; i++) {
        const struct task *t = s->tasks[i];
        n += t->job_id == j->id && task_is_open(t) && (t->kind == a || t->kind == b);
    }
    return n;
}

static bool initialised(const struct job *j)
{
    for (uint32_t i = 0; i < j->comp.n_modules; i++)
        if (j->modules[i].n_versions == 0)
            return false;
    return true;
}

static void finish(struct coordinator *co, struct job *j)
{
    enter(co, j, JOB_FINISHING, "the last samples are drawn");
    uint32_t rounds = (uint32_t)j->spec.outer.rounds;
    for (uint32_t p = 0; p < j->comp.n_paths; p++) {
        (void)flow_make_eval(co, j, p, rounds);
        (void)flow_make_sample(co, j, p, rounds, NULL);
    }
}

static void advance(struct coordinator *co, struct job *j)
{
    enum job_state before;
    do {
        before = j->state;
        switch (j->state) {
        case JOB_PENDING:
            begin(co, j);
            break;
        case JOB_INGESTING:
            if (open_tasks(&co->state, j, TASK_INGEST, TASK_INGEST) == 0)
                begin_init(co, j);
            break;
        case JOB_INITIALISING:
            if (initialised(j))
                enter(co, j, JOB_RUNNING, "");
            break;
        case JOB_RUNNING:
            rounds_advance(co, j);
            if (j->state == JOB_RUNNING && rounds_finished(j))
                finish(co, j);
            break;
        case JOB_FINISHING:
            if (open_tasks(&co->state, j, TASK_EVAL, TASK_SAMPLE) == 0)
                flow_end(co, j, JOB_DONE, "%s", "");
            break;
        default:
            break;
        }
    } while (j->state != before);
}

void flow_advance(struct coordinator *co)
{
    for (size_t i = 0; i < co->state.n_jobs; i++)
        if (!job_is_ended(co->state.jobs[i]))
            advance(co, co->state.jobs[i]);
}

/* ---- evaluations and samples --------------------------------------------- */

struct task *flow_make_eval(struct coordinator *co, struct job *j, uint32_t path, uint32_t round)
{
    struct ledger_range ranges[256];
    size_t n = 0;
    uint32_t left = (uint32_t)j->spec.eval.samples;
    for (size_t i = 0; i < j->n_shards && left > 0 && n < 256; i++) {
        if (!j->shards[i].holdout)
            continue;
        uint32_t take = j->shards[i].samples < left ? j->shards[i].samples : left;
        ranges[n++] = (struct ledger_range){0, (uint32_t)i, 0, take};
        left -= take;
    }
    struct task *t = n > 0 ? task_make(co, j, TASK_EVAL) : NULL;
    if (t == NULL)
        return NULL;
    t->path = path;
    t->round = round;
    t->ranges = mem_alloc_array(n, sizeof(*ranges));
    memcpy(t->ranges, ranges, n * sizeof(*ranges));
    t->n_ranges = n;
    t->draw.count = (uint32_t)j->spec.eval.samples - left;
    t->draw.ema = j->spec.outer.ema > 0;
    save_task(co->store, t);
    return t;
}

static void fill_draw(const struct job *j, const struct view_sample_request *ask,
                      struct task_draw *d)
{
    const struct job_sample *s = &j->spec.sample;
    d->count = (uint32_t)s->count;
    d->steps = (uint32_t)s->steps;
    d->columns = (uint32_t)s->columns;
    d->heun = s->sampler == JOB_SAMPLER_HEUN;
    d->guidance = (float)s->guidance;
    d->seed = s->seed;
    d->ema = j->spec.outer.ema > 0;
    if (ask == NULL)
        return;
    d->asked = true;
    if (ask->n_labels > 0)
        d->count = (uint32_t)ask->n_labels;
    else if (ask->count > 0)
        d->count = ask->count;
    if (ask->steps > 0)
        d->steps = ask->steps;
    if (ask->columns > 0)
        d->columns = ask->columns;
    if (ask->guidance > 0) /* NAN is not */
        d->guidance = (float)ask->guidance;
    if (ask->has_seed)
        d->seed = ask->seed;
    if (ask->sampler != NULL)
        d->heun = strcmp(ask->sampler, "heun") == 0;
    if (ask->ema >= 0)
        d->ema = ask->ema > 0;
}

struct task *flow_make_sample(struct coordinator *co, struct job *j, uint32_t path, uint32_t round,
                              const struct view_sample_request *ask)
{
    if (j->n_classes == 0)
        return NULL;
    struct task *t = task_make(co, j, TASK_SAMPLE);
    if (t == NULL)
        return NULL;
    t->path = path;
    t->round = round;
    fill_draw(j, ask, &t->draw);
    t->draw.labels = mem_alloc_array(t->draw.count, sizeof(*t->draw.labels));
    for (uint32_t i = 0; i < t->draw.count; i++)
        t->draw.labels[i] =
            ask != NULL && ask->n_labels > 0 ? ask->labels[i] : i % (uint32_t)j->n_classes;
    save_task(co->store, t);
    return t;
}
