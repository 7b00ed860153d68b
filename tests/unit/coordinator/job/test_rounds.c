/* When a round begins and with which phases, what it adds up to at its end, and when those without
 * rounds get their next one.  A state without a coordinator (bare.h). */
#include "coordinator/job/rounds.h"

#include "coordinator/work/query.h"
#include "coordinator/work/tasks.h"
#include "tests/unit/coordinator/over_data.h"

#define ELASTIC(more)                                                                              \
    HEAD "recipe: {name: diloco, replicas: auto}\nouter: {rounds: 3, steps: 2" more "}\n"

static struct task *phase_of(struct coordinator *co, const struct job *j, uint32_t p, uint32_t r)
{
    return state_edit_task(&co->state, query_phase(&co->state, j, p, r));
}

static uint32_t phases(struct coordinator *co, const struct job *j, uint32_t p)
{
    uint32_t n = 0;
    for (uint32_t r = 0; r < j->comp.paths[p].replicas; r++)
        n += query_phase(&co->state, j, p, r) != NULL;
    return n;
}

static void expect_phases(struct coordinator *co, struct job *j, uint32_t p, uint32_t n)
{
    rounds_advance(co, j);
    if (phases(co, j, p) != n)
        fail_msg("%u phases of path %u, not %u", phases(co, j, p), p, n);
    assert_int_equal(j->paths[p].ready, n > 0);
}

/* ---- how many phases ----------------------------------------------------- */

static void all_replicas_have_a_phase(void **state)
{
    struct coordinator *co = *state;
    struct job *j = job_of(co, diloco, 9);
    module_memory(&j->modules[0])->quorum_ms = 5;
    expect_phases(co, j, 0, 2); /* whoever is here */
    for (uint32_t r = 0; r < 2; r++) {
        const struct task *t = phase_of(co, j, 0, r);
        assert_true(t->train.replica == r && t->train.round == 0 && t->path == 0);
        assert_int_equal(query_held(t), 12); /* 2 steps of 6 */
    }
    assert_int_equal(j->modules[0].quorum_ms, 0); /* no grace runs yet */
    assert_true(j->paths[0].ready_ms >= core_now(co) - 10000 && j->paths[0].ready_ms > 0);
    assert_true(j->paths[0].ready_unix_ms > 0);
    rounds_advance(co, j);
    assert_int_equal(co->state.n_tasks, 2); /* once */
}

/* One that could not take a phase now is no reason for one. */
static void elastic_rounds_count_who_can_train(void **state)
{
    enum { QUARANTINED, DRAINED, LEAVING, LOST, FAILING, SMALL, CHECKING, RETURNED, CASES };
    for (int i = 0; i < CASES; i++) {
        if (i > 0 && (bare_end(state), bare_begin(state)) != 0)
            fail();
        struct coordinator *co = *state;
        struct job *j = job_of(co, ELASTIC(""), 99);
        (void)here(co);
        (void)here(co);
        struct worker *w = here(co);
        switch (i) {
        case QUARANTINED:
            w->quarantined_until_ms = core_now(co) + 100000;
            break;
        case DRAINED:
            w->drain = true;
            break;
        case LEAVING:
            w->leaving = true;
            break;
        case LOST:
            state_set_worker_state(&co->state, w, WORKER_LOST);
            break;
        case FAILING:
            w->tasks_done = 0;
            w->failures_row = 1;
            break;
        case SMALL:
            w->n_small = 1;
            w->small[0] = (struct schedule_small){
                .job_id = j->id, .kind = TASK_TRAIN, .until_ms = UINT64_MAX, .times = 1};
            break;
        case CHECKING:
            w->task_id = state_add_task(&co->state, 0, j->id, TASK_CHECK)->id;
            break;
        default: /* its quarantine is over, and it is at another task */
            w->quarantined_until_ms = core_now(co);
            w->task_id = state_add_task(&co->state, 0, j->id, TASK_EVAL)->id;
        }
        expect_phases(co, j, 0, i == RETURNED ? 3 : 2);
    }
}

/* The phases are those whose moments are at workers that take one, not at one that is at a CHECK:
 * or who is free would begin without the moments that it has. */
