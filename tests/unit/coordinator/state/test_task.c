/* What a task is by its kind: its number, what it looks at, and what a phase has given. */
#include "coordinator/state/task.h"
#include "tests/unit/coordinator/plain.h"

static void test_names(void **state)
{
    assert_string_equal(task_kind_name(TASK_INIT), "INIT");
    assert_string_equal(task_kind_name(TASK_VELOCITY), "VELOCITY");
    assert_string_equal(task_kind_name(TASK_KINDS), "NONE");
    assert_string_equal(task_state_name(TASK_PENDING), "pending");
    assert_string_equal(task_state_name(TASK_CANCELLED), "cancelled");
    assert_string_equal(task_state_name((enum task_state)(TASK_CANCELLED + 1)), "unknown");
}

/* A sampler that waits, then what a person looks at, what the job needs, and the training. */
static void test_traits(void **state)
{
    for (int k = TASK_UNSPECIFIED; k < TASK_KINDS; k++) {
        bool drawn = k == TASK_EVAL || k == TASK_SAMPLE;
        unsigned rank = k == TASK_VELOCITY ? 0
                        : drawn            ? 1
                        : k == TASK_TRAIN  ? 3
                        : k == TASK_CHECK  ? 5
                                           : 2;
        assert_int_equal(task_traits[k].rank, rank);
        assert_int_equal(task_traits[k].aside,
                         drawn || k == TASK_VELOCITY || k == TASK_OUTER || k == TASK_CHECK);
    }
}

/* Each kind keeps its number where its part has it; three kinds have none. */
static void test_number(void **state)
{
    for (int k = TASK_INIT; k < TASK_KINDS; k++) {
        struct task t = {.kind = (enum task_kind)k};
        task_set_round(&t, 7);
        assert_int_equal(task_round(&t),
                         k == TASK_INIT || k == TASK_FEATURE || k == TASK_ENCODE ? 0 : 7);
        t.train.replica = 5;
        assert_int_equal(task_replica(&t), k == TASK_TRAIN || k == TASK_CHECK ? 5 : 0);
    }
    struct task outer = {.kind = TASK_OUTER, .outer = {.module_id = 3, .version = 4}};
    task_set_round(&outer, 9);
    assert_int_equal(outer.outer.module_id, 3);
    assert_int_equal(outer.outer.version, 9);
    struct task train = {.kind = TASK_TRAIN, .train = {.replica = 1, .round = 2}};
    task_set_round(&train, 9);
    assert_int_equal(train.train.replica, 1);
    assert_int_equal(train.train.round, 9);
}

static void test_looks_at(void **state)
{
    struct task t = {.kind = TASK_EVAL, .draw = {.ema = true, .mixture = true, .remote = true}};
    assert_ptr_equal(task_drawing(&t), &t.draw);
    assert_true(task_wants_ema(&t));
    assert_true(task_is_mixture(&t));
    assert_false(task_is_remote(&t)); /* samplers alone leave experts where they are */
    t.kind = TASK_SAMPLE;
    assert_true(task_is_remote(&t));
    t.draw.ema = t.draw.mixture = false;
    assert_false(task_wants_ema(&t));
    assert_false(task_is_mixture(&t));
    const struct task score = {.kind = TASK_SCORE, .score = {.ema = true}};
    const struct task velocity = {.kind = TASK_VELOCITY, .velocity = {.ema = true}};
    const struct task plain = {.kind = TASK_SCORE, .score = {.evaluate = true}};
    assert_null(task_drawing(&score));
    assert_true(task_wants_ema(&score));
    assert_true(task_wants_ema(&velocity));
    assert_false(task_wants_ema(&plain));
    assert_true(task_evaluates(&plain));
    assert_false(task_evaluates(&score));
}

/* A part of another kind lies in the same place and must not be read. */
static void test_other_kinds(void **state)
{
    struct task t;
    memset(&t, 0x01, sizeof(t)); /* every flag of every part */
    for (int k = TASK_INIT; k < TASK_KINDS; k++) {
        t.kind = (enum task_kind)k;
        bool drawn = k == TASK_EVAL || k == TASK_SAMPLE;
        assert_int_equal(task_is_mixture(&t), drawn);
        assert_int_equal(task_is_remote(&t), k == TASK_SAMPLE);
        assert_int_equal(task_wants_ema(&t), drawn || k == TASK_SCORE || k == TASK_VELOCITY);
        assert_int_equal(task_evaluates(&t), k == TASK_CLUSTER || k == TASK_SCORE);
    }
}

static void test_contributions(void **state)
{
    struct task *t = mem_alloc(sizeof(*t));
    t->kind = TASK_TRAIN;
    for (uint64_t id = 1; id <= 4; id++)
        task_add_contribution(t, &(struct contribution){.module_id = id});
    assert_true(t->train.edited);
    t->train.edited = false;
    task_drop_contribution(t, &t->train.contributions[1]);
    assert_true(t->train.edited);
    assert_int_equal(t->train.n_contributions, 3);
    assert_int_equal(t->train.contributions[0].module_id, 1);
    assert_int_equal(t->train.contributions[1].module_id, 3);
    assert_int_equal(t->train.contributions[2].module_id, 4);
    task_drop_contribution(t, &t->train.contributions[2]); /* the last one */
    assert_int_equal(t->train.n_contributions, 2);
    assert_int_equal(t->train.contributions[1].module_id, 3);
    t->train.edited = false;
    task_edit_contribution(t, &t->train.contributions[0])->refused = true;
    assert_true(t->train.edited);
    assert_true(t->train.contributions[0].refused);
    task_free(t);
}

static void test_open(void **state)
{
    for (int s = TASK_STATE_UNSPECIFIED; s <= TASK_CANCELLED; s++) {
        const struct task t = {.state = (enum task_state)s};
        assert_int_equal(task_is_open(&t), s == TASK_PENDING || s == TASK_LEASED);
    }
}

/* One that had ended is open again beyond the maximum: it is loaded all the same. */
static void test_all_are_loaded(void **state)
{
    struct state *s = *state;
    const uint64_t job = state_add_job(s, 0)->id;
    for (unsigned i = 0; i < TASKS_OPEN_MAX; i++)
        assert_non_null(state_add_task(s, 0, job, TASK_INGEST));
    assert_null(state_add_task(s, 0, job, TASK_INGEST));
    assert_non_null(state_add_task(s, s->next_task, job, TASK_INGEST));
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, begin, end)
    const struct CMUnitTest tests[] = {
        CASE(test_names),    CASE(test_traits),         CASE(test_number),
        CASE(test_looks_at), CASE(test_other_kinds),    CASE(test_contributions),
        CASE(test_open),     CASE(test_all_are_loaded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
