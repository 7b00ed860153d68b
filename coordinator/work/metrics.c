#include "coordinator/work/metrics.h"

#include "coordinator/work/cost.h"
#include "coordinator/work/query.h"

#include "common/base/clock.h"
#include "common/job/family.h"
#include "proto/skerry.pb-c.h"

#define POINTS_MAX 1024u  /* see ReportRequest.points */
#define POINTS_A_BEAT 256 /* see Progress.points */
#define POINTS_AHEAD 4    /* heartbeats whose points may come at once */

/* The job's loss: the mean of its replicas' newest; a router's is of another kind. */
static void refresh_loss(struct job *j)
{
    double sum = 0;
    unsigned n = 0;
    for (uint32_t p = 0; p < j->comp.n_paths; p++)
        for (uint32_t r = 0; r < j->comp.paths[p].replicas; r++)
            if (j->comp.paths[p].network == 0 && !isnan(j->paths[p].replicas[r].loss)) {
                sum += (double)j->paths[p].replicas[r].loss;
                n++;
            }
    if (n > 0)
        j->loss = (float)(sum / n);
}

/* Held-out loss of the whole job: the newest of every main path, weighted by their units. */
static void refresh_eval(struct job *j)
{
    double sum = 0, units = 0;
    for (uint32_t p = 0; p < j->comp.n_paths; p++)
        if (j->comp.paths[p].network == 0 && !isnan(j->paths[p].eval.loss)) {
            sum += j->paths[p].eval.loss_sum;
            units += (double)j->paths[p].eval.units;
        }
    if (units > 0)
        j->eval_loss = (float)(sum / units);
}

static void add_metric(struct coordinator *co, struct job *j, struct metric_rec *m)
{
    m->n = ++j->metric_n;
    m->at_unix_ms = (int64_t)clock_wall_ms();
    save_metric(co->store, j, m);
}

/* Finds the job's entry for each of the names that the task's worker has sent; NULL: it keeps none.
 * A job without a trainer has no such numbers, whoever says so. */
static size_t find_numbers(struct coordinator *co, struct job *j, const struct task *t,
                           const struct metrics_heard *heard,
                           struct metric_number *out[METRIC_NUMBERS_MAX])
{
    const size_t names = job_family(&j->spec)->external ? heard->n_names : 0;
    const struct worker *w = state_worker(&co->state, t->worker_id);
    size_t n = 0;
    for (; n < names && n < METRIC_NUMBERS_MAX; n++) {
        out[n] = job_number(j, heard->names[n], w != NULL ? worker_origin(w) : 0);
        if (out[n] != NULL || j->numbers_refused)
            continue;
        j->numbers_refused = true;
        core_say(co, j->id, t->worker_id,
                 "the number '%.80s' of the trainer at worker %llu is left out, as a name has 1 to "
                 "%d of A-Z a-z 0-9 . _ - and a job at most %d names; so are further ones",
                 heard->names[n], (unsigned long long)t->worker_id, METRIC_NAME_MAX - 1,
                 JOB_NUMBERS_MAX);
    }
    for (size_t i = 0; i < n; i++) /* one may have made room for a later one */
        if (out[i] != NULL && strcmp(out[i]->name, heard->names[i]) != 0)
            out[i] = NULL;
    return n;
}

/* Takes the finite values; where `newest` each becomes the newest of its name. */
static size_t take_numbers(struct metric_number *const *kept, size_t n, const double *values,
                           size_t n_values, bool held_out, bool newest, struct metric_number *out)
{
    size_t taken = 0;
    for (size_t i = 0; i < n && i < n_values; i++)
        if (kept[i] != NULL && isfinite(values[i])) {
            if (newest)
                *(held_out ? &kept[i]->held_out : &kept[i]->value) = values[i];
            out[taken] = *kept[i];
            out[taken++].value = values[i];
        }
    return taken;
}

/* Is there room for the points?  A worker may send as many as full heartbeats have, and some at
 * once: one that sends without end would have the store write nothing else. */
static bool points_fit(struct coordinator *co, struct worker *w, size_t n)
{
    const uint64_t now = core_now(co), beat = co->opt.heartbeat_ms;
    if (w == NULL)
        return true;
    if (w->points_ms > now + POINTS_AHEAD * beat)
        return false;
    if (w->points_ms < now)
        w->points_ms = now;
    w->points_ms += (n * beat + POINTS_A_BEAT - 1) / POINTS_A_BEAT;
    return true;
}

/* The points at the end of the list that its worker has not told before.  It tells again what was
 * not answered, and when it goes on where it was cut it makes some steps again. */
static size_t fresh_points(struct task *t, Skerry__V1__LossPoint *const *points, size_t n)
{
    size_t fresh = n;
    if (t->points.worker_id != t->worker_id) {
        t->points.worker_id = t->worker_id;
        t->points.next = 0;
    }
    while (fresh > 0 && points[n - fresh]->step < t->points.next)
        fresh--;
    if (fresh > 0)
        t->points.next = points[n - 1]->step + 1;
    return fresh;
}

