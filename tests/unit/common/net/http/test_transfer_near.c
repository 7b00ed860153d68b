/* Transfers that the server of a blob leads to a neighbour, and what neighbours may do wrong. */
#include "tests/unit/blobs.h"
#include "tests/unit/common/net/http/http_test.h"

#define SIZE 3000

/* The neighbour: the tests' own server stands for it, with its key, behind a path of its own. */
static struct near {
    unsigned gets;
    bool lies, is_cut, longer, has_not;
    bool waits; /* what it is asked for is on its way to it */
    bool drips;
    struct http_stream *stream;
    struct loop_timer *drip;
    size_t sent;
    uint8_t bytes[SIZE + 8];
} near;

static void on_closed(void *arg, struct http_stream *s)
{
    near.stream = NULL;
}

/* A little more than the least of other transfers. */
static void on_drip(void *arg)
{
    const size_t left = SIZE - near.sent, n = left < 110 ? left : 110;
    if (!near.stream)
        return;
    assert_int_equal(http_stream_write(near.stream, near.bytes + near.sent, n), 0);
    near.sent += n;
    if (near.sent == SIZE)
        http_stream_close(near.stream);
}

static void near_get(void *arg, struct http_request *r)
{
    struct http_stream *s;
    near.gets++;
    assert_null(http_request_header(r, "Skerry-Near"));
    near.bytes[7] ^= near.lies;
    if (near.has_not) {
        http_reply_error(r, 404, "not_found", "it has not");
    } else if (near.waits) {
        http_reply_header(r, "Skerry-Store", "wait");
        http_reply_error(r, 503, "unavailable", "it comes");
    } else if (near.is_cut) {
        assert_int_equal(http_stream_open(r, "application/octet-stream", on_closed, NULL, &s), 0);
        assert_int_equal(http_stream_write(s, near.bytes, SIZE / 2), 0);
        http_stream_close(s);
    } else if (near.drips) {
        assert_int_equal(
            http_stream_open(r, "application/octet-stream", on_closed, NULL, &near.stream), 0);
        loop_timer_start(near.drip, 100, 100);
    } else {
        http_reply_bytes(r, 200, "application/octet-stream", near.bytes, SIZE + near.longer);
    }
    near.bytes[7] ^= near.lies;
}

static const struct http_route near_routes[] = {{"GET", "/near", 0, 0, near_get, NULL, NULL}};

static struct world *start_near(struct blob_id *ret_id)
{
    struct world *w = start(true);
    struct buf content;
    *ret_id = make_file(w, "a", SIZE);
    char *path = path_in(w, "a");
    put_file(w, "a", ret_id, SIZE);
    assert_int_equal(file_read(path, SIZE, &content, NULL), 0);
    near = (struct near){.gets = 0};
    memcpy(near.bytes, content.data, SIZE);
    (void)snprintf(w->near.url, sizeof(w->near.url), "%s/near", w->url);
    (void)hash_hex(w->user.pin, sizeof(w->user.pin), w->near.pin);
    http_server_routes(w->server, near_routes, 1);
    buf_release(&content);
    mem_free(path);
    return w;
}

/* Gets the blob, and says how often the server had to send it. */
static unsigned get_near(struct world *w, const struct blob_id *id, bool follows)
{
    const uint64_t sent = blob_http_counters(w->blobs).bytes_out;
    char *url = ticket_url(w, TICKET_GET, id, SIZE), *path = path_in(w, "b");
    const struct xfer_get g = {.url = url,
                               .pin = w->user.pin,
                               .path = path,
                               .sha256 = id->sha256,
                               .size = SIZE,
                               .near = follows,
                               .done = on_done,
                               .arg = w};
    const unsigned before = w->done;
    near.gets = w->near_asked = 0;
    assert_int_equal(xfer_get(w->xfer, &g, NULL, NULL), 0);
    WAIT_FOR(&w->t, w->done > before);
    if (w->code != 0)
        fail_msg("%s", w->detail);
    assert_int_equal(unlink(path), 0);
    mem_free(url);
    mem_free(path);
    return (unsigned)((blob_http_counters(w->blobs).bytes_out - sent) / SIZE);
}

static void test_led(void **state)
{
    struct blob_id id;
    struct world *w = start_near(&id);
    assert_int_equal(get_near(w, &id, true), 0);
    assert_int_equal(near.gets, 1);
    assert_int_equal(w->near_asked, 1);
    assert_string_equal(w->near_asks, "follow");
    assert_int_equal(blob_http_counters(w->blobs).sent_near, 1);
    /* Who does not ask is not led. */
    assert_int_equal(get_near(w, &id, false), 1);
    assert_int_equal(near.gets, 0);
    assert_string_equal(w->near_asks, "none");
    stop(w);
}

/* One try, and no pause: the server is told who has failed, and who goes on asking is not led there
 * for a while. */
