/* Where a trace goes: what is asked for, to the byte, and nothing else. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/file.h"
#include "tests/unit/cli/ran.h"

static char dir[64];

static int make(void **state)
{
    (void)snprintf(dir, sizeof dir, "/tmp/skerry-trace.XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int unmake(void **state)
{
    *(const char **)flag(&command_trace, "out") = *(const char **)flag(&command_trace, "svg") =
        NULL;
    return file_remove_tree(dir, NULL);
}

static void expect_file(const char *path, const char *text)
{
    struct buf got;
    assert_int_equal(file_read(path, 4096, &got, NULL), 0);
    assert_string_equal(buf_str(&got), text);
    buf_release(&got);
}

static void its_ways(void **state)
{
    static const char *const one[] = {"[1]", NULL}, *const both[] = {"<svg/>", "[1]", NULL},
                             *const nothing[] = {"", NULL};
    const char **out = flag(&command_trace, "out"), **svg = flag(&command_trace, "svg");
    char *events = file_join(dir, "events"), *picture = file_join(dir, "picture");
    struct cli cli = {0};
    struct ran r;
    run(&command_trace, &cli, "7", one, &r);
    assert_int_equal(r.status, 0);
    assert_string_equal(r.last, "GET /v1/jobs/7/trace HTTP/1.1");
    assert_string_equal(r.said, "[1]\n");
    run(&command_trace, &cli, "7", nothing, &r);
    assert_string_equal(r.said, "\n");
    *svg = picture;
    run(&command_trace, &cli, "7", both, &r); /* no events, which nobody asked for */
    assert_string_equal(r.last, "GET /v1/jobs/7/trace.svg HTTP/1.1");
    assert_string_equal(r.said, "");
    expect_file(picture, "<svg/>");
    assert_int_equal(unlink(picture), 0);
    *out = events;
    run(&command_trace, &cli, "7", both, &r);
    assert_string_equal(r.asked, "GET /v1/jobs/7/trace.svg HTTP/1.1");
    assert_string_equal(r.last, "GET /v1/jobs/7/trace HTTP/1.1");
    assert_string_equal(r.said, "");
    expect_file(picture, "<svg/>");
    expect_file(events, "[1]");
    *svg = NULL;
    assert_int_equal(unlink(events), 0);
    run(&command_trace, &cli, "7", one, &r);
    expect_file(events, "[1]");
    mem_free(events);
    mem_free(picture);
}

static void rounds_are_a_table(void **state)
{
    static const char *const answers[] = {
        "{\"path_list\":[{}],\"history\":[{\"round\":1,\"path\":0,\"seconds\":4,\"parts\":null},"
        "{\"round\":2,\"path\":0,\"seconds\":3.5,\"parts\":{\"worker\":2,\"begin\":0.25,"
        "\"steps\":2,\"network\":0,\"rest\":0.75,\"fold\":0.5,\"behind\":1.5}}]}",
        "{\"items\":[{\"id\":1,\"name\":\"isle-a\"},{\"id\":2,\"name\":\"isle-b\"}],\"next\":null}",
        NULL};
    static const char *const none[] = {"{\"history\":[]}", "{\"items\":[],\"next\":null}", NULL};
    uint64_t *rounds = flag(&command_trace, "rounds");
    const char **out = flag(&command_trace, "out");
    struct cli cli = {0};
    struct ran r;
    *rounds = 5;
    run(&command_trace, &cli, "7", answers, &r);
    assert_int_equal(r.status, 0);
    assert_string_equal(r.asked, "GET /v1/jobs/7?history=5&samples=0 HTTP/1.1");
    assert_string_equal(
        r.said, "  round  seconds  begin  steps  network  rest  fold  last worker  behind\n"
                "      1     4.00      -      -        -     -     -  -                 -\n"
                "      2     3.50   0.25   2.00     0.00  0.75  0.50  2 (isle-b)     1.50\n");
    run(&command_trace, &cli, "7", none, &r);
    assert_string_equal(r.said, "no round has ended\n");
    *out = "file";
    run(&command_trace, &cli, "7", none, &r);
    assert_string_equal(r.err.msg, "--rounds prints a table: leave out --out and --svg");
    *rounds = 0;
}

static void none_leaves_no_file(void **state)
{
    static const char *const no[] = {"{\"error\":{\"code\":\"x\",\"message\":\"no trace\"}}", NULL};
    const char **svg = flag(&command_trace, "svg");
    char *picture = file_join(dir, "picture");
    struct cli cli = {0};
    struct ran r;
    *svg = picture;
    run(&command_trace, &cli, "7", no, &r);
    assert_int_equal(r.status, -ERR_NOTFOUND);
    assert_non_null(strstr(r.err.msg, "no trace"));
    assert_false(file_exists(picture));
    mem_free(picture);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(its_ways, make, unmake),
        cmocka_unit_test_setup_teardown(rounds_are_a_table, make, unmake),
        cmocka_unit_test_setup_teardown(none_leaves_no_file, make, unmake),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
