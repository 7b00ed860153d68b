/* TRAIN: a phase of a replica.  Its message, its contributions at the end or in parts, and new
 * versions of modules during the phase. */
#include "coordinator/kinds/train.h"

#include "common/job/family.h"
#include "coordinator/job/rounds.h"
#include "coordinator/job/spot_check.h"
#include "coordinator/kinds/kind.h"
#include "coordinator/kinds/result.h"
#include "coordinator/kinds/snapshot.h"
#include "coordinator/state/poll.h"
#include "coordinator/work/member.h"
#include "coordinator/work/metrics.h"
#include "coordinator/work/query.h"
#include "coordinator/work/shards.h"
#include "coordinator/work/tasks.h"

#define AHEAD_MAX 64 /* see TrainTask.ahead */
#define CONTRIBUTIONS_MAX 64
#define NO_VERSION UINT64_MAX
#define WAITED_MS_MAX 1000000000000u /* no phase waits longer */

/* ---- message -------------------------------------------------------------- */

static uint64_t total_steps(const struct job *j, const struct task *t)
{
    const struct composition_path *path = &j->comp.paths[t->path];
    uint64_t rounds = (uint64_t)j->spec.outer.rounds, left = rounds - t->train.round;
    if (j->spec.outer.async) { /* its share of the coming phases */
        uint64_t k = path->replicas;
        left = (rounds * k - j->paths[t->path].phases + k - 1) / k;
    } else if (j->spec.outer.steps > 0) {
        return rounds * (uint64_t)j->spec.outer.steps;
    }
    if (j->spec.outer.steps > 0)
        return t->train.first_step + left * (uint64_t)j->spec.outer.steps;
    /* Bounded by time: each coming phase is expected to take as many as a full last one.  Only
     * workers of releases before done_from, and trainers that ask how far the job is, go by it. */
    struct shards_sum sum = shards_sum(j, path->partition, false);
    uint64_t samples = j->paths[t->path].replicas[t->train.replica].samples_last;
    uint64_t phase = samples * 1000 / shards_of_steps(&j->spec, path->batch, 1000, &sum);
    return phase > 0 ? t->train.first_step + left * phase : 0;
}

/* The share of a phase that an earlier attempt has done, up to its snapshot. */
static double done_before(const struct task *t, const Skerry__V1__TrainTask *m)
{
    const struct snapshot *s = t->train.snapshot;
    if (s == NULL)
        return 0;
    return fmin(1, m->seconds > 0 ? s->seconds / m->seconds : s->steps / (double)m->steps);
}

/* Phases bounded by time, and async ones, whose replica may have done more or fewer of them than
 * the others: how much of the job is over.  An async phase of which a part is done goes on where
 * the job is by then: at the phases that are over and that part, of one of k replicas.  As the
 * worker adds the part whole, it is taken off here. */
static void add_schedule(const struct job *j, const struct task *t, Skerry__V1__TrainTask *m)
{
    const double rounds = j->spec.outer.rounds, k = j->comp.paths[t->path].replicas;
    if (m->seconds == 0 && !j->spec.outer.async)
        return;
    const double part = m->seconds > 0 ? m->seconds / (double)j->spec.outer.seconds : 1;
    double from = t->train.round;
    if (j->spec.outer.async)
        from = fmax(0, j->paths[t->path].phases / k - (1 - 1 / k) * part * done_before(t, m));
    m->done_from = from / rounds;
    m->done_to = fmin(1.0, m->done_from + part / rounds);
}

static int by_step(const void *a, const void *b)
{
    const Skerry__V1__Fragment *const *x = a, *const *y = b;
    return (*x)->step != (*y)->step ? ((*x)->step > (*y)->step ? 1 : -1)
                                    : ((*x)->level > (*y)->level) - ((*x)->level < (*y)->level);
}

/* Fragment f of F contributes after ceil((f+1)(H-delay)/F) of the H steps, so that
 * uploads are spread evenly over the phase and the last merge is at its end. */
