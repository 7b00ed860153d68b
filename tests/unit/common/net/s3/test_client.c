/* The client against a store that misbehaves: what passes is tried again, what does not is one
 * sentence. */
#include "common/net/s3/client.h"

#include <signal.h>
#include <sys/resource.h>

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/net/s3/client_impl.h"
#include "tests/unit/common/net/s3/fake_store.h"

#define LEN 100000

struct rig {
    struct fake_store f;
    struct s3 *c;
    struct err err;
    char path[64];
    uint8_t data[LEN], sha256[32];
    struct buf got;
};

static struct s3 *client(struct rig *r, struct s3_options o)
{
    struct s3 *c = NULL;
    o.bucket = "blobs";
    o.endpoint = r->f.url;
    o.plain = true;
    o.first_wait_ms = 1;
    if (s3_open(&o, &c, &r->err) < 0)
        fail_msg("%s", r->err.msg);
    return c;
}

static int begin(void **state)
{
    static struct rig r;
    memset(&r, 0, sizeof(r));
    fake_store_open(&r.f);
    r.c = client(&r, (struct s3_options){.tries = 3, .stall_s = 1, .part_bytes = 40000});
    for (size_t i = 0; i < LEN; i++)
        r.data[i] = (uint8_t)(i * 7 + i / 251);
    hash_sha256(r.data, LEN, r.sha256);
    (void)str_copy(r.path, sizeof(r.path), "/tmp/skerry-s3-XXXXXX");
    const int fd = mkstemp(r.path);
    assert_true(fd >= 0);
    assert_int_equal(file_write_all(fd, r.data, LEN, r.path, NULL), 0);
    close(fd);
    buf_init(&r.got, 2 * LEN);
    *state = &r;
    return 0;
}

static int end(void **state)
{
    struct rig *r = *state;
    s3_close(r->c);
    fake_store_close(&r->f);
    buf_release(&r->got);
    unlink(r->path);
    return 0;
}

static int keep(void *arg, const void *data, size_t len)
{
    return buf_append(arg, data, len);
}

static void expect_all(struct rig *r, const char *key)
{
    buf_clear(&r->got);
    if (s3_get(r->c, key, 0, LEN, keep, &r->got, &r->err) < 0)
        fail_msg("%s", r->err.msg);
    assert_int_equal(r->got.len, LEN);
    assert_memory_equal(r->got.data, r->data, LEN);
}

static void put(struct rig *r, const char *key)
{
    fake_set(r->f.objects, key, r->data, LEN);
}

/* ---- */

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

static int count(void *arg, const char *key, uint64_t size)
{
    unsigned *n = arg;
    assert_true(str_starts(key, "p/"));
    assert_int_equal(size, LEN);
    return ++*n == 4;
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

/* A PUT that has no answer is asked again as soon as answers usually come, also on a connection
 * that the client has just opened. */
static void test_unanswered_put(void **state)
{
    struct rig *r = *state;
    struct s3 *c = client(r, (struct s3_options){.tries = 2, .stall_s = 120, .first_stall_s = 120});
    assert_int_equal(s3_put(c, "a", r->path, LEN, r->sha256, &r->err), 0);
    fake_store_next(&r->f, "PUT", FAKE_STALL, NULL);
    const uint64_t began = clock_now_ms();
    assert_int_equal(s3_put(c, "a", r->path, LEN, r->sha256, &r->err), 0);
    assert_in_range(clock_now_ms() - began, 500, 20000);
    s3_close(c);
}

static void test_other_size(void **state)
{
    struct rig *r = *state;
    fake_set(r->f.objects, "a", r->data, LEN - 1);
    assert_int_equal(s3_get(r->c, "a", 0, LEN, keep, &r->got, &r->err), -ERR_FORMAT);
    assert_non_null(strstr(r->err.msg, "has 99999 bytes of a, expected 100000"));
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
    };
    for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++) {
        const struct s3_options o = {.bucket = "blobs", .endpoint = pairs[i][0], .plain = true};
        struct s3 *c = NULL;
        assert_int_equal(s3_open(&o, &c, &r->err), 0);
        assert_string_equal(s3_where(c), pairs[i][1]);
        s3_close(c);
    }
}

