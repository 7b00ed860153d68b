/* What becomes of a task that fails: whose back-off, and whose word ends it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "coordinator/decide/failure.h"

static uint64_t known = 1000; /* the last worker */

static struct failure_decision note(struct failure_list *l, uint64_t now, uint64_t worker,
                                    bool lasting, bool others, bool only)
{
    struct failure_decision d;
    failure_note(l,
                 &(struct failure_in){.now_ms = now,
                                      .worker = worker,
                                      .lasting = lasting,
                                      .others = others,
                                      .only = only,
                                      .newest = known},
                 &d);
    return d;
}

/* Longer each time, without an end, and for its own worker alone. */
static void test_back_off(void **state)
{
    static const uint64_t waits[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300};
    struct failure_list l = {0};
    for (size_t i = 0; i < sizeof(waits) / sizeof(*waits); i++) {
        struct failure_decision d = note(&l, 1000, 7, false, false, true);
        assert_int_equal(d.worker_ms, 1000 + waits[i] * 1000);
        assert_int_equal(failure_until(&l, 7, STANDING_NEW), d.worker_ms);
        assert_int_equal(failure_until(&l, 8, STANDING_FAILING), 0);
        assert_false(d.confirmed);
    }
    for (int i = 0; i < 1000; i++)
        assert_int_equal(note(&l, 5, 7, false, false, true).worker_ms, 5 + 300000);
    assert_int_equal(failure_until(NULL, 7, STANDING_FAILING), 0);
}

/* Others are first for a while. */
static void test_others(void **state)
{
    struct failure_list l = {0};
    assert_int_equal(note(&l, 0, 7, false, true, false).worker_ms, 10000);
    assert_int_equal(note(&l, 0, 8, false, false, false).worker_ms, 1000);
}

/* The first failure of a program that came with the job costs its worker no wait, with others here
 * or without; the next ones do. */
static void test_program(void **state)
{
    struct failure_in in = {.now_ms = 1000, .worker = 7, .program = true};
    struct failure_list l = {0};
    struct failure_decision d;
    failure_note(&l, &in, &d);
    assert_int_equal(d.worker_ms, 1000);
    in.worker = 8;
    in.others = true;
    failure_note(&l, &in, &d);
    assert_int_equal(d.worker_ms, 1000);
    failure_note(&l, &in, &d);
    assert_int_equal(d.worker_ms, 11000);
    in = (struct failure_in){.now_ms = 1000, .worker = 7, .program = true};
    failure_note(&l, &in, &d);
    assert_int_equal(d.worker_ms, 3000);
    in = (struct failure_in){.now_ms = 1000, .worker = 9, .program = true, .lasting = true};
    failure_note(&l, &in, &d);
    assert_int_equal(d.worker_ms, 1000 + FAILURE_ALONE_MS); /* nobody can do it: no haste */
}

/* So many have failed it that it is the task: all wait, not for long.  But who is proven does not
 * wait for those who are not. */
static void test_all(void **state)
{
    struct failure_list l = {0};
    struct failure_decision d;
    struct failure_in in = {.standing = STANDING_NEW, .others = true, .proven = true};
    for (in.worker = 1; in.worker < FAILURES_MAX; in.worker++)
        failure_note(&l, &in, &d);
    assert_int_equal(failure_until(&l, 50, STANDING_FAILING), 0);
    failure_note(&l, &in, &d);
    assert_int_equal(failure_until(&l, 50, STANDING_FAILING), 1000);
    assert_int_equal(failure_until(&l, 50, STANDING_NEW), 1000);
    assert_true(failure_holds(&l, 9999) && !failure_holds(&l, 10000));
    for (in.worker = 100; in.worker < 200; in.worker++)
        failure_note(&l, &in, &d);
    assert_int_equal(failure_until(&l, 50, STANDING_FAILING), 30000);
    assert_int_equal(failure_until(&l, 50, STANDING_PROVEN), 0);
    in.proven = false; /* nobody who is proven has a turn: one of the new ones has to be it */
    failure_note(&l, &in, &d);
    assert_int_equal(failure_until(&l, 50, STANDING_FAILING), 30000);
    assert_int_equal(failure_until(&l, 50, STANDING_NEW), 0);
    in.standing = STANDING_PROVEN;
    for (in.worker = 300; in.worker < 300 + FAILURES_MAX; in.worker++) {
        assert_int_equal(failure_until(&l, 50, STANDING_PROVEN), 0);
        failure_note(&l, &in, &d);
        failure_note(&l, &in, &d); /* twice is one worker */
    }
    assert_int_equal(failure_until(&l, 50, STANDING_PROVEN), 1000);
}

static void test_standing(void **state)
{
    assert_int_equal(failure_standing(0, 0, 0), STANDING_NEW);
    assert_int_equal(failure_standing(1, 0, 0), STANDING_PROVEN);
    assert_int_equal(failure_standing(1, 0, 3), STANDING_PROVEN); /* it has worked since */
    assert_int_equal(failure_standing(9, 1, 0), STANDING_FAILING);
    assert_int_equal(failure_standing(0, 1, 0), STANDING_FAILING);
    assert_int_equal(failure_standing(0, 0, 1),
                     STANDING_FAILING); /* quarantine makes no new name */
}

