/* Who of the waiting workers gets which task, and who waits for whom.  A state without a
 * coordinator (bare.h); answers are counted, not sent. */
#include "coordinator/rpc/assign.h"

#include "coordinator/job/rounds.h"
#include "coordinator/work/query.h"
#include "coordinator/work/tasks.h"
#include "tests/unit/coordinator/over_data.h"

#define WORKERS 8

/* In place of requests that wait. */
static max_align_t requests[WORKERS][16];

static int assign_begin(void **state)
{
    const int rc = bare_begin(state);
    struct coordinator *co = *state;
    list_init(&co->next.replies);
    return rc;
}

static int assign_end(void **state)
{
    struct coordinator *co = *state;
    for (struct list *l; (l = list_pop(&co->next.replies)) != NULL;)
        mem_free(list_entry(l, struct reply, link));
    return bare_end(state);
}

/* Between two cases of one test. */
static struct coordinator *anew(void **state)
{
    assert_int_equal(assign_end(state), 0);
    assert_int_equal(assign_begin(state), 0);
    return *state;
}

/* Asks for a task; is answered without one after an hour. */
static struct worker *asks(struct coordinator *co, struct worker *w)
{
    assert_true(w->id <= WORKERS);
    state_park(&co->state, w, (struct rpc_request *)(void *)requests[w->id - 1],
               core_now(co) + 3600000);
    return w;
}

static struct worker *newcomer(struct coordinator *co)
{
    struct worker *w = here(co);
    w->tasks_done = 0;
    return w;
}

static const struct task *task_of(const struct coordinator *co, const struct worker *w)
{
    return w->task_id ? state_task(&co->state, w->task_id) : NULL;
}

/* A task that every worker could do; it has been ready for a while. */
static struct task *some_task(struct coordinator *co, const struct job *j, enum task_kind kind)
{
    struct task *t = task_make(co, (struct job *)(uintptr_t)j, kind);
    t->ready_ms -= 10;
    return t;
}

/* ---- moments ------------------------------------------------------------- */

/* Each its own replica, whoever asks first. */
static void owners_get_their_replicas(void **state)
{
    struct coordinator *co = *state;
    struct job *j = job_of(co, diloco, 9);
    struct worker *a = here(co), *b = here(co);
    rounds_advance(co, j);
    job_edit_replica(j, 0, 0)->owner = a->id;
    job_edit_replica(j, 0, 1)->owner = b->id;
    (void)asks(co, b);
    (void)asks(co, a);
    assign_parked(co);
    assert_int_equal(task_of(co, b)->train.replica, 1);
    assert_int_equal(task_of(co, a)->train.replica, 0);
    assert_true(a->parked == NULL && b->parked == NULL && co->n_replies == 2);
    const struct reply *r = list_entry(co->next.replies.next, struct reply, link);
    assert_true(r->worker_id == b->id && r->task_id == b->task_id && r->attempt == 1);
}

/* Another worker gets a phase when its owner has been waited for: not at all if that is gone, may
 * not work or is at something long; for two seconds if it is about to ask; and longer if it
 * evaluates, draws or folds, half of the last round at most. */
