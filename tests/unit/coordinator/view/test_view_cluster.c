/* Who is late, of those that something waits for. */
#include "tests/unit/coordinator/rig.h"

struct seen {
    unsigned n, late;
    char who[128], why[REASON_MAX]; /* of the first that is late */
};

static void see(void *arg, const struct view_waiting *v)
{
    struct seen *s = arg;
    s->n++;
    if (!v->late)
        return;
    if (s->late++ == 0) {
        (void)str_copy(s->who, sizeof(s->who), v->what);
        (void)str_copy(s->why, sizeof(s->why), v->why);
    }
}

static struct seen look(struct rig *r, uint64_t job)
{
    struct seen s = {0};
    view_each_waiting(r->co, job, see, &s);
    assert_true(s.n > 0);
    return s;
}

static void test_late(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0], *b = &r->workers[1];
    struct job *j = state_job(&r->co->state, submit(r));
    loop_turn(r->loop, true);
    /* Nobody is there: nothing will come by itself. */
    assert_string_equal(look(r, j->id).why, "no worker is here; start one with workerd --join");

    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    assert_int_equal(join(r, b, SKERRY_VERSION), 0);
    do_init(r, a);
    assign(r, a, TASK_TRAIN);
    /* The first phase is being trained, the second one waits: as it should be. */
    assert_int_equal(look(r, j->id).late, 0);
    assign(r, b, TASK_TRAIN);
    finish_train(r, a);
    finish_train(r, b);
    while (j->n_rounds == 0)
        loop_turn(r->loop, true);

    assign(r, a, TASK_TRAIN);
    assert_int_equal(look(r, j->id).late, 0);
    /* As if the second round had begun long before. */
    struct path_rec *path = job_edit_path(j, 0);
    const uint64_t usual_ms = (uint64_t)(j->rounds[0].seconds * 1e3f);
    path->ready_ms = core_now(r->co) - 10 * usual_ms - 60000;
    assert_int_equal(look(r, j->id).late, 1);
    assert_string_equal(look(r, j->id).who, "worker 1 (fake)");
    /* The only worker holds up nobody. */
    edit_worker(r, b->id)->state = WORKER_LEFT;
    assert_int_equal(look(r, j->id).late, 0);
    edit_worker(r, b->id)->state = WORKER_HERE;

    /* Not heard of for longer than it should be. */
    path->ready_ms = core_now(r->co);
    assert_int_equal(look(r, j->id).late, 0);
    edit_worker(r, a->id)->heard_ms = core_now(r->co) - 5000;
    assert_string_equal(look(r, j->id).why, "not heard of for 5.0 s");
}

static void beat(struct rig *r, struct fake *w, uint32_t steps)
{
    Skerry__V1__HeartbeatRequest m = SKERRY__V1__HEARTBEAT_REQUEST__INIT;
    Skerry__V1__Progress p = SKERRY__V1__PROGRESS__INIT;
    m.progress = &p;
    p.task_id = w->task->id;
    p.attempt = w->task->attempt;
    p.steps_done = steps;
    p.steps_total = 1000;
    assert_int_equal(CALL(r, w, HEARTBEAT, heartbeat, &m), 0);
}

static void keep_until(void *arg, const struct view_waiting *v)
{
    if (v->worker_id != 0)
        *(int64_t *)arg = v->until_ms;
}

/* A phase goes on where another worker was cut: those steps took this one no time. */
static void test_phase_that_goes_on(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0];
    const uint64_t job = submit(r);
    int64_t until = 0;
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    do_init(r, a);
    assign(r, a, TASK_TRAIN);
    beat(r, a, 0);
    beat(r, a, 900);
    edit_task(r, a->task->id)->first_ms -= 10000; /* as if time had passed */
    beat(r, a, 910);
    view_each_waiting(r->co, job, keep_until, &until);
    assert_in_range(until, 90000, 99000);
}

static void last_why(void *arg, const struct view_waiting *v)
{
    (void)str_copy(arg, REASON_MAX, v->why);
}

/* A task that nobody has done is kept for nobody: what the worker that idles was told counts. */
static void test_idle(void **state)
{
    struct rig *r = *state;
    const uint64_t job = submit(r);
    char why[REASON_MAX];
    loop_turn(r->loop, true);
    assert_int_equal(join(r, &r->workers[0], SKERRY_VERSION), 0);
    struct worker *w = edit_worker(r, r->workers[0].id);
    view_each_waiting(r->co, job, last_why, why);
    assert_string_equal(why, "the only worker is busy");
    w->parked = (void *)why;
    view_each_waiting(r->co, job, last_why, why);
    assert_string_equal(why, "a worker that idles is about to get it");
    (void)snprintf(w->waiting_for, sizeof(w->waiting_for), "task %llu waits after a failure",
                   (unsigned long long)r->co->state.tasks[0]->id);
    view_each_waiting(r->co, job, last_why, why);
    assert_string_equal(why, "it waits after a failure");
    w->parked = NULL;
}

