/* A command of somebody else's, as a process. */
#include "worker/external/process.h"

#include <fcntl.h>
#include <poll.h>

#include "common/base/log.h"
#include "tests/unit/common/base/util.h"

static struct process *begin(const char *command)
{
    const struct process_options opt = {
        .command = command, .folder = "/", .what = "test", .passed = -1};
    struct process *p = NULL;
    OK(process_start(&opt, &p, err));
    return p;
}

static void expect_end(struct process *p, const char *want)
{
    char how[128];
    while (!process_is_over(p, how, sizeof(how)))
        (void)poll(NULL, 0, 1);
    assert_string_equal(how, want);
}

static void test_ends(void **state)
{
    struct process *p = begin("echo first; echo last; exit 3");
    expect_end(p, "ended with exit status 3");
    assert_string_equal(process_tail(p), "first | last");
    process_end(p);
}

/* Of what it leaves no more is read than a pipe holds: what it has started may write for ever. */
static void test_leaves_much(void **state)
{
    struct process *p = begin("head -c 200000 /dev/zero; exit 3");
    assert_true(fcntl(process_output_fd(p), F_SETPIPE_SZ, 1 << 20) >= 200000);
    expect_end(p, "ended with exit status 3");
    assert_true(process_take_output(p) > 0);
    process_end(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ends),
        cmocka_unit_test(test_leaves_much),
    };
    log_set_level(LOG_LEVEL_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
