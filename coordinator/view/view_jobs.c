/* The jobs' side of view.h. */
#include "common/base/base.h"
#include "coordinator/decide/lease.h"
#include "coordinator/state/blobs.h"
#include "coordinator/state/core.h"
#include "coordinator/view/view.h"
#include "coordinator/work/query.h"
#include "coordinator/work/shards.h"

#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/job/family.h"

static int need_job(struct coordinator *co, uint64_t id, struct job **ret, struct err *err)
{
    *ret = state_job(&co->state, id);
    if (*ret == NULL)
        return err_set(err, -ERR_NOTFOUND, "job %llu does not exist", (unsigned long long)id);
    return 0;
}

static uint64_t path_params(const struct job *j, uint32_t path)
{
    uint64_t n = 0;
    for (uint32_t l = 0; l < composition_levels(&j->comp, path); l++)
        n += j->modules[j->comp.paths[path].modules[l]].params;
    return n;
}

/* Steps of a replica, the running phase included. */
static uint64_t replica_steps(struct coordinator *co, const struct replica_rec *rr)
{
    const struct task *t = rr->task_id ? state_task(&co->state, rr->task_id) : NULL;
    return rr->step + (t ? t->steps_done : 0);
}

/* Skipped steps of all phases, those of rounds that are not over included. */
static uint64_t skipped_now(struct coordinator *co, const struct job *j)
{
    uint64_t n = j->steps_skipped;
    for (uint32_t p = 0; p < j->comp.n_paths; p++)
        for (uint32_t r = 0; r < j->comp.paths[p].replicas; r++) {
            const uint64_t id = j->paths[p].replicas[r].task_id;
            const struct task *t = id ? state_task(&co->state, id) : NULL;
            n += t ? t->skipped : 0;
        }
    return n;
}

/* Those of the slowest path. */
static uint64_t steps_now(struct coordinator *co, const struct job *j)
{
    uint64_t slowest = UINT64_MAX;
    for (uint32_t p = 0; p < j->comp.n_paths; p++) {
        uint64_t done = 0;
        for (uint32_t r = 0; r < j->comp.paths[p].replicas; r++) {
            const uint64_t n = replica_steps(co, &j->paths[p].replicas[r]);
            done = n > done ? n : done;
        }
        slowest = done < slowest ? done : slowest;
    }
    return slowest == UINT64_MAX ? 0 : slowest;
}

static double images_per_s(const struct coordinator *co, const struct job *j)
{
    double sum = 0;
    for (uint32_t p = 0; p < j->comp.n_paths; p++)
        for (uint32_t r = 0; r < j->comp.paths[p].replicas; r++)
            sum += query_speed(&co->state, query_phase(&co->state, j, p, r));
    return sum;
}

/* In the first round, by the steps of all: few workers may train many paths one after another. */
static int64_t first_eta_ms(struct coordinator *co, const struct job *j)
{
    double done = 0, all = 0;
    for (uint32_t p = 0; p < j->comp.n_paths; p++) {
        all += query_replicas(&co->state, j, p);
        for (uint32_t r = 0; r < j->comp.paths[p].replicas; r++)
            done += (double)replica_steps(co, &j->paths[p].replicas[r]);
    }
    all *= (double)j->spec.outer.steps * j->spec.outer.rounds;
    if (!j->paths[0].ready || done <= 0 || all < done)
        return -1;
    return (int64_t)((double)query_round_ms(&j->paths[0], core_now(co)) * (all - done) / done);
}

/* By the median of the last rounds, of which one may have been paused or stalled, minus the time of
 * the running one. */
static int64_t eta_ms(struct coordinator *co, const struct job *j, uint32_t done)
{
    uint64_t ms[8];
    size_t n = 0;
    if (job_is_ended(j) || query_withheld(&co->state, j) != NULL)
        return -1;
    if (j->n_rounds == 0)
        return first_eta_ms(co, j);
    for (size_t i = j->n_rounds; i-- > 0 && n < 8; n++)
        ms[n] = j->rounds[i].seconds > 0 ? (uint64_t)((double)j->rounds[i].seconds * 1e3) : 0;
    const double median = (double)lease_median(ms, n);
    double left = median * (j->spec.outer.rounds - (double)done);
    if (j->paths[0].ready) {
        const double in_round = (double)query_round_ms(&j->paths[0], core_now(co));
        left -= in_round < median ? in_round : median;
    }
    return left > 0 ? (int64_t)left : 0;
}