static void add_fragments(struct message *b, Skerry__V1__TrainTask *m)
{
    const struct job *j = b->job;
    const struct composition_path *path = &j->comp.paths[b->task->path];
    const struct composition_network *n = &j->comp.networks[path->network];
    uint32_t delay = (uint32_t)j->spec.outer.delay, f = j->comp.fragments;
    m->delay = delay < m->steps ? delay : m->steps - 1;
    m->mix = (float)j->spec.outer.mix;
    m->n_fragments = n->n_levels;
    m->fragments = message_need(b, n->n_levels * sizeof(*m->fragments));
    for (uint32_t l = 0; l < n->n_levels && !b->failed; l++) {
        const struct module_rec *module = &j->modules[path->modules[l]];
        const struct contribution *c =
            query_contribution(b->task, module->id, b->task->train.round);
        Skerry__V1__Fragment *part = message_need(b, sizeof(*part));
        if (b->failed)
            return;
        skerry__v1__fragment__init(part);
        part->level = l;
        part->step = ((n->levels[l].fragment + 1) * (m->steps - m->delay) + f - 1) / f;
        part->done = module->version > b->task->train.round || (c != NULL && !c->refused);
        m->fragments[l] = part;
    }
    if (!b->failed)
        qsort(m->fragments, m->n_fragments, sizeof(*m->fragments), by_step);
}

/* Moments are sent with the replica, unless it stays at the worker that has them.  In fragments its
 * weights there would go on with them, and merges since then are not in these. */
static void add_moments(struct message *b, Skerry__V1__TrainTask *m)
{
    const struct replica_rec *r = &b->job->paths[b->task->path].replicas[b->task->train.replica];
    if (r->owner == b->worker->id && r->moments_step < m->first_step && !query_streams(b->job))
        m->moments_step = r->moments_step;
    if (b->job->spec.recipe.moments != JOB_MOMENTS_TRAVEL)
        return;
    m->send_moments = true;
    if (r->owner != b->worker->id)
        m->moments = message_blob_or_null(b, &r->moments);
}

/* The most steps that the samples allow: a tiny dataset does not fill the phase; rows of text are
 * filled by repeating it. */
static uint32_t steps_that_fit(const struct job *j, const struct task *t)
{
    uint64_t steps = (uint64_t)j->spec.outer.steps;
    uint64_t fit = query_held(t) / j->comp.paths[t->path].batch;
    if (!job_has_data(&j->spec))
        return (uint32_t)steps;
    if (steps > fit && !job_family(&j->spec)->packs)
        steps = fit > 0 ? fit : 1;
    return (uint32_t)steps;
}

/* Shards that the worker fetches while it computes this phase.  It is only likely that the next
 * phase comes to it, and takes as many samples. */
static void add_ahead(struct message *b, Skerry__V1__TrainTask *m)
{
    const struct job *j = b->job;
    const struct task *t = b->task;
    const struct composition_path *cp = &j->comp.paths[t->path];
    uint32_t shards[AHEAD_MAX];
    if (!job_has_data(&j->spec))
        return;
    if (t->train.round + 1 >= (uint64_t)j->spec.outer.rounds && !j->spec.outer.async)
        return;
    size_t n = ledger_ahead(j->ledgers[job_ledger(j, cp->partition)], query_held(t),
                            t->train.replica, cp->replicas, shards, AHEAD_MAX);
    m->ahead = message_need(b, n * sizeof(Skerry__V1__Blob *));
    for (size_t i = 0; i < n && !b->failed; i++) {
        bool now = false;
        for (size_t k = 0; k < t->n_ranges; k++)
            now |= t->ranges[k].shard == shards[i];
        if (!now && blob_ref_is_set(&j->shards[shards[i]].blob))
            m->ahead[m->n_ahead++] = message_blob(b, &j->shards[shards[i]].blob);
    }
}

/* Does the phase begin with a version that was gone back to?  What is left of those that were
 * undone, moments and residuals, is not for it. */
static bool is_restored(const struct job *j, const struct task *t)
{
    const struct module_rec *m = &j->modules[j->comp.paths[t->path].modules[0]];
    const struct version_rec *v = j->spec.outer.async ? NULL : module_version(m, t->train.round);
    return v != NULL && v->restored;
}

/* How often pictures come again, for a worker that may keep their latents. */
static void add_epoch(const struct message *b, Skerry__V1__TrainTask *m)
{
    const struct job *j = b->job;
    if (!job_has_latents(&j->spec))
        return;
    m->epoch_samples = shards_sum(j, j->comp.paths[m->path].partition, false).samples;
    m->replicas = query_replicas(&b->co->state, j, m->path);
}