/* The store has put the parts together, and its answer is lost: nothing is sent again. */
static void test_lost_end(void **state)
{
    struct rig *r = *state;
    struct s3 *c = client(r, (struct s3_options){.part_bytes = 30000});
    fake_store_next(&r->f, "POST", FAKE_LATER, NULL); /* the beginning */
    fake_store_next(&r->f, "POST", FAKE_LOST, NULL);
    assert_int_equal(s3_put(c, "big", r->path, LEN, r->sha256, &r->err), 0);
    assert_int_equal(r->f.puts, 4);
    expect_all(r, "big");
    s3_close(c);
}

/* Other bytes of the same length are not taken for the file. */
static void test_other_bytes_there(void **state)
{
    struct rig *r = *state;
    uint8_t *other = mem_alloc(LEN);
    fake_set(r->f.objects, "big", other, LEN);
    mem_free(other);
    assert_int_equal(s3_put(r->c, "big", r->path, LEN, r->sha256, &r->err), 0);
    assert_int_equal(r->f.puts, 3);
    expect_all(r, "big");
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

/* ---- parts ---- */

static void test_parts(void **state)
{
    struct rig *r = *state;
    assert_int_equal(s3_put(r->c, "big", r->path, LEN, r->sha256, &r->err), 0);
    assert_int_equal(r->f.puts, 3);
    expect_all(r, "big");
}

/* The second part is lost for good: the next call goes on with it. */
static void test_parts_resumed(void **state)
{
    struct rig *r = *state;
#define CLOSES "Connection: close\r\nContent-Length: 0\r\n\r\n" /* as the fake does */
    fake_store_next(&r->f, "PUT", FAKE_REPLY, "HTTP/1.1 200 OK\r\n" CLOSES);
    assert_int_equal(s3_put(r->c, "big", r->path, LEN, r->sha256, &r->err), -ERR_REMOTE);
    assert_non_null(strstr(r->err.msg, "has no ETag"));
    assert_int_equal(s3_put(r->c, "small", r->path, 40000, r->sha256, &r->err), 0);
    r->f.puts = 0;
    fake_set(r->f.parts, "1", r->data, 40000);
    fake_set(r->f.parts, "2", r->data, 39999); /* of another division: sent again */
    for (int i = 0; i < 3; i++)
        fake_store_next(&r->f, "PUT", FAKE_REPLY, "HTTP/1.1 503 Slow Down\r\n" CLOSES);
    assert_int_equal(s3_put(r->c, "big", r->path, LEN, r->sha256, &r->err), -EAGAIN);
    assert_int_equal(r->f.puts, 3);
    assert_int_equal(s3_put(r->c, "big", r->path, LEN, r->sha256, &r->err), 0);
    assert_int_equal(r->f.puts, 5);
    expect_all(r, "big");
}

/* An end that the store refuses: it would refuse it each time, so the next try begins anew. */
static void test_parts_refused(void **state)
{
    static const char *const ends[] = {
        "HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 40\r\n\r\n"
        "<Error><Code>InvalidPart</Code></Error>\n",
        "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 40\r\n\r\n"
        "<Error><Code>InvalidPart</Code></Error>\n",
    };
    struct rig *r = *state;
    for (size_t i = 0; i < 2; i++) {
        r->f.puts = 0;
        fake_store_next(&r->f, "POST", FAKE_LATER, NULL); /* the beginning */
        fake_store_next(&r->f, "POST", FAKE_REPLY, ends[i]);
        assert_true(s3_put(r->c, "big", r->path, LEN, r->sha256, &r->err) < 0);
        assert_non_null(strstr(r->err.msg, "InvalidPart"));
        assert_int_equal(r->f.puts, 3);
        assert_int_equal(s3_put(r->c, "big", r->path, LEN, r->sha256, &r->err), 0);
        assert_int_equal(r->f.puts, 6);
        expect_all(r, "big");
    }
}

/* An end that is answered with nothing that says so: what is there is looked at. */
static void test_parts_end_unsaid(void **state)
{
    static const char *const ends[] = {
        "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 11\r\n\r\n<p>hello</p",
    };
    struct rig *r = *state;
    fake_store_next(&r->f, "POST", FAKE_LATER, NULL); /* the beginning */
    for (size_t i = 0; i < 2; i++) {
        fake_store_next(&r->f, "POST", FAKE_REPLY, ends[i]);
        assert_int_equal(s3_put(r->c, "big", r->path, LEN, r->sha256, &r->err), -EAGAIN);
        assert_non_null(strstr(r->err.msg, "does not have the object"));
    }
    put(r, "big");
    fake_store_next(&r->f, "POST", FAKE_REPLY, ends[0]);
    assert_int_equal(s3_put(r->c, "big", r->path, LEN, r->sha256, &r->err), 0);
}

#define PARTS(next)                                                                                \
    "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 85\r\n\r\n<P><IsTruncated>true</"     \
    "IsTruncated><NextPartNumberMarker>" next "</NextPartNumberMarker></P>\n"

/* The list of an upload's parts goes on, or it has ended. */
static void test_parts_in_a_circle(void **state)
{
    struct rig *r = *state;
    (void)str_copy(r->f.upload, sizeof(r->f.upload), "big");
    fake_store_next(&r->f, "GET", FAKE_LATER, NULL); /* of uploads */
    for (int i = 0; i < 10; i++)
        fake_store_next(&r->f, "GET", FAKE_REPLY, i % 2 ? PARTS("1") : PARTS("2"));
    assert_int_equal(s3_put(r->c, "big", r->path, LEN, r->sha256, &r->err), 0);
    assert_int_equal(r->f.gets, 3);
}

/* A part that is listed has no ETag has not that of the one before it: it is sent again. */
static void test_parts_without_etags(void **state)
{
    struct rig *r = *state;
    fake_store_next(&r->f, "PUT", FAKE_LATER, NULL);
    fake_store_next(&r->f, "PUT", FAKE_LATER, NULL);
    fake_store_next(&r->f, "PUT", FAKE_REPLY, "HTTP/1.1 200 OK\r\n" CLOSES);
    assert_int_equal(s3_put(r->c, "big", r->path, LEN, r->sha256, &r->err), -ERR_REMOTE);
    r->f.puts = 0;
    r->f.no_etags = true;
    assert_int_equal(s3_put(r->c, "big", r->path, LEN, r->sha256, &r->err), 0);
    assert_int_equal(r->f.puts, 2);
    expect_all(r, "big");
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
        cmocka_unit_test_setup_teardown(test_whole, begin, end),
        cmocka_unit_test_setup_teardown(test_unanswered_put, begin, end),
        cmocka_unit_test_setup_teardown(written_once, begin, end),
        cmocka_unit_test_setup_teardown(test_taken_without_etag, begin, end),
        cmocka_unit_test_setup_teardown(test_pages, begin, end),
        cmocka_unit_test_setup_teardown(test_lists_others, begin, end),
        cmocka_unit_test_setup_teardown(test_presigned_ends, begin, end),
        cmocka_unit_test_setup_teardown(test_session_ends, begin, end),
        cmocka_unit_test_setup_teardown(test_busy, begin, end),
        cmocka_unit_test_setup_teardown(test_cut, begin, end),
        cmocka_unit_test_setup_teardown(test_other_size, begin, end),
        cmocka_unit_test_setup_teardown(test_longer, begin, end),
        cmocka_unit_test_setup_teardown(test_file_too_large, begin, end),
        cmocka_unit_test_setup_teardown(test_usual_ports, begin, end),
        cmocka_unit_test_setup_teardown(test_lost_end, begin, end),
        cmocka_unit_test_setup_teardown(test_nobody_there, begin, end),
        cmocka_unit_test_setup_teardown(test_stop, begin, end),
        cmocka_unit_test_setup_teardown(test_parts, begin, end),
        cmocka_unit_test_setup_teardown(test_parts_resumed, begin, end),
        cmocka_unit_test_setup_teardown(test_parts_refused, begin, end),
        cmocka_unit_test_setup_teardown(test_parts_end_unsaid, begin, end),
        cmocka_unit_test_setup_teardown(test_parts_in_a_circle, begin, end),
        cmocka_unit_test_setup_teardown(test_parts_without_etags, begin, end),
        cmocka_unit_test_setup_teardown(test_other_bytes_there, begin, end),
        cmocka_unit_test_setup_teardown(test_options, begin, end),
    };
    return cmocka_run_group_tests_name("s3_client", tests, NULL, NULL);
}
