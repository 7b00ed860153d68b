#include "common/base/buf.h"

#include <errno.h>

#include "tests/unit/common/base/util.h"

static void grows_to_its_maximum(void **state)
{
    struct buf b;
    buf_init(&b, 100);
    assert_string_equal(buf_str(&b), "");
    for (int i = 0; i < 100; i++)
        assert_int_equal(buf_append_byte(&b, (uint8_t)('a' + i % 26)), 0);
    assert_int_equal(buf_append_byte(&b, 'x'), -ERR_LIMIT);
    assert_int_equal(buf_append(&b, "xy", 2), -ERR_LIMIT);
    assert_int_equal(buf_append(&b, NULL, SIZE_MAX), -ERR_LIMIT);
    assert_int_equal(buf_append(&b, NULL, 0), 0);
    assert_int_equal(b.len, 100);
    assert_int_equal(strlen(buf_str(&b)), 100);
    assert_int_equal(b.data[99], 'v');
    buf_release(&b);
    assert_int_equal(b.max, 100);
    assert_int_equal(buf_append_str(&b, "again"), 0);
    assert_string_equal(buf_str(&b), "again");
    buf_release(&b);
}

static void prints(void **state)
{
    struct buf b;
    buf_init(&b, 12);
    assert_int_equal(buf_printf(&b, "%s=%d", "port", 7710), 0);
    assert_int_equal(buf_printf(&b, ", %d", 77), -ERR_LIMIT);
    assert_string_equal(buf_str(&b), "port=7710"); /* as it was */
    assert_int_equal(buf_printf(&b, "%s", "xyz"), 0);
    assert_string_equal(buf_str(&b), "port=7710xyz");
    buf_release(&b);
}

static void room_is_written_and_committed(void **state)
{
    struct buf b;
    uint8_t *p;
    buf_init(&b, 8);
    assert_int_equal(buf_reserve(&b, 8, &p), 0);
    memcpy(p, "12345678", 8);
    buf_commit(&b, 5);
    assert_string_equal(buf_str(&b), "12345");
    assert_int_equal(buf_reserve(&b, 4, &p), -ERR_LIMIT);
    buf_consume(&b, 2);
    assert_string_equal(buf_str(&b), "345");
    buf_consume(&b, 0);
    buf_cut(&b, 3);
    buf_cut(&b, 2);
    assert_string_equal(buf_str(&b), "34");
    buf_consume(&b, 2);
    buf_cut(&b, 0);
    assert_int_equal(b.len, 0);
    buf_release(&b);
}

static void taken_is_the_callers(void **state)
{
    struct buf b;
    size_t n = 9;
    buf_init(&b, 64);
    uint8_t *none = buf_take(&b, &n);
    assert_int_equal(n, 0);
    assert_string_equal((char *)none, "");
    OK(buf_append_str(&b, "mine"));
    uint8_t *data = buf_take(&b, &n);
    assert_int_equal(n, 4);
    assert_string_equal((char *)data, "mine");
    assert_string_equal(buf_str(&b), "");
    OK(buf_append_str(&b, "new"));
    buf_clear(&b);
    assert_string_equal(buf_str(&b), "");
    assert_true(b.cap > 0);
    buf_release(&b);
    mem_free(none);
    mem_free(data);
}

/* Without memory nothing changes. */
static void no_memory(void **state)
{
    struct buf b;
    buf_init(&b, 1000);
    OK(buf_append_str(&b, "kept"));
    if (mem_fault_set(1)) {
        char big[500] = "";
        assert_int_equal(buf_append(&b, big, sizeof(big)), -ENOMEM);
        mem_fault_set(0);
    }
    assert_string_equal(buf_str(&b), "kept");
    buf_release(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grows_to_its_maximum),
        cmocka_unit_test(prints),
        cmocka_unit_test(room_is_written_and_committed),
        cmocka_unit_test(taken_is_the_callers),
        cmocka_unit_test(no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
