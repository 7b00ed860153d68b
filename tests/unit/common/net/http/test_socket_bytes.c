/* Bytes counted at the sockets of libcurl: at least what the bodies hold, each
 * socket once, closed or open. */
#include "tests/unit/common/net/http/http_test.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "common/net/http/http_curl.h"
#include "common/net/http/socket_bytes.h"

#define BODY_BYTES ((size_t)1000000)
#define MANY (SOCKET_BYTES_OPEN_MAX + 6)

static void on_big(void *arg, struct http_request *r)
{
    static char big[BODY_BYTES];
    http_reply_static(r, 200, "application/octet-stream", big, sizeof(big));
}

static void on_small(void *arg, struct http_request *r)
{
    static char small[1000];
    http_reply_static(r, 200, "application/octet-stream", small, sizeof(small));
}

static void on_upload(void *arg, struct http_request *r)
{
    size_t len;
    (void)http_request_body(r, &len);
    http_reply_json(r, len == BODY_BYTES ? 200 : 400, json_pack("{s:I}", "len", (json_int_t)len));
}

static const struct http_route counted_routes[] = {
    {"GET", "/t/big", 0, 0, on_big, NULL, NULL},
    {"GET", "/t/small", 0, 0, on_small, NULL, NULL},
    {"POST", "/t/upload", 0, BODY_BYTES, on_upload, NULL, NULL},
};

static struct world *start_counted(bool tls)
{
    struct world *w = start(tls);
    http_server_routes(w->server, counted_routes,
                       sizeof(counted_routes) / sizeof(counted_routes[0]));
    return w;
}

static size_t discard(char *data, size_t one, size_t len, void *arg)
{
    return len;
}

static CURL *handle(struct socket_bytes *b)
{
    CURL *easy = curl_easy_init();
    assert_non_null(easy);
    socket_bytes_attach(b, easy);
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_NOPROXY, "*");
    curl_easy_setopt(easy, CURLOPT_SSL_VERIFYPEER, 0L);
    curl_easy_setopt(easy, CURLOPT_SSL_VERIFYHOST, 0L);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, discard);
    return easy;
}

static void fetch(struct world *w, CURL *easy, const char *path)
{
    long status;
    char *url = str_printf("%s%s", w->url, path);
    curl_easy_setopt(easy, CURLOPT_URL, url);
    curl_easy_setopt(easy, CURLOPT_HTTPAUTH, CURLAUTH_BEARER); /* or it is a stranger's */
    curl_easy_setopt(easy, CURLOPT_XOAUTH2_BEARER, w->bearer);
    CURLcode rc = curl_easy_perform(easy);
    if (rc != CURLE_OK)
        fail_msg("%s: %s", url, curl_easy_strerror(rc));
    curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
    assert_int_equal(status, 200);
    mem_free(url);
}

/* One body each way over one connection.  Less than twice a body: counted once. */
static void both_ways(bool tls)
{
    struct world *w = start_counted(tls);
    struct socket_bytes b = {.n_open = 0};
    uint64_t in, out, in_before, out_before;
    char *body = mem_alloc(BODY_BYTES);
    serve(w);
    CURL *easy = handle(&b);
    socket_bytes_read(&b, &in, &out);
    assert_int_equal(in, 0);
    assert_int_equal(out, 0);
    fetch(w, easy, "/t/big");
    socket_bytes_read(&b, &in, &out);
    assert_in_range(in, BODY_BYTES, 2 * BODY_BYTES - 1);
    assert_in_range(out, 1, BODY_BYTES / 2);
    in_before = in, out_before = out;
    curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)BODY_BYTES);
    curl_easy_setopt(easy, CURLOPT_POSTFIELDS, body);
    fetch(w, easy, "/t/upload");
    assert_int_equal(b.n_open, 1);
    socket_bytes_read(&b, &in, &out);
    assert_in_range(out - out_before, BODY_BYTES, 2 * BODY_BYTES - 1);
    assert_in_range(in - in_before, 1, BODY_BYTES / 2);
    in_before = in, out_before = out;
    curl_easy_cleanup(easy); /* closes: what it moved stays counted, once */
    assert_int_equal(b.n_open, 0);
    socket_bytes_read(&b, &in, &out);
    assert_in_range(in, in_before, in_before + 1000);
    assert_in_range(out, out_before, out_before + 1000);
    mem_free(body);
    unserve(w);
    stop(w);
}

