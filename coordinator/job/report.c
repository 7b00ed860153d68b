#include "coordinator/job/report.h"

#include "coordinator/job/folds.h"
#include "coordinator/job/gc.h"
#include "coordinator/job/member.h"
#include "coordinator/job/metrics.h"
#include "coordinator/job/query.h"
#include "coordinator/job/tasks.h"
#include "coordinator/state/core.h"
#include "common/job/recipe.h"

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/hash.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/st/st.h"
#include "common/base/str.h"
#include "proto/skerry.pb-c.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define CONTRIBUTIONS_MAX 64
#define FULL_DISK_WAIT_MS 5000
/* Until a worker is asked again for what it had no memory for: others could do it, or not. */
#define SMALL_MS 300000
#define SMALL_ALONE_MS 10000

typedef Skerry__V1__ReportRequest report;

/* ---- INIT ---------------------------------------------------------------- */

/* Version 0 must be plain float32 safetensors. */
static int check_full(struct coordinator *co, const struct blob_ref *ref, uint64_t *ret_params,
                      struct err *err)
{
    struct blob_id id;
    char path[4096];
    struct st st;
    uint64_t params = 0;
    memcpy(id.sha256, ref->sha256, 32);
    int rc = blobstore_path(co->blobs, &id, path, sizeof(path));
    if (rc < 0)
        return err_set(err, rc, "the path of a blob is too long");
    if ((rc = st_open(path, &st, err)) < 0)
        return err_wrap(err, "version 0 of a module");
    for (size_t i = 0; i < st.n_tensors && rc == 0; i++) {
        params += st.tensors[i].count;
        if (st.tensors[i].dtype != ST_F32)
            rc = err_set(err, -ERR_FORMAT, "version 0 of a module: tensor %s is %s, expected F32",
                         st.tensors[i].name, st_dtype_name(st.tensors[i].dtype));
    }
    st_release(&st);
    if (rc == 0 && params == 0)
        rc = err_set(err, -ERR_FORMAT, "version 0 of a module has no parameters");
    *ret_params = params;
    return rc;
}

/* Everyone starts from the same values: what was made for one module of a level is
 * version 0 of all of them. */
static void adopt_level(struct coordinator *co, struct job *j, const struct task *t,
                        const struct module_rec *like, const struct blob_ref *full, uint64_t params)
{
    for (uint32_t i = 0; i < j->comp.n_modules; i++) {
        struct module_rec *m = &j->modules[i];
        if (m->network != like->network || m->level != like->level)
            continue;
        struct version_rec v = {
            .full = *full,
            .provenance = str_printf("{\"made_by_task\":%llu,\"seed\":%llu}",
                                     (unsigned long long)t->id, (unsigned long long)j->spec.seed),
            .at_unix_ms = (int64_t)clock_wall_ms(),
        };
        m->params = params;
        folds_adopt(co, j, m, &v);
    }
}

/* One contribution per level of the task's network, to its module of index 0. */
static int apply_init(struct coordinator *co, struct job *j, struct task *t, const report *r,
                      struct err *err)
{
    uint32_t network = j->comp.paths[t->path].network, n = j->comp.networks[network].n_levels;
    struct blob_ref made[COMPOSITION_LEVELS_MAX] = {{{0}, 0}};
    const struct module_rec *of[COMPOSITION_LEVELS_MAX] = {NULL};
    uint64_t params[COMPOSITION_LEVELS_MAX];
    int rc = 0;
    if (r->n_contributions != n)
        return err_set(err, -EINVAL, "INIT brought %zu modules, expected %u", r->n_contributions,
                       n);
    for (size_t i = 0; i < n && rc == 0; i++) {
        const Skerry__V1__Contribution *c = r->contributions[i];
        const struct module_rec *m = job_module(j, c->module_id);
        if (m == NULL || m->network != network || m->index != 0 || of[m->level] != NULL)
            return err_set(err, -EINVAL, "module %llu was not asked for, or came twice",
                           (unsigned long long)c->module_id);
        of[m->level] = m;
        rc = report_blob(co, c->blob, "version 0 of a module", &made[m->level], err);
        if (rc == 0)
            rc = check_full(co, &made[m->level], &params[m->level], err);
    }
    for (uint32_t l = 0; l < n && rc == 0; l++)
        adopt_level(co, j, t, of[l], &made[l], params[l]);
    return rc;
}

