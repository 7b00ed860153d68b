/* Blobs over HTTP: who may have one, how one comes in pieces, and what is answered while it is
 * somewhere else. */
#include "tests/unit/blobs.h"
#include "tests/unit/common/net/http/http_test.h"

#include "common/base/clock.h"

/* A blob that is far away is brought on a thread of the pool and then sent; where that fails, the
 * client is told to come back. */
static struct blobstore_ops far_ops;
static struct blobstore_ops near_ops;
static _Atomic bool is_near, is_down;
static _Atomic unsigned let_go;

static int far_get(struct blobstore *s, const struct blob_id *id, int *ret_fd, uint64_t *ret_size,
                   struct err *err)
{
    return is_near ? near_ops.get(s, id, ret_fd, ret_size, err)
                   : err_set(err, -EAGAIN, "it is far away");
}

static int far_local(struct blobstore *s, const struct blob_id *id, bool wait, char **ret_path,
                     struct err *err)
{
    assert_true(wait);
    if (is_down)
        return err_set(err, -ECONNREFUSED, "nobody answers");
    is_near = true;
    return near_ops.local(s, id, wait, ret_path, err);
}

static void far_let_go(struct blobstore *s, const struct blob_id *id)
{
    let_go++;
}

static void test_far(void **state)
{
    struct world *w = start(true);
    struct blob_id id = make_file(w, "a", 3000), other = make_file(w, "c", 1000);
    put_file(w, "a", &id, 3000);
    near_ops = far_ops = *w->store->ops;
    far_ops.get = far_get;
    far_ops.local = far_local;
    far_ops.let_go = far_let_go;
    w->store->ops = &far_ops;
    is_down = true;
    get_file(w, "b", &id, 3000, id.sha256);
    assert_int_equal(w->code, -EAGAIN);
    assert_non_null(strstr(w->detail, "nobody answers"));
    assert_int_equal(let_go, 0);
    is_down = false;
    get_file(w, "b", &id, 3000, id.sha256);
    if (w->code < 0)
        fail_msg("%s", w->detail);
    assert_int_equal(let_go, 1);
    is_near = false;
    get_file(w, "d", &other, 1000, other.sha256);
    assert_int_equal(w->code, -ERR_NOTFOUND);
    stop(w);
}

/* Bytes arrive, then the client vanishes: they are kept, and the rest suffices. */
static void test_put_cut(void **state)
{
    struct world *w = start(false);
    const size_t len = 400000;
    struct blob_id id = make_file(w, "a", len);
    char *path = path_in(w, "a"), *url = ticket_url(w, TICKET_PUT, &id, len);
    struct buf content;
    assert_int_equal(file_read(path, len, &content, NULL), 0);
    int fd = tcp(w);
    char *head = str_printf("PUT %s HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n",
                            url + strlen(w->url), len);
    send_text(fd, head);
    size_t sent = 0;
    while (blob_http_counters(w->blobs).bytes_in < 100000) {
        ssize_t n = write(fd, content.data + sent, 150000 - sent);
        if (n > 0)
            sent += (size_t)n;
        loop_turn(w->t.loop, true);
    }
    close(fd);
    WAIT_FOR(&w->t, http_server_counters(w->server).connections == 0);
    assert_false(blobstore_has(w->store, &id, NULL));
    uint64_t before = blob_http_counters(w->blobs).bytes_in;
    put_file(w, "a", &id, len);
    if (w->code < 0)
        fail_msg("%s", w->detail);
    assert_true(blobstore_has(w->store, &id, NULL));
    assert_int_equal(blob_http_counters(w->blobs).bytes_in - before, len - before);
    buf_release(&content);
    mem_free(head);
    mem_free(url);
    mem_free(path);
    stop(w);
}