static void elastic_rounds_go_where_the_moments_are(void **state)
{
    struct coordinator *co = *state;
    struct job *j = job_of(co, ELASTIC(""), 99);
    for (uint32_t r = 0; r < 3; r++) {
        struct worker *w = here(co);
        job_edit_replica(j, 0, r)->owner = w->id;
        if (r == 0)
            w->task_id = state_add_task(&co->state, 0, j->id, TASK_CHECK)->id;
    }
    expect_phases(co, j, 0, 2);
    assert_null(query_phase(&co->state, j, 0, 0));
}

static void nobody_is_here_and_one_phase_waits(void **state)
{
    struct coordinator *co = *state;
    expect_phases(co, job_of(co, ELASTIC(""), 99), 0, 1);
}

/* Jobs divide the workers, by priority and share; those that are not given out want none. */
static void elastic_jobs_divide_the_workers(void **state)
{
    static const struct {
        int priority; /* of the other, which could use 2 */
        bool paused, ended;
        uint32_t n;
    } cases[] = {
        {.priority = 0, .n = 4},  {.priority = 1, .n = 4}, {.priority = -1, .n = 6},
        {.paused = true, .n = 6}, {.ended = true, .n = 6},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        if (i > 0 && (bare_end(state), bare_begin(state)) != 0)
            fail();
        struct coordinator *co = *state;
        struct job *other = job_of(co, diloco, 99), *j = job_of(co, ELASTIC(""), 99);
        for (int w = 0; w < 6; w++)
            (void)here(co);
        other->quota.priority = cases[i].priority;
        other->paused = cases[i].paused;
        other->state = cases[i].ended ? JOB_DONE : JOB_RUNNING;
        expect_phases(co, j, 0, cases[i].n);
    }
}

/* And so do a job's paths; the first ones get the rest. */
static void elastic_paths_divide_the_workers(void **state)
{
    struct coordinator *co = *state;
    struct job *j = job_of(co,
                           HEAD "recipe: {name: ddm, experts: 3, replicas: auto}\n"
                                "outer: {rounds: 3, steps: 2}\n",
                           0);
    in_partitions(j);
    for (int w = 0; w < 7; w++)
        (void)here(co);
    rounds_advance(co, j);
    assert_int_equal(j->comp.n_paths, 4);
    assert_int_equal(phases(co, j, 0), 2);
    assert_int_equal(phases(co, j, 1), 2);
    assert_int_equal(phases(co, j, 2), 2);
    assert_int_equal(phases(co, j, 3), 1);
}

/* Paths that have closed their last round want no workers. */
static void paths_that_are_done_leave_theirs(void **state)
{
    struct coordinator *co = *state;
    struct job *j = job_of(co,
                           HEAD "recipe: {name: ddm, experts: 3, replicas: auto}\n"
                                "outer: {rounds: 3, steps: 2}\n",
                           0);
    in_partitions(j);
    for (int w = 0; w < 7; w++)
        (void)here(co);
    job_edit_path(j, 0)->round = job_edit_path(j, 2)->round = 3;
    rounds_advance(co, j);
    assert_true(phases(co, j, 0) == 0 && phases(co, j, 2) == 0);
    assert_int_equal(phases(co, j, 1), 4);
    assert_int_equal(phases(co, j, 3), 3);
}

/* ---- which phases -------------------------------------------------------- */

/* Those whose moments somebody here has come first, then the others in order. */
static void moments_that_are_here_come_first(void **state)
{
    struct coordinator *co = *state;
    struct job *j = job_of(co, ELASTIC(""), 99);
    struct worker *w = here(co), *goes = here(co), *gone = here(co);
    (void)here(co);
    goes->drain = true;
    state_set_worker_state(&co->state, gone, WORKER_LEFT);
    job_edit_replica(j, 0, 0)->owner = gone->id;
    job_edit_replica(j, 0, 1)->owner = goes->id;
    job_edit_replica(j, 0, 2)->owner = 99; /* forgotten */
    job_edit_replica(j, 0, 3)->owner = w->id;
    job_edit_replica(j, 0, 3)->step = 6;
    expect_phases(co, j, 0, 2);
    assert_non_null(phase_of(co, j, 0, 3));
    const struct task *t = phase_of(co, j, 0, 0);
    assert_non_null(t);
    assert_int_equal(t->train.first_step, 6); /* it goes on where the path is */
}

