/* Which job pays for which piece of a worker's time.  A state without a coordinator (bare.h). */
#include "coordinator/work/cost.h"
#include "coordinator/work/query.h"
#include "coordinator/work/tasks.h"
#include "coordinator/work/tokens.h"
#include "tests/unit/coordinator/bare.h"

#include "common/base/clock.h"

#define HOUR_MS 3600000u

/* It was submitted so many hours ago. */
static struct job *add_job_of(struct coordinator *co, double hours)
{
    struct job *j = add(&co->state, diloco);
    j->state = JOB_RUNNING;
    j->made_unix_ms = core_unix_ms(co) - (int64_t)(hours * HOUR_MS);
    return j;
}

static struct job *add_job(struct coordinator *co)
{
    return add_job_of(co, 1000);
}

/* Joins at this price. */
static struct worker *add_worker(struct coordinator *co, double price)
{
    struct worker *w = state_add_worker(&co->state, 0);
    cost_join(co, w, false, price);
    state_set_worker_state(&co->state, w, WORKER_HERE);
    return w;
}

/* So many hours have passed since its time was reckoned with. */
static void pass(struct worker *w, double hours)
{
    w->since_ms -= (uint64_t)(hours * HOUR_MS);
}

/* Up to the time that the test itself takes. */
static void near(double have, double want)
{
    if (!(have >= want - 1e-9 && have < want + 0.01))
        fail_msg("%g dollars, not %g", have, want);
}

static struct task *lease(struct coordinator *co, const struct job *j, struct worker *w)
{
    struct task *t = state_add_task(&co->state, 0, j->id, TASK_INIT);
    task_lease(co, t, w);
    return t;
}

static void pieces(void **state)
{
    struct coordinator *co = *state;
    struct job *a = add_job(co), *b = add_job(co);
    struct worker *w = add_worker(co, 2);
    struct cost now;
    pass(w, 0.5); /* before its first lease: of that one's job */
    struct task *t = lease(co, a, w);
    near(a->cost.waiting, 1);
    pass(w, 3);
    cost_of(co, a, &now);
    near(now.work, 6);
    near(now.per_hour, 2);
    near(a->cost.work, 0);
    task_requeue(co, t, "it failed"); /* is paid all the same */
    near(a->cost.work, 6);
    pass(w, 1); /* for what goes on */
    cost_of(co, a, &now);
    near(now.waiting, 3);
    assert_int_equal(now.workers, 1);
    t = lease(co, b, w);
    near(a->cost.waiting, 3);
    near(b->cost.waiting, 0);
    pass(w, 1);
    task_end(co, t, TASK_DONE, "");
    near(b->cost.work, 2);
    pass(w, 1);
    cost_settle(co, b); /* it has waited for b until now */
    b->state = JOB_DONE;
    near(b->cost.waiting, 2);
    pass(w, 1); /* nobody's, and then a's, which begins */
    (void)lease(co, a, w);
    near(a->cost.waiting, 5);
    near(b->cost.waiting, 2);
}

/* What workers idled before a job was there is nobody's. */
static void before_it(void **state)
{
    struct coordinator *co = *state;
    struct worker *w = add_worker(co, 2), *old = add_worker(co, 2);
    struct job *a = add_job(co);
    task_end(co, lease(co, a, old), TASK_DONE, "");
    a->state = JOB_DONE;
    pass(old, 5); /* since the end of the job before */
    pass(w, 8);   /* since its join */
    struct job *b = add_job_of(co, 0.5);
    (void)lease(co, b, w);
    near(b->cost.waiting, 1);
    (void)lease(co, b, old);
    near(b->cost.waiting, 2);
    struct worker *late = add_worker(co, 2); /* joined after it */
    pass(late, 0.25);
    (void)lease(co, b, late);
    near(b->cost.waiting, 2.5);
    struct worker *back = add_worker(co, 2);
    pass(back, 3);
    (void)lease(co, add_job_of(co, -1), back); /* the clock was set back */
    near(a->cost.work + a->cost.waiting, 0);
}

/* Nobody waits for a job that gives no tasks out: it costs nothing until its budget is raised. */
static void spent(void **state)
{
    struct coordinator *co = *state;
    struct job *j = add_job(co);
    struct worker *w = add_worker(co, 1), *idle = add_worker(co, 1);
    struct cost now;
    j->quota.budget = 1.5;
    task_end(co, lease(co, j, idle), TASK_DONE, "");
    struct task *t = lease(co, j, w);
    pass(idle, 1);
    pass(w, 2);
    cost_of(co, j, &now);
    near(now.work + now.waiting, 3);
    assert_int_equal(now.workers, 2);
    task_end(co, t, TASK_DONE, "");
    for (int i = 0; i < 2; i++) { /* what the other one has waited until then is kept */
        near(j->cost.work, 2);
        near(j->cost.waiting, 1);
        cost_of(co, j, &now);
        near(now.work + now.waiting, 3);
        assert_int_equal(now.workers, 0);
        assert_true(now.per_hour == 0);
        pass(w, 10);
        pass(idle, 10);
    }
    cost_settle(co, j);
    j->quota.budget = 100;
    pass(idle, 1);
    (void)lease(co, j, w);
    near(j->cost.waiting, 1);
    cost_of(co, j, &now);
    near(now.waiting, 2);
}