/* Bytes per parameter and replica of the newest round that has them. */
static void wire_figures(const struct job *j, struct view_job *v)
{
    v->per_param_up = v->per_param_down = v->ratio = NAN;
    if (v->params == 0)
        return;
    for (size_t i = j->n_rounds; i-- > 0;) {
        const struct round_rec *r = &j->rounds[i];
        double per = (double)path_params(j, r->path) * r->expected;
        if (r->bytes_up == 0 || per == 0)
            continue;
        v->per_param_up = (double)r->bytes_up / per;
        v->per_param_down = r->bytes_down ? (double)r->bytes_down / per : (double)NAN;
        break;
    }
    if (j->steps_done > 0)
        v->ratio = (double)(j->bytes_up + j->bytes_down) /
                   (8.0 * (double)v->params * (double)j->steps_done);
}

static void fill_grid(struct coordinator *co, const struct job *j, struct view_job *v)
{
    query_progress(&co->state, j, &v->stage_done, &v->stage_total);
    v->text = job_is_text(&j->spec);
    v->mixture = j->comp.mixture;
    v->eval_bits_per_byte = view_job_bits_per_byte(j);
    for (size_t i = 0; i < j->n_encoders; i++)
        if (j->encoders[i].part == ENCODER_COMPANIONS)
            v->companions = &j->encoders[i].blob;
    v->reshards = j->comp.partitioned ? (uint32_t)j->spec.recipe.reshard.n : 0;
    uint64_t spent = j->waited_ms + j->trained_ms;
    v->waited_share = spent ? (double)j->waited_ms / (double)spent : NAN;
}

static void fill_dataset(const struct job *j, struct view_job *v)
{
    v->shards = (uint32_t)shards_cut(j);
    for (size_t i = 0; i < v->shards; i++) {
        v->samples_total += j->shards[i].samples;
        if (j->shards[i].holdout)
            v->samples_holdout += j->shards[i].samples;
    }
}

static void fill_job(struct coordinator *co, const struct job *j, struct view_job *v)
{
    const int64_t end = j->ended_unix_ms ? j->ended_unix_ms : (int64_t)clock_wall_ms();
    memset(v, 0, sizeof(*v));
    v->job = j;
    v->id = j->id;
    v->name = j->spec.name;
    v->state = job_state_name(j->state);
    v->reason = j->reason;
    (void)query_stalled(&co->state, j, v->stalled);
    v->paused = j->paused && !job_is_ended(j);
    v->elapsed_ms =
        j->started_unix_ms && end > j->started_unix_ms ? (uint64_t)(end - j->started_unix_ms) : 0;
    v->round = query_rounds_done(j);
    v->rounds = j->unread ? 0 : (uint32_t)j->spec.outer.rounds;
    v->step = steps_now(co, j);
    v->skipped = skipped_now(co, j);
    v->total_steps = (uint64_t)j->spec.outer.steps * v->rounds;
    v->loss = (double)j->loss;
    v->eval_loss = (double)j->eval_loss;
    v->images_per_s = images_per_s(co, j);
    v->eta_ms = eta_ms(co, j, v->round);
    v->paths = j->comp.n_paths;
    v->replicas = query_replicas(&co->state, j, 0);
    v->params = path_params(j, 0);
    v->bytes_up = j->bytes_up;
    v->bytes_down = j->bytes_down;
    v->data_bytes_down = j->shard_bytes_down;
    v->bad_samples = j->bad_count;
    v->dollars = j->cost.work + j->cost.waiting;
    v->egress = j->cost.egress;
    wire_figures(j, v);
    fill_dataset(j, v);
    fill_grid(co, j, v);
}

void view_each_job(struct coordinator *co, view_job_fn fn, void *arg)
{
    struct view_job v;
    for (size_t i = 0; i < co->state.n_jobs; i++) {
        fill_job(co, co->state.jobs[i], &v);
        fn(arg, &v);
    }
}