static void train_message(struct message *b, Skerry__V1__Task *msg)
{
    const struct task *t = b->task;
    const struct job *teacher = state_job(&b->co->state, b->job->comp.teacher_job);
    Skerry__V1__TrainTask *m = message_new(b, &skerry__v1__train_task__descriptor);
    m->round = t->train.round;
    m->path = t->path;
    m->replica = t->train.replica;
    m->steps = steps_that_fit(b->job, t);
    m->seconds = b->task->train.phase_s;
    m->first_step = t->train.first_step;
    m->total_steps = total_steps(b->job, t);
    add_schedule(b->job, t, m);
    m->ranges = message_ranges(b, &m->n_ranges);
    m->epoch = t->n_ranges ? t->ranges[0].epoch : 0;
    m->batch = b->job->comp.paths[t->path].batch;
    add_epoch(b, m);
    if (teacher != NULL)
        m->teachers = message_experts(b, teacher, true, &m->n_teachers);
    add_moments(b, m);
    add_ahead(b, m);
    snapshot_message(b, m);
    m->fresh = t->train.fresh || is_restored(b->job, t);
    if (query_streams(b->job))
        add_fragments(b, m);
    msg->train = m;
    b->phase = true;
    message_networks(b, msg);
}

/* ---- report --------------------------------------------------------------- */

/* Does the contribution fit the task, with the number of samples in the report?  *ret_late: it
 * does, but comes too late to be folded. */
static int check_contribution(const struct state *s, const struct job *j, const struct task *t,
                              const Skerry__V1__Contribution *c, uint64_t counted, bool *ret_late,
                              struct err *err)
{
    const struct module_rec *m = job_module(j, c->module_id);
    bool async = j->spec.outer.async;
    if (m == NULL || !query_crosses(j, t->path, m))
        return err_set(err, -EINVAL, "module %llu is not on path %u",
                       (unsigned long long)c->module_id, t->path);
    if (c->base_version > m->version || (!async && c->base_version != t->train.round))
        return err_set(
            err, -ERR_STALE,
            "the contribution starts from version %llu of module %llu, which is at version %llu",
            (unsigned long long)c->base_version, (unsigned long long)c->module_id,
            (unsigned long long)m->version);
    if (c->samples > counted)
        return err_set(err, -EINVAL,
                       "the contribution counts %llu samples, but the report only %llu",
                       (unsigned long long)c->samples, (unsigned long long)counted);
    /* Whole values can only be compared with the version at which they began, which must still be
     * kept when all contributions that wait before them have become versions. */
    const uint64_t then = m->version + (async ? query_waiting(s, j, m) : 0);
    *ret_late = async ? j->spec.wire.up == CODEC_F32 && then - c->base_version >= m->kept
                      : m->version != c->base_version && !query_takes_late(j, m, c->base_version);
    return 0;
}

/* The task has given another worker's contribution to the module: what this one's has left is of
 * nothing that was sent. */
static void tell_unneeded(struct coordinator *co, const struct task *t, uint64_t module)
{
    member_verdict(co, t->worker_id,
                   &(struct verdict){.task_id = t->id,
                                     .module_id = module,
                                     .reason = "an earlier attempt has contributed already"});
}

/* Takes what the report brings and the task has not given yet: an attempt that begins
 * anew makes some contributions again. */
static int take_contributions(struct coordinator *co, struct job *j, struct task *t,
                              const Skerry__V1__ReportRequest *r, struct err *err)
{
    struct contribution made[CONTRIBUTIONS_MAX];
    const struct snapshot *s = t->train.snapshot;
    size_t n = 0;
    for (size_t i = 0; i < r->n_contributions; i++) {
        const Skerry__V1__Contribution *c = r->contributions[i];
        struct contribution *new = &made[n];
        bool late = false;
        int rc = check_contribution(&co->state, j, t, c, r->samples, &late, err);
        for (size_t k = 0; rc == 0 && k < i; k++)
            if (r->contributions[k]->module_id == c->module_id)
                rc = err_set(err, -EINVAL, "the report has two contributions to module %llu",
                             (unsigned long long)c->module_id);
        if (rc < 0)
            return rc;
        const struct contribution *had = query_contribution(t, c->module_id, c->base_version);
        if (had != NULL && had->worker_id != t->worker_id)
            tell_unneeded(co, t, c->module_id);
        if (had != NULL)
            continue;
        *new = (struct contribution){.module_id = c->module_id,
                                     .base_version = c->base_version,
                                     .refused = late,
                                     .samples = c->samples > 0 ? c->samples : r->samples,
                                     .resumed = s != NULL && s->worker_id != t->worker_id,
                                     .worker_id = t->worker_id};
        if ((rc = result_blob(co, c->blob, "the contribution", &new->blob, err)) < 0)
            return rc;
        n++;
    }
    struct worker *w = state_edit_worker(&co->state, state_worker(&co->state, t->worker_id));
    for (size_t i = 0; i < n; i++) {
        task_add_contribution(t, &made[i]);
        if (w != NULL)
            worker_drop_verdict(w, t->id, made[i].module_id);
        metrics_uploaded(co, j, t, &made[i]);
    }
    return 0;
}

