/* Keys and secrets on the disk. */
#include "common/net/keys.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/unit/common/net/net_test.h"

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
    assert_int_equal(unlink(cert), 0);
    assert_int_equal(keys_open(t.dir, &again, &err), 0);
    assert_memory_equal(keys_pin(again), keys_pin(t.keys), KEYS_PIN_BYTES);
    keys_free(again);
    char *away = file_join(t.dir, "away");
    assert_int_equal(rename(path, away), 0);
    assert_int_equal(keys_open(t.dir, &again, &err), -ERR_CONFIG);
    assert_non_null(strstr(err.msg, "tls-key.pem is gone"));
    assert_false(file_exists(path));
    assert_int_equal(rename(away, path), 0);
    mem_free(away);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
