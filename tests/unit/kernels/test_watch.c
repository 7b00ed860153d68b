/* What is known of a device: the CPU from /proc, a card through a stand-in for NVML. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "kernels/kernels.h"
#include "kernels/device/watch.h"
#include "tests/unit/kernels/fake_nvml.h"

#if HAVE_CUDA
#include "kernels/cuda/nvml.h"
#endif

#define BLOCK (64u << 20)

static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Busy for as long as it takes to be seen, whatever else the machine does. */
static void burn(double seconds)
{
    volatile unsigned x = 1;
    for (double until = cpu_seconds() + seconds; cpu_seconds() < until;)
        for (int i = 0; i < 10000; i++)
            x = x * 1664525u + 1013904223u;
}

static void cpu(void **state)
{
    struct device dev = {.name = "cpu", .about = "CPU, 4 threads"};
    struct watch_state before, after;
    struct watch *one = watch_new(&dev, 1), *many = watch_new(&dev, 1000000);
    watch_read(one, &before);
    burn(0.05);
    volatile char *block = malloc(BLOCK);
    for (size_t i = 0; i < BLOCK; i += 1024)
        block[i] = 1;
    watch_read(one, &after);
    assert_string_equal(after.name, "cpu");
    assert_true(strlen(after.model) > strlen(", 1 thread"));
    assert_string_equal(strrchr(after.model, ','), ", 1 thread");
    assert_string_equal(after.trouble, "");
    assert_string_equal(after.throttled, "");
    assert_true(after.utilization >= 1 && after.utilization <= 100);
    assert_true(after.memory_used >= BLOCK && after.memory_used < after.memory_total);
    assert_true(after.memory_used - before.memory_used > BLOCK / 2);
    assert_int_equal(after.memory_total, before.memory_total);
    assert_int_equal(after.temperature, 0);
    assert_int_equal(after.ecc_errors, -1);
    watch_read(many, &after);
    assert_int_equal(after.utilization, 0); /* of a million threads */
    assert_string_equal(strrchr(after.model, ','), ", 1000000 threads");
    free((void *)(uintptr_t)block);
    watch_free(one);
    watch_free(many);
    watch_free(NULL);
}

#if HAVE_CUDA
static struct fake_nvml *fake;

static int fresh(void **state)
{
    *fake = (struct fake_nvml){.gpu = 97,
                               .temperature = 61,
                               .milliwatts = 654321,
                               .used = 20ull << 30,
                               .total = 140ull << 30};
    return 0;
}

static struct watch_state read_once(const char *uuid)
{
    struct watch_state s = {.name = "cuda:1", .model = "?", .utilization = -1, .ecc_errors = -1};
    struct nvml *n = nvml_new("0000:3b:00.0", uuid);
    assert_int_equal(fake->inits, 0); /* nothing is opened before it is asked for */
    nvml_read(n, &s);
    nvml_read(n, &s);
    assert_int_equal(fake->inits, 1);
    assert_string_equal(s.name, "cuda:1");
    nvml_free(n);
    return s;
}

static void card(void **state)
{
    struct watch_state s = read_once("11-22");
    assert_string_equal(fake->pci, "0000:3b:00.0");
    assert_string_equal(fake->uuid, "");
    assert_string_equal(s.model, "NVIDIA H200");
    assert_true(s.memory_used == 20ull << 30 && s.memory_total == 140ull << 30);
    assert_int_equal(s.utilization, 97);
    assert_int_equal(s.temperature, 61);
    assert_true(s.power > 654.3f && s.power < 654.4f);
    assert_int_equal(s.ecc_errors, 0);
    assert_string_equal(s.throttled, "");
    assert_string_equal(s.trouble, "");
    assert_int_equal(fake->shutdowns, 1);
}

static void held_down(void **state)
{
    static const struct {
        unsigned long long mask;
        const char *words;
    } cases[] = {
        {0x1, ""}, /* idle is no reason */
        {0x4, "power cap"},
        {0x8, "hardware slowdown"},
        {0x8 | 0x40, "hardware temperature limit"},
        {0x8 | 0x80 | 0x20, "temperature, power brake"},
        {0x1ff, "clocks set by hand, power cap, sync boost, temperature, hardware temperature "
                "limit, power brake, display clocks"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fresh(NULL);
        fake->reasons = cases[i].mask;
        fake->ecc = 3;
        struct watch_state s = read_once("");
        assert_string_equal(s.throttled, cases[i].words);
        assert_int_equal(s.ecc_errors, 3);
    }
}

/* Memory is the part's, temperature and the like the card's. */
static void part_of_a_card(void **state)
{
    fake->mig = 1;
    struct watch_state s = read_once("0a0b0c0d-0102");
    assert_string_equal(fake->uuid, "MIG-0a0b0c0d-0102");
    assert_string_equal(s.model, "NVIDIA H200 MIG 3g.71gb");
    assert_true(s.memory_total == 70ull << 30);
    assert_int_equal(s.utilization, -1);
    assert_int_equal(s.temperature, 61);
    assert_string_equal(s.trouble, "");
}

static void not_told(void **state)
{
    fake->rest_rc = fake->memory_rc = 3; /* not supported */
    struct watch_state s = read_once("");
    assert_string_equal(s.trouble, "");
    assert_int_equal(s.memory_total, 0);
    assert_int_equal(s.utilization, -1);
    assert_int_equal(s.temperature, 0);
    assert_int_equal(s.ecc_errors, -1);
    assert_string_equal(s.throttled, "");
}

static void troubles(void **state)
{
    fake->memory_rc = 15;
    struct watch_state s = read_once("");
    assert_string_equal(s.trouble, "the card does not answer: GPU is lost");
    assert_int_equal(s.utilization, -1);
    fresh(NULL);
    fake->pci_rc = 6;
    s = read_once("");
    assert_string_equal(s.trouble, "NVML does not know this card: Not Found");
    assert_int_equal(fake->shutdowns, 1);
    fresh(NULL);
    fake->init_rc = 9;
    s = read_once("");
    assert_string_equal(s.trouble, "NVML does not start: Driver Not Loaded");
    assert_string_equal(s.model, "?");
    assert_int_equal(fake->shutdowns, 0);
}

/* The stand-in lies beside this program, and is found before a driver's. */
static void find_fake(char **argv)
{
    char path[4096] = "";
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    char *slash = strrchr(path, '/');
    if (n > 0 && slash && !getenv("TEST_WATCH_AGAIN")) {
        *slash = '\0';
        setenv("LD_LIBRARY_PATH", path, 1);
        setenv("TEST_WATCH_AGAIN", "1", 1);
        execv("/proc/self/exe", argv);
    }
    void *lib = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    struct fake_nvml *(*get)(void) = NULL;
    void *symbol = lib ? dlsym(lib, "fake_nvml") : NULL;
    memcpy(&get, &symbol, sizeof get);
    fake = get ? get() : NULL;
    if (!fake)
        abort();
}
#endif

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cpu),
#if HAVE_CUDA
        cmocka_unit_test_setup(card, fresh),
        cmocka_unit_test_setup(held_down, fresh),
        cmocka_unit_test_setup(part_of_a_card, fresh),
        cmocka_unit_test_setup(not_told, fresh),
        cmocka_unit_test_setup(troubles, fresh),
#endif
    };
#if HAVE_CUDA
    find_fake(argv);
#endif
    (void)argc;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
