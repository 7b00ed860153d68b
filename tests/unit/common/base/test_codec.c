/* The table of codecs: names both ways, and what they need. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>

#include "common/base/codec.h"

static void test_names(void **state)
{
    enum codec c = CODEC_F32;
    for (int i = 0; i < CODEC_COUNT; i++) {
        assert_string_equal(codec_name((enum codec)i), codec_names[i]);
        assert_int_equal(codec_parse(codec_names[i], &c), 0);
        assert_int_equal(c, i);
    }
    assert_null(codec_names[CODEC_COUNT]);
    assert_int_equal(codec_parse("fp4", &c), -EINVAL);
    assert_int_equal(c, CODEC_COUNT - 1);
    assert_string_equal(codec_name((enum codec)77), "?");
}

static void test_sizes(void **state)
{
    static const struct {
        enum codec c;
        size_t n, bytes, scales;
    } cases[] = {
        {CODEC_F32, 257, 1028, 0}, {CODEC_BF16, 257, 514, 0}, {CODEC_INT8, 256, 256, 1},
        {CODEC_INT8, 257, 257, 2}, {CODEC_E3M0, 256, 128, 1}, {CODEC_E3M0, 257, 129, 2},
        {CODEC_E3M0, 1, 1, 1},     {CODEC_E3M0, 0, 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(codec_payload_bytes(cases[i].c, cases[i].n), cases[i].bytes);
        assert_int_equal(codec_scales(cases[i].c, cases[i].n), cases[i].scales);
    }
    assert_true(codec_is_packed(CODEC_E3M0));
    assert_false(codec_is_packed(CODEC_INT8));
}

/* What a parameter costs on the wire, scales included. */
static void test_cost(void **state)
{
    const size_t n = 100000000;
    assert_true(codec_bytes(CODEC_E3M0, n) <= n * 51 / 100);
    assert_true(codec_bytes(CODEC_INT8, n) <= n * 101 / 100);
    assert_int_equal(codec_bytes(CODEC_INT8, 257), 257 + 2 * 2);
    assert_int_equal(codec_bytes(CODEC_F32, 257), 4 * 257);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_cost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
