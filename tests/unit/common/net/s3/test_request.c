/* One request: what passes is tried again, and no byte is fetched twice; what does not is one
 * sentence. */
#include "common/base/clock.h"
#include "tests/unit/common/net/s3/client_rig.h"

#define ENDED                                                                                      \
    "HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 40\r\n\r\n"                  \
    "<Error><Code>ExpiredToken</Code></Error>"

/* A role's key is asked for anew, also by who tries once; of another a person must bring one.  It
 * is never -ERR_STALE, which says of a log that it is somebody else's. */
static void test_session_ends(void **state)
{
    struct rig *r = *state;
    struct s3 *c = client(r, (struct s3_options){.tries = 1});
    c->who.of_role = true;
    fake_store_next(&r->f, "PUT", FAKE_REPLY, ENDED);
    assert_int_equal(s3_put_new(c, "k", "one", 3, &r->err), 0);
    assert_false(c->who.of_role); /* the environment's */
    fake_store_next(&r->f, "PUT", FAKE_REPLY, ENDED);
    assert_int_equal(s3_put_new(c, "l", "one", 3, &r->err), -ERR_AUTH);
    assert_non_null(strstr(r->err.msg, "start again with a new AWS_SESSION_TOKEN"));
    s3_close(c);
}

static void test_busy(void **state)
{
    struct rig *r = *state;
    put(r, "a");
    for (int i = 0; i < 2; i++)
        fake_store_next(&r->f, "GET", FAKE_REPLY,
                        "HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\n\r\n");
    expect_all(r, "a");
    struct s3_health h = s3_health(r->c);
    assert_int_equal(h.repeats, 2);
    assert_int_equal(h.requests, 3);
    assert_int_equal(h.failing_since_unix_ms, 0);
    r->f.down = true;
    assert_int_equal(s3_get(r->c, "a", 0, LEN, keep, &r->got, &r->err), -EAGAIN);
    assert_non_null(strstr(r->err.msg, "is busy or broken: HTTP 503 SlowDown"));
    h = s3_health(r->c);
    assert_true(h.failing_since_unix_ms > 0);
    assert_non_null(strstr(h.error, "HTTP 503 SlowDown"));
    r->f.down = false;
    expect_all(r, "a");
    assert_int_equal(s3_health(r->c).failing_since_unix_ms, 0);
}

/* What came before a cut or a stall is not asked for again, and progress is no failure. */
static void test_cut(void **state)
{
    struct rig *r = *state;
    put(r, "a");
    for (int i = 0; i < 5; i++) /* more than there are tries */
        fake_store_next(&r->f, "GET", FAKE_CUT, NULL);
    expect_all(r, "a");
    assert_int_equal(r->f.gets, 6);
    assert_int_equal(s3_health(r->c).bytes_in, LEN);
    fake_store_next(&r->f, "GET", FAKE_STALL, NULL);
    expect_all(r, "a");
    assert_int_equal(s3_health(r->c).bytes_in, 2 * LEN);
}

static struct s3 *watched;
static _Atomic bool asked_again, failing;

/* What is said of the store when it is asked once more. */
static void watch(const char *method, const char *key)
{
    const struct s3_health h = s3_health(watched);
    if (h.repeats == 1 && !asked_again)
        failing = h.failing_since_unix_ms != 0;
    asked_again |= h.repeats == 1;
}

/* A PUT that has no answer is asked again as soon as answers usually come, also on a connection
 * that the client has just opened.  That is no failure of the store. */
static void test_unanswered_put(void **state)
{
    struct rig *r = *state;
    struct s3 *c = client(r, (struct s3_options){.tries = 6, .stall_s = 120, .first_stall_s = 120});
    assert_int_equal(s3_put(c, "a", r->path, LEN, r->sha256, &r->err), 0);
    fake_store_next(&r->f, "PUT", FAKE_STALL, NULL);
    watched = c;
    r->f.look = watch;
    const uint64_t began = clock_now_ms();
    assert_int_equal(s3_put(c, "a", r->path, LEN, r->sha256, &r->err), 0);
    assert_in_range(clock_now_ms() - began, 500, 100000);
    assert_true(asked_again && !failing);
    s3_close(c);
}

/* Of one that stays silent it is told, also while it is asked again. */
static void test_silent_store(void **state)
{
    struct rig *r = *state;
    for (int i = 0; i < 3; i++)
        fake_store_next(&r->f, "PUT", FAKE_STALL, NULL);
    assert_int_equal(s3_put(r->c, "a", r->path, 40000, r->sha256, &r->err), -ETIMEDOUT);
    assert_true(s3_health(r->c).failing_since_unix_ms != 0);
}

/* Whoever writes it down is not given more than there is room for. */
static void test_longer(void **state)
{
    struct rig *r = *state;
    fake_set(r->f.objects, "a", r->data, LEN);
    assert_int_equal(s3_get(r->c, "a", 0, LEN - 1, keep, &r->got, &r->err), -ERR_FORMAT);
    assert_non_null(strstr(r->err.msg, "more bytes of a than the 99999 expected"));
    assert_in_range(r->got.len, 0, LEN - 1);
}

