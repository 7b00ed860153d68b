#include "coordinator/work/query.h"

#include "coordinator/decide/schedule.h"
#include "coordinator/work/cost.h"
#include "coordinator/work/shards.h"

#include "common/base/clock.h"
#include "common/job/family.h"

#define SPLIT_GROUP_MAX 64    /* most shards that one SPLIT task reads */
#define SPLIT_SHARDS_MAX 4096 /* and writes, as ReportRequest.shards */

/* ---- the composition ----------------------------------------------------- */

uint32_t query_main_paths(const struct job *j)
{
    uint32_t n = 0;
    while (n < j->comp.n_paths && j->comp.paths[n].network == 0)
        n++;
    return n;
}

uint32_t query_network(const struct job *j, const struct task *t)
{
    if (task_is_mixture(t))
        return COMPOSITION_NETWORKS + task_is_remote(t);
    return t->path < j->comp.n_paths ? j->comp.paths[t->path].network : 0;
}

bool query_has_text(const struct job *j)
{
    return job_is_text(&j->spec) && (job_family(&j->spec)->external ||
                                     j->vocab <= JOB_VOCAB_BYTES || blob_ref_is_set(&j->tokenizer));
}

bool query_can(const struct job *j, const char *what)
{
    char name[ROW_NAME_MAX];
    (void)snprintf(name, sizeof(name), "trainer %s", what);
    for (size_t i = 0; i < j->n_rows; i++)
        if (j->rows[i].kind == TASK_INIT && strcmp(j->rows[i].name, name) == 0)
            return j->rows[i].value != 0;
    return !job_family(&j->spec)->external;
}

static bool needs_trainers(const struct job *j, enum task_kind kind)
{
    const bool computes =
        kind == TASK_INIT || kind == TASK_TRAIN || kind == TASK_EVAL || kind == TASK_SAMPLE;
    return computes && job_family(&j->spec)->external;
}

bool query_needs_trainers(const struct job *j, const struct task *t)
{
    return needs_trainers(j, t->kind);
}

int query_reads(const struct job *j)
{
    const bool experts = j->comp.router_path >= 0 || j->comp.teacher_job != 0;
    return job_has_upscaler(&j->spec) && experts ? SKERRY__V1__READS__READS_CASCADE_EXPERTS
                                                 : SKERRY__V1__READS__READS_UNSPECIFIED;
}

bool query_is_able(const struct job *j, enum task_kind kind, const struct worker *w)
{
    return (w->allows_trainers || !needs_trainers(j, kind)) && w->reads >= query_reads(j);
}

bool query_is_small(const struct job *j, enum task_kind kind, uint32_t network,
                    const struct worker *w, uint64_t now_ms)
{
    const struct schedule_task like = {.job_id = j->id, .kind = (int)kind, .network = network};
    const unsigned n = w->n_small < WORKER_SMALL_MAX ? w->n_small : WORKER_SMALL_MAX;
    return schedule_small_until(now_ms, &like, w->small, n) != 0;
}

bool query_fits(const struct job *j, enum task_kind kind, uint32_t network, const struct worker *w,
                uint64_t now_ms)
{
    return query_is_able(j, kind, w) && !query_is_small(j, kind, network, w, now_ms);
}

bool query_could_have(const struct job *j, const struct task *t, const struct worker *w,
                      uint64_t now_ms)
{
    return w->task_id == 0 && !worker_goes(w) && w->quarantined_until_ms <= now_ms &&
           failure_until(&t->failed, w->id, worker_standing(w)) <= now_ms &&
           query_fits(j, t->kind, query_network(j, t), w, now_ms);
}

bool query_crosses(const struct job *j, uint32_t path, const struct module_rec *m)
{
    for (uint32_t l = 0; l < composition_levels(&j->comp, path); l++)
        if (&j->modules[j->comp.paths[path].modules[l]] == m)
            return true;
    return false;
}

uint32_t query_replicas_through(const struct job *j, const struct module_rec *m)
{
    uint32_t n = 0;
    for (uint32_t p = 0; p < j->comp.n_paths; p++)
        n += query_crosses(j, p, m) ? j->comp.paths[p].replicas : 0;
    return n;
}

