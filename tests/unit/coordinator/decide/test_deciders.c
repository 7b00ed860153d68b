/* The pure deciders, case by case: decision, reason, and when to ask again. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/err.h"
#include "coordinator/decide/admit.h"
#include "coordinator/decide/lease.h"
#include "coordinator/decide/quorum.h"
#include "coordinator/decide/schedule.h"
#include "coordinator/state/state.h"

#define N(a) (sizeof(a) / sizeof((a)[0]))

static void expect_text(const char *name, const char *text, const char *part)
{
    if (strstr(text, part) == NULL)
        fail_msg("%s: the reason is '%s', expected '%s' in it", name, text, part);
}

/* ---- admit --------------------------------------------------------------- */

static void test_admit_join(void **state)
{
    const struct admit_join good = {3, 1024, false, false, false, "1.0", "1.0", 16, 16, 5};
    struct {
        const char *name;
        struct admit_join in;
        int rc;
        const char *reason;
    } cases[] = {
        {"good", good, 0, ""},
        {"short identity", good, -EINVAL, "16 bytes"},
        {"long name", good, -EINVAL, "64 bytes"},
        {"version", good, -ERR_VERSION, "'0.9'"},
        {"twin", good, -EBUSY, "--work-dir"},
        {"reconnect", good, 0, ""},
        {"full", good, -EAGAIN, "1024 places"},
        {"full but known", good, 0, ""},
    };
    cases[1].in.identity_len = 15;
    cases[2].in.name_len = 65;
    cases[3].in.version = "0.9";
    cases[4].in.twin_here = true;
    cases[5].in.twin_here = cases[5].in.same_instance = true;
    cases[6].in.workers = cases[7].in.workers = 1024;
    cases[7].in.known = true;
    for (size_t i = 0; i < N(cases); i++) {
        char reason[ADMIT_REASON_MAX];
        if (admit_join(&cases[i].in, reason) != cases[i].rc)
            fail_msg("%s: wrong code, reason '%s'", cases[i].name, reason);
        expect_text(cases[i].name, reason, cases[i].reason);
    }
}

static void test_admit_work(void **state)
{
    const struct {
        const char *name;
        struct admit_work in;
        bool may;
        uint64_t until;
        const char *reason;
    } cases[] = {
        {"free", {1000, 0, false, true, 0}, true, 0, ""},
        {"quarantine over", {1000, 1000, false, true, 1}, true, 0, ""},
        {"quarantine", {1000, 3500, false, true, 2}, false, 3500, "3 s"},
        {"drain", {1000, 0, true, true, 0}, false, 0, "drain"},
        {"disk", {1000, 0, false, false, 0}, false, 0, "cannot write"},
    };
    for (size_t i = 0; i < N(cases); i++) {
        char reason[ADMIT_REASON_MAX];
        uint64_t until = 77;
        assert_int_equal(admit_work(&cases[i].in, &until, reason), cases[i].may);
        assert_int_equal(until, cases[i].until);
        expect_text(cases[i].name, reason, cases[i].reason);
    }
}

static void test_quarantine_grows(void **state)
{
    assert_int_equal(admit_quarantine_ms(2, 0), 0);
    assert_int_equal(admit_quarantine_ms(3, 0), 30000);
    assert_int_equal(admit_quarantine_ms(3, 1), 60000);
    assert_int_equal(admit_quarantine_ms(3, 50), 30 * 60 * 1000);
}

/* ---- lease --------------------------------------------------------------- */