/* ---- INGEST -------------------------------------------------------------- */

/* Archives of one job must agree: the shorter list begins the longer one. */
static int merge_classes(struct job *j, const report *r, struct err *err)
{
    if (j->spec.model.type == JOB_MODEL_LLAMA)
        return 0; /* texts have none */
    if (r->n_classes > JOB_CLASSES_MAX || r->n_classes == 0)
        return err_set(err, -EINVAL, "an archive with %zu classes, expected 1 to %d", r->n_classes,
                       JOB_CLASSES_MAX);
    for (size_t i = 0; i < r->n_classes && i < j->n_classes; i++)
        if (strcmp(r->classes[i], j->classes[i]) != 0)
            return err_set(err, -ERR_CONFIG,
                           "the archives of data.url disagree about class %zu: "
                           "'%.60s' and '%.60s'; give all the same classes.txt",
                           i, j->classes[i], r->classes[i]);
    if (r->n_classes <= j->n_classes)
        return 0;
    j->classes = mem_realloc(j->classes, r->n_classes * sizeof(*j->classes));
    j->counts = mem_realloc(j->counts, r->n_classes * sizeof(*j->counts));
    for (size_t i = j->n_classes; i < r->n_classes; i++) {
        j->classes[i] = str_ndup(r->classes[i], 256);
        j->counts[i] = 0;
    }
    j->n_classes = r->n_classes;
    return 0;
}

static int shard_order(const void *a, const void *b)
{
    const struct shard_rec *x = a, *y = b;
    return (x->source > y->source) - (x->source < y->source);
}

/* Sources in order of their URL, so the order does not depend on who was faster. */
static void order_shards(struct job *j)
{
    /* Insertion: shards of one source are already in order and must stay so. */
    for (size_t i = 1; i < j->n_shards; i++) {
        struct shard_rec s = j->shards[i];
        size_t k = i;
        for (; k > 0 && shard_order(&j->shards[k - 1], &s) > 0; k--)
            j->shards[k] = j->shards[k - 1];
        j->shards[k] = s;
    }
}

static int apply_ingest(struct coordinator *co, struct job *j, struct task *t, const report *r,
                        struct err *err)
{
    int rc = 0;
    if (r->n_shards == 0 || r->n_shards > 4096 || j->n_shards + r->n_shards > JOB_SHARDS_MAX)
        return err_set(err, -EINVAL,
                       "an archive made %zu shards, expected 1 to 4096 and at most "
                       "%d of the job; raise data.shard_samples",
                       r->n_shards, JOB_SHARDS_MAX);
    struct shard_rec *made = mem_alloc_array(r->n_shards, sizeof(*made));
    for (size_t i = 0; i < r->n_shards && rc == 0; i++) {
        rc = report_blob(co, r->shards[i]->blob, "a shard", &made[i].blob, err);
        made[i].samples = r->shards[i]->samples;
        made[i].holdout = r->shards[i]->holdout;
        made[i].tokens = r->shards[i]->tokens;
        made[i].source = t->ingest.url;
        if (rc == 0 && made[i].samples == 0)
            rc = err_set(err, -EINVAL, "a shard without samples");
    }
    if (rc == 0)
        rc = merge_classes(j, r, err);
    if (rc == 0) {
        j->cap_shards = j->n_shards + r->n_shards;
        j->shards = mem_realloc(j->shards, j->cap_shards * sizeof(*j->shards));
        memcpy(&j->shards[j->n_shards], made, r->n_shards * sizeof(*made));
        j->n_shards += r->n_shards;
        order_shards(j);
        save_job_dataset(co->store, j);
    }
    mem_free(made);
    return rc;
}

/* ---- TRAIN, EVAL, SAMPLE ------------------------------------------------- */