static void test_plain(void **state)
{
    both_ways(false);
}

static void test_tls(void **state)
{
    both_ways(true);
}

/* More connections than are remembered: the rest is counted when it closes. */
static void test_many_open(void **state)
{
    struct world *w = start_counted(false);
    struct socket_bytes b = {.n_open = 0};
    uint64_t in, out;
    CURL *easy[MANY];
    serve(w);
    for (unsigned i = 0; i < MANY; i++) {
        easy[i] = handle(&b);
        fetch(w, easy[i], "/t/small");
    }
    assert_int_equal(b.n_open, SOCKET_BYTES_OPEN_MAX);
    socket_bytes_read(&b, &in, &out);
    uint64_t each = in / SOCKET_BYTES_OPEN_MAX;
    assert_in_range(each, 1000, 1999);
    assert_int_equal(in, each * SOCKET_BYTES_OPEN_MAX);
    for (unsigned i = 0; i < MANY; i++)
        curl_easy_cleanup(easy[MANY - 1 - i]); /* the ones that are not remembered first */
    assert_int_equal(b.n_open, 0);
    socket_bytes_read(&b, &in, &out);
    assert_int_equal(in, each * MANY);
    unserve(w);
    stop(w);
}

/* The transfers of the loop count so: whole blobs, there and back. */
static void test_transfers(void **state)
{
    struct world *w = start_counted(true);
    struct blob_id id = make_file(w, "a", BODY_BYTES);
    struct xfer_counters c = xfer_counters(w->xfer);
    assert_int_equal(c.bytes_in, 0);
    assert_int_equal(c.bytes_out, 0);
    put_file(w, "a", &id, BODY_BYTES);
    assert_int_equal(w->code, 0);
    c = xfer_counters(w->xfer);
    assert_in_range(c.bytes_out, BODY_BYTES, 2 * BODY_BYTES - 1);
    assert_in_range(c.bytes_in, 1, BODY_BYTES / 2);
    uint64_t out = c.bytes_out;
    get_file(w, "b", &id, BODY_BYTES, id.sha256);
    assert_int_equal(w->code, 0);
    c = xfer_counters(w->xfer);
    assert_in_range(c.bytes_in, BODY_BYTES, 2 * BODY_BYTES - 1);
    assert_in_range(c.bytes_out - out, 1, BODY_BYTES / 2);
    stop(w);
}

/* A peer that is gone without a word is given up, on both sides of a connection. */
static void test_user_timeout(void **state)
{
    struct world *w = start_counted(false);
    struct socket_bytes b = {.n_open = 0};
    unsigned ms = 0;
    socklen_t len = sizeof(ms);
    serve(w);
    CURL *easy = handle(&b);
    http_curl_tls(easy, w->url, NULL);
    fetch(w, easy, "/t/small");
    assert_int_equal(b.n_open, 1);
    assert_int_equal(getsockopt(b.open[0], IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, &len), 0);
    assert_int_equal(ms, HTTP_CURL_USER_TIMEOUT_MS);
    /* Of this process's sockets two are the connection's: ours, and the server's end of it. */
    unsigned ends = 0;
    for (int fd = 0; fd < 256; fd++) {
        len = sizeof(ms);
        ms = 0;
        ends += fd != b.open[0] && getsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, &len) == 0 &&
                ms > 0;
    }
    assert_int_equal(ends, 1);
    curl_easy_cleanup(easy);
    unserve(w);
    stop(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain),        cmocka_unit_test(test_tls),
        cmocka_unit_test(test_many_open),    cmocka_unit_test(test_transfers),
        cmocka_unit_test(test_user_timeout),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
