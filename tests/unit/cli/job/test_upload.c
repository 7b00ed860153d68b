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
    const int rc = upload_blob(cli, "/dev/null", sha256, 1, "a shard", NULL, NULL, &sent, err);
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

#define GO "{\"have\": false, \"url\": \"/v1/blobs/a?sig=b\"}"

/* Tickets expire while a large file is on its way. */
static void an_expired_ticket_is_renewed(void **state)
{
    static const char *const answers[] = {GO, "403", GO, "403", GO, "201", GO,  "403",
                                          GO, "403", GO, "403", GO, "403", NULL};
    const uint8_t sha256[HASH_BYTES] = {0};
    char path[] = "/tmp/skerry-upload.XXXXXX";
    uint64_t sent = 0;
    struct script s;
    struct cli cli = {0};
    struct err err = {0};
    const int fd = mkstemp(path);
    assert_int_equal(write(fd, "abc", 3), 3);
    connect_to(&s, &cli, answers);
    if (upload_blob(&cli, path, sha256, 3, "a shard", NULL, NULL, &sent, &err) < 0)
        fail_msg("%s", err.msg);
    assert_int_equal(sent, 3);
    assert_int_equal(upload_blob(&cli, path, sha256, 3, "a shard", NULL, NULL, NULL, &err),
                     -ERR_AUTH);
    assert_non_null(strstr(err.msg, "uploading a shard: "));
    disconnect(&s, &cli);
    assert_int_equal(close(fd), 0);
    assert_int_equal(unlink(path), 0);
}

/* What nobody names is deleted after a day, and a large dataset is longer on its way. */
static void earlier_uploads_are_kept(void **state)
{
    static const char *const answers[] = {THERE, THERE, THERE, THERE, GO, NULL};
    const uint8_t sha256[HASH_BYTES] = {1};
    struct script s;
    struct cli cli = {0};
    struct err err = {0};
    connect_to(&s, &cli, answers);
    assert_int_equal(send_zeros(&cli, &err), 0);
    cli.uploads_s -= 5 * 3600;
    assert_int_equal(upload_blob(&cli, "/dev/null", sha256, 7, "a shard", NULL, NULL, NULL, &err),
                     0);
    assert_non_null(strstr(s.body, "\"size\":1}")); /* the newest question */
    cli.uploads_s -= 5 * 3600;
    assert_int_equal(send_zeros(&cli, &err), -ERR_NOTFOUND);
    assert_non_null(strstr(err.msg, "what was uploaded first is gone"));
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
        cmocka_unit_test(an_expired_ticket_is_renewed),
        cmocka_unit_test(earlier_uploads_are_kept),
        cmocka_unit_test(one_that_never_answered_is_not),
        cmocka_unit_test(an_interrupted_upload_asks_for_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