static void test_put_refused(void **state)
{
    struct world *w = start(true);
    struct blob_id id = make_file(w, "a", 100000), other = make_file(w, "b", 1000);
    put_file(w, "a", &other, 100000); /* a's bytes under b's name */
    assert_int_equal(w->code, -ERR_HASH);
    assert_false(blobstore_has(w->store, &other, NULL));
    assert_int_equal(w->store->used_bytes, 0);
    put_file(w, "a", &id, 99999);
    assert_int_equal(w->code, -ERR_LIMIT);
    w->revoked = TICKET_HOLDER;
    put_file(w, "a", &id, 100000);
    assert_int_equal(w->code, -ERR_AUTH);
    assert_non_null(strstr(w->detail, "has been revoked"));
    assert_false(blobstore_has(w->store, &id, NULL));
    w->revoked = 0;
    char *url = ticket_url(w, TICKET_GET, &id, 0), *path = path_in(w, "a");
    struct xfer_put p = {.url = url, .pin = w->user.pin, .path = path, .done = on_done, .arg = w};
    unsigned before = w->done;
    assert_int_equal(xfer_put(w->xfer, &p, NULL, NULL), 0);
    WAIT_FOR(&w->t, w->done > before);
    assert_int_equal(w->code, -ERR_AUTH);
    assert_non_null(strstr(w->detail, "allows GET, not PUT"));
    mem_free(url);
    mem_free(path);
    stop(w);
}

static void test_quota(void **state)
{
    struct world *w = start(true);
    struct blob_id id = make_file(w, "a", (50 << 20) + 1);
    put_file(w, "a", &id, (50 << 20) + 1);
    assert_int_equal(w->code, -ENOSPC);
    assert_non_null(strstr(w->detail, "full"));
    stop(w);
}

static void test_ranges(void **state)
{
    struct world *w = start(false);
    struct blob_id id;
    char hex[BLOB_HEX_MAX], path[128];
    assert_int_equal(blob_put(w->store, "0123456789", 10, &id, NULL), 0);
    blob_id_hex(&id, hex);
    snprintf(path, sizeof(path), "/v1/blobs/%s", hex);
    static const struct {
        const char *range;
        long status;
        const char *body;
    } cases[] = {
        {"Range: bytes=2-4", 206, "234"},        {"Range: bytes=7-", 206, "789"},
        {"Range: bytes=-3", 206, "789"},         {"Range: bytes=0-99", 206, "0123456789"},
        {"Range: bytes=0-0", 206, "0"},          {"Range: bytes=x", 200, "0123456789"},
        {"Range: bytes=4-2", 200, "0123456789"}, {"Range: bytes=1-2,4-5", 200, "0123456789"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        ask(w, "GET", path, w->bearer, NULL, cases[i].range);
        expect(w, cases[i].status, cases[i].body);
        assert_int_equal(strlen(w->body), strlen(cases[i].body));
    }
    ask(w, "GET", path, w->bearer, NULL, "Range: bytes=10-");
    expect(w, 416, "there are 10 bytes");
    char etag[100];
    snprintf(etag, sizeof(etag), "If-None-Match: \"%s\"", hex);
    ask(w, "GET", path, w->bearer, NULL, etag);
    assert_int_equal(w->status, 304);
    ask(w, "GET", path, NULL, NULL, NULL);
    expect(w, 403, "no complete ticket");
    path[20] = path[20] == 'a' ? 'b' : 'a';
    ask(w, "GET", path, w->bearer, NULL, NULL);
    expect(w, 404, "there is no blob");
    ask(w, "GET", "/v1/blobs/xyz", w->bearer, NULL, NULL);
    expect(w, 400, "64 lower-case hex");
    stop(w);
}

/* No size is so large that the ticket's bound does not count: that of an int of 64 bits, or none.
 */
static void test_too_much(void **state)
{
    static const struct {
        const char *range;
        long status;
        const char *words;
    } cases[] = {
        {"Content-Range: bytes */100", 308, ""},
        {"Content-Range: bytes */101", 413, "the ticket allows 100 bytes, not 101"},
        {"Content-Range: bytes */18446744073709551614", 413, "the ticket allows 100 bytes"},
        {"Content-Range: bytes */18446744073709551615", 413, "the ticket allows 100 bytes"},
        {"Content-Range: bytes */18446744073709551616", 413, "the ticket allows 100 bytes"},
        {"Content-Range: bytes */-1", 413, "the ticket allows 100 bytes"},
        {"Content-Range: bytes 0-4/18446744073709551615", 413, "the ticket allows 100 bytes"},
        {"Content-Range: bytes */", 400, "Content-Range must be"},
    };
    struct world *w = start(false);
    const struct blob_id id = make_file(w, "a", 100);
    char *url = ticket_url(w, TICKET_PUT, &id, 100);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        ask(w, "PUT", url + strlen(w->url), NULL, "", cases[i].range);
        expect(w, cases[i].status, cases[i].words);
    }
    mem_free(url);
    stop(w);
}

/* ---- one request by hand ---- */

