/* On a card: every operation against the reference, and the benchmarks.
 *
 *     check_ops                 all tests
 *     check_ops adaln matmul    some of them
 *     check_ops adaln:NAME      one function of a test
 *     check_ops list            their names
 *     check_ops bench           the benchmarks; each figure is a line of JSON
 *
 * SKERRY_DEVICE=cpu: with the CPU in the card's place, but for what only a card has. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/device/device.h"

/* TESTS: TEST(name) for each test of the kernels in CHECK_NAMES of tests/gpu.mk. */
#define TEST(name) int main_##name(void);
TESTS
#undef TEST
int bench(void);

static const struct {
    const char *name;
    int (*run)(void);
} tests[] = {
#define TEST(name) {#name, main_##name},
    TESTS
#undef TEST
};

enum { COUNT = sizeof tests / sizeof *tests };

/* Needs it a card? */
static bool is_cards(const char *name)
{
    return HAVE_CUDA && (strcmp(name, "codec") == 0 || strcmp(name, "contribute_card") == 0);
}

static bool runs_here(const char *name)
{
    const char *device = getenv("SKERRY_DEVICE");
    if (device && strcmp(device, "cpu") == 0)
        return !is_cards(name);
    return !HAVE_CUDA || strcmp(name, "islands") != 0 || device_cards() > 1;
}

static const char *wanted; /* the one function of a test that is to run; NULL: all */

/* cmocka_run_group_tests of every test: for a name that no function has it would run nothing, and
 * pass. */
int run_group(const char *group, const struct CMUnitTest *const functions, size_t n,
              CMFixtureFunction setup, CMFixtureFunction teardown);
int run_group(const char *group, const struct CMUnitTest *const functions, size_t n,
              CMFixtureFunction setup, CMFixtureFunction teardown)
{
    bool found = !wanted;
    for (size_t i = 0; i < n; i++)
        found |= wanted && strcmp(functions[i].name, wanted) == 0;
    if (found)
        return _cmocka_run_group_tests(group, functions, n, setup, teardown);
    fprintf(stderr, "check_ops: unknown function '%s' of a test, which has these:", wanted);
    for (size_t i = 0; i < n; i++)
        fprintf(stderr, " %s", functions[i].name);
    fputc('\n', stderr);
    return 1;
}

/* TEST or TEST:FUNCTION. */
static int run(const char *name)
{
    const size_t len = strcspn(name, ":");
    wanted = name[len] ? name + len + 1 : NULL;
    cmocka_set_test_filter(wanted);
    for (int i = 0; i < COUNT; i++)
        if (strlen(tests[i].name) == len && memcmp(tests[i].name, name, len) == 0)
            return tests[i].run();
    fprintf(stderr, "check_ops: unknown test '%s'\n", name);
    return 1;
}

int main(int argc, char **argv)
{
    int failed = 0;
    (void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0); /* as workerd does */
    (void)setvbuf(stdout, NULL, _IOLBF, 0); /* what was found stays if the rest fails */
    if (argc == 2 && strcmp(argv[1], "bench") == 0)
        return bench();
    if (argc == 2 && strcmp(argv[1], "list") == 0) {
        for (int i = 0; i < COUNT; i++)
            if (runs_here(tests[i].name))
                printf("%s\n", tests[i].name);
        return 0;
    }
    for (int i = 0; argc == 1 && i < COUNT; i++)
        if (runs_here(tests[i].name))
            failed += tests[i].run() != 0;
    for (int i = 1; i < argc; i++)
        failed += run(argv[i]) != 0;
    return failed != 0;
}
