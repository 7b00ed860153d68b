/* The keys of a data directory as a text, and back: all of them or a sentence. */
#include "coordinator/ship/ship_keys.h"

#include <setjmp.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "common/base/file.h"
#include "common/net/keys.h"

static void there_and_back(void **state)
{
    static const char *const secrets[] = {"cluster", "worker", "user", "ticket"};
    char dir[] = "/tmp/skerry-ship-XXXXXX";
    uint8_t was[KEYS_SECRET_BYTES], is[KEYS_SECRET_BYTES];
    struct keys *keys = NULL, *again = NULL;
    struct err err = {0};
    struct buf text;
    struct stat st;
    assert_non_null(mkdtemp(dir));
    char *from = file_join(dir, "from"), *to = file_join(dir, "to");
    assert_int_equal(file_mkdirs(from, 0700, NULL), 0);
    assert_int_equal(file_mkdirs(to, 0700, NULL), 0);
    buf_init(&text, SHIP_KEYS_MAX);
    assert_true(ship_keys_read(from, &text, &err) < 0); /* there are none */
    buf_clear(&text);
    assert_int_equal(keys_open(from, &keys, &err), 0);
    for (int i = 0; i < 4; i++)
        assert_int_equal(keys_secret(from, secrets[i], was, &err), 0);
    assert_int_equal(ship_keys_read(from, &text, &err), 0);
    assert_int_equal(ship_keys_write(to, buf_str(&text), &err), 0);
    assert_int_equal(keys_open(to, &again, &err), 0);
    assert_memory_equal(keys_pin(keys), keys_pin(again), KEYS_PIN_BYTES);
    assert_int_equal(keys_secret(to, "ticket", is, &err), 0);
    assert_memory_equal(is, was, sizeof(is));
    char *secret = file_join(to, "user.secret");
    assert_int_equal(stat(secret, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    char *damaged = strstr((char *)text.data, "worker.secret ");
    damaged[20] = 'x';
    assert_int_equal(ship_keys_write(to, buf_str(&text), &err), -ERR_FORMAT);
    assert_non_null(strstr(err.msg, "worker.secret is damaged"));
    damaged[0] = 'v';
    assert_int_equal(ship_keys_write(to, buf_str(&text), &err), -ERR_FORMAT);
    assert_non_null(strstr(err.msg, "lack worker.secret"));
    keys_free(keys);
    keys_free(again);
    buf_release(&text);
    mem_free(secret);
    mem_free(from);
    mem_free(to);
    assert_int_equal(file_remove_tree(dir, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(there_and_back)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