/* With the report every module of the path must have a contribution of this phase, or do without.
 */
static int check_complete(const struct job *j, const struct task *t,
                          const Skerry__V1__ReportRequest *r, struct err *err)
{
    for (uint32_t l = 0; l < composition_levels(&j->comp, t->path); l++) {
        const struct module_rec *m = &j->modules[j->comp.paths[t->path].modules[l]];
        bool found = !j->spec.outer.async && m->version > t->train.round;
        for (size_t i = 0; i < t->train.n_contributions && !found; i++)
            found = t->train.contributions[i].module_id == m->id;
        for (size_t i = 0; i < r->n_contributions && !found; i++)
            found = r->contributions[i]->module_id == m->id;
        if (!found)
            return err_set(err, -EINVAL, "the report has no contribution to module %llu",
                           (unsigned long long)m->id);
    }
    return 0;
}

/* Notes how long the phase took, for the leases of others.  A continued phase does not count, as a
 * later attempt may be, nor one whose beginning we have not seen: short times would make all others
 * seem slow. */
static void note_took(struct coordinator *co, struct job *j, const struct task *t)
{
    struct worker *w = worker_memory(state_worker(&co->state, t->worker_id));
    const uint64_t ms = core_now(co) - t->leased_ms;
    if (t->older || t->attempt > 1)
        return;
    job_note_time(&j->phase_ms, ms);
    if (w == NULL)
        return;
    w->phase_ms = ms;
    w->phase_job = j->id;
}

/* The most samples that a phase may claim.  A trainer that reads its own data may claim as many as
 * the job asks for. */
static uint64_t most_samples(const struct job *j, const struct task *t)
{
    const uint64_t steps = j->spec.outer.steps > 0 ? (uint64_t)j->spec.outer.steps : UINT32_MAX;
    return job_has_data(&j->spec) ? query_held(t) : steps * j->comp.paths[t->path].batch;
}

/* Without rounds a phase of which nothing is folded is not repeated, and its samples go back. */
static uint64_t samples_of(struct coordinator *co, const struct job *j, const struct task *t,
                           uint64_t samples)
{
    bool lost = j->spec.outer.async;
    for (size_t i = 0; i < t->train.n_contributions; i++)
        lost &= t->train.contributions[i].refused;
    if (!lost)
        return samples;
    core_say(co, j->id, t->worker_id,
             "task %llu came too late: the version that it began with is not kept any more; its "
             "samples are trained again",
             (unsigned long long)t->id);
    return 0;
}

/* Our own training makes all steps of a phase.  A user's trainer may have too little data of its
 * own; it weighs by its samples, as do phases bounded by time. */
static int check_steps(const struct job *j, const struct task *t,
                       const Skerry__V1__ReportRequest *r, struct err *err)
{
    const uint32_t asked = steps_that_fit(j, t);
    if (job_family(&j->spec)->external || r->steps >= asked)
        return 0;
    return err_set(err, -EINVAL, "the phase made only %u of its %u steps", r->steps, asked);
}

static int train_apply(struct coordinator *co, struct job *j, struct task *t,
                       const Skerry__V1__ReportRequest *r, struct err *err)
{
    uint64_t held = most_samples(j, t);
    if (r->snapshot && r->saved != NULL)
        return snapshot_take(co, j, t, r->saved, held, err);
    if (r->snapshot && !query_streams(j))
        return err_set(err, -EINVAL, "only a phase in fragments contributes before its end");
    if (r->n_contributions > CONTRIBUTIONS_MAX)
        return err_set(err, -EINVAL, "the report has %zu contributions, at most %d are possible",
                       r->n_contributions, CONTRIBUTIONS_MAX);
    if (r->samples == 0 || r->samples > held)
        return err_set(err, -EINVAL, "the phase counts %llu samples, expected 1 to %llu",
                       (unsigned long long)r->samples, (unsigned long long)held);
    struct blob_ref moments = t->train.moments;
    int rc = r->snapshot ? 0 : check_steps(j, t, r, err);
    if (rc == 0 && !r->snapshot)
        rc = check_complete(j, t, r, err);
    if (rc == 0 && r->moments != NULL && j->spec.recipe.moments == JOB_MOMENTS_TRAVEL)
        rc = result_blob(co, r->moments, "the file of moments", &moments, err);
    if (rc == 0) /* the last one that may refuse: what it takes stays */
        rc = take_contributions(co, j, t, r, err);
    if (rc < 0)
        return rc;
    t->train.moments = moments;
    t->train.waited_ms = r->waited_ms < WAITED_MS_MAX ? r->waited_ms : WAITED_MS_MAX;
    t->train.steps_ms = r->steps_ms;
    metrics_points(
        co, j, t,
        &(struct metrics_heard){r->points, r->n_points, r->number_names, r->n_number_names});
    if (!r->snapshot) {
        note_took(co, j, t);
        spot_check_consider(co, j, t);
        task_settle(co, t, samples_of(co, j, t, r->samples));
    }
    return 0;
}

