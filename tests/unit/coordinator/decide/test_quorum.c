/* When an outer step is taken: decision, reason, and when to ask again. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "coordinator/decide/quorum.h"
#include "tests/unit/coordinator/decide/expect.h"

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
        {"all", {1000, 4, 4, 0, 0.5, 0, 0, 0}, true, true, 0, "4 of 4 contributions are in"},
        {"waits for all",
         {90000, 4, 3, 1, 0.5, 0, 100, 0},
         false,
         true,
         0,
         "3 of 4 contributions are in; the missing one is being worked on"},
        {"the only one",
         {1000, 1, 1, 0, 0.5, 0, 0, 0},
         true,
         true,
         0,
         "1 of 1 contributions is in"},
        {"nobody",
         {1000, 1, 0, 0, 0.5, 0, 0, 0},
         false,
         false,
         0,
         "nobody works on the missing one"},
        {"no quorum",
         {90000, 4, 1, 3, 0.5, 500, 0, 0},
         false,
         false,
         0,
         "1 of 4 contributions is in, 2 make a quorum; 3 of the missing 3 are"},
        {"grace begins", {1000, 4, 2, 2, 0.5, 500, 0, 0}, false, true, 1500, "0.5 s left"},
        {"grace runs",
         {1499, 4, 2, 2, 0.5, 500, 1000, 0},
         false,
         true,
         1500,
         "s left for the others"},
        {"grace over", {1500, 4, 2, 2, 0.5, 500, 1000, 0}, true, true, 1500, "has passed"},
        {"all before grace", {1100, 4, 4, 0, 0.5, 500, 1000, 0}, true, true, 0, "4 of 4"},
        {"back-off", {1000, 4, 4, 0, 0.5, 0, 0, 3000}, false, true, 3000, "2.0 s"},
        {"back-off over", {3000, 4, 4, 0, 0.5, 0, 0, 3000}, true, true, 0, "4 of 4"},
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quorum_need),
        cmocka_unit_test(test_quorum),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