bool query_share_module(const struct job *j, uint32_t p, uint32_t q)
{
    for (uint32_t l = 0; l < composition_levels(&j->comp, p); l++)
        if (query_crosses(j, q, &j->modules[j->comp.paths[p].modules[l]]))
            return true;
    return false;
}

bool query_streams(const struct job *j)
{
    return job_streams(&j->spec);
}

/* ---- progress ------------------------------------------------------------ */

size_t query_open_tasks(const struct state *s, const struct job *j, enum task_kind kind)
{
    size_t n = 0;
    for (size_t i = 0; i < s->n_tasks; i++) {
        const struct task *t = s->tasks[i];
        n += t->job_id == j->id && task_is_open(t) && t->kind == kind;
    }
    return n;
}

static uint32_t split_groups(const struct job *j)
{
    size_t n = shards_cut(j);
    uint32_t groups = 0;
    for (size_t i = 0; i < n; i += j->shards[i].router ? 1 : query_split_group(j, i, n))
        groups += !j->shards[i].router;
    return groups;
}

void query_progress(const struct state *s, const struct job *j, uint32_t *ret_done,
                    uint32_t *ret_total)
{
    enum task_kind kind = TASK_UNSPECIFIED;
    size_t total = 0;
    if (j->state == JOB_INGESTING) {
        kind = TASK_INGEST;
        total = j->spec.data.url.n;
    } else if (j->state == JOB_ENCODING) {
        kind = TASK_ENCODE;
        total = j->n_shards;
    } else if (j->state == JOB_FEATURES) {
        kind = TASK_FEATURE;
        total = shards_cut(j);
    } else if (j->state == JOB_SCORING) {
        kind = TASK_SCORE;
        total = j->n_scores + query_open_tasks(s, j, TASK_SCORE);
    } else if (j->state == JOB_CLUSTERING) {
        kind = TASK_CLUSTER;
        total = 1;
    } else if (j->state == JOB_SPLITTING) {
        kind = TASK_SPLIT;
        total = split_groups(j);
    }
    size_t open = kind != TASK_UNSPECIFIED ? query_open_tasks(s, j, kind) : 0;
    *ret_total = (uint32_t)total;
    *ret_done = (uint32_t)(total > open ? total - open : 0);
}

bool query_initialised(const struct job *j)
{
    for (uint32_t i = 0; i < j->comp.n_modules; i++)
        if (j->modules[i].n_versions == 0)
            return false;
    return true;
}

bool query_modules_at(const struct job *j, uint32_t path, uint64_t version)
{
    for (uint32_t l = 0; l < composition_levels(&j->comp, path); l++) {
        const struct module_rec *m = &j->modules[j->comp.paths[path].modules[l]];
        if (m->n_versions == 0 || m->version < version)
            return false;
    }
    return true;
}

uint64_t query_path_version(const struct job *j, uint32_t path)
{
    uint64_t newest = UINT64_MAX;
    for (uint32_t l = 0; l < composition_levels(&j->comp, path); l++) {
        const struct module_rec *m = &j->modules[j->comp.paths[path].modules[l]];
        newest = m->version < newest ? m->version : newest;
    }
    return newest;
}

bool query_leaves_behind(const struct job *j, const struct module_rec *m)
{
    for (uint32_t p = 0; p < j->comp.n_paths && !query_streams(j); p++)
        if (query_crosses(j, p, m) && j->paths[p].round + m->kept <= m->version + 1)
            return true;
    return false;
}

bool query_finished(const struct job *j)
{
    for (uint32_t p = 0; p < j->comp.n_paths; p++)
        if (j->paths[p].round < (uint32_t)j->spec.outer.rounds)
            return false;
    return true;
}

uint32_t query_barrier(const struct job *j)
{
    return j->comp.partitioned && j->resharded < j->spec.recipe.reshard.n
               ? (uint32_t)j->spec.recipe.reshard.items[j->resharded]
               : UINT32_MAX;
}

double query_token_cost(const struct state *s, uint64_t token)
{
    const struct token_rec *t = access_token(s, token);
    double sum = t != NULL ? t->spent : 0;
    for (size_t i = 0; i < s->n_jobs; i++)
        if (s->jobs[i]->token_id == token)
            sum += s->jobs[i]->cost.work + s->jobs[i]->cost.waiting;
    return sum;
}

