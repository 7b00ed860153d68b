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
    const struct admit_join good = {.workers = 3,
                                    .workers_max = 1024,
                                    .version = "1.4.2",
                                    .our_version = "1.5.0",
                                    .instance_len = 16,
                                    .identity_len = 16,
                                    .name_len = 5};
    struct {
        const char *name;
        struct admit_join in;
        int rc;
        const char *reason;
    } cases[] = {
        {"good", good, 0, ""},
        {"short identity", good, -EINVAL, "16 bytes"},
        {"long name", good, -EINVAL, "64 bytes"},
        {"two releases ago", good, -EAGAIN, "'1.3.9', the coordinator is '1.5.0'"},
        {"twin", good, -EBUSY, "remove identity, tls-key.pem and tls-cert.pem from its work dir"},
        {"reconnect", good, 0, ""},
        {"full", good, -EAGAIN, "1024 places"},
        {"full but known", good, 0, ""},
        {"the next release", good, 0, ""},
        {"two releases ahead", good, -EAGAIN, "upgrade the coordinator"},
        {"another age", good, -EAGAIN, "upgrade the worker"},
        {"no release", good, -EAGAIN, "'main'"},
        {"another's identity", good, -ERR_AUTH, "another key"},
    };
    cases[1].in.identity_len = 15;
    cases[2].in.name_len = 65;
    cases[3].in.version = "1.3.9";
    cases[8].in.version = "1.6";
    cases[9].in.version = "1.7.0";
    cases[10].in.version = "0.5.0";
    cases[11].in.version = "main";
    cases[12].in.other_key = true;
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

static void test_admit_token(void **state)
{
    const struct admit_token good = {.name = "spot",
                                     .now_unix_ms = 5000,
                                     .ends_unix_ms = 5001,
                                     .is_new = true,
                                     .uses = 3,
                                     .uses_max = 4,
                                     .workers_here = 1,
                                     .workers_max = 2};
    struct {
        const char *name;
        struct admit_token in;
        int rc;
        const char *reason;
    } cases[] = {
        {"good", good, 0, ""},
        {"revoked", good, -ERR_AUTH, "'spot' was revoked"},
        {"revoked and known", good, -ERR_AUTH, "'spot' was revoked"},
        {"at its end", good, -ERR_AUTH, "'spot' ended 0.0s ago"},
        {"past its end, known", good, 0, ""},
        {"without an end", good, 0, ""},
        {"used up", good, -ERR_AUTH, "used up, by 4 workers"},
        {"used up, known", good, 0, ""},
        {"any number of uses", good, 0, ""},
        {"too many here", good, -EAGAIN,
         "the token 'spot' allows 2 workers at once, and 2 are here"},
        {"too many here, known", good, -EAGAIN, "allows 2"},
        {"any number here", good, 0, ""},
    };
    cases[1].in.revoked = cases[2].in.revoked = true;
    cases[3].in.now_unix_ms = cases[4].in.now_unix_ms = 5001;
    cases[5].in.ends_unix_ms = 0;
    cases[6].in.uses = cases[7].in.uses = cases[8].in.uses = 4;
    cases[8].in.uses_max = 0;
    cases[9].in.workers_here = cases[10].in.workers_here = cases[11].in.workers_here = 2;
    cases[11].in.workers_max = 0;
    cases[2].in.is_new = cases[4].in.is_new = cases[7].in.is_new = cases[10].in.is_new = false;
    for (size_t i = 0; i < N(cases); i++) {
        char reason[ADMIT_REASON_MAX];
        if (admit_token(&cases[i].in, reason) != cases[i].rc)
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
        {"verdicts", {1000, 0, false, true, 0, 65}, false, 0, "what became of 65"},
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
        cmocka_unit_test(test_admit_token),
        cmocka_unit_test(test_admit_join),
        cmocka_unit_test(test_admit_work),
        cmocka_unit_test(test_quarantine_grows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
