/* What a program beside this one says. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "cli/base/cli.h"
#include "cli/base/program.h"

static const char *const none[] = {NULL};

/* The tests' own program lies in that folder, and so does this. */
static void it_is_given_its_input_and_its_words_come_back(void **state)
{
    static const char *const args[] = {"--list", "x", NULL};
    struct program_said said;
    struct err err = {0};
    assert_int_equal(program_run("no-such-program", args, NULL, 0, &said, &err), -ENOENT);
    assert_non_null(strstr(err.msg, "no-such-program cannot be started"));
    setenv("PROGRAM_SPEAKS", "1", 1);
    assert_int_equal(program_run("test_program", none, "a line of input\n", 60000, &said, &err), 0);
    unsetenv("PROGRAM_SPEAKS");
    assert_int_equal(said.status, 0);
    assert_string_equal(said.out, "a line of input\n");
    assert_string_equal(said.errors, "test_program: so it is\n");
}

static void one_that_hangs_is_ended(void **state)
{
    struct program_said said;
    struct err err = {0};
    setenv("PROGRAM_HANGS", "1", 1);
    assert_int_equal(program_run("test_program", none, NULL, 50, &said, &err), -ETIMEDOUT);
    unsetenv("PROGRAM_HANGS");
    assert_non_null(strstr(err.msg, "test_program did not end within 0 s"));
}

static void one_that_nobody_waits_for_is_ended(void **state)
{
    struct program_said said;
    struct err err = {0};
    setenv("PROGRAM_HANGS", "1", 1);
    cli_interrupted = SIGINT;
    assert_int_equal(program_run("test_program", none, NULL, 0, &said, &err), -ERR_CANCELLED);
    cli_interrupted = 0;
    unsetenv("PROGRAM_HANGS");
    assert_string_equal(err.msg, "interrupted");
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* no child is left */
}

static void the_reason_is_the_last_line_of_its_errors(void **state)
{
    static const struct {
        const char *errors, *reason;
    } cases[] = {
        {"workerd: it broke\n", "it broke"},
        {"a warning\nworkerd: it broke\n\n", "it broke"},
        {"workerd:x", "x"},
        {"it broke", "it broke"},
        {"workerd it broke\n", "workerd it broke"},
        {"\n\n", ""},
        {"", ""},
    };
    char out[64];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct program_said said = {0};
        str_copy(said.errors, sizeof said.errors, cases[i].errors);
        assert_string_equal(program_reason(&said, "workerd", out, sizeof out), cases[i].reason);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_is_given_its_input_and_its_words_come_back),
        cmocka_unit_test(one_that_hangs_is_ended),
        cmocka_unit_test(one_that_nobody_waits_for_is_ended),
        cmocka_unit_test(the_reason_is_the_last_line_of_its_errors),
    };
    char line[64];
    if (getenv("PROGRAM_HANGS"))
        pause();
    if (getenv("PROGRAM_SPEAKS") && fgets(line, sizeof line, stdin)) {
        (void)fputs(line, stdout);
        (void)fputs("test_program: so it is\n", stderr);
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
