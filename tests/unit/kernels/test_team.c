/* A team of threads does every task once, whether its helpers look for the next call or sleep. */
#include "tests/unit/kernels/guard.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "common/base/err.h"
#include "kernels/cpu/team.h"

enum { TASKS = 37, THREADS = 3, CALLS = 400 };

struct counts {
    atomic_int done[TASKS];
    atomic_int strangers; /* indices of threads that there are not */
};

static void count(void *arg, int task, int thread)
{
    struct counts *c = arg;
    atomic_fetch_add(&c->done[task], 1);
    if (thread < 0 || thread >= THREADS)
        atomic_fetch_add(&c->strangers, 1);
}

/* Every few calls a gap that no helper looks through. */
static void pause_between(int call)
{
    if (call % 50 == 49)
        nanosleep(&(struct timespec){.tv_nsec = 300 * 1000}, NULL);
}

static void every_task_once(const char *policy)
{
    if (policy)
        assert_int_equal(setenv("OMP_WAIT_POLICY", policy, 1), 0);
    else
        unsetenv("OMP_WAIT_POLICY");
    struct err err = {0};
    struct cpu_team *team = NULL;
    assert_int_equal(cpu_team_new(THREADS, &team, &err), 0);
    assert_int_equal(cpu_team_threads(team), THREADS);
    struct counts c = {0};
    for (int i = 0; i < CALLS; i++) {
        cpu_team_run(team, count, &c, TASKS);
        pause_between(i);
        for (int k = 0; k < TASKS; k++)
            assert_int_equal(atomic_load(&c.done[k]), i + 1);
    }
    assert_int_equal(atomic_load(&c.strangers), 0);
    cpu_team_free(team);
}

static void test_active(void **state)
{
    every_task_once(NULL);
}

static void test_passive(void **state)
{
    every_task_once("passive");
}

static void test_alone(void **state)
{
    struct counts c = {0};
    cpu_team_run(NULL, count, &c, TASKS);
    for (int k = 0; k < TASKS; k++)
        assert_int_equal(atomic_load(&c.done[k]), 1);
    assert_int_equal(cpu_team_threads(NULL), 1);
    cpu_team_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_active),
        cmocka_unit_test(test_passive),
        cmocka_unit_test(test_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