const struct job *view_job_record(struct coordinator *co, uint64_t job_id)
{
    return state_job(&co->state, job_id);
}

int view_job(struct coordinator *co, uint64_t job_id, struct view_job *ret, struct err *err)
{
    struct job *j;
    int rc = need_job(co, job_id, &j, err);
    if (rc == 0)
        fill_job(co, j, ret);
    return rc;
}

/* Of a mean sample of a text job; NAN: of images, or not known yet. */
static double tokens_of_sample(const struct job *j)
{
    double samples = 0, tokens = 0;
    for (size_t i = 0; i < j->n_shards; i++) {
        samples += j->shards[i].holdout ? 0 : j->shards[i].samples;
        tokens += j->shards[i].holdout ? 0 : (double)j->shards[i].tokens;
    }
    return tokens > 0 ? tokens / samples : (double)NAN;
}

int view_job_cost(struct coordinator *co, uint64_t job_id, struct view_cost *ret, struct err *err)
{
    struct job *j;
    int rc = need_job(co, job_id, &j, err);
    if (rc < 0)
        return rc;
    const int64_t eta = eta_ms(co, j, query_rounds_done(j));
    *ret = (struct view_cost){.egress = j->cost.egress, .quota = &j->quota};
    cost_of(co, j, &ret->time);
    ret->total = ret->time.work + ret->time.waiting + ret->egress;
    ret->per_million = j->samples_done ? ret->total / (double)j->samples_done * 1e6 : (double)NAN;
    ret->per_million_tokens = ret->per_million / tokens_of_sample(j);
    ret->until_end =
        eta < 0 || ret->time.workers == 0 ? (double)NAN : (double)eta / 3.6e6 * ret->time.per_hour;
    return 0;
}

static const char *replica_state(const struct task *t)
{
    if (t == NULL)
        return "idle";
    return t->state == TASK_LEASED ? "leased" : t->state == TASK_PENDING ? "pending" : "reported";
}

/* Who had the phase and is gone, unless another worker has ended it since; NULL: nobody. */
static const struct worker *gone_from(const struct coordinator *co, const struct task *t)
{
    const struct worker *w = t != NULL ? state_worker(&co->state, t->gone) : NULL;
    const bool counts = t != NULL && (task_is_open(t) || t->worker_id == t->gone);
    return w != NULL && w->state != WORKER_HERE && counts ? w : NULL;
}

void view_each_replica(struct coordinator *co, uint64_t job_id, view_replica_fn fn, void *arg)
{
    const struct job *j = state_job(&co->state, job_id);
    for (uint32_t p = 0; j != NULL && p < j->comp.n_paths; p++)
        for (uint32_t r = 0; r < j->comp.paths[p].replicas; r++) {
            const struct replica_rec *rr = &j->paths[p].replicas[r];
            if (query_rests(&co->state, j, p, r))
                continue;
            uint32_t last = (uint32_t)j->spec.outer.rounds - 1, round = j->paths[p].round;
            const struct task *t = rr->task_id ? state_task(&co->state, rr->task_id) : NULL;
            uint64_t id = t ? t->worker_id : rr->owner;
            const struct worker *w = id ? state_worker(&co->state, id) : NULL;
            const struct worker *gone = gone_from(co, t);
            const struct view_replica v = {
                .path = p,
                .replica = r,
                .round = round < last ? round : last,
                .state = replica_state(t),
                .task_id = rr->task_id,
                .worker_id = id,
                .worker_name = w ? w->name : "",
                .step = rr->step + (t ? t->steps_done : 0),
                .steps_done = t ? t->steps_done : 0,
                .steps_total = t && t->steps_total ? t->steps_total : (uint32_t)j->spec.outer.steps,
                .loss = (double)rr->loss,
                .images_per_s = query_speed(&co->state, t),
                .gone_id = gone ? gone->id : 0,
                .gone_name = gone ? gone->name : "",
                .gone_state = gone && gone->state == WORKER_LOST ? "lost" : "left",
            };
            fn(arg, &v);
        }
}

#define EPOCHS_SHOWN 8 /* per partition: the last closed ones, and the open ones */

