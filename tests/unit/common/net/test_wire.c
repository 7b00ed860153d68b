/* The pure parts (frames, tokens, tickets, the arena) and the small ones (keys,
 * loop, pool, blob store). */
#include "net_test.h"

#include "common/net/frame.h"
#include "common/net/pbmem.h"
#include "common/net/ticket.h"
#include "proto/envelope.pb-c.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/stat.h>

static void test_frame(void **state)
{
    static const uint8_t golden[FRAME_HEADER_BYTES + 3] = {
        'S', 'K', 'R', 'Y', 1, 3, 0x34, 0x12, 3, 0, 0, 0, 0, 0, 0,   0,   0,   0,
        0,   0,   0,   0,   0, 0, 8,    7,    6, 5, 4, 3, 2, 1, 'a', 'b', 'c',
    };
    struct frame f = {.flags = FRAME_REPLY | FRAME_ERROR,
                      .method = 0x1234,
                      .body_len = 3,
                      .request_id = 0x0102030405060708ull};
    struct frame_limits limits = {.max_body = 100};
    uint8_t bytes[sizeof(golden)];
    frame_write_header(&f, bytes);
    memcpy(bytes + FRAME_HEADER_BYTES, "abc", 3);
    assert_memory_equal(bytes, golden, sizeof(golden));
    struct frame got;
    for (size_t n = 0; n < sizeof(golden); n++)
        assert_int_equal(frame_parse(golden, n, &limits, &got, NULL), -EAGAIN);
    assert_int_equal(frame_parse(golden, sizeof(golden), &limits, &got, NULL), sizeof(golden));
    assert_int_equal(got.method, 0x1234);
    assert_true(got.request_id == f.request_id);
    assert_memory_equal(got.body, "abc", 3);
    assert_null(got.payload);
}

static void test_bad_frames(void **state)
{
    static const struct {
        unsigned at;
        uint8_t value;
        int code;
    } cases[] = {
        {0, 'X', -ERR_FORMAT}, {3, 'y', -ERR_FORMAT}, {4, 2, -ERR_VERSION},  {5, 4, -ERR_FORMAT},
        {5, 2, -ERR_FORMAT},   {8, 101, -ERR_LIMIT},  {11, 255, -ERR_LIMIT}, {12, 1, -ERR_FORMAT},
        {16, 1, -ERR_LIMIT},   {23, 255, -ERR_LIMIT},
    };
    struct frame_limits limits = {.max_body = 100};
    struct frame f = {.method = 20, .body_len = 3}, got;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint8_t bytes[FRAME_HEADER_BYTES];
        struct err err = {0};
        frame_write_header(&f, bytes);
        bytes[cases[i].at] = cases[i].value;
        assert_int_equal(frame_parse(bytes, sizeof(bytes), &limits, &got, &err), cases[i].code);
        assert_true(err.msg[0]);
    }
}

/* 64 times amplification stops at the arena's maximum. */
static void test_arena(void **state)
{
    struct pbmem m;
    pbmem_init(&m, 64 * 1024);
    uint8_t hostile[60000]; /* 30,000 empty strings in `features` */
    for (size_t i = 0; i < sizeof(hostile); i += 2) {
        hostile[i] = 3 << 3 | 2;
        hostile[i + 1] = 0;
    }
    assert_null(skerry__envelope__v1__hello__unpack(pbmem_allocator(&m), sizeof(hostile), hostile));
    assert_true(m.used <= 64 * 1024);
    pbmem_clear(&m);
    Skerry__Envelope__V1__Hello *h =
        skerry__envelope__v1__hello__unpack(pbmem_allocator(&m), 100, hostile);
    assert_non_null(h);
    assert_int_equal(h->n_features, 50);
    pbmem_clear(&m);
    assert_int_equal(m.used, 0);
    pbmem_release(&m);
}

static struct token sample_token(void)
{
    struct token t = {.host = "coordinator.example.org",
                      .rpc_port = 7710,
                      .http_port = 7711,
                      .role = TOKEN_ROLE_WORKER};
    for (size_t i = 0; i < 32; i++) {
        t.pin[i] = (uint8_t)i;
        t.secret[i] = (uint8_t)(200 + i);
    }
    t.cluster_id[3] = 77;
    return t;
}

