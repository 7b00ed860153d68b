/* Which command a command line means, and with which exit status it ends. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

/* The program itself, which no library has. */
int skerry(int argc, char **argv);
#define main skerry
#include "cli/main.c"
#undef main

static char said[16384], complained[16384];

static void read_back(int fd, char *text, size_t size)
{
    const ssize_t n = pread(fd, text, size - 1, 0);
    assert_true(n >= 0);
    text[n] = '\0';
    close(fd);
}

/* Runs it with these words, NULL at the end, its output in `said` and `complained`; out: where
 * else its output goes, or NULL. */
static int typed(const char *out, const char *const *words)
{
    char *argv[8] = {NULL};
    int argc = 0;
    const int had[2] = {dup(STDOUT_FILENO), dup(STDERR_FILENO)};
    const int to[2] = {out ? open(out, O_WRONLY | O_CLOEXEC) : memfd_create("out", MFD_CLOEXEC),
                       memfd_create("err", MFD_CLOEXEC)};
    fflush(stdout);
    for (; words[argc]; argc++)
        argv[argc] = str_dup(words[argc]);
    assert_true(dup2(to[0], STDOUT_FILENO) >= 0 && dup2(to[1], STDERR_FILENO) >= 0);
    const int status = skerry(argc, argv);
    fflush(stdout);
    clearerr(stdout);
    assert_true(dup2(had[0], STDOUT_FILENO) >= 0 && dup2(had[1], STDERR_FILENO) >= 0);
    close(had[0]);
    close(had[1]);
    said[0] = '\0';
    if (out)
        close(to[0]);
    else
        read_back(to[0], said, sizeof said);
    read_back(to[1], complained, sizeof complained);
    while (argc > 0)
        mem_free(argv[--argc]);
    return status;
}

#define TYPED(...) typed(NULL, (const char *const[]){"skerry", __VA_ARGS__, NULL})

static void has(const char *text, const char *words)
{
    if (!strstr(text, words))
        fail_msg("'%s' is not in: %s", words, text);
}

static void help_is_asked_for_in_any_way(void **state)
{
    static char whole[sizeof said];
    assert_int_equal(TYPED("--help"), CLI_OK);
    (void)str_copy(whole, sizeof whole, said);
    assert_int_equal(TYPED("-h"), CLI_OK);
    assert_string_equal(said, whole);
    assert_int_equal(TYPED("help"), CLI_OK);
    assert_string_equal(said, whole);
    assert_string_equal(complained, "");
    assert_int_equal(typed(NULL, (const char *const[]){"skerry", NULL}), CLI_USAGE);
    assert_string_equal(complained, whole);
    assert_string_equal(said, "");
    assert_int_equal(TYPED("--version"), CLI_OK);
    assert_string_equal(said, "skerry " SKERRY_VERSION "\n");
}

/* Each command is listed and has its page, with the flags of its kind, and is reached by name. */
static void all_commands(void **state)
{
    assert_int_equal(TYPED("--help"), CLI_OK);
    char *whole = str_dup(said);
    for (size_t i = 0; i < N_COMMANDS; i++) {
        const struct command *c = commands[i];
        char *line = str_printf("\n  %-10s %s\n", c->name, c->what),
             *usage = str_printf("usage: skerry %s ", c->name);
        has(whole, line);
        assert_int_equal(TYPED(c->name, "--help"), CLI_OK);
        has(said, usage);
        assert_int_equal(strstr(said, "\n  -s, --server ") != NULL,
                         (c->needs & COMMAND_SERVER) != 0);
        assert_int_equal(strstr(said, "\n      --json ") != NULL, (c->needs & COMMAND_JSON) != 0);
        for (const struct args_flag *f = c->flags; f && f->name; f++) {
            char *name = str_printf("--%s", f->name);
            has(said, name);
            mem_free(name);
        }
        char *page = str_dup(said);
        assert_int_equal(TYPED("help", c->name), CLI_OK);
        assert_string_equal(said, page);
        mem_free(page);
        mem_free(line);
        mem_free(usage);
    }
    mem_free(whole);
}

static void wrong_command_lines(void **state)
{
    assert_int_equal(TYPED("statsu"), CLI_USAGE);
    has(complained, "there is no command 'statsu'; did you mean 'status'? (`skerry --help`");
    assert_int_equal(TYPED("xyzzy"), CLI_USAGE);
    has(complained, "there is no command 'xyzzy' (`skerry --help` lists them)");
    assert_int_equal(TYPED("help", "xyzzy"), CLI_USAGE);
    has(complained, "there is no command 'xyzzy'");
    assert_int_equal(TYPED("--json", "status"), CLI_USAGE);
    has(complained, "the command comes before its flags");
    has(complained, "'--json'");
    assert_int_equal(TYPED("status", "--jsn"), CLI_USAGE);
    has(complained, "--json");
    assert_int_equal(TYPED("pause"), CLI_USAGE);
    assert_string_equal(said, "");
}

/* A command that needs a coordinator finds none, before it does anything. */
static void no_coordinator(void **state)
{
    setenv("XDG_CONFIG_HOME", "/proc/none", 1);
    unsetenv("SKERRY_TOKEN");
    assert_int_equal(TYPED("pause", "1"), CLI_UNREACHABLE);
    has(complained, "skerry: no coordinator is known here");
    assert_int_equal(TYPED("audit", "x"), CLI_USAGE); /* which needs none */
    has(complained, "skerry: 'x' is not a job's id");
}

static void output_that_is_lost(void **state)
{
    static const char *const words[] = {"skerry", "--version", NULL}, *const wrong[] = {
                                                                          "skerry", "xyzzy", NULL};
    assert_int_equal(typed("/dev/full", words), CLI_FAILED);
    has(complained, "skerry: standard output cannot be written: No space left on device\n");
    assert_int_equal(typed("/dev/full", wrong), CLI_USAGE); /* which is what is to be known */
    assert_null(strstr(complained, "standard output"));
    assert_int_equal(typed("/dev/null", words), CLI_OK);
    assert_string_equal(complained, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(help_is_asked_for_in_any_way), cmocka_unit_test(all_commands),
        cmocka_unit_test(wrong_command_lines),          cmocka_unit_test(no_coordinator),
        cmocka_unit_test(output_that_is_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
