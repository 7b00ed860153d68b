/* What a worker serves to its neighbours, over real TLS. */
#include "tests/unit/common/net/http/small_call.h"

#include "common/net/http/transfer.h"
#include "common/net/ticket.h"
#include "worker/link/share.h"
#include "worker/order/cache.h"

#include <unistd.h>

#define NOW_S 5000 /* of the coordinator's clock */
#define TEXT "what others want, too"
#define LEN (sizeof(TEXT) - 1)

static struct net_test t;
static struct cache *cache;
static struct share *share;
static struct small_callers callers;
static struct session_share *word;
static uint8_t sha256[32];
static char body[512];
static long status;
static unsigned done;

static void on_answer(void *arg, int code, long http_status, const char *text)
{
    done++;
    status = code == 0 ? http_status : code;
    (void)str_copy(body, sizeof(body), text);
}

static void begin_get(uint64_t holder, uint64_t expires_s, const uint8_t *key)
{
    struct ticket ticket = {
        .method = TICKET_GET, .max_bytes = LEN, .expires_s = expires_s, .holder = holder};
    char path[TICKET_PATH_MAX];
    memcpy(ticket.sha256, sha256, sizeof(sha256));
    ticket_path(key, &ticket, path);
    char *url = str_printf("https://%s:%u%s", word->host, word->port, path);
    const struct small_call c = {
        .method = "GET", .url = url, .pin = keys_pin(t.keys), .done = on_answer};
    small_call(&callers, &c);
    mem_free(url);
}

static void get(uint64_t holder, uint64_t expires_s, const uint8_t *key)
{
    const unsigned before = done;
    begin_get(holder, expires_s, key);
    WAIT_FOR(&t, done > before);
}

static void write_blob(bool part)
{
    char path[CACHE_PATH_MAX];
    cache_path(cache, sha256, path);
    char *name = str_printf("%s%s", path, part ? ".part" : "");
    assert_int_equal(file_write_atomic(name, TEXT, part ? 3 : LEN, 0600, NULL), 0);
    mem_free(name);
    if (!part)
        assert_int_equal(cache_added(cache, sha256, NULL), 0);
}

static int begin(void **state)
{
    struct err err = {0};
    net_test_init(&t);
    char *dir = file_join(t.dir, "cache");
    assert_int_equal(cache_open(dir, 0, &cache, &err), 0);
    mem_free(dir);
    const struct share_options o = {.loop = t.loop,
                                    .cache = cache,
                                    .keys = t.keys,
                                    .site = "hall-1",
                                    .coordinator = "127.0.0.1"};
    if (share_open(&o, &share, &err) < 0)
        fail_msg("%s", err.msg);
    small_callers_init(&callers, t.loop);
    word = share_word(share);
    word->now_s = NOW_S;
    word->told_ms = clock_now_ms();
    hash_sha256(TEXT, LEN, sha256);
    return 0;
}

static int end(void **state)
{
    share_close(share);
    small_callers_release(&callers);
    cache_close(cache);
    net_test_release(&t);
    return 0;
}

static void test_tells(void **state)
{
    assert_string_equal(word->site, "hall-1");
    assert_string_equal(word->host, "127.0.0.1"); /* where packets to the coordinator leave */
    assert_true(word->port > 0);
}

static void test_serves(void **state)
{
    char *to = file_join(t.dir, "to");
    write_blob(false);
    assert_false(cache_take(cache, sha256, to)); /* to be written over while it is sent */
    mem_free(to);
    for (unsigned i = 0; i < 4; i++) {
        get(7, NOW_S + 900, word->key);
        assert_int_equal(status, 200);
        assert_string_equal(body, TEXT);
    }
    get(7, NOW_S + 900, word->key); /* that is enough for one: others it still gets here */
    assert_int_equal(status, 404);
    assert_non_null(strstr(body, "has sent the blob often enough"));
    get(8, NOW_S + 900, word->key);
    assert_int_equal(status, 200);
}

static void test_refuses(void **state)
{
    uint8_t other[TICKET_KEY_BYTES] = {1};
    write_blob(false);
    get(7, NOW_S + 900, other);
    assert_non_null(strstr(body, "signature is wrong"));
    get(7, NOW_S - 1, word->key);
    assert_non_null(strstr(body, "expired"));
}

