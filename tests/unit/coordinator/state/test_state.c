/* The tables: ids in order, counts and indexes that follow each change, and their limits. */
#include "tests/unit/coordinator/plain.h"

#include <math.h>

static struct task *pending(struct state *s, uint64_t job)
{
    return state_add_task(s, 0, job, TASK_TRAIN);
}

static void are_ready(const struct state *s, const uint64_t *ids, size_t n)
{
    assert_int_equal(s->n_ready, n);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(s->ready[i]->id, ids[i]);
}

/* ---- ids ---- */

/* None is given out twice, also behind those that were loaded. */
static void test_ids(void **state)
{
    struct state *s = *state;
    assert_int_equal(state_add_worker(s, 0)->id, 1);
    assert_int_equal(state_add_worker(s, 7)->id, 7);
    assert_int_equal(state_add_worker(s, 0)->id, 8);
    state_drop_worker(s, state_worker(s, 8));
    assert_int_equal(state_add_worker(s, 0)->id, 9);
    s->next_job = 5;
    assert_int_equal(state_add_job(s, 3)->id, 3);
    assert_int_equal(state_add_job(s, 0)->id, 5);
    assert_int_equal(state_add_task(s, 4, 3, TASK_INIT)->id, 4);
    assert_int_equal(pending(s, 3)->id, 5);
}

static void test_found(void **state)
{
    struct state *s = *state;
    assert_null(state_worker(s, 1));
    assert_null(state_edit_worker(s, NULL));
    assert_null(state_edit_task(s, NULL));
    for (uint64_t i = 1; i <= 40; i++)
        (void)state_add_worker(s, 2 * i);
    for (uint64_t id = 0; id <= 81; id++) {
        const struct worker *w = state_worker(s, id);
        assert_int_equal(w != NULL, id >= 2 && id % 2 == 0);
        if (w != NULL)
            assert_int_equal(w->id, id);
        assert_int_equal(state_workers_after(s, id), id / 2 < 40 ? id / 2 : 40);
    }
    state_drop_worker(s, state_worker(s, 40));
    assert_null(state_worker(s, 40));
    assert_int_equal(state_worker(s, 38)->id, 38);
    assert_int_equal(state_worker(s, 42)->id, 42);
    assert_int_equal(s->n_workers, 39);
}

static void test_modules(void **state)
{
    struct state *s = *state;
    struct job *a = add(s, dipaco), *b = add(s, diloco), *of = NULL;
    const uint64_t last = b->modules[0].id;
    assert_int_equal(last, a->comp.n_modules + 1u);
    assert_ptr_equal(state_module(s, last, &of), &b->modules[0]);
    assert_ptr_equal(of, b);
    assert_ptr_equal(state_module(s, 2, &of), &a->modules[1]);
    assert_ptr_equal(of, a);
    assert_null(state_module(s, last + 1, &of));
    assert_ptr_equal(of, a); /* untouched */
}

/* ---- marks ---- */

static void test_marks(void **state)
{
    struct state *s = *state;
    struct worker *w = state_add_worker(s, 0);
    const struct task *t = pending(s, 1);
    assert_true(w->row.edited && t->row.edited);
    (void)state_edit_worker(s, w);
    (void)state_edit_task(s, t);
    assert_true(s->workers_edited.n == 1 && s->tasks_edited.n == 1); /* once */
    assert_true(s->workers_edited.at[0] == w->id && s->tasks_edited.at[0] == t->id);
    w->bytes[0] = 5;
    w->bytes[3] = 7;
    s->bytes_gone[3] = 10;
    state_drop_worker(s, w);
    state_drop_task(s, t);
    assert_true(s->workers_gone.n == 1 && s->workers_gone.at[0] == 1);
    assert_true(s->tasks_gone.n == 1 && s->tasks_gone.at[0] == 1);
    assert_true(s->bytes_gone[0] == 5 && s->bytes_gone[3] == 17);
    state_drop_job(s, state_add_job(s, 0));
    assert_true(s->jobs_gone.n == 1 && s->jobs_gone.at[0] == 1 && s->n_jobs == 0);
}

/* ---- tasks ---- */