void view_each_epoch(struct coordinator *co, uint64_t job_id, view_epoch_fn fn, void *arg)
{
    const struct job *j = state_job(&co->state, job_id);
    for (uint32_t p = 0; j != NULL && p < job_ledgers(j); p++) {
        const uint32_t partition =
            j->comp.partitioned && p < j->comp.n_partitions ? p : PARTITION_ALL;
        const struct ledger *l = j->ledgers[p];
        if (l == NULL)
            continue;
        uint32_t open = ledger_open(l), end = ledger_first_open(l) + (open ? open : 1);
        for (uint32_t e = end > EPOCHS_SHOWN ? end - EPOCHS_SHOWN : 0; e < end; e++) {
            struct ledger_epoch f;
            ledger_figures(l, e, &f);
            fn(arg, &(struct view_epoch){partition, e, f.total, f.done, f.leased, f.pending});
        }
    }
}

int view_metrics(struct coordinator *co, uint64_t job_id, uint64_t after, size_t limit,
                 metric_fn fn, void *arg, struct err *err)
{
    struct job *j;
    int rc = need_job(co, job_id, &j, err);
    return rc < 0 ? rc : persist_metrics(co->store, job_id, after, limit, fn, arg, err);
}

int view_trace(struct coordinator *co, uint64_t job_id, struct view_trace *ret, struct err *err)
{
    struct job *j;
    int rc = need_job(co, job_id, &j, err);
    if (rc < 0)
        return rc;
    if (!j->trace.text)
        return err_set(err, -ERR_NOTFOUND,
                       "job %" PRIu64 " has no trace: none of its phases on a worker of several "
                       "devices has ended since the coordinator started",
                       job_id);
    const struct worker *w = state_worker(&co->state, j->trace.worker_id);
    *ret = (struct view_trace){&j->trace, w ? w->name : ""};
    return 0;
}

/* ---- modules ------------------------------------------------------------- */

static const char *outer_state(const struct coordinator *co, const struct job *j,
                               const struct module_rec *m)
{
    if (m->outer_task != 0)
        return "running";
    if (m->retry_ms > core_now(co))
        return "retrying";
    bool over =
        j->spec.outer.async ? query_finished(j) : m->version >= (uint64_t)j->spec.outer.rounds;
    return j->state == JOB_RUNNING && !over ? "waiting" : "idle";
}

void view_each_module(struct coordinator *co, uint64_t job_id, view_module_fn fn, void *arg)
{
    for (size_t i = 0; i < co->state.n_jobs; i++) {
        const struct job *j = co->state.jobs[i];
        if (job_id != 0 && j->id != job_id)
            continue;
        for (uint32_t n = 0; n < j->comp.n_modules; n++) {
            const struct module_rec *m = &j->modules[n];
            const unsigned told = module_told(m);
            const struct version_rec *newest = told ? &m->versions[told - 1] : NULL;
            const struct view_module v = {
                .id = m->id,
                .job_id = j->id,
                .level = m->level,
                .index = m->index,
                .version = newest ? newest->version : 0,
                .params = m->params,
                .sha256 = newest ? newest->full.sha256 : NULL,
                .outer_state = outer_state(co, j, m),
                .outer_reason = m->outer_reason,
                .folded = m->folded,
                .staleness = m->folded ? (double)m->stale_sum / (double)m->folded : NAN,
                .staleness_max = m->stale_max,
                .bytes_from_others = m->bytes_from_others,
                .network = m->network ? "router" : "main",
                .paths = j->comp.modules[n].paths,
                .fragment = j->comp.networks[m->network].levels[m->level].fragment,
            };
            fn(arg, &v);
        }
    }
}

void view_each_version(struct coordinator *co, uint64_t module_id, view_version_fn fn, void *arg)
{
    struct job *j = NULL;
    const struct module_rec *m = state_module(&co->state, module_id, &j);
    for (unsigned i = 0; m != NULL && i < module_told(m); i++) {
        struct version_rec v = m->versions[i];
        if (!blob_full_stays(j, m, v.version))
            v.full = (struct blob_ref){0};
        if (!blob_ema_stays(j, m, v.version))
            v.ema = (struct blob_ref){0};
        fn(arg, &v);
    }
}
