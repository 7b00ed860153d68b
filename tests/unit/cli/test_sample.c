/* Waiting for a drawing. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "cli/sample.h"
#include "tests/unit/cli/ran.h"

static int sample(const char *const *answers, struct err *err)
{
    struct script s;
    struct cli cli = {0};
    connect_to(&s, &cli, answers);
    const int rc = sample_to_file(&cli, 7, NULL, "/nowhere/x.png", err);
    disconnect(&s, &cli);
    return rc;
}

/* A coordinator that restarts says nothing for a while. */
static void a_silence_is_waited_out(void **state)
{
    static const char *const answers[] = {"{\"task\":5}",
                                          "{\"state\":\"leased\"}",
                                          "",
                                          "",
                                          "{\"state\":\"failed\",\"reason\":\"out of paint\"}",
                                          NULL};
    struct err err = {0};
    assert_int_equal(sample(answers, &err), -ERR_REMOTE);
    assert_string_equal(err.msg, "the sample task failed: out of paint");
}

static void a_task_that_is_gone_is_not_waited_for(void **state)
{
    static const char *const answers[] = {
        "{\"task\":5}", "{\"error\":{\"code\":\"not_found\",\"message\":\"no such task\"}}", NULL};
    struct err err = {0};
    assert_int_equal(sample(answers, &err), -ERR_NOTFOUND);
}

static void what_cannot_be_drawn(void **state)
{
    static const struct {
        const char *flag, *value, *said;
    } cases[] = {
        {"sampler", "x", "--sampler is 'x'"},  {"strategy", "x", "--strategy is 'x'"},
        {"labels", "1,x", "--labels takes"},   {"out", "", "--out is empty"},
        {"out", "a.b.jpg", "name it a.b.png"}, {"out", "a.JFIF", "name it a.png"},
    };
    const char *const none[] = {NULL};
    struct cli cli = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char **value = flag(&command_sample, cases[i].flag);
        struct ran r;
        *value = cases[i].value;
        run(&command_sample, &cli, "7", none, &r);
        misused(&r, cases[i].said);
        assert_string_equal(r.asked, "");
        *value = NULL;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_silence_is_waited_out),
        cmocka_unit_test(a_task_that_is_gone_is_not_waited_for),
        cmocka_unit_test(what_cannot_be_drawn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
