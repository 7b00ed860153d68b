/* The client against a store that misbehaves: what passes is tried again, what does not is one
 * sentence. */
#include "common/net/s3/client.h"

#include <signal.h>
#include <sys/resource.h>

#include "common/base/clock.h"
#include "tests/unit/common/net/s3/client_rig.h"

/* Who writes it first has it, also where the answer is lost and the client asks again. */
static void written_once(void **state)
{
    struct rig *r = *state;
    struct buf got;
    buf_init(&got, 100);
    assert_int_equal(s3_put_new(r->c, "k", "one", 3, &r->err), 0);
    assert_int_equal(s3_put_new(r->c, "k", "two", 3, &r->err), -EEXIST);
    fake_store_next(&r->f, "PUT", FAKE_LOST, NULL);
    assert_int_equal(s3_put_new(r->c, "l", "three", 5, &r->err), -EEXIST);
    fake_store_next(&r->f, "GET", FAKE_CUT, NULL);
    assert_int_equal(s3_get_all(r->c, "k", &got, &r->err), 0);
    assert_int_equal(s3_get_all(r->c, "l", &got, &r->err), 0);
    assert_string_equal(buf_str(&got), "onethree");
    got.max = 10;
    assert_int_equal(s3_get_all(r->c, "l", &got, &r->err), -ERR_LIMIT);
    buf_release(&got);
}

static int count(void *arg, const char *key, uint64_t size, int64_t modified_s)
{
    unsigned *n = arg;
    assert_true(str_starts(key, "p/"));
    assert_int_equal(size, LEN);
    return ++*n == 4;
}

/* Of two that write it at once one has it, unless the store looks too early; nothing stays. */
static void test_two_at_once(void **state)
{
    struct rig *r = *state;
    /* With time enough that no write is tried again. */
    struct s3 *c = client(r, (struct s3_options){.tries = 3, .stall_s = 60, .first_stall_s = 60});
    unsigned n = 0;
    for (int hasty = 0; hasty < 2; hasty++) {
        r->f.hasty = hasty;
        const unsigned before = r->f.puts;
        assert_int_equal(s3_takes_both(c, "p/probe"), hasty);
        assert_int_equal(r->f.puts - before, hasty ? 2 : 6);
        fake_store_next(&r->f, "PUT", FAKE_STALL, NULL); /* the second, which waits for the first */
        assert_false(s3_takes_both(r->c, "p/probe"));
    }
    assert_int_equal(s3_list(r->c, "p/", count, &n, &r->err), 0);
    assert_int_equal(n, 0);
    r->f.down = true;
    assert_false(s3_takes_both(r->c, "p/probe"));
    s3_close(c);
}

/* Whoever says 200 has no ETag is no store, and has nothing. */
static void test_taken_without_etag(void **state)
{
    static const char *const taken =
        "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
    struct rig *r = *state;
    for (int i = 0; i < 3; i++)
        fake_store_next(&r->f, "PUT", FAKE_REPLY, taken);
    assert_int_equal(s3_put_new(r->c, "k", "one", 3, &r->err), -ERR_REMOTE);
    assert_int_equal(s3_put_text(r->c, "k", "one", &r->err), -ERR_REMOTE);
    assert_int_equal(s3_put(r->c, "k", r->path, 40000, r->sha256, &r->err), -ERR_REMOTE);
    assert_non_null(strstr(r->err.msg, "has no ETag"));
    assert_int_equal(s3_put_new(r->c, "k", "one", 3, &r->err), 0);
}

