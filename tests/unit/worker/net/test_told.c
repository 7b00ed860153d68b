/* Small images as networks are told them: by hand, of any number of rows, and without enlargement.
 */
#include "kernels/device/device.h"
#include "tests/unit/ok.h"

#include <math.h>
#include <string.h>

#include "common/base/rng.h"
#include "worker/net/resize.h"
#include "worker/net/told.h"

enum { ROWS = 3, LOW = 4, SMALL = 3 * LOW * LOW, FACTOR = 2, LARGE = SMALL * FACTOR * FACTOR };

static struct device *dev;
static uint8_t low[ROWS * SMALL];
static const uint64_t streams[ROWS] = {7, 1000, 3};

static int setup(void **state)
{
    (void)state;
    for (int i = 0; i < ROWS * SMALL; i++)
        low[i] = (uint8_t)rng_at_u32(1, 2, (uint64_t)i);
    return device_open("cpu-ref", 1, &dev, NULL);
}

static int teardown(void **state)
{
    (void)state;
    device_close(dev);
    return 0;
}

/* x (count, values) of rows from `first` on. */
static void tell(int factor, float noise, int first, int count, float *x)
{
    const struct told_options opt = {
        .dev = dev, .side = LOW, .factor = factor, .rows = count, .noise = noise};
    struct told t;
    OK(told_open(&t, &opt, err));
    memcpy(t.streams, streams + first, (size_t)count * sizeof *streams);
    OK(told_run(&t, low + first * SMALL, 9, count, err));
    memcpy(x, t.d_x, (size_t)count * t.n * sizeof *x); /* the device is this CPU */
    told_close(&t);
}

/* Pixels are from -1 to 1, channel by channel. */
static float value(const uint8_t *image, int side, int i)
{
    const int c = i / (side * side), at = i % (side * side);
    return (float)image[at * 3 + c] / 127.5f - 1.0f;
}

static void test_enlarged(void **state)
{
    (void)state;
    static float x[ROWS * LARGE], clean[ROWS * LARGE], eps[LARGE];
    uint8_t large[LARGE];
    tell(FACTOR, 0.25f, 0, ROWS, x);
    tell(FACTOR, 0, 0, ROWS, clean);
    for (int r = 0; r < ROWS; r++) {
        double sum = 0, squares = 0;
        resize_up(low + r * SMALL, LOW, FACTOR, large);
        for (int i = 0; i < LARGE; i++) {
            assert_true(fabsf(clean[r * LARGE + i] - value(large, LOW * FACTOR, i)) < 1e-6f);
            eps[i] = (x[r * LARGE + i] - 0.75f * clean[r * LARGE + i]) / 0.25f;
            sum += (double)eps[i];
            squares += (double)eps[i] * (double)eps[i];
        }
        assert_true(fabs(sum / LARGE) < 0.3 && fabs(squares / LARGE - 1) < 0.4);
    }
}

static void test_rows_are_by_themselves(void **state)
{
    (void)state;
    static float all[ROWS * LARGE], one[LARGE];
    tell(FACTOR, 0.25f, 0, ROWS, all);
    for (int r = 0; r < ROWS; r++) {
        tell(FACTOR, 0.25f, r, 1, one);
        assert_memory_equal(one, all + r * LARGE, sizeof one);
    }
}

static void test_as_small(void **state)
{
    (void)state;
    static float x[ROWS * SMALL];
    tell(1, 0, 0, ROWS, x);
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < SMALL; i++)
            assert_true(fabsf(x[r * SMALL + i] - value(low + r * SMALL, LOW, i)) < 1e-6f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_enlarged),
        cmocka_unit_test(test_rows_are_by_themselves),
        cmocka_unit_test(test_as_small),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