/* Does the contribution fit the task?  *ret_late: it does, but too late to be folded. */
static int check_contribution(const struct job *j, const struct task *t,
                              const Skerry__V1__Contribution *c, bool *ret_late, struct err *err)
{
    const struct module_rec *m = job_module(j, c->module_id);
    bool async = j->spec.outer.async;
    if (m == NULL || !query_crosses(j, t->path, m))
        return err_set(err, -EINVAL, "module %llu is not on path %u",
                       (unsigned long long)c->module_id, t->path);
    if (c->base_version > m->version || (!async && c->base_version != t->train.round))
        return err_set(err, -ERR_STALE,
                       "the contribution is to version %llu of module %llu, which "
                       "is at %llu",
                       (unsigned long long)c->base_version, (unsigned long long)c->module_id,
                       (unsigned long long)m->version);
    /* Whole values can only be compared with the version that they began with. */
    *ret_late = async ? j->spec.wire.up == CODEC_F32 && !module_version(m, c->base_version)
                      : m->version != c->base_version;
    return 0;
}

/* Takes what the report brings and the task has not given yet: an attempt that begins
 * anew makes some contributions again. */
static int take_contributions(struct coordinator *co, struct job *j, struct task *t,
                              const report *r, struct err *err)
{
    struct contribution made[CONTRIBUTIONS_MAX];
    size_t n = 0;
    for (size_t i = 0; i < r->n_contributions; i++) {
        const Skerry__V1__Contribution *c = r->contributions[i];
        struct contribution *new = &made[n];
        bool late = false;
        int rc = check_contribution(j, t, c, &late, err);
        for (size_t k = 0; rc == 0 && k < i; k++)
            if (r->contributions[k]->module_id == c->module_id)
                rc = err_set(err, -EINVAL, "module %llu came twice",
                             (unsigned long long)c->module_id);
        if (rc < 0)
            return rc;
        if (query_contribution(t, c->module_id, c->base_version))
            continue;
        *new = (struct contribution){.module_id = c->module_id,
                                     .base_version = c->base_version,
                                     .refused = late,
                                     .samples = r->samples,
                                     .worker_id = t->worker_id};
        if ((rc = report_blob(co, c->blob, "the contribution", &new->blob, err)) < 0)
            return rc;
        n++;
    }
    if (n == 0)
        return 0;
    t->train.contributions = mem_realloc(
        t->train.contributions, (t->train.n_contributions + n) * sizeof(*t->train.contributions));
    memcpy(&t->train.contributions[t->train.n_contributions], made, n * sizeof(*made));
    t->train.n_contributions += n;
    for (size_t i = 0; i < n; i++)
        metrics_uploaded(co, j, t, &made[i]);
    return 0;
}

/* Every module of the path has something from this phase, or does without. */
static int check_complete(const struct job *j, const struct task *t, struct err *err)
{
    for (uint32_t l = 0; l < composition_levels(&j->comp, t->path); l++) {
        const struct module_rec *m = &j->modules[j->comp.paths[t->path].modules[l]];
        bool found = !j->spec.outer.async && m->version > t->train.round;
        for (size_t i = 0; i < t->train.n_contributions && !found; i++)
            found = t->train.contributions[i].module_id == m->id;
        if (!found)
            return err_set(err, -EINVAL, "the phase brought no contribution to module %llu",
                           (unsigned long long)m->id);
    }
    return 0;
}

static int apply_train(struct coordinator *co, struct job *j, struct task *t, const report *r,
                       struct err *err)
{
    uint64_t held = 0;
    for (size_t i = 0; i < t->n_ranges; i++)
        held += t->ranges[i].count;
    if (r->n_contributions > CONTRIBUTIONS_MAX)
        return err_set(err, -EINVAL, "the phase brought %zu contributions, at most %d are possible",
                       r->n_contributions, CONTRIBUTIONS_MAX);
    if (r->samples == 0 || r->samples > held)
        return err_set(err, -EINVAL, "the phase counts %llu samples, expected 1 to %llu",
                       (unsigned long long)r->samples, (unsigned long long)held);
    int rc = take_contributions(co, j, t, r, err);
    if (rc == 0 && !r->snapshot)
        rc = check_complete(j, t, err);
    if (rc < 0)
        return rc;
    if (r->moments != NULL && j->spec.recipe.moments == JOB_MOMENTS_TRAVEL &&
        (rc = report_blob(co, r->moments, "the file of moments", &t->train.moments, err)) < 0)
        return rc;
    t->train.waited_ms = r->waited_ms;
    metrics_points(co, j, t, r->points, r->n_points);
    if (!r->snapshot)
        task_settle(co, t, r->samples);
    return 0;
}