static void test_nobody_there(void **state)
{
    struct rig *r = *state;
    const struct s3_options o = {.bucket = "blobs",
                                 .endpoint = "http://127.0.0.1:1",
                                 .plain = true,
                                 .tries = 2,
                                 .first_wait_ms = 1};
    struct s3 *c = NULL;
    uint64_t size;
    char sum[S3_SUM_MAX];
    assert_int_equal(s3_open(&o, &c, &r->err), 0);
    assert_int_equal(s3_head(c, "a", &size, sum, &r->err), -ECONNREFUSED);
    assert_true(s3_may_pass(-ECONNREFUSED));
    assert_int_equal(s3_health(c).repeats, 0); /* whoever looks has another way */
    assert_int_equal(s3_delete(c, "a", &r->err), -ECONNREFUSED);
    assert_int_equal(s3_health(c).repeats, 1);
    s3_close(c);
}

static void test_stop(void **state)
{
    struct rig *r = *state;
    uint64_t size;
    char sum[S3_SUM_MAX];
    s3_stop(r->c);
    assert_int_equal(s3_head(r->c, "a", &size, sum, &r->err), -ERR_CANCELLED);
    assert_int_equal(s3_health(r->c).failing_since_unix_ms, 0);
}

/* ---- what comes ---- */

static void expect_get(struct rig *r, uint64_t from, uint64_t size, const char *text)
{
    buf_clear(&r->got);
    if (s3_get(r->c, "k", from, size, keep, &r->got, &r->err) < 0)
        fail_msg("%s", r->err.msg);
    assert_string_equal(buf_str(&r->got), text);
}