static void expect_fallback(struct world *w, const struct blob_id *id, unsigned gets)
{
    assert_int_equal(get_near(w, id, true), 1);
    assert_int_equal(near.gets, gets);
    assert_int_equal(w->near_asked, 2);
    assert_string_equal(w->near_asks, w->near.pin);
    assert_int_equal(xfer_counters(w->xfer).retries, 0);
    near = (struct near){.gets = 0};
    assert_int_equal(get_near(w, id, true), 1);
    assert_int_equal(w->near_asked, 1);
    stop(w);
}

static void test_nobody_is_there(void **state)
{
    struct blob_id id;
    struct world *w = start_near(&id);
    (void)str_copy(w->near.url, sizeof(w->near.url), "https://127.0.0.1:1/near");
    expect_fallback(w, &id, 0);
}

/* What it does not have says nothing of the next blob. */
static void test_it_has_not(void **state)
{
    struct blob_id id;
    struct world *w = start_near(&id);
    near.has_not = true;
    assert_int_equal(get_near(w, &id, true), 1);
    assert_int_equal(w->near_asked, 2);
    assert_string_equal(w->near_asks, w->near.pin);
    near.has_not = false;
    assert_int_equal(get_near(w, &id, true), 0);
    assert_int_equal(near.gets, 1);
    stop(w);
}

static void test_somebody_else_is_there(void **state)
{
    struct blob_id id;
    struct world *w = start_near(&id);
    memset(w->near.pin, 'a', 64);
    expect_fallback(w, &id, 0);
}

/* What came before it was gone stays. */
static void test_gone_in_the_middle(void **state)
{
    struct blob_id id;
    struct world *w = start_near(&id);
    near.is_cut = true;
    assert_int_equal(get_near(w, &id, true), 1);
    assert_int_equal(near.gets, 1);
    assert_int_equal(w->moved, SIZE);
    stop(w);
}

/* One that sends hardly anything is as good as gone: the server sends the rest. */
static void test_it_is_slow(void **state)
{
    struct blob_id id;
    struct world *w = start_near(&id);
    near.drips = true;
    near.drip = loop_timer_new(w->t.loop, on_drip, NULL);
    assert_int_equal(get_near(w, &id, true), 1);
    assert_int_equal(near.gets, 1);
    assert_in_range(near.sent, 1, SIZE - 1);
    assert_int_equal(w->moved, SIZE);
    assert_string_equal(w->near_asks, w->near.pin);
    loop_timer_free(near.drip);
    stop(w);
}

static void test_without_tls(void **state)
{
    struct blob_id id;
    struct world *w = start_near(&id);
    char *url = ticket_url(w, TICKET_GET, &id, SIZE), *path = path_in(w, "b");
    const struct xfer_get g = {
        .url = url, .pin = w->user.pin, .path = path, .near = true, .done = on_done, .arg = w};
    (void)snprintf(w->near.url, sizeof(w->near.url), "http://127.0.0.1:%u/near", w->user.http_port);
    assert_int_equal(xfer_get(w->xfer, &g, NULL, NULL), 0);
    WAIT_FOR(&w->t, w->done > 1);
    assert_true(w->code < 0);
    assert_int_equal(near.gets, 0);
    mem_free(url);
    mem_free(path);
    stop(w);
}

/* Other bytes cost one retry, the server has the word, and it is told who has failed. */
static void test_lies(void **state)
{
    struct blob_id id;
    struct world *w = start_near(&id);
    near.lies = true;
    assert_int_equal(get_near(w, &id, true), 1);
    assert_int_equal(near.gets, 1);
    assert_string_equal(w->near_asks, "none");
    assert_int_equal(xfer_counters(w->xfer).retries, 1);
    assert_int_equal(get_near(w, &id, true), 1);
    assert_int_equal(near.gets, 0);
    assert_string_equal(w->near_asks, w->near.pin);
    stop(w);
}

static void test_longer(void **state)
{
    struct blob_id id;
    struct world *w = start_near(&id);
    near.longer = true;
    assert_int_equal(get_near(w, &id, true), 1);
    assert_int_equal(near.gets, 1);
    stop(w);
}

/* What is on its way to it is asked for again, and not for ever; it counts as served when the
 * neighbour was named first, and when the server sends it. */
static void test_waits(void **state)
{
    struct blob_id id;
    struct world *w = start_near(&id);
    near.waits = true;
    assert_int_equal(get_near(w, &id, true), 1);
    assert_int_equal(near.gets, 46);
    assert_int_equal(w->served, 2);
    assert_int_equal(w->served_near, 1);
    assert_string_equal(w->near_asks, w->near.pin);
    stop(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_led),
        cmocka_unit_test(test_nobody_is_there),
        cmocka_unit_test(test_it_has_not),
        cmocka_unit_test(test_somebody_else_is_there),
        cmocka_unit_test(test_gone_in_the_middle),
        cmocka_unit_test(test_it_is_slow),
        cmocka_unit_test(test_without_tls),
        cmocka_unit_test(test_lies),
        cmocka_unit_test(test_longer),
        cmocka_unit_test(test_waits),
    };
    return cmocka_run_group_tests_name("transfer_near", tests, NULL, NULL);
}