/* A part of a phase that goes on.  What is wrong with it is no failure of the phase:
 * its sender is told, and it can still be made good at the end. */
static int apply_snapshot(struct coordinator *co, struct job *j, struct task *t, const report *r,
                          struct err *err)
{
    if (t->kind != TASK_TRAIN || r->failed || j == NULL)
        return err_set(err, -EINVAL, "only a phase of training can be reported in parts");
    int rc = apply_train(co, j, t, r, err);
    if (rc < 0)
        return rc;
    t->progress_ms = core_now(co);
    save_task(co->store, t);
    core_touch(co);
    return 0;
}

/* The weights that were evaluated, if they are the path's best and still there. */
static void keep_best(struct coordinator *co, struct job *j, const struct task *t)
{
    struct path_rec *path = &j->paths[t->path];
    uint32_t n = composition_levels(&j->comp, t->path);
    bool old = t->n_ranges > 0 && j->shards[t->ranges[0].shard].generation != j->generation;
    if (!j->spec.recipe.early_stop || old ||
        (path->best != NULL && path->best_loss <= t->loss_mean))
        return;
    struct best_module *best = mem_alloc_array(n, sizeof(*best));
    for (uint32_t l = 0; l < n; l++) {
        const struct version_rec *v =
            module_version(&j->modules[j->comp.paths[t->path].modules[l]], t->draw.version);
        if (v == NULL) {
            mem_free(best);
            return;
        }
        best[l].version = v->version;
        best[l].full = t->draw.ema && blob_ref_is_set(&v->ema) ? v->ema : v->full;
    }
    for (uint32_t l = 0; l < n && path->best != NULL; l++)
        gc_drop(co, &path->best[l].full);
    mem_free(path->best);
    path->best = best;
    path->best_round = t->draw.version;
    path->best_loss = t->loss_mean;
}

static int apply_eval(struct coordinator *co, struct job *j, struct task *t, const report *r,
                      struct err *err)
{
    bool none = r->units == 0 && r->samples > 0 && isnan(r->loss_mean);
    if (!none && (!isfinite(r->loss_mean) || !isfinite(r->loss_sum)))
        return err_set(err, -EINVAL, "the held-out loss is not a finite number");
    t->loss_mean = r->loss_mean;
    if (none) {
        core_say(
            co, j->id, 0,
            "no held-out loss: the %llu held-out texts end within their first %u tokens, which "
            "are not judged; give longer ones in data.holdout_path",
            (unsigned long long)r->samples, TEXT_SKIP);
        return 0;
    }
    report_rows(co, j, t, r);
    if (t->draw.mixture)
        return 0; /* its rows say it all */
    struct path_rec *path = &j->paths[t->path];
    if (!isnan(path->eval.loss) && t->draw.version < path->eval.round)
        return 0; /* a newer one was faster */
    bool sums = r->units > 0;
    path->eval = (struct eval_rec){
        .loss = r->loss_mean,
        .round = t->draw.version,
        .loss_sum = sums ? r->loss_sum : (double)r->loss_mean * (double)t->draw.count,
        .units = sums ? r->units : t->draw.count,
        .bytes = r->bytes,
    };
    keep_best(co, j, t);
    save_path(co->store, j, t->path);
    metrics_eval(co, j, t);
    return 0;
}

static struct grid_rec *add_grid(struct coordinator *co, struct job *j)
{
    if (j->n_grids == JOB_SAMPLES_MAX) {
        gc_drop(co, &j->grids[0].blob);
        save_grid_gone(co->store, j->grids[0].task_id);
        mem_free(j->grids[0].text);
        memmove(&j->grids[0], &j->grids[1], (JOB_SAMPLES_MAX - 1) * sizeof(*j->grids));
        j->n_grids--;
    }
    j->grids = mem_realloc(j->grids, (j->n_grids + 1) * sizeof(*j->grids));
    struct grid_rec *g = &j->grids[j->n_grids++];
    memset(g, 0, sizeof(*g));
    return g;
}