/* A store may answer with the bytes that were asked for, or with the whole object each time. */
static void test_ranges_or_none(void **state)
{
    struct rig *r = *state;
    fake_store_next(&r->f, "GET", FAKE_REPLY, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n01234");
    fake_store_next(&r->f, "GET", FAKE_REPLY,
                    "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n01234567");
    fake_store_next(&r->f, "GET", FAKE_REPLY,
                    "HTTP/1.1 206 Partial\r\nContent-Length: 2\r\n\r\n89");
    expect_get(r, 0, 10, "0123456789");
    assert_non_null(strstr(r->f.last, "\r\nRange: bytes=8-\r\n"));
    fake_store_next(&r->f, "GET", FAKE_REPLY,
                    "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n0123456789");
    expect_get(r, 3, 10, "3456789");
    assert_non_null(strstr(r->f.last, "\r\nRange: bytes=3-\r\n"));
}

/* All has come, and then the connection breaks: that is no failure. */
static void test_cut_behind_the_end(void **state)
{
    struct rig *r = *state;
    fake_store_next(&r->f, "GET", FAKE_REPLY,
                    "HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n0123456789");
    expect_get(r, 0, 10, "0123456789");
    assert_int_equal(r->f.gets, 1);
}

static int full(void *arg, const void *data, size_t len)
{
    return -ENOSPC;
}

/* Our own disk is no failure of the store, and asking again would not mend it. */
static void test_sink_fails(void **state)
{
    struct rig *r = *state;
    put(r, "a");
    assert_int_equal(s3_get(r->c, "a", 0, LEN, full, NULL, &r->err), -ENOSPC);
    assert_int_equal(r->f.gets, 1);
    assert_int_equal(s3_health(r->c).failing_since_unix_ms, 0);
}

/* Nor is a file that cannot be read, or that has become shorter, which its hash would tell. */
static void test_file_fails(void **state)
{
    struct rig *r = *state;
    for (int i = 0; i < 2; i++) { /* in one piece, and in parts */
        struct s3 *c = client(r, (struct s3_options){.part_bytes = i ? 60000 : LEN + 1});
        assert_int_equal(s3_put(c, "k", r->path, LEN + 1, r->sha256, &r->err), -ERR_HASH);
        assert_non_null(strstr(r->err.msg, "the file that is sent as k ends after 100000 bytes"));
        assert_int_equal(s3_put(c, "k", "/tmp", LEN, r->sha256, &r->err), -EISDIR);
        assert_non_null(strstr(r->err.msg, "the file that is sent as k cannot be read: Is a dir"));
        assert_int_equal(s3_health(c).repeats, 0);
        assert_int_equal(s3_health(c).failing_since_unix_ms, 0);
        s3_close(c);
    }
    assert_null(fake_find(r->f.objects, "k", false));
}

/* ---- what is refused ---- */

/* Answers without a body tell the region, and the time, in their header. */
static void test_headers_of_refusals(void **state)
{
    struct rig *r = *state;
    uint64_t size;
    char sum[S3_SUM_MAX];
    fake_store_next(&r->f, "HEAD", FAKE_REPLY,
                    "HTTP/1.1 301 Moved\r\nX-Amz-Bucket-Region:eu-west-1\r\nConnection: "
                    "close\r\n\r\n");
    assert_int_equal(s3_head(r->c, "a", &size, sum, &r->err), -ERR_CONFIG);
    assert_non_null(strstr(r->err.msg, "is in the region eu-west-1"));
    fake_store_next(&r->f, "HEAD", FAKE_REPLY,
                    "HTTP/1.1 403 Forbidden\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\nConnection: "
                    "close\r\n\r\n");
    assert_int_equal(s3_head(r->c, "a", &size, sum, &r->err), -ERR_AUTH);
    assert_non_null(strstr(r->err.msg, "ahead of that of the store"));
    fake_store_next(&r->f, "HEAD", FAKE_REPLY,
                    "HTTP/1.1 200 OK\r\nx-amz-checksum-sha256: abc\r\nContent-Length: 12\r\n\r\n");
    assert_int_equal(s3_head(r->c, "a", &size, sum, &r->err), 0);
    assert_int_equal(size, 12);
    assert_string_equal(sum, "abc");
}

/* What the key may do depends on the request, and the sentence says which. */
static void test_reads_and_writes(void **state)
{
    static const char *const denied =
        "HTTP/1.1 403 Forbidden\r\nConnection: close\r\n\r\n"
        "<Error><Code>AccessDenied</Code><Message>no</Message></Error>";
    struct rig *r = *state;
    fake_store_next(&r->f, "GET", FAKE_REPLY, denied);
    assert_int_equal(s3_get(r->c, "a", 0, LEN, keep, &r->got, &r->err), -ERR_AUTH);
    assert_non_null(strstr(r->err.msg, "may not read"));
    fake_store_next(&r->f, "PUT", FAKE_REPLY, denied);
    assert_int_equal(s3_put_text(r->c, "a", "b", &r->err), -ERR_AUTH);
    assert_non_null(strstr(r->err.msg, "may not write into"));
    assert_int_equal(s3_health(r->c).repeats, 0);
    assert_true(s3_health(r->c).failing_since_unix_ms != 0);
    fake_store_next(&r->f, "GET", FAKE_LATER, NULL);
    assert_int_equal(s3_get(r->c, "none", 0, LEN, keep, &r->got, &r->err), -ERR_NOTFOUND);
    assert_int_equal(s3_health(r->c).failing_since_unix_ms, 0); /* an answer like others */
}

/* ---- a role's key ---- */

/* Minutes before it ends another one is asked for; until it has ended the old one serves. */
static void test_key_of_a_role(void **state)
{
    struct rig *r = *state;
    const int64_t now_s = (int64_t)(clock_wall_ms() / 1000);
    r->c->who.of_role = true;
    r->c->who.ends_s = now_s + 400;
    assert_int_equal(s3_put_text(r->c, "a", "b", &r->err), 0);
    assert_true(r->c->who.of_role);
    r->c->who.ends_s = 0; /* never */
    assert_int_equal(s3_put_text(r->c, "a", "b", &r->err), 0);
    assert_true(r->c->who.of_role);
    r->c->who.ends_s = now_s + 200;
    assert_int_equal(s3_put_text(r->c, "a", "b", &r->err), 0);
    assert_false(r->c->who.of_role); /* the environment's */

    unsetenv("AWS_ACCESS_KEY_ID");
    unsetenv("AWS_SECRET_ACCESS_KEY");
    setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:1", 1);
    r->c->who.of_role = true;
    r->c->who.ends_s = now_s + 200;
    assert_int_equal(s3_put_text(r->c, "a", "b", &r->err), 0);
    r->c->who.ends_s = now_s - 1;
    assert_int_equal(s3_put_text(r->c, "a", "b", &r->err), -EAGAIN);
    assert_non_null(strstr(r->err.msg, "gives no new key of the store just now"));
    assert_int_equal(s3_health(r->c).repeats, 2);
}

/* ---- the wait between two tries ---- */

static void *stop_it(void *arg)
{
    struct rig *r = arg;
    while (r->f.gets == 0)
        (void)sched_yield();
    s3_stop(r->c);
    return NULL;
}

static void test_stop_ends_the_wait(void **state)
{
    struct rig *r = *state;
    pthread_t thread;
    const uint64_t began = clock_now_ms();
    r->f.down = true;
    r->c->first_wait_ms = 120000;
    assert_int_equal(pthread_create(&thread, NULL, stop_it, r), 0);
    assert_int_equal(s3_get(r->c, "a", 0, LEN, keep, &r->got, &r->err), -ERR_CANCELLED);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(clock_now_ms() - began < 60000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_session_ends),
        TEST(test_busy),
        TEST(test_cut),
        TEST(test_unanswered_put),
        TEST(test_silent_store),
        TEST(test_longer),
        TEST(test_nobody_there),
        TEST(test_stop),
        TEST(test_ranges_or_none),
        TEST(test_cut_behind_the_end),
        TEST(test_sink_fails),
        TEST(test_file_fails),
        TEST(test_headers_of_refusals),
        TEST(test_reads_and_writes),
        TEST(test_key_of_a_role),
        TEST(test_stop_ends_the_wait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
