/* Plans: alignment, overlays, one allocation. */
#include "kernels/device/device.h"
#include "tests/unit/worker/tiny.h"

#include <errno.h>
#include <string.h>

#include "worker/net/arena.h"

static void test_overlay(void **state)
{
    struct device *dev = NULL;
    struct arena a = {0};
    char *first, *left, *right, *last;
    OK(device_open("cpu-ref", 1, &dev, err));
    arena_add(&a, &first, 1);
    const uint64_t mark = arena_mark(&a);
    arena_add(&a, &left, 1000);
    arena_reset(&a, mark); /* right lives at another time than left */
    arena_add(&a, &right, 100);
    arena_add(&a, &last, 64);
    assert_int_equal(arena_bytes(&a), 64 + 1024);

    OK(arena_alloc(&a, dev, err));
    assert_int_equal((uintptr_t)first % ARENA_ALIGN, 0);
    assert_ptr_equal(left, first + 64);
    assert_ptr_equal(right, left);
    assert_ptr_equal(last, right + 128);
    left[999] = 1; /* asan sees an arena that is too small */
    last[63] = 1;
    arena_free(&a, dev);
    assert_null(a.base);
    arena_free(&a, dev); /* again is harmless */
    device_close(dev);
}

static int no_memory(struct device *dev, size_t bytes, void **ret, struct err *err)
{
    return -ENOMEM;
}

static void test_too_large(void **state)
{
    struct err err = {0};
    const struct kernel_ops ops = {.alloc = no_memory};
    struct device full = {.ops = &ops, .name = "full"}, *dev = &full;
    struct arena a = {0};
    void *p = NULL;
    arena_add(&a, &p, (uint64_t)1 << 40);
    assert_int_equal(arena_alloc(&a, dev, &err), -ENOMEM);
    assert_non_null(strstr(err.msg, "train.batch"));
    assert_null(p);
    arena_free(&a, dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_overlay),
        cmocka_unit_test(test_too_large),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
