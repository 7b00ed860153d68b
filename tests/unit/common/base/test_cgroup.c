/* Whose limits hold: the folders of this process's groups, read from made-up /proc and /sys. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>

#include "common/base/cgroup.h"
#include "common/base/file.h"

static char root[64];

static int make(void **state)
{
    strcpy(root, "/tmp/skerry-cgroup-XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int unmake(void **state)
{
    struct err err = {0};
    return file_remove_tree(root, &err);
}

/* Each folder below root/sys/fs/cgroup, with the version. */
static void tell(void *arg, const char *dir, bool v2)
{
    char *out = arg, mount[128];
    (void)snprintf(mount, sizeof mount, "%s/sys/fs/cgroup", root);
    assert_true(str_starts(dir, mount));
    const size_t len = strlen(out);
    (void)snprintf(out + len, 16384 - len, "%s%d%s", *out ? " " : "", v2 ? 2 : 1,
                   dir + strlen(mount));
}

/* What is called for a process whose /proc/self/cgroup has this text; static. */
static const char *groups_of(const char *text, const char *controller)
{
    static char out[16384];
    char *dir = str_printf("%s/proc/self", root), *path = file_join(dir, "cgroup");
    struct err err = {0};
    if (file_mkdirs(dir, 0700, &err) < 0 ||
        file_write_atomic(path, text, strlen(text), 0600, &err) < 0)
        fail_msg("%s", err.msg);
    mem_free(path);
    mem_free(dir);
    *out = '\0';
    cgroup_each(root, controller, tell, out);
    return out;
}

/* Its own group first, then each above it, and the mount point once. */
static void test_version_2(void **state)
{
    assert_string_equal(groups_of("0::/a/b\n", "cpu"), "2/a/b 2/a 2");
    assert_string_equal(groups_of("0::/a:b/c", "cpu"), "2/a:b/c 2/a:b 2");
    assert_string_equal(groups_of("0::/\n", "cpu"), "2");
    assert_string_equal(groups_of("0::\n", "cpu"), "2");
}

/* The hierarchy that has the controller, under its name, whatever others there are. */
static void test_version_1(void **state)
{
    static const char text[] = "9:cpuset:/set\n5:cpuacct,cpu:/box\n4:memory:/m/n\n"
                               "2:name=systemd:/s\n0::/two\n";
    assert_string_equal(groups_of(text, "cpu"), "1/cpu/box 1/cpu 2/two 2");
    assert_string_equal(groups_of(text, "memory"), "1/memory/m/n 1/memory/m 1/memory 2/two 2");
    assert_string_equal(groups_of(text, "cpuacct"), "1/cpuacct/box 1/cpuacct 2/two 2");
    assert_string_equal(groups_of(text, "mem"), "2/two 2");
    assert_string_equal(groups_of(text, "memory2"), "2/two 2");
    assert_string_equal(groups_of("3:memory:/\n", "memory"), "1/memory");
}

/* Without the file, or with lines that are none, there are no groups. */
static void test_none(void **state)
{
    char out[16384] = "";
    cgroup_each(root, "cpu", tell, out);
    assert_string_equal(out, "");
    assert_string_equal(groups_of("", "cpu"), "");
    assert_string_equal(groups_of("cpu\n1\n:\n4:cpu\n", "cpu"), "");
    char *long_root = mem_alloc(5000);
    memset(long_root, 'x', 4999);
    cgroup_each(long_root, "cpu", tell, out);
    assert_string_equal(out, "");
    mem_free(long_root);
}

/* A folder's name that would be too long is left out, and not cut to another's. */
static void test_long(void **state)
{
    char *group = mem_alloc(4096), *text;
    memset(group, 'g', 4080);
    text = str_printf("0::/%s\n5:cpu:/box\n", group);
    assert_string_equal(groups_of(text, "cpu"), "1/cpu/box 1/cpu");
    mem_free(text);
    mem_free(group);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_version_2, make, unmake),
        cmocka_unit_test_setup_teardown(test_version_1, make, unmake),
        cmocka_unit_test_setup_teardown(test_none, make, unmake),
        cmocka_unit_test_setup_teardown(test_long, make, unmake),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
