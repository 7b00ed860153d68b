/* Which task a worker gets: the order, and what it waits for. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "coordinator/decide/schedule.h"
#include "coordinator/state/state.h"
#include "tests/unit/coordinator/decide/expect.h"

/* By the number of the job, 1 to 4. */
static struct schedule_job jobs[4];

static void of_job(struct schedule_task *t, uint32_t id)
{
    t->job_id = id;
    t->job = id - 1;
}

static int equal_jobs(void **state)
{
    for (uint32_t i = 0; i < 4; i++)
        jobs[i] = (struct schedule_job){.id = 1 + i, .share = 1};
    return 0;
}

static struct schedule_task train(uint64_t id, uint64_t owner)
{
    return (struct schedule_task){.id = id,
                                  .job_id = 1,
                                  .kind = TASK_TRAIN,
                                  .rank = task_traits[TASK_TRAIN].rank,
                                  .owner = owner,
                                  .owner_here = owner != 0,
                                  .ready_ms = 1000,
                                  .patience_ms = 2000};
}

static void become(struct schedule_task *t, enum task_kind kind)
{
    t->kind = (int)kind;
    t->rank = task_traits[kind].rank;
}

static void pick_for(uint64_t now, uint64_t worker, const struct schedule_task *tasks, size_t n,
                     const struct schedule_options *o, struct schedule_decision *d)
{
    struct schedule s;
    schedule_init(&s, now, jobs, tasks, n);
    schedule_pick(&s, worker, o, d);
    schedule_release(&s);
}

static long pick(uint64_t now, const struct schedule_task *tasks, size_t n, bool others,
                 struct schedule_decision *d)
{
    const struct schedule_options o = {.helper = others};
    pick_for(now, 7, tasks, n, &o, d);
    return d->index;
}

static void test_schedule_order(void **state)
{
    struct schedule_decision d;
    struct schedule_task list[4] = {train(1, 0), train(2, 7), train(3, 0), train(4, 0)};
    assert_int_equal(pick(1000, NULL, 0, true, &d), -1);
    expect_text("none", d.reason, "no task is ready");
    assert_int_equal(pick(1000, list, 4, true, &d), 1); /* its own replica */
    expect_text("warm", d.reason, "whose last phase it did");
    become(&list[3], TASK_SAMPLE);
    assert_int_equal(pick(1000, list, 4, true, &d), 3);
    become(&list[3], TASK_INIT);
    assert_int_equal(pick(1000, list, 4, true, &d), 3);
    become(&list[3], TASK_TRAIN);
    list[1].owner = 0;
    of_job(&list[0], 2); /* other jobs are served first */
    jobs[1].leases = 2;
    assert_int_equal(pick(1000, list, 4, true, &d), 1);
}

static void test_schedule_patience(void **state)
{
    struct schedule_decision d;
    struct schedule_task list[2] = {train(1, 3), train(2, 4)};
    assert_int_equal(pick(1500, list, 2, true, &d), -1);
    assert_int_equal(d.until_ms, 3000);
    expect_text("kept", d.reason, "kept for the worker");
    assert_int_equal(pick(3000, list, 2, true, &d), 0);
    list[1].owner_here = false; /* its owner is gone: no wait */
    assert_int_equal(pick(1500, list, 2, true, &d), 1);
    list[1].owner_here = true;
    list[0].owner_busy = true; /* busy with another replica: no wait */
    assert_int_equal(pick(1500, list, 2, true, &d), 0);
}

/* A worker is not offered what it has no memory for: this job's network, this kind. */
static void test_schedule_small(void **state)
{
    struct schedule_decision d;
    struct schedule_task list[2] = {train(1, 7), train(2, 0)};
    const struct schedule_small small[2] = {{.job_id = 9, .kind = TASK_TRAIN, .until_ms = 9000},
                                            {.job_id = 1, .kind = TASK_TRAIN, .until_ms = 5000}};
    const struct schedule_options o = {.small = small, .n_small = 2};
    pick_for(4999, 7, list, 2, &o, &d);
    assert_int_equal(d.index, -1);
    assert_int_equal(d.until_ms, 5000);
    expect_text("small", d.reason, "needs more memory or disk than this worker has");
    list[1].network = 1;
    pick_for(4999, 7, list, 2, &o, &d);
    assert_int_equal(d.index, 1);
    list[1].network = 0;
    become(&list[1], TASK_FEATURE);
    pick_for(4999, 7, list, 2, &o, &d);
    assert_int_equal(d.index, 1);
    pick_for(5000, 7, list, 1, &o, &d); /* it is asked again */
    assert_int_equal(d.index, 0);
}