/* Some more than fit, the first of them silent for too long. */
static void crowd(struct rig *r, uint64_t job, unsigned n, const struct worker **ret_late)
{
    struct state *s = &r->co->state;
    for (unsigned i = 0; i < n; i++) {
        struct worker *w = state_add_worker(s, 0);
        struct task *t = state_add_task(s, 0, job, TASK_FEATURE);
        state_set_worker_state(s, w, i % 2 == 0 ? WORKER_HERE : WORKER_LEFT);
        w->heard_ms = core_now(r->co);
        w->task_id = t->id;
        t->worker_id = w->id;
        t->progress_ms = t->leased_ms = core_now(r->co);
        state_set_task_state(s, t, TASK_LEASED);
        if (i == n - 2) {
            w->heard_ms -= 5000;
            *ret_late = w;
        }
    }
}

struct listed {
    uint64_t first, last;
    unsigned n, here;
};

static void list_worker(void *arg, const struct view_worker *v)
{
    struct listed *l = arg;
    l->first = l->n++ == 0 ? v->worker->id : l->first;
    assert_true(v->worker->id > l->last);
    l->last = v->worker->id;
    l->here += v->worker->state == WORKER_HERE;
}

static void list_task(void *arg, const struct view_task *v)
{
    struct listed *l = arg;
    assert_true(l->n++ == 0 || v->task->id < l->last);
    l->last = v->task->id;
}

static void last_line(void *arg, const struct view_waiting *v)
{
    (void)str_copy(arg, 128, v->what);
}

/* Those who are here, by rank and then by id. */
static void list_some(void *arg, const struct view_worker *v)
{
    struct listed *l = arg;
    l->first = l->n++ == 0 ? v->worker->id : l->first;
    l->last = v->worker->id;
    l->here += v->worker->state == WORKER_HERE;
    assert_true(l->here == l->n || v->worker->state != WORKER_HERE);
}

/* Of more than there is room for: the late one first, and how many more there are; pages have
 * all. */
static void test_crowd(void **state)
{
    enum { N = 3 * VIEW_WAITING_MAX };
    struct rig *r = *state;
    const uint64_t job = submit(r);
    const struct worker *late = NULL;
    char what[128];
    loop_turn(r->loop, true);
    struct seen s = look(r, job);
    const unsigned before = s.n;
    crowd(r, job, N, &late);
    s = look(r, job);
    assert_int_equal(s.n, VIEW_WAITING_MAX);
    (void)snprintf(what, sizeof(what), "worker %llu ()", (unsigned long long)late->id);
    assert_string_equal(s.who, what);
    view_each_waiting(r->co, job, last_line, what);
    char more[32];
    (void)snprintf(more, sizeof(more), "%u more", before + N - (VIEW_WAITING_MAX - 1));
    assert_string_equal(what, more);

    struct listed l = {0};
    assert_true(view_workers(r->co, 0, SIZE_MAX, 70, list_worker, &l));
    assert_int_equal(l.n, 70);
    while (view_workers(r->co, l.last, SIZE_MAX, 70, list_worker, &l))
        ;
    assert_int_equal(l.n, r->co->state.n_workers);
    const struct worker *last = NULL; /* it is the only one that has just left */
    for (size_t i = 0; i < r->co->state.n_workers && last == NULL; i++)
        last = r->co->state.workers[i]->state != WORKER_HERE ? r->co->state.workers[i] : NULL;
    edit_worker(r, last->id)->since_unix_ms = core_unix_ms(r->co) - 5000;
    l = (struct listed){0};
    assert_false(view_workers(r->co, 0, 1, 1000, list_worker, &l));
    assert_int_equal(l.here, N / 2);
    assert_int_equal(l.n, N / 2 + 1);
    struct view_worker gone;
    assert_int_equal(view_worker(r->co, last->id, &gone, NULL), 0);
    assert_in_range(gone.heartbeat_age_ms, 5000, 5000 + DEADLINE_MS);
    l = (struct listed){0};
    view_some_workers(r->co, N / 2 + 10, list_some, &l);
    assert_int_equal(l.here, N / 2);
    assert_int_equal(l.n, N / 2 + 10);
    struct worker *newest = NULL; /* of many that are gone, that with the highest id */
    for (size_t i = 0; i < r->co->state.n_workers; i++)
        if (r->co->state.workers[i]->state != WORKER_HERE)
            newest = edit_worker(r, r->co->state.workers[i]->id);
    newest->since_unix_ms = core_unix_ms(r->co);
    l = (struct listed){0};
    view_some_workers(r->co, N / 2 + 1, list_some, &l);
    assert_int_equal(l.n, N / 2 + 1);
    assert_int_equal(l.last, newest->id);
    l = (struct listed){0};
    view_some_workers(r->co, 10, list_some, &l);
    assert_int_equal(l.here, 10);
    assert_int_equal(l.first, late->id);

    l = (struct listed){0};
    assert_true(view_tasks(r->co, job, "leased", 0, N - 1, list_task, &l));
    assert_false(view_tasks(r->co, job, "leased", l.last, N, list_task, &l));
    assert_int_equal(l.n, N);
    for (size_t i = 0; i < r->co->state.n_workers; i++) /* their connections are none */
        state_set_worker_state(&r->co->state, edit_worker(r, r->co->state.workers[i]->id),
                               WORKER_LEFT);
}

