/* How many cores a process may use, read from made-up /proc and /sys. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>

#include "common/base/cores.h"
#include "common/base/file.h"

static char root[64];

static void put(const char *path, const char *text)
{
    char full[256], dir[256];
    struct err err = {0};
    snprintf(full, sizeof full, "%s/%s", root, path);
    snprintf(dir, sizeof dir, "%s", full);
    *strrchr(dir, '/') = '\0';
    if (file_mkdirs(dir, 0700, &err) < 0)
        fail_msg("%s", err.msg);
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static int make(void **state)
{
    strcpy(root, "/tmp/skerry-cores-XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int unmake(void **state)
{
    struct err err = {0};
    return file_remove_tree(root, &err);
}

static void test_no_groups(void **state)
{
    assert_int_equal(cores_read(root, 8), 8);
    assert_int_equal(cores_read(root, 0), 1);
    assert_true(cores_usable() >= 1);
}

/* Version 2: the tightest of the group's and those above it, rounded up. */
static void test_groups(void **state)
{
    put("proc/self/cgroup", "0::/swarm/worker\n");
    put("sys/fs/cgroup/swarm/worker/cpu.max", "max 100000\n");
    assert_int_equal(cores_read(root, 8), 8);
    put("sys/fs/cgroup/swarm/worker/cpu.max", "400000 100000\n");
    assert_int_equal(cores_read(root, 8), 4);
    assert_int_equal(cores_read(root, 3), 3);
    put("sys/fs/cgroup/swarm/cpu.max", "150000 100000\n");
    assert_int_equal(cores_read(root, 8), 2);
    put("sys/fs/cgroup/cpu.max", "5000 50000\n"); /* a container's own, in a namespace */
    assert_int_equal(cores_read(root, 8), 1);
    put("sys/fs/cgroup/cpu.max", "0 0\n");
    assert_int_equal(cores_read(root, 8), 2);
    put("sys/fs/cgroup/cpu.max", "none\n");
    assert_int_equal(cores_read(root, 8), 2);
}

/* The hierarchy is that of "cpu", not of what begins so. */
static void test_groups_of_version_1(void **state)
{
    put("proc/self/cgroup", "7:cpuset:/other\n5:cpuacct,cpu:/box\n0::/\n");
    put("sys/fs/cgroup/cpu/other/cpu.cfs_quota_us", "100000\n");
    put("sys/fs/cgroup/cpu/other/cpu.cfs_period_us", "100000\n");
    put("sys/fs/cgroup/cpu/box/cpu.cfs_quota_us", "-1\n");
    put("sys/fs/cgroup/cpu/box/cpu.cfs_period_us", "100000\n");
    assert_int_equal(cores_read(root, 8), 8);
    put("sys/fs/cgroup/cpu/box/cpu.cfs_quota_us", "250000\n");
    assert_int_equal(cores_read(root, 8), 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_no_groups, make, unmake),
        cmocka_unit_test_setup_teardown(test_groups, make, unmake),
        cmocka_unit_test_setup_teardown(test_groups_of_version_1, make, unmake),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