static void owners_are_waited_for(void **state)
{
    enum doing { ASKS_SOON, LEFT, QUARANTINED, TRAINS, CHECKS, INGESTS, EVALUATES, FOLDS };
    static const enum task_kind kinds[] = {[TRAINS] = TASK_TRAIN,
                                           [CHECKS] = TASK_CHECK,
                                           [INGESTS] = TASK_INGEST,
                                           [EVALUATES] = TASK_EVAL,
                                           [FOLDS] = TASK_OUTER};
    static const struct {
        enum doing owner;
        uint32_t ready_ms; /* since when the phase waits */
        float round_s;     /* that the last round took; 0: there was none */
        bool given;
    } cases[] = {
        {ASKS_SOON, 1000, 0, false},      {ASKS_SOON, 2500, 0, true},
        {ASKS_SOON, 2500, 1000, true},    {LEFT, 0, 0, true},
        {QUARANTINED, 0, 0, true},        {TRAINS, 0, 0, true},
        {CHECKS, 0, 1000, true},          {INGESTS, 0, 1000, true},
        {FOLDS, 9000, 1000, false},       {TRAINS, 0, 1000, true},
        {EVALUATES, 9000, 0, false},      {EVALUATES, 11000, 0, true},
        {EVALUATES, 9000, 2, false},      {EVALUATES, 11000, 2, true},
        {EVALUATES, 45000, 100, false},   {EVALUATES, 51000, 100, true},
        {EVALUATES, 299000, 9000, false}, {EVALUATES, 301000, 9000, true},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct coordinator *co = anew(state);
        struct job *j = job_of(co, diloco, 9), *other = job_of(co, async, 9);
        struct worker *owner = here(co), *w = here(co);
        other->quota.priority = -1;
        rounds_advance(co, j);
        if (cases[i].round_s > 0)
            job_add_round(j, &(struct round_rec){.seconds = cases[i].round_s});
        for (uint32_t r = 0; r < 2; r++) {
            job_edit_replica(j, 0, r)->owner = owner->id;
            state_edit_task(&co->state, query_phase(&co->state, j, 0, r))->ready_ms -=
                cases[i].ready_ms;
        }
        if (cases[i].owner == LEFT)
            state_set_worker_state(&co->state, owner, WORKER_LEFT);
        if (cases[i].owner == QUARANTINED)
            owner->quarantined_until_ms = UINT64_MAX;
        if (cases[i].owner >= TRAINS)
            task_lease(co, some_task(co, other, kinds[cases[i].owner]), owner);
        (void)asks(co, w);
        assign_parked(co);
        if ((w->task_id != 0) != cases[i].given)
            fail_msg("case %zu: it is %s (%s)", i, w->task_id ? "given" : "kept", w->waiting_for);
    }
}

/* Another worker would have to fetch what the step starts from. */
static void an_outer_step_waits_for_its_maker(void **state)
{
    static const struct {
        enum task_kind doing;
        uint32_t ready_ms;
        bool given;
        double rate; /* at which the maker sends; the version has 1000 bytes */
    } cases[] = {{TASK_EVAL, 7000, false},       {TASK_EVAL, 9000, true},
                 {TASK_EVAL, 1000, false, 2000}, {TASK_EVAL, 3000, true, 2000},
                 {TASK_OUTER, 0, true},          {TASK_CHECK, 0, true}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct coordinator *co = anew(state);
        struct job *j = job_of(co, diloco, 9);
        struct worker *owner = here(co), *w = here(co);
        struct task *t = some_task(co, j, TASK_OUTER);
        t->outer.module_id = j->modules[0].id;
        t->ready_ms -= cases[i].ready_ms;
        struct module_rec *m = job_edit_module(j, &j->modules[0]);
        m->fold_for = owner->id;
        m->n_versions = 1;
        m->versions[0].full.size = 1000;
        owner->sends_bytes_per_s = cases[i].rate;
        task_lease(co, some_task(co, j, cases[i].doing), owner);
        (void)str_copy(w->version, sizeof(w->version), SKERRY_VERSION);
        (void)asks(co, w);
        assign_parked(co);
        if ((w->task_id == t->id) != cases[i].given)
            fail_msg("case %zu: it is %s (%s)", i, w->task_id ? "given" : "kept", w->waiting_for);
    }
}

/* ---- which task ---------------------------------------------------------- */

/* By priority and share of the job that a task is of, wherever that stands among the jobs. */
static void jobs_are_served_by_priority_and_share(void **state)
{
    for (int best = 0; best < 5; best++) {
        struct coordinator *co = anew(state);
        struct job *j[5];
        for (int i = 0; i < 5; i++) {
            j[i] = add(&co->state, diloco);
            (void)some_task(co, j[i], TASK_INIT);
        }
        j[best]->quota.priority = 1;
        struct worker *w = asks(co, here(co)), *next = asks(co, here(co));
        assign_parked(co);
        assert_int_equal(task_of(co, w)->job_id, j[best]->id);
        assert_int_equal(task_of(co, next)->job_id, j[best == 0 ? 1 : 0]->id);

        co = anew(state); /* the others have leases */
        for (int i = 0; i < 5; i++) {
            j[i] = add(&co->state, diloco);
            (void)some_task(co, j[i], TASK_FEATURE);
            j[i]->leases = i != best;
        }
        w = asks(co, here(co));
        assign_parked(co);
        assert_int_equal(task_of(co, w)->job_id, j[best]->id);

        co = anew(state); /* the others are paused */
        for (int i = 0; i < 5; i++) {
            j[i] = add(&co->state, diloco);
            (void)some_task(co, j[i], TASK_INIT);
            j[i]->paused = i != best;
        }
        w = asks(co, here(co));
        next = asks(co, here(co));
        assign_parked(co);
        assert_int_equal(task_of(co, w)->job_id, j[best]->id);
        assert_int_equal(next->task_id, 0);
        assert_non_null(strstr(next->waiting_for, "paused"));
    }
}

