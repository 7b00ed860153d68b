#include "coordinator/core.h"
#include "coordinator/outer_exec.h"
#include "coordinator/quorum.h"

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/hash.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/str.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define RETRY_MS 1000u
#define RETRY_MAX_MS 60000u
#define PROVENANCE_MAX (256u << 10)

/* ---- reading the composition --------------------------------------------- */

bool path_crosses(const struct job *j, uint32_t path, const struct module_rec *m)
{
    for (uint32_t l = 0; l < composition_levels(&j->comp, path); l++)
        if (&j->modules[j->comp.paths[path].modules[l]] == m)
            return true;
    return false;
}

bool rounds_finished(const struct job *j)
{
    for (uint32_t p = 0; p < j->comp.n_paths; p++)
        if (j->paths[p].round < (uint32_t)j->spec.outer.rounds)
            return false;
    return true;
}

static struct contribution *contribution_to(const struct task *t, uint64_t module, uint64_t base)
{
    for (size_t i = 0; i < t->n_contributions; i++)
        if (t->contributions[i].module_id == module && t->contributions[i].base_version == base)
            return &t->contributions[i];
    return NULL;
}

void rounds_count(struct coordinator *co, const struct job *j, const struct module_rec *m,
                  struct outer_count *ret)
{
    *ret = (struct outer_count){0};
    for (uint32_t p = 0; p < j->comp.n_paths; p++) {
        const struct path_rec *path = &j->paths[p];
        if (!path_crosses(j, p, m) || path->round > m->version)
            continue;
        for (uint32_t r = 0; r < j->comp.paths[p].replicas; r++) {
            ret->expected++;
            uint64_t id = path->replicas[r].task_id;
            const struct task *t = path->ready && id ? state_task(&co->state, id) : NULL;
            if (t == NULL)
                continue;
            const struct contribution *c = contribution_to(t, m->id, m->version);
            ret->arrived += t->state == TASK_DONE && c != NULL && !c->refused;
            ret->leased += t->state == TASK_LEASED;
        }
    }
}

/* ---- phases -------------------------------------------------------------- */

static bool modules_at(const struct job *j, uint32_t p, uint64_t version)
{
    for (uint32_t l = 0; l < composition_levels(&j->comp, p); l++)
        if (j->modules[j->comp.paths[p].modules[l]].version < version)
            return false;
    return true;
}

/* Makes the tasks of the path's phase, in the order of replicas: the samples
 * they get depend on nothing else. */
static void make_phase(struct coordinator *co, struct job *j, uint32_t p)
{
    struct path_rec *path = &j->paths[p];
    uint32_t k = j->comp.paths[p].replicas;
    if (co->state.n_open + k > TASKS_OPEN_MAX)
        return;
    for (uint32_t r = 0; r < k; r++) {
        struct task *t = task_make(co, j, TASK_TRAIN);
        t->path = p;
        t->replica = r;
        t->round = path->round;
        t->first_step = path->replicas[r].step;
        path->replicas[r].task_id = t->id;
        if (!task_take_samples(co, j, t)) {
            flow_end(co, j, JOB_FAILED, "no samples are left for replica %u of path %u", r, p);
            return;
        }
        save_task(co->store, t);
    }
    path->ready = true;
    path->ready_ms = core_now(co);
    path->ready_unix_ms = (int64_t)clock_wall_ms();
    path->bytes_up = path->bytes_down = 0;
    for (uint32_t l = 0; l < composition_levels(&j->comp, p); l++) {
        struct module_rec *m = &j->modules[j->comp.paths[p].modules[l]];
        if (m->version == path->round)
            m->quorum_ms = 0;
    }
    save_path(co->store, j, p);
    core_touch(co);
}

/* Verdict on a phase: all its contributions are in their modules, or why not. */
static bool accepted(const struct task *t, char reason[REASON_MAX])
{
    (void)str_copy(reason, REASON_MAX, t->reason);
    for (size_t i = 0; i < t->n_contributions; i++)
        if (t->contributions[i].refused)
            return false;
    reason[0] = '\0';
    return true;
}

