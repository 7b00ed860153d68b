/* Blobs that others get from the store, or put there, past us. */
#include "tests/unit/common/net/s3/blob_s3_rig.h"

static bool is_led_to_put(struct rig *r, const struct blob_id *id)
{
    char *url = NULL;
    const int rc = r->s->ops->away(r->s, id, true, LEN, &url);
    mem_free(url);
    return rc == 0;
}

/* URLs for others: of what the store has, and for what nobody has; and what they have put is found.
 */
static void test_away(void **state)
{
    struct rig *r = *state;
    char *url = NULL, hex[BLOB_HEX_MAX];
    struct blob_id id, none;
    const struct blob_id a = put_and_send(r, 1);
    assert_int_equal(r->s->ops->away(r->s, &a, false, 0, &url), 0);
    blob_id_hex(&a, hex);
    assert_non_null(strstr(url, hex));
    assert_non_null(strstr(url, "X-Amz-SignedHeaders=host&"));
    assert_non_null(strstr(url, "X-Amz-Expires=900"));
    assert_null(strstr(url, "secret"));
    mem_free(url);
    assert_int_equal(r->s->ops->away(r->s, &a, true, LEN, &url),
                     -ERR_UNIMPLEMENTED); /* it is there */
    memset(r->data, 7, LEN);
    hash_sha256(r->data, LEN, id.sha256);
    assert_int_equal(r->s->ops->away(r->s, &id, false, 0, &url), -ERR_UNIMPLEMENTED);
    assert_int_equal(r->s->ops->away(r->s, &id, true, 6ull << 30, &url), -ERR_UNIMPLEMENTED);
    assert_int_equal(r->s->ops->away(r->s, &id, true, LEN, &url), 0);
    assert_non_null(
        strstr(url, "X-Amz-SignedHeaders=content-length%3Bhost%3Bx-amz-checksum-sha256"));
    mem_free(url);
    assert_int_equal(r->s->ops->found(r->s, &id, LEN, &r->err), -ERR_NOTFOUND);
    pthread_mutex_lock(&r->f.lock);
    fake_set(r->f.objects, key_of(&id), r->data, LEN);
    pthread_mutex_unlock(&r->f.lock);
    assert_int_equal(r->s->ops->found(r->s, &id, LEN + 1, &r->err), -ERR_NOTFOUND);
    assert_false(blobstore_has(r->s, &id, NULL));
    assert_int_equal(r->s->ops->found(r->s, &id, LEN, &r->err), 0);
    assert_int_equal(r->s->ops->found(r->s, &id, LEN, &r->err), 0); /* twice is harmless */
    assert_true(blobstore_has(r->s, &id, NULL));
    assert_int_equal(r->s->count, 2);
    assert_int_equal(local(r, &id, true), 0);
    let_go(r, &id);
    /* While the store is down all goes through us. */
    r->f.down = true;
    none = put(r, 9);
    UNTIL(health(r).failing_since_unix_ms != 0);
    /* also before all tries have failed */
    assert_int_equal(r->s->ops->away(r->s, &none, false, 0, &url), -ERR_UNIMPLEMENTED);
    memset(&none, 5, sizeof(none));
    UNTIL(!is_led_to_put(r, &none));
}

/* What is on this machine to us is on its own to each worker. */
static void test_not_led(void **state)
{
    struct rig *r = *state;
    r->lead = NULL;
    reopen(r);
    assert_null(r->s->ops->away);
    (void)put_and_send(r, 1);
    r->lead = "no";
    reopen(r);
    assert_null(r->s->ops->away);
    r->lead = "maybe";
    r->s->ops->close(r->s);
    r->s = NULL;
    assert_int_equal(open_as(r, "s3://blobs/p/q", "me", 0), -ERR_CONFIG);
    assert_non_null(strstr(r->err.msg, "is yes or no, not 'maybe'"));
}