static void test_lease(void **state)
{
    const struct lease_options o = {2000, 8000, 2000, 60000};
    const struct {
        const char *name;
        struct lease_in in;
        enum lease_verdict verdict;
        uint64_t until;
        const char *reason;
    } cases[] = {
        {"fresh", {100000, 99000, 0, 0, 0}, LEASE_ALIVE, 107001, ""},
        {"two beats missed", {100000, 95000, 0, 0, 0}, LEASE_LATE, 103001, "5.0 s"},
        {"just in time", {100000, 92000, 0, 0, 0}, LEASE_LATE, 100001, "8.0 s"},
        {"silent", {100000, 91999, 0, 0, 0}, LEASE_LOST, 0, "silent"},
        {"cut", {100000, 99500, 99000, 0, 0}, LEASE_LATE, 101001, "cut 1.0 s ago"},
        {"not back", {100000, 99500, 97999, 0, 0}, LEASE_LOST, 0, "come back"},
        {"restart gives grace", {100000, 99500, 105000, 0, 0}, LEASE_LATE, 107001 - 0, "cut"},
        {"slow but moving", {100000, 99500, 0, 41000, 0}, LEASE_ALIVE, 101001, ""},
        {"stuck", {100000, 99500, 0, 39999, 0}, LEASE_LOST, 0, "no progress"},
        {"long steps", {100000, 99500, 0, 10000, 20000}, LEASE_ALIVE, 107501, ""},
        {"longer than five", {200000, 199500, 0, 99999, 20000}, LEASE_LOST, 0, "100 s"},
    };
    for (size_t i = 0; i < N(cases); i++) {
        struct lease_decision d;
        lease_decide(&cases[i].in, &o, &d);
        if (d.verdict != cases[i].verdict)
            fail_msg("%s: verdict %d, reason '%s'", cases[i].name, (int)d.verdict, d.reason);
        if (d.verdict == LEASE_ALIVE || i == 1 || i == 4)
            assert_int_equal(d.until_ms, cases[i].until);
        expect_text(cases[i].name, d.reason, cases[i].reason);
    }
}

static void test_median(void **state)
{
    const uint64_t gaps[] = {9, 1, 5, 7, 3};
    assert_int_equal(lease_median(gaps, 5), 5);
    assert_int_equal(lease_median(gaps, 1), 9);
    assert_int_equal(lease_median(NULL, 0), 0);
}

/* ---- quorum -------------------------------------------------------------- */

static void test_quorum_need(void **state)
{
    assert_int_equal(quorum_need(4, 0.5), 2);
    assert_int_equal(quorum_need(5, 0.5), 3);
    assert_int_equal(quorum_need(4, 0), 1);
    assert_int_equal(quorum_need(4, 1), 4);
    assert_int_equal(quorum_need(10, 0.3), 3); /* 0.3 * 10 is a little above 3 */
    assert_int_equal(quorum_need(1, 0.9), 1);
}

static void test_quorum(void **state)
{
    const struct {
        const char *name;
        struct quorum_in in;
        bool fire, quorum;
        uint64_t until;
        const char *reason;
    } cases[] = {
        {"none", {1000, 4, 0, 4, 0.5, 0, 0, 0}, false, false, 0, "0 of 4"},
        {"all", {1000, 4, 4, 0, 0.5, 0, 0, 0}, true, true, 0, "all 4"},
        {"waits for all", {90000, 4, 3, 1, 0.5, 0, 100, 0}, false, true, 0, "missing 1"},
        {"no quorum", {90000, 4, 1, 3, 0.5, 500, 0, 0}, false, false, 0, "2 make a quorum"},
        {"grace begins", {1000, 4, 2, 2, 0.5, 500, 0, 0}, false, true, 1500, "0.5 s left"},
        {"grace runs", {1499, 4, 2, 2, 0.5, 500, 1000, 0}, false, true, 1500, "other 2"},
        {"grace over", {1500, 4, 2, 2, 0.5, 500, 1000, 0}, true, true, 1500, "has passed"},
        {"all before grace", {1100, 4, 4, 0, 0.5, 500, 1000, 0}, true, true, 0, "all"},
        {"back-off", {1000, 4, 4, 0, 0.5, 0, 0, 3000}, false, true, 3000, "2.0 s"},
        {"back-off over", {3000, 4, 4, 0, 0.5, 0, 0, 3000}, true, true, 0, "all"},
        {"nothing expected", {1000, 0, 0, 0, 0.5, 0, 0, 0}, false, false, 0, "0 of 0"},
    };
    for (size_t i = 0; i < N(cases); i++) {
        struct quorum_decision d;
        quorum_decide(&cases[i].in, &d);
        if (d.fire != cases[i].fire || d.quorum != cases[i].quorum || d.until_ms != cases[i].until)
            fail_msg("%s: fire %d quorum %d until %llu, '%s'", cases[i].name, d.fire, d.quorum,
                     (unsigned long long)d.until_ms, d.reason);
        expect_text(cases[i].name, d.reason, cases[i].reason);
    }
}