static bool budget_is_spent(const struct job *j)
{
    return j->quota.budget > 0 && j->cost.work + j->cost.waiting >= j->quota.budget;
}

/* The job's token, if its budget is spent, or NULL. */
static const struct token_rec *spent_token(const struct state *s, const struct job *j)
{
    const struct token_rec *t = j->token_id ? access_token(s, j->token_id) : NULL;
    const bool spent =
        t != NULL && t->budget > 0 && query_token_cost(s, t->id) + COST_BUDGET_LEAST >= t->budget;
    return spent ? t : NULL;
}

/* The job's teacher, if its rows are not loaded, or NULL. */
static const struct job *unread_teacher(const struct state *s, const struct job *j)
{
    const struct job *t = j->comp.teacher_job != 0 ? state_job(s, j->comp.teacher_job) : NULL;
    return t != NULL && t->unread ? t : NULL;
}

const char *query_withheld(const struct state *s, const struct job *j)
{
    return j->paused                      ? "is of a job that a person has paused"
           : budget_is_spent(j)           ? "is of a job whose budget is spent"
           : spent_token(s, j) != NULL    ? "is of a job of a token whose budget is spent"
           : unread_teacher(s, j) != NULL ? "is of a job whose teacher cannot be read"
                                          : NULL;
}

/* The same as a sentence that says what to do; false: they are not withheld. */
static bool tell_withheld(const struct state *s, const struct job *j, char out[REASON_MAX])
{
    const struct token_rec *t;
    const struct job *teacher;
    if (j->paused)
        (void)snprintf(out, REASON_MAX,
                       "a person has paused it; `skerry resume %" PRIu64 "` lets it go on", j->id);
    else if (budget_is_spent(j))
        (void)snprintf(out, REASON_MAX,
                       "its budget is spent; `skerry adjust %" PRIu64 " --budget` raises it",
                       j->id);
    else if ((t = spent_token(s, j)) != NULL)
        (void)snprintf(out, REASON_MAX,
                       "the budget of the token '%.64s' is spent; `skerry tokens --change %" PRIu64
                       " --budget` raises it",
                       t->name, t->id);
    else if ((teacher = unread_teacher(s, j)) != NULL)
        (void)snprintf(out, REASON_MAX, "its teacher, job %" PRIu64 ", cannot be read: %.400s",
                       teacher->id, teacher->reason);
    else
        return false;
    return true;
}

bool query_stalled(const struct state *s, const struct job *j, char ret_reason[REASON_MAX])
{
    ret_reason[0] = '\0';
    if (job_is_ended(j))
        return false;
    if (tell_withheld(s, j, ret_reason))
        return true;
    for (size_t i = 0; i < s->n_ready; i++) {
        const struct task *t = s->ready[i];
        if (t->job_id != j->id || task_is_aside(t) ||
            (t->failures < TASK_FAILURES_MAX && !failure_doubted(&t->failed) &&
             !task_is_elsewhere(t)))
            continue;
        const int n = snprintf(ret_reason, REASON_MAX, "%s task %llu", task_kind_name(t->kind),
                               (unsigned long long)t->id);
        if (t->failures > 0)
            (void)snprintf(ret_reason + n, REASON_MAX - (size_t)n,
                           " failed %u times, at last: %.400s", t->failures, t->reason);
        else
            (void)snprintf(ret_reason + n, REASON_MAX - (size_t)n, " waits: %.400s", t->reason);
        return true;
    }
    for (uint32_t m = 0; m < j->comp.n_modules; m++)
        if (j->modules[m].outer_failures >= TASK_FAILURES_MAX || j->modules[m].outer_broken) {
            (void)str_copy(ret_reason, REASON_MAX, j->modules[m].outer_error);
            return true;
        }
    return false;
}

/* ---- partitioning -------------------------------------------------------- */

size_t query_split_group(const struct job *j, size_t first, size_t n)
{
    size_t most = j->comp.n_partitions < SPLIT_GROUP_MAX ? j->comp.n_partitions : SPLIT_GROUP_MAX;
    size_t end = first + 1;
    while (end < n && end - first < most && !j->shards[end].router &&
           j->shards[end].holdout == j->shards[first].holdout)
        end++;
    return end - first;
}