static void test_schedule_failures(void **state)
{
    struct schedule_decision d;
    struct schedule_task list[2] = {train(1, 0), train(2, 0)};
    struct failure_list failed = {.at = {{.worker = 7, .until_ms = 11000}}, .n = 1};
    list[0].failed = &failed;
    assert_int_equal(pick(1000, list, 2, true, &d), 1);
    assert_int_equal(pick(1000, list, 1, true, &d), -1);
    assert_int_equal(d.until_ms, 11000);
    assert_int_equal(pick(11000, list, 1, true, &d), 0);
    failed.at[0].worker = 8;
    assert_int_equal(pick(1000, list, 1, true, &d), 0);
    /* A thousand names have failed it: that binds others like them. */
    failed.wait_ms[STANDING_NEW] = failed.wait_ms[STANDING_FAILING] = 9000;
    for (enum failure_standing s = 0; s < STANDINGS; s++) {
        const struct schedule_options o = {.standing = s};
        pick_for(1000, 7, list, 1, &o, &d);
        assert_int_equal(d.index, s == STANDING_PROVEN ? 0 : -1);
        assert_int_equal(d.until_ms, s == STANDING_PROVEN ? 0 : 9000);
    }
    list[0].failed = NULL;
    list[0].not_before_ms = 5000;
    assert_int_equal(pick(4999, list, 1, true, &d), -1);
    assert_int_equal(d.until_ms, 5000);
    assert_int_equal(pick(5000, list, 1, true, &d), 0);
}

/* Six paths, two workers, no barrier: nobody runs ahead, and who had a path keeps it. */
static void test_schedule_paths(void **state)
{
    enum { PATHS = 6, PHASES = PATHS * 20 };
    uint32_t round[PATHS] = {0};
    uint64_t owner[PATHS] = {0};
    unsigned moved = 0;
    for (unsigned phase = 0; phase < PHASES; phase += 2) {
        struct schedule_task list[PATHS];
        struct schedule_decision d;
        uint32_t last = UINT32_MAX, most = 0;
        for (int p = 0; p < PATHS; p++)
            last = round[p] < last ? round[p] : last;
        for (uint32_t p = 0; p < PATHS; p++) {
            list[p] = train(1 + p + PATHS * (uint64_t)round[p], owner[p]);
            list[p].lag = round[p] - last;
            list[p].owner_busy = owner[p] != 0; /* both are always busy */
        }
        size_t at[2];
        for (uint64_t w = 0; w < 2; w++) {
            const struct schedule_options o = {.helper = true};
            pick_for(1000, 7 + w, list, PATHS, &o, &d);
            at[w] = (size_t)d.index;
            list[at[w]].not_before_ms = 9999; /* taken */
        }
        for (uint64_t w = 0; w < 2; w++) {
            moved += owner[at[w]] != 0 && owner[at[w]] != 7 + w;
            owner[at[w]] = 7 + w;
            round[at[w]]++;
        }
        for (int p = 0; p < PATHS; p++)
            most = round[p] > most ? round[p] : most;
        assert_true(most <= last + 2);
    }
    assert_int_equal(moved, 0);
    for (int p = 0; p < PATHS; p++)
        assert_int_equal(round[p], PHASES / PATHS);
}

/* What a sampler waits for goes first; one that would wait for nobody is not begun. */
static void test_schedule_velocity(void **state)
{
    struct schedule_decision d;
    struct schedule_task list[2] = {train(1, 0), train(2, 0)};
    become(&list[0], TASK_SAMPLE);
    become(&list[1], TASK_VELOCITY);
    assert_int_equal(pick(1000, list, 2, true, &d), 1);
    list[0].needs_helper = true;
    assert_int_equal(pick(1000, list, 1, true, &d), 0);
    assert_int_equal(pick(1000, list, 1, false, &d), -1);
    expect_text("alone", d.reason, "needs another worker");
}