static void sum_task(struct round_rec *rec, const struct task *t, double *loss, double *weight)
{
    rec->contributions++;
    rec->samples += t->samples;
    rec->steps += t->steps;
    if (!isnan(t->loss_mean)) {
        *loss += (double)t->loss_mean * (double)t->samples;
        *weight += (double)t->samples;
    }
}

/* Samples of a whole phase: one that was bounded by time may have run out of
 * them before. */
static uint64_t full_phase(const struct job *j, const struct task *t)
{
    double budget = j->spec.outer.seconds, took = (double)t->seconds;
    if (budget <= 0 || took <= 0.01 || took >= budget)
        return t->samples;
    double full = (double)t->samples * budget / took;
    return full < 1e9 ? (uint64_t)full : 1000000000;
}

/* Tells every replica what became of its phase and what it adds up to. */
static void settle_replicas(struct coordinator *co, struct job *j, uint32_t p,
                            struct round_rec *rec)
{
    double loss = 0, weight = 0;
    char reason[REASON_MAX];
    for (uint32_t r = 0; r < j->comp.paths[p].replicas; r++) {
        struct replica_rec *rr = &j->paths[p].replicas[r];
        struct task *t = rr->task_id ? state_task(&co->state, rr->task_id) : NULL;
        rr->task_id = 0;
        if (t == NULL)
            continue;
        rec->expected++;
        if (t->state != TASK_DONE) {
            (void)snprintf(reason, sizeof(reason), "round %u of path %u was closed without it",
                           rec->round, p);
            rr->step = t->first_step + (uint64_t)j->spec.outer.steps; /* the schedule goes on */
            task_end(co, t, TASK_CANCELLED, reason);
            continue;
        }
        bool ok = accepted(t, reason);
        member_verdict(co, t->worker_id, t->id, ok, reason);
        rr->owner = t->worker_id;
        rr->samples_last = full_phase(j, t);
        rr->step = t->first_step + t->steps;
        if (ok)
            sum_task(rec, t, &loss, &weight);
    }
    rec->loss = weight > 0 ? (float)(loss / weight) : NAN;
}

static void close_round(struct coordinator *co, struct job *j, uint32_t p)
{
    struct path_rec *path = &j->paths[p];
    struct round_rec rec = {
        .path = p,
        .round = path->round,
        .eval_loss = NAN,
        .seconds = path->ready_ms ? (float)(core_now(co) - path->ready_ms) / 1e3f
                                  : (float)((int64_t)clock_wall_ms() - path->ready_unix_ms) / 1e3f,
        .bytes_up = path->bytes_up,
        .bytes_down = path->bytes_down,
        .at_unix_ms = (int64_t)clock_wall_ms(),
    };
    settle_replicas(co, j, p, &rec);
    j->steps_done += rec.steps;
    j->phases_done += rec.contributions;
    path->round++;
    path->ready = false;
    save_path(co->store, j, p);
    metrics_round(co, j, &rec);
    tasks_prune(co, j);
    uint32_t rounds = (uint32_t)j->spec.outer.rounds, done = path->round;
    int eval = j->spec.eval.every, sample = j->spec.sample.every;
    if (done < rounds && eval > 0 && done % (uint32_t)eval == 0)
        (void)flow_make_eval(co, j, p, done);
    if (done < rounds && sample > 0 && done % (uint32_t)sample == 0)
        (void)flow_make_sample(co, j, p, done, NULL);
}

/* ---- outer steps --------------------------------------------------------- */

struct outer_run {
    struct coordinator *co;
    uint64_t job_id, module_id, task_id;
    uint32_t expected;
};

static void step_done(struct outer_step *step);

static struct outer_blob to_outer(const struct blob_ref *b)
{
    struct outer_blob o = {.bytes = b->size};
    memcpy(o.sha256, b->sha256, 32);
    return o;
}

static struct blob_ref from_outer(const struct outer_blob *o)
{
    struct blob_ref b = {.size = o->bytes};
    memcpy(b.sha256, o->sha256, 32);
    return b;
}

/* Contributions in order of (path, replica): the sum does not depend on when
 * they came. */
