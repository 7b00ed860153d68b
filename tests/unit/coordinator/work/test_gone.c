/* Workers that are gone: who is forgotten, when, and what is left of him.  A whole coordinator
 * (rig.h). */
#include "coordinator/work/gone.h"
#include "coordinator/work/member.h"
#include "tests/unit/coordinator/rig.h"

#define MINUTE_MS (60 * 1000ll)

static uint64_t first_token(struct rig *r)
{
    const struct token *t = &r->co->worker_token;
    return access_by_secret(&r->co->state, TOKEN_ROLE_WORKER, t->secret)->id;
}

static struct worker *gone_for(struct rig *r, int64_t ms)
{
    struct worker *w = state_add_worker(&r->co->state, 0);
    w->token_id = first_token(r);
    w->since_unix_ms = core_unix_ms(r->co) - ms;
    state_set_worker_state(&r->co->state, w, WORKER_LEFT);
    return w;
}

/* Is it there after a look? */
static bool stays(struct rig *r, const struct worker *w)
{
    const uint64_t id = w->id;
    gone_forget(r->co);
    return state_worker(&r->co->state, id) != NULL;
}

static void after_hours_it_is_forgotten(void **state)
{
    struct rig *r = *state;
    assert_true(stays(r, gone_for(r, GONE_MS - MINUTE_MS)));
    assert_false(stays(r, gone_for(r, GONE_MS)));
    struct worker *w = gone_for(r, GONE_MS);
    state_set_worker_state(&r->co->state, w, WORKER_LOST);
    assert_false(stays(r, w));
    w = gone_for(r, GONE_MS);
    state_set_worker_state(&r->co->state, w, WORKER_HERE);
    assert_true(stays(r, w));
}

static void who_was_doubted_stays_for_a_day(void **state)
{
    struct rig *r = *state;
    for (int i = 0; i < 2; i++) {
        struct worker *w = gone_for(r, GONE_DOUBTED_MS - MINUTE_MS);
        *(i == 0 ? &w->strikes : &w->doubted_folds) = 1;
        assert_true(stays(r, w));
        w->since_unix_ms -= MINUTE_MS;
        assert_false(stays(r, w));
    }
}

/* Its key is the only way in, or a person has said something of it. */
static void some_stay(void **state)
{
    static const uint8_t secret[KEYS_SECRET_BYTES] = {7};
    struct rig *r = *state;
    const uint64_t id = access_add(&r->co->state, 0, TOKEN_ROLE_WORKER, secret)->id;
    struct token_rec *t = access_edit(&r->co->state, id);
    struct worker *w = gone_for(r, GONE_KEY_MS - MINUTE_MS);
    w->token_id = id;
    t->uses_max = 5;
    assert_true(stays(r, w));
    t->uses_max = 0;
    t->ends_unix_ms = core_unix_ms(r->co) - 1;
    assert_true(stays(r, w));
    w->revoked_unix_ms = 1; /* and its token lets nobody in any more */
    assert_false(stays(r, w));
    w = gone_for(r, GONE_KEY_MS - MINUTE_MS);
    w->token_id = 12345; /* that has made room for others */
    assert_true(stays(r, w));
    w->since_unix_ms -= MINUTE_MS;
    assert_false(stays(r, w));
    w = gone_for(r, 999 * GONE_MS);
    w->drain = true;
    assert_true(stays(r, w));
    w = gone_for(r, 999 * GONE_MS);
    w->revoked_unix_ms = 1;
    assert_true(stays(r, w));
    access_edit(&r->co->state, first_token(r))->revoked_unix_ms = 1;
    assert_false(stays(r, w));
}

static void many_are_forgotten_sooner(void **state)
{
    struct rig *r = *state;
    for (int i = 0; i < GONE_MAX + 100; i++)
        (void)gone_for(r, i < 50 ? GONE_LEAST_MS - MINUTE_MS : GONE_LEAST_MS + i);
    gone_forget(r->co);
    assert_int_equal(r->co->state.n_workers, GONE_MAX);
    for (size_t i = 0; i < GONE_MAX; i++) /* those of the last hour, then those that came last */
        assert_int_equal(r->co->state.workers[i]->id, i < 50 ? i + 1 : i + 101);
}