/* What only those may have who have done well before. */
static void test_schedule_known(void **state)
{
    struct schedule_decision d;
    const struct schedule_options known = {.known = true}, stranger = {.known = false};
    struct schedule_task task = train(1, 0);
    task.needs_known = true;
    pick_for(1000, 7, &task, 1, &known, &d);
    assert_int_equal(d.index, 0);
    pick_for(1000, 7, &task, 1, &stranger, &d);
    assert_int_equal(d.index, -1);
    expect_text("stranger", d.reason, "is for workers that have done tasks well before");
}

/* What one did is looked over by another one, from elsewhere. */
static void test_schedule_not_for(void **state)
{
    struct schedule_decision d;
    const struct schedule_options here = {.origin = 5}, there = {.origin = 6};
    struct schedule_task list[2] = {train(1, 0), train(2, 0)};
    list[0].not_for[0] = 7;
    list[0].not_for[1] = 8;
    list[0].not_from[0] = 5;
    for (uint64_t worker = 7; worker <= 8; worker++) {
        pick_for(1000, worker, list, 2, &there, &d);
        assert_int_equal(d.index, 1);
    }
    pick_for(1000, 9, list, 2, &here, &d);
    assert_int_equal(d.index, 1);
    pick_for(1000, 9, list, 1, &here, &d);
    assert_int_equal(d.index, -1);
    expect_text("from there", d.reason, "is for another worker, from elsewhere");
    pick_for(1000, 9, list, 2, &there, &d);
    assert_int_equal(d.index, 0);
    list[0].not_for[0] = list[0].not_for[1] =
        0; /* then they are not alike to all workers, either */
    pick_for(1000, 9, list, 2, &here, &d);
    assert_int_equal(d.index, 1);
    list[0].not_from[1] = 6;
    pick_for(1000, 9, list, 2, &there, &d);
    assert_int_equal(d.index, 1);
}

/* Who still fetches a job's version has none of its phases, and all else. */
static void test_schedule_behind(void **state)
{
    struct schedule_decision d;
    struct schedule_task list[2] = {train(1, 0), train(2, 0)};
    const struct schedule_options behind = {.behind = list[0].job_id},
                                  elsewhere = {.behind = list[0].job_id + 1};
    list[0].phase = true;
    pick_for(1000, 7, list, 2, &elsewhere, &d);
    assert_int_equal(d.index, 0);
    pick_for(1000, 7, list, 2, &behind, &d);
    assert_int_equal(d.index, 1);
    pick_for(1000, 7, list, 1, &behind, &d);
    assert_int_equal(d.index, -1);
    expect_text("behind", d.reason, "waits for a worker that has its version");
}

/* The best of two, or of one, is found without groups. */
static long best_of_pairs(uint64_t now, uint64_t worker, const struct schedule_task *tasks,
                          const bool *taken, size_t n, const struct schedule_options *o,
                          struct schedule_decision *ret)
{
    struct schedule_decision d;
    long best = -1;
    *ret = (struct schedule_decision){0};
    for (size_t i = 0; i < n; i++) {
        if (taken[i])
            continue;
        pick_for(now, worker, &tasks[i], 1, o, &d);
        if (d.index < 0 && (ret->until_ms == 0 || d.until_ms < ret->until_ms))
            *ret = d;
        if (d.index < 0)
            continue;
        if (best >= 0) {
            const struct schedule_task two[2] = {tasks[best], tasks[i]};
            pick_for(now, worker, two, 2, o, &d);
        }
        best = best < 0 || d.index == 1 ? (long)i : best;
    }
    return best;
}

static void fill(struct schedule_task *t, uint64_t id, const struct failure_list *failed)
{
    *t = train(id, (uint64_t)(rand() % 3 == 0 ? 0 : 1 + rand() % 12));
    of_job(t, 1 + (uint32_t)(rand() % 4));
    t->lag = (uint32_t)(rand() % 3 == 0);
    t->network = (uint32_t)(rand() % 2);
    t->owner_here = t->owner != 0 && rand() % 4 > 0;
    t->owner_busy = rand() % 4 == 0;
    t->ready_ms += (uint64_t)(500 * (rand() % 4));
    t->not_before_ms = rand() % 9 == 0 ? 5000 : 0;
    t->needs_helper = rand() % 9 == 0;
    t->needs_trainers = rand() % 9 == 0;
    t->reads = rand() % 9 == 0;
    t->needs_known = rand() % 9 == 0;
    t->phase = rand() % 9 == 0;
    t->failed = rand() % 5 == 0 ? failed : NULL;
    if (rand() % 8 == 0)
        become(t, TASK_EVAL);
}