static void gather(struct coordinator *co, const struct job *j, const struct module_rec *m,
                   struct outer_step *step, uint32_t room)
{
    step->contributions = mem_alloc_array(room ? room : 1, sizeof(*step->contributions));
    for (uint32_t p = 0; p < j->comp.n_paths; p++) {
        if (!path_crosses(j, p, m) || !j->paths[p].ready)
            continue;
        for (uint32_t r = 0; r < j->comp.paths[p].replicas; r++) {
            uint64_t id = j->paths[p].replicas[r].task_id;
            const struct task *t = id ? state_task(&co->state, id) : NULL;
            if (t == NULL || t->state != TASK_DONE || step->n_contributions == room)
                continue;
            const struct contribution *c = contribution_to(t, m->id, m->version);
            if (c == NULL || c->refused)
                continue;
            struct outer_contribution *oc = &step->contributions[step->n_contributions++];
            oc->tag = t->id;
            oc->blob = to_outer(&c->blob);
            oc->samples = t->samples;
            oc->weight = (double)t->samples;
        }
    }
}

static struct outer_step *make_step(struct coordinator *co, const struct job *j,
                                    const struct module_rec *m, const struct outer_count *count)
{
    const struct version_rec *v = module_version(m, m->version);
    struct outer_step *s = mem_alloc(sizeof(*s));
    s->job_id = j->id;
    s->module_id = m->id;
    s->base = s->from = m->version;
    s->state_dir = str_printf("%s/outer/%llu/%llu", co->opt.data_dir, (unsigned long long)j->id,
                              (unsigned long long)m->id);
    s->full = to_outer(&v->full);
    s->ema = to_outer(&v->ema);
    s->up = (enum codec)j->spec.wire.up;
    s->down = (enum codec)j->spec.wire.down;
    s->lr = j->spec.outer.lr;
    s->momentum = j->spec.outer.momentum;
    s->scale = 1;
    s->ema_decay = j->spec.outer.ema;
    s->min_accepted = quorum_need(count->expected, j->spec.outer.quorum);
    gather(co, j, m, s, count->arrived);
    return s;
}

static void outer_failed(struct coordinator *co, struct job *j, struct module_rec *m,
                         const char *why)
{
    uint64_t wait = (uint64_t)RETRY_MS << (m->outer_failures < 6 ? m->outer_failures : 6);
    m->outer_failures++;
    m->retry_ms = core_now(co) + (wait < RETRY_MAX_MS ? wait : RETRY_MAX_MS);
    (void)snprintf(m->outer_reason, sizeof(m->outer_reason), "the outer step failed: %.200s", why);
    core_say(co, j->id, 0, "outer step of module %llu to version %llu failed, nothing changed: %s",
             (unsigned long long)m->id, (unsigned long long)m->version + 1, why);
}

static void fire(struct coordinator *co, struct job *j, struct module_rec *m,
                 const struct outer_count *count)
{
    struct err err = {0};
    struct task *t = task_make(co, j, TASK_OUTER);
    if (t == NULL)
        return;
    t->module_id = m->id;
    t->round = (uint32_t)m->version;
    t->leased_ms = core_now(co);
    state_set_task_state(&co->state, t, TASK_LEASED);
    struct outer_step *step = make_step(co, j, m, count);
    struct outer_run *run = mem_alloc(sizeof(*run));
    *run = (struct outer_run){co, j->id, m->id, t->id, count->expected};
    step->arg = run;
    save_task(co->store, t);
    if (outer_submit(co->outer, step, step_done, &err) < 0) {
        task_end(co, t, TASK_FAILED, err.msg);
        outer_failed(co, j, m, err.msg);
        outer_step_release(step);
        mem_free(step);
        mem_free(run);
        return;
    }
    m->outer_task = t->id;
    log_info("outer", "module %llu of job %llu: step to version %llu with %zu contributions: %s",
             (unsigned long long)m->id, (unsigned long long)j->id,
             (unsigned long long)m->version + 1, step->n_contributions, m->outer_reason);
}

