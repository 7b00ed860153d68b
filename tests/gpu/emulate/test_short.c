/* A card, and a host, that is short of memory for a while: no call takes that for a broken card,
 * nor for a reason to go on more slowly for ever. */
#include "tests/unit/kernels/guard.h"

#include "tests/gpu/emulate/record.h"

enum { SIDE = 64, MIB = 1 << 20, PLENTY = 1 << 30 };

static void products_wait_for_memory(void **state)
{
    struct devices d;
    struct matmul mm = {.m = SIDE, .n = SIDE, .k = SIDE, .dt = DT_BF16, .c_dt = DT_BF16};
    assert_int_equal(device_open("cpu-ref", 0, &d.ref, NULL), 0);
    assert_int_equal(device_open("cuda:0", 0, &d.fast, NULL), 0);
    mm.a = guard_randn(SIDE * SIDE, DT_BF16, 1);
    mm.b = guard_randn(SIDE * SIDE, DT_BF16, 1);
    void *want = mm.c = guard_new(SIDE * SIDE * 2);
    assert_int_equal(d.ref->ops->matmul(d.ref, &mm, NULL), 0);
    void *got = mm.c = guard_new(SIDE * SIDE * 2);
    emu_refuse(16 * MIB); /* less than the library's working memory */
    for (int i = 0; i < 2; i++)
        assert_int_equal(d.fast->ops->matmul(d.fast, &mm, NULL), -ENOMEM);
    emu_refuse(PLENTY);
    assert_int_equal(d.fast->ops->matmul(d.fast, &mm, NULL), 0);
    assert_int_equal(d.fast->ops->sync(d.fast, NULL, NULL), 0);
    guard_close("c", got, want, SIDE * SIDE, DT_BF16, 0.02f, 0.01f);
    guard_check_all();
    device_close(d.ref);
    device_close(d.fast);
}

static void copies_wait_for_memory(void **state)
{
    struct device *dev;
    void *there;
    char here[256] = "what is sent", back[256] = "";
    assert_int_equal(device_open("cuda:0", 0, &dev, NULL), 0);
    assert_int_equal(dev->ops->alloc(dev, sizeof here, &there, NULL), 0);
    for (int i = 0; i < 2; i++) {
        emu_refuse(i ? PLENTY : MIB);
        assert_int_equal(dev->ops->copy(dev, there, here, sizeof here, COPY_TO_DEVICE, NULL),
                         i ? 0 : -ENOMEM);
        assert_int_equal(dev->ops->copy(dev, back, there, sizeof here, COPY_FROM_DEVICE, NULL),
                         i ? 0 : -ENOMEM);
        assert_int_equal(dev->ops->sync(dev, NULL, NULL), 0);
    }
    assert_string_equal(back, here);
    dev->ops->free(dev, there);
    device_close(dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(products_wait_for_memory),
                                       cmocka_unit_test(copies_wait_for_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