/* The answer to a request on a connection of its own, with its header; static. */
static const char *by_hand(struct world *w, const char *method, const char *url,
                           const char *headers, const char *body)
{
    static char got[8192];
    const uint64_t until = clock_now_ms() + TEST_DEADLINE_MS;
    size_t len = 0;
    ssize_t n = -1;
    const int fd = tcp(w);
    char *request = str_printf("%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n%s"
                               "Content-Length: %zu\r\n\r\n%s",
                               method, url + strlen(w->url), headers, strlen(body), body);
    send_text(fd, request);
    mem_free(request);
    while (n != 0) {
        loop_turn(w->t.loop, n < 0);
        n = read(fd, got + len, sizeof(got) - 1 - len);
        len += n > 0 ? (size_t)n : 0;
        assert_true(clock_now_ms() < until);
    }
    got[len] = '\0';
    close(fd);
    return got;
}

/* A PUT of some bytes; range: the end of Content-Range, NULL: none. */
static void expect_put(struct world *w, const char *url, const char *range, const char *body,
                       int status, const char *words)
{
    char *header = range ? str_printf("Content-Range: %s\r\n", range) : str_dup("");
    const char *got = by_hand(w, "PUT", url, header, body);
    int its = 0;
    (void)sscanf(got, "HTTP/1.1 %d", &its);
    if (its != status || !strstr(got, words))
        fail_msg("%s, %s: expected %d with '%s', got: %s", range, body, status, words, got);
    mem_free(header);
}

static struct blob_id id_of(const char *text)
{
    struct blob_id id;
    hash_sha256(text, strlen(text), id.sha256);
    return id;
}

/* Pieces are put together where the last one ended, and the answer says where that is. */
static void test_pieces(void **state)
{
    struct world *w = start(false);
    const struct blob_id id = id_of("0123456789");
    char *url = ticket_url(w, TICKET_PUT, &id, 10);
    const char *got = by_hand(w, "PUT", url, "Content-Range: bytes */10\r\n", "");
    assert_non_null(strstr(got, "HTTP/1.1 308 "));
    assert_null(strstr(got, "\nRange:")); /* there is none */
    expect_put(w, url, "bytes 0-4/10", "01234", 308, "\nRange: bytes=0-4\r\n");
    expect_put(w, url, "bytes */10", "", 308, "\nRange: bytes=0-4\r\n");
    expect_put(w, url, "bytes 7-9/10", "789", 409, "the piece starts at 7, but 5 bytes are here");
    expect_put(w, url, "bytes 5-9/10", "567", 308, "\nRange: bytes=0-7\r\n"); /* it was cut */
    expect_put(w, url, "bytes 0-1/10", "01", 308, "\nRange: bytes=0-1\r\n");  /* from the start */
    assert_int_equal(w->stored, 0);
    expect_put(w, url, "bytes 2-9/10", "23456789", 201, "\"size\":10}");
    assert_int_equal(w->stored, 1);
    expect_put(w, url, "bytes 2-9/10", "23456789", 200, "\"size\":10}");
    expect_put(w, url, "bytes */10", "", 200, "\"size\":10}");
    expect_put(w, url, NULL, "0123456789", 200, "\"size\":10}");
    assert_int_equal(w->stored, 1);
    const struct blob_http_counters c = blob_http_counters(w->blobs);
    assert_int_equal(c.puts, 1);
    assert_int_equal(c.rejected, 1);
    mem_free(url);
    stop(w);
}

/* All at once, with and without a range; less than was named is kept, more is refused and dropped.
 */
static void test_whole_puts(void **state)
{
    struct world *w = start(false);
    const struct blob_id id = id_of("0123456789"), other = id_of("abc"), none = id_of("");
    char *url = ticket_url(w, TICKET_PUT, &id, 10);
    expect_put(w, url, "bytes 0-9/10", "01234", 308, "\nRange: bytes=0-4\r\n");
    expect_put(w, url, NULL, "0123456789a", 413, "the body has 11 bytes, at most 10");
    expect_put(w, url, "bytes */10", "", 308, "\nRange: bytes=0-4\r\n");
    expect_put(w, url, "bytes 5-9/10", "56789a", 413, "larger than the 10 bytes announced");
    expect_put(w, url, "bytes */10", "", 308, "HTTP");
    assert_int_equal(w->store->used_bytes, 0);
    expect_put(w, url, NULL, "0123456788", 422, "hash_mismatch");
    assert_int_equal(w->store->used_bytes, 0);
    expect_put(w, url, NULL, "01234567", 422, "hash_mismatch"); /* the whole blob, it is said */
    expect_put(w, url, "bytes 0-9/10", "0123456789", 201, "\"size\":10}");
    mem_free(url);
    url = ticket_url(w, TICKET_PUT, &other, 10); /* the ticket allows more */
    expect_put(w, url, NULL, "abc", 201, "\"size\":3}");
    mem_free(url);
    url = ticket_url(w, TICKET_PUT, &none, 10);
    expect_put(w, url, NULL, "", 201, "\"size\":0}");
    mem_free(url);
    assert_int_equal(w->stored, 3);
    assert_int_equal(blob_http_counters(w->blobs).puts, 3);
    stop(w);
}

