/* A model of a job that goes on while it is fetched, and metrics for which there is no room. */
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

#define SHA "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define MODULES                                                                                    \
    "{\"items\":[{\"id\":1,\"versions\":[{\"version\":3,\"full\":{\"sha256\":\"" SHA "\"}}]}]}"
#define SPEC                                                                                       \
    "name: a\\ndata: {kind: none}\\nmodel: {type: external}\\ntrainer: {command: x}\\n"            \
    "train: {batch: 1}\\nouter: {rounds: 9, steps: 1}\\n"
#define JOB                                                                                        \
    "{\"id\":7,\"state\":\"running\",\"spec\":\"" SPEC                                             \
    "\",\"path_list\":[{\"path\":0,\"network\":\"main\",\"round\":3,\"modules\":[1]}]}"
#define GONE "{\"error\":{\"code\":\"not_found\",\"message\":\"it is gone\"}}"
#define TRY MODULES, JOB, GONE

static int take(const char *const *answers, struct err *err)
{
    char dir[] = "/tmp/test_artifacts-XXXXXX";
    struct script s;
    struct cli cli = {0};
    assert_non_null(mkdtemp(dir));
    connect_to(&s, &cli, answers);
    const int rc = artifacts_model(&cli, 7, 0, true, dir, err);
    disconnect(&s, &cli);
    assert_int_equal(file_remove_tree(dir, NULL), 0);
    return rc;
}

/* The version that was the newest may be collected before it is fetched: then another one is. */
static void a_version_that_is_gone_is_not_the_newest(void **state)
{
    static const char *const once[] = {TRY, "{\"items\":[]}", JOB, NULL};
    static const char *const always[] = {TRY, TRY, TRY, TRY, TRY, NULL};
    struct err err = {0};
    assert_int_equal(take(once, &err), -ERR_NOTFOUND);
    assert_non_null(strstr(err.msg, "the job has no model yet, because version 0 is still to be"));
    assert_int_equal(take(always, &err), -ERR_STALE);
    assert_non_null(strstr(err.msg, "`skerry pause 7` lets it rest meanwhile: it is gone"));
}

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
        cmocka_unit_test(a_version_that_is_gone_is_not_the_newest),
        cmocka_unit_test(a_full_disk_is_said_to_be_full),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
