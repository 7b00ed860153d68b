#include "coordinator/work/tasks.h"

#include "coordinator/work/cost.h"
#include "coordinator/work/gc.h"
#include "coordinator/work/query.h"
#include "coordinator/work/shards.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/job/family.h"

#define ATTEMPTS_MAX 100 /* most attempts of a side task (sample, evaluation) */
#define FIRST_BATCHES 64 /* batches of a first phase bounded by time: no speed is known yet */
#define ROOM_PARTS_MAX 8 /* most parts of a ledger's room, of which such a phase takes one */

struct task *task_make(struct coordinator *co, struct job *j, enum task_kind kind)
{
    struct task *t = state_add_task(&co->state, 0, j->id, kind);
    if (t == NULL)
        return NULL;
    t->attempt = 1;
    t->ready_ms = core_now(co);
    t->made_unix_ms = (int64_t)clock_wall_ms();
    core_touch(co);
    return t;
}

static struct ledger *ledger_of(struct coordinator *co, const struct task *t, uint32_t *ret_part)
{
    const struct job *j = state_job(&co->state, t->job_id);
    if (t->kind != TASK_TRAIN || j == NULL)
        return NULL;
    *ret_part = job_ledger(j, j->comp.paths[t->path].partition);
    return j->ledgers[*ret_part];
}

void task_keep_snapshot(struct coordinator *co, struct task *t, struct snapshot *s)
{
    const struct snapshot *had = t->kind == TASK_TRAIN ? t->train.snapshot : NULL;
    for (size_t i = 0; had != NULL && i < had->n; i++)
        gc_drop(co, &had->modules[i].blob);
    if (t->kind == TASK_TRAIN)
        task_set_snapshot(t, s);
}

/* Can a phase go on from its snapshot?  Without rounds the version with which it began may be gone
 * meanwhile. */
static bool snapshot_holds(const struct job *j, const struct task *t)
{
    const struct snapshot *s = t->train.snapshot;
    for (size_t i = 0; i < s->n; i++) {
        const struct module_rec *m = job_module(j, s->modules[i].module_id);
        if (m == NULL || module_version(m, s->modules[i].base_version) == NULL)
            return false;
    }
    return true;
}

static void begin_phase(struct coordinator *co, struct task *t, const struct job *j)
{
    if (t->train.snapshot != NULL && !snapshot_holds(j, t))
        task_keep_snapshot(co, t, NULL);
    t->train.phase_s = query_phase_seconds(&co->state, core_now(co), j, t);
}

void task_lease(struct coordinator *co, struct task *t, struct worker *w)
{
    uint32_t part;
    struct ledger *l = ledger_of(co, t, &part);
    if (l != NULL)
        ledger_set_leased(l, t->id, true);
    cost_reckon(co, w, t->job_id);
    state_set_task_state(&co->state, t, TASK_LEASED);
    t->worker_id = w->id;
    t->lost_by = 0;
    t->older = t->begun = false;
    t->leased_ms = t->progress_ms = core_now(co);
    if (t->kind == TASK_TRAIN)
        begin_phase(co, t, state_job(&co->state, t->job_id));
    t->reached = (struct lease_reach){.bytes = worker_data_bytes(w)};
    t->moved = (struct lease_moved){0};
    t->steps_done = t->steps_total = t->skipped = 0;
    t->samples_done = 0;
    t->loss = NAN;
    t->activity[0] = '\0';
    w->task_id = t->id;
    w->lost_job = 0;
    w->sends_ms = 0;
    w->waiting_for[0] = '\0';
    log_info("task",
             "%s task %llu of job %llu leased worker=%llu attempt=%u path=%u replica=%u "
             "round=%u",
             task_kind_name(t->kind), (unsigned long long)t->id, (unsigned long long)t->job_id,
             (unsigned long long)w->id, t->attempt, t->path, task_replica(t), task_round(t));
}

void task_lease_again(struct coordinator *co, const struct task *t, struct worker *w,
                      uint32_t attempt)
{
    if (t->state != TASK_PENDING || t->lost_by != w->id || t->attempt != attempt + 1 ||
        w->task_id != 0)
        return;
    struct task *mine = state_edit_task(&co->state, t);
    mine->attempt = attempt; /* nobody had the next attempt */
    task_lease(co, mine, state_edit_worker(&co->state, w));
    mine->older = true;
    core_touch(co);
}

