/* When a lease is lost: verdict, reason, and when to ask again. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "coordinator/decide/lease.h"
#include "tests/unit/coordinator/decide/expect.h"

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
        {"restart gives grace", {100000, 99500, 105000, 0, 0}, LEASE_LATE, 107001, "not come back"},
        {"slow but moving", {100000, 99500, 0, 41000, 0}, LEASE_ALIVE, 101001, ""},
        {"stuck", {100000, 99500, 0, 39999, 0}, LEASE_LOST, 0, "no progress"},
        {"long steps", {100000, 99500, 0, 10000, 20000}, LEASE_ALIVE, 107501, ""},
        {"longer than five", {200000, 199500, 0, 99999, 20000}, LEASE_LOST, 0, "100 s"},
        {"crawling",
         {100000, 99500, 0, 99000, 0, 0, false, 20001, 20000, true},
         LEASE_LOST,
         0,
         "at work for 20.0 s on what may take 20.0 s"},
        {"twice is fine",
         {100000, 99500, 0, 99000, 0, 0, false, 20000, 20000, true},
         LEASE_ALIVE,
         107501,
         ""},
        {"nobody else",
         {100000, 99500, 0, 99000, 0, 0, false, 90000, 10000, false},
         LEASE_ALIVE,
         107501,
         ""},
        {"nothing seen",
         {100000, 99500, 0, 99000, 0, 0, false, 90000, 0, true},
         LEASE_ALIVE,
         107501,
         ""},
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

/* Steps, samples and bytes that only grow; a few bytes are none. */
static void test_progress(void **state)
{
    struct lease_reach r = {0};
    assert_false(lease_progress(&r, &(struct lease_reach){0}));
    assert_true(lease_progress(&r, &(struct lease_reach){.steps = 5}));
    assert_false(lease_progress(&r, &(struct lease_reach){.steps = 5}));
    assert_false(lease_progress(&r, &(struct lease_reach){.steps = 4}));
    assert_true(lease_progress(&r, &(struct lease_reach){.samples = 1}));
    assert_true(lease_progress(&r, &(struct lease_reach){.signs = 1}));
    assert_false(lease_progress(&r, &(struct lease_reach){.signs = 1}));
    assert_int_equal(r.steps, 5);
    struct lease_reach few = {.bytes = LEASE_FLOOR_BYTES - 1};
    assert_false(lease_progress(&r, &few));
    few.bytes++; /* they add up */
    assert_true(lease_progress(&r, &few));
    assert_false(lease_progress(&r, &few));
}

/* The time in which data pass, by what we have seen; not so the first look, slow ones, and more
 * than there may be. */
static void test_moved(void **state)
{
    struct lease_moved m = {0};
    uint64_t now = 777, bytes = 1000000;
    const uint64_t step = LEASE_MOVED_LOOK_MS, enough = step * LEASE_MOVED_FLOOR;
    assert_true(lease_moved_due(&m, now));
    lease_moved_look(&m, now, bytes);
    assert_int_equal(m.ms, 0);
    assert_false(lease_moved_due(&m, now + step - 1));
    assert_true(lease_moved_due(&m, now + step));
    lease_moved_look(&m, now += step, bytes += enough);
    assert_int_equal(m.ms, step);
    lease_moved_look(&m, now += step, bytes += enough - 1);
    lease_moved_look(&m, now += step, bytes);
    lease_moved_look(&m, now += step, bytes = 0); /* somebody else has asked on it */
    assert_int_equal(m.ms, step);
    for (int i = 0; i < 2000; i++)
        lease_moved_look(&m, now += step, bytes += enough);
    assert_int_equal(m.ms, LEASE_MOVED_MAX_MS);
}

static void test_median(void **state)
{
    const uint64_t gaps[] = {9, 1, 5, 7, 3};
    assert_int_equal(lease_median(gaps, 5), 5);
    assert_int_equal(lease_median(gaps, 1), 9);
    assert_int_equal(lease_median(NULL, 0), 0);
}

