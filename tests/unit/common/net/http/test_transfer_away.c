/* Transfers that the server of a blob leads to its object store. */
#include "tests/unit/blobs.h"
#include "tests/unit/common/net/http/http_test.h"

#include "common/net/http/http_curl.h"

static struct blobstore_ops far_ops;

/* The object store of a blob server: the tests' own server stands for it, behind a path of its own.
 */
static struct away {
    struct world *w;
    unsigned soon, asked, gets, puts, looked; /* soon: it is about to have the blob, so often */
    long fails;                               /* the next requests are answered with this status */
    unsigned n_fails;
    unsigned mute; /* the next requests have no answer before the test ends */
    struct http_request *muted[2];
    unsigned n_muted;
    bool lies;        /* it takes blobs and has them not */
    unsigned looking; /* so often it is being looked at */
    bool shut;        /* nobody can dial it */
    bool other;       /* it has other bytes */
    bool silent;      /* it does not say whether it has one */
    bool has;
    char sum[64];
    uint8_t bytes[3000], more[8];
    size_t len;
} away;

static int away_url(struct blobstore *s, const struct blob_id *id, bool put, uint64_t size,
                    char **ret_url)
{
    away.asked++;
    if (!put && away.soon > 0) {
        away.soon--;
        return -EAGAIN;
    }
    *ret_url = away.shut ? str_dup("http://127.0.0.1:1/away")
                         : str_printf("%s/away/./blobs", away.w->url); /* signed as it is */
    return 0;
}

static int away_found(struct blobstore *s, const struct blob_id *id, uint64_t size, struct err *err)
{
    away.looked++;
    assert_int_equal(size, sizeof(away.bytes));
    if (away.silent)
        return err_set(err, -ETIMEDOUT, "nobody answers");
    if (away.looking > 0) {
        away.looking--;
        return err_set(err, -EBUSY, "it is being looked at");
    }
    if (away.other)
        return err_set(err, -ERR_HASH, "other bytes");
    return away.has && !away.lies ? 0 : err_set(err, -ERR_NOTFOUND, "it is not there");
}

static bool away_fails(struct http_request *r)
{
    if (away.mute > 0) {
        away.mute--;
        away.muted[away.n_muted++] = r;
        return true;
    }
    if (away.n_fails == 0)
        return false;
    away.n_fails--;
    http_reply_text(r, (unsigned)away.fails, "application/xml", "<Error/>");
    return true;
}

static void away_get(void *arg, struct http_request *r)
{
    away.gets++;
    assert_null(http_request_header(r, "Skerry-Store"));
    if (!away_fails(r))
        http_reply_bytes(r, 200, "application/octet-stream", away.bytes, away.len);
}

static void away_put(void *arg, struct http_request *r)
{
    size_t len = 0;
    const void *body = http_request_body(r, &len);
    const char *sum = http_request_header(r, "x-amz-checksum-sha256");
    away.puts++;
    assert_null(http_request_header(r, "Content-Range"));
    assert_int_equal(len, sizeof(away.bytes));
    memcpy(away.bytes, body, len);
    (void)str_copy(away.sum, sizeof(away.sum), sum ? sum : "");
    away.has = away.mute == 0 && (away.n_fails == 0 || away.fails == 500); /* its answer is lost */
    if (!away_fails(r))
        http_reply_empty(r, 200);
}

static const struct http_route away_routes[] = {
    {"GET", "/away/./blobs", 0, 0, away_get, NULL, NULL},
    {"PUT", "/away/./blobs", 0, 10000, away_put, NULL, NULL},
};

static struct world *start_away(void)
{
    struct world *w = start(false); /* one without TLS: the store's key is an authority's */
    far_ops = *w->store->ops;
    far_ops.away = away_url;
    far_ops.found = away_found;
    w->store->ops = &far_ops;
    away = (struct away){.w = w};
    http_server_routes(w->server, away_routes, 2);
    return w;
}

static void follow_put(struct world *w, const struct blob_id *id)
{
    char ticket[TICKET_PATH_MAX];
    blob_http_ticket(w->blobs, TICKET_PUT, id, sizeof(away.bytes), TICKET_HOLDER, ticket);
    char *url = str_printf("%s%s", w->url, ticket), *path = path_in(w, "a");
    const struct xfer_put p = {
        .url = url, .path = path, .sha256 = id->sha256, .done = on_done, .arg = w};
    const unsigned before = w->done;
    assert_int_equal(xfer_put(w->xfer, &p, NULL, NULL), 0);
    WAIT_FOR(&w->t, w->done > before);
    mem_free(url);
    mem_free(path);
}

