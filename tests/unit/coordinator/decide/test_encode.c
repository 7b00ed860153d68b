/* Whether pictures are encoded once or in each step, and why. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "coordinator/decide/encode.h"
#include "tests/unit/coordinator/decide/expect.h"

static void test_encode(void **state)
{
    const struct {
        const char *name;
        struct encode_in in;
        bool once;
        const char *reason;
    } cases[] = {
        {"asked once", {true, false, 100, 1, false, true}, true, "as encoders.run says"},
        {"asked step", {false, true, 100, 100000, false, false}, false, "as encoders.run says"},
        {"random", {false, false, 100, 100000, false, true}, false, "data.crop random"},
        {"seconds", {false, false, 100, 0, false, false}, true, "bounded by time"},
        {"twice", {false, false, 100, 200, false, false}, false, "only 2.0 times"},
        {"more", {false, false, 100, 210, false, false}, true, "seen 2.1 times, and 1 passes"},
        {"flip", {false, false, 100, 400, true, false}, false, "only 4.0 times"},
        {"flip more", {false, false, 100, 410, true, false}, true, "seen 4.1 times, and 2 passes"},
        {"nothing", {false, false, 0, 10, false, false}, false, "only 0.0 times"},
    };
    for (size_t i = 0; i < N(cases); i++) {
        struct encode_decision d;
        encode_decide(&cases[i].in, &d);
        if (d.once != cases[i].once)
            fail_msg("%s: once %d, '%s'", cases[i].name, d.once, d.reason);
        expect_text(cases[i].name, d.reason, cases[i].reason);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_encode),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