static void test_whole(void **state)
{
    struct rig *r = *state;
    struct s3 *c = client(r, (struct s3_options){0});
    uint64_t size = 0;
    char text[16], sum[S3_SUM_MAX];
    assert_int_equal(s3_put(c, "p/a", r->path, LEN, r->sha256, &r->err), 0);
    assert_non_null(strstr(r->f.last, "x-amz-checksum-sha256: "));
    assert_non_null(strstr(r->f.last, "X-Amz-SignedHeaders=host%3Bx-amz-checksum-sha256"));
    assert_int_equal(s3_head(c, "p/a", &size, sum, &r->err), 0);
    assert_int_equal(size, LEN);
    expect_all(r, "p/a");
    assert_int_equal(s3_get(c, "p/a", LEN - 10, LEN, keep, &r->got, &r->err), 0);
    assert_memory_equal(r->got.data + LEN, r->data + LEN - 10, 10);
    char piece[10];
    assert_int_equal(s3_get_piece(c, "p/a", 7, LEN, piece, sizeof(piece), &r->err), 0);
    assert_memory_equal(piece, r->data + 7, sizeof(piece));
    assert_non_null(strstr(r->f.last, "bytes=7-16"));
    fake_store_next(&r->f, "GET", FAKE_CUT, NULL);
    assert_int_equal(s3_get_piece(c, "p/a", LEN - 10, LEN, piece, sizeof(piece), &r->err), 0);
    assert_memory_equal(piece, r->data + LEN - 10, sizeof(piece));
    assert_int_equal(s3_get_piece(c, "p/b", 0, LEN, piece, sizeof(piece), &r->err), -ERR_NOTFOUND);
    assert_int_equal(s3_delete(c, "p/a", &r->err), 0);
    assert_int_equal(s3_delete(c, "p/a", &r->err), 0);
    assert_int_equal(s3_head(c, "p/a", &size, sum, &r->err), -ERR_NOTFOUND);
    assert_int_equal(s3_put_text(c, "t", "hello", &r->err), 0);
    assert_int_equal(s3_get_text(c, "t", text, sizeof(text), &r->err), 0);
    assert_string_equal(text, "hello");
    assert_int_equal(s3_get_text(c, "t", text, 5, &r->err), -ERR_LIMIT);
    s3_close(c);
}

static void test_pages(void **state)
{
    struct rig *r = *state;
    unsigned n = 0;
    put(r, "p/a");
    put(r, "q");
    put(r, "p/b");
    put(r, "p/c");
    assert_int_equal(s3_list(r->c, "p/", count, &n, &r->err), 0);
    assert_int_equal(n, 3);
    assert_true(r->f.gets >= 2);
    put(r, "p/d");
    n = 0;
    assert_int_equal(s3_list(r->c, "p/", count, &n, &r->err), 1);
}

#define PAGE(key, next)                                                                            \
    "HTTP/1.1 200 OK\r\nContent-Length: 170\r\n\r\n<ListBucketResult><Contents><Key>" key          \
    "</Key><Size>100000</Size></Contents><IsTruncated>true</IsTruncated>"                          \
    "<NextContinuationToken>" next "</NextContinuationToken></ListBucketResult>"

/* What the store names goes to those who delete it, so it must be what was asked for; and a listing
 * ends. */
static void test_lists_others(void **state)
{
    struct rig *r = *state;
    unsigned n = 0;
    fake_store_next(&r->f, "GET", FAKE_REPLY, PAGE("q/a", "t"));
    assert_int_equal(s3_list(r->c, "p/", count, &n, &r->err), -ERR_REMOTE);
    assert_int_equal(n, 0);
    for (int i = 0; i < 2; i++)
        fake_store_next(&r->f, "GET", FAKE_REPLY, PAGE("p/a", "t"));
    assert_int_equal(s3_list(r->c, "p/", count, &n, &r->err), -ERR_REMOTE);
    assert_int_equal(n, 2);
    n = 4;
    for (int i = 0; i < 10; i++) /* round and round */
        fake_store_next(&r->f, "GET", FAKE_REPLY,
                        i % 3 == 0   ? PAGE("p/a", "t")
                        : i % 3 == 1 ? PAGE("p/a", "u")
                                     : PAGE("p/a", "v"));
    assert_int_equal(s3_list(r->c, "p/", count, &n, &r->err), -ERR_REMOTE);
}

/* Of a key that ends: not beyond it, and not at all when that is a moment away. */
static void test_presigned_ends(void **state)
{
    struct rig *r = *state;
    const uint8_t sha256[32] = {1};
    const int64_t now_s = (int64_t)(clock_wall_ms() / 1000);
    char *url = NULL;
    r->c->who.ends_s = now_s + 600;
    assert_int_equal(s3_presign(r->c, "a", 0, sha256, 900, &url), 0);
    const char *life = strstr(url, "X-Amz-Expires=");
    assert_non_null(life);
    assert_in_range(atoi(life + strlen("X-Amz-Expires=")), 500, 600);
    mem_free(url);
    r->c->who.ends_s = now_s + 30;
    assert_int_equal(s3_presign(r->c, "a", 0, sha256, 900, &url), -EAGAIN);
}

static void test_other_size(void **state)
{
    struct rig *r = *state;
    fake_set(r->f.objects, "a", r->data, LEN - 1);
    assert_int_equal(s3_get(r->c, "a", 0, LEN, keep, &r->got, &r->err), -ERR_FORMAT);
    assert_non_null(strstr(r->err.msg, "has 99999 bytes of a, expected 100000"));
}