/* ---- versions while it runs ----------------------------------------------- */

/* The worker knows better than we do which version it holds. */
static void note_held(struct worker *w, uint64_t module, uint64_t version)
{
    unsigned kept = 0;
    for (unsigned i = 0; i < w->n_held; i++)
        if (w->held[i].module_id != module)
            w->held[kept++] = w->held[i];
    w->n_held = kept;
    if (version == NO_VERSION || kept == sizeof(w->held) / sizeof(w->held[0]))
        return;
    w->held[kept].module_id = module;
    w->held[kept].version = version;
    w->n_held++;
}

static void send_version(struct coordinator *co, struct poll *p, const struct task *t,
                         struct worker *w, const struct module_rec *m)
{
    Skerry__V1__VersionReply reply = SKERRY__V1__VERSION_REPLY__INIT;
    const struct job *j = state_job(&co->state, t->job_id);
    struct pbmem mem;
    struct err err = {0};
    pbmem_init(&mem, MESSAGE_BYTES_MAX);
    note_held(w, m->id, p->held);
    if (message_module(co, j, t, w, m, &mem, &reply.module, &err) < 0)
        rpc_fail(p->req, err.code, true, 1000, "%s", err.msg);
    else
        rpc_reply(p->req, &reply.base);
    pbmem_release(&mem);
}

static bool answer_version(struct coordinator *co, struct poll *p, bool last)
{
    Skerry__V1__VersionReply reply = SKERRY__V1__VERSION_REPLY__INIT;
    char why[REASON_MAX];
    const struct task *t = poll_task(co, p);
    struct worker *w = worker_memory(state_worker(&co->state, p->worker_id));
    struct job *j = t ? state_job(&co->state, t->job_id) : NULL;
    const struct module_rec *m = j ? job_module(j, p->module_id) : NULL;
    if (m == NULL || w == NULL) {
        rpc_fail(p->req, -ERR_NOTFOUND, false, 0, "there is no such module");
        return true;
    }
    /* Who has contributed and waits for the others is not stuck. */
    if (m->version < p->version && query_given(t, m) != NULL)
        task_memory(t)->progress_ms = core_now(co);
    if (m->version >= p->version) {
        send_version(co, p, t, w, m);
        return true;
    }
    reply.later = !rounds_coming(&co->state, j, m, core_now(co));
    if (!reply.later && !last)
        return false;
    (void)snprintf(why, sizeof(why), "module %llu is at version %llu: %.200s",
                   (unsigned long long)m->id, (unsigned long long)m->version, m->outer_reason);
    reply.waiting_for = why;
    rpc_reply(p->req, &reply.base);
    return true;
}

int train_version(struct coordinator *co, struct worker *w, struct rpc_request *req,
                  const Skerry__V1__VersionRequest *m, struct err *err)
{
    const struct task *t = state_task(&co->state, m->task_id);
    struct job *j = t ? state_job(&co->state, t->job_id) : NULL;
    const struct module_rec *module = j ? job_module(j, m->module_id) : NULL;
    if (module == NULL || t->kind != TASK_TRAIN || !query_crosses(j, t->path, module))
        return err_set(err, -EINVAL, "module %llu is not on the path of task %llu",
                       (unsigned long long)m->module_id, (unsigned long long)m->task_id);
    struct poll *p = poll_add(co, req, m->wait_ms, answer_version);
    p->worker_id = w->id;
    p->task_id = m->task_id;
    p->attempt = m->attempt;
    p->module_id = m->module_id;
    p->version = m->version;
    p->held = m->held;
    poll_replace(co, p);
    return 0;
}

/* The replica's last worker has its moments and error feedback. */
static uint64_t train_owner(const struct job *j, const struct task *t)
{
    return j->paths[t->path].replicas[t->train.replica].owner;
}

const struct kind kind_train = {
    .message = train_message, .apply = train_apply, .owner = train_owner, .in_parts = true};
