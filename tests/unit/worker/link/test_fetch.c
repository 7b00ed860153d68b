/* Getting blobs: where tickets lead, how many travel at once, what is asked for again. */
#include "tests/unit/worker/link/fake_line.h"

#include "common/base/hash.h"
#include "common/net/token.h"
#include "worker/link/fetch.h"
#include "worker/order/cache.h"
#include "worker/order/work.h"

enum { N = 12 };

static char *top;
static struct cache *cache;
static struct token token = {.host = "coordinator", .http_port = 8443};
static struct work_need needs[N];
static struct {
    unsigned calls;
    int code;
    char detail[1024];
    bool blob_failed;
} told;

static void on_done(void *arg, int code, const char *detail)
{
    told.calls++;
    told.code = code;
    str_copy(told.detail, sizeof(told.detail), detail);
}

static struct fetch *begin(size_t n, const char *source)
{
    const struct fetch_env env = {.cache = cache, .token = &token, .source_max_bytes = 99};
    const struct fetch_what what = {.needs = needs,
                                    .n = n,
                                    .source_url = source,
                                    .source_path = "/tmp/source",
                                    .ret_blob_failed = &told.blob_failed};
    return fetch_start(&env, &what, on_done, NULL);
}

/* Transfer number i has brought its file. */
static void arrive(unsigned i)
{
    OK(file_write_atomic(line.at[i].path, "blob", 4, 0600, err));
    end_with(i, 0, "");
}

static void tickets_lead_home_or_away(void **state)
{
    char url[FETCH_URL_MAX];
    const uint8_t *pin = NULL;
    OK(fetch_resolve(&token, "/v1/blobs/aa?sig=1", url, &pin, err));
    assert_true(str_starts(url, "https://coordinator:8443/v1/blobs/aa"));
    assert_ptr_equal(pin, token.pin);
    const struct token moved = {.host = "10.0.0.9", .http_port = 99, .http_plain = true};
    OK(fetch_resolve(&moved, "/v1/blobs/aa?sig=1", url, &pin, err));
    assert_string_equal(url, "http://10.0.0.9:99/v1/blobs/aa?sig=1");
    assert_null(pin); /* no key is shown there */
    OK(fetch_resolve(&token, "https://archives.example/v1/blobs/aa", url, &pin, err));
    assert_string_equal(url, "https://archives.example/v1/blobs/aa");
    assert_null(pin);
    char *endless = str_printf("/%*d", FETCH_URL_MAX, 1);
    FAILS(fetch_resolve(&token, endless, url, &pin, err), "too long");
    mem_free(endless);
}

static void some_at_a_time(void **state)
{
    (void)begin(N, NULL);
    const unsigned at_once = line.running;
    assert_true(at_once > 1 && at_once < N);
    for (unsigned i = 0; i < N; i++) {
        assert_int_equal(told.calls, 0);
        arrive(i);
    }
    assert_int_equal(line.most, at_once);
    assert_int_equal(told.calls, 0); /* never from within */
    turn();
    assert_true(told.calls == 1 && told.code == 0);
    for (int i = 0; i < N; i++)
        assert_true(cache_has(cache, needs[i].sha256));
}

static void what_is_here_is_not_fetched(void **state)
{
    needs[0].missing = needs[2].missing = false;
    (void)begin(3, NULL);
    assert_int_equal(line.n, 1);
    arrive(0);
    turn();
    assert_true(told.calls == 1 && told.code == 0);
    needs[1].missing = false;
    (void)begin(3, NULL);
    turn();
    assert_true(told.calls == 2 && told.code == 0);
}

static void the_first_failure_stops_the_others(void **state)
{
    (void)begin(N, NULL);
    const unsigned at_once = line.running;
    end_with(2, -ERR_AUTH, "the ticket is over");
    assert_int_equal(line.cancelled, at_once - 1);
    assert_int_equal(line.n, at_once); /* no other was begun */
    turn();
    assert_true(told.calls == 1 && told.code == -ERR_AUTH);
    assert_string_equal(told.detail, "fetching blob 2: the ticket is over");
}