static void follow_get(struct world *w, const struct blob_id *id)
{
    char ticket[TICKET_PATH_MAX];
    blob_http_ticket(w->blobs, TICKET_GET, id, sizeof(away.bytes), TICKET_HOLDER, ticket);
    char *url = str_printf("%s%s", w->url, ticket), *path = path_in(w, "b");
    const struct xfer_get g = {.url = url,
                               .path = path,
                               .sha256 = id->sha256,
                               .size = sizeof(away.bytes),
                               .follow = true,
                               .done = on_done,
                               .arg = w};
    const unsigned before = w->done;
    assert_int_equal(xfer_get(w->xfer, &g, NULL, NULL), 0);
    WAIT_FOR(&w->t, w->done > before);
    if (w->code == 0)
        (void)unlink(path);
    mem_free(url);
    mem_free(path);
}

static void test_put_away(void **state)
{
    struct world *w = start_away();
    const struct blob_id id = make_file(w, "a", sizeof(away.bytes));
    char sum[45];
    http_curl_base64(id.sha256, sum);
    follow_put(w, &id);
    assert_int_equal(w->code, 0);
    assert_int_equal(away.puts, 1);
    assert_int_equal(away.looked, 1);
    assert_int_equal(w->stored, 1);
    assert_string_equal(away.sum, sum);
    assert_int_equal(blob_http_counters(w->blobs).bytes_in, 0);
    /* It was taken, and the answer was lost: found, not sent again. */
    away.has = false;
    away.fails = 500;
    away.n_fails = 1;
    follow_put(w, &id);
    assert_int_equal(w->code, 0);
    assert_int_equal(away.puts, 2);
    /* Its URL had ended: another one. */
    away.has = false;
    away.fails = 403;
    away.n_fails = 1;
    follow_put(w, &id);
    assert_int_equal(w->code, 0);
    assert_int_equal(away.puts, 4);
    assert_int_equal(blob_http_counters(w->blobs).bytes_in, 0);
    stop(w);
}

/* What the store does not take, or takes and has not, goes through the server. */
static void test_put_away_in_vain(void **state)
{
    struct world *w = start_away();
    const struct blob_id id = make_file(w, "a", sizeof(away.bytes));
    uint64_t size = 0;
    away.lies = true;
    follow_put(w, &id);
    assert_int_equal(w->code, 0);
    assert_int_equal(away.puts, 3);
    assert_true(blobstore_has(w->store, &id, &size));
    assert_int_equal(blob_http_counters(w->blobs).bytes_in, sizeof(away.bytes));
    stop(w);
}

/* A store that nobody can dial costs the first blob its tries, and not each. */
static void test_put_away_shut(void **state)
{
    struct world *w = start_away();
    struct blob_id id = make_file(w, "a", sizeof(away.bytes));
    away.shut = true;
    follow_put(w, &id);
    assert_int_equal(w->code, 0);
    assert_int_equal(away.asked, 3);
    away.shut = false;
    follow_get(w, &id);
    assert_int_equal(w->code, 0);
    assert_int_equal(away.asked, 3);
    assert_int_equal(away.puts, 0);
    stop(w);
}

/* What failed at the store is none of the server's tries. */
static void test_put_away_then_busy(void **state)
{
    struct world *w = start_away();
    const struct blob_id id = make_file(w, "a", sizeof(away.bytes));
    away.fails = 503;
    away.n_fails = 3; /* more than TRIES */
    follow_put(w, &id);
    assert_int_equal(w->code, 0);
    assert_int_equal(blob_http_counters(w->blobs).bytes_in, sizeof(away.bytes));
    stop(w);
}

/* The server looks at what came to the store for as long as it takes, and says what it saw. */
static void test_put_away_looked_at(void **state)
{
    struct world *w = start_away();
    const struct blob_id id = make_file(w, "a", sizeof(away.bytes));
    away.looking = 2 * TRIES;
    follow_put(w, &id);
    assert_int_equal(w->code, 0);
    assert_int_equal(away.looking, 0);
    assert_int_equal(away.puts, 1);
    away.other = true;
    follow_put(w, &id);
    assert_int_equal(w->code, -ERR_HASH);
    assert_int_equal(away.puts, 2);
    stop(w);
}