/* What is not here and does not come is not waited for. */
static void test_has_not(void **state)
{
    get(7, NOW_S + 900, word->key);
    assert_int_equal(status, 404);
}

static void test_is_on_its_way(void **state)
{
    write_blob(true);
    const unsigned before = done;
    begin_get(7, NOW_S + 900, word->key);
    begin_get(8, NOW_S + 900, word->key);
    get(7, NOW_S + 900, (const uint8_t[TICKET_KEY_BYTES]){2}); /* by now they wait */
    assert_int_equal(done, before + 1);
    char path[CACHE_PATH_MAX];
    cache_path(cache, sha256, path);
    char *part = str_printf("%s.part", path);
    assert_int_equal(file_write_atomic(path, TEXT, LEN, 0600, NULL), 0);
    assert_int_equal(unlink(part), 0);
    get(7, NOW_S + 900, (const uint8_t[TICKET_KEY_BYTES]){2}); /* not in the book yet */
    assert_int_equal(done, before + 2);
    mem_free(part);
    assert_int_equal(cache_added(cache, sha256, NULL), 0);
    WAIT_FOR(&t, done == before + 4);
    assert_int_equal(status, 200);
    assert_string_equal(body, TEXT);
}

/* Who is told to wait is told so before he takes it for silence, as often as he asks: only what is
 * sent counts. */
static void test_waits_do_not_count(void **state)
{
    write_blob(true);
    const unsigned before = done;
    const uint64_t begun_ms = clock_now_ms();
    for (unsigned i = 0; i < 5; i++)
        begin_get(7, NOW_S + 900, word->key);
    get(7, NOW_S + 900, (const uint8_t[TICKET_KEY_BYTES]){2}); /* by now they wait */
    assert_int_equal(done, before + 1);
    WAIT_FOR(&t, done == before + 6);
    assert_int_equal(status, 503);
    assert_true(clock_now_ms() - begun_ms < XFER_AWAY_FLOOR_S * 1000);
    write_blob(false);
    get(7, NOW_S + 900, word->key);
    assert_int_equal(status, 200);
}

/* It leaves while somebody waits. */
static void test_leaves(void **state)
{
    write_blob(true);
    const unsigned before = done;
    begin_get(7, NOW_S + 900, word->key);
    get(7, NOW_S + 900, (const uint8_t[TICKET_KEY_BYTES]){2});
    share_close(share);
    share = NULL;
    WAIT_FOR(&t, done == before + 2);
    assert_true(status < 0 || status >= 400);
}

static void expect_refused(const char *site, const char *at, const char *why)
{
    const struct share_options o = {.loop = t.loop,
                                    .cache = cache,
                                    .keys = t.keys,
                                    .site = site,
                                    .at = at,
                                    .coordinator = "127.0.0.1"};
    struct err err = {0};
    struct share *s = NULL;
    assert_true(share_open(&o, &s, &err) < 0);
    if (strstr(err.msg, why) == NULL)
        fail_msg("'%s' does not say '%s'", err.msg, why);
}

static void test_bad_words(void **state)
{
    expect_refused("", NULL, "the name of a site");
    expect_refused("a hall", NULL, "the name of a site");
    expect_refused("-hall", NULL, "neither '.' nor '-' first");
    expect_refused("hall", "nowhere", "an address of this machine");
    expect_refused("hall", "127.0.0.1:99999", "an address of this machine");
    expect_refused("hall", "[::1", "an address of this machine");
    expect_refused("hall", "192.0.2.1", "neighbours cannot be served");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_tells, begin, end),
        cmocka_unit_test_setup_teardown(test_serves, begin, end),
        cmocka_unit_test_setup_teardown(test_refuses, begin, end),
        cmocka_unit_test_setup_teardown(test_has_not, begin, end),
        cmocka_unit_test_setup_teardown(test_is_on_its_way, begin, end),
        cmocka_unit_test_setup_teardown(test_waits_do_not_count, begin, end),
        cmocka_unit_test_setup_teardown(test_leaves, begin, end),
        cmocka_unit_test_setup_teardown(test_bad_words, begin, end),
    };
    return cmocka_run_group_tests_name("share", tests, NULL, NULL);
}