/* ---- schedule ------------------------------------------------------------ */

static struct schedule_task train(uint64_t id, uint64_t owner)
{
    return (struct schedule_task){.id = id,
                                  .job_id = 1,
                                  .kind = TASK_TRAIN,
                                  .owner = owner,
                                  .owner_here = owner != 0,
                                  .ready_ms = 1000,
                                  .patience_ms = 2000};
}

static long pick(uint64_t now, const struct schedule_task *tasks, size_t n, bool others,
                 struct schedule_decision *d)
{
    const struct schedule_options o = {others, others, 10000};
    schedule_pick(now, 7, tasks, n, &o, d);
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
    list[3].kind = TASK_SAMPLE;
    assert_int_equal(pick(1000, list, 4, true, &d), 3);
    list[3].kind = TASK_INIT;
    assert_int_equal(pick(1000, list, 4, true, &d), 3);
    list[3].kind = TASK_TRAIN;
    list[1].owner = 0;
    list[0].job_leases = 2; /* other jobs are served first */
    list[0].job_id = 9;
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
    list[0].owner_training = true; /* busy with another replica: no wait */
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
    schedule_pick(4999, 7, list, 2, &o, &d);
    assert_int_equal(d.index, -1);
    assert_int_equal(d.until_ms, 5000);
    expect_text("small", d.reason, "needs more memory than this worker has");
    list[1].network = 1;
    schedule_pick(4999, 7, list, 2, &o, &d);
    assert_int_equal(d.index, 1);
    list[1].network = 0;
    list[1].kind = TASK_FEATURE;
    schedule_pick(4999, 7, list, 2, &o, &d);
    assert_int_equal(d.index, 1);
    schedule_pick(5000, 7, list, 1, &o, &d); /* it is asked again */
    assert_int_equal(d.index, 0);
}

static void test_schedule_failures(void **state)
{
    struct schedule_decision d;
    struct schedule_task list[2] = {train(1, 0), train(2, 0)};
    list[0].failed_worker = 7;
    assert_int_equal(pick(1000, list, 2, true, &d), 1);
    assert_int_equal(pick(1000, list, 1, true, &d), -1);
    assert_int_equal(d.until_ms, 11000);
    assert_int_equal(pick(1000, list, 1, false, &d), 0); /* nobody else could */
    assert_int_equal(pick(11000, list, 1, true, &d), 0);
    list[0].failed_worker = 0;
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
            list[p].owner_training = owner[p] != 0; /* both are always busy */
        }
        size_t at[2];
        for (uint64_t w = 0; w < 2; w++) {
            const struct schedule_options o = {true, true, 10000};
            schedule_pick(1000, 7 + w, list, PATHS, &o, &d);
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
    list[0].kind = TASK_SAMPLE;
    list[1].kind = TASK_VELOCITY;
    assert_int_equal(pick(1000, list, 2, true, &d), 1);
    list[0].needs_helper = true;
    assert_int_equal(pick(1000, list, 1, true, &d), 0);
    assert_int_equal(pick(1000, list, 1, false, &d), -1);
    expect_text("alone", d.reason, "needs another worker");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_admit_join),
        cmocka_unit_test(test_admit_work),
        cmocka_unit_test(test_quarantine_grows),
        cmocka_unit_test(test_lease),
        cmocka_unit_test(test_median),
        cmocka_unit_test(test_quorum_need),
        cmocka_unit_test(test_quorum),
        cmocka_unit_test(test_schedule_order),
        cmocka_unit_test(test_schedule_patience),
        cmocka_unit_test(test_schedule_failures),
        cmocka_unit_test(test_schedule_small),
        cmocka_unit_test(test_schedule_paths),
        cmocka_unit_test(test_schedule_velocity),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
