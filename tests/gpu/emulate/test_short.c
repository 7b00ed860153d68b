/* A card, and a host, that is short of memory for a while: no call takes that for a broken card,
 * nor for a reason to go on more slowly for ever.  And a card that does not open, beside one that
 * does. */
#include "tests/unit/kernels/guard.h"

#include <cuda_runtime_api.h>
#include <unistd.h>

#include "kernels/cuda/ways.h"
#include "tests/gpu/emulate/record.h"

enum { SIDE = 64, MIB = 1 << 20, LITTLE = 48 * MIB, PLENTY = 1 << 30 };

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

/* Of a product that cuBLASLt had no memory for, its next call is the library's, not our own. */
static void products_wait_for_the_library(void **state)
{
    struct device *dev;
    struct graph *g;
    struct matmul mm = {.m = SIDE, .n = SIDE, .k = SIDE, .dt = DT_BF16, .c_dt = DT_BF16};
    mm.a = guard_randn(SIDE * SIDE, DT_BF16, 1);
    mm.b = guard_randn(SIDE * SIDE, DT_BF16, 1);
    mm.c = guard_new(SIDE * SIDE * 2);
    assert_int_equal(device_open("cuda:0", 0, &dev, NULL), 0);
    for (int timed = 0; timed < 2; timed++) {
        setenv("SKERRY_EMULATE_LT", "full", 1);
        emu_refuse(LITTLE);
        assert_int_equal(dev->ops->matmul(dev, &mm, NULL), -ENOMEM);
        emu_refuse(PLENTY);
        unsetenv("SKERRY_EMULATE_LT");
        assert_int_equal(dev->ops->matmul(dev, &mm, NULL), 0);
    }
    struct stream *s;
    assert_int_equal(dev->ops->stream_new(dev, &s, NULL), 0);
    assert_int_equal(dev->ops->matmul(dev, &mm, s), 0);
    emu_refuse_graphs(1);
    for (int refused = 1; refused >= 0; refused--) {
        assert_int_equal(dev->ops->graph_begin(dev, s, NULL), 0);
        assert_int_equal(dev->ops->matmul(dev, &mm, s), 0);
        assert_int_equal(dev->ops->graph_end(dev, s, &g, NULL), refused ? -ENOMEM : 0);
    }
    emu_refuse_launches(cudaErrorMemoryAllocation);
    for (int i = 0; i < 2; i++)
        assert_int_equal(dev->ops->graph_launch(dev, g, s), -ENOMEM);
    emu_refuse_launches(0);
    assert_int_equal(dev->ops->graph_launch(dev, g, s), 0);
    assert_int_equal(emu_works(), 1);
    assert_int_equal(dev->ops->sync(dev, s, NULL), 0);
    dev->ops->graph_free(dev, g);
    dev->ops->stream_free(dev, s);
    guard_check_all();
    device_close(dev);
}

/* A product that has no memory to be recorded spoils this recording, and not the card. */
static void recordings_wait_for_memory(void **state)
{
    struct device *dev;
    struct graph *g;
    struct matmul mm = {.m = SIDE, .n = SIDE, .k = SIDE, .dt = DT_BF16, .c_dt = DT_BF16};
    mm.a = guard_randn(SIDE * SIDE, DT_BF16, 1);
    mm.b = guard_randn(SIDE * SIDE, DT_BF16, 1);
    mm.c = guard_new(SIDE * SIDE * 2);
    assert_int_equal(device_open("cuda:0", 0, &dev, NULL), 0);
    assert_int_equal(dev->ops->matmul(dev, &mm, NULL), 0);
    setenv("SKERRY_EMULATE_LT", "full", 1);
    emu_refuse(LITTLE);
    assert_int_equal(dev->ops->graph_begin(dev, NULL, NULL), 0);
    assert_int_equal(dev->ops->matmul(dev, &mm, NULL), -EBUSY);
    assert_int_equal(dev->ops->graph_end(dev, NULL, &g, NULL), -ENOMEM);
    assert_null(g);
    emu_refuse(PLENTY);
    unsetenv("SKERRY_EMULATE_LT");
    assert_int_equal(dev->ops->matmul(dev, &mm, NULL), 0);
    assert_int_equal(dev->ops->sync(dev, NULL, NULL), 0);
    guard_check_all();
    device_close(dev);
}