static void test_two_workers(void **state)
{
    struct failure_list l = {0};
    for (uint64_t now = 0; now < 10 * FAILURE_ALONE_MS; now += FAILURE_ALONE_MS)
        assert_false(note(&l, now, 7, true, true, false).confirmed); /* one is not enough */
    assert_true(failure_doubted(&l));
    assert_false(note(&l, 0, 8, false, true, false).confirmed); /* this is no such opinion */
    assert_true(note(&l, 0, 9, true, true, false).confirmed);
}

/* Two names from one place are no two words while somebody else could tell; two who are proven are,
 * and so are two places. */
static void test_one_place(void **state)
{
    struct failure_in in = {.now_ms = 1,
                            .lasting = true,
                            .origin = 5,
                            .standing = STANDING_NEW,
                            .newest = 1000,
                            .others_tell = true};
    struct failure_list l = {0};
    struct failure_decision d;
    for (in.worker = 1; in.worker <= 2; in.worker++) {
        failure_note(&l, &in, &d);
        failure_note(&l, &in, &d);
        assert_false(d.confirmed);
    }
    assert_true(failure_says(&l, 1) && failure_says(&l, 2) && !failure_says(&l, 3));
    struct failure_list all = l;
    in.others_tell = false;
    failure_note(&all, &in, &d);
    assert_true(d.confirmed);
    all = l;
    in.others_tell = true;
    in.origin = 6;
    failure_note(&all, &in, &d);
    assert_true(d.confirmed);
    memset(&l, 0, sizeof(l));
    in.standing = STANDING_PROVEN;
    failure_note(&l, &in, &d);
    in.standing = STANDING_FAILING; /* now; when it said so first it was proven */
    failure_note(&l, &in, &d);
    assert_false(d.confirmed);
    in.worker++;
    in.standing = STANDING_PROVEN;
    failure_note(&l, &in, &d);
    assert_true(d.confirmed);
}

/* Whoever came after the first word does not confirm it, the other way round it counts. */
static void test_other_names(void **state)
{
    struct failure_list l = {0};
    known = 7;
    assert_false(note(&l, 0, 7, true, true, false).confirmed);
    for (uint64_t w = 8; w < 20; w++) {
        known = w;
        assert_false(note(&l, 0, w, true, true, false).confirmed);
        assert_false(note(&l, FAILURE_ALONE_MS, w, true, true, false).confirmed);
    }
    assert_true(note(&l, 0, 7, true, true, false).confirmed);
    known = 1000;
}

/* Two workers of one machine are no two witnesses, proven or alone, since the fault may be the
 * machine's, nor are they at two addresses, as containers of one host are; those of two machines
 * are, and so are two tokens.  What older releases do not tell counts as another machine. */
static void test_one_machine(void **state)
{
    static const struct {
        uint64_t machine, origin, token;
        bool local, confirmed;
    } second[] = {
        {6, 5, 3, false, false}, {7, 5, 3, false, true}, {0, 5, 3, false, true},
        {6, 4, 3, false, false}, {7, 4, 3, false, true}, {0, 4, 3, false, true},
        {6, 4, 2, false, true},  {6, 5, 3, true, true},
    };
    for (unsigned proven = 0; proven < 2; proven++)
        for (size_t i = 0; i < sizeof(second) / sizeof(second[0]); i++) {
            struct failure_list l = {0};
            struct failure_decision d;
            struct failure_in in = {.now_ms = 1,
                                    .worker = 1,
                                    .origin = 5,
                                    .machine = 6,
                                    .token = 3,
                                    .lasting = true,
                                    .newest = 1000,
                                    .others_tell = proven,
                                    .standing = proven ? STANDING_PROVEN : STANDING_NEW};
            failure_note(&l, &in, &d);
            assert_false(d.confirmed);
            in.worker = 2;
            in.machine = second[i].machine;
            in.origin = second[i].origin;
            in.token = second[i].token;
            in.local = second[i].local;
            failure_note(&l, &in, &d);
            assert_int_equal(d.confirmed, second[i].confirmed);
        }
}

/* The only worker is asked again, and however often it says so, it confirms nothing; unless it is
 * its user's own, who waits. */
static void test_alone(void **state)
{
    struct failure_list l = {0};
    struct failure_decision d = note(&l, 5000, 7, true, false, true);
    assert_false(d.confirmed);
    assert_int_equal(d.worker_ms, 5000 + FAILURE_ALONE_MS);
    for (uint64_t i = 0; i < 100; i++)
        assert_false(note(&l, 5000 + i * FAILURE_ALONE_MS, 7, true, false, true).confirmed);
    struct failure_in in = {.now_ms = 5000, .worker = 7, .lasting = true, .local = true};
    memset(&l, 0, sizeof(l));
    in.only = true;
    failure_note(&l, &in, &d);
    assert_false(d.confirmed);
    in.now_ms += FAILURE_ALONE_MS - 1;
    failure_note(&l, &in, &d);
    assert_false(d.confirmed);
    in.now_ms++;
    in.only = false;
    failure_note(&l, &in, &d);
    assert_false(d.confirmed);
    in.only = true;
    failure_note(&l, &in, &d);
    assert_true(d.confirmed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_back_off),    cmocka_unit_test(test_others),
        cmocka_unit_test(test_all),         cmocka_unit_test(test_two_workers),
        cmocka_unit_test(test_alone),       cmocka_unit_test(test_program),
        cmocka_unit_test(test_other_names), cmocka_unit_test(test_standing),
        cmocka_unit_test(test_one_place),   cmocka_unit_test(test_one_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
