/* Tickets: signed for one blob, one method and a time. */
#include "common/net/ticket.h"

#include "tests/unit/common/net/net_test.h"

static void test_ticket(void **state)
{
    uint8_t key[TICKET_KEY_BYTES] = {1}, other_key[TICKET_KEY_BYTES] = {2};
    struct ticket t = {.method = TICKET_PUT, .max_bytes = 12345, .expires_s = 1000, .holder = 77},
                  got;
    char path[TICKET_PATH_MAX];
    struct err err = {0};
    memset(t.sha256, 0xab, 32);
    ticket_path(key, &t, path);
    assert_true(str_starts(path, "/v1/blobs/abababab"));
    char *query = strchr(path, '?') + 1;
    assert_int_equal(ticket_check(key, TICKET_PUT, t.sha256, query, 999, &got, &err), 0);
    assert_int_equal(got.max_bytes, 12345);
    assert_int_equal(got.holder, 77);
    assert_int_equal(ticket_check(key, TICKET_PUT, t.sha256, query, 1000, &got, &err), -ERR_AUTH);
    assert_non_null(strstr(err.msg, "expired"));
    assert_int_equal(ticket_check(key, TICKET_GET, t.sha256, query, 1, &got, &err), -ERR_AUTH);
    assert_int_equal(ticket_check(other_key, TICKET_PUT, t.sha256, query, 1, &got, &err),
                     -ERR_AUTH);
    t.expires_s = 1 + TICKET_LIFE_S;
    ticket_path(key, &t, path);
    assert_int_equal(ticket_check(key, TICKET_PUT, t.sha256, query, 1, &got, &err), 0);
    assert_int_equal(ticket_check(key, TICKET_PUT, t.sha256, query, 0, &got, &err), -ERR_AUTH);
    assert_non_null(strstr(err.msg, "started")); /* the clock begins anew */
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

/* The clock begins anew with a boot: an old ticket may be in time again, but its key is gone. */
static void test_boots(void **state)
{
    static const char *const boots[] = {"6d0f", "6d10"};
    const uint8_t secret[TICKET_KEY_BYTES] = {1}, of_another[TICKET_KEY_BYTES] = {2};
    const struct ticket t = {.method = TICKET_GET, .expires_s = 1000, .holder = 77};
    uint8_t key[TICKET_KEY_BYTES];
    char path[TICKET_PATH_MAX];
    struct ticket got;
    struct err err = {0};
    ticket_key(secret, boots[0], key);
    ticket_path(key, &t, path);
    const char *query = strchr(path, '?') + 1;
    ticket_key(secret, boots[0], key); /* another process of this boot */
    assert_int_equal(ticket_check(key, TICKET_GET, t.sha256, query, 999, &got, &err), 0);
    ticket_key(secret, boots[1], key);
    assert_int_equal(ticket_check(key, TICKET_GET, t.sha256, query, 999, &got, &err), -ERR_AUTH);
    assert_non_null(strstr(err.msg, "machine was started anew"));
    ticket_key(of_another, boots[0], key);
    assert_int_equal(ticket_check(key, TICKET_GET, t.sha256, query, 999, &got, &err), -ERR_AUTH);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ticket),
        cmocka_unit_test(test_boots),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