/* Wrong content twice is a broken store, not a broken line. */
static void damage_is_fetched_once_more(void **state)
{
    (void)begin(2, NULL);
    end_with(0, -ERR_HASH, "other bits");
    assert_int_equal(line.n, 3);
    assert_string_equal(line.at[2].path, line.at[0].path);
    arrive(1);
    arrive(2);
    turn();
    assert_true(told.calls == 1 && told.code == 0);

    needs[0].sha256[1] = 9;
    (void)begin(1, NULL);
    end_with(3, -ERR_HASH, "other bits");
    end_with(4, -ERR_HASH, "other bits");
    turn();
    assert_true(told.calls == 2 && told.code == -ERR_HASH);
    assert_non_null(strstr(told.detail, "copy of blob 0 is damaged"));

    needs[0].sha256[1] = 10; /* it came once: the store is not to blame */
    (void)begin(1, NULL);
    line.refuse = -EAGAIN;
    end_with(5, -ERR_HASH, "other bits");
    turn();
    assert_true(told.calls == 3 && told.code == -EAGAIN);
    assert_null(strstr(told.detail, "is damaged"));
}

static void cancelled_says_nothing(void **state)
{
    struct fetch *f = begin(3, NULL);
    fetch_cancel(f);
    turn();
    assert_int_equal(told.calls, 0);
    assert_int_equal(line.running, 0);
    fetch_cancel(NULL);
}

static void a_queue_that_is_full(void **state)
{
    (void)begin(1, NULL);
    arrive(0);
    turn();
    line.refuse = -EAGAIN; /* and nothing runs that could go on with it */
    needs[1].missing = true;
    (void)begin(2, NULL);
    turn();
    assert_int_equal(told.calls, 2);
}

static void an_archive_from_outside(void **state)
{
    (void)begin(0, "https://example.org/x.tar");
    assert_string_equal(line.at[0].url, "https://example.org/x.tar");
    assert_string_equal(line.at[0].path, "/tmp/source");
    assert_null(line.at[0].pin);
    assert_true(line.at[0].public_only && line.at[0].max_bytes == 99);
    assert_true(line.at[0].cached); /* a flush of it would be a long one, on this thread */
    end_with(0, -ERR_NOTFOUND, "404");
    turn();
    assert_string_equal(told.detail, "fetching the source archive: 404");
    assert_false(told.blob_failed);
    (void)begin(1, NULL);
    assert_false(line.at[1].public_only); /* the coordinator may be anywhere */
    arrive(1);
    turn();
    assert_false(told.blob_failed);
    (void)begin(1, "https://example.org/x.tar");
    end_with(2, -ERR_AUTH, "403");
    turn();
    assert_string_equal(told.detail, "fetching blob 0: 403");
    assert_true(told.blob_failed);
}

/* Files go on the compute thread, since to remove them may take long, and once at a time. */
static void room_for_an_archive(void **state)
{
    const uint64_t all = (uint64_t)1 << 60; /* more than any disk has */
    struct fetch *f = begin(1, "https://example.org/x.tar");
    arrive(0);
    line.at[1].progress(line.at[1].arg, 10, 10);
    assert_null(job.work);
    line.at[1].progress(line.at[1].arg, 10, all);
    line.at[1].progress(line.at[1].arg, 20, all);
    assert_true(cache_has(cache, needs[0].sha256));
    compute();
    assert_false(cache_has(cache, needs[0].sha256));
    job.full = true;
    line.at[1].progress(line.at[1].arg, 30, all);
    job.full = false;
    line.at[1].progress(line.at[1].arg, 40, all);
    fetch_cancel(f);
    turn();
    compute(); /* it asks for nobody */
}

static void a_cache_that_is_full(void **state)
{
    OK(cache_set_limit(cache, 3, err));
    (void)begin(2, NULL);
    assert_int_equal(line.n, 0);
    turn();
    assert_true(told.calls == 1 && told.code == -ENOSPC);
}

static int setup(void **state)
{
    top = scratch_new();
    char *dir = in(top, "blobs");
    OK(cache_open(dir, 0, &cache, err));
    mem_free(dir);
    memset(&line, 0, sizeof(line));
    memset(&told, 0, sizeof(told));
    for (int i = 0; i < N; i++) {
        needs[i] = (struct work_need){.size = 4, .url = "/v1/blobs/x", .missing = true};
        needs[i].sha256[0] = (uint8_t)(i + 1);
        snprintf(needs[i].what, sizeof(needs[i].what), "blob %d", i);
    }
    return 0;
}

static int teardown(void **state)
{
    cache_close(cache);
    scratch_free(top);
    return 0;
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(tickets_lead_home_or_away),   TEST(some_at_a_time),
        TEST(what_is_here_is_not_fetched), TEST(the_first_failure_stops_the_others),
        TEST(damage_is_fetched_once_more), TEST(cancelled_says_nothing),
        TEST(a_queue_that_is_full),        TEST(an_archive_from_outside),
        TEST(room_for_an_archive),         TEST(a_cache_that_is_full),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