/* A task that is given back is ready in its old place. */
static void test_ready(void **state)
{
    struct state *s = *state;
    struct job *j = add(s, diloco);
    struct task *t[3];
    for (size_t i = 0; i < 3; i++)
        t[i] = pending(s, j->id);
    are_ready(s, (const uint64_t[]){1, 2, 3}, 3);
    assert_true(s->n_open == 3 && j->leases == 0);
    state_set_task_state(s, t[1], TASK_LEASED);
    state_set_task_state(s, t[0], TASK_LEASED);
    are_ready(s, (const uint64_t[]){3}, 1);
    assert_true(s->n_open == 3 && j->leases == 2);
    state_set_task_state(s, t[1], TASK_PENDING);
    are_ready(s, (const uint64_t[]){2, 3}, 2);
    assert_int_equal(j->leases, 1);
    state_set_task_state(s, t[0], TASK_DONE);
    assert_true(s->n_open == 2 && j->leases == 0);
    state_set_task_state(s, t[0], TASK_PENDING); /* it is done again */
    are_ready(s, (const uint64_t[]){1, 2, 3}, 3);
    assert_int_equal(s->n_open, 3);
    state_drop_task(s, t[1]);
    are_ready(s, (const uint64_t[]){1, 3}, 2);
    assert_int_equal(s->n_open, 2);
    state_set_task_state(s, t[2], TASK_LEASED);
    state_drop_task(s, t[2]);
    assert_true(s->n_open == 1 && j->leases == 0);
    assert_true(isnan(t[0]->loss) && isnan(t[0]->loss_mean) && isnan(j->loss));
}

/* ---- workers ---- */

static void test_here(void **state)
{
    struct state *s = *state;
    struct worker *a = state_add_worker(s, 0), *b = state_add_worker(s, 0);
    state_set_worker_state(s, a, WORKER_HERE);
    state_set_worker_state(s, a, WORKER_HERE);
    state_set_worker_state(s, b, WORKER_HERE);
    assert_int_equal(s->n_here, 2);
    state_set_worker_state(s, a, WORKER_LOST);
    assert_int_equal(s->n_here, 1);
    state_drop_worker(s, b);
    assert_int_equal(s->n_here, 0);
}

/* The longest waiting is the first; who is dropped waits no more. */
static void test_parked(void **state)
{
    static char requests[3]; /* only their addresses count */
    struct state *s = *state;
    struct worker *w[3];
    for (size_t i = 0; i < 3; i++) {
        w[i] = state_add_worker(s, 0);
        state_park(s, w[i], (struct rpc_request *)(void *)&requests[i], 10 + i);
    }
    assert_ptr_equal(list_entry(s->parked.next, struct worker, parked_at), w[0]);
    assert_int_equal(w[2]->parked_until_ms, 12);
    assert_ptr_equal(state_unpark(w[0]), &requests[0]);
    assert_null(state_unpark(w[0]));
    assert_ptr_equal(list_entry(s->parked.next, struct worker, parked_at), w[1]);
    state_drop_worker(s, w[1]);
    assert_ptr_equal(list_entry(s->parked.next, struct worker, parked_at), w[2]);
    assert_ptr_equal(state_unpark(w[2]), &requests[2]);
    assert_true(list_empty(&s->parked));
}

/* ---- limits ---- */

static void test_limits(void **state)
{
    struct state *s = *state;
    for (size_t i = 0; i < WORKERS_KNOWN_MAX; i++)
        assert_non_null(state_add_worker(s, 0));
    assert_null(state_add_worker(s, 0));
    for (size_t i = 0; i < JOBS_MAX + 1; i++)
        assert_non_null(state_add_job(s, 0));
    assert_null(state_add_job(s, 0));
    for (size_t i = 0; i < TASKS_OPEN_MAX; i++)
        assert_non_null(pending(s, 1));
    assert_null(pending(s, 1));
    assert_non_null(state_add_task(s, TASKS_OPEN_MAX + 1, 1, TASK_TRAIN)); /* on record */
    state_set_task_state(s, state_edit_task(s, s->tasks[0]), TASK_DONE);
    assert_null(pending(s, 1));
    state_set_task_state(s, state_edit_task(s, s->tasks[1]), TASK_DONE);
    assert_non_null(pending(s, 1)); /* ended ones do not count */
}

int main(void)
{
#define LIVE(f) cmocka_unit_test_setup_teardown(f, begin, end)
    const struct CMUnitTest tests[] = {
        LIVE(test_ids),   LIVE(test_found), LIVE(test_modules), LIVE(test_marks),
        LIVE(test_ready), LIVE(test_here),  LIVE(test_parked),  LIVE(test_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