/* As they are taken one after another: each worker gets what a look at every task finds. */
static void test_schedule_groups(void **state)
{
    enum { N = 60, WORKERS = 16 };
    const struct failure_list failed = {.at = {{.worker = 5, .until_ms = 9000}}, .n = 1};
    const struct schedule_small small = {.job_id = 2, .kind = TASK_TRAIN, .until_ms = 4000};
    unsigned given = 0, refused = 0;
    srand(11);
    for (int round = 0; round < 60; round++) {
        struct schedule_task tasks[N];
        bool taken[N] = {0};
        struct schedule s;
        for (size_t i = 0; i < N; i++)
            fill(&tasks[i], 1 + i, &failed);
        for (uint32_t i = 0; i < 4; i++)
            jobs[i] = (struct schedule_job){.id = 1 + i,
                                            .priority = rand() % 2,
                                            .share = 1 + rand() % 2,
                                            .leases = (uint32_t)(rand() % 3),
                                            .held = rand() % 5 ? NULL : "is held"};
        schedule_init(&s, 2600, jobs, tasks, N);
        for (int turn = 0; turn < 2 * WORKERS + N; turn++) {
            const uint64_t worker = 1 + (uint64_t)(rand() % WORKERS);
            const struct schedule_options o = {.helper = rand() % 2 == 0,
                                               .known = rand() % 2 == 0,
                                               .trainers = rand() % 2 == 0,
                                               .reads = rand() % 2,
                                               .small = &small,
                                               .n_small = worker % 2};
            struct schedule_decision d, want;
            const long best = best_of_pairs(2600, worker, tasks, taken, N, &o, &want);
            schedule_pick(&s, worker, &o, &d);
            assert_int_equal(d.index, best);
            if (best < 0) {
                assert_int_equal(d.until_ms, want.until_ms);
                assert_string_equal(d.reason, want.until_ms ? want.reason : "no task is ready");
                refused++;
                continue;
            }
            given++;
            taken[best] = true;
            schedule_take(&s, (size_t)best);
        }
        schedule_release(&s);
    }
    assert_true(given > 1000 && refused > 100);
}

/* Failures that keep nobody away any more cost no look of their own, and neither do tasks that all
 * wait for. */
static void test_schedule_looks(void **state)
{
    enum { N = 50 };
    struct failure_list failed[N];
    struct schedule_task tasks[N];
    struct schedule_decision d;
    const struct schedule_options o = {0};
    struct schedule s;
    for (size_t i = 0; i < N; i++) {
        failed[i] = (struct failure_list){.at = {{.worker = i, .until_ms = 2000}}, .n = 1};
        tasks[i] = train(1 + i, 0);
        tasks[i].failed = &failed[i];
    }
    schedule_init(&s, 1999, jobs, tasks, N);
    assert_int_equal(s.n_groups, N);
    schedule_release(&s);
    schedule_init(&s, 2000, jobs, tasks, N);
    assert_int_equal(s.n_groups, 1);
    schedule_release(&s);
    for (size_t i = 0; i < N; i++)
        tasks[i].not_before_ms = i == 30 ? 5000 : 6000;
    schedule_init(&s, 2000, jobs, tasks, N);
    assert_int_equal(s.n_groups, 0);
    schedule_pick(&s, 7, &o, &d);
    assert_int_equal(d.index, -1);
    assert_int_equal(d.until_ms, 5000);
    assert_string_equal(d.reason, "task 31 waits after a failure");
    schedule_release(&s);
}

/* Gives n workers a task each, of two jobs that always have some, and counts the second's. */
static unsigned given_to_second(unsigned n)
{
    enum { N = 48 };
    struct schedule_task list[N];
    struct schedule s;
    unsigned second = 0;
    for (uint32_t i = 0; i < N; i++) {
        list[i] = train(1 + i, 0);
        of_job(&list[i], 1 + i % 2);
    }
    schedule_init(&s, 1000, jobs, list, N);
    for (unsigned w = 0; w < n; w++) {
        struct schedule_decision d;
        const struct schedule_options o = {0};
        schedule_pick(&s, 7 + w, &o, &d);
        assert_true(d.index >= 0);
        second += list[d.index].job_id == 2;
        schedule_take(&s, (size_t)d.index);
    }
    schedule_release(&s);
    return second;
}

