/* What remove asks of the coordinator, of the person, and what it says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/cli/ran.h"
#include "tests/unit/cli/terminal.h"

#define JOB(removed)                                                                               \
    "{\"id\":7,\"name\":\"flowers\",\"state\":\"done\",\"bytes\":3072,\"removed\":" removed "}"

static const char *const there[] = {JOB("false"), NULL};
static const char *const both[] = {JOB("false"), JOB("true"), NULL};
static const char *const gone[] = {JOB("true"), NULL};
static const char *const no[] = {"{\"error\":{\"code\":\"x\",\"message\":\"it runs\"}}", NULL};

static bool *yes(void)
{
    return flag(&command_remove, "yes");
}

/* Without a terminal nobody can be asked: what would go is told, and nothing goes. */
static void test_without_a_terminal(void **state)
{
    struct cli cli = {0};
    struct ran r;
    run(&command_remove, &cli, "7", there, &r);
    misused(&r, "job 7 (flowers) is done; its record and up to 3.0 KiB of versions, averages and "
                "samples go: give --yes to remove it for good");
    assert_string_equal(r.last, "POST /v1/jobs/7/remove HTTP/1.1");
    assert_string_equal(r.body, "{\"dry_run\":true}");
    *yes() = true;
    run(&command_remove, &cli, "7", gone, &r);
    assert_int_equal(r.status, 0);
    assert_string_equal(r.body, "{\"dry_run\":false}");
    says(&r, "job 7 (flowers) is removed: up to 3.0 KiB are deleted now");
    cli.json = true;
    run(&command_remove, &cli, "7", gone, &r);
    assert_non_null(strstr(r.said, "\"removed\":true"));
    *yes() = false;
}

static void test_refused(void **state)
{
    struct cli cli = {0};
    struct ran r;
    run(&command_remove, &cli, "7", no, &r);
    assert_non_null(strstr(r.err.msg, "it runs"));
    assert_string_equal(r.said, "");
}

/* Runs it at a terminal whose person types this. */
static int typed(const char *text, const char *const *answers, struct ran *ret)
{
    struct cli cli = {0};
    struct script s;
    struct args args = {.n_rest = 1, .rest = {"7"}};
    int master, terminal = terminal_open(80, &master), own[3];
    memset(ret, 0, sizeof *ret);
    assert_true(write(master, text, strlen(text)) > 0);
    connect_to(&s, &cli, answers);
    fflush(stdout);
    fflush(stderr);
    for (int i = 0; i < 3; i++) {
        own[i] = dup(i);
        assert_true(dup2(terminal, i) >= 0);
    }
    clearerr(stdin);
    const int rc = command_remove.run(&cli, &args, &ret->err);
    fflush(stdout);
    fflush(stderr);
    for (int i = 0; i < 3; i++) {
        assert_true(dup2(own[i], i) >= 0);
        close(own[i]);
    }
    disconnect(&s, &cli);
    (void)snprintf(ret->body, sizeof ret->body, "%s", s.body);
    terminal_close(terminal, master, ret->said, sizeof ret->said);
    return rc;
}

static void test_at_a_terminal(void **state)
{
    struct ran r;
    assert_int_equal(typed("n\n", there, &r), -ERR_CANCELLED);
    says(&r, "Remove it for good? [y/N]");
    assert_string_equal(r.err.msg, "nothing was removed");
    assert_int_equal(typed("\n", there, &r), -ERR_CANCELLED);
    assert_string_equal(r.body, "{\"dry_run\":true}");
    assert_int_equal(typed("y\n", both, &r), 0);
    assert_string_equal(r.body, "{\"dry_run\":false}");
    says(&r, "job 7 (flowers) is removed");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_without_a_terminal),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_at_a_terminal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