/* A phase that is late for an earlier round is one of those that there are workers for. */
static void a_late_phase_is_one_of_them(void **state)
{
    struct coordinator *co = *state;
    struct job *j = job_of(co, ELASTIC(""), 99);
    (void)here(co);
    (void)here(co);
    (void)here(co);
    struct task *t = task_make(co, j, TASK_TRAIN);
    t->train.replica = 5;
    task_lease(co, t, here(co));
    job_edit_replica(j, 0, 5)->task_id = t->id;
    expect_phases(co, j, 0, 4);
    assert_ptr_equal(phase_of(co, j, 0, 5), t);
    assert_int_equal(co->state.n_tasks, 4);
}

/* ---- samples and tasks --------------------------------------------------- */

/* A fixed number of replicas needs samples for all: with one phase of another round still open over
 * little data, the round begins later.  An elastic one begins with those that there are for. */
static void there_are_samples_for_what_begins(void **state)
{
    struct coordinator *co = *state;
    struct job *fixed = job_of(co, diloco, 9), *elastic = job_of(co, ELASTIC(""), 9);
    for (int i = 0; i < 40; i++)
        (void)here(co);
    fixed->quota.priority = -1;
    rounds_advance(co, elastic);
    const uint32_t n = phases(co, elastic, 0);
    assert_true(n > 1 && n < 40);
    for (uint32_t r = 0; r < elastic->comp.paths[0].replicas; r++)
        assert_true(phase_of(co, elastic, 0, r) == NULL ||
                    query_held(phase_of(co, elastic, 0, r)) == 12);
    assert_null(elastic->doom);
    expect_phases(co, fixed, 0, 2);
}

static void too_many_tasks_are_open(void **state)
{
    struct coordinator *co = *state;
    struct job *j = job_of(co, diloco, 9);
    co->state.n_open = TASKS_OPEN_MAX - 1;
    expect_phases(co, j, 0, 0); /* both or none */
    co->state.n_open = TASKS_OPEN_MAX - 2;
    expect_phases(co, j, 0, 2);
    co->state.n_open = 2;
}

/* ---- what a round waits for ---------------------------------------------- */

/* A path needs its own modules only, but all of these; and at a barrier all paths wait. */
static void a_path_waits_for_its_modules(void **state)
{
    struct coordinator *co = *state;
    struct job *j = add(&co->state, dipaco);
    in_partitions(j);
    for (uint32_t m = 0; m < j->comp.n_modules; m++)
        if (m != j->comp.paths[3].modules[1])
            module_add_version(module_memory(&j->modules[m]), &(struct version_rec){0});
    rounds_advance(co, j);
    for (uint32_t p = 0; p < 4; p++) {
        const bool crosses = j->comp.paths[p].modules[1] == j->comp.paths[3].modules[1];
        assert_int_equal(j->paths[p].ready, !crosses);
    }
    struct job *again = job_of(co, dipaco, 0);
    for (uint32_t p = 0; p < 4; p++)
        job_edit_path(again, p)->round = 1;
    for (uint32_t m = 0; m < again->comp.n_modules; m++)
        module_add_version(module_memory(&again->modules[m]), &(struct version_rec){.version = 1});
    rounds_advance(co, again);
    for (uint32_t p = 0; p < 4; p++) /* they are to be assigned again */
        assert_false(again->paths[p].ready);
    struct job *over = job_of(co, diloco, 9);
    job_edit_path(over, 0)->round = 3;
    module_memory(&over->modules[0])->version = 3;
    expect_phases(co, over, 0, 0); /* no more rounds */
}

/* ---- without rounds ------------------------------------------------------ */

/* A replica's next phase begins when its last one is folded, but not just before the others end
 * theirs: a window of an eighth of a phase, or of outer.grace. */