void metrics_points(struct coordinator *co, struct job *j, struct task *t,
                    const struct metrics_heard *heard)
{
    struct metric_number *kept[METRIC_NUMBERS_MAX], numbers[METRIC_NUMBERS_MAX];
    struct metric_rec m = {.kind = METRIC_LOSS,
                           .path = t->path,
                           .replica = t->train.replica,
                           .round = t->train.round,
                           .numbers = numbers};
    const size_t n_kept = find_numbers(co, j, t, heard, kept);
    const size_t all = heard->n < POINTS_MAX ? heard->n : POINTS_MAX;
    const size_t n = fresh_points(t, heard->points, all);
    size_t taken = 0;
    if (n == 0 || !points_fit(co, worker_memory(state_worker(&co->state, t->worker_id)), n))
        return;
    Skerry__V1__LossPoint *const *points = heard->points + (all - n);
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(points[i]->loss) || !isfinite(points[i]->lr))
            continue;
        m.step = points[i]->step;
        m.loss = (double)points[i]->loss;
        m.lr = (double)points[i]->lr;
        m.n_numbers = take_numbers(kept, n_kept, points[i]->numbers, points[i]->n_numbers, false,
                                   true, numbers);
        add_metric(co, j, &m);
        job_replica_memory(j, t->path, t->train.replica)->loss = points[i]->loss;
        taken++;
        core_event(co, &(struct event){.kind = EVENT_LOSS,
                                       .job_id = j->id,
                                       .worker_id = t->worker_id,
                                       .task_id = t->id,
                                       .metric = &m,
                                       .text = ""});
    }
    if (taken == 0)
        return;
    core_points(co);
    j->loss_changed = true;
    uint64_t quarter = METRIC_POINTS_MAX / 4, before = j->metric_points / quarter;
    j->metric_points += taken;
    if (j->metric_points / quarter != before)
        save_points_thinned(co->store, j);
}

void metrics_turn(struct coordinator *co)
{
    for (size_t i = 0; i < co->state.n_jobs; i++) {
        struct job *j = co->state.jobs[i];
        if (j->loss_changed)
            refresh_loss(j);
        j->loss_changed = false;
    }
}

/* Inner steps of a replica of the path after this version: the average, or if the number of
 * replicas varies, the steps of a replica that has done all phases. */
static uint64_t step_after(const struct job *j, uint32_t path, uint64_t version)
{
    const uint32_t n = j->comp.paths[path].replicas;
    double sum = 0, most = 0;
    for (uint32_t r = 0; r < n; r++) {
        const double step = (double)j->paths[path].replicas[r].step;
        most = step > most ? step : most;
        sum += step / n;
    }
    double step = j->comp.elastic ? most : sum;
    for (size_t i = j->n_rounds; i-- > 0;) {
        const struct round_rec *r = &j->rounds[i];
        if (r->path == path && r->round + 1 > version && r->contributions > 0)
            step -= (double)r->steps / r->contributions;
    }
    return step > 0 && version > 0 ? (uint64_t)(step + 0.5) : 0;
}

void metrics_eval(struct coordinator *co, struct job *j, const struct task *t,
                  const struct metrics_heard *heard)
{
    struct metric_number *kept[METRIC_NUMBERS_MAX], numbers[METRIC_NUMBERS_MAX];
    const size_t n_kept = find_numbers(co, j, t, heard, kept);
    struct metric_rec m = {.kind = METRIC_EVAL,
                           .path = t->path,
                           .round = t->draw.version,
                           .step = step_after(j, t->path, t->draw.version),
                           .loss = (double)t->loss_mean,
                           .lr = NAN,
                           .numbers = numbers};
    /* A newer version may have been evaluated before this one. */
    m.n_numbers = take_numbers(kept, n_kept, heard->numbers, heard->n_numbers, true,
                               t->draw.version >= j->paths[t->path].eval.round, numbers);
    refresh_eval(j);
    add_metric(co, j, &m);
    /* Round r made version r + 1, which was evaluated. */
    for (size_t i = j->n_rounds; i-- > 0;) {
        const struct round_rec *r = &j->rounds[i];
        if (r->path != t->path || r->round + 1 != t->draw.version)
            continue;
        struct round_rec *edit = job_edit_round(j, i);
        edit->eval_loss = t->loss_mean;
        edit->eval_by = t->worker_id;
        edit->eval_sure = false;
        break;
    }
    core_event(
        co, &(struct event){.kind = EVENT_JOB, .job_id = j->id, .metric = &m, .text = "evaluated"});
}

