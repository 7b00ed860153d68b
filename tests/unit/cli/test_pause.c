/* What pause, resume and rollback ask of the coordinator, and what they say. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/cli/ran.h"

static const char *const yes[] = {"{\"id\":7}", NULL};
static const char *const no[] = {"{\"error\":{\"code\":\"x\",\"message\":\"it is done\"}}", NULL};

static void a_pause(void **state)
{
    struct cli cli = {0};
    struct ran r;
    run(&command_pause, &cli, "7", yes, &r);
    assert_int_equal(r.status, 0);
    assert_string_equal(r.last, "POST /v1/jobs/7/pause HTTP/1.1");
    says(&r, "job 7 is paused; tasks that run are finished, and `skerry resume 7` lets it go on\n");
    run(&command_resume, &cli, "7", yes, &r);
    assert_string_equal(r.last, "POST /v1/jobs/7/resume HTTP/1.1");
    assert_string_equal(r.said, "job 7 goes on\n");
    cli.json = true;
    run(&command_pause, &cli, "7", yes, &r);
    assert_string_equal(r.said, "{\"id\":7}\n");
}

static void what_is_refused(void **state)
{
    const struct command *const all[] = {&command_pause, &command_resume, &command_rollback};
    struct cli cli = {0};
    struct ran r;
    for (size_t i = 0; i < 3; i++) {
        run(all[i], &cli, "7", no, &r);
        assert_int_equal(r.status, -ERR_NOTFOUND);
        assert_non_null(strstr(r.err.msg, "it is done"));
        assert_string_equal(r.said, "");
    }
}

/* Of a path only where one is given, also if that is path 0. */
static void a_rollback(void **state)
{
    bool *given = NULL;
    for (const struct args_flag *f = command_rollback.flags; f->name; f++)
        if (strcmp(f->name, "path") == 0)
            given = f->given;
    struct cli cli = {0};
    struct ran r;
    *(uint64_t *)flag(&command_rollback, "to") = 3;
    run(&command_rollback, &cli, "7", yes, &r);
    assert_string_equal(r.last, "POST /v1/jobs/7/rollback HTTP/1.1");
    assert_string_equal(r.body, "{\"to\":3}");
    assert_string_equal(r.said, "job 7 is what it was after round 3; the round that ran has ended "
                                "without its phases\n");
    *given = true;
    run(&command_rollback, &cli, "7", yes, &r);
    assert_string_equal(r.body, "{\"to\":3,\"path\":0}");
    says(&r, "path 0 of job 7 is what it was after round 3, and so are those");
    cli.json = true;
    run(&command_rollback, &cli, "7", yes, &r);
    assert_string_equal(r.said, "{\"id\":7}\n");
    *given = false;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pause),
        cmocka_unit_test(what_is_refused),
        cmocka_unit_test(a_rollback),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
