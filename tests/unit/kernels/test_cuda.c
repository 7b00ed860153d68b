/* What a person meets on a machine without a card, and how libraries are found. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/err.h"
#include "kernels/device/device.h"

#if HAVE_CUDA
#include "kernels/cuda/lib/lib.h"
#endif

static bool card(void)
{
    return HAVE_CUDA && access("/dev/nvidiactl", F_OK) == 0;
}

/* By name: the device, or one sentence that says what there is instead. */
static void asked_for_by_name(void **state)
{
    struct device *dev = NULL;
    struct err err = {0};
    int rc = device_open("cuda:0", 0, &dev, &err);
    if (rc == 0) {
        assert_true(card());
        assert_string_equal(dev->name, "cuda:0");
        device_close(dev);
        return;
    }
    assert_int_equal(rc, -ERR_DEVICE);
    assert_null(dev);
    assert_non_null(strstr(err.msg, "cuda:0"));
    if (!card()) {
        const char *what = HAVE_CUDA ? "no NVIDIA driver is loaded" : "built without CUDA";
        assert_non_null(strstr(err.msg, what));
        assert_non_null(strstr(err.msg, "use cpu or auto"));
    }
}

/* The runtime itself, asked although there is no driver, reports and does not abort. */
static void runtime_without_driver(void **state)
{
    struct device *dev = NULL;
    struct err err = {0};
    setenv("SKERRY_CUDA_PROBE", "1", 1);
    int rc = device_open("cuda:1000", 0, &dev, &err);
    unsetenv("SKERRY_CUDA_PROBE");
    assert_int_equal(rc, -ERR_DEVICE);
    assert_non_null(strstr(err.msg, "cuda:1000"));
    assert_non_null(strstr(err.msg, "is not there"));
}

static void auto_always_opens(void **state)
{
    struct device *dev = NULL;
    assert_int_equal(device_open("auto", 2, &dev, NULL), 0);
    if (!card())
        assert_string_equal(dev->name, "cpu");
    device_close(dev);
}

/* Where there seems to be a card, it is not passed over without a word. */
static void auto_says_why(void **state)
{
    struct device *dev = NULL;
    char text[1024];
    FILE *file = tmpfile();
    const int real = dup(STDERR_FILENO);
    setenv("SKERRY_CUDA_PROBE", "1", 1);
    assert_true(file != NULL && real >= 0 && dup2(fileno(file), STDERR_FILENO) >= 0);
    const int rc = device_open("auto", 2, &dev, NULL);
    assert_true(dup2(real, STDERR_FILENO) >= 0);
    unsetenv("SKERRY_CUDA_PROBE");
    close(real);
    rewind(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    assert_int_equal(rc, 0);
    if (strcmp(dev->name, "cpu") == 0) {
        assert_non_null(strstr(text, "a card is there and not used: "));
        assert_non_null(strstr(text, HAVE_CUDA ? "NVIDIA driver" : "built without CUDA"));
    }
    device_close(dev);
}

#if HAVE_CUDA
static void libraries(void **state)
{
    static const char *const absent[] = {"libnot-there.so.9", NULL};
    static const char *const present[] = {"libnot-there.so.9", "libc.so.6", NULL};
    static const char *const good[] = {"strlen", "strcmp", NULL};
    static const char *const bad[] = {"strlen", "no_such_symbol", NULL};
    void *table[2] = {NULL, NULL};
    struct err err = {0};
    assert_int_equal(lib_open(&(struct lib){"a library", absent, good}, table, &err), -ERR_DEVICE);
    assert_non_null(strstr(err.msg, "libnot-there.so.9"));
    assert_non_null(strstr(err.msg, "a library is needed and not found"));
    assert_int_equal(lib_open(&(struct lib){"libc", present, bad}, table, &err), -ERR_DEVICE);
    assert_non_null(strstr(err.msg, "no_such_symbol"));
    assert_int_equal(lib_open(&(struct lib){"libc", present, good}, table, &err), 0);
    assert_non_null(table[0]);
    assert_non_null(table[1]);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(asked_for_by_name),
        cmocka_unit_test(runtime_without_driver),
        cmocka_unit_test(auto_always_opens),
        cmocka_unit_test(auto_says_why),
#if HAVE_CUDA
        cmocka_unit_test(libraries),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