static void the_next_phases_begin_together(void **state)
{
    static const struct {
        const char *grace;
        double ends_s; /* of another replica's phase, from now */
        bool waits;
    } cases[] = {
        {"", 10, true},   {"", 15, false},           {"", -10, true},
        {"", -15, false}, {", grace: 30", 25, true}, {", grace: 5", 10, false},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        if (i > 0 && (bare_end(state), bare_begin(state)) != 0)
            fail();
        struct coordinator *co = *state;
        char *yaml = str_printf(HEAD "recipe: {name: diloco, replicas: 2}\n"
                                     "outer: {rounds: 3, seconds: 100, async: true%s}\n",
                                cases[i].grace);
        struct job *j = job_of(co, yaml, 99);
        mem_free(yaml);
        expect_phases(co, j, 0, 2);
        for (uint32_t r = 0; r < 2; r++)
            task_lease(co, phase_of(co, j, 0, r), here(co));
        struct task *mine = phase_of(co, j, 0, 0), *other = phase_of(co, j, 0, 1);
        other->train.phase_s = 100;
        other->leased_ms = core_now(co) + (uint64_t)(int64_t)(1000 * (cases[i].ends_s - 100));
        task_add_contribution(mine, &(struct contribution){.module_id = j->modules[0].id,
                                                           .version = 1,
                                                           .samples = 6,
                                                           .worker_id = mine->worker_id});
        task_settle(co, mine, query_held(mine));
        task_end(co, mine, TASK_DONE, "");
        rounds_advance(co, j);
        assert_int_equal(j->paths[0].phases, 1);
        const bool waits = query_phase(&co->state, j, 0, 0) == NULL;
        if (waits != cases[i].waits)
            fail_msg("case %zu: it %s", i, waits ? "waits" : "does not wait");
    }
}

/* ---- the end of a round -------------------------------------------------- */

/* A replica's phase of the round is done; its contribution is in a version (0: in none yet). */
static struct task *done(struct coordinator *co, struct job *j, uint32_t r, uint64_t version,
                         struct worker *w)
{
    struct task *t = phase_of(co, j, 0, r);
    task_lease(co, t, w);
    t->samples = 12;
    t->steps = 2;
    t->seconds = 0.5f;
    t->loss_mean = 0.5f;
    t->train.waited_ms = 30;
    t->train.moments = (struct blob_ref){.sha256 = {(uint8_t)(r + 1)}, .size = 5};
    task_add_contribution(t, &(struct contribution){.module_id = j->modules[0].id,
                                                    .version = version,
                                                    .samples = 12,
                                                    .worker_id = w->id});
    task_settle(co, t, 12);
    task_end(co, t, TASK_DONE, "");
    return t;
}

static void new_version(struct job *j, uint64_t version)
{
    module_add_version(module_memory(&j->modules[0]),
                       &(struct version_rec){.version = version, .full.size = 1});
}

/* What the phases of a round have done is the job's and the round's; each replica's worker has its
 * moments, and its next phase begins where this one ended. */
static void a_round_adds_up(void **state)
{
    struct coordinator *co = *state;
    struct job *j = job_of(co, diloco, 9);
    struct worker *a = here(co), *b = here(co);
    rounds_advance(co, j);
    struct task *t = done(co, j, 0, 1, a), *u = done(co, j, 1, 1, b);
    u->samples = 4;
    u->loss_mean = 2;
    u->steps = 1;
    new_version(j, 1);
    rounds_close(co, j, 0);
    assert_true(j->paths[0].round == 1 && !j->paths[0].ready);
    assert_true(j->phases_done == 2 && j->samples_done == 16 && j->steps_done == 3);
    assert_true(j->waited_ms == 60 && j->trained_ms == 1000);
    const struct round_rec *r = &j->rounds[0];
    assert_true(r->contributions == 2 && r->expected == 2 && r->samples == 16 && r->steps == 3);
    assert_float_equal(r->loss, (0.5 * 12 + 2 * 4) / 16, 1e-6);
    const struct replica_rec *first = &j->paths[0].replicas[0], *second = first + 1;
    assert_true(first->owner == a->id && second->owner == b->id);
    assert_true(first->step == 2 && second->step == 1);
    assert_true(first->samples_last == 12 && second->samples_last == 4);
    assert_true(first->moments.sha256[0] == 1 && second->moments.sha256[0] == 2);
    assert_true(t->train.moments.size == 0); /* they are the replica's now */
    assert_true(a->n_verdicts == 1 && a->verdicts[0].accepted && a->verdicts[0].task_id == t->id);
    rounds_advance(co, j); /* the next one */
    assert_int_equal(phase_of(co, j, 0, 0)->train.first_step, 2);
    done(co, j, 0, 2, a)->loss_mean = NAN; /* nothing is known of it */
    done(co, j, 1, 2, b)->loss_mean = 3;
    rounds_close(co, j, 0);
    assert_true(j->rounds[1].loss == 3 && j->rounds[1].samples == 24);
}