/* Sends pieces of a body without an end until the connection is cut. */
static void send_on(struct world *w, const char *url)
{
    static char piece[8 + 4096 + 3] = "1000\r\n";
    const uint64_t until = clock_now_ms() + TEST_DEADLINE_MS;
    const int fd = tcp(w);
    char got[4096];
    size_t at = 0;
    char *head = str_printf("PUT %s HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
                            url + strlen(w->url));
    memset(piece + 6, 'a', 4096);
    memcpy(piece + 6 + 4096, "\r\n", 2);
    send_text(fd, head);
    ssize_t n = -1;
    while (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        const ssize_t sent = send(fd, piece + at, 6 + 4096 + 2 - at, MSG_NOSIGNAL);
        at = sent > 0 ? (at + (size_t)sent) % (6 + 4096 + 2) : at;
        loop_turn(w->t.loop, false);
        assert_true(clock_now_ms() < until);
        n = read(fd, got, sizeof(got));
    }
    assert_true(n <= 0); /* without an answer */
    close(fd);
    mem_free(head);
}

/* Who sends more than its ticket allows is cut off soon, whether its bytes are wanted or not, and
 * none of them are kept. */
static void test_no_end(void **state)
{
    struct world *w = start(false);
    const struct blob_id id = make_file(w, "a", 5000), here = id_of("0123456789");
    char *urls[2] = {ticket_url(w, TICKET_PUT, &id, 5000), ticket_url(w, TICKET_PUT, &here, 10)};
    expect_put(w, urls[1], NULL, "0123456789", 201, "");
    for (size_t i = 0; i < 2; i++) {
        const uint64_t before = http_server_counters(w->server).body_bytes_in;
        send_on(w, urls[i]);
        WAIT_FOR(&w->t, http_server_counters(w->server).connections == 0);
        assert_true(http_server_counters(w->server).body_bytes_in - before <
                    5000 + 2 * HTTP_EXCESS_BYTES);
        assert_int_equal(w->store->used_bytes, 10);
        mem_free(urls[i]);
    }
    stop(w);
}

static void test_odd_ranges(void **state)
{
    static const char *const odd[] = {
        "bytes 4-2/10", "bytes 0-9/9",   "bytes 0-4/10x",  "bytes 0-4",      "bytes */10 x",
        "bytes */x",    "octets 0-4/10", "bytes -5--3/10", "bytes 10-10/10", "bytes",
    };
    struct world *w = start(false);
    const struct blob_id id = id_of("0123456789");
    char *url = ticket_url(w, TICKET_PUT, &id, 10);
    for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++)
        expect_put(w, url, odd[i], "01234", 400, "Content-Range must be");
    assert_int_equal(w->store->used_bytes, 0);
    mem_free(url);
    stop(w);
}

/* HEAD tells of the blob and sends none, and is no service that counts; nor is a refusal. */
static void test_heads_and_counters(void **state)
{
    struct world *w = start(false);
    struct blob_id id;
    const struct blob_id other = id_of("none");
    assert_int_equal(blob_put(w->store, "0123456789", 10, &id, NULL), 0);
    char *url = ticket_url(w, TICKET_GET, &id, 0), *none = ticket_url(w, TICKET_GET, &other, 0);
    const char *got = by_hand(w, "HEAD", url, "", "");
    assert_non_null(strstr(got, "HTTP/1.1 200 "));
    assert_non_null(strstr(got, "\nContent-Length: 10\r\n"));
    assert_non_null(strstr(got, "\nCache-Control: private, max-age=31536000, immutable\r\n"));
    assert_null(strstr(got, "0123456789"));
    struct blob_http_counters c = blob_http_counters(w->blobs);
    assert_true(c.gets == 1 && c.bytes_out == 0 && w->served == 0);
    assert_non_null(strstr(by_hand(w, "GET", url, "", ""), "\r\n\r\n0123456789"));
    c = blob_http_counters(w->blobs);
    assert_true(c.gets == 2 && c.bytes_out == 10 && w->served == 1 && c.rejected == 0);
    assert_non_null(strstr(by_hand(w, "GET", none, "", ""), "HTTP/1.1 404 "));
    w->revoked = TICKET_HOLDER;
    got = by_hand(w, "GET", url, "", "");
    assert_non_null(strstr(got, "HTTP/1.1 403 "));
    assert_non_null(strstr(got, "has been revoked"));
    c = blob_http_counters(w->blobs);
    assert_true(c.gets == 2 && c.rejected == 2 && w->served == 1);
    mem_free(url);
    mem_free(none);
    stop(w);
}