/* If t still has its holder, that holds nothing from now on. */
static void release_holder(struct coordinator *co, const struct task *t)
{
    struct worker *w = state_edit_worker(&co->state, state_worker(&co->state, t->worker_id));
    if (w != NULL && w->task_id == t->id) {
        cost_reckon(co, w, 0);
        w->task_id = 0;
        w->activity[0] = '\0';
    }
}

void task_requeue(struct coordinator *co, struct task *t, const char *reason)
{
    uint32_t part;
    struct ledger *l = ledger_of(co, t, &part);
    if (l != NULL)
        ledger_set_leased(l, t->id, false);
    release_holder(co, t);
    t->worker_id = 0;
    t->attempt++;
    t->steps_done = t->skipped = 0;
    t->samples_done = 0;
    if (t->kind == TASK_SAMPLE)
        t->draw.text_len = t->draw.questions = 0;
    t->ready_ms = core_now(co);
    (void)str_copy(t->reason, sizeof(t->reason), reason);
    state_set_task_state(&co->state, t, TASK_PENDING);
    core_touch(co);
    if (t->attempt > ATTEMPTS_MAX && task_is_aside(t))
        task_end(co, t, TASK_FAILED, reason);
}

void task_settle(struct coordinator *co, struct task *t, uint64_t done)
{
    uint32_t part;
    struct ledger *l = ledger_of(co, t, &part);
    if (l == NULL || t->n_ranges == 0)
        return;
    struct err err = {0};
    if (ledger_settle(l, t->id, t->ranges, t->n_ranges, done, &err) < 0)
        log_error("task", "samples stay as they are: %s", err.msg);
    mem_free(t->ranges);
    t->ranges = NULL;
    t->n_ranges = 0;
}

/* The number of parts into which a ledger's room is divided among phases bounded by time: half of
 * it stays, and if there are many phases each takes no less than an eighth of the rest. */
static uint64_t room_parts(const struct job *j, uint32_t ledger)
{
    uint64_t n = 0;
    for (uint32_t p = 0; p < j->comp.n_paths; p++)
        if (job_ledger(j, j->comp.paths[p].partition) == ledger)
            n += 2 * (uint64_t)j->comp.paths[p].replicas;
    return n < ROOM_PARTS_MAX ? n : ROOM_PARTS_MAX;
}

/* Samples of a phase bounded by time: 1.5 times its expected need.  A worker that claims too high a
 * speed, or little data, must leave some to the others: at most a part of the ledger's room. */
static uint64_t timed_samples(const struct job *j, const struct task *t, uint32_t batch,
                              const struct shards_sum *sum)
{
    const uint32_t ledger = job_ledger(j, j->comp.paths[t->path].partition);
    const struct replica_rec *r = &j->paths[t->path].replicas[t->train.replica];
    const uint64_t want = r->samples_last ? r->samples_last * 3 / 2 + batch
                                          : shards_of_steps(&j->spec, batch, FIRST_BATCHES, sum);
    const uint64_t most = ledger_room(j->ledgers[ledger]) / room_parts(j, ledger);
    return want < most ? want : most > batch ? most : batch;
}

bool task_has_samples(const struct job *j, uint32_t path, uint64_t phases)
{
    const struct composition_path *cp = &j->comp.paths[path];
    if (!job_has_data(&j->spec))
        return true;
    const struct shards_sum sum = shards_sum(j, cp->partition, false);
    const uint64_t steps = j->spec.outer.steps > 0 ? (uint64_t)j->spec.outer.steps : 1;
    return ledger_has(j->ledgers[job_ledger(j, cp->partition)],
                      phases * shards_of_steps(&j->spec, cp->batch, steps, &sum));
}

bool task_take_samples(struct coordinator *co, struct job *j, struct task *t)
{
    const struct composition_path *cp = &j->comp.paths[t->path];
    struct ledger *l = j->ledgers[job_ledger(j, cp->partition)];
    if (!job_has_data(&j->spec))
        return true;
    struct shards_sum sum = shards_sum(j, cp->partition, false);
    uint64_t want = shards_of_steps(&j->spec, cp->batch, (uint64_t)j->spec.outer.steps, &sum);
    if (want == 0)
        want = timed_samples(j, t, cp->batch, &sum);
    struct ledger_range *ranges = mem_alloc_array(RANGES_TAKEN_MAX, sizeof(*ranges));
    size_t n =
        ledger_take(l, t->id, want, t->train.replica, cp->replicas, ranges, RANGES_TAKEN_MAX);
    if (n == 0) {
        mem_free(ranges);
        return false;
    }
    mem_free(t->ranges);
    t->ranges = mem_realloc(ranges, n * sizeof(*ranges));
    t->n_ranges = n;
    return true;
}