/* Who makes room; those whom a person has shut out, or still waits for, only after all others. */
static void the_longest_gone_makes_room(void **state)
{
    struct rig *r = *state;
    struct worker *young = gone_for(r, MINUTE_MS), *shut_out = gone_for(r, 9 * MINUTE_MS),
                  *drained = gone_for(r, 8 * MINUTE_MS), *old = gone_for(r, 7 * MINUTE_MS),
                  *here = gone_for(r, 10 * MINUTE_MS);
    const uint64_t order[] = {old->id, young->id, shut_out->id, drained->id};
    shut_out->revoked_unix_ms = 1;
    drained->drain = true;
    state_set_worker_state(&r->co->state, here, WORKER_HERE);
    for (size_t i = 0; i < 4; i++) {
        assert_non_null(state_worker(&r->co->state, order[i]));
        gone_make_room(r->co);
        assert_null(state_worker(&r->co->state, order[i]));
        assert_int_equal(r->co->state.n_workers, 4 - i);
    }
    gone_make_room(r->co);
    assert_int_equal(r->co->state.n_workers, 1);
}

static void whom_a_job_names_stays_while_it_goes_on(void **state)
{
    struct rig *r = *state;
    struct err err = {0};
    assert_int_equal(join(r, &r->workers[0], SKERRY_VERSION), 0);
    const uint64_t job = submit(r);
    do_init(r, &r->workers[0]);
    struct worker *w = edit_worker(r, r->workers[0].id);
    member_lost(r->co, w, WORKER_LEFT, "it has said so");
    w->since_unix_ms -= GONE_MS + MINUTE_MS; /* of a clock a little ahead of the coordinator's */
    assert_true(stays(r, w));
    assert_int_equal(view_job_cancel(r->co, job, &err), 0);
    wait_state(r, job, JOB_CANCELLED);
    assert_false(stays(r, w));
}

static uint64_t traffic(struct rig *r)
{
    struct view_status s;
    view_status(r->co, &s);
    return s.bytes.control_up + s.bytes.control_down + s.bytes.data_up + s.bytes.data_down;
}

/* What has travelled for it counts on, also after a restart; and it may come again. */
static void it_comes_again_as_a_newcomer(void **state)
{
    struct rig *r = *state;
    struct fake *f = &r->workers[0];
    assert_int_equal(join(r, f, SKERRY_VERSION), 0);
    const uint64_t before = f->id;
    struct worker *w = edit_worker(r, before);
    for (int i = 0; i < 4; i++)
        w->bytes[i] = (uint64_t)i + 1;
    member_lost(r->co, w, WORKER_LOST, "it is silent");
    worker_add_verdict(w, &(struct verdict){.task_id = 7, .accepted = true});
    settle(r);
    w = edit_worker(r, before);
    w->since_unix_ms -= GONE_MS + MINUTE_MS; /* of a clock a little ahead of the coordinator's */
    assert_false(stays(r, w));
    settle(r);
    assert_int_equal(traffic(r), 10);
    stop(r);
    start(r);
    assert_null(state_worker(&r->co->state, before));
    assert_int_equal(traffic(r), 10);
    assert_int_equal(join(r, f, SKERRY_VERSION), 0);
    assert_true(f->id > before);
    assert_int_equal(state_worker(&r->co->state, f->id)->n_verdicts, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(after_hours_it_is_forgotten, begin, end),
        cmocka_unit_test_setup_teardown(who_was_doubted_stays_for_a_day, begin, end),
        cmocka_unit_test_setup_teardown(some_stay, begin, end),
        cmocka_unit_test_setup_teardown(the_longest_gone_makes_room, begin, end),
        cmocka_unit_test_setup_teardown(many_are_forgotten_sooner, begin, end),
        cmocka_unit_test_setup_teardown(whom_a_job_names_stays_while_it_goes_on, begin, end),
        cmocka_unit_test_setup_teardown(it_comes_again_as_a_newcomer, begin, end),
    };
    log_set_level(LOG_LEVEL_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