static void launches_wait_for_memory(void **state)
{
    struct device *dev;
    float *x = guard_new(SIDE * sizeof *x);
    assert_int_equal(device_open("cuda:0", 0, &dev, NULL), 0);
    emu_refuse_launches(cudaErrorMemoryAllocation);
    for (int i = 0; i < 2; i++)
        assert_int_equal(dev->ops->fill(dev, x, 1, SIDE, NULL), -ENOMEM);
    emu_refuse_launches(0);
    assert_int_equal(dev->ops->fill(dev, x, 1, SIDE, NULL), 0);
    assert_int_equal(dev->ops->sync(dev, NULL, NULL), 0);
    assert_true(x[0] == 1 && x[SIDE - 1] == 1);
    guard_check_all();
    device_close(dev);
}

/* Of a card that broke the log has the reason, once, whatever its operations return. */
static void a_broken_card_says_why(void **state)
{
    struct device *dev;
    char text[1024];
    float *x = guard_new(SIDE * sizeof *x);
    FILE *file = tmpfile();
    const int real = dup(STDERR_FILENO);
    assert_int_equal(device_open("cuda:0", 0, &dev, NULL), 0);
    emu_refuse_launches(cudaErrorNoKernelImageForDevice);
    assert_true(file != NULL && real >= 0 && dup2(fileno(file), STDERR_FILENO) >= 0);
    const int first = dev->ops->fill(dev, x, 1, SIDE, NULL);
    const int second = dev->ops->fill(dev, x, 1, SIDE, NULL);
    assert_true(dup2(real, STDERR_FILENO) >= 0);
    close(real);
    rewind(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    emu_refuse_launches(cudaSuccess);
    assert_int_equal(first, -ERR_DEVICE);
    assert_int_equal(second, -ERR_DEVICE);
    const char *found = strstr(text, "cuda:0 failed: an emulated error (cudaErrorEmulated)\n");
    assert_non_null(found);
    assert_null(strchr(strchr(found, '\n') + 1, '\n'));
    guard_check_all();
    device_close(dev);
}

static void the_next_card_is_not_blamed(void **state)
{
    struct device *dev;
    float *x = guard_new(SIDE * sizeof *x);
    emu_second_card(1);
    assert_int_equal(device_open("auto", 0, &dev, NULL), 0);
    assert_string_equal(dev->name, "cuda:1");
    assert_int_equal(dev->ops->fill(dev, x, 1, SIDE, NULL), 0);
    assert_int_equal(dev->ops->sync(dev, NULL, NULL), 0);
    device_close(dev);
    emu_second_card(0);
    guard_check_all();
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

/* What is kept on disk about products: the file never fills up for good. */
static void what_was_timed_is_kept(void **state)
{
    enum { MANY = 4096, SHARED = MANY / 2 + 1 };
    struct ways *w[2];
    int key = -1;
    for (int i = 0; i < 2; i++) /* two programs that start together */
        assert_non_null(w[i] = ways_open("a card", 1, 1));
    for (key = 0; key < SHARED; key++)
        for (int i = 0; i < 2; i++)
            ways_add(w[i], &key, sizeof key, i, "algo", 4);
    ways_close(w[0]);
    ways_close(w[1]);
    w[0] = ways_open("a card", 1, 1);
    for (key = 0; key < SHARED; key++)
        assert_int_equal(ways_find(w[0], &key, sizeof key)->way, 1);
    for (; key <= MANY; key++)
        ways_add(w[0], &key, sizeof key, 2, "algo", 4);
    ways_close(w[0]);
    w[0] = ways_open("a card", 1, 1);
    key = MANY;
    assert_non_null(ways_find(w[0], &key, sizeof key));
    key = 0;
    assert_null(ways_find(w[0], &key, sizeof key)); /* begun anew */
    ways_close(w[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_wait_for_memory),
        cmocka_unit_test(products_wait_for_the_library),
        cmocka_unit_test(recordings_wait_for_memory),
        cmocka_unit_test(launches_wait_for_memory),
        cmocka_unit_test(copies_wait_for_memory),
        cmocka_unit_test(a_broken_card_says_why),
        cmocka_unit_test(the_next_card_is_not_blamed),
        cmocka_unit_test(what_was_timed_is_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