void task_end(struct coordinator *co, struct task *t, enum task_state state, const char *reason)
{
    if (state != TASK_DONE)
        task_settle(co, t, task_folded(t));
    task_keep_snapshot(co, t, NULL);
    release_holder(co, t);
    if (state != TASK_DONE && t->state == TASK_PENDING)
        t->worker_id = 0;
    state_set_task_state(&co->state, t, state);
    t->ended_ms = core_now(co);
    t->ended_unix_ms = (int64_t)clock_wall_ms();
    (void)str_copy(t->reason, sizeof(t->reason), reason);
    core_touch(co);
    co->velocities_old |= task_is_remote(t);
}

/* Would the modules' next versions take the snapshot's contributions? */
static bool is_taken(const struct job *j, const struct snapshot *s)
{
    for (size_t i = 0; i < s->n; i++) {
        const struct module_rec *m = job_module(j, s->modules[i].module_id);
        const uint64_t base = s->modules[i].base_version;
        if (m == NULL || (m->version != base && !query_takes_late(j, m, base)))
            return false;
    }
    return true;
}

bool task_end_in_part(struct coordinator *co, const struct job *j, struct task *t)
{
    const struct snapshot *s = t->kind == TASK_TRAIN ? t->train.snapshot : NULL;
    if (t->state != TASK_PENDING || s == NULL || s->used == 0 || t->train.n_contributions > 0 ||
        j->spec.outer.late != JOB_LATE_DISCOUNT || j->spec.outer.async || !is_taken(j, s))
        return false;
    for (size_t i = 0; i < s->n; i++)
        task_add_contribution(t, &(struct contribution){.module_id = s->modules[i].module_id,
                                                        .base_version = s->modules[i].base_version,
                                                        .blob = s->modules[i].blob,
                                                        .samples = s->used,
                                                        .worker_id = s->worker_id,
                                                        .part = true});
    t->samples = s->used;
    t->steps = s->steps;
    t->skipped = s->skipped;
    t->loss_first = (float)s->loss_first;
    t->loss_last = (float)s->loss_last;
    t->loss_mean = s->steps > s->skipped ? (float)(s->loss_sum / (s->steps - s->skipped)) : NAN;
    t->seconds = (float)s->seconds;
    t->worker_id = s->worker_id;
    task_settle(co, t, s->used);
    task_set_snapshot(t, NULL); /* its blobs belong to the contributions now */
    task_end(co, t, TASK_DONE, "its worker was lost, and its last snapshot counts");
    return true;
}

uint64_t task_folded(const struct task *t)
{
    uint64_t n = 0;
    for (size_t i = 0; t->kind == TASK_TRAIN && i < t->train.n_contributions; i++)
        if (t->train.contributions[i].version != 0 && t->train.contributions[i].samples > n)
            n = t->train.contributions[i].samples;
    return n;
}

/* Can w run the task? */
static bool may_try(const struct coordinator *co, const struct task *t, const struct worker *w)
{
    if (t->not_from != 0 && t->not_from == worker_origin(w))
        return false;
    return query_is_able(state_job(&co->state, t->job_id), t->kind, w);
}

/* Could w, which is not from `origin`, confirm that nobody can do the task? */
static bool may_tell(const struct coordinator *co, const struct task *t, const struct worker *w,
                     uint64_t origin)
{
    return (worker_standing(w) == STANDING_PROVEN || worker_origin(w) != origin) &&
           !failure_says(&t->failed, w->id) && w->n_small == 0 && may_try(co, t, w);
}

/* Notes on the task that its holder could not do it.  True: other workers are here that may have it
 * now. */
