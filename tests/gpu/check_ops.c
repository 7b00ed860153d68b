/* On a card: every operation against the reference, and the benchmarks.
 *
 *     check_ops                 all tests
 *     check_ops adaln matmul    some of them
 *     check_ops bench FILE      the benchmarks; figures to FILE as JSON */
#include <stdio.h>
#include <string.h>

int main_adaln(void);
int main_elementwise(void);
int main_matmul(void);
int main_decoder(void);
int main_attention(void);
int bench(const char *path);

static const struct {
    const char *name;
    int (*run)(void);
} tests[] = {
    {"adaln", main_adaln},     {"elementwise", main_elementwise}, {"matmul", main_matmul},
    {"decoder", main_decoder}, {"attention", main_attention},
};

enum { TESTS = sizeof tests / sizeof *tests };

static int run(const char *name)
{
    for (int i = 0; i < TESTS; i++)
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
    for (int i = 0; argc == 1 && i < TESTS; i++)
        failed += tests[i].run() != 0;
    for (int i = 1; i < argc; i++)
        failed += run(argv[i]) != 0;
    return failed != 0;
}
