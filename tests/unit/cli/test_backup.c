/* What backup, restore and audit have coordinatord do, which here is this program. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "tests/unit/cli/beside.h"
#include "tests/unit/cli/ran.h"

#define DATA "--data-dir|/var/lib/skerry-coordinator|"

/* Runs a command, which becomes coordinatord, in a process of its own; what that was given, or the
 * sentence of the command. */
static void expect(const struct command *c, const char *word, const char *text)
{
    char got[1024] = "";
    size_t len = 0;
    int ends[2], status;
    fflush(stdout);
    assert_int_equal(pipe(ends), 0);
    const pid_t pid = fork();
    if (pid == 0) {
        const struct args args = {.n_rest = 1, .rest = {word}};
        struct cli cli = {0};
        struct err err = {0};
        (void)dup2(ends[1], STDOUT_FILENO);
        const int rc = c->run(&cli, &args, &err);
        (void)dprintf(ends[1], "%d %s", rc, err.msg);
        _exit(0);
    }
    assert_true(pid > 0);
    close(ends[1]);
    for (ssize_t n; (n = read(ends[0], got + len, sizeof got - 1 - len)) > 0;)
        len += (size_t)n;
    close(ends[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_string_equal(got, text);
}

static void what_it_is_given(void **state)
{
    beside_link("coordinatord");
    expect(&command_backup, "/b", DATA "--backup|/b|--keep|7|");
    *(uint64_t *)flag(&command_backup, "keep") = 0;
    *(const char **)flag(&command_backup, "data-dir") = "/d";
    expect(&command_backup, "/b", "--data-dir|/d|--backup|/b|--keep|0|");
    expect(&command_restore, "/b", "--data-dir|/d|--restore|/b|");
    *(const char **)flag(&command_restore, "from") = "now";
    expect(&command_restore, "/b", "--data-dir|/d|--restore|/b|--from|now|");
    expect(&command_audit, "12", "--data-dir|/d|--audit|12|");
    *(const char **)flag(&command_audit, "config") = "/c";
    expect(&command_audit, "12", "--data-dir|/d|--audit|12|--config|/c|");
}

static void what_is_no_job(void **state)
{
    static const char *const words[] = {"0", "x", "", "-1", "1 "};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        char *text = str_printf("%d '%s' is not a job's id; `skerry status` lists the jobs",
                                -ERR_USAGE, words[i]);
        expect(&command_audit, words[i], text);
        mem_free(text);
    }
}

int main(int argc, char **argv)
{
    if (beside_is(argv[0], "coordinatord")) {
        for (int i = 1; i < argc; i++)
            printf("%s|", argv[i]);
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_it_is_given),
        cmocka_unit_test(what_is_no_job),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
