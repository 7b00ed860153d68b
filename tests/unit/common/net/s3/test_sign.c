/* Signatures against the vectors that AWS publishes: the presigned GET of the S3 manual, and of the
 * Signature Version 4 test suite those in the query string. */
#include "common/net/s3/sign.h"

#include "common/base/buf.h"
#include "tests/unit/common/net/net_test.h"

#define SUITE_S 1440938160 /* 2015-08-30T12:36:00Z */
#define EMPTY "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

static const struct s3_signer suite = {.access_key = "AKIDEXAMPLE",
                                       .secret_key = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY",
                                       .region = "us-east-1",
                                       .service = "service"};

static void expect(const struct s3_signer *by, const struct s3_ask *ask, const char *signature)
{
    struct buf url;
    buf_init(&url, 4096);
    assert_int_equal(s3_sign(by, ask, &url), 0);
    const char *at = strstr(buf_str(&url), "&X-Amz-Signature=");
    assert_non_null(at);
    assert_string_equal(at + 17, signature);
    buf_release(&url);
}

static void test_manual(void **state)
{
    const struct s3_signer by = {.access_key = "AKIAIOSFODNN7EXAMPLE",
                                 .secret_key = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
                                 .region = "us-east-1",
                                 .service = "s3"};
    const struct s3_ask ask = {.method = "GET",
                               .scheme = "https",
                               .host = "examplebucket.s3.amazonaws.com",
                               .path = "/test.txt",
                               .now_s = 1369353600,
                               .life_s = 86400};
    struct buf url;
    buf_init(&url, 4096);
    assert_int_equal(s3_sign(&by, &ask, &url), 0);
    assert_string_equal(
        buf_str(&url),
        "https://examplebucket.s3.amazonaws.com/test.txt?X-Amz-Algorithm=AWS4-HMAC-SHA256"
        "&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3%2Faws4_request"
        "&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host"
        "&X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404");
    buf_release(&url);
}

static void test_suite(void **state)
{
    struct s3_signer guest = suite;
    struct s3_ask ask = {.method = "GET",
                         .scheme = "https",
                         .host = "example.amazonaws.com",
                         .path = "/",
                         .payload = EMPTY,
                         .now_s = SUITE_S,
                         .life_s = 3600};
    guest.token = "6e86291e8372ff2a2260956d9b8aae1d763fbf315fa00fa31553b73ebf194267";
    expect(&guest, &ask, "7ff2b50b376cb4d151970630573d6291dc128cc5c2a12ffb237f73cc53f67b6c");
    ask.path = "/\u1234";
    expect(&suite, &ask, "10eae3f14a260bd3911cc6d008d3c576d143b05b62f09782a7a4b37f52178e44");
    ask.path = "/";
    ask.query[0] = (struct s3_pair){"Param2", "value2"};
    ask.query[1] = (struct s3_pair){"Param1", "value1"};
    expect(&suite, &ask, "86012e2c9ad4d77369f5d81c11f75158aae4f895a085212cc6d3f923d300bed5");
}

static void test_bound(void **state)
{
    const struct s3_ask ask = {
        .method = "PUT",
        .scheme = "http",
        .host = "h:9000",
        .path = "/b/p q/0",
        .headers = {{"content-length", "5"}, {"x-amz-checksum-sha256", "a="}},
        .now_s = SUITE_S,
        .life_s = 1};
    struct buf url, small;
    buf_init(&url, 4096);
    assert_int_equal(s3_sign(&suite, &ask, &url), 0);
    assert_true(str_starts(buf_str(&url), "http://h:9000/b/p%20q/0?X-Amz-"));
    assert_non_null(
        strstr(buf_str(&url), "SignedHeaders=content-length%3Bhost%3Bx-amz-checksum-sha256&"));
    buf_release(&url);
    buf_init(&small, 100);
    assert_int_equal(s3_sign(&suite, &ask, &small), -ERR_LIMIT);
    buf_release(&small);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_manual),
        cmocka_unit_test(test_suite),
        cmocka_unit_test(test_bound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