/* Nor for one that is paused, though a phase of it runs to its end. */
static void paused(void **state)
{
    struct coordinator *co = *state;
    struct job *j = add_job(co);
    struct worker *w = add_worker(co, 1), *idle = add_worker(co, 1);
    task_end(co, lease(co, j, idle), TASK_DONE, "");
    struct task *t = lease(co, j, w);
    pass(idle, 1);
    cost_settle(co, j);
    j->paused = true;
    near(j->cost.waiting, 1); /* what it has waited until then */
    pass(idle, 10);
    pass(w, 2);
    task_end(co, t, TASK_DONE, "");
    near(j->cost.work, 2);
    cost_settle(co, j);
    j->paused = false;
    near(j->cost.waiting, 1);
    pass(idle, 1);
    (void)lease(co, j, idle);
    near(j->cost.waiting, 2);
}

/* A token's bounds are changed: what was spent meanwhile, in which nobody waited, stays nobody's.
 */
static void of_a_token(void **state)
{
    static const uint8_t secret[KEYS_SECRET_BYTES] = {1}, other[KEYS_SECRET_BYTES] = {2};
    const struct token_bounds more = {NAN, NAN, NAN, 100, NAN}, joins = {5, NAN, NAN, NAN, NAN};
    struct coordinator *co = *state;
    const uint64_t id = access_add(&co->state, 0, TOKEN_ROLE_OPERATOR, secret)->id,
                   spot = access_add(&co->state, 0, TOKEN_ROLE_WORKER, other)->id;
    const struct token_rec *t;
    struct job *j = add_job(co);
    struct worker *w = add_worker(co, 1), *idle = add_worker(co, 1);
    struct err err = {0};
    access_edit(&co->state, id)->jobs_max = 3;
    access_edit(&co->state, id)->budget = 2;
    (void)str_copy(access_edit(&co->state, id)->name, NAME_MAX_BYTES, "ann");
    assert_int_equal(id, 1);
    j->token_id = id;
    task_end(co, lease(co, j, idle), TASK_DONE, "");
    struct task *task = lease(co, j, w);
    pass(w, 2);
    assert_null(query_withheld(&co->state, j));
    task_end(co, task, TASK_DONE, "");
    char why[REASON_MAX];
    assert_string_equal(query_withheld(&co->state, j),
                        "is of a job of a token whose budget is spent");
    assert_true(query_stalled(&co->state, j, why));
    assert_string_equal(why, "the budget of the token 'ann' is spent; `skerry tokens --change 1 "
                             "--budget` raises it");
    near(query_token_cost(&co->state, id), 2);
    pass(idle, 10);
    assert_int_equal(tokens_adjust(co, id, access_holder_token(id), &more, &t, &err), -EBUSY);
    assert_int_equal(tokens_adjust(co, id, 0, &joins, &t, &err), -EINVAL);
    assert_int_equal(tokens_adjust(co, spot, 0, &more, &t, &err), -EINVAL);
    assert_int_equal(tokens_adjust(co, 99, 0, &more, &t, &err), -ERR_NOTFOUND);
    assert_non_null(query_withheld(&co->state, j));
    assert_int_equal(tokens_adjust(co, id, 0, &more, &t, &err), 0);
    assert_true(t->jobs_max == 3 && t->budget == 100 && t->edited);
    assert_null(query_withheld(&co->state, j));
    pass(idle, 1);
    (void)lease(co, j, idle);
    near(j->cost.waiting, 1);
    assert_int_equal(tokens_adjust(co, spot, 0, &joins, &t, &err), 0);
    assert_int_equal(t->uses_max, 5);
}

/* What a removed job has cost stays spent, whatever the bound is, or becomes later. */
static void removed(void **state)
{
    struct coordinator *co = *state;
    static const uint8_t secret[KEYS_SECRET_BYTES] = {1};
    const uint64_t id = access_add(&co->state, 0, TOKEN_ROLE_OPERATOR, secret)->id;
    const struct token_bounds bounded = {NAN, NAN, NAN, 5, NAN};
    const struct token_rec *t = NULL;
    struct err err = {0};
    struct job *j = add_job(co);
    j->token_id = id;
    j->cost.work = 2;
    j->cost.waiting = 1;
    cost_forget(co, j); /* it has no bound */
    assert_true(access_token(&co->state, id)->edited);
    j->cost.work = j->cost.waiting = 0; /* it is another one now */
    near(query_token_cost(&co->state, id), 3);
    assert_int_equal(tokens_adjust(co, id, 0, &bounded, &t, &err), 0);
    assert_null(query_withheld(&co->state, j));
    j->cost.work = 4;
    cost_forget(co, j);
    near(access_token(&co->state, id)->budget, 5);
    j->cost.work = 0;
    near(query_token_cost(&co->state, id), 7);
    assert_non_null(query_withheld(&co->state, j));
}