/* ---- a blob that the store will have soon ---- */

static unsigned asked_away;

static int away_soon(struct blobstore *s, const struct blob_id *id, bool put, uint64_t size,
                     char **ret_url)
{
    asked_away++;
    return -EAGAIN;
}

static int never_found(struct blobstore *s, const struct blob_id *id, uint64_t size,
                       struct err *err)
{
    return err_set(err, -ERR_NOTFOUND, "it is not there");
}

static struct world *start_soon(struct blob_id *ret)
{
    struct world *w = start(false);
    far_ops = *w->store->ops;
    far_ops.away = away_soon;
    far_ops.found = never_found;
    assert_int_equal(blob_put(w->store, "0123456789", 10, ret, NULL), 0);
    w->store->ops = &far_ops;
    asked_away = 0;
    return w;
}

/* Who follows waits for a while, and is then told to come again; who does not, or asks only of
 * what there is, is answered from here. */
static void test_waits_for_the_store(void **state)
{
    struct blob_id id;
    struct world *w = start_soon(&id);
    char *url = ticket_url(w, TICKET_GET, &id, 0);
    const char *got = by_hand(w, "GET", url, "Skerry-Store: follow\r\n", "");
    assert_non_null(strstr(got, "HTTP/1.1 503 "));
    assert_non_null(strstr(got, "\nSkerry-Store: wait\r\n"));
    assert_non_null(strstr(got, "the blob is on its way: ask again"));
    assert_true(asked_away > 1);
    asked_away = 0;
    assert_non_null(strstr(by_hand(w, "GET", url, "Skerry-Store: no\r\n", ""), "0123456789"));
    assert_non_null(strstr(by_hand(w, "GET", url, "", ""), "0123456789"));
    assert_non_null(strstr(by_hand(w, "HEAD", url, "Skerry-Store: follow\r\n", ""), "200 OK"));
    assert_int_equal(asked_away, 0);
    mem_free(url);
    stop(w);
}

#define WAITERS 64

/* Places are few: the one behind the last is told to come again at once, and all when the server
 * stops. */
static void test_waiters(void **state)
{
    struct blob_id id;
    struct world *w = start_soon(&id);
    char *url = ticket_url(w, TICKET_GET, &id, 0), got[4096] = "";
    char *request = str_printf("GET %s HTTP/1.1\r\nHost: x\r\nSkerry-Store: follow\r\n\r\n",
                               url + strlen(w->url));
    int fds[WAITERS + 1];
    clock_fake_set(clock_now_ns()); /* nobody has waited too long */
    for (unsigned i = 0; i <= WAITERS; i++) {
        assert_int_equal(blob_http_counters(w->blobs).rejected, 0);
        fds[i] = tcp(w);
        send_text(fds[i], request);
        const unsigned before = asked_away;
        while (asked_away == before)
            loop_turn(w->t.loop, true);
    }
    while (blob_http_counters(w->blobs).rejected == 0)
        loop_turn(w->t.loop, true);
    assert_int_equal(blob_http_counters(w->blobs).rejected, 1);
    clock_fake_clear();
    expect_text(w, fds[WAITERS], got, sizeof(got), "HTTP/1.1 503 ");
    for (unsigned i = 0; i <= WAITERS; i++)
        close(fds[i]);
    mem_free(request);
    mem_free(url);
    stop(w);
}

/* ---- a blob for which the client asks at the store ---- */

