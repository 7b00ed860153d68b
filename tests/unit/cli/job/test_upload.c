/* Files on their way to a coordinator that is away for a moment, or for good. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cli/job/upload.h"
#include "tests/unit/cli/script.h"

#define THERE "{\"have\": true}"
#define REFUSED "{\"error\":{\"code\":\"no\",\"message\":\"it is refused\"}}"

/* A small file of zeros, which is there already. */
static int send_zeros(struct cli *cli, struct err *err)
{
    const uint8_t sha256[HASH_BYTES] = {0};
    uint64_t sent = 1;
    *err = (struct err){0};
    const int rc = upload_blob(cli, "/dev/null", sha256, 1, "a shard", false, &sent, err);
    assert_true(rc < 0 || sent == 0);
    return rc;
}

static void a_coordinator_that_restarts_is_waited_for(void **state)
{
    static const char *const answers[] = {THERE, "503", "503", THERE, REFUSED, NULL};
    struct script s;
    struct cli cli = {0};
    struct err err;
    connect_to(&s, &cli, answers);
    for (int i = 0; i < 2; i++)
        if (send_zeros(&cli, &err) < 0)
            fail_msg("%s", err.msg);
    assert_int_equal(send_zeros(&cli, &err), -ERR_NOTFOUND); /* which is an answer */
    assert_non_null(strstr(err.msg, "asking to upload a shard: it is refused"));
    disconnect(&s, &cli);
}

/* Its address may be wrong. */
static void one_that_never_answered_is_not(void **state)
{
    static const char *const none[] = {NULL};
    struct script s;
    struct cli cli = {0};
    struct err err;
    connect_to(&s, &cli, none);
    close(s.listener);
    assert_int_equal(send_zeros(&cli, &err), -ECONNREFUSED);
    s.listener = -1;
    disconnect(&s, &cli);
}

static void an_interrupted_upload_asks_for_nothing(void **state)
{
    static const char *const answers[] = {THERE, NULL};
    struct script s;
    struct cli cli = {0};
    struct err err;
    connect_to(&s, &cli, answers);
    cli_interrupted = SIGINT;
    assert_int_equal(send_zeros(&cli, &err), -ERR_CANCELLED);
    cli_interrupted = 0;
    disconnect(&s, &cli);
    assert_string_equal(s.asked, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_coordinator_that_restarts_is_waited_for),
        cmocka_unit_test(one_that_never_answered_is_not),
        cmocka_unit_test(an_interrupted_upload_asks_for_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