/* A blob that is being deleted in the store is not taken for one that is there. */
static void test_away_and_deleted(void **state)
{
    struct rig *r = *state;
    char *url;
    const struct blob_id id = put_and_send(r, 1);
    r->f.down = true;
    assert_int_equal(r->s->ops->hide(r->s, &id, &r->err), 0);
    UNTIL(health(r).failing_since_unix_ms != 0);
    assert_int_equal(r->s->ops->away(r->s, &id, true, LEN, &url), -ERR_UNIMPLEMENTED);
    /* Without a look at the store, which would not answer. */
    assert_int_equal(r->s->ops->found(r->s, &id, LEN, &r->err), -ERR_NOTFOUND);
    r->f.down = false;
    UNTIL(!stored(r, &id));
}

static void set(struct rig *r, const struct blob_id *id, uint8_t fill)
{
    uint8_t *data = mem_alloc(LEN);
    memset(data, fill, LEN);
    pthread_mutex_lock(&r->f.lock);
    fake_set(r->f.objects, key_of(id), data, LEN);
    pthread_mutex_unlock(&r->f.lock);
    mem_free(data);
}

/* One look that has no answer is no reason to send all clients through us. */
static void test_away_slow_look(void **state)
{
    struct rig *r = *state;
    char *url = NULL;
    struct blob_id id, other = {{5}};
    memset(r->data, 7, LEN);
    hash_sha256(r->data, LEN, id.sha256);
    set(r, &id, 7);
    fake_store_next(&r->f, "HEAD", FAKE_STALL, NULL);
    assert_int_equal(r->s->ops->found(r->s, &id, LEN, &r->err), -ETIMEDOUT);
    assert_int_equal(r->s->ops->away(r->s, &other, true, LEN, &url), 0);
    mem_free(url);
    assert_int_equal(r->s->ops->found(r->s, &id, LEN, &r->err), 0);
}

/* A store that tells no hash: other bytes of the same length are found out before anybody is told
 * that the blob is there, and are deleted. */
static void test_away_same_length(void **state)
{
    struct rig *r = *state;
    struct blob_id id;
    memset(r->data, 7, LEN);
    hash_sha256(r->data, LEN, id.sha256);
    set(r, &id, 8);
    assert_int_equal(r->s->ops->found(r->s, &id, LEN, &r->err), -ERR_HASH);
    assert_false(blobstore_has(r->s, &id, NULL));
    UNTIL(!stored(r, &id));
    assert_int_equal(r->s->count, 0);
    assert_int_equal(health(r).cache_bytes, 0);
    set(r, &id, 7);
    UNTIL(r->s->ops->found(r->s, &id, LEN, &r->err) == 0);
    assert_false(is_far(r, &id)); /* it was brought to be looked at, and stays */
    assert_int_equal(local(r, &id, false), 0);
    let_go(r, &id);
}

/* What is at the store never takes the place of what came through us and was not sent yet. */
static void test_away_not_ours(void **state)
{
    struct rig *r = *state;
    r->f.down = true;
    const struct blob_id id = put(r, 1);
    UNTIL(health(r).failing_since_unix_ms != 0);
    set(r, &id, 9);
    r->f.down = false;
    assert_int_equal(r->s->ops->found(r->s, &id, LEN, &r->err), 0);
    UNTIL(health(r).waiting == 0);
    pthread_mutex_lock(&r->f.lock);
    assert_memory_equal(fake_find(r->f.objects, key_of(&id), false)->data, r->data, LEN);
    pthread_mutex_unlock(&r->f.lock);
}