/* The phase that ended last tells where the round's time went; after a restart nobody knows. */
static void a_round_has_parts(void **state)
{
    struct coordinator *co = *state;
    struct job *j = job_of(co, diloco, 9);
    struct worker *a = here(co), *b = here(co);
    rounds_advance(co, j);
    struct task *t = done(co, j, 0, 1, a), *u = done(co, j, 1, 1, b);
    const uint64_t now = core_now(co);
    job_edit_path(j, 0)->ready_ms = now - 3800;
    t->leased_ms = now - 2800;
    t->ended_ms = now - 800;
    u->leased_ms = now - 3800;
    u->ended_ms = now - 1300;
    t->train.steps_ms = 400; /* of 500 in which fragments were coded, too */
    new_version(j, 1);
    rounds_close(co, j, 0);
    const struct round_parts *parts = &j->rounds[0].parts;
    assert_int_equal(parts->worker, a->id);
    assert_float_equal(parts->begin, 1, 1e-4);
    assert_float_equal(parts->steps, 0.4, 1e-4);
    assert_float_equal(parts->network, 0.03, 1e-4);
    assert_float_equal(parts->rest, 1.57, 1e-4);
    assert_float_equal(parts->behind, 0.5, 1e-4);
    assert_float_equal(parts->begin + parts->steps + parts->network + parts->rest + parts->fold,
                       j->rounds[0].seconds, 0.1);
    rounds_advance(co, j);
    done(co, j, 0, 2, a)->older = done(co, j, 1, 2, b)->older = true;
    rounds_close(co, j, 0);
    assert_int_equal(j->rounds[1].parts.worker, 0);
    struct job *old = job_of(co, diloco, 9); /* of workers of the release before */
    rounds_advance(co, old);
    (void)done(co, old, 0, 1, a);
    t = done(co, old, 1, 1, b);
    t->ended_ms = core_now(co) + 1;
    t->leased_ms = t->ended_ms - 1000;
    rounds_close(co, old, 0);
    assert_int_equal(old->rounds[0].parts.worker, b->id);
    assert_float_equal(old->rounds[0].parts.steps, 0.5, 1e-4);
}

/* A phase that nobody has is closed without: who has contributed hears of it, and the replica goes
 * on where it would have been. */
static void a_round_is_closed_without_a_phase(void **state)
{
    struct coordinator *co = *state;
    struct job *j = job_of(co, diloco, 9);
    struct worker *a = here(co), *b = here(co);
    rounds_advance(co, j);
    (void)done(co, j, 0, 1, a);
    struct task *t = phase_of(co, j, 0, 1);
    task_add_contribution(t, &(struct contribution){.module_id = j->modules[0].id,
                                                    .base_version = 7, /* not what is wanted */
                                                    .worker_id = b->id});
    new_version(j, 1);
    rounds_close(co, j, 0);
    assert_int_equal(t->state, TASK_CANCELLED);
    assert_string_equal(t->reason, "round 0 of path 0 was closed without it");
    assert_true(t->train.contributions[0].refused);
    assert_true(b->n_verdicts == 1 && !b->verdicts[0].accepted);
    assert_string_equal(b->verdicts[0].reason, t->reason);
    assert_int_equal(j->paths[0].replicas[1].step, 2);
    assert_true(j->rounds[0].contributions == 1 && j->rounds[0].expected == 2);
    assert_int_equal(j->phases_done, 1);
}

/* Its worker is lost, but all that it was to contribute is in the version: then it counts. */
static void a_lost_phase_that_gave_all_counts(void **state)
{
    struct coordinator *co = *state;
    struct job *j = job_of(co, diloco, 9);
    struct worker *a = here(co), *b = here(co);
    rounds_advance(co, j);
    (void)done(co, j, 0, 1, a);
    struct task *t = phase_of(co, j, 0, 1);
    task_add_contribution(
        t, &(struct contribution){.module_id = j->modules[0].id, .version = 1, .worker_id = b->id});
    new_version(j, 1);
    rounds_close(co, j, 0);
    assert_int_equal(t->state, TASK_DONE);
    assert_true(t->samples == 12 && t->steps == 2 && isnan(t->loss_mean));
    assert_true(b->n_verdicts == 1 && b->verdicts[0].accepted);
    assert_true(j->rounds[0].contributions == 2 && j->rounds[0].samples == 24);
    assert_true(j->rounds[0].loss == 0.5f && j->paths[0].replicas[1].step == 2);
}

/* Late for a job that takes nothing late: it is in no version, keeps no moments and counts for
 * nothing. */