void metrics_round(struct coordinator *co, struct job *j, const struct round_rec *r)
{
    job_add_round(j, r);
    struct metric_rec m = {.kind = METRIC_ROUND,
                           .path = r->path,
                           .round = r->round,
                           .step = step_after(j, r->path, r->round + 1u),
                           .loss = (double)r->loss,
                           .lr = NAN,
                           .seconds = (double)r->seconds,
                           .samples = r->samples,
                           .bytes_up = r->bytes_up,
                           .bytes_down = r->bytes_down};
    add_metric(co, j, &m);
    save_rounds_thinned(co->store, j, r->round + 1);
    char text[160], loss[STR_HUMAN_MAX];
    (void)snprintf(text, sizeof(text), "round %u of path %u: %u of %u contributions, loss %s",
                   r->round + 1, r->path, r->contributions, r->expected,
                   str_human_loss((double)r->loss, loss));
    core_event(co, &(struct event){.kind = EVENT_ROUND, .job_id = j->id, .round = r, .text = text});
}

/* ---- bytes --------------------------------------------------------------- */

static bool same(const struct blob_ref *b, const struct blob_id *id)
{
    return b->size != 0 && memcmp(b->sha256, id->sha256, 32) == 0;
}

/* Counts bytes that replicas exchanged, in the present second. */
static void count_second(struct coordinator *co, struct job *j, uint64_t bytes)
{
    uint64_t second = core_now(co) / 1000;
    j->second_bytes = second == j->second ? j->second_bytes + bytes : bytes;
    j->second = second;
    if (j->second_bytes > j->peak_bytes)
        j->peak_bytes = j->second_bytes;
}

/* Shares bytes among the paths that cross the module. */
static void share_bytes(struct job *j, const struct module_rec *m, uint64_t bytes)
{
    uint32_t n = j->comp.modules[m - j->modules].paths;
    for (uint32_t p = 0; p < j->comp.n_paths && n > 0; p++)
        if (query_crosses(j, p, m)) {
            const uint64_t share = bytes / n--;
            job_edit_path(j, p)->bytes_down += share;
            bytes -= share;
        }
}

void metrics_delta(struct coordinator *co, struct job *j, const struct module_rec *m,
                   uint64_t bytes)
{
    j->bytes_down += bytes;
    count_second(co, j, bytes);
    share_bytes(j, m, bytes);
}

/* Down: served bytes of the modules' full files, averages and deltas count for the running
 * round of the paths that cross them; shards count separately. */
static bool served_module(struct coordinator *co, struct job *j, const struct blob_id *id,
                          uint64_t bytes)
{
    for (uint32_t i = 0; i < j->comp.n_modules; i++) {
        const struct module_rec *m = &j->modules[i];
        for (unsigned v = m->n_versions; v-- > 0;) {
            if (same(&m->versions[v].delta, id)) {
                metrics_delta(co, j, m, bytes);
                return true;
            }
            const bool full = same(&m->versions[v].full, id);
            if (!full && !same(&m->versions[v].ema, id))
                continue;
            j->bytes_down += bytes; /* not of a second: full files go to workers that join */
            if (!full)              /* averages go to those that evaluate, whatever the round */
                return true;
            share_bytes(j, m, bytes);
            return true;
        }
    }
    return false;
}

static bool served_shard(struct job *j, const struct blob_id *id, uint64_t bytes)
{
    for (size_t i = 0; i < j->n_shards; i++)
        if (same(&j->shards[i].blob, id)) {
            j->shard_bytes_down += bytes;
            return true;
        }
    return false;
}

static bool is_counted(struct coordinator *co, struct job *j, const struct blob_id *id,
                       uint64_t bytes)
{
    return !job_is_ended(j) && (served_module(co, j, id, bytes) || served_shard(j, id, bytes));
}

void metrics_served(struct coordinator *co, const struct worker *w, const struct blob_id *id,
                    uint64_t bytes, bool near)
{
    struct job *payer = w != NULL ? cost_payer(co, w) : NULL;
    bool counted = payer != NULL && is_counted(co, payer, id, bytes);
    for (size_t i = co->state.n_jobs; !counted && i-- > 0;) {
        struct job *j = co->state.jobs[i];
        counted = is_counted(co, j, id, bytes);
        payer = counted ? j : payer;
    }
    if (payer != NULL && !near)
        cost_egress(co, payer, bytes);
}

/* Is it a contribution to the module from another path than the first that crosses it? */
static bool from_another(const struct job *j, const struct module_rec *m, uint32_t path)
{
    uint32_t first = 0;
    while (first < j->comp.n_paths && !query_crosses(j, first, m))
        first++;
    return first != path;
}

/* Up: the whole file of a reported contribution. */
void metrics_uploaded(struct coordinator *co, struct job *j, const struct task *t,
                      const struct contribution *c)
{
    struct module_rec *m = job_edit_module(j, job_module(j, c->module_id));
    uint64_t bytes = c->blob.size;
    count_second(co, j, bytes);
    j->bytes_up += bytes;
    job_edit_path(j, t->path)->bytes_up += bytes;
    if (m != NULL && from_another(j, m, t->path))
        m->bytes_from_others += bytes;
}

void metrics_saved(struct job *j, const struct snapshot *s)
{
    for (size_t i = 0; i < s->n; i++)
        j->bytes_up += s->modules[i].blob.size;
}