/* The store tells another hash than that of the name. */
static void test_away_other_bytes(void **state)
{
    struct rig *r = *state;
    struct blob_id id;
    memset(&id, 3, sizeof(id));
    fake_store_next(&r->f, "HEAD", FAKE_REPLY,
                    "HTTP/1.1 200 OK\r\nContent-Length: 100000\r\nConnection: close\r\n"
                    "x-amz-checksum-sha256: "
                    "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=\r\n\r\n");
    assert_int_equal(r->s->ops->found(r->s, &id, LEN, &r->err), -ERR_NOTFOUND);
    assert_non_null(strstr(r->f.last, "x-amz-checksum-mode: ENABLED"));
    assert_non_null(strstr(r->err.msg, "other bytes"));
    assert_false(health(r).sums);
    static char told[256];
    (void)snprintf(told, sizeof(told),
                   "HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n"
                   "x-amz-checksum-sha256: AwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwM=\r\n\r\n",
                   LEN);
    fake_store_next(&r->f, "HEAD", FAKE_REPLY, told);
    assert_int_equal(r->s->ops->found(r->s, &id, LEN, &r->err), 0);
    assert_true(health(r).sums); /* and so nothing had to be brought */
    assert_true(is_far(r, &id));
}

/* A worker that was led to the store and is lost: what it may have put there is nobody's, and goes
 * as any upload that is given up. */
static void test_promised_and_given_up(void **state)
{
    struct rig *r = *state;
    const int64_t now_s = (int64_t)(clock_wall_ms() / 1000);
    struct blob_id lost, told;
    memset(&lost, 5, sizeof(lost));
    memset(r->data, 7, LEN);
    hash_sha256(r->data, LEN, told.sha256);
    assert_true(is_led_to_put(r, &lost) && is_led_to_put(r, &lost) && is_led_to_put(r, &told));
    set(r, &lost, 5);
    set(r, &told, 7);
    assert_int_equal(r->s->ops->found(r->s, &told, LEN, &r->err), 0);
    /* For a day he may still be at it: gigabytes on a slow link take hours. */
    assert_int_equal(r->s->ops->tidy(r->s, now_s + 23 * 3600, &r->err), 0);
    assert_true(stored(r, &lost) && is_led_to_put(r, &lost));
    assert_int_equal(r->s->ops->tidy(r->s, now_s + 25 * 3600, &r->err), 0);
    UNTIL(!stored(r, &lost));
    assert_true(stored(r, &told) && blobstore_has(r->s, &told, NULL));
    assert_int_equal(r->s->count, 1);
    UNTIL(is_led_to_put(r, &lost)); /* he may come again */
}

/* What is promised counts as if it were there, until it is given up. */
static void test_quota_of_promises(void **state)
{
    struct rig *r = *state;
    struct blob_id ids[4];
    r->s->ops->close(r->s);
    assert_int_equal(open_as(r, "s3://blobs/p/q", "me", 5 * LEN / 2), 0);
    for (int i = 0; i < 4; i++)
        memset(&ids[i], 30 + i, sizeof(ids[i]));
    assert_true(is_led_to_put(r, &ids[0]) && is_led_to_put(r, &ids[1]));
    assert_false(is_led_to_put(r, &ids[2])); /* he sends it through us, which counts what it gets */
    assert_true(is_led_to_put(r, &ids[1]));  /* the same once more */
    (void)put_and_send(r, 1);
    (void)put_and_send(r, 2);
    assert_int_equal(r->s->ops->tidy(r->s, INT64_MAX, &r->err), 0);
    assert_false(is_led_to_put(r, &ids[2]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_away, begin, end),
        cmocka_unit_test_setup_teardown(test_away_and_deleted, begin, end),
        cmocka_unit_test_setup_teardown(test_not_led, begin, end),
        cmocka_unit_test_setup_teardown(test_away_other_bytes, begin, end),
        cmocka_unit_test_setup_teardown(test_away_slow_look, begin, end),
        cmocka_unit_test_setup_teardown(test_away_same_length, begin, end),
        cmocka_unit_test_setup_teardown(test_away_not_ours, begin, end),
        cmocka_unit_test_setup_teardown(test_promised_and_given_up, begin, end),
        cmocka_unit_test_setup_teardown(test_quota_of_promises, begin, end),
    };
    return cmocka_run_group_tests_name("blob_s3_away", tests, NULL, NULL);
}