/* Paths that are behind go first, so that more paths than workers advance together. */
static void paths_that_are_behind_go_first(void **state)
{
    struct coordinator *co = *state;
    struct job *j = add(&co->state, dipaco);
    in_partitions(j);
    for (uint32_t p = 0; p < 4; p++) {
        struct task *t = some_task(co, j, TASK_TRAIN);
        t->path = p;
        t->train.round = p == 2 ? 1 : 2;
        job_edit_path(j, p)->round = t->train.round;
    }
    struct worker *w = asks(co, here(co));
    assign_parked(co);
    assert_int_equal(task_of(co, w)->path, 2);
}

/* An evaluation or a sample of a job's own goes to who has no phase to begin.  It comes first when
 * a round has ended without it, a person waits for it, or the guard. */
static void evaluations_let_phases_go_first(void **state)
{
    enum { EVAL, SAMPLE, LATE_EVAL, LATE_SAMPLE, ASKED, DOUBTED, DOUBTED_BEST, CASES };
    for (int i = 0; i < CASES; i++) {
        struct coordinator *co = anew(state);
        struct job *j = job_of(co, diloco, 9);
        const bool draws = i == SAMPLE || i == LATE_SAMPLE || i == ASKED;
        struct task *t = some_task(co, j, draws ? TASK_SAMPLE : TASK_EVAL);
        struct path_rec *path = job_edit_path(j, 0);
        t->draw.version = 1;
        t->draw.asked = i == ASKED;
        path->round = i == LATE_EVAL || i == LATE_SAMPLE ? 2 : 1;
        if (i == DOUBTED)
            path->doubt = (struct eval_doubt){.worker = 9, .version = 1};
        if (i == DOUBTED_BEST)
            path->doubt = (struct eval_doubt){.worker = 9, .version = 3, .best_task = t->id};
        const struct task *phase = some_task(co, j, TASK_TRAIN);
        struct worker *a = asks(co, here(co)), *b = asks(co, here(co));
        assign_parked(co);
        const bool first = i >= LATE_EVAL;
        if (a->task_id != (first ? t->id : phase->id) || b->task_id != (first ? phase->id : t->id))
            fail_msg("case %d: it goes %s the phase", i, a->task_id == t->id ? "before" : "after");
    }
}

/* While a round is folded its workers wait for their next phases: a CHECK is for somebody else, or
 * for who is so early that it ends before the others' phases.  Not for ever; and for who makes the
 * outer steps still later. */
static void a_check_keeps_nobody_from_a_phase(void **state)
{
    enum {
        FOLDS,
        NOBODYS,
        EARLY,
        TOO_LATE,
        SPARE,
        LAST_ROUND,
        ELASTIC,
        WAITED,
        MAKES_STEPS,
        MAKES_WAITED,
        MAKES_NO_MORE,
        CASES
    };
    static const char elastic[] = HEAD "recipe: {name: diloco, replicas: auto}\n"
                                       "outer: {rounds: 9, steps: 2}\n";
    for (int i = 0; i < CASES; i++) {
        struct coordinator *co = anew(state);
        struct job *j = job_of(co, i == ELASTIC ? elastic : diloco, 99);
        struct worker *a = here(co), *b = here(co), *w = i == NOBODYS || i == SPARE ? here(co) : a;
        j->spec.outer.rounds = i == LAST_ROUND ? 1 : 9;
        rounds_advance(co, j);
        for (uint32_t r = 0; r < 2; r++) {
            struct task *t = state_edit_task(&co->state, query_phase(&co->state, j, 0, r));
            const bool early = r == 1 && (i == EARLY || i == TOO_LATE);
            task_lease(co, t, r == 0 ? a : b);
            t->first_ms = core_now(co) - 1000; /* a step in a second */
            t->steps_done = 1;
            t->steps_total = i == EARLY ? 100 : 2;
            if (!early)
                task_end(co, t, TASK_DONE, "");
            (r == 0 ? a : b)->task_id = early ? t->id : 0;
        }
        a->phase_job = j->id;
        a->phase_ms = 5000;
        if (i == NOBODYS)
            state_set_worker_state(&co->state, b, WORKER_LOST);
        struct task *c = some_task(co, j, TASK_CHECK);
        c->train.round = 0;
        job_edit_path(j, 0)->round = i == MAKES_WAITED ? 3 : i >= WAITED ? 2 : 0;
        job_edit_module(j, &j->modules[0])->folded_by = i >= MAKES_STEPS ? w->id : 0;
        j->spec.outer.rounds = i == MAKES_NO_MORE ? 2 : j->spec.outer.rounds;
        (void)str_copy(w->version, sizeof(w->version), SKERRY_VERSION);
        (void)asks(co, w);
        assign_parked(co);
        const bool given = i != FOLDS && i != NOBODYS && i != TOO_LATE && i != MAKES_STEPS;
        if ((w->task_id == c->id) != given)
            fail_msg("case %d: it is %s (%s)", i, given ? "kept" : "given", w->waiting_for);
    }
}

