/* What a store says when it refuses, as S3 documents it, becomes one sentence that says what to
 * do. */
#include "common/net/s3/answer.h"

#include "tests/unit/common/net/net_test.h"

#define NOW 1700000000

#define ERROR(code, more) "<Error><Code>" code "</Code>" more "</Error>"

static struct s3_answer asked(long status, const char *body)
{
    return (struct s3_answer){.bucket = "b",
                              .endpoint = "store.example",
                              .region = "us-east-1",
                              .status = status,
                              .body = body,
                              .len = body ? strlen(body) : 0,
                              .its_region = "",
                              .date_s = NOW,
                              .now_s = NOW};
}

static void expect(const struct s3_answer *a, int code, const char *text)
{
    struct err err = {0};
    assert_int_equal(s3_answer_error(a, &err), code);
    if (!strstr(err.msg, text))
        fail_msg("'%s' is not in: %s", text, err.msg);
}

static void test_sentences(void **state)
{
    static const struct {
        long status;
        const char *body;
        int code;
        const char *text;
    } cases[] = {
        {404, ERROR("NoSuchBucket", ""), -ERR_CONFIG, "there is no bucket b at store.example"},
        {404, ERROR("NoSuchKey", ""), -ERR_NOTFOUND, "no such object"},
        {404, NULL, -ERR_NOTFOUND, "no such object"},
        {404, "<html>not here</html>", -ERR_REMOTE, "is it one?"}, /* a blob is not gone by this */
        {301, ERROR("PermanentRedirect", "<Region>eu-west-1</Region>"), -ERR_CONFIG,
         "is in the region eu-west-1, not in us-east-1: set AWS_REGION=eu-west-1"},
        {400, ERROR("AuthorizationHeaderMalformed", "<Region>eu-west-1</Region>"), -ERR_CONFIG,
         "set AWS_REGION=eu-west-1"},
        {403, ERROR("InvalidAccessKeyId", ""), -ERR_AUTH, "does not know the key"},
        {400, ERROR("InvalidToken", ""), -ERR_AUTH, "AWS_SESSION_TOKEN does not belong to"},
        {403, ERROR("SignatureDoesNotMatch", ""), -ERR_AUTH, "AWS_SECRET_ACCESS_KEY does not"},
        {403, ERROR("AccessDenied", "<Message>Access Denied</Message>"), -ERR_AUTH,
         "may not read the bucket b (HTTP 403, Access Denied)"},
        {403, ERROR("AccessDenied", "<Message>Request has expired</Message>"), -EAGAIN,
         "after it had expired"},
        {400, ERROR("ExpiredToken", ""), -ERR_AUTH, "a new AWS_SESSION_TOKEN"},
        {403, ERROR("RequestTimeTooSkewed", ""), -ERR_AUTH, "the clock of this machine"},
        {503, ERROR("SlowDown", ""), -EAGAIN, "busy or broken: HTTP 503 SlowDown"},
        {500, "", -EAGAIN, "busy or broken: HTTP 500"},
        {429, "", -EAGAIN, "busy or broken: HTTP 429"},
        {501, ERROR("NotImplemented", "<Message>no</Message>"), -ERR_UNIMPLEMENTED,
         "cannot do this: no"},
        {412, ERROR("PreconditionFailed", ""), -EEXIST, "has such an object already"},
        {409, ERROR("ConditionalRequestConflict", ""), -EAGAIN, "busy or broken"},
        {400, ERROR("BadDigest", ""), -ERR_HASH, "other bytes than the hash"},
        {400, ERROR("XAmzContentChecksumMismatch", ""), -ERR_HASH, "other bytes than the hash"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct s3_answer a = asked(cases[i].status, cases[i].body);
        expect(&a, cases[i].code, cases[i].text);
    }
}

static void test_clock(void **state)
{
    struct s3_answer a = asked(403, ERROR("AccessDenied", ""));
    a.now_s = NOW + 3600;
    expect(&a, -ERR_AUTH, "is 3600 s ahead of that of the store store.example");
    a.now_s = NOW - 1000;
    expect(&a, -ERR_AUTH, "is 1000 s behind that of the store");
    a.now_s = NOW + 800;
    expect(&a, -ERR_AUTH, "may not read");
    assert_int_equal(s3_answer_date("Sun, 06 Nov 1994 08:49:37 GMT"), 784111777);
    assert_int_equal(s3_answer_date("yesterday"), 0);
}

static void test_writes_and_roles(void **state)
{
    struct s3_answer a = asked(403, ERROR("AccessDenied", ""));
    a.writes = true;
    expect(&a, -ERR_AUTH, "may not write into the bucket b");
    expect(&a, -ERR_AUTH, "s3:ListMultipartUploadParts"); /* of all that it needs */
    a = asked(403, NULL);                                 /* of a HEAD */
    a.its_region = "eu-west-1";
    expect(&a, -ERR_CONFIG, "is in the region eu-west-1");
    a = asked(400, ERROR("ExpiredToken", ""));
    a.of_role = true;
    expect(&a, -ERR_STALE, "has ended");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sentences),
        cmocka_unit_test(test_clock),
        cmocka_unit_test(test_writes_and_roles),
    };
    return cmocka_run_group_tests_name("s3_answer", tests, NULL, NULL);
}
