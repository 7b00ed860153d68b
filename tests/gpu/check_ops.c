/* On a card: every operation against the reference, and the benchmarks.
 *
 *     check_ops                 all tests
 *     check_ops adaln matmul    some of them
 *     check_ops list            their names
 *     check_ops bench FILE      the benchmarks; figures to FILE as JSON */
#include <stdio.h>
#include <string.h>

/* TESTS: TEST(name) for each test of the kernels in CHECK_NAMES of tests/gpu.mk. */
#define TEST(name) int main_##name(void);
TESTS
#undef TEST
int bench(const char *path);

static const struct {
    const char *name;
    int (*run)(void);
} tests[] = {
#define TEST(name) {#name, main_##name},
    TESTS
#undef TEST
};

enum { COUNT = sizeof tests / sizeof *tests };

static int run(const char *name)
{
    for (int i = 0; i < COUNT; i++)
        if (strcmp(tests[i].name, name) == 0)
            return tests[i].run();
    fprintf(stderr, "check_ops: unknown test '%s'\n", name);
    return 1;
}

int main(int argc, char **argv)
{
    int failed = 0;
    if (argc == 3 && strcmp(argv[1], "bench") == 0)
        return bench(argv[2]);
    if (argc == 2 && strcmp(argv[1], "list") == 0) {
        for (int i = 0; i < COUNT; i++)
            printf("%s\n", tests[i].name);
        return 0;
    }
    for (int i = 0; argc == 1 && i < COUNT; i++)
        failed += tests[i].run() != 0;
    for (int i = 1; i < argc; i++)
        failed += run(argv[i]) != 0;
    return failed != 0;
}