static int apply_sample(struct coordinator *co, struct job *j, struct task *t, const report *r,
                        struct err *err)
{
    bool text = t->draw.tokens > 0;
    if (text && strlen(r->text) > TASK_TEXT_MAX)
        return err_set(err, -ERR_LIMIT, "the text has %zu bytes, at most %d are possible",
                       strlen(r->text), TASK_TEXT_MAX);
    int rc = text ? 0 : report_blob(co, r->output, "the picture", &t->output, err);
    if (rc < 0)
        return rc;
    struct grid_rec *g = add_grid(co, j);
    g->task_id = t->id;
    g->round = t->draw.version;
    g->path = t->draw.mixture ? UINT32_MAX : t->path;
    g->count = text ? 1 : t->draw.count;
    g->columns = text ? 1 : t->draw.columns;
    g->blob = t->output;
    g->text = text ? str_dup(r->text) : NULL;
    g->at_unix_ms = (int64_t)clock_wall_ms();
    save_grid(co->store, j, g);
    core_event(
        co, &(struct event){
                .kind = EVENT_SAMPLE, .job_id = j->id, .task_id = t->id, .sample = g, .text = ""});
    return 0;
}

static int apply_velocity(struct coordinator *co, struct job *j, struct task *t, const report *r,
                          struct err *err)
{
    int rc = report_blob(co, r->output, "the velocities", &t->output, err);
    if (rc == 0)
        j->paths[t->path].velocity_worker = t->worker_id;
    return rc;
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
static void take_bad(struct coordinator *co, struct job *j, const struct task *t, const report *r)
{
    uint32_t extra = r->bad_count > r->n_bad ? r->bad_count - (uint32_t)r->n_bad : 0, fresh = 0;
    for (size_t i = 0; i < r->n_bad; i++) {
        char shard[HASH_HEX_MAX] = "";
        if (r->bad[i]->shard_sha256.len == 32)
            (void)hash_hex(r->bad[i]->shard_sha256.data, 32, shard);
        if (already_named(j, shard, r->bad[i]->key))
            continue;
        if (job_add_bad(j, shard, r->bad[i]->key, r->bad[i]->reason)) {
            save_job_bad(co->store, j, j->n_bad - 1);
            fresh++;
        } else {
            extra++;
        }
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
    save_job(co->store, j);
    if (j->bad_count > (uint32_t)j->spec.data.max_bad)
        job_doom(j,
                 "%u samples cannot be read, data.max_bad allows %d; the first is "
                 "%s: %s",
                 j->bad_count, j->spec.data.max_bad, j->n_bad ? j->bad[0].key : "not named",
                 j->n_bad ? j->bad[0].reason : "");
}

/* ---- all ----------------------------------------------------------------- */

static int find_lease(struct coordinator *co, const struct worker *w, const report *r,
                      struct task **ret, bool *ret_repeated, struct err *err)
{
    struct task *t = state_task(&co->state, r->task_id);
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

static int apply_kind(struct coordinator *co, struct job *j, struct task *t, const report *r,
                      struct err *err)
{
    switch (t->kind) {
    case TASK_INIT:
        return apply_init(co, j, t, r, err);
    case TASK_INGEST:
        return apply_ingest(co, j, t, r, err);
    case TASK_TRAIN:
        return apply_train(co, j, t, r, err);
    case TASK_EVAL:
        return apply_eval(co, j, t, r, err);
    case TASK_SAMPLE:
        return apply_sample(co, j, t, r, err);
    case TASK_FEATURE:
        return report_feature(co, j, t, r, err);
    case TASK_CLUSTER:
        return report_cluster(co, j, t, r, err);
    case TASK_SPLIT:
        return report_split(co, j, t, r, err);
    case TASK_SCORE:
        return report_score(co, j, t, r, err);
    case TASK_VELOCITY:
        return apply_velocity(co, j, t, r, err);
    default:
        return err_set(err, -EINVAL, "a task of this kind is not reported");
    }
}

static void take_figures(struct task *t, const report *r)
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

/* Is something that t needs no longer in our store?  Then nobody who tries it is to blame. */
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
    struct worker *w = state_worker(&co->state, t->worker_id);
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
    struct worker *w = state_worker(&co->state, t->worker_id);
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

static void take_failure(struct coordinator *co, struct worker *w, struct task *t, const report *r)
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
    rc = apply_kind(co, j, t, r, err);
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