static void test_limit(void **state)
{
    const uint64_t alike[] = {10, 11, 9, 10, 10}, unlike[] = {10, 40, 10, 40, 10};
    assert_int_equal(lease_limit(alike, 0), 0);
    assert_int_equal(lease_limit(alike, 1), 50); /* of few others may be slower */
    assert_int_equal(lease_limit(alike, 2), 55);
    assert_int_equal(lease_limit(alike + 1, 2), 55);
    assert_int_equal(lease_limit(alike, 5), 20);
    assert_int_equal(lease_limit(unlike, 5), 20);
    assert_int_equal(lease_limit(unlike, 4), 40 + 6 * 30); /* two kinds of workers */
    assert_int_equal(lease_limit(unlike + 1, 3), 80);
}

static void test_holds(void **state)
{
    assert_false(lease_holds(3, 3, 0, 1000)); /* few may go together */
    assert_true(lease_holds(4, 4, 0, 1000));
    assert_true(lease_holds(4, 11, 0, 1000));
    assert_false(lease_holds(4, 12, 0, 1000)); /* a third, and no more */
    assert_true(lease_holds(400, 1000, 1000, 60999));
    assert_false(lease_holds(400, 1000, 1000, 61000)); /* it is not us */
    assert_false(lease_holds(0, 0, 0, 0));
}

/* A task that takes too long is taken from its worker when another one idles, but one of seconds
 * not because of other work on its machine for a moment. */
static void test_crawling(void **state)
{
    const struct lease_options o = {
        .heartbeat_ms = 2000, .lease_ms = 5000, .closed_ms = 700, .progress_min_ms = 60000};
    const struct {
        uint64_t held, limit;
        bool idle, lost;
    } cases[] = {
        {14001, 14000, true, true}, {14000, 14000, true, false}, {14001, 14000, false, false},
        {100000, 0, true, false},   {3300, 3100, true, false},   {10000, 3100, true, false},
        {10001, 3100, true, true},  {10001, 9999, true, true},   {10001, 40, false, false}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct lease_in in = {.now_ms = 1000000,
                                    .heard_ms = 1000000,
                                    .held_ms = cases[i].held,
                                    .limit_ms = cases[i].limit,
                                    .idle = cases[i].idle};
        struct lease_decision d;
        lease_decide(&in, &o, &d);
        assert_int_equal(d.verdict == LEASE_LOST, cases[i].lost);
    }
}

/* Who is new and has not begun gives way to somebody as good who idles, long before a minute; later
 * where such tasks begin late. */
static void test_unbegun(void **state)
{
    const struct lease_options o = {.heartbeat_ms = 2000,
                                    .lease_ms = 5000,
                                    .closed_ms = 700,
                                    .progress_min_ms = 60000,
                                    .begin_min_ms = 3000};
    const struct {
        uint64_t gap, begin;
        uint32_t heartbeat;
        bool unbegun, lost;
    } cases[] = {{10001, 0, 2000, true, true},      {10000, 0, 2000, true, false},
                 {10001, 0, 2000, false, false},    {3001, 0, 100, true, true},
                 {3000, 0, 100, true, false},       {10001, 4000, 2000, true, false},
                 {20001, 4000, 2000, true, true},   {60001, 400000, 2000, true, true},
                 {60000, 400000, 2000, true, false}};
    (void)state;
    for (size_t i = 0; i < N(cases); i++) {
        struct lease_options with = o;
        const struct lease_in in = {.now_ms = 1000000,
                                    .heard_ms = 1000000,
                                    .progress_ms = 1000000 - cases[i].gap,
                                    .begin_ms = cases[i].begin,
                                    .unbegun = cases[i].unbegun};
        struct lease_decision d;
        with.heartbeat_ms = cases[i].heartbeat;
        lease_decide(&in, &with, &d);
        assert_int_equal(d.verdict == LEASE_LOST, cases[i].lost);
        assert_int_equal(d.stuck, cases[i].lost);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unbegun), cmocka_unit_test(test_crawling),
        cmocka_unit_test(test_lease),   cmocka_unit_test(test_progress),
        cmocka_unit_test(test_median),  cmocka_unit_test(test_limit),
        cmocka_unit_test(test_holds),   cmocka_unit_test(test_moved),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