static void test_token(void **state)
{
    struct token t = sample_token(), got;
    char text[TOKEN_STRING_MAX], padded[TOKEN_STRING_MAX + 8], url[TOKEN_URL_MAX];
    assert_int_equal(token_format(&t, text, NULL), 0);
    snprintf(padded, sizeof(padded), "  %s\r\n", text);
    assert_int_equal(token_parse(padded, &got, NULL), 0);
    assert_string_equal(got.host, t.host);
    assert_int_equal(got.rpc_port, 7710);
    assert_int_equal(got.http_port, 7711);
    assert_int_equal(got.role, TOKEN_ROLE_WORKER);
    assert_memory_equal(got.pin, t.pin, 32);
    assert_memory_equal(got.secret, t.secret, 32);
    assert_memory_equal(got.cluster_id, t.cluster_id, 16);
    token_http_url(&got, url);
    assert_string_equal(url, "https://coordinator.example.org:7711");
    (void)str_copy(t.host, sizeof(t.host), "::1");
    t.http_plain = true;
    token_http_url(&t, url);
    assert_string_equal(url, "http://[::1]:7711");
    memset(t.host, 'h', TOKEN_HOST_MAX);
    assert_int_equal(token_format(&t, text, NULL), 0);
    assert_int_equal(token_parse(text, &got, NULL), 0);
}

static void expect_bad_token(const char *text, const char *words)
{
    struct token t;
    struct err err = {0};
    assert_true(token_parse(text, &t, &err) < 0);
    if (!strstr(err.msg, words))
        fail_msg("\"%s\" does not say \"%s\"", err.msg, words);
}

static void test_bad_tokens(void **state)
{
    struct token t = sample_token();
    char text[TOKEN_STRING_MAX], twice[2 * TOKEN_STRING_MAX], cut[TOKEN_STRING_MAX];
    struct err err = {0};
    assert_int_equal(token_format(&t, text, NULL), 0);
    expect_bad_token("", "not a Skerry token");
    expect_bad_token("hello", "not a Skerry token");
    expect_bad_token("skerry1.", "cut short");
    expect_bad_token("skerry1.!!!!", "damaged");
    for (size_t n = 9; n < strlen(text); n++) {
        memcpy(cut, text, n);
        cut[n] = '\0';
        struct token got;
        assert_true(token_parse(cut, &got, NULL) < 0);
    }
    for (size_t i = 8; i < strlen(text); i++) { /* every typing mistake is found */
        struct token got;
        memcpy(cut, text, sizeof(cut));
        cut[i] = cut[i] == 'A' ? 'B' : 'A';
        assert_true(token_parse(cut, &got, NULL) < 0);
    }
    snprintf(twice, sizeof(twice), "%s%s", text, text);
    expect_bad_token(twice, "twice");
    t.host[0] = '\0';
    assert_int_equal(token_format(&t, text, &err), -EINVAL);
    (void)str_copy(t.host, sizeof(t.host), "a b");
    assert_int_equal(token_format(&t, text, &err), -EINVAL);
}

static void test_bearer(void **state)
{
    struct token t = sample_token();
    char text[TOKEN_STRING_MAX], bearer[TOKEN_BEARER_MAX];
    token_bearer(t.secret, bearer);
    assert_int_equal(token_format(&t, text, NULL), 0);
    assert_true(token_bearer_matches(t.secret, bearer));
    assert_true(token_bearer_matches(t.secret, text));
    assert_false(token_bearer_matches(t.pin, bearer));
    assert_false(token_bearer_matches(t.secret, ""));
    bearer[42] = '\0';
    assert_false(token_bearer_matches(t.secret, bearer));
}

static void test_ticket(void **state)
{
    uint8_t key[TICKET_KEY_BYTES] = {1}, other_key[TICKET_KEY_BYTES] = {2};
    struct ticket t = {.method = TICKET_PUT, .max_bytes = 12345, .expires_s = 1000}, got;
    char path[TICKET_PATH_MAX];
    struct err err = {0};
    memset(t.sha256, 0xab, 32);
    ticket_path(key, &t, path);
    assert_true(str_starts(path, "/v1/blobs/abababab"));
    char *query = strchr(path, '?') + 1;
    assert_int_equal(ticket_check(key, TICKET_PUT, t.sha256, query, 999, &got, &err), 0);
    assert_int_equal(got.max_bytes, 12345);
    assert_int_equal(ticket_check(key, TICKET_PUT, t.sha256, query, 1000, &got, &err), -ERR_AUTH);
    assert_non_null(strstr(err.msg, "expired"));
    assert_int_equal(ticket_check(key, TICKET_GET, t.sha256, query, 1, &got, &err), -ERR_AUTH);
    assert_int_equal(ticket_check(other_key, TICKET_PUT, t.sha256, query, 1, &got, &err),
                     -ERR_AUTH);
    uint8_t other[32] = {0};
    assert_int_equal(ticket_check(key, TICKET_PUT, other, query, 1, &got, &err), -ERR_AUTH);
    assert_int_equal(ticket_check(key, TICKET_PUT, t.sha256, NULL, 1, &got, &err), -ERR_AUTH);
    /* No change of any character is accepted. */
    for (size_t i = 0; i < strlen(query); i++) {
        char forged[TICKET_PATH_MAX];
        (void)str_copy(forged, sizeof(forged), query);
        forged[i] = forged[i] == '1' ? '2' : '1';
        assert_int_equal(ticket_check(key, TICKET_PUT, t.sha256, forged, 1, &got, NULL), -ERR_AUTH);
    }
    char *more = str_printf("%s&max=99999999", query);
    assert_int_equal(ticket_check(key, TICKET_PUT, t.sha256, more, 1, &got, NULL), -ERR_AUTH);
    mem_free(more);
}