uint64_t query_split_most(const struct job *j, uint64_t samples, bool holdout)
{
    const uint64_t all = samples * (holdout ? 1 : (uint64_t)j->spec.recipe.top);
    const uint64_t short_ones = all < j->comp.n_partitions ? all : j->comp.n_partitions;
    const uint64_t most = all / (uint64_t)j->spec.data.shard_samples + short_ones;
    return most < SPLIT_SHARDS_MAX ? most : SPLIT_SHARDS_MAX;
}

uint64_t query_splits_most(const struct job *j)
{
    const size_t n = shards_cut(j);
    uint64_t most = 0;
    for (size_t i = 0; i < n;) {
        const size_t end = i + (j->shards[i].router ? 1 : query_split_group(j, i, n));
        const bool holdout = j->shards[i].holdout, router = j->shards[i].router;
        uint64_t samples = 0;
        for (; i < end; i++)
            samples += j->shards[i].samples;
        most += router ? 0 : query_split_most(j, samples, holdout);
    }
    return most;
}

uint32_t *query_scored(const struct job *j, size_t *ret_n)
{
    size_t cut = shards_cut(j), n = 0;
    bool *has = mem_alloc_array(cut + 1, sizeof(*has));
    uint32_t *list = j->n_scores > 0 ? mem_alloc_array(j->n_scores, sizeof(*list)) : NULL;
    for (size_t i = 0; i < j->n_scores; i++)
        has[j->scores[i].shard] = j->scores[i].shard < cut;
    for (size_t i = 0; i < cut && list != NULL; i++)
        if (has[i])
            list[n++] = (uint32_t)i;
    mem_free(has);
    *ret_n = n;
    return list;
}

/* ---- phases and contributions -------------------------------------------- */

uint64_t query_held(const struct task *t)
{
    uint64_t held = 0;
    for (size_t i = 0; i < t->n_ranges; i++)
        held += t->ranges[i].count;
    return held;
}

const struct task *query_phase(const struct state *s, const struct job *j, uint32_t path,
                               uint32_t replica)
{
    uint64_t id = j->paths[path].replicas[replica].task_id;
    const struct task *t = id ? state_task(s, id) : NULL;
    return t != NULL && t->kind == TASK_TRAIN ? t : NULL;
}

double query_speed(const struct state *s, const struct task *t)
{
    const struct worker *w =
        t != NULL && t->kind == TASK_TRAIN ? state_worker(s, t->worker_id) : NULL;
    return w != NULL && w->state == WORKER_HERE && w->task_id == t->id ? (double)w->throughput : 0;
}

uint32_t query_replicas(const struct state *s, const struct job *j, uint32_t path)
{
    const uint32_t most = j->comp.paths[path].replicas;
    uint32_t n = 0;
    for (uint32_t r = 0; r < most && j->comp.elastic; r++)
        n += query_phase(s, j, path, r) != NULL;
    for (size_t i = j->n_rounds; i-- > 0 && n == 0 && j->comp.elastic && job_is_ended(j);)
        n = j->rounds[i].path == path ? j->rounds[i].expected : 0;
    return !j->comp.elastic ? most : n > 0 ? n : 1;
}

uint32_t query_phases_at_once(const struct job *j)
{
    uint32_t n = 0;
    for (uint32_t p = 0; p < j->comp.n_paths; p++)
        n += j->comp.paths[p].replicas;
    return n;
}

bool query_rests(const struct state *s, const struct job *j, uint32_t path, uint32_t replica)
{
    if (!j->comp.elastic || query_phase(s, j, path, replica) != NULL)
        return false;
    return j->paths[path].ready || replica > 0; /* before a round only one phase is waited for */
}

double query_phase_end(const struct task *t)
{
    return (double)t->leased_ms + 1e3 * t->train.phase_s;
}

uint32_t query_phase_seconds(const struct state *s, uint64_t now_ms, const struct job *j,
                             const struct task *t)
{
    double now = (double)now_ms, phase = j->spec.outer.seconds, left = 0;
    for (uint32_t q = 0; q < j->comp.n_paths && phase > 0 && j->spec.outer.async; q++)
        for (uint32_t r = 0; r < j->comp.paths[q].replicas && query_share_module(j, t->path, q);
             r++) {
            const struct task *o = query_phase(s, j, q, r);
            double to_end =
                o && o != t && o->state == TASK_LEASED ? (query_phase_end(o) - now) / 1e3 : 0;
            if (to_end > 0 && (left <= 0 || to_end < left))
                left = to_end;
        }
    if (left <= 0)
        return (uint32_t)phase;
    return (uint32_t)lround(left >= phase / 2 ? left : left + phase);
}