/* Our own disk takes no more: that is what is said. */
static void test_file_too_large(void **state)
{
    struct rig *r = *state;
    struct rlimit had, least = {.rlim_cur = LEN / 2};
    char *path = str_printf("%s.got", r->path);
    put(r, "a");
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &had), 0);
    least.rlim_max = had.rlim_max;
    (void)signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &least), 0);
    const int rc = s3_get_file(r->c, "a", path, LEN, &r->err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &had), 0);
    assert_int_equal(rc, -EFBIG);
    assert_non_null(strstr(r->err.msg, path));
    assert_false(file_exists(path));
    assert_int_equal(s3_get_file(r->c, "a", path, LEN, &r->err), 0);
    assert_true(file_exists(path));
    assert_int_equal(unlink(path), 0);
    mem_free(path);
}

/* No client names the usual port in its Host, which is signed. */
static void test_usual_ports(void **state)
{
    struct rig *r = *state;
    static const char *const pairs[][2] = {
        {"https://store.example:443", "https://store.example/blobs"},
        {"https://store.example:443/", "https://store.example/blobs"},
        {"http://store.example:80", "http://store.example/blobs"},
        {"https://store.example:80", "https://store.example:80/blobs"},
        {"http://store.example:9000", "http://store.example:9000/blobs"},
        {"https://store.example:8443", "https://store.example:8443/blobs"},
        {"https://[::1]:8443/", "https://[::1]:8443/blobs"},
        {"https://[::1]", "https://[::1]/blobs"},
    };
    for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++) {
        const struct s3_options o = {.bucket = "blobs", .endpoint = pairs[i][0], .plain = true};
        struct s3 *c = NULL;
        assert_int_equal(s3_open(&o, &c, &r->err), 0);
        assert_string_equal(s3_where(c), pairs[i][1]);
        s3_close(c);
    }
}

/* ---- what is given ---- */

static void expect_refused(const struct s3_options *o, const char *why)
{
    struct s3 *c = NULL;
    struct err err = {0};
    assert_int_equal(s3_open(o, &c, &err), -ERR_CONFIG);
    if (!strstr(err.msg, why))
        fail_msg("'%s' is not in: %s", why, err.msg);
}

static void test_options(void **state)
{
    struct rig *r = *state;
    struct s3 *c = NULL;
    expect_refused(&(struct s3_options){.bucket = "A"}, "is not a valid name of a bucket");
    expect_refused(&(struct s3_options){.bucket = "abc", .region = "a b"},
                   "not a valid name of a region");
    expect_refused(&(struct s3_options){.bucket = "abc", .endpoint = "ftp://x"}, "not an endpoint");
    expect_refused(&(struct s3_options){.bucket = "abc", .endpoint = "https://x/y"},
                   "not an endpoint");
    expect_refused(&(struct s3_options){.bucket = "abc", .endpoint = "http://x"}, "--store-plain");
    static const char *const wrong[] = {"https://x:",       "https://x:/",     "https://:9000",
                                        "https://x:0",      "https://x:70000", "https://x:http",
                                        "https://x:9000:1", "https://[::1",    "https://[::1]9000",
                                        "https://::1:9000"};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        expect_refused(&(struct s3_options){.bucket = "abc", .endpoint = wrong[i]}, wrong[i]);
    assert_int_equal(
        s3_open(&(struct s3_options){.bucket = "abc", .region = "eu-west-1"}, &c, &r->err), 0);
    assert_string_equal(s3_where(c), "https://abc.s3.eu-west-1.amazonaws.com");
    s3_close(c);
    assert_int_equal(
        s3_open(&(struct s3_options){.bucket = "a.c", .region = "eu-west-1"}, &c, &r->err), 0);
    assert_string_equal(s3_where(c), "https://s3.eu-west-1.amazonaws.com/a.c");
    s3_close(c);
    unsetenv("AWS_SECRET_ACCESS_KEY");
    expect_refused(&(struct s3_options){.bucket = "abc"}, "AWS_SECRET_ACCESS_KEY is not");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(written_once),        TEST(test_two_at_once), TEST(test_taken_without_etag),
        TEST(test_whole),          TEST(test_pages),       TEST(test_lists_others),
        TEST(test_presigned_ends), TEST(test_other_size),  TEST(test_file_too_large),
        TEST(test_usual_ports),    TEST(test_options),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
