/* On a card: every operation against the reference, and the benchmarks.
 *
 *     check_ops                 all tests
 *     check_ops adaln matmul    some of them
 *     check_ops adaln:NAME      one function of a test
 *     check_ops list            their names
 *     check_ops bench           the benchmarks; each figure is a line of JSON
 *
 * After an illegal access a card takes nothing more of a process, and all functions behind the one
 * that made it fail.  So of a test that failed each function runs again, in a process of its own.
 *
 * SKERRY_DEVICE=cpu: with the CPU in the card's place, but for what only a card has. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

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

enum { ALONE_SECONDS = 20, ALL_ALONE_SECONDS = 40, FUNCTIONS_MAX = 64 };

static const char *test_name;
static const char *wanted; /* the one function of a test that is to run; NULL: all */

/* How one function of the present test ends in a process of its own. */
static const char *ends_alone(const char *function)
{
    char name[256];
    int status = 0;
    (void)snprintf(name, sizeof name, "%s:%s", test_name, function);
    const pid_t child = fork();
    if (child == 0) {
        (void)alarm(ALONE_SECONDS);
        (void)execl("/proc/self/exe", "check_ops", name, (char *)NULL);
        _exit(127);
    }
    if (child < 0 || waitpid(child, &status, 0) != child)
        return "not tried";
    return status == 0                                          ? "passes"
           : WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM ? "takes too long"
                                                                : "fails";
}

static void run_alone(const struct CMUnitTest *functions, size_t n)
{
    const char *ends[FUNCTIONS_MAX];
    const time_t begun = time(NULL);
    n = n < FUNCTIONS_MAX ? n : (size_t)FUNCTIONS_MAX;
    for (size_t i = 0; i < n; i++)
        ends[i] = time(NULL) - begun < ALL_ALONE_SECONDS ? ends_alone(functions[i].name)
                                                         : "not tried, for lack of time";
    for (size_t i = 0; i < n; i++)
        printf("check_ops: %s:%s by itself: %s\n", test_name, functions[i].name, ends[i]);
}

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
    if (found) {
        const int failed = _cmocka_run_group_tests(group, functions, n, setup, teardown);
        if (failed && !wanted)
            run_alone(functions, n);
        return failed;
    }
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
        if (strlen(tests[i].name) == len && memcmp(tests[i].name, name, len) == 0) {
            test_name = tests[i].name;
            return tests[i].run();
        }
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
            failed += run(tests[i].name) != 0;
    for (int i = 1; i < argc; i++)
        failed += run(argv[i]) != 0;
    return failed != 0;
}