static void prices(void **state)
{
    struct coordinator *co = *state;
    struct job *j = add_job(co);
    struct worker *w = add_worker(co, -1), *other = add_worker(co, NAN);
    struct cost now;
    assert_true(w->price == 0 && other->price == 0);
    cost_join(co, other, true, COST_PRICE_MAX * 2);
    assert_true(other->price == 0);
    (void)lease(co, j, w);
    pass(w, 5);
    cost_of(co, j, &now);
    near(now.work, 0);
    assert_int_equal(now.unpriced, 1);
    cost_join(co, w, true, 3); /* it is back with a price: what went before was free */
    pass(w, 1);
    cost_of(co, j, &now);
    near(now.work, 3);
    assert_int_equal(now.unpriced, 0);
}

/* It was loaded, so many hours after its time was last charged. */
static void load_after(struct worker *w, double hours)
{
    w->since_ms = 0;
    w->since_unix_ms = (int64_t)clock_wall_ms() - (int64_t)(hours * HOUR_MS);
}

/* After a start the wall clock tells what a process that is back has cost; one that was set back
 * tells nothing. */
static void loaded(void **state)
{
    struct coordinator *co = *state;
    struct job *j = add_job(co);
    struct worker *w = add_worker(co, 1);
    struct task *t = lease(co, j, w);
    struct cost now;
    load_after(w, 2);
    cost_join(co, w, true, 1);
    near(j->cost.work, 2);
    cost_join(co, w, true, 1); /* its connection was cut */
    pass(w, 1);
    task_requeue(co, t, "");
    near(j->cost.work, 3);
    load_after(w, -1);
    cost_join(co, w, true, 1);
    task_lease(co, t, w);
    near(j->cost.waiting, 0);
    load_after(w, 1); /* and now without a task */
    task_end(co, t, TASK_DONE, "");
    near(j->cost.work, 3);
    load_after(w, 2);
    cost_join(co, w, true, 1);
    near(j->cost.waiting, 2);
    pass(w, 1);
    cost_of(co, j, &now);
    near(now.waiting, 3);
}

/* Its machine may have ended with the coordinator's, and the coordinator be back after a week. */
static void not_back(void **state)
{
    struct coordinator *co = *state;
    struct job *j = add_job(co);
    struct worker *w = add_worker(co, 1), *idle = add_worker(co, 1);
    struct cost now;
    task_end(co, lease(co, j, idle), TASK_DONE, "");
    struct task *t = lease(co, j, w);
    load_after(w, 168);
    load_after(idle, 168);
    cost_of(co, j, &now);
    near(now.work + now.waiting, 0);
    task_requeue(co, t, "its worker is lost");
    cost_settle(co, j);
    near(j->cost.work + j->cost.waiting, 0);
    load_after(w, 168);
    cost_join(co, w, false, 1); /* another process on the same disk */
    task_lease(co, t, w);
    pass(w, 1);
    task_end(co, t, TASK_DONE, "");
    near(j->cost.work, 1);
    near(j->cost.waiting, 0);
}

/* Downloads and requests cost what they cost when they were made. */
static void at_the_price_of_the_time(void **state)
{
    struct coordinator *co = *state;
    struct job *j = add_job(co);
    cost_egress(co, j, 1000000000);
    near(j->cost.egress, 0);
    co->opt.egress_price = 2;
    cost_egress(co, j, 1500000000);
    near(j->cost.egress, 3);
    co->opt.egress_price = 0;
    cost_egress(co, j, 1000000000);
    near(j->cost.egress, 3);
    co->opt.request_price = 5;
    near(cost_of_requests(co, 2000000), 10);
    cost_requests(co, 2000000);
    near(cost_of_requests(co, 2000000), 10); /* once */
    near(cost_of_requests(co, 3000000), 15);
    cost_requests(co, 3000000);
    co->opt.request_price = 0; /* as after a start */
    co->requests_charged = 0;
    near(cost_of_requests(co, 9000000), 15);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(pieces, bare_begin, bare_end),
        cmocka_unit_test_setup_teardown(before_it, bare_begin, bare_end),
        cmocka_unit_test_setup_teardown(spent, bare_begin, bare_end),
        cmocka_unit_test_setup_teardown(paused, bare_begin, bare_end),
        cmocka_unit_test_setup_teardown(of_a_token, bare_begin, bare_end),
        cmocka_unit_test_setup_teardown(removed, bare_begin, bare_end),
        cmocka_unit_test_setup_teardown(prices, bare_begin, bare_end),
        cmocka_unit_test_setup_teardown(at_the_price_of_the_time, bare_begin, bare_end),
        cmocka_unit_test_setup_teardown(loaded, bare_begin, bare_end),
        cmocka_unit_test_setup_teardown(not_back, bare_begin, bare_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