static void what_is_too_late_is_refused(void **state)
{
    struct coordinator *co = *state;
    struct job *j = job_of(co,
                           HEAD "recipe: {name: diloco, replicas: 2}\n"
                                "outer: {rounds: 3, steps: 2, late: drop}\n",
                           9);
    struct worker *a = here(co), *b = here(co);
    rounds_advance(co, j);
    (void)done(co, j, 0, 1, a);
    const struct task *t = done(co, j, 1, 0, b);
    new_version(j, 1);
    rounds_close(co, j, 0);
    assert_true(t->train.contributions[0].refused);
    assert_non_null(strstr(t->reason, "it came too late: module"));
    assert_true(!b->verdicts[0].accepted && strcmp(b->verdicts[0].reason, t->reason) == 0);
    assert_true(j->phases_done == 1 && j->rounds[0].contributions == 1);
    assert_int_equal(j->paths[0].replicas[1].moments.size, 0);
    assert_int_equal(j->n_late, 0);
}

/* A job at round 1, whose first replicas train for that; the last one's phase is still of round 0.
 */
static struct job *with_a_late_phase(struct coordinator *co, const char *yaml, uint32_t others)
{
    struct job *j = job_of(co, yaml, 99);
    new_version(j, 1);
    job_edit_path(j, 0)->round = 1;
    job_edit_path(j, 0)->ready = true;
    for (uint32_t r = 0; r <= others; r++) {
        struct task *t = task_make(co, j, TASK_TRAIN);
        t->train.replica = r;
        t->train.round = r < others;
        t->train.first_step = r < others ? 20 : 0;
        job_edit_replica(j, 0, r)->task_id = t->id;
        job_edit_replica(j, 0, r)->step = t->train.first_step;
        assert_true(task_take_samples(co, j, t));
        if (r < others)
            task_lease(co, t, here(co));
    }
    return j;
}

/* A late phase that ends waits for the next version, and its replica joins the round, at the step
 * of the others. */
static void who_was_late_joins_the_round(void **state)
{
    static const char *const yaml[] = {diloco, ELASTIC("")};
    for (int i = 0; i < 2; i++) {
        if (i > 0 && (bare_end(state), bare_begin(state)) != 0)
            fail();
        struct coordinator *co = *state;
        struct job *j = with_a_late_phase(co, yaml[i], 1);
        const struct task *t = done(co, j, 1, 0, here(co));
        rounds_advance(co, j);
        assert_true(j->n_late == 1 && j->late[0] == t->id);
        const struct task *next = phase_of(co, j, 0, 1);
        assert_true(next != NULL && next != t && next->train.round == 1);
        assert_int_equal(next->train.first_step, 20);
        assert_int_equal(j->phases_done, 0); /* it is in no version yet */
        task_edit_contribution(state_edit_task(&co->state, t), &t->train.contributions[0])
            ->version = 2;
        rounds_advance(co, j);
        assert_true(j->n_late == 0 && j->phases_done == 1 && j->paths[0].sum.phases == 1);
    }
}

/* One whose worker is lost is begun anew in a round of all replicas; in an elastic one the others
 * do without it, if there are any. */
static void a_late_phase_is_lost(void **state)
{
    static const struct {
        const char *yaml;
        uint32_t others;
        bool anew;
    } cases[] = {{diloco, 1, true}, {ELASTIC(""), 1, false}, {ELASTIC(""), 0, true}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        if (i > 0 && (bare_end(state), bare_begin(state)) != 0)
            fail();
        struct coordinator *co = *state;
        struct job *j = with_a_late_phase(co, cases[i].yaml, cases[i].others);
        const struct task *t = phase_of(co, j, 0, cases[i].others);
        rounds_advance(co, j);
        assert_int_equal(t->state, TASK_CANCELLED);
        const struct task *next = phase_of(co, j, 0, cases[i].others);
        assert_int_equal(next != NULL, cases[i].anew);
        assert_true(next == NULL || next->train.round == 1);
    }
}

/* After a restart: ended phases that are in no version, of jobs with rounds that go on, and only
 * those that are not their replica's present one. */