static bool note_failure(struct coordinator *co, struct task *t, enum task_fault fault,
                         struct failure_decision *ret)
{
    const struct job *j = state_job(&co->state, t->job_id);
    const struct worker *holder = state_worker(&co->state, t->worker_id);
    struct failure_in in = {.now_ms = core_now(co),
                            .worker = t->worker_id,
                            .origin = holder ? worker_origin(holder) : 0,
                            .machine = holder ? holder->machine : 0,
                            .token = holder ? holder->token_id : 0,
                            .local = co->opt.local,
                            .standing = holder ? worker_standing(holder) : STANDING_NEW,
                            .lasting = fault == FAULT_LASTING,
                            .program = fault == FAULT_PROGRAM,
                            .only = true};
    for (size_t i = 0; i < co->state.n_workers; i++) {
        const struct worker *w = co->state.workers[i];
        in.only &= w->id == t->worker_id || !may_try(co, t, w) || w->state != WORKER_HERE;
        in.newest = w->id > in.newest ? w->id : in.newest;
        if (w->id == t->worker_id || w->state != WORKER_HERE || worker_goes(w))
            continue;
        in.others_tell |= in.lasting && may_tell(co, t, w, in.origin);
        if (failure_until(&t->failed, w->id, worker_standing(w)) <= in.now_ms &&
            query_fits(j, t->kind, query_network(j, t), w, in.now_ms)) {
            in.others = true;
            in.proven |= worker_standing(w) == STANDING_PROVEN;
        }
    }
    failure_note(&t->failed, &in, ret);
    return in.others;
}

/* What is needed after the holder of a task says that nobody can do it. */
static const char *who_is_asked(const struct coordinator *co, const struct task *t)
{
    const struct worker *holder = state_worker(&co->state, t->worker_id);
    const bool elsewhere = task_is_elsewhere(t);
    for (size_t i = 0; (elsewhere || holder != NULL) && i < co->state.n_workers; i++) {
        const struct worker *w = co->state.workers[i];
        const bool apart = elsewhere || co->opt.local || w->token_id != holder->token_id ||
                           w->machine == 0 || w->machine != holder->machine;
        if (w != holder && w->state == WORKER_HERE && apart && may_try(co, t, w) &&
            !failure_says(&t->failed, w->id))
            return "another worker is asked";
    }
    if (elsewhere)
        return "start a worker with another token or address";
    if (co->opt.local)
        return "it is asked again, and then its word ends the job";
    return "the fault may be this machine's: the job waits for a worker on another one, start one";
}

/* The reason with what is needed; query_stalled() shows 400 of all. */
static void say_who(const struct coordinator *co, const struct task *t, const char *reason,
                    char ret[REASON_MAX])
{
    (void)snprintf(ret, REASON_MAX, "%.300s (%.96s)", reason, who_is_asked(co, t));
}

/* Without another worker a failed side task ends, so that the rest of the job does not wait for it
 * for ever. */
static bool ends_aside(const struct task *t, enum task_fault fault, bool others)
{
    return !others && fault != FAULT_PASSING &&
           (fault == FAULT_LASTING || t->failures >= TASK_FAILURES_MAX);
}

/* Where nobody else can come, and a person waits: the user's own program, or steps that diverge,
 * fail another time as they did before. */
static bool is_hopeless(const struct coordinator *co, struct task *t, enum task_fault fault)
{
    const bool own = fault == FAULT_PROGRAM || fault == FAULT_DIVERGED;
    t->own_failures += own;
    return own && co->opt.local && t->own_failures >= TASK_FAILURES_MAX;
}

void task_failed(struct coordinator *co, struct task *t, enum task_fault fault, const char *reason)
{
    const bool aside = task_is_aside(t), lasting = fault == FAULT_LASTING;
    struct job *j = state_job(&co->state, t->job_id);
    struct failure_decision d;
    char text[REASON_MAX];
    const bool others = note_failure(co, t, fault, &d), hopeless = is_hopeless(co, t, fault);
    t->failures++;
    core_say(co, t->job_id, t->worker_id, "%s task %llu failed (%u times now) on worker %llu: %s",
             task_kind_name(t->kind), (unsigned long long)t->id, t->failures,
             (unsigned long long)t->worker_id, reason);
    if (d.confirmed || hopeless || (aside && ends_aside(t, fault, others))) {
        task_end(co, t, TASK_FAILED, reason);
        if (!aside)
            job_doom(j, "%s task %llu failed: %s", task_kind_name(t->kind),
                     (unsigned long long)t->id, reason);
        return;
    }
    if (lasting)
        say_who(co, t, reason, text);
    else
        (void)str_copy(text, sizeof(text), reason);
    task_requeue(co, t, text);
}

