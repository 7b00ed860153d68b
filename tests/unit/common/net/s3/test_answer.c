/* What a store says when it refuses, as S3 documents it, becomes one sentence that says what to do;
 * and what it lists is read as XML, strictly. */
#include "common/net/s3/answer.h"

#include "common/net/s3/credentials.h"
#include "common/net/s3/xml.h"
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

/* ---- XML ---- */

static int tell(void *arg, const char *parent, const char *name, const char *text)
{
    char *out = arg, line[128];
    (void)snprintf(line, sizeof(line), "%s/%s=%s;", parent, name, text ? text : "-");
    (void)strcat(out, line);
    return 0;
}

static int read_xml(const char *xml, char *out)
{
    *out = '\0';
    return s3_xml_read(xml, strlen(xml), tell, out);
}

static void test_xml(void **state)
{
    char out[1024], key[8];
    assert_int_equal(read_xml("<?xml version=\"1.0\"?>\n<L xmlns=\"http://x\"><C> <K>a&amp;b</K>\n"
                              "<S>1</S></C><C><K/></C></L>",
                              out),
                     0);
    assert_string_equal(out, "C/K=a&b;C/S=1;L/C=-;C/K=;L/C=-;/L=-;");
    assert_int_equal(read_xml("<L><C></L>", out), -ERR_FORMAT);
    assert_int_equal(read_xml("{}", out), -ERR_FORMAT);
    assert_int_equal(read_xml("", out), -ERR_FORMAT);
    assert_int_equal(read_xml("<!DOCTYPE x [<!ENTITY a \"b\">]><x>&a;</x>", out), -ERR_FORMAT);
    assert_int_equal(read_xml("<a><a><a><a><a><a><a><a>x</a></a></a></a></a></a></a></a>", out), 0);
    assert_int_equal(
        read_xml("<a><a><a><a><a><a><a><a><a>x</a></a></a></a></a></a></a></a></a>", out),
        -ERR_FORMAT);
    char *longer = mem_alloc(S3_XML_TEXT_MAX + 16);
    (void)sprintf(longer, "<a>%0*d</a>", S3_XML_TEXT_MAX, 1);
    assert_int_equal(read_xml(longer, out), -ERR_FORMAT);
    mem_free(longer);
    assert_true(s3_xml_find("<a><Key>abc</Key></a>", 21, "Key", key, sizeof(key)));
    assert_string_equal(key, "abc");
    assert_false(s3_xml_find("<a><Key>abc</Key></a>", 21, "Key", key, 3));
    assert_false(s3_xml_find("<a><Key>abc</Key></a>", 21, "Kei", key, sizeof(key)));
}

/* The parser tells the end of an empty element also where its beginning has stopped the reading. */
static void test_xml_stopped_in_an_empty_element(void **state)
{
    char out[1024], xml[256], *name = mem_alloc(101);
    memset(name, 'a', 100);
    (void)sprintf(xml, "<%s/>", name);
    assert_int_equal(read_xml(xml, out), -ERR_FORMAT);
    assert_string_equal(out, "");
    (void)sprintf(xml, "<L><%s/></L>", name);
    assert_int_equal(read_xml(xml, out), -ERR_FORMAT);
    assert_string_equal(out, "");
    assert_int_equal(read_xml("<a><a><a><a><a><a><a><a><a/></a></a></a></a></a></a></a></a>", out),
                     -ERR_FORMAT);
    assert_string_equal(out, "");
    mem_free(name);
}

/* ---- a role's key ---- */

static void test_role(void **state)
{
    struct s3_credentials c = {0};
    struct err err = {0};
    assert_int_equal(s3_credentials_parse("{\"Code\": \"Success\", \"AccessKeyId\": \"A\","
                                          "\"SecretAccessKey\": \"S\", \"Token\": \"T\","
                                          "\"Expiration\": \"2023-11-14T22:13:20Z\"}",
                                          &c, &err),
                     0);
    assert_string_equal(c.access_key, "A");
    assert_string_equal(c.secret_key, "S");
    assert_string_equal(c.token, "T");
    assert_int_equal(c.ends_s, NOW);
    assert_true(c.of_role);
    assert_int_equal(s3_credentials_parse("{\"AccessKeyId\": \"A\"}", &c, &err), -ERR_FORMAT);
    assert_non_null(strstr(err.msg, "no usable SecretAccessKey"));
    assert_int_equal(s3_credentials_parse("nonsense", &c, &err), -ERR_FORMAT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sentences),
        cmocka_unit_test(test_clock),
        cmocka_unit_test(test_writes_and_roles),
        cmocka_unit_test(test_xml),
        cmocka_unit_test(test_xml_stopped_in_an_empty_element),
        cmocka_unit_test(test_role),
    };
    return cmocka_run_group_tests_name("s3_answer", tests, NULL, NULL);
}