/* A phase may go to anybody, but what is folded or checked only to who has done tasks well. */
static void some_tasks_are_for_known_workers(void **state)
{
    static const enum task_kind kinds[] = {TASK_OUTER, TASK_CHECK};
    for (int i = 0; i < 2; i++) {
        struct coordinator *co = anew(state);
        struct job *j = add(&co->state, diloco);
        (void)some_task(co, j, kinds[i]);
        struct worker *w = asks(co, newcomer(co));
        assign_parked(co);
        assert_int_equal(w->task_id, 0);
    }
}

/* ---- which worker -------------------------------------------------------- */

/* Proven workers by arrival, then new ones by age, then those that only fail. */
static void who_is_served_first(void **state)
{
    struct coordinator *co = *state;
    struct job *j = add(&co->state, diloco);
    struct worker *fails = newcomer(co), *older = newcomer(co), *newer = newcomer(co),
                  *second = here(co), *first = here(co);
    struct worker *const order[] = {first, second, older, newer, fails};
    fails->failures_row = fails->strikes = 1;
    (void)asks(co, fails);
    (void)asks(co, newer);
    (void)asks(co, older);
    (void)asks(co, first);
    (void)asks(co, second);
    for (int i = 0; i < 5; i++) {
        (void)some_task(co, j, TASK_INIT);
        assign_parked(co);
        for (int k = 0; k < 5; k++)
            assert_int_equal(order[k]->task_id != 0, k <= i);
    }
}

/* Who has just reported is about to ask, and does so before somebody new gets its next task; who is
 * known is served at once. */
static void who_reports_is_waited_for(void **state)
{
    enum { REPORTED, LONG_AGO, NEW, GOES, ASKED, AWAY, CASES };
    for (int i = 0; i < CASES; i++) {
        struct coordinator *co = anew(state);
        struct worker *a = here(co), *b = newcomer(co);
        (void)some_task(co, add(&co->state, diloco), TASK_INIT);
        a->peer = (struct rpc_peer *)(void *)requests[0];
        a->reported_ms = core_now(co) - (i == LONG_AGO ? 600 : 100);
        a->tasks_done = i != NEW;
        a->drain = i == GOES;
        if (i == AWAY)
            a->peer = NULL;
        (void)asks(co, b);
        if (i == ASKED)
            (void)asks(co, a);
        assign_parked(co);
        assert_int_equal(b->task_id != 0, i != REPORTED && i != ASKED);
        assert_int_equal(a->task_id != 0, i == ASKED);
    }
    struct coordinator *co = anew(state);
    struct worker *a = here(co), *b = here(co);
    (void)some_task(co, add(&co->state, diloco), TASK_INIT);
    a->peer = (struct rpc_peer *)(void *)requests[0];
    a->reported_ms = core_now(co);
    (void)asks(co, b);
    assign_parked(co);
    assert_true(b->task_id != 0);
}