/* The same, at once, where the store does not say whether it has it. */
static void test_put_away_silent(void **state)
{
    struct world *w = start_away();
    const struct blob_id id = make_file(w, "a", sizeof(away.bytes));
    away.silent = true;
    follow_put(w, &id);
    assert_int_equal(w->code, 0);
    assert_int_equal(away.puts, 1);
    assert_int_equal(blob_http_counters(w->blobs).bytes_in, sizeof(away.bytes));
    stop(w);
}

static void test_get_away(void **state)
{
    struct world *w = start_away();
    const struct blob_id id = make_file(w, "a", sizeof(away.bytes));
    char *path = path_in(w, "a");
    struct buf content;
    put_file(w, "a", &id, sizeof(away.bytes));
    assert_int_equal(file_read(path, sizeof(away.bytes), &content, NULL), 0);
    memcpy(away.bytes, content.data, content.len);
    away.len = content.len;
    away.soon = 3; /* it waits for that */
    follow_get(w, &id);
    assert_int_equal(w->code, 0);
    assert_int_equal(away.asked, 4);
    assert_int_equal(away.gets, 1);
    away.soon = 20; /* for longer than the server waits: it is asked again, and sends nothing */
    follow_get(w, &id);
    assert_int_equal(w->code, 0);
    assert_int_equal(away.soon, 0);
    assert_int_equal(away.gets, 2);
    assert_int_equal(blob_http_counters(w->blobs).bytes_out, 0);
    away.gets = 1;
    away.fails = 403; /* its URL has ended: a new one */
    away.n_fails = 1;
    follow_get(w, &id);
    assert_int_equal(w->code, 0);
    assert_int_equal(away.gets, 3);
    assert_int_equal(blob_http_counters(w->blobs).bytes_out, 0);
    away.bytes[7] ^= 1; /* other bytes: the server has the word */
    follow_get(w, &id);
    assert_int_equal(w->code, 0);
    assert_int_equal(away.gets, 4);
    assert_int_equal(blob_http_counters(w->blobs).bytes_out, sizeof(away.bytes));
    away.len++; /* the same for a longer answer */
    follow_get(w, &id);
    assert_int_equal(w->code, 0);
    assert_int_equal(away.gets, 5);
    assert_int_equal(blob_http_counters(w->blobs).bytes_out, 2 * sizeof(away.bytes));
    /* Who does not follow is not led away. */
    get_file(w, "c", &id, sizeof(away.bytes), id.sha256);
    assert_int_equal(w->code, 0);
    assert_int_equal(away.gets, 5);
    buf_release(&content);
    mem_free(path);
    stop(w);
}

/* A store that usually answers at once is not waited for longer than half a second, either way. */
static void test_mute(void **state)
{
    struct world *w = start_away();
    const struct blob_id id = make_file(w, "a", sizeof(away.bytes));
    follow_put(w, &id);
    const uint64_t before = clock_now_ms();
    away.mute = 1;
    away.has = false;
    follow_put(w, &id);
    assert_int_equal(w->code, 0);
    assert_int_equal(away.puts, 3);
    assert_int_equal(blob_http_counters(w->blobs).bytes_in, 0);
    put_file(w, "a", &id, sizeof(away.bytes));
    away.len = sizeof(away.bytes);
    follow_get(w, &id);
    away.mute = 1;
    follow_get(w, &id);
    assert_int_equal(w->code, 0);
    assert_int_equal(away.gets, 3);
    assert_int_equal(blob_http_counters(w->blobs).bytes_out, 0);
    assert_in_range(clock_now_ms() - before, 1000, 10000);
    while (away.n_muted > 0)
        http_reply_empty(away.muted[--away.n_muted], 200);
    stop(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_put_away),           cmocka_unit_test(test_put_away_in_vain),
        cmocka_unit_test(test_put_away_shut),      cmocka_unit_test(test_put_away_then_busy),
        cmocka_unit_test(test_put_away_looked_at), cmocka_unit_test(test_put_away_silent),
        cmocka_unit_test(test_get_away),           cmocka_unit_test(test_mute),
    };
    return cmocka_run_group_tests_name("transfer_away", tests, NULL, NULL);
}