void task_from_elsewhere(const struct coordinator *co, struct task *t, uint64_t origin,
                         const char *why)
{
    t->not_from = origin;
    say_who(co, t, why, t->reason);
}

/* That the archive is cut again is nobody's word that it cannot be. */
static void recut(struct coordinator *co, struct job *j, struct task *t, const char *why)
{
    const struct worker *w = state_worker(&co->state, t->worker_id);
    char text[REASON_MAX];
    job_uncount_archive(j, t->ingest.from, t->ingest.uncaptioned, t->ingest.unnamed);
    t->ingest = (struct task_ingest){.url = t->ingest.url, .against = t->ingest.against};
    t->failed = (struct failure_list){0};
    task_from_elsewhere(co, t, w != NULL ? worker_origin(w) : 0, why);
    (void)str_copy(text, sizeof(text), t->reason);
    task_requeue(co, t, text);
}

bool tasks_recut(struct coordinator *co, struct job *j, uint64_t origin, const char *why)
{
    bool *again = mem_alloc_array(j->spec.data.url.n, sizeof(*again)), any = false;
    for (size_t i = 0; i < co->state.n_tasks; i++) {
        const struct task *t = co->state.tasks[i];
        const struct worker *w = state_worker(&co->state, t->worker_id);
        if (t->job_id == j->id && t->kind == TASK_INGEST && t->state == TASK_DONE &&
            (origin == 0 || (w != NULL && worker_origin(w) == origin))) {
            any = again[t->ingest.url] = true;
            task_memory(t)->ingest.against = origin != 0 ? t->worker_id : 0;
            recut(co, j, state_edit_task(&co->state, t), why);
        }
    }
    for (size_t i = 0; i < j->n_shards; i++)
        if (j->shards[i].source < j->spec.data.url.n && again[j->shards[i].source])
            gc_drop(co, &j->shards[i].blob);
    job_drop_shards(j, again);
    mem_free(again);
    if (any)
        core_say(co, j->id, 0, "archives of job %llu are cut again by other workers: %s",
                 (unsigned long long)j->id, why);
    return any;
}

void task_passed_on(struct coordinator *co, struct task *t, const char *reason)
{
    struct failure_decision d;
    (void)note_failure(co, t, FAULT_PASSING, &d);
    task_requeue(co, t, reason);
}

/* Is a comparison of its contributions pending or running (spot_check.h)? */
static bool is_compared(const struct state *s, const struct task *t)
{
    for (size_t i = 0; i < s->n_tasks && task_has_phase(t); i++) {
        const struct task *c = s->tasks[i];
        if (c->kind == TASK_CHECK && (task_is_open(c) || c->train.n_contributions > 0) &&
            (c == t || c->train.checks == t->id || c->train.after == t->id))
            return true;
    }
    return false;
}

static bool still_needed(const struct state *s, const struct job *j, const struct task *t)
{
    if (task_is_open(t))
        return true;
    if (job_is_ended(j))
        return false;
    if (t->kind == TASK_TRAIN && j->paths[t->path].replicas[t->train.replica].task_id == t->id)
        return true;
    for (size_t i = 0; t->kind == TASK_TRAIN && i < j->n_late; i++)
        if (j->late[i] == t->id)
            return true;
    return is_compared(s, t); /* last, as it looks at all tasks */
}

void tasks_prune(struct coordinator *co, struct job *j)
{
    size_t ended = 0;
    for (size_t i = 0; i < co->state.n_tasks; i++)
        ended += co->state.tasks[i]->job_id == j->id && !task_is_open(co->state.tasks[i]);
    for (size_t i = 0; i < co->state.n_tasks && ended > TASKS_ENDED_MAX;) {
        const struct task *t = co->state.tasks[i];
        if (t->job_id != j->id || still_needed(&co->state, j, t)) {
            i++;
            continue;
        }
        for (size_t c = 0; task_has_phase(t) && c < t->train.n_contributions; c++)
            gc_drop(co, &t->train.contributions[c].blob);
        state_drop_task(&co->state, t);
        ended--;
    }
}