/* A drawing whose experts others have is for a worker beside which somebody can answer. */
static void a_remote_drawing_needs_another_worker(void **state)
{
    enum { ALONE, OTHER_IDLES, OTHER_DRAWS_SO, OTHER_GOES, OTHER_TRAINS, CASES };
    for (int i = 0; i < CASES; i++) {
        struct coordinator *co = anew(state);
        struct job *j = add(&co->state, ddm);
        struct task *t = some_task(co, j, TASK_SAMPLE);
        t->draw.remote = t->draw.asked = true;
        struct worker *w = asks(co, here(co)), *other = i != ALONE ? here(co) : NULL;
        if (i == OTHER_GOES)
            other->drain = true;
        if (i == OTHER_TRAINS)
            other->task_id = state_add_task(&co->state, 0, j->id, TASK_FEATURE)->id;
        if (i == OTHER_DRAWS_SO) {
            struct task *so = some_task(co, j, TASK_SAMPLE);
            so->draw.remote = true;
            task_lease(co, so, other);
        }
        assert_true(task_is_remote(t));
        assign_parked(co);
        const bool given = w->task_id == t->id;
        if (given != (i == OTHER_IDLES || i == OTHER_TRAINS))
            fail_msg("case %d: %s", i, w->waiting_for);
    }
}

/* Two that need each other do not get both. */
static void two_remote_drawings_for_two_workers(void **state)
{
    struct coordinator *co = *state;
    struct job *j = add(&co->state, ddm);
    struct worker *a = asks(co, here(co)), *b = asks(co, here(co));
    for (int i = 0; i < 2; i++)
        some_task(co, j, TASK_SAMPLE)->draw.remote = true;
    assign_parked(co);
    assert_true(a->task_id != 0 && b->task_id == 0);
    (void)asks(co, here(co));
    assign_parked(co);
    assert_true(b->task_id != 0);
}

/* Who still fetches what phases begin with gets none while others are here that have it, but other
 * tasks, and phases of other jobs. */
static void who_fetches_gets_no_phase(void **state)
{
    enum { BEHIND, NO_OTHERS, OTHER_JOB, OTHER_TASK, CASES };
    for (int i = 0; i < CASES; i++) {
        struct coordinator *co = anew(state);
        struct job *j = job_of(co, diloco, 9);
        struct worker *w = here(co), *other = here(co);
        w->ahead.due = true;
        w->ahead.job_id = i == OTHER_JOB ? 99 : j->id;
        if (i == NO_OTHERS)
            state_set_worker_state(&co->state, other, WORKER_LEFT);
        if (i == OTHER_TASK)
            (void)some_task(co, j, TASK_EVAL);
        else
            rounds_advance(co, j);
        (void)asks(co, w);
        assign_parked(co);
        assert_int_equal(w->task_id != 0, i != BEHIND);
    }
}

/* An evaluation that nobody took while its version was kept is of the newest, and known as that. */
static void an_evaluation_is_of_what_it_says(void **state)
{
    struct coordinator *co = *state;
    struct job *j = job_of(co, diloco, 9);
    struct task *t = some_task(co, j, TASK_EVAL);
    t->draw.version = 1;
    for (uint32_t m = 0; m < j->comp.n_modules; m++)
        for (uint64_t v = 1; v <= 9; v++)
            module_add_version(module_memory(&j->modules[m]), &(struct version_rec){.version = v});
    struct worker *w = asks(co, here(co));
    assign_parked(co);
    assert_int_equal(w->task_id, t->id);
    assert_int_equal(task_round(t), 9);
}

/* Who has waited for as long as it wanted to is answered, and the others go on waiting. */
static void a_wait_ends(void **state)
{
    struct coordinator *co = *state;
    struct worker *a = asks(co, here(co)), *b = asks(co, here(co));
    a->parked_until_ms = core_now(co);
    assign_parked(co);
    assert_true(a->parked == NULL && b->parked != NULL);
    assert_int_equal(co->n_replies, 1);
    assert_string_equal(b->waiting_for, "no task is ready");
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, assign_begin, assign_end)

int main(void)
{
    log_set_level(LOG_LEVEL_ERROR);
    const struct CMUnitTest tests[] = {
        TEST(owners_get_their_replicas),
        TEST(owners_are_waited_for),
        TEST(an_outer_step_waits_for_its_maker),
        TEST(jobs_are_served_by_priority_and_share),
        TEST(paths_that_are_behind_go_first),
        TEST(evaluations_let_phases_go_first),
        TEST(a_check_keeps_nobody_from_a_phase),
        TEST(some_tasks_are_for_known_workers),
        TEST(who_is_served_first),
        TEST(who_reports_is_waited_for),
        TEST(a_remote_drawing_needs_another_worker),
        TEST(two_remote_drawings_for_two_workers),
        TEST(who_fetches_gets_no_phase),
        TEST(an_evaluation_is_of_what_it_says),
        TEST(a_wait_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
