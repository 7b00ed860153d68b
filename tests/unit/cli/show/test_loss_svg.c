#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "cli/show/loss_svg.h"
#include "common/base/buf.h"
#include "common/base/err.h"

static int count(const char *text, const char *what)
{
    int n = 0;
    for (; (text = strstr(text, what)); text += strlen(what))
        n++;
    return n;
}

static void draws_replicas_mean_and_held_out(void **state)
{
    struct loss_point points[64];
    struct buf out;

    buf_init(&out, 1 << 20);
    for (int i = 0; i < 60; i++)
        points[i] = (struct loss_point){i / 2, 1.0 / (1 + i), 0, i % 2};
    for (int i = 60; i < 64; i++)
        points[i] = (struct loss_point){i - 40, 0.2, 0, -1};
    assert_int_equal(loss_svg(points, 64, "t", &out), 0);
    assert_int_equal(count(buf_str(&out), "class=\"r\" d=\"M"), 2);
    assert_int_equal(count(buf_str(&out), "class=\"m\" d=\"M"), 1);
    assert_int_equal(count(buf_str(&out), "<circle"), 4);
    assert_null(strstr(buf_str(&out), "nan"));
    buf_release(&out);
}

static void draws_a_line_for_each_path_in_its_colour(void **state)
{
    struct loss_point points[17 * 8];
    struct buf out;

    buf_init(&out, 1 << 20);
    for (int i = 0; i < 16 * 8; i++) /* two replicas each: one line */
        points[i] = (struct loss_point){i % 8, 1.0 + 0.1 * (i / 8), i / 8, i % 2};
    for (int i = 16 * 8; i < 17 * 8; i++)
        points[i] = (struct loss_point){7, 2, i % 8, -1};
    assert_int_equal(loss_svg(points, 17 * 8, "t", &out), 0);
    assert_int_equal(count(buf_str(&out), "class=\"r\" style=\"stroke:hsl("), 16);
    assert_int_equal(count(buf_str(&out), "class=\"m\" d=\"M"), 1);
    assert_int_equal(count(buf_str(&out), "<tspan"), 10); /* the legend is bounded */
    assert_non_null(strstr(buf_str(&out), "and 6 more paths"));
    assert_non_null(strstr(buf_str(&out), "path 3: held-out loss 2.0"));
    buf_release(&out);
}

static void survives_what_cannot_be_drawn(void **state)
{
    const struct loss_point odd[] = {
        {0, NAN, 0, 0}, {1, INFINITY, 0, 0}, {2, 0, 0, 0}, {3, -1, 0, 0}};
    const struct loss_point flat[] = {{5, 0.5, 0, 0}, {5, 0.5, 0, 0}};
    struct buf out;

    buf_init(&out, 1 << 20);
    assert_int_equal(loss_svg(odd, 4, "t", &out), 0);
    assert_non_null(strstr(buf_str(&out), "no loss was reported yet"));
    buf_clear(&out);
    assert_int_equal(loss_svg(NULL, 0, "t", &out), 0);
    assert_non_null(strstr(buf_str(&out), "</svg>"));
    buf_clear(&out);
    assert_int_equal(loss_svg(flat, 2, "t", &out), 0);
    assert_null(strstr(buf_str(&out), "nan"));
    assert_null(strstr(buf_str(&out), "inf"));
    buf_release(&out);
}

static void respects_the_limit(void **state)
{
    const struct loss_point two[] = {{0, 1, 0, 0}, {1, 0.5, 0, 0}};
    struct buf out;

    buf_init(&out, 100);
    assert_int_equal(loss_svg(two, 2, "t", &out), -ERR_LIMIT);
    buf_release(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draws_replicas_mean_and_held_out),
        cmocka_unit_test(draws_a_line_for_each_path_in_its_colour),
        cmocka_unit_test(survives_what_cannot_be_drawn),
        cmocka_unit_test(respects_the_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