/* A question by one who follows is led away, if the store takes it; else it is answered as any. */
static void test_questions(void **state)
{
    struct blob_id id;
    struct world *w = start_soon(&id);
    const struct blob_id other = id_of("abc");
    char *url = ticket_url(w, TICKET_PUT, &other, 3);
    const char *const headers[] = {"Skerry-Store: follow\r\nContent-Range: bytes */3\r\n",
                                   "Skerry-Store: done\r\nContent-Range: bytes */3\r\n",
                                   "Content-Range: bytes */3\r\n"};
    for (size_t i = 0; i < 3; i++) {
        asked_away = 0;
        assert_non_null(strstr(by_hand(w, "PUT", url, headers[i], ""), "HTTP/1.1 308 "));
        if (i < 2)
            assert_true(asked_away == 1);
        else
            assert_int_equal(asked_away, 0);
    }
    expect_put(w, url, NULL, "abc", 201, "\"size\":3}"); /* which is no question */
    mem_free(url);
    stop(w);
}

/* ---- what came whole, and the store did not take it ---- */

static struct blob_writer_ops later_ops;
static const struct blob_writer_ops *now_ops;
static int (*put_now)(struct blobstore *s, const struct blob_id *expect, uint64_t holder,
                      uint64_t max_bytes, struct blob_writer **ret, struct err *err);
static bool refuses;
static int refusal = -EAGAIN;

static int commit_later(struct blob_writer *w, uint64_t expect_size, struct err *err)
{
    if (!refuses)
        return now_ops->commit(w, expect_size, err);
    now_ops->abort(w, true);
    return err_set(err, refusal, "the store is down");
}

static int put_later(struct blobstore *s, const struct blob_id *expect, uint64_t holder,
                     uint64_t max_bytes, struct blob_writer **ret, struct err *err)
{
    const int rc = put_now(s, expect, holder, max_bytes, ret, err);
    if (rc < 0)
        return rc;
    now_ops = (*ret)->ops;
    later_ops = *now_ops;
    later_ops.commit = commit_later;
    (*ret)->ops = &later_ops;
    return 0;
}

/* The sender is told why, which counts as a try, and its next question stores the blob; unless the
 * bytes are wrong: then it sends them again. */
static void test_whole_already(void **state)
{
    struct blob_id id;
    struct world *w = start_soon(&id);
    const struct blob_id first = id_of("abc"), second = id_of("def");
    const char *const headers[] = {"Skerry-Store: follow\r\nContent-Range: bytes */3\r\n",
                                   "Content-Range: bytes */3\r\n"};
    put_now = far_ops.put;
    far_ops.put = put_later;
    for (size_t i = 0; i < 2; i++) {
        char *url = ticket_url(w, TICKET_PUT, i ? &second : &first, 3);
        refuses = true;
        refusal = i ? -EIO : -EAGAIN;
        for (int asks = 0; asks < 2; asks++) {
            const char *got = by_hand(w, "PUT", url, asks ? headers[i] : "",
                                      asks ? ""
                                      : i  ? "def"
                                           : "abc");
            assert_non_null(strstr(got, "HTTP/1.1 503 "));
            assert_non_null(strstr(got, "the store is down"));
            assert_null(strstr(got, "\nSkerry-Store:"));
        }
        refuses = false;
        assert_non_null(strstr(by_hand(w, "PUT", url, headers[i], ""), "HTTP/1.1 201 "));
        mem_free(url);
    }
    assert_int_equal(w->full, 4);
    const struct blob_id third = id_of("ghi");
    char *url = ticket_url(w, TICKET_PUT, &third, 3);
    refuses = true;
    assert_non_null(strstr(by_hand(w, "PUT", url, "", "jkl"), "HTTP/1.1 503 "));
    refuses = false;
    const char *got = by_hand(w, "PUT", url, headers[1], "");
    assert_non_null(strstr(got, "HTTP/1.1 308 "));
    assert_null(strstr(got, "\nRange:"));
    mem_free(url);
    stop(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_far),
        cmocka_unit_test(test_put_cut),
        cmocka_unit_test(test_put_refused),
        cmocka_unit_test(test_quota),
        cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_too_much),
        cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_whole_puts),
        cmocka_unit_test(test_no_end),
        cmocka_unit_test(test_odd_ranges),
        cmocka_unit_test(test_heads_and_counters),
        cmocka_unit_test(test_waits_for_the_store),
        cmocka_unit_test(test_waiters),
        cmocka_unit_test(test_questions),
        cmocka_unit_test(test_whole_already),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