static void what_waits_is_found_again(void **state)
{
    enum { WAITS, IN_A_VERSION, PRESENT, AT_WORK, ENDED, ASYNC, CASES };
    for (int i = 0; i < CASES; i++) {
        if (i > 0 && (bare_end(state), bare_begin(state)) != 0)
            fail();
        struct coordinator *co = *state;
        struct job *j = job_of(co, i == ASYNC ? async : diloco, 9);
        rounds_advance(co, j);
        struct task *t = phase_of(co, j, 0, 1);
        if (i == AT_WORK)
            task_lease(co, t, here(co));
        else
            (void)done(co, j, 1, i == IN_A_VERSION, here(co));
        if (i != PRESENT)
            job_edit_replica(j, 0, 1)->task_id = 0;
        if (i == ENDED)
            j->state = JOB_CANCELLED;
        rounds_resume(co);
        assert_int_equal(j->n_late, i == WAITS);
    }
}

/* Samples of a full phase tell how many the next one needs. */
static void timed_phases_are_scaled(void **state)
{
    static const struct {
        float seconds;
        uint64_t samples_last;
    } cases[] = {{50, 24}, {200, 6}, {0.005f, 12}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        if (i > 0 && (bare_end(state), bare_begin(state)) != 0)
            fail();
        struct coordinator *co = *state;
        struct job *j = job_of(co,
                               HEAD "recipe: {name: diloco, replicas: 1}\n"
                                    "outer: {rounds: 3, seconds: 100}\n",
                               9);
        rounds_advance(co, j);
        done(co, j, 0, 1, here(co))->seconds = cases[i].seconds;
        new_version(j, 1);
        rounds_close(co, j, 0);
        assert_int_equal(j->paths[0].replicas[0].samples_last, cases[i].samples_last);
    }
}

/* Without rounds a path has rounds x replicas phases, whoever makes them, and no more. */
static void phases_without_rounds_are_counted(void **state)
{
    static const struct {
        uint64_t phases; /* applied before; of 6 */
        uint32_t made;
    } cases[] = {{0, 2}, {4, 2}, {5, 1}, {6, 0}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        if (i > 0 && (bare_end(state), bare_begin(state)) != 0)
            fail();
        struct coordinator *co = *state;
        struct job *j = job_of(co,
                               HEAD "recipe: {name: diloco, replicas: 2}\n"
                                    "outer: {rounds: 3, seconds: 100, async: true}\n",
                               9);
        struct path_rec *path = job_edit_path(j, 0);
        path->phases = cases[i].phases;
        path->round = (uint32_t)(cases[i].phases / 2);
        rounds_advance(co, j);
        assert_int_equal(phases(co, j, 0), cases[i].made);
        rounds_advance(co, j);
        assert_int_equal(phases(co, j, 0), cases[i].made);
        if (cases[i].phases != 4)
            continue;
        (void)done(co, j, 0, 5, here(co)); /* the fifth: the sixth is under way */
        rounds_advance(co, j);
        assert_true(phases(co, j, 0) == 1 && j->n_rounds == 0);
        (void)done(co, j, 1, 6, here(co));
        rounds_advance(co, j);
        assert_true(phases(co, j, 0) == 0 && j->n_rounds == 1 && path->round == 3);
        assert_true(j->rounds[0].samples == 24 && j->rounds[0].contributions == 2);
        assert_int_equal(j->paths[0].sum.phases, 0);
    }
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, bare_begin, bare_end)

int main(void)
{
    log_set_level(LOG_LEVEL_ERROR);
    const struct CMUnitTest tests[] = {
        TEST(all_replicas_have_a_phase),
        TEST(elastic_rounds_count_who_can_train),
        TEST(elastic_rounds_go_where_the_moments_are),
        TEST(nobody_is_here_and_one_phase_waits),
        TEST(elastic_jobs_divide_the_workers),
        TEST(elastic_paths_divide_the_workers),
        TEST(paths_that_are_done_leave_theirs),
        TEST(moments_that_are_here_come_first),
        TEST(a_late_phase_is_one_of_them),
        TEST(there_are_samples_for_what_begins),
        TEST(too_many_tasks_are_open),
        TEST(a_path_waits_for_its_modules),
        TEST(the_next_phases_begin_together),
        TEST(a_round_adds_up),
        TEST(a_round_has_parts),
        TEST(a_round_is_closed_without_a_phase),
        TEST(a_lost_phase_that_gave_all_counts),
        TEST(what_is_too_late_is_refused),
        TEST(who_was_late_joins_the_round),
        TEST(a_late_phase_is_lost),
        TEST(what_waits_is_found_again),
        TEST(timed_phases_are_scaled),
        TEST(phases_without_rounds_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
