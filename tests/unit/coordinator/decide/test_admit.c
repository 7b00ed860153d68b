/* Who may join, and who may work: code or answer, and reason. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/err.h"
#include "coordinator/decide/admit.h"
#include "tests/unit/coordinator/decide/expect.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_admit_join),
        cmocka_unit_test(test_admit_work),
        cmocka_unit_test(test_quarantine_grows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
