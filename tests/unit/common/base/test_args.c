#include "common/base/args.h"

#include <errno.h>

#include "tests/unit/common/base/util.h"

struct opts {
    const char *dir;
    uint64_t port, wait, size;
    bool verbose, port_given;
    int n;
    double rate;
    struct args_list tags;
};

static struct opts o;
static const struct args_flag flags[] = {
    {"data-dir", 'd', ARGS_STR, &o.dir, "DIR", "where the state lives", .required = true},
    {"port", 0, ARGS_U64, &o.port, "N", "port", .max = 65535, .given = &o.port_given},
    {"wait", 0, ARGS_DURATION_MS, &o.wait, "TIME", "patience"},
    {"verbose", 'v', ARGS_BOOL, &o.verbose, NULL, "say more", .line_only = true},
    {"count", 'n', ARGS_INT, &o.n, "N", "how many", .min = 1, .max = 9},
    {"rate", 0, ARGS_DOUBLE, &o.rate, "X", "how fast"},
    {"top-size", 0, ARGS_BYTES, &o.size, "SIZE", "how much"},
    {"tag", 't', ARGS_LIST, &o.tags, "TAG",
     "label, of which a thing has as many as there is any use for; each is kept as it was given"},
    {0},
};
static struct args a = {.program = "prog",
                        .usage = "--data-dir DIR FILE",
                        .about = "does a thing",
                        .flags = flags,
                        .rest_min = 1,
                        .rest_max = 2};

/* Splits at spaces; words live as long as the test. */
static int parse(const char *line, struct err *err)
{
    static char text[512];
    char *argv[32];
    int argc = 0;
    o = (struct opts){.port = 7710};
    snprintf(text, sizeof(text), "prog %s", line);
    for (char *w = strtok(text, " "); w; w = strtok(NULL, " "))
        argv[argc++] = w;
    return args_parse(&a, argc, argv, err);
}

static void reads_all_forms(void **state)
{
    OK(parse("--data-dir=/x file --port 0 -v -n3 --rate -1.5 -t a --tag b --wait 2s", err));
    assert_string_equal(o.dir, "/x");
    assert_true(o.port == 0 && o.port_given && o.verbose && o.n == 3 && o.rate == -1.5);
    assert_int_equal(o.wait, 2000);
    assert_int_equal(o.tags.n, 2);
    assert_string_equal(o.tags.items[1], "b");
    assert_int_equal(a.n_rest, 1);
    OK(parse("-d /x --verbose --no-verbose -- --file -", err));
    assert_false(o.verbose);
    assert_false(o.port_given);
    assert_int_equal(a.n_rest, 2);
    assert_string_equal(a.rest[0], "--file");
    assert_int_equal(parse("--bogus-after --help", NULL), -EINVAL);
    assert_int_equal(parse("--help", NULL), ARGS_HELP);
    assert_int_equal(parse("-h", NULL), ARGS_HELP);
    assert_int_equal(parse("--version", NULL), ARGS_VERSION);
}

static void refuses(void **state)
{
    static const struct {
        const char *line, *says;
    } cases[] = {
        {"f", "--data-dir is missing: where the state lives; usage: prog"},
        {"--data-dir", "--data-dir needs a value"},
        {"-d", "-d needs a value"},
        {"--work-dir x f", "unknown flag '--work-dir'; did you mean '--data-dir'?"},
        {"--data-dirr x f", "unknown flag '--data-dirr'; did you mean '--data-dir'?"},
        {"f --version 3",
         "--version shows the program's version and is given alone (`prog --help`"},
        {"-d x -q f", "unknown flag '-q'"},
        {"-d x --port 70000 f", "--port is '70000', expected a whole number from 0 to 65535"},
        {"-d x --port=ten f", "--port is 'ten'"},
        {"-d x -n 0 f", "from 1 to 9"},
        {"-d x --wait soon f", "a duration such as 2s or 1.5h"},
        {"-d x", "too few arguments"},
        {"-d x a b c", "unexpected argument 'c'"},
        {"-d x --no-port f", "unknown flag '--no-port'"},
    };
    for (size_t i = 0; i < COUNT(cases); i++)
        FAILS(parse(cases[i].line, err), cases[i].says);
}

static void sets_from_a_file(void **state)
{
    static const struct {
        const char *key, *text, *says;
    } cases[] = {
        {"top_siz", "1", "f:3: unknown key 'top_siz'; did you mean 'top_size'? (`prog --help`"},
        {"top-size", "1", "f:3: unknown key 'top-size'; did you mean 'top_size'?"},
        {"top_size_b", "1", "; did you mean 'top_size'?"},
        {"verbos", "1", "f:3: unknown key 'verbos' (`prog"},
        {"verbose", "true", "f:3: verbose is not a setting: give --verbose on the command line"},
        {"wait", "100", "f:3: wait is '100', expected a duration such as 2s or 1.5h"},
        {"count", "10", "f:3: count is '10', expected a whole number from 1 to 9"},
        {"top_size", NULL, "f:3: top_size needs one value: how much"},
    };
    OK(parse("-d x f", err));
    assert_false(o.port_given);
    OK(args_set(&a, "f:3: ", "top_size", "2MB", err));
    OK(args_set(&a, "f:3: ", "port", "1", err));
    assert_true(o.size == 2000000 && o.port == 1 && o.port_given);
    for (size_t i = 0; i < COUNT(cases); i++)
        FAILS(args_set(&a, "f:3: ", cases[i].key, cases[i].text, err), cases[i].says);
}

static void helps(void **state)
{
    char *text = NULL;
    size_t n;
    o = (struct opts){.port = 7710, .wait = 90000, .size = 20000000000};
    FILE *f = open_memstream(&text, &n);
    args_help(&a, f);
    fclose(f);
    assert_non_null(strstr(text, "usage: prog --data-dir DIR FILE"));
    assert_non_null(strstr(text, "-d, --data-dir DIR"));
    assert_non_null(strstr(text, "port (default: 7710)"));
    assert_non_null(strstr(text, "patience (default: 90s)"));
    assert_non_null(strstr(text, "how much (default: 20GB)"));
    assert_non_null(strstr(text, "(required)"));
    assert_non_null(strstr(text, "--version"));
    assert_non_null(strstr(text,
                           "  -t, --tag TAG                label, of which a thing has as many as"
                           " there is\n                               any use for; each"));
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
        assert_true(strlen(line) < 80);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_all_forms),
        cmocka_unit_test(refuses),
        cmocka_unit_test(sets_from_a_file),
        cmocka_unit_test(helps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
