/* The measured rate of products: right to a factor, kept for the same devices, the sum of an
 * island's. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/worker/tiny.h"

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/str.h"
#include "kernels/device/device.h"
#include "worker/train/island.h"
#include "worker/train/peak.h"

static char dir[] = "/tmp/skerry-peak-XXXXXX";

static int setup(void **state)
{
    return mkdtemp(dir) ? 0 : -1;
}

static int teardown(void **state)
{
    return file_remove_tree(dir, NULL);
}

static struct island *island(const char *names)
{
    struct island *is;
    OK(island_open(names, 2, &is, err));
    return is;
}

/* A clock that stands still but for the products: a device of a known rate. */
struct slow {
    struct device *cpu, dev;
    struct kernel_ops ops;
    int64_t side_max, side;
    unsigned calls;
};
static struct slow slow;

static int slow_matmul(struct device *dev, const struct matmul *mm, struct stream *s)
{
    slow.calls++;
    slow.side = mm->m;
    assert_true(mm->m == mm->n && mm->n == mm->k && mm->dt == DT_BF16);
    assert_true(dtype_get(mm->a, DT_BF16, 0) != 0.0f);
    assert_true(dtype_get(mm->a, DT_BF16, (size_t)(mm->m * mm->m - 1)) != 0.0f);
    assert_true(dtype_get(mm->b, DT_BF16, (size_t)(mm->m * mm->m - 1)) != 0.0f);
    /* 1e11 FLOP/s */
    uint64_t ns = (uint64_t)(2.0 * (double)mm->m * (double)mm->m * (double)mm->m / 100);
    for (uint64_t until = clock_now_ns() + ns; clock_now_ns() < until;)
        ;
    return 0;
}

static int slow_alloc(struct device *dev, size_t bytes, void **ret, struct err *err)
{
    if (bytes > (size_t)(slow.side_max * slow.side_max) * sizeof(bf16))
        return err_set(err, -ENOMEM, "too much");
    return slow.cpu->ops->alloc(slow.cpu, bytes, ret, err);
}

static double measured(int64_t side_max, double seconds)
{
    double rate = -1;
    OK(device_open("cpu", 1, &slow.cpu, err));
    slow.dev = *slow.cpu;
    slow.ops = *slow.cpu->ops;
    slow.ops.matmul = slow_matmul;
    slow.ops.alloc = slow_alloc;
    slow.dev.ops = &slow.ops;
    slow.side_max = side_max;
    slow.calls = 0;
    OK(peak_measure(&slow.dev, DT_BF16, seconds, &rate, err));
    device_close(slow.cpu);
    return rate;
}

/* Never more than the device can do; the best of several is about that. */
static void rate_of_a_known_device(void **state)
{
    double rate = measured(100000, 0.02);
    assert_true(rate <= 1.0001e11 && rate > 0.02e11);
    assert_true(slow.side >= 256);
    rate = measured(300, 0.02); /* memory for no more than the smallest */
    assert_true(rate <= 1.0001e11 && rate > 0.02e11);
    assert_int_equal(slow.side, 256);
    assert_true(slow.calls >= 8); /* the best of several */
}

static void no_memory(void **state)
{
    struct err e = {0};
    double rate = -1;
    slow.side_max = 100;
    OK(device_open("cpu", 1, &slow.cpu, err));
    slow.dev = *slow.cpu;
    slow.ops = *slow.cpu->ops;
    slow.ops.alloc = slow_alloc;
    slow.dev.ops = &slow.ops;
    assert_int_equal(peak_measure(&slow.dev, DT_F32, 0.01, &rate, &e), -ENOMEM);
    assert_true(rate == 0);
    device_close(slow.cpu);
}

static void kept(void **state)
{
    struct island *one = island("cpu"), *two = island("cpu-ref,cpu-ref");
    double first = 0, again = 0, other = 0;
    char *path = file_join(dir, "peak-f32"), *line;
    char who[256];
    struct buf text;
    OK(peak_get(one, DT_F32, dir, &first, err));
    assert_true(first > 1e6);
    OK(peak_get(one, DT_F32, dir, &again, err));
    assert_true(again > first * 0.99999 && again < first * 1.00001); /* as it was written */

    island_text(one, who, sizeof who);
    line = str_printf("%s\n1.25e13\n", who);
    OK(file_write_atomic(path, line, strlen(line), 0644, err));
    OK(peak_get(one, DT_F32, dir, &again, err));
    assert_true(again == 1.25e13);
    mem_free(line);
    peak_raise(one, DT_F32, dir, 1e13); /* training was slower, and then faster */
    OK(peak_get(one, DT_F32, dir, &again, err));
    assert_true(again == 1.25e13);
    peak_raise(one, DT_F32, dir, 1.5e13);
    OK(peak_get(one, DT_F32, dir, &again, err));
    assert_true(again == 1.5e13);

    OK(peak_get(two, DT_F32, dir, &other, err)); /* other devices are measured */
    assert_true(other > 0 && other < 1e13);
    OK(file_read(path, 512, &text, err));
    island_text(two, who, sizeof who);
    assert_int_equal(strncmp(buf_str(&text), who, strlen(who)), 0);
    buf_release(&text);

    static const char *const bad[] = {"", "x", "\n", "\n-3\n", "\nnan\n", "\ninf\n", "\n0\n"};
    island_text(one, who, sizeof who);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        line = str_printf("%s%s", who, bad[i]);
        OK(file_write_atomic(path, line, strlen(line), 0644, err));
        OK(peak_get(one, DT_F32, dir, &again, err));
        assert_true(again > 1e6 && again < 1e16);
        mem_free(line);
    }
    mem_free(path);
    island_close(one);
    island_close(two);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rate_of_a_known_device),
        cmocka_unit_test(no_memory),
        cmocka_unit_test(kept),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
