/* Where the key of an object store comes from: the environment, or the machine's role; and what is
 * said if it is nowhere.  The metadata service is a fake store that answers as it is told. */
#include "common/net/s3/credentials.h"

#include "tests/unit/common/net/s3/fake_store.h"

#define OK "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
#define ROLE OK "{\"AccessKeyId\": \"A\", \"SecretAccessKey\": \"S\", \"Token\": \"T\"}"

static int begin(void **state)
{
    static struct fake_store f;
    fake_store_open(&f);
    unsetenv("AWS_ACCESS_KEY_ID");
    unsetenv("AWS_SECRET_ACCESS_KEY");
    unsetenv("AWS_SESSION_TOKEN");
    setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f.url, 1);
    *state = &f;
    return 0;
}

static int end(void **state)
{
    fake_store_close(*state);
    return 0;
}

/* Reads credentials; what came of it, with "" for those that there are not. */
static void expect(int code, const char *text)
{
    struct s3_credentials c;
    struct err err = {0};
    memset(&c, 0x55, sizeof(c));
    const int rc = s3_credentials_read(&c, &err);
    if (rc != code || (rc < 0 && !strstr(err.msg, text)))
        fail_msg("%d (%s), not %d and '%s'", rc, rc < 0 ? err.msg : "", code, text);
    if (rc < 0) {
        assert_int_equal(c.access_key[0], 0x55); /* it is untouched */
        return;
    }
    char got[sizeof(c)];
    (void)snprintf(got, sizeof(got), "%s %s %s", c.access_key, c.secret_key, c.token);
    assert_string_equal(got, text);
}

static void test_environment(void **state)
{
    struct fake_store *f = *state;
    char long_text[5000];
    memset(long_text, 'x', sizeof(long_text) - 1);
    long_text[sizeof(long_text) - 1] = '\0';
    setenv("AWS_ACCESS_KEY_ID", "K", 1);
    expect(-ERR_CONFIG, "AWS_SECRET_ACCESS_KEY is not: set both");
    setenv("AWS_SECRET_ACCESS_KEY", "", 1);
    expect(-ERR_CONFIG, "AWS_SECRET_ACCESS_KEY is not: set both");
    setenv("AWS_SECRET_ACCESS_KEY", "secret", 1);
    expect(0, "K secret ");
    setenv("AWS_SESSION_TOKEN", "session", 1);
    expect(0, "K secret session");
    struct s3_credentials c = {.of_role = true, .ends_s = 5};
    assert_int_equal(s3_credentials_read(&c, NULL), 0);
    assert_true(!c.of_role && c.ends_s == 0); /* nobody can renew them */
    setenv("AWS_SESSION_TOKEN", long_text, 1);
    expect(-ERR_CONFIG, "is too long");
    setenv("AWS_SESSION_TOKEN", "", 1);
    setenv("AWS_ACCESS_KEY_ID", long_text, 1);
    expect(-ERR_CONFIG, "is too long");
    setenv("AWS_ACCESS_KEY_ID", "K", 1);
    setenv("AWS_SECRET_ACCESS_KEY", long_text, 1);
    expect(-ERR_CONFIG, "is too long");
    assert_true(f->gets + f->puts == 0); /* the machine's role was not asked for */
}

/* A session with the service, the role's name, its key.  An empty variable is none. */
static void test_role(void **state)
{
    struct fake_store *f = *state;
    setenv("AWS_ACCESS_KEY_ID", "", 1);
    fake_store_next(f, "PUT", FAKE_REPLY, OK "session-1");
    fake_store_next(f, "GET", FAKE_REPLY, OK "a-role\r\nanother\n");
    fake_store_next(f, "GET", FAKE_REPLY, ROLE);
    expect(0, "A S T");
    assert_non_null(strstr(f->last, "GET /latest/meta-data/iam/security-credentials/a-role HTTP"));
    assert_non_null(strstr(f->last, "\r\nX-aws-ec2-metadata-token: session-1\r\n"));
    assert_true(f->puts == 1 && f->gets == 2);
}

/* A service that is busy, or breaks off, is asked again; after three times it may answer later:
 * that is no fault of the configuration. */
static void test_busy(void **state)
{
    static const char *const busy[] = {"HTTP/1.1 500 Busy\r\nConnection: close\r\n\r\n",
                                       "HTTP/1.1 429 Busy\r\nConnection: close\r\n\r\n",
                                       "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nsess"};
    struct fake_store *f = *state;
    for (int i = 0; i < 3; i++)
        fake_store_next(f, "PUT", FAKE_REPLY, busy[i]);
    expect(-EAGAIN, "does not answer just now");
    assert_int_equal(f->puts, 3);
}

/* A machine without a role, or without a service, is asked once. */
static void test_nowhere(void **state)
{
    static const char *const none = "HTTP/1.1 404 Not Found\r\nConnection: close\r\n\r\n";
    struct fake_store *f = *state;
    fake_store_next(f, "PUT", FAKE_REPLY, OK "session-1");
    fake_store_next(f, "GET", FAKE_REPLY, none);
    expect(-ERR_CONFIG, "no instance role either");
    fake_store_next(f, "PUT", FAKE_REPLY, OK); /* an empty answer is none */
    expect(-ERR_CONFIG, "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY");
    assert_true(f->puts == 2 && f->gets == 1);
    fake_store_next(f, "PUT", FAKE_REPLY, OK "session-1");
    fake_store_next(f, "GET", FAKE_REPLY, OK "a-role");
    fake_store_next(f, "GET", FAKE_REPLY, OK "{\"Code\": \"AssumeRoleUnauthorizedAccess\"}");
    expect(-ERR_FORMAT, "no usable AccessKeyId");
    setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:1", 1);
    expect(-ERR_CONFIG, "no instance role either");
    assert_int_equal(f->puts, 3);
}

static void test_parse_whole(void **state)
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
    assert_int_equal(c.ends_s, 1700000000);
    assert_true(c.of_role);
    assert_int_equal(s3_credentials_parse("{\"AccessKeyId\": \"A\"}", &c, &err), -ERR_FORMAT);
    assert_non_null(strstr(err.msg, "no usable SecretAccessKey"));
    assert_int_equal(s3_credentials_parse("nonsense", &c, &err), -ERR_FORMAT);
}

static void test_parse(void **state)
{
    struct s3_credentials c;
    char text[8192], token[4200];
    memset(token, 't', sizeof(token));
    token[sizeof(token) - 1] = '\0';
    (void)snprintf(text, sizeof(text),
                   "{\"AccessKeyId\": \"A\", \"SecretAccessKey\": \"S\", \"Token\": \"%s\"}",
                   token);
    assert_int_equal(s3_credentials_parse(text, &c, NULL), -ERR_FORMAT); /* it must not be cut */
    assert_int_equal(s3_credentials_parse("{\"AccessKeyId\": \"A\", \"SecretAccessKey\": \"S\", "
                                          "\"Token\": \"T\", \"Expiration\": \"soon\"}",
                                          &c, NULL),
                     0);
    assert_int_equal(c.ends_s, 0);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_environment), TEST(test_role),        TEST(test_busy),
        TEST(test_nowhere),     TEST(test_parse_whole), TEST(test_parse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
