/* Metrics for which there is no room. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "cli/show/artifacts.h"
#include "common/base/file.h"
#include "tests/unit/cli/script.h"

#define JOB "{\"id\":7,\"state\":\"running\",\"path_list\":[]}"

static void a_full_disk_is_said_to_be_full(void **state)
{
    char dir[] = "/tmp/test_artifacts-XXXXXX", page[2][4000];
    const char *const answers[] = {JOB, page[0], page[1], NULL};
    struct script s;
    struct cli cli = {0};
    struct err err = {0};
    for (int i = 0; i < 2; i++) /* together more than a buffer of stdio holds */
        (void)snprintf(page[i], sizeof page[i], "{\"n\":%d,\"kind\":\"%03500d\"}\n", i + 1, 0);
    assert_non_null(mkdtemp(dir));
    char *part = file_join(dir, "metrics.jsonl.part");
    assert_int_equal(symlink("/dev/full", part), 0);
    connect_to(&s, &cli, answers);
    assert_int_equal(artifacts_metrics(&cli, 7, dir, &err), -ENOSPC);
    disconnect(&s, &cli);
    assert_non_null(strstr(err.msg, "/metrics.jsonl: No space left on device"));
    assert_false(file_exists(part));
    assert_int_equal(file_remove_tree(dir, NULL), 0);
    mem_free(part);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_full_disk_is_said_to_be_full),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