uint64_t query_round_ms(const struct path_rec *p, uint64_t now_ms)
{
    const int64_t wall = (int64_t)clock_wall_ms() - p->ready_unix_ms;
    return p->ready_ms != 0 ? now_ms - p->ready_ms : wall > 0 ? (uint64_t)wall : 0;
}

const struct contribution *query_contribution(const struct task *t, uint64_t module, uint64_t base)
{
    for (size_t i = 0; task_has_phase(t) && i < t->train.n_contributions; i++)
        if (t->train.contributions[i].module_id == module &&
            t->train.contributions[i].base_version == base)
            return &t->train.contributions[i];
    return NULL;
}

const struct contribution *query_given(const struct task *t, const struct module_rec *m)
{
    const struct contribution *c = t ? query_contribution(t, m->id, m->version) : NULL;
    return c != NULL && !c->refused ? c : NULL;
}

void query_outer_count(const struct state *s, const struct job *j, const struct module_rec *m,
                       struct outer_count *ret)
{
    *ret = (struct outer_count){0};
    for (uint32_t p = 0; p < j->comp.n_paths; p++) {
        if (!query_crosses(j, p, m) || j->paths[p].round > m->version)
            continue;
        for (uint32_t r = 0; r < j->comp.paths[p].replicas; r++) {
            if (query_rests(s, j, p, r))
                continue;
            const struct task *t = query_phase(s, j, p, r);
            bool arrived = query_given(t, m) != NULL;
            ret->expected++;
            ret->arrived += arrived;
            if (t == NULL || t->state != TASK_LEASED || arrived)
                continue;
            const struct worker *w = state_worker(s, t->worker_id);
            ret->leased++;
            ret->away += w != NULL && w->peer == NULL;
        }
    }
}

const struct contribution *query_waits(const struct task *t, const struct module_rec *m)
{
    for (size_t i = 0; t != NULL && t->kind == TASK_TRAIN && i < t->train.n_contributions; i++) {
        const struct contribution *c = &t->train.contributions[i];
        if (c->module_id == m->id && !c->refused && c->version == 0)
            return c;
    }
    return NULL;
}

/* Were the data partitioned anew between that version of the module and its newest? */
static bool cut_since(const struct job *j, const struct module_rec *m, uint64_t base)
{
    bool cut = false;
    for (size_t i = 0; j->comp.partitioned && i < j->spec.recipe.reshard.n; i++) {
        const uint64_t round = (uint64_t)j->spec.recipe.reshard.items[i];
        cut |= base < round && round <= m->version;
    }
    return cut;
}

bool query_takes_late(const struct job *j, const struct module_rec *m, uint64_t base)
{
    uint64_t since = 0;
    for (unsigned i = 0; i < m->n_versions; i++)
        since = m->versions[i].restored ? m->versions[i].version : since;
    return j->spec.outer.late == JOB_LATE_DISCOUNT && !j->spec.outer.async &&
           m->version < (uint64_t)j->spec.outer.rounds && m->version - base < m->kept &&
           base >= since && !cut_since(j, m, base);
}

uint32_t query_rounds_done(const struct job *j)
{
    uint32_t slowest = UINT32_MAX;
    for (uint32_t p = 0; p < j->comp.n_paths; p++)
        slowest = j->paths[p].round < slowest ? j->paths[p].round : slowest;
    return slowest;
}

uint64_t query_waiting(const struct state *s, const struct job *j, const struct module_rec *m)
{
    uint64_t n = 0;
    for (uint32_t p = 0; p < j->comp.n_paths; p++)
        for (uint32_t r = 0; query_crosses(j, p, m) && r < j->comp.paths[p].replicas; r++)
            n += query_waits(query_phase(s, j, p, r), m) != NULL;
    for (size_t i = 0; i < j->n_late; i++)
        n += query_waits(state_task(s, j->late[i]), m) != NULL;
    return n;
}