/* In one look at many workers, too: those that are given out count. */
static void test_schedule_shares(void **state)
{
    assert_int_equal(given_to_second(12), 6);
    (void)equal_jobs(NULL);
    jobs[1].share = 2;
    assert_int_equal(given_to_second(12), 8);
    (void)equal_jobs(NULL);
    jobs[0].leases = 6; /* before the second came */
    assert_int_equal(given_to_second(6), 6);
    (void)equal_jobs(NULL);
    jobs[1].priority = 1;
    assert_int_equal(given_to_second(12), 12);
    (void)equal_jobs(NULL);
    jobs[1].held = "is held";
    assert_int_equal(given_to_second(12), 0);
}

/* A worker stays with the job whose moments it has, while shares allow it. */
static void test_schedule_stays(void **state)
{
    struct schedule_decision d;
    struct schedule_task list[2] = {train(1, 0), train(2, 7)};
    of_job(&list[1], 2);
    jobs[0].leases = jobs[1].leases = 2;
    assert_int_equal(pick(1000, list, 2, true, &d), 1);
    jobs[1].leases = 3;
    assert_int_equal(pick(1000, list, 2, true, &d), 0);
    become(&list[1], TASK_SAMPLE); /* somebody waits for it */
    assert_int_equal(pick(1000, list, 2, true, &d), 1);
    jobs[0].priority = 1;
    assert_int_equal(pick(1000, list, 2, true, &d), 0);
    jobs[0].held = jobs[1].held = "is of a job whose budget is spent";
    assert_int_equal(pick(1000, list, 2, true, &d), -1);
    assert_string_equal(d.reason, "task 1 is of a job whose budget is spent");
}

static void test_schedule_part(void **state)
{
    const struct schedule_claim alone[] = {{0, 0.01, 4}};
    const struct schedule_claim three[] = {{0, 1, 99}, {0, 2, 99}, {1, 1, 4}};
    assert_int_equal(schedule_part(10, alone, 1, 0), 10);
    assert_int_equal(schedule_part(10, three, 2, 0), 3);
    assert_int_equal(schedule_part(9, three, 2, 1), 6);
    assert_int_equal(schedule_part(10, three, 3, 0), 2);
    assert_int_equal(schedule_part(10, three, 3, 1), 4);
    assert_int_equal(schedule_part(10, three, 3, 2), 10);
    assert_int_equal(schedule_part(3, three, 3, 1), 0);
    /* A job that can use 2 leaves the others the rest of its share: with it another one is full. */
    const struct schedule_claim full[] = {{0, 1, 2}, {0, 1, 99}, {0, 2, 9}, {-1, 1, 99}};
    assert_int_equal(schedule_part(100, full, 2, 1), 98);
    assert_int_equal(schedule_part(20, full, 3, 1), 9);
    assert_int_equal(schedule_part(14, full, 3, 1), 4);
    assert_int_equal(schedule_part(14, full, 3, 2), 8);
    assert_int_equal(schedule_part(4, full, 3, 0), 1);
    assert_int_equal(schedule_part(120, full, 4, 3), 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_schedule_order, equal_jobs),
        cmocka_unit_test_setup(test_schedule_patience, equal_jobs),
        cmocka_unit_test_setup(test_schedule_small, equal_jobs),
        cmocka_unit_test_setup(test_schedule_failures, equal_jobs),
        cmocka_unit_test_setup(test_schedule_paths, equal_jobs),
        cmocka_unit_test_setup(test_schedule_velocity, equal_jobs),
        cmocka_unit_test_setup(test_schedule_known, equal_jobs),
        cmocka_unit_test_setup(test_schedule_not_for, equal_jobs),
        cmocka_unit_test_setup(test_schedule_behind, equal_jobs),
        cmocka_unit_test_setup(test_schedule_groups, equal_jobs),
        cmocka_unit_test_setup(test_schedule_looks, equal_jobs),
        cmocka_unit_test_setup(test_schedule_shares, equal_jobs),
        cmocka_unit_test_setup(test_schedule_stays, equal_jobs),
        cmocka_unit_test(test_schedule_part),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