static void consider_outer(struct coordinator *co, struct job *j, struct module_rec *m)
{
    struct outer_count count;
    struct quorum_decision d;
    if (m->outer_task != 0 || m->n_versions == 0 || m->version >= (uint64_t)j->spec.outer.rounds)
        return;
    rounds_count(co, j, m, &count);
    struct quorum_in in = {
        .now_ms = core_now(co),
        .expected = count.expected,
        .arrived = count.arrived,
        .leased = count.leased,
        .fraction = j->spec.outer.quorum,
        .grace_ms = (uint64_t)(j->spec.outer.grace * 1e3),
        .quorum_ms = m->quorum_ms,
        .retry_ms = m->retry_ms,
    };
    quorum_decide(&in, &d);
    if (d.quorum && m->quorum_ms == 0)
        m->quorum_ms = in.now_ms;
    else if (!d.quorum)
        m->quorum_ms = 0;
    (void)str_copy(m->outer_reason, sizeof(m->outer_reason), d.reason);
    if (d.fire)
        fire(co, j, m, &count);
}

void rounds_advance(struct coordinator *co, struct job *j)
{
    for (uint32_t i = 0; i < j->comp.n_modules; i++)
        consider_outer(co, j, &j->modules[i]);
    for (uint32_t p = 0; p < j->comp.n_paths && j->state == JOB_RUNNING; p++) {
        struct path_rec *path = &j->paths[p];
        if (path->ready && modules_at(j, p, (uint64_t)path->round + 1))
            close_round(co, j, p);
        if (!path->ready && path->round < (uint32_t)j->spec.outer.rounds &&
            modules_at(j, p, path->round))
            make_phase(co, j, p);
    }
}

/* ---- results ------------------------------------------------------------- */

/* What went into a version that is no longer kept may go as well. */
static void drop_contributions(struct coordinator *co, const struct job *j,
                               const struct module_rec *m)
{
    for (size_t i = 0; i < co->state.n_tasks; i++) {
        const struct task *t = co->state.tasks[i];
        for (size_t c = 0; t->job_id == j->id && c < t->n_contributions; c++)
            if (t->contributions[c].module_id == m->id && module_lets_go(m, &t->contributions[c]))
                core_garbage(co, &t->contributions[c].blob);
    }
}

void module_adopt(struct coordinator *co, struct job *j, struct module_rec *m,
                  const struct version_rec *v)
{
    if (m->n_versions == m->kept) {
        struct version_rec *old = &m->versions[0];
        core_garbage(co, &old->full);
        core_garbage(co, &old->delta);
        core_garbage(co, &old->ema);
        mem_free(old->provenance);
        memmove(&m->versions[0], &m->versions[1], (m->kept - 1) * sizeof(*m->versions));
        m->n_versions--;
    }
    m->versions[m->n_versions++] = *v;
    m->version = v->version;
    m->quorum_ms = m->retry_ms = 0;
    m->outer_failures = 0;
    drop_contributions(co, j, m);
    save_version(co->store, m, v);
    save_module(co->store, j, m);
    core_touch(co);
}

static void put_blob(struct buf *b, const char *name, const struct outer_blob *o)
{
    char hex[HASH_HEX_MAX];
    (void)buf_printf(b, "\"%s\":{\"sha256\":\"%s\",\"size\":%llu}", name,
                     hash_hex(o->sha256, 32, hex), (unsigned long long)o->bytes);
}

