#include "coordinator/kinds/snapshot.h"

#include "common/job/family.h"
#include "coordinator/kinds/result.h"
#include "coordinator/work/metrics.h"
#include "coordinator/work/query.h"
#include "coordinator/work/tasks.h"

/* Does the job want snapshots?  Fragments contribute within their phases instead. */
static bool is_wanted(const struct job *j)
{
    return j->spec.outer.snapshot != 0 && !query_streams(j);
}

/* ---- report --------------------------------------------------------------- */

/* Can it be the phase's base?  That is the version of its round; without rounds any kept version.
 */
static bool is_base(const struct job *j, const struct task *t, const struct module_rec *m,
                    uint64_t base)
{
    return j->spec.outer.async ? module_version(m, base) != NULL : base == t->train.round;
}

static int take_module(struct coordinator *co, const struct job *j, const struct task *t,
                       uint32_t level, const Skerry__V1__Contribution *c,
                       struct snapshot_module *ret, struct err *err)
{
    const struct module_rec *m = &j->modules[j->comp.paths[t->path].modules[level]];
    if (c->module_id != m->id)
        return err_set(err, -EINVAL, "level %u of the snapshot is module %llu, expected %llu",
                       level, (unsigned long long)c->module_id, (unsigned long long)m->id);
    if (!is_base(j, t, m, c->base_version))
        return err_set(
            err, -ERR_STALE,
            "the snapshot starts from version %llu of module %llu, expected the phase's own",
            (unsigned long long)c->base_version, (unsigned long long)c->module_id);
    ret->module_id = c->module_id;
    ret->base_version = c->base_version;
    return result_blob(co, c->blob, "the snapshot", &ret->blob, err);
}

/* A step takes at least one of the samples that the phase may count: the schedule goes on from how
 * many there were.  A phase bounded by time uses each of them once; another one may repeat few. */
static int check_cursor(const struct job *j, const Skerry__V1__Snapshot *m, uint64_t held,
                        struct err *err)
{
    const uint64_t most = j->spec.outer.steps > 0 ? (uint64_t)j->spec.outer.steps : held;
    const bool once = j->spec.outer.steps == 0 && job_has_data(&j->spec);
    if (once && (m->samples > held || m->position > held))
        return err_set(err, -EINVAL,
                       "the snapshot is at sample %llu and counts %llu, of %llu in the phase",
                       (unsigned long long)m->position, (unsigned long long)m->samples,
                       (unsigned long long)held);
    if (m->steps == 0 || m->steps > most || m->skipped > m->steps || m->skipped_row > m->skipped ||
        m->samples == 0 || !isfinite(m->loss_sum) || !isfinite(m->loss_first) ||
        !isfinite(m->loss_last) || !(m->seconds >= 0 && m->seconds < RESULT_SECONDS_MAX))
        return err_set(err, -EINVAL,
                       "the snapshot counts %u steps, %llu samples, %g s: out of range", m->steps,
                       (unsigned long long)m->samples, (double)m->seconds);
    return 0;
}

int snapshot_take(struct coordinator *co, struct job *j, struct task *t,
                  const Skerry__V1__Snapshot *m, uint64_t held, struct err *err)
{
    const uint32_t levels = composition_levels(&j->comp, t->path);
    if (!is_wanted(j))
        return err_set(err, -EINVAL, "snapshots of this job's phases are not wanted");
    int rc = check_cursor(j, m, held, err);
    if (rc == 0 && m->n_modules != levels)
        rc = err_set(err, -EINVAL, "the snapshot has %zu modules, expected %u", m->n_modules,
                     levels);
    const struct snapshot *had = t->train.snapshot;
    if (rc < 0 || (had != NULL && had->steps >= m->steps))
        return rc;
    struct snapshot *s = snapshot_new(levels);
    for (uint32_t l = 0; l < levels && rc == 0; l++)
        rc = take_module(co, j, t, l, m->modules[l], &s->modules[l], err);
    if (rc < 0) {
        mem_free(s);
        return rc;
    }
    s->worker_id = t->worker_id;
    s->steps = m->steps;
    s->samples = m->samples;
    s->position = m->position;
    s->used = m->used < query_held(t) ? m->used : query_held(t);
    s->loss_sum = m->loss_sum;
    s->loss_first = (double)m->loss_first;
    s->loss_last = (double)m->loss_last;
    s->skipped = m->skipped;
    s->skipped_row = m->skipped_row;
    s->seconds = (double)m->seconds;
    metrics_saved(j, s);
    task_keep_snapshot(co, t, s);
    return 0;
}

/* ---- message -------------------------------------------------------------- */

static Skerry__V1__Contribution *module_of(struct message *b, const struct snapshot_module *m)
{
    Skerry__V1__Contribution *c = message_new(b, &skerry__v1__contribution__descriptor);
    c->module_id = m->module_id;
    c->base_version = m->base_version;
    c->blob = message_blob(b, &m->blob);
    return c;
}

/* Of the task's path. */
static uint64_t parameters(const struct message *b)
{
    const struct composition_path *p = &b->job->comp.paths[b->task->path];
    uint64_t n = 0;
    for (uint32_t l = 0; l < composition_levels(&b->job->comp, b->task->path); l++)
        n += b->job->modules[p->modules[l]].params;
    return n;
}

void snapshot_message(struct message *b, Skerry__V1__TrainTask *m)
{
    const struct snapshot *s = b->task->train.snapshot;
    if (!is_wanted(b->job))
        return;
    const double ms = job_snapshot_s(&b->job->spec, parameters(b)) * 1e3;
    m->snapshot_ms = (uint32_t)fmin(fmax(ms, 1), UINT32_MAX);
    if (s == NULL)
        return;
    Skerry__V1__Snapshot *r = message_new(b, &skerry__v1__snapshot__descriptor);
    r->modules = message_need(b, s->n * sizeof(*r->modules));
    for (size_t i = 0; i < s->n && !b->failed; i++)
        r->modules[r->n_modules++] = module_of(b, &s->modules[i]);
    r->steps = s->steps;
    r->samples = s->samples;
    r->position = s->position;
    r->loss_sum = s->loss_sum;
    r->loss_first = (float)s->loss_first;
    r->loss_last = (float)s->loss_last;
    r->skipped = s->skipped;
    r->skipped_row = s->skipped_row;
    r->seconds = (float)s->seconds;
    m->resume = r;
}