static void test_keys(void **state)
{
    struct net_test t;
    struct keys *again = NULL;
    struct err err = {0};
    struct stat st;
    net_test_init(&t);
    assert_int_equal(keys_open(t.dir, &again, &err), 0);
    assert_memory_equal(keys_pin(again), keys_pin(t.keys), KEYS_PIN_BYTES);
    keys_free(again);
    char *path = file_join(t.dir, "tls-key.pem"), *cert = file_join(t.dir, "tls-cert.pem");
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(chmod(path, 0644), 0);
    assert_int_equal(keys_open(t.dir, &again, &err), -ERR_CONFIG);
    assert_non_null(strstr(err.msg, "chmod 600"));
    assert_int_equal(chmod(path, 0600), 0);
    assert_int_equal(file_write_atomic(cert, "x", 1, 0644, NULL), 0);
    assert_int_equal(keys_open(t.dir, &again, &err), -ERR_FORMAT);
    uint8_t a[KEYS_SECRET_BYTES], b[KEYS_SECRET_BYTES];
    assert_int_equal(keys_secret(t.dir, "worker", a, &err), 0);
    assert_int_equal(keys_secret(t.dir, "worker", b, &err), 0);
    assert_memory_equal(a, b, sizeof(a));
    assert_int_equal(keys_secret(t.dir, "user", b, &err), 0);
    assert_memory_not_equal(a, b, sizeof(a));
    mem_free(path);
    mem_free(cert);
    net_test_release(&t);
}

/* ---- loop and pool ---- */

struct counting {
    struct net_test t;
    unsigned done, cancelled, posted;
    pthread_mutex_t gate;
};

static int wait_at_gate(void *arg)
{
    struct counting *c = arg;
    pthread_mutex_lock(&c->gate);
    pthread_mutex_unlock(&c->gate);
    return 7;
}

static void on_job_done(void *arg, int rc)
{
    struct counting *c = arg;
    loop_assert_thread(c->t.loop);
    if (rc == 7)
        c->done++;
    else if (rc == -ERR_CANCELLED)
        c->cancelled++;
}

static void test_pool(void **state)
{
    struct counting c = {.gate = PTHREAD_MUTEX_INITIALIZER};
    struct pool *pool;
    net_test_init(&c.t);
    assert_int_equal(pool_new(c.t.loop, "test", 2, 5, &pool, NULL), 0);
    pthread_mutex_lock(&c.gate);
    for (unsigned i = 0; i < 5; i++)
        assert_int_equal(pool_submit(pool, wait_at_gate, on_job_done, &c), 0);
    assert_int_equal(pool_submit(pool, wait_at_gate, on_job_done, &c), -EAGAIN);
    assert_int_equal(pool_pending(pool), 5);
    pthread_mutex_unlock(&c.gate);
    WAIT_FOR(&c.t, c.done == 5);
    for (unsigned i = 0; i < 5; i++)
        assert_int_equal(pool_submit(pool, wait_at_gate, on_job_done, &c), 0);
    pool_free(pool); /* each is answered: run or cancelled */
    assert_int_equal(c.done + c.cancelled, 10);
    net_test_release(&c.t);
}

static void on_posted(void *arg)
{
    ((struct counting *)arg)->posted++;
}

static void *post_many(void *arg)
{
    struct counting *c = arg;
    for (unsigned i = 0; i < LOOP_POST_MAX; i++)
        if (loop_post(c->t.loop, on_posted, c) < 0)
            return arg;
    return loop_post(c->t.loop, on_posted, c) == -EAGAIN ? NULL : arg;
}

static void test_post(void **state)
{
    struct counting c = {.posted = 0};
    pthread_t thread;
    void *failed;
    net_test_init(&c.t);
    assert_int_equal(pthread_create(&thread, NULL, post_many, &c), 0);
    assert_int_equal(pthread_join(thread, &failed), 0);
    assert_null(failed);
    WAIT_FOR(&c.t, c.posted == LOOP_POST_MAX);
    loop_defer(c.t.loop, on_posted, &c);
    WAIT_FOR(&c.t, c.posted == LOOP_POST_MAX + 1);
    net_test_release(&c.t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_frame),      cmocka_unit_test(test_bad_frames),
        cmocka_unit_test(test_arena),      cmocka_unit_test(test_token),
        cmocka_unit_test(test_bad_tokens), cmocka_unit_test(test_bearer),
        cmocka_unit_test(test_ticket),     cmocka_unit_test(test_keys),
        cmocka_unit_test(test_pool),       cmocka_unit_test(test_post),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
