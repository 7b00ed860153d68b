/* Moments in a shard: they come back, and nothing damaged is taken for them. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/rng.h"
#include "common/data/moments.h"

enum { VALUES = 4096 };

/* About what an encoder makes: values of some size, of either sign. */
static void fill(uint16_t *out, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const float x = rng_at_normal(7, 1, i);
        uint32_t bits;
        memcpy(&bits, &x, 4);
        out[i] = (uint16_t)(bits >> 16);
    }
}

static void test_comes_back(void **state)
{
    static uint16_t in[2 * VALUES], out[VALUES];
    const struct moments m = {
        .key = 0x123456789abcdef0, .values = VALUES, .height = 8, .width = 16, .sides = 2};
    struct moments got;
    struct buf b;
    buf_init(&b, 1 << 20);
    fill(in, 2 * VALUES);
    assert_int_equal(moments_encode(&m, in, &b), 0);
    assert_true(b.len < 2 * VALUES * 2 * 13 / 16); /* the high bytes pack */
    assert_true(moments_parse(b.data, b.len, &got));
    assert_true(got.key == m.key);
    assert_int_equal(got.values, VALUES);
    assert_int_equal(got.sides, 2);
    assert_int_equal(got.height, 8);
    assert_int_equal(got.width, 16);
    for (uint32_t side = 0; side < 2; side++) {
        assert_true(moments_decode(b.data, &got, side, out));
        assert_memory_equal(out, in + side * VALUES, sizeof out);
    }
    assert_false(moments_decode(b.data, &got, 2, out));
    buf_release(&b);
}

static void test_none(void **state)
{
    const struct moments m = {.key = 5, .values = VALUES, .height = 4, .width = 4};
    struct moments got;
    struct buf b;
    buf_init(&b, 1 << 20);
    assert_int_equal(moments_encode(&m, NULL, &b), 0);
    assert_true(moments_parse(b.data, b.len, &got));
    assert_int_equal(got.sides, 0);
    assert_false(moments_parse(b.data, b.len - 1, &got));
    char why[8] = "?";
    moments_why(b.data, &got, why, sizeof why);
    assert_string_equal(why, "");
    assert_int_equal(buf_append_str(&b, "cut short"), 0);
    assert_true(moments_parse(b.data, b.len, &got));
    moments_why(b.data, &got, why, sizeof why);
    assert_string_equal(why, "cut sho");
    assert_false(moments_decode(b.data, &got, 0, NULL));
    b.data[b.len - 9] = 0xff;
    moments_why(b.data, &got, why, sizeof why);
    assert_string_equal(why, "");
    buf_release(&b);
}

static void test_refused(void **state)
{
    static uint16_t in[64], out[64];
    const struct moments m = {.key = 5, .values = 64, .height = 2, .width = 4, .sides = 1};
    struct moments got, three = {.values = 64, .sides = 3};
    struct buf b;
    buf_init(&b, 1 << 20);
    fill(in, 64);
    assert_int_equal(moments_encode(&three, in, &b), -EINVAL);
    assert_int_equal(moments_encode(&m, in, &b), 0);
    for (size_t n = 0; n < b.len; n++)
        assert_false(moments_parse(b.data, n, &got));
    assert_true(moments_parse(b.data, b.len, &got));
    b.data[12] = 3; /* a height that does not fit the values */
    assert_false(moments_parse(b.data, b.len, &got));
    b.data[12] = 2;
    assert_true(moments_parse(b.data, b.len, &got));
    b.data[24] ^= 0xff; /* the frame's magic */
    assert_false(moments_decode(b.data, &got, 0, out));
    buf_release(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comes_back),
        cmocka_unit_test(test_none),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
