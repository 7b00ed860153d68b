/* Opening devices, their memory, and the profile. */
#include "tests/unit/kernels/guard.h"

#include <sys/resource.h>

#include "common/base/err.h"
#include "kernels/profile.h"
#include "tests/bench/kernels/floor.h"

static void opens(void **state)
{
    static const char *const names[][2] = {{"cpu", "cpu"}, {"cpu-ref", "cpu-ref"}};
    for (int i = 0; i < 2; i++) {
        struct device *dev = NULL;
        struct err err = {0};
        assert_int_equal(device_open(names[i][0], 2, &dev, &err), 0);
        assert_string_equal(dev->name, names[i][1]);
        assert_int_equal(dev->threads, i ? 1 : 2);
        assert_non_null(strstr(dev->about, "CPU"));
        device_close(dev);
    }
    device_close(NULL);
}

static void absent_devices_are_errors(void **state)
{
    static const char *const bad[][2] = {
        {"cuda:999", "is not there"},   {"cuda:", "expected cuda:N"}, {"cuda:x", "expected cuda:N"},
        {"cuda:1x", "expected cuda:N"}, {"gpu", "expected auto"},     {"", "expected auto"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct device *dev = NULL;
        struct err err = {0};
        assert_true(device_open(bad[i][0], 1, &dev, &err) < 0);
        assert_null(dev);
        assert_non_null(strstr(err.msg, bad[i][1]));
        assert_non_null(strstr(err.msg, bad[i][0]));
    }
    struct err err = {0};
    struct device *dev = NULL;
    assert_true(device_open("cpu", -7, &dev, &err) < 0);
    assert_non_null(strstr(err.msg, "-7"));
}

/* A host may have more cores than a device has use for: no reason not to start there. */
static void threads_have_a_limit(void **state)
{
    struct device *dev = NULL;
    assert_int_equal(device_open("cpu", 384, &dev, NULL), 0);
    assert_int_equal(dev->threads, 256);
    device_close(dev);
}

static uint64_t data_bytes(void)
{
    char line[256];
    unsigned long kib = 0;
    FILE *f = fopen("/proc/self/status", "r");
    assert_non_null(f);
    while (kib == 0 && fgets(line, sizeof line, f))
        (void)sscanf(line, "VmData: %lu", &kib);
    fclose(f);
    return (uint64_t)kib * 1024;
}

/* A limit counts, whatever the machine has beyond it; what a sanitizer maps may be more. */
static void host_memory(void **state)
{
    const uint64_t before = device_host_memory(), limit = data_bytes() + ((uint64_t)1 << 30);
    struct rlimit was;
    assert_true(before > 0);
    assert_int_equal(getrlimit(RLIMIT_DATA, &was), 0);
    assert_int_equal(setrlimit(RLIMIT_DATA, &(struct rlimit){limit, was.rlim_max}), 0);
    const uint64_t now = device_host_memory();
    assert_int_equal(setrlimit(RLIMIT_DATA, &was), 0);
    assert_int_equal(now, limit < before ? limit : before);
}

static void memory(void **state)
{
    struct devices *d = *state;
    struct device *dev = d->fast;
    char host[100], back[100];
    void *p;
    memset(host, 7, sizeof host);
    assert_int_equal(dev->ops->alloc(dev, sizeof host, &p, NULL), 0);
    assert_int_equal((uintptr_t)p % 64, 0);
    assert_int_equal(dev->ops->copy(dev, p, host, sizeof host, COPY_TO_DEVICE, NULL), 0);
    assert_int_equal(dev->ops->zero(dev, p, 10, NULL), 0);
    assert_int_equal(dev->ops->copy(dev, back, p, sizeof back, COPY_FROM_DEVICE, NULL), 0);
    assert_int_equal(dev->ops->sync(dev, NULL, NULL), 0);
    assert_true(back[9] == 0 && back[10] == 7 && back[99] == 7);
    dev->ops->free(dev, p);
    dev->ops->free(dev, NULL);
    struct err err = {0};
    assert_int_equal(dev->ops->alloc(dev, SIZE_MAX - 10, &p, &err), -ENOMEM);
    assert_true(err.msg[0] != 0);
    struct stream *s = (struct stream *)1;
    assert_int_equal(dev->ops->stream_new(dev, &s, NULL), 0);
    assert_null(s);
    dev->ops->stream_free(dev, s);
}

static void records_a_profile(void **state)
{
    struct devices *d = *state;
    struct device *dev = d->fast;
    struct profile prof = {0};
    float *x = guard_randn(64 * 64, DT_F32, 1), *c = guard_new(64 * 64 * 4);
    dev->profile = &prof;
    for (int i = 0; i < 3; i++)
        dev->ops->matmul(
            dev,
            &(struct matmul){.layout = MM_NT, .m = 64, .n = 64, .k = 64, .c = c, .a = x, .b = x},
            NULL);
    dev->ops->fill(dev, x, 2, 64 * 64, NULL);
    dev->profile = NULL;
    dev->ops->fill(dev, x, 2, 64 * 64, NULL);
    assert_int_equal(prof.n, 2);
    assert_string_equal(prof.rec[0].op, "matmul");
    assert_int_equal(prof.rec[0].calls, 3);
    assert_int_equal(prof.rec[1].calls, 1);
    assert_true(profile_seconds(&prof, "matmul") > 0);
    assert_true(profile_seconds(&prof, NULL) > profile_seconds(&prof, "matmul"));
    double floor_s = 0;
    assert_int_equal(profile_matmul_floor(&prof, 1, &floor_s, NULL), 0);
    assert_true(floor_s > 0 && floor_s < 1);
    guard_check_all();
}

static void profile_is_bounded(void **state)
{
    struct profile *prof = calloc(1, sizeof *prof);
    assert_non_null(prof);
    for (int64_t i = 0; i < 2 * PROFILE_MAX; i++) {
        const int64_t dims[4] = {i};
        profile_add(prof, "op", dims, 1.0);
    }
    assert_int_equal(prof->n, PROFILE_MAX);
    assert_string_equal(prof->rec[PROFILE_MAX - 1].op, "other");
    assert_true(profile_seconds(prof, NULL) == 2 * PROFILE_MAX);
    free(prof);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opens),
        cmocka_unit_test(absent_devices_are_errors),
        cmocka_unit_test(threads_have_a_limit),
        cmocka_unit_test(host_memory),
        cmocka_unit_test(memory),
        cmocka_unit_test(records_a_profile),
        cmocka_unit_test(profile_is_bounded),
    };
    return cmocka_run_group_tests(tests, devices_setup, devices_teardown);
}