/* Everything that is needed to make the version again. */
static char *provenance(const struct coordinator *co, const struct outer_step *s)
{
    struct buf b;
    size_t len;
    buf_init(&b, PROVENANCE_MAX);
    (void)buf_printf(&b, "{\"base\":%llu,", (unsigned long long)s->base);
    put_blob(&b, "base_full", &s->full);
    (void)buf_append_str(&b, ",");
    put_blob(&b, "full", &s->new_full);
    (void)buf_append_str(&b, ",");
    put_blob(&b, "delta", &s->new_delta);
    (void)buf_append_str(&b, ",");
    put_blob(&b, "ema", &s->new_ema);
    (void)buf_printf(&b,
                     ",\"lr\":%.17g,\"momentum\":%.17g,\"ema_decay\":%.17g,\"up\":\"%s\","
                     "\"down\":\"%s\",\"delta_norm\":%.9g,\"step_norm\":%.9g,"
                     "\"residual_norm\":%.9g,\"elapsed_ms\":%llu,\"contributions\":[",
                     s->lr, s->momentum, s->used_ema_decay, job_codec_name((int)s->up),
                     job_codec_name((int)s->down), s->delta_norm, s->step_norm, s->residual_norm,
                     (unsigned long long)s->elapsed_ms);
    for (size_t i = 0; i < s->n_contributions; i++) {
        const struct outer_contribution *c = &s->contributions[i];
        const struct task *t = state_task(&co->state, c->tag);
        char hex[HASH_HEX_MAX];
        (void)buf_printf(&b,
                         "%s{\"task\":%llu,\"worker\":%llu,\"path\":%u,\"replica\":%u,"
                         "\"sha256\":\"%s\",\"size\":%llu,\"samples\":%llu,\"weight\":%.17g,"
                         "\"share\":%.17g,\"norm\":%.9g,\"refused\":%s}",
                         i ? "," : "", (unsigned long long)c->tag,
                         (unsigned long long)(t ? t->worker_id : 0), t ? t->path : 0,
                         t ? t->replica : 0, hash_hex(c->blob.sha256, 32, hex),
                         (unsigned long long)c->blob.bytes, (unsigned long long)c->samples,
                         c->weight, c->share, c->norm, c->refused ? "true" : "false");
    }
    (void)buf_append_str(&b, "]}");
    return (char *)buf_take(&b, &len);
}

/* Notes what the check refused; its worker gets a strike. */
static void note_refused(struct coordinator *co, const struct outer_step *step)
{
    for (size_t i = 0; i < step->n_contributions; i++) {
        const struct outer_contribution *oc = &step->contributions[i];
        struct task *t = oc->refused ? state_task(&co->state, oc->tag) : NULL;
        for (size_t c = 0; t != NULL && c < t->n_contributions; c++)
            if (t->contributions[c].module_id == step->module_id)
                t->contributions[c].refused = true;
        if (t == NULL)
            continue;
        (void)snprintf(t->reason, sizeof(t->reason), "contribution refused: %.200s", oc->reason);
        save_task(co->store, t);
        core_say(co, t->job_id, t->worker_id, "task %llu of worker %llu: %s",
                 (unsigned long long)t->id, (unsigned long long)t->worker_id, t->reason);
        struct worker *w = state_worker(&co->state, t->worker_id);
        if (w != NULL)
            member_failed(co, w);
    }
}

static bool folded(const struct outer_step *step, uint64_t task_id)
{
    for (size_t i = 0; i < step->n_contributions; i++)
        if (step->contributions[i].tag == task_id)
            return true;
    return false;
}

/* What was reported while the step ran (after the grace) is not in the version:
 * its sender must not take it for applied. */
static void note_late(struct coordinator *co, const struct job *j, const struct module_rec *m,
                      const struct outer_step *step)
{
    for (uint32_t p = 0; p < j->comp.n_paths; p++)
        for (uint32_t r = 0; path_crosses(j, p, m) && r < j->comp.paths[p].replicas; r++) {
            uint64_t id = j->paths[p].replicas[r].task_id;
            struct task *t = id ? state_task(&co->state, id) : NULL;
            if (t == NULL || t->state != TASK_DONE || folded(step, t->id))
                continue;
            struct contribution *c = contribution_to(t, m->id, step->base);
            if (c == NULL || c->refused)
                continue;
            c->refused = true;
            (void)snprintf(t->reason, sizeof(t->reason), "it came after round %u was closed",
                           t->round + 1);
            save_task(co->store, t);
        }
}

/* Too few good ones: the refused phases are done again, by somebody. */
static void redo_refused(struct coordinator *co, struct job *j, const struct outer_step *step)
{
    for (size_t i = 0; i < step->n_contributions; i++) {
        const struct outer_contribution *oc = &step->contributions[i];
        struct task *t = oc->refused ? state_task(&co->state, oc->tag) : NULL;
        if (t == NULL || t->state != TASK_DONE || job_is_ended(j))
            continue;
        member_verdict(co, t->worker_id, t->id, false, t->reason);
        for (size_t c = 0; c < t->n_contributions; c++)
            core_garbage(co, &t->contributions[c].blob);
        t->n_contributions = 0;
        if (!task_take_samples(co, j, t)) {
            flow_end(co, j, JOB_FAILED, "no samples are left to repeat task %llu",
                     (unsigned long long)t->id);
            return;
        }
        task_failed(co, t, true, t->reason);
    }
}