struct place {
    uint64_t task;
    unsigned n, at; /* at: its line, from 1; 0: none */
};

static void place_line(void *arg, const struct view_waiting *v)
{
    struct place *p = arg;
    p->n++;
    if (v->task_id == p->task)
        p->at = p->n;
}

static unsigned place_of(struct rig *r, uint64_t task)
{
    struct place p = {.task = task};
    view_each_waiting(r->co, 0, place_line, &p);
    assert_int_equal(p.n, VIEW_WAITING_MAX);
    return p.at;
}

static const char many[] = "name: many\ndata: {path: x, image_size: 16}\n"
                           "model: {type: dit, patch: 4, dim: 32, depth: 1, heads: 2}\n"
                           "train: {batch: 30, lr: 0.1}\nrecipe: {name: ddm, experts: 30}\n"
                           "outer: {rounds: 2, steps: 2}\n";

/* Neither more modules than there are lines nor more paths hide who is late and what is blocked. */
static void test_crowd_of_modules(void **state)
{
    enum { JOBS = 4, PATHS = VIEW_WAITING_MAX + 20 };
    struct rig *r = *state;
    struct state *s = &r->co->state;
    const struct worker *late = NULL;
    struct job *jobs[JOBS];
    for (int i = 0; i < JOBS; i++)
        jobs[i] = state_job(s, submit_spec(r, many));
    const uint64_t other = submit(r);
    loop_turn(r->loop, true);
    const enum job_state was = jobs[0]->state;
    for (int i = 0; i < JOBS; i++)
        jobs[i]->state = JOB_RUNNING;
    struct job *j = jobs[JOBS - 1];
    assert_true(JOBS * j->comp.n_modules > VIEW_WAITING_MAX);
    crowd(r, j->id, 2, &late);
    for (uint32_t i = 0; i < PATHS; i++) {
        struct task *t = state_add_task(s, 0, j->id, TASK_FEATURE);
        t->path = i;
        state_set_task_state(s, t, TASK_PENDING);
    }
    struct task *blocked = state_add_task(s, 0, other, TASK_FEATURE);
    blocked->not_before_ms = core_now(r->co) + 60000;
    state_set_task_state(s, blocked, TASK_PENDING);
    assert_int_equal(place_of(r, late->task_id), 1);
    /* After the first task of each job, and all paths' of the last one in one line. */
    assert_int_equal(place_of(r, blocked->id), 1 + (JOBS + 1) + 1 + 1);
    struct module_rec *m = job_edit_module(j, &j->modules[j->comp.n_modules - 1]);
    m->retry_ms = core_now(r->co) + 60000; /* it is late, too */
    assert_int_equal(place_of(r, late->task_id), 2);
    m->retry_ms = 0;
    for (int i = 0; i < JOBS; i++)
        jobs[i]->state = was;
    state_set_worker_state(s, edit_worker(r, late->id), WORKER_LEFT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_late, begin, end),
        cmocka_unit_test_setup_teardown(test_phase_that_goes_on, begin, end),
        cmocka_unit_test_setup_teardown(test_idle, begin, end),
        cmocka_unit_test_setup_teardown(test_crowd, begin, end),
        cmocka_unit_test_setup_teardown(test_crowd_of_modules, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