static void adopt_step(struct coordinator *co, struct job *j, struct module_rec *m,
                       const struct outer_step *step)
{
    struct version_rec v = {
        .version = step->base + 1,
        .full = from_outer(&step->new_full),
        .delta = from_outer(&step->new_delta),
        .ema = from_outer(&step->new_ema),
        .provenance = provenance(co, step),
        .at_unix_ms = (int64_t)clock_wall_ms(),
    };
    if (step->params > 0)
        m->params = step->params;
    module_adopt(co, j, m, &v);
    log_info("outer",
             "module %llu of job %llu is at version %llu after %llu ms, %u contributions, "
             "norm %.4g",
             (unsigned long long)m->id, (unsigned long long)j->id, (unsigned long long)v.version,
             (unsigned long long)step->elapsed_ms, step->accepted, step->delta_norm);
}

struct prune_arg {
    char *dir;
    uint64_t keep;
};

static int prune_work(void *arg)
{
    struct prune_arg *a = arg;
    return outer_state_prune(a->dir, a->keep, NULL);
}

static void prune_free(void *arg, int rc)
{
    struct prune_arg *a = arg;
    mem_free(a->dir);
    mem_free(a);
}

struct prune_later {
    struct coordinator *co;
    struct prune_arg *arg;
};

/* The old state goes after the new version is on record, never before. */
static void prune_state(void *arg, int rc)
{
    struct prune_later *p = arg;
    if (rc < 0 || pool_submit(p->co->disk, prune_work, prune_free, p->arg) < 0)
        prune_free(p->arg, 0); /* the next step's pruning takes these files too */
    mem_free(p);
}

static void prune_when_durable(struct coordinator *co, const struct outer_step *step)
{
    struct prune_later *p = mem_alloc(sizeof(*p));
    p->co = co;
    p->arg = mem_alloc(sizeof(*p->arg));
    p->arg->dir = str_dup(step->state_dir);
    p->arg->keep = step->base + 1;
    view_when_durable(co, prune_state, p);
}

static void apply_step(struct coordinator *co, struct job *j, struct module_rec *m,
                       struct outer_step *step)
{
    /* A fault of ours says nothing about the contributions: they are looked at again. */
    if (step->rc == 0 || step->rc == -ERR_LIMIT)
        note_refused(co, step);
    if (step->rc == 0) {
        note_late(co, j, m, step);
        adopt_step(co, j, m, step);
        prune_when_durable(co, step);
        return;
    }
    outer_failed(co, j, m, step->reason);
    if (step->rc == -ERR_LIMIT && step->accepted < step->n_contributions) {
        m->retry_ms = 0; /* new contributions decide, not time */
        redo_refused(co, j, step);
    }
}

static void step_done(struct outer_step *step)
{
    struct outer_run *run = step->arg;
    struct coordinator *co = run->co;
    struct job *j = state_job(&co->state, run->job_id);
    struct module_rec *m = j ? job_module(j, run->module_id) : NULL;
    struct task *t = state_task(&co->state, run->task_id);
    if (m != NULL && m->outer_task == run->task_id)
        m->outer_task = 0;
    if (t != NULL && task_is_open(t))
        task_end(co, t, step->rc == 0 ? TASK_DONE : TASK_FAILED, step->reason);
    if (m != NULL && !co->closing && !job_is_ended(j) && step->rc != -ERR_CANCELLED &&
        m->version == step->base)
        apply_step(co, j, m, step);
    if (j != NULL && !co->closing && job_is_ended(j))
        flow_clean_up(co, j); /* it could not while the step ran */
    outer_step_release(step);
    mem_free(step);
    mem_free(run);
    core_touch(co);
}
